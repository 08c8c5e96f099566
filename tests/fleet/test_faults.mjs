// test_faults.mjs - a real coordinator, fake workers and clients that misbehave in every way.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { finish, program, start, temporaryFolder, test } from '../clients/fleet.mjs';
import { ask, body, content, events, open, raw, Rig, stop, stretch, until } from './rig.mjs';

const cancelLimitMs = 200, slackMs = 100; // the promise, and what a busy test machine may add

// ---------------------------------------------------------------- clients that leave
{
    // 'slow' needs minutes for a prompt, so its requests are always before their first token.
    const rig = await Rig.open([], [['amber', '--decode', '50'], ['slow', '--model', 'slow-model', '--prefill', '0.1']]);
    const leave = {
        close: (o) => o.socket.end() && o.socket.destroy(),
        reset: (o) => o.socket.resetAndDestroy(),
        'half-close': (o) => o.socket.end(),
    };
    for (const way of Object.keys(leave)) {
        for (const [when, model, stream] of [['before the first token', 'slow-model', true], ['before the first token', 'slow-model', false],
            ['at token 5', 'fake-model', true], ['while it runs', 'fake-model', false]]) {
            await test(`${way} ${when}, stream=${stream}: the worker is told within ${cancelLimitMs} ms and the place is free`, async () => {
                const name = model === 'slow-model' ? 'slow' : 'amber', fake = rig.fake(name);
                const cancels = () => fake.events.filter((e) => e.event === 'cancel');
                const before = cancels().length, submits = fake.events.filter((e) => e.event === 'submit').length;
                const o = open(rig, body({ model, stream, max_tokens: 1000 }));
                await until(() => fake.events.filter((e) => e.event === 'submit').length > submits, 'submitted');
                if (when === 'at token 5') await until(() => o.text.includes('"t4 "'), 'token 5');
                assert.equal((await rig.node(name)).running, 1);
                const at = Date.now();
                leave[way](o);
                await until(() => cancels().length > before, 'cancel');
                assert.ok(cancels().at(-1).ms - at <= cancelLimitMs + slackMs, `${cancels().at(-1).ms - at} ms`);
                await rig.idle(1000 + 500);
                o.socket.destroy();
            });
        }
    }
    await test('a queued client that leaves does not touch the one that runs', async () => {
        const one = await Rig.open([], [['solo', '--slots', '1', '--decode', '100']]);
        const alone = await ask(one.url, body({ max_tokens: 50 }));
        const a = ask(one.url, body({ max_tokens: 50 }));
        await until(async () => (await one.node('solo')).running === 1, 'A runs');
        const b = open(one, body({ stream: true }));
        await until(async () => (await one.status()).queue.waiting === 1, 'B waits');
        b.socket.destroy();
        await until(async () => (await one.status()).queue.waiting === 0, 'B is gone');
        assert.equal((await a).json.choices[0].message.content, alone.json.choices[0].message.content);
        assert.equal(one.fake('solo').events.filter((e) => e.event === 'submit').length, 2);
        await one.close();
    });
    await test('a worker that ignores CANCEL holds its place for limit.cancel_s only', async () => {
        await rig.add('deaf', '--model', 'deaf-model', '--fault', 'deaf', '--prefill', '0.1');
        const o = open(rig, body({ model: 'deaf-model' }));
        await until(async () => (await rig.node('deaf')).running === 1, 'it runs');
        o.socket.destroy();
        await until(async () => (await rig.status()).requests.cancelling === 1, 'it is being cancelled');
        await until(async () => (await rig.node('deaf')).running === 0, 'its place is free', 4000);
    });
    await test('a reader that does not read is cut and counted, others go on', async () => {
        await rig.add('fast', '--model', 'fast-model', '--decode', '20000');
        const o = open(rig, body({ model: 'fast-model', stream: true, max_tokens: 200000 }));
        o.socket.pause();
        await until(async () => (await rig.status()).http.slow_readers === 1, 'the slow reader is cut', 20000);
        assert.equal((await ask(rig.url, body({ max_tokens: 3 }))).status, 200);
        await until(async () => (await rig.node('fast')).running === 0, 'its place is free', 4000);
        o.socket.destroy();
    });
    await rig.close();
}

