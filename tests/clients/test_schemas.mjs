// test_schemas.mjs - constrained answers parse and validate: 2,000 generated schemas walked
// with random tokens of the demo vocabulary, checked by ajv; what is not supported is refused by
// name; and the demo model over HTTP.
import assert from 'node:assert';
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import Ajv from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import { finish, program, test } from './fleet.mjs';
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
            assert.ok(answer.whole && answer.tokens <= budget, where);
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
walker.stop();
finish();
