/* delta_net.c - the oracle of kernels/delta_net.h, and the choice of the tier.
 *
 * The chunked form of C tokens, with G_t = g_0 + .. + g_t and the state S before the chunk:
 *
 *   e_t = exp(G_t),  d_t = b_t (v_t - e_t S^T k_t) - sum_{l<t} b_t exp(G_t - G_l) (k_t.k_l) d_l
 *   o_t = e_t S^T q_t + sum_{l<=t} exp(G_t - G_l) (q_t.k_l) d_l
 *   S'  = exp(G_last) S + sum_t exp(G_last - G_t) k_t d_t^T
 *
 * d is found by forward substitution, so no matrix is inverted.  Only differences G_t - G_l
 * with l <= t are exponentiated; they are <= 0, and nothing overflows.  Every element is one
 * chain of fmaf in the order of its sum, which is what makes tiling free of rounding.
 */
#include "kernels/delta_net.h"
#include "kernels/cpu/delta_net_scratch.h"
#include "kernels/cpu/scalar_math.h"
#include "kernels/cpu/tier_ops.h"
#include <stdbool.h>

enum { C = DELTA_NET_CHUNK };

/* y = x * scale / sqrt(sum x^2 + 1e-6) */
static void l2norm(const float *x, size_t dim, float scale, float *y) {
    const float factor = 1.0f / sqrtf(math_dot(x, x, dim) + 1e-6f) * scale;
    for (size_t i = 0; i < dim; i++)
        y[i] = x[i] * factor;
}

static void prepare(const delta_net_args *args, const delta_net_head *h, size_t token, size_t n,
                    delta_net_cut *cut) {
    const size_t dim = args->dim;
    const float q_scale = 1.0f / sqrtf((float)dim);
    for (size_t t = 0; t < n; t++) {
        const size_t at = token + t;
        l2norm(h->q + at * args->qkv_stride, dim, q_scale, cut->q + t * dim);
        l2norm(h->k + at * args->qkv_stride, dim, 1.0f, cut->k + t * dim);
        const float g = h->a * math_softplus(h->alpha[at * args->alpha_stride] + h->dt);
        cut->decay[t] = g < -88.0f ? -88.0f : g;
        cut->beta[t] = math_sigmoid(h->beta[at * args->beta_stride]);
    }
}

static void step(size_t dim, const float *q, const float *k, const float *v, float g,
                 float beta, const float *before, float *after, float *out) {
    const float decay = math_exp(g);
    for (size_t j = 0; j < dim; j++) {
        float read = 0.0f, sum = 0.0f;
        for (size_t i = 0; i < dim; i++)
            read = fmaf(k[i], before[i * dim + j], read);
        const float d = beta * fmaf(-decay, read, v[j]);
        for (size_t i = 0; i < dim; i++) {
            const float s = fmaf(k[i], d, decay * before[i * dim + j]);
            after[i * dim + j] = s;
            sum = fmaf(q[i], s, sum);
        }
        out[j] = sum;
    }
}

/* kk_tl = -b_t exp(G_t - G_l) (k_t.k_l), l < t; qk_tl = exp(G_t - G_l) (q_t.k_l), l <= t;
 * zero elsewhere. */
static void chunk_scores(size_t dim, delta_net_cut *cut) {
    for (size_t t = 1; t < C; t++)
        cut->decay[t] += cut->decay[t - 1];
    for (size_t t = 0; t < C; t++) {
        for (size_t l = 0; l <= t; l++) {
            const float *k = cut->k + l * dim;
            const float e = math_exp(cut->decay[t] - cut->decay[l]);
            cut->qk[t * C + l] = math_dot(cut->q + t * dim, k, dim) * e;
            cut->kk[t * C + l] = math_dot(cut->k + t * dim, k, dim) * e * -cut->beta[t];
        }
    }
}

