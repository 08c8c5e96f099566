// test_tailscale.mjs - the path to each node, by a LocalAPI of the test's own on a unix socket.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { finish, test, until } from '../clients/fleet.mjs';
import { ask, body, Rig } from './rig.mjs';

const folder = mkdtempSync(`${tmpdir()}/siliceo-vpn-`), socket = `${folder}/tailscaled.sock`;
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));

// What tailscaled says of the one peer that there is: this machine's loopback.
let peer = { TailscaleIPs: ['127.0.0.1'], CurAddr: '127.0.0.1:41641', Relay: 'fra', Active: true, Online: true };
let asked = 0, mode = 'well';
const server = createServer((q, r) => {
    assert.equal(q.url, '/localapi/v0/status');
    assert.equal(q.headers.host, 'local-tailscaled.sock');
    asked++;
    if (mode === 'nonsense') { r.end('{"Peer":'); return; }
    if (mode === 'mute') return;
    r.setHeader('content-type', 'application/json');
    r.end(JSON.stringify({ Version: '1.50', Self: { TailscaleIPs: ['100.64.0.9'] }, Peer: { 'nodekey:abc': peer } }));
});
await new Promise((done) => server.listen(socket, done));

const rig = await Rig.open(['--tailscale-socket', socket, '--tailscale-interval-s', '0.1'], [['amber']]);
const path = (wanted) => until(async () => (await rig.node('amber')).path === wanted, `path ${wanted}`, 5000);
await test('a peer with a current address is direct, one that is reached over its relay is relayed', async () => {
    await path('direct');
    peer = { ...peer, CurAddr: '' };
    await path('relayed');
    peer = { ...peer, CurAddr: '192.168.1.2:41641' };
    await path('direct');
});
await test('a peer without traffic keeps the path that it had', async () => {
    peer = { ...peer, CurAddr: '' };
    await path('relayed');
    peer = { ...peer, Active: false };
    const before = asked;
    await until(() => asked > before + 2, 'asked again');
    assert.equal((await rig.node('amber')).path, 'relayed');
});
await test('nonsense and silence of the LocalAPI stop nothing', async () => {
    for (const m of ['nonsense', 'mute']) {
        mode = m;
        const before = asked;
        await until(() => asked > before, m);
        assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).status, 200);
    }
    assert.ok(!/ (warn|error) /.test(rig.log), rig.log);
});
await rig.close();
server.closeAllConnections();
await new Promise((done) => server.close(done));
await test('without Tailscale there is no word of it', async () => {
    const alone = await Rig.open(['--tailscale-socket', `${folder}/none.sock`], [['amber']]);
    assert.equal((await alone.node('amber')).path, 'direct');
    assert.ok(!/tailscale/i.test(alone.log));
    await alone.close();
});
finish();
