// schemas.mjs - random JSON schemas of everything that constrained answers support.
// The same seed gives the same schemas.

export function random(seed) {
    let s = seed >>> 0;
    const next = () => { // mulberry32
        s = (s + 0x6D2B79F5) >>> 0;
        let t = Math.imul(s ^ (s >>> 15), s | 1);
        t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
        return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
    return { next, below: (n) => Math.floor(next() * n), chance: (p) => next() < p, of: (list) => list[Math.floor(next() * list.length)] };
}

const names = ['name', 'age', 'id', 'größe', 'a b', 'q"uote', 'x/y', 'back\\slash', 'items', 'type', 'value', '日本', 'note', 'ok', 'z~'];
const words = ['red', 'green', 'blue', 'a "quoted" one', 'line\nend', 'ünïcode', '', '\\', 'red and more'];
const patterns = ['^[A-Z]{2,4}-\\d+$', '^(?:cat|dog|bird)s?$', '\\d{3}', '^a*b+c?$', '^[^,;]{1,10}$', '^\\w+@\\w+\\.(com|org)$', 'end$', '^[a-f0-9]{8}$',
    '^\\$\\d{1,3}(\\.\\d\\d)?$', '^.{2,5}$', '^([a-c][x-z]){1,3}$', '^"\\S*"$', '^ä.ö$', '^\\s?[\\w.-]+$', 'x|y', '^(a|b|)$', '^\\(\\)\\[\\]\\\\$'];
const formats = ['date', 'time', 'date-time', 'email', 'uuid', 'ipv4', 'uri'];

function string(r) {
    const schema = { type: 'string' };
    const kind = r.below(6);
    if (kind === 0) schema.pattern = r.of(patterns);
    if (kind === 1) schema.format = r.of(formats);
    if (kind === 2 || kind === 3) { schema.maxLength = r.below(30); if (r.chance(0.5)) schema.minLength = r.below(schema.maxLength + 1); }
    if (kind === 4) schema.minLength = r.below(12);
    return schema;
}

function number(r) {
    const schema = { type: r.chance(0.5) ? 'integer' : 'number' };
    if (r.chance(0.4)) return schema;
    const scale = r.of([1, 10, 1000, 100000]), round = schema.type === 'integer' ? 1 : r.of([1, 10, 100]);
    const low = Math.round((r.next() - 0.5) * scale * round) / round, high = Number((low + 2 + Math.round(r.next() * scale * round) / round).toFixed(2));
    if (r.chance(0.7)) schema[r.chance(0.3) ? 'exclusiveMinimum' : 'minimum'] = low;
    if (r.chance(0.7)) schema[r.chance(0.3) ? 'exclusiveMaximum' : 'maximum'] = high;
    if (r.chance(0.1)) schema.multipleOf = 1;
    return schema;
}

function constant(r, depth) {
    const kind = r.below(depth > 0 ? 6 : 4);
    if (kind === 0) return r.of(words);
    if (kind === 1) return r.of([0, -1, 2.5, 1e21, 123456789012, 0.001]);
    if (kind === 2) return r.chance(0.5);
    if (kind === 3) return null;
    if (kind === 4) return [constant(r, depth - 1), constant(r, depth - 1)];
    return { [r.of(names)]: constant(r, depth - 1) };
}

function object(r, depth, defs) {
    const schema = { type: 'object', properties: {} };
    for (let n = r.below(6); n > 0; n--) schema.properties[r.of(names)] = value(r, depth - 1, defs);
    const all = Object.keys(schema.properties);
    const required = all.filter(() => r.chance(0.6));
    if (required.length > 0 || r.chance(0.3)) schema.required = required;
    if (r.chance(0.6)) schema.additionalProperties = false;
    if (all.length === 0 && schema.additionalProperties === undefined) {
        if (r.chance(0.7)) schema.additionalProperties = value(r, depth - 1, defs);
        if (r.chance(0.3)) schema.minProperties = 1;
        if (r.chance(0.5)) schema.maxProperties = 1 + r.below(3);
    }
    return schema;
}

function array(r, depth, defs) {
    const schema = { type: 'array' };
    if (r.chance(0.2)) {
        schema.prefixItems = Array.from({ length: 1 + r.below(3) }, () => value(r, depth - 1, defs));
        if (r.chance(0.7)) schema.minItems = r.below(schema.prefixItems.length + 1);
        if (r.chance(0.3)) schema.maxItems = (schema.minItems ?? 0) + r.below(3);
        if (r.chance(0.5)) schema.items = false;
        return schema;
    }
    if (r.chance(0.9)) schema.items = value(r, depth - 1, defs);
    if (r.chance(0.5)) schema.maxItems = r.below(5);
    if (r.chance(0.4)) schema.minItems = r.below((schema.maxItems ?? 4) + 1);
    return schema;
}

// A recursive use must be optional, or no document ends.
function value(r, depth, defs) {
    const kind = r.below(depth > 0 ? 14 : 7);
    switch (kind) {
    case 0: case 1: return string(r);
    case 2: return number(r);
    case 3: return { type: r.of(['boolean', 'null', ['string', 'null'], ['integer', 'boolean', 'array'], ['number', 'object']]) };
    case 4: return { enum: Array.from({ length: 1 + r.below(5) }, () => constant(r, 1)) };
    case 5: return { const: constant(r, 2) };
    case 6: return r.chance(0.3) ? r.of([{}, true]) : { type: 'boolean', description: 'yes or no' };
    case 7: case 8: case 9: return object(r, depth, defs);
    case 10: case 11: return array(r, depth, defs);
    case 12: {
        if (r.chance(0.6)) return { anyOf: Array.from({ length: 1 + r.below(3) }, () => value(r, depth - 1, defs)) };
        if (r.chance(0.5)) return { oneOf: [string(r), { type: 'null' }, object(r, depth - 1, defs)] };
        const tagged = (tag) => { const o = object(r, depth - 1, defs); o.properties = { kind: { const: tag }, ...o.properties };
            o.required = ['kind', ...(o.required ?? []).filter((name) => name !== 'kind')]; delete o.minProperties; delete o.maxProperties; return o; };
        return { oneOf: [tagged('circle'), tagged('square')] };
    }
    default: return defs.length > 0 ? { anyOf: [{ type: 'null' }, { $ref: `#/$defs/${r.of(defs)}` }] } : { allOf: [value(r, depth - 1, defs)] };
    }
}

export function schemaOf(seed) {
    const r = random(seed);
    const defs = r.chance(0.3) ? ['node', 'leaf'] : [];
    const schema = r.chance(0.75) ? object(r, 3, defs) : value(r, 3, defs);
    if (defs.length === 0 || typeof schema !== 'object') return schema;
    schema.$defs = { node: { type: 'object', properties: { label: string(r), children: { type: 'array', items: { $ref: '#/$defs/node' } } }, required: ['label'] },
        leaf: value(r, 1, []) };
    return schema;
}