// ---------------------------------------------------------------- every end at once
await test('1,000 requests that end in every way: every counter at zero, no descriptor, memory or ledger row lost', async () => {
    const ledger = `${temporaryFolder()}/ledger.db`, total = 1002;
    const rig = await Rig.open(['--limit-first-token-s', '1', '--queue-max-waiting', '40', '--ledger-url', ledger, '--log-level', 'warn'], [['amber', '--decode', '400', '--slots', '8'],
        ['basalt', '--decode', '200', '--slots', '4'], ['bad', '--model', 'bad-model', '--fault', 'bad'], ['broken', '--model', 'broken-model', '--fault', 'error']]);
    let over = false, victim = await rig.add('victim', '--slots', '4', '--decode', '600');
    const health = (async () => {
        while (!over) {
            const s = await rig.status();
            for (const n of s.nodes) assert.ok(n.running >= 0 && n.waiting >= 0 && n.running <= 8, JSON.stringify(n));
            assert.ok(s.requests.running >= 0 && s.requests.cancelling >= 0 && s.queue.waiting <= 60);
            await fetch(rig.url + '/healthz');
        }
    })();
    let kills = 0;
    const killer = (async () => {
        while (!over && kills < 5) {
            await until(async () => over || ((await rig.node('victim'))?.running ?? 0) > 0, 'the victim has work');
            await stop(victim, 'SIGKILL');
            kills++;
            victim = await rig.add('victim', '--slots', '4', '--decode', '600');
        }
    })();
    const proc = `/proc/${rig.coordinator.child.pid}`;
    const descriptors = () => readdirSync(`${proc}/fd`).length;
    const resident = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`${proc}/status`, 'utf8'))[1]) / 1024;
    const before = descriptors();
    const ends = {};
    const one = async (i) => {
        const kind = i % 6, stream = i % 2 === 0;
        const request = body({ stream, max_tokens: 1 + i % 30, model: kind === 1 ? 'bad-model' : kind === 2 ? 'broken-model' : kind === 3 ? 'none' : 'fake-model' });
        if (kind < 4) {
            const r = await ask(rig.url, request);
            ends[r.status] = (ends[r.status] ?? 0) + 1;
            return;
        }
        const o = open(rig, { ...request, max_tokens: 500 });
        await until(() => o.closed || o.text.length > 0 || Math.random() < 0.3, 'something', 5000);
        if (kind === 4) o.socket.destroy();
        else o.socket.resetAndDestroy();
        ends.left = (ends.left ?? 0) + 1;
    };
    let next = 0;
    await Promise.all(Array.from({ length: 30 }, async () => { while (next < total) await one(next++); }));
    over = true;
    await killer;
    await health;
    assert.ok(kills >= 1);
    await rig.idle();
    assert.ok(ends[200] > 20 && ends[400] === total / 6 && ends[404] === total / 6 && ends.left === total / 3, JSON.stringify(ends));
    const r = (await rig.status()).requests;
    assert.ok(r.finished > 0 && r.failed > 0 && r.cancelled > 0 && r.refused >= 100, JSON.stringify(r));
    // Its clients' connections may idle for a while yet; what they leave behind is none.
    await until(() => descriptors() <= before + 8, 'descriptors are given back', 15000);
    assert.ok(resident() < 160, `${resident()} MiB`);
    await rig.close();
    const usage = spawnSync(program('siliceo-coordinator'), ['usage', '--ledger-url', ledger, '--by', 'ended', '--json'], { encoding: 'utf8' });
    assert.equal(usage.status, 0, usage.stderr);
    const rows = JSON.parse(usage.stdout);
    // Some clients leave before their request is there: what came is what is written down.
    assert.equal(rows.reduce((n, row) => n + row.requests, 0), r.finished + r.failed + r.cancelled + r.refused, usage.stdout);
});

