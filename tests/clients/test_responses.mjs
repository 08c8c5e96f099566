// test_responses.mjs - /v1/responses by the official OpenAI SDK.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { finish, startFleet, test, until } from './fleet.mjs';

const fleet = await startFleet();
const client = new OpenAI({ baseURL: fleet.url + '/v1', apiKey: 'none', maxRetries: 0 });
const status = async () => (await fetch(fleet.url + '/status')).json();
const idle = () => until(async () => (await status()).nodes.every((n) => n.running === 0 && n.waiting === 0 && n.beat.running === 0), 'all idle');
const base = { model: 'demo', temperature: 0, input: 'Who wrote The Name of the Rose?' };
const types = (response) => response.output.map((item) => item.type);

await test('a text gets a response with reasoning and a message', async () => {
    const r = await client.responses.create(base);
    assert.equal(r.object, 'response');
    assert.equal(r.status, 'completed');
    assert.match(r.id, /^resp_/);
    assert.deepEqual(types(r), ['reasoning', 'message']);
    assert.match(r.output_text, /Umberto Eco/);
    assert.match(r.output[0].content[0].text, /author/);
    assert.equal(r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens);
    assert.ok(r.usage.output_tokens_details.reasoning_tokens > 0);
    assert.equal(r.store, false);
    assert.equal(r.error, null);
});
await test('without effort the message is all there is', async () => {
    const r = await client.responses.create({ ...base, reasoning: { effort: 'none' }, metadata: { a: 'b' }, instructions: 'Answer briefly.' });
    assert.deepEqual(types(r), ['message']);
    assert.match(r.output_text, /Umberto Eco/);
    assert.deepEqual(r.metadata, { a: 'b' });
    assert.equal(r.instructions, 'Answer briefly.');
    assert.equal(r.usage.output_tokens_details.reasoning_tokens, 0);
});
await test('a stream has its events in order, numbered, and gives the same response', async () => {
    const whole = await client.responses.create(base);
    const events = [];
    for await (const event of await client.responses.create({ ...base, stream: true })) events.push(event);
    assert.deepEqual(events.map((e) => e.sequence_number), events.map((_, i) => i));
    assert.deepEqual(events.slice(0, 4).map((e) => e.type), ['response.created', 'response.in_progress', 'response.output_item.added', 'response.content_part.added']);
    assert.equal(events.at(-1).type, 'response.completed');
    const text = events.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta).join('');
    const thought = events.filter((e) => e.type === 'response.reasoning_text.delta').map((e) => e.delta).join('');
    assert.equal(text, whole.output_text);
    assert.equal(thought, whole.output[0].content[0].text);
    assert.equal(events.find((e) => e.type === 'response.output_text.done').text, text);
    const plain = (r) => r.output.map((item) => [item.type, item.status, item.content[0].text]);
    assert.deepEqual(plain(events.at(-1).response), plain(whole));
    assert.deepEqual(events.filter((e) => e.type === 'response.output_item.done').map((e) => e.item.content[0].text), [thought, text]);
    assert.deepEqual(events.at(-1).response.usage.output_tokens, whole.usage.output_tokens);
});
await test('the library\'s own collector makes the response of the stream', async () => {
    const r = await client.responses.stream({ ...base }).finalResponse();
    assert.equal(r.status, 'completed');
    assert.match(r.output_text, /Umberto Eco/);
});
await test('items of all kinds are read', async () => {
    const r = await client.responses.create({ ...base, input: [
        { role: 'developer', content: 'Answer briefly.' },
        { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'In what year was ' }, { type: 'input_text', text: 'Napoleon born?' }] },
        { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'I will look.' }] },
        { type: 'function_call', call_id: 'call_1', name: 'year_of', arguments: '{"who":"Napoleon"}' },
        { type: 'function_call_output', call_id: 'call_1', output: '1769' },
        { type: 'message', role: 'assistant', id: 'msg_1', status: 'completed', content: [{ type: 'output_text', text: '1769.', annotations: [] }] },
        { role: 'user', content: 'Who wrote Hamlet?' }], tools: [{ type: 'function', name: 'year_of', strict: false, parameters: { type: 'object', properties: { who: { type: 'string' } } } }] });
    assert.equal(r.status, 'completed');
    assert.equal(r.tools[0].name, 'year_of');
    assert.match(r.output_text, /Shakespeare/);
});
await test('what the limit cuts is incomplete, whole and streamed', async () => {
    const short = { ...base, input: 'Count from 1 to 200.', max_output_tokens: 16, reasoning: { effort: 'none' } };
    const r = await client.responses.create(short);
    assert.equal(r.status, 'incomplete');
    assert.equal(r.incomplete_details.reason, 'max_output_tokens');
    assert.equal(r.output[0].status, 'incomplete');
    let last;
    for await (const event of await client.responses.create({ ...short, stream: true })) last = event;
    assert.equal(last.type, 'response.incomplete');
    assert.equal(last.response.output[0].content[0].text, r.output_text);
});
await test('a round trip with a tool, whole and streamed', async () => {
    const tools = [{ type: 'function', name: 'get_weather', description: 'Current weather of a city.', strict: false, parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } }];
    const input = [{ role: 'user', content: 'What is the weather in Madrid?' }];
    const r = await client.responses.create({ ...base, tools, input });
    const call = r.output.at(-1);
    assert.equal(call.type, 'function_call', JSON.stringify(r.output));
    assert.equal(call.name, 'get_weather');
    assert.deepEqual(JSON.parse(call.arguments), { city: 'Madrid' });
    const streamed = await client.responses.stream({ ...base, tools, input }).finalResponse();
    assert.equal(streamed.output.at(-1).arguments, call.arguments);
    for (const tool_choice of ['required', { type: 'function', name: 'get_weather' }]) {
        const forced = await client.responses.create({ ...base, tools, input, tool_choice });
        assert.equal(forced.output.at(-1).type, 'function_call');
    }
    input.push(...r.output, { type: 'function_call_output', call_id: call.call_id, output: '{"temperature": 4, "sky": "windy"}' });
    const answer = await client.responses.create({ ...base, tools, input });
    assert.equal(answer.output_text, 'In Madrid it is windy with 4 degrees.');
});
await test('a text format gives text that fits its schema', async () => {
    const schema = { type: 'object', properties: { author: { type: 'string' } }, required: ['author'], additionalProperties: false };
    const r = await client.responses.create({ ...base, text: { format: { type: 'json_schema', name: 'rose', schema, strict: true } } });
    assert.deepEqual(Object.keys(JSON.parse(r.output_text)), ['author']);
});
for (const [name, fields, code, param] of [
    ['a previous response', { previous_response_id: 'resp_1' }, 400, 'previous_response_id'],
    ['a conversation', { conversation: 'conv_1' }, 400, 'conversation'],
    ['background', { background: true }, 400, 'background'],
    ['no input', { input: undefined }, 400, 'input'],
    ['an image', { input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'data:' }] }] }, 400, 'input[0].content[0]'],
    ['an item reference', { input: [{ type: 'item_reference', id: 'x' }] }, 400, 'input[0]'],
    ['a role that is none', { input: [{ role: 'judge', content: 'x' }] }, 400, 'input[0].role'],
    ['a tool of the server\'s', { tools: [{ type: 'web_search' }] }, 400, 'tools[0]'],
    ['an absurd temperature', { temperature: 99 }, 400, 'temperature'],
    ['top_p of a word', { top_p: 'x' }, 400, 'top_p'],
    ['an effort that is none', { reasoning: { effort: 'heroic' } }, 400, 'reasoning.effort'],
    ['a max_output_tokens of 0', { max_output_tokens: 0 }, 400, 'max_output_tokens'],
    ['an unknown format', { text: { format: { type: 'xml' } } }, 400, 'text.format'],
    ['a format without schema', { text: { format: { type: 'json_schema', name: 'x' } } }, 400, 'text.format.schema'],
    ['a schema that is not supported', { text: { format: { type: 'json_schema', name: 'x', schema: { type: 'object', properties: { a: { not: {} } } } } } }, 400, 'text.format.schema.properties.a.not'],
    ['less room than the document needs', { max_output_tokens: 2, text: { format: { type: 'json_schema', name: 'x', schema: { type: 'object', properties: { a: { type: 'boolean' } }, required: ['a'] } } } }, 400, 'max_output_tokens'],
    ['nothing of a user', { input: [{ role: 'assistant', content: 'x' }] }, 400, 'input'],
    ['too long an input', { input: 'word '.repeat(300000) }, 400, 'input'],
    ['a tool with an empty name', { tools: [{ type: 'function', name: '' }] }, 400, 'tools[0].name'],
    ['a tool that is not there', { tools: [{ type: 'function', name: 'f', parameters: {} }], tool_choice: { type: 'function', name: 'g' } }, 400, 'tool_choice'],
    ['top_logprobs', { top_logprobs: 3 }, 400, 'top_logprobs'],
    ['an unknown model', { model: 'nope' }, 404, 'model'],
]) {
    await test(`${name} is ${code}, naming ${param}, streaming or not`, async () => {
        for (const stream of [false, true]) {
            const e = await client.responses.create({ ...base, ...fields, stream }).then(() => null, (error) => error);
            assert.equal(e?.status, code, String(e?.message));
            assert.equal(e.param, param);
            assert.doesNotMatch(e.message, /response_format\.|max_completion_tokens/);
        }
    });
}
await test('a client that leaves frees the node at once', async () => {
    const controller = new AbortController();
    let n = 0;
    try {
        const stream = await client.responses.create({ ...base, input: 'This sentence is false. Is it true?', max_output_tokens: 3000, stream: true }, { signal: controller.signal });
        for await (const _ of stream) if (++n === 8) controller.abort();
    } catch { /* aborted */ }
    assert.ok(n >= 8);
    await idle();
});
await test('browsers are let in', async () => {
    const r = await fetch(fleet.url + '/v1/responses', { method: 'OPTIONS', headers: { origin: 'http://elsewhere.example', 'access-control-request-method': 'POST', 'access-control-request-headers': 'content-type' } });
    assert.equal(r.status, 204);
});
await idle();
await fleet.stop();
finish();
