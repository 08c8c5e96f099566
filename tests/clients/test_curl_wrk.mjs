// test_curl_wrk.mjs - curl and wrk, as people have them, through a coordinator with real or playing workers.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { finish, skip, startFleet, temporaryFolder, test } from './fleet.mjs';
import { Rig } from '../fleet/rig.mjs';
import { tool } from '../fleet/tools.mjs';

const run = promisify(execFile);
await test('curl reads a stream line by line, gets JSON, HEAD and a refusal with its status', async () => {
    const fleet = await startFleet([['amber']]);
    const body = JSON.stringify({ model: 'demo', temperature: 0, stream: true, messages: [{ role: 'user', content: 'Who wrote The Name of the Rose?' }] });
    const post = (...more) => run('curl', ['-sS', '-N', `${fleet.url}/v1/chat/completions`, '-H', 'Content-Type: application/json', ...more]);
    const { stdout } = await post('-d', body);
    const lines = stdout.trim().split('\n').filter((l) => l !== '');
    assert.equal(lines.at(-1), 'data: [DONE]');
    const said = lines.filter((l) => l.startsWith('data: {')).map((l) => JSON.parse(l.slice(6)).choices[0]?.delta?.content ?? '').join('');
    assert.match(said, /Umberto Eco/);
    assert.equal((await post('-d', '{', '-o', '/dev/null', '-w', '%{http_code}')).stdout, '400');
    assert.match((await run('curl', ['-sS', '-I', `${fleet.url}/healthz`])).stdout, /^HTTP\/1.1 200/);
    // A body that curl announces first, and one in chunks.
    assert.equal((await post('-H', 'Expect: 100-continue', '-d', body, '-o', '/dev/null', '-w', '%{http_code}')).stdout, '200');
    assert.equal((await post('-H', 'Transfer-Encoding: chunked', '-d', body, '-o', '/dev/null', '-w', '%{http_code}')).stdout, '200');
    await fleet.stop();
});
if (tool('wrk') === null) skip('wrk', 'there is no wrk');
else await test('wrk keeps 32 connections busy with posts and sees no error', async () => {
    const rig = await Rig.open(['--log-level', 'warn', '--queue-max-waiting', '1000'], [['amber', '--slots', '64', '--prefill', '1e12', '--decode', '1e6']]);
    const script = `${temporaryFolder()}/post.lua`;
    writeFileSync(script, 'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n' +
        'wrk.body = \'{"model":"fake-model","max_tokens":1,"messages":[{"role":"user","content":"hello"}]}\'\n');
    const { stdout } = await run(tool('wrk'), ['-t1', '-c32', '-d2s', '-s', script, `${rig.url}/v1/chat/completions`]);
    assert.ok(Number(/(\d+) requests in/.exec(stdout)[1]) > 100, stdout);
    assert.ok(!/Non-2xx|Socket errors/.test(stdout), stdout);
    await rig.idle();
    await rig.close();
});
finish();
