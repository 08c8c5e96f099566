// batch.mjs - many users at once on the CPU, beside llama.cpp v0.5.0 in the same run.
//
//     node tests/benchmark/batch.mjs [--rounds 3] [--build build] [--threads 2]
//                                    [--users 1,2,4,8,16] [--beside 8000]
//
// demo.gguf, a prompt of 128 tokens and 128 more for each user, nothing guessed ahead.  Each round runs ours, then
// theirs; a figure is the median over the rounds.  Then four users decode while a prompt of
// --beside tokens runs, with the bound of the settings and without one: what a stream waits for
// its next token.  Writes results/batch-*.json and lines in LEDGER.md.  Run it on an otherwise
// idle machine.
import { execFileSync } from 'node:child_process';
import { median, record, root } from './record.mjs';

const argument = (name, fallback) => {
    const at = process.argv.indexOf('--' + name);
    return at > 0 ? process.argv[at + 1] : fallback;
};
const rounds = +argument('rounds', 3), build = argument('build', 'build'), threads = +argument('threads', 2);
const crowds = argument('users', '1,2,4,8,16').split(',').map(Number), beside = +argument('beside', 8000);
const model = 'deploy/models/demo.gguf', prompt = 128, decode = 128;
process.chdir(root);
const libraries = execFileSync('sh', ['tests/benchmark/peer/peer.sh', build]).toString().trim();
const command = `node tests/benchmark/batch.mjs --rounds ${rounds} --threads ${threads}`;
const peer = 'llama.cpp v0.5.0 (npm @node-llama-cpp/linux-x64 3.22.1)';

const run = (program, list) => JSON.parse(execFileSync(program, list.map(String), { stdio: ['ignore', 'pipe', 'ignore'] }));
const ours = (users, more = []) => run(`${build}/siliceo-worker`, ['bench', '--model', model, '--backend', 'cpu', '--threads', threads,
    '--users', users, '--prompt', prompt, '--decode', decode, '--speculate', 'off', '--json', ...more]).figures;
const theirs = (users) => run(`${build}/peer/llama_batch`, [libraries, model, prompt, decode, threads, users]);
const medians = (runs) => Object.fromEntries(Object.keys(runs[0]).map((key) => [key, +median(runs.map((r) => r[key])).toFixed(3)]));

for (const users of crowds) {
    const a = [], b = [];
    for (let i = 0; i < rounds; i++) {
        a.push(ours(users));
        b.push(theirs(users));
    }
    record(`batch-users-${users}`, command, medians(a), medians(b), { peer, threads, rounds: { ours: a, theirs: b } });
}
if (beside > 0) {
    const bounded = [], unbounded = [];
    for (let i = 0; i < rounds; i++) {
        const more = ['--beside', beside, '--decode', 1024];
        bounded.push(ours(4, more));
        unbounded.push(ours(4, [...more, '--step-max-ms', 0]));
    }
    const pick = (runs) => Object.fromEntries(Object.entries(medians(runs)).filter(([key]) => /beside|step_max/.test(key)));
    record('batch-beside', command, pick(bounded), {}, { threads, what: 'four users decode while a prompt runs; without the bound beside it',
        unbounded: pick(unbounded), rounds: { bounded, unbounded } });
}
