// prefix.mjs - chats of eight turns behind a long system prompt, through the API: time to the first token of each turn,
// beside the same prompts of which nothing is held.
//
//     node tests/benchmark/prefix.mjs [--chats 5] [--turns 8] [--system-tokens 2048] [--name prefix-cpu]
//         [--url http://HOST:PORT] or [--backend cpu|cuda] [--model FILE] [--worker "--ctx 8192 --threads 2"]
//
// A prompt that begins with another word is held nowhere, so that is what "cold" is: the same conversation, made
// another's by its first word.  Warm and cold take turns, chat by chat.  With --url a fleet that runs already is asked.
import { startCoordinator, startWorker, stop } from '../clients/fleet.mjs';
import { median, record } from './record.mjs';

const argument = (name, fallback) => {
    const at = process.argv.indexOf('--' + name);
    return at > 0 ? process.argv[at + 1] : fallback;
};
const chats = +argument('chats', 5), turns = +argument('turns', 8), systemTokens = +argument('system-tokens', 2048);
const backend = argument('backend', 'cpu'), file = argument('model', 'deploy/models/demo.gguf');
let url = argument('url', ''), fleet = [];
if (url === '') {
    const coordinator = await startCoordinator(['--log-level', 'warn']);
    const words = ['--backend', backend, '--threads', '0', '--ctx', '8192', '--sequences', '2', '--log-level', 'warn', ...argument('worker', '').split(' ').filter(Boolean)];
    fleet = [await startWorker(coordinator.mesh, 'amber', words, file), coordinator];
    url = coordinator.url;
}
const model = (await (await fetch(url + '/v1/models')).json()).data[0].id;

// One turn, streamed: what it cost and what it said.
async function ask(messages, maxTokens = 16) {
    const begun = performance.now();
    const reply = await fetch(url + '/v1/chat/completions', { method: 'POST', headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model, messages, temperature: 0, max_tokens: maxTokens, stream: true, stream_options: { include_usage: true }, chat_template_kwargs: { enable_thinking: false } }) });
    if (reply.status !== 200) throw new Error(`${reply.status}: ${await reply.text()}`);
    let text = '', rest = '', first = 0, usage = null;
    for await (const piece of reply.body.pipeThrough(new TextDecoderStream())) {
        rest += piece;
        const lines = rest.split('\n');
        rest = lines.pop();
        for (const line of lines) {
            if (!line.startsWith('data: ') || line === 'data: [DONE]') continue;
            const event = JSON.parse(line.slice(6)), delta = event.choices[0]?.delta;
            if (first === 0 && (delta?.content || delta?.reasoning_content)) first = performance.now();
            text += delta?.content ?? '';
            usage = event.usage ?? usage;
        }
    }
    if (first === 0 || usage === null) throw new Error(`no token came: ${text}`);
    const prompt = usage.prompt_tokens, cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    return { text, ttft_ms: +(first - begun).toFixed(2), prompt, cached, run: prompt - cached };
}

// Rules until there are enough tokens of them.
const salt = () => Math.random().toString(36).slice(2, 10);
const rules = (n) => Array.from({ length: n }, (_, i) => `Rule ${i + 1}: the book number ${(i * 37) % 1000} of the blue shelf stays in the room until the clock shows ${i % 12 + 1}.`).join(' ');
const one = await ask([{ role: 'system', content: rules(10) }, { role: 'user', content: 'Hello.' }], 4);
const nRules = Math.ceil(systemTokens / (one.prompt / 10));
const system = (word) => ({ role: 'system', content: `House ${word}. ${rules(nRules)}` });
const questions = ['Hello, my name is Bruno.', 'Which shelf holds the books?', 'Count from 1 to 9.', 'What is my name?', 'What is 17 × 23?', 'Repeat exactly: red mirror clock', 'Who wrote The Name of the Rose?', 'Thank you. What comes next?'];

const warm = [], cold = [], first = [], second = [];
for (let c = 0; c < chats; c++) {
    const house = salt();
    const messages = [system(house)], own = [];
    for (let t = 0; t < turns; t++) {
        messages.push({ role: 'user', content: questions[t % questions.length] });
        const r = await ask(messages);
        own.push(r);
        // The same turn as a stranger's; its answer is the same.
        if (t === turns - 1) {
            const others = [system(salt()), ...messages.slice(1)], strange = await ask(others);
            if (strange.cached !== 0 || strange.prompt < r.prompt - 8) throw new Error(JSON.stringify(strange));
            cold.push(strange);
        }
        messages.push({ role: 'assistant', content: r.text });
    }
    warm.push(own);
    first.push(own[0]);
    second.push(await ask([system(house), { role: 'user', content: 'Good evening. Which rule is about the clock?' }]));
}
for (const running of fleet) await stop(running);

const last = warm.map((own) => own[turns - 1]);
const mid = (list, key) => median(list.map((r) => r[key]));
const figures = {
    turns, system_tokens: first[0].prompt, last_prompt_tokens: mid(last, 'prompt'),
    last_ttft_ms: mid(last, 'ttft_ms'), last_cold_ttft_ms: mid(cold, 'ttft_ms'),
    last_ttft_cold_to_warm: +(mid(cold, 'ttft_ms') / mid(last, 'ttft_ms')).toFixed(2),
    last_run_tokens: mid(last, 'run'), last_held_share: +(mid(last, 'cached') / mid(last, 'prompt')).toFixed(4),
    chat_held_share: +(warm.flat().reduce((s, r) => s + r.cached, 0) / warm.flat().reduce((s, r) => s + r.prompt, 0)).toFixed(4),
    first_ttft_ms: mid(first, 'ttft_ms'), second_user_ttft_ms: mid(second, 'ttft_ms'),
    second_user_prompt_tokens: mid(second, 'prompt'), second_user_run_tokens: mid(second, 'run'),
};
const command = `node tests/benchmark/prefix.mjs${process.argv.slice(2).map((a) => ' ' + (a.includes(' ') ? `"${a}"` : a)).join('')}`;
record(argument('name', `prefix-${backend}`), command, figures, {},
    { rounds: { warm, cold, second: second.map(({ text, ...rest }) => rest) },
        note: 'time to first token at the client, thinking off, temperature 0; cold: the same conversation behind a system prompt with another first word' });
process.exit(0);
