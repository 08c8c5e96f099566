// test_equality.mjs - a greedy answer is the same however a real worker serves it: in any company, chunks, room, order and
// priority, displaced or not, from any memory of its beginning, with any guesses, all of it combined.
// SILICEO_CONVERSATIONS (200: all) and SILICEO_COMBINATIONS say how many; tests/benchmark/equality.mjs takes all.
import assert from 'node:assert/strict';
import { combinations, conversations, Equality, first, ways } from './equality.mjs';
import { finish, test } from './fleet.mjs';

const seed = 20261130;
const list = combinations(seed), n = Number(process.env.SILICEO_COMBINATIONS ?? first.length);
const few = Number(process.env.SILICEO_CONVERSATIONS ?? 8);

await test('the combinations have every pair of values', async () => {
    const names = Object.keys(ways);
    for (const [i, a] of names.entries()) for (const b of names.slice(i + 1)) for (const x of ways[a]) for (const y of ways[b]) assert.ok(list.some((c) => c[a] === x && c[b] === y), `${a} ${x}, ${b} ${y}`);
    assert.ok(list.length < 60, `${list.length} of them`);
});
const all = [];
const equality = await Equality.open(conversations(few));
for (const [i, c] of list.slice(0, n).entries()) {
    await test(`seed ${seed}, combination ${i}: ${Object.entries(c).map(([k, v]) => `${k} ${v}`).join(', ')}`, async () => {
        const { differing, ...r } = await equality.combination(c, seed + i);
        console.log(`        ${JSON.stringify(r)}`);
        all.push(r);
        assert.deepEqual(differing, []);
        assert.equal(r.answers, 2 * equality.answersOfPass);
    });
}
await test('prompts went on from a state, from RAM and from disk, sequences gave up their place, and guesses came and did not', async () => {
    const sum = (key) => all.reduce((total, r) => total + r[key], 0);
    const counts = { in_place: sum('hits_in_place'), ram: sum('hits') - sum('hits_in_place'), read_from_disk: sum('read_from_disk'), displaced: sum('displaced'), true: sum('guessed_true'), false: sum('guessed') - sum('guessed_true') };
    for (const [what, count] of Object.entries(counts)) assert.ok(count > 0, `${what}: ${JSON.stringify(counts)}`);
});
await test('an interactive request takes the place of background work on a full node, which goes on afterwards', async () => {
    await equality.displaces();
});
await equality.close();
finish();
