// test_markdown.mjs - closing fences beside a CommonMark parser (npm commonmark): after the
// repair a text has the same code blocks as before it, all closed, and a text without an open
// fence is not touched.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { Parser } from 'commonmark';
import { finish, program, root, test } from './fleet.mjs';

const F = '```', T = '~~~';
// Each must be understood as CommonMark understands it, cut off where it ends.
const documents = [
    '', 'plain', F, F + '\n', F + 'py', F + 'py\nx = 1', F + 'py\nx = 1\n', F + 'py\nx = 1\n' + F, F + 'py\nx = 1\n' + F + '\n', F + '\n' + F + F,
    T + '\ncode', T + '\n' + F + '\n', F + '\n' + T + '\n', F + F + '\ncode\n' + F, F + F + '\n' + F + '\ninner\n' + F + '\n' + F + F, '~~~~\n~~~\n',
    F + '\n' + F + 'x', F + '\n' + F + '   ', F + '\n' + F + ' x', F + ' a`b', F + 'a' + F, F + ' `', T + ' a`b\ncode', T + ' a~b\ncode', '``\ncode', '~~\ncode',
    ' ' + F + '\ncode', '  ' + F + '\ncode', '   ' + F + '\ncode', '    ' + F + '\ncode', '\t' + F + '\ncode', 'text\n    ' + F + '\ncode', 'text\n' + F + '\ncode', '# h\n' + F,
    F + '\n    ' + F + '\nstill', F + '\n   ' + F + '\ndone', F + '\n\n\n', F + '\n  \n' + F, F + '\n' + F + '\n' + F + '\nsecond', F + '\na\n' + F + '\n' + T + '\nb',
    '> ' + F + '\n> code', '> ' + F + '\n> code\n', '> ' + F + '\ncode', '> ' + F + '\n> code\n\n', '>' + F + '\n>code', '> > ' + F + '\n> > code', '> > ' + F + '\n> code', '> text\n' + F + '\ncode',
    '> ' + F + '\n> code\n> ' + F, '> ' + F + '\n> code\n' + F, '>    ' + F + '\n> x', '>     ' + F + '\n> x', '> - ' + F + '\n>   code', '- > ' + F + '\n  > code',
    '- ' + F + '\n  code', '- ' + F + '\n  code\n  ' + F, '- ' + F + '\ncode', '- item\n\n  ' + F + '\n  code', '- item\n  ' + F + '\n  code\n', '- item\n' + F + '\ncode', '-   ' + F + '\n    code', '-     ' + F + '\n  x',
    '1. ' + F + '\n   code', '1) ' + F + '\n   code\n', '10. ' + F + '\n    code', '10. ' + F + '\n   code', '123456789. ' + F + '\n           x', '1234567890. ' + F, '* a\n  * b\n    ' + F + '\n    code', '* a\n  * ' + F + '\n  code',
    '-\n  ' + F + '\n  code', '-\n\n  ' + F + '\n  code', '- a\n\n\n  ' + F + '\n  code', 'text\n- ' + F + '\n  code', 'text\n2. ' + F + '\n   code', 'text\n1. ' + F + '\n   code', 'text\n-\n  ' + F, '- - - \n  ' + F + '\n' + F, '- - ' + F + '\n    x',
    '***\n' + F + '\nx', 'a\n---\n' + F + '\nx', 'a\n===\n    ' + F + '\n', '- a\n  ---\n      ' + F + '\n', '<pre>\n' + F + '\n', '<pre>\n' + F + '\n</pre>\n' + F, '<div>\n' + F + '\n', '<div>\n\n' + F + '\n', '<!-- \n' + F + '\n-->\n' + F, '<b>\n' + F + '\n', 'a\n<b>\n' + F + '\n',
    '<script>' + F + '</script>\n' + F + '\nx', '<?php\n' + F + '\n?>', '<!X\n' + F + '>', '<![CDATA[\n' + F + '\n]]>\n' + F, '<a href="x">\n' + F, '<a href="x>\n' + F, '</b >\n' + F, '`' + F + '`', '`a\n' + F + '\nb`', '\\' + F + '\ncode', F + '\\\ncode', '- a\n\n      ' + F + '\n', '- a\n\n     ' + F + '\n',
    'a\r\n' + F + '\r\ncode\r\n' + F + '\r\n', F + '\r\ncode\r\n', '\t- ' + F, '-\t' + F + '\n\tcode', '>\t' + F + '\n>\tcode', '- ' + F + '\n\n\n  code\n\n', '> ' + F + '\n>\n> code', '> a\n> ' + F + '\nlazy', '1. a\n   > ' + F + '\n   > b\n', '[a]: b\n' + F + '\nx', '| a |\n|---|\n' + F + '\nx',
    '- a\n- ' + F + '\n- b', '- ' + F + '\n  a\n- ' + F + '\n  b', '> 1. ' + F + '\n>    a\n>    ' + F + '\n> 2. ' + F, F + '\u00e9\n\u4f60\n', 'x'.repeat(600) + '\n' + F + '\n' + 'y'.repeat(600), F + 'z'.repeat(600) + '\ncode', F + 'z'.repeat(600) + '`\ncode',
];

