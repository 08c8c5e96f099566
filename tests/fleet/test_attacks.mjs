// test_attacks.mjs - links that lie, clients that send what no client should, and what both leave behind.
import assert from 'node:assert/strict';
import { finish, start, startCoordinator, startWorker, test } from '../clients/fleet.mjs';
import { ask, body, content, events, open, raw, Rig, stop, until } from './rig.mjs';

// ---------------------------------------------------------------- links
await test('a process that connects twice is one node over its first link, and no request hangs', async () => {
    const rig = await Rig.open([], [['amber', '--nodes', '2', '--fault', 'twin', '--decode', '500']]);
    await until(() => rig.fake('amber').events.some((e) => e.event === 'refused'), 'the second link is refused');
    assert.match(rig.log, /another link of the same process/);
    const all = await Promise.all(Array.from({ length: 20 }, () => ask(rig.url, body({ max_tokens: 5 }))));
    for (const r of all) assert.equal(r.status, 200);
    assert.equal((await rig.nodes()).length, 1);
    await rig.idle();
    await rig.close();
});
await test('a worker told its coordinator twice, in one spelling or two, serves it once', async () => {
    const coordinator = await startCoordinator();
    const port = coordinator.mesh.split(':').at(-1);
    const worker = await startWorker(coordinator.mesh, 'amber', ['--coordinator', coordinator.mesh, '--coordinator', `tcp://localhost:${port}`, '--measure-ms', '0']);
    await until(async () => (await fetch(coordinator.url + '/readyz')).status === 200, 'ready');
    await until(() => /named-twice/.test(worker.log) && /coordinator-refuses/.test(worker.log), 'the worker says so');
    for (let i = 0; i < 5; i++) assert.equal((await ask(coordinator.url, body({ model: 'demo', max_tokens: 4 }))).status, 200);
    await stop(worker);
    await stop(coordinator);
});

await test('a worker whose name no coordinator admits does not start', async () => {
    await assert.rejects(startWorker('tcp://127.0.0.1:1', 'caf\u00e9'), /name = 'caf\u00e9' has other characters than letters/);
});
await test('a worker of another wire version is told both versions and is no node', async () => {
    const rig = await Rig.open();
    const fake = await start('tests/fleet/fake_worker', ['--coordinator', rig.coordinator.mesh, '--name', 'amber', '--fault', 'future'], /"event":"refused"/);
    await until(() => /mesh-garbage.*wire version 2, this build speaks version 1/.test(rig.log), 'the log says so');
    assert.equal((await rig.nodes()).length, 0);
    await stop(fake, 'SIGKILL');
    await rig.close();
});
await test('100 restarts under one name in a row: each is served, one node is listed', async () => {
    const rig = await Rig.open();
    for (let i = 0; i < 100; i++) {
        const fake = await start('tests/fleet/fake_worker', ['--coordinator', rig.coordinator.mesh, '--name', 'amber', '--decode', '2000'], /"event":"welcome"/);
        await until(async () => (await rig.node('amber')).state === 'ready', 'ready');
        assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).status, 200);
        await stop(fake, 'SIGKILL');
    }
    assert.equal((await rig.nodes()).length, 1);
    await rig.idle();
    await rig.close();
});

// ---------------------------------------------------------------- bodies
await test('no body that is allowed holds up another stream for long, and one that is not is refused', async () => {
    const rig = await Rig.open([], [['amber', '--decode', '200', '--prefill', '1e12', '--context', '100000000']]);
    const o = open(rig, body({ stream: true, max_tokens: 100000 }));
    const slack = /address|thread/.test(process.env.SILICEO_BUILD ?? '') ? 3000 : 500; // what a busy test machine may add
    let last = 0, gap = 0;
    o.socket.on('data', () => { const now = performance.now(); gap = Math.max(gap, last > 0 ? now - last : 0); last = now; });
    const message = (content) => JSON.stringify(body({ max_tokens: 1, messages: [{ role: 'user', content }] }));
    const quotes = '"\n'.repeat(1900000), many = Array.from({ length: 90000 }, () => ({ role: 'user', content: 'hi' }));
    for (const [text, status, what] of [[message('x'.repeat(8000000)), 200, 'text'], [message(quotes), 200, 'escapes'],
        [JSON.stringify(body({ max_tokens: 1, messages: many })), 200, 'messages'],
        [`{"messages":[${'1,'.repeat(3900000)}1]}`, 400, 'more than 300000 values'], [message('x'.repeat(30000000)), 413, 'over the limit of 8388608']]) {
        await until(() => /"t5 "/.test(o.text), 'the other stream flows');
        gap = 0;
        const r = await ask(rig.url, text);
        assert.equal(r.status, status, `${what}: ${r.text.slice(0, 200)}`);
        if (status !== 200) assert.match(r.json.error.message, new RegExp(what));
        assert.ok(gap < 100 + slack, `${what}: ${gap} ms`);
    }
    o.socket.destroy();
    await rig.idle();
    await rig.close();
});

await test('a stream whose headers went out before it was placed names its node in the last chunk', async () => {
    const rig = await Rig.open(['--http-hold-headers-s', '0', '--http-keepalive-s', '0.05'], [['amber', '--slots', '1', '--decode', '50', '--prefill', '1e12']]);
    const first = ask(rig.url, body({ max_tokens: 20 }));
    await until(async () => (await rig.node('amber')).running === 1, 'the place is taken');
    const r = await ask(rig.url, body({ stream: true, max_tokens: 2 }));
    assert.equal(r.node, null);
    assert.ok(r.text.startsWith(': '), r.text.slice(0, 40));
    assert.equal(events(r.text).at(-2).siliceo.node, 'amber');
    assert.equal((await first).status, 200);
    await rig.close();
});

finish();
