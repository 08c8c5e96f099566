/* delta_step.cu - convolution, gated delta rule and gated norm of decoding rows, in one launch;
 * kernels/conv1d.h, kernels/delta_net.h.
 *
 * State   [head][i of k][j of v], j fastest, as on the host.
 * Step    a block has a head of a run and keeps its state in registers: thread t has the four
 *         columns 4 (t % (dim / 4)) .. of every (2048 / dim)-th row i.  One pass over the old
 *         state gives both S^T k and S^T q: o_j = decay (S^T q)_j + (q.k) d_j.
 *         Threads 0 .. 3 dim - 1 have a channel of q, k or v each and make its convolution.
 *         Everything but the projections' rows is loaded before the wait.
 * Turns   value heads that share a key head all read its channels' old inputs, and one of their
 *         blocks writes the new ones: the last that has read, by a count in `turns`.
 * Kept    of a run verified row by row (args.h) the state after each row goes to its place while the
 *         next row goes on from the registers; its inputs' part by the block whose turn it is.
 * Launch  delta_step_shape: grid (value heads, runs), block 512.
 * Cost    one read and one write of the state, 4.2 MB a layer of 35B-A3B.
 * Limits  dim a multiple of 32, at most 128.
 * Oracle  kernels/cpu/conv1d.c, delta_net.c; tests/kernels/cuda_mixer_cases.c.
 */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/delta_net.cuh"
#include "kernels/cuda/mixers.h"

enum {
    STEP_DIM = 128,
    STEP_HELD = 8,   /* rows of the state a thread */
    STEP_PARTS = 4,  /* threads that add up a column */
    STEP_PITCH = 8,  /* floats between groups: the parts' loads meet no bank twice */
    STEP_SUMS = 2304 /* most groups * (dim + pitch) */
};

typedef struct step_shared {
    float qkv[3 * STEP_DIM];
    float d[STEP_DIM], o[STEP_DIM];
    float key[STEP_SUMS]; /* partial sums [group of rows][dim + pitch] */
    float query[STEP_SUMS];
    uint32_t turn;
} step_shared;

/* What a thread has of the convolution: one channel, its taps and its last inputs. */
typedef struct step_conv {
    float window[CONV1D_MAX_TAPS], tap[CONV1D_MAX_TAPS];
    uint32_t channel;
    bool active, is_key; /* a channel of q or k, which other blocks have too */
} step_conv;

DEVICE float *conv_state_of(const delta_step_args &a, uint32_t state) {
    return a.conv_state + state * a.base.state_stride;
}

DEVICE step_conv conv_begin(const delta_step_args &a, const batch_run &run, uint32_t head) {
    const delta_net_args &b = a.base;
    const uint32_t t = threadIdx.x, section = t / b.dim, i = t % b.dim;
    const uint32_t keys = b.n_key_heads * b.dim,
                   n_channels = 2 * keys + b.n_value_heads * b.dim;
    const uint32_t key = key_head_of(b, head) * b.dim;
    step_conv c;
    c.active = section < 3;
    c.is_key = section < 2;
    c.channel = section == 0   ? key + i
                : section == 1 ? keys + key + i
                               : 2 * keys + head * b.dim + i;
    const float *state = conv_state_of(a, run.state) + c.channel;
#pragma unroll
    for (uint32_t k = 0; k < CONV1D_MAX_TAPS; k++) {
        c.window[k] = c.tap[k] = 0;
        if (!c.active || k >= a.n_taps) continue;
        c.tap[k] = __uint_as_float(load4(a.taps + (uint64_t)k * n_channels + c.channel));
        if (k + 1 < a.n_taps) c.window[k] = __ldcg(state + (uint64_t)k * n_channels);
    }
    return c;
}

/* The convolution of input x in the order of conv1d.h; the window moves on. */
DEVICE float conv_step(const delta_step_args &a, step_conv &c, float x) {
    float sum = 0;
#pragma unroll
    for (uint32_t k = 0; k < CONV1D_MAX_TAPS; k++) {
        if (k >= a.n_taps) break;
        if (k + 1 == a.n_taps) c.window[k] = x;
        sum = k == 0 ? c.window[0] * c.tap[0] : fmaf(c.window[k], c.tap[k], sum);
    }
#pragma unroll
    for (uint32_t k = 0; k + 1 < CONV1D_MAX_TAPS; k++)
        if (k + 1 < a.n_taps) c.window[k] = c.window[k + 1];
    return silu(sum);
}

