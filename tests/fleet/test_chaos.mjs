// test_chaos.mjs - workers and the coordinator killed, frozen, cut and restarted under random clients.
//
// No wrong answer, no stuck request, no leak.  SILICEO_CHAOS_S is its length (120 s; `make soak`
// 1,800 s), SILICEO_CHAOS_SEED repeats one.
import assert from 'node:assert/strict';
import { finish, start, stop, test, until } from '../clients/fleet.mjs';
import { startRelay } from './relay.mjs';
import { body, content, events, quick, Rig } from './rig.mjs';

const seconds = Number(process.env.SILICEO_CHAOS_S ?? (/address|thread/.test(process.env.SILICEO_BUILD ?? '') ? 45 : 120));
const seed = Number(process.env.SILICEO_CHAOS_SEED ?? Date.now() % 1000000007);
let dice = seed;
const random = () => { dice = (dice * 48271) % 2147483647; return dice / 2147483647; };
const below = (n) => Math.floor(random() * n);
const pause = (ms) => new Promise((next) => setTimeout(next, ms));

await test(`${seconds} s of chaos, seed ${seed}: no wrong answer, no stuck request, no leak`, async () => {
    const rig = await Rig.open([]);
    const settings = [...quick, '--log-level', 'info', '--queue-max-wait-s', '10', '--limit-first-token-s', '3', '--limit-between-tokens-s', '3', '--limit-total-s', '25'];
    const http = new URL(rig.url).host, mesh = rig.coordinator.mesh;
    const served = []; // each start of it, for its log
    const serve = async () => { const c = await start('siliceo-coordinator', ['serve', '--http', http, '--mesh', mesh, ...settings], /^ready /, { limitMs: 15000 }); served.push(c); return c; };
    // What the log says of a request that went wrong.
    const trail = (id) => served.flatMap((c, i) => c.log.split('\n').filter((l) => l.includes(id)).map((l) => `${i}: ${l}`)).join('\n');
    await stop(rig.coordinator);
    let coordinator = await serve();
    const relay = await startRelay(mesh.replace('tcp://', ''));
    const names = ['amber', 'basalt', 'chert', 'flint'];
    const workers = new Map();
    const launch = async (name) => workers.set(name, await start('tests/fleet/fake_worker', ['--coordinator', name === 'flint' ? `tcp://${relay.address}` : mesh, '--name', name, '--slots', '4',
        '--decode', String(100 + 100 * names.indexOf(name)), '--prefill', '20000'], /"event":"welcome"/, { limitMs: 20000 }));
    for (const name of names) await launch(name);
    // Node's fetch compiles its parser at its first use.  A server that closes a connection meanwhile is
    // not seen to do so, and the fetch never ends; so the first is none of those that count.
    await until(async () => (await rig.nodes()).filter((n) => n.state === 'ready').length === 4, 'all nodes are ready');

    const done = {}, wrong = [];
    const count = (what) => { done[what] = (done[what] ?? 0) + 1; };
    const whole = (n) => Array.from({ length: n }, (_, i) => `t${i} `).join('');
    const end = Date.now() + seconds * 1000;
    let asked = 0;
    // One request, however it ends: the text must be the right one, or the beginning of it with an error.
    async function one() {
        const n = 1 + below(60), stream = random() < 0.7, patience = random() < 0.2 ? 20 + below(300) : 40000;
        const controller = new AbortController(), id = `chaos-${++asked}-`;
        const began = Date.now(), timer = setTimeout(() => controller.abort(), patience);
        let text = '', reply;
        try {
            reply = await fetch(`http://${http}/v1/chat/completions`, { method: 'POST', signal: controller.signal, headers: { 'content-type': 'application/json', 'x-request-id': id }, body: JSON.stringify(body({ stream, max_tokens: n })) });
            const decoder = new TextDecoder();
            for await (const piece of reply.body) text += decoder.decode(piece, { stream: true });
        } catch { /* refused, cut or left */
            if (patience === 40000 && Date.now() - began > 35000) wrong.push(`stuck for ${Date.now() - began} ms at ${new Date().toISOString()}: ${reply?.status} ${JSON.stringify(text)} of ${n}, coordinator ${served.length - 1}\n${trail(id)}`);
        }
        clearTimeout(timer);
        if (reply === undefined) { count('no reply'); return; }
        if (reply.status !== 200) { count(reply.status); if (![429, 500, 502, 503, 504].includes(reply.status)) wrong.push(`${reply.status} ${text}`); return; }
        if (!stream) {
            let json;
            try { json = JSON.parse(text); } catch { count('cut'); return; }
            if (json.choices[0].message.content !== whole(n)) wrong.push(`whole: ${text}`);
            count('whole');
            return;
        }
        const list = events(text.slice(0, text.lastIndexOf('\n\n') + 2)), got = content(list);
        if (!whole(n).startsWith(got)) wrong.push(`stream of ${n}: ${got}`);
        else if (list.includes('[DONE]') && got !== whole(n)) wrong.push(`[DONE] after ${got} of ${n}`);
        count(list.includes('[DONE]') ? 'streamed' : list.some((e) => e.error) ? 'error event' : 'cut');
    }
    const clients = Array.from({ length: 8 }, async () => { while (Date.now() < end) { await one(); await pause(below(60)); } });
    const faults = {
        async 'kill a worker'() { const name = names[below(4)], w = workers.get(name); await stop(w, 'SIGKILL'); await pause(below(1500)); await launch(name); },
        async 'freeze a worker'() { const w = workers.get(names[below(4)]); w.child.kill('SIGSTOP'); await pause(below(2500)); w.child.kill('SIGCONT'); },
        async 'restart a worker'() { const name = names[below(4)]; await stop(workers.get(name), 'SIGTERM'); await launch(name); },
        async 'hold a line'() { relay.set({ hold: true }); await pause(below(2500)); relay.set({ hold: false }); },
        async 'reset a line'() { relay.set({ reset: true }); await pause(100); },
        async 'kill the coordinator'() { await stop(coordinator, 'SIGKILL'); await pause(below(800)); coordinator = await serve(); },
        async 'restart the coordinator'() { coordinator.child.kill('SIGTERM'); await pause(below(300)); coordinator.child.kill('SIGTERM'); await coordinator.exited; coordinator = await serve(); },
        async 'freeze the coordinator'() { coordinator.child.kill('SIGSTOP'); await pause(below(1500)); coordinator.child.kill('SIGCONT'); },
    };
    const kinds = Object.keys(faults), happened = {}, bag = [];
    while (Date.now() < end) {
        if (bag.length === 0) bag.push(...kinds, ...kinds.slice(0, 5)); // workers suffer twice as often
        const [kind] = bag.splice(below(bag.length), 1);
        await faults[kind]();
        happened[kind] = (happened[kind] ?? 0) + 1;
        const oldest = await rig.metric('siliceo_oldest_request_seconds').catch(() => 0); // 0: it has just been cut off
        if (!(oldest < 27)) wrong.push(`a request is ${oldest} s old`); // limit.total_s and a freeze
        await pause(100 + below(900));
    }
    await Promise.all(clients);
    console.log(`        ${JSON.stringify(done)} ${JSON.stringify(happened)}`);
    assert.deepEqual(wrong, []);
    assert.ok((done.streamed ?? 0) > seconds && (done.whole ?? 0) > seconds / 3, JSON.stringify(done));
    await until(async () => (await rig.nodes()).filter((n) => n.state === 'ready').length === 4, 'all nodes are ready again', 20000);
    await rig.idle();
    await until(async () => (await rig.status()).http.connections <= 3, 'connections end', 90000);
    assert.ok(await rig.metric('process_open_fds') < 60);
    for (const worker of workers.values()) await stop(worker, 'SIGKILL');
    assert.equal((await stop(coordinator)).code, 0);
    await relay.stop();
});
finish();
