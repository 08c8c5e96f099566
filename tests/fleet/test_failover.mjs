// test_failover.mjs - a node is lost inside an answer: it goes on elsewhere, token for token, or says why not.
import assert from 'node:assert/strict';
import { finish, startFleet, startWorker, test } from '../clients/fleet.mjs';
import { ask, body, content, events, open, Rig, stop, streamed, until } from './rig.mjs';

const words = (n) => Array.from({ length: n }, (_, i) => `t${i} `).join('');
const last = (list) => list.filter((e) => e !== '[DONE]').find((e) => e.siliceo)?.siliceo;
const limits = ['--limit-between-tokens-s', '0.5', '--node-breaker-s', '60'];
const fast = ['--decode', '100'], slow = ['--decode', '50'];

// ---------------------------------------------------------------- fake nodes
for (const [fault, what] of [['die', 'dies'], ['gap', 'loses a token'], ['drop', 'falls silent'], ['fail', 'gives an error']]) {
    await test(`a node that ${what} inside a stream: another goes on, no token twice and none lost`, async () => {
        const rig = await Rig.open(limits, [['mortal', ...fast, '--fault', fault, '--fault-at', '5'], ['spare', ...slow]]);
        for (const stream of [true, false]) {
            const r = await ask(rig.url, body({ stream, max_tokens: 12, stream_options: stream ? { include_usage: true } : undefined }));
            assert.equal(r.status, 200, r.text);
            const list = stream ? events(r.text) : null, told = stream ? last(list) : r.json.siliceo;
            assert.equal(stream ? content(list) : r.json.choices[0].message.content, words(12));
            if (stream) assert.equal(list.at(-1), '[DONE]');
            const usage = stream ? list.at(-2).usage : r.json.usage;
            assert.equal(usage.completion_tokens, 12, 'max_tokens and usage count both halves');
            assert.equal(told.node, 'spare');
            if (stream) {
                assert.equal(told.resumed, 'exact');
                assert.equal(list.filter((e) => e.choices?.[0]?.delta.role).length, 1);
                assert.equal(list.filter((e) => e.choices?.[0]?.finish_reason).length, 1);
            }
        }
        const requests = (await rig.status()).requests;
        assert.ok(requests.resumed >= 1, JSON.stringify(requests));
        await rig.idle();
        await rig.close();
    });
}
await test('who lost a node and waits for a place hears of both when the last node goes', async () => {
    const rig = await Rig.open([], [['amber', ...fast, '--slots', '1'], ['basalt', ...slow, '--slots', '1']]);
    const running = async (n) => until(async () => (await rig.nodes()).filter((x) => x.running === 1).length === n, `${n} run`);
    const first = ask(rig.url, body({ stream: true, max_tokens: 4000 }));
    await running(1);
    const second = ask(rig.url, body({ stream: true, max_tokens: 4000 }));
    await running(2);
    await stop(rig.fake('amber'), 'SIGKILL');
    await until(async () => (await rig.status()).queue.waiting === 1, 'the first one waits');
    await stop(rig.fake('basalt'), 'SIGKILL');
    const ends = (await Promise.all([first, second])).map((r) => events(r.text).at(-1).error.message);
    for (const message of ends) assert.match(message, /lost|broke/);
    assert.match(ends.join(), /is ready now/);
    await rig.close();
});
await test('a whole reply that went on elsewhere says so in its header', async () => {
    const rig = await Rig.open(limits, [['mortal', ...fast, '--fault', 'drop', '--fault-at', '5'], ['spare', ...slow, '--numerics', 'other']]);
    const r = await ask(rig.url, body({ max_tokens: 9 }));
    assert.equal(r.json.choices[0].message.content, words(9));
    assert.equal(r.headers.get('x-siliceo-resumed'), 'approximate');
    assert.equal(r.json.siliceo.resumed, 'approximate');
    await rig.close();
});
await test('the same arithmetic is preferred; other arithmetic goes on marked as approximate', async () => {
    const rig = await Rig.open(limits, [['mortal', ...fast, '--fault', 'drop', '--fault-at', '5'], ['other', '--decode', '90', '--numerics', 'other'], ['same', '--decode', '5']]);
    const first = events((await ask(rig.url, body({ stream: true, max_tokens: 8 }))).text);
    assert.equal(content(first), words(8));
    assert.deepEqual([last(first).node, last(first).resumed], ['same', 'exact']);
    await stop(rig.fake('same'), 'SIGKILL');
    await until(async () => (await rig.node('same')).state !== 'ready', 'same is gone');
    await rig.close();
});
await test('other arithmetic is an error where the config says so', async () => {
    const rig = await Rig.open([...limits, '--failover-different-numerics', 'error'], [['mortal', ...fast, '--fault', 'drop', '--fault-at', '5'], ['other', ...slow, '--numerics', 'other']]);
    const list = events((await ask(rig.url, body({ stream: true, max_tokens: 8 }))).text);
    assert.ok(!list.includes('[DONE]'));
    assert.match(list.at(-1).error.message, /no other node serves the same file/);
    assert.equal(content(list.slice(0, -1)), words(5));
    await rig.idle();
    await rig.close();
});
await test('several choices cannot go on: an error event that says so, and no [DONE]', async () => {
    const rig = await Rig.open(limits, [['mortal', ...fast, '--fault', 'drop', '--fault-at', '5'], ['spare', ...slow]]);
    const list = events((await ask(rig.url, body({ stream: true, n: 2, max_tokens: 8 }))).text);
    assert.ok(!list.includes('[DONE]'));
    assert.match(list.at(-1).error.message, /several choices/);
    await rig.idle();
    await rig.close();
});
await test('an open tool call that no other node can go on with: an error event that says so, and no [DONE]', async () => {
    const rig = await Rig.open(limits, [['mortal', ...fast, '--fault', 'toolcall', '--fault-at', '5']]);
    const list = events((await ask(rig.url, body({ stream: true, max_tokens: 8 }))).text);
    assert.ok(!list.includes('[DONE]'), JSON.stringify(list.at(-1)));
    const call = list.flatMap((e) => e.choices?.[0]?.delta?.tool_calls ?? []);
    assert.deepEqual(call.map((c) => c.function), [{ name: 'f', arguments: '{"a":' }]);
    assert.match(list.at(-1).error.message, /no other node serves the same file/);
    await rig.idle();
    await rig.close();
});
await test('two nodes lost in one answer: the third finishes it', async () => {
    const rig = await Rig.open(limits, [['one', ...fast, '--fault', 'die', '--fault-at', '4'], ['two', '--decode', '80', '--fault', 'die', '--fault-at', '9'], ['three', ...slow]]);
    const list = events((await ask(rig.url, body({ stream: true, max_tokens: 14 }))).text);
    assert.equal(content(list), words(14));
    assert.deepEqual([last(list).node, last(list).attempts], ['three', 3]);
    await rig.idle();
    await rig.close();
});
await test('a frozen node that wakes later is told to stop, and what it still says is not believed', async () => {
    const rig = await Rig.open([...limits, '--node-down-s', '1', '--mesh-heartbeat-timeout-s', '60'], [['sleeper', '--decode', '40'], ['spare', '--decode', '20']]);
    const o = open(rig, body({ stream: true, max_tokens: 30 }));
    await until(() => o.text.includes('t3 '), 'tokens');
    rig.fake('sleeper').child.kill('SIGSTOP');
    await until(() => o.text.includes('t9 '), 'the spare goes on');
    rig.fake('sleeper').child.kill('SIGCONT');
    await until(() => o.text.includes('[DONE]'), 'the end');
    const list = streamed(o);
    assert.equal(content(list), words(30));
    await until(() => rig.fake('sleeper').events.some((e) => e.event === 'cancel'), 'it is told to stop');
    o.socket.destroy();
    await rig.idle();
    await rig.close();
});