// ---------------------------------------------------------------- placement
await test('40 equal requests over nodes of 100 and 300 tok/s finish near the optimum; idle singles go to the fast one', async () => {
    const rig = await Rig.open([], [['turtle', '--slots', '1', '--decode', '100'], ['hare', '--slots', '1', '--decode', '300']]);
    const nodes = (replies) => replies.reduce((n, r) => ({ ...n, [r.node]: (n[r.node] ?? 0) + 1 }), {});
    const begin = Date.now();
    const burst = await Promise.all(Array.from({ length: 40 }, () => ask(rig.url, body({ max_tokens: 30 }))));
    const seconds = (Date.now() - begin) / 1000 / stretch, share = nodes(burst);
    assert.ok(burst.every((r) => r.status === 200));
    assert.ok(share.turtle >= 8 && share.turtle <= 12, JSON.stringify(share));
    assert.ok(seconds < 3.0 * 1.25, `${seconds} s where 3.0 s is the optimum`);
    const singles = [];
    for (let i = 0; i < 10; i++) singles.push(await ask(rig.url, body({ max_tokens: 10 })));
    assert.deepEqual(nodes(singles), { hare: 10 });
    await rig.close();
});
await test('a limit of 4 running and 8 waiting serves 12 of 20 and refuses 8 at once with 429', async () => {
    const rig = await Rig.open(['--queue-max-waiting', '8'], [['amber', '--slots', '4', '--decode', '40']]);
    const begin = Date.now();
    const all = await Promise.all(Array.from({ length: 20 }, async () => ({ ...(await ask(rig.url, body({ max_tokens: 20 }))), ms: Date.now() - begin })));
    const served = all.filter((r) => r.status === 200), refused = all.filter((r) => r.status === 429);
    assert.deepEqual([served.length, refused.length], [12, 8]);
    for (const r of refused) {
        assert.ok(Number(r.headers.get('retry-after')) >= 1);
        assert.equal(r.json.error.type, 'rate_limit_error');
        assert.equal(r.json.error.code, 'queue_full');
        assert.ok(r.ms < Math.min(...served.map((s) => s.ms)), 'refused at once');
    }
    await rig.idle();
    await rig.close();
});
await test('a prompt too long for the small node goes to the big one, and is 400 when none is big enough', async () => {
    const rig = await Rig.open([], [['small', '--context', '100', '--decode', '1000'], ['big', '--context', '2000', '--decode', '50']]);
    const long = (n) => body({ max_tokens: 1, messages: [{ role: 'user', content: 'word '.repeat(n) }] });
    assert.equal((await ask(rig.url, long(10))).node, 'small');
    for (const n of [100, 400]) assert.equal((await ask(rig.url, long(n))).node, 'big');
    const r = await ask(rig.url, long(4000));
    assert.equal(r.status, 400);
    assert.equal(r.json.error.code, 'context_length_exceeded');
    assert.equal((await rig.node('small')).state, 'ready');
    await rig.close();
});

