// relay.mjs - a TCP relay in a process of its own that delays, narrows or holds what passes.
//
//     node relay.mjs HOST:PORT [DELAY-MS] [BYTES/S]      prints `ready PORT`, then obeys lines
//     {"delayMs": 40, "bytesPerS": 100000, "hold": true, "reset": true} on stdin
//
//     const relay = await startRelay('127.0.0.1:5690', { delayMs: 40 });   // relay.address
//     relay.set({ hold: true });  await relay.stop();
//
// Delay and bandwidth are each way.  hold keeps connections open and passes nothing, reset ends
// all at once.  It stands where the kernel has no netem.
import net from 'node:net';
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const here = fileURLToPath(import.meta.url);
const HIGH = 1 << 20; // bytes under way before the sender is held back

export async function startRelay(to, { delayMs = 0, bytesPerS = 0 } = {}) {
    const child = spawn(process.execPath, [here, to, String(delayMs), String(bytesPerS)], { stdio: ['pipe', 'pipe', 'inherit'] });
    process.on('exit', () => child.kill('SIGKILL'));
    const exited = new Promise((resolve) => child.on('exit', resolve));
    const port = await new Promise((resolve, reject) => {
        createInterface({ input: child.stdout }).once('line', (line) => resolve(Number(line.split(' ')[1])));
        child.on('exit', () => reject(new Error('the relay ended')));
    });
    return {
        address: `127.0.0.1:${port}`, port,
        set(settings) { child.stdin.write(JSON.stringify(settings) + '\n'); },
        stop() { child.stdin.end(); return exited; },
    };
}

function main([to, delayMs = '0', bytesPerS = '0']) {
    const colon = to.lastIndexOf(':');
    const [host, port] = [to.slice(0, colon), Number(to.slice(colon + 1))];
    const settings = { delayMs: Number(delayMs), bytesPerS: Number(bytesPerS), hold: false };
    const pipes = new Set(), sockets = new Set();

    // One direction: pieces wait until their time; the line's rate spaces them.
    function pipe(from, into) {
        const queue = [];
        let freeAt = 0, held = 0, timer = null;
        const p = {
            flush() {
                clearTimeout(timer);
                timer = null;
                while (!settings.hold && queue.length > 0 && queue[0].at <= performance.now()) {
                    const { data } = queue.shift();
                    if (data === null) { into.end(); continue; }
                    held -= data.length;
                    into.write(data);
                    if (held < HIGH) from.resume();
                }
                if (!settings.hold && queue.length > 0) timer = setTimeout(p.flush, Math.max(0, queue[0].at - performance.now()));
            },
            push(data) {
                const now = performance.now(), n = data === null ? 0 : data.length;
                freeAt = Math.max(freeAt, now) + (settings.bytesPerS > 0 ? n / settings.bytesPerS * 1000 : 0);
                queue.push({ at: freeAt + settings.delayMs, data });
                held += n;
                if (held >= HIGH) from.pause();
                if (timer === null) p.flush();
            },
        };
        from.on('data', (data) => p.push(data));
        from.on('end', () => p.push(null));
        from.on('close', () => { pipes.delete(p); into.destroySoon(); });
        pipes.add(p);
    }

    const server = net.createServer({ allowHalfOpen: true, noDelay: true }, (near) => {
        const far = net.connect({ host, port, allowHalfOpen: true, noDelay: true });
        for (const [socket, other] of [[near, far], [far, near]]) {
            sockets.add(socket);
            socket.on('error', () => other.destroy());
            socket.on('close', () => sockets.delete(socket));
        }
        pipe(near, far);
        pipe(far, near);
    });
    server.listen(0, '127.0.0.1', () => console.log(`ready ${server.address().port}`));
    const control = createInterface({ input: process.stdin });
    control.on('line', (line) => {
        const { reset, ...rest } = JSON.parse(line);
        Object.assign(settings, rest);
        if (reset) for (const socket of sockets) socket.resetAndDestroy();
        for (const p of pipes) p.flush();
    });
    control.on('close', () => process.exit(0));
}

if (process.argv[1] === here) main(process.argv.slice(2));
