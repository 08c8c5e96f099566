/* bench_cuda_pool.c - device memory with weights, rows and records for the kernels timed. */
#include "tests/benchmark/bench_cuda.h"

#include "common/quant_type.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/rows.h"
#include "tests/kernels/cuda_cases.h"

static unsigned char *pool;
static const size_t pool_bytes = (size_t)3 << 30;
static size_t pool_used;

void bench_begin(void) {
    if (pool == NULL) pool = bench_alloc(pool_bytes);
    pool_used = 0;
}

void *bench_take(size_t bytes) {
    void *p = pool + pool_used;
    pool_used += (bytes + 255) / 256 * 256;
    if (pool_used > pool_bytes) bench_stop("the pool is too small");
    return p;
}

void *bench_take_weights(uint32_t type, size_t bytes) {
    enum { SAMPLE = 1 << 20 };
    static unsigned char sample[SAMPLE];
    const size_t block = quant_traits_of(type)->block_bytes, whole = SAMPLE / block * block;
    unsigned char *p = bench_take(bytes);
    cuda_case_fill(type, sample, whole);
    for (size_t at = 0; at < bytes; at += whole)
        bench_write(p + at, sample, bytes - at < whole ? bytes - at : whole);
    return p;
}

float *bench_take_floats(size_t n) {
    return bench_take_weights(QUANT_F32, n * 4);
}

void *bench_take_acts(uint32_t n_rows, uint32_t n_cols) {
    void *act = bench_take(n_rows * cuda_act_row_bytes(n_cols));
    const quantize_args args = {bench_take_floats((size_t)n_rows * n_cols),
                                act,
                                n_cols,
                                cuda_act_row_bytes(n_cols),
                                n_cols,
                                n_rows};
    bench_launch(CUDA_KERNEL_quantize, quantize_shape(&args), &args, sizeof args);
    return act;
}

uint32_t bench_file_type(uint32_t type) {
    return type == CUDA_Q6_K_SPLIT ? (uint32_t)QUANT_Q6_K : type;
}

uint64_t *bench_take_records(uint32_t down_type, size_t *down_at) {
    const uint32_t down_file = bench_file_type(down_type);
    const size_t up = BENCH_FF * quant_row_bytes(QUANT_Q4_K, BENCH_EMBD);
    const size_t down = BENCH_EMBD * quant_row_bytes((quant_type)down_file, BENCH_FF);
    uint64_t table[BENCH_EXPERTS];
    for (int e = 0; e < BENCH_EXPERTS; e++) {
        unsigned char *p = bench_take_weights(QUANT_Q4_K, 2 * up);
        bench_take_weights(down_file, down); /* it follows: 2 * up is a multiple of 256 */
        table[e] = (uint64_t)(uintptr_t)p;
    }
    uint64_t *device = bench_take(sizeof table);
    bench_write(device, table, sizeof table);
    *down_at = 2 * up;
    return device;
}
