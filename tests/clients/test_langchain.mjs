// test_langchain.mjs - LangChain's OpenAI provider against a real fleet, by both of its APIs.
import assert from 'node:assert/strict';
import { finish, startFleet, test, until } from './fleet.mjs';
import { onNewNode } from './new_node.mjs';

onNewNode(import.meta.url);
const { ChatOpenAI, OpenAIEmbeddings } = await import('@langchain/openai');
const { AIMessageChunk, HumanMessage, SystemMessage, ToolMessage } = await import('@langchain/core/messages');
const { tool } = await import('@langchain/core/tools');
const { z } = await import('zod');

const fleet = await startFleet();
const rose = [new SystemMessage('Answer briefly.'), new HumanMessage('Who wrote The Name of the Rose?')];
const status = async () => (await fetch(fleet.url + '/status')).json();
const idle = () => until(async () => (await status()).nodes.every((n) => n.running === 0 && n.waiting === 0 && n.beat.running === 0), 'all idle');
const weather = tool(() => '{"temperature": 4, "sky": "windy"}', { name: 'get_weather', description: 'Current weather of a city.', schema: z.object({ city: z.string() }) });
const person = z.object({ name: z.string(), age: z.number().int().min(0).max(120), color: z.enum(['red', 'blue', 'green']), tags: z.array(z.string().max(8)).max(2) });
const aboutPerson = 'Give me a JSON object with name Ada, age 36 and color blue.';
const fails = (promise) => promise.then(() => null, (error) => error);

