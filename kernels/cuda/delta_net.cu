/* delta_net.cu - the gated delta rule in chunks of 32 tokens; kernels/delta_net.h.
 *
 * State   [head][i of k][j of v], j fastest, as on the host.
 * Chunks  with G_t the running sum of g, e_t = exp(G_t), A_tl = b_t exp(G_t - G_l) (k_t.k_l) for
 *         l < t, and S the state before the chunk:
 *           T = (I + A)^-1,  d = T [b_t (v_t - e_t S^T k_t)]
 *           o_t = e_t S^T q_t + sum_{l<=t} exp(G_t - G_l) (q_t.k_l) d_l
 *           S' = e_last S + sum_t exp(G_last - G_t) k_t d_t^T
 *         delta_net_scores makes T and the q.k products of every chunk side by side;
 *         delta_net_chunks walks the chunks, a block for 32 columns of a head's state;
 *         delta_net_norm is the gated norm.  A cut that is not whole is padded with tokens of
 *         k = 0 and b = 0, which change nothing.
 * Launch  the shapes in mixers.h; delta_net_chunks needs 62 KB of dynamic shared memory.
 * Limits  dim a multiple of 32, at most 128.
 * Source  Gated Delta Networks (Yang et al., 2024), section 3.3.
 * Oracle  kernels/cpu/delta_net.c; compared in tests/kernels/cuda_mixer_cases.c.
 */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/delta_net.cuh"
#include "kernels/cuda/mixers.h"

enum { CHUNK = DELTA_NET_CHUNK, SLICE = DELTA_NET_SLICE, MAX_DIM = 128 };

/* A piece of a run between multiples of CHUNK. */
typedef struct cut_place {
    uint32_t row; /* of the batch */
    uint32_t n;   /* tokens; 0: there is no such cut */
} cut_place;

DEVICE uint32_t cuts_of_run(const batch_run &run) {
    return (run.position + run.n_rows - 1) / CHUNK - run.position / CHUNK + 1;
}

DEVICE cut_place cut_of_run(const batch_run &run, uint32_t cut) {
    const uint32_t begin = cut == 0 ? run.position : (run.position / CHUNK + cut) * CHUNK;
    uint32_t end = (run.position / CHUNK + cut + 1) * CHUNK;
    const uint32_t last = run.position + run.n_rows;
    if (end > last) end = last;
    cut_place p = {run.first_row + begin - run.position, end - begin};
    return p;
}

/* Cut number c counted over all runs. */
DEVICE cut_place cut_of_batch(const batch_view &batch, uint32_t c) {
    for (uint32_t r = 0; r < batch.n_runs; r++) {
        const batch_run run = batch.runs[r];
        const uint32_t n = cuts_of_run(run);
        if (c < n) return cut_of_run(run, c);
        c -= n;
    }
    cut_place none = {0, 0};
    return none;
}

/* What delta_net_scores leaves of a cut of a head: DELTA_NET_CUT_FLOATS floats. */
typedef struct cut_scores {
    float inverse[CHUNK][CHUNK]; /* T */
    float qk[CHUNK][CHUNK];
    float e[CHUNK];    /* exp(G_t) */
    float tail[CHUNK]; /* exp(G_last - G_t) */
    float beta[CHUNK];
    float q_factor[CHUNK];
    float k_factor[CHUNK];
} cut_scores;

enum { QK_PITCH = MAX_DIM + 4 };

/* Token w, w + 8, ... by warp w: rows of q and k and their factors. */
DEVICE void scores_load(const delta_net_args &a, const cut_place &p, uint32_t head, float *q,
                        float *k, cut_scores *out) {
    const uint32_t lane = lane_index();
    for (uint32_t t = threadIdx.x / WARP; t < CHUNK; t += blockDim.x / WARP) {
        float qq = 0, kk = 0;
        const qkv_place at = qkv_of(a, p.row + t, head);
        for (uint32_t i = lane; i < a.dim; i += WARP) {
            const float qi = t < p.n ? __ldcg(at.q + i) : 0.0f;
            const float ki = t < p.n ? __ldcg(at.k + i) : 0.0f;
            q[t * QK_PITCH + i] = qi;
            k[t * QK_PITCH + i] = ki;
            qq = fmaf(qi, qi, qq);
            kk = fmaf(ki, ki, kk);
        }
        qq = lanes_sum(qq);
        kk = lanes_sum(kk);
        if (lane == 0) {
            out->q_factor[t] = 1.0f / sqrtf(qq + 1e-6f) * (1.0f / sqrtf((float)a.dim));
            out->k_factor[t] = 1.0f / sqrtf(kk + 1e-6f);
        }
    }
}