// Fragments thrown together: what nobody would think of.
function random(seed) {
    let state = seed;
    return (n) => { state = (Math.imul(state, 1103515245) + 12345) >>> 0; return (state >>> 8) % n; };
}
const fragments = [F, T, F + F, '~~~~', '`', '``', '> ', '>', '- ', '* ', '+', '1. ', '2. ', '10) ', '    ', '  ', ' ', '\t', '\n', '\n', '\n', '\n\n', 'text', 'code', '# h', '---', '===', '***', '<div>', '</div>', '<pre>', '</pre>', '<!--', '-->', '<b>', '\\', '\r\n', 'é', '|'];
function throwTogether(seed) {
    const pick = random(seed);
    return Array.from({ length: 2 + pick(24) }, () => fragments[pick(fragments.length)]).join('');
}

function repair(texts, step) {
    const ran = spawnSync(program('tests/clients/repair'), [String(step)], { input: texts.join('\0') + '\0', encoding: 'utf8', maxBuffer: 1 << 28 });
    assert.equal(ran.status, 0, ran.stderr);
    return ran.stdout.split('\0').slice(0, texts.length);
}

const parser = new Parser();
function blocks(text) {
    const found = [], walker = parser.parse(text).walker();
    for (let step; (step = walker.next());) if (step.entering && step.node.type === 'code_block') found.push(step.node);
    return found.map((node) => ({ fenced: node._isFenced, text: node.literal }));
}
// An open fence is one that text added behind it falls into.
const mark = 'mark of the end';
const isOpen = (text, prefix) => blocks(text + (text === '' || text.endsWith('\n') ? '' : '\n') + prefix + mark).some((b) => b.fenced && b.text.includes(mark));

function check(texts, step) {
    const repaired = repair(texts, step);
    let touched = 0;
    for (const [i, text] of texts.entries()) {
        const added = repaired[i].slice(text.length), name = JSON.stringify(text);
        assert.ok(repaired[i].startsWith(text), name);
        assert.deepEqual(blocks(repaired[i]), blocks(text), `other code blocks in ${name} + ${JSON.stringify(added)}`);
        const prefix = added.replace(/^\n/, '').replace(/[`~]+$/, '');
        assert.ok(!isOpen(repaired[i], prefix), `still open: ${name} + ${JSON.stringify(added)}`);
        if (added === '') continue;
        touched++;
        assert.ok(isOpen(text, prefix), `was not open: ${name} + ${JSON.stringify(added)}`);
    }
    return touched;
}

await test(`${documents.length} adversarial documents keep their code blocks, and every fence is closed`, () => {
    const touched = check(documents, 7);
    assert.ok(touched >= 40, `only ${touched} were open`);
});
await test('the same however the text is cut', () => {
    for (const step of [1, 2, 1000]) assert.deepEqual(repair(documents, step), repair(documents, 7));
});
await test('3,000 documents thrown together', () => {
    const touched = check(Array.from({ length: 3000 }, (_, i) => throwTogether(i + 1)), 5);
    assert.ok(touched >= 300, `only ${touched} were open`);
});
await test('every beginning of an answer with code can be its end', () => {
    const answer = 'Here:\n\n1. First\n   ```py\n   a = "``"\n   ```\n2. Then\n   > ~~~\n   > b\n   > ~~~\n\nDone `x`.\n';
    const beginnings = Array.from(answer, (_, i) => answer.slice(0, i + 1));
    const repaired = repair(beginnings, 3);
    for (const [i, text] of beginnings.entries()) assert.deepEqual(blocks(repaired[i]), blocks(text), JSON.stringify(text));
    assert.equal(repaired.at(-1), answer);
});
finish();
