// test_schemas.mjs - constrained answers parse and validate: 2,000 generated schemas walked
// with random tokens of the demo vocabulary, checked by ajv; what is not supported is refused by
// name; and the demo model over HTTP.
import assert from 'node:assert';
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import Ajv from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import { z } from 'zod';
import { finish, program, startFleet, test } from './fleet.mjs';
import { random, schemaOf } from './schemas.mjs';

const N_SCHEMAS = Number(process.env.SILICEO_SCHEMAS ?? 2000), FIRST = Number(process.env.SILICEO_SCHEMA_SEED ?? 1);

// One long-lived walker; a line out for each line in.
function startWalker() {
    const child = spawn(program('tests/clients/walk_schema'), ['deploy/models/demo.gguf'], { stdio: ['pipe', 'pipe', 'inherit'] });
    const waiting = [];
    createInterface({ input: child.stdout }).on('line', (line) => waiting.shift().resolve(JSON.parse(line)));
    child.on('exit', (code, signal) => { for (const w of waiting) w.reject(new Error(`walk_schema ended: ${code ?? signal}`)); });
    return {
        ask: (request) => new Promise((resolve, reject) => { waiting.push({ resolve, reject }); child.stdin.write(JSON.stringify(request) + '\n'); }),
        stop: () => child.stdin.end(),
    };
}

function validator(schema) {
    const ajv = new Ajv({ strict: false, allErrors: false });
    addFormats(ajv);
    return ajv.compile(schema);
}

const walker = startWalker();

await test(`${N_SCHEMAS} generated schemas: what the mask lets through parses and validates`, async () => {
    let cut = 0, small = 0, refused = 0;
    for (let seed = FIRST; seed < FIRST + N_SCHEMAS; seed++) {
        const schema = schemaOf(seed), r = random(seed * 7 + 1);
        const validate = validator(schema);
        const budgets = [1 + r.below(12), 20 + r.below(60), 200 + r.below(400)];
        for (const budget of budgets) {
            const answer = await walker.ask({ schema, seed, budget });
            const where = `seed ${seed}, budget ${budget}, schema ${JSON.stringify(schema)}: ${JSON.stringify(answer)}`;
            if (answer.error !== undefined) { refused++; assert.fail(where); }
            if (answer.text === undefined) { small++; assert.ok(answer.least > budget, where); continue; }
            assert.ok(answer.whole && answer.tokens <= budget && answer.narrower === 0, where);
            if (answer.tokens === budget) cut++;
            let value;
            try { value = JSON.parse(answer.text); } catch (e) { assert.fail(`${where}: ${e.message}`); }
            assert.ok(validate(value), `${where}: ${JSON.stringify(validate.errors)}`);
        }
    }
    console.log(`        ${3 * N_SCHEMAS} documents: ${cut} ended by their budget, ${small} budgets below the shortest document`);
    assert.ok(cut > N_SCHEMAS / 10);
});

await test('what is not supported is refused by its path', async () => {
    const cases = [
        [{ not: {} }, 'schema.not'],
        [{ type: 'object', properties: { a: { type: 'array', items: { if: {} } } } }, 'schema.properties.a.items.if'],
        [{ type: 'string', pattern: '(?=a)' }, 'schema.pattern'],
        [{ type: 'string', pattern: '\\bword' }, 'schema.pattern'],
        [{ type: 'string', format: 'hostname' }, 'schema.format'],
        [{ oneOf: [{ type: 'string' }, { type: 'string', maxLength: 3 }] }, 'schema.oneOf'],
        [{ allOf: [{ type: 'string' }, { minLength: 3 }] }, 'schema.allOf'],
        [{ type: 'number', multipleOf: 0.1 }, 'schema.multipleOf'],
        [{ $ref: 'https://example.com/x' }, 'schema.$ref'],
        [{ $ref: '#/$defs/none' }, 'schema.$ref'],
        [{ $defs: { a: { patternProperties: {} } }, $ref: '#/$defs/a' }, '#/$defs/a.patternProperties'],
        [{ type: 'object', properties: { a: { $ref: '#' } }, required: ['a'] }, 'schema'],
        [{ $ref: '#' }, 'schema'],
        [{ type: 'text' }, 'schema.type'],
        [{ type: 'string', minLength: 4, maxLength: 3 }, 'schema.minLength'],
        [{ type: 'integer', minimum: 4, maximum: 3 }, 'schema.minimum'],
        [{ type: 'array', uniqueItems: true, minItems: 2 }, 'schema.uniqueItems'],
        [{ type: 'object', properties: {}, required: ['x'] }, 'schema.required'],
        [{ enum: [] }, 'schema.enum'],
        [false, 'schema'],
        [[], 'schema'],
    ];
    for (const [schema, param] of cases) {
        const answer = await walker.ask({ schema, seed: 1, budget: 100 });
        assert.strictEqual(answer.param, param, `${JSON.stringify(schema)}: ${JSON.stringify(answer)}`);
        assert.ok(answer.error.startsWith(param), answer.error);
    }
});

