// test_probe.mjs - deploy/probe.sh: what it prints, how it ends, and who may see the key.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { finish, program, stop, temporaryFolder, test, until } from '../clients/fleet.mjs';
import { Rig } from './rig.mjs';

const probe = (args, env = {}) => new Promise((resolve) => {
    const child = spawn('sh', ['deploy/probe.sh', ...args], { env: { PATH: process.env.PATH, ...env } });
    const r = { out: '', err: '' };
    child.stdout.on('data', (data) => { r.out += data; });
    child.stderr.on('data', (data) => { r.err += data; });
    child.on('close', (code) => resolve({ ...r, code }));
});
await test('a line a node with all columns and 0; JSON; 1 for a node that is suspect or down; 2 without a coordinator', async () => {
    const rig = await Rig.open([], [['amber'], ['basalt']]);
    let r = await probe([rig.url]);
    assert.equal(r.code, 0, r.err);
    const [head, ...rows] = r.out.trimEnd().split('\n');
    assert.deepEqual(head.split(/ +/), ['NODE', 'STATE', 'ENGINE', 'GPU', 'VRAM-MiB', 'C', 'SLOTS', 'HIT%', 'PREFIX%', 'PREFILL/S', 'DECODE/S', 'RUN', 'WAIT', 'PATH', 'RTT-ms', 'BEAT-s', 'REASON']);
    assert.deepEqual(rows.slice(0, 2).map((row) => row.split(/ +/).slice(0, 3).join(' ')), ['amber ready ok', 'basalt ready ok']);
    assert.match(rows[2], /^queue 0 of/);
    assert.equal(rows[0].split(/ +/)[head.split(/ +/).indexOf('PREFIX%')], '75.0');
    r = await probe([rig.url, '--json']);
    const { nodes } = JSON.parse(r.out);
    assert.deepEqual([r.code, nodes.length, nodes[0].prefix_hit_rate], [0, 2, 0.75]);
    const { prefix_snapshots, prefix_pages, prefix_mib, prefix_disk_mib } = nodes[0].beat;
    assert.deepEqual([prefix_snapshots, prefix_pages, prefix_mib, prefix_disk_mib], [9, 40, 12, 2048]);
    assert.equal((await probe([], { SILICEO_URL: rig.url })).code, 0);
    await stop(rig.fake('basalt'), 'SIGKILL');
    await until(async () => (await rig.node('basalt')).state !== 'ready', 'it is seen');
    assert.equal((await probe([rig.url])).code, 1);
    await fetch(`${rig.url}/admin/nodes/amber/drain`, { method: 'POST' });
    await fetch(`${rig.url}/admin/nodes/basalt/forget`, { method: 'POST' });
    assert.equal((await probe([rig.url])).code, 0, 'a drained node is meant to be so');
    await rig.close();
    r = await probe([rig.url]);
    assert.deepEqual([r.code, r.out], [2, '']);
});
await test('without nodes 1; wrong words 3', async () => {
    const rig = await Rig.open();
    assert.equal((await probe([rig.url])).code, 1);
    for (const words of [['--jsn'], ['localhost:80'], [rig.url, rig.url], ['--json', '--watch']]) assert.equal((await probe(words)).code, 3, `${words}`);
    assert.equal((await probe([rig.url], { SILICEO_API_KEY: 'a" evil' })).code, 3);
    await rig.close();
});
await test('a key from the environment opens a coordinator with keys; without it 2', async () => {
    const made = spawnSync(program('siliceo-coordinator'), ['keygen', '--api', 'cron'], { encoding: 'utf8' });
    const file = `${temporaryFolder()}/keys`;
    writeFileSync(file, made.stdout);
    const rig = await Rig.open(['--api-keys-file', file]);
    const key = /sk-\S+/.exec(made.stderr)[0];
    assert.equal((await probe([rig.url])).code, 2);
    assert.equal((await probe([rig.url], { SILICEO_API_KEY: key })).code, 1, 'no node yet, but an answer');
    assert.ok(!rig.log.includes(key));
    await stop(rig.coordinator);
});
await test('it watches until it is told to stop', async () => {
    const rig = await Rig.open([], [['amber']]);
    const child = spawn('sh', ['deploy/probe.sh', rig.url, '--watch'], { stdio: ['ignore', 'pipe', 'ignore'] });
    let out = '';
    child.stdout.on('data', (data) => { out += data; });
    await until(() => out.split('NODE').length >= 3, 'two tables');
    const ended = new Promise((resolve) => child.on('exit', (code) => resolve(code)));
    child.kill('SIGTERM');
    assert.equal(await ended, 0);
    await rig.close();
});
finish();
