// test_dashboard.mjs - the page at `/` in a headless Chromium, before real coordinators and workers.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { spawnSync } from 'node:child_process';
import { finish, program, skip, startFleet, stop, temporaryFolder, test, until } from '../clients/fleet.mjs';
import { body, open, Rig } from '../fleet/rig.mjs';
import { openBrowser } from './browser.mjs';

const browser = await openBrowser();
if (browser === null) {
    skip('the dashboard', 'there is no chromium');
    finish();
}
const desk = { width: 1280, height: 900 };
const phone = { width: 360, height: 740, mobile: true, scale: 2 };
const card = (name) => `document.querySelector('[data-node="${name}"]')`;
const state = (name) => `${card(name)}?.dataset.state`;
const button = (name, verb) => `[...${card(name)}.querySelectorAll('button')].find((b) => b.textContent === '${verb}' && b.offsetParent !== null)`;
// Nothing was complained about and nobody else was asked for anything.
function isClean(page, url) {
    assert.deepEqual(page.complaints, []);
    assert.ok(page.requests.length > 0);
    for (const r of page.requests) assert.ok(r.startsWith(url + '/'), `a request to ${r}`);
}

await test('real workers appear with their state, rates and memory, a running answer is listed, and the chart moves', async () => {
    const fleet = await startFleet();
    const page = await browser.page(desk);
    await page.go(fleet.url + '/');
    for (const name of ['amber', 'basalt']) await page.until(`${state(name)} === 'ready'`, `${name} ready`);
    assert.equal(await page.run(`document.querySelector('#verdict').textContent`), 'all is well');
    assert.match(await page.run(`${card('basalt')}.textContent`), /profile quarter/);
    const answer = fetch(`${fleet.url}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json', 'x-request-id': 'seen-in-the-table' },
        body: JSON.stringify({ model: 'demo', messages: [{ role: 'user', content: 'Who wrote The Name of the Rose?' }] }) });
    assert.equal((await answer).status, 200);
    await page.until(`Number(document.querySelector('#t-finished').textContent) >= 1`, 'it is counted');
    await page.until(`document.querySelector('#curve').getAttribute('d').length > 10`, 'a curve');
    await page.until(`/scale/.test(document.querySelector('#peak').textContent)`, 'its scale');
    isClean(page, fleet.url);
    await fleet.stop();
});

const rig = await Rig.open([], [['amber', '--decode', '40'], ['basalt', '--decode', '20']]);
await test('a killed worker is shown as suspect, then down, and can be forgotten; a drained one can be resumed', async () => {
    const page = await browser.page(desk);
    await page.go(rig.url + '/');
    await page.until(`${state('basalt')} === 'ready'`, 'ready');
    const running = open(rig, body({ stream: true, max_tokens: 100000 }));
    await page.until(`document.querySelectorAll('#requests tr').length === 1`, 'a row of the request');
    assert.match(await page.run(`document.querySelector('#requests tr').textContent`), /fake-model.*amber/);
    assert.equal(await page.run(`${card('amber')}.querySelector('[aria-label="Prompt hits"]').getAttribute('aria-valuetext')`), '75 %');
    assert.match(await page.run(`${card('amber')}.textContent`), /Prompts held9 states · 40 pages · 12 MiB · 2 GiB on disk/);
    await page.until(`Number(document.querySelector('#rate').textContent) > 10`, 'tokens a second');
    running.socket.destroy();
    await page.until(`document.querySelectorAll('#requests tr').length === 0`, 'the row goes');

    await page.run(`${button('amber', 'Drain')}.click()`);
    await page.until(`${state('amber')} === 'draining'`, 'draining');
    assert.equal((await rig.node('amber')).state, 'draining');
    await page.run(`${button('amber', 'Resume')}.click()`);
    await page.until(`${state('amber')} === 'ready'`, 'ready again');

    await stop(rig.fake('basalt'), 'SIGKILL');
    await page.until(`['suspect', 'down'].includes(${state('basalt')})`, 'suspect');
    await page.until(`${state('basalt')} === 'down'`, 'down');
    assert.match(await page.run(`document.querySelector('#verdict').textContent`), /1 of 2 nodes/);
    assert.equal(await page.run(`document.querySelector('.node').dataset.node`), 'basalt', 'trouble comes first');
    await page.run(`${button('basalt', 'Forget')}.click()`);
    await page.until(`${card('basalt')} === null`, 'forgotten');
    isClean(page, rig.url);
});
await test('on a phone nothing is wider than the screen, fingers find the buttons, and both colour schemes have contrast', async () => {
    const page = await browser.page({ ...phone, scheme: 'dark' });
    await page.go(rig.url + '/');
    await page.until(`${state('amber')} === 'ready'`, 'ready');
    assert.ok(await page.run('document.documentElement.scrollWidth <= innerWidth'));
    assert.ok(await page.run(`(({ bottom, height }) => height > 0 && bottom <= ${card('amber')}.getBoundingClientRect().bottom)(${card('amber')}.querySelector('.whole').getBoundingClientRect())`), 'what is held of prompts is there');
    assert.deepEqual(await page.run(`[...document.querySelectorAll('button')].filter((b) => b.offsetParent !== null && b.getBoundingClientRect().height < 40).length`), 0);
    const luminance = `((c) => { const [r, g, b] = c.match(/[\\d.]+/g).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; })`;
    const shades = [];
    for (const scheme of ['dark', 'light']) {
        await page.scheme(scheme);
        const [ground, ...inks] = await page.run(`[getComputedStyle(document.querySelector('.node')).backgroundColor, ...['h3', '.sub', 'dt', 'dd', '.state', '.foot span', '.meter'].map((s) => getComputedStyle(document.querySelector('.node ' + s)).color)].map(${luminance})`);
        shades.push(ground);
        for (const ink of inks) assert.ok((Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05) >= 4.5, `${scheme}: a contrast of ${(Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05)}`);
    }
    assert.ok(shades[0] < 0.1 && shades[1] > 0.8, `${shades}`);
    isClean(page, rig.url);
});
await test('a keyboard reaches the buttons with a visible focus, and a screen reader finds names and values', async () => {
    const page = await browser.page(desk);
    await page.go(rig.url + '/');
    await page.until(`${state('amber')} === 'ready'`, 'ready');
    await page.press('Tab');
    assert.equal(await page.run(`document.activeElement.getAttribute('aria-label')`), 'Drain amber');
    assert.equal(await page.run(`getComputedStyle(document.activeElement).outlineStyle`), 'solid');
    await page.press('Enter');
    await page.until(`${state('amber')} === 'draining'`, 'draining by keyboard');
    assert.equal(await page.run(`document.activeElement.getAttribute('aria-label')`), 'Resume amber', 'the focus stays');
    await page.press('Enter');
    await page.until(`${state('amber')} === 'ready'`, 'ready again');
    const tree = await page.tree();
    for (const [role, name] of [['heading', /^amber$/], ['heading', /^Requests/i], ['meter', /^Expert hits$/], ['meter', /^Prompt hits$/], ['image', /^tokens a second over the last five minutes: now/], ['status', /./], ['button', /^Drain amber$/]]) {
        assert.ok(tree.some((n) => n.role === role && (name.test(n.name) || role === 'status')), `${role} ${name}`);
    }
});
await test('the page forbids everything but its own script and style, and a coordinator that vanishes is said to', async () => {
    const reply = await fetch(rig.url + '/');
    const policy = reply.headers.get('content-security-policy');
    assert.match(policy, /^default-src 'none'; script-src 'sha256-[^']+'; style-src 'sha256-[^']+'; connect-src 'self'/);
    assert.ok(!/unsafe/.test(policy));
    assert.equal(reply.headers.get('x-content-type-options'), 'nosniff');
    const page = await browser.page(desk);
    await page.go(rig.url + '/');
    await page.until(`${state('amber')} === 'ready'`, 'ready');
    await rig.close();
    await page.until(`/does not answer/.test(document.querySelector('#verdict').textContent)`, 'it says so');
});
await test('where there are keys it asks for one, refuses a wrong one, and shows no buttons to a key that may not', async () => {
    const folder = temporaryFolder();
    const make = (name) => {
        const { stdout, stderr } = spawnSync(program('siliceo-coordinator'), ['keygen', '--api', name], { encoding: 'utf8' });
        return { line: stdout.trim(), key: /sk-\S+/.exec(stderr)[0] };
    };
    const admin = make('boss'), plain = make('guest');
    writeFileSync(`${folder}/keys`, `${admin.line} admin=true\n${plain.line}\n`);
    const keyed = await Rig.open(['--api-keys-file', `${folder}/keys`], []);
    const page = await browser.page(desk);
    await page.go(keyed.url + '/');
    await page.until(`document.querySelector('#ask').open`, 'it asks');
    await page.type('not-a-key');
    await page.press('Enter');
    await page.until(`/not known/.test(document.querySelector('#ask-error').textContent)`, 'it says no');
    for (const [key, may] of [[plain.key, false], [admin.key, true]]) {
        await page.run(`sessionStorage.removeItem('siliceo-key'); poll()`);
        await page.until(`document.querySelector('#ask').open`, 'it asks again');
        await page.type(key);
        await page.press('Enter');
        await page.until(`!document.querySelector('#ask').open && /first node/.test(document.querySelector('#verdict').textContent)`, 'the fleet');
        assert.equal(await page.run('mayAdmin'), may);
    }
    await stop(keyed.coordinator);
    assert.equal(await page.run('localStorage.length'), 0);
    assert.equal(await page.run(`document.cookie`), '');
});
await browser.close();
finish();
