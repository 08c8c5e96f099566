// test_integrity.mjs - questions whose deliberation never ends by itself, through a real
// coordinator and real workers: whatever is streamed, budgeted, cut or lost on the way, the
// user receives an answer, and its cost is what was allowed.
import assert from 'node:assert/strict';
import { startFleet, startMortals, finish, test } from './fleet.mjs';

const paradoxes = ['This sentence is false. Is it true?', 'Does the barber who shaves all who do not shave themselves shave himself?',
    'Can an all-powerful being make a stone too heavy to lift?'];
const answer = 'There is no consistent answer: each answer leads to its opposite.';
const thinks = { chat_template_kwargs: { enable_thinking: true } };

// One answer, streamed or whole, as the same object.
async function ask(url, fields, signal, onText = () => {}) {
    const body = { model: 'demo', temperature: 0, ...(fields.stream ? { stream_options: { include_usage: true } } : {}), ...fields };
    const reply = await fetch(url + '/v1/chat/completions', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body), signal });
    const node = reply.headers.get('x-siliceo-node');
    if (!fields.stream) {
        const r = await reply.json();
        assert.equal(reply.status, 200, JSON.stringify(r));
        const message = r.choices[0].message;
        assert.equal(reply.headers.get('x-siliceo-thinking'), r.siliceo.thinking ?? null, 'header and body agree');
        return { node, content: message.content, reasoning: message.reasoning_content ?? '', finish: r.choices[0].finish_reason, usage: r.usage, siliceo: r.siliceo };
    }
    assert.equal(reply.status, 200);
    const all = { node, content: '', reasoning: '' };
    let text = '', done = false;
    const decoder = new TextDecoder();
    for await (const part of reply.body) {
        text += decoder.decode(part, { stream: true });
        const lines = text.split('\n\n');
        text = lines.pop();
        for (const line of lines) {
            if (!line.startsWith('data: ')) continue;
            if (line === 'data: [DONE]') { done = true; continue; }
            const chunk = JSON.parse(line.slice(6));
            assert.equal(chunk.error, undefined, line);
            if (chunk.usage) all.usage = chunk.usage;
            if (chunk.siliceo) all.siliceo = chunk.siliceo;
            const choice = chunk.choices[0];
            if (!choice) continue;
            all.content += choice.delta.content ?? '';
            all.reasoning += choice.delta.reasoning_content ?? '';
            if (choice.finish_reason) all.finish = choice.finish_reason;
            onText(all);
        }
    }
    assert.ok(done, 'the stream has its [DONE]');
    return all;
}
const spent = (r) => r.usage.completion_tokens_details.reasoning_tokens;

