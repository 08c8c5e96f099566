// test_tenants.mjs - API keys, their limits, turns between them, two priorities: rows 17, 18, 19 and 21.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { finish, program, test, until } from '../clients/fleet.mjs';
import { ask, body, content, events, open, Rig } from './rig.mjs';

const folder = mkdtempSync(`${tmpdir()}/siliceo-tenants-`);
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
const file = `${folder}/keys`;

// A key and its line of the file, by the program itself.
function keygen(name, ...options) {
    const r = spawnSync(program('siliceo-coordinator'), ['keygen', '--api', name, ...options], { encoding: 'utf8' });
    assert.equal(r.status, 0, r.stderr);
    return { name, line: r.stdout, key: r.stderr.trim().split('\n').at(-1), headers: { authorization: `Bearer ${r.stderr.trim().split('\n').at(-1)}` } };
}
// The rig with a key for its own questions to /status.
class KeyRig extends Rig {
    static async start(admin, args, fakes) {
        const before = globalThis.fetch;
        globalThis.fetch = (url, options = {}) => before(url, { ...options, headers: { ...admin.headers, ...options.headers } });
        return Rig.open(['--api-keys-file', file, ...args], fakes);
    }
}
const plain = globalThis.fetch; // without the admin's key
const status = async (url, path, headers = {}) => (await plain(url + path, { headers })).status;
const post = async (url, request, headers) => {
    const r = await plain(url + '/v1/chat/completions', { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify(request) });
    const text = await r.text();
    let json = null;
    try { json = JSON.parse(text); } catch { /* a stream */ }
    return { status: r.status, text, json, headers: r.headers };
};

const admin = keygen('root', 'admin=true'), alice = keygen('alice'), bob = keygen('bob'), night = keygen('night', 'priority=background');
const slow = keygen('slow', 'requests_per_min=3'), frugal = keygen('frugal', 'tokens_per_min=60'), narrow = keygen('narrow', 'concurrent=4', 'waiting=8');
const all = [admin, alice, bob, night, slow, frugal, narrow];
writeFileSync(file, '# who may ask\n\n' + all.map((k) => k.line).join(''));

