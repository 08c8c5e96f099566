/* bench_cuda_decode.c - times of the kernels that decoding rows run.
 *
 * Weights rotate over more copies than the L2 cache holds.
 */
#include "tests/benchmark/bench_cuda.h"

#include "common/quant_type.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/router.h"
#include "kernels/cuda/rows.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct part {
    uint32_t type, n_rows;
} part;

/* Segments on one input, over as many copies of the weights as pass the L2 cache. */
static void time_matvec(const char *name, uint32_t n_cols, uint32_t n_tokens, const part *parts,
                        uint32_t n_parts, bool norm) {
    enum { TIMES = 48 };
    double bytes = 0;
    bench_begin();
    matvec_args args = {.x = bench_take_floats((size_t)n_tokens * n_cols),
                        .act = norm ? NULL : bench_take_acts(n_tokens, n_cols),
                        .norm = norm ? bench_take_floats(n_cols) : NULL,
                        .x_stride = n_cols,
                        .act_stride = cuda_act_row_bytes(n_cols),
                        .n_cols = n_cols,
                        .n_tokens = n_tokens,
                        .n_segments = n_parts};
    for (uint32_t i = 0; i < n_parts; i++)
        bytes += (double)parts[i].n_rows *
                 (double)quant_row_bytes((quant_type)bench_file_type(parts[i].type), n_cols);
    const int copies = bytes > 1e8                      ? 4
                       : (int)(4e8 / bytes) + 2 > TIMES ? TIMES
                                                        : (int)(4e8 / bytes) + 2;
    matvec_segment *segments = calloc((size_t)copies * n_parts, sizeof *segments);
    if (segments == NULL) bench_stop("no memory");
    for (int c = 0; c < copies; c++) {
        for (uint32_t i = 0; i < n_parts; i++) {
            const int split = parts[i].type == CUDA_Q6_K_SPLIT;
            const uint32_t type = bench_file_type(parts[i].type);
            const size_t row = quant_row_bytes((quant_type)type, n_cols);
            segments[(size_t)c * n_parts + i] =
                (matvec_segment){.weights = bench_take_weights(type, row * parts[i].n_rows),
                                 .out = bench_take((size_t)n_tokens * parts[i].n_rows * 4),
                                 .row_bytes = split ? row / 210 * 208 : row,
                                 .out_stride = parts[i].n_rows,
                                 .split_d = (uint64_t)n_cols / 256 * parts[i].n_rows * 208,
                                 .type = parts[i].type,
                                 .n_rows = parts[i].n_rows};
        }
    }
    const int times = bytes > 1e8 ? 8 : TIMES;
    for (int k = 0; k < times; k++) {
        memcpy(args.segments, segments + (size_t)(k % copies) * n_parts,
               n_parts * sizeof *segments);
        cuda_shape shape;
        const cuda_kernel kernel = matvec_choose(&args, (uint32_t)bench_card()->n_sms,
                                                 (uint32_t)bench_card()->major, &shape);
        bench_add(kernel, shape, &args, sizeof args);
    }
    free(segments);
    bench_report(name, times, bytes, 0);
}

static void time_rows(void) {
    enum { TIMES = 100 };
    bench_begin();
    const norm_args norm = {.x = bench_take_floats(BENCH_EMBD),
                            .weight = bench_take_floats(BENCH_EMBD),
                            .y = bench_take(BENCH_EMBD * 4),
                            .act = bench_take(BENCH_EMBD * 2),
                            .x_stride = BENCH_EMBD,
                            .y_stride = BENCH_EMBD,
                            .act_stride = cuda_act_row_bytes(BENCH_EMBD),
                            .dim = BENCH_EMBD,
                            .eps = 1e-6f};
    for (int i = 0; i < TIMES; i++)
        BENCH_ADD(rmsnorm, rmsnorm_shape(&norm, 1), norm);
    bench_report("rmsnorm + q8, 2048", TIMES, 0, 0);
    const router_cuda_args route = {.base = {bench_take_floats(BENCH_EXPERTS), bench_take(64),
                                             bench_take(64), BENCH_EXPERTS, BENCH_EXPERTS,
                                             BENCH_USED},
                                    .records = bench_take(BENCH_EXPERTS * 8),
                                    .places = bench_take(64)};
    for (int i = 0; i < TIMES; i++)
        BENCH_ADD(router, router_shape(1), route);
    bench_report("router top-8 of 256", TIMES, 0, 0);
    const argmax_args arg = {bench_take_floats(248320), bench_take(8), 248320, 248320, 1};
    for (int i = 0; i < TIMES; i++)
        BENCH_ADD(argmax, argmax_shape(&arg), arg);
    bench_report("argmax 248320", TIMES, 248320 * 4, 0);
}

