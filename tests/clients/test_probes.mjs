// test_probes.mjs - the verification suite of tests/benchmark/probes on the demo model: all right,
// also in company and on other nodes; and its judge tells right from wrong.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { ask, askAll, isRight, onlyModel, probes } from '../benchmark/probes/probe.mjs';
import { finish, startFleet, test } from './fleet.mjs';

const fleet = await startFleet();
const wrong = (results) => results.filter((r) => !r.right).map((r) => `${r.id}: ${r.error ?? r.text}`);

await test('seven of seven are right, with their figures', async () => {
    const results = await askAll(fleet.url, await onlyModel(fleet.url));
    assert.equal(results.length, 7);
    assert.deepEqual(wrong(results), []);
    for (const r of results) {
        assert.ok(r.tokens > 0 && r.wall_ms > 0 && r.tok_per_s > 0, JSON.stringify(r));
        assert.ok(['amber', 'basalt'].includes(r.node));
    }
    assert.equal(results.find((r) => r.id === 'paradox').thinking, 'cut');
    // Only the node that streams experts has a rate of hits.
    for (const r of results) assert.equal(r.hit_rate !== null, r.node === 'basalt', JSON.stringify(r));
});
await test('all at once are right as well', async () => {
    assert.deepEqual(wrong(await Promise.all(probes.map((probe) => ask(fleet.url, 'demo', probe)))), []);
});
await test('without deliberation and with little of it they are right, too', async () => {
    for (const fields of [{ chat_template_kwargs: { enable_thinking: false } }, { max_thinking_tokens: 8 }, { max_tokens: 300 }])
        assert.deepEqual(wrong(await askAll(fleet.url, 'demo', { fields })), []);
});
await fleet.stop();

// A server that says what it is told to.
let says = '', ends = true;
const fake = createServer((request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: says }, finish_reason: 'stop' }] })}\n\n`);
    response.end(ends ? 'data: [DONE]\n\n' : '');
});
await new Promise((resolve) => fake.listen(0, '127.0.0.1', resolve));
const nowhere = `http://127.0.0.1:${fake.address().port}`;
await test('nothing, nonsense and a thought are right for none', async () => {
    for (const text of ['', '   \n', '...', '<think>Umberto Eco 391 1769 3958 pane {"name":"Ada","age":36,"color":"blue"}', '```\nUmberto Eco']) {
        says = text;
        assert.equal((await askAll(nowhere, 'demo')).filter((r) => r.right).length, 0, text);
    }
});
await test('a wrong answer is right for the paradox alone, a stream without end for none', async () => {
    says = 'It was Dante in 1768, 1391 panes.';
    assert.deepEqual((await askAll(nowhere, 'demo')).filter((r) => r.right).map((r) => r.id), ['paradox']);
    ends = false;
    assert.equal((await askAll(nowhere, 'demo')).filter((r) => r.right).length, 0);
});
await test('what larger models write around an answer does not make it wrong', async () => {
    const answers = { author: '*The Name of the Rose* was written by **Umberto Eco** (1980).', product: '17 × 23 = **391**', year: 'Napoleon Bonaparte was born on August 15, 1769.', code: 'The code is `3958`.',
        translation: 'In Italian, "bread" is **"pane"** (masculine).', json: 'Here you go:\n\n```json\n{\n  "name": "Ada",\n  "age": 36,\n  "color": "blue"\n}\n```', paradox: 'Neither: it is the liar paradox.' };
    for (const probe of probes) assert.ok(isRight(probe, answers[probe.id]), probe.id);
});
fake.close();
finish();