/* Column c of T by one thread: forward substitution on I + A. */
DEVICE void invert_column(cut_scores *s, const float (*lower)[CHUNK + 1], uint32_t c) {
    float column[CHUNK];
#pragma unroll
    for (uint32_t t = 0; t < CHUNK; t++) {
        float sum = t == c ? 1.0f : 0.0f;
#pragma unroll
        for (uint32_t l = 0; l < t; l++)
            sum = fmaf(-lower[t][l], column[l], sum);
        column[t] = sum;
        s->inverse[t][c] = sum;
    }
}

KERNEL(delta_net_scores, delta_net_cuda_args, 256) {
    __shared__ __align__(16) float q[CHUNK * QK_PITCH];
    __shared__ __align__(16) float k[CHUNK * QK_PITCH];
    __shared__ float lower[CHUNK][CHUNK + 1];
    __shared__ float sums[CHUNK];
    launch_begin();
    const delta_net_args &b = a.base;
    const cut_place p = cut_of_batch(b.batch, blockIdx.x);
    const uint32_t head = blockIdx.y;
    if (p.n == 0) return;
    cut_scores *out = (cut_scores *)a.workspace + (uint64_t)blockIdx.x * b.n_value_heads + head;
    scores_load(b, p, head, q, k, out);
    if (threadIdx.x < WARP) {
        const uint32_t t = threadIdx.x;
        float g = t < p.n ? decay_of(b, p.row + t, head) : 0.0f;
        for (uint32_t m = 1; m < WARP; m *= 2) {
            const float before = __shfl_up_sync(FULL_WARP, g, m);
            if (t >= m) g += before;
        }
        const float last = __shfl_sync(FULL_WARP, g, CHUNK - 1);
        sums[t] = g;
        out->e[t] = expf(g);
        out->tail[t] = expf(last - g);
        out->beta[t] = t < p.n ? beta_of(b, p.row + t, head) : 0.0f;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < CHUNK * CHUNK; i += blockDim.x) {
        const uint32_t t = i / CHUNK, l = i % CHUNK;
        float kk = 0, qk = 0;
        if (l <= t) {
            for (uint32_t x = 0; x < b.dim; x += 4) {
                const float4 kl = *(const float4 *)(k + l * QK_PITCH + x);
                const float4 kt = *(const float4 *)(k + t * QK_PITCH + x);
                const float4 qt = *(const float4 *)(q + t * QK_PITCH + x);
                kk = fmaf(kt.w, kl.w, fmaf(kt.z, kl.z, fmaf(kt.y, kl.y, fmaf(kt.x, kl.x, kk))));
                qk = fmaf(qt.w, kl.w, fmaf(qt.z, kl.z, fmaf(qt.y, kl.y, fmaf(qt.x, kl.x, qk))));
            }
            const float e = expf(sums[t] - sums[l]) * out->k_factor[l];
            kk *= e * out->k_factor[t] * out->beta[t];
            qk *= e * out->q_factor[t];
        }
        lower[t][l] = kk;
        out->qk[t][l] = qk;
    }
    __syncthreads();
    if (threadIdx.x < CHUNK) invert_column(out, lower, threadIdx.x);
}

/* The dynamic shared memory of delta_net_chunks. */
typedef struct chunk_shared {
    float state[MAX_DIM][SLICE];
    float q[CHUNK * QK_PITCH];
    float k[CHUNK * QK_PITCH];
    float d[CHUNK][SLICE];
    float inverse[CHUNK][CHUNK];
    float qk[CHUNK][CHUNK];
    float e[CHUNK], tail[CHUNK], beta[CHUNK];
} chunk_shared;
KERNEL_ARGS_SIZE(chunk_shared, DELTA_NET_CHUNK_SHARED);

