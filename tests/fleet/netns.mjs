// netns.mjs - hosts in network namespaces of their own, whose cables tests pull.
//
//     await insideNamespaces(import.meta.url, ['what would be tested', ...]);
//     const net = new Network();
//     const host = await net.host();            // a namespace behind one port of a switch
//     host.prefix                               // put before a command line, it runs there
//     await host.pull(); await host.plug();     // the cable: link down and up
//     await host.drop(); await host.pass();     // packets vanish both ways, without a reset
//     await net.close();
//
// The test process itself, with the coordinator, is the host net.address (10.77.0.1) on the
// switch.  Everything lives in a user namespace, so no privilege is needed; where the kernel
// refuses one, insideNamespaces() counts the named tests as skipped.
import { execFile, spawn, spawnSync } from 'node:child_process';
import { promisify } from 'node:util';
import { fileURLToPath } from 'node:url';
import { finish, skip } from '../clients/fleet.mjs';

const run = promisify(execFile);
const inside = 'SILICEO_TEST_INSIDE_NAMESPACE';
const searched = { ...process.env, PATH: `${process.env.PATH}:/usr/sbin:/sbin` };

// What the kernel or the machine lacks, or ''.
function lacking() {
    const probe = 'ip link set lo up && ip link add name probe0 type bridge && ip link add name probe1 type veth peer name probe2 && nft add table inet probe';
    const r = spawnSync('unshare', ['--user', '--map-root-user', '--net', 'sh', '-c', probe], { env: searched, encoding: 'utf8' });
    if (r.error) return `no unshare: ${r.error.code}`;
    return r.status === 0 ? '' : `namespaces are refused: ${(r.stderr || `exit ${r.status}`).trim().split('\n').at(-1)}`;
}

// Runs the calling test file again inside fresh namespaces and never returns out here;
// returns when already inside.
export async function insideNamespaces(fileUrl, sentences) {
    if (process.env[inside]) {
        await run('ip', ['link', 'set', 'lo', 'up'], { env: searched });
        return;
    }
    const why = lacking();
    if (why) {
        for (const sentence of sentences) skip(sentence, why);
        finish();
    }
    const child = spawn('unshare', ['--user', '--map-root-user', '--net', '--kill-child', '--', process.execPath, fileURLToPath(fileUrl)],
        { stdio: 'inherit', env: { ...searched, [inside]: '1' } });
    for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => child.kill(signal));
    await new Promise(() => child.on('exit', (code) => process.exit(code ?? 1)));
}

const ip = (...words) => run('ip', words, { env: searched });

class Host {
    constructor(network, number) {
        this.network = network;
        this.number = number;
        this.address = `10.77.0.${number}`;
        this.port = `port${number}`;
    }
    async open() {
        // Something must hold the namespace; it ends with its stdin, so with this process.
        this.holder = spawn('unshare', ['--net', 'sh', '-c', 'echo held; exec cat'], { stdio: ['pipe', 'pipe', 'inherit'] });
        await new Promise((resolve, reject) => {
            this.holder.stdout.once('data', resolve);
            this.holder.once('exit', () => reject(new Error('no network namespace')));
        });
        this.prefix = ['nsenter', `--net=/proc/${this.holder.pid}/ns/net`, '--'];
        await ip('link', 'add', 'name', this.port, 'type', 'veth', 'peer', 'name', 'cable0', 'netns', String(this.holder.pid));
        await ip('link', 'set', this.port, 'master', 'switch0');
        await ip('link', 'set', this.port, 'up');
        await this.run('ip', 'link', 'set', 'lo', 'up');
        await this.run('ip', 'address', 'add', `${this.address}/24`, 'dev', 'cable0');
        await this.run('ip', 'link', 'set', 'cable0', 'up');
        return this;
    }
    run(...words) {
        const [program, ...rest] = [...this.prefix, ...words];
        return run(program, rest, { env: searched });
    }
    pull() { return ip('link', 'set', this.port, 'down'); }
    plug() { return ip('link', 'set', this.port, 'up'); }
    async drop() {
        await this.run('nft', 'add table inet cut; add chain inet cut in { type filter hook input priority 0; policy drop; }; add chain inet cut out { type filter hook output priority 0; policy drop; }');
    }
    pass() { return this.run('nft', 'delete', 'table', 'inet', 'cut'); }
    // The same machine behind another address, as after a new lease.
    async move() {
        await this.run('ip', 'address', 'del', `${this.address}/24`, 'dev', 'cable0');
        this.address = `10.77.1.${this.number}`;
        await this.run('ip', 'address', 'add', `${this.address}/16`, 'dev', 'cable0');
    }
}

export class Network {
    address = '10.77.0.1';
    hosts = [];
    async host() {
        if (this.hosts.length === 0) {
            await ip('link', 'add', 'name', 'switch0', 'type', 'bridge');
            await ip('address', 'add', `${this.address}/16`, 'dev', 'switch0');
            await ip('link', 'set', 'switch0', 'up');
        }
        const host = new Host(this, this.hosts.length + 2);
        this.hosts.push(host);
        return host.open();
    }
    async close() {
        for (const host of this.hosts) {
            host.holder.stdin.end();
            await new Promise((resolve) => host.holder.once('exit', resolve));
        }
        if (this.hosts.length > 0) await ip('link', 'del', 'switch0');
        this.hosts = [];
    }
}
