// test_health.mjs - how nodes fare and where requests go: states, verdicts, routing terms, deadlines, drains.
import assert from 'node:assert/strict';
import { finish, start, startCoordinator, startWorker, test } from '../clients/fleet.mjs';
import { ask, body, content, events, fullLength, open, Rig, scaled, stop, streamed, stretch, until } from './rig.mjs';

const count = (replies) => replies.reduce((n, r) => ({ ...n, [r.node]: (n[r.node] ?? 0) + 1 }), {});
const explain = async (rig, id) => (await fetch(`${rig.url}/status?explain=${id}`)).json();
const wordy = (text, more = {}) => body({ messages: [{ role: 'system', content: 'rules '.repeat(200) }, { role: 'user', content: text }], ...more });

// ---------------------------------------------------------------- states
await test('a node that loads is loading with % and seconds left; a request waits for it, or is told how long', async () => {
    const rig = await Rig.open(['--queue-loading-wait-s', '5']);
    const loading = start('tests/fleet/fake_worker', ['--coordinator', rig.coordinator.mesh, '--name', 'amber', ...scaled(['--load-ms', '1500'])], /"event":"welcome"/);
    rig.fakes.push(await loading);
    await until(async () => (await rig.node('amber'))?.state === 'loading', 'loading');
    const n = await rig.node('amber');
    assert.match(n.reason, /loading, \d+ %, about \d+ s left/);
    assert.equal(n.engine.verdict, 'loading');
    assert.ok(n.loading_left_s > 0 && n.loading_left_s <= 1.5 * stretch, `${n.loading_left_s}`);
    const r = await ask(rig.url, body({ max_tokens: 2 }));
    assert.equal(r.status, 200, r.text);
    assert.equal((await rig.node('amber')).state, 'ready');
    await rig.close();
});
await test('90 s of loading are beyond the wait: 503 with about the time left; not suspect, not down', async () => {
    const rig = await Rig.open([]);
    rig.fakes.push(await start('tests/fleet/fake_worker', ['--coordinator', rig.coordinator.mesh, '--name', 'amber', '--load-ms', '90000'], /"event":"welcome"/));
    await until(async () => (await rig.node('amber'))?.state === 'loading', 'loading');
    const begin = Date.now();
    const r = await ask(rig.url, body());
    assert.equal(r.status, 503);
    assert.equal(r.json.error.code, 'loading');
    const after = Number(r.headers.get('retry-after'));
    assert.ok(after >= 80 && after <= 91, `${after}`);
    await until(async () => Date.now() - begin > 1600 * stretch, 'longer than node.down_s', 5000);
    assert.equal((await rig.node('amber')).state, 'loading');
    await rig.close();
});
await test('a busy node is never suspect, however long it is busy; a stalled engine is, and says so', async () => {
    const rig = await Rig.open(['--node-engine-stall-s', '1'], [['amber', '--slots', '1', '--decode', '10'], ['stuck', '--model', 'stuck-model', '--fault', 'stall', '--decode', '10']]);
    const busy = ask(rig.url, body({ max_tokens: 25 })), stuck = ask(rig.url, body({ model: 'stuck-model', max_tokens: 25 }));
    await until(async () => (await rig.node('stuck')).state === 'suspect', 'the stall is seen');
    const n = await rig.node('stuck');
    assert.match(n.reason, /engine has not come round/);
    assert.deepEqual([n.process.verdict, n.engine.verdict, n.network.verdict], ['ok', 'stalled', 'ok']);
    const states = new Set();
    const watch = until(async () => { states.add((await rig.node('amber')).state); return (await rig.node('amber')).engine.verdict !== 'busy' && states.size > 0 && done; }, 'the end');
    let done = false;
    assert.equal((await busy).status, 200);
    done = true;
    await watch;
    assert.deepEqual([...states], ['ready']);
    await stuck;
    await rig.close();
});
await test('all nodes busy: requests wait and are served, nothing is dropped', async () => {
    const rig = await Rig.open([], [['amber', '--slots', '1', '--decode', '100'], ['basalt', '--slots', '1', '--decode', '100']]);
    const replies = await Promise.all(Array.from({ length: 12 }, () => ask(rig.url, body({ max_tokens: 30 }))));
    assert.ok(replies.every((r) => r.status === 200));
    assert.ok((await rig.nodes()).every((n) => n.state === 'ready'));
    await rig.close();
});
await test('verdicts tell process, engine and path apart', async () => {
    const rig = await Rig.open([], [['amber']]);
    await until(async () => (await rig.node('amber')).rtt_ms > 0 || (await rig.node('amber')).beat.number > 3, 'beats');
    const well = await rig.node('amber');
    assert.deepEqual([well.process.verdict, well.engine.verdict, well.network.verdict], ['ok', 'ok', 'ok']);
    assert.equal(well.address, '127.0.0.1');
    rig.fake('amber').child.kill('SIGSTOP');
    await until(async () => (await rig.node('amber')).network.verdict === 'silent', 'silent');
    rig.fake('amber').child.kill('SIGKILL');
    await until(async () => (await rig.node('amber')).process.verdict === 'gone', 'gone');
    assert.equal((await rig.node('amber')).network.verdict, 'broken');
    await rig.close();
});
for (const [beats, state] of [[2, 'ready'], [8, 'suspect'], [25, 'down'], ...(fullLength ? [[300, 'down']] : [])]) {
    await test(`a node that is away for ${beats} beats is ${state}, and back within a beat or two`, async () => {
        const rig = await Rig.open([], [['amber', '--decode', '30']]);
        const running = state === 'ready' ? ask(rig.url, body({ max_tokens: 30 })) : null;
        if (running) await until(async () => (await rig.node('amber')).running === 1, 'it runs');
        const child = rig.fake('amber').child, end = Date.now() + beats * 100 * stretch;
        child.kill('SIGSTOP');
        await until(async () => Date.now() > end || (state !== 'ready' && !fullLength && (await rig.node('amber')).state === state), 'the pause');
        assert.equal((await rig.node('amber')).state, state);
        child.kill('SIGCONT');
        await until(async () => (await rig.node('amber')).state === 'ready', 'back', 1500);
        if (running) assert.equal((await running).json.usage.completion_tokens, 30, 'nothing is lost');
        assert.equal((await ask(rig.url, body({ max_tokens: 2 }))).status, 200);
        await rig.close();
    });
}

