/* bench_cuda_mixers.c - times of what mixes tokens: delta nets and attention. */
#include "tests/benchmark/bench_cuda.h"

#include "common/quant_type.h"
#include "kernels/cuda/mixers.h"
#include <stdio.h>
#include <stdlib.h>

static batch_view take_batch(uint32_t n_rows, uint32_t position, uint32_t n_pages) {
    const batch_run run = {0, n_rows, position, 0, 0, 0};
    uint32_t *ids = calloc(n_pages + n_rows + 1, 4);
    if (ids == NULL) bench_stop("no memory");
    batch_run *runs = bench_take(sizeof run);
    uint32_t *row_run = bench_take(n_rows * 4), *pages = bench_take(n_pages * 4);
    bench_write(row_run, ids, n_rows * 4);
    for (uint32_t i = 0; i < n_pages; i++)
        ids[i] = n_pages - 1 - i;
    bench_write(pages, ids, n_pages * 4);
    bench_write(runs, &run, sizeof run);
    free(ids);
    return (batch_view){runs, row_run, pages, n_rows, 1};
}

/* ---- delta nets: a step's layers have states of their own, which pass the L2 cache ---- */

enum { KEYS = 16, VALUES = 32, DIM = 128, CONV = 8192, LINEAR_LAYERS = 30 };
static const size_t matrices = (size_t)VALUES * DIM * DIM;
static const size_t state = (size_t)VALUES * DIM * DIM + 3 * CONV;

static delta_net_cuda_args take_delta(uint32_t n_rows) {
    const size_t inner = (size_t)VALUES * DIM;
    return (delta_net_cuda_args){.base = {.batch = take_batch(n_rows, 0, 1),
                                          .qkv = bench_take_floats((size_t)n_rows * CONV),
                                          .z = bench_take_floats(n_rows * inner),
                                          .alpha = bench_take_floats((size_t)n_rows * VALUES),
                                          .beta = bench_take_floats((size_t)n_rows * VALUES),
                                          .a = bench_take_floats(VALUES),
                                          .dt = bench_take_floats(VALUES),
                                          .norm = bench_take_floats(DIM),
                                          .state = bench_take_floats(LINEAR_LAYERS * state),
                                          .out = bench_take(n_rows * inner * 4),
                                          .qkv_stride = CONV,
                                          .z_stride = inner,
                                          .alpha_stride = VALUES,
                                          .beta_stride = VALUES,
                                          .out_stride = inner,
                                          .state_stride = state,
                                          .n_key_heads = KEYS,
                                          .n_value_heads = VALUES,
                                          .dim = DIM,
                                          .eps = 1e-6f},
                                 .act = bench_take(n_rows * cuda_act_row_bytes(VALUES * DIM)),
                                 .act_stride = cuda_act_row_bytes(VALUES * DIM),
                                 .workspace =
                                     bench_take(delta_net_workspace_bytes(n_rows, 1, VALUES)),
                                 .raw = bench_take(n_rows * inner * 4)};
}

static void time_conv(const delta_net_args *a) {
    const uint32_t n_rows = a->batch.n_rows;
    conv1d_args c = {.batch = a->batch,
                     .x = a->qkv,
                     .weight = bench_take_floats(4 * CONV),
                     .y = bench_take((size_t)n_rows * CONV * 4),
                     .x_stride = CONV,
                     .y_stride = CONV,
                     .state_stride = state,
                     .n_channels = CONV,
                     .n_taps = 4};
    char name[96];
    for (int i = 0; i < LINEAR_LAYERS; i++) {
        c.state = a->state + i * state + matrices;
        BENCH_ADD(conv1d, conv1d_shape(&c), c);
    }
    (void)snprintf(name, sizeof name, "conv1d, %u rows", n_rows);
    bench_report(name, LINEAR_LAYERS, (2.0 * n_rows + 10) * CONV * 4, 0);
}

void bench_delta_step(void) {
    bench_begin();
    const delta_net_cuda_args a = take_delta(1);
    const uint32_t zeros[KEYS] = {0};
    delta_step_args step = {.base = a.base,
                            .taps = bench_take_floats(4 * CONV),
                            .turns = bench_take(sizeof zeros),
                            .act = a.act,
                            .act_stride = a.act_stride,
                            .n_taps = 4};
    time_conv(&a.base);
    bench_write(step.turns, zeros, sizeof zeros);
    for (int i = 0; i < LINEAR_LAYERS; i++) {
        step.base.state = a.base.state + i * state;
        step.conv_state = step.base.state + matrices;
        BENCH_ADD(delta_net_step, delta_step_shape(&step), step);
    }
    bench_report("delta_net_step, 1 rows", LINEAR_LAYERS, 2.0 * (double)matrices * 4, 0);
}

void bench_delta_prompt(uint32_t n_rows) {
    enum { TIMES = 4 };
    bench_begin();
    const delta_net_cuda_args a = take_delta(n_rows);
    time_conv(&a.base);
    for (int i = 0; i < TIMES; i++)
        BENCH_ADD(delta_net_scores, delta_net_scores_shape(&a), a);
    bench_report("  delta_net_scores", TIMES, 0, 0);
    for (int i = 0; i < TIMES; i++)
        BENCH_ADD(delta_net_chunks, delta_net_chunks_shape(&a), a);
    bench_report("  delta_net_chunks", TIMES, 0, 0);
    for (int i = 0; i < TIMES; i++)
        BENCH_ADD(delta_net_norm, delta_net_norm_shape(&a), a);
    bench_report("  delta_net_norm", TIMES, 0, 0);
}

