/* bench_ops.c - times the CPU kernels that are not matrix products, one thread, one tier.
 *
 *     build/tests/benchmark/bench_ops [scalar|avx2|avx512]
 *
 * Shapes are those of the 35B-A3B model (hidden 2048, 16 query heads on 2 KV heads of 256,
 * 16 key and 32 value heads of 128).  Each line is the median and the least of 15 runs; "cold" walks the
 * states of 30 layers (63 MB), as a decode step does.
 */
#include "kernels/attention.h"
#include "kernels/attention_prepare.h"
#include "kernels/conv1d.h"
#include "kernels/delta_net.h"
#include "kernels/moe_combine.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/swiglu.h"
#include "kernels/vector_math.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    RUNS = 15,
    LAYERS = 30,
    HIDDEN = 2048,
    KEY_HEADS = 16,
    VALUE_HEADS = 32,
    STATE_DIM = 128
};
enum { CONV_DIM = (2 * KEY_HEADS + VALUE_HEADS) * STATE_DIM, INNER = VALUE_HEADS * STATE_DIM };
enum {
    HEADS = 16,
    KV_HEADS = 2,
    HEAD_DIM = 256,
    ROT = 64,
    TOKENS = 512,
    EXPERTS = 256,
    USED = 8
};

static cpu_tier tier;
static void *scratch;