/* Column j of a chunk. */
static void chunk_column(size_t dim, const delta_net_cut *cut, const float *v, size_t v_stride,
                         float *state, float *out, size_t out_stride, size_t j) {
    float *d = cut->delta + j;
    for (size_t t = 0; t < C; t++) {
        float key = 0.0f, query = 0.0f;
        for (size_t i = 0; i < dim; i++) {
            key = fmaf(cut->k[t * dim + i], state[i * dim + j], key);
            query = fmaf(cut->q[t * dim + i], state[i * dim + j], query);
        }
        const float e = math_exp(cut->decay[t]);
        float sum = cut->beta[t] * fmaf(-e, key, v[t * v_stride + j]);
        for (size_t l = 0; l < t; l++)
            sum = fmaf(cut->kk[t * C + l], d[l * dim], sum);
        d[t * dim] = sum;
        float o = query * e;
        for (size_t l = 0; l <= t; l++)
            o = fmaf(cut->qk[t * C + l], d[l * dim], o);
        out[t * out_stride + j] = o;
    }
    const float last = cut->decay[C - 1];
    for (size_t i = 0; i < dim; i++) {
        float s = math_exp(last) * state[i * dim + j];
        for (size_t t = 0; t < C; t++)
            s = fmaf(cut->k[t * dim + i] * math_exp(last - cut->decay[t]), d[t * dim], s);
        state[i * dim + j] = s;
    }
}

static void gated_norm(const float *z, const float *weight, size_t dim, float eps, float *o) {
    const float scale = 1.0f / sqrtf(math_dot(o, o, dim) / (float)dim + eps);
    for (size_t j = 0; j < dim; j++)
        o[j] = o[j] * scale * weight[j] * math_silu(z[j]);
}

/* Tokens token .. token + n - 1 of an item's run, which lie in one cut. */
static void run_cut(const delta_net_args *args, delta_net_head *h, size_t item, size_t token,
                    size_t n, delta_net_cut *cut) {
    const bool verified = args->batch.runs[item / args->n_value_heads].first_kept != 0;
    const size_t dim = args->dim;
    const float *v = h->v + token * args->qkv_stride;
    float *out = h->out + token * args->out_stride;
    prepare(args, h, token, n, cut);
    if (n == C && !verified) {
        chunk_scores(dim, cut);
        for (size_t j = 0; j < dim; j++)
            chunk_column(dim, cut, v, args->qkv_stride, h->after, out, args->out_stride, j);
    } else {
        for (size_t t = 0; t < n; t++) {
            delta_net_next_row(args, h, item, token + t);
            step(dim, cut->q + t * dim, cut->k + t * dim, v + t * args->qkv_stride,
                 cut->decay[t], cut->beta[t], h->before, h->after, out + t * args->out_stride);
        }
    }
    for (size_t t = 0; t < n; t++)
        gated_norm(h->z + (token + t) * args->z_stride, args->norm, dim, args->eps,
                   out + t * args->out_stride);
}

void delta_net_scalar(const delta_net_args *args, size_t first, size_t end, void *scratch) {
    delta_net_cut cut = delta_net_cut_at(scratch, args->dim);
    for (size_t item = first; item < end; item++) {
        const batch_run *run = &args->batch.runs[item / args->n_value_heads];
        delta_net_head head = delta_net_head_of(args, item);
        uint32_t n = 0;
        for (uint32_t t = 0; t < run->n_rows; t += n) {
            n = delta_net_cut_tokens(run->position + t, run->n_rows - t);
            run_cut(args, &head, item, t, n, &cut);
        }
    }
}

size_t delta_net_scratch_bytes(uint32_t dim) {
    return (delta_net_scratch_floats(dim) * sizeof(float) + 63) / 64 * 64;
}

void delta_net_items(cpu_tier tier, const delta_net_args *args, size_t first, size_t end,
                     void *scratch) {
    TIER_CALL(tier, delta_net, args, first, end, scratch);
}