/* ---- attention ---- */

enum { HEADS = 16, KV_HEADS = 2, HEAD_DIM = 256, FULL_LAYERS = 10 };

static const char *kv_name(kv_type type) {
    return type == KV_F32 ? "f32" : type == KV_F16 ? "f16" : type == KV_Q8 ? "q8" : "q4";
}

static kv_view take_pages(kv_type type, uint32_t n_pages) {
    const size_t page = kv_layer_bytes(type, KV_HEADS, HEAD_DIM) * FULL_LAYERS;
    const uint32_t filled_as = type == KV_F32 ? QUANT_F32 : QUANT_F16;
    return (kv_view){.base = bench_take_weights(filled_as, n_pages * page),
                     .page_bytes = page,
                     .type = type,
                     .n_kv_heads = KV_HEADS,
                     .head_dim = HEAD_DIM};
}

static prepare_args take_prepare(uint32_t n_rows, uint32_t position, kv_type type) {
    const uint32_t n_pages = (position + n_rows + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    const uint32_t qg = 2 * HEADS * HEAD_DIM, kv = KV_HEADS * HEAD_DIM;
    return (prepare_args){.base = {.batch = take_batch(n_rows, position, n_pages),
                                   .kv = take_pages(type, n_pages),
                                   .qg = bench_take_floats((size_t)n_rows * qg),
                                   .k = bench_take_floats((size_t)n_rows * kv),
                                   .v = bench_take_floats((size_t)n_rows * kv),
                                   .q_norm = bench_take_floats(HEAD_DIM),
                                   .k_norm = bench_take_floats(HEAD_DIM),
                                   .qg_stride = qg,
                                   .k_stride = kv,
                                   .v_stride = kv,
                                   .n_heads = HEADS,
                                   .n_rot = 64,
                                   .eps = 1e-6f},
                          .inv_freq = bench_take_floats(32)};
}

static attention_cuda_args take_attention(const prepare_args *p) {
    const uint32_t n_rows = p->base.batch.n_rows, q_dim = HEADS * HEAD_DIM;
    return (attention_cuda_args){.base = {.batch = p->base.batch,
                                          .kv = p->base.kv,
                                          .qg = p->base.qg,
                                          .out = bench_take((size_t)n_rows * q_dim * 4),
                                          .qg_stride = p->base.qg_stride,
                                          .out_stride = q_dim,
                                          .n_heads = HEADS,
                                          .scale = 0.0625f},
                                 .act = bench_take(n_rows * cuda_act_row_bytes(q_dim)),
                                 .act_stride = cuda_act_row_bytes(q_dim)};
}

void bench_attention_step(uint32_t position, kv_type type) {
    bench_begin();
    const size_t layer = kv_layer_bytes(type, KV_HEADS, HEAD_DIM);
    const prepare_args p = take_prepare(1, position, type);
    attention_cuda_args a = take_attention(&p);
    a.n_splits = attention_step_splits(&p, position + 64, (uint32_t)bench_card()->n_sms);
    a.workspace = bench_take(attention_workspace_bytes(1, HEADS, HEAD_DIM, a.n_splits));
    attention_step_args step = {p, a.workspace, a.n_splits, a.base.scale};
    char name[96];
    for (uint32_t i = 0; i < FULL_LAYERS; i++) {
        cuda_shape shape;
        const cuda_kernel kernel = attention_step_choose(&step, &shape);
        step.prepare.base.kv.layer_offset = i * layer;
        bench_add(kernel, shape, &step, sizeof step);
    }
    (void)snprintf(name, sizeof name, "attention_step %s at %u", kv_name(type), position);
    bench_report(name, FULL_LAYERS, (position + 1.0) * (double)layer / KV_PAGE_TOKENS, 0);
    for (uint32_t i = 0; i < FULL_LAYERS; i++)
        BENCH_ADD(attention_combine, attention_combine_shape(&a), a);
    (void)snprintf(name, sizeof name, "attention_combine at %u", position);
    bench_report(name, FULL_LAYERS, 0, 0);
}

void bench_attention_prompt(uint32_t n_rows, uint32_t position, kv_type type) {
    enum { TIMES = 4 };
    bench_begin();
    const size_t layer = kv_layer_bytes(type, KV_HEADS, HEAD_DIM);
    prepare_args p = take_prepare(n_rows, position, type);
    attention_cuda_args a = take_attention(&p);
    char name[96];
    for (uint32_t i = 0; i < FULL_LAYERS; i++) {
        p.base.kv.layer_offset = i * layer;
        BENCH_ADD(attention_prepare, attention_prepare_shape(&p), p);
    }
    (void)snprintf(name, sizeof name, "attention_prepare, %u rows", n_rows);
    bench_report(name, FULL_LAYERS, 0, 0);
    for (uint32_t i = 0; i < TIMES; i++) {
        a.base.kv.layer_offset = i * layer;
        BENCH_ADD(attention_half, attention_half_shape(&a), a);
    }
    (void)snprintf(name, sizeof name, "attention_half, %u rows at %u", n_rows, position);
    bench_report(name, TIMES, 0, 4.0 * HEADS * HEAD_DIM * n_rows * (position + n_rows / 2.0));
}
