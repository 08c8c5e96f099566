// test_endpoints.mjs - the other endpoints share the life of a request: lost nodes, batches, limits, keep-alives.
import assert from 'node:assert/strict';
import { finish, test } from '../clients/fleet.mjs';
import { Rig, until } from './rig.mjs';

const words = (n) => Array.from({ length: n }, (_, i) => `t${i} `).join('');
const limits = ['--limit-between-tokens-s', '0.5', '--node-breaker-s', '60'];
const user = [{ role: 'user', content: 'hello' }];
const data = (text) => text.split('\n').filter((l) => l.startsWith('data: {')).map((l) => JSON.parse(l.slice(6)));

// How each asks for n tokens, and what text its replies hold.
const endpoints = {
    '/v1/completions': {
        body: (n) => ({ prompt: 'hello', max_tokens: n }),
        whole: (r) => r.choices.map((c) => c.text).join('|'),
        streamed: (list) => list.map((e) => e.choices[0]?.text ?? '').join(''),
        ends: (text) => text.endsWith('data: [DONE]\n\n'),
    },
    '/v1/messages': {
        body: (n) => ({ messages: user, max_tokens: n }),
        whole: (r) => r.content.map((b) => b.text).join(''),
        streamed: (list) => list.map((e) => e.delta?.text ?? '').join(''),
        ends: (text) => data(text).at(-1).type === 'message_stop',
    },
    // A response knows its limit by another name than the fake worker does, whose default is 16.
    '/v1/responses': {
        body: () => ({ input: 'hello' }), n: 16,
        whole: (r) => r.output.map((item) => item.content[0].text).join(''),
        streamed: (list) => list.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta).join(''),
        ends: (text) => /^response\.(completed|incomplete)$/.test(data(text).at(-1).type),
    },
};
async function post(rig, path, body, options = {}) {
    const r = await fetch(rig.url + path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ model: 'fake-model', ...body }), ...options });
    return { status: r.status, headers: r.headers, text: await r.text() };
}

for (const [path, e] of Object.entries(endpoints)) {
    await test(`${path}: a node dies inside an answer and another goes on, whole and streamed`, async () => {
        for (const stream of [true, false]) {
            const rig = await Rig.open(limits, [['mortal', '--decode', '100', '--fault', 'die', '--fault-at', '5'], ['spare', '--decode', '50']]);
            const n = e.n ?? 12;
            const r = await post(rig, path, { ...e.body(n), stream });
            assert.equal(r.status, 200, r.text);
            assert.equal(stream ? e.streamed(data(r.text)) : e.whole(JSON.parse(r.text)), words(n));
            if (stream) assert.ok(e.ends(r.text), r.text.slice(-300));
            await rig.idle();
            await rig.close();
        }
    });
    await test(`${path}: with nobody to go on, a stream ends with an error and not as if it were whole`, async () => {
        const rig = await Rig.open(limits, [['mortal', '--decode', '100', '--fault', 'die', '--fault-at', '5']]);
        const r = await post(rig, path, { ...e.body(40), stream: true });
        assert.equal(r.status, 200);
        assert.ok(!e.ends(r.text), r.text.slice(-300));
        assert.match(JSON.stringify(data(r.text).at(-1)), /"error"/);
        await rig.idle();
        await rig.close();
    });
    await test(`${path}: silence before the first token is filled with what its clients ignore`, async () => {
        const rig = await Rig.open(['--http-hold-headers-s', '0.1', '--http-keepalive-s', '0.1'], [['mute', '--fault', 'hang']]);
        const controller = new AbortController();
        const reply = await fetch(rig.url + path, { method: 'POST', body: JSON.stringify({ model: 'fake-model', ...e.body(5), stream: true }), signal: controller.signal });
        let text = '';
        const wanted = path === '/v1/messages' ? 'event: ping\ndata: {"type":"ping"}\n\n' : ': keepalive\n\n';
        const decoder = new TextDecoder();
        for await (const piece of reply.body) {
            text += decoder.decode(piece);
            if (text.split(wanted).length > 3) break;
        }
        assert.equal(text.replaceAll(wanted, ''), '');
        controller.abort();
        await rig.idle();
        await rig.close();
    });
}
await test('a batch is spread over nodes, and survives the loss of one', async () => {
    const rig = await Rig.open(limits, [['mortal', '--decode', '100', '--fault', 'die', '--fault-at', '5'], ['spare', '--decode', '100'], ['third', '--decode', '100']]);
    const prompt = ['a', 'b', 'c', 'd', 'e', 'f'];
    const whole = await post(rig, '/v1/completions', { prompt, max_tokens: 9 });
    assert.equal(whole.status, 200, whole.text);
    assert.deepEqual(JSON.parse(whole.text).choices.map((c) => [c.index, c.text]), prompt.map((_, i) => [i, words(9)]));
    assert.equal(JSON.parse(whole.text).usage.completion_tokens, 54);
    const nodes = (await rig.nodes()).filter((n) => n.served > 0);
    assert.ok(nodes.length >= 2, JSON.stringify(nodes.map((n) => n.name)));
    await rig.idle();
    await rig.close();
});
await test('a batch that the queue has no room for is refused once, and leaves nothing behind', async () => {
    const rig = await Rig.open(['--queue-max-waiting', '2'], [['amber', '--decode', '20', '--slots', '1']]);
    for (const stream of [true, false]) {
        const r = await post(rig, '/v1/completions', { prompt: ['a', 'b', 'c', 'd', 'e', 'f', 'g'], max_tokens: 5, stream });
        assert.equal(r.status, 429, r.text);
        assert.ok(r.headers.get('retry-after'));
        await rig.idle();
    }
    const r = await post(rig, '/v1/completions', { prompt: ['a', 'b'], max_tokens: 5 });
    assert.equal(r.status, 200);
    await rig.close();
});
await test('a part of a batch that fails ends the reply, and the others with it', async () => {
    const rig = await Rig.open(limits, [['mortal', '--decode', '100', '--fault', 'die', '--fault-at', '5', '--slots', '4']]);
    const whole = await post(rig, '/v1/completions', { prompt: ['a', 'b', 'c', 'd'], max_tokens: 30 });
    assert.ok(whole.status >= 500, whole.text);
    await rig.idle();
    await rig.close();
});
await test('clients leave batches at any moment, and no place stays taken', async () => {
    const rig = await Rig.open([], [['amber', '--decode', '200', '--slots', '4'], ['basalt', '--decode', '100', '--slots', '4']]);
    for (let i = 0; i < 30; i++) {
        const controller = new AbortController();
        const asked = post(rig, '/v1/completions', { prompt: ['a', 'b', 'c', 'd', 'e'], max_tokens: 400, stream: i % 2 === 0 }, { signal: controller.signal });
        if (i % 3 > 0) await until(async () => (await rig.status()).requests.running > i % 4, 'some run');
        controller.abort();
        await assert.rejects(asked);
    }
    await rig.idle();
    await rig.close();
});
finish();
