// test_cors.mjs - browsers: every endpoint lets other origins in, before a request, in its
// answer, streamed or not, and in its errors; what administers does not.
import assert from 'node:assert/strict';
import { finish, startFleet, test } from './fleet.mjs';

const origin = 'https://elsewhere.example';
const user = [{ role: 'user', content: 'Who wrote Hamlet?' }];
const asks = {
    '/v1/chat/completions': { messages: user, max_tokens: 20 },
    '/v1/completions': { prompt: 'Once', max_tokens: 5 },
    '/v1/responses': { input: 'Who wrote Hamlet?', max_output_tokens: 20 },
    '/v1/messages': { messages: user, max_tokens: 20 },
    '/v1/messages/count_tokens': { messages: user },
    '/v1/embeddings': { input: 'a dog' },
    '/v1/rerank': { query: 'a dog', documents: ['a cat'] },
    '/tokenize': { content: 'a dog' },
    '/detokenize': { tokens: [1, 2] },
};
const streams = ['/v1/chat/completions', '/v1/completions', '/v1/responses', '/v1/messages'];
const gets = ['/v1/models', '/v1/models/demo', '/healthz', '/readyz', '/status', '/metrics'];
const exposed = ['x-request-id', 'retry-after', 'x-siliceo-node', 'x-siliceo-resumed', 'x-siliceo-thinking'];

const fleet = await startFleet([['amber']]);
const ask = (path, init = {}) => fetch(fleet.url + path, { ...init, headers: { origin, 'content-type': 'application/json', ...init.headers } });
const post = (path, body) => ask(path, { method: 'POST', body: JSON.stringify({ model: 'demo', ...body }) });
function letsIn(reply) {
    assert.equal(reply.headers.get('access-control-allow-origin'), '*');
    const words = (reply.headers.get('access-control-expose-headers') ?? '').toLowerCase().split(/, */);
    for (const name of exposed) assert.ok(words.includes(name), `${name} is not exposed`);
}
for (const path of [...Object.keys(asks), ...gets.slice(0, 2)]) {
    await test(`${path}: a preflight is answered without a key, and repeats the headers asked for`, async () => {
        const wanted = 'authorization, content-type, x-api-key, x-stainless-retry-count, idempotency-key';
        const r = await ask(path, { method: 'OPTIONS', headers: { 'access-control-request-method': 'POST', 'access-control-request-headers': wanted } });
        assert.equal(r.status, 204);
        assert.equal(r.headers.get('access-control-allow-origin'), '*');
        assert.equal(r.headers.get('access-control-allow-headers'), wanted);
        for (const method of ['GET', 'POST', 'OPTIONS']) assert.match(r.headers.get('access-control-allow-methods'), new RegExp(method));
        assert.equal(await r.text(), '');
    });
}
for (const [path, body] of Object.entries(asks)) {
    await test(`${path}: an answer and an error can be read`, async () => {
        const r = await post(path, body);
        assert.equal(r.status, 200, await r.clone().text());
        letsIn(r);
        await r.text();
        for (const [wrong, code] of [[{ model: 'nope' }, 404], [{ model: 5 }, 400]]) {
            const e = await post(path, { ...body, ...wrong });
            assert.equal(e.status, code);
            letsIn(e);
            await e.text();
        }
        const garbage = await ask(path, { method: 'POST', body: '{' });
        assert.equal(garbage.status, 400);
        letsIn(garbage);
    });
}
for (const path of streams) {
    await test(`${path}: a stream can be read`, async () => {
        const r = await post(path, { ...asks[path], stream: true });
        assert.equal(r.headers.get('content-type'), 'text/event-stream');
        letsIn(r);
        await r.text();
    });
}
await test('lists of models and a path that is none can be read', async () => {
    for (const path of [...gets.slice(0, 2), '/v1/models/nope', '/v1/nothing']) letsIn(await ask(path));
});
await test('what administers is not let in', async () => {
    const before = await ask('/admin/nodes/amber/drain', { method: 'OPTIONS', headers: { 'access-control-request-method': 'POST' } });
    assert.equal(before.headers.get('access-control-allow-origin'), null);
    const r = await ask('/admin/nodes/nope/drain', { method: 'POST' });
    assert.equal(r.headers.get('access-control-allow-origin'), null);
});
await fleet.stop();
finish();