// ---------------------------------------------------------------- nodes that fail
await test('a node that takes requests and never answers is left after the first-token limit, and then avoided', async () => {
    const rig = await Rig.open(['--limit-first-token-s', '0.5', '--node-breaker-s', '60'], [['liar', '--fault', 'hang', '--decode', '1000', '--prefill', '100000'], ['honest', '--decode', '200']]);
    const first = await ask(rig.url, body({ stream: true, max_tokens: 5 }));
    assert.equal(first.node, 'honest');
    assert.equal(content(events(first.text)), 't0 t1 t2 t3 t4 ');
    assert.equal(events(first.text).find((e) => e.siliceo)?.siliceo.attempts, 2);
    assert.equal((await rig.node('liar')).state, 'quarantined');
    const times = await Promise.all(Array.from({ length: 4 }, async () => { const t = Date.now(); assert.equal((await ask(rig.url, body({ max_tokens: 5 }))).node, 'honest'); return Date.now() - t; }));
    assert.ok(Math.max(...times) < 450 * stretch, `${times}`);
    await rig.idle();
    await rig.close();
});
await test('50 bad requests never quarantine a node; server errors do, one probe opens it, and the last node is still tried', async () => {
    const rig = await Rig.open(['--node-breaker-s', '0.5'], [['bad', '--model', 'bad-model', '--fault', 'bad'], ['broken', '--fault', 'error', '--decode', '9999', '--prefill', '999999'], ['good', '--decode', '100']]);
    for (let i = 0; i < 50; i++) assert.equal((await ask(rig.url, body({ model: 'bad-model' }))).status, 400);
    assert.equal((await rig.node('bad')).state, 'ready');
    for (let i = 0; i < 6; i++) assert.equal((await ask(rig.url, body({ max_tokens: 1 }))).node, 'good');
    assert.equal((await rig.node('broken')).state, 'quarantined');
    await until(async () => (await rig.node('broken')).state === 'ready', 'half-open');
    assert.equal((await ask(rig.url, body({ max_tokens: 1 }))).node, 'good'); // the probe fails over
    assert.equal((await rig.node('broken')).state, 'quarantined');
    await stop(rig.fake('good'), 'SIGKILL');
    await until(async () => (await rig.node('good')).state !== 'ready', 'good is gone');
    const submits = () => rig.fake('broken').events.filter((e) => e.event === 'submit').length;
    const before = submits();
    assert.equal((await ask(rig.url, body({ max_tokens: 1 }))).status, 500);
    assert.equal(submits(), before + 1);
    await rig.close();
});
await test('a node that dies before the first token is replaced invisibly, and for a whole reply at any time', async () => {
    const rig = await Rig.open([], [['spare', '--decode', '50']]);
    for (const [at, stream] of [[0, true], [0, false], [7, false]]) {
        await rig.add('mortal', '--fault', 'die', '--fault-at', String(at), '--decode', '300', '--prefill', '90000');
        const r = await ask(rig.url, body({ stream, max_tokens: 10 }));
        assert.equal(r.status, 200);
        assert.equal(stream ? content(events(r.text)) : r.json.choices[0].message.content, 't0 t1 t2 t3 t4 t5 t6 t7 t8 t9 ');
        assert.equal(r.node, 'spare');
        assert.ok(['suspect', 'down'].includes((await rig.node('mortal')).state));
    }
    await rig.idle();
    await rig.close();
});
for (const [fault, what] of [['die', 'dies'], ['gap', 'loses a token'], ['drop', 'falls silent']]) {
    await test(`a node that ${what} inside a stream with no other of its file: an error event and no [DONE]`, async () => {
        const rig = await Rig.open(['--limit-between-tokens-s', '0.5'], [['mortal', '--fault', fault, '--fault-at', '5', '--decode', '100'], ['spare', '--decode', '50', '--hash', 'another-file']]);
        const r = await ask(rig.url, body({ stream: true, max_tokens: 10 }));
        assert.equal(r.node, 'mortal');
        const list = events(r.text);
        assert.ok(!list.includes('[DONE]'));
        assert.ok(list.at(-1).error.message.includes('') && list.at(-1).error.type === 'server_error', JSON.stringify(list.at(-1)));
        assert.equal(content(list.slice(0, -1)), 't0 t1 t2 t3 t4 ');
        assert.ok(!r.text.includes('"finish_reason":"'));
        await rig.idle();
        await rig.close();
    });
}
await test('nonsense on the mesh harms nobody and is counted', async () => {
    const rig = await Rig.open([], [['amber', '--fault', 'garbage']]);
    const [host, port] = rig.coordinator.mesh.replace('tcp://', '').split(':');
    await raw({ host, port: Number(port) }, 'GET / HTTP/1.1\r\n\r\n', { limitMs: 300 });
    assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).status, 200);
    assert.ok(await rig.metric('siliceo_mesh_garbage_total') >= 1);
    assert.equal((await rig.node('amber')).state, 'ready');
    await rig.close();
});
await test('without a worker 503 and not ready; a loading one is loading, not down', async () => {
    const rig = await Rig.open();
    for (const add of [false, true]) {
        if (add) await rig.add('amber', '--fault', 'load');
        const r = await ask(rig.url, body());
        assert.equal(r.status, 503);
        assert.ok(Number(r.headers.get('retry-after')) >= 1);
        assert.equal((await fetch(rig.url + '/readyz')).status, 503);
    }
    assert.match((await rig.node('amber')).reason, /50 %/);
    await rig.close();
});
await test('a node that stops is suspect, then down, and back within a beat; a restart under the same name is served at once', async () => {
    const rig = await Rig.open([], [['amber', '--decode', '1000']]);
    const fake = rig.fake('amber');
    fake.child.kill('SIGSTOP');
    await until(async () => (await rig.node('amber')).state === 'suspect', 'suspect', 3000);
    await until(async () => (await rig.node('amber')).state === 'down', 'down', 5000);
    assert.equal((await ask(rig.url, body())).status, 503);
    fake.child.kill('SIGCONT');
    await until(async () => (await rig.node('amber')).state === 'ready', 'ready', 3000);
    assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).status, 200);
    for (let i = 0; i < 5; i++) {
        await stop(rig.fakes.pop(), 'SIGKILL');
        await until(async () => (await rig.node('amber')).state !== 'ready', 'its end is seen', 3000);
        await rig.add('amber', '--decode', '1000');
        assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).status, 200);
    }
    assert.equal((await rig.nodes()).length, 1);
    await rig.close();
});
await test('two live workers cannot have one name', async () => {
    const rig = await Rig.open([], [['amber']]);
    const hello = () => start('tests/fleet/fake_worker', ['--coordinator', rig.coordinator.mesh, '--name', 'amber'], /"event":"welcome"/, { limitMs: 700 });
    await assert.rejects(hello());
    await until(() => rig.log.includes('belongs to another worker that is alive'), 'the log says so');
    assert.equal((await rig.nodes()).length, 1);
    assert.equal((await rig.node('amber')).state, 'ready');
    await rig.close();
});

