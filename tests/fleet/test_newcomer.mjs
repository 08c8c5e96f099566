// test_newcomer.mjs - what people do the first time: things started in another order, at the wrong port, by half.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import net from 'node:net';
import { finish, program, start, startCoordinator, startWorker, stop, temporaryFolder, test, until } from '../clients/fleet.mjs';
import { ask, body, events, Rig } from './rig.mjs';

const run = (name, ...args) => spawnSync(program(name), ['serve', ...args], { encoding: 'utf8', timeout: 20000 });
const freePort = () => new Promise((resolve) => { const s = net.createServer().listen(0, '127.0.0.1', () => { const { port } = s.address(); s.close(() => resolve(port)); }); });

await test('localhost is an address for both programs', async () => {
    const c = await startCoordinator(['--http', 'localhost:0', '--mesh', 'tcp://localhost:0']);
    assert.match(c.mesh, /^tcp:\/\/127\.0\.0\.1:\d+$/);
    const w = await startWorker(c.mesh.replace('127.0.0.1', 'localhost'), 'amber', ['--measure-ms', '0']);
    await until(async () => (await fetch(`${c.url}/readyz`)).status === 200, 'ready');
    await stop(w);
    assert.equal((await stop(c)).code, 0);
});
await test('an address that is none is one line that says what is expected', () => {
    for (const address of ['127.0.0.1:5690', 'http://127.0.0.1:8080', 'localhost:5690', 'tcp://127.0.0.1']) {
        const r = run('siliceo-worker', '--model', 'deploy/models/demo.gguf', '--coordinator', address);
        assert.equal(r.status, 2, r.stderr);
        assert.match(r.stderr, /is no tcp:\/\/HOST:PORT/, r.stderr);
        assert.equal(r.stderr.trim().split('\n').length, 1, r.stderr);
    }
    const r = run('siliceo-coordinator', '--http', '127.0.0.1:0', '--mesh', 'tcp://no-such-host.invalid:5690', '--mesh-allow-plain');
    assert.equal(r.status, 1);
    assert.match(r.stderr, /mesh: .*no-such-host\.invalid:5690.*is no address of this machine/, r.stderr);
});
await test('worker first, coordinator minutes later; then the coordinator is killed and started again, and again', async () => {
    const [http, mesh] = [`127.0.0.1:${await freePort()}`, `tcp://127.0.0.1:${await freePort()}`];
    const worker = await startWorker(mesh, 'amber', ['--measure-ms', '0']); // ready without anybody to serve
    for (let i = 0; i < 3; i++) {
        const c = await start('siliceo-coordinator', ['serve', '--http', http, '--mesh', mesh], /^ready /);
        await until(async () => (await fetch(`http://${http}/readyz`)).status === 200, 'ready', 15000);
        const r = await ask(`http://${http}`, body({ model: 'demo', max_tokens: 3 }));
        assert.equal(r.status, 200, r.text);
        await stop(c, i === 1 ? 'SIGTERM' : 'SIGKILL');
    }
    assert.equal((await stop(worker)).code, 0);
});
await test('the ports mixed up: a worker at the HTTP port, a browser at the mesh, both at once; nobody is harmed', async () => {
    const rig = await Rig.open([], [['amber', '--decode', '200']]);
    const lost = await startWorker(`tcp://${new URL(rig.url).host}`, 'lost', ['--measure-ms', '0', '--mesh-connect-s', '0.5']);
    await until(() => /coordinator-handshake-failed.*is no coordinator/.test(lost.log), 'the worker says so');
    const [host, port] = rig.coordinator.mesh.replace('tcp://', '').split(':');
    const visitors = ['GET / HTTP/1.1\r\nHost: x\r\n\r\n', '\xff\0\0\0\0\0\0\0\x01\x7f', '', 'x'.repeat(100000)].flatMap((text) => Array.from({ length: 10 }, () => {
        const s = net.connect(Number(port), host, () => s.write(Buffer.from(text, 'latin1')));
        s.on('error', () => {});
        return s;
    }));
    for (const r of await Promise.all(Array.from({ length: 20 }, () => ask(rig.url, body({ max_tokens: 5 }))))) assert.equal(r.status, 200);
    assert.deepEqual((await rig.nodes()).map((n) => n.name), ['amber']);
    for (const s of visitors) s.destroy();
    await stop(lost);
    await rig.idle();
    await rig.close();
});
await test('two coordinators write into one ledger file; each has its rows', async () => {
    const file = `${temporaryFolder()}/ledger.sqlite`;
    const rigs = [];
    for (const name of ['a', 'b']) rigs.push(await Rig.open(['--ledger-url', file], [[`node-${name}`, '--decode', '1000']]));
    await Promise.all(rigs.flatMap((rig) => Array.from({ length: 50 }, () => ask(rig.url, body({ max_tokens: 1 })))));
    for (const rig of rigs) {
        await rig.idle();
        await until(async () => await rig.metric('siliceo_ledger_rows_waiting') === 0, 'all is written');
        await rig.close();
    }
    const usage = JSON.parse(spawnSync(program('siliceo-coordinator'), ['usage', '--ledger-url', file, '--json', '--by', 'node'], { encoding: 'utf8' }).stdout);
    assert.deepEqual(usage.map((l) => [l.node, l.requests]).sort(), [['node-a', 50], ['node-b', 50]]);
});
await test('every process but one is killed in the middle of an answer, in several orders; what is left says what is true', async () => {
    for (const order of [['amber', 'coordinator'], ['coordinator', 'amber'], ['amber', 'basalt']]) {
        const rig = await Rig.open([], [['amber', '--decode', '50'], ['basalt', '--decode', '40']]);
        const stream = ask(rig.url, body({ stream: true, max_tokens: 60 })).catch((e) => ({ text: '', cut: String(e) }));
        await until(async () => await rig.metric('siliceo_completion_tokens_total') > 3, 'tokens');
        for (const name of order) await stop(name === 'coordinator' ? rig.coordinator : rig.fake(name), 'SIGKILL');
        const list = events((await stream).text);
        assert.ok(!list.includes('[DONE]'), order.join());
        if (order.includes('coordinator')) {
            for (const fake of rig.fakes) await stop(fake, 'SIGKILL');
            continue;
        }
        assert.match(list.at(-1).error.message, /lost|broke/);
        await until(async () => (await rig.nodes()).every((n) => n.state === 'down'), 'both are down');
        const r = await ask(rig.url, body());
        assert.deepEqual([r.status, r.json.error.code], [503, 'no_node']);
        await rig.close();
    }
});
finish();
