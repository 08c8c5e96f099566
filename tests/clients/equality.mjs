// equality.mjs - conversations of the corpus through the API of a real worker in many ways, and whether the answers are those of
// each conversation alone: for test_equality.mjs and tests/benchmark/equality.mjs.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { root, startCoordinator, startWorker, stop, temporaryFolder, until } from './fleet.mjs';

const MAX_TOKENS = 32, MAX_CALL_TOKENS = 160, LONGEST = 1152; // tokens of the longest conversation with its answer
const draft = 'deploy/models/draft.gguf';
const library = 'You are the assistant of a small library at the harbour. The library opens at nine and closes at six, on Sundays at one. ' +
    'Readers may take five books for three weeks. Maps and newspapers stay in the house. The garden has a table with two chairs under the old tree. ' +
    'Answer in one sentence, name the shelf where a book stands, and never promise what the library does not have. The red shelf holds stories, ' +
    'the blue shelf holds history, the green shelf holds plants and animals, and the white shelf holds everything about numbers. ';

// The same numbers from the same seed, on every machine (Marsaglia's xorshift).
export function randomFrom(seed) {
    let x = seed >>> 0 || 1;
    const next = () => { x ^= x << 13; x >>>= 0; x ^= x >>> 17; x ^= x << 5; x >>>= 0; return x; };
    for (let i = 0; i < 8; i++) next();
    const below = (n) => next() % n;
    const shuffled = (list) => { const a = [...list]; for (let i = a.length - 1; i > 0; i--) { const j = below(i + 1); [a[i], a[j]] = [a[j], a[i]]; } return a; };
    return { below, shuffled };
}

// --- what is asked ---

const corpus = () => readFileSync(root + 'tests/golden/data/conversations.jsonl', 'utf8').trim().split('\n').map((line) => JSON.parse(line));
const bodyOf = (item, i, messages = item.messages) => ({ model: 'demo', messages, ...(item.tools ? { tools: item.tools } : {}),
    temperature: 0, max_tokens: MAX_TOKENS, ...(i % 2 === 0 ? { logprobs: true, top_logprobs: 2 } : {}), chat_template_kwargs: { enable_thinking: item.thinking } });

// n conversations spread over the corpus.  Every third has a long system prompt that they share; every second wants log
// probabilities, whose six digits tell also what turns no token.
export function conversations(n) {
    const all = corpus();
    return Array.from({ length: n }, (_, i) => {
        const item = all[Math.floor(i * all.length / n)], own = item.messages.filter((m) => m.role !== 'system');
        const system = item.messages.find((m) => m.role === 'system')?.content ?? '';
        return bodyOf(item, i, i % 3 === 0 ? [{ role: 'system', content: library + system }, ...own] : item.messages);
    });
}

// Those in which a tool was called at the end, as far as the question: the call is the answer, and its result the next turn.
export function conversationsWithCalls() {
    return corpus().filter((item) => item.messages.at(-1).role === 'tool').map((item, i) => ({ ...bodyOf(item, i, item.messages.slice(0, -2)), max_tokens: MAX_CALL_TOKENS }));
}

// Long answers in the background, that are there when others come and must make room for them.
export const chores = ['Count from 1 to 90.', 'Tell me a story about a fox and a lamp.', 'What is the capital of France?', 'Write a Python function that adds two numbers.'].map((text) =>
    ({ model: 'demo', messages: [{ role: 'user', content: text }], temperature: 0, max_tokens: 180, ignore_eos: true, priority: 'background' }));

// All of an answer that must not depend on how it was served, as one text.
function essence(choice, usage) {
    const { reasoning_content = null, content = null, tool_calls = [] } = choice.message;
    return JSON.stringify([reasoning_content || null, content || null, tool_calls.map((c) => [c.function.name, c.function.arguments]), choice.finish_reason,
        choice.logprobs?.content ?? null, usage.prompt_tokens, usage.completion_tokens]);
}

async function whole(reply) {
    const text = await reply.text();
    if (reply.status !== 200) throw new Error(`${reply.status}: ${text}`);
    const answer = JSON.parse(text);
    return { text: essence(answer.choices[0], answer.usage), message: answer.choices[0].message, cached: answer.usage.prompt_tokens_details.cached_tokens };
}