// ---------------------------------------------------------------- people and ends
await test('a drained node gets no new work, finishes what it has, comes back on resume; forget removes it', async () => {
    const rig = await Rig.open([], [['amber', '--decode', '50'], ['basalt', '--decode', '10']]);
    const admin = async (verb, name = 'amber') => (await fetch(`${rig.url}/admin/nodes/${name}/${verb}`, { method: 'POST' })).status;
    const running = ask(rig.url, body({ max_tokens: 30 }));
    await until(async () => (await rig.node('amber')).running === 1, 'amber runs');
    assert.equal(await admin('drain'), 200);
    assert.equal((await rig.node('amber')).state, 'draining');
    assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).node, 'basalt');
    assert.equal((await running).node, 'amber');
    await until(() => rig.fake('amber').events.some((e) => e.event === 'drain'), 'the worker is told');
    assert.equal(await admin('resume'), 200);
    assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).node, 'amber');
    await stop(rig.fake('basalt'), 'SIGKILL');
    assert.equal(await admin('forget', 'basalt'), 200);
    assert.deepEqual((await rig.nodes()).map((n) => n.name), ['amber']);
    assert.equal(await admin('dance'), 404);
    await rig.close();
});
await test('SIGTERM: what runs is finished, new work is refused, then exit 0', async () => {
    const rig = await Rig.open([], [['amber', '--decode', '40']]);
    const running = ask(rig.url, body({ stream: true, max_tokens: 40 }));
    await until(async () => (await rig.node('amber')).running === 1, 'it runs');
    rig.coordinator.child.kill('SIGTERM');
    await until(async () => (await rig.status()).draining, 'draining');
    const late = await ask(rig.url, body());
    assert.equal(late.status, 503);
    assert.equal(late.json.error.code, 'draining');
    const list = events((await running).text);
    assert.equal(list.at(-1), '[DONE]');
    assert.equal((await rig.coordinator.exited).code, 0);
    await stop(rig.fakes[0], 'SIGKILL');
});
await test('a second signal ends at once, with an error event for what ran', async () => {
    const rig = await Rig.open([], [['amber', '--decode', '5'], ['slow', '--model', 'slow-model', '--prefill', '0.1']]);
    const running = ask(rig.url, body({ stream: true, max_tokens: 1000 }));
    const waiting = ask(rig.url, body({ model: 'slow-model' })).catch(() => ({ status: 503 }));
    await until(async () => (await rig.status()).requests.running === 2, 'both run');
    await until(async () => (await rig.metric('siliceo_completion_tokens_total')) > 0, 'a token');
    const at = Date.now();
    rig.coordinator.child.kill('SIGTERM');
    await until(async () => (await rig.status()).draining, 'draining');
    rig.coordinator.child.kill('SIGTERM');
    assert.equal((await rig.coordinator.exited).code, 0);
    assert.ok(Date.now() - at < 3000);
    const list = events((await running).text);
    assert.ok(!list.includes('[DONE]') && list.at(-1).error, JSON.stringify(list.at(-1)));
    assert.equal((await waiting).status, 503);
    for (const fake of rig.fakes) await stop(fake, 'SIGKILL');
});
await test('SIGTERM: a stream whose node is then lost goes on at another, before the first token and after it', async () => {
    for (const at of [0, 5]) {
        const rig = await Rig.open(['--limit-first-token-s', '0.4', '--limit-between-tokens-s', '0.4'],
            [['mortal', '--decode', '100', ...(at === 0 ? ['--fault', 'hang'] : ['--fault', 'drop', '--fault-at', String(at)])], ['spare', '--decode', '50']]);
        const running = ask(rig.url, body({ stream: true, max_tokens: 12 }));
        await until(async () => (await rig.node('mortal')).running === 1, 'it runs');
        rig.coordinator.child.kill('SIGTERM');
        const list = events((await running).text);
        assert.equal(content(list), Array.from({ length: 12 }, (_, i) => `t${i} `).join(''), JSON.stringify(list.at(-1)));
        assert.equal(list.at(-1), '[DONE]');
        assert.equal((await rig.coordinator.exited).code, 0);
        for (const fake of rig.fakes) await stop(fake, 'SIGKILL');
    }
});
await test('SIGTERM: what is not over within drain_s ends with an error event, and the exit code is 0', async () => {
    const rig = await Rig.open(['--drain-s', '1', '--http-hold-headers-s', '0'], [['amber', '--slots', '1', '--decode', '20']]);
    const running = ask(rig.url, body({ stream: true, max_tokens: 1000 }));
    await until(async () => (await rig.metric('siliceo_completion_tokens_total')) > 0, 'a token');
    const waiting = ask(rig.url, body({ stream: true })), whole = ask(rig.url, body());
    await until(async () => (await rig.status()).requests.waiting === 2, 'two wait');
    const at = Date.now();
    rig.coordinator.child.kill('SIGTERM');
    for (const reply of [running, waiting]) {
        const list = events((await reply).text);
        assert.ok(!list.includes('[DONE]'));
        assert.equal(list.at(-1).error?.code, 'shutting_down', JSON.stringify(list.at(-1)));
    }
    assert.equal((await whole).json.error.code, 'shutting_down');
    assert.ok(Date.now() - at >= 1000 * stretch, 'not before its time');
    assert.equal((await rig.coordinator.exited).code, 0);
    assert.ok(Date.now() - at < 3000 + 1000 * stretch, `${Date.now() - at} ms`);
    await until(() => rig.fakes[0].events.some((e) => e.event === 'cancel'), 'the node is told');
    await stop(rig.fakes[0], 'SIGKILL');
});
await test('200 streams at once lose no token', async () => {
    const rig = await Rig.open([], [['amber', '--slots', '200', '--decode', '20']]);
    const wanted = Array.from({ length: 20 }, (_, i) => `t${i} `).join('');
    const all = await Promise.all(Array.from({ length: 200 }, () => ask(rig.url, body({ stream: true, max_tokens: 20 }))));
    for (const r of all) {
        const list = events(r.text);
        assert.equal(content(list), wanted);
        assert.equal(list.at(-1), '[DONE]');
    }
    await rig.idle();
    await rig.close();
});
finish();