// ---------------------------------------------------------------- routing
await test('a decision is explained: each node with its terms, or why it was left out', async () => {
    const rig = await Rig.open([], [['fast', '--decode', '200'], ['slow', '--decode', '50'], ['other', '--model', 'other-model'], ['gone', '--decode', '900']]);
    await fetch(`${rig.url}/admin/nodes/gone/drain`, { method: 'POST' });
    const r = await ask(rig.url, body({ max_tokens: 4 }), { 'x-request-id': 'who-got-it' });
    assert.equal(r.node, 'fast');
    const { decisions } = await explain(rig, 'who-got-it');
    assert.equal(decisions.length, 1);
    const [d] = decisions, of = (name) => d.nodes.find((n) => n.node === name);
    assert.deepEqual([d.request, d.chosen, d.attempt, d.nodes[0].node], ['who-got-it', 'fast', 1, 'fast']);
    for (const key of ['wait_s', 'prefill_s', 'decode_s', 'round_trip_s', 'path_s', 'total_s', 'prompt_tokens', 'held_tokens', 'output_tokens',
        'prefill_tok_per_s', 'decode_tok_per_s', 'occupancy', 'in_flight', 'places']) assert.equal(typeof of('fast')[key], 'number', key);
    assert.ok(of('fast').total_s < of('slow').total_s);
    const sum = ['wait_s', 'prefill_s', 'decode_s', 'round_trip_s', 'path_s'].reduce((s, k) => s + of('slow')[k], 0);
    assert.ok(Math.abs(sum - of('slow').total_s) < 1e-3 * sum);
    assert.equal(of('gone').left_out, 'draining');
    assert.equal(of('other'), undefined);
    assert.equal((await fetch(`${rig.url}/status?explain=unknown`)).status, 404);
    await rig.close();
});
await test('an alias is served, listed and shown; a wrong one ends the start', async () => {
    const rig = await Rig.open(['--alias', 'gpt-4o=fake-model', '--alias', 'ghost=none'], [['amber']]);
    assert.equal((await ask(rig.url, body({ model: 'gpt-4o', max_tokens: 2 }))).node, 'amber');
    assert.equal((await ask(rig.url, body({ model: 'ghost' }))).status, 404);
    const ids = (await (await fetch(rig.url + '/v1/models')).json()).data.map((m) => m.id);
    assert.deepEqual(ids.sort(), ['fake-model', 'gpt-4o']);
    assert.equal((await (await fetch(rig.url + '/v1/models/gpt-4o')).json()).id, 'gpt-4o');
    await assert.rejects(startCoordinator(['--alias', 'nonsense']), /alias: 'nonsense' is not ALIAS=MODEL/);
    await rig.close();
});
await test('a conversation goes on where its beginning is confirmed to be held, also on the slower node', async () => {
    const rig = await Rig.open([], [['fast', '--cache', 'yes', '--prefill', '300', '--decode', '1000'], ['slow', '--cache', 'yes', '--prefill', '260', '--decode', '900']]);
    const turn = (n, who) => body({ max_tokens: 2, messages: Array.from({ length: n }, (_, i) => ({ role: i % 2 ? 'assistant' : 'user', content: `${who}${i} `.repeat(60) })) });
    const first = await ask(rig.url, turn(1, 'a'));
    assert.equal(first.node, 'fast');
    await fetch(`${rig.url}/admin/nodes/fast/drain`, { method: 'POST' });
    assert.equal((await ask(rig.url, turn(1, 'b'))).node, 'slow');
    await fetch(`${rig.url}/admin/nodes/fast/resume`, { method: 'POST' });
    await until(async () => (await rig.node('fast')).state === 'ready', 'back');
    const again = await ask(rig.url, turn(3, 'b'), { 'x-request-id': 'turn-3' });
    const [d] = (await explain(rig, 'turn-3')).decisions;
    assert.equal(again.node, 'slow', JSON.stringify(d));
    assert.ok(again.json.usage.prompt_tokens_details.cached_tokens > 0);
    assert.ok(d.nodes.find((n) => n.node === 'slow').held_tokens > 0);
    assert.equal(d.nodes.find((n) => n.node === 'fast').held_tokens, 0);
    await rig.close();
});
await test('a node that lies about what it holds is believed once', async () => {
    const rig = await Rig.open([], [['liar', '--fault', 'lie', '--prefill', '3000'], ['honest', '--prefill', '2500', '--cache', 'yes']]);
    await fetch(`${rig.url}/admin/nodes/honest/drain`, { method: 'POST' });
    assert.equal((await ask(rig.url, wordy('one', { max_tokens: 2 }), { 'x-request-id': 'a' })).node, 'liar');
    await ask(rig.url, wordy('one', { max_tokens: 2 }), { 'x-request-id': 'b' });
    const [d] = (await explain(rig, 'b')).decisions;
    assert.ok(d.nodes[0].held_tokens > 0, 'it was believed');
    await rig.close();
});
await test('all prompts share a system message: no node gets more than its share for that', async () => {
    const rig = await Rig.open([], ['a', 'b', 'c'].map((name) => [name, '--slots', '1', '--cache', 'yes', '--prefill', '20000', '--decode', '200']));
    const replies = await Promise.all(Array.from({ length: 60 }, (_, i) => ask(rig.url, wordy(`question ${i}`, { max_tokens: 20 }))));
    const share = count(replies);
    assert.ok(Math.max(...Object.values(share)) <= 1.3 * 20, JSON.stringify(share));
    await rig.close();
});
await test('a node that joins under load is neither flooded nor left out', async () => {
    const rig = await Rig.open([], [['a', '--slots', '2', '--decode', '150'], ['b', '--slots', '2', '--decode', '150']]);
    let over = false;
    const replies = [];
    const clients = Array.from({ length: 9 }, async () => { while (!over) replies.push({ ...(await ask(rig.url, wordy('x', { max_tokens: 15 }))), at: Date.now() }); });
    await until(() => replies.length > 30, 'load');
    await rig.add('new', '--slots', '2', '--decode', '150');
    const joined = Date.now();
    await until(() => replies.filter((r) => r.at > joined).length > 120, 'more load');
    over = true;
    await Promise.all(clients);
    const share = count(replies.filter((r) => r.at > joined + 300 * stretch)), all = Object.values(share).reduce((x, y) => x + y, 0);
    assert.ok(share.new > 0.6 * all / 3 && Math.max(...Object.values(share)) <= 1.3 * all / 3, JSON.stringify(share));
    await rig.close();
});

