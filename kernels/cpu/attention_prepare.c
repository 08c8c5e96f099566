/* attention_prepare.c - the oracle of kernels/attention_prepare.h, and the choice of the tier. */
#include "kernels/attention_prepare.h"
#include "kernels/cpu/scalar_math.h"
#include "kernels/cpu/tier_ops.h"

/* y = rotate(rmsnorm(x)); y may be x. */
static void norm_and_rotate(const attention_prepare_args *args, const float *x,
                            const float *weight, const float *rope, float *y) {
    const size_t dim = args->kv.head_dim, n_pairs = args->n_rot / 2;
    const float scale = 1.0f / sqrtf(math_dot(x, x, dim) / (float)dim + args->eps);
    for (size_t i = 0; i < dim; i++)
        y[i] = x[i] * scale * weight[i];
    for (size_t i = 0; i < n_pairs; i++) {
        const float a = y[i], b = y[n_pairs + i], cosine = rope[i], sine = rope[n_pairs + i];
        y[i] = fmaf(a, cosine, -(b * sine));
        y[n_pairs + i] = fmaf(b, cosine, a * sine);
    }
}

void attention_prepare_scalar(const attention_prepare_args *args, size_t first, size_t end) {
    const size_t dim = args->kv.head_dim;
    const batch_view *batch = &args->batch;
    float key[ATTENTION_MAX_HEAD_DIM] = {0};
    for (size_t row = first; row < end; row++) {
        const batch_run *run = &batch->runs[batch->row_run[row]];
        const uint32_t position = run->position + (uint32_t)row - run->first_row;
        const uint32_t page = batch->pages[run->first_page + position / KV_PAGE_TOKENS];
        const uint32_t slot = position % KV_PAGE_TOKENS;
        const float *rope = args->rope + row * args->n_rot;
        for (uint32_t head = 0; head < args->n_heads; head++) {
            float *q = args->qg + row * args->qg_stride + head * 2 * dim;
            norm_and_rotate(args, q, args->q_norm, rope, q);
        }
        for (uint32_t head = 0; head < args->kv.n_kv_heads; head++) {
            norm_and_rotate(args, args->k + row * args->k_stride + head * dim, args->k_norm,
                            rope, key);
            kv_row_write(args->kv.type, kv_key_block(&args->kv, page, head), args->kv.head_dim,
                         slot, key);
            kv_row_write(args->kv.type, kv_value_block(&args->kv, page, head),
                         args->kv.head_dim, slot, args->v + row * args->v_stride + head * dim);
        }
    }
}

void attention_prepare_rows(cpu_tier tier, const attention_prepare_args *args, size_t first,
                            size_t end) {
    TIER_CALL(tier, attention_prepare, args, first, end);
}
