// test_log.mjs - the log: every line of a request has its id, and nothing secret is in any.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { finish, program, stop, temporaryFolder, test, until } from '../clients/fleet.mjs';
import { ask, body, Rig } from './rig.mjs';

await test('every line has time, level, event and pairs; what a request went through has its id on each; prompts, answers and keys are in none', async () => {
    const made = spawnSync(program('siliceo-coordinator'), ['keygen', '--api', 'guest'], { encoding: 'utf8' });
    const key = /sk-\S+/.exec(made.stderr)[0], keys = `${temporaryFolder()}/keys`;
    writeFileSync(keys, made.stdout.trim() + ' admin=true\n');
    const rig = await Rig.open(['--api-keys-file', keys]);
    const auth = { authorization: `Bearer ${key}` };
    rig.status = async () => (await fetch(rig.url + '/status', { headers: auth })).json();
    await rig.add('amber', '--decode', '200');
    await rig.add('mortal', '--model', 'mortal-model', '--fault', 'die', '--fault-at', '2');
    await rig.add('bad', '--model', 'bad-model', '--fault', 'bad');
    const secret = 'a-word-of-the-prompt';
    const request = (more) => body({ messages: [{ role: 'user', content: secret }], ...more });
    const send = (id, more, headers = auth) => ask(rig.url, request(more), { ...headers, 'x-request-id': id });
    assert.equal((await send('req-good', { max_tokens: 3, stream: true })).status, 200);
    await send('req-lost', { model: 'mortal-model', max_tokens: 9, stream: true });
    assert.equal((await send('req-bad', { model: 'bad-model' })).status, 400);
    assert.equal((await send('req-stranger', {}, { authorization: 'Bearer sk-wrong-key' })).status, 401);
    const lines = () => rig.log.trimEnd().split('\n');
    await until(() => ['req-good', 'req-lost', 'req-bad'].every((id) => lines().some((l) => l.includes(`request=${id}`))), 'each has lines');
    const shape = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (debug|info|warn|error) [a-z][a-z0-9-]*( [\w.]+=("[^"]*("[^"]*)*"|\S*))* *$/;
    for (const line of lines()) assert.match(line, shape);
    for (const line of lines().filter((l) => l.split(' ')[2].startsWith('request-'))) assert.match(line, / request=\S+/);
    for (const word of [secret, key, 'sk-wrong-key', 't0 t1']) assert.ok(!rig.log.includes(word), `'${word}' is in the log`);
    await stop(rig.coordinator);
    for (const fake of rig.fakes) await stop(fake, 'SIGKILL');
});
finish();