// ---------------------------------------------------------------- deadlines
await test('a deadline that cannot be met is refused early, with the times; one that can is kept', async () => {
    const rig = await Rig.open([], [['amber', '--slots', '1', '--decode', '50']]);
    const asked = (ms, more) => ask(rig.url, body({ max_tokens: 50, ...more }), { 'x-siliceo-deadline-ms': typeof ms === 'number' ? `${ms * stretch}` : ms });
    const hopeless = await asked(300);
    assert.equal(hopeless.status, 504);
    assert.equal(hopeless.json.error.code, 'deadline_unreachable');
    assert.match(hopeless.json.error.message, /even a short answer would take about \d+\.\d s on an idle node/);
    const kept = asked(60000, { max_tokens: 200 });
    await until(async () => (await rig.node('amber')).running === 1, 'it runs');
    const queued = await asked(1600);
    assert.equal(queued.status, 429, queued.text);
    assert.ok(Number(queued.headers.get('retry-after')) >= 1);
    assert.match(queued.json.error.message, /waiting/);
    assert.equal((await kept).status, 200);
    const bad = await asked('soon');
    assert.deepEqual([bad.status, bad.json.error.message.includes('X-Siliceo-Deadline-Ms')], [400, true]);
    const library = await ask(rig.url, body({ max_tokens: 500 }), { 'x-stainless-read-timeout': `${2 * stretch}` });
    assert.equal(library.status, 504);
    const stream = await ask(rig.url, body({ max_tokens: 20, stream: true }), { 'x-stainless-read-timeout': `${2 * stretch}` });
    assert.equal(events(stream.text).at(-1), '[DONE]');
    await rig.idle();
    await rig.close();
});
await test('a deadline that passes while it runs ends the request and blames no node', async () => {
    const rig = await Rig.open(['--node-breaker-failures', '1'], [['amber', '--slots', '1', '--decode', '200']]);
    for (let i = 0; i < 5; i++) await ask(rig.url, body({ max_tokens: 100 }));
    rig.fake('amber').child.kill('SIGSTOP');
    const r = ask(rig.url, body({ max_tokens: 10 }), { 'x-siliceo-deadline-ms': `${700 * stretch}` });
    assert.equal((await r).status, 504);
    assert.equal((await r).json.error.code, 'deadline_exceeded');
    rig.fake('amber').child.kill('SIGCONT');
    await until(async () => (await rig.node('amber')).state === 'ready', 'not quarantined');
    await rig.idle();
    await rig.close();
});

