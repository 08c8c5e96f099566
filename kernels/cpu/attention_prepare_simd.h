/* attention_prepare_simd.h - kernels/attention_prepare.h over vectors; see tier_ops.h. */
#include "kernels/cpu/kv_simd.h"
#include "kernels/cpu/tier_ops.h"

static void rotate(float *y, const float *rope, size_t n_pairs) {
    size_t i = 0;
    for (; i + 16 <= n_pairs; i += 16) {
        const v16 a = v_load(y + i), b = v_load(y + n_pairs + i);
        const v16 cosine = v_load(rope + i), sine = v_load(rope + n_pairs + i);
        v_store(y + i, v_fms(a, cosine, v_mul(b, sine)));
        v_store(y + n_pairs + i, v_fma(b, cosine, v_mul(a, sine)));
    }
    for (; i < n_pairs; i++) {
        const float a = y[i], b = y[n_pairs + i], cosine = rope[i], sine = rope[n_pairs + i];
        y[i] = fmaf(a, cosine, -(b * sine));
        y[n_pairs + i] = fmaf(b, cosine, a * sine);
    }
}

/* y = rotate(rmsnorm(x)); y may be x. */
static void norm_and_rotate(const attention_prepare_args *args, const float *x,
                            const float *weight, const float *rope, float *y) {
    const size_t dim = args->kv.head_dim;
    const v16 scale = v_set(1.0f / sqrtf(v_dot(x, x, dim) / (float)dim + args->eps));
    for (size_t i = 0; i < dim; i += 16)
        v_store(y + i, v_mul(v_mul(v_load(x + i), scale), v_load(weight + i)));
    rotate(y, rope, args->n_rot / 2);
}

void TIER(attention_prepare)(const attention_prepare_args *args, size_t first, size_t end) {
    const uint32_t dim = args->kv.head_dim, type = args->kv.type;
    const batch_view *batch = &args->batch;
    float key[ATTENTION_MAX_HEAD_DIM];
    for (size_t row = first; row < end; row++) {
        const batch_run *run = &batch->runs[batch->row_run[row]];
        const uint32_t position = run->position + (uint32_t)row - run->first_row;
        const uint32_t page = batch->pages[run->first_page + position / KV_PAGE_TOKENS];
        const uint32_t slot = position % KV_PAGE_TOKENS;
        const float *rope = args->rope + row * args->n_rot;
        for (size_t head = 0; head < args->n_heads; head++) {
            float *q = args->qg + row * args->qg_stride + head * 2 * dim;
            norm_and_rotate(args, q, args->q_norm, rope, q);
        }
        for (uint32_t head = 0; head < args->kv.n_kv_heads; head++) {
            const size_t at = (size_t)head * dim;
            norm_and_rotate(args, args->k + row * args->k_stride + at, args->k_norm, rope, key);
            kv_write(type, kv_key_block(&args->kv, page, head), dim, slot, key);
            kv_write(type, kv_value_block(&args->kv, page, head), dim, slot,
                     args->v + row * args->v_stride + at);
        }
    }
}
