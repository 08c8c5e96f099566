// rig.mjs - a real coordinator process with fake workers and raw HTTP, for the fault tests.
import http from 'node:http';
import net from 'node:net';
import { fullLength, start, startCoordinator, stop, stretch, until } from '../clients/fleet.mjs';

// The words of a command line with their durations stretched and their rates slowed down.
const isDuration = (word) => /^--.+-s$/.test(word), isMilliseconds = (word) => /^--.+-ms$/.test(word), isRate = (word) => /^--(prefill|decode)$/.test(word);
export const scaled = (words) => words.map((word, i) => {
    const before = words[i - 1] ?? '';
    if (isRate(before)) return String(Number(word) / stretch);
    return isDuration(before) ? String(Number(word) * stretch) : isMilliseconds(before) ? String(Math.round(Number(word) * stretch)) : word;
});
// Durations scaled down, so that the same rules run in a short time; at full length the defaults.
export const quick = fullLength ? ['--log-level', 'debug'] : ['--mesh-beat-s', '0.1', '--node-suspect-s', '0.5', '--node-down-s', '1.5', '--node-reconnect-s', '0.5', '--limit-cancel-s', '2',
    '--log-level', 'debug'];

// A failed test leaves its processes; they end with the run.
const children = new Set();
process.on('exit', () => { for (const child of children) child.kill('SIGKILL'); });

export class Rig {
    fakes = [];
    // hosts: by node name, the Host of netns.mjs on which add() starts its fake worker.
    static async open(coordinatorArgs = [], fakes = [], { hosts = {} } = {}) {
        const rig = new Rig();
        rig.hosts = hosts;
        rig.coordinator = await startCoordinator([...quick, ...scaled(coordinatorArgs)]);
        children.add(rig.coordinator.child);
        rig.log = '';
        rig.coordinator.child.stderr.on('data', (data) => { rig.log += data; });
        rig.url = rig.coordinator.url;
        [rig.host, rig.port] = [new URL(rig.url).hostname, Number(new URL(rig.url).port)];
        for (const [name, ...args] of fakes) await rig.add(name, ...args);
        return rig;
    }
    // A fake worker; resolves when the coordinator has it in state `state`.
    async add(name, ...words) {
        const args = scaled([...(words.includes('--decode') ? [] : ['--decode', '100']), ...(words.includes('--prefill') ? [] : ['--prefill', '10000']), ...words]);
        if (fullLength) args.push('--dead-ms', '5000'); // as the worker has it
        const state = args.includes('load') ? 'loading' : 'ready';
        const events = []; // from the first line on: what comes in one piece with the welcome counts
        const fake = await start('tests/fleet/fake_worker', ['--coordinator', this.coordinator.mesh, '--name', name, ...args], /"event":"welcome"/,
            { prefix: this.hosts[name]?.prefix, onLine: (line) => events.push(JSON.parse(line)) });
        fake.host = this.hosts[name];
        children.add(fake.child);
        fake.events = events;
        fake.nodeName = name;
        this.fakes.push(fake);
        await until(async () => (await this.nodes()).some((n) => (n.name === name || n.name.startsWith(name + '-')) && n.state === state), `${name} ${state}`);
        return fake;
    }
    fake(name) { return this.fakes.find((f) => f.nodeName === name); }
    async status() { return (await fetch(this.url + '/status')).json(); }
    async nodes() { return (await this.status()).nodes; }
    async node(name) { return (await this.nodes()).find((n) => n.name === name); }
    async metric(name) {
        const text = await (await fetch(this.url + '/metrics')).text();
        const line = text.split('\n').find((l) => l.startsWith(name + ' ') || l.startsWith(name + '{'));
        return line === undefined ? undefined : Number(line.split(' ').at(-1));
    }
    // Every counter of what is under way back to zero.
    idle(limitMs = 15000) {
        let last;
        return until(async () => {
            last = await this.status();
            const r = last.requests;
            if (r.running < 0 || r.waiting < 0) throw new Error('a negative counter');
            return r.running === 0 && r.waiting === 0 && r.cancelling === 0 && last.http.exchanges === 1 &&
                last.nodes.every((n) => n.running === 0 && n.waiting === 0 && (n.state !== 'ready' || n.beat.running === 0));
        }, 'idle', limitMs).catch((e) => { throw new Error(`${e.message}: ${JSON.stringify(last)}`); });
    }
    async close() {
        for (const fake of this.fakes) await stop(fake, 'SIGKILL');
        const { code } = await stop(this.coordinator);
        if (code !== 0) throw new Error(`the coordinator ended with ${code}\n${this.log}`);
    }
}

export const body = (more = {}) => ({ model: 'fake-model', messages: [{ role: 'user', content: 'hello' }], ...more });

// POST and read the whole reply.
export async function ask(url, request, headers = {}) {
    const reply = await fetch(url + '/v1/chat/completions', { method: 'POST', headers: { 'content-type': 'application/json', ...headers },
        body: typeof request === 'string' ? request : JSON.stringify(request) });
    const text = await reply.text();
    let json = null;
    try { json = JSON.parse(text); } catch { /* a stream */ }
    return { status: reply.status, headers: reply.headers, text, json, node: reply.headers.get('x-siliceo-node') };
}

// The data events of a stream; the last element is '[DONE]' when it ended well.
export function events(text) {
    return text.split('\n\n').filter((e) => e.startsWith('data: ')).map((e) => (e === 'data: [DONE]' ? '[DONE]' : JSON.parse(e.slice(6))));
}
export const content = (list) => list.filter((e) => e !== '[DONE]').map((e) => e.choices?.[0]?.delta?.content ?? '').join('');

// A request on a socket of its own, with the means to leave in every way.
export function open(rig, request, path = '/v1/chat/completions') {
    const text = JSON.stringify(request);
    const socket = net.connect(rig.port, rig.host);
    const opened = { socket, text: '', closed: false };
    socket.on('data', (data) => { opened.text += data; });
    socket.on('close', () => { opened.closed = true; });
    socket.on('error', () => {});
    socket.write(`POST ${path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`);
    return opened;
}

// The events of a reply that open() has read so far: its chunks without their framing.
export function streamed(opened) {
    let rest = opened.text.slice(opened.text.indexOf('\r\n\r\n') + 4), text = '';
    for (;;) {
        const at = rest.indexOf('\r\n'), size = parseInt(rest.slice(0, at), 16);
        if (at < 0 || !(size > 0)) return events(text);
        text += rest.slice(at + 2, at + 2 + size);
        rest = rest.slice(at + 4 + size);
    }
}

// Raw bytes in, whatever comes back until the connection ends or `done` is satisfied.
export function raw(rig, bytes, { done = () => false, limitMs = 10000 } = {}) {
    return new Promise((resolve) => {
        const socket = net.connect(rig.port, rig.host);
        let text = '';
        const timer = setTimeout(() => socket.destroy(), limitMs);
        socket.on('data', (data) => { text += data; if (done(text)) socket.destroy(); });
        socket.on('error', () => {});
        socket.on('close', () => { clearTimeout(timer); resolve(text); });
        socket.write(bytes);
    });
}

export { fullLength, http, net, stop, stretch, until };