DEVICE void conv_keep(const delta_step_args &a, uint32_t to, const step_conv &c,
                      bool writes_keys) {
    const delta_net_args &b = a.base;
    const uint32_t n_channels = (2 * b.n_key_heads + b.n_value_heads) * b.dim;
    float *state = conv_state_of(a, to) + c.channel;
    if (!c.active || (c.is_key && !writes_keys)) return;
#pragma unroll
    for (uint32_t k = 0; k + 1 < CONV1D_MAX_TAPS; k++)
        if (k + 1 < a.n_taps) state[(uint64_t)k * n_channels] = c.window[k];
}

/* How the block's threads share out the state. */
typedef struct step_place {
    uint32_t columns, column, groups, group;
    bool active;
} step_place;

DEVICE step_place place_step(uint32_t dim) {
    step_place p;
    p.columns = dim / 4;
    p.groups = DELTA_STEP_BLOCK / p.columns;
    if (p.groups > dim) p.groups = dim;
    p.column = threadIdx.x % p.columns;
    p.group = threadIdx.x / p.columns;
    p.active = p.group < p.groups;
    return p;
}

DEVICE float4 *state_of(const delta_net_args &b, uint32_t state, uint32_t head) {
    return (float4 *)(b.state + state * b.state_stride + (uint64_t)head * b.dim * b.dim);
}

/* The block's part of a state: what it holds, and its inputs' last. */
DEVICE void state_keep(const delta_step_args &a, uint32_t to, uint32_t head,
                       const step_place &p, const float4 (&held)[STEP_HELD],
                       const step_conv &conv, bool writes_keys) {
    float4 *state = state_of(a.base, to, head);
#pragma unroll
    for (uint32_t r = 0; r < STEP_HELD; r++) {
        const uint32_t i = p.group + r * p.groups;
        if (p.active && i < a.base.dim) state[i * p.columns + p.column] = held[r];
    }
    conv_keep(a, to, conv, writes_keys);
}

/* The sums over q and k of a token, and the factors that make them unit vectors. */
typedef struct step_norms {
    float q_factor, k_factor, qk;
} step_norms;

DEVICE step_norms norms_of(const step_shared *s, uint32_t dim) {
    float qq = 0, kk = 0, qk = 0;
    for (uint32_t i = lane_index(); i < dim; i += WARP) {
        const float q = s->qkv[i], k = s->qkv[dim + i];
        qq = fmaf(q, q, qq);
        kk = fmaf(k, k, kk);
        qk = fmaf(q, k, qk);
    }
    step_norms n;
    n.q_factor = 1.0f / sqrtf(lanes_sum(qq) + 1e-6f) * (1.0f / sqrtf((float)dim));
    n.k_factor = 1.0f / sqrtf(lanes_sum(kk) + 1e-6f);
    n.qk = lanes_sum(qk) * n.q_factor * n.k_factor;
    return n;
}

/* The thread's part of S^T k and S^T q. */
DEVICE void step_read(step_shared *s, const step_place &p, uint32_t dim,
                      const float4 (&held)[STEP_HELD]) {
    float4 key = make_float4(0, 0, 0, 0), query = key;
    if (!p.active) return;
#pragma unroll
    for (uint32_t r = 0; r < STEP_HELD; r++) {
        const uint32_t i = p.group + r * p.groups;
        if (i >= dim) break;
        add4(query, s->qkv[i], held[r]);
        add4(key, s->qkv[dim + i], held[r]);
    }
    const uint32_t at = p.group * (dim + STEP_PITCH) + 4 * p.column;
    *(float4 *)(s->key + at) = key;
    *(float4 *)(s->query + at) = query;
}

/* d and o of a column, by four neighbouring threads. */
DEVICE void step_mix(step_shared *s, const step_place &p, uint32_t dim, const step_norms &n,
                     float decay, float beta) {
    const uint32_t j = threadIdx.x / STEP_PARTS, part = threadIdx.x % STEP_PARTS;
    float read = 0, sum = 0;
    if (j < dim) {
#pragma unroll 4
        for (uint32_t g = part; g < p.groups; g += STEP_PARTS) {
            read += s->key[g * (dim + STEP_PITCH) + j];
            sum += s->query[g * (dim + STEP_PITCH) + j];
        }
    }
    read = lanes_sum(read, STEP_PARTS) * n.k_factor;
    sum = lanes_sum(sum, STEP_PARTS) * n.q_factor;
    if (j >= dim || part != 0) return;
    const float d = beta * fmaf(-decay, read, s->qkv[2 * dim + j]);
    s->d[j] = d;
    s->o[j] = fmaf(n.qk, d, decay * sum);
}

