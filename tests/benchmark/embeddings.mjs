// embeddings.mjs - how long vectors take beside a running chat: 1 to 64 inputs a request, and a
// ranking of 16 documents, through a coordinator to one worker of the demo model; and what the
// chat's tokens wait meanwhile.
//
//     node tests/benchmark/embeddings.mjs [--requests 60] [--threads 1]
import { startCoordinator, startWorker, stop, until } from '../clients/fleet.mjs';
import { record } from './record.mjs';

const argument = (name, fallback) => {
    const at = process.argv.indexOf('--' + name);
    return at > 0 ? +process.argv[at + 1] : fallback;
};
const requests = argument('requests', 60), threads = argument('threads', 1);
const coordinator = await startCoordinator(['--log-level', 'warn']);
const worker = await startWorker(coordinator.mesh, 'amber', ['--threads', String(threads), '--log-level', 'warn']);
await until(async () => (await (await fetch(coordinator.url + '/status')).json()).nodes.some((n) => n.state === 'ready'), 'the node is ready');

const post = (path, body, options = {}) => fetch(coordinator.url + path, { method: 'POST', body: JSON.stringify({ model: 'demo', ...body }), ...options });
const at = (values, share) => [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))];
const ms = (value) => +value.toFixed(2);

// One chat after the other, streamed, until stopped; the gaps between its chunks.
function chat() {
    const gaps = [], abort = new AbortController();
    const running = (async () => {
        for (let seed = 1; !abort.signal.aborted; seed++) {
            const r = await post('/v1/chat/completions', { stream: true, seed, max_tokens: 400, chat_template_kwargs: { enable_thinking: false },
                messages: [{ role: 'user', content: 'Tell me a story about a fox and a lamp.' }] }, { signal: abort.signal });
            let last = 0;
            for await (const piece of r.body) {
                const now = performance.now();
                if (last > 0 && piece.length > 0) gaps.push(now - last);
                last = now;
            }
        }
    })().catch((e) => { if (!abort.signal.aborted) throw e; });
    return { gaps, async stop() { abort.abort(); await running; } };
}

// About 20 tokens each, no two alike, so that nothing can be kept from before.
let count = 0;
const text = () => `Note ${count++}: the rose, the bread and the lamp of the harbour were sold for ${count * 7} coins.`;
async function times(path, make) {
    const took = [];
    for (let i = 0; i < requests + 3; i++) {
        const body = make(), begun = performance.now();
        const r = await post(path, body), reply = await r.text();
        if (r.status !== 200) throw new Error(reply);
        if (i >= 3) took.push(performance.now() - begun);
    }
    return took;
}
async function measure() {
    const out = {};
    for (let n = 1; n <= 64; n *= 2) {
        const took = await times('/v1/embeddings', () => ({ input: Array.from({ length: n }, text), encoding_format: 'base64' }));
        out[`inputs_${n}_p50_ms`] = ms(at(took, 0.5));
        out[`inputs_${n}_p99_ms`] = ms(at(took, 0.99));
    }
    const took = await times('/v1/rerank', () => ({ query: text(), documents: Array.from({ length: 16 }, text) }));
    out.rerank_16_p50_ms = ms(at(took, 0.5));
    out.rerank_16_p99_ms = ms(at(took, 0.99));
    return out;
}

const alone = await measure();
const quiet = chat();
await new Promise((resolve) => setTimeout(resolve, 5000)); // how long a chat is watched by itself
await quiet.stop();
const beside = chat();
await until(() => beside.gaps.length > 20, 'the chat runs');
const figures = await measure();
await beside.stop();
for (const [name, c] of [['alone', quiet], ['beside', beside]]) {
    figures[`chat_gap_${name}_p50_ms`] = ms(at(c.gaps, 0.5));
    figures[`chat_gap_${name}_p99_ms`] = ms(at(c.gaps, 0.99));
}
record('embeddings', `node tests/benchmark/embeddings.mjs --requests ${requests} --threads ${threads}`, figures, {},
    { alone, note: 'demo model, about 20 tokens an input; figures are beside a chat that streams all the time, `alone` without one; client, coordinator and worker share the machine' });
await stop(worker);
await stop(coordinator);
process.exit(0);
