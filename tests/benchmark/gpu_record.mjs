// gpu_record.mjs GPU.jsonl... - results and ledger lines from what gpu.sh measured on another machine; a
// case that stands in several files counts as in the last.
import { readFileSync } from 'node:fs';
import { record } from './record.mjs';

const formula = 'weight_bytes_per_token / (0.6 x VRAM GB/s: 448 rtx2070, 936 rtx3090) + pcie_bytes_per_token / (12.6, 25 GB/s)'
    + ' + launches_per_token x 2.5 us';
const read = (path) => readFileSync(path, 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line));
const files = process.argv.slice(2).map(read);
const { machine, commit } = files.at(-1)[0];
const lines = files.at(-1);
const benches = Object.fromEntries(files.flatMap((file) => file.filter((l) => l.result)
    .map((l) => [l.bench, { commit: file[0].commit, ...l }])));
const more = (parts) => {
    const runs = parts.filter((p) => benches[p]).map((p) => benches[p]);
    return { machine, commit: [...new Set(runs.map((r) => r.commit))].join(' and '), runs };
};

// The figures of a case, from its run on the trace and its runs on natural routing.
function speed(name, trace, p512, p2048, peer) {
    const runs = [trace, p512, p2048].map((p) => benches[p]?.result.figures);
    if (!runs[0] && !runs[1]) return;
    const [t, a, b] = runs;
    const figures = { decode_tok_per_s: t?.decode_tok_per_s, prefill512_tok_per_s: a?.prefill_tok_per_s,
        prefill2048_tok_per_s: b?.prefill_tok_per_s, vram_peak_mib: Math.max(...runs.filter(Boolean).map((r) => r.vram_peak_mib)),
        hit_rate: t?.hit_rate, misses_per_token: t?.misses_per_token, pcie_bytes_per_token: t?.pcie_bytes_per_token,
        launches_per_token: t?.launches_per_token, natural_decode_tok_per_s: a?.decode_tok_per_s, natural_hit_rate: a?.hit_rate,
        start_prefill512_tok_per_s: a?.start_prefill_tok_per_s, start_ttft_ms: a?.start_ttft_ms,
        cold_prefill512_tok_per_s: a?.cold_prefill_tok_per_s, cold_ttft_ms: a?.cold_ttft_ms, first32_hit_rate: a?.first32_hit_rate,
        first64_hit_rate: a?.first64_hit_rate, first128_hit_rate: a?.first128_hit_rate, turn_tok_per_s: a?.turn_tok_per_s };
    for (const key of Object.keys(figures)) if (figures[key] === undefined) delete figures[key];
    record(name, 'tests/benchmark/gpu.sh', figures, peer, more([trace, p512, p2048]));
    const projected = Object.entries(t ?? {}).find(([key]) => key.startsWith('PROJECTED'));
    if (projected) record(`${name}-projected`, 'tests/benchmark/gpu.sh', { decode_tok_per_s: projected[1] }, {},
        { ...more([trace]), status: 'PROJECTED', formula });
}

// llama.cpp v0.5.0 on the same kind of machine and the same file, prompts pinned.
speed('h200-resident', 'resident-trace', 'resident-512', 'resident-2048',
    { decode_tok_per_s: 236, prefill512_tok_per_s: 5786, prefill2048_tok_per_s: 9146 });
speed('h200-2750-slots', 'rtx2070-trace', 'rtx2070-512', 'rtx2070-2048',
    { decode_tok_per_s: 40, prefill512_tok_per_s: 1745, prefill2048_tok_per_s: 4373 });
speed('h200-6000-slots', 'rtx3090-trace', 'rtx3090-512', 'rtx3090-2048', { decode_tok_per_s: 57, prefill512_tok_per_s: 2445 });
speed('h200-cpu-lane', 'cpu-lane-trace', 'cpu-lane-512', undefined, { decode_tok_per_s: 27, prefill512_tok_per_s: 1384 });

for (const card of ['rtx2070', 'rtx3090']) {
    for (const name of ['users-1', 'users-2', 'users-4', 'users-8', 'users-16', 'beside'].map((end) => `${card}-${end}`)) {
        const figures = benches[name]?.result.figures;
        if (figures) record(`h200-${name}`, 'tests/benchmark/gpu.sh', figures, {}, more([name]));
    }
}

const ram = [benches['ram-9216-trace'], benches['ram-9216-512']];
if (ram[0]?.result) {
    const t = ram[0].result.figures;
    const p = ram[1]?.result?.figures;
    const most = (key) => Math.max(...[t, p].filter(Boolean).map((f) => f[key]));
    record('h200-ram-9216', 'tests/benchmark/gpu.sh', { decode_tok_per_s: t.decode_tok_per_s,
        ...(p && { prefill512_tok_per_s: p.prefill_tok_per_s, cold_prefill512_tok_per_s: p.cold_prefill_tok_per_s }),
        vram_peak_mib: most('vram_peak_mib'), ram_peak_mib: most('ram_peak_mib'), hit_rate: t.hit_rate,
        misses_per_token: t.misses_per_token, disk_misses_per_token: t.disk_misses_per_token,
        disk_bytes_per_token: t.disk_bytes_per_token, disk_read_mib: t.disk_read_mib, disk_direct: t.disk_direct,
        file_resident_share: most('file_resident_share'), load_s: t.load_s }, {},
    { ...more(['ram-9216-trace', 'ram-9216-512']), cgroup_memory_max: ram[0].cgroup_memory_max,
        cgroup_memory_peak: ram[0].cgroup_memory_peak, cgroup_oom_kills: ram[0].cgroup_oom_kills, file_system: ram[0].file_system });
}

const tests = lines.filter((l) => l.test);
if (tests.length > 0) {
    record('gpu-correctness', 'tests/benchmark/gpu.sh', { tests_passed: tests.reduce((sum, t) => sum + t.passed, 0),
        programs_failed: tests.filter((t) => t.rc !== 0).length }, {},
    { machine, commit, tests, logits: lines.filter((l) => l.logits), greedy: lines.filter((l) => l.greedy512), sanitizers: lines.filter((l) => l.sanitizer) });
}
