// test_embeddings.mjs - vectors by the official OpenAI SDK, relevances by curl, beside chats and through a lost node.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import OpenAI from 'openai';
import { finish, program, startCoordinator, startFleet, startMortals, startWorker, stop, temporaryFolder, test, until } from './fleet.mjs';

const folder = temporaryFolder();
const ledger = `${folder}/ledger.db`;
const fleet = await startFleet([['amber']], ['--ledger-url', ledger]);
const client = new OpenAI({ baseURL: fleet.url + '/v1', apiKey: 'none', maxRetries: 0 });
const demo = 'deploy/models/demo.gguf';
const status = async (url) => (await fetch(url + '/status')).json();
const works = (n) => n.running > 0 && n.beat.running + n.beat.waiting > 0;
const idle = (url) => until(async () => (await status(url)).nodes.every((n) => n.state !== 'ready' || (n.running === 0 && n.beat.running === 0 && n.beat.waiting === 0)), 'all idle');
const post = async (path, body, url = fleet.url) => {
    const r = await fetch(url + path, { method: 'POST', body: JSON.stringify({ model: 'demo', ...body }) });
    return { status: r.status, ...(await r.json()) };
};
const embed = async (input, more = {}) => (await client.embeddings.create({ model: 'demo', input, ...more }));
const vectors = async (input, more = { encoding_format: 'base64' }) => (await embed(input, more)).data.map((d) => d.embedding);
const dot = (x, y) => x.reduce((sum, v, i) => sum + v * y[i], 0);
const texts = Array.from({ length: 24 }, (_, i) => `Note ${i}: ${'the rose and the bread '.repeat(i % 7)}number ${i * i}.`);

await test('the SDK gets the same floats by its own base64 and as numbers', async () => {
    const r = await embed(texts[3]);
    assert.equal(r.object, 'list');
    assert.equal(r.model, 'demo');
    assert.equal(r.data.length, 1);
    assert.equal(r.data[0].object, 'embedding');
    const floats = (await embed(texts[3], { encoding_format: 'float' })).data[0].embedding;
    assert.deepEqual(Array.from(r.data[0].embedding), floats.map(Math.fround));
    assert.equal(floats.length, 256);
    assert.ok(Math.abs(dot(floats, floats) - 1) < 1e-5);
});
await test('a batch has its vectors in order, those of each text alone, and usage counts its tokens', async () => {
    const r = await embed(texts, { encoding_format: 'base64' });
    assert.deepEqual(r.data.map((d) => d.index), texts.map((_, i) => i));
    let n = 0;
    for (const [i, text] of texts.entries()) {
        assert.deepEqual((await vectors(text))[0], r.data[i].embedding);
        n += (await post('/tokenize', { content: text })).count;
    }
    assert.deepEqual(r.usage, { prompt_tokens: n, total_tokens: n });
});
await test('token ids give what their text gives, alone and in lists', async () => {
    const { tokens } = await post('/tokenize', { content: texts[5] });
    const [want] = await vectors(texts[5]);
    assert.deepEqual((await vectors(tokens))[0], want);
    assert.deepEqual((await vectors([tokens, [1, 2, 3]]))[0], want);
});
await test('dimensions are the first ones, of length one again; user is ignored', async () => {
    const [whole] = await vectors(texts[2], { encoding_format: 'float' }), [part] = await vectors(texts[2], { dimensions: 16, user: 'u', encoding_format: 'float' });
    const length = Math.sqrt(dot(whole.slice(0, 16), whole.slice(0, 16)));
    assert.equal(part.length, 16);
    part.forEach((v, i) => assert.ok(Math.abs(v - whole[i] / length) < 1e-6));
});
await test('what is wrong is a 400 that names the field', async () => {
    const cases = [[{ input: [] }, 'input'], [{ input: ['a', ''] }, 'input[1]'], [{ input: [[1, 4096]] }, 'input'], [{ input: 'a', dimensions: 257 }, 'dimensions'],
        [{ input: 'a', encoding_format: 'hex' }, 'encoding_format'], [{ input: Array(2049).fill('a') }, 'input'], [{}, 'input']];
    for (const [body, param] of cases) {
        const e = await client.embeddings.create({ model: 'demo', ...body }).then(() => assert.fail('it was taken'), (x) => x);
        assert.ok(e instanceof OpenAI.BadRequestError, String(e));
        assert.equal(e.param, param);
        assert.equal(e.type, 'invalid_request_error');
    }
    const long = await client.embeddings.create({ model: 'demo', input: ['a', 'word '.repeat(40000)] }).catch((x) => x);
    assert.equal(long.code, 'context_length_exceeded');
    assert.equal(long.param, 'input[1]');
    await assert.rejects(client.embeddings.create({ model: 'none', input: 'a' }), OpenAI.NotFoundError);
});
// The most that are allowed; fewer where sanitizers make each ten times as long.
const most = /address|thread/.test(process.env.SILICEO_BUILD ?? '') ? 256 : 2048;
await test(`${most} inputs pass beside a chat that streams on and says what it always says`, async () => {
    const messages = [{ role: 'user', content: 'Who wrote The Name of the Rose?' }];
    const chat = async () => {
        let text = '';
        for await (const chunk of await client.chat.completions.create({ model: 'demo', messages, temperature: 0, stream: true })) text += chunk.choices[0]?.delta.content ?? '';
        return text;
    };
    const alone = await chat(), short = texts.map((t) => t.slice(0, 9)), many = Array.from({ length: most }, (_, i) => short[i % short.length]);
    const all = vectors(many);
    let over = false, n = 0;
    void all.then(() => { over = true; });
    while (!over) { assert.equal(await chat(), alone); n++; }
    assert.ok(n >= 2, `${n} chats`);
    const few = await vectors(short);
    (await all).forEach((v, i) => assert.equal(v, few[i % short.length]));
    await idle(fleet.url);
});
await test('a client that leaves inside a batch stops it', async () => {
    const abort = new AbortController(), all = client.embeddings.create({ model: 'demo', input: Array(most).fill('word '.repeat(200)) }, { signal: abort.signal });
    await until(async () => (await status(fleet.url)).nodes.some(works), 'it runs');
    abort.abort();
    await assert.rejects(all, OpenAI.APIUserAbortError);
    await idle(fleet.url);
});

