// test_behind_proxy.mjs - behind a real nginx with its default buffering and a short idle limit.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { finish, skip, temporaryFolder, test, until } from '../clients/fleet.mjs';
import { body, content, events, Rig, stretch } from './rig.mjs';
import { tool, toolEnv } from './tools.mjs';

const sentences = ['tokens pass a buffering proxy one by one', 'a long prefill outlives the idle limit of a proxy', 'a client that leaves the proxy is noticed behind it'];
if (tool('nginx') === null) {
    for (const sentence of sentences) skip(sentence, 'there is no nginx');
    finish();
}
const freePort = () => new Promise((resolve) => { const s = net.createServer().listen(0, '127.0.0.1', () => { const { port } = s.address(); s.close(() => resolve(port)); }); });
async function proxy(target, idle) {
    const folder = temporaryFolder(), port = await freePort();
    mkdirSync(`${folder}/logs`);
    // Everything about buffering is nginx's default.
    writeFileSync(`${folder}/nginx.conf`, `daemon off; pid ${folder}/pid; error_log ${folder}/logs/error.log; events {}
http { access_log off; client_body_temp_path ${folder}/b; proxy_temp_path ${folder}/p; fastcgi_temp_path ${folder}/f; uwsgi_temp_path ${folder}/u; scgi_temp_path ${folder}/s;
    server { listen 127.0.0.1:${port}; location / { proxy_pass ${target}; proxy_read_timeout ${idle}; } } }`);
    const child = spawn(tool('nginx'), ['-p', folder, '-c', `${folder}/nginx.conf`, '-e', `${folder}/logs/error.log`], { stdio: 'ignore', env: toolEnv });
    const stopped = new Promise((resolve) => child.on('exit', resolve));
    process.on('exit', () => child.kill('SIGTERM'));
    await until(() => new Promise((resolve) => { const s = net.connect(port, '127.0.0.1', () => { s.destroy(); resolve(true); }); s.on('error', () => resolve(false)); }), 'nginx listens', 10000);
    return { url: `http://127.0.0.1:${port}`, stop() { child.kill('SIGTERM'); return stopped; } };
}
const post = (url, request, signal) => fetch(url + '/v1/chat/completions', { method: 'POST', signal, headers: { 'content-type': 'application/json' }, body: JSON.stringify(request) });

await test(sentences[0], async () => {
    const rig = await Rig.open([], [['amber', '--decode', '10', '--stamp', 'yes']]);
    const front = await proxy(rig.url, '60s');
    const reply = await post(front.url, body({ stream: true, max_tokens: 12 }));
    assert.equal(reply.headers.get('cache-control'), 'no-cache');
    const arrivals = [], decoder = new TextDecoder();
    for await (const piece of reply.body) if (/"content":"<\d+>"/.test(decoder.decode(piece))) arrivals.push(performance.now());
    assert.ok(arrivals.length >= 11, `${arrivals.length} pieces for 12 tokens 100 ms apart`);
    assert.ok(arrivals.at(-1) - arrivals[0] > 800 * stretch, 'they come as they are made');
    await front.stop();
    await rig.close();
});
await test(sentences[1], async () => {
    const rig = await Rig.open(['--http-hold-headers-s', '0.2', '--http-keepalive-s', '0.3'], [['amber', '--prefill', '3', '--decode', '50']]);
    const front = await proxy(rig.url, `${stretch}s`); // a prefill of several seconds, an idle limit of one
    const began = performance.now();
    const text = await (await post(front.url, body({ stream: true, max_tokens: 3 }))).text();
    assert.ok(performance.now() - began > 2000 * stretch, 'the prefill was long');
    const first = text.indexOf('"content":"t0');
    assert.ok(text.slice(0, first).split('\n\n').filter((e) => e.startsWith(':')).length >= 4, 'comments came before the first token');
    assert.ok(!/^:/m.test(text.slice(first)), 'and none after it');
    assert.equal(content(events(text)), 't0 t1 t2 ');
    assert.equal(events(text).at(-1), '[DONE]');
    await front.stop();
    await rig.close();
});
await test(sentences[2], async () => {
    const rig = await Rig.open([], [['amber', '--decode', '20']]);
    const front = await proxy(rig.url, '60s');
    const controller = new AbortController();
    const reply = await post(front.url, body({ stream: true, max_tokens: 10000 }), controller.signal);
    await reply.body.getReader().read();
    controller.abort();
    await until(() => rig.fake('amber').events.some((e) => e.event === 'cancel'), 'the worker is told', 3000);
    await rig.idle();
    await front.stop();
    await rig.close();
});
finish();
