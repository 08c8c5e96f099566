// test_tls.mjs - HTTPS with a certificate that is replaced while streams run, and the mesh's keys taken away.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import https from 'node:https';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { finish, program, start, startCoordinator, stop, test, until } from '../clients/fleet.mjs';
import { ask, body, quick, Rig } from './rig.mjs';

const folder = mkdtempSync(`${tmpdir()}/siliceo-tls-`);
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));

// A certificate for 127.0.0.1 that signs itself; `name` is its subject.
function makeCertificate(name, to = 'server') {
    execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2', '-subj', `/CN=${name}`,
        '-addext', 'subjectAltName=IP:127.0.0.1,DNS:localhost', '-keyout', `${folder}/${to}.key`, '-out', `${folder}/${to}.pem`], { stdio: 'pipe' });
    chmodSync(`${folder}/${to}.key`, 0o600);
}

// A streamed chat over HTTPS; resolves to its text and the subject of the certificate.
function stream(url, request, ca, onText = () => {}) {
    return new Promise((resolve, reject) => {
        const q = https.request(url + '/v1/chat/completions', { method: 'POST', ca, agent: false, headers: { 'content-type': 'application/json' } }, (r) => {
            const subject = r.socket.getPeerCertificate().subject.CN;
            let text = '';
            r.on('data', (d) => { text += d; onText(text); });
            r.on('end', () => resolve({ text, subject }));
            r.on('error', reject);
        });
        q.on('error', reject);
        q.end(JSON.stringify(request));
    });
}

