// scale.mjs - the coordinator pinned to one core under many streams, nodes and requests, beside nginx
// as a plain reverse proxy, on the same core and by the same load program in the same run.
//
//     node tests/benchmark/scale.mjs [--seconds 10] [--streams 1000] [--nodes 1000]
//
// Streams, requests and the playing worker run on the other core.  paced_added_* are times less those of the
// plain server asked directly, so the way to a worker and back counts as added; over_worker_* are of
// requests at the same pace whose worker is also spoken to directly, over the mesh's own protocol.  added_gap is by how much a pause
// between two tokens differs from the pause the worker made; token_* is the whole way of a token.
import { execFile, spawn } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { loadavg } from 'node:os';
import net from 'node:net';
import { promisify } from 'node:util';
import { program, start, stop, temporaryFolder, until } from '../clients/fleet.mjs';
import { tool } from '../fleet/tools.mjs';
import { record } from './record.mjs';

const argument = (name, fallback) => {
    const at = process.argv.indexOf('--' + name);
    return at > 0 ? +process.argv[at + 1] : fallback;
};
const seconds = argument('seconds', 10), streams = argument('streams', 1000), nodes = argument('nodes', 1000);
const on = (core, ...words) => ['taskset', '-c', String(core), ...words];
const load = async (...args) => {
    const [first, ...words] = on(1, program('tests/benchmark/load'), ...args.map(String));
    return JSON.parse((await promisify(execFile)(first, words)).stdout);
};
const cpuSeconds = (pid) => { const f = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' '); return (Number(f[11]) + Number(f[12])) / 100; };
const residentMib = (pid) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;
const pause = (ms) => new Promise((next) => setTimeout(next, ms));
const freePort = () => new Promise((resolve) => { const s = net.createServer().listen(0, '127.0.0.1', () => { const { port } = s.address(); s.close(() => resolve(port)); }); });
// Runs `work` and says which share of a core pids used meanwhile, and the most memory of the first.
async function watched(pids, work) {
    const begun = performance.now(), before = pids.reduce((sum, pid) => sum + cpuSeconds(pid), 0);
    let memory = 0;
    const timer = setInterval(() => { memory = Math.max(memory, pids.reduce((sum, pid) => sum + residentMib(pid), 0)); }, 200);
    const result = await work();
    clearInterval(timer);
    return { ...result, core_share: +((pids.reduce((sum, pid) => sum + cpuSeconds(pid), 0) - before) / ((performance.now() - begun) / 1000)).toFixed(3), resident_mib: +memory.toFixed(1) };
}
const coordinatorArgs = ['serve', '--http', '127.0.0.1:0', '--mesh', 'tcp://127.0.0.1:0', '--log-level', 'error', '--queue-max-waiting', '10000'];
async function startOn0() {
    const c = await start('siliceo-coordinator', coordinatorArgs, /^ready http=(\S+) mesh=(\S+)/, { prefix: on(0) });
    return { ...c, http: c.ready[1], mesh: c.ready[2] };
}
const fake = (c, name, ...args) => start('tests/fleet/fake_worker', ['--coordinator', c.mesh, '--name', name, ...args], /"event":"welcome"/, { prefix: on(1) });
const ready = (c, n) => until(async () => (await (await fetch(`http://${c.http}/status`)).json()).nodes.filter((x) => x.state === 'ready').length === n, `${n} nodes ready`, 60000);

// The same three loads on whatever listens at `address`.
async function loads(address, pids) {
    return {
        streams: await watched(pids, () => load('streams', address, streams, 20, seconds)),
        flood: await watched(pids, () => load('requests', address, 64, Math.ceil(seconds / 2))),
        paced: await watched(pids, () => load('requests', address, 16, Math.ceil(seconds / 2), 500)),
    };
}
const busy = loadavg()[0];
const c = await startOn0();
const worker = await fake(c, 'amber', '--slots', '2000', '--decode', '20', '--prefill', '1e12', '--stamp', 'yes');
await ready(c, 1);
const own = await loads(c.http, [c.child.pid]);
// One request of one token at a time, through the coordinator and to its worker directly, in turns.
const latency = async (...args) => {
    const [first, ...words] = on(1, program('tests/benchmark/latency'), ...args.map(String));
    return JSON.parse((await promisify(execFile)(first, words)).stdout);
};
const get = await promisify(execFile)(tool('wrk') ?? 'wrk', ['-t1', '-c64', `-d${Math.ceil(seconds / 2)}s`, `http://${c.http}/healthz`]).then(({ stdout }) => Number(/Requests\/sec:\s+([\d.]+)/.exec(stdout)[1])).catch(() => null);
await stop(worker, 'SIGKILL');
await stop(c);
const turns = [];
for (let turn = 0; turn < 3; turn++) {
    const c3 = await startOn0();
    turns.push({ through: await latency('http', c3.http, c3.mesh, 500 * seconds, 1, 500), direct: await latency('direct', 500 * seconds, 1, 500) });
    await stop(c3);
}
const middle = (of) => turns.map(of).sort((a, b) => a - b)[1];
const overWorker = (key) => +((middle((t) => t.through[key]) - middle((t) => t.direct[key])) / 1000).toFixed(3);