for (const useResponsesApi of [false, true]) {
    const api = useResponsesApi ? 'responses' : 'chat';
    const make = (more = {}) => new ChatOpenAI({ model: 'demo', apiKey: 'none', temperature: 0, maxRetries: 0, useResponsesApi, configuration: { baseURL: fleet.url + '/v1' }, ...more });
    const model = make();

    await test(`${api}: an answer with its usage`, async () => {
        const r = await model.invoke(rose);
        assert.match(r.text, /Umberto Eco/);
        assert.equal(r.usage_metadata.total_tokens, r.usage_metadata.input_tokens + r.usage_metadata.output_tokens);
        assert.ok(r.usage_metadata.output_token_details.reasoning > 0);
    });
    await test(`${api}: a stream adds up to the same text and usage`, async () => {
        const whole = await model.invoke(rose);
        let sum = null, n = 0;
        for await (const chunk of await model.stream(rose)) { sum = sum === null ? chunk : sum.concat(chunk); n++; }
        assert.ok(sum instanceof AIMessageChunk && n > 2);
        assert.equal(sum.text, whole.text);
        assert.equal(sum.usage_metadata.output_tokens, whole.usage_metadata.output_tokens);
    });
    await test(`${api}: a batch answers each`, async () => {
        const r = await model.batch([rose, 'In what year was Napoleon born?', 'What is the capital of Italy?']);
        assert.deepEqual(r.map((m, i) => [/Umberto Eco/, /1769/, /Rome/][i].test(m.text)), [true, true, true]);
    });
    for (const streams of [false, true]) {
        await test(`${api}: a tool's round trip, stream ${streams}`, async () => {
            const bound = model.bindTools([weather]);
            const ask = async (messages) => {
                if (!streams) return bound.invoke(messages);
                let sum = null;
                for await (const chunk of await bound.stream(messages)) sum = sum === null ? chunk : sum.concat(chunk);
                return sum;
            };
            const messages = [new HumanMessage('What is the weather in Madrid?')];
            const call = await ask(messages);
            assert.deepEqual(call.tool_calls.map((c) => [c.name, c.args]), [['get_weather', { city: 'Madrid' }]]);
            const result = await weather.invoke(call.tool_calls[0]);
            assert.ok(result instanceof ToolMessage);
            const answer = await ask([...messages, call, result]);
            assert.equal(answer.text, 'In Madrid it is windy with 4 degrees.');
        });
        await test(`${api}: a tool that is asked for by name is called, stream ${streams}`, async () => {
            const bound = model.bindTools([weather], { tool_choice: 'get_weather' });
            const r = streams ? (await Array.fromAsync(await bound.stream(rose))).reduce((a, b) => a.concat(b)) : await bound.invoke(rose);
            assert.deepEqual(r.tool_calls.map((c) => c.name), ['get_weather']);
        });
    }
    await test(`${api}: a zod schema comes back parsed as a document`, async () => {
        const value = await model.withStructuredOutput(person, { method: 'jsonSchema', name: 'person', strict: true }).invoke(aboutPerson);
        person.parse(value);
        assert.equal(value.name, 'Ada');
    });
    await test(`${api}: a zod schema comes back parsed as a tool's arguments`, async () => {
        const value = await model.withStructuredOutput(z.object({ city: z.string() }), { method: 'functionCalling', name: 'get_weather' }).invoke('What is the weather in Madrid?');
        assert.deepEqual(value, { city: 'Madrid' });
    });
    await test(`${api}: json mode gives an object`, async () => {
        const value = await model.withStructuredOutput(z.object({}).loose(), { method: 'jsonMode' }).invoke(aboutPerson);
        assert.equal(typeof value, 'object');
    });
    await test(`${api}: an abort ends the stream and frees the node`, async () => {
        const controller = new AbortController();
        let n = 0;
        const e = await fails((async () => {
            for await (const _ of await make({ maxTokens: 3000 }).stream('Does the barber who shaves all who do not shave themselves shave himself?', { signal: controller.signal })) if (++n === 3) controller.abort();
        })());
        assert.ok(n >= 3 && n < 1000);
        assert.ok(e === null || /abort/i.test(`${e.name} ${e.message}`), String(e));
        await idle();
    });
    await test(`${api}: a time-out is told as one and frees the node`, async () => {
        const e = await fails(make({ timeout: 30, maxTokens: 4000 }).invoke('Count from 1 to 200.'));
        assert.equal(e?.name, 'TimeoutError', String(e));
        await idle();
    });
    await test(`${api}: errors have their status, text and field`, async () => {
        const wrong = await fails(make({ temperature: 99 }).invoke(rose));
        assert.equal(wrong?.status, 400, String(wrong));
        assert.equal(wrong.param, 'temperature');
        const unknown = await fails(make({ model: 'nope' }).invoke(rose));
        assert.equal(unknown?.status, 404, String(unknown));
        assert.equal(unknown.lc_error_code, 'MODEL_NOT_FOUND');
    });
    await test(`${api}: while no node takes work the library retries, and succeeds when one does`, async () => {
        const admin = (name, verb) => fetch(`${fleet.url}/admin/nodes/${name}/${verb}`, { method: 'POST' });
        const names = (await status()).nodes.map((n) => n.name);
        for (const name of names) assert.equal((await admin(name, 'drain')).status, 200);
        const e = await fails(model.invoke(rose));
        assert.equal(e?.status, 503, String(e));
        let asked = 0;
        const counting = async (...words) => {
            const reply = await fetch(...words);
            if (asked++ === 0) for (const name of names) await admin(name, 'resume');
            return reply;
        };
        const r = await make({ maxRetries: 3, configuration: { baseURL: fleet.url + '/v1', fetch: counting } }).invoke(rose);
        assert.match(r.text, /Umberto Eco/);
        assert.ok(asked >= 2);
    });
}
await test('embeddings of one text and of several', async () => {
    for (const encodingFormat of ['float', undefined]) {
        const model = new OpenAIEmbeddings({ model: 'demo', apiKey: 'none', maxRetries: 0, encodingFormat, configuration: { baseURL: fleet.url + '/v1' } });
        const one = await model.embedQuery('a dog');
        const [same, other] = await model.embedDocuments(['a dog', 'the sea']);
        const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
        assert.ok(Math.abs(dot(one, one) - 1) < 1e-4);
        assert.ok(dot(one, same) > 0.9999 && dot(one, other) < 0.9999);
    }
});
await idle();
await fleet.stop();
finish();