// ---------------------------------------------------------------- drains
await test('a drain has an end: what still runs then goes on elsewhere, or ends with an error event', async () => {
    for (const other of [true, false]) {
        const rig = await Rig.open(['--drain-s', '0.5', '--limit-cancel-s', '0.2'], [['amber', '--decode', '20'], ...(other ? [['basalt', '--decode', '15']] : [])]);
        const o = open(rig, body({ stream: true, max_tokens: 30 }));
        await until(() => o.text.includes('t2 '), 'tokens');
        await fetch(`${rig.url}/admin/nodes/amber/drain`, { method: 'POST' });
        await until(() => o.text.includes('[DONE]') || o.text.includes('"error"'), 'the end', 10000);
        const list = streamed(o);
        if (other) assert.equal(content(list), Array.from({ length: 30 }, (_, i) => `t${i} `).join(''));
        else assert.match(list.at(-1).error.message, /drain/);
        o.socket.destroy();
        await rig.idle();
        await rig.close();
    }
});
await test('a real worker told to stop finishes its stream, takes no new work, and ends with 0', async () => {
    const rig = await Rig.open([]);
    const worker = await startWorker(rig.coordinator.mesh, 'amber');
    await until(async () => (await rig.node('amber'))?.state === 'ready', 'ready');
    const model = (await (await fetch(rig.url + '/v1/models')).json()).data[0].id;
    const o = open(rig, { model, messages: [{ role: 'user', content: 'Count from 1 to 40.' }], stream: true, max_tokens: 400, temperature: 0 });
    await until(() => o.text.includes('"content"'), 'tokens');
    worker.child.kill('SIGTERM');
    await until(() => o.text.includes('[DONE]') || o.text.includes('"error"'), 'the end');
    assert.equal(streamed(o).at(-1), '[DONE]');
    assert.equal((await worker.exited).code, 0);
    assert.ok([404, 503].includes((await ask(rig.url, { model, messages: [{ role: 'user', content: 'x' }] })).status));
    o.socket.destroy();
    await rig.close();
});