static void time_router_logits(void) {
    enum { TIMES = 48 };
    bench_begin();
    router_logits_args a = {.x = bench_take_floats(BENCH_EMBD),
                            .norm = bench_take_floats(BENCH_EMBD),
                            .y = bench_take(BENCH_EMBD * 4),
                            .act = bench_take(cuda_act_row_bytes(BENCH_EMBD)),
                            .x_stride = BENCH_EMBD,
                            .y_stride = BENCH_EMBD,
                            .act_stride = cuda_act_row_bytes(BENCH_EMBD),
                            .n_cols = BENCH_EMBD,
                            .n_tokens = 1,
                            .n_segments = 2,
                            .eps = 1e-6f};
    float *logits = bench_take((BENCH_EXPERTS + 1) * 4);
    for (int i = 0; i < TIMES; i++) {
        const float *w = bench_take_floats((size_t)BENCH_EMBD * (BENCH_EXPERTS + 1));
        for (uint32_t s = 0; s < 2; s++)
            a.segments[s] = (matvec_segment){.weights = w + s * BENCH_EMBD * BENCH_EXPERTS,
                                             .out = logits + s * BENCH_EXPERTS,
                                             .row_bytes = BENCH_EMBD * 4,
                                             .out_stride = BENCH_EXPERTS,
                                             .type = QUANT_F32,
                                             .n_rows = s ? 1 : BENCH_EXPERTS};
        BENCH_ADD(router_logits, router_logits_shape(&a), a);
    }
    bench_report("norm + router logits F32 257 x 2048", TIMES, 257.0 * BENCH_EMBD * 4, 0);
}

typedef struct expert_step {
    experts_up_args up;
    experts_down_args down;
    int32_t *chosen; /* [EXPERT_STEPS][8][BENCH_USED] on the device */
} expert_step;

enum { EXPERT_STEPS = 32 };

