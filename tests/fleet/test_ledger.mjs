// test_ledger.mjs - every request is a row, however it ended: row 16; SQLite, and a PostgreSQL server of the test's own.
import assert from 'node:assert/strict';
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { chmodSync, chownSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { finish, program, stop, test, until } from '../clients/fleet.mjs';
import { ask, body, open, Rig } from './rig.mjs';

const folder = mkdtempSync(`${tmpdir()}/siliceo-ledger-`);
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
const run = (...args) => spawnSync(program('siliceo-coordinator'), args, { encoding: 'utf8' });
const usage = (url, ...args) => {
    const r = run('usage', '--ledger-url', url, '--json', ...args);
    assert.equal(r.status, 0, r.stderr);
    return JSON.parse(r.stdout);
};
const by = (url, what, name) => usage(url, '--by', what).find((l) => l[what] === name);

// The same promises hold for both databases.
async function behaves(kind, url) {
    const rig = await Rig.open(['--ledger-url', url], [['amber', '--decode', '100', '--slots', '4'], ['mortal', '--model', 'mortal-model', '--fault', 'die', '--fault-at', '4'],
        ['bad', '--model', 'bad-model', '--fault', 'bad'], ['holder', '--model', 'cache-model', '--cache', 'yes', '--decode', '100']]);
    await test(`${kind}: a normal end is length with the prompt's and answer's tokens`, async () => {
        const r = await ask(rig.url, body({ max_tokens: 7 }));
        await until(() => by(url, 'ended', 'length')?.requests === 1, 'the row');
        const row = by(url, 'ended', 'length');
        assert.deepEqual([row.prompt_tokens, row.completion_tokens, row.failed], [r.json.usage.prompt_tokens, 7, 0]);
        assert.ok(row.mean_first_token_ms > 0 && row.mean_total_ms >= row.mean_first_token_ms);
    });
    await test(`${kind}: a stream that its client cuts counts the prompt and what was made, as client_closed`, async () => {
        const o = open(rig, body({ stream: true, max_tokens: 1000 }));
        await until(() => o.text.includes('"t29 "'), 'token 29');
        o.socket.destroy();
        await rig.idle();
        await until(() => by(url, 'ended', 'client_closed')?.requests === 1, 'the row');
        const row = by(url, 'ended', 'client_closed');
        assert.ok(row.prompt_tokens > 0);
        assert.ok(row.completion_tokens >= 30 && row.completion_tokens <= 100, `${row.completion_tokens}`);
        assert.equal(row.failed, 0);
    });
    await test(`${kind}: a node that dies in the middle leaves a failed row with its tokens`, async () => {
        const r = await ask(rig.url, body({ model: 'mortal-model', stream: true, max_tokens: 20 }));
        assert.match(r.text, /"error"/);
        await until(() => by(url, 'model', 'mortal-model')?.requests === 1, 'the row');
        const row = by(url, 'model', 'mortal-model');
        assert.equal(row.failed, 1);
        assert.ok(row.completion_tokens >= 3 && row.completion_tokens <= 5, `${row.completion_tokens}`);
        assert.equal(by(url, 'node', 'mortal').requests, 1);
    });
    await test(`${kind}: what was refused is there with its code and no tokens`, async () => {
        await ask(rig.url, body({ model: 'none' }));
        await ask(rig.url, body({ model: 'bad-model' }));
        await until(() => by(url, 'ended', 'model_not_found')?.requests === 1, 'the row');
        assert.equal(by(url, 'model', 'bad-model').failed, 1);
        assert.equal(by(url, 'ended', 'model_not_found').completion_tokens, 0);
    });
    await test(`${kind}: 200 requests at once are 200 rows, and sums by day are all of them`, async () => {
        await Promise.all(Array.from({ length: 200 }, () => ask(rig.url, body({ max_tokens: 1 }))));
        await until(() => usage(url, '--by', 'day').reduce((n, l) => n + l.requests, 0) === 205, '205 rows');
        assert.equal(by(url, 'key', 'open').requests, 205);
        assert.equal(usage(url, '--by', 'day')[0].day, new Date().toISOString().slice(0, 10));
        assert.deepEqual(usage(url, '--since', '2099-01-01'), []);
        assert.equal(usage(url, '--since', '1h')[0].requests, 205);
    });
    await test(`${kind}: 200 requests that end in every way at once are 200 rows`, async () => {
        const before = usage(url, '--by', 'day')[0].requests;
        await rig.add('broken', '--model', 'broken-model', '--fault', 'error');
        await Promise.all(Array.from({ length: 200 }, async (_, i) => {
            if (i % 5 === 4) { // leaves once its answer has begun
                const o = open(rig, body({ stream: true, max_tokens: 300 }));
                await until(() => o.text.includes('"t0 "') || o.closed, 'it began');
                o.socket.destroy();
            } else {
                await ask(rig.url, body({ stream: i % 2 === 0, max_tokens: 1 + i % 9, model: ['fake-model', 'bad-model', 'broken-model', 'none'][i % 5] }));
            }
        }));
        await rig.idle();
        await until(() => usage(url, '--by', 'day')[0].requests === before + 200, '200 rows');
        assert.equal(by(url, 'ended', 'client_closed').requests, 41);
        assert.equal((await rig.status()).ledger.lost, 0);
        assert.equal(await rig.metric('siliceo_ledger_rows_total{end="written"}'), before + 200);
        assert.equal(await rig.metric('siliceo_ledger_rows_waiting'), 0);
    });
    await test(`${kind}: of a cut stream it is known how much of the prompt was held already`, async () => {
        const turn = (n) => body({ model: 'cache-model', messages: Array.from({ length: n }, (_, i) => ({ role: i % 2 ? 'assistant' : 'user', content: `turn ${i} `.repeat(50) })) });
        await ask(rig.url, { ...turn(1), max_tokens: 1 });
        const o = open(rig, { ...turn(3), stream: true, max_tokens: 1000 });
        await until(() => o.text.includes('"t2 "'), 'token 2');
        o.socket.destroy();
        await rig.idle();
        await until(() => by(url, 'node', 'holder')?.requests === 2, 'the rows');
        const row = by(url, 'node', 'holder');
        assert.ok(row.cached_tokens > 50 && row.cached_tokens < row.prompt_tokens, JSON.stringify(row));
    });
    await test(`${kind}: the end of the coordinator loses no row`, async () => {
        await Promise.all(Array.from({ length: 50 }, () => ask(rig.url, body({ max_tokens: 1 }))));
        for (const fake of rig.fakes) await stop(fake, 'SIGKILL');
        assert.equal((await stop(rig.coordinator)).code, 0);
        assert.equal(by(url, 'key', 'open').requests, 457);
    });
}

const sqlite = `${folder}/ledger.sqlite`;
await behaves('SQLite', sqlite);
await test('usage prints a table for people and says what is wrong in one line', () => {
    const r = run('usage', '--ledger-url', sqlite, '--by', 'model');
    assert.match(r.stdout, /^model +requests +failed +prompt/);
    for (const [args, text] of [[['--by', 'moon'], /--by: 'moon'/], [['--since', 'yesterday'], /--since: 'yesterday'/], [['--ledger-url', `${folder}/none`], /none: /], [['--nonsense'], /nonsense/]]) {
        const wrong = run('usage', '--ledger-url', sqlite, ...args);
        assert.notEqual(wrong.status, 0);
        assert.match(wrong.stderr, text);
    }
    assert.match(run('usage').stderr, /ledger.url/);
});
await test('a schema of a later version is refused, nothing is written', () => {
    const later = `${folder}/later.sqlite`;
    // The version stands at byte 60 of SQLite's file header, big-endian.
    execFileSync('cp', [sqlite, later]);
    execFileSync('sh', ['-c', `printf '\\000\\000\\000\\143' | dd of=${later} bs=1 seek=60 conv=notrunc 2>/dev/null`]);
    const r = run('usage', '--ledger-url', later);
    assert.match(r.stderr, /version 99; this program knows up to 3/);
});
// Another process takes the write lock, as a backup would, until the result is called.
async function hold(path) {
    const holder = spawn('python3', ['-c', `import sqlite3,sys\nd=sqlite3.connect(sys.argv[1],isolation_level=None)\nd.execute('BEGIN IMMEDIATE')\nprint('held',flush=True)\nsys.stdin.read()\n`, path],
        { stdio: ['pipe', 'pipe', 'inherit'] });
    await new Promise((done) => holder.stdout.once('data', done));
    return () => holder.stdin.end();
}
await test('while the database takes nothing requests go on, and its rows are written afterwards', async () => {
    const locked = `${folder}/locked.sqlite`;
    const rig = await Rig.open(['--ledger-url', locked], [['amber', '--decode', '2000']]);
    const release = await hold(locked);
    for (let i = 0; i < 30; i++) assert.equal((await ask(rig.url, body({ max_tokens: 1 }))).status, 200);
    await until(() => /ledger-failing/.test(rig.log), 'the trouble is said', 10000);
    release();
    await until(() => /ledger-works again=true/.test(rig.log), 'it works again', 15000);
    await until(() => by(locked, 'key', 'open')?.requests === 30, 'all rows', 10000);
    await rig.close();
});
await test('where more rows wait than may, requests are refused with 503 rather than go unrecorded', async () => {
    const locked = `${folder}/bounded.sqlite`;
    const rig = await Rig.open(['--ledger-url', locked, '--ledger-max-waiting', '10'], [['amber', '--decode', '2000']]);
    const release = await hold(locked);
    let last;
    for (let i = 0; i < 30 && (last = await ask(rig.url, body({ max_tokens: 1 }))).status === 200; i++);
    assert.equal(last.status, 503);
    assert.equal(last.json.error.code, 'ledger_behind');
    release();
    await until(async () => (await ask(rig.url, body({ max_tokens: 1 }))).status === 200, 'it goes on', 15000);
    await rig.close();
});

// ---------------------------------------------------------------- PostgreSQL
const versions = existsSync('/usr/lib/postgresql') ? readdirSync('/usr/lib/postgresql').sort((a, b) => b - a) : [];
const bin = versions.length > 0 ? `/usr/lib/postgresql/${versions[0]}/bin` : null;
const uid = (name) => { const r = spawnSync('id', ['-u', name], { encoding: 'utf8' }); return r.status === 0 ? Number(r.stdout) : null; };
const mine = process.getuid();
const user = mine !== 0 ? mine : uid('postgres') ?? uid('nobody');
const built = spawnSync(program('siliceo-coordinator'), ['usage', '--ledger-url', 'postgresql:///none?host=/nowhere'], { encoding: 'utf8' }).stderr;

if (bin === null || !existsSync(`${bin}/initdb`) || /without libpq/.test(built)) {
    console.log(`skipped: the ledger in PostgreSQL (${/without libpq/.test(built) ? 'the program is built without libpq' : 'initdb is not installed'})`);
} else {
    const home = mkdtempSync(`${tmpdir()}/siliceo-pg-`), data = `${home}/data`;
    chmodSync(home, 0o755);
    mkdirSync(data);
    if (mine === 0) { chownSync(home, user, user); chownSync(data, user, user); }
    const as = { uid: user, gid: mine === 0 ? user : process.getgid(), env: { PATH: process.env.PATH, LC_ALL: 'C' }, cwd: '/' };
    const made = spawnSync(`${bin}/initdb`, ['-D', data, '-U', 'siliceo', '-A', 'trust', '-N'], { ...as, encoding: 'utf8' });
    assert.equal(made.status, 0, made.stderr);
    let server;
    const startServer = async () => {
        server = spawn(`${bin}/postgres`, ['-D', data, '-k', home, '-c', 'listen_addresses=', '-c', 'fsync=off', '-c', 'max_connections=20', '-c', 'shared_buffers=16MB'], { ...as, stdio: ['ignore', 'ignore', 'pipe'] });
        let log = '';
        server.stderr.on('data', (d) => { log += d; });
        server.exited = new Promise((done) => server.on('exit', done));
        await until(() => /ready to accept connections/.test(log), 'PostgreSQL is ready', 30000);
    };
    const stopServer = async () => { server.kill('SIGINT'); await server.exited; };
    process.on('exit', () => { server?.kill('SIGQUIT'); rmSync(home, { recursive: true, force: true }); });
    await startServer();
    const sql = (database, text) => execFileSync(`${bin}/psql`, ['-h', home, '-U', 'siliceo', '-At', '-d', database, '-c', text], { encoding: 'utf8' }).trim();
    const url = (database) => { sql('postgres', `CREATE DATABASE ${database}`); return `postgresql://siliceo@/${database}?host=${home}`; };

    await behaves('PostgreSQL', url('one'));
    await test('PostgreSQL: two coordinators write into one ledger', async () => {
        const shared = url('two');
        const rigs = await Promise.all([0, 1].map(() => Rig.open(['--ledger-url', shared], [['amber', '--decode', '1000']])));
        await Promise.all(rigs.flatMap((rig) => Array.from({ length: 20 }, () => ask(rig.url, body({ max_tokens: 2 })))));
        await until(() => by(shared, 'key', 'open')?.requests === 40, '40 rows');
        assert.equal(sql('two', 'SELECT COUNT(DISTINCT instance) FROM requests'), '2');
        assert.equal(by(shared, 'key', 'open').completion_tokens, 80);
        for (const rig of rigs) await rig.close();
    });
    await test('PostgreSQL: keys, their removal and their rates hold over both coordinators', async () => {
        const shared = url('keys');
        const make = (...words) => {
            const r = run('keygen', '--store', shared, ...words);
            assert.equal(r.status, 0, r.stderr);
            return { authorization: `Bearer ${r.stderr.trim().split('\n').at(-1)}` };
        };
        const root = make('root', 'admin=true'), alice = make('alice', 'requests_per_min=10'), before = globalThis.fetch;
        globalThis.fetch = (at, options = {}) => before(at, { ...options, headers: { ...root, ...options.headers } });
        const rigs = await Promise.all([0, 1].map(() => Rig.open(['--ledger-url', shared, '--api-shared', '--api-share-s', '0.1'], [['amber', '--decode', '1000']])));
        const one = async (rig, headers) => (await ask(rig.url, body({ max_tokens: 1 }), headers)).status;
        for (const rig of rigs) assert.equal(await one(rig, { authorization: 'Bearer nonsense' }), 401);
        for (const rig of rigs) assert.equal(await one(rig, alice), 200);
        await until(async () => sql('keys', "SELECT COUNT(*) FROM api_use WHERE name = 'alice' AND requests > 0") === '2', 'each told its use');
        for (let i = 0; i < 8; i++) assert.equal(await one(rigs[0], alice), 200);
        // Nine at the one and one at the other are ten: the other refuses, too, once it has heard.
        await until(async () => await one(rigs[1], alice) === 429, 'the other coordinator refuses', 5000);
        const bob = make('bob');
        for (const rig of rigs) await until(async () => await one(rig, bob) === 200, 'bob may ask', 5000);
        assert.equal(run('keygen', '--revoke', shared, 'bob').status, 0);
        assert.match(run('keygen', '--revoke', shared, 'bob').stderr, /no key 'bob'/);
        for (const rig of rigs) await until(async () => await one(rig, bob) === 401, 'bob may not', 5000);
        for (const rig of rigs) await rig.close();
        globalThis.fetch = before;
        assert.ok(!/sk-siliceo/.test(sql('keys', 'SELECT * FROM api_keys')));
    });
    await test('PostgreSQL: a restart of the server loses no row', async () => {
        const here = url('three');
        const rig = await Rig.open(['--ledger-url', here], [['amber', '--decode', '1000']]);
        await ask(rig.url, body({ max_tokens: 1 }));
        await until(() => by(here, 'key', 'open')?.requests === 1, 'the first row');
        await stopServer();
        for (let i = 0; i < 10; i++) assert.equal((await ask(rig.url, body({ max_tokens: 1 }))).status, 200);
        await until(() => /ledger-failing/.test(rig.log), 'the trouble is said', 10000);
        await startServer();
        await until(() => /ledger-works again=true/.test(rig.log), 'it works again', 20000);
        await until(() => by(here, 'key', 'open')?.requests === 11, 'all rows', 10000);
        await rig.close();
    });
    await test('PostgreSQL: a schema of a later version is refused, an older one is brought up to date', async () => {
        const here = url('four');
        const rig = await Rig.open(['--ledger-url', here], [['amber', '--decode', '1000']]);
        await ask(rig.url, body({ max_tokens: 1 }));
        await rig.close();
        sql('four', 'DROP TABLE api_keys; DROP TABLE api_use; DELETE FROM siliceo_schema WHERE version > 1');
        const again = await Rig.open(['--ledger-url', here], []);
        await again.close();
        assert.equal(sql('four', 'SELECT MAX(version) FROM siliceo_schema'), '3');
        assert.equal(by(here, 'key', 'open').requests, 1);
        sql('four', 'INSERT INTO siliceo_schema VALUES(99)');
        assert.match(run('serve', '--http', '127.0.0.1:0', '--mesh', 'tcp://127.0.0.1:0', '--ledger-url', here).stderr, /version 99; this program knows up to 3/);
    });
    await test('a password in the url is not printed', () => {
        const secret = 'postgresql://siliceo:hunter2@/five?host=/nowhere';
        const r = run('check-config', '--ledger-url', secret);
        assert.equal(r.status, 0, r.stderr);
        assert.ok(!r.stdout.includes('hunter2'));
        assert.ok(!run('usage', '--ledger-url', secret).stderr.includes('hunter2'));
    });
    await stopServer();
}
finish();
