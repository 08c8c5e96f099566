// tools.mjs - other people's programs for the tests: installed ones, or those that
// deploy/test.sh has unpacked into build/tools.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';

const unpacked = 'build/tools';
export const toolEnv = { ...process.env, LD_LIBRARY_PATH: `${unpacked}/usr/lib/x86_64-linux-gnu:${process.env.LD_LIBRARY_PATH ?? ''}` };
// The path of a program, or null.
export function tool(name) {
    for (const folder of [...(process.env.PATH ?? '').split(':'), '/usr/sbin', '/sbin', `${unpacked}/usr/bin`, `${unpacked}/usr/sbin`]) {
        if (folder && existsSync(`${folder}/${name}`)) return `${folder}/${name}`;
    }
    return null;
}
// Runs it to its end: { code, text } of stdout and stderr.
export function runTool(path, args, options = {}) {
    const r = spawnSync(path, args, { encoding: 'utf8', env: path.startsWith(unpacked) ? toolEnv : process.env, ...options });
    return { code: r.status, text: r.stdout + r.stderr };
}
// A module of the npm packages that tests/clients pins.
export const npmModule = createRequire(new URL('../clients/', import.meta.url));
