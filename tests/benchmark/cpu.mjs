// cpu.mjs - decode and prefill on the CPU beside llama.cpp v0.5.0, measured in turns in one run.
//
//     node tests/benchmark/cpu.mjs [--rounds 5] [--build build] [--only demo|35b|busy]
//
// demo.gguf and a generated file of the 35B shape with 4 layers, at 1 and 2 threads; then
// demo.gguf with one other busy process on the machine.  Each round runs ours, then theirs;
// a figure is the median over the rounds, so that a disturbed round does not decide.  Writes
// results/cpu-*.json and lines in LEDGER.md.  Run it on an otherwise idle machine.
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { record, median, root } from './record.mjs';

const argument = (name, fallback) => {
    const at = process.argv.indexOf('--' + name);
    return at > 0 ? process.argv[at + 1] : fallback;
};
const rounds = +argument('rounds', 5), build = argument('build', 'build'), only = argument('only', '');
process.chdir(root);
const libraries = execFileSync('sh', ['tests/benchmark/peer/peer.sh', build]).toString().trim();

function ours(model, prompt, decode, threads, extra = []) {
    const out = execFileSync(`${build}/siliceo-worker`, ['bench', '--model', model, '--prompt', prompt, '--decode', decode,
        '--threads', threads, '--backend', 'cpu', '--speculate', 'off', '--json', ...extra].map(String), { maxBuffer: 1 << 24, stdio: ['ignore', 'pipe', 'ignore'] });
    return JSON.parse(out).figures;
}
function theirs(model, prompt, decode, threads) {
    return JSON.parse(execFileSync(`${build}/peer/llama_peer`, [libraries, model, prompt, decode, threads, 1].map(String),
        { stdio: ['ignore', 'pipe', 'ignore'] }));
}
function compare(name, model, prompt, decode, threads, n = rounds) {
    const a = [], b = [];
    for (let i = 0; i < n; i++) {
        a.push(ours(model, prompt, decode, threads));
        b.push(theirs(model, prompt, decode, threads));
    }
    const keys = ['prefill_tok_per_s', 'decode_tok_per_s'];
    const pick = (runs) => Object.fromEntries(keys.map((k) => [k, +median(runs.map((r) => r[k])).toFixed(2)]));
    return record(name, `node tests/benchmark/cpu.mjs --rounds ${n}`, pick(a), pick(b),
        { peer: 'llama.cpp v0.5.0 (npm @node-llama-cpp/linux-x64 3.22.1)', rounds: { ours: a.map((r) => ({ ...r })), theirs: b },
            prompt_tokens: prompt, decode_tokens: decode, threads });
}

const demo = 'deploy/models/demo.gguf';
if (!only || only === 'demo') {
    for (const threads of [1, 2]) compare(`cpu-demo-${threads}t`, demo, 512, 256, threads);
}
if (!only || only === '35b') {
    const folder = mkdtempSync(tmpdir() + '/siliceo-bench-');
    try {
        const model = folder + '/35b-a3b-4.gguf';
        execFileSync(`${build}/make_model`, ['--params', '{"preset":"35b-a3b:4"}', '--out', model]);
        for (const threads of [1, 2]) compare(`cpu-35b4-${threads}t`, model, 512, 64, threads);
    } finally {
        rmSync(folder, { recursive: true });
    }
}
if (!only || only === 'busy') {
    const quiet = ours(demo, 512, 256, 2);
    const neighbour = spawn(process.execPath, ['-e', 'for (;;);']);
    try {
        const busy = [], peer = [];
        for (let i = 0; i < rounds; i++) {
            busy.push(ours(demo, 512, 256, 2));
            peer.push(theirs(demo, 64, 8, 2));
        }
        const of = (runs, key) => +median(runs.map((r) => r[key])).toFixed(2);
        const figures = {};
        for (const key of ['prefill_tok_per_s', 'decode_tok_per_s']) {
            figures[key] = of(busy, key);
            figures['kept_of_quiet_' + key.split('_')[0]] = +(figures[key] / quiet[key]).toFixed(3);
        }
        record('cpu-busy-2t', 'node tests/benchmark/cpu.mjs --only busy', figures,
            { prefill_tok_per_s: of(peer, 'prefill_tok_per_s'), decode_tok_per_s: of(peer, 'decode_tok_per_s') },
            { what: 'demo.gguf, 2 threads, one other process that computes without pause', quiet });
    } finally {
        neighbour.kill();
    }
}