// The relevance that the model's own logits give: template, tokenize and logits, each a subcommand.
function relevance(instruction, query, document) {
    const worker = (name, args, input) => {
        const r = spawnSync(program('siliceo-worker'), [name, '--model', demo, '--backend', 'cpu', '--threads', '1', ...args], { input, maxBuffer: 1 << 26 });
        assert.equal(r.status, 0, String(r.stderr));
        return r.stdout;
    };
    const messages = [
        { role: 'system', content: 'Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".' },
        { role: 'user', content: `<Instruct>: ${instruction}\n<Query>: ${query}\n<Document>: ${document}` }];
    const prompt = worker('template', [], JSON.stringify({ messages, chat_template_kwargs: { enable_thinking: false } }));
    assert.ok(String(prompt).endsWith('<|im_start|>assistant\n<think>\n\n</think>\n\n'));
    const ids = JSON.parse(worker('tokenize', ['--added', 'all'], prompt));
    worker('logits', ['--ids', ids.join(','), '--out', `${folder}/logits`]);
    const bytes = readFileSync(`${folder}/logits`), n = bytes.length / 4 / ids.length;
    const logit = (word) => bytes.readFloatLE(4 * ((ids.length - 1) * n + JSON.parse(worker('tokenize', [], word))[0]));
    return { score: 1 / (1 + Math.exp(logit('no') - logit('yes'))), n_tokens: ids.length };
}
const curl = (path, body) => JSON.parse(execFileSync('curl', ['-sS', fleet.url + path, '-H', 'Content-Type: application/json', '-d', '@-'], { input: JSON.stringify({ model: 'demo', ...body }) }));
const query = 'Who wrote The Name of the Rose?', documents = ['Umberto Eco wrote it in 1980.', { text: 'Bread is made of flour, water and salt.' }, 'The rose is red.', ''];

await test('a relevance is the softmax of yes over yes and no at the end of the prompt', async () => {
    const r = curl('/v1/rerank', { query, documents, instruction: 'Find the author' });
    assert.equal(r.results.length, 4);
    let n = 0;
    for (const { index, relevance_score } of r.results) {
        const d = documents[index], want = relevance('Find the author', query, d.text ?? d);
        assert.ok(Math.abs(relevance_score - want.score) < 1e-6, `${index}: ${relevance_score}, by the logits ${want.score}`);
        n += want.n_tokens;
    }
    assert.deepEqual(r.usage, { prompt_tokens: n, total_tokens: n });
    const [one] = curl('/v1/rerank', { query, documents: [documents[0]] }).results;
    const plain = relevance('Given a web search query, retrieve relevant passages that answer the query', query, documents[0]);
    assert.ok(Math.abs(one.relevance_score - plain.score) < 1e-6);
});
await test('results come the most relevant first, top_n of them, with their documents when asked', async () => {
    const all = curl('/v1/rerank', { query, documents, return_documents: true });
    assert.match(all.id, /^rerank-/);
    assert.equal(all.model, 'demo');
    all.results.forEach((r, i) => {
        assert.ok(i === 0 || r.relevance_score <= all.results[i - 1].relevance_score);
        assert.deepEqual(r.document, { text: documents[r.index].text ?? documents[r.index] });
    });
    const two = curl('/rerank', { query, documents, top_n: 2 });
    assert.deepEqual(two.results, all.results.slice(0, 2).map(({ index, relevance_score }) => ({ index, relevance_score })));
});
await test('what a ranking cannot be made of is a 400 that names the field', async () => {
    for (const [body, param] of [[{ documents }, 'query'], [{ query }, 'documents'], [{ query, documents: [] }, 'documents'], [{ query, documents: ['a', { title: 'b' }] }, 'documents[1]'],
        [{ query, documents, top_n: 0 }, 'top_n'], [{ query, documents, return_documents: 'yes' }, 'return_documents']]) {
        const { error } = curl('/v1/rerank', body);
        assert.equal(error.param, param);
        assert.equal(error.type, 'invalid_request_error');
    }
    assert.equal(curl('/v1/rerank', { query, documents: ['a', 'word '.repeat(40000)] }).error.param, 'documents[1]');
});
await test('the ledger has the tokens, and browsers may ask', async () => {
    const usage = () => JSON.parse(execFileSync(program('siliceo-coordinator'), ['usage', '--ledger-url', ledger, '--json', '--by', 'model'])).find((row) => row.model === 'demo');
    const before = await until(usage, 'rows');
    const { usage: used } = await embed(texts);
    await until(() => usage().requests === before.requests + 1, 'the row');
    assert.equal(usage().prompt_tokens, before.prompt_tokens + used.prompt_tokens);
    const r = await fetch(fleet.url + '/v1/rerank', { method: 'OPTIONS', headers: { Origin: 'https://a.example', 'Access-Control-Request-Headers': 'authorization' } });
    assert.equal(r.status, 204);
    assert.equal(r.headers.get('access-control-allow-headers'), 'authorization');
});
await fleet.stop();

