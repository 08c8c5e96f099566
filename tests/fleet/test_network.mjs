// test_network.mjs - nodes behind cables that are pulled, packets that vanish, slow lines.
import assert from 'node:assert/strict';
import { finish, test, until } from '../clients/fleet.mjs';
import { insideNamespaces, Network } from './netns.mjs';
import { startRelay } from './relay.mjs';
import { ask, body, content, events, fullLength, Rig } from './rig.mjs';

await insideNamespaces(import.meta.url, ['a pulled cable', 'a line without packets', 'another address', 'a slow line']);
const network = new Network();
const amber = await network.host(), basalt = await network.host();
const mesh = ['--mesh', `tcp://${network.address}:0`, '--mesh-allow-plain'];
const open = (args = [], fakes) => Rig.open([...mesh, ...args], fakes, { hosts: { amber, basalt } });
const state = async (rig, name) => (await rig.node(name))?.state;
let mended = async () => {};
// A test that fails inside a cut must not leave the next one behind it.
const mendedTest = (sentence, run) => test(sentence, async () => { try { await run(); } finally { await mended().catch(() => {}); } });
const cable = { 'its cable is pulled': [() => amber.pull(), () => amber.plug()], 'its packets vanish': [() => amber.drop(), () => amber.pass()] };

for (const [what, [cut, mend]] of Object.entries(cable)) {
    mended = mend;
    await mendedTest(`a node is suspect, down, and back within a beat of the line's return when ${what}; nothing old arrives`, async () => {
        const rig = await open([], [['amber', '--decode', '1000'], ['basalt', '--decode', '50']]);
        assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).node, 'amber');
        const since = Date.now();
        await cut();
        // Before the silence is noticed: this goes to amber and into the void, then to basalt.
        const losing = ask(rig.url, body({ max_tokens: 3, stream: true }));
        await until(async () => (await state(rig, 'amber')) === 'suspect', 'suspect', 3000);
        const lost = await losing;
        assert.equal(content(events(lost.text)), 't0 t1 t2 ');
        assert.equal(events(lost.text).find((e) => e.siliceo)?.siliceo.node, 'basalt'); // its header may have gone out before
        await until(async () => (await state(rig, 'amber')) === 'down', 'down', 5000);
        assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).node, 'basalt');
        if (fullLength) await until(() => Date.now() - since > 300000, 'five minutes of it');
        const submits = rig.fake('amber').events.filter((e) => e.event === 'submit').length;
        await mend();
        await until(async () => (await state(rig, 'amber')) === 'ready', 'ready again', 5000);
        await until(async () => (await ask(rig.url, body({ max_tokens: 2 }))).node === 'amber', 'amber serves', 5000);
        assert.ok(rig.fake('amber').events.filter((e) => e.event === 'submit').length <= submits + 3);
        await rig.idle();
        await rig.close();
    });
    await mendedTest(`a blink shorter than the limit loses nothing when ${what}`, async () => {
        const rig = await open(['--node-suspect-s', '4', '--node-down-s', '8', '--node-reconnect-s', '4'], [['amber', '--decode', '20']]);
        const streaming = ask(rig.url, body({ stream: true, max_tokens: 60 }));
        await until(async () => (await rig.metric('siliceo_completion_tokens_total')) > 2, 'tokens flow');
        await cut();
        const at = Date.now();
        await until(() => Date.now() - at > (fullLength ? 2000 : 300), 'the blink'); // the length of the fault itself
        await mend();
        const list = events((await streaming).text);
        assert.equal(content(list), Array.from({ length: 60 }, (_, i) => `t${i} `).join(''));
        assert.equal(list.at(-1), '[DONE]');
        await rig.close();
    });
}
await test('a node that gets another address comes back by itself', async () => {
    const rig = await open([], [['basalt', '--decode', '1000']]);
    await basalt.move();
    await until(async () => (await state(rig, 'basalt')) !== 'ready', 'its silence is seen', 5000);
    await until(async () => (await state(rig, 'basalt')) === 'ready', 'ready again', 20000);
    assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).status, 200);
    await rig.close();
});
await test('a slow, late line delays its own streams and nobody else', async () => {
    const rig = await open([], [['basalt', '--decode', '200', '--model', 'near']]);
    const relay = await startRelay(rig.coordinator.mesh.replace('tcp://', ''), { delayMs: 100, bytesPerS: 20000 });
    const whole = { ...rig.coordinator };
    rig.coordinator = { ...whole, mesh: `tcp://${relay.address}` };
    await rig.add('far', '--decode', '500', '--model', 'far', '--slots', '8');
    rig.coordinator = whole;
    const far = Array.from({ length: 8 }, () => ask(rig.url, body({ model: 'far', stream: true, max_tokens: 100 })));
    const near = await ask(rig.url, body({ model: 'near', stream: true, max_tokens: 20 }));
    assert.equal(events(near.text).at(-1), '[DONE]');
    for (const r of await Promise.all(far)) assert.equal(content(events(r.text)), Array.from({ length: 100 }, (_, i) => `t${i} `).join(''));
    relay.set({ hold: true });
    await until(async () => (await state(rig, 'far')) === 'suspect', 'suspect', 5000);
    relay.set({ hold: false });
    await until(async () => (await state(rig, 'far')) === 'ready', 'ready', 5000);
    await rig.close();
    await relay.stop();
});
await network.close();
finish();