{
    const rig = await KeyRig.start(admin, [], [['amber', '--decode', '200', '--slots', '8']]);
    await test('the file holds hashes, no keys', () => {
        const text = readFileSync(file, 'utf8');
        for (const k of all) assert.ok(k.key.length > 40 && !text.includes(k.key));
    });
    await test('without a key everything but health and the page is 401 with the error body', async () => {
        for (const path of ['/v1/models', '/status', '/metrics', '/v1/nonsense']) assert.equal(await status(rig.url, path), 401, path);
        assert.equal((await plain(rig.url + '/admin/nodes/amber/drain', { method: 'POST' })).status, 401);
        for (const path of ['/healthz', '/readyz']) assert.equal(await status(rig.url, path), 200, path);
        const r = await post(rig.url, body(), {});
        assert.equal(r.status, 401);
        assert.deepEqual([r.json.error.type, r.json.error.code], ['authentication_error', 'invalid_api_key']);
        assert.equal(r.headers.get('www-authenticate'), 'Bearer');
        assert.equal(r.headers.get('access-control-allow-origin'), '*');
    });
    await test('a wrong key, a key\'s hash, and one with a letter more are 401', async () => {
        for (const wrong of ['nonsense', alice.line.split(' ')[1].trim(), alice.key + 'A', alice.key.slice(0, -1), '']) {
            assert.equal((await post(rig.url, body(), { authorization: `Bearer ${wrong}` })).status, 401, wrong);
        }
        assert.equal((await post(rig.url, body(), { authorization: alice.key })).status, 401);
    });
    await test('a key works as a Bearer token and as x-api-key', async () => {
        assert.equal((await post(rig.url, body({ max_tokens: 2 }), alice.headers)).status, 200);
        assert.equal((await post(rig.url, body({ max_tokens: 2 }), { 'x-api-key': bob.key })).status, 200);
    });
    await test('a browser\'s preflight needs no key', async () => {
        const r = await plain(rig.url + '/v1/chat/completions', { method: 'OPTIONS', headers: { origin: 'http://a', 'access-control-request-headers': 'authorization, x-foo', 'access-control-request-method': 'POST' } });
        assert.equal(r.status, 204);
        assert.equal(r.headers.get('access-control-allow-headers'), 'authorization, x-foo');
    });
    await test('a key sees its own running requests in /status, an admin\'s all', async () => {
        const running = [alice, bob].map((who) => post(rig.url, body({ max_tokens: 100 }), who.headers));
        const seen = async (who) => (await (await plain(rig.url + '/status', { headers: who.headers })).json()).running_requests.map((r) => r.key).sort();
        await until(async () => (await seen(admin)).length === 2, 'both run');
        assert.deepEqual(await seen(alice), ['alice']);
        await Promise.all(running);
    });
    await test('only an admin\'s key may drain a node', async () => {
        const drain = (headers) => plain(rig.url + '/admin/nodes/amber/resume', { method: 'POST', headers });
        assert.equal((await drain(alice.headers)).status, 403);
        assert.equal((await drain(admin.headers)).status, 200);
    });
    await test('over requests_per_min is 429 with a Retry-After that is true', async () => {
        const replies = [];
        for (let i = 0; i < 4; i++) replies.push(await post(rig.url, body({ max_tokens: 1 }), slow.headers));
        assert.deepEqual(replies.map((r) => r.status), [200, 200, 200, 429]);
        const last = replies[3];
        assert.equal(last.json.error.code, 'rate_limit_exceeded');
        assert.equal(last.json.error.type, 'rate_limit_error');
        const wait = Number(last.headers.get('retry-after'));
        assert.ok(wait >= 15 && wait <= 21, `${wait}`); // one of three a minute comes back in 20 s
        assert.equal((await post(rig.url, body({ max_tokens: 1 }), alice.headers)).status, 200);
    });
    await test('over tokens_per_min the next request is 429', async () => {
        assert.equal((await post(rig.url, body({ max_tokens: 50 }), frugal.headers)).status, 200);
        const r = await post(rig.url, body({ max_tokens: 1 }), frugal.headers);
        assert.equal(r.status, 429);
        assert.match(r.json.error.message, /tokens_per_min/);
        assert.ok(Number(r.headers.get('retry-after')) >= 1);
    });
    await test('SIGHUP reads the file again: a new key works, a removed one does not, streams go on', async () => {
        const carol = keygen('carol');
        let done = false;
        const running = post(rig.url, body({ stream: true, max_tokens: 1000 }), bob.headers).then((r) => { done = true; return r; });
        await until(async () => (await rig.node('amber')).running === 1, 'it runs');
        writeFileSync(file, all.filter((k) => k !== bob).map((k) => k.line).join('') + carol.line);
        rig.coordinator.child.kill('SIGHUP');
        await until(async () => (await post(rig.url, body({ max_tokens: 1 }), carol.headers)).status === 200, 'carol may ask');
        assert.equal((await post(rig.url, body(), bob.headers)).status, 401);
        assert.equal(done, false);
        const r = await running;
        assert.equal(events(r.text).at(-1), '[DONE]');
        assert.equal((await post(rig.url, body({ max_tokens: 1 }), slow.headers)).status, 429, 'what was used stays used');
    });
    await test('a broken file at SIGHUP is said, by line, and changes nothing', async () => {
        const good = readFileSync(file);
        writeFileSync(file, `alice ${alice.key}\n`);
        rig.coordinator.child.kill('SIGHUP');
        await until(() => /reload-failed what=keys error=".*keys:1: alice: the hash is not 64 hex digits"/.test(rig.log), 'said');
        assert.equal((await post(rig.url, body({ max_tokens: 1 }), alice.headers)).status, 200);
        writeFileSync(file, good);
    });
    await test('no key and no hash stands in the log', () => {
        for (const k of all) assert.ok(!rig.log.includes(k.key) && !rig.log.includes(k.line.split(' ')[1].trim()), k.name);
    });
    await rig.idle();
    await rig.close();
    writeFileSync(file, all.map((k) => k.line).join(''));
}

