// test_ends.mjs - 1,000 requests ended in every way at once leave nothing behind.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { finish, program, stop, temporaryFolder, test, until } from '../clients/fleet.mjs';
import { ask, body, open, Rig } from './rig.mjs';

const sanitized = /address|thread/.test(process.env.SILICEO_BUILD ?? '');
const ROUND = 1000;

await test('1,000 requests ended in every way at once: every counter is exactly 0, and no descriptor, memory or ledger row is lost', async () => {
    const ledger = `${temporaryFolder()}/ledger.db`;
    const rig = await Rig.open(['--ledger-url', ledger, '--limit-first-token-s', '1', '--limit-cancel-s', '3', '--node-breaker-failures', '1000', '--queue-max-waiting', '2000',
        '--queue-max-wait-s', '60', '--log-level', 'info'],
    [['amber', '--slots', '64', '--decode', '200', '--nodes', '2'], ['broken', '--model', 'broken-model', '--fault', 'error', '--slots', '500'], ['bad', '--model', 'bad-model', '--fault', 'bad', '--slots', '500'],
        ['silent', '--model', 'silent-model', '--fault', 'hang', '--slots', '500', '--prefill', '1000000']]);
    await rig.add('victim', '--slots', '64', '--decode', '100', '--model', 'mortal-model');
    let negative = null, over = false;
    const watch = (async () => {
        while (!over) {
            const { requests: r, nodes } = await rig.status();
            if ([r.running, r.waiting, r.cancelling, ...nodes.flatMap((n) => [n.running, n.waiting])].some((x) => x < 0 || x > 4 * ROUND)) negative = JSON.stringify(r);
            await fetch(rig.url + '/healthz').then((reply) => reply.text());
            await new Promise((next) => setTimeout(next, 20));
        }
    })();
    const ends = {};
    const count = (what) => { ends[what] = (ends[what] ?? 0) + 1; };
    const asked = async (more) => count((await ask(rig.url, body(more))).status);
    const left = async (more, how) => {
        const o = open(rig, body({ stream: true, max_tokens: 100000, ...more }));
        if (how !== 'early') await until(() => o.closed || o.text.length > 0, 'a token', 60000);
        if (how === 'half') o.socket.end();
        else if (how === 'reset') o.socket.resetAndDestroy();
        else o.socket.destroy();
        count('left');
    };
    const kinds = [
        (i) => asked({ max_tokens: 1 + i % 20 }), (i) => asked({ max_tokens: 1 + i % 20, stream: true }),
        () => asked({ model: 'broken-model' }), () => asked({ model: 'bad-model' }), () => asked({ model: 'nobody' }), () => asked({ max_tokens: -1 }),
        () => left({}, 'early'), () => left({}, 'close'), () => left({}, 'reset'), () => left({}, 'half'),
        () => left({ model: 'silent-model' }, 'early'),
        async (i) => { const r = await ask(rig.url, body({ model: 'mortal-model', stream: i % 2 === 0, max_tokens: 3000 })); count(r.text.includes('[DONE]') || r.json?.choices ? 'done' : 'cut'); },
        (i) => (i % 8 === 0 ? asked({ model: 'silent-model', max_tokens: 1 }) : asked({ max_tokens: 2, stream: true, n: 1 })),
    ];
    const round = async () => {
        const all = Array.from({ length: ROUND }, (_, i) => kinds[i % kinds.length](i));
        await until(async () => (await rig.node('victim'))?.running > 0, 'the victim has work');
        await stop(rig.fakes.pop(), 'SIGKILL');
        await Promise.all(all);
        await rig.idle(60000);
        await rig.add('victim', '--slots', '64', '--decode', '100', '--model', 'mortal-model');
    };
    const figures = async () => ({ fds: await rig.metric('process_open_fds'), memory: await rig.metric('process_resident_memory_bytes') });
    await round(); // the first fills pools and caches
    await until(async () => (await rig.status()).http.connections <= 3, 'connections end');
    const before = await figures();
    await round();
    over = true;
    await watch;
    await until(async () => (await rig.status()).http.connections <= 2, 'connections end');
    const after = await figures();
    assert.equal(negative, null);
    assert.ok(ends[200] > 100 && ends[400] > 200 && ends[404] > 100 && ends[500] > 100 && ends.left > 700 && ends.cut > 50, JSON.stringify(ends));
    assert.ok(after.fds <= before.fds + 2, `${after.fds} descriptors after ${before.fds}`);
    if (!sanitized) assert.ok(after.memory <= before.memory + (24 << 20), `${after.memory} bytes after ${before.memory}`);
    const r = (await rig.status()).requests;
    const counted = r.finished + r.failed + r.cancelled;
    await rig.close();
    const usage = spawnSync(program('siliceo-coordinator'), ['usage', '--ledger-url', ledger], { encoding: 'utf8' });
    assert.equal(usage.status, 0, usage.stderr);
    const rows = Number(/^open +(\d+)/m.exec(usage.stdout)?.[1]);
    assert.ok(rows >= counted && rows <= 2 * ROUND, `${rows} rows for ${counted} requests\n${usage.stdout}`);
});
finish();
