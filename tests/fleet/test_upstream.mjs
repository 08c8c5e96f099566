// test_upstream.mjs - OpenAI-compatible servers as nodes: one of the tests' own, and a real coordinator.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { finish, test } from '../clients/fleet.mjs';
import { ask, body, content, events, open, Rig, stop, streamed, until } from './rig.mjs';

// A server that speaks the API; `mode` is how it misbehaves.
class Server {
    requests = [];
    closed = 0; // streams whose client left
    mode = 'well';
    models = [{ id: 'tiny', max_model_len: 8192 }, { id: 'tiny-2' }];
    async listen(port = 0) {
        this.http = createServer((q, r) => this.serve(q, r));
        await new Promise((done) => this.http.listen(port, '127.0.0.1', done));
        this.port = this.http.address().port;
        this.url = `http://127.0.0.1:${this.port}/v1`;
        return this;
    }
    async serve(q, r) {
        if (q.url === '/v1/models') {
            if (this.mode === 'mute') return;
            r.setHeader('content-type', 'application/json');
            r.end(JSON.stringify({ object: 'list', data: this.models }));
            return;
        }
        let text = '';
        for await (const part of q) text += part;
        const request = JSON.parse(text);
        this.requests.push({ url: q.url, headers: q.headers, body: request });
        if (this.mode === 'refuse' || this.mode === 'busy once') {
            if (this.mode === 'busy once') this.mode = 'well';
            r.writeHead(this.status ?? 503, { 'content-type': 'application/json' });
            r.end(JSON.stringify({ error: { message: 'not today', type: 'server_error', code: null } }));
            return;
        }
        if (q.url === '/v1/embeddings' || q.url === '/v1/rerank') {
            const inputs = request.input ?? request.documents, vector = (i) => (request.encoding_format === 'base64' ? Buffer.from(new Float32Array([i, 0.5]).buffer).toString('base64') : [i, 0.5]);
            const index = (i) => (this.mode === 'nonsense' ? 0 : i);
            r.setHeader('content-type', 'application/json');
            r.end(JSON.stringify(request.input ? { object: 'list', data: inputs.map((_, i) => ({ object: 'embedding', index: index(i), embedding: vector(i) })), model: 'x', usage: { prompt_tokens: 7, total_tokens: 7 } }
                : { results: inputs.map((d, i) => ({ index: index(i), relevance_score: 1 / (i + 2), document: { text: d } })).slice(0, request.top_n), usage: { total_tokens: 9 } }));
            return;
        }
        let over = false;
        r.on('close', () => { if (!over) this.closed++; });
        r.writeHead(200, { 'content-type': 'text/event-stream' });
        const say = (o) => r.write(`data: ${JSON.stringify({ id: 'x', object: 'chat.completion.chunk', created: 1, model: request.model, ...o })}\n\n`);
        const chat = q.url === '/v1/chat/completions';
        const choice = (delta, finish_reason = null) => say({ choices: [chat ? { index: 0, delta, finish_reason } : { index: 0, text: delta.content ?? '', finish_reason }] });
        choice({ role: 'assistant', content: '' });
        if (this.mode === 'hang') return;
        r.write(': a comment\r\n\r\n');
        choice({ reasoning_content: 'hm ' });
        const n = request.max_tokens ?? 5;
        for (let i = 0; i < n && !r.destroyed; i++) {
            if (this.mode === 'cut' && i === 2) { await new Promise((done) => r.write(': flushed\n\n', done)); r.destroy(); return; }
            if (this.mode === 'end early' && i === 2) { over = true; r.end(); return; }
            if (this.mode === 'error' && i === 2) { r.write(`data: ${JSON.stringify({ error: { message: 'out of memory', code: 500 } })}\n\n`); return; }
            if (this.mode === 'nonsense' && i === 2) { r.write('data: {"choices":[{"index":7}]}\n\n'); return; }
            choice({ content: `w${i} ` });
            if (n > 20) await new Promise((done) => setTimeout(done, 10));
        }
        if (this.mode === 'tools') {
            choice({ tool_calls: [{ index: 0, id: 'c1', type: 'function', function: { name: 'look', arguments: '{"a"' } }] });
            choice({ tool_calls: [{ index: 0, function: { arguments: ': 1}' } }] });
        }
        choice({}, this.mode === 'tools' ? 'tool_calls' : 'stop');
        say({ choices: [], usage: { prompt_tokens: 11, completion_tokens: n + 1, total_tokens: n + 12, prompt_tokens_details: { cached_tokens: 4 }, completion_tokens_details: { reasoning_tokens: 1 } } });
        over = true;
        r.end(this.mode === 'no done' ? '' : 'data: [DONE]\n\n');
    }
    close() { this.http.closeAllConnections(); return new Promise((done) => this.http.close(done)); }
}

