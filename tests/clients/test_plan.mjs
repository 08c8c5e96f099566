// test_plan.mjs - `siliceo-worker plan` of the 35B shape on the rtx2070 profile, and of the dense 9B shape
// in as much VRAM: what long contexts take, to the byte, and what does not fit.  The files are
// headers over holes, so nothing is read.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { finish, program, startCoordinator, startWorker, stop, temporaryFolder, test } from './fleet.mjs';

const folder = temporaryFolder(), model = join(folder, '35b-a3b.gguf'), dense = join(folder, '9b.gguf');
const cardMib = 7782; // of the profile
const pageBytes = { f16: 64 * 20480, q8: 64 * 10880, q4: 64 * 6400 }; // 10 layers, 2 heads of 256, keys and values
for (const [preset, path] of [['35b-a3b', model], ['9b', dense]])
    execFileSync(program('make_model'), ['--params', JSON.stringify({ preset }), '--out', path, '--values', 'no']);

function plan(kv, ctx, ...more) {
    return spawnSync(program('siliceo-worker'), ['plan', '--model', model, '--profile', 'rtx2070', '--ram-mib', '32768', '--ctx', ctx, '--kv', kv, ...more]
        .map(String), { encoding: 'utf8' });
}
function mib(text, part, place) {
    const line = text.split('\n').find((l) => l.startsWith(part) && (!place || l.includes(` ${place} `)));
    assert.ok(line, `no line '${part}' in\n${text}`);
    return +/([\d.]+) MiB/.exec(line)[1];
}

// Contexts that leave the profile its 2,750 slots.
for (const [kv, ctx] of [['f16', 16384], ['q8', 32768], ['q4', 32768], ['q4', 61440]]) {
    await test(`${ctx} tokens of ${kv} fit beside 2750 slots`, () => {
        const { status, stdout, stderr } = plan(kv, ctx);
        assert.equal(status, 0, stderr);
        console.log(stdout);
        assert.match(stdout, /2750 slots of 2039808 bytes/);
        assert.match(stdout, new RegExp(`context ${ctx} tokens, 1 sequences`));
        assert.match(stdout, new RegExp(`${ctx / 64} of 64 tokens, ${pageBytes[kv]} bytes`));
        assert.equal(mib(stdout, 'KV pages', 'vram'), +(ctx / 64 * pageBytes[kv] / 2 ** 20).toFixed(1));
        const parts = stdout.split('\n').filter((l) => / vram {2}/.test(l)).map((l) => +/([\d.]+) MiB/.exec(l)[1]);
        const sum = parts.reduce((a, b) => a + b);
        assert.ok(Math.abs(sum - mib(stdout, 'needed of VRAM')) < 0.1 * parts.length, `parts add up to ${sum}`);
        assert.ok(sum <= cardMib);
    });
}
await test('the 9B is resident with 32768 tokens of q8', () => {
    const { status, stdout, stderr } = spawnSync(program('siliceo-worker'), ['plan', '--model', dense, '--backend', 'cuda', '--vram-mib', cardMib, '--ram-mib', 16384,
        '--sequences', 1, '--ctx', 32768, '--kv', 'q8'].map(String), { encoding: 'utf8' });
    assert.equal(status, 0, stderr);
    console.log(stdout);
    assert.match(stdout, /head and 32 layers/);
    assert.equal(mib(stdout, 'KV pages', 'vram'), 8 * 4 * 256 * 2 * 34 / 32 * 32768 / 2 ** 20);
    assert.ok(mib(stdout, 'needed of VRAM') <= cardMib);
});
await test('what does not fit is refused with both sizes, and fits with the slots left open', () => {
    const { status, stderr } = plan('q8', 131072);
    assert.equal(status, 1);
    assert.match(stderr, /VRAM: \d+ MiB are needed with 2750 expert slots, 7782 MiB may be used/);
    const open = plan('q8', 131072, '--slots', 'auto');
    assert.equal(open.status, 0, open.stderr);
    const slots = +/(\d+) slots of/.exec(open.stdout)[1];
    assert.ok(slots >= 320 && slots < 2750, `${slots} slots`);
    assert.ok(mib(open.stdout, 'needed of VRAM') <= cardMib);
});
await test('the plan is that by which a worker loads, with every kind of guesses', async () => {
    const coordinator = await startCoordinator();
    for (const words of [['--speculate', 'off'], ['--speculate', 'lookup', '--draft-tokens', '6'], ['--speculate', 'auto', '--draft', 'deploy/models/draft.gguf'], ['--speculate', 'draft', '--draft', 'deploy/models/draft.gguf', '--draft-tokens', '3']]) {
        const all = ['--ctx', '1024', '--sequences', '2', '--ram-mib', '2000', '--threads', '1', ...words];
        const { stdout, stderr, status } = spawnSync(program('siliceo-worker'), ['plan', '--model', 'deploy/models/demo.gguf', '--backend', 'cpu', ...all], { encoding: 'utf8' });
        assert.equal(status, 0, stderr);
        const worker = await startWorker(coordinator.mesh, 'amber', ['--measure-ms', '0', ...all]);
        assert.deepEqual(stdout.trimEnd().split('\n').slice(1), [...worker.log.matchAll(/ info plan (.*)/g)].map((m) => m[1]), words.join(' '));
        await stop(worker);
    }
    await stop(coordinator);
});
await test('more than the model was trained for is refused', () => {
    const { status, stderr } = plan('q4', 1 << 20);
    assert.equal(status, 1);
    assert.match(stderr, /ctx = 1048576 is more than the 262144 tokens the model was trained for/);
});

finish();