DEVICE void chunk_load(const delta_net_args &a, const cut_place &p, uint32_t head,
                       const cut_scores *from, chunk_shared *s) {
    for (uint32_t i = threadIdx.x; i < CHUNK * CHUNK / 4; i += blockDim.x) {
        ((float4 *)s->inverse)[i] = __ldcg((const float4 *)from->inverse + i);
        ((float4 *)s->qk)[i] = __ldcg((const float4 *)from->qk + i);
    }
    if (threadIdx.x < CHUNK) {
        s->e[threadIdx.x] = __ldcg(from->e + threadIdx.x);
        s->tail[threadIdx.x] = __ldcg(from->tail + threadIdx.x);
        s->beta[threadIdx.x] = __ldcg(from->beta + threadIdx.x);
    }
    const uint32_t quads = a.dim / 4;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < CHUNK * quads; i += blockDim.x) {
        const uint32_t t = i / quads, x = i % quads;
        float4 q = make_float4(0, 0, 0, 0), k = q;
        if (t < p.n) {
            const qkv_place at = qkv_of(a, p.row + t, head);
            const float qf = __ldcg(from->q_factor + t), kf = __ldcg(from->k_factor + t);
            const float4 qv = __ldcg((const float4 *)at.q + x);
            const float4 kv = __ldcg((const float4 *)at.k + x);
            q = make_float4(qv.x * qf, qv.y * qf, qv.z * qf, qv.w * qf);
            k = make_float4(kv.x * kf, kv.y * kf, kv.z * kf, kv.w * kf);
        }
        *(float4 *)(s->q + t * QK_PITCH + 4 * x) = q;
        *(float4 *)(s->k + t * QK_PITCH + 4 * x) = k;
    }
}

/* key[r], query[r]: columns of S^T k and S^T q of token first + r. */
DEVICE void chunk_reads(const chunk_shared *s, uint32_t dim, uint32_t first, uint32_t j,
                        float (&key)[4], float (&query)[4]) {
#pragma unroll 2
    for (uint32_t i = 0; i < dim; i += 4) {
        const float s0 = s->state[i][j], s1 = s->state[i + 1][j];
        const float s2 = s->state[i + 2][j], s3 = s->state[i + 3][j];
#pragma unroll
        for (uint32_t r = 0; r < 4; r++) {
            const float4 k = *(const float4 *)(s->k + (first + r) * QK_PITCH + i);
            const float4 q = *(const float4 *)(s->q + (first + r) * QK_PITCH + i);
            key[r] = fmaf(k.w, s3, fmaf(k.z, s2, fmaf(k.y, s1, fmaf(k.x, s0, key[r]))));
            query[r] = fmaf(q.w, s3, fmaf(q.z, s2, fmaf(q.y, s1, fmaf(q.x, s0, query[r]))));
        }
    }
}

/* out[r] += sum over l of m[first + r][l] * d[l][j]. */
DEVICE void chunk_mix(const float (*m)[CHUNK], const float (*d)[SLICE], uint32_t first,
                      uint32_t j, float (&out)[4]) {
#pragma unroll 2
    for (uint32_t l = 0; l < CHUNK; l += 4) {
        const float v0 = d[l][j], v1 = d[l + 1][j], v2 = d[l + 2][j], v3 = d[l + 3][j];
#pragma unroll
        for (uint32_t r = 0; r < 4; r++) {
            const float4 f = *(const float4 *)&m[first + r][l];
            out[r] = fmaf(f.w, v3, fmaf(f.z, v2, fmaf(f.y, v1, fmaf(f.x, v0, out[r]))));
        }
    }
}

/* S' for column j: rows are shared out among the warps, eight at a time. */
DEVICE void chunk_update(chunk_shared *s, uint32_t dim, uint32_t j) {
    enum { EACH = 8 };
    const float last = s->e[CHUNK - 1];
    for (uint32_t i = threadIdx.x / WARP * EACH; i < dim; i += blockDim.x / WARP * EACH) {
        float sum[EACH];
#pragma unroll
        for (uint32_t r = 0; r < EACH; r++)
            sum[r] = last * s->state[i + r][j];
#pragma unroll 4
        for (uint32_t t = 0; t < CHUNK; t++) {
            const float v = s->tail[t] * s->d[t][j];
            const float4 low = *(const float4 *)(s->k + t * QK_PITCH + i);
            const float4 high = *(const float4 *)(s->k + t * QK_PITCH + i + 4);
            const float k[EACH] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (uint32_t r = 0; r < EACH; r++)
                sum[r] = fmaf(v, k[r], sum[r]);
        }
#pragma unroll
        for (uint32_t r = 0; r < EACH; r++)
            s->state[i + r][j] = sum[r];
    }
}

