// test_zod.mjs - zod schemas through the official SDKs' own helpers: documents and tools.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import OpenAI from 'openai';
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { finish, startFleet, test } from './fleet.mjs';

const fleet = await startFleet();
const openai = new OpenAI({ baseURL: fleet.url + '/v1', apiKey: 'none', maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: fleet.url, apiKey: 'none', maxRetries: 0 });

// Nested, recursive, nullable, one of several: what people write.
const place = z.object({ city: z.string().max(12), zip: z.string().regex(/^\d{5}$/), at: z.object({ lat: z.number().min(-90).max(90), lon: z.number().min(-180).max(180) }).nullable() });
const tree = z.object({ value: z.number().int().min(0).max(9), get children() { return z.array(tree).max(1); } });
const schemas = {
    person: z.object({ name: z.string().max(20), age: z.number().int().min(0).max(120), color: z.enum(['red', 'blue', 'green']) }),
    places: z.object({ places: z.array(place).min(1).max(3), note: z.string().max(20).nullable() }),
    choice: z.object({ item: z.discriminatedUnion('kind', [z.object({ kind: z.literal('dog'), barks: z.boolean() }), z.object({ kind: z.literal('cat'), lives: z.number().int().min(1).max(9) })]) }),
    day: z.object({ on: z.iso.date(), id: z.uuid(), mail: z.email(), ok: z.boolean() }),
};
const ask = (name) => [{ role: 'user', content: name === 'person' ? 'Give me a JSON object with name Ada, age 36 and color blue.' : `Give me a JSON object of a ${name}.` }];
const weather = z.object({ city: z.string() });
const about = { model: 'demo', temperature: 0, messages: [{ role: 'user', content: 'What is the weather in Madrid?' }] };

for (const [name, schema] of Object.entries(schemas)) {
    const base = { model: 'demo', temperature: 0, max_tokens: 400, messages: ask(name) };
    await test(`${name}: chat completions parse it, whole and streamed, however little room there is`, async () => {
        const format = { ...base, response_format: zodResponseFormat(schema, name) };
        const whole = await openai.chat.completions.parse(format);
        schema.parse(whole.choices[0].message.parsed);
        if (name === 'person') assert.equal(whole.choices[0].message.parsed.name, 'Ada');
        const streamed = await openai.chat.completions.stream(format).finalChatCompletion();
        assert.deepEqual(streamed.choices[0].message.parsed, whole.choices[0].message.parsed);
        // The library takes finish_reason length for a failure, so this one is parsed by hand.
        const short = await openai.chat.completions.create({ ...format, max_tokens: 130 });
        schema.parse(JSON.parse(short.choices[0].message.content));
    });
    await test(`${name}: responses parse it, whole and streamed`, async () => {
        const format = { model: 'demo', temperature: 0, max_output_tokens: 400, input: ask(name), text: { format: zodTextFormat(schema, name) } };
        const whole = await openai.responses.parse(format);
        schema.parse(whole.output_parsed);
        const streamed = await openai.responses.stream(format).finalResponse();
        assert.deepEqual(streamed.output_parsed, whole.output_parsed);
    });
    await test(`${name}: messages hold it, whole and streamed`, async () => {
        const format = { ...base, output_config: { format: { type: 'json_schema', schema: z.toJSONSchema(schema) } } };
        const whole = await anthropic.messages.create(format);
        schema.parse(JSON.parse(whole.content[0].text));
        const streamed = await anthropic.messages.stream(format).finalMessage();
        assert.equal(streamed.content[0].text, whole.content[0].text);
    });
}
await test("messages parse a schema by the library's helper", async () => {
    // The helper takes bounds and patterns out of the schema, so this one has none.
    const schema = z.object({ name: z.enum(['Ada', 'Bruno']), known: z.boolean(), at: z.object({ year: z.number().int() }).nullable() });
    const r = await anthropic.messages.parse({ model: 'demo', temperature: 0, max_tokens: 400, messages: ask('person'), output_config: { format: zodOutputFormat(schema) } });
    schema.parse(r.parsed_output);
});
await test('a recursive schema is followed, and its document whole where the limit ends it', async () => {
    const { $schema, ...schema } = z.toJSONSchema(tree);
    for (const max_tokens of [40, 90]) {
        const r = await openai.chat.completions.create({ model: 'demo', temperature: 0, max_tokens, messages: ask('tree'), response_format: { type: 'json_schema', json_schema: { name: 'tree', schema } } });
        tree.parse(JSON.parse(r.choices[0].message.content));
    }
});
await test("a tool's arguments come back parsed by chat completions and by responses", async () => {
    const chat = await openai.chat.completions.parse({ ...about, tools: [zodFunction({ name: 'get_weather', parameters: weather })] });
    assert.deepEqual(chat.choices[0].message.tool_calls[0].function.parsed_arguments, { city: 'Madrid' });
    const response = await openai.responses.parse({ model: 'demo', temperature: 0, input: about.messages, tools: [zodResponsesFunction({ name: 'get_weather', parameters: weather })] });
    assert.deepEqual(response.output.find((item) => item.type === 'function_call').parsed_arguments, { city: 'Madrid' });
});
await test("the SDKs' runners call the function with parsed arguments and get the answer", async () => {
    const cities = [];
    const run = ({ city }) => { cities.push(city); return '{"temperature": 4, "sky": "windy"}'; };
    const openaiRunner = openai.chat.completions.runTools({ ...about, tools: [zodFunction({ name: 'get_weather', parameters: weather, function: run })] });
    assert.equal(await openaiRunner.finalContent(), 'In Madrid it is windy with 4 degrees.');
    const message = await anthropic.beta.messages.toolRunner({ ...about, max_tokens: 600, tools: [betaZodTool({ name: 'get_weather', description: 'Current weather of a city.', inputSchema: weather, run })] });
    assert.equal(message.content.at(-1).text, 'In Madrid it is windy with 4 degrees.');
    assert.deepEqual(cities, ['Madrid', 'Madrid']);
});
await fleet.stop();
finish();