async function streamed(reply, begun) {
    let text = '';
    const words = new TextDecoder();
    for await (const bytes of reply.body) { text += words.decode(bytes, { stream: true }); begun(); }
    if (reply.status !== 200) throw new Error(`${reply.status}: ${text}`);
    const lines = text.split('\n').filter((l) => l.startsWith('data: ') && l !== 'data: [DONE]').map((l) => JSON.parse(l.slice(6)));
    const message = { content: '', reasoning_content: '', tool_calls: [] }, logprobs = [];
    let finish = null, usage = null;
    for (const line of lines) {
        if (line.error) throw new Error(JSON.stringify(line.error));
        usage = line.usage ?? usage;
        const choice = line.choices[0];
        if (!choice) continue;
        finish = choice.finish_reason ?? finish;
        message.content += choice.delta.content ?? '';
        message.reasoning_content += choice.delta.reasoning_content ?? '';
        logprobs.push(...(choice.logprobs?.content ?? []));
        for (const c of choice.delta.tool_calls ?? []) {
            const call = message.tool_calls[c.index] ??= { function: { name: '', arguments: '' } };
            call.function.name += c.function.name ?? '';
            call.function.arguments += c.function.arguments ?? '';
        }
    }
    if (!text.includes('data: [DONE]')) throw new Error('a stream without its end');
    return { text: essence({ message, finish_reason: finish, logprobs: logprobs.length > 0 ? { content: logprobs } : null }, usage), cached: usage.prompt_tokens_details.cached_tokens };
}

async function ask(url, body, { stream = false, background = false, begun = () => {} } = {}) {
    const reply = await fetch(url + '/v1/chat/completions', { method: 'POST', headers: { 'content-type': 'application/json', ...(background ? { 'x-siliceo-priority': 'background' } : {}) },
        body: JSON.stringify(stream ? { ...body, stream: true, stream_options: { include_usage: true } } : body) });
    return stream ? streamed(reply, begun) : whole(reply);
}

// A client that leaves in the middle.
async function leave(url, body, background) {
    const gone = new AbortController();
    try {
        const reply = await fetch(url + '/v1/chat/completions', { method: 'POST', signal: gone.signal, headers: { 'content-type': 'application/json', ...(background ? { 'x-siliceo-priority': 'background' } : {}) },
            body: JSON.stringify({ ...body, stream: true }) });
        await reply.body.getReader().read();
    } catch { /* refused or cut: it leaves anyway */ }
    gone.abort();
}

// --- in how many ways ---

export const ways = {
    sequences: [2, 4, 8],
    chunk: [64, 192, 512],
    step_ms: [0, 2, 100],
    pages: ['for all', 'few'],
    park_mib: [4, 0, 64],
    prefix: ['none', 'ram', 'little ram', 'place', 'disk'],
    every_tokens: [128, 0, 1024],
    ahead: [true, false],
    guesses: ['off', 'lookup 8', 'draft 1', 'draft 4', 'auto 0', 'auto 3'],
    slots: ['0', '25%', 'all'],
    threads: [1, 2],
    at_once: [1, 5, 12],
};

// Combinations in which every pair of values of two ways comes up, each the best of some drawn for what is not covered yet
// (greedy pairwise covering, as AETG: Cohen et al., 1997).  The first two are chosen: most of all that there is happens in them.
export const first = [
    { sequences: 4, chunk: 64, step_ms: 2, pages: 'few', park_mib: 4, prefix: 'disk', every_tokens: 128, ahead: true, guesses: 'draft 4', slots: '25%', threads: 1, at_once: 5 },
    { sequences: 2, chunk: 192, step_ms: 0, pages: 'few', park_mib: 0, prefix: 'place', every_tokens: 0, ahead: true, guesses: 'lookup 8', slots: 'all', threads: 2, at_once: 5 },
];
export function combinations(seed) {
    const random = randomFrom(seed), names = Object.keys(ways), missing = new Set(), list = [];
    const take = (c) => { for (const p of pairs(c)) missing.delete(p); list.push(c); };
    const pairs = (c) => names.flatMap((a, i) => names.slice(i + 1).map((b) => `${a}=${c[a]}&${b}=${c[b]}`));
    for (const [i, a] of names.entries()) for (const b of names.slice(i + 1)) for (const x of ways[a]) for (const y of ways[b]) missing.add(`${a}=${x}&${b}=${y}`);
    for (const c of first) take(c);
    while (missing.size > 0) {
        let best = null, most = 0;
        for (let k = 0; k < 300; k++) {
            const c = Object.fromEntries(names.map((name) => [name, ways[name][random.below(ways[name].length)]]));
            const covers = pairs(c).filter((p) => missing.has(p)).length;
            if (covers > most) [best, most] = [c, covers];
        }
        if (best !== null) take(best);
    }
    return list;
}

// --- a worker of one way ---

