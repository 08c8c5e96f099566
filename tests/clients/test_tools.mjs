// test_tools.mjs - tool calls as clients make them: the official OpenAI SDK against a real fleet.
import assert from 'node:assert/strict';
import Ajv from 'ajv/dist/2020.js';
import OpenAI from 'openai';
import { finish, startFleet, test, until } from './fleet.mjs';

const fleet = await startFleet();
const client = new OpenAI({ baseURL: fleet.url + '/v1', apiKey: 'none', maxRetries: 0 });
const tool = (name, description, properties, required = Object.keys(properties)) =>
    ({ type: 'function', function: { name, description, parameters: { type: 'object', properties, required } } });
const weather = tool('get_weather', 'Current weather of a city.', { city: { type: 'string' } });
const ask = (city) => [{ role: 'user', content: `What is the weather in ${city}?` }];
const thinks = (enable_thinking) => ({ chat_template_kwargs: { enable_thinking } });
const base = { model: 'demo', temperature: 0, tools: [weather] };

// Puts a stream's deltas together as a client does, checking their order on the way.
async function collect(stream) {
    const r = { content: '', reasoning: '', calls: [], finish: null, deltas: 0, error: null };
    for await (const chunk of stream) {
        const choice = chunk.choices[0];
        if (!choice) continue;
        r.content += choice.delta.content ?? '';
        r.reasoning += choice.delta.reasoning_content ?? '';
        for (const call of choice.delta.tool_calls ?? []) {
            r.deltas++;
            if (call.id) {
                assert.equal(call.index, r.calls.length, 'calls begin in order');
                assert.equal(call.type, 'function');
                r.calls.push({ id: call.id, name: call.function.name, arguments: call.function.arguments ?? '' });
            } else {
                assert.equal(call.index, r.calls.length - 1);
                r.calls.at(-1).arguments += call.function.arguments;
            }
        }
        if (choice.finish_reason) { assert.equal(r.finish, null); r.finish = choice.finish_reason; r.error = choice.error ?? null; }
    }
    return r;
}

