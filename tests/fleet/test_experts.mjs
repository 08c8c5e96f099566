// test_experts.mjs - a worker knows after a restart which experts were used, however it ended.
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { finish, startCoordinator, startWorker, stop, temporaryFolder, test, until } from '../clients/fleet.mjs';

const folder = temporaryFolder() + '/experts';
const coordinator = await startCoordinator(['--mesh-beat-s', '0.1', '--node-suspect-s', '0.5', '--node-down-s', '1.5']);
const node = async () => (await (await fetch(coordinator.url + '/status')).json()).nodes.find((n) => n.state === 'ready');
const open = async (...more) => {
    const worker = await startWorker(coordinator.mesh, 'amber', ['--slots', '64', '--measure-ms', '50', '--experts-dir', folder, ...more]);
    await until(node, 'the node is ready');
    return worker;
};
const ask = async (content = 'Who wrote The Name of the Rose?') => {
    const reply = await fetch(coordinator.url + '/v1/chat/completions', { method: 'POST', headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'demo', messages: [{ role: 'user', content }], temperature: 0, max_tokens: 24 }) });
    assert.equal(reply.status, 200);
    return (await reply.json()).choices[0].message.content;
};
const lists = () => existsSync(folder) ? readdirSync(folder) : [];
const path = () => `${folder}/${lists()[0]}`;
const byUse = (worker) => Number(/expert-list .*by_use=(\d+)/.exec(worker.log)?.[1]);

let text;
await test('a worker that stops leaves a list, and the next one fills its slots by it', async () => {
    const first = await open('--warm-up-ms', '300');
    assert.equal(byUse(first), 0);
    text = await ask();
    assert.equal((await stop(first)).code, 0, first.log);
    assert.equal(lists().length, 1);
    assert.match(lists()[0], /^[0-9a-f]{32}\.experts$/);
    assert.equal(statSync(path()).mode & 0o777, 0o600);
    const second = await open('--warm-up-ms', '300');
    assert.equal(byUse(second), 64);
    assert.equal(await ask(), text);
    assert.equal((await stop(second)).code, 0, second.log);
});
await test('a worker that is killed leaves the last list it wrote', async () => {
    const before = readFileSync(path());
    const first = await open('--experts-save-s', '0.1');
    await ask('Tell me a story about a fox and a lamp.');
    await until(() => !readFileSync(path()).equals(before), 'a list is written while it serves');
    await stop(first, 'SIGKILL');
    await until(async () => await node() === undefined, 'the coordinator knows');
    const second = await open();
    assert.equal(byUse(second), 64);
    assert.equal(lists().length, 1);
    assert.equal((await stop(second)).code, 0, second.log);
});
await test('a damaged list is named and not used; the answer is the same, and a good list takes its place', async () => {
    const bytes = readFileSync(path());
    bytes[100] ^= 1;
    writeFileSync(path(), bytes);
    const first = await open();
    assert.match(first.log, /expert-list-refused .*\.experts: the table's hash is another/);
    assert.equal(byUse(first), 0);
    assert.equal(await ask(), text);
    assert.equal((await stop(first)).code, 0, first.log);
    const second = await open();
    assert.equal(byUse(second), 64);
    assert.equal((await stop(second)).code, 0, second.log);
});
await test('where no list can be written that is said, and nothing else happens', async () => {
    const worker = await open('--experts-dir', '/proc/none', '--experts-save-s', '0.1');
    assert.equal(await ask(), text);
    await until(() => /expert-list-not-written \/proc\/none/.test(worker.log), 'it is said');
    assert.equal(await ask(), text);
    assert.equal((await stop(worker)).code, 0, worker.log);
    assert.equal(worker.log.match(/expert-list-not-written/g).length, 1);
});
assert.equal((await stop(coordinator)).code, 0);
finish();