static expert_step take_experts(uint32_t down_type, uint32_t n_rows) {
    size_t down_at;
    uint64_t *records = bench_take_records(down_type, &down_at);
    const size_t row = quant_row_bytes(QUANT_Q4_K, BENCH_EMBD);
    const size_t down_file = quant_row_bytes((quant_type)bench_file_type(down_type), BENCH_FF);
    const size_t down_row = down_type == CUDA_Q6_K_SPLIT ? down_file / 210 * 208 : down_file;
    const uint64_t split_d = BENCH_EMBD * down_row;
    const unsigned char *shared = bench_take_weights(QUANT_Q4_K, 2 * BENCH_FF * row);
    const void *shared_down =
        bench_take_weights(bench_file_type(down_type), BENCH_EMBD * down_file);
    int32_t *chosen = bench_take(EXPERT_STEPS * 8 * BENCH_USED * 4);
    int32_t ids[EXPERT_STEPS * 8 * BENCH_USED];
    for (int i = 0; i < EXPERT_STEPS * 8 * BENCH_USED; i++)
        ids[i] = i * 37 % BENCH_EXPERTS;
    bench_write(chosen, ids, sizeof ids);
    const experts_up_args up = {
        .records = records,
        .act = bench_take_acts(n_rows, BENCH_EMBD),
        .h = bench_take(100 * BENCH_FF * 4),
        .h_act = bench_take(100 * cuda_act_row_bytes(BENCH_FF)),
        .act_stride = cuda_act_row_bytes(BENCH_EMBD),
        .h_stride = BENCH_FF,
        .h_act_stride = cuda_act_row_bytes(BENCH_FF),
        .gate = {shared, 0, row, row, 0, 0, QUANT_Q4_K, QUANT_Q4_K},
        .up = {shared + BENCH_FF * row, BENCH_FF * row, row, row, 0, 0, QUANT_Q4_K, QUANT_Q4_K},
        .n_rows = n_rows,
        .n_used = BENCH_USED,
        .n_cols = BENCH_EMBD,
        .n_ff = BENCH_FF,
        .n_ff_shared = BENCH_FF,
        .down_offset = down_at,
        .down_bytes = BENCH_EMBD * down_file};
    const experts_down_args down = {.records = records,
                                    .weights = bench_take_floats(8 * BENCH_USED),
                                    .shared_gate = bench_take_floats(8),
                                    .h = up.h,
                                    .h_act = up.h_act,
                                    .x = bench_take_floats(8 * BENCH_EMBD),
                                    .h_stride = BENCH_FF,
                                    .h_act_stride = up.h_act_stride,
                                    .x_stride = BENCH_EMBD,
                                    .down = {shared_down, down_at, down_row, down_row, split_d,
                                             split_d, down_type, down_type},
                                    .n_rows = n_rows,
                                    .n_used = BENCH_USED,
                                    .n_embd = BENCH_EMBD,
                                    .n_ff = BENCH_FF,
                                    .n_ff_shared = BENCH_FF};
    return (expert_step){up, down, chosen};
}

static void add_up(experts_up_args up, const int32_t *chosen) {
    cuda_shape shape;
    up.experts = chosen;
    const cuda_kernel kernel = experts_up_choose(&up, &shape);
    bench_add(kernel, shape, &up, sizeof up);
}

static void add_down(experts_down_args down, const int32_t *chosen) {
    cuda_shape shape;
    down.experts = chosen;
    const cuda_kernel kernel = experts_down_choose(&down, &shape);
    bench_add(kernel, shape, &down, sizeof down);
}

static void time_experts(uint32_t down_type, uint32_t n_rows) {
    bench_begin();
    const expert_step s = take_experts(down_type, n_rows);
    char name[96];
    const double pairs = n_rows * 9.0;
    for (int i = 0; i < EXPERT_STEPS; i++)
        add_up(s.up, s.chosen + i * 8 * BENCH_USED);
    (void)snprintf(name, sizeof name, "experts_up Q4_K, %u rows, 8 + 1", n_rows);
    bench_report(name, EXPERT_STEPS, pairs * 2 * BENCH_FF * (double)s.up.gate.row_bytes, 0);
    for (int i = 0; i < EXPERT_STEPS; i++)
        add_down(s.down, s.chosen + i * 8 * BENCH_USED);
    (void)snprintf(name, sizeof name, "experts_down %s, %u rows",
                   quant_traits_of(bench_file_type(down_type))->name, n_rows);
    bench_report(name, EXPERT_STEPS, pairs * (double)s.up.down_bytes, 0);
}

/* A step's places and turns, its first n_missing pairs coming; missing records go to one of
 * BENCH_EXPERTS others. */
static void take_turns(expert_step *s, uint32_t n_rows, uint32_t n_missing, int step) {
    uint64_t places[8 * BENCH_USED], table[BENCH_EXPERTS];
    expert_turn turns[8 * BENCH_USED];
    bench_read(table, s->up.records, sizeof table);
    for (uint32_t i = 0; i < n_rows * BENCH_USED; i++) {
        const uint32_t e = ((uint32_t)step * 8 * BENCH_USED + i) * 37 % BENCH_EXPERTS;
        places[i] = table[e] | (i < n_missing ? EXPERT_COMING : 0);
        turns[i] = (expert_turn){places[i], i, e};
    }
    uint64_t *at = bench_take(sizeof places);
    expert_turn *order = bench_take(sizeof turns);
    bench_write(at, places, sizeof places);
    bench_write(order, turns, sizeof turns);
    s->up.places = s->down.places = at;
    s->up.turns = order;
}

