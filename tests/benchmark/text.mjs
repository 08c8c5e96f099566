// text.mjs - what lies between a token and its text: bench_text, recorded.
//
//     node tests/benchmark/text.mjs
import { execFileSync } from 'node:child_process';
import { record, root } from './record.mjs';

process.chdir(root);
const lines = execFileSync('build/tests/benchmark/bench_text', { encoding: 'utf8' }).trim().split('\n').map((line) => JSON.parse(line));
const figures = Object.fromEntries(lines.map((l) => [`${l.text}_${l.stops}_stops_ns_per_token`, l.ns_per_token]));
record('text-cost', 'node tests/benchmark/text.mjs', figures);