await test('a key with 4 running and 8 waiting: of 20 at once 12 are served, 8 get 429 at once', async () => {
    const rig = await KeyRig.start(admin, [], [['amber', '--decode', '20', '--slots', '16']]);
    const begun = Date.now();
    let over = false, most = 0;
    const watch = (async () => { while (!over) most = Math.max(most, (await rig.node('amber')).running); })();
    const replies = await Promise.all(Array.from({ length: 20 }, () => post(rig.url, body({ max_tokens: 20 }), narrow.headers)
        .then((r) => ({ ...r, ms: Date.now() - begun }))));
    over = true;
    await watch;
    const refused = replies.filter((r) => r.status === 429), soonest = Math.min(...replies.filter((r) => r.status === 200).map((r) => r.ms));
    assert.equal(replies.filter((r) => r.status === 200).length, 12);
    assert.equal(refused.length, 8);
    for (const r of refused) {
        assert.ok(r.ms < soonest, `${r.ms} ms, the first answer after ${soonest}`); // nobody waits to be refused
        assert.equal(r.json.error.code, 'key_limit');
        assert.ok(Number(r.headers.get('retry-after')) >= 1);
    }
    assert.equal(most, 4); // of the 16 that the node has
    await rig.idle();
    await rig.close();
});

await test('4 places and a queue of 8: of 20 at once 12 are served, 8 get 429 queue_full', async () => {
    const rig = await KeyRig.start(admin, ['--queue-max-waiting', '8'], [['amber', '--decode', '40', '--slots', '4']]);
    const replies = await Promise.all(Array.from({ length: 20 }, () => post(rig.url, body({ max_tokens: 20 }), alice.headers)));
    assert.equal(replies.filter((r) => r.status === 200).length, 12);
    const refused = replies.filter((r) => r.status === 429);
    assert.equal(refused.length, 8);
    for (const r of refused) assert.equal(r.json.error.code, 'queue_full');
    await rig.close();
});

await test('alice queues 20, then bob sends 1: he begins after at most one more of hers', async () => {
    const rig = await KeyRig.start(admin, [], [['amber', '--decode', '40', '--slots', '1']]);
    const order = [];
    const one = (who, n = 4) => post(rig.url, body({ max_tokens: n }), who.headers).then(() => order.push(who.name));
    const hers = [one(alice, 120)]; // runs until all the others are there
    await until(async () => (await rig.node('amber')).running === 1, 'it runs');
    for (let i = 0; i < 20; i++) hers.push(one(alice));
    await until(async () => (await rig.status()).queue.waiting === 20, '20 wait');
    const his = one(bob);
    await his;
    assert.ok(order.indexOf('bob') <= 2, order.join(' ')); // the one that runs, and one more
    await Promise.all(hers);
    await rig.close();
});

await test('what its client has given up does not count against a key\'s turns', async () => {
    const rig = await KeyRig.start(admin, [], [['amber', '--decode', '40', '--slots', '1']]);
    const order = [];
    const one = (who, n = 4) => post(rig.url, body({ max_tokens: n }), who.headers).then(() => order.push(who.name));
    const first = one(alice, 20);
    await until(async () => (await rig.node('amber')).running === 1, 'it runs');
    const left = new AbortController();
    const given = Array.from({ length: 10 }, () => plain(rig.url + '/v1/chat/completions', { method: 'POST', signal: left.signal,
        headers: { 'content-type': 'application/json', ...alice.headers }, body: JSON.stringify(body()) }).catch(() => {}));
    await until(async () => (await rig.status()).queue.waiting === 10, '10 wait');
    const last = one(alice);
    await until(async () => (await rig.status()).queue.waiting === 11, '11 wait');
    left.abort();
    await Promise.all(given);
    await until(async () => (await rig.status()).queue.waiting === 1, 'one is left');
    const his = Array.from({ length: 5 }, () => one(bob));
    await Promise.all([first, last, ...his]);
    assert.ok(order.slice(0, 3).filter((n) => n === 'alice').length === 2, order.join(' '));
    await rig.close();
});

