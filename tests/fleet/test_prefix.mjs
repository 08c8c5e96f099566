// test_prefix.mjs - real workers remember prompts: the next turn goes where the last one ran, says what was skipped, in
// every API, and what is gone is gone on both sides.
import assert from 'node:assert/strict';
import { finish, startFleet, test, until } from '../clients/fleet.mjs';

const system = 'You are the assistant of a small library at the harbour. The library opens at nine and closes at six, on Sundays at one. ' +
    'Readers may take five books for three weeks. Maps and newspapers stay in the house. The garden has a table with two chairs under the old tree. ' +
    'Answer in one sentence, name the shelf where a book stands, and never promise what the library does not have.';
const small = ['--ctx', '2048', '--sequences', '2', '--measure-ms', '50'];
const post = async (fleet, path, body, headers = {}) => {
    const reply = await fetch(fleet.url + path, { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify(body) });
    assert.equal(reply.status, 200, await reply.clone().text());
    return { json: await reply.json(), node: reply.headers.get('x-siliceo-node') };
};
const model = async (fleet) => (await (await fetch(fleet.url + '/v1/models')).json()).data[0].id;
const nodes = async (fleet) => (await (await fetch(fleet.url + '/status')).json()).nodes;

// A chat that goes on with what it was answered.
class Chat {
    constructor(fleet, name, words = system) { this.fleet = fleet; this.name = name; this.messages = [{ role: 'system', content: words }]; }
    async say(text, more = {}) {
        this.messages.push({ role: 'user', content: text });
        const { json, node } = await post(this.fleet, '/v1/chat/completions', { model: this.name, messages: this.messages, temperature: 0, max_tokens: 16, ...more });
        this.messages.push({ role: 'assistant', content: json.choices[0].message.content });
        return { node, text: json.choices[0].message.content, prompt: json.usage.prompt_tokens, completion: json.usage.completion_tokens, cached: json.usage.prompt_tokens_details.cached_tokens };
    }
}

await test('every next turn goes to the node that holds the chat and skips all but its own part', async () => {
    const fleet = await startFleet([['amber', ...small], ['basalt', ...small]]);
    const name = await model(fleet);
    const chats = [new Chat(fleet, name), new Chat(fleet, name, 'Of the other house. ' + system), new Chat(fleet, name, 'A third one. ' + system)];
    const homes = [];
    for (const [i, chat] of chats.entries()) {
        // Two begin at once, so that both nodes have some.
        const first = await Promise.all([chat.say('Hello, my name is Bruno.'), post(fleet, '/v1/chat/completions', { model: name, messages: [{ role: 'user', content: `Text ${i}. ${system}` }], max_tokens: 8 })]);
        assert.equal(first[0].cached, 0);
        homes.push(first[0].node);
    }
    for (let turn = 0; turn < 3; turn++) {
        for (const [i, chat] of chats.entries()) {
            const r = await chat.say(['Which shelf holds stories?', 'And which holds maps?', 'Thank you.'][turn]);
            assert.equal(r.node, homes[i], `turn ${turn} of chat ${i}`);
            assert.ok(r.cached >= 64 && r.cached % 64 === 0 && r.cached > r.prompt - 160, JSON.stringify(r));
        }
    }
    await until(async () => {
        const all = await nodes(fleet);
        return all.some((n) => n.beat.prefix_snapshots > 0) && all.reduce((sum, n) => sum + n.beat.prefix_tokens, 0) >= 9 * 64;
    }, 'beats tell');
    const metrics = await (await fetch(fleet.url + '/metrics')).text();
    for (const line of ['prefix_tokens_total{node="amber"}', 'prefix_asked_tokens_total{node="amber"}', 'prefix_hits_total{node="amber",from="ram"}',
        'prefix_snapshots{node="basalt"}', 'prefix_pages{node="basalt"}', 'prefix_disk_bytes{node="amber"}', 'guessed_tokens_total{node="amber",came="true"}', 'displaced_total{node="amber"}'])
        assert.match(metrics, new RegExp(`^siliceo_node_${line.replace(/[{}]/g, '\\$&')} \\d+`, 'm'));
    for (const n of (await nodes(fleet)).filter((n) => n.beat.prefix_tokens > 0)) {
        assert.equal(n.prefix_hit_rate.toFixed(6), (n.beat.prefix_tokens / n.beat.prefix_asked_tokens).toFixed(6));
        assert.ok(n.beat.prefix_hits > 0 && n.beat.prefix_pages >= n.beat.prefix_snapshots && n.prefix_hit_rate < 1, JSON.stringify(n.beat));
    }
    assert.ok(Number(/^siliceo_cached_tokens_total (\d+)/m.exec(metrics)[1]) >= 9 * 64);
    await fleet.stop();
});

await test('each API says what was skipped in its own words', async () => {
    const fleet = await startFleet([['amber', ...small]]);
    const name = await model(fleet);
    const question = [{ role: 'user', content: 'Which shelf holds stories?' }];
    const first = await post(fleet, '/v1/messages', { model: name, system, messages: question, max_tokens: 8, temperature: 0 });
    assert.equal(first.json.usage.cache_read_input_tokens, 0);
    const again = await post(fleet, '/v1/messages', { model: name, system, messages: question, max_tokens: 8, temperature: 0 });
    assert.ok(again.json.usage.cache_read_input_tokens >= 64);
    assert.equal(again.json.usage.input_tokens + again.json.usage.cache_read_input_tokens, first.json.usage.input_tokens);
    assert.deepEqual(again.json.content, first.json.content);
    const response = await post(fleet, '/v1/responses', { model: name, instructions: system, input: 'Which shelf holds stories?', max_output_tokens: 8, temperature: 0 });
    assert.ok(response.json.usage.input_tokens_details.cached_tokens >= 64);
    const raw = { model: name, prompt: system, max_tokens: 4, temperature: 0 };
    assert.equal((await post(fleet, '/v1/completions', raw)).json.usage.prompt_tokens_details.cached_tokens, 0);
    assert.ok((await post(fleet, '/v1/completions', raw)).json.usage.prompt_tokens_details.cached_tokens >= 64);
    await fleet.stop();
});

