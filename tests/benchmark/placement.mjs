// placement.mjs - where the coordinator places requests, beside a yardstick and plain policies.
//
//     node tests/benchmark/placement.mjs [--seeds 10] [--requests 2000]
//
// The table comes from placement.c: the coordinator's own code in simulated time.  Then, so
// that nobody has to believe a simulation, a small run with real processes: a coordinator and two
// fake nodes at ten times the published rates, Poisson arrivals at 80 %, and the time from
// the POST to its end beside greedy placement computed for the same arrivals.
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { program, temporaryFolder } from '../clients/fleet.mjs';
import { ask, body, Rig } from '../fleet/rig.mjs';
import { record } from './record.mjs';

const argument = (name, fallback) => {
    const at = process.argv.indexOf('--' + name);
    return at > 0 ? +process.argv[at + 1] : fallback;
};
const seeds = argument('seeds', 10), requests = argument('requests', 2000);

// ---------------------------------------------------------------- simulated time
const path = `${temporaryFolder()}/placement.json`;
const { stdout } = await promisify(execFile)(program('tests/benchmark/placement'), ['--seeds', `${seeds}`, '--requests', `${requests}`, '--json', path]);
process.stdout.write(stdout);
const table = JSON.parse(readFileSync(path));

// ---------------------------------------------------------------- real processes
const nodes = [{ name: 'slow', prefill: 8000, decode: 154 }, { name: 'fast', prefill: 28000, decode: 537 }];
let state = 42;
const random = () => { state = (Math.imul(state, 1664525) + 1013904223) >>> 0; return state / 2 ** 32; };
const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
const n = 150, output = Array.from({ length: n }, () => Math.max(4, Math.min(600, Math.round(100 * Math.exp(0.7 * normal())))));
const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
const perSecond = 0.8 * nodes.reduce((sum, node) => sum + node.decode / mean(output), 0);
let at = 0;
const arrivals = output.map(() => (at += -Math.log(1 - random()) / perSecond));

function greedy() {
    const free = nodes.map(() => 0);
    return mean(arrivals.map((t, i) => {
        const ends = nodes.map((node, k) => Math.max(t, free[k]) + output[i] / node.decode);
        const best = ends[0] < ends[1] ? 0 : 1;
        free[best] = ends[best];
        return ends[best] - t;
    }));
}

const rig = await Rig.open(['--log-level', 'warn'], nodes.map((node) => [node.name, '--slots', '1', '--prefill', `${node.prefill}`, '--decode', `${node.decode}`]));
const began = performance.now();
const took = await Promise.all(arrivals.map(async (t, i) => {
    await new Promise((next) => setTimeout(next, t * 1000));
    const due = began + t * 1000;
    const r = await ask(rig.url, body({ messages: [{ role: 'user', content: `answer-tokens=${output[i]}` }] }));
    if (r.status !== 200) throw new Error(`${r.status} ${r.text}`);
    return (performance.now() - due) / 1000;
}));
await rig.close();
const real = { mean_s: +mean(took).toFixed(4), greedy_mean_s: +greedy().toFixed(4) };
console.log(`real processes, 2 nodes, 80 % load, ${n} requests: mean ${real.mean_s} s, greedy ${real.greedy_mean_s} s, ratio ${(real.mean_s / real.greedy_mean_s).toFixed(3)}`);

const figures = {}, baseline = {};
for (const row of table.rows) {
    const key = `${row.fleet.replace(' ', '_')}_load_${Math.round(row.load * 100)}_mean_s`;
    figures[key] = row.policies.siliceo.mean_s;
    baseline[key] = row.policies.greedy.mean_s;
}
figures.real_2_nodes_load_80_mean_s = real.mean_s;
baseline.real_2_nodes_load_80_mean_s = real.greedy_mean_s;
record('placement', `node tests/benchmark/placement.mjs --seeds ${seeds} --requests ${requests}`, figures, baseline,
    { ...table, real, note: 'baseline: greedy placement that knows answer lengths and true rates; simulated time except real_*' });
process.exit(0);