for (const thinking of [true, false]) {
    await test(`a round trip with a tool, whole, thinking ${thinking}`, async () => {
        const messages = ask('Madrid');
        const r = await client.chat.completions.create({ ...base, messages, ...thinks(thinking) });
        const choice = r.choices[0];
        assert.equal(choice.finish_reason, 'tool_calls', JSON.stringify(choice));
        assert.equal(choice.message.content, null);
        assert.equal(choice.message.tool_calls.length, 1);
        const call = choice.message.tool_calls[0];
        assert.match(call.id, /^call_\w+$/);
        assert.equal(call.type, 'function');
        assert.equal(call.function.name, 'get_weather');
        assert.deepEqual(JSON.parse(call.function.arguments), { city: 'Madrid' });
        messages.push(choice.message, { role: 'tool', tool_call_id: call.id, content: '{"temperature": 4, "sky": "windy"}' });
        const answer = await client.chat.completions.create({ ...base, messages, ...thinks(thinking) });
        assert.equal(answer.choices[0].finish_reason, 'stop');
        assert.equal(answer.choices[0].message.content, 'In Madrid it is windy with 4 degrees.');
        assert.equal(answer.choices[0].message.tool_calls, undefined);
    });
    await test(`the same as a stream gives the same call, thinking ${thinking}`, async () => {
        const r = await collect(await client.chat.completions.create({ ...base, messages: ask('Madrid'), stream: true, ...thinks(thinking) }));
        assert.equal(r.finish, 'tool_calls');
        assert.equal(r.content, '');
        assert.equal(r.reasoning.length > 0, thinking);
        assert.equal(r.calls.length, 1);
        assert.equal(r.calls[0].name, 'get_weather');
        assert.deepEqual(JSON.parse(r.calls[0].arguments), { city: 'Madrid' });
        assert.ok(r.deltas >= 3, `arguments come in pieces, not in ${r.deltas}`);
    });
}
await test("the SDK's own stream helper sees the call", async () => {
    const final = await client.chat.completions.stream({ ...base, messages: ask('Vienna') }).finalChatCompletion();
    const call = final.choices[0].message.tool_calls[0];
    assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ['get_weather', { city: 'Vienna' }]);
});
await test("the SDK's tool runner calls the function and gets the answer", async () => {
    const cities = [];
    const runner = client.chat.completions.runTools({ model: 'demo', temperature: 0, messages: ask('Sofia'), tools: [{ type: 'function', function: { ...weather.function,
        parse: JSON.parse, function: ({ city }) => { cities.push(city); return '{"temperature": 33, "sky": "sunny"}'; } } }] });
    assert.equal(await runner.finalContent(), 'In Sofia it is sunny with 33 degrees.');
    assert.deepEqual(cities, ['Sofia']);
});
await test('tool_choice none makes no call', async () => {
    const r = await client.chat.completions.create({ ...base, messages: ask('Madrid'), tool_choice: 'none', max_tokens: 400 });
    assert.notEqual(r.choices[0].finish_reason, 'tool_calls');
    assert.equal(r.choices[0].message.tool_calls, undefined);
});
// One answer in the same shape, streamed or not.
async function runOn(openai, stream, more) {
    const r = await openai.chat.completions.create({ ...base, stream, ...more });
    if (stream) return collect(r);
    const { message, finish_reason, error } = r.choices[0];
    return { content: message.content, reasoning: message.reasoning_content ?? '', finish: finish_reason, error: error ?? null, calls: (message.tool_calls ?? []).map((c) => ({ id: c.id, ...c.function })) };
}
for (const stream of [false, true]) {
    const run = (more) => runOn(client, stream, more);
    await test(`a named tool is called whatever is asked, stream ${stream}`, async () => {
        const r = await run({ messages: [{ role: 'user', content: 'Who wrote The Name of the Rose?' }], tool_choice: { type: 'function', function: { name: 'get_weather' } } });
        assert.equal(r.finish, 'tool_calls', JSON.stringify(r));
        assert.ok(r.reasoning.length > 0, 'it deliberates before');
        assert.equal(r.calls.length, 1);
        assert.equal(r.calls[0].name, 'get_weather');
        assert.equal(typeof JSON.parse(r.calls[0].arguments), 'object');
    });
    await test(`a named tool is called without and after a cut deliberation, stream ${stream}`, async () => {
        for (const more of [thinks(false), { max_thinking_tokens: 3 }, { max_thinking_tokens: 0 }]) {
            const r = await run({ messages: ask('Rome'), tool_choice: { type: 'function', function: { name: 'get_weather' } }, ...more });
            assert.equal(r.finish, 'tool_calls', JSON.stringify(r));
            assert.deepEqual(r.calls.map((c) => [c.name, JSON.parse(c.arguments)]), [['get_weather', { city: 'Rome' }]]);
        }
    });
    await test(`a required call is made, stream ${stream}`, async () => {
        const r = await run({ messages: ask('Rome'), tool_choice: 'required' });
        assert.equal(r.finish, 'tool_calls', JSON.stringify(r));
        assert.deepEqual([r.calls[0].name, JSON.parse(r.calls[0].arguments)], ['get_weather', { city: 'Rome' }]);
    });
    await test(`a required call of one of several tools is made, stream ${stream}`, async () => {
        const tools = [weather, tool('get_time', 'Current time of a city.', { city: { type: 'string' } })];
        const r = await run({ messages: ask('Rome'), tool_choice: 'required', tools });
        assert.equal(r.finish, 'tool_calls', JSON.stringify(r));
        assert.ok(tools.some((t) => t.function.name === r.calls[0].name), r.calls[0].name);
    });
    // Tools that the demo model never saw: what it makes of them is the grammar's doing.
    await test(`a forced call is of a tool that is there, and fits its schema, however wildly it is drawn, stream ${stream}`, async () => {
        const tools = [tool('set_alarm', 'Sets an alarm.', { hour: { type: 'integer', minimum: 0, maximum: 23 }, days: { type: 'array', items: { enum: ['mon', 'tue', 'wed'] }, minItems: 1, maxItems: 2 }, loud: { type: 'boolean' } }),
            tool('get_weathers', 'Weather of a place.', { place: { $ref: '#/$defs/place' }, unit: { type: 'string', enum: ['metric', 'imperial'] } }), tool('stop', 'Stops.', {})];
        tools[1].function.parameters.$defs = { place: { type: 'object', properties: { lat: { type: 'number', minimum: -90, maximum: 90 }, lon: { type: 'number', minimum: -180, maximum: 180 } }, required: ['lat', 'lon'] } };
        tools[2].function.parameters.additionalProperties = false;
        const ajv = new Ajv({ strict: false }), fits = Object.fromEntries(tools.map((t) => [t.function.name, ajv.compile(t.function.parameters)]));
        const seen = new Set();
        for (let seed = 1; seed <= 12; seed++) {
            const choice = seed % 4 === 0 ? { type: 'function', function: { name: tools[(seed / 4) % 3].function.name } } : 'required';
            const r = await run({ messages: ask('Rome'), tools, tool_choice: choice, temperature: seed <= 3 ? 0 : 2, seed, parallel_tool_calls: seed % 2 === 0, max_tokens: 600, ...thinks(seed % 3 === 0) });
            assert.ok(r.calls.length > 0, JSON.stringify(r));
            for (const call of r.error === null ? r.calls : r.calls.slice(0, r.error.index)) {
                assert.ok(call.name in fits, call.name);
                assert.ok(fits[call.name](JSON.parse(call.arguments)), `${call.name} ${call.arguments}`);
                seen.add(call.name);
            }
            if (choice !== 'required') assert.equal(r.calls[0].name, choice.function.name);
        }
        assert.equal(seen.size, 3, [...seen].join());
    });
    await test(`with a schema and tools the answer is a call or a document, stream ${stream}`, async () => {
        const schema = { type: 'object', properties: { name: { type: 'string', maxLength: 20 }, age: { type: 'integer' }, color: { enum: ['red', 'blue'] } }, required: ['name', 'age', 'color'], additionalProperties: false };
        const response_format = { type: 'json_schema', json_schema: { name: 'person', schema, strict: true } };
        const person = [{ role: 'user', content: 'Give me a JSON object with name Ada, age 36 and color blue.' }];
        for (const thinking of [true, false]) {
            const both = { response_format, ...thinks(thinking) };
            const call = await run({ messages: ask('Madrid'), ...both });
            assert.deepEqual([call.finish, call.calls.map((c) => JSON.parse(c.arguments))], ['tool_calls', [{ city: 'Madrid' }]], JSON.stringify(call));
            const document = await run({ messages: person, ...both });
            assert.deepEqual([document.finish, document.calls, JSON.parse(document.content)], ['stop', [], { name: 'Ada', age: 36, color: 'blue' }]);
            // Without tools to choose from only the document is left, and a forced call is the answer.
            const none = await run({ messages: ask('Madrid'), ...both, tool_choice: 'none', max_tokens: 300 });
            assert.deepEqual(Object.keys(JSON.parse(none.content)), ['name', 'age', 'color']);
            const forced = await run({ messages: person, ...both, tool_choice: 'required' });
            assert.deepEqual([forced.finish, forced.calls[0].name], ['tool_calls', 'get_weather']);
            // After a tool's result the document is the answer.
            const result = [...ask('Madrid'), { role: 'assistant', content: null, tool_calls: [{ id: 'a', type: 'function', function: { name: 'get_weather', arguments: '{"city": "Madrid"}' } }] },
                { role: 'tool', tool_call_id: 'a', content: '{"temperature": 4, "sky": "windy"}' }];
            const after = await run({ messages: result, ...both, max_tokens: 300 });
            assert.ok(after.calls.length > 0 || Object.keys(JSON.parse(after.content)).length === 3, JSON.stringify(after));
        }
    });
    await test(`parallel_tool_calls false gives one call, stream ${stream}`, async () => {
        const r = await run({ messages: ask('Oslo'), parallel_tool_calls: false });
        assert.equal(r.finish, 'tool_calls');
        assert.equal(r.calls.length, 1);
        assert.deepEqual(JSON.parse(r.calls[0].arguments), { city: 'Oslo' });
    });
    await test(`a limit just before the end lets the call be finished, stream ${stream}`, async () => {
        const r = await run({ messages: ask('Madrid'), max_tokens: 5, ...thinks(false) });
        assert.equal(r.finish, 'tool_calls', JSON.stringify(r));
        assert.deepEqual(JSON.parse(r.calls[0].arguments), { city: 'Madrid' });
    });
}
await test('several tools: the right one is chosen', async () => {
    const tools = [tool('get_time', 'Current time of a city.', { city: { type: 'string' } }), weather];
    const r = await client.chat.completions.create({ ...base, tools, messages: ask('Beijing') });
    assert.equal(r.choices[0].message.tool_calls?.[0].function.name, 'get_weather', JSON.stringify(r.choices[0]));
});
await test('two choices each have their own calls with their own ids', async () => {
    const r = await client.chat.completions.create({ ...base, messages: ask('Madrid'), n: 2 });
    const ids = r.choices.map((c) => c.message.tool_calls[0].id);
    assert.equal(new Set(ids).size, 2);
    for (const c of r.choices) assert.deepEqual(JSON.parse(c.message.tool_calls[0].function.arguments), { city: 'Madrid' });
});
for (const [what, more] of [
    ['a tool that is not there', { tool_choice: { type: 'function', function: { name: 'nope' } } }],
    ['a required call without tools', { tools: undefined, tool_choice: 'required' }],
    ['a word that is no choice', { tool_choice: 'perhaps' }],
]) {
    await test(`${what} is 400, naming tool_choice`, async () => {
        const e = await client.chat.completions.create({ ...base, messages: ask('Rome'), ...more }).then(() => null, (error) => error);
        assert.equal(e?.status, 400, String(e?.message));
        assert.equal(e.param, 'tool_choice');
    });
}
const severe = await startFleet([['strict', '--grace-tokens', '0']]);
const strict = new OpenAI({ baseURL: severe.url + '/v1', apiKey: 'none', maxRetries: 0 });
for (const stream of [false, true]) {
    await test(`a call that max_tokens cuts is told as such at every length, stream ${stream}`, async () => {
        let cut = 0, whole = 0;
        for (let max_tokens = 1; max_tokens < 60 && whole === 0; max_tokens++) {
            const r = await runOn(strict, stream, { messages: ask('Madrid'), max_tokens, ...thinks(false) });
            if (r.finish === 'tool_calls') { whole++; assert.equal(r.error, null); continue; }
            assert.equal(r.finish, 'length');
            if (r.error !== null) {
                cut++;
                assert.equal(r.error.code, 'tool_call_cut');
                assert.equal(r.error.index, 0);
            }
            if (!stream && r.error !== null) assert.deepEqual(r.calls, [], 'no half call looks like a whole one');
            for (const call of r.calls) {
                // The last token may be the end of the text behind a call that is complete.
                if (r.error === null) JSON.parse(call.arguments);
                else assert.throws(() => JSON.parse(call.arguments), 'half a JSON does not parse');
            }
        }
        assert.ok(cut >= 5 && whole === 1, `${cut} cut, ${whole} whole`);
    });
}
const isJson = (text) => { try { JSON.parse(text); return true; } catch { return false; } };
await test('a cut call is told by responses as incomplete: nothing says that it is done', async () => {
    let cut = 0, whole = 0;
    for (let n = 1; n < 60 && whole === 0; n++) {
        const body = { model: 'demo', temperature: 0, input: ask('Madrid'), max_output_tokens: n, tools: [{ type: 'function', ...weather.function, strict: false }], tool_choice: 'required', ...thinks(false) };
        const r = await strict.responses.create(body);
        for (const item of r.output.filter((i) => i.type === 'function_call')) assert.deepEqual(JSON.parse(item.arguments), { city: 'Madrid' });
        let begun = 0, done = [], last = null;
        for await (const event of await strict.responses.create({ ...body, stream: true })) {
            if (event.type === 'response.output_item.added' && event.item.type === 'function_call') begun++;
            if (event.type === 'response.function_call_arguments.done') done.push(event.arguments);
            if (event.type === 'response.output_item.done' && event.item.type === 'function_call') done.push(event.item.arguments);
            last = event;
        }
        const called = r.output.some((i) => i.type === 'function_call');
        assert.equal(last.response.status, r.status);
        assert.ok(done.every(isJson), done.join());
        assert.equal(done.length, called ? 2 : 0);
        assert.equal(last.response.output.filter((i) => i.type === 'function_call').length, called ? 1 : 0);
        if (called) whole++;
        else { assert.equal(r.status, 'incomplete'); assert.equal(r.incomplete_details.reason, 'max_output_tokens'); cut += begun; }
    }
    assert.ok(cut >= 5 && whole === 1, `${cut} cut, ${whole} whole`);
});
await test('a cut call is told by messages with stop_reason max_tokens', async () => {
    let cut = 0, whole = 0;
    for (let max_tokens = 1; max_tokens < 60 && whole === 0; max_tokens++) {
        const body = { model: 'demo', temperature: 0, messages: ask('Madrid'), max_tokens, tools: [{ name: 'get_weather', input_schema: weather.function.parameters }], tool_choice: { type: 'any' } };
        const post = (more) => fetch(severe.url + '/v1/messages', { method: 'POST', body: JSON.stringify({ ...body, ...more }) });
        const r = await (await post({})).json(), text = await (await post({ stream: true })).text();
        const call = r.content.find((b) => b.type === 'tool_use'), json = [...text.matchAll(/"partial_json":("(?:[^"\\]|\\.)*")/g)].map((m) => JSON.parse(m[1])).join('');
        const reason = /"stop_reason":"(\w+)"/.exec(text)[1];
        assert.equal(reason, r.stop_reason);
        if (call) { whole++; assert.deepEqual(call.input, { city: 'Madrid' }); assert.deepEqual(JSON.parse(json), { city: 'Madrid' }); continue; }
        assert.equal(reason, 'max_tokens');
        assert.ok(!isJson(json));
        cut += text.includes('tool_use') ? 1 : 0;
    }
    assert.ok(cut >= 5 && whole === 1, `${cut} cut, ${whole} whole`);
});
await severe.stop();
await until(async () => (await (await fetch(fleet.url + '/status')).json()).nodes.every((n) => n.running === 0), 'all idle');
await fleet.stop();
finish();
