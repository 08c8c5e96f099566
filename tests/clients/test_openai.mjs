// test_openai.mjs - the official OpenAI SDK against a real fleet: what people's programs do.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { finish, startFleet, test, until } from './fleet.mjs';

const fleet = await startFleet();
const client = new OpenAI({ baseURL: fleet.url + '/v1', apiKey: 'none', maxRetries: 0 });
const rose = [{ role: 'user', content: 'Who wrote The Name of the Rose?' }];
const status = async () => (await fetch(fleet.url + '/status')).json();
const idle = () => until(async () => (await status()).nodes.every((n) => n.running === 0 && n.waiting === 0 && n.beat.running === 0), 'all idle');

await test('a plain completion answers and accounts', async () => {
    const r = await client.chat.completions.create({ model: 'demo', messages: rose, temperature: 0 });
    assert.match(r.choices[0].message.content, /Umberto Eco/);
    assert.equal(r.choices[0].finish_reason, 'stop');
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    assert.ok(r.usage.completion_tokens_details.reasoning_tokens > 0);
    assert.equal(r.object, 'chat.completion');
});
await test('a stream gives the same text, with one usage chunk when asked', async () => {
    const stream = await client.chat.completions.create({ model: 'demo', messages: rose, temperature: 0, stream: true, stream_options: { include_usage: true } });
    let text = '', reasoning = '', usages = 0, roles = 0;
    for await (const chunk of stream) {
        if (chunk.usage) { usages++; assert.deepEqual(chunk.choices, []); }
        if (chunk.choices[0]?.delta.role) roles++;
        text += chunk.choices[0]?.delta.content ?? '';
        reasoning += chunk.choices[0]?.delta.reasoning_content ?? '';
    }
    assert.match(text, /Umberto Eco/);
    assert.match(reasoning, /author/);
    assert.ok(!text.includes('<think>') && !reasoning.includes('</think>'));
    assert.equal(usages, 1);
    assert.equal(roles, 1);
});
await test('without the option a stream carries no usage', async () => {
    const stream = await client.chat.completions.create({ model: 'demo', messages: rose, temperature: 0, stream: true });
    for await (const chunk of stream) assert.ok(chunk.usage == null);
});
await test('the same seed gives the same text, another one another', async () => {
    const tell = async (seed) => (await client.chat.completions.create({ model: 'demo', seed, temperature: 1, max_tokens: 60,
        messages: [{ role: 'user', content: 'Tell me a story about a fox and a lamp.' }], chat_template_kwargs: { enable_thinking: false } })).choices[0].message.content;
    const [a, b, c] = [await tell(5), await tell(5), await tell(6)];
    assert.equal(a, b);
    assert.notEqual(a, c);
});
await test('a stop string ends the text before it, also across tokens', async () => {
    const r = await client.chat.completions.create({ model: 'demo', messages: [{ role: 'user', content: 'Count from 1 to 30.' }], temperature: 0, stop: ['12 13'],
        chat_template_kwargs: { enable_thinking: false } });
    assert.equal(r.choices[0].message.content.trimEnd(), '1 2 3 4 5 6 7 8 9 10 11');
    assert.equal(r.choices[0].finish_reason, 'stop');
});
await test('max_tokens ends with length', async () => {
    const r = await client.chat.completions.create({ model: 'demo', messages: [{ role: 'user', content: 'Count from 1 to 200.' }], max_tokens: 7, temperature: 0,
        chat_template_kwargs: { enable_thinking: false } });
    assert.equal(r.choices[0].finish_reason, 'length');
    // A sentence may go on for a few tokens more, and a line of numbers has no end before its last.
    assert.ok(r.usage.completion_tokens > 7 && r.usage.completion_tokens <= 7 + 64);
});
await test('two choices come in one reply', async () => {
    const r = await client.chat.completions.create({ model: 'demo', messages: rose, n: 2, temperature: 0 });
    assert.equal(r.choices.length, 2);
    for (const choice of r.choices) assert.match(choice.message.content, /Umberto Eco/);
});
await test('a system message as developer, and content as parts', async () => {
    const r = await client.chat.completions.create({ model: 'demo', temperature: 0, messages: [{ role: 'developer', content: 'Answer briefly.' },
        { role: 'user', content: [{ type: 'text', text: 'In what year was ' }, { type: 'text', text: 'Napoleon born?' }] }] });
    assert.match(r.choices[0].message.content, /1769/);
});
await test('models are listed and shown', async () => {
    const list = await client.models.list();
    assert.deepEqual(list.data.map((m) => m.id), ['demo']);
    assert.equal((await client.models.retrieve('demo')).id, 'demo');
});
for (const [name, body, code, param] of [
    ['an unknown model is 404', { model: 'nope', messages: rose }, 404, 'model'],
    ['a negative max_tokens is 400', { model: 'demo', messages: rose, max_tokens: -1 }, 400, 'max_tokens'],
    ['an absurd temperature is 400', { model: 'demo', messages: rose, temperature: 99 }, 400, 'temperature'],
    ['a wrong type is 400', { model: 'demo', messages: 'hello' }, 400, 'messages'],
    ['an image is 400', { model: 'demo', messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:' } }] }] }, 400, 'messages[0].content[0]'],
    ['no user message is 400', { model: 'demo', messages: [{ role: 'assistant', content: 'x' }] }, 400, 'messages'],
    ['arguments that are no JSON object are 400', { model: 'demo', messages: [...rose, { role: 'assistant', content: null, tool_calls: [{ id: 'a', type: 'function',
        function: { name: 'f', arguments: '[1' } }] }, { role: 'tool', tool_call_id: 'a', content: 'x' }] }, 400, 'messages[1].tool_calls[0].function.arguments'],
    ['too long a prompt is 400', { model: 'demo', messages: [{ role: 'user', content: 'word '.repeat(400000) }] }, 400, 'messages'],
]) {
    await test(`${name}, naming ${param}`, async () => {
        const e = await client.chat.completions.create(body).then(() => null, (error) => error);
        assert.equal(e?.status, code, String(e?.message));
        assert.equal(e.param, param);
        assert.ok(e.message.length > 10);
    });
}
await test('a client that leaves frees the node at once, also before the first token', async () => {
    for (const leaveAfter of [0, 3]) {
        const controller = new AbortController();
        const long = client.chat.completions.create({ model: 'demo', stream: true, temperature: 0, max_tokens: 3000, messages: [{ role: 'user', content: 'This sentence is false. Is it true?' }] },
            { signal: controller.signal });
        if (leaveAfter === 0) {
            await until(async () => (await status()).nodes.some((n) => n.running > 0), 'it runs');
            controller.abort();
            await long.then(async (s) => { for await (const _ of s); }, () => {}).catch(() => {});
        } else {
            let n = 0;
            try { for await (const _ of await long) if (++n === leaveAfter) controller.abort(); } catch { /* aborted */ }
        }
        await idle();
    }
});
await test('many at once get the text each gets alone', async () => {
    const questions = ['What is 17 × 23?', 'In what year was Napoleon born?', 'What is the capital of Italy?', 'Count from 1 to 20.', 'Who wrote Hamlet?', 'What is 55 + 66?'];
    const one = async (q) => (await client.chat.completions.create({ model: 'demo', temperature: 0, messages: [{ role: 'user', content: q }] })).choices[0].message;
    const alone = [];
    for (const q of questions) alone.push(await one(q));
    const together = await Promise.all(questions.map(one));
    for (let i = 0; i < questions.length; i++) {
        assert.equal(together[i].content, alone[i].content);
        assert.equal(together[i].reasoning_content, alone[i].reasoning_content);
    }
    assert.match(alone[0].content, /391/);
});
await idle();
await fleet.stop();
finish();
