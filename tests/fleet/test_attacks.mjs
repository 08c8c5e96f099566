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

finish();
