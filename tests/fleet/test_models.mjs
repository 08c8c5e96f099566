// test_models.mjs - one worker, two models: chosen by name, loaded when asked for, given back when idle.
import assert from 'node:assert/strict';
import { finish, startCoordinator, startWorker, stop, test, until } from '../clients/fleet.mjs';

const demo = 'deploy/models/demo.gguf', draft = 'deploy/models/draft.gguf';
async function open(...more) {
    const coordinator = await startCoordinator(['--mesh-beat-s', '0.1']);
    const worker = await startWorker(coordinator.mesh, 'amber', ['--model', `${draft} name=small ctx=512 sequences=2`, '--measure-ms', '20', ...more], `${demo} name=chat`);
    const node = async () => (await (await fetch(coordinator.url + '/status')).json()).nodes[0];
    await until(async () => (await node())?.state === 'ready', 'the node is ready');
    return { coordinator, worker, node, url: coordinator.url,
        states: async () => (await node()).model_states,
        async close() {
            assert.equal((await stop(worker)).code, 0, worker.log);
            assert.equal((await stop(coordinator)).code, 0);
        } };
}
const ask = async (fleet, model, more = {}) => {
    const reply = await fetch(fleet.url + '/v1/chat/completions', { method: 'POST', headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model, messages: [{ role: 'user', content: 'Who wrote The Name of the Rose?' }], temperature: 0, max_tokens: 24, ...more }) });
    return { status: reply.status, json: await reply.json() };
};
const text = (r) => r.json.choices[0].message.content;

await test('both are served at once, each by its own file; an unknown name is 404', async () => {
    const fleet = await open();
    assert.equal(fleet.worker.ready[2], 'chat,small');
    assert.deepEqual(await fleet.states(), { chat: 'loaded', small: 'loaded' });
    const list = (await (await fetch(fleet.url + '/v1/models')).json()).data;
    assert.deepEqual(list.map((m) => [m.id, m.meta.arch, m.meta.loaded_nodes]), [['chat', 'qwen35moe', 1], ['small', 'qwen35', 1]]);
    assert.equal(list[1].meta.context_tokens, 512);
    const [chat, small] = await Promise.all([ask(fleet, 'chat'), ask(fleet, 'small')]);
    assert.deepEqual([chat.status, small.status], [200, 200]);
    assert.match(text(chat), /Umberto Eco/);
    const again = await Promise.all(['chat', 'small', 'chat', 'small', 'small', 'chat'].map((m) => ask(fleet, m)));
    assert.deepEqual(again.map(text), [chat, small, chat, small, small, chat].map(text), 'company changes nothing');
    assert.equal((await ask(fleet, 'large')).status, 404);
    await fleet.close();
});
await test('with room for one the other waits for a request, which waits for it; each answers as ever', async () => {
    const fleet = await open('--models-max-loaded', '1', '--models-patience-s', '0.1');
    assert.deepEqual(await fleet.states(), { chat: 'loaded', small: 'unloaded' });
    const first = await ask(fleet, 'small');
    assert.equal(first.status, 200);
    await until(async () => (await fleet.states()).small === 'loaded', 'small is seen');
    assert.deepEqual(await fleet.states(), { chat: 'unloaded', small: 'loaded' });
    const crowd = await Promise.all(['chat', 'small', 'chat', 'small', 'chat'].map((m) => ask(fleet, m)));
    assert.deepEqual(crowd.map((r) => r.status), Array(5).fill(200));
    assert.equal(text(crowd[1]), text(first));
    assert.match(text(crowd[0]), /Umberto Eco/);
    await fleet.close();
});
await test('an idle one is unloaded and comes back; the node stays ready all the time', async () => {
    const fleet = await open('--models-keep-s', '0.2');
    await until(async () => Object.values(await fleet.states()).every((s) => s === 'unloaded'), 'both are given back');
    assert.equal((await fleet.node()).state, 'ready');
    assert.match(text(await ask(fleet, 'chat')), /Umberto Eco/);
    await fleet.close();
});
finish();