function workerWords(c, folder) {
    const [kind, depth = '0'] = c.guesses.split(' ');
    const prefix = { none: ['--prefix-ram-mib', '0'], ram: ['--prefix-ram-mib', '48'], 'little ram': ['--prefix-ram-mib', '4'],
        place: ['--prefix-ram-mib', '8', '--prefix-states', '6'], disk: ['--prefix-ram-mib', '8', '--prefix-disk-mib', '256', '--prefix-disk-dir', folder] }[c.prefix];
    // A context that is not named leaves half of what is left to what is parked.
    const [ctx, park] = c.pages === 'few' ? [0, Math.min(c.park_mib, 4)] : [1024, c.park_mib];
    return ['--ctx', String(ctx), '--sequences', String(c.sequences), '--chunk', String(c.chunk), '--step-max-ms', String(c.step_ms), '--park-mib', String(park),
        ...prefix, '--prefix-every-tokens', String(c.every_tokens), '--prefix-ahead=' + c.ahead, '--speculate', kind, '--draft-tokens', depth, ...(kind === 'draft' || kind === 'auto' ? ['--draft', draft] : []),
        '--slots', c.slots, '--threads', String(c.threads)];
}

// A worker with so little RAM that there are fewer pages than its sequences may want: those that grow take them from those
// behind.  What it needs besides, it says itself.
async function startSmall(mesh, words) {
    let mib = 40;
    for (let i = 0; i < 30; i++) {
        try {
            const worker = await startWorker(mesh, 'one', [...words, '--ram-mib', String(mib)]);
            if (Number(/context (\d+) tokens/.exec(worker.log)[1]) >= LONGEST) return worker;
            await stop(worker);
            mib++;
        } catch (e) {
            const needed = /(\d+) MiB are needed before any context/.exec(e.message);
            if (!/MiB/.test(e.message)) throw e;
            mib = needed !== null && Number(needed[1]) >= mib ? Number(needed[1]) + 6 : mib + 3;
        }
    }
    throw new Error(`not with ${mib} MiB: ${words.join(' ')}`);
}

async function beat(url) {
    const read = async () => (await (await fetch(url + '/status')).json()).nodes.find((n) => n.state === 'ready')?.beat;
    const first = (await until(read, 'a beat')).number;
    return until(async () => { const b = await read(); return b && b.number >= first + 2 && b.running + b.waiting === 0 && b; }, 'a beat after it');
}

