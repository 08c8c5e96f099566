// test_deploy.mjs - what deploy/ has for Prometheus, Grafana, systemd, proxies and clusters, each
// checked by its own linter where one is here, and against a live coordinator.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { finish, program, root, skip, stop, temporaryFolder, test, until } from '../clients/fleet.mjs';
import { ask, body, Rig } from './rig.mjs';
import { npmModule, runTool, tool } from './tools.mjs';

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

// ---------------------------------------------------------------- clusters, by schemas and parsers from npm
const flagsOf = (name) => new Set(runTool(program(name), ['serve', '--help']).text.match(/--[a-z0-9-]+/g));
// Each word of a command line in a manifest is a setting of the program that it starts.
function knowsFlags(command, args) {
    const name = command.split('/').at(-1), known = flagsOf(name), flags = args.filter((a) => a.startsWith('--')).map((a) => a.split('=')[0]);
    assert.ok(flags.length > 0 && args[0] !== undefined);
    for (const flag of flags) assert.ok(known.has(flag), `${name} has no ${flag}`);
}
// What is wrong with an object by the API's schema.  A field that the check never looks at is one
// that the API does not know, so a misspelt one is found, too.
function kubernetesFaults(object) {
    const { validate } = npmModule(`./node_modules/kubernetes-models/_schemas/IoK8sApi${{ v1: 'Core', 'apps/v1': 'Apps' }[object.apiVersion]}V1${object.kind}.js`);
    const seen = new Set();
    const watched = (value, path = '') => (value === null || typeof value !== 'object' ? value : new Proxy(value, { get(target, key) {
        seen.add(`${path}/${String(key)}`);
        return watched(target[key], `${path}/${String(key)}`);
    } }));
    const faults = validate(watched(object)) ? [] : validate.errors.map((e) => `${e.instancePath} ${e.keyword}`);
    const walk = (value, path) => {
        if (path !== '' && !seen.has(path)) faults.push(`${path} is no field`);
        else if (value !== null && typeof value === 'object') for (const [key, inner] of Object.entries(value)) walk(inner, `${path}/${key}`);
    };
    walk(object, '');
    return faults;
}
const manifests = () => npmModule('yaml').parseAllDocuments(text('deploy/kubernetes/siliceo.yaml')).map((d) => { assert.deepEqual(d.errors, []); return d.toJS(); });
await test("the Kubernetes manifests fit the API's schemas, field by field", () => {
    const objects = manifests();
    assert.equal(objects.length, 4);
    for (const o of objects) assert.deepEqual(kubernetesFaults(o), [], o.metadata.name);
    for (const spoil of [(o) => { o.spec.template.spec.containers[0].redinessProbe = {}; }, (o) => { o.spec.replicas = 'two'; }, (o) => { delete o.spec.selector; }, (o) => { o.spce = {}; },
        (o) => { o.spec.template.spec.volumes[0].secret.name = 'siliceo'; }]) {
        const spoilt = structuredClone(objects[2]);
        spoil(spoilt);
        assert.ok(kubernetesFaults(spoilt).length > 0, String(spoil));
    }
});
await test('the Kubernetes manifests find each other: selectors, ports, volumes, settings, time to drain', () => {
    const objects = manifests(), named = (kind) => objects.filter((o) => o.kind === kind);
    const covers = (labels, selector) => Object.entries(selector).every(([k, v]) => labels[k] === v);
    const ports = new Set();
    for (const { spec, metadata } of named('StatefulSet')) {
        const pod = spec.template.spec, [container] = pod.containers;
        assert.ok(covers(spec.template.metadata.labels, spec.selector.matchLabels), metadata.name);
        assert.ok(pod.terminationGracePeriodSeconds > 300);
        for (const mount of container.volumeMounts) assert.ok(pod.volumes.some((v) => v.name === mount.name), mount.name);
        for (const port of container.ports ?? []) ports.add(port.name);
        for (const probe of [container.readinessProbe, container.livenessProbe]) if (probe) assert.ok(ports.has(probe.httpGet.port));
        knowsFlags(container.command[0], container.args);
    }
    for (const { spec, metadata } of named('Service')) {
        assert.ok(named('StatefulSet').some((s) => covers(s.spec.template.metadata.labels, spec.selector)), metadata.name);
        for (const port of spec.ports) assert.ok(ports.has(port.targetPort), port.name);
    }
    // The workers name each coordinator by the Service that the StatefulSet gives them.
    const [coordinators, workers] = named('StatefulSet');
    const wanted = Array.from({ length: coordinators.spec.replicas }, (_, i) => `--coordinator=tcp://${coordinators.metadata.name}-${i}.${coordinators.spec.serviceName}:5690`);
    assert.deepEqual(workers.spec.template.spec.containers[0].args.filter((a) => a.startsWith('--coordinator=')), wanted);
});
await test('the Nomad job parses, starts what there is, and lets it drain', () => {
    const parse = (hcl) => npmModule('hcl2-parser').parseToObject(hcl)[0];
    const { siliceo: [job] } = parse(text('deploy/nomad/siliceo.nomad.hcl')).job;
    assert.equal(parse('job "x" {\n  type = \n}'), null, 'what is no HCL is refused');
    assert.deepEqual(Object.keys(job.group), ['coordinator', 'worker']);
    for (const [name, [group]] of Object.entries(job.group)) {
        const [task] = group.task[name], [config] = task.config;
        assert.ok(parseInt(task.kill_timeout) > 300 && task.kill_signal === 'SIGTERM', name);
        knowsFlags(config.command, config.args);
        for (const port of config.args.join(' ').match(/NOMAD_PORT_(\w+)/g) ?? []) assert.ok(group.network[0].port[port.slice(11)], port);
    }
});
await linted('nomad itself takes the job', 'nomad', (nomad) => passes(runTool(nomad, ['job', 'validate', 'deploy/nomad/siliceo.nomad.hcl'])));
finish();