// ---------------------------------------------------------------- two coordinators
await test('two coordinators share a worker; killing one loses only its own streams', async () => {
    const [a, b] = [await Rig.open([]), await Rig.open([])];
    const worker = await startWorker(a.coordinator.mesh, 'amber', ['--coordinator', b.coordinator.mesh, '--sequences', '4', '--ctx', '2048']);
    for (const rig of [a, b]) await until(async () => (await rig.node('amber'))?.state === 'ready', 'ready');
    const model = (await (await fetch(a.url + '/v1/models')).json()).data[0].id;
    const request = { model, messages: [{ role: 'user', content: 'Count from 1 to 60.' }], stream: true, temperature: 0, max_tokens: 300 };
    const alone = events((await ask(b.url, request)).text);
    const [mine, other] = [open(a, request), open(b, request)];
    await until(() => mine.text.includes('"content"') && other.text.includes('"content"'), 'both stream');
    a.coordinator.child.kill('SIGKILL');
    await until(() => other.text.includes('[DONE]'), 'the other ends well');
    assert.equal(content(streamed(other)), content(alone));
    await until(() => mine.closed, 'the first is cut');
    const retried = events((await ask(b.url, request)).text);
    assert.equal(content(retried), content(alone));
    // The dead one's share is lent: the other may have all of it.
    await until(async () => (await b.node('amber')).beat.credit >= 4, 'the whole credit', 20000);
    mine.socket.destroy();
    other.socket.destroy();
    await b.idle();
    await stop(worker);
    await b.close();
});
await test("a worker's own durations are settings: a silent coordinator is left, an idle one's share is lent", async () => {
    const [a, b] = [await Rig.open([]), await Rig.open([])];
    const worker = await startWorker(a.coordinator.mesh, 'amber', ['--coordinator', b.coordinator.mesh, '--sequences', '4', '--queue', '0', '--ctx', '2048',
        '--mesh-idle-s', '0.3', '--mesh-heartbeat-s', '0.05', '--mesh-heartbeat-timeout-s', '0.3']);
    for (const rig of [a, b]) await until(async () => (await rig.node('amber'))?.state === 'ready', 'ready');
    const model = (await (await fetch(a.url + '/v1/models')).json()).data[0].id;
    const brief = { model, messages: [{ role: 'user', content: 'x' }], max_tokens: 1 };
    const credit = async (rig) => (await rig.node('amber')).beat.credit;
    // Both work: each has its half.  Then one of them does nothing.
    let both = true;
    const work = [a, b].map(async (rig) => { while (both) await ask(rig.url, brief); });
    await until(async () => await credit(a) === 2 && await credit(b) === 2, 'halves', 20000);
    both = false;
    await Promise.all(work);
    let over = false;
    const one = (async () => { while (!over) await ask(a.url, brief); })();
    await until(async () => await credit(a) > 2, 'the idle one lends', 5000); // 10 s unless it is set
    over = true;
    await one;
    b.coordinator.child.kill('SIGSTOP');
    await until(() => worker.log.includes('coordinator-disconnected'), 'the silent one is left', 4000); // 5 s unless it is set
    b.coordinator.child.kill('SIGCONT');
    await until(async () => (await b.node('amber'))?.state === 'ready', 'back', 10000);
    await stop(worker);
    for (const rig of [a, b]) await rig.close();
});
finish();
