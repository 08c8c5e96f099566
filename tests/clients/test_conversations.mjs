// test_conversations.mjs - 200 conversations of the demo corpus through the HTTP API of a real
// fleet, greedy: at least 95 % of the checkable answers right, and none empty.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { finish, root, startFleet, test } from './fleet.mjs';

const cases = readFileSync(root + 'tests/golden/data/conversations.jsonl', 'utf8').trim().split('\n').map((line) => JSON.parse(line));
const fleet = await startFleet([['amber', '--profile', 'all'], ['basalt', '--profile', 'quarter']]);

async function ask(url, item) {
    const reply = await fetch(url + '/v1/chat/completions', {
        method: 'POST', headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'demo', messages: item.messages, ...(item.tools ? { tools: item.tools } : {}), temperature: 0,
            max_tokens: 1200, chat_template_kwargs: { enable_thinking: item.thinking } }),
    });
    const body = await reply.json();
    if (reply.status !== 200) throw new Error(`${reply.status}: ${JSON.stringify(body)}`);
    return { content: body.choices[0].message.content ?? '', node: reply.headers.get('x-siliceo-node'), finish: body.choices[0].finish_reason };
}

await test('at least 190 of 200 conversations are answered right, both nodes taking part', async () => {
    const wrong = [], nodes = {};
    let next = 0;
    const one = async () => {
        while (next < cases.length) {
            const item = cases[next++];
            const answer = await ask(fleet.url, item);
            nodes[answer.node] = (nodes[answer.node] ?? 0) + 1;
            if (answer.content.trim() !== item.answer.trim()) wrong.push({ question: item.messages.at(-1).content.slice(-120), expected: item.answer, got: answer.content });
        }
    };
    await Promise.all(Array.from({ length: 8 }, one));
    console.log(`${cases.length - wrong.length} of ${cases.length} right; ${JSON.stringify(nodes)}`);
    for (const w of wrong) console.log('  wrong:', JSON.stringify(w));
    assert.equal(wrong.filter((w) => w.got === '').length, 0, 'an empty answer');
    assert.ok(wrong.length <= 10, `${wrong.length} of ${cases.length} wrong`);
    assert.ok(Object.keys(nodes).length === 2, `nodes used: ${Object.keys(nodes)}`);
});
await fleet.stop();
finish();