await test('comments keep a stream alive while another node takes it over, and end when tokens flow', async () => {
    const rig = await Rig.open([...limits, '--http-keepalive-s', '0.2'], [['mortal', ...fast, '--fault', 'die', '--fault-at', '5'], ['spare', ...slow, '--prefill', '20']]);
    const r = await ask(rig.url, body({ stream: true, max_tokens: 10 }));
    assert.equal(content(events(r.text)), words(10));
    // How many of its five tokens the node got out before it died is open.
    const first = r.text.indexOf(': keepalive'), end = r.text.lastIndexOf(': keepalive'), pause = r.text.slice(first, end);
    assert.ok(r.text.slice(0, first).includes('"t0 "') && r.text.slice(end).includes('"t5 "'), r.text);
    assert.ok(pause.split(': keepalive').length > 2 && !pause.includes('data:'), r.text);
    await rig.close();
});
await test('what an answer has run does not count as waiting: it waits for a place as long as any other', async () => {
    const rig = await Rig.open([...limits, '--queue-max-wait-s', '2'], [['mortal', '--slots', '1', '--decode', '20', '--fault', 'die', '--fault-at', '50'], ['spare', '--slots', '1', '--decode', '12']]);
    const [first, second] = [ask(rig.url, body({ stream: true, max_tokens: 54 })), until(async () => (await rig.node('mortal')).running === 1, 'it runs').then(() => ask(rig.url, body({ max_tokens: 36 })))];
    assert.equal((await second).node, 'spare');
    const list = events((await first).text);
    assert.equal(content(list), words(54), JSON.stringify(list.at(-1)));
    await rig.close();
});

