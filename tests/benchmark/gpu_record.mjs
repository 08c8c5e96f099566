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
const benches = Object.fromEntries(files.flatMap((file) => file.filter((l) => l.bench && l.result)
    .map((l) => [l.bench, { commit: file[0].commit, ...l }])));
const more = (parts) => {
    const runs = parts.filter((p) => benches[p]).map((p) => benches[p]);
    return { machine, commit: [...new Set(runs.map((r) => r.commit))].join(' and '), runs };
};

// The figures of a case, from its run on the trace and its runs on natural routing.
function speed(name, trace, p512, p2048, peer, uniform, restarted) {
    const runs = [trace, p512, p2048].map((p) => benches[p]?.result.figures);
    if (!runs[0] && !runs[1]) return;
    const [t, a, b] = runs;
    const again = benches[restarted]?.result.figures;
    const figures = { decode_tok_per_s: t?.decode_tok_per_s, prefill512_tok_per_s: a?.prefill_tok_per_s,
        prefill2048_tok_per_s: b?.prefill_tok_per_s, vram_peak_mib: Math.max(...runs.filter(Boolean).map((r) => r.vram_peak_mib)),
        hit_rate: t?.hit_rate, misses_per_token: t?.misses_per_token, pcie_bytes_per_token: t?.pcie_bytes_per_token,
        launches_per_token: t?.launches_per_token, natural_decode_tok_per_s: a?.decode_tok_per_s, natural_hit_rate: a?.hit_rate,
        uniform_decode_tok_per_s: benches[uniform]?.result.figures.decode_tok_per_s, uniform_hit_rate: benches[uniform]?.result.figures.hit_rate,
        loaded_prefill512_tok_per_s: a?.loaded_prefill_tok_per_s, loaded_ttft_ms: a?.loaded_ttft_ms,
        restarted_prefill512_tok_per_s: again?.loaded_prefill_tok_per_s, restarted_ttft_ms: again?.loaded_ttft_ms,
        restarted_slots_by_use: again?.slots_by_use, prefill512_hit_rate: a?.prefill_hit_rate,
        loaded_prefill512_hit_rate: a?.loaded_prefill_hit_rate, restarted_prefill512_hit_rate: again?.loaded_prefill_hit_rate,
        lane_experts_per_token: t?.lane_experts_per_token, lane_share: t?.lane_share, prefill512_lane_share: a?.prefill_lane_share,
        cold_prefill512_lane_share: a?.cold_prefill_lane_share, prefill2048_lane_share: b?.prefill_lane_share,
        cold_prefill512_tok_per_s: a?.cold_prefill_tok_per_s, cold_ttft_ms: a?.cold_ttft_ms, first32_hit_rate: a?.first32_hit_rate,
        first64_hit_rate: a?.first64_hit_rate, first128_hit_rate: a?.first128_hit_rate, turn_tok_per_s: a?.turn_tok_per_s };
    for (const key of Object.keys(figures)) if (figures[key] === undefined) delete figures[key];
    record(name, 'tests/benchmark/gpu.sh', figures, peer, more([trace, p512, p2048, uniform, restarted]));
    const projected = Object.entries(t ?? {}).find(([key]) => key.startsWith('PROJECTED'));
    if (projected) record(`${name}-projected`, 'tests/benchmark/gpu.sh', { decode_tok_per_s: projected[1] }, {},
        { ...more([trace]), status: 'PROJECTED', formula });
}

// llama.cpp v0.5.0 on the same kind of machine and the same file, prompts pinned.
speed('h200-resident', 'resident-trace', 'resident-512', 'resident-2048',
    { decode_tok_per_s: 236, prefill512_tok_per_s: 5786, prefill2048_tok_per_s: 9146 });
speed('h200-2750-slots', 'rtx2070-trace', 'rtx2070-512', 'rtx2070-2048',
    { decode_tok_per_s: 40, prefill512_tok_per_s: 1745, prefill2048_tok_per_s: 4373 }, 'rtx2070-uniform', 'rtx2070-restarted');
speed('h200-6000-slots', 'rtx3090-trace', 'rtx3090-512', 'rtx3090-2048', { decode_tok_per_s: 57, prefill512_tok_per_s: 2445 }, 'rtx3090-uniform', 'rtx3090-restarted');
speed('h200-cpu-lane', 'cpu-lane-trace', 'cpu-lane-512', undefined, { decode_tok_per_s: 27, prefill512_tok_per_s: 1384 });

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

// Issue 6.  Times of a token, ms: decoded behind a depth, of a cold prompt, of 512 more behind it, and of its last
// tenth when the rest is held.
const figuresOf = (name) => benches[name]?.result?.figures;
const plans = files.flat().filter((l) => l.plan);
const named = (prefix) => plans.filter((l) => l.plan.startsWith(prefix));
const depthsOf = (prefix) => Object.keys(benches).map((name) => new RegExp(`^${prefix}-(\\d+)$`).exec(name)?.[1]).filter(Boolean).map(Number)
    .sort((a, b) => a - b);