const quickly = ['--upstream-check-s', '0.2', '--upstream-check-limit-s', '0.5', '--node-breaker-s', '0.6'];
const state = (rig, name, wanted) => until(async () => (await rig.node(name))?.state === wanted, `${name} ${wanted}`, 10000);

{
    const server = await new Server().listen();
    process.env.TEST_UPSTREAM_KEY = 'sk-upstream-secret-key';
    const rig = await Rig.open([...quickly, '--upstream-server', `llama ${server.url} key_env=TEST_UPSTREAM_KEY concurrent=3`]);
    await state(rig, 'llama', 'ready');
    const tiny = (more = {}) => body({ model: 'tiny', ...more });

    await test('its models are listed and it stands in /status as a node of backend upstream', async () => {
        const list = (await (await fetch(rig.url + '/v1/models')).json()).data;
        assert.deepEqual(list.map((m) => m.id), ['tiny', 'tiny-2']);
        assert.equal(list[0].meta.context_tokens, 8192);
        const node = await rig.node('llama');
        assert.equal(node.backend, 'upstream');
        assert.equal(node.max_sequences, 3);
        assert.equal((await fetch(rig.url + '/readyz')).status, 200);
    });
    await test('a whole reply has its text, reasoning, finish and usage', async () => {
        const r = await ask(rig.url, tiny({ max_tokens: 3 }));
        assert.equal(r.status, 200, r.text);
        assert.equal(r.json.choices[0].message.content, 'w0 w1 w2 ');
        assert.equal(r.json.choices[0].message.reasoning_content, 'hm ');
        assert.equal(r.json.choices[0].finish_reason, 'stop');
        assert.equal(r.json.usage.prompt_tokens, 11);
        assert.equal(r.json.usage.prompt_tokens_details.cached_tokens, 4);
        assert.equal(r.json.usage.completion_tokens_details.reasoning_tokens, 1);
    });
    await test('what is sent on has the model, a stream with usage, and the key', async () => {
        const last = server.requests.at(-1);
        assert.equal(last.url, '/v1/chat/completions');
        assert.equal(last.body.model, 'tiny');
        assert.equal(last.body.stream, true);
        assert.equal(last.body.stream_options.include_usage, true);
        assert.equal(last.headers.authorization, 'Bearer sk-upstream-secret-key');
    });
    await test('arguments of earlier tool calls are text again for it', async () => {
        await ask(rig.url, tiny({ messages: [{ role: 'user', content: 'a' }, { role: 'assistant', content: null,
            tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{"x": 1}' } }] }, { role: 'tool', tool_call_id: 'c', content: 'b' }] }));
        const call = server.requests.at(-1).body.messages[1].tool_calls[0];
        assert.deepEqual(JSON.parse(call.function.arguments), { x: 1 });
    });
    await test('a stream is passed on token for token and ends with [DONE]', async () => {
        const r = await ask(rig.url, tiny({ max_tokens: 4, stream: true }));
        const list = events(r.text);
        assert.equal(content(list), 'w0 w1 w2 w3 ');
        assert.equal(list.at(-1), '[DONE]');
    });
    await test('a text completion is passed on to /completions, streaming or not', async () => {
        for (const stream of [false, true]) {
            const r = await fetch(rig.url + '/v1/completions', { method: 'POST', headers: { 'content-type': 'application/json' },
                body: JSON.stringify({ model: 'tiny', prompt: 'once', max_tokens: 3, stream }) });
            const text = await r.text();
            assert.equal(r.status, 200, text);
            assert.equal(server.requests.at(-1).url, '/v1/completions');
            assert.equal(server.requests.at(-1).body.prompt, 'once');
            assert.ok(stream ? text.includes('[DONE]') : JSON.parse(text).choices[0].text.includes('w0 w1 w2 '), text);
        }
    });
    const post = async (path, request) => {
        const r = await fetch(rig.url + path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(request) });
        return { status: r.status, json: await r.json(), node: r.headers.get('x-siliceo-node') };
    };
    await test('embeddings are passed on, as numbers and as base64', async () => {
        const r = await post('/v1/embeddings', { model: 'tiny', input: ['a', 'b'] });
        assert.equal(r.status, 200, JSON.stringify(r.json));
        assert.deepEqual(server.requests.at(-1).body, { input: ['a', 'b'], model: 'tiny' });
        assert.equal(server.requests.at(-1).url, '/v1/embeddings');
        assert.deepEqual(r.json.data.map((d) => [d.index, d.embedding]), [[0, [0, 0.5]], [1, [1, 0.5]]]);
        assert.deepEqual([r.json.object, r.json.model, r.json.usage], ['list', 'tiny', { prompt_tokens: 7, total_tokens: 7 }]);
        const text = (await post('/v1/embeddings', { model: 'tiny', input: 'a', encoding_format: 'base64', dimensions: 2 })).json.data[0].embedding;
        assert.deepEqual([...new Float32Array(new Uint8Array(Buffer.from(text, 'base64')).buffer)], [0, 0.5]);
        assert.equal(server.requests.at(-1).body.dimensions, 2);
        assert.equal(r.node, 'llama');
    });
    await test('so is reranking', async () => {
        const r = await post('/v1/rerank', { model: 'tiny', query: 'q', documents: ['a', { text: 'b' }, 'c'], top_n: 2 });
        assert.equal(r.status, 200, JSON.stringify(r.json));
        assert.deepEqual(r.json.results.map((d) => [d.index, d.relevance_score]), [[0, 0.5], [1, 1 / 3]]);
        assert.equal(r.json.usage.total_tokens, 9);
        assert.deepEqual(server.requests.at(-1).body.documents, ['a', 'b', 'c']);
    });
    await test('a server without such a path is a 400 that says so, and no failed node; a wrong reply is a 502', async () => {
        [server.mode, server.status] = ['refuse', 501];
        for (const [path, request] of [['/v1/embeddings', { input: 'a' }], ['/v1/rerank', { query: 'q', documents: ['a'] }], ['/v1/completions', { prompt: 'a' }]]) {
            for (let i = 0; i < 3; i++) {
                const r = await post(path, { model: 'tiny', ...request });
                assert.deepEqual([r.status, r.json.error.code], [400, 'not_supported'], JSON.stringify(r.json));
                assert.match(r.json.error.message, /llama: not today/);
            }
        }
        assert.equal((await rig.node('llama')).state, 'ready');
        server.mode = 'nonsense';
        const r = await post('/v1/embeddings', { model: 'tiny', input: ['a', 'b'] });
        assert.deepEqual([r.status, r.json.error.code], [502, 'bad_upstream_reply'], JSON.stringify(r.json));
        server.mode = 'well';
        await rig.idle();
    });
    await test('what no such server has is refused without harm to the node', async () => {
        for (let i = 0; i < 4; i++) {
            const r = await fetch(rig.url + '/tokenize', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ model: 'tiny', content: 'a', prompt: 'a' }) });
            assert.ok(r.status >= 400 && r.status < 500, `${r.status} ${await r.text()}`);
        }
        assert.equal((await rig.node('llama')).state, 'ready');
    });
    await test('a stream without [DONE] whose choices all ended is complete', async () => {
        server.mode = 'no done';
        const r = await ask(rig.url, tiny({ max_tokens: 2 }));
        assert.equal(r.json?.choices[0].message.content, 'w0 w1 ', r.text);
    });
    await test('fragments of a tool call arrive as one whole call', async () => {
        server.mode = 'tools';
        const r = await ask(rig.url, tiny({ max_tokens: 1 }));
        assert.equal(r.json?.choices[0].finish_reason, 'tool_calls', r.text);
        const call = r.json.choices[0].message.tool_calls[0].function;
        assert.deepEqual([call.name, JSON.parse(call.arguments)], ['look', { a: 1 }]);
    });
    await test('a client that leaves closes the connection to the server', async () => {
        server.mode = 'well';
        const before = server.closed;
        const o = open(rig, tiny({ stream: true, max_tokens: 2000 }));
        await until(() => o.text.includes('"w5 "'), 'token 5');
        const at = Date.now();
        o.socket.destroy();
        await until(() => server.closed > before, 'closed', 3000);
        assert.ok(Date.now() - at < 500, `${Date.now() - at} ms`);
        await rig.idle();
    });
    for (const mode of ['cut', 'end early', 'error', 'nonsense']) {
        await test(`${mode}: a stream that has begun ends with an error event and no [DONE]`, async () => {
            await state(rig, 'llama', 'ready');
            server.mode = mode;
            const r = await ask(rig.url, tiny({ stream: true }));
            const list = events(r.text);
            assert.ok(list.some((e) => e.error), r.text);
            assert.ok(!list.includes('[DONE]'));
            server.mode = 'well';
            await rig.idle();
        });
    }
    await test('a refusal of the request is the client\'s to see, and no failure of the node', async () => {
        await until(async () => { server.mode = 'well'; return (await ask(rig.url, tiny())).status === 200; }, 'it works again', 10000);
        server.mode = 'refuse';
        server.status = 400;
        for (let i = 0; i < 5; i++) {
            const r = await ask(rig.url, tiny());
            assert.equal(r.status, 400);
            assert.match(r.json.error.message, /not today/);
        }
        assert.equal((await rig.node('llama')).state, 'ready');
    });
    await test('a wrong key is a bad gateway, never the client\'s 401', async () => {
        server.status = 401;
        assert.equal((await ask(rig.url, tiny())).status, 502);
    });
    await test('its 500s open the breaker, and one good probe closes it', async () => {
        server.status = 500;
        for (let i = 0; i < 3; i++) await ask(rig.url, tiny());
        await state(rig, 'llama', 'quarantined');
        server.mode = 'well';
        await until(async () => (await ask(rig.url, tiny())).status === 200, 'the probe', 5000);
        await state(rig, 'llama', 'ready');
    });
    await test('a server that is busy for a moment is asked again', async () => {
        server.mode = 'busy once';
        server.status = 503;
        const r = await ask(rig.url, tiny({ max_tokens: 2 }));
        assert.equal(r.status, 200, r.text);
    });
    await test('a change of its models is seen', async () => {
        server.models = [{ id: 'tiny' }, { id: 'newcomer' }];
        await until(async () => (await rig.node('llama')).models.includes('newcomer'), 'the new model');
        assert.ok(!(await rig.node('llama')).models.includes('tiny-2'));
    });
    await test('one that stops listening is down with the reason, and back when it listens', async () => {
        await server.close();
        await state(rig, 'llama', 'down');
        assert.match((await rig.node('llama')).reason, /connect/i);
        assert.equal((await ask(rig.url, tiny())).status, 503);
        await server.listen(server.port);
        await state(rig, 'llama', 'ready');
        assert.equal((await ask(rig.url, tiny())).status, 200);
    });
    await test('one that no longer answers checks becomes suspect, then down', async () => {
        server.mode = 'mute';
        await state(rig, 'llama', 'suspect');
        await state(rig, 'llama', 'down');
        server.mode = 'well';
        await state(rig, 'llama', 'ready');
    });
    await test('its key stands in no log', async () => {
        assert.ok(!rig.log.includes('sk-upstream-secret-key'));
        assert.ok(!rig.coordinator.log.includes('sk-upstream-secret-key'));
    });
    await rig.idle();
    await rig.close();
    await server.close();
}

await test('one that is not there at the start is listed as down and never stops the others', async () => {
    const rig = await Rig.open([...quickly, '--upstream-server', 'gone http://127.0.0.1:1/v1'], [['amber']]);
    await until(async () => (await rig.node('gone'))?.state === 'down', 'gone is listed');
    assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).status, 200);
    await rig.close();
});

