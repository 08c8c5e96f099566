// record.mjs - what every benchmark shares: the machine, the raw JSON of a result and its ledger line.
//
// A result is tests/benchmark/results/NAME.json with name, date, commit, machine, command,
// status (MEASURED or PROJECTED), figures (numbers with units in their names), baseline
// (the same keys for the peer) and ratio (figure / baseline).
import { execFileSync } from 'node:child_process';
import { appendFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, totalmem, release } from 'node:os';

export const root = new URL('../..', import.meta.url).pathname;
const results = root + 'tests/benchmark/results/';
const ledger = root + 'tests/benchmark/LEDGER.md';

export function machine() {
    return `${cpus()[0].model.trim()}, ${cpus().length} cores, ${Math.round(totalmem() / 2 ** 30)} GiB, Linux ${release()}`;
}

export function commit() {
    const hash = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: root }).toString().trim();
    const dirty = execFileSync('git', ['status', '--porcelain', '--', ':!tests/benchmark/results', ':!tests/benchmark/LEDGER.md'],
        { cwd: root }).toString().trim();
    return dirty ? hash + '-dirty' : hash;
}

export function ratioOf(figures, baseline) {
    const ratio = {};
    for (const key of Object.keys(baseline)) {
        if (typeof figures[key] === 'number' && baseline[key] > 0) ratio[key] = +(figures[key] / baseline[key]).toFixed(3);
    }
    return ratio;
}

// Writes the raw JSON and one ledger line; prints what a person wants to see.
export function record(name, command, figures, baseline = {}, more = {}) {
    const result = { name, date: new Date().toISOString(), commit: commit(), machine: machine(), command,
        status: 'MEASURED', figures, baseline, ratio: ratioOf(figures, baseline), ...more };
    mkdirSync(results, { recursive: true });
    writeFileSync(`${results}${name}.json`, JSON.stringify(result, null, 2) + '\n');
    if (!existsSync(ledger)) throw new Error(`${ledger} is missing`);
    const shown = Object.entries(figures).filter(([, v]) => typeof v === 'number')
        .map(([k, v]) => `${k} ${+v.toPrecision(5)}${result.ratio[k] ? ` (${result.ratio[k]} x)` : ''}`).join(', ');
    appendFileSync(ledger, `| ${result.date.slice(0, 10)} | ${result.commit} | ${result.machine} | ${name} | \`${command}\` | ${shown} | ${result.status} |\n`);
    console.log(`${name}: ${shown}`);
    return result;
}

export function median(values) {
    const sorted = [...values].sort((a, b) => a - b);
    return sorted[Math.floor(sorted.length / 2)];
}

export function readResult(name) {
    return JSON.parse(readFileSync(`${results}${name}.json`));
}