/* Lane j is column j of the slice; warp w has tokens 4 w .. 4 w + 3. */
DEVICE void chunk_run(const delta_net_cuda_args &a, const cut_place &p, uint32_t head,
                      uint32_t column, chunk_shared *s) {
    const delta_net_args &b = a.base;
    const uint32_t j = lane_index(), first = threadIdx.x / WARP * 4;
    float key[4] = {}, query[4] = {}, d[4] = {};
    chunk_reads(s, b.dim, first, j, key, query);
#pragma unroll
    for (uint32_t r = 0; r < 4; r++) {
        const uint32_t t = first + r;
        const float v = t < p.n ? __ldcg(qkv_of(b, p.row + t, head).v + column + j) : 0.0f;
        s->d[t][j] = s->beta[t] * fmaf(-s->e[t], key[r], v);
        query[r] *= s->e[t];
    }
    __syncthreads();
    chunk_mix(s->inverse, s->d, first, j, d);
    __syncthreads();
#pragma unroll
    for (uint32_t r = 0; r < 4; r++)
        s->d[first + r][j] = d[r];
    __syncthreads();
    chunk_mix(s->qk, s->d, first, j, query);
#pragma unroll
    for (uint32_t r = 0; r < 4; r++)
        if (first + r < p.n)
            a.raw[((uint64_t)(p.row + first + r) * b.n_value_heads + head) * b.dim + column +
                  j] = query[r];
    chunk_update(s, b.dim, j);
}

KERNEL_FIT(delta_net_chunks, delta_net_cuda_args, 256, 1) {
    DYNAMIC_SHARED(shared);
    launch_begin();
    chunk_shared *s = (chunk_shared *)shared;
    const delta_net_args &b = a.base;
    const uint32_t slices = b.dim / SLICE, head = blockIdx.x / slices;
    const uint32_t column = blockIdx.x % slices * SLICE;
    uint32_t cuts_before = 0;
    for (uint32_t r = 0; r < blockIdx.y; r++)
        cuts_before += cuts_of_run(b.batch.runs[r]);
    const batch_run run = b.batch.runs[blockIdx.y];
    float *state = b.state + run.state * b.state_stride + (uint64_t)head * b.dim * b.dim;
    for (uint32_t i = threadIdx.x; i < b.dim * SLICE; i += blockDim.x)
        s->state[i / SLICE][i % SLICE] =
            __ldcg(state + (uint64_t)(i / SLICE) * b.dim + column + i % SLICE);
    const uint32_t n_cuts = cuts_of_run(run);
    for (uint32_t c = 0; c < n_cuts; c++) {
        const cut_place p = cut_of_run(run, c);
        __syncthreads();
        chunk_load(b, p, head,
                   (const cut_scores *)a.workspace +
                       (uint64_t)(cuts_before + c) * b.n_value_heads + head,
                   s);
        __syncthreads();
        chunk_run(a, p, head, column, s);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < b.dim * SLICE; i += blockDim.x)
        state[(uint64_t)(i / SLICE) * b.dim + column + i % SLICE] =
            s->state[i / SLICE][i % SLICE];
}

/* A warp has a head of a row. */
KERNEL(delta_net_norm, delta_net_cuda_args, WARP) {
    launch_begin();
    const delta_net_args &b = a.base;
    const uint32_t head = blockIdx.x, lane = lane_index();
    const uint64_t row = blockIdx.y, at = (uint64_t)head * b.dim;
    const float *o = a.raw + row * b.n_value_heads * b.dim + at;
    float sum = 0, held[MAX_DIM / WARP];
#pragma unroll
    for (uint32_t g = 0; g < MAX_DIM / WARP; g++) {
        held[g] = g * WARP < b.dim ? __ldcg(o + g * WARP + lane) : 0.0f;
        sum = fmaf(held[g], held[g], sum);
    }
    const float scale = 1.0f / sqrtf(lanes_sum(sum) / (float)b.dim + b.eps);
#pragma unroll
    for (uint32_t g = 0; g < MAX_DIM / WARP; g++) {
        const uint32_t i = g * WARP + lane;
        if (g * WARP >= b.dim) break;
        const float v =
            held[g] * scale * b.norm[i] * silu(__ldcg(b.z + row * b.z_stride + at + i));
        if (b.out != 0) b.out[row * b.out_stride + at + i] = v;
        if (a.act != 0)
            act_store_group((unsigned char *)a.act + row * a.act_stride,
                            b.n_value_heads * b.dim, head * b.dim + g * WARP, v);
    }
}
