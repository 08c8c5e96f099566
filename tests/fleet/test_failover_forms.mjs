// test_failover_forms.mjs - a node is killed inside a document by a schema or inside a call of a
// tool: another real node goes on, byte for byte, on every endpoint, streamed and whole.
import assert from 'node:assert/strict';
import { finish, startMortals, stop, test, until } from '../clients/fleet.mjs';

const object = (properties) => ({ type: 'object', properties, required: Object.keys(properties), additionalProperties: false });
// Long enough that there is time to kill a node inside it.
const person = object({ name: { type: 'string', minLength: 5, maxLength: 30 }, age: { type: 'integer', minimum: 0, maximum: 120 }, color: { enum: ['red', 'green', 'blue'] }, tags: { type: 'array', items: { type: 'string', pattern: '^[a-z]{3,9}$' }, minItems: 3, maxItems: 6 } });
const people = object({ people: { type: 'array', items: person, minItems: 6, maxItems: 8 } });
// Arguments come as each of them is over, so there are many; the list comes whole.
const facts = object({ people: { type: 'array', items: person, minItems: 2, maxItems: 2 }, ...Object.fromEntries(Array.from({ length: 30 }, (_, i) => [`fact_${i}`, { type: 'integer', minimum: 0, maximum: 99999 }])) });
const question = 'Give me a JSON object with name Ada, age 36 and color blue.';
const base = { model: 'demo', temperature: 0.9, seed: 11 };
const off = { chat_template_kwargs: { enable_thinking: false } };
const messages = [{ role: 'user', content: question }];

// Each endpoint: how it is asked, and what of an answer must be the same.
const endpoints = {
    '/v1/chat/completions': {
        document: { ...base, ...off, messages, max_tokens: 900, response_format: { type: 'json_schema', json_schema: { name: 'people', schema: people } } },
        call: { ...base, ...off, messages, max_tokens: 1500, tools: [{ type: 'function', function: { name: 'add_people', parameters: facts } }], tool_choice: 'required', parallel_tool_calls: false },
        piece: (event) => event.choices?.[0]?.delta?.content || event.choices?.[0]?.delta?.tool_calls?.[0]?.function.arguments,
        text: (list) => list.map((e) => (e.choices?.[0]?.delta?.content ?? '') + (e.choices?.[0]?.delta?.tool_calls ?? []).map((c) => (c.function.name ?? '') + c.function.arguments).join('')).join(''),
        end: (list) => [list.findLast((e) => e.choices?.[0]?.finish_reason).choices[0].finish_reason, list.at(-1).siliceo ?? list.findLast((e) => e.siliceo).siliceo],
        whole: (r) => (r.choices[0].message.content ?? '') + (r.choices[0].message.tool_calls ?? []).map((c) => c.function.name + c.function.arguments).join(''),
        done: '[DONE]',
    },
    '/v1/responses': {
        document: { ...base, ...off, input: question, max_output_tokens: 900, text: { format: { type: 'json_schema', name: 'people', schema: people } } },
        call: { ...base, ...off, input: question, max_output_tokens: 1500, tools: [{ type: 'function', name: 'add_people', parameters: facts }], tool_choice: 'required', parallel_tool_calls: false },
        piece: (event) => event.type === 'response.output_text.delta' || event.type === 'response.function_call_arguments.delta',
        text: (list) => list.filter((e) => /\.delta$/.test(e.type)).map((e) => e.delta).join(''),
        end: (list) => [list.at(-1).type, list.at(-1).response.siliceo],
        whole: (r) => r.output.map((item) => item.arguments ?? item.content.map((c) => c.text).join('')).join(''),
    },
    '/v1/messages': {
        document: { ...base, seed: undefined, temperature: 0, messages, max_tokens: 900, output_config: { format: { type: 'json_schema', schema: people } } },
        call: { ...base, seed: undefined, temperature: 0, messages, max_tokens: 1500, tools: [{ name: 'add_people', input_schema: facts }], tool_choice: { type: 'any', disable_parallel_tool_use: true } },
        piece: (event) => event.delta?.text || event.delta?.partial_json,
        text: (list) => list.map((e) => e.delta?.text ?? e.delta?.partial_json ?? '').join(''),
        end: (list) => [list.findLast((e) => e.type === 'message_delta').delta.stop_reason, list.findLast((e) => e.siliceo).siliceo],
        whole: (r) => r.content.map((b) => b.text ?? JSON.stringify(b.input)).join(''),
    },
};

const { url, workers, nodes, revive, ...fleet } = await startMortals(['--sequences', '2']);