await test('a node that is killed inside a batch is replaced unseen: the vectors are those of an unbroken run', async () => {
    const { url, workers, nodes, ...two } = await startMortals();
    const input = Array.from({ length: 200 }, (_, i) => `${texts[i % texts.length]} ${'word '.repeat(20)}`);
    const whole = await post('/v1/embeddings', { input, encoding_format: 'base64' }, url);
    assert.equal(whole.status, 200, JSON.stringify(whole.error));
    const again = fetch(url + '/v1/embeddings', { method: 'POST', body: JSON.stringify({ model: 'demo', input, encoding_format: 'base64' }) });
    const busy = await until(async () => (await nodes()).find(works)?.name, 'one works');
    workers[busy].child.kill('SIGKILL');
    const r = await again, reply = await r.json();
    assert.equal(r.status, 200, JSON.stringify(reply.error));
    assert.notEqual(r.headers.get('x-siliceo-node'), busy);
    reply.data.forEach((d, i) => assert.equal(d.embedding, whole.data[i].embedding));
    assert.equal(reply.data.length, whole.data.length);
    assert.deepEqual(reply.usage, whole.usage);
    await two.stop();
});

// The demo model with more keys before its own; a filler keeps the tensors aligned.
function withKeys(keys, path) {
    const u = (n, v) => { const b = Buffer.alloc(n); b.writeUIntLE(v, 0, Math.min(n, 6)); return b; };
    const text = (t) => Buffer.concat([u(8, t.length), Buffer.from(t)]);
    const head = Buffer.concat(keys.flatMap(([name, type, value]) => [text(name), u(4, type), value]).concat([text('general.description'), u(4, 8)]));
    const filler = text(' '.repeat(32 - (head.length + 8) % 32)), file = Buffer.from(readFileSync(demo));
    file.writeUInt32LE(file.readUInt32LE(16) + keys.length + 1, 16);
    writeFileSync(path, Buffer.concat([file.subarray(0, 24), head, filler, file.subarray(24)]));
    return path;
}
await test('a file that asks for means and for an end behind each text gets them; the setting comes first', async () => {
    const mean = withKeys([['qwen35moe.pooling_type', 4, Buffer.from([1, 0, 0, 0])], ['tokenizer.ggml.add_eos_token', 7, Buffer.from([1])]], `${folder}/mean.gguf`);
    const of = async (args, model) => {
        const coordinator = await startCoordinator(), worker = await startWorker(coordinator.mesh, 'amber', args, model);
        await until(async () => (await status(coordinator.url)).nodes.some((n) => n.state === 'ready'), 'it is ready');
        const { tokens } = await post('/tokenize', { content: texts[1] }, coordinator.url);
        const r = await post('/v1/embeddings', { input: [texts[1], [...tokens, 2151], tokens], encoding_format: 'base64' }, coordinator.url);
        assert.equal(r.status, 200, JSON.stringify(r.error));
        await stop(worker);
        await stop(coordinator);
        return r.data.map((d) => d.embedding); // of the text, of its ids with the end, and without
    };
    const last = await of([]), means = await of(['--embedding-pooling', 'mean']), file = await of([], mean), both = await of(['--embedding-pooling', 'last'], mean);
    assert.notEqual(last[2], means[2]);
    assert.equal(last[0], last[2]);
    assert.deepEqual(file, [means[1], means[1], means[2]]);
    assert.deepEqual(both, [last[1], last[1], last[2]]);
});
finish();