// ---------------------------------------------------------------- real workers
const said = (list) => list.filter((e) => e !== '[DONE]').map((e) => (e.choices?.[0]?.delta.reasoning_content ?? '') + (e.choices?.[0]?.delta.content ?? '')).join('');
const quickly = ['--node-suspect-s', '0.5', '--node-reconnect-s', '0.3', '--mesh-beat-s', '0.1'];
// A question that the demo model deliberates on until its limit: there is time to kill a worker.
const endless = { messages: [{ role: 'user', content: 'This sentence is false. Is it true?' }], chat_template_kwargs: { enable_thinking: true }, max_tokens: 600 };
const counting = { messages: [{ role: 'user', content: 'Count from 1 to 60.' }], max_tokens: 300 };

async function twoWorkers(first = [], second = []) {
    const fleet = await startFleet([['amber', '--sequences', '2', ...first], ['basalt', '--sequences', '2', ...second]], quickly);
    const url = new URL(fleet.url);
    const rig = { url: fleet.url, host: url.hostname, port: Number(url.port), workers: { amber: fleet.workers[0], basalt: fleet.workers[1] }, args: { amber: first, basalt: second } };
    rig.node = async (name) => (await (await fetch(fleet.url + '/status')).json()).nodes.find((n) => n.name === name);
    rig.model = (await (await fetch(fleet.url + '/v1/models')).json()).data[0].id;
    rig.stop = async () => { for (const w of Object.values(rig.workers)) await stop(w, 'SIGKILL'); await stop(fleet.coordinator); };
    rig.mesh = fleet.coordinator.mesh;
    return rig;
}
// Streams a request and kills the worker that runs it after its first tokens; again when the
// stream was faster than the kill.
async function broken(rig, request, signal = 'SIGKILL') {
    for (let tries = 0; tries < 5; tries++) {
        const o = open(rig, { model: rig.model, stream: true, stream_options: { include_usage: true }, ...request });
        let killed = '';
        o.socket.on('data', () => {
            if (killed || (o.text.match(/content":"[^"]/g) ?? []).length < 5) return;
            killed = /X-Siliceo-Node: (\w+)/i.exec(o.text)[1];
            rig.workers[killed].child.kill(signal);
        });
        await until(() => o.text.includes('[DONE]') || o.text.includes('"error"'), 'the end');
        o.socket.destroy();
        const list = streamed(o);
        if (list.at(-1) !== '[DONE]' || last(list).resumed) return { list, killed };
        await rig.workers[killed].exited;
        rig.workers[killed] = await startWorker(rig.mesh, killed, ['--sequences', '2', ...rig.args[killed]]);
        await until(async () => (await rig.node(killed)).state === 'ready', 'it is back');
    }
    throw new Error('no kill came in time');
}
for (const [kind, more] of [['greedy', { ...counting, temperature: 0 }], ['deliberating', { ...endless, temperature: 0 }], ['sampled', { ...endless, temperature: 0.9, top_p: 0.95, seed: 7 }]]) {
    await test(`two real workers, one killed inside a ${kind} stream: text and usage are those of an unbroken run`, async () => {
        const rig = await twoWorkers();
        const unbroken = events((await ask(rig.url, { model: rig.model, stream: true, stream_options: { include_usage: true }, ...more })).text);
        assert.equal(unbroken.at(-1), '[DONE]');
        const { list, killed } = await broken(rig, more);
        assert.equal(last(list).resumed, 'exact', JSON.stringify(list.at(-1)));
        assert.notEqual(last(list).node, killed);
        assert.equal(said(list), said(unbroken));
        assert.deepEqual(list.at(-2).usage, unbroken.at(-2).usage);
        await rig.stop();
    });
}
await test('a real worker that stops and whose time to drain is over: the stream goes on at the other', async () => {
    const now = ['--drain-limit-s', '0'], rig = await twoWorkers(now, now);
    const unbroken = events((await ask(rig.url, { model: rig.model, stream: true, temperature: 0, ...endless })).text);
    const { list, killed } = await broken(rig, { ...endless, temperature: 0 }, 'SIGTERM');
    assert.equal(last(list).resumed, 'exact');
    assert.equal(said(list), said(unbroken));
    assert.equal((await rig.workers[killed].exited).code, 0);
    await rig.stop();
});
await test('real workers with the same file and other arithmetic: it goes on, marked as approximate', async () => {
    const rig = await twoWorkers(['--kv', 'f32'], ['--kv', 'f16']);
    const { list } = await broken(rig, { ...counting, temperature: 0 });
    assert.equal(list.at(-1), '[DONE]');
    assert.equal(last(list).resumed, 'approximate');
    assert.match(said(list), /1 2 3 4 5 6 7 8 9 10 /);
    await rig.stop();
});
finish();
