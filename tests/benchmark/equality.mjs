// equality.mjs - 200 conversations of the corpus through the API of a real worker, served in every pair of ways that there is:
// how many answers are those of each conversation alone.
//
//     node tests/benchmark/equality.mjs [--conversations 200] [--parts 5] [--again 3] [--jobs 2] [--seconds S] [--seed 20261130]
//         [--combinations N] [--name equality] [--calls]
//
// With --calls it is the conversations in which a tool is called, and then has answered.
// Every combination gets all conversations, in so many parts, one in `again` of them twice (0: all).  So many combinations run beside
// each other.  After S seconds, or on SIGTERM, none begins; those that take longest come first.  One whose worker cannot be
// reached or refuses is begun once more, and counted.
import { combinations, conversations, conversationsWithCalls, Equality } from '../clients/equality.mjs';
import { record } from './record.mjs';

const args = process.argv.slice(2);
const option = (name, fallback) => { const i = args.indexOf('--' + name); return i < 0 ? fallback : args[i + 1]; };
const seed = Number(option('seed', 20261130)), list = combinations(seed).map((c, i) => ({ c, i })), n_all = list.length;
const parts = Number(option('parts', 5)), again = Number(option('again', 3)), calls = args.includes('--calls');
const bodies = calls ? conversationsWithCalls() : conversations(Number(option('conversations', 200)));
const queue = list.slice(0, Number(option('combinations', n_all))).sort((a, b) => (b.c.pages === 'few') - (a.c.pages === 'few') || a.i - b.i);

let limit = Date.now() + 1000 * Number(option('seconds', Infinity));
process.removeAllListeners('SIGTERM').on('SIGTERM', () => { limit = 0; });
const first = await Equality.open(bodies), rows = [];
let restarted = 0;
async function work(equality) {
    for (let next; Date.now() < limit && (next = queue.shift()) !== undefined;) {
        const { c, i, failed } = next, begun = Date.now();
        try {
            const { differing, ...row } = await equality.combination(c, seed + i, { parts, again });
            for (const d of differing) console.log('differing:', i, JSON.stringify(d));
            rows.push({ combination: i, ...row, differing: differing.length, seconds: (Date.now() - begun) / 1000 });
            console.log(JSON.stringify(rows.at(-1)));
        } catch (e) {
            console.log('failed:', i, e.stack);
            if (failed) throw e;
            restarted++;
            queue.push({ c, i, failed: true });
        }
    }
    await equality.close();
}
const beside = await Promise.all(Array.from({ length: Number(option('jobs', 2)) - 1 }, () => first.another()));
await Promise.all([first, ...beside].map(work));
rows.sort((a, b) => a.combination - b.combination);
const sum = (key) => rows.reduce((total, r) => total + r[key], 0);
record(option('name', 'equality'), `node tests/benchmark/equality.mjs ${args.join(' ')}`.trim(), {
    conversations: bodies.length, combinations: rows.length, combinations_of_all_pairs: n_all, restarted, answers: sum('answers'), equal: sum('equal'), differing: sum('differing'),
    hits_from_states: sum('hits_in_place'), hits_from_ram: sum('hits') - sum('hits_in_place'), read_from_disk: sum('read_from_disk'), skipped_tokens: sum('skipped_tokens'),
    displaced: sum('displaced'), guessed: sum('guessed'), guessed_true: sum('guessed_true'),
}, {}, { build: first.build, combinations: rows });
process.exit(sum('differing') > 0 ? 1 : 0);
