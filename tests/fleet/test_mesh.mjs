// test_mesh.mjs - ZeroMQ's traps, with real processes: dead and stalled peers, restarts, slow nodes.
import assert from 'node:assert/strict';
import { finish, start, test } from '../clients/fleet.mjs';
import { ask, body, content, events, open, Rig, stop, streamed, until } from './rig.mjs';

const words = (n) => Array.from({ length: n }, (_, i) => `t${i} `).join('');

await test('a stalled node that is then killed never blocks the others; its requests go elsewhere', async () => {
    const rig = await Rig.open(['--node-down-s', '5', '--node-suspect-s', '4', '--limit-first-token-s', '60'], [['stalled', '--slots', '64', '--decode', '5000', '--prefill', '900000', '--context', '9999999'], ['well', '--slots', '64', '--decode', '200', '--prefill', '300000', '--context', '9999999']]);
    rig.fake('stalled').child.kill('SIGSTOP');
    // Its queue in ZeroMQ and the kernel fills with bodies that nobody reads.
    const large = body({ max_tokens: 5, messages: [{ role: 'user', content: 'x'.repeat(400000) }] });
    const into = Array.from({ length: 40 }, () => ask(rig.url, large));
    await until(async () => (await rig.node('stalled')).running > 20, 'they lie at the stalled one');
    const watched = open(rig, body({ stream: true, max_tokens: 60, messages: [{ role: 'user', content: 'y' }] }));
    let slowest = 0;
    for (let i = 0; i < 20; i++) {
        const at = performance.now();
        await (await fetch(rig.url + '/healthz')).text();
        slowest = Math.max(slowest, performance.now() - at);
    }
    const slack = /address|thread/.test(process.env.SILICEO_BUILD ?? '') ? 5 : 1; // it would be seconds until the stalled node counts as lost
    assert.ok(slowest < 1000 * slack, `/healthz took ${slowest} ms`);
    const at = performance.now();
    rig.fake('stalled').child.kill('SIGKILL');
    await until(async () => (await rig.node('stalled')).state !== 'ready', 'its end is seen', 3000);
    assert.ok(performance.now() - at < 2500 * slack, 'at once, not at a time-out');
    for (const r of await Promise.all(into)) assert.deepEqual([r.status, r.node], [200, 'well']);
    await until(() => watched.text.includes('[DONE]'), 'the stream ends');
    assert.equal(content(streamed(watched)), words(60));
    watched.socket.destroy();
    await rig.idle();
    await rig.close();
});

await test('a node killed and started again 100 times under load: every request is answered once and right', async () => {
    const rig = await Rig.open(['--node-reconnect-s', '0.1'], [['steady', '--slots', '8', '--decode', '400']]);
    let over = false, n = 0, resumed = 0;
    const load = Array.from({ length: 6 }, async (_, k) => {
        while (!over) {
            const stream = (n++ + k) % 2 === 0, tokens = 5 + n % 20;
            const r = await ask(rig.url, body({ stream, max_tokens: tokens }));
            assert.equal(r.status, 200, r.text);
            const list = stream ? events(r.text) : null;
            assert.equal(stream ? content(list) : r.json.choices[0].message.content, words(tokens));
            if (stream) {
                assert.equal(list.at(-1), '[DONE]');
                if (list.find((e) => e.siliceo?.resumed)) resumed++;
            }
        }
    });
    const failed = Promise.all(load).catch((e) => { over = true; throw e; });
    for (let i = 0; i < 100 && !over; i++) {
        const fake = await start('tests/fleet/fake_worker', ['--coordinator', rig.coordinator.mesh, '--name', 'phoenix', '--slots', '4', '--decode', '600'], /"event":"welcome"/);
        // Sometimes at once, sometimes when it has work.
        if (i % 4 !== 0) await until(async () => (await rig.node('phoenix'))?.running > 0 || over, 'it has work', 5000);
        await stop(fake, 'SIGKILL');
    }
    over = true;
    await failed;
    assert.equal((await rig.nodes()).length, 2);
    assert.ok(n > 100 && resumed > 0, `${n} requests, ${resumed} resumed`);
    await rig.idle();
    await rig.close();
});

await test('a slow node does not slow the streams of another', async () => {
    const rig = await Rig.open([], [['slow', '--slots', '32', '--decode', '3', '--model', 'slow-model'], ['quick', '--decode', '50']]);
    const slow = Array.from({ length: 32 }, () => open(rig, body({ model: 'slow-model', stream: true, max_tokens: 200 })));
    await until(async () => (await rig.node('slow')).running === 32, 'the slow one is full');
    const o = open(rig, body({ stream: true, max_tokens: 60 })), gaps = [];
    let last = 0;
    o.socket.on('data', () => { const now = performance.now(); if (last > 0) gaps.push(now - last); last = now; });
    await until(() => o.text.includes('[DONE]'), 'the end');
    assert.equal(content(streamed(o)), words(60));
    gaps.sort((a, b) => a - b);
    assert.ok(gaps[Math.floor(gaps.length * 0.9)] < 250, `gaps ${gaps.slice(-5)}`); // 20 ms are due
    for (const s of slow) s.socket.destroy();
    o.socket.destroy();
    await rig.idle();
    await rig.close();
});
finish();
