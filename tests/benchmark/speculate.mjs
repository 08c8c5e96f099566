// speculate.mjs - what guesses bring: shares that come true, tokens a step and speed-up by kind of
// text and of guesses, what verified rows cost, and what a guess of an MTP block costs.
//
//     node tests/benchmark/speculate.mjs [--repeats 12] [--build build]
//
// demo.gguf with draft.gguf, answers with and without guesses in turn (bench_speculate.c), on one
// thread, whose own time is counted, and on two (figures named _2t, by the clock: for a quiet
// machine); "none" has guesses on neither side and shows the machine's own noise; and a generated file of the 35B shape with 4 layers and a block,
// whose routing is random, so that rows share fewer experts than a text's.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { record, root } from './record.mjs';

const argument = (name, fallback) => {
    const at = process.argv.indexOf('--' + name);
    return at > 0 ? process.argv[at + 1] : fallback;
};
const repeats = +argument('repeats', 12), build = argument('build', 'build');
process.chdir(root);
const run = (program, ...args) => execFileSync(`${build}/${program}`, args.map(String), { encoding: 'utf8', maxBuffer: 1 << 24, stdio: ['ignore', 'pipe', 'inherit'] });
const lines = (...args) => run('tests/benchmark/bench_speculate', ...args).trim().split('\n').map((line) => JSON.parse(line));
const suffix = (threads) => (threads > 1 ? `_${threads}t` : '');
const rows = (file, name, threads) => Object.fromEntries(lines(file, threads).map((l) => [`${name}_rows_${l.rows}_cost${suffix(threads)}`, l.cost]));

const demo = 'deploy/models/demo.gguf', figures = {}, texts = [];
for (const threads of [1, 2]) {
    Object.assign(figures, rows(demo, 'demo', threads));
    for (const t of lines(demo, 'deploy/models/draft.gguf', threads, repeats)) {
        const name = `${t.text}_${t.guesses.replaceAll(' ', '_')}`;
        figures[`${name}_speed_up${suffix(threads)}`] = t.speed_up;
        figures[`${name}_tokens_per_step${suffix(threads)}`] = t.tokens_per_step;
        if (t.drafted > 0) figures[`${name}_accepted_share${suffix(threads)}`] = t.accepted_share;
        texts.push({ threads, ...t });
    }
}
const folder = mkdtempSync(`${tmpdir()}/siliceo-speculate-`), large = `${folder}/model.gguf`;
try {
    run('make_model', '--params', '{"preset":"35b-a3b:4","mtp":true}', '--out', large);
    Object.assign(figures, rows(large, '35b4', 1));
    const bench = JSON.parse(run('siliceo-worker', 'bench', '--model', large, '--backend', 'cpu', '--threads', 1, '--prompt', 64, '--decode', 96, '--speculate', 'mtp', '--json')).figures;
    figures['35b4_decode_ms_per_token'] = 1000 / bench.decode_tok_per_s;
    if (bench.us_per_guess) figures['35b4_mtp_us_per_guess'] = bench.us_per_guess;
} finally {
    rmSync(folder, { recursive: true });
}
record('speculate-cpu', `node tests/benchmark/speculate.mjs --repeats ${repeats}`, figures, {}, { texts });
