// documents.mjs - what the READMEs name is there, and the figures of the root README are those of the raw results that it names.
//
//     node tests/documents.mjs
//
// A path is a word in backticks with a slash or with an ending that files of ours have, also inside a command; in the
// first column of a table of files the names of modules count, too.  X, NAME, * and {a,b} stand for any.  One line a mistake,
// and 'N passed, M failed' last.
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';

process.chdir(new URL('..', import.meta.url).pathname);
const left = new Set(['.git', 'build', 'node_modules']);
let passed = 0, failed = 0;
function expect(right, what) {
    if (right) { passed++; return; }
    failed++;
    console.log(`error: ${what}`);
}

// ---------------------------------------------------------------- paths
function listed(folder, out = []) {
    for (const name of readdirSync(folder || '.')) {
        if (left.has(name) || name.startsWith('build-')) continue;
        const path = folder ? `${folder}/${name}` : name;
        out.push(path);
        if (statSync(path).isDirectory()) listed(path, out);
    }
    return out;
}
const all = listed('');
const known = new Set(all), names = new Set(all.map((path) => basename(path)));
const endings = 'c|h|cc|cu|cuh|S|sh|py|mjs|json|md|conf|service|yml|nomad|html|gguf|txt|in|ini|ids';
const isFile = new RegExp(`^[\\w.*{},\\[\\]-]+\\.(${endings}|\\[ch\\])$`);