await test('without a schema any object is whole whatever the budget', async () => {
    for (let seed = 1; seed <= 200; seed++) {
        const answer = await walker.ask({ schema: null, seed, budget: 1 + seed });
        if (answer.text === undefined) { assert.ok(answer.least > 1 + seed); continue; }
        const value = JSON.parse(answer.text);
        assert.ok(typeof value === 'object' && !Array.isArray(value) && value !== null, answer.text);
    }
});

await test('what zod makes of its own types is followed, and refused where it is not', async () => {
    const types = {
        string: z.string(), bounded: z.string().min(2).max(9), regex: z.string().regex(/^[a-c]{2}\d$/), email: z.email(), uuid: z.uuid(), guid: z.guid(), date: z.iso.date(), time: z.iso.time(),
        datetime: z.iso.datetime(), offset: z.iso.datetime({ offset: true }), ipv4: z.ipv4(), ipv6: z.ipv6(), cidr: z.cidrv4(), url: z.url(), nanoid: z.nanoid(), cuid2: z.cuid2(), ulid: z.ulid(),
        base64url: z.base64url(), e164: z.e164(), starts: z.string().startsWith('ab'), includes: z.string().includes('x'), lower: z.string().lowercase(), int: z.int(), int32: z.int32(), uint32: z.uint32(),
        number: z.number(), between: z.number().min(-2.5).max(7), positive: z.number().positive(), boolean: z.boolean(), null: z.null(), literal: z.literal(['a', 1, true, null]), enum: z.enum(['red', 'blue']),
        array: z.array(z.int()).min(1).max(3), nonempty: z.array(z.boolean()).nonempty(), tuple: z.tuple([z.string().max(5), z.int(), z.boolean()]), record: z.record(z.string(), z.boolean()),
        object: z.object({ a: z.string().optional(), b: z.string().default('x'), c: z.int().nullish() }), strict: z.strictObject({ a: z.boolean() }), loose: z.looseObject({ a: z.boolean() }),
        extended: z.object({ a: z.boolean() }).extend({ b: z.int() }), union: z.union([z.string(), z.int()]), nullable: z.object({ a: z.int() }).nullable(), any: z.any(),
        tagged: z.discriminatedUnion('kind', [z.object({ kind: z.literal('a'), n: z.int() }), z.object({ kind: z.literal('b'), s: z.boolean() })]), template: z.templateLiteral(['id-', z.int()]),
        recursive: z.object({ value: z.int(), get next() { return recursive().nullable(); } }),
    };
    const recursive = () => types.recursive;
    for (const [name, type] of Object.entries(types)) {
        const { $schema, ...schema } = z.toJSONSchema(type);
        for (let seed = 1; seed <= 25; seed++) {
            const answer = await walker.ask({ schema, seed, budget: seed % 2 === 0 ? 60 : 400 });
            assert.ok(answer.text !== undefined || answer.least > 60, `${name}: ${JSON.stringify(answer)}`);
            if (answer.text !== undefined) assert.ok(type.safeParse(JSON.parse(answer.text)).success, `${name}: ${answer.text}`);
        }
    }
    for (const [type, param] of [[z.iso.duration(), 'schema.pattern'], [z.hostname(), 'schema.pattern'], [z.number().multipleOf(5), 'schema.multipleOf'],
        [z.record(z.enum(['a', 'b']), z.int()), 'schema.propertyNames'], [z.string().regex(/^a/).regex(/b$/), 'schema.type']]) {
        const answer = await walker.ask({ schema: z.toJSONSchema(type), seed: 1, budget: 100 });
        assert.strictEqual(answer.param, param, JSON.stringify(answer));
    }
});
walker.stop();

// --- the demo model over HTTP ---

const fleet = await startFleet([['amber']]);
const post = (body) => fetch(fleet.url + '/v1/chat/completions', { method: 'POST', body: JSON.stringify({ model: 'demo', ...body }) });
const format = (schema) => ({ type: 'json_schema', json_schema: { name: 'answer', strict: true, schema } });
const person = { type: 'object', properties: { name: { type: 'string', maxLength: 20 }, age: { type: 'integer', minimum: 0, maximum: 150 } },
    required: ['name', 'age'], additionalProperties: false };

