// fleet.mjs - starts a real coordinator and real workers on free loopback ports for a test,
// and stops them by their own ids.  Also a tiny test runner that counts.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';

export const root = new URL('../..', import.meta.url).pathname;
const build = process.env.SILICEO_BUILD ?? 'build';
process.chdir(root);

export function program(name) {
    return `${build}/${name}`;
}

// However this process ends, nothing that it started outlives it.
const children = new Set();
process.on('exit', () => { for (const child of children) child.kill('SIGKILL'); });
for (const [signal, code] of [['SIGINT', 130], ['SIGTERM', 143]]) process.on(signal, () => process.exit(code));

// Starts a program and waits for the stdout line that `ready` matches.  prefix: words before it.
export function start(name, args, ready, { limitMs = 120000, env = {}, prefix = [], onLine = () => {} } = {}) {
    return new Promise((resolve, reject) => {
        const [first, ...words] = [...prefix, program(name), ...args];
        const child = spawn(first, words, { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } });
        children.add(child);
        child.on('exit', () => children.delete(child));
        const running = { child, log: '', name, exited: new Promise((done) => child.on('exit', (code, signal) => done({ code, signal }))) };
        const timer = setTimeout(() => { child.kill('SIGKILL'); reject(new Error(`${name}: not ready in ${limitMs} ms\n${running.log}`)); }, limitMs);
        child.stderr.on('data', (data) => { running.log += data; });
        running.exited.then(({ code, signal }) => { clearTimeout(timer); reject(new Error(`${name} ended (${code ?? signal}) before it was ready\n${running.log}`)); });
        createInterface({ input: child.stdout }).on('line', (line) => {
            onLine(line);
            const match = ready.exec(line);
            if (match) { clearTimeout(timer); running.ready = match; resolve(running); }
        });
    });
}

export async function stop(running, signal = 'SIGTERM', limitMs = 20000) {
    running.child.kill(signal);
    const timer = setTimeout(() => running.child.kill('SIGKILL'), limitMs);
    const result = await running.exited;
    clearTimeout(timer);
    return result;
}

export async function startCoordinator(args = []) {
    const c = await start('siliceo-coordinator', ['serve', '--http', '127.0.0.1:0', '--mesh', 'tcp://127.0.0.1:0', ...args],
        /^ready http=(\S+) mesh=(\S+)/);
    return { ...c, url: `http://${c.ready[1]}`, mesh: c.ready[2] };
}

export function startWorker(mesh, name, args = [], model = 'deploy/models/demo.gguf') {
    return start('siliceo-worker', ['serve', '--coordinator', mesh, '--name', name, '--model', model, '--backend', 'cpu', '--threads', '1', ...args],
        /^ready name=(\S+) model=(.+)$/);
}

// Durations of the fleet's tests are about a tenth of the settings' defaults; SILICEO_TEST_SCALE=10 makes
// them those, in slow motion: nodes are slower by as much, and limits of waiting longer.
export const stretch = Number(process.env.SILICEO_TEST_SCALE ?? 1);
export const fullLength = stretch >= 10;

// Polls until `probe` gives something true; never a fixed sleep that a slow machine outlasts.
export async function until(probe, what, limitMs = 60000) {
    const end = Date.now() + limitMs * stretch;
    for (;;) {
        const value = await probe();
        if (value) return value;
        if (Date.now() > end) throw new Error(`${what}: not within ${limitMs * stretch} ms`);
        await new Promise((next) => setTimeout(next, 20));
    }
}

// A coordinator and workers, all ready.  workers: [[name, args...], ...]
export async function startFleet(workers = [['amber'], ['basalt', '--profile', 'quarter']], coordinatorArgs = []) {
    const coordinator = await startCoordinator(coordinatorArgs);
    const all = await Promise.all(workers.map(([name, ...args]) => startWorker(coordinator.mesh, name, args)));
    await until(async () => {
        const status = await (await fetch(coordinator.url + '/status')).json();
        return status.nodes.filter((n) => n.state === 'ready').length === workers.length;
    }, 'all nodes ready');
    return {
        coordinator, workers: all, url: coordinator.url,
        async stop() {
            for (const worker of all) await stop(worker);
            await stop(coordinator);
        },
    };
}

// Two workers either of which may be killed: the coordinator soon knows, and revive() puts one back.
export async function startMortals(args = []) {
    const coordinator = await startCoordinator(['--node-suspect-s', '0.5', '--node-reconnect-s', '0.3', '--mesh-beat-s', '0.1']);
    const workers = {};
    const add = async (name) => { workers[name] = await startWorker(coordinator.mesh, name, args); };
    const nodes = async () => (await (await fetch(coordinator.url + '/status')).json()).nodes;
    const living = () => Object.values(workers).filter(({ child }) => child.exitCode === null && child.signalCode === null);
    const allReady = () => until(async () => (await nodes()).filter((n) => n.state === 'ready').length === living().length, 'all ready');
    await add('amber');
    await add('basalt');
    await allReady();
    return {
        workers, nodes, url: coordinator.url,
        async revive(name) {
            await workers[name].exited;
            await add(name);
            await allReady();
        },
        async stop() {
            for (const worker of living()) await stop(worker, 'SIGKILL');
            await stop(coordinator);
        },
    };
}

export function temporaryFolder() {
    const folder = mkdtempSync(tmpdir() + '/siliceo-test-');
    process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
    return folder;
}

// test('a sentence', async () => { ... }) in order; finish() prints the count and exits.
// SILICEO_TEST_ONLY=WORDS runs only those whose sentences have the words: for a person who looks at one.
let passed = 0, failed = 0, skipped = 0;
const only = process.env.SILICEO_TEST_ONLY ?? '';
export async function test(sentence, body) {
    if (!sentence.includes(only)) return;
    try {
        await body();
        passed++;
        console.log(`ok      ${sentence}`);
    } catch (e) {
        failed++;
        console.log(`FAILED  ${sentence}\n        ${String(e?.stack ?? e).replaceAll('\n', '\n        ')}`);
    }
}
// What this machine cannot test: named and counted, so that nobody takes it for tested.
export function skip(sentence, why) {
    skipped++;
    console.log(`skipped ${sentence}: ${why}`);
}
export function finish() {
    console.log(`${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`);
    process.exit(failed > 0 ? 1 : 0);
}
