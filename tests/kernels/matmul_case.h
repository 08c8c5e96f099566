/* matmul_case.h - random weights of any type and activations, for test_matmul.c and the benchmark.
 *
 * Weights lie against a page that faults, so that a kernel that reads past its last
 * block dies.  Header-only; a case that cannot be made ends the program.
 */
#ifndef SILICEO_TESTS_KERNELS_MATMUL_CASE_H
#define SILICEO_TESTS_KERNELS_MATMUL_CASE_H

#include "common/error.h"
#include "kernels/matmul.h"
#include "tests/kernels/block_case.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const quant_type all_types[] = {QUANT_F32,  QUANT_F16,    QUANT_BF16,   QUANT_Q4_0,
                                       QUANT_Q4_1, QUANT_Q5_0,   QUANT_Q5_1,   QUANT_Q8_0,
                                       QUANT_Q2_K, QUANT_Q3_K,   QUANT_Q4_K,   QUANT_Q5_K,
                                       QUANT_Q6_K, QUANT_IQ4_NL, QUANT_IQ4_XS, QUANT_MXFP4};
#define N_TYPES (sizeof all_types / sizeof all_types[0])

typedef struct matmul_case {
    quant_type type;
    act_format format;
    size_t n_rows, n_cols, n_tokens;
    uint8_t *map;
    size_t map_bytes;
    uint8_t *weights; /* ends where the map's readable part ends */
    float *x;         /* [n_tokens][n_cols] */
    uint8_t *acts;
    size_t act_stride;
    void *scratch;
} matmul_case;

static void case_make_weights(matmul_case *c) {
    const quant_traits *traits = quant_traits_of((uint32_t)c->type);
    size_t bytes = c->n_rows * quant_row_bytes(c->type, c->n_cols);
    size_t readable = (bytes + 4095) / 4096 * 4096;
    c->map_bytes = readable + 4096;
    c->map =
        mmap(NULL, c->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(c->map != MAP_FAILED);
    CHECK(mprotect(c->map + readable, 4096, PROT_NONE) == 0);
    c->weights = c->map + readable - bytes;
    for (size_t i = 0; i < bytes; i += traits->block_bytes)
        case_fill_block(c->type, c->weights + i, traits->block_bytes);
}

static void case_make_acts(matmul_case *c) {
    c->x = malloc(c->n_tokens * c->n_cols * sizeof *c->x);
    c->act_stride = act_row_bytes(c->format, c->n_cols);
    c->acts = aligned_alloc(64, c->n_tokens * c->act_stride);
    c->scratch = aligned_alloc(64, matmul_scratch_bytes(c->n_cols));
    CHECK(c->x != NULL && c->acts != NULL && c->scratch != NULL);
    for (size_t i = 0; i < c->n_tokens * c->n_cols; i++)
        c->x[i] = case_normal() * (case_random() % 200 == 0 ? 12.0f : 1.0f);
    for (size_t t = 0; t < c->n_tokens; t++) {
        act_quantize_row(CPU_SCALAR, c->format, c->x + t * c->n_cols, c->n_cols,
                         c->acts + t * c->act_stride);
    }
}

static void case_make(matmul_case *c, quant_type type, act_format format, size_t n_rows,
                      size_t n_cols, size_t n_tokens) {
    *c = (matmul_case){.type = type,
                       .format = format,
                       .n_rows = n_rows,
                       .n_cols = n_cols,
                       .n_tokens = n_tokens};
    case_make_weights(c);
    case_make_acts(c);
}

static void case_release(matmul_case *c) {
    (void)munmap(c->map, c->map_bytes);
    free(c->x);
    free(c->acts);
    free(c->scratch);
}

/* The job of the first n_tokens tokens. */
static matmul_job case_job(const matmul_case *c, size_t n_tokens, float *out) {
    return (matmul_job){.type = c->type,
                        .format = c->format,
                        .weights = c->weights,
                        .row_bytes = quant_row_bytes(c->type, c->n_cols),
                        .n_rows = c->n_rows,
                        .n_cols = c->n_cols,
                        .acts = c->acts,
                        .act_stride = c->act_stride,
                        .n_tokens = n_tokens,
                        .out = out,
                        .out_stride = c->n_rows};
}

#endif
