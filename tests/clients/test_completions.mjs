// test_completions.mjs - /v1/completions by the official OpenAI SDK, and /tokenize, /detokenize.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { finish, startFleet, test, until } from './fleet.mjs';

const fleet = await startFleet();
const client = new OpenAI({ baseURL: fleet.url + '/v1', apiKey: 'none', maxRetries: 0 });
const status = async () => (await fetch(fleet.url + '/status')).json();
const idle = () => until(async () => (await status()).nodes.every((n) => n.running === 0 && n.waiting === 0 && n.beat.running === 0), 'all idle');
const ask = (question) => `<|im_start|>user\n${question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n`;
const base = { model: 'demo', temperature: 0, max_tokens: 60 };
const post = (path, body) => fetch(fleet.url + path, { method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json', origin: 'http://elsewhere.example' } });

await test('a prompt is written on, and accounted', async () => {
    const r = await client.completions.create({ ...base, prompt: ask('Who wrote The Name of the Rose?') });
    assert.equal(r.object, 'text_completion');
    assert.match(r.id, /^cmpl-/);
    assert.match(r.choices[0].text, /Umberto Eco/);
    assert.equal(r.choices[0].finish_reason, 'stop');
    assert.equal(r.choices[0].logprobs, null);
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
});
await test('a stream gives the same text, its end once, and usage when asked', async () => {
    const whole = await client.completions.create({ ...base, prompt: ask('Count from 1 to 20.') });
    const stream = await client.completions.create({ ...base, prompt: ask('Count from 1 to 20.'), stream: true, stream_options: { include_usage: true } });
    let text = '', ends = [], usage = null;
    for await (const chunk of stream) {
        text += chunk.choices[0]?.text ?? '';
        if (chunk.choices[0]?.finish_reason) ends.push(chunk.choices[0].finish_reason);
        if (chunk.usage) { assert.deepEqual(chunk.choices, []); usage = chunk.usage; }
    }
    assert.equal(text, whole.choices[0].text);
    assert.deepEqual(ends, ['stop']);
    assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
});
await test('echo puts the prompt before the text, whole and streamed', async () => {
    const prompt = ask('In what year was Napoleon born?');
    const plain = await client.completions.create({ ...base, prompt });
    const whole = await client.completions.create({ ...base, prompt, echo: true });
    assert.equal(whole.choices[0].text, prompt + plain.choices[0].text);
    let text = '';
    for await (const chunk of await client.completions.create({ ...base, prompt, echo: true, stream: true })) text += chunk.choices[0]?.text ?? '';
    assert.equal(text, whole.choices[0].text);
});
await test('a batch of texts gives n choices each, in order', async () => {
    const prompts = ['Who wrote Hamlet?', 'In what year was Napoleon born?', 'What is 17 × 23?'].map(ask);
    const r = await client.completions.create({ ...base, prompt: prompts, n: 2 });
    assert.deepEqual(r.choices.map((c) => c.index), [0, 1, 2, 3, 4, 5]);
    for (const [i, pattern] of [/Shakespeare/, /1769/, /391/].entries()) {
        assert.match(r.choices[2 * i].text, pattern);
        assert.match(r.choices[2 * i + 1].text, pattern);
    }
    let texts = ['', '', ''], ends = 0;
    for await (const chunk of await client.completions.create({ ...base, prompt: prompts, stream: true })) {
        const c = chunk.choices[0];
        texts[c.index] += c.text;
        if (c.finish_reason) ends++;
    }
    assert.equal(ends, 3);
    for (let i = 0; i < 3; i++) assert.equal(texts[i], r.choices[2 * i].text);
});
await test('token ids are a prompt as good as their text, alone and in a batch', async () => {
    const prompt = ask('Who wrote Hamlet?');
    const { tokens } = await (await post('/tokenize', { model: 'demo', prompt })).json();
    const text = (await client.completions.create({ ...base, prompt })).choices[0].text;
    assert.equal((await client.completions.create({ ...base, prompt: tokens })).choices[0].text, text);
    assert.deepEqual((await client.completions.create({ ...base, prompt: [tokens, tokens] })).choices.map((c) => c.text), [text, text]);
});
await test('max_tokens ends with length and is 16 when nothing is said; stop ends before its text', async () => {
    const r = await client.completions.create({ model: 'demo', temperature: 0, prompt: ask('Count from 1 to 200.') });
    assert.equal(r.choices[0].finish_reason, 'length');
    assert.equal(r.usage.completion_tokens, 16);
    const s = await client.completions.create({ ...base, prompt: ask('Count from 1 to 30.'), stop: ['12 13'] });
    assert.equal(s.choices[0].text.trimEnd(), '1 2 3 4 5 6 7 8 9 10 11');
    assert.equal(s.choices[0].finish_reason, 'stop');
});
await test('logprobs come in columns, whole and streamed', async () => {
    const r = await client.completions.create({ ...base, prompt: ask('What is 17 × 23?'), logprobs: 3, max_tokens: 6 });
    const { tokens, token_logprobs, top_logprobs, text_offset } = r.choices[0].logprobs;
    assert.ok(tokens.length > 0 && tokens.length === token_logprobs.length && tokens.length === top_logprobs.length && tokens.length === text_offset.length);
    assert.ok(token_logprobs.every((p) => p <= 0));
    assert.ok(top_logprobs.every((t) => Object.keys(t).length <= 3 && Object.keys(t).length > 0));
    assert.equal(text_offset[0], 0);
    assert.equal(text_offset[1], tokens[0].length);
    const streamed = [];
    for await (const chunk of await client.completions.create({ ...base, prompt: ask('What is 17 × 23?'), logprobs: 3, max_tokens: 6, stream: true })) {
        streamed.push(...chunk.choices[0]?.logprobs?.tokens ?? []);
    }
    assert.deepEqual(streamed, tokens);
});
for (const [name, fields, code, param] of [
    ['suffix', { suffix: 'the end' }, 400, 'suffix'],
    ['a best_of above n', { best_of: 3 }, 400, 'best_of'],
    ['no prompt', { prompt: undefined }, 400, 'prompt'],
    ['a prompt of objects', { prompt: [{}] }, 400, 'prompt[0]'],
    ['an id beyond the vocabulary', { prompt: [1, 99999999] }, 400, 'prompt[1]'],
    ['too many choices', { prompt: ['a', 'b', 'c'], n: 50 }, 400, 'prompt'],
    ['echo of ids', { prompt: [1, 2], echo: true }, 400, 'echo'],
    ['echo with logprobs', { echo: true, logprobs: 1 }, 400, 'echo'],
    ['logprobs of true', { logprobs: true }, 400, 'logprobs'],
    ['an absurd temperature', { temperature: 99 }, 400, 'temperature'],
    ['top_p above 1', { top_p: 1.5 }, 400, 'top_p'],
    ['a max_tokens of 0', { max_tokens: 0 }, 400, 'max_tokens'],
    ['a stop of numbers', { stop: [1] }, 400, 'stop'],
    ['an unknown model', { model: 'nope' }, 404, 'model'],
]) {
    await test(`${name} is ${code}, naming ${param}, streaming or not`, async () => {
        for (const stream of [false, true]) {
            const e = await client.completions.create({ ...base, prompt: 'x', ...fields, stream }).then(() => null, (error) => error);
            assert.equal(e?.status, code, String(e?.message));
            assert.equal(e.param, param);
        }
    });
}
await test('a client that leaves a batch frees all its places', async () => {
    const controller = new AbortController();
    const prompts = Array.from({ length: 4 }, () => ask('This sentence is false. Is it true?').replace('\n</think>\n\n', ''));
    let n = 0;
    try {
        const stream = await client.completions.create({ ...base, prompt: prompts, max_tokens: 3000, stream: true }, { signal: controller.signal });
        for await (const _ of stream) if (++n === 6) controller.abort();
    } catch { /* aborted */ }
    assert.ok(n >= 6);
    await idle();
});
await test('text to tokens and back, in both servers\' fields', async () => {
    const text = 'Grüße, 世界! <|im_end|>';
    const a = await (await post('/tokenize', { model: 'demo', prompt: text, return_token_strs: true })).json();
    assert.equal(a.count, a.tokens.length);
    assert.equal(a.token_strs.length, a.count);
    assert.ok(a.max_model_len > 0);
    const b = await (await post('/tokenize', { content: text })).json();
    assert.deepEqual(b.tokens, a.tokens);
    const pieces = await (await post('/tokenize', { content: text, with_pieces: true })).json();
    assert.deepEqual(pieces.tokens.map((t) => t.id), a.tokens);
    const plain = await (await post('/tokenize', { content: text, parse_special: false })).json();
    assert.ok(plain.count > a.count);
    const back = await (await post('/detokenize', { tokens: a.tokens })).json();
    assert.equal(back.content, text);
    assert.equal(back.prompt, text);
    assert.equal((await (await post('/detokenize', { tokens: plain.tokens })).json()).content, text);
    const chat = await (await post('/tokenize', { model: 'demo', messages: [{ role: 'user', content: 'Hi' }] })).json();
    const shown = await (await post('/detokenize', { model: 'demo', tokens: chat.tokens })).json();
    assert.match(shown.content, /<\|im_start\|>user\nHi<\|im_end\|>/);
});
await test('tokenize and detokenize refuse by name, and let browsers in', async () => {
    for (const [path, body, code, param] of [['/tokenize', {}, 400, 'content'], ['/detokenize', {}, 400, 'tokens'], ['/detokenize', { tokens: [-1] }, 400, 'tokens[0]'],
        ['/detokenize', { tokens: 'x' }, 400, 'tokens'], ['/tokenize', { content: 'x', with_pieces: 1 }, 400, 'with_pieces'], ['/tokenize', { model: 'nope', content: 'x' }, 404, 'model']]) {
        const r = await post(path, body);
        assert.equal(r.status, code);
        assert.equal((await r.json()).error.param, param);
        assert.equal(r.headers.get('access-control-allow-origin'), '*');
    }
    for (const path of ['/v1/completions', '/tokenize', '/detokenize']) {
        const r = await fetch(fleet.url + path, { method: 'OPTIONS', headers: { origin: 'http://elsewhere.example', 'access-control-request-method': 'POST', 'access-control-request-headers': 'content-type' } });
        assert.equal(r.status, 204);
        assert.equal(r.headers.get('access-control-allow-headers'), 'content-type');
    }
});
await idle();
await fleet.stop();
finish();