export class Equality {
    static async open(bodies) {
        const e = await Equality.begin(bodies);
        const alone = ['--ctx', '1024', '--sequences', '1', '--chunk', '512', '--step-max-ms', '0', '--prefix-ram-mib', '0', '--park-mib', '0', '--speculate', 'off', '--slots', '0'];
        await e.with(alone, async () => {
            e.expected = [];
            e.next = [];
            for (const [i, body] of bodies.entries()) {
                const { text, message } = await ask(e.url, body), calls = message.tool_calls ?? [];
                e.expected.push(text);
                if (calls.length === 0 && (i % 4 !== 1 || !message.content)) continue;
                // What an SDK sends back: a message as it came, deliberation and all, and before a user's word its text alone.
                const more = calls.length > 0 ? [message, ...calls.map(({ id }) => ({ role: 'tool', tool_call_id: id, content: '{"temperature": 12, "sky": "clear"}' }))]
                    : [{ role: 'assistant', content: message.content }, { role: 'user', content: 'Thank you.' }];
                const next = { ...body, messages: [...body.messages, ...more] };
                e.next[i] = { body: next, expected: (await ask(e.url, next)).text };
            }
            e.expectedChores = [];
            for (const body of chores) e.expectedChores.push((await ask(e.url, body)).text);
        });
        return e;
    }
    static async begin(bodies) {
        const e = new Equality();
        e.bodies = bodies;
        e.coordinator = await startCoordinator(['--mesh-beat-s', '0.1']);
        e.url = e.coordinator.url;
        return e;
    }
    // One more that compares with the same answers, to work beside this one.
    async another() {
        const e = await Equality.begin(this.bodies);
        for (const what of ['expected', 'next', 'expectedChores']) e[what] = this[what];
        return e;
    }
    async close() { await stop(this.coordinator); }
    get answersOfPass() { return this.bodies.length + chores.length + Object.keys(this.next).length; }
    async with(words, work, small = false) {
        const all = ['--measure-ms', '0', '--queue', '12', ...words];
        const worker = await (small ? startSmall(this.coordinator.mesh, all) : startWorker(this.coordinator.mesh, 'one', all));
        let last;
        try {
            await until(async () => (await (await fetch(this.url + '/status')).json()).nodes.some((n) => n.name === 'one' && n.state === 'ready' && n.beat?.state === 'ready'), 'ready');
            this.build = (await (await fetch(this.url + '/status')).json()).nodes.find((n) => n.state === 'ready').build;
            await work();
            last = await beat(this.url);
        } finally {
            await stop(worker);
        }
        await until(async () => !(await (await fetch(this.url + '/status')).json()).nodes.some((n) => n.state === 'ready'), 'gone');
        return last;
    }
    // One place, with a long answer in the background: who comes does not wait for its end.
    async displaces() {
        const small = ['--ctx', '1024', '--sequences', '1', '--prefix-ram-mib', '0'], body = { ...chores[0], max_tokens: 800 }, result = { answers: 0, equal: 0, differing: [], skipped_tokens: 0 };
        const last = await this.with(small, async () => {
            const expected = (await ask(this.url, body)).text, order = [];
            let begun;
            const first = new Promise((yes) => { begun = yes; });
            const long = ask(this.url, body, { stream: true, begun }).then((got) => { order.push('long'); return got; });
            await Promise.race([first, long]);
            const short = await ask(this.url, this.bodies[0]);
            order.push('short');
            this.compare('beside', short, this.expected[0], result);
            this.compare('displaced', await long, expected, result);
            assert.deepEqual(order, ['short', 'long']);
        });
        assert.deepEqual(result.differing, []);
        assert.ok(last.displaced >= 1);
    }
    compare(conversation, got, expected, result) {
        result.answers++;
        result.skipped_tokens += got.cached;
        if (got.text === expected) result.equal++;
        else result.differing.push({ conversation, expected, got: got.text });
    }
    // Conversations, some with a turn more, in a drawn order, so many at once, beside chores that began before; half in the background,
    // half as streams, and some clients leave.  One in `again` is asked once more a little later; 0: none.
    async pass(atOnce, random, result, { items, begun, again }) {
        const running = begun.map((k) => { let begun; const first = new Promise((yes) => { begun = yes; }); return { k, first, answer: ask(this.url, chores[k], { stream: true, begun }) }; });
        await Promise.race(running.flatMap((r) => [r.first, r.answer]));
        const plan = [], add = (i, place, repeated) => plan.push({ i, place, repeated, stream: random.below(2) === 0, background: random.below(2) === 0, twin: random.below(8) === 0 });
        for (const [place, i] of random.shuffled(items).entries()) {
            add(i, place, false);
            if (again > 0 && random.below(again) === 0) add(i, place + 1.5 + random.below(6), true);
        }
        plan.sort((a, b) => a.place - b.place);
        const left = plan[0].i;
        const one = async () => {
            for (let p; (p = plan.shift()) !== undefined;) {
                const [got] = await Promise.all([ask(this.url, this.bodies[p.i], p), ...(p.twin ? [leave(this.url, this.bodies[left], p.background)] : [])]);
                this.compare(p.i, got, this.expected[p.i], result);
                const next = p.repeated ? undefined : this.next[p.i];
                if (next !== undefined) this.compare(`next turn of ${p.i}`, await ask(this.url, next.body, p), next.expected, result);
            }
        };
        await Promise.all([...Array.from({ length: atOnce }, one), ...running.map(async (r) => this.compare(`chore ${r.k}`, await r.answer, this.expectedChores[r.k], result))]);
    }
    // In one way all conversations, in so many parts, each beside chores; then the first part once more, as what was left behind
    // may serve it: after a restart where it is on disk, and else not where single ones came `again`.
    async combination(c, seed, { parts = 1, again = 0 } = {}) {
        const random = randomFrom(seed), result = { ...c, conversations: this.bodies.length, answers: 0, equal: 0, differing: [], skipped_tokens: 0 };
        const folder = temporaryFolder(), beats = [];
        const run = (work) => this.with(workerWords(c, folder), work, c.pages === 'few');
        const pass = (k) => this.pass(c.at_once, random, result, { items: [...this.bodies.keys()].filter((i) => i % parts === k),
            begun: [...chores.keys()].filter((j) => parts === 1 || (j + 2 * k) % chores.length < 2), again: c.prefix === 'none' ? 0 : again });
        const all = async () => { for (let k = 0; k < parts; k++) await pass(k); };
        if (c.prefix === 'disk') {
            beats.push(await run(all), await run(() => pass(0)));
        } else {
            beats.push(await run(async () => { await all(); if (again === 0) await pass(0); }));
        }
        const sum = (key) => beats.reduce((n, b) => n + b[key], 0);
        return { ...result, kv_pages: beats[0].kv_pages_total, hits: sum('prefix_hits'), hits_in_place: sum('prefix_hits_in_place'), read_from_disk: sum('prefix_reads'), displaced: sum('displaced'),
            guessed: sum('guesses'), guessed_true: sum('guesses_true') };
    }
}