// The contents and finish reasons of all choices, streamed or not.
async function contents(body) {
    const response = await post(body);
    if (!body.stream || response.status !== 200) {
        const whole = await response.json();
        return { status: response.status, error: whole.error, choices: whole.choices?.map((c) => ({ text: c.message.content, finish: c.finish_reason })), usage: whole.usage };
    }
    const choices = Array.from({ length: body.n ?? 1 }, () => ({ text: '', finish: null }));
    for (const line of (await response.text()).split('\n')) {
        if (!line.startsWith('data: {')) continue;
        const chunk = JSON.parse(line.slice(6));
        assert.equal(chunk.error, undefined, line);
        for (const c of chunk.choices) {
            choices[c.index].text += c.delta.content ?? '';
            choices[c.index].finish ??= c.finish_reason;
        }
    }
    return { status: 200, choices };
}

await test('48 generated schemas over HTTP: streams, deliberation, temperatures, budgets, company', async () => {
    let whole = 0, cut = 0, small = 0;
    const one = async (i) => {
        const seed = 5000 + i, schema = schemaOf(seed), r = random(seed), validate = validator(schema);
        const body = { messages: [{ role: 'user', content: r.of(['Give me a JSON object with name and age.', 'Who wrote The Name of the Rose?', 'Count to ten.']) }],
            response_format: format(typeof schema === 'object' ? schema : { anyOf: [schema] }), seed, n: 1 + r.below(2), stream: r.chance(0.5), temperature: r.of([0, 0.7, 1.5]),
            top_p: r.of([1, 0.9]), presence_penalty: r.of([0, 0.5]), max_tokens: r.of([12, 40, 120, 300]), chat_template_kwargs: { enable_thinking: r.chance(0.5) } };
        const answer = await contents(body), where = `${JSON.stringify(body)}: ${JSON.stringify(answer)}`;
        if (answer.status === 400) { small++; assert.equal(answer.error.param, 'max_tokens', where); return; }
        assert.equal(answer.status, 200, where);
        for (const choice of answer.choices) {
            let value;
            try { value = JSON.parse(choice.text); } catch (e) { assert.fail(`${where}: ${e.message}`); }
            assert.ok(validate(value), `${where}: ${JSON.stringify(validate.errors)}`);
            if (choice.finish === 'length') cut++; else whole++;
        }
    };
    for (let i = 0; i < 48; i += 8) await Promise.all(Array.from({ length: 8 }, (_, k) => one(i + k)));
    console.log(`        ${whole} ended by themselves, ${cut} by their budget, ${small} budgets below the shortest document`);
    assert.ok(whole > 0 && cut > 0 && small > 0);
});
await test('a paradox is thought about within its budget and answered with a whole document', async () => {
    const body = { messages: [{ role: 'user', content: 'This statement is false. Is it true?' }], response_format: format(person), temperature: 0 };
    for (const max_tokens of [14, 30, 80]) {
        const { choices } = await contents({ ...body, max_tokens });
        assert.ok(validator(person)(JSON.parse(choices[0].text)), choices[0].text);
    }
});
await test('a budget below the shortest document, and a schema that is not supported, are 400 by name', async () => {
    const messages = [{ role: 'user', content: 'hello' }], chat_template_kwargs = { enable_thinking: false };
    const small = await contents({ messages, response_format: format(person), max_tokens: 3, chat_template_kwargs });
    assert.deepEqual([small.status, small.error.param], [400, 'max_tokens']);
    const least = Number(/needs (\d+)/.exec(small.error.message)[1]);
    const exact = await contents({ messages, response_format: format(person), max_tokens: least, chat_template_kwargs, temperature: 1 });
    assert.ok(validator(person)(JSON.parse(exact.choices[0].text)), exact.choices[0].text);
    assert.equal(exact.choices[0].finish, 'length');
    assert.equal(exact.usage.completion_tokens, least);
    const answer = await contents({ messages, response_format: format({ type: 'object', properties: { a: { not: {} } } }) });
    assert.deepEqual([answer.status, answer.error.param], [400, 'response_format.json_schema.schema.properties.a.not']);
});
await test('the same seed gives the same document', async () => {
    const body = { messages: [{ role: 'user', content: 'Give me a JSON object.' }], response_format: { type: 'json_object' }, temperature: 1, seed: 7, max_tokens: 60 };
    const [one, other] = [await contents(body), await contents(body)];
    assert.equal(one.choices[0].text, other.choices[0].text);
    assert.equal(typeof JSON.parse(one.choices[0].text), 'object');
});
await fleet.stop();
finish();