/* S' = decay S + k d^T. */
DEVICE void step_update(const step_shared *s, const step_place &p, uint32_t dim, float k_factor,
                        float decay, float4 (&held)[STEP_HELD]) {
    if (!p.active) return;
    const float4 d = ((const float4 *)s->d)[p.column];
#pragma unroll
    for (uint32_t r = 0; r < STEP_HELD; r++) {
        const uint32_t i = p.group + r * p.groups;
        if (i >= dim) break;
        float4 next = make_float4(decay * held[r].x, decay * held[r].y, decay * held[r].z,
                                  decay * held[r].w);
        add4(next, s->qkv[dim + i] * k_factor, d);
        held[r] = next;
    }
}

/* out = rmsnorm(o) * norm * silu(z), by warps 0 .. dim / 32 - 1. */
DEVICE void step_norm(const delta_step_args &a, const step_shared *s, uint64_t row,
                      uint32_t head, float norm, float z) {
    const delta_net_args &b = a.base;
    const uint32_t t = threadIdx.x;
    if (t >= b.dim) return;
    float sum = 0;
    for (uint32_t i = lane_index(); i < b.dim; i += WARP)
        sum = fmaf(s->o[i], s->o[i], sum);
    const float scale = 1.0f / sqrtf(lanes_sum(sum) / (float)b.dim + b.eps);
    const float v = s->o[t] * scale * norm * silu(z);
    if (b.out != 0) b.out[row * b.out_stride + (uint64_t)head * b.dim + t] = v;
    if (a.act != 0)
        act_store_group((unsigned char *)a.act + row * a.act_stride, b.n_value_heads * b.dim,
                        head * b.dim + t - lane_index(), v);
}

/* Thread 0 learns whether all blocks of the key head have read its inputs. */
DEVICE void take_turn(const delta_step_args &a, step_shared *s, uint32_t head) {
    const delta_net_args &b = a.base;
    uint32_t *turn = a.turns + blockIdx.y * b.n_key_heads + key_head_of(b, head);
    const uint32_t last = b.n_value_heads / b.n_key_heads - 1;
    s->turn = last == 0 || atomicAdd(turn, 1u) == last;
    if (s->turn && last > 0) *turn = 0;
}

KERNEL(delta_net_step, delta_step_args, DELTA_STEP_BLOCK) {
    __shared__ __align__(16) step_shared s[1];
    const delta_net_args &b = a.base;
    const batch_run run = b.batch.runs[blockIdx.y];
    const uint32_t head = blockIdx.x, dim = b.dim, t = threadIdx.x;
    const step_place p = place_step(dim);
    const float4 *state = state_of(b, run.state, head);
    float4 held[STEP_HELD];
#pragma unroll
    for (uint32_t r = 0; r < STEP_HELD; r++) {
        const uint32_t i = p.group + r * p.groups;
        held[r] = make_float4(0, 0, 0, 0);
        if (p.active && i < dim) held[r] = __ldcg(state + i * p.columns + p.column);
    }
    step_conv conv = conv_begin(a, run, head);
    const float norm = t < dim ? __uint_as_float(load4(b.norm + t)) : 0.0f;
    launch_begin();
    for (uint32_t n = 0; n < run.n_rows; n++) {
        const uint64_t row = run.first_row + n;
        const uint64_t z_at = row * b.z_stride + (uint64_t)head * dim + t;
        const float x = conv.active ? __ldcg(b.qkv + row * b.qkv_stride + conv.channel) : 0.0f;
        const float z = t < dim ? __ldcg(b.z + z_at) : 0.0f;
        const float decay = expf(decay_of(b, row, head)), beta = beta_of(b, row, head);
        const float y = conv_step(a, conv, x);
        if (conv.active) s->qkv[t] = y;
        __syncthreads();
        if (n == 0 && t == 0) take_turn(a, s, head);
        step_read(s, p, dim, held);
        const step_norms norms = norms_of(s, dim);
        __syncthreads();
        step_mix(s, p, dim, norms, decay, beta);
        __syncthreads();
        step_update(s, p, dim, norms.k_factor, decay, held);
        step_norm(a, s, row, head, norm, z);
        __syncthreads();
        if (run.first_kept == 0 && n + 1 < run.n_rows) continue;
        state_keep(a, BATCH_STATE_AFTER(&b.batch, &run, n), head, p, held, conv, s->turn);
    }
}
