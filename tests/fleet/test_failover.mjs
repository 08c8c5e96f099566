// test_failover.mjs - a node is lost inside an answer: it goes on elsewhere, token for token, or says why not.
import assert from 'node:assert/strict';
import { finish, startFleet, test } from '../clients/fleet.mjs';
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
await test('an open tool call cannot go on: an error event that says so, and no [DONE]', async () => {
    const rig = await Rig.open(limits, [['mortal', ...fast, '--fault', 'toolcall', '--fault-at', '5'], ['spare', ...slow]]);
    const list = events((await ask(rig.url, body({ stream: true, max_tokens: 8 }))).text);
    assert.ok(!list.includes('[DONE]'), JSON.stringify(list.at(-1)));
    assert.match(list.at(-1).error.message, /tool call|not asked for/);
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
    const rig = await Rig.open([...limits, '--node-down-s', '1'], [['sleeper', '--decode', '40'], ['spare', '--decode', '20']]);
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

// ---------------------------------------------------------------- real workers
const prompt = [{ role: 'user', content: 'Count from 1 to 40.' }];
const victimArgs = ['--sequences', '2'];
for (const [kind, more] of [['greedy', { temperature: 0 }], ['sampled with a seed', { temperature: 0.9, seed: 7 }]]) {
    await test(`two real workers, one killed inside a ${kind} stream: the text is that of an unbroken run`, async () => {
        const fleet = await startFleet([['amber', ...victimArgs], ['basalt', ...victimArgs]], ['--node-suspect-s', '0.5', '--node-reconnect-s', '0.3', '--mesh-beat-s', '0.1']);
        const model = (await (await fetch(fleet.url + '/v1/models')).json()).data[0].id;
        const request = { model, messages: prompt, stream: true, max_tokens: 120, ignore_eos: true, ...more };
        const unbroken = events((await ask(fleet.url, request)).text);
        assert.equal(unbroken.at(-1), '[DONE]');
        const workers = { amber: fleet.workers[0], basalt: fleet.workers[1] };
        const url = new URL(fleet.url);
        const rig = { host: url.hostname, port: Number(url.port) };
        const o = open(rig, request);
        await until(() => (o.text.match(/"content"/g) ?? []).length >= 4, 'some tokens');
        const status = await (await fetch(fleet.url + '/status')).json();
        const runs = status.nodes.find((n) => n.running > 0);
        if (runs) workers[runs.name].child.kill('SIGKILL');
        await until(() => o.text.includes('[DONE]') || o.text.includes('"error"'), 'the end');
        const list = streamed(o);
        assert.ok(runs, 'it was killed while it ran');
        assert.equal(last(list).resumed, 'exact', JSON.stringify(last(list)));
        assert.notEqual(last(list).node, runs.name);
        assert.equal(content(list), content(unbroken));
        o.socket.destroy();
        for (const [name, w] of Object.entries(workers)) await stop(w, name === runs.name ? 'SIGKILL' : 'SIGTERM');
        await stop(fleet.coordinator);
    });
}
finish();