const background = {
    'the body': [body({ max_tokens: 4, priority: 'background' }), alice.headers],
    'the header': [body({ max_tokens: 4 }), { ...alice.headers, 'x-siliceo-priority': 'background' }],
    'the key': [body({ max_tokens: 4 }), night.headers],
    'a chat client\'s own chore': [body({ max_tokens: 4, messages: [{ role: 'user', content: '### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.' }] }), alice.headers],
};
for (const [by, [request, headers]] of Object.entries(background)) {
    await test(`background by ${by}: never ahead of interactive work that waits`, async () => {
        const rig = await KeyRig.start(admin, [], [['amber', '--decode', '40', '--slots', '1']]);
        const order = [];
        const first = post(rig.url, body({ max_tokens: 10 }), bob.headers);
        await until(async () => (await rig.node('amber')).running === 1, 'it runs');
        const chore = post(rig.url, request, headers).then((r) => { assert.equal(r.status, 200, r.text); order.push('chore'); });
        await until(async () => (await rig.status()).queue.waiting === 1, 'the chore waits');
        const chats = Array.from({ length: 3 }, () => post(rig.url, body({ max_tokens: 4 }), bob.headers).then(() => order.push('chat')));
        await Promise.all([first, chore, ...chats]);
        assert.equal(order.at(-1), 'chore', order.join(' '));
        await rig.close();
    });
}
await test('background work goes to the idle slow node, and leaves the fast one', async () => {
    const rig = await KeyRig.start(admin, [], [['fast', '--decode', '200', '--slots', '4'], ['slow', '--decode', '40', '--slots', '4']]);
    for (let i = 0; i < 3; i++) {
        const r = await post(rig.url, body({ max_tokens: 4, priority: 'background' }), alice.headers);
        assert.equal(r.headers.get('x-siliceo-node'), 'slow');
        assert.equal((await post(rig.url, body({ max_tokens: 4 }), alice.headers)).headers.get('x-siliceo-node'), 'fast');
    }
    await rig.close();
});
await test('busy nodes are 429 with the wait, no live node is 503', async () => {
    const rig = await KeyRig.start(admin, ['--queue-max-waiting', '0'], [['amber', '--decode', '20', '--slots', '1']]);
    for (let i = 0; i < 3; i++) await post(rig.url, body({ max_tokens: 20 }), alice.headers); // rates and lengths are learned
    const running = post(rig.url, body({ max_tokens: 100 }), alice.headers);
    await until(async () => (await rig.node('amber')).running === 1, 'it runs');
    const r = await post(rig.url, body(), bob.headers);
    assert.equal(r.status, 429);
    const wait = Number(r.headers.get('retry-after'));
    assert.ok(wait >= 1 && wait <= 20, `${wait}`); // 100 tokens at 20/s are 5 s
    assert.equal((await rig.node('amber')).state, 'ready');
    rig.fake('amber').child.kill('SIGKILL');
    await running;
    await until(async () => (await rig.node('amber')).state === 'down', 'down');
    const gone = await post(rig.url, body(), bob.headers);
    assert.equal(gone.status, 503);
    assert.ok(Number(gone.headers.get('retry-after')) >= 1);
    await rig.close();
});
await test('keygen refuses options and names that the file\'s reader would refuse', () => {
    for (const words of [['a b'], ['x', 'concurrent=-1'], ['x', 'nonsense=1'], ['x', 'admin=perhaps'], ['x', 'requests_per_min=inf']]) {
        assert.throws(() => execFileSync(program('siliceo-coordinator'), ['keygen', '--api', ...words], { stdio: 'pipe' }), /keygen/);
    }
});
await test('the example of the settings is one that check-config takes, with every key switched on', () => {
    const made = readFileSync('deploy/coordinator.conf', 'utf8').replace(/^#([a-z_]+ = )/gm, '$1')
        .replace(/^(keys_file|key_file|curve_\w+|tls_\w+) = .*$/gm, '').replace(/ key_file=\S+/g, '');
    writeFileSync(`${folder}/example.conf`, made);
    const r = spawnSync(program('siliceo-coordinator'), ['check-config', '--config', `${folder}/example.conf`], { encoding: 'utf8' });
    assert.equal(r.status, 0, r.stderr);
    assert.match(r.stdout, /max_waiting = 100000/);
});
finish();