await test('a hanging server fails over to another node before the first token', async () => {
    const server = await new Server().listen();
    server.models = [{ id: 'fake-model' }];
    server.mode = 'hang';
    const rig = await Rig.open([...quickly, '--limit-first-token-s', '0.5', '--upstream-server', `slow ${server.url} concurrent=1`], []);
    await state(rig, 'slow', 'ready');
    const reply = ask(rig.url, body({ max_tokens: 3 }));
    await until(async () => (await rig.node('slow')).running === 1, 'it has the request');
    await rig.add('amber');
    const r = await reply;
    assert.equal(r.status, 200, r.text);
    assert.equal(r.json.choices[0].message.content, 't0 t1 t2 ');
    await rig.close();
    await server.close();
});

await test('a real coordinator with workers serves as an upstream', async () => {
    const folder = mkdtempSync(`${tmpdir()}/siliceo-upstream-`);
    const behind = await Rig.open([], [['amber', '--decode', '200']]);
    writeFileSync(`${folder}/key`, 'some-key\n', { mode: 0o600 });
    const front = await Rig.open([...quickly, '--upstream-server', `behind ${behind.url}/v1 key_file=${folder}/key`]);
    await state(front, 'behind', 'ready');
    const r = await ask(front.url, body({ max_tokens: 6 }));
    assert.equal(r.json?.choices[0].message.content, 't0 t1 t2 t3 t4 t5 ', r.text);
    assert.equal(r.json.choices[0].finish_reason, 'length');
    assert.ok(r.json.usage.prompt_tokens > 0);
    const many = await Promise.all(Array.from({ length: 20 }, () => ask(front.url, body({ stream: true, max_tokens: 10 }))));
    for (const m of many) assert.equal(content(events(m.text)), 't0 t1 t2 t3 t4 t5 t6 t7 t8 t9 ');
    const o = open(front, body({ stream: true, max_tokens: 5000 }));
    await until(() => o.text.includes('"t9 "'), 'token 9');
    o.socket.destroy();
    await behind.idle();
    await front.idle();
    await front.close();
    await behind.close();
    rmSync(folder, { recursive: true });
});