static float *floats(size_t n) {
    float *p = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
    if (!p) {
        (void)fprintf(stderr, "bench_ops: no memory for %zu floats\n", n);
        exit(1);
    }
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(i * 2654435761u % 2048u) / 1024.0f - 1.0f;
    return p;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef void (*body)(const void *args);

/* The thread's own time: what other jobs take does not count, though what they take of the
 * caches and of a shared core does. */
static double thread_us(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Median time of one call in us, divided by `per`. */
static void report(const char *what, body run, const void *args, double per) {
    double us[RUNS];
    run(args);
    for (int i = 0; i < RUNS; i++) {
        const double start = thread_us();
        run(args);
        us[i] = thread_us() - start;
    }
    qsort(us, RUNS, sizeof(us[0]), by_value);
    printf("%-52s %9.2f us (least %.2f)\n", what, us[RUNS / 2] / per, us[0] / per);
}

static void run_delta(const void *args) {
    const delta_net_args *a = args;
    delta_net_items(tier, a, 0, delta_net_n_items(a), scratch);
}

static void run_delta_layers(const void *args) {
    delta_net_args a = *(const delta_net_args *)args;
    for (size_t layer = 0; layer < LAYERS; layer++) {
        delta_net_items(tier, &a, 0, delta_net_n_items(&a), scratch);
        a.state += (size_t)INNER * STATE_DIM;
    }
}

static void bench_delta_net(void) {
    batch_run run = {.n_rows = 1, .position = 1000};
    float *rows = floats((size_t)TOKENS * (CONV_DIM + 2 * INNER + 2 * VALUE_HEADS));
    float *constants = floats(2 * VALUE_HEADS + STATE_DIM);
    float *states = floats((size_t)LAYERS * INNER * STATE_DIM);
    for (size_t i = 0; i < VALUE_HEADS; i++)
        constants[i] = -0.1f;
    delta_net_args a = {.batch = {.runs = &run, .n_rows = 1, .n_runs = 1},
                        .qkv = rows,
                        .z = rows + (size_t)TOKENS * CONV_DIM,
                        .out = rows + (size_t)TOKENS * (CONV_DIM + INNER),
                        .alpha = rows + (size_t)TOKENS * (CONV_DIM + 2 * INNER),
                        .a = constants,
                        .dt = constants + VALUE_HEADS,
                        .norm = constants + 2 * VALUE_HEADS,
                        .state = states,
                        .qkv_stride = CONV_DIM,
                        .z_stride = INNER,
                        .alpha_stride = VALUE_HEADS,
                        .beta_stride = VALUE_HEADS,
                        .out_stride = INNER,
                        .n_key_heads = KEY_HEADS,
                        .n_value_heads = VALUE_HEADS,
                        .dim = STATE_DIM,
                        .eps = 1e-6f};
    a.beta = a.alpha + (size_t)TOKENS * VALUE_HEADS;
    report("delta_net step, a layer, state in cache", run_delta, &a, 1);
    report("delta_net step, a layer, cold", run_delta_layers, &a, LAYERS);
    run = (batch_run){.n_rows = TOKENS};
    report("delta_net 512 tokens in chunks, a token and layer", run_delta, &a, TOKENS);
    run = (batch_run){.n_rows = DELTA_NET_CHUNK - 1};
    report("delta_net 31 tokens in steps, a token and layer", run_delta, &a,
           DELTA_NET_CHUNK - 1);
    free(rows);
    free(constants);
    free(states);
}

static void run_attention(const void *args) {
    const attention_args *a = args;
    attention_items(tier, a, 0, attention_n_items(a), scratch);
}

static void run_prepare(const void *args) {
    const attention_prepare_args *a = args;
    attention_prepare_rows(tier, a, 0, a->batch.n_rows);
}

static void bench_attention(kv_type type, const char *name) {
    enum { POSITIONS = 16384, PAGES = POSITIONS / KV_PAGE_TOKENS };
    batch_run run = {.n_rows = 1};
    uint32_t row_run[TOKENS] = {0}, pages[PAGES];
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = i * 7 % PAGES;
    const size_t page_bytes = kv_layer_bytes(type, KV_HEADS, HEAD_DIM);
    float *kv = floats(page_bytes * PAGES / sizeof(float));
    float *qg = floats((size_t)TOKENS * HEADS * 2 * HEAD_DIM);
    float *out = floats((size_t)TOKENS * HEADS * HEAD_DIM);
    float *k = floats((size_t)TOKENS * KV_HEADS * HEAD_DIM),
          *rope = floats((size_t)TOKENS * ROT);
    const kv_view view = {.base = (unsigned char *)kv,
                          .page_bytes = page_bytes,
                          .type = type,
                          .n_kv_heads = KV_HEADS,
                          .head_dim = HEAD_DIM};
    attention_args a = {
        .batch = {.runs = &run, .row_run = row_run, .pages = pages, .n_rows = 1, .n_runs = 1},
        .kv = view,
        .qg = qg,
        .out = out,
        .qg_stride = HEADS * 2 * HEAD_DIM,
        .out_stride = HEADS * HEAD_DIM,
        .n_heads = HEADS,
        .scale = 1.0f / 16};
    attention_prepare_args p = {.batch = a.batch,
                                .kv = view,
                                .qg = qg,
                                .k = k,
                                .v = k,
                                .q_norm = qg,
                                .k_norm = qg,
                                .rope = rope,
                                .qg_stride = a.qg_stride,
                                .k_stride = KV_HEADS * HEAD_DIM,
                                .v_stride = KV_HEADS * HEAD_DIM,
                                .n_heads = HEADS,
                                .n_rot = ROT,
                                .eps = 1e-6f};
    char what[80];
    for (uint32_t at = 0; at < POSITIONS; at += TOKENS) { /* fill the pages */
        run = (batch_run){.n_rows = TOKENS, .position = at};
        p.batch.n_rows = TOKENS;
        run_prepare(&p);
    }
    (void)snprintf(what, sizeof what, "attention_prepare %s, a row of a full layer", name);
    report(what, run_prepare, &p, TOKENS);
    const uint32_t positions[] = {64, 1024, 4096, 16384};
    for (size_t i = 0; i < 4; i++) {
        run = (batch_run){.n_rows = 1, .position = positions[i] - 1};
        (void)snprintf(what, sizeof what, "attention %s, 1 row at %u", name, positions[i]);
        report(what, run_attention, &a, 1);
    }
    a.batch.n_rows = TOKENS;
    run = (batch_run){.n_rows = TOKENS, .position = 3584};
    (void)snprintf(what, sizeof what, "attention %s, 512 rows up to 4096, a row", name);
    report(what, run_attention, &a, TOKENS);
    float *const parts[] = {kv, qg, out, k, rope};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        free(parts[i]);
}

static void run_conv(const void *args) {
    conv1d_channels(tier, args, 0, CONV_DIM);
}
static void run_norm(const void *args) {
    rmsnorm_rows(tier, args, 0, 1);
}
static void run_swiglu(const void *args) {
    swiglu_rows(tier, args, 0, USED);
}
static void run_router(const void *args) {
    router_rows(tier, args, 0, 1);
}
static void run_combine(const void *args) {
    moe_combine_rows(tier, args, 0, 1);
}
static void run_exp(const void *args) {
    vector_exp(tier, args, scratch, 4096);
}
static void run_rope(const void *args) {
    rope_row(scratch, 12345, args, ROT);
}

static void bench_small(void) {
    batch_run run = {.n_rows = 1};
    float *x = floats((size_t)TOKENS * CONV_DIM), *y = floats((size_t)TOKENS * CONV_DIM);
    float *w = floats((size_t)CONV_DIM * 8), *state = floats((size_t)CONV_DIM * 3);
    int32_t experts[USED];
    float weights[USED];
    const conv1d_args conv = {.batch = {.runs = &run, .n_runs = 1},
                              .x = x,
                              .weight = w,
                              .state = state,
                              .y = y,
                              .x_stride = CONV_DIM,
                              .y_stride = CONV_DIM,
                              .n_channels = CONV_DIM,
                              .n_taps = 4};
    const rmsnorm_args norm = {
        .x = x, .delta = w, .weight = state, .y = y, .dim = HIDDEN, .eps = 1e-6f};
    const swiglu_args swiglu = {.gate = x,
                                .up = x + 512,
                                .out = y,
                                .gate_stride = 1024,
                                .up_stride = 1024,
                                .out_stride = 512,
                                .n_cols = 512};
    const router_args router = {.logits = x + 77,
                                .experts = experts,
                                .weights = weights,
                                .n_experts = EXPERTS,
                                .n_used = USED};
    const moe_combine_args combine = {.x = x,
                                      .y = w,
                                      .weights = state,
                                      .shared = state,
                                      .shared_gate = x,
                                      .out = y,
                                      .y_stride = HIDDEN,
                                      .dim = HIDDEN,
                                      .n_used = USED};
    report("conv1d, a token, 8192 channels", run_conv, &conv, 1);
    run.n_rows = TOKENS;
    report("conv1d, 512 tokens, a token", run_conv, &conv, TOKENS);
    report("rmsnorm with delta, 2048", run_norm, &norm, 1);
    report("swiglu, 8 experts of 512", run_swiglu, &swiglu, 1);
    report("router, 8 of 256", run_router, &router, 1);
    report("moe_combine, 8 experts and shared, 2048", run_combine, &combine, 1);
    report("vector_exp, 4096", run_exp, x, 1);
    report("rope_row, 64 dims", run_rope, x, 1);
    float *const parts[] = {x, y, w, state};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        free(parts[i]);
}

int main(int argc, char *argv[]) {
    tier = cpu_tier_best();
    for (cpu_tier t = CPU_SCALAR; argc > 1 && t <= cpu_tier_best(); t = (cpu_tier)(t + 1))
        if (strcmp(argv[1], cpu_tier_name(t)) == 0) tier = t;
    if (argc > 2 || (argc == 2 && strcmp(argv[1], cpu_tier_name(tier)) != 0)) {
        (void)fprintf(stderr,
                      "usage: bench_ops [scalar|avx2|avx512], as this machine has them\n");
        return 2;
    }
    scratch = floats(1 << 17);
    printf("tier %s, one thread\n", cpu_tier_name(tier));
    bench_small();
    bench_delta_net();
    bench_attention(KV_F16, "f16");
    bench_attention(KV_Q8, "q8");
    bench_attention(KV_Q4, "q4");
    bench_attention(KV_F32, "f32");
    free(scratch);
    return 0;
}
