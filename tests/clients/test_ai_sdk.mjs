// test_ai_sdk.mjs - the Vercel AI SDK against a real fleet, by both of its providers.
import assert from 'node:assert/strict';
import { finish, startFleet, test, until } from './fleet.mjs';
import { onNewNode } from './new_node.mjs';

onNewNode(import.meta.url);
const { APICallError, NoObjectGeneratedError, Output, RetryError, cosineSimilarity, embed, embedMany, generateText, isStepCount, streamText, tool } = await import('ai');
const { createOpenAI } = await import('@ai-sdk/openai');
const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible');
const { z } = await import('zod');

const fleet = await startFleet();
const openai = createOpenAI({ baseURL: fleet.url + '/v1', apiKey: 'none' });
const compatible = createOpenAICompatible({ name: 'siliceo', baseURL: fleet.url + '/v1', apiKey: 'none', includeUsage: true, supportsStructuredOutputs: true });
const models = { 'openai.chat': openai.chat('demo'), 'openai.responses': openai.responses('demo'), compatible: compatible('demo') };
const rose = 'Who wrote The Name of the Rose?';
const status = async () => (await fetch(fleet.url + '/status')).json();
const idle = () => until(async () => (await status()).nodes.every((n) => n.running === 0 && n.waiting === 0 && n.beat.running === 0), 'all idle');
const weather = { get_weather: tool({ description: 'Current weather of a city.', inputSchema: z.object({ city: z.string() }), execute: async () => '{"temperature": 4, "sky": "windy"}' }) };
const person = z.object({ name: z.string(), age: z.number().int().min(0).max(120), color: z.enum(['red', 'blue', 'green']), tags: z.array(z.string().max(8)).max(2) });
const aboutPerson = 'Give me a JSON object with name Ada, age 36 and color blue.';