{
    // Two that serve each other, and one that serves itself: no request goes round, no model haunts.
    const folder = mkdtempSync(`${tmpdir()}/siliceo-upstream-`);
    process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
    const pair = {}, models = async (rig) => (await (await fetch(rig.url + '/v1/models')).json()).data.map((m) => m.id).sort().join();
    for (const name of ['a', 'b']) {
        writeFileSync(`${folder}/${name}.conf`, '');
        pair[name] = await Rig.open([...quickly, '--config', `${folder}/${name}.conf`], [[`node-${name}`, '--model', `model-${name}`, '--decode', '200']]);
    }
    const serve = (who, ...others) => {
        writeFileSync(`${folder}/${who}.conf`, `[upstream]\n${others.map((o) => `server = to-${o} ${pair[o].url}/v1`).join('\n')}\n`);
        pair[who].coordinator.child.kill('SIGHUP');
    };
    const asked = async (who, model) => { const at = Date.now(), r = await ask(pair[who].url, body({ model, max_tokens: 5 })); return [r.status, r.node, Date.now() - at < 5000]; };
    await test('coordinators that are upstreams of each other serve both their models, and neither when it is gone', async () => {
        serve('a', 'b', 'a'); // itself, too
        serve('b', 'a');
        for (const rig of Object.values(pair)) await until(async () => await models(rig) === 'model-a,model-b', 'both models');
        for (const who of ['a', 'b']) {
            for (const model of ['a', 'b']) assert.deepEqual(await asked(who, `model-${model}`), [200, who === model ? `node-${who}` : `to-${model}`, true]);
        }
        const many = await Promise.all(Array.from({ length: 40 }, (_, i) => ask(pair.a.url, body({ model: i % 2 ? 'model-a' : 'model-b', max_tokens: 5 }))));
        for (const r of many) assert.equal(r.status, 200, r.text);
        await stop(pair.a.fake('node-a'), 'SIGKILL');
        await fetch(`${pair.a.url}/admin/nodes/node-a/forget`, { method: 'POST' });
        for (const rig of Object.values(pair)) await until(async () => await models(rig) === 'model-b', 'the lost model is gone', 10000);
        for (const who of ['a', 'b']) assert.deepEqual(await asked(who, 'model-a'), [404, null, true]);
        for (const rig of Object.values(pair)) await rig.idle();
    });
    for (const rig of Object.values(pair)) await rig.close();
}
{
    const folder = mkdtempSync(`${tmpdir()}/siliceo-upstream-`), settings = `${folder}/coordinator.conf`;
    process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
    const servers = {};
    for (const name of ['first', 'second', 'third']) {
        servers[name] = await new Server().listen();
        servers[name].models = [{ id: `model-${name}` }];
    }
    const line = (name, more = '') => `server = ${name} ${servers[name].url} ${more}`;
    const write = (...lines) => writeFileSync(settings, `alias = usual=model-second\n[upstream]\n${lines.join('\n')}\n`);
    write();
    const rig = await Rig.open([...quickly, '--config', settings]);
    const reload = () => rig.coordinator.child.kill('SIGHUP');
    const asked = (model, more) => ask(rig.url, body({ model, max_tokens: 2, ...more }));

    await test('SIGHUP brings the first upstream to a coordinator that began without one', async () => {
        write(line('first'), line('second', 'concurrent=2'));
        reload();
        for (const name of ['first', 'second']) await state(rig, name, 'ready');
        assert.equal((await asked('model-first')).status, 200);
        assert.equal((await asked('usual')).status, 200);
    });
    await test('SIGHUP: one more, one less, one changed; what runs goes on to its end', async () => {
        const begun = { removed: open(rig, body({ model: 'model-first', stream: true, max_tokens: 150 })), changed: open(rig, body({ model: 'model-second', stream: true, max_tokens: 150 })) };
        for (const o of Object.values(begun)) await until(() => o.text.includes('"w5 "'), 'token 5');
        writeFileSync(`${folder}/key`, 'sk-another-key\n');
        write(line('second', `concurrent=9 key_file=${folder}/key`), line('third'));
        reload();
        await state(rig, 'third', 'ready');
        await state(rig, 'first', 'draining');
        assert.match((await rig.node('first')).reason, /taken off the settings/);
        assert.equal((await asked('model-third')).status, 200);
        await until(async () => (await rig.node('second')).max_sequences === 9, 'its new settings');
        assert.equal((await asked('model-second')).status, 200);
        assert.equal(servers.second.requests.at(-1).headers.authorization, 'Bearer sk-another-key');
        assert.equal((await asked('model-first')).status, 503);
        for (const [what, o] of Object.entries(begun)) {
            await until(() => o.text.includes('[DONE]') || o.text.includes('"error"'), 'the end', 20000);
            assert.equal(content(streamed(o)), Array.from({ length: 150 }, (_, i) => `w${i} `).join(''), what);
            assert.equal(streamed(o).at(-1), '[DONE]', what);
            o.socket.destroy();
        }
        await until(async () => await rig.node('first') === undefined, 'the removed one is forgotten');
        assert.equal((await asked('model-first')).status, 404);
    });
    await test('SIGHUP with wrong settings is said by line, and changes nothing', async () => {
        for (const wrong of [`${line('first')}\nserver = second ftp://x`, `${line('third')}\n${line('third')}`, 'nonsense = 1']) {
            const before = rig.log.length;
            write(wrong);
            reload();
            await until(() => rig.log.slice(before).includes('reload-failed'), 'it is said');
            assert.match(rig.log.slice(before), /what=settings error=".*(second: 'ftp|there twice|nonsense)/);
        }
        assert.deepEqual((await rig.nodes()).map((n) => [n.name, n.state]), [['second', 'ready'], ['third', 'ready']]);
        assert.equal((await asked('model-third')).status, 200);
        assert.ok(!rig.log.includes('sk-another-key'));
    });
    await test('SIGHUP: one that is put back while it still finishes its work takes work again', async () => {
        write(line('second'), line('third'));
        reload();
        const o = open(rig, body({ model: 'model-third', stream: true, max_tokens: 400 }));
        await until(() => o.text.includes('"w5 "'), 'token 5');
        write(line('second'));
        reload();
        await state(rig, 'third', 'draining');
        write(line('second'), line('third'));
        reload();
        await state(rig, 'third', 'ready');
        assert.equal((await asked('model-third')).status, 200);
        o.socket.destroy();
        await rig.idle();
    });
    await test('SIGHUP, 200 times and with every list: nothing is left over', async () => {
        const all = Object.keys(servers), before = await rig.metric('process_open_fds');
        const load = Array.from({ length: 60 }, (_, i) => asked(`model-${all[i % 3]}`, { stream: i % 2 === 0 }));
        for (let i = 0; i < 200; i++) {
            write(...all.filter((_, k) => (i >> k) & 1).map((name) => line(name, i % 5 === 0 ? 'concurrent=7' : '')));
            reload();
            if (i % 10 === 0) await (await fetch(rig.url + '/healthz')).text();
        }
        for (const r of await Promise.all(load)) assert.ok([200, 404, 503].includes(r.status), `${r.status} ${r.text}`);
        write(...all.map((name) => line(name)));
        reload();
        for (const name of all) await state(rig, name, 'ready');
        for (const name of all) assert.equal((await asked(`model-${name}`)).status, 200);
        await rig.idle();
        await until(async () => (await rig.status()).http.connections <= 3, 'connections end');
        const after = await rig.metric('process_open_fds');
        assert.ok(after <= before + 8, `${after} descriptors after ${before}`); // kept connections to the servers
    });
    await rig.close();
    for (const server of Object.values(servers)) await server.close();
}
finish();