for (const grace of [64, 0]) {
    const fleet = await startFleet([['amber', '--profile', 'all', '--grace-tokens', String(grace)]]);
    await test(`grace ${grace}: every combination of stream, budget and max_tokens gives an answer and keeps its budget`, async () => {
        const cases = [];
        for (const stream of [false, true]) {
            for (const budget of [{}, { max_thinking_tokens: 0 }, { max_thinking_tokens: 1 }, { max_thinking_tokens: 40 }, { thinking: { type: 'enabled', budget_tokens: 200 } }, { reasoning_effort: 'minimal' }, { reasoning_effort: 'none' }]) {
                for (const max_tokens of [undefined, 1, 2, 3, 4, 9, 50, 700]) cases.push({ stream, max_tokens, ...budget });
                cases.push({ stream, max_answer_tokens: 2, ...budget });
                cases.push({ stream, max_answer_tokens: 30, max_tokens: 90, ...budget });
            }
        }
        const twins = new Map();
        let next = 0;
        const one = async () => {
            while (next < cases.length) {
                const index = next++, c = cases[index];
                const r = await ask(fleet.url, { messages: [{ role: 'user', content: paradoxes[index % 10 % 3] }], ...thinks, ...c });
                const what = JSON.stringify(c) + ' ' + JSON.stringify(r);
                const n = c.max_tokens ?? 4096;
                const limits = [n - Math.min(Math.floor(n / 2), 512), c.max_thinking_tokens, c.thinking?.budget_tokens, { minimal: 64, none: 0 }[c.reasoning_effort]].filter((x) => x !== undefined);
                if (limits.length === 1) limits.push(1024);
                const limit = n < 4 ? 0 : Math.min(...limits);
                assert.equal(spent(r), limit, what);
                assert.equal(r.siliceo.thinking, limit > 0 ? 'cut' : undefined, what);
                assert.ok(r.content.trim().length > 0, what);
                assert.ok(r.usage.completion_tokens <= n + grace, what);
                if (c.max_answer_tokens) assert.ok(r.usage.completion_tokens <= limit + 2 + c.max_answer_tokens + grace, what);
                if (grace > 0 || r.finish === 'stop') assert.equal(r.content, answer, what);
                assert.ok(answer.startsWith(r.content), what);
                // Streamed and whole answers are the same text at the same price.
                const { stream, ...rest } = c, key = JSON.stringify(rest) + index % 10 % 3;
                const twin = twins.get(key);
                if (twin) assert.deepEqual([r.content, r.reasoning, r.usage], twin, what);
                twins.set(key, [r.content, r.reasoning, r.usage]);
            }
        };
        await Promise.all(Array.from({ length: 6 }, one));
        console.log(`        ${cases.length} combinations`);
    });
    if (grace > 0) {
        await test('counting, code and a story are no circles: they end by themselves', async () => {
            for (const content of ['Count from 1 to 219.', 'Count from 100 to 150.', 'Write a C function that adds two integers.', 'Write a Python function that multiplies two numbers.', 'Tell me a story about a fox and a lamp.',
                'Give me a JSON object with name Anna, age 30 and color red.', `Repeat exactly: ${'rain '.repeat(30).trim()}`]) {
                const r = await ask(fleet.url, { messages: [{ role: 'user', content }], ...thinks });
                assert.equal(r.finish, 'stop', content);
                assert.equal(r.siliceo.thinking, 'complete', content);
            }
        });
        await test('a code block that the budget cuts is closed, streamed and whole', async () => {
            for (const stream of [false, true]) {
                const r = await ask(fleet.url, { stream, messages: [{ role: 'user', content: 'Write a Python function that adds two numbers.' }], chat_template_kwargs: { enable_thinking: false }, max_tokens: 12 });
                assert.equal(r.finish, 'length');
                assert.equal((r.content.match(/^```/gm) ?? []).length % 2, 0, r.content);
                assert.match(r.content, /\n```$/);
            }
        });
        await test('two choices are cut alike, and the request says so', async () => {
            const reply = await fetch(fleet.url + '/v1/chat/completions', { method: 'POST', headers: { 'content-type': 'application/json' },
                body: JSON.stringify({ model: 'demo', temperature: 0, n: 2, max_thinking_tokens: 30, messages: [{ role: 'user', content: paradoxes[0] }], ...thinks }) });
            const r = await reply.json();
            assert.equal(reply.headers.get('x-siliceo-thinking'), 'cut');
            for (const c of r.choices) assert.equal(c.message.content, answer);
            assert.equal(r.usage.completion_tokens_details.reasoning_tokens, 60);
        });
        await test('a wrong budget is refused by its name', async () => {
            for (const [fields, param] of [[{ max_thinking_tokens: -1 }, 'max_thinking_tokens'], [{ thinking: { type: 'no' } }, 'thinking.type'], [{ max_answer_tokens: 0 }, 'max_answer_tokens'], [{ reasoning_effort: 'x' }, 'reasoning_effort']]) {
                const reply = await fetch(fleet.url + '/v1/chat/completions', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ model: 'demo', messages: [{ role: 'user', content: 'Hi' }], ...fields }) });
                assert.equal(reply.status, 400);
                assert.equal((await reply.json()).error.param, param);
            }
        });
    }
    await fleet.stop();
}

// ---------------------------------------------------------------- a worker is killed
for (const [moment, ready] of [['while it deliberates', (r) => r.reasoning.length > 200], ['after the cut, inside the answer', (r) => r.content.length > 5]]) {
    for (const more of [{ temperature: 0 }, { temperature: 0.8, seed: 11 }]) {
        await test(`a worker killed ${moment}, temperature ${more.temperature}: text, usage and the cut are those of an unbroken run`, async () => {
            const fleet = await startMortals(['--profile', 'all', '--sequences', '2']);
            const request = { stream: true, max_thinking_tokens: 500, max_answer_tokens: 4, messages: [{ role: 'user', content: paradoxes[0] }], ...thinks, ...more };
            const whole = await ask(fleet.url, request);
            let resumed = null;
            for (let tries = 0; tries < 20 && !resumed; tries++) {
                let killed = null;
                const r = await ask(fleet.url, request, undefined, (all) => {
                    if (killed || !ready(all)) return;
                    killed = all.node;
                    fleet.workers[killed].child.kill('SIGKILL');
                });
                assert.ok(killed);
                if (r.siliceo.resumed) resumed = r;
                await fleet.revive(killed);
            }
            // Near the end the stream may always be faster than the kill: then this says so.
            assert.ok(resumed, 'no kill came in time');
            assert.equal(resumed.siliceo.resumed, 'exact');
            assert.equal(resumed.content, whole.content);
            assert.equal(resumed.reasoning, whole.reasoning);
            assert.deepEqual(resumed.usage, whole.usage);
            assert.equal(spent(resumed), 500);
            assert.equal(resumed.siliceo.thinking, 'cut');
            await fleet.stop();
        });
    }
}
finish();