for (const [name, model] of Object.entries(models)) {
    // Nothing is stored here: without this the provider sends references to items in place of them.
    const ask = { model, temperature: 0, maxRetries: 0, providerOptions: { openai: { store: false } } };
    await test(`${name}: a text with its usage`, async () => {
        const r = await generateText({ ...ask, prompt: rose });
        assert.match(r.text, /Umberto Eco/);
        assert.equal(r.finishReason, 'stop');
        assert.ok(r.usage.inputTokens > 0 && r.usage.outputTokens > 0);
        assert.ok(r.usage.outputTokenDetails.reasoningTokens > 0);
        if (name === 'compatible') assert.match(r.reasoningText, /author/); // the others drop it
    });
    await test(`${name}: a stream gives the same text in pieces`, async () => {
        const whole = await generateText({ ...ask, prompt: rose });
        const r = streamText({ ...ask, prompt: rose, onError: ({ error }) => { throw error; } });
        const pieces = [];
        for await (const piece of r.textStream) pieces.push(piece);
        assert.ok(pieces.length > 1);
        assert.equal(pieces.join(''), whole.text);
        assert.equal(await r.finishReason, 'stop');
        assert.deepEqual((await r.usage).outputTokens, whole.usage.outputTokens);
    });
    for (const streams of [false, true]) {
        await test(`${name}: the tool loop calls the function and answers from its result, stream ${streams}`, async () => {
            const params = { ...ask, tools: weather, stopWhen: isStepCount(3), prompt: 'What is the weather in Madrid?' };
            const r = streams ? streamText(params) : await generateText(params);
            const steps = await r.steps;
            assert.deepEqual(steps.map((s) => s.finishReason), ['tool-calls', 'stop']);
            assert.deepEqual(steps[0].toolCalls.map((c) => [c.toolName, c.input]), [['get_weather', { city: 'Madrid' }]]);
            assert.equal(await r.text, 'In Madrid it is windy with 4 degrees.');
        });
        await test(`${name}: a named tool is called, stream ${streams}`, async () => {
            const params = { ...ask, tools: { get_weather: tool({ ...weather.get_weather, execute: undefined }) }, toolChoice: { type: 'tool', toolName: 'get_weather' }, prompt: rose };
            const r = streams ? streamText(params) : await generateText(params);
            assert.deepEqual((await r.toolCalls).map((c) => c.toolName), ['get_weather']);
        });
        await test(`${name}: a zod schema comes back parsed, stream ${streams}`, async () => {
            const params = { ...ask, output: Output.object({ schema: person }), prompt: aboutPerson, maxOutputTokens: 400 };
            const r = streams ? streamText(params) : await generateText(params);
            let partial = 0;
            if (streams) for await (const _ of r.partialOutputStream) partial++;
            const output = await r.output;
            person.parse(output);
            assert.equal(output.name, 'Ada');
            assert.ok(!streams || partial > 1);
        });
        await test(`${name}: a document that a limit shortens is whole, stream ${streams}`, async () => {
            const params = { ...ask, output: Output.object({ schema: person }), prompt: aboutPerson, maxOutputTokens: 60 };
            const r = streams ? streamText(params) : await generateText(params);
            if (streams) await r.consumeStream();
            person.parse(JSON.parse(await r.text));
        });
    }
    await test(`${name}: an abort frees the node`, async () => {
        const controller = new AbortController();
        const r = streamText({ ...ask, prompt: 'This sentence is false. Is it true?', abortSignal: controller.signal, maxOutputTokens: 3000, onError: () => {} });
        let parts = 0, aborted = false;
        for await (const part of r.fullStream) {
            if (part.type === 'abort') aborted = true;
            if (++parts === 4) controller.abort();
        }
        assert.ok(aborted);
        await idle();
    });
    await test(`${name}: a time-out is told as one and frees the node`, async () => {
        const e = await generateText({ ...ask, prompt: 'Count from 1 to 200.', maxOutputTokens: 4000, abortSignal: AbortSignal.timeout(30) }).then(() => null, (error) => error);
        assert.equal(e?.name, 'TimeoutError', String(e));
        await idle();
    });
    await test(`${name}: errors come as APICallError with their status and text`, async () => {
        for (const [more, code, words] of [[{ temperature: 99 }, 400, /temperature/], [{ model: name.includes('responses') ? openai.responses('nope') : name === 'compatible' ? compatible('nope') : openai.chat('nope') }, 404, /nope/]]) {
            const e = await generateText({ ...ask, prompt: rose, ...more }).then(() => null, (error) => error);
            assert.ok(APICallError.isInstance(e), String(e));
            assert.equal(e.statusCode, code);
            assert.match(e.message, words);
            assert.equal(e.isRetryable, false);
        }
    });
}
for (const [name, model] of [['openai', openai.embedding('demo')], ['compatible', compatible.embeddingModel('demo')]]) {
    await test(`${name}: embeddings of one text and of several`, async () => {
        const one = await embed({ model, value: 'a dog', maxRetries: 0 });
        assert.ok(Math.abs(cosineSimilarity(one.embedding, one.embedding) - 1) < 1e-6);
        assert.ok(one.usage.tokens > 0);
        const several = await embedMany({ model, values: ['a dog', 'the sea', 'a house'], maxRetries: 0 });
        assert.equal(several.embeddings.length, 3);
        assert.ok(cosineSimilarity(several.embeddings[0], one.embedding) > 0.9999);
        assert.ok(cosineSimilarity(several.embeddings[1], one.embedding) < 0.9999);
    });
}
await test('a stream that is refused tells the error, too', async () => {
    let told = null;
    const r = streamText({ model: openai.chat('demo'), prompt: rose, temperature: 99, maxRetries: 0, onError: ({ error }) => { told = error; } });
    await r.consumeStream();
    assert.equal(told?.statusCode, 400, String(told));
});
await test('an output that is not what the program wanted is an error of the library', async () => {
    const schema = z.object({ name: z.string().max(8) });
    const e = await generateText({ model: models.compatible, temperature: 0, maxRetries: 0, prompt: aboutPerson, output: Output.object({ schema: schema.refine(() => false) }) })
        .then(() => null, (error) => error);
    assert.ok(NoObjectGeneratedError.isInstance(e), String(e));
    schema.parse(JSON.parse(e.text));
});
await test('while no node takes work the library retries, and succeeds when one does', async () => {
    const admin = (name, verb) => fetch(`${fleet.url}/admin/nodes/${name}/${verb}`, { method: 'POST' });
    const names = (await status()).nodes.map((n) => n.name);
    for (const name of names) assert.equal((await admin(name, 'drain')).status, 200);
    const e = await generateText({ model: models.compatible, prompt: rose, maxRetries: 0 }).then(() => null, (error) => error);
    assert.equal(e?.statusCode, 503, String(e));
    assert.equal(e.isRetryable, true);
    let asked = 0;
    const counting = createOpenAICompatible({ name: 'siliceo', baseURL: fleet.url + '/v1', apiKey: 'none', fetch: async (...words) => {
        const reply = await fetch(...words);
        if (asked++ === 0) for (const name of names) await admin(name, 'resume');
        return reply;
    } });
    const r = await generateText({ model: counting('demo'), prompt: rose, temperature: 0, maxRetries: 3 });
    assert.match(r.text, /Umberto Eco/);
    assert.ok(asked >= 2);
});
await test('what cannot be reached is tried again, and then told as such', async () => {
    const nowhere = createOpenAICompatible({ name: 'nowhere', baseURL: 'http://127.0.0.1:9/v1', apiKey: 'none' });
    const e = await generateText({ model: nowhere('demo'), prompt: rose, maxRetries: 1 }).then(() => null, (error) => error);
    assert.ok(RetryError.isInstance(e), String(e));
    assert.equal(e.reason, 'maxRetriesExceeded');
    assert.equal(e.errors.length, 2);
});
await idle();
await fleet.stop();
finish();
