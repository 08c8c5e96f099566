/* bench_cuda_prompts.c - times of the kernels that a prompt's rows run. */
#include "tests/benchmark/bench_cuda.h"

#include "common/quant_type.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/matmul.h"
#include <stdio.h>
#include <stdlib.h>

static void time_matmul(uint32_t type, uint32_t n_rows, uint32_t n_cols, uint32_t n_tokens) {
    bench_begin();
    const size_t row = quant_row_bytes((quant_type)type, n_cols);
    matmul_args a = {.act = bench_take_acts(n_tokens, n_cols),
                     .x = bench_take_floats((size_t)n_tokens * n_cols),
                     .out = bench_take((size_t)n_tokens * n_rows * 4),
                     .row_bytes = row,
                     .x_stride = n_cols,
                     .act_stride = cuda_act_row_bytes(n_cols),
                     .out_stride = n_rows,
                     .type = type,
                     .n_rows = n_rows,
                     .n_cols = n_cols,
                     .n_tokens = n_tokens};
    for (int i = 0; i < 6; i++) {
        cuda_shape shape;
        a.weights = bench_take_weights(type, row * n_rows);
        const cuda_kernel kernel = matmul_choose(&a, &shape);
        bench_add(kernel, shape, &a, sizeof a);
    }
    char name[96];
    (void)snprintf(name, sizeof name, "matmul %s %u x %u, %u tokens",
                   quant_traits_of(type)->name, n_rows, n_cols, n_tokens);
    bench_report(name, 6, 0, 2.0 * n_rows * n_cols * n_tokens);
}

/* One matrix of all experts, whose rows are sorted. */
static void time_experts(const char *what, uint32_t n_tokens, const matmul_args *a) {
    char name[96];
    cuda_shape shape;
    for (int i = 0; i < 4; i++) {
        const cuda_kernel kernel = matmul_choose(a, &shape);
        bench_add(kernel, shape, a, sizeof *a);
    }
    (void)snprintf(name, sizeof name, "experts %s, %s, %u tokens", what,
                   quant_traits_of(a->type)->name, n_tokens);
    bench_report(name, 4, (double)BENCH_EXPERTS * a->n_rows * (double)a->row_bytes,
                 2.0 * a->n_rows * a->n_cols * a->n_tokens);
}

static void time_grouped(uint32_t n_tokens) {
    bench_begin();
    size_t down_at;
    const uint32_t pairs = n_tokens * BENCH_USED;
    int32_t *ids = malloc(pairs * 4);
    if (ids == NULL) bench_stop("no memory");
    for (uint32_t i = 0; i < pairs; i++)
        ids[i] = (int32_t)(i * 37 % BENCH_EXPERTS);
    uint64_t *records = bench_take_records(QUANT_Q6_K, &down_at);
    int32_t *experts = bench_take(pairs * 4);
    bench_write(experts, ids, pairs * 4);
    free(ids);
    const experts_sort_args sort = {
        experts,
        bench_take(pairs * 4),
        bench_take(pairs * 4),
        bench_take((BENCH_EXPERTS + 1) * 4),
        bench_take(matmul_max_tiles(pairs, BENCH_EXPERTS) * sizeof(matmul_tile)),
        bench_take(4),
        pairs,
        BENCH_USED,
        BENCH_EXPERTS,
        0};
    for (int i = 0; i < 4; i++)
        BENCH_ADD(experts_sort, experts_sort_shape(), sort);
    char name[96];
    (void)snprintf(name, sizeof name, "experts_sort, %u tokens", n_tokens);
    bench_report(name, 4, 0, 0);
    matmul_args a = {.act = bench_take_acts(n_tokens, BENCH_EMBD),
                     .out = bench_take((size_t)pairs * BENCH_EMBD * 4),
                     .records = records,
                     .tiles = sort.tiles,
                     .n_tiles = sort.n_tiles,
                     .in_rows = sort.pair_row,
                     .row_bytes = quant_row_bytes(QUANT_Q4_K, BENCH_EMBD),
                     .act_stride = cuda_act_row_bytes(BENCH_EMBD),
                     .out_stride = BENCH_FF,
                     .type = QUANT_Q4_K,
                     .n_rows = BENCH_FF,
                     .n_cols = BENCH_EMBD,
                     .n_tokens = pairs,
                     .n_groups = BENCH_EXPERTS};
    time_experts("gate", n_tokens, &a);
    a.act = bench_take_acts(pairs, BENCH_FF);
    a.in_rows = NULL;
    a.out_rows = sort.pair_out;
    a.offset = down_at;
    a.act_stride = cuda_act_row_bytes(BENCH_FF);
    a.out_stride = BENCH_EMBD;
    a.type = QUANT_Q6_K;
    a.row_bytes = quant_row_bytes(QUANT_Q6_K, BENCH_FF);
    a.n_rows = BENCH_EMBD;
    a.n_cols = BENCH_FF;
    time_experts("down", n_tokens, &a);
}

void bench_prompts(void) {
    time_matmul(QUANT_Q5_K, 8192, 2048, 512);
    time_matmul(QUANT_Q4_K, 8192, 2048, 2048);
    time_matmul(QUANT_Q6_K, 8192, 2048, 2048);
    time_matmul(QUANT_F32, 256, 2048, 2048);
    time_grouped(512);
    time_grouped(2048);
    bench_delta_prompt(2048);
    bench_attention_prompt(2048, 0, KV_F16);
}
