// test_coordinator.mjs - a real coordinator with fake workers: what the API promises, and to whom.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readlinkSync, writeFileSync } from 'node:fs';
import { finish, program, start, startCoordinator, temporaryFolder, test } from '../clients/fleet.mjs';
import { ask, body, content, events, http, net, open, raw, Rig, stop, until } from './rig.mjs';

// ---------------------------------------------------------------- the reply
{
    const rig = await Rig.open(['--http-hold-headers-s', '0.3', '--http-keepalive-s', '0.2'], [['amber', '--decode', '200']]);
    await test('a stream has one role, its text, one end, usage only when asked, and [DONE]', async () => {
        for (const usage of [false, true]) {
            const r = await ask(rig.url, body({ stream: true, max_tokens: 5, ...(usage ? { stream_options: { include_usage: true } } : {}) }));
            assert.equal(r.status, 200);
            assert.equal(r.headers.get('content-type'), 'text/event-stream');
            assert.equal(r.headers.get('x-accel-buffering'), 'no');
            assert.equal(r.headers.get('cache-control'), 'no-cache');
            assert.equal(r.node, 'amber');
            const list = events(r.text);
            assert.equal(list.at(-1), '[DONE]');
            assert.equal(content(list), 't0 t1 t2 t3 t4 ');
            const chunks = list.slice(0, -1);
            assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
            assert.ok(chunks.every((c) => c.object === 'chat.completion.chunk' && c.model === 'fake-model'));
            assert.equal(chunks.filter((c) => c.choices[0]?.delta.role === 'assistant').length, 1);
            assert.deepEqual(chunks.map((c) => c.choices[0]?.finish_reason).filter((f) => f), ['length']);
            const last = chunks.find((c) => c.choices[0]?.finish_reason === 'length');
            assert.ok(last.timings.predicted_per_second > 0);
            assert.equal(last.siliceo.node, 'amber');
            assert.equal(last.siliceo.hit_rate, 0.75);
            assert.equal(chunks.filter((c) => c.choices.length === 0).length, usage ? 1 : 0);
            assert.equal(chunks.filter((c) => c.usage).length, usage ? 1 : 0);
            if (usage) assert.equal(chunks.at(-1).usage.completion_tokens, 5);
        }
    });
    await test('a whole reply holds text, usage, timings and the node', async () => {
        const r = await ask(rig.url, body({ max_tokens: 3 }));
        assert.equal(r.json.object, 'chat.completion');
        assert.deepEqual(r.json.choices[0], { index: 0, message: { role: 'assistant', content: 't0 t1 t2 ' }, finish_reason: 'length' });
        assert.equal(r.json.usage.total_tokens, r.json.usage.prompt_tokens + 3);
        assert.equal(r.json.siliceo.node, 'amber');
        assert.equal(r.node, 'amber');
    });
    await test('a sane request id is echoed, another one replaced', async () => {
        assert.equal((await ask(rig.url, body(), { 'x-request-id': 'abc-1.2_3' })).headers.get('x-request-id'), 'abc-1.2_3');
        assert.match((await ask(rig.url, body(), { 'x-request-id': 'a b"c' })).headers.get('x-request-id'), /^req_[0-9a-f]{24}$/);
    });
    await test('two requests go over one connection', async () => {
        const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
        const ports = [];
        for (const stream of [false, true, false]) {
            await new Promise((resolve, reject) => {
                const request = http.request({ host: rig.host, port: rig.port, path: '/v1/chat/completions', method: 'POST', agent }, (reply) => {
                    ports.push(reply.socket.localPort);
                    reply.resume().on('end', resolve);
                });
                request.on('error', reject);
                request.end(JSON.stringify(body({ stream, max_tokens: 2 })));
            });
        }
        assert.equal(new Set(ports).size, 1);
        agent.destroy();
    });
    await test('each token is sent by itself, without delay', async () => {
        const o = open(rig, body({ stream: true, max_tokens: 20 }));
        const sizes = [];
        o.socket.on('data', (data) => sizes.push((String(data).match(/"content":"t/g) ?? []).length));
        await until(() => o.text.includes('[DONE]'), 'the end');
        // Held back they would come in one or two; a busy machine makes us read a few at once.
        assert.ok(sizes.filter((n) => n > 0).length >= 8, `events came in ${sizes}`);
        o.socket.destroy();
    });
    await test('a preflight needs no key and echoes the headers; errors carry CORS headers, too', async () => {
        const r = await fetch(rig.url + '/v1/chat/completions', { method: 'OPTIONS', headers: { origin: 'http://a.example', 'access-control-request-headers': 'authorization, x-custom' } });
        assert.equal(r.status, 204);
        assert.equal(r.headers.get('access-control-allow-headers'), 'authorization, x-custom');
        assert.equal(r.headers.get('access-control-allow-origin'), '*');
        assert.match(r.headers.get('access-control-allow-methods'), /POST/);
        const bad = await ask(rig.url, '{');
        assert.equal(bad.headers.get('access-control-allow-origin'), '*');
        assert.match(bad.headers.get('access-control-expose-headers'), /x-request-id/);
    });
    await test('models are listed and shown; an unknown one is 404', async () => {
        const list = await (await fetch(rig.url + '/v1/models')).json();
        assert.deepEqual(list.data.map((m) => [m.id, m.object, m.owned_by]), [['fake-model', 'model', 'siliceo']]);
        assert.equal((await (await fetch(rig.url + '/v1/models/fake-model')).json()).id, 'fake-model');
        const r = await fetch(rig.url + '/v1/models/none');
        assert.equal(r.status, 404);
        assert.equal((await r.json()).error.code, 'model_not_found');
    });
    await test('status as JSON and as a table, health, readiness and metrics', async () => {
        const s = await rig.status();
        for (const key of ['name', 'state', 'reason', 'running', 'waiting', 'models', 'backend', 'gpu', 'slots', 'hit_rate', 'misses_per_token',
            'prefill_tok_per_s', 'decode_tok_per_s', 'vram_used_mib', 'path', 'rtt_ms', 'beat']) assert.ok(key in s.nodes[0], key);
        assert.match(await (await fetch(rig.url + '/status?format=text')).text(), /^NODE .*\namber +ready /);
        assert.equal((await fetch(rig.url + '/status?format=xml')).status, 400);
        assert.equal((await fetch(rig.url + '/healthz')).status, 200);
        assert.equal((await fetch(rig.url + '/readyz')).status, 200);
        assert.ok(await rig.metric('siliceo_completion_tokens_total') > 0);
        assert.ok(await rig.metric('siliceo_first_token_seconds_count') > 0);
        assert.equal(await rig.metric('siliceo_node_state{node="amber",state="ready"}'), 1);
    });
    await test('comments keep a quiet stream alive, and none comes once tokens flow', async () => {
        await rig.add('slow', '--model', 'slow-model', '--prefill', '30', '--decode', '3');
        const r = await ask(rig.url, body({ model: 'slow-model', stream: true, max_tokens: 3 }));
        const first = r.text.indexOf('data:');
        assert.ok(r.text.slice(0, first).match(/: keepalive\n\n/g)?.length >= 1, r.text.slice(0, 200));
        assert.ok(!r.text.slice(first).includes(': keepalive'));
        assert.equal(content(events(r.text)), 't0 t1 t2 ');
    });
    await rig.close();
}

// ---------------------------------------------------------------- bad input
{
    const rig = await Rig.open(['--http-header-s', '0.4', '--http-body-s', '0.6'], [['amber'], ['bad', '--model', 'bad-model', '--fault', 'bad']]);
    for (const [name, request, param, status = 400] of [
        ['no JSON', '{"model":', null], ['no object', '[1]', null], ['nothing', '', null],
        ['no model', { messages: [] }, 'model'], ['a number as model', body({ model: 7 }), 'model'],
        ['an unknown model', body({ model: 'nope' }), 'model', 404],
        ['no messages', { model: 'fake-model' }, 'messages'], ['messages as text', body({ messages: 'hi' }), 'messages'],
        ['empty messages', body({ messages: [] }), 'messages'],
        ['a negative max_tokens', body({ max_tokens: -1 }), 'max_tokens'], ['max_tokens of 1.5', body({ max_tokens: 1.5 }), 'max_tokens'],
        ['max_tokens beyond reason', '{"model":"fake-model","messages":[{"role":"user","content":"x"}],"max_tokens":1e300}', 'max_tokens'],
        ['a temperature of 3', body({ temperature: 3 }), 'temperature'], ['a temperature as text', body({ temperature: 'hot' }), 'temperature'],
        ['top_p of -1', body({ top_p: -1 }), 'top_p'], ['n of 0', body({ n: 0 }), 'n'], ['n of 1000', body({ n: 1000 }), 'n'],
        ['stop as a number', body({ stop: 3 }), 'stop'], ['an empty stop', body({ stop: [''] }), 'stop'],
        ['stream as text', body({ stream: 'yes' }), 'stream'], ['include_usage as text', body({ stream_options: { include_usage: 'y' } }), 'stream_options.include_usage'],
        ['logit_bias of 1000', body({ logit_bias: { 5: 1000 } }), 'logit_bias.5'], ['a JSON schema', body({ response_format: { type: 'json_schema' } }), 'response_format.json_schema.schema'],
        ['an image', body({ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] }), 'messages[0].content[0]'],
        ['what the worker refuses', body({ model: 'bad-model' }), 'messages'],
    ]) {
        await test(`${name} is ${status} and names ${param ?? 'the body'}`, async () => {
            const r = await ask(rig.url, request);
            assert.equal(r.status, status, r.text);
            assert.equal(r.json.error.param, param, r.text);
            assert.equal(r.json.error.type, 'invalid_request_error');
            assert.ok(r.json.error.message.length > 10);
        });
    }
    await test('unknown fields and nulls are ignored', async () => {
        const r = await ask(rig.url, body({ user: 'x', store: true, metadata: {}, temperature: null, stop: null, max_tokens: 1 }));
        assert.equal(r.status, 200, r.text);
    });
    const post = 'POST /v1/chat/completions HTTP/1.1\r\n';
    for (const [name, head] of [
        ['two Content-Length headers', `${post}Host: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello`],
        ['two equal Content-Length headers', `${post}Host: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello`],
        ['Content-Length and chunked', `${post}Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`],
        ['another transfer coding', `${post}Host: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`],
        ['no Host', `${post}Content-Length: 2\r\n\r\n{}`], ['two Hosts', `${post}Host: a\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}`],
    ]) {
        await test(`${name}: 400 and the connection ends`, async () => {
            const text = await raw(rig, head);
            assert.match(text, /^HTTP\/1.1 400 /);
            assert.equal(text.match(/^HTTP\/1\.1 /gm).length, 1);
        });
    }
    await test('a body of 100 MB is refused with 413 before it is sent', async () => {
        const text = await raw(rig, `${post}Host: a\r\nContent-Length: 104857600\r\n\r\n{"model`);
        assert.match(text, /^HTTP\/1.1 413 /);
        assert.match(text, /"code":"body_too_large"/);
    });
    await test('a client that sends 100 MB without looking still reads its 413', async () => {
        const reply = await new Promise((resolve, reject) => {
            const request = http.request({ host: rig.host, port: rig.port, path: '/v1/chat/completions', method: 'POST', headers: { 'content-length': 100 << 20 } }, (r) => {
                let text = '';
                r.on('data', (d) => { text += d; }).on('end', () => resolve({ status: r.statusCode, text }));
            });
            request.on('error', reject);
            request.write(Buffer.alloc(4 << 20, 32));
        });
        assert.equal(reply.status, 413);
        assert.match(reply.text, /over the limit/);
    });
    await test('a chunked body over the limit is 413', async () => {
        const small = await Rig.open(['--http-max-body-mib', '1']);
        const r = await fetch(small.url + '/v1/chat/completions', { method: 'POST', duplex: 'half', body: new ReadableStream({
            start(c) { for (let i = 0; i < 3; i++) c.enqueue(new Uint8Array(1 << 20)); c.close(); } }) });
        assert.equal(r.status, 413);
        await r.text();
        await small.close();
    });
    await test('bodies that together are too much are 503, and fit again once others are gone', async () => {
        const small = await Rig.open(['--http-max-bodies-mib', '1'], [['amber']]);
        // A body that is sent no further meets its deadline; on a slow machine that may be before the question beside it is answered.
        let held = null;
        const hold = () => {
            held = net.connect(small.port, small.host);
            held.on('error', () => {}).on('close', () => { held = null; });
            held.write(`${post}Host: a\r\nContent-Length: 1000000\r\n\r\n${' '.repeat(900000)}`);
        };
        const big = body({ max_tokens: 1, messages: [{ role: 'user', content: 'x'.repeat(90000) }], user: 'y'.repeat(200000) });
        await until(async () => {
            if (held === null) hold();
            return (await ask(small.url, big)).status === 503;
        }, 'the held body counts');
        held?.destroy();
        await until(async () => (await ask(small.url, big)).status === 200, 'its room is free again');
        await small.close();
    });
    await test('headers that come a byte at a time meet a deadline, and so does a body', async () => {
        for (const head of [`${post}Host: a\r\n`, `${post}Host: a\r\nContent-Length: 500\r\n\r\n{`]) {
            const socket = net.connect(rig.port, rig.host);
            let closed = false;
            socket.on('close', () => { closed = true; }).on('error', () => {});
            socket.write(head);
            const timer = setInterval(() => { if (!closed) socket.write('x'); }, 50);
            await until(() => closed, 'the connection is closed', 5000);
            clearInterval(timer);
        }
        assert.ok((await rig.status()).http.timed_out >= 2);
    });
    await test('headers over the limit are refused', async () => {
        assert.match(await raw(rig, `GET /healthz HTTP/1.1\r\nHost: a\r\nX: ${'y'.repeat(100000)}\r\n\r\n`), /^HTTP\/1.1 (431|413|400) /);
    });
    await test('unknown paths are 404, wrong methods 405, foreign pages may not administer', async () => {
        assert.equal((await fetch(rig.url + '/v2')).status, 404);
        const r = await fetch(rig.url + '/v1/chat/completions');
        assert.equal(r.status, 405);
        assert.equal(r.headers.get('allow'), 'POST');
        assert.equal((await fetch(rig.url + '/admin/nodes/amber/drain', { method: 'POST', headers: { origin: 'http://evil.example' } })).status, 403);
        assert.equal((await fetch(rig.url + '/admin/nodes/none/drain', { method: 'POST' })).status, 404);
    });
    await test('after all of this one good request is served and nothing is left over', async () => {
        assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).json.choices[0].message.content, 't0 t1 ');
        await rig.idle();
        assert.equal((await rig.node('amber')).state, 'ready');
        assert.equal((await rig.node('bad')).state, 'ready');
    });
    await rig.close();
}

await test('connections beyond the limit wait; silent ones give way at their deadline, and what runs goes on', async () => {
    const rig = await Rig.open(['--http-max-connections', '24', '--http-header-s', '0.5'], [['amber', '--decode', '50']]);
    const o = open(rig, body({ stream: true, max_tokens: 150 }));
    await until(() => o.text.includes('"t2 "'), 'tokens');
    const descriptors = () => readdirSync(`/proc/${rig.coordinator.child.pid}/fd`).filter((fd) => { try { return readlinkSync(`/proc/${rig.coordinator.child.pid}/fd/${fd}`).startsWith('socket:'); } catch { return false; } }).length;
    const before = descriptors(); // with the one that streams
    let n_ended = 0;
    const idle = Array.from({ length: 60 }, () => net.connect(rig.port, rig.host).on('error', () => {}).on('close', () => { n_ended++; }));
    let most = 0;
    await until(() => { most = Math.max(most, descriptors()); return n_ended === 60; }, 'all of them had their time', 20000);
    assert.ok(most <= before + 24, `${most} sockets after ${before}`);
    assert.equal((await ask(rig.url, body({ max_tokens: 1 }))).status, 200);
    await until(() => o.text.includes('[DONE]'), 'the stream ends well');
    o.socket.destroy();
    for (const s of idle) s.destroy();
    await rig.idle();
    await rig.close();
});

// ---------------------------------------------------------------- command lines
await test('a port in use is one clear line and exit 1', async () => {
    const first = await startCoordinator();
    for (const [flag, at, other] of [['--http', new URL(first.url).host, ['--mesh', 'tcp://127.0.0.1:0']], ['--mesh', first.mesh, ['--http', '127.0.0.1:0']]]) {
        const r = spawnSync(program('siliceo-coordinator'), ['serve', flag, at, ...other], { encoding: 'utf8' });
        assert.equal(r.status, 1);
        assert.equal(r.stderr.trim().split('\n').length, 1, r.stderr);
        assert.ok(r.stderr.includes(at.replace('tcp://', '')) && /in use/.test(r.stderr), r.stderr);
    }
    await stop(first);
});
await test('wrong settings are refused with exit 2 and the key in the text', async () => {
    for (const [args, word] of [[['--http', 'nonsense'], 'http'], [['--mesh', 'udp://a:1'], 'mesh'], [['--mesh', 'tcp://0.0.0.0:5999'], 'mesh'],
        [['--no-such', '1'], 'no-such'], [['--http-max-body-mib', '-1'], 'max_body_mib'], [['--node-down-s', '1'], 'node.down_s'],
        [['--mesh-curve-secret-file', '/nowhere'], 'mesh.curve_allow_file']]) {
        const r = spawnSync(program('siliceo-coordinator'), ['serve', ...args], { encoding: 'utf8' });
        assert.equal(r.status, 2, `${args}: ${r.stderr}`);
        assert.ok(r.stderr.includes(word), r.stderr);
    }
});

// ---------------------------------------------------------------- CURVE
await test('with CURVE only a listed key connects, and only under its name', async () => {
    const folder = temporaryFolder();
    mkdirSync(folder, { recursive: true });
    const keys = {};
    for (const name of ['coordinator', 'amber', 'stranger']) {
        const text = spawnSync(program('siliceo-coordinator'), ['keygen'], { encoding: 'utf8' }).stdout;
        writeFileSync(`${folder}/${name}.key`, text, { mode: 0o600 });
        keys[name] = /^# public key: (.{40})$/m.exec(text)[1];
    }
    writeFileSync(`${folder}/allow`, `# nodes\n${keys.amber} amber\n`);
    const rig = await Rig.open(['--mesh-curve-secret-file', `${folder}/coordinator.key`, '--mesh-curve-allow-file', `${folder}/allow`]);
    const curve = (name) => ['--curve', keys.coordinator, '--secret-file', `${folder}/${name}.key`];
    await rig.add('amber', ...curve('amber'));
    assert.equal((await ask(rig.url, body({ max_tokens: 1 }))).status, 200);
    const worker = (name, key) => start('tests/fleet/fake_worker', ['--coordinator', rig.coordinator.mesh, '--name', name, ...curve(key)], /"event":"refused"/);
    await stop(await worker('basalt', 'amber'), 'SIGKILL'); // a listed key under another name
    const stranger = spawn(program('tests/fleet/fake_worker'), ['--coordinator', rig.coordinator.mesh, '--name', 'x', ...curve('stranger')]);
    await until(() => rig.log.includes('not on the allow-list'), 'the stranger is refused', 10000);
    stranger.kill('SIGKILL');
    assert.deepEqual((await rig.nodes()).map((n) => n.name), ['amber']);
    await rig.close();
});
finish();
