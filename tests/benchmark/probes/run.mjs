// run.mjs - the verification suite: seven questions with ground truth, end to end over HTTP.
//
//     node tests/benchmark/probes/run.mjs [URL] [--model M] [--key K] [--name NAME] [--no-record]
//
// Without a URL the demo model is asked on a fleet of its own; with one whatever is served there, by
// default the first model of its list.  Prints a line for each question, writes the raw answers to
// results/NAME.json and a line to the ledger; the exit code is 0 when all are right.
import { parseArgs } from 'node:util';
import { startFleet } from '../../clients/fleet.mjs';
import { median, record } from '../record.mjs';
import { askAll, onlyModel, probes } from './probe.mjs';

const { values, positionals } = parseArgs({ allowPositionals: true, options: { model: { type: 'string' }, key: { type: 'string' }, name: { type: 'string' }, 'no-record': { type: 'boolean' } } });
const fleet = positionals.length === 0 ? await startFleet([['amber', '--profile', 'quarter']]) : null;
const url = fleet?.url ?? positionals[0].replace(/\/(v1\/?)?$/, '');
const model = values.model ?? await onlyModel(url, values.key);
const begun = performance.now();
const results = await askAll(url, model, { key: values.key });
const wall_s = (performance.now() - begun) / 1000;
await fleet?.stop();

const shown = (value, digits) => (value === null ? '-' : value.toFixed(digits));
console.log(`${'probe'.padEnd(12)} right   time s  tokens    tok/s  hit rate  thinking  answer`);
for (const r of results) {
    console.log(`${r.id.padEnd(12)} ${(r.right ? 'yes' : 'NO').padEnd(5)} ${shown(r.wall_ms / 1000, 3).padStart(8)} ${String(r.tokens ?? '-').padStart(7)} ${shown(r.tok_per_s, 1).padStart(8)} ` +
        `${shown(r.hit_rate, 3).padStart(9)}  ${(r.thinking ?? '-').padEnd(8)}  ${(r.error ?? r.text).replaceAll('\n', ' ').slice(0, 60)}`);
}
const told = (key) => results.map((r) => r[key]).filter((v) => v !== null);
const right = results.filter((r) => r.right).length;
const figures = { right, of: probes.length, wall_s, completion_tokens: told('tokens').reduce((a, b) => a + b, 0), tok_per_s: median(told('tok_per_s')) ?? null, hit_rate: median(told('hit_rate')) ?? null };
console.log(`${right} of ${probes.length} right, ${wall_s.toFixed(2)} s`);
if (!values['no-record']) {
    record(values.name ?? `probes-${model}`, `node tests/benchmark/probes/run.mjs${fleet === null ? ' URL' : ''}`, figures, {}, { model, probes: results });
}
process.exit(right === probes.length ? 0 : 1);
