// test_retries.mjs - a retry joins the request that still runs, instead of running it twice.
import assert from 'node:assert/strict';
import { finish, test } from '../clients/fleet.mjs';
import { ask, body, content, events, net, Rig, streamed, until } from './rig.mjs';

const words = (n) => Array.from({ length: n }, (_, i) => `t${i} `).join('');
const submits = (rig) => rig.fake('amber').events.filter((e) => e.event === 'submit').length;
const cancels = (rig) => rig.fake('amber').events.filter((e) => e.event === 'cancel').length;
const key = { 'idempotency-key': 'order-66' };

// A request on a socket of its own, with headers.
function open(rig, request, headers) {
    const text = JSON.stringify(request);
    const socket = net.connect(rig.port, rig.host), opened = { socket, text: '', closed: false };
    socket.on('data', (data) => { opened.text += data; }).on('close', () => { opened.closed = true; }).on('error', () => {});
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`).join('');
    socket.write(`POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\n${lines}Content-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`);
    return opened;
}

const rig = await Rig.open([], [['amber', '--decode', '40']]);
await test('the same Idempotency-Key while the first runs: one run, both get the whole stream', async () => {
    const request = body({ stream: true, max_tokens: 30 }), before = submits(rig);
    const first = open(rig, request, key);
    await until(() => first.text.includes('t5 '), 'tokens');
    const second = open(rig, request, key);
    await until(() => first.text.includes('[DONE]') && second.text.includes('[DONE]'), 'both end');
    for (const o of [first, second]) assert.equal(content(streamed(o)), words(30));
    assert.equal(streamed(first)[0].id, streamed(second)[0].id);
    assert.match(second.text, /X-Siliceo-Node: amber/i);
    assert.equal(submits(rig), before + 1);
    for (const o of [first, second]) o.socket.destroy();
    assert.ok(await rig.metric('siliceo_requests_joined_total') >= 1);
});
await test('so do whole replies', async () => {
    const request = body({ max_tokens: 20 }), before = submits(rig);
    const both = await Promise.all([ask(rig.url, request, key), until(async () => submits(rig) > before, 'it runs').then(() => ask(rig.url, request, key))]);
    assert.deepEqual(both[0].json, both[1].json);
    assert.equal(both[0].json.choices[0].message.content, words(20));
    assert.equal(submits(rig), before + 1);
});
await test('the first leaves: the one that joined gets the rest; the last leaves: the node is told', async () => {
    const request = body({ stream: true, max_tokens: 40 }), before = cancels(rig);
    const first = open(rig, request, key);
    await until(() => first.text.includes('t3 '), 'tokens');
    const second = open(rig, request, key);
    await until(() => second.text.includes('t4 '), 'it joined');
    first.socket.destroy();
    await until(() => second.text.includes('t15 '), 'it goes on');
    assert.equal(cancels(rig), before);
    second.socket.destroy();
    await until(() => cancels(rig) === before + 1, 'the node is told');
    await rig.idle();
});
await test("a library's retry of the same body joins by its count; without a word two requests are two", async () => {
    const request = body({ max_tokens: 20 });
    for (const [headers, runs] of [[{ 'x-stainless-retry-count': '1' }, 1], [{ 'x-stainless-retry-count': '0' }, 2], [{}, 2]]) {
        const before = submits(rig);
        const both = await Promise.all([ask(rig.url, request), until(async () => submits(rig) > before, 'it runs').then(() => ask(rig.url, request, headers))]);
        assert.ok(both.every((r) => r.status === 200));
        assert.equal(submits(rig), before + runs, JSON.stringify(headers));
    }
});
await test('a key that stands for another body is 409; when the first has ended it is free again', async () => {
    const before = submits(rig);
    const first = ask(rig.url, body({ max_tokens: 20 }), key);
    await until(async () => submits(rig) > before, 'it runs');
    const r = await ask(rig.url, body({ max_tokens: 21 }), key);
    assert.equal(r.status, 409);
    assert.equal(r.json.error.code, 'idempotency_key_reused');
    await first;
    assert.equal((await ask(rig.url, body({ max_tokens: 2 }), key)).status, 200);
});
await test('a retry of one whose client is gone runs anew, and the first was cancelled', async () => {
    const request = body({ max_tokens: 200 }), before = [submits(rig), cancels(rig)];
    const first = open(rig, request, {});
    await until(() => submits(rig) > before[0], 'it runs');
    first.socket.destroy();
    await until(() => cancels(rig) > before[1], 'it is cancelled');
    assert.equal((await ask(rig.url, body({ max_tokens: 3 }), { 'x-stainless-retry-count': '1' })).status, 200);
    await rig.idle();
});
await test('an error reaches both', async () => {
    await rig.add('bad', '--model', 'bad-model', '--fault', 'hang');
    const request = body({ model: 'bad-model', max_tokens: 3 });
    const both = [ask(rig.url, request, { ...key, 'x-siliceo-deadline-ms': '60000' }), until(async () => (await rig.node('bad')).running === 1, 'it runs').then(() => ask(rig.url, request, key))];
    await until(async () => (await rig.status()).http.exchanges >= 3, 'both wait');
    rig.fake('bad').child.kill('SIGKILL');
    for (const r of await Promise.all(both)) assert.equal(r.status, 503);
    await rig.idle();
});
await rig.close();
finish();