// The events of a stream; when(event number, node) is called as they come.
async function streamOf(path, body, when = () => {}) {
    const reply = await fetch(url + path, { method: 'POST', body: JSON.stringify({ ...body, stream: true }) });
    assert.equal(reply.status, 200, reply.status === 200 ? '' : await reply.text());
    const list = [], decoder = new TextDecoder();
    let held = '', done = false;
    for await (const bytes of reply.body) {
        held += decoder.decode(bytes, { stream: true });
        for (let at = held.indexOf('\n\n'); at >= 0; at = held.indexOf('\n\n')) {
            const data = held.slice(0, at).split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6)).join('');
            held = held.slice(at + 2);
            if (data === '[DONE]') done = true;
            else if (data !== '') { list.push(JSON.parse(data)); when(list.at(-1), reply.headers.get('x-siliceo-node')); }
        }
    }
    return { list, done };
}
// Runs `run`, which kills a node, until a kill came in time.
async function untilResumed(run) {
    for (let tries = 0; tries < 20; tries++) {
        const { killed, resumed, ...rest } = await run();
        assert.ok(killed, 'a node was killed');
        await revive(killed);
        if (resumed) return { resumed, killed, ...rest };
    }
    throw new Error('no kill came in time');
}

for (const [path, api] of Object.entries(endpoints)) {
    for (const form of ['document', 'call']) {
        const body = api[form];
        let unbroken = null;
        await test(`${path}: a ${form} goes on at another node, the same to the last byte`, async () => {
            unbroken = await streamOf(path, body);
            const text = api.text(unbroken.list);
            const r = await untilResumed(async () => {
                let killed = null, pieces = 0;
                const { list, done } = await streamOf(path, body, (event, node) => {
                    if (!api.piece(event) || ++pieces < 12 || killed) return;
                    killed = node;
                    workers[node].child.kill('SIGKILL');
                });
                assert.ok(!list.some((e) => e.error), JSON.stringify(list.at(-1)));
                return { killed, list, done, resumed: api.end(list)[1].resumed };
            });
            assert.equal(r.resumed, 'exact');
            assert.equal(api.text(r.list), text);
            assert.equal(api.end(r.list)[0], api.end(unbroken.list)[0]);
            assert.equal(r.done, unbroken.done);
            const json = text.replace(/^add_people/, '');
            assert.ok(JSON.parse(json).people.length >= 2, json);
        });
        await test(`${path}: the same as a whole reply`, async () => {
            const r = await untilResumed(async () => {
                const asked = fetch(url + path, { method: 'POST', body: JSON.stringify(body) });
                let killed = null, over = false;
                void asked.finally(() => { over = true; });
                await until(async () => {
                    const busy = (await nodes()).find((n) => n.running > 0);
                    if (busy) killed = busy.name;
                    return killed || over;
                }, 'it runs');
                killed ??= 'amber';
                workers[killed].child.kill('SIGKILL');
                const reply = await asked;
                const json = await reply.json();
                // What had no token yet began again, which nobody sees.
                return { killed, resumed: json.siliceo?.attempts > 1 ? reply.headers.get('x-siliceo-resumed') ?? 'again' : null, status: reply.status, json };
            });
            assert.equal(r.status, 200);
            assert.notEqual(r.resumed, 'approximate');
            const text = api.text(unbroken.list);
            assert.deepEqual(JSON.parse(api.whole(r.json).replace(/^add_people/, '')), JSON.parse(text.replace(/^add_people/, '')));
        });
    }
}
await test('where no other node serves the file, an error event ends the stream, and nothing looks whole', async () => {
    await stop(workers.basalt, 'SIGKILL');
    await until(async () => (await nodes()).filter((n) => n.state === 'ready').length === 1, 'one is left');
    for (const [path, api] of Object.entries(endpoints)) {
        for (const form of ['document', 'call']) {
            for (let tries = 0, broken = false; !broken; tries++) {
                assert.ok(tries < 20, 'no kill came in time');
                let killed = false, pieces = 0;
                const { list, done } = await streamOf(path, api[form], (event) => {
                    if (!api.piece(event) || ++pieces < 12 || killed) return;
                    killed = true;
                    workers.amber.child.kill('SIGKILL');
                });
                broken = list.some((e) => e.error);
                if (broken) {
                    assert.ok(!done);
                    assert.ok(list.at(-1).error, JSON.stringify(list.at(-1)));
                    assert.ok(!list.some((e) => e.choices?.[0]?.finish_reason || e.type === 'message_stop' || e.type === 'response.completed'));
                    assert.throws(() => JSON.parse(api.text(list).replace(/^add_people/, '')));
                }
                await revive('amber');
            }
        }
    }
});
await fleet.stop();
finish();
