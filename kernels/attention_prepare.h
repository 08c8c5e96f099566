/* attention_prepare.h - queries and keys normed and rotated, keys and values put in the cache.
 *
 * Shapes  qg [n_rows][n_heads][2][head_dim]: of each head the query, then its gate, as
 *         attn_q gives them; the query is replaced in place, the gate stays.
 *         k, v [n_rows][n_kv_heads][head_dim]; q_norm, k_norm [head_dim];
 *         rope [n_rows][n_rot]: cosines, then sines, of the row's position (rope.h).
 * Does    q, k = rotate(rmsnorm(.)) per head; the first n_rot dims rotate in pairs
 *         (i, i + n_rot / 2), y_i = x_i cos - x_j sin, y_j = x_j cos + x_i sin (an fmaf and a
 *         product each).  k and v go to the row's position in its run's pages.
 * Limits  head_dim a multiple of 32 and at most 512; n_rot even, <= head_dim.
 * Oracle  kernels/cpu/attention_prepare.c; all tiers give the same bits.
 */
#ifndef SILICEO_KERNELS_ATTENTION_PREPARE_H
#define SILICEO_KERNELS_ATTENTION_PREPARE_H

#include "kernels/kv_layout.h"

enum { ATTENTION_MAX_HEAD_DIM = 512 };

typedef struct attention_prepare_args {
    batch_view batch;
    kv_view kv;
    float *qg;
    const float *k;
    const float *v;
    const float *q_norm;
    const float *k_norm;
    const float *rope;
    uint64_t qg_stride; /* floats from row to row */
    uint64_t k_stride;
    uint64_t v_stride;
    uint32_t n_heads;
    uint32_t n_rot;
    float eps;
    uint32_t reserved;
} attention_prepare_args;
KERNEL_ARGS_SIZE(attention_prepare_args, 160);

#ifndef __CUDACC__
#include "kernels/cpu/tier.h"

/* Rows first .. end - 1 of the batch, all heads of each. */
void attention_prepare_rows(cpu_tier tier, const attention_prepare_args *args, size_t first,
                            size_t end);
#endif

#endif