const depths = depthsOf('dense');
if (depths.length > 0) {
    const figures = {};
    for (const d of depths) {
        const here = figuresOf(`dense-${d}`), behind = figuresOf(`dense-more-${d}`), held = figuresOf(`dense-held-${d}`);
        figures[`decode_ms_at_${d}`] = 1000 / here.decode_tok_per_s;
        figures[`prefill_ms_per_token_${d}`] = here.ttft_ms / d;
        if (behind) figures[`more_ms_per_token_at_${d}`] = (behind.ttft_ms - here.ttft_ms) / 512;
        if (held) figures[`held90_ms_per_token_${d}`] = (here.ttft_ms - held.ttft_ms) / (d - Math.floor(d * 0.9));
        figures.vram_peak_mib = Math.max(figures.vram_peak_mib ?? 0, here.vram_peak_mib ?? 0);
    }
    // Published: 0.18 ms a token of slope; 48 ms a prompt token cold and 12 with 90 % held.
    record('h200-9b', 'tests/benchmark/gpu.sh dense', figures, {},
        { ...more(Object.keys(benches).filter((n) => n.startsWith('dense-'))), plans: named('dense-') });
}
for (const [name, bench] of [['h200-9b-draft', '9b'], ['h200-35b-draft', '35b']]) {
    const runs = depthsOf(`${bench}-draft`), alone = figuresOf(`${bench}-alone`);
    if (runs.length === 0) continue;
    const figures = alone ? { alone_decode_tok_per_s: alone.decode_tok_per_s } : {};
    for (const layers of runs) {
        const f = figuresOf(`${bench}-draft-${layers}`);
        for (const key of ['decode_tok_per_s', 'drafted', 'accepted_share', 'tokens_per_row_step', 'us_per_guess', 'vram_peak_mib', 'launches_per_token'])
            if (f[key] !== undefined) figures[`draft${layers}_${key}`] = f[key];
    }
    record(name, 'tests/benchmark/gpu.sh draft', figures, {}, { ...more([...runs.map((r) => `${bench}-draft-${r}`), `${bench}-alone`]), plans: named(`${bench}-draft`) });
}
for (const [card, name] of [['rtx2070', 'h200-batch-2750'], ['rtx3090', 'h200-batch-6000']]) {
    const crowds = depthsOf(`batch-${card}`), beside = figuresOf(`batch-${card}-beside`);
    if (crowds.length === 0) continue;
    const figures = {};
    for (const users of crowds) {
        for (const [key, value] of Object.entries(figuresOf(`batch-${card}-${users}`)))
            if (key !== 'users' && typeof value === 'number') figures[`users${users}_${key}`] = value;
    }
    for (const [key, value] of Object.entries(beside ?? {})) if (typeof value === 'number') figures[`beside_${key}`] = value;
    record(name, 'tests/benchmark/gpu.sh batch', figures, {},
        { ...more([...crowds.map((u) => `batch-${card}-${u}`), `batch-${card}-beside`]), plans: named(`batch-${card}`) });
}
const contexts = ['f16', 'q8', 'q4'].flatMap((kv) => depthsOf(`context-${kv}`).map((depth) => [kv, depth]));
if (contexts.length > 0) {
    const figures = {};
    for (const [kv, depth] of contexts) {
        const f = figuresOf(`context-${kv}-${depth}`);
        figures[`${kv}_${depth}_decode_tok_per_s`] = f.decode_tok_per_s;
        figures[`${kv}_${depth}_prefill_tok_per_s`] = f.prefill_tok_per_s;
        if (f.vram_peak_mib !== undefined) figures[`${kv}_${depth}_vram_peak_mib`] = f.vram_peak_mib;
    }
    record('h200-context', 'tests/benchmark/gpu.sh context', figures, {},
        { ...more(contexts.map(([kv, depth]) => `context-${kv}-${depth}`)), plans: named('context-') });
}
for (const p of files.flat().filter((l) => l.prefix && l.result)) {
    record(`h200-prefix-${p.prefix}`, 'tests/benchmark/gpu.sh prefix', { turn8_warm_ttft_ms: p.result.warm_ttft_ms.at(-1),
        turn8_cold_ttft_ms: p.result.cold_ttft_ms.at(-1), turn8_speedup: p.result.turn8_speedup, turn8_held_share: p.result.held_share.at(-1),
        second_user_ttft_ms: p.result.second_user_ttft_ms[0], second_user_held_share: p.result.second_user_held_share[0] }, {}, { machine, commit, raw: p.result });
}
// The last three prompts of a run: the first after loading, one from empty slots, and one after that.
const profiles = files.flat().filter((l) => l.profile && l.result);
if (profiles.length > 0) {
    const figures = {};
    for (const p of profiles) {
        p.result.prompts.slice(-3).forEach((step, i) => {
            const at = `${p.profile.split('-')[0]}_${['loaded', 'cold', 'warm'][i]}`;
            for (const key of ['wall_ms', 'bus_share', 'bus_gb_per_s', 'copied_mib', 'gpu_share']) figures[`${at}_${key}`] = step[key];
        });
    }
    record('h200-cold-profile', 'tests/benchmark/gpu.sh profile', figures, {}, { machine, commit, profiles });
}