await test('background work leaves a chat where it is; other chats push it out, and that is known', async () => {
    const fleet = await startFleet([['amber', ...small, '--prefix-ram-mib', '5']]);
    const name = await model(fleet);
    const chat = new Chat(fleet, name);
    await chat.say('Hello, my name is Bruno.');
    for (let i = 0; i < 4; i++) await new Chat(fleet, name, `Number ${i}. ${system}`).say('A title for this chat?', { priority: 'background' });
    assert.ok((await chat.say('Which shelf holds stories?')).cached >= 64);
    // As many that also what is done for the chat while the first of them comes is pushed out again.
    for (let i = 0; i < 8; i++) await new Chat(fleet, name, `Number ${i}. ${system}`).say('Hello there.');
    assert.equal((await chat.say('And which holds maps?')).cached, 0);
    assert.ok((await chat.say('Thank you.')).cached >= 64);
    await fleet.stop();
});

await test('while nothing else is to do, an answer becomes a beginning that the next turn skips; asked not to, it does not', async () => {
    const counts = ['Count from 1 to 40.', 'Count from 1 to 30.', 'Thank you.'], long = { max_tokens: 160, chat_template_kwargs: { enable_thinking: false } }, runs = [];
    for (const ahead of ['true', 'false']) {
        const fleet = await startFleet([['amber', ...small, `--prefix-ahead=${ahead}`]], ['--mesh-beat-s', '0.1']);
        const chat = new Chat(fleet, await model(fleet)), turns = [];
        for (const text of counts) {
            turns.push(await chat.say(text, long));
            // What the next turn begins with: all so far, but for a deliberation that is empty.
            turns.at(-1).whole = Math.floor((turns.at(-1).prompt + turns.at(-1).completion - 6) / 64);
            if (ahead === 'true') await until(async () => (await nodes(fleet))[0].beat.prefix_pages >= turns.at(-1).whole, 'it has run');
        }
        runs.push(turns);
        await fleet.stop();
    }
    const [ahead, plain] = runs;
    assert.deepEqual(ahead.map((t) => t.text), plain.map((t) => t.text));
    for (const [i, t] of ahead.entries()) {
        if (i > 0) assert.ok(t.cached >= 64 * ahead[i - 1].whole, JSON.stringify([t, ahead[i - 1]]));
        assert.ok(t.cached < t.prompt);
    }
    assert.ok(plain[1].cached <= plain[0].prompt, JSON.stringify(plain));
});

await test('so does an answer up to a stop string, any of several, and a call of a tool', async () => {
    const fleet = await startFleet([['amber', ...small]], ['--mesh-beat-s', '0.1']), name = await model(fleet);
    const digits = '3.1415926535897932384626433832795028841971693993751058209749445923078164062862089986280';
    const cook = { type: 'function', function: { name: 'cook', parameters: { type: 'object', properties: { what: { type: 'string', enum: [digits] } }, required: ['what'] } } };
    const cases = [
        { text: 'Count from 1 to 60.', more: { stop: ['50'] }, take: 0, next: 'user' },
        { text: 'Tell me a story about a fox.', more: { n: 2, temperature: 1, seed: 7 }, take: 1, next: 'user' },
        { text: 'What is the weather in Madrid?', more: { tools: [cook], tool_choice: 'required' }, take: 0, next: 'tool' }];
    const held = async () => (await nodes(fleet))[0].beat;
    for (const { text, more, take, next } of cases) {
        const body = { model: name, messages: [{ role: 'user', content: text }], temperature: 0, max_tokens: 160, chat_template_kwargs: { enable_thinking: false }, ...more };
        const before = await held(), { json } = await post(fleet, '/v1/chat/completions', body), { prompt_tokens: prompt, completion_tokens: completion } = json.usage;
        const n = json.choices.length, pages = Math.floor((prompt + completion / n - 6) / 64);
        await until(async () => { const b = await held(); return b.prefix_pages >= before.prefix_pages + pages && b.prefix_snapshots >= before.prefix_snapshots + n; }, 'it has run');
        const { message } = json.choices[take], call = message.tool_calls?.[0];
        assert.equal(call !== undefined, next === 'tool');
        const messages = [...body.messages, message, { role: next, content: 'Thank you.', ...(call ? { tool_call_id: call.id } : {}) }];
        const second = (await post(fleet, '/v1/chat/completions', { ...body, messages, tool_choice: undefined, n: 1, max_tokens: 8 })).json.usage;
        assert.ok(second.prompt_tokens_details.cached_tokens > prompt, JSON.stringify([text, json.usage, second]));
    }
    await fleet.stop();
});

await test('with the memory turned off everything runs, and says so', async () => {
    const fleet = await startFleet([['amber', ...small, '--prefix-ram-mib', '0']]);
    const chat = new Chat(fleet, await model(fleet));
    await chat.say('Hello, my name is Bruno.');
    assert.equal((await chat.say('Which shelf holds stories?')).cached, 0);
    await fleet.stop();
});
finish();
