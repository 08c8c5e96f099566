/* attention.h - causal attention over KV pages, gated: out = softmax(q K^T * scale) V * sigmoid(gate).
 *
 * Shapes  qg [n_rows][n_heads][2][head_dim]: prepared query, then raw gate (attention_prepare.h);
 *         out [n_rows][n_heads][head_dim].  Query head a reads KV head a / (n_heads / n_kv_heads).
 *         A row at position p sees positions 0..p of its run's pages, its own included.
 * Work    item = kv_head * n_rows + row: all query heads of one KV head for one row.
 *         Neighbouring items share the loads of keys and values.
 * Order   Per row and head, page after page (64 positions): scores are 16-lane dots (tree as
 *         in cpu/scalar_math.h) times scale; the running maximum m; weights exp(s - m); their
 *         sum in 16 lanes and a tree, sum = fmaf(sum, c, tree) with c = exp(m_old - m);
 *         o = o * c, then o = fmaf(weight, v, o) position after position.
 *         At the end o / sum * sigmoid(gate).  So bits depend on the row's own sequence
 *         alone, and are the same in all tiers.
 * Limits  head_dim a multiple of 32, at most ATTENTION_MAX_HEAD_DIM.
 * Oracle  kernels/cpu/attention.c.
 */
#ifndef SILICEO_KERNELS_ATTENTION_H
#define SILICEO_KERNELS_ATTENTION_H

#include "kernels/kv_layout.h"

typedef struct attention_args {
    batch_view batch;
    kv_view kv;
    const float *qg;
    float *out;
    uint64_t qg_stride; /* floats from row to row */
    uint64_t out_stride;
    uint32_t n_heads;
    float scale; /* 1 / sqrt(head_dim) */
} attention_args;
KERNEL_ARGS_SIZE(attention_args, 112);

#ifndef __CUDACC__
#include "kernels/cpu/tier.h"

static inline size_t attention_n_items(const attention_args *args) {
    return (size_t)args->kv.n_kv_heads * args->batch.n_rows;
}
/* Bytes of scratch a worker needs, a multiple of 64. */
size_t attention_scratch_bytes(uint32_t head_dim);
/* Items first .. end - 1.  scratch is the calling worker's own, 64-byte aligned. */
void attention_items(cpu_tier tier, const attention_args *args, size_t first, size_t end,
                     void *scratch);
#endif

#endif