static void time_missing(expert_step s, uint32_t n_rows, uint32_t n_missing) {
    char name[96];
    s.up.n_rows = s.down.n_rows = n_rows;
    for (int i = 0; i < EXPERT_STEPS; i++) {
        take_turns(&s, n_rows, n_missing, i);
        add_up(s.up, s.chosen + i * 8 * BENCH_USED);
        add_down(s.down, s.chosen + i * 8 * BENCH_USED);
    }
    (void)snprintf(name, sizeof name, "experts up + down, %u rows, %u missing", n_rows,
                   n_missing);
    bench_report(name, EXPERT_STEPS, n_missing * (double)(s.up.down_offset + s.up.down_bytes),
                 0);
}

/* Both launches of a layer, some of whose experts come from pinned memory, which holds zeros;
 * GB/s are the bus's. */
static void time_coming(void) {
    bench_begin();
    expert_step s = take_experts(QUANT_Q4_K, 8);
    s.up.slot_bytes = (s.up.down_offset + s.up.down_bytes + 255) / 256 * 256;
    void *source = bench_pin(BENCH_EXPERTS * s.up.slot_bytes);
    s.up.source = source;
    for (uint32_t missing = 0; missing <= 4; missing++)
        time_missing(s, 1, missing);
    time_missing(s, 8, 0);
    time_missing(s, 8, 16);
    bench_unpin(source);
}

void bench_decode(void) {
    static const part qkv[] = {{QUANT_Q5_K, 8192}, {QUANT_Q4_K, 4096}, {QUANT_Q4_K, 64}};
    static const part full[] = {{QUANT_Q4_K, 8192}, {QUANT_Q4_K, 512}, {QUANT_Q6_K, 512}};
    static const part out[] = {{QUANT_Q4_K, 2048}};
    static const part head[] = {{QUANT_Q6_K, 248320}}, split[] = {{CUDA_Q6_K_SPLIT, 248320}};
    static const part q8[] = {{QUANT_Q8_0, 8192}};
    time_rows();
    time_matvec("matvec qkv + z + a/b, 12352 x 2048", 2048, 1, qkv, 3, false);
    time_matvec("  norm inside", 2048, 1, qkv, 3, true);
    time_matvec("  2 tokens", 2048, 2, qkv, 3, false);
    time_matvec("  4 tokens", 2048, 4, qkv, 3, false);
    time_matvec("  8 tokens", 2048, 8, qkv, 3, false);
    time_matvec("matvec q + k + v, 9216 x 2048", 2048, 1, full, 3, false);
    time_matvec("  norm inside", 2048, 1, full, 3, true);
    time_matvec("matvec out, Q4_K 2048 x 4096", 4096, 1, out, 1, false);
    time_matvec("matvec Q8_0 8192 x 2048", 2048, 1, q8, 1, false);
    time_router_logits();
    time_matvec("matvec head, Q6_K 248320 x 2048", 2048, 1, head, 1, false);
    time_matvec("matvec head, split Q6_K", 2048, 1, split, 1, false);
    time_experts(QUANT_Q4_K, 1);
    time_experts(CUDA_Q6_K_SPLIT, 1);
    time_experts(QUANT_Q4_K, 4);
    time_coming();
    bench_delta_step();
    bench_attention_step(1000, KV_F16);
    bench_attention_step(8000, KV_F16);
    bench_attention_step(32000, KV_F16);
    bench_attention_step(1000, KV_F32);
    bench_attention_step(8000, KV_Q8);
    bench_attention_step(8000, KV_Q4);
}
