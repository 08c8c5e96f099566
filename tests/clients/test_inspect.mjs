// test_inspect.mjs - `siliceo-worker inspect --json` against an independent reader, @huggingface/gguf:
// keys with types and values, tensors with types, shapes and offsets, of both demo models and of every
// model that make_model writes.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { GGMLQuantizationType, GGUFValueType, gguf } from '@huggingface/gguf';
import { finish, program, temporaryFolder, test } from './fleet.mjs';

const folder = temporaryFolder();
const ourNames = { UINT8: 'u8', INT8: 'i8', UINT16: 'u16', INT16: 'i16', UINT32: 'u32', INT32: 'i32', FLOAT32: 'f32',
    BOOL: 'bool', STRING: 'string', ARRAY: 'array', UINT64: 'u64', INT64: 'i64', FLOAT64: 'f64' };
const typeName = (id) => ourNames[GGUFValueType[id]];

function inspect(path, ...flags) {
    return JSON.parse(execFileSync(program('siliceo-worker'), ['inspect', '--model', path, '--json', ...flags],
        { maxBuffer: 1 << 28 }));
}

// Nine digits of a float32 name it exactly; the other reader gives the float widened to a double.
function sameValue(ours, theirs, kind) {
    return kind === 'f32' ? Math.fround(ours) === theirs : ours === (typeof theirs === 'bigint' ? Number(theirs) : theirs);
}

function compareKeys(ours, theirs) {
    const header = ['version', 'tensor_count', 'kv_count'];
    const names = Object.keys(theirs).filter((name) => !header.includes(name));
    assert.deepEqual(Object.keys(ours), names);
    for (const name of names) {
        const a = ours[name], b = theirs[name];
        assert.equal(a.type, typeName(b.type), name);
        if (a.type !== 'array') {
            assert.ok(sameValue(a.value, b.value, a.type), `${name}: ${a.value}, expected ${b.value}`);
            continue;
        }
        assert.equal(a.item_type, typeName(b.subType), name);
        assert.equal(a.count, b.value.length, name);
        assert.equal(a.value.length, b.value.length, name);
        const bad = a.value.findIndex((item, i) => !sameValue(item, b.value[i], a.item_type));
        assert.equal(bad, -1, `${name}[${bad}]: ${a.value[bad]}, expected ${b.value[bad]}`);
    }
}

function compareTensors(ours, theirs) {
    const seen = (t) => ({ name: t.name, type: t.type, shape: t.shape, offset: t.offset, at: t.file_offset });
    const expected = theirs.tensorInfos.map((t) => ({ name: t.name, type: GGMLQuantizationType[t.dtype],
        shape: t.shape.map(Number), offset: Number(t.offset), at: Number(theirs.tensorDataOffset + t.offset) }));
    assert.deepEqual(ours.tensors.map(seen), expected);
    assert.equal(ours.shards[0].data_start, Number(theirs.tensorDataOffset));
}

async function compare(path) {
    const ours = inspect(path);
    const theirs = await gguf(path, { allowLocalFile: true, typedMetadata: true });
    assert.equal(ours.version, theirs.metadata.version);
    assert.equal(ours.tensors.length, Number(theirs.metadata.tensor_count));
    compareKeys(ours.keys, theirs.typedMetadata);
    compareTensors(ours, theirs);
}

const models = JSON.parse(readFileSync('tests/golden/data/models.json')).models;
assert.equal(models.length, 29);
for (const name of ['demo', 'draft']) {
    await test(`${name}.gguf reads as the independent reader reads it`, () => compare(`deploy/models/${name}.gguf`));
}
for (const { name, params } of models) {
    await test(`the made model ${name} reads as the independent reader reads it`, async () => {
        const path = join(folder, `${name}.gguf`);
        execFileSync(program('make_model'), ['--params', JSON.stringify(params), '--out', path]);
        await compare(path);
        rmSync(path);
    });
}
await test('--no-arrays keeps kinds and counts of arrays and leaves their items out', () => {
    const { keys } = inspect('deploy/models/draft.gguf', '--no-arrays');
    assert.deepEqual(keys['tokenizer.ggml.tokens'], { type: 'array', item_type: 'string', count: 4096 });
});

await test('the table says what running the model needs', () => {
    const table = execFileSync(program('siliceo-worker'), ['inspect', '--model', 'deploy/models/demo.gguf'], { encoding: 'utf8' });
    assert.match(table, /8 layers: 6 delta net, 2 full attention/);
    assert.match(table, /experts +256, 32 a token/);
    assert.match(table, /KV a token +f32 4096 bytes, f16 2048 bytes, q8 1088 bytes, q4 640 bytes/);
});
await test('--check names the tensor whose scale is no number, by its place in the file', () => {
    const bytes = readFileSync('deploy/models/draft.gguf');
    const path = join(folder, 'bad.gguf');
    const tensor = inspect('deploy/models/draft.gguf', '--no-arrays').tensors.find((t) => t.type === 'Q8_0' && t.name.startsWith('blk.1.'));
    const run = () => spawnSync(program('siliceo-worker'), ['inspect', '--check', '--model', path], { encoding: 'utf8' });
    writeFileSync(path, bytes);
    assert.equal(run().status, 0);
    bytes.writeUInt16LE(0x7e00, tensor.file_offset + 34 * 3);
    writeFileSync(path, bytes);
    const { status, stderr } = run();
    assert.equal(status, 1);
    assert.match(stderr, new RegExp(`tensor ${tensor.name.replaceAll('.', '\\.')}: block 3 of Q8_0, at byte ${tensor.file_offset + 102} `));
});
await test('mistakes exit with 2, files that cannot be read with 1, in one line', () => {
    for (const [flags, code, text] of [[[], 2, '--model'], [['--modle', 'x'], 2, '--modle'], [['--model', '/nonexistent'], 1, '/nonexistent'],
        [['--model', 'Makefile'], 1, 'magic']]) {
        const { status, stderr } = spawnSync(program('siliceo-worker'), ['inspect', ...flags], { encoding: 'utf8' });
        assert.equal(status, code, stderr);
        assert.ok(stderr.includes(text) && stderr.trimEnd().split('\n').length === 1, stderr);
    }
});

finish();
