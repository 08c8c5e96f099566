// probe.mjs - asks a server the questions of probes.json, each as a stream, and judges.
//
// A probe has `ask` and what makes an answer right: `accept`, words of which one must stand in it
// as a word, and `refuse`, none; `json`, the values that an object in it must have; `answered`: it
// is there and whole, whatever it says.  The deliberation is no part of an answer.
import { readFileSync } from 'node:fs';

export const probes = JSON.parse(readFileSync(new URL('probes.json', import.meta.url)));

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
const hasWord = (text, word) => new RegExp(`(?<![\\p{L}\\p{N}])${escaped(word)}(?![\\p{L}\\p{N}])`, 'iu').test(text);

function objectIn(text) {
    const from = text.indexOf('{'), to = text.lastIndexOf('}');
    try { return JSON.parse(text.slice(from, to + 1)); } catch { return null; }
}

// Something is said, the tags of a deliberation are not in it, and no fence is open.
function isWhole(text) {
    const fences = text.match(/^\s*```/gm) ?? [];
    return /[\p{L}\p{N}]/u.test(text) && !/<\/?think>/.test(text) && fences.length % 2 === 0;
}

export function isRight(probe, text) {
    if (!isWhole(text)) return false;
    if (probe.answered) return true;
    if (probe.json) {
        const object = objectIn(text);
        return object !== null && Object.entries(probe.json).every(([key, value]) => object[key] === value);
    }
    return probe.accept.some((word) => hasWord(text, word)) && !(probe.refuse ?? []).some((word) => hasWord(text, word));
}

async function* eventsOf(body) {
    const decoder = new TextDecoder();
    let held = '';
    for await (const bytes of body) {
        held += decoder.decode(bytes, { stream: true });
        for (let end = held.indexOf('\n\n'); end >= 0; end = held.indexOf('\n\n')) {
            for (const line of held.slice(0, end).split('\n')) if (line.startsWith('data:')) yield line.slice(5).trim();
            held = held.slice(end + 2);
        }
    }
}

// One question; the figures that the server does not tell are null.
export async function ask(url, model, probe, { key = 'none', fields = {} } = {}) {
    const begun = performance.now();
    const r = { id: probe.id, right: false, text: '', finish: null, thinking: null, first_token_ms: null, wall_ms: 0, prompt_tokens: null, tokens: null,
        tok_per_s: null, node_tok_per_s: null, hit_rate: null, node: null, resumed: null, error: null };
    let last = begun, done = false;
    try {
        const reply = await fetch(url + '/v1/chat/completions', { method: 'POST', headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
            body: JSON.stringify({ model, messages: [{ role: 'user', content: probe.ask }], temperature: 0, stream: true, stream_options: { include_usage: true }, ...fields }) });
        if (!reply.ok) throw new Error(`${reply.status} ${await reply.text()}`);
        for await (const data of eventsOf(reply.body)) {
            if (data === '[DONE]') { done = true; continue; }
            const chunk = JSON.parse(data);
            if (chunk.error) throw new Error(chunk.error.message);
            last = performance.now();
            r.first_token_ms ??= last - begun;
            r.text += chunk.choices[0]?.delta?.content ?? '';
            r.finish = chunk.choices[0]?.finish_reason ?? r.finish;
            if (chunk.usage) { r.tokens = chunk.usage.completion_tokens; r.prompt_tokens = chunk.usage.prompt_tokens; }
            r.node_tok_per_s = chunk.timings?.predicted_per_second ?? r.node_tok_per_s;
            r.hit_rate = chunk.siliceo?.hit_rate ?? r.hit_rate;
            r.node = chunk.siliceo?.node ?? r.node;
            r.thinking = chunk.siliceo?.thinking ?? r.thinking;
            r.resumed = chunk.siliceo?.resumed ?? r.resumed;
        }
        if (!done) throw new Error('the stream has no end');
    } catch (e) {
        r.error = String(e.message ?? e);
    }
    r.wall_ms = performance.now() - begun;
    const decode_s = r.first_token_ms === null ? 0 : (last - begun - r.first_token_ms) / 1000;
    if (r.tokens > 1 && decode_s > 0) r.tok_per_s = (r.tokens - 1) / decode_s;
    r.right = r.error === null && isRight(probe, r.text);
    return r;
}

export async function askAll(url, model, options = {}) {
    const results = [];
    for (const probe of probes) results.push(await ask(url, model, probe, options));
    return results;
}

export async function onlyModel(url, key = 'none') {
    const list = await (await fetch(url + '/v1/models', { headers: { authorization: `Bearer ${key}` } })).json();
    return list.data[0].id;
}