if (spawnSync('openssl', ['version']).status !== 0) {
    console.log('skipped: HTTPS (openssl makes the test certificates, and is not installed)');
} else {
    makeCertificate('first');
    const c = await startCoordinator([...quick, '--http-header-s', '1', '--http-tls-cert-file', `${folder}/server.pem`, '--http-tls-key-file', `${folder}/server.key`]);
    let log = '';
    c.child.stderr.on('data', (data) => { log += data; });
    const url = c.url.replace('http:', 'https:');
    const fake = await start('tests/fleet/fake_worker', ['--coordinator', c.mesh, '--name', 'amber', '--decode', '100'], /"event":"welcome"/);
    const ca = () => readFileSync(`${folder}/server.pem`);
    const first = ca();
    const curl = (...args) => spawnSync('curl', ['-sS', '--max-time', '10', ...args], { encoding: 'utf8' });

    await test('curl with --cacert gets the API over HTTPS', async () => {
        await until(() => curl('--cacert', `${folder}/server.pem`, '-o', '/dev/null', '-w', '%{http_code}', `${url}/readyz`).stdout === '200', 'ready');
        const r = curl('--cacert', `${folder}/server.pem`, '-d', JSON.stringify(body({ max_tokens: 3 })), '-H', 'Content-Type: application/json', `${url}/v1/chat/completions`);
        assert.equal(JSON.parse(r.stdout).choices[0].message.content, 't0 t1 t2 ');
    });
    await test('without the certificate, over plain HTTP and by TLS 1.1 there is nothing', async () => {
        assert.notEqual(curl(`${url}/healthz`).status, 0);
        assert.notEqual(curl(`${c.url}/healthz`).stdout, 'ok\n');
        assert.notEqual(curl('--cacert', `${folder}/server.pem`, '--tls-max', '1.1', `${url}/healthz`).status, 0);
    });
    await test('a client that leaves in the middle of a TLS stream is passed on', async () => {
        const q = https.request(url + '/v1/chat/completions', { method: 'POST', ca: first, agent: false, headers: { 'content-type': 'application/json' } });
        q.on('error', () => {});
        q.on('response', (r) => r.on('data', () => q.destroy()).on('error', () => {}));
        q.end(JSON.stringify(body({ stream: true, max_tokens: 5000 })));
        await until(() => log.includes('request-cancelled'), 'cancelled', 5000);
    });
    await test('one that never begins, or never ends, its handshake is cut at the header\'s limit', async () => {
        const [host, port] = c.ready[1].split(':');
        const cut = (bytes) => new Promise((done) => {
            const at = Date.now(), socket = net.connect(Number(port), host, () => bytes && socket.write(bytes));
            socket.on('error', () => {});
            socket.on('close', () => done(Date.now() - at));
            socket.resume();
        });
        const hello = Buffer.from('16030100c8010000c40303', 'hex'); // the head of a ClientHello whose rest never comes
        for (const ms of await Promise.all([cut(null), cut(hello)])) assert.ok(ms >= 900 && ms < 5000, `${ms} ms`);
    });
    await test('a new certificate is taken at SIGHUP, and a running stream goes on', async () => {
        let sent = false;
        const running = stream(url, body({ stream: true, max_tokens: 150 }), first, (text) => {
            if (sent || !text.includes('"t5 "')) return;
            sent = true;
            makeCertificate('second');
            c.child.kill('SIGHUP');
        });
        await until(() => log.includes(' reload '), 'reloaded');
        const next = await stream(url, body({ stream: true, max_tokens: 2 }), ca());
        assert.equal(next.subject, 'second');
        const r = await running;
        assert.equal(r.subject, 'first');
        assert.ok(r.text.includes('"t149 "') && r.text.includes('[DONE]'));
    });
    await test('a broken certificate at SIGHUP is said and the old one stays', async () => {
        const good = readFileSync(`${folder}/server.pem`);
        writeFileSync(`${folder}/server.pem`, 'nonsense');
        c.child.kill('SIGHUP');
        await until(() => /reload-failed what=certificate/.test(log), 'said');
        writeFileSync(`${folder}/server.pem`, good);
        assert.equal((await stream(url, body({ stream: true, max_tokens: 2 }), good)).subject, 'second');
    });
    await test('a key that is readable by others, another\'s, or missing is refused at the start', () => {
        const tryOut = (...args) => spawnSync(program('siliceo-coordinator'), ['serve', '--http', '127.0.0.1:0', '--mesh', 'tcp://127.0.0.1:0', ...args], { encoding: 'utf8', timeout: 10000 });
        makeCertificate('other', 'other');
        const pair = (cert, key) => tryOut('--http-tls-cert-file', `${folder}/${cert}.pem`, '--http-tls-key-file', `${folder}/${key}.key`);
        assert.match(pair('server', 'other').stderr, /is not the certificate's key/);
        chmodSync(`${folder}/other.key`, 0o644);
        assert.match(pair('other', 'other').stderr, /lets others read a private key/);
        assert.match(tryOut('--http-tls-cert-file', `${folder}/server.pem`).stderr, /go together/);
    });
    await stop(fake, 'SIGKILL');
    assert.equal((await stop(c)).code, 0);
}

// ---------------------------------------------------------------- the mesh's allow-list
{
    const key = (name) => {
        const text = execFileSync(program('siliceo-coordinator'), ['keygen'], { encoding: 'utf8' });
        writeFileSync(`${folder}/${name}.secret`, text, { mode: 0o600 });
        return /public key: (.{40})/.exec(text)[1];
    };
    const server = key('mesh'), amber = key('amber'), basalt = key('basalt');
    const allow = `${folder}/allow`;
    writeFileSync(allow, `${amber} amber\n${basalt} basalt\n`);
    const rig = await Rig.open(['--mesh-curve-secret-file', `${folder}/mesh.secret`, '--mesh-curve-allow-file', allow], []);
    for (const name of ['amber', 'basalt']) await rig.add(name, '--curve', server, '--secret-file', `${folder}/${name}.secret`, '--decode', '50');

    await test('a node whose key is taken off the allow-list is gone at SIGHUP, its requests begin elsewhere', async () => {
        const running = Promise.all(Array.from({ length: 4 }, () => ask(rig.url, body({ max_tokens: 40 }))));
        await until(async () => (await rig.node('amber')).running > 0, 'amber has work');
        writeFileSync(allow, `${basalt} basalt\n`);
        rig.coordinator.child.kill('SIGHUP');
        await until(async () => (await rig.node('amber')) === undefined, 'amber is gone', 5000);
        for (const r of await running) assert.equal(r.status, 200, r.text);
        await until(() => rig.log.includes('mesh-refused'), 'its new connection is refused', 10000);
        assert.equal(await rig.node('amber'), undefined);
        assert.equal((await rig.node('basalt')).state, 'ready');
    });
    await test('put on the list again, it may come back', async () => {
        writeFileSync(allow, `${basalt} basalt\n${amber} amber\n`);
        rig.coordinator.child.kill('SIGHUP');
        await until(() => rig.log.split(' reload ').length > 2, 'reloaded');
        await stop(rig.fake('amber'), 'SIGKILL');
        await rig.add('amber', '--curve', server, '--secret-file', `${folder}/amber.secret`);
        assert.equal((await rig.node('amber')).state, 'ready');
    });
    await test('a list with a bad line is refused whole', async () => {
        writeFileSync(allow, `${basalt} basalt\nnonsense amber\n`);
        rig.coordinator.child.kill('SIGHUP');
        await until(() => /reload-failed what=allow-list/.test(rig.log), 'said');
        assert.equal((await rig.node('amber')).state, 'ready');
    });
    await test('no secret key stands in the log', () => {
        for (const name of ['mesh', 'amber', 'basalt']) {
            const secret = readFileSync(`${folder}/${name}.secret`, 'utf8').trim().split('\n').at(-1);
            assert.ok(!rig.log.includes(secret));
        }
    });
    await rig.close();
}
finish();
