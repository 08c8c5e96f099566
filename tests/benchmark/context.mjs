// context.mjs - decode and prefill on the CPU at depth: behind nothing, 8k and 32k tokens, for each type of KV
// pages, with the memory that the plan gives them.
//
//     node tests/benchmark/context.mjs [--rounds 3] [--build build] [--threads 2] [--kv f16,q8,q4] [--depths 0,8192,31616]
//
// demo.gguf.  Decode at a depth is a bench of so long a prompt and 64 tokens.  Prefill at a depth
// is 1,024 tokens more there: the difference of the times to the first token behind depth + 1,024
// and behind depth tokens, each the least of the rounds, since a disturbed one would show in the
// difference many times over.  Writes results/cpu-context.json and a line in
// LEDGER.md.  Run it on an otherwise idle machine; three rounds of all take some minutes.
import { execFileSync } from 'node:child_process';
import { record, root } from './record.mjs';

const argument = (name, fallback) => {
    const at = process.argv.indexOf('--' + name);
    return at > 0 ? process.argv[at + 1] : fallback;
};
const rounds = +argument('rounds', 3), build = argument('build', 'build'), threads = +argument('threads', 2);
const types = argument('kv', 'f16,q8,q4').split(','), depths = argument('depths', '0,8192,31616').split(',').map(Number);
const model = 'deploy/models/demo.gguf', context = 32768, more = 1024, decode = 64;
process.chdir(root);

// Nothing is remembered between prompts, so that each of them runs whole.
const shared = (kv) => ['--model', model, '--backend', 'cpu', '--ctx', context, '--sequences', 1, '--kv', kv, '--prefix-ram-mib', 0];
const worker = (command, args) => execFileSync(`${build}/siliceo-worker`, [command, ...args].map(String),
    { maxBuffer: 1 << 24, stdio: ['ignore', 'pipe', 'ignore'], encoding: 'utf8' });

function bench(kv, prompt) {
    return JSON.parse(worker('bench', [...shared(kv), '--prompt', prompt, '--decode', decode, '--threads', threads, '--json'])).figures;
}
function plannedMib(kv) {
    const text = worker('plan', shared(kv));
    const of = (part) => +new RegExp(`^${part} +([\\d.]+) MiB`, 'm').exec(text)[1];
    return { pages: of('KV pages'), needed: of('needed') };
}

const figures = {}, raw = {};
for (const kv of types) {
    const planned = plannedMib(kv);
    figures[`${kv}_pages_planned_mib`] = planned.pages;
    figures[`${kv}_needed_planned_mib`] = planned.needed;
    raw[kv] = { planned, runs: {} };
    for (const depth of depths) {
        const runs = [];
        for (let i = 0; i < rounds; i++) runs.push({ behind: bench(kv, Math.max(depth, 1)), further: bench(kv, depth + more) });
        const least = (pick) => Math.min(...runs.map(pick)), most = (pick) => Math.max(...runs.map(pick));
        const name = `${kv}_${Math.round(depth / 1000)}k`;
        figures[`${name}_decode_tok_per_s`] = +most((r) => r.behind.decode_tok_per_s).toFixed(1);
        figures[`${name}_prefill_tok_per_s`] = +(more * 1000 / (least((r) => r.further.ttft_ms) - least((r) => r.behind.ttft_ms))).toFixed(1);
        figures[`${name}_ttft_ms`] = +least((r) => r.further.ttft_ms).toFixed(1);
        figures[`${name}_ram_peak_mib`] = +most((r) => r.further.ram_peak_mib).toFixed(1);
        raw[kv].runs[depth] = runs;
    }
}
record('cpu-context', `node tests/benchmark/context.mjs --rounds ${rounds}`, figures, {},
    { what: 'demo.gguf (2 full-attention layers of 8), one sequence, context of 32,768 tokens', threads, depths, prefill_tokens: more, decode_tokens: decode, raw });
