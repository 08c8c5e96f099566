// browser.mjs - a headless Chromium spoken to over its DevTools pipe, with nothing between.
//
//     const browser = await openBrowser();            // null where there is no Chromium
//     const page = await browser.page({ width: 390, height: 844, mobile: true, scheme: 'dark' });
//     await page.go(url);  await page.run('document.title');  await page.shot('file.png');
//     page.complaints, page.requests                  // console errors, and every URL asked for
//     await browser.close();
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { until } from '../clients/fleet.mjs';

const names = ['chromium', 'chromium-browser', 'google-chrome'];
export function findBrowser() {
    for (const folder of (process.env.PATH ?? '').split(':')) {
        for (const name of names) if (existsSync(`${folder}/${name}`)) return `${folder}/${name}`;
    }
    return null;
}

export async function openBrowser() {
    const path = findBrowser();
    if (path === null) return null;
    const profile = mkdtempSync(`${tmpdir()}/siliceo-browser-`);
    const child = spawn(path, ['--headless=new', '--remote-debugging-pipe', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars', '--no-first-run',
        '--disable-background-networking', '--disable-component-update', '--disable-sync', `--user-data-dir=${profile}`, 'about:blank'],
    { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'], detached: true });
    const kill = () => { try { process.kill(-child.pid, 'SIGKILL'); } catch { /* gone */ } };
    process.on('exit', () => { kill(); rmSync(profile, { recursive: true, force: true, maxRetries: 5 }); });
    const [to, from] = [child.stdio[3], child.stdio[4]];
    const waiting = new Map(), pages = new Map();
    let last = 0, rest = '';
    from.on('data', (data) => {
        const pieces = (rest + data).split('\0');
        rest = pieces.pop();
        for (const piece of pieces) {
            const m = JSON.parse(piece);
            if (m.id === undefined) { pages.get(m.sessionId)?.event(m); continue; }
            const { resolve, reject } = waiting.get(m.id);
            waiting.delete(m.id);
            if (m.error) reject(new Error(m.error.message)); else resolve(m.result);
        }
    });
    child.on('exit', () => { for (const { reject } of waiting.values()) reject(new Error('the browser ended')); });
    to.on('error', () => {});
    const send = (method, params = {}, sessionId = undefined) => new Promise((resolve, reject) => {
        waiting.set(++last, { resolve, reject });
        to.write(JSON.stringify({ id: last, method, params, sessionId }) + '\0');
    });
    await send('Browser.getVersion');
    return {
        async page(view) {
            const { targetId } = await send('Target.createTarget', { url: 'about:blank' });
            const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
            const page = new Page((method, params) => send(method, params, sessionId));
            pages.set(sessionId, page);
            await page.open(view);
            return page;
        },
        async close() {
            await send('Browser.close').catch(() => {});
            await new Promise((resolve) => { child.once('exit', resolve); setTimeout(kill, 3000).unref(); });
        },
    };
}

class Page {
    complaints = [];
    requests = [];
    constructor(send) { this.send = send; }
    event({ method, params }) {
        if (method === 'Runtime.exceptionThrown') this.complaints.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
        if (method === 'Runtime.consoleAPICalled' && ['error', 'warning', 'assert'].includes(params.type)) this.complaints.push(JSON.stringify(params.args));
        if (method === 'Log.entryAdded' && ['error', 'warning'].includes(params.entry.level)) this.complaints.push(`${params.entry.text} ${params.entry.url ?? ''}`);
        if (method === 'Network.requestWillBeSent' && !params.request.url.startsWith('data:')) this.requests.push(params.request.url);
    }
    async open({ width, height, mobile = false, scheme = 'light', scale = 1 }) {
        for (const domain of ['Page', 'Runtime', 'Log', 'Network', 'Accessibility']) await this.send(`${domain}.enable`);
        await this.send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: scale, mobile });
        await this.scheme(scheme);
    }
    scheme(value) { return this.send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value }] }); }
    go(url) { return this.send('Page.navigate', { url }); }
    async run(expression) {
        const r = await this.send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
        if (r.exceptionDetails) throw new Error(r.exceptionDetails.exception?.description ?? r.exceptionDetails.text);
        return r.result.value;
    }
    until(expression, what, limitMs = 15000) { return until(() => this.run(expression).catch(() => false), what, limitMs); }
    async press(key) {
        const codes = { Tab: 9, Enter: 13 };
        const params = { key, code: key, windowsVirtualKeyCode: codes[key], ...(key === 'Enter' ? { text: '\r' } : {}) };
        await this.send('Input.dispatchKeyEvent', { type: 'keyDown', ...params });
        await this.send('Input.dispatchKeyEvent', { type: 'keyUp', ...params });
    }
    type(text) { return this.send('Input.insertText', { text }); }
    async shot(file, whole = false) {
        const { data } = await this.send('Page.captureScreenshot', { format: 'png', captureBeyondViewport: whole });
        writeFileSync(file, Buffer.from(data, 'base64'));
    }
    // The accessible tree's roles and names.
    async tree() {
        const { nodes } = await this.send('Accessibility.getFullAXTree');
        return nodes.filter((n) => !n.ignored).map((n) => ({ role: n.role?.value, name: n.name?.value ?? '' }));
    }
}