// The words of a span that name files of ours.
function pathsIn(span) {
    return span.split(/\s+/).map((word) => word.replace(/^[('"]+|[)'",;:]+$/g, '').replace(/\/$/, '')).filter((word) =>
        !/^[-/~$&<>|]|:\/\/|^(build|\.\.\.|\.\.\/share)|node_modules|=|^[A-Z_]+\/|^\d/.test(word) && !/[^\w./*{},\[\]-]/.test(word) &&
        (isFile.test(word) || /^(\.\.\/)*[\w.*{},\[\]-]+\/[\w.*{},\[\]/-]+$/.test(word)));
}
function expanded(word) {
    const m = /^(.*?)\{([^{}]*)\}(.*)$/.exec(word);
    return m ? m[2].split(',').flatMap((part) => expanded(m[1] + part + m[3])) : [word];
}
const isThere = (path) => {
    if (known.has(path)) return true;
    if (!/[*\[]|(?<![A-Za-z])(X|NAME|MODEL)(?![A-Za-z])/.test(path)) return false;
    const pattern = new RegExp('^' + path.replace(/[.]/g, '\\.').replace(/\*/g, '[^/]*').replace(/(?<![A-Za-z])(X|NAME|MODEL)(?![A-Za-z])/g, '[^/]+') + '$');
    return all.some((name) => pattern.test(name));
};
// From the document's folder, the one above it or the root; suites are named below tests/, without their ending; a name alone, anywhere.
function found(word, folder) {
    return expanded(word).every((one) => [join(folder, one), join(dirname(folder), one), one, join('tests', one)].some((path) =>
        ['', '.c', '.h', '.mjs', '.sh', '.cu'].some((ending) => isThere(path + ending))) || names.has(one));
}

const documents = all.filter((path) => path.endsWith('README.md') || /^deploy\/\w+\.md$/.test(path));
for (const path of documents) {
    const folder = dirname(path), text = readFileSync(path, 'utf8');
    for (const [, span] of text.replace(/```[^]*?```/g, '').matchAll(/`([^`\n]+)`/g))
        for (const word of pathsIn(span)) expect(found(word, folder), `${path} names ${word}, which is not there`);
    for (const [, rows] of text.matchAll(/^\| (?:files?|read) \|.*\n\|[-:| ]+\n((?:\|.*\n)+)/gm))
        for (const [, cell] of rows.matchAll(/^\|([^|]*)\|/gm))
            for (const [, name] of cell.matchAll(/`([a-z]\w*(?:_\*)?)`/g))
                expect(['', '.h', '.c', '*'].some((ending) => isThere(join(folder, name + ending))), `${path} names the module ${name}, which is not in ${folder}`);
}

// ---------------------------------------------------------------- figures
const readme = readFileSync('README.md', 'utf8'), results = 'tests/benchmark/results';
const result = (name) => JSON.parse(readFileSync(`${results}/${name}.json`, 'utf8'));
const number = (words) => Number(words.replace(/,/g, ''));
const digits = (words) => (/\.(\d+)/.exec(words)?.[1].length ?? 0);
// What is said is the raw figure, rounded as it is said.
function says(name, words, raw) {
    expect(Number.isFinite(raw) && Math.abs(number(words) - raw) <= 0.5000001 * 10 ** -digits(words), `README.md says ${words} of ${name}, the raw result ${raw}`);
}

for (const [, name, decode, prefill] of readme.matchAll(/^\| `([\w-]+)` \|[^|]*\| ([^|]*) \| ([^|]*) \|[^|]*\|$/gm)) {
    if (!existsSync(`${results}/${name}.json`)) { expect(false, `README.md names the result ${name}, which is not there`); continue; }
    const r = result(name);
    for (const [cell, keys, kept] of [[decode, ['decode_tok_per_s'], 'kept_of_quiet_decode'], [prefill, ['prefill512_tok_per_s', 'prefill_tok_per_s'], 'kept_of_quiet_prefill']]) {
        const [, figure, ratio, of] = /^([\d.,]+)(?: \(([\d.]+) (x|of quiet)\))?$/.exec(cell.trim()) ?? [];
        const key = keys.find((k) => k in r.figures);
        expect(figure !== undefined && key !== undefined, `README.md: the figure '${cell}' of ${name} cannot be read`);
        if (figure === undefined || key === undefined) continue;
        says(`${name}.${key}`, figure, r.figures[key]);
        if (ratio !== undefined) says(`${name}, ratio of ${key}`, ratio, of === 'x' ? r.ratio[key] : r.figures[kept]);
    }
}

// Sentences: # is a figure; the raw ones follow in their order.  A figure that is written otherwise is changed here, too.
const of = (name) => result(name).figures;
const users = (name) => [1, 2, 4, 8, 16].map((n) => of(name)[`users${n}_total_tok_per_s`]);
const range = (values) => [Math.min(...values), Math.max(...values)];
const pick = (figures, ending) => Object.entries(figures).filter(([key]) => key.endsWith(ending)).map(([, value]) => value);
const said = [
    ['h200-9b', 'in # MiB decodes a token in # ms, # behind 31,000', (f) => [f.vram_peak_mib, f.decode_ms_at_1, f.decode_ms_at_31000]],
    ['h200-context', 'the 35B in # MiB decodes # (F16) to # (Q4) tok/s and takes prompts at # to #', (f) => [f.f16_8192_vram_peak_mib, f.f16_8192_decode_tok_per_s, f.q4_8192_decode_tok_per_s, ...range(pick(f, '_8192_prefill_tok_per_s'))]],
    ['h200-batch-2750', 'share #, #, #, # and # tok/s', () => users('h200-batch-2750')],
    ['h200-batch-6000', 'and #, #, #, # and # with 14,336', () => users('h200-batch-6000')],
    ['h200-2750-slots', 'first prompt of 512 tokens at # tok/s in 7,782 MiB and at # in 14,336, one without a list at # and #, and from slots that hold nothing it takes # and #',
        (f) => ['restarted', 'loaded', 'cold'].flatMap((way) => [f, of('h200-6000-slots')].map((g) => g[`${way}_prefill512_tok_per_s`]))],
    ['h200-batch-2750', 'four streams wait # ms and # ms for a token', (f) => [f, of('h200-batch-6000')].map((g) => g.beside_beside_gap_p99_ms)],
    ['h200-prefix-demo', 'the eighth turn begins after # ms, after # where', (f) => [f.turn8_warm_ttft_ms, f.turn8_cold_ttft_ms]],
    ['coordinator-latency', 'adds # us to a token and # us to the first one', (f) => [f.added_token_p99_us, f.added_ttft_p99_us]],
    ['coordinator-scale', 'without losing a token and # small requests a second, and adds # ms (p99)', (f) => [f.requests_per_s, f.over_worker_added_p99_ms]],
    ['coordinator-scale', '# over a plain server', (f) => [f.paced_added_p99_ms]],
    ['placement', 'on unequal nodes is # to # of', () => range(Object.values(result('placement').ratio))],
    ['batch-users-N', '1 to 16 users at once get # to # times', () => range([1, 2, 4, 8, 16].map((n) => result(`batch-users-${n}`).ratio.total_tok_per_s))],
    ['batch-beside', 'a stream waits # ms for a token (p99, bound #', (f) => [f.beside_gap_p99_ms, f.step_max_ms]],
    ['prefix-cpu', 'behind a system prompt of # tokens begins after # ms, after # where', (f) => [f.system_tokens, f.last_ttft_ms, f.last_cold_ttft_ms]],
    ['equality', 'Greedy answers of # conversations, served by a real worker in # combinations', (f) => [f.conversations, f.combinations_of_all_pairs]],
    ['equality', '# of # are those of each alone, with # displaced, # gone on from what was held and # read from disk', (f) => [f.equal, f.answers, f.displaced, f.hits_from_states + f.hits_from_ram, f.read_from_disk]],
    ['equality-calls', 'of # more, whose answer is a call of a tool and its result the next turn, # of # (', (f) => [f.conversations, f.equal, f.answers]],
    ['constrained', 'A schema costs # to # %', (f) => range(pick(f, '_slower_percent'))],
    ['embeddings', 'a vector takes # ms, 64 in one request #', (f) => [f.inputs_1_p50_ms, f.inputs_64_p50_ms]],
    ['speculate-cpu', 'Guessed tokens bring # times the speed', (f) => [f.counted_auto_speed_up]],
    ['speculate-cpu', 'repeats what was said (# on two threads), # to code, nothing to prose, and cost nothing where they come to nothing: # on noise', (f) => [f.counted_auto_speed_up_2t, f.code_auto_speed_up, f.noise_auto_speed_up]],
    ['h200-35b-draft', 'loses is soon left alone: # to # of the speed alone', (f) => range([f, of('h200-9b-draft')].flatMap((g) => [0, 12, 24].map((n) => g[`draft${n}_decode_tok_per_s`] / g.alone_decode_tok_per_s)))],
    ['h200-lane', 'decode #, #, # and # tok/s on four machines of the kind, without it #, #, # and #', (f) => ['on', 'prompts'].flatMap((lane) => ['0c5aaaf', 'af566ec', '91d3841', 'cd48e73'].map((c) => f[`${c}_2070_${lane}_tok_per_s`]))],
    ['probes-demo', 'Seven questions with known answers: # right', (f) => [f.right]],
];
const text = readme.replace(/\s+/g, ' ');
for (const [name, sentence, raw] of said) {
    const pattern = sentence.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/#/g, '(\\d[\\d,.]*\\d|\\d)');
    const words = new RegExp(pattern).exec(text)?.slice(1);
    expect(words !== undefined, `README.md has no sentence '${sentence}' any more: what it says instead is to be named here, with its raw figures`);
    if (words !== undefined) raw(existsSync(`${results}/${name}.json`) ? of(name) : {}).forEach((value, i) => says(name, words[i], value));
}
for (const [, name] of readme.slice(readme.indexOf('## Figures')).matchAll(/`([a-z][\w]*(?:-[\w]+)+)`/g))
    expect(existsSync(`${results}/${name}.json`) || name.endsWith('-N'), `README.md names the result ${name}, which is not there`);

console.log(`${passed} passed, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);
