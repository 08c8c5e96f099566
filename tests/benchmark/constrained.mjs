// constrained.mjs - what constrained decoding costs: requests to the same worker with a schema
// and without one, in turns, so that what else the machine does meets both.
//
//     node tests/benchmark/constrained.mjs [--rounds N] [--no-record]
//
// slower_percent is wall clock as the client sees it, from the first token to the last, a token;
// cpu_percent the worker's CPU time of the same tokens, which a busy machine changes less, and
// begin_cpu_ms what the worker takes to the first token, compiling the schema with it.  Both sides are
// the lower quartiles of all rounds: the quiet moments of either.
// `object` is the same text with the schema as without, `story` nearly so; `people` is a document
// of many forms beside a story.  Greedy choices are tested one by one until one does not fit;
// sampled ones need all that fit, for every token.
import { parseArgs } from 'node:util';
import { readFileSync, readdirSync } from 'node:fs';
import { startFleet } from '../clients/fleet.mjs';
import { record } from './record.mjs';

const { values } = parseArgs({ options: { rounds: { type: 'string', default: '40' }, 'no-record': { type: 'boolean' } } });
const rounds = Number(values.rounds);
const object = (properties) => ({ type: 'object', properties, required: Object.keys(properties), additionalProperties: false });
const person = object({ name: { type: 'string', maxLength: 20 }, age: { type: 'integer', minimum: 0, maximum: 120 }, color: { enum: ['red', 'green', 'blue'] }, mail: { type: 'string', format: 'email' },
    tags: { type: 'array', items: { type: 'string', pattern: '^[a-z]{2,8}$' }, maxItems: 4 }, on: { anyOf: [{ type: 'boolean' }, { type: 'null' }] } });
const ada = 'Give me a JSON object with name Ada, age 36 and color blue.', fox = 'Tell me a story about a fox and a lamp.';
const cases = [
    ['object', ada, object({ name: { type: 'string', maxLength: 20 }, age: { type: 'integer', minimum: 0, maximum: 120 }, color: { type: 'string' } }), ada, [0]],
    ['story', fox, object({ story: { type: 'string', minLength: 100 } }), fox, [0, 1]],
    ['people', ada, object({ people: { type: 'array', items: person, minItems: 3, maxItems: 3 } }), fox, [0, 1]],
];
const fleet = await startFleet([['amber']]);
const tasks = `/proc/${fleet.workers[0].child.pid}/task`;
const cpuMs = () => readdirSync(tasks).reduce((sum, id) => sum + Number(readFileSync(`${tasks}/${id}/schedstat`, 'utf8').split(' ')[0]), 0) / 1e6;

async function run(question, fields) {
    const begun_cpu = cpuMs();
    let first_cpu = 0;
    const reply = await fetch(fleet.url + '/v1/chat/completions', { method: 'POST', body: JSON.stringify({ model: 'demo', stream: true, max_tokens: 250, seed: 7,
        messages: [{ role: 'user', content: question }], chat_template_kwargs: { enable_thinking: false }, ...fields }) });
    const bytes = [];
    let first = 0, last = 0;
    for await (const piece of reply.body) {
        if (first === 0) [first, first_cpu] = [performance.now(), cpuMs()];
        last = performance.now();
        bytes.push(piece);
    }
    const all = Buffer.concat(bytes).toString(), n = Number(/"predicted_n":(\d+)/.exec(all)?.[1]);
    if (reply.status !== 200 || !(n >= 15)) throw new Error(all.slice(-600));
    const text = [...all.matchAll(/"content":("(?:[^"\\]|\\.)*")/g)].map((m) => JSON.parse(m[1])).join('');
    return { n, text, ms: (last - first) / (n - 1), cpu_ms: (cpuMs() - first_cpu) / (n - 1), begin_cpu_ms: first_cpu - begun_cpu };
}

const figures = {}, baseline = {}, raw = {};
for (const [name, question, schema, other, temperatures] of cases) {
    for (const temperature of temperatures) {
        const formed = () => run(question, { temperature, response_format: { type: 'json_schema', json_schema: { name, schema } } });
        const free = () => run(other, { temperature });
        const pairs = [];
        for (let i = -2; i < rounds; i++) {
            const pair = {};
            for (const which of i % 2 === 0 ? ['with', 'without'] : ['without', 'with']) pair[which] = await (which === 'with' ? formed() : free());
            if (name === 'object' && pair.with.text !== pair.without.text) throw new Error(`${pair.with.text} is not ${pair.without.text}`);
            for (const side of Object.values(pair)) delete side.text;
            if (i >= 0) pairs.push(pair);
        }
        const key = `${name}_${temperature === 0 ? 'greedy' : 'sampled'}`;
        const of = (side, what) => pairs.map((p) => p[side][what]).sort((a, b) => a - b)[Math.floor(pairs.length / 4)];
        raw[key] = pairs;
        figures[`${key}_us_per_token`] = 1000 * of('with', 'ms');
        baseline[`${key}_us_per_token`] = 1000 * of('without', 'ms');
        figures[`${key}_slower_percent`] = 100 * (of('with', 'ms') / of('without', 'ms') - 1);
        figures[`${key}_begin_cpu_ms`] = of('with', 'begin_cpu_ms');
        baseline[`${key}_begin_cpu_ms`] = of('without', 'begin_cpu_ms');
        figures[`${key}_cpu_percent`] = 100 * (of('with', 'cpu_ms') / of('without', 'cpu_ms') - 1);
    }
}
await fleet.stop();
if (values['no-record']) console.log(figures, baseline);
else record('constrained', `node tests/benchmark/constrained.mjs --rounds ${rounds}`, figures, baseline, { pairs: raw });
