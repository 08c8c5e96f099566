// latency.mjs - what the coordinator adds to time-to-first-token and to each token, beside the
// same worker spoken to directly, in turns in one run.
//
//     node tests/benchmark/latency.mjs [--requests 200] [--tokens 50]
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { program, startCoordinator, stop } from '../clients/fleet.mjs';
import { median, record } from './record.mjs';

const argument = (name, fallback) => {
    const at = process.argv.indexOf('--' + name);
    return at > 0 ? +process.argv[at + 1] : fallback;
};
const requests = argument('requests', 200), tokens = argument('tokens', 50);
const run = async (...args) => JSON.parse((await promisify(execFile)(program('tests/benchmark/latency'), args.map(String))).stdout);

const through = [], direct = [];
for (let round = 0; round < 5; round++) {
    direct.push(await run('direct', requests, tokens));
    const coordinator = await startCoordinator(['--log-level', 'warn']);
    through.push(await run('http', coordinator.url.replace('http://', ''), coordinator.mesh, requests, tokens));
    await stop(coordinator);
}
const of = (runs) => Object.fromEntries(['ttft_p50_us', 'ttft_p99_us', 'token_p50_us', 'token_p99_us'].map((k) => [k, median(runs.map((r) => r[k]))]));
const [a, b] = [of(through), of(direct)];
const figures = { ...a };
for (const key of Object.keys(a)) figures['added_' + key] = +(a[key] - b[key]).toFixed(1);
record('coordinator-latency', `node tests/benchmark/latency.mjs --requests ${requests} --tokens ${tokens}`, figures, {},
    { direct: b, rounds: { through, direct }, note: 'a playing worker over the real protocol, so that only the way is measured; client and worker share the 2 cores with the coordinator' });
process.exit(0);
