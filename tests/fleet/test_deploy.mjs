// test_deploy.mjs - what deploy/ has for Prometheus, Grafana, systemd, proxies and clusters, each
// checked by its own linter where one is here, and against a live coordinator.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { finish, program, root, skip, stop, temporaryFolder, test, until } from '../clients/fleet.mjs';
import { ask, body, Rig } from './rig.mjs';
import { runTool, tool } from './tools.mjs';

// linted(name, programName, run): a test where the program is, a named skip where it is not.
async function linted(sentence, name, run) {
    const path = tool(name);
    if (path === null) skip(sentence, `there is no ${name}`);
    else await test(sentence, () => run(path));
}
const passes = (r) => assert.equal(r.code, 0, r.text);
const text = (path) => readFileSync(path, 'utf8');
const dashboard = JSON.parse(text('deploy/grafana/siliceo.json'));
const expressions = dashboard.panels.flatMap((p) => p.targets.map((t) => t.expr));
const words = (expression) => expression.match(/\b(siliceo|process)_\w+/g) ?? [];

await test('every metric that the dashboard and the alert rules name is there, with HELP and TYPE, by Prometheus conventions', async () => {
    const rig = await Rig.open(['--ledger-url', `${temporaryFolder()}/ledger.db`], [['amber', '--decode', '500']]);
    assert.equal((await ask(rig.url, body({ max_tokens: 3 }))).status, 200);
    await rig.idle();
    const live = await (await fetch(rig.url + '/metrics')).text();
    const families = new Map([...live.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map((m) => [m[1], m[2]]));
    const samples = new Set([...live.matchAll(/^([a-z_]+)[{ ]/gm)].map((m) => m[1]));
    const wanted = new Set([...expressions, text('deploy/prometheus/alerts.yml')].flatMap(words));
    assert.ok(wanted.size > 25);
    for (const name of wanted) assert.ok(samples.has(name), `${name} is not in /metrics`);
    for (const [name, type] of families) {
        assert.ok(live.includes(`# HELP ${name} `), name);
        assert.equal(name.endsWith('_total'), type === 'counter', `${name} is a ${type}`);
        assert.ok(!/_(ms|mib|kib|percent|minutes)(_|$)/.test(name), `${name} is not in base units`);
    }
    for (const name of ['siliceo_first_token_seconds', 'siliceo_between_tokens_seconds', 'siliceo_request_duration_seconds']) assert.equal(families.get(name), 'histogram');
    assert.match(live, /^siliceo_request_duration_seconds_count 1$/m);
    const path = tool('promtool');
    if (path !== null) passes(runTool(path, ['check', 'metrics'], { input: live }));
    await rig.close();
});
await linted('the alert rules are valid and fire when they should', 'promtool', (promtool) => {
    passes(runTool(promtool, ['check', 'config', '--syntax-only', 'deploy/prometheus/prometheus.yml']));
    passes(runTool(promtool, ['check', 'rules', 'deploy/prometheus/alerts.yml']));
    passes(runTool(promtool, ['test', 'rules', 'deploy/prometheus/alerts_test.yml']));
});
await linted("the dashboard's expressions are PromQL", 'promtool', (promtool) => {
    const file = `${temporaryFolder()}/rules.yml`;
    const plain = expressions.map((e) => e.replaceAll('$instance', '.*').replaceAll('$node', '.*'));
    writeFileSync(file, 'groups:\n- name: g\n  rules:\n' + plain.map((e, i) => `  - {record: 'r${i}', expr: ${JSON.stringify(e)}}\n`).join(''));
    passes(runTool(promtool, ['check', 'rules', file]));
});
await test('the dashboard has panels that do not overlap and one data source', () => {
    const taken = new Set();
    for (const { gridPos: g, title } of dashboard.panels) {
        for (let x = g.x; x < g.x + g.w; x++) for (let y = g.y; y < g.y + g.h; y++) {
            assert.ok(x < 24 && !taken.has(`${x},${y}`), title);
            taken.add(`${x},${y}`);
        }
    }
    assert.ok(dashboard.panels.every((p) => p.datasource.uid === '${datasource}'));
});
await linted('the systemd units are valid, and their stop limit is above the drain time', 'systemd-analyze', (analyze) => {
    const folder = temporaryFolder();
    for (const [unit, name, key] of [['coordinator', 'siliceo-coordinator', 'drain_s'], ['worker', 'siliceo-worker', 'drain.limit_s']]) {
        const unitText = text(`deploy/systemd/siliceo-${unit}.service`);
        const file = `${folder}/siliceo-${unit}.service`;
        writeFileSync(file, unitText.replace(/ExecStart=\S+/, `ExecStart=${root}${program(name)}`));
        const r = runTool(analyze, ['verify', file]);
        assert.ok(r.code === 0 || !r.text.includes(`siliceo-${unit}.service`), r.text);
        assert.ok(!/siliceo-\w+\.service:.*(Unknown|Invalid|Failed to parse)/i.test(r.text), r.text);
        assert.match(unitText, /^Type=notify$/m);
        assert.match(unitText, /^WatchdogSec=/m);
        const help = runTool(program(name), ['serve', '--help']).text;
        assert.ok(help.includes(key.replace(/[._]/g, '-')));
        assert.ok(Number(/^TimeoutStopSec=(\d+)$/m.exec(unitText)[1]) > 300);
    }
});
await linted('coordinator and worker tell systemd READY, WATCHDOG and STOPPING', 'python3', async (python) => {
    const socket = `${temporaryFolder()}/notify`;
    const ear = spawn(python, ['-uc', 'import socket, sys\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.bind(sys.argv[1])\nprint("bound")\nwhile True: print(s.recv(4096).decode().replace("\\n", " "))', socket], { stdio: ['ignore', 'pipe', 'inherit'] });
    let heard = '';
    ear.stdout.on('data', (data) => { heard += data; });
    await until(() => heard.includes('bound'), 'an ear');
    process.env.NOTIFY_SOCKET = socket;
    process.env.WATCHDOG_USEC = '300000';
    try {
        const rig = await Rig.open();
        await until(() => /READY=1 STATUS=http=127/.test(heard) && heard.split('WATCHDOG=1').length > 4, 'READY and signs of life');
        await rig.close();
        await until(() => heard.includes('STOPPING=1'), 'STOPPING');
    } finally {
        delete process.env.NOTIFY_SOCKET;
        delete process.env.WATCHDOG_USEC;
        ear.kill('SIGKILL');
    }
});
await linted('the HAProxy configuration is valid', 'haproxy', (haproxy) => passes(runTool(haproxy, ['-c', '-f', 'deploy/proxy/haproxy.cfg'])));
await linted('the nginx configuration is valid', 'nginx', (nginx) => {
    const folder = temporaryFolder();
    mkdirSync(`${folder}/logs`);
    copyFileSync('deploy/proxy/nginx.conf', `${folder}/nginx.conf`);
    passes(runTool(nginx, ['-t', '-p', folder, '-c', `${folder}/nginx.conf`, '-e', `${folder}/error.log`, '-g', `pid ${folder}/pid;`]));
});
await test('the settings of the Tailscale page are settings', () => {
    const folder = temporaryFolder();
    const blocks = [...text('deploy/tailscale.md').matchAll(/((?:^(?:    .*)?\n)+)/gm)].map((m) => m[1].replace(/^    /gm, '').trim() + '\n');
    const [coordinator, worker] = [blocks.find((b) => b.startsWith('http =')), blocks.find((b) => b.startsWith('name = tower'))];
    for (const name of ['coordinator.secret', 'worker.secret']) writeFileSync(`${folder}/${name}`, runTool(program('siliceo-coordinator'), ['keygen']).text, { mode: 0o600 });
    for (const name of ['allow', 'api-keys']) writeFileSync(`${folder}/${name}`, '');
    writeFileSync(`${folder}/coordinator.conf`, coordinator.replaceAll('/etc/siliceo', folder).replaceAll('/var/lib/siliceo', folder));
    const r = runTool(program('siliceo-coordinator'), ['check-config', '--config', `${folder}/coordinator.conf`]);
    passes(r);
    writeFileSync(`${folder}/worker.conf`, worker.replaceAll('/etc/siliceo', folder));
    const w = runTool(program('siliceo-worker'), ['serve', '--config', `${folder}/worker.conf`]);
    assert.ok(!/unknown|not a setting/i.test(w.text), w.text);
});
await test('install.sh puts programs and units where it is told', () => {
    const folder = temporaryFolder();
    const r = runTool('/bin/sh', ['deploy/install.sh', '--units', folder], { env: { ...process.env, SILICEO_UNIT_FOLDER: `${folder}/units`, SILICEO_ETC: `${folder}/etc` } });
    passes(r);
    assert.deepEqual(readdirSync(`${folder}/units`), ['siliceo-coordinator.service', 'siliceo-worker.service']);
    assert.match(readFileSync(`${folder}/units/siliceo-worker.service`, 'utf8'), new RegExp(`^ExecStart=${folder}/bin/siliceo-worker serve`, 'm'));
    for (const name of ['bin/siliceo-coordinator', 'bin/siliceo-probe', 'share/siliceo/grafana/siliceo.json']) assert.ok(readFileSync(`${folder}/${name}`).length > 0);
});
const yaml = runTool('/usr/bin/python3', ['-c', 'import yaml']).code === 0;
if (yaml) {
    await test('the Kubernetes manifests are YAML with what every object needs (no schema is at hand)', () => {
        passes(runTool('/usr/bin/python3', ['-c', `
import sys, yaml
docs = list(yaml.safe_load_all(open(sys.argv[1])))
assert len(docs) == 4, len(docs)
for d in docs:
    assert d["apiVersion"] and d["kind"] and d["metadata"]["name"]
    if d["kind"] == "StatefulSet":
        t = d["spec"]["template"]
        assert d["spec"]["selector"]["matchLabels"].items() <= t["metadata"]["labels"].items()
        assert t["spec"]["terminationGracePeriodSeconds"] > 300
`, 'deploy/kubernetes/siliceo.yaml']));
    });
} else skip('the Kubernetes manifests are YAML', 'there is no python3-yaml');
await linted('the Nomad job is valid', 'nomad', (nomad) => passes(runTool(nomad, ['job', 'validate', 'deploy/nomad/siliceo.nomad.hcl'])));
finish();
