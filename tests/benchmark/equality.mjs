// equality.mjs - 200 conversations of the corpus through the API of a real worker, served in every pair of ways that there is:
// how many answers are those of each conversation alone.
//
//     node tests/benchmark/equality.mjs [--conversations 200] [--from 0] [--combinations N] [--parts 5] [--seconds S] [--seed 20261130]
//         [--name equality]
//
// Of so many parts of the conversations a combination takes one, each the next: 1 takes all in each.  After S seconds, or on
// SIGTERM, none begins.
import { combinations, conversations, Equality } from '../clients/equality.mjs';
import { record } from './record.mjs';

const args = process.argv.slice(2);
const option = (name, fallback) => { const i = args.indexOf('--' + name); return i < 0 ? fallback : args[i + 1]; };
const seed = Number(option('seed', 20261130)), list = combinations(seed);
const n = Math.min(Number(option('combinations', list.length)), list.length), bodies = conversations(Number(option('conversations', 200)));

const parts = Number(option('parts', 5)), from = Number(option('from', 0));
let limit = Date.now() + 1000 * Number(option('seconds', Infinity));
process.removeAllListeners('SIGTERM').on('SIGTERM', () => { limit = 0; });
const equality = await Equality.open(bodies), rows = [];
for (const [i, c] of list.slice(0, n).entries()) {
    if (i < from) continue;
    if (Date.now() > limit) break;
    const begun = Date.now(), { differing, ...row } = await equality.combination(c, seed + i, { number: i % parts, of: parts });
    for (const d of differing) console.log('differing:', JSON.stringify(d));
    rows.push({ ...row, differing: differing.length, seconds: (Date.now() - begun) / 1000 });
    console.log(JSON.stringify(rows.at(-1)));
}
await equality.close();
const sum = (key) => rows.reduce((total, r) => total + r[key], 0);
record(option('name', 'equality'), `node tests/benchmark/equality.mjs ${args.join(' ')}`.trim(), {
    conversations: bodies.length, parts, from, combinations: rows.length, combinations_of_all_pairs: list.length, answers: sum('answers'), equal: sum('equal'), differing: sum('differing'),
    hits_from_states: sum('hits_in_place'), hits_from_ram: sum('hits') - sum('hits_in_place'), read_from_disk: sum('read_from_disk'), skipped_tokens: sum('skipped_tokens'),
    displaced: sum('displaced'), guessed: sum('guessed'), guessed_true: sum('guessed_true'),
}, {}, { build: equality.build, combinations: rows });
process.exit(sum('differing') > 0 ? 1 : 0);