const c2 = await startOn0();
const many = await fake(c2, 'node', '--nodes', String(nodes), '--beat-ms', '1000');
await ready(c2, nodes);
const beats = await watched([c2.child.pid], () => pause(seconds * 1000));
await stop(many, 'SIGKILL');
await stop(c2);

let nginx = null, direct = { p50_ms: 0, p99_ms: 0 };
if (tool('nginx') !== null) {
    const folder = temporaryFolder(), port = await freePort(), behind = await freePort();
    mkdirSync(`${folder}/logs`);
    writeFileSync(`${folder}/nginx.conf`, `daemon off; worker_processes 1; pid ${folder}/pid; error_log ${folder}/logs/error.log;
events { worker_connections 8192; }
http { access_log off; client_body_temp_path ${folder}/b; proxy_temp_path ${folder}/p; fastcgi_temp_path ${folder}/f; uwsgi_temp_path ${folder}/u; scgi_temp_path ${folder}/s;
    upstream plain { server 127.0.0.1:${behind}; keepalive 256; }
    server { listen 127.0.0.1:${port}; location / { proxy_pass http://plain; proxy_http_version 1.1; proxy_set_header Connection ""; } } }`);
    const plain = await start('tests/benchmark/load', ['serve', `127.0.0.1:${behind}`], /^ready/, { prefix: on(1) });
    const [first, ...words] = on(0, tool('nginx'), '-p', folder, '-c', `${folder}/nginx.conf`);
    const master = spawn(first, words, { stdio: 'ignore' });
    process.on('exit', () => master.kill('SIGTERM'));
    await until(() => new Promise((resolve) => { const s = net.connect(port, '127.0.0.1', () => { s.destroy(); resolve(true); }); s.on('error', () => resolve(false)); }), 'nginx listens');
    const pids = readFileSync(`/proc/${master.pid}/task/${master.pid}/children`, 'utf8').trim().split(' ').map(Number);
    // The client and the server without anything between, to know what is added.
    direct = await load('requests', `127.0.0.1:${behind}`, 16, Math.ceil(seconds / 2), 500);
    nginx = await loads(`127.0.0.1:${port}`, pids);
    const ended = new Promise((resolve) => master.on('exit', resolve));
    master.kill('SIGTERM');
    await ended;
    await stop(plain, 'SIGKILL');
}
const added = (a, b) => +Math.max(0, a - b).toFixed(3);
const figuresOf = (r) => ({ tokens_lost: r.streams.tokens_lost, added_gap_p99_ms: r.streams.added_gap_p99_ms, token_p50_ms: r.streams.token_p50_ms, token_p99_ms: r.streams.token_p99_ms,
    streams_core_share: r.streams.core_share, streams_resident_mib: r.streams.resident_mib, requests_per_s: r.flood.per_s, paced_p50_ms: r.paced.p50_ms, paced_p99_ms: r.paced.p99_ms,
    paced_added_p50_ms: added(r.paced.p50_ms, direct.p50_ms), paced_added_p99_ms: added(r.paced.p99_ms, direct.p99_ms) });
record('coordinator-scale', `node tests/benchmark/scale.mjs --seconds ${seconds}`, { ...figuresOf(own), get_per_s: get ?? undefined, over_worker_added_p50_ms: overWorker('ttft_p50_us'), over_worker_added_p99_ms: overWorker('ttft_p99_us'), beating_nodes: nodes, beats_core_share: beats.core_share },
    nginx === null ? {} : figuresOf(nginx), { raw: { own, beats, nginx, direct, turns }, note: `the server on core 0, load and worker on core 1; a request goes on to a playing worker (the coordinator) or a plain server (nginx); load average before it: ${busy.toFixed(1)}${process.env.SILICEO_BENCH_NOTE ? `; ${process.env.SILICEO_BENCH_NOTE}` : ''}` });
process.exit(0);
