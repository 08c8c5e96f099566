/* delta_net_simd.h - kernels/delta_net.h over vectors; see tier_ops.h and delta_net.c.
 *
 * The step walks the state twice, four rows at a time over all columns: both passes read
 * memory in order, and the sums stay in the first-level cache.  Steps of several tokens take
 * the columns in strips, whose part of the state stays in that cache from token to token; the
 * pass that writes the state after a token also reads it for the next one.  No column knows of
 * another, so its sums are the same chains.  The chunked form is three products on register
 * tiles (k S, q S, k^T d) and the forward substitution between them.
 */
#include "kernels/cpu/delta_net_scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tier_ops.h"
#include <stdbool.h>

enum { C = DELTA_NET_CHUNK, STRIP_VECTORS = 2 };

/* y = x * scale / sqrt(sum x^2 + 1e-6) */
static void l2norm(const float *x, size_t dim, float scale, float *y) {
    const v16 factor = v_set(1.0f / sqrtf(v_dot(x, x, dim) + 1e-6f) * scale);
    for (size_t i = 0; i < dim; i += 16)
        v_store(y + i, v_mul(v_load(x + i), factor));
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

/* read = state^T k */
static void read_state(size_t dim, const float *k, const float *state, float *read) {
    memset(read, 0, dim * sizeof(float));
    for (size_t i = 0; i < dim; i += 4) {
        const float *row = state + i * dim;
        const v16 k0 = v_set(k[i]), k1 = v_set(k[i + 1]);
        const v16 k2 = v_set(k[i + 2]), k3 = v_set(k[i + 3]);
        for (size_t j = 0; j < dim; j += 16) {
            v16 sum = v_fma(k0, v_load(row + j), v_load(read + j));
            sum = v_fma(k1, v_load(row + dim + j), sum);
            sum = v_fma(k2, v_load(row + 2 * dim + j), sum);
            v_store(read + j, v_fma(k3, v_load(row + 3 * dim + j), sum));
        }
    }
}

/* after = decay * before + k d^T; out = after^T q.  The state of the next head follows in
 * memory and is fetched ahead: a decode step reads every state once, from far away. */
static void update_state(size_t dim, const float *q, const float *k, const float *d,
                         float decay, const float *before, float *after, float *out) {
    const v16 e = v_set(decay);
    memset(out, 0, dim * sizeof(float));
    for (size_t i = 0; i < dim; i += 4) {
        for (size_t j = 0; j < dim; j += 16) {
            const v16 delta = v_load(d + j);
            v16 sum = v_load(out + j);
            UNROLL
            for (size_t r = i; r < i + 4; r++) {
                const uintptr_t ahead =
                    (uintptr_t)(before + r * dim + j) + dim * dim * sizeof(float);
                _mm_prefetch((const char *)ahead, _MM_HINT_T1);
                const v16 s = v_fma(v_set(k[r]), delta, v_mul(e, v_load(before + r * dim + j)));
                v_store(after + r * dim + j, s);
                sum = v_fma(v_set(q[r]), s, sum);
            }
            v_store(out + j, sum);
        }
    }
}

static void step(size_t dim, const float *q, const float *k, const float *v, float g,
                 float beta, const float *before, float *after, float *out) {
    const float decay = math_exp(g);
    float d[DELTA_NET_MAX_DIM];
    read_state(dim, k, before, d);
    for (size_t j = 0; j < dim; j += 16)
        v_store(d + j, v_mul(v_set(beta), v_fnma(v_set(decay), v_load(d + j), v_load(v + j))));
    update_state(dim, q, k, d, decay, before, after, out);
}

/* One token over a strip: after = decay * before + k d^T; out = after^T q; and for the token
 * after it read = after^T next. */
static inline __attribute__((always_inline)) void
strip_token(size_t dim, const float *q, const float *k, const float *next, const float *d,
            float decay, const float *before, float *after, float *out, float *read,
            const int vectors) {
    const v16 e = v_set(decay);
    v16 delta[STRIP_VECTORS], sum[STRIP_VECTORS], ahead[STRIP_VECTORS];
    UNROLL
    for (int x = 0; x < vectors; x++) {
        delta[x] = v_load(d + 16 * x);
        sum[x] = ahead[x] = v_zero();
    }
    for (size_t i = 0; i < dim; i++) {
        const v16 key = v_set(k[i]), query = v_set(q[i]), next_key = v_set(next[i]);
        UNROLL
        for (int x = 0; x < vectors; x++) {
            const size_t at = i * dim + 16 * (size_t)x;
            const v16 s = v_fma(key, delta[x], v_mul(e, v_load(before + at)));
            v_store(after + at, s);
            sum[x] = v_fma(query, s, sum[x]);
            ahead[x] = v_fma(next_key, s, ahead[x]);
        }
    }
    UNROLL
    for (int x = 0; x < vectors; x++) {
        v_store(out + 16 * x, sum[x]);
        v_store(read + 16 * x, ahead[x]);
    }
}

/* read = state^T k over a strip.  The next strip is fetched ahead. */
static inline __attribute__((always_inline)) void
strip_read(size_t dim, const float *k, const float *state, float *read, const int vectors) {
    v16 sum[STRIP_VECTORS];
    UNROLL
    for (int x = 0; x < vectors; x++)
        sum[x] = v_zero();
    for (size_t i = 0; i < dim; i++) {
        const v16 key = v_set(k[i]);
        UNROLL
        for (int x = 0; x < vectors; x++) {
            const float *at = state + i * dim + 16 * (size_t)x;
            _mm_prefetch((const char *)((uintptr_t)at + 64u * (unsigned)vectors), _MM_HINT_T0);
            sum[x] = v_fma(key, v_load(at), sum[x]);
        }
    }
    UNROLL
    for (int x = 0; x < vectors; x++)
        v_store(read + 16 * x, sum[x]);
}

/* Where n tokens in a row read and write. */
typedef struct step_rows {
    const float *before[C];
    float *after[C];
    const float *v;
    float *out;
    size_t v_stride, out_stride;
} step_rows;

/* The step of n tokens over the columns from j on. */
static inline __attribute__((always_inline)) void strip_tokens(size_t dim, size_t n,
                                                               const delta_net_cut *cut,
                                                               const step_rows *rows, size_t j,
                                                               const int vectors) {
    float read[16 * STRIP_VECTORS];
    strip_read(dim, cut->k, rows->before[0] + j, read, vectors);
    for (size_t t = 0; t < n; t++) {
        const float decay = math_exp(cut->decay[t]);
        const float *v = rows->v + t * rows->v_stride + j;
        float d[16 * STRIP_VECTORS];
        UNROLL
        for (int x = 0; x < vectors; x++)
            v_store(d + 16 * x,
                    v_mul(v_set(cut->beta[t]),
                          v_fnma(v_set(decay), v_load(read + 16 * x), v_load(v + 16 * x))));
        const size_t next = t + 1 < n ? t + 1 : t; /* the last one's is not used */
        strip_token(dim, cut->q + t * dim, cut->k + t * dim, cut->k + next * dim, d, decay,
                    rows->before[t] + j, rows->after[t] + j,
                    rows->out + t * rows->out_stride + j, read, vectors);
    }
}

static void steps(size_t dim, size_t n, const delta_net_cut *cut, const step_rows *rows) {
    size_t j = 0;
    for (; j + 16 * STRIP_VECTORS <= dim; j += 16 * STRIP_VECTORS)
        strip_tokens(dim, n, cut, rows, j, STRIP_VECTORS);
    for (; j < dim; j += 16)
        strip_tokens(dim, n, cut, rows, j, 1);
}

/* c[r][j] = fma chain over x < n of a[r * a_row + x * a_step] * b[x][j], starting from
 * *start * c[r][j], or from 0 when start is NULL. */
static inline __attribute__((always_inline)) void
gemm_tile(float *c, size_t c_stride, const float *a, size_t a_row, size_t a_step,
          const float *b, size_t b_stride, size_t n, const float *start, int rows,
          int vectors) {
    v16 acc[TILE_GEMM_ROWS][TILE_GEMM_VECTORS];
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int x = 0; x < vectors; x++) {
        const float *at = c + (size_t)r * c_stride + 16 * (size_t)x;
        acc[r][x] = start ? v_mul(v_set(*start), v_load(at)) : v_zero();
    }
    for (size_t i = 0; i < n; i++) {
        v16 column[TILE_GEMM_VECTORS];
        UNROLL
        for (int x = 0; x < vectors; x++)
            column[x] = v_load(b + i * b_stride + 16 * (size_t)x);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const v16 factor = v_set(a[(size_t)r * a_row + i * a_step]);
            UNROLL
            for (int x = 0; x < vectors; x++)
                acc[r][x] = v_fma(factor, column[x], acc[r][x]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int x = 0; x < vectors; x++)
        v_store(c + (size_t)r * c_stride + 16 * (size_t)x, acc[r][x]);
}

/* The same for m rows (a multiple of 8) and `dim` columns. */
static void gemm(float *c, size_t c_stride, const float *a, size_t a_row, size_t a_step,
                 const float *b, size_t b_stride, size_t m, size_t n, size_t dim,
                 const float *start) {
    size_t j = 0;
    for (; j + 16 * TILE_GEMM_VECTORS <= dim; j += 16 * TILE_GEMM_VECTORS)
        for (size_t r = 0; r < m; r += TILE_GEMM_ROWS)
            gemm_tile(c + r * c_stride + j, c_stride, a + r * a_row, a_row, a_step, b + j,
                      b_stride, n, start, TILE_GEMM_ROWS, TILE_GEMM_VECTORS);
    for (; j < dim; j += 16)
        for (size_t r = 0; r < m; r += TILE_GEMM_ROWS)
            gemm_tile(c + r * c_stride + j, c_stride, a + r * a_row, a_row, a_step, b + j,
                      b_stride, n, start, TILE_GEMM_ROWS, 1);
}

/* kk and qk of delta_net.c; what lies above the diagonal is not read and not defined. */
static void chunk_scores(size_t dim, delta_net_cut *cut) {
    for (size_t t = 1; t < C; t++)
        cut->decay[t] += cut->decay[t - 1];
    for (size_t t = 0; t < C; t += TILE_DOT) {
        const float *k[TILE_DOT], *q[TILE_DOT];
        for (size_t a = 0; a < TILE_DOT; a++) {
            k[a] = cut->k + (t + a) * dim;
            q[a] = cut->q + (t + a) * dim;
        }
        for (size_t l = 0; l <= t; l += TILE_DOT) {
            tile_dot(k, cut->k + l * dim, dim, dim, cut->kk + t * C + l, C);
            tile_dot(q, cut->k + l * dim, dim, dim, cut->qk + t * C + l, C);
        }
    }
    for (size_t t = 0; t < C; t++) {
        const v16 beta = v_set(-cut->beta[t]);
        for (size_t l = 0; l <= t; l += 16) {
            const v16 e = v_exp(v_sub(v_set(cut->decay[t]), v_load(cut->decay + l)));
            float *kk = cut->kk + t * C + l, *qk = cut->qk + t * C + l;
            v_store(qk, v_mul(v_load(qk), e));
            v_store(kk, v_mul(v_mul(v_load(kk), e), beta));
        }
    }
}

/* y += sum over l from .. to - 1 of a[l] * d_l, one row. */
static void add_rows(float *y, const float *a, const float *d, size_t dim, size_t from,
                     size_t to) {
    for (size_t j = 0; j < dim; j += 16) {
        v16 sum = v_load(y + j);
        for (size_t l = from; l < to; l++)
            sum = v_fma(v_set(a[l]), v_load(d + l * dim + j), sum);
        v_store(y + j, sum);
    }
}

/* On entry delta holds k S and out holds q S; on return the new values and the outputs. */
static void chunk_solve(size_t dim, const delta_net_cut *cut, const float *v, size_t v_stride,
                        float *out, size_t out_stride) {
    const float one = 1.0f;
    for (size_t t = 0; t < C; t++) {
        const v16 e = v_set(math_exp(cut->decay[t])), beta = v_set(cut->beta[t]);
        float *d = cut->delta + t * dim, *o = out + t * out_stride;
        for (size_t j = 0; j < dim; j += 16) {
            v_store(d + j, v_mul(beta, v_fnma(e, v_load(d + j), v_load(v + t * v_stride + j))));
            v_store(o + j, v_mul(v_load(o + j), e));
        }
    }
    for (size_t b = 0; b < C; b += 8) {
        if (b > 0)
            gemm(cut->delta + b * dim, dim, cut->kk + b * C, C, 1, cut->delta, dim, 8, b, dim,
                 &one);
        for (size_t t = b + 1; t < b + 8; t++)
            add_rows(cut->delta + t * dim, cut->kk + t * C, cut->delta, dim, b, t);
    }
    for (size_t b = 0; b < C; b += 8) {
        if (b > 0)
            gemm(out + b * out_stride, out_stride, cut->qk + b * C, C, 1, cut->delta, dim, 8, b,
                 dim, &one);
        for (size_t t = b; t < b + 8; t++)
            add_rows(out + t * out_stride, cut->qk + t * C, cut->delta, dim, b, t + 1);
    }
}

static void chunk(size_t dim, delta_net_cut *cut, const float *v, size_t v_stride, float *state,
                  float *out, size_t out_stride) {
    chunk_scores(dim, cut);
    gemm(cut->delta, dim, cut->k, dim, 1, state, dim, C, dim, dim, NULL);
    gemm(out, out_stride, cut->q, dim, 1, state, dim, C, dim, dim, NULL);
    chunk_solve(dim, cut, v, v_stride, out, out_stride);
    const float last = cut->decay[C - 1];
    for (size_t t = 0; t < C; t++) {
        const v16 e = v_set(math_exp(last - cut->decay[t]));
        float *k = cut->k + t * dim;
        for (size_t i = 0; i < dim; i += 16)
            v_store(k + i, v_mul(v_load(k + i), e));
    }
    const float decay = math_exp(last);
    gemm(state, dim, cut->k, 1, dim, cut->delta, dim, dim, C, dim, &decay);
}

static void gated_norm(const float *z, const float *weight, size_t dim, float eps, float *o) {
    const v16 scale = v_set(1.0f / sqrtf(v_dot(o, o, dim) / (float)dim + eps));
    for (size_t j = 0; j < dim; j += 16) {
        const v16 normed = v_mul(v_mul(v_load(o + j), scale), v_load(weight + j));
        v_store(o + j, v_mul(normed, v_silu(v_load(z + j))));
    }
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
        chunk(dim, cut, v, args->qkv_stride, h->after, out, args->out_stride);
    } else if (n == 1) {
        delta_net_next_row(args, h, item, token);
        step(dim, cut->q, cut->k, v, cut->decay[0], cut->beta[0], h->before, h->after, out);
    } else {
        step_rows rows = {
            .v = v, .out = out, .v_stride = args->qkv_stride, .out_stride = args->out_stride};
        for (size_t t = 0; t < n; t++) {
            delta_net_next_row(args, h, item, token + t);
            rows.before[t] = h->before;
            rows.after[t] = h->after;
        }
        steps(dim, n, cut, &rows);
    }
    for (size_t t = 0; t < n; t++)
        gated_norm(h->z + (token + t) * args->z_stride, args->norm, dim, args->eps,
                   out + t * args->out_stride);
}

void TIER(delta_net)(const delta_net_args *args, size_t first, size_t end, void *scratch) {
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
