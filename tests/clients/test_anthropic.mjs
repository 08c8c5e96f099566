// test_anthropic.mjs - /v1/messages and count_tokens by the official Anthropic SDK.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { finish, startFleet, test, until } from './fleet.mjs';

const fleet = await startFleet();
const client = new Anthropic({ baseURL: fleet.url, apiKey: 'none', maxRetries: 0 });
const status = async () => (await fetch(fleet.url + '/status')).json();
const idle = () => until(async () => (await status()).nodes.every((n) => n.running === 0 && n.waiting === 0 && n.beat.running === 0), 'all idle');
const rose = [{ role: 'user', content: 'Who wrote The Name of the Rose?' }];
const base = { model: 'demo', max_tokens: 400, temperature: 0, messages: rose };
const thinking = { type: 'enabled', budget_tokens: 1024 };
const textOf = (message) => message.content.filter((b) => b.type === 'text').map((b) => b.text).join('');

await test('a message answers in one text block and accounts', async () => {
    const m = await client.messages.create(base);
    assert.equal(m.type, 'message');
    assert.equal(m.role, 'assistant');
    assert.match(m.id, /^msg_/);
    assert.deepEqual(m.content.map((b) => b.type), ['text']);
    assert.match(textOf(m), /Umberto Eco/);
    assert.equal(m.stop_reason, 'end_turn');
    assert.equal(m.stop_sequence, null);
    assert.ok(m.usage.input_tokens > 0 && m.usage.output_tokens > 0);
    assert.ok(m._request_id);
});
await test('asked to think, the answer has a thinking block before its text', async () => {
    const m = await client.messages.create({ ...base, thinking });
    assert.deepEqual(m.content.map((b) => b.type), ['thinking', 'text']);
    assert.match(m.content[0].thinking, /author/);
    assert.ok(m.content[0].signature.length > 0);
    assert.match(textOf(m), /Umberto Eco/);
});
await test('a stream has the events in order and gives the same message', async () => {
    for (const extra of [{}, { thinking }]) {
        const whole = await client.messages.create({ ...base, ...extra });
        const stream = client.messages.stream({ ...base, ...extra });
        const names = [];
        let text = '';
        stream.on('streamEvent', (event) => names.push(event.type));
        stream.on('text', (delta) => { text += delta; });
        const m = await stream.finalMessage();
        assert.deepEqual(m.content.map((b) => [b.type, b.text ?? b.thinking]), whole.content.map((b) => [b.type, b.text ?? b.thinking]));
        assert.equal(text, textOf(whole));
        assert.equal(m.stop_reason, 'end_turn');
        assert.equal(m.usage.output_tokens, whole.usage.output_tokens);
        assert.equal(names[0], 'message_start');
        assert.deepEqual(names.slice(-2), ['message_delta', 'message_stop']);
        assert.equal(names.filter((n) => n === 'content_block_start').length, whole.content.length);
        assert.equal(names.filter((n) => n === 'content_block_stop').length, whole.content.length);
    }
});
await test('a system prompt, blocks and earlier turns with thinking are read', async () => {
    const m = await client.messages.create({ ...base, system: [{ type: 'text', text: 'Answer briefly.', cache_control: { type: 'ephemeral' } }], metadata: { user_id: 'u' },
        messages: [{ role: 'user', content: [{ type: 'text', text: 'In what year was ' }, { type: 'text', text: 'Napoleon born?' }] },
            { role: 'assistant', content: [{ type: 'thinking', thinking: 'Easy.', signature: 'x' }, { type: 'text', text: '1769.' }] },
            { role: 'user', content: 'Who wrote Hamlet?' }] });
    assert.match(textOf(m), /Shakespeare/);
});
await test('max_tokens ends with max_tokens, a stop sequence with its name', async () => {
    const cut = await client.messages.create({ ...base, max_tokens: 7, messages: [{ role: 'user', content: 'Count from 1 to 200.' }] });
    assert.equal(cut.stop_reason, 'max_tokens');
    const count = { ...base, messages: [{ role: 'user', content: 'Count from 1 to 30.' }], stop_sequences: ['zebra', '12 13'] };
    const m = await client.messages.create(count);
    assert.equal(m.stop_reason, 'stop_sequence');
    assert.equal(m.stop_sequence, '12 13');
    assert.equal(textOf(m).trimEnd(), '1 2 3 4 5 6 7 8 9 10 11');
    const streamed = await client.messages.stream(count).finalMessage();
    assert.equal(streamed.stop_reason, 'stop_sequence');
    assert.equal(streamed.stop_sequence, '12 13');
});
await test('tokens are counted as the message has them', async () => {
    const { input_tokens } = await client.messages.countTokens({ model: 'demo', messages: rose, system: 'Be brief.' });
    const m = await client.messages.create({ ...base, system: 'Be brief.' });
    assert.equal(input_tokens, m.usage.input_tokens + m.usage.cache_read_input_tokens);
});
await test('a tool\'s result is read back', async () => {
    const m = await client.messages.create({ ...base, tools: [{ name: 'year_of', description: 'The year', input_schema: { type: 'object', properties: { who: { type: 'string' } } } }],
        messages: [{ role: 'user', content: 'In what year was Napoleon born?' },
            { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'year_of', input: { who: 'Napoleon' } }] },
            { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_1', content: [{ type: 'text', text: '1769' }] }, { type: 'text', text: 'So?' }] }] });
    assert.equal(m.type, 'message');
});
await test('a round trip with a tool, whole and streamed', async () => {
    const tools = [{ name: 'get_weather', description: 'Current weather of a city.', input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } }];
    const messages = [{ role: 'user', content: 'What is the weather in Madrid?' }];
    const m = await client.messages.create({ ...base, tools, messages });
    assert.equal(m.stop_reason, 'tool_use', JSON.stringify(m.content));
    const call = m.content.at(-1);
    assert.equal(call.type, 'tool_use');
    assert.equal(call.name, 'get_weather');
    assert.deepEqual(call.input, { city: 'Madrid' });
    const streamed = await client.messages.stream({ ...base, tools, messages }).finalMessage();
    assert.equal(streamed.stop_reason, 'tool_use');
    assert.deepEqual(streamed.content.at(-1).input, { city: 'Madrid' });
    for (const choice of [{ type: 'any' }, { type: 'tool', name: 'get_weather' }]) {
        const forced = await client.messages.create({ ...base, tools, messages, tool_choice: choice });
        assert.equal(forced.content.at(-1).type, 'tool_use');
    }
    messages.push({ role: 'assistant', content: m.content }, { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: '{"temperature": 4, "sky": "windy"}' }] });
    const answer = await client.messages.create({ ...base, tools, messages });
    assert.equal(answer.stop_reason, 'end_turn');
    assert.equal(textOf(answer), 'In Madrid it is windy with 4 degrees.');
});
await test('an output format gives text that fits its schema', async () => {
    const schema = { type: 'object', properties: { author: { type: 'string' } }, required: ['author'], additionalProperties: false };
    const m = await client.messages.create({ ...base, output_config: { format: { type: 'json_schema', schema } } });
    assert.deepEqual(Object.keys(JSON.parse(textOf(m))), ['author']);
});
for (const [name, fields, code, type, words] of [
    ['no max_tokens', { max_tokens: undefined }, 400, 'invalid_request_error', /max_tokens/],
    ['no messages', { messages: undefined }, 400, 'invalid_request_error', /messages/],
    ['a role that is none', { messages: [{ role: 'judge', content: 'x' }] }, 400, 'invalid_request_error', /messages\[0\]\.role/],
    ['an image', { messages: [{ role: 'user', content: [{ type: 'image', source: { type: 'base64', media_type: 'image/png', data: '' } }] }] }, 400, 'invalid_request_error', /messages\[0\]\.content\[0\].*image/],
    ['an absurd temperature', { temperature: 9 }, 400, 'invalid_request_error', /temperature/],
    ['stop_sequences of numbers', { stop_sequences: [1] }, 400, 'invalid_request_error', /stop_sequences/],
    ['a thinking of nothing', { thinking: { type: 'perhaps' } }, 400, 'invalid_request_error', /thinking/],
    ['a tool without schema', { tools: [{ name: 'f' }] }, 400, 'invalid_request_error', /tools\[0\]/],
    ['a schema that is not supported', { output_config: { format: { type: 'json_schema', schema: { not: {} } } } }, 400, 'invalid_request_error', /^output_config\.format\.schema\.not is not/],
    ['less room than the document needs', { max_tokens: 2, output_config: { format: { type: 'json_schema', schema: { type: 'object', properties: { a: { type: 'boolean' } }, required: ['a'] } } } }, 400, 'invalid_request_error', /^max_tokens is 2/],
    ['nothing of a user', { messages: [{ role: 'assistant', content: 'x' }] }, 400, 'invalid_request_error', /^messages/],
    ['a tool with an empty name', { tools: [{ name: '', input_schema: {} }] }, 400, 'invalid_request_error', /^tools\[0\]\.name/],
    ['a tool that is not there', { tools: [{ name: 'f', input_schema: {} }], tool_choice: { type: 'tool', name: 'g' } }, 400, 'invalid_request_error', /^tool_choice/],
    ['a thread', { thread: { type: 'create' } }, 400, 'invalid_request_error', /^thread/],
    ['an unknown model', { model: 'nope' }, 404, 'not_found_error', /nope/],
]) {
    await test(`${name} is ${code} in Anthropic's form, streaming or not`, async () => {
        for (const stream of [false, true]) {
            const e = await client.messages.create({ ...base, ...fields, stream }).then(() => null, (error) => error);
            assert.ok(e instanceof Anthropic.APIError, String(e));
            assert.equal(e.status, code);
            assert.equal(e.error.type, 'error');
            assert.equal(e.error.error.type, type);
            assert.match(e.error.error.message, words);
            assert.ok(e.error.error.details.error_code.length > 0);
            assert.match(e.error.error.details.param, words.source.includes('nope') ? /^model$/ : /^(max_tokens|messages|temperature|stop_sequences|thinking|tools|tool_choice|output_config|thread)/);
        }
    });
}
await test('a client that leaves frees the node at once', async () => {
    const stream = client.messages.stream({ ...base, max_tokens: 3000, thinking: { type: 'enabled', budget_tokens: 2000 }, messages: [{ role: 'user', content: 'This sentence is false. Is it true?' }] });
    let n = 0;
    stream.on('streamEvent', () => { if (++n === 4) stream.abort(); });
    await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
    await idle();
});
await test('browsers are let in', async () => {
    const r = await fetch(fleet.url + '/v1/messages', { method: 'OPTIONS', headers: { origin: 'http://elsewhere.example', 'access-control-request-method': 'POST', 'access-control-request-headers': 'x-api-key, anthropic-version' } });
    assert.equal(r.status, 204);
    assert.equal(r.headers.get('access-control-allow-headers'), 'x-api-key, anthropic-version');
});
await idle();
await fleet.stop();
finish();
