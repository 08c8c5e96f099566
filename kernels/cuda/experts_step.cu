/* experts_step.cu - the experts of decoding rows in two launches; kernels/cuda/experts.h.
 *
 * Shapes  35B-A3B: 8 of 256 experts a row and a shared one, gate and up 512 x 2048, down 2048 x 512.
 * Launch  experts_up: grid (n_ff / 16, pairs and shared), block 256: a warp makes 2 rows of gate
 *         and the same 2 of up, its 4 rows loaded whole before the first product.  Its registers
 *         let three blocks share a multiprocessor, so that a row's 288 blocks are one wave.
 *         experts_up_any: the same for every type, two rows at a time or fewer.
 *         experts_up_coming: as experts_up, where a missing record's blocks bring their own rows
 *         of gate and up, and each a share of down, from host memory; the others compute meanwhile
 *         and experts_down loads what is there.  No block waits for another, so nothing depends
 *         on which of them run at the same time, or in which order.
 *         experts_down: grid (n_embd / 8, rows), a warp an expert: it has 8 rows' weights on
 *         their way before it waits for experts_up; one thread a row sums up in rank order.
 * Cost    one read of the active experts' weights a pair; duplicates among rows meet in L2.  A
 *         missing record crosses the bus once, 20 KB a block being on their way at a time.
 * Oracle  float64 products on the same quantized activations, tests/kernels/cuda_expert_cases.c; the
 *         bits are those of kernels/cpu/matmul.c, tests/kernels/cuda_lane_cases.c.
 */
#include "kernels/cuda/experts_fetch.h"
#include "kernels/cuda/wide.cuh"

DEVICE matrix_view expert_view(const expert_matrix &e, uint64_t record, uint32_t n_cols) {
    matrix_view m;
    m.base = record != 0 ? (const unsigned char *)(uintptr_t)record + e.offset
                         : (const unsigned char *)e.shared;
    m.row_bytes = record != 0 ? e.row_bytes : e.shared_row_bytes;
    m.split_d = record != 0 ? e.split_d : e.shared_split_d;
    m.type = record != 0 ? e.type : e.shared_type;
    m.n_cols = n_cols;
    return m;
}

/* Where a pair's record is; 0: nowhere here. */
DEVICE uint64_t place_of(const uint64_t *places, const uint64_t *records,
                         const int32_t *experts, uint32_t pair) {
    if (places != 0) return __ldcg(places + pair);
    return __ldcg(records + __ldcg(experts + pair));
}

/* ---- gate, up, SwiGLU ---- */

/* What a warp works on: rows row0, row1 of gate and of up.  Rows beyond n_ff repeat the last. */
typedef struct up_rows {
    matrix_view gate, up;
    uint32_t row0, row1;
} up_rows;

/* Of four sums over a warp the lanes 8 r .. 8 r + 7 get the one of v[r]. */
DEVICE float four_sums(const float (&v)[4]) {
    const bool high = lane_index() & 16, odd = lane_index() & 8;
    const float give0 = high ? v[0] : v[2], give1 = high ? v[1] : v[3];
    const float a = (high ? v[2] : v[0]) + __shfl_xor_sync(FULL_WARP, give0, 16);
    const float b = (high ? v[3] : v[1]) + __shfl_xor_sync(FULL_WARP, give1, 16);
    const float sum = (odd ? b : a) + __shfl_xor_sync(FULL_WARP, odd ? a : b, 8);
    return lanes_sum(sum, 8);
}

DEVICE const unsigned char *up_row(const up_rows &u, int r) {
    return matrix_row(r < 2 ? u.gate : u.up, r % 2 ? u.row1 : u.row0);
}

/* ROWS of the four rows, from `from` on. */
template <int TYPE, int ROWS, bool FRESH = false>
DEVICE void up_load(const up_rows &u, int from, uint32_t w, wide_raw<TYPE> (&raw)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        wide_load<TYPE, FRESH>(from + r < 2 ? u.gate : u.up, up_row(u, from + r), w, raw[r]);
}

template <int TYPE, int ROWS>
DEVICE void up_dot(wide_raw<TYPE> (&raw)[ROWS], int from, const wide_acts &x, uint32_t w,
                   float (&acc)[4]) {
    wide_factors f[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        wide_settle<TYPE>(raw[r], w);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const uint4 q = x.q[(uint32_t)p * x.n_wide + w];
        const float2 factor = x.factor[(uint32_t)p * x.n_wide + w];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (p % 2 == 0) f[r] = wide_factors_of<TYPE>(raw[r], w, (uint32_t)p / 2);
            acc[from + r] = wide_dot<TYPE>(raw[r], f[r], w, p, q, factor, acc[from + r]);
        }
    }
}

/* Rows of 64 columns a lane: all four loads before the first product. */
template <int TYPE>
DEVICE void up_short(const up_rows &u, const void *act, uint32_t n_cols, uint4 *shared,
                     float (&acc)[4]) {
    const uint32_t w = lane_index(), n_wide = n_cols / WIDE;
    wide_raw<TYPE> raw[4];
    if (w < n_wide) up_load<TYPE, 4>(u, 0, w, raw);
    const wide_acts x = wide_acts_copy<TYPE>(shared, act, n_cols);
    __syncthreads();
    if (w < n_wide) up_dot<TYPE, 4>(raw, 0, x, w, acc);
}

template <int TYPE, bool FRESH = false>
DEVICE void up_long(const up_rows &u, const void *act, uint32_t n_cols, uint4 *shared,
                    float (&acc)[4]) {
    const wide_acts x = wide_acts_copy<TYPE>(shared, act, n_cols);
    __syncthreads();
#pragma unroll 1
    for (uint32_t w = lane_index(); w < x.n_wide; w += WARP) {
#pragma unroll
        for (int from = 0; from < 4; from += 2) {
            wide_raw<TYPE> raw[2];
            up_load<TYPE, 2, FRESH>(u, from, w, raw);
            up_dot<TYPE, 2>(raw, from, x, w, acc);
        }
    }
}

typedef struct up_place {
    uint32_t pair, row, first, n_ff;
    bool routed;
} up_place;

/* The shared expert's rows are the last, with turns the first. */
DEVICE up_place place_up(const experts_up_args &a) {
    const uint32_t n_pairs = a.n_rows * a.n_used;
    uint32_t pair = blockIdx.y;
    if (a.turns != 0 && a.n_ff_shared > 0)
        pair = pair < a.n_rows ? n_pairs + pair : pair - a.n_rows;
    up_place p;
    p.pair = pair;
    p.routed = pair < n_pairs;
    p.row = p.routed ? pair / a.n_used : pair - n_pairs;
    p.n_ff = p.routed ? a.n_ff : a.n_ff_shared;
    p.first = blockIdx.x * EXPERTS_UP_ROWS;
    return p;
}

/* False when there is nothing to do: no such rows, or the expert is not here. */
DEVICE bool rows_up(const experts_up_args &a, const up_place &p, uint64_t record, up_rows &u) {
    if (p.first >= p.n_ff || (p.routed && record == 0)) return false;
    const uint32_t row = p.first + threadIdx.x / WARP * 2, last = p.n_ff - 1;
    u.gate = expert_view(a.gate, record, a.n_cols);
    u.up = expert_view(a.up, record, a.n_cols);
    u.row0 = row < last ? row : last;
    u.row1 = row + 1 < last ? row + 1 : last;
    return true;
}

DEVICE uint64_t record_up(const experts_up_args &a, const up_place &p) {
    return p.routed ? place_of(a.places, a.records, a.experts, p.pair) : 0;
}

DEVICE const void *up_acts(const experts_up_args &a, const up_place &p) {
    return (const unsigned char *)a.act + p.row * a.act_stride;
}

/* Any other type, gate and up of unequal types, float weights, or exactness.  Rolled. */
DEVICE void up_slow(const experts_up_args &a, const up_place &p, const up_rows &u,
                    const void *act, uint4 *shared, float (&acc)[4]) {
    const bool exact = a.act == 0 || is_float_type(u.gate.type);
    const float *x_f32 = a.x + p.row * a.x_stride;
    shared_acts x = {shared, 0, 0};
    if (!exact) x = acts_copy(shared, act, a.act_stride, a.n_cols, 1);
    __syncthreads();
#pragma unroll 1
    for (int r = 0; r < 4; r++) {
        matrix_view m = u.gate;
        if (r >= 2) m = u.up;
        const unsigned char *at = up_row(u, r);
        float sum = 0;
        if (exact) {
            sum = dot_exact(m, at, x_f32, lane_index(), WARP);
        } else {
            for (uint32_t i = lane_index(); i < x.n_units; i += WARP) {
                weight_unit w;
                unit_any(m, at, i, w);
                sum = unit_dot(w, x, 0, i, sum);
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) /* indexed by constants, so that acc stays in registers */
            if (k == r) acc[k] = sum;
    }
}

/* 16 values of h have a scale of their own; both halves of warp 0 hold them. */
DEVICE void up_store(const experts_up_args &a, const up_place &p, const float (&acc)[4],
                     float *hidden) {
    const float v = four_sums(acc), other = __shfl_xor_sync(FULL_WARP, v, 16);
    const uint32_t lane = lane_index(), i = threadIdx.x % EXPERTS_UP_ROWS;
    if (lane == 0 || lane == 8)
        hidden[threadIdx.x / WARP * 2 + lane / 8] = silu_of_cpu(v) * other;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    const bool live = p.first + i < p.n_ff;
    const float h = live ? hidden[i] : 0.0f;
    if (a.h != 0 && live && threadIdx.x < EXPERTS_UP_ROWS)
        a.h[p.pair * a.h_stride + p.first + i] = h;
    if (a.h_act != 0)
        act_store_half((unsigned char *)a.h_act + p.pair * a.h_act_stride, p.n_ff, p.first, h);
}

KERNEL_FIT(experts_up, experts_up_args, EXPERTS_UP_BLOCK, 3) {
    DYNAMIC_SHARED(shared);
    __shared__ float hidden[EXPERTS_UP_ROWS];
    const up_place p = place_up(a);
    up_rows u;
    launch_begin();
    if (!rows_up(a, p, record_up(a, p), u)) return;
    const void *act = up_acts(a, p);
    float acc[4] = {};
    up_short<QUANT_Q4_K>(u, act, a.n_cols, shared, acc);
    up_store(a, p, acc, hidden);
}

/* ---- the same, while missing records come ---- */

/* What a block of a missing record keeps in shared memory, since registers are dear. */
typedef struct coming {
    int32_t experts[EXPERTS_COMING_PAIRS];
    float hidden[EXPERTS_UP_ROWS];
    uint64_t place;
    uint32_t pair;
} coming;

/* Bytes `offset` on of the record from host memory to their place, by the block, in words of 16 bytes:
 * every thread has five on their way before it stores. */
DEVICE void bring(const experts_up_args &a, const coming &c, uint64_t offset, uint32_t n) {
    enum { HELD = 5 };
    const uint64_t expert = (uint64_t)c.experts[c.pair];
    const uint4 *from = (const uint4 *)(a.source + expert * a.slot_bytes + offset);
    uint4 *to = (uint4 *)(uintptr_t)((c.place & ~EXPERT_COMING) + offset);
#pragma unroll 1
    for (uint32_t at = threadIdx.x; at < n; at += HELD * EXPERTS_UP_BLOCK) {
        uint4 held[HELD];
#pragma unroll
        for (uint32_t k = 0; k < HELD; k++) {
            const uint32_t i = at + k * EXPERTS_UP_BLOCK;
            held[k] = load16(from + (i < n ? i : n - 1));
        }
#pragma unroll
        for (uint32_t k = 0; k < HELD; k++)
            if (at + k * EXPERTS_UP_BLOCK < n) to[at + k * EXPERTS_UP_BLOCK] = held[k];
    }
}

/* The block's rows of gate or up. */
DEVICE void bring_rows(const experts_up_args &a, const coming &c, const expert_matrix &m) {
    const uint32_t first = blockIdx.x * EXPERTS_UP_ROWS, left = a.n_ff - first;
    const uint32_t n = left < EXPERTS_UP_ROWS ? left : (uint32_t)EXPERTS_UP_ROWS;
    bring(a, c, m.offset + first * m.row_bytes, (uint32_t)(n * m.row_bytes / 16));
}

/* The block's share of down. */
DEVICE void bring_down(const experts_up_args &a, const coming &c) {
    const uint32_t n_parts = (a.n_ff + EXPERTS_UP_ROWS - 1) / EXPERTS_UP_ROWS;
    const uint32_t words = (uint32_t)((a.down_bytes + 15) / 16);
    const uint32_t each = (words + n_parts - 1) / n_parts, first = blockIdx.x * each;
    const uint32_t left = first < words ? words - first : 0;
    bring(a, c, a.down_offset + (uint64_t)first * 16, left < each ? left : each);
}

/* The block's rows of all pairs that name the expert. */
DEVICE void up_for_all(const experts_up_args &a, coming &c, uint4 *shared) {
    up_place p;
    up_rows u;
    p.first = blockIdx.x * EXPERTS_UP_ROWS;
    p.n_ff = a.n_ff;
    p.routed = true;
    (void)rows_up(a, p, c.place & ~EXPERT_COMING, u);
#pragma unroll 1
    for (p.pair = c.pair; p.pair < a.n_rows * a.n_used; p.pair++) {
        if (c.experts[p.pair] != c.experts[c.pair]) continue;
        p.row = p.pair / a.n_used;
        float acc[4] = {};
        up_long<QUANT_Q4_K, true>(u, up_acts(a, p), a.n_cols, shared, acc);
        up_store(a, p, acc, c.hidden);
        __syncthreads();
    }
}

/* The block brings its rows of gate and up, computes them, and brings its share of down: every
 * other block before, so that some are at the bus while others compute. */
DEVICE void up_coming(const experts_up_args &a, uint32_t pair, uint64_t place, uint4 *shared) {
    __shared__ coming one[1];
    coming &c = one[0];
    if (threadIdx.x == 0) {
        c.pair = pair;
        c.place = place;
    }
    for (uint32_t i = threadIdx.x; i < a.n_rows * a.n_used; i += EXPERTS_UP_BLOCK)
        c.experts[i] = __ldcg(a.experts + i);
    __syncthreads();
    if (blockIdx.x * EXPERTS_UP_ROWS >= a.n_ff) return;
    if (blockIdx.x % 2 != 0) bring_down(a, c);
    bring_rows(a, c, a.gate);
    bring_rows(a, c, a.up);
    __syncthreads();
    up_for_all(a, c, shared);
    if (blockIdx.x % 2 == 0) bring_down(a, c);
}

/* One thread waits for what the host computes.  It reads the clock beside its word, and after its
 * limit takes what is there: the host is told. */
DEVICE void await_lane(const experts_up_args &a) {
    const uint32_t number = __ldcg(&a.step->number);
    const uint64_t wanted = LANE_WORD(number, a.layer + 1), begun = clock_ns();
    while (load_acquired(&a.box->answer) < wanted) {
        if (__ldcg(&a.step->late) == 0 && clock_ns() - begun < a.limit_ns) continue;
        a.step->late = 1;
        store_released(&a.box->late, number);
        return;
    }
}

/* A pair's outputs from host memory, by one block. */
DEVICE void up_on_lane(const experts_up_args &a, uint32_t pair) {
    if (blockIdx.x != 0) return;
    const uint64_t first = (uint64_t)pair * a.n_cols;
    const uint4 *from = (const uint4 *)(a.outputs + first);
    uint4 *to = (uint4 *)(a.foreign + first);
    if (threadIdx.x == 0) await_lane(a);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.n_cols / 4; i += EXPERTS_UP_BLOCK)
        to[i] = load16_shared(from + i);
}

KERNEL_FIT(experts_up_coming, experts_up_args, EXPERTS_UP_BLOCK, 3) {
    DYNAMIC_SHARED(shared);
    __shared__ float hidden[EXPERTS_UP_ROWS];
    const uint32_t n_shared = a.n_ff_shared > 0 ? a.n_rows : 0;
    up_place p = place_up(a);
    uint64_t place = 0;
    launch_begin();
    if (p.routed) {
        const uint4 turn = __ldcg((const uint4 *)a.turns + (blockIdx.y - n_shared));
        place = (uint64_t)turn.y << 32 | turn.x;
        p.pair = turn.z;
        p.row = p.pair / a.n_used;
    }
    if (place & EXPERT_COMING) return up_coming(a, p.pair, place, shared);
    if (place == EXPERT_ON_LANE) return up_on_lane(a, p.pair);
    up_rows u;
    if (!rows_up(a, p, place, u)) return;
    float acc[4] = {};
    up_short<QUANT_Q4_K>(u, up_acts(a, p), a.n_cols, shared, acc);
    up_store(a, p, acc, hidden);
}

/* Any type, rows of any length, and float32 activations. */
KERNEL(experts_up_any, experts_up_args, EXPERTS_UP_BLOCK) {
    DYNAMIC_SHARED(shared);
    __shared__ float hidden[EXPERTS_UP_ROWS];
    const up_place p = place_up(a);
    up_rows u;
    launch_begin();
    if (!rows_up(a, p, record_up(a, p), u)) return;
    const void *act = up_acts(a, p);
    const uint32_t type =
        a.act != 0 && u.gate.type == u.up.type ? u.gate.type : (uint32_t)QUANT_LIMIT;
    float acc[4] = {};
    if (type == QUANT_Q4_K)
        up_long<QUANT_Q4_K>(u, act, a.n_cols, shared, acc);
    else if (type == QUANT_Q5_K)
        up_long<QUANT_Q5_K>(u, act, a.n_cols, shared, acc);
    else if (type == CUDA_Q6_K_SPLIT)
        up_long<CUDA_Q6_K_SPLIT>(u, act, a.n_cols, shared, acc);
    else
        up_slow(a, p, u, act, shared, acc);
    up_store(a, p, acc, hidden);
}

/* ---- down, weighted sum ---- */

enum { MAX_TERMS = ROUTER_MAX_USED + 1, DOWN_HELD = 2 };

/* How a warp shares out a row of `n` parts: `width` lanes a row, `rows` rows at a time. */
typedef struct down_plan {
    uint32_t n, width, rows;
} down_plan;

DEVICE down_plan plan_down(uint32_t n) {
    down_plan p;
    p.n = n;
    p.width = lanes_a_row(n);
    p.rows = WARP / p.width;
    return p;
}

/* One expert (or the shared one) of a row: what its warp reads and where its results go. */
typedef struct down_term {
    matrix_view m;
    const unsigned char *act; /* NULL: float32 path */
    const float *h;
    float *out; /* [EXPERTS_DOWN_ROWS], shared memory */
    uint32_t n_ff;
} down_term;

DEVICE down_term term_of(const experts_down_args &a, uint32_t term, uint64_t record,
                         float *terms) {
    const bool routed = term < a.n_used;
    const uint32_t row = blockIdx.y;
    const uint64_t pair = routed ? row * a.n_used + term : a.n_rows * a.n_used + row;
    down_term t;
    t.n_ff = routed ? a.n_ff : a.n_ff_shared;
    t.m = expert_view(a.down, record, t.n_ff);
    t.act = a.h_act != 0 ? (const unsigned char *)a.h_act + pair * a.h_act_stride : 0;
    t.h = a.h + pair * a.h_stride;
    t.out = terms + term * EXPERTS_DOWN_ROWS;
    return t;
}

/* Row r of the block; beyond n_embd the last one again. */
DEVICE const unsigned char *down_row(const experts_down_args &a, const down_term &t,
                                     uint32_t r) {
    const uint32_t out = blockIdx.x * EXPERTS_DOWN_ROWS + r;
    return matrix_row(t.m, out < a.n_embd ? out : a.n_embd - 1);
}

/* Places from, from + 1: each `rows` rows of the block, of which the lane has one. */
template <int TYPE>
DEVICE void down_load(const experts_down_args &a, const down_term &t, const down_plan &p,
                      uint32_t from, uint32_t w, wide_raw<TYPE> (&raw)[DOWN_HELD]) {
#pragma unroll
    for (uint32_t k = 0; k < DOWN_HELD; k++) {
        const uint32_t r = (from + k) * p.rows + lane_index() / p.width;
        if (w < p.n && r < EXPERTS_DOWN_ROWS)
            wide_load<TYPE>(t.m, down_row(a, t, r), w, raw[k]);
    }
}

template <int TYPE>
DEVICE void down_dot(const down_term &t, uint32_t w, wide_raw<TYPE> (&raw)[DOWN_HELD],
                     float (&acc)[DOWN_HELD]) {
    wide_factors f[DOWN_HELD];
    uint4 x[PIECES];
    float2 factor[PIECES];
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++) {
        const uint32_t h = wide_half<TYPE>(w, i);
        x[i] = __ldcg((const uint4 *)t.act + h);
        factor[i] = __ldcg(act_factors(t.act, t.n_ff) + h);
    }
#pragma unroll
    for (int k = 0; k < DOWN_HELD; k++)
        wide_settle<TYPE>(raw[k], w);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
#pragma unroll
        for (int k = 0; k < DOWN_HELD; k++) {
            if (i % 2 == 0) f[k] = wide_factors_of<TYPE>(raw[k], w, (uint32_t)i / 2);
            acc[k] = wide_dot<TYPE>(raw[k], f[k], w, i, x[i], factor[i], acc[k]);
        }
    }
}

/* The weights of the warp's first rows are on their way before it waits for the hidden row: what it
 * needs for that was written before experts_up began. */
template <int TYPE>
DEVICE void down_wide(const experts_down_args &a, const down_term &t, bool first) {
    const down_plan p = plan_down(t.n_ff / WIDE);
    const uint32_t lane = lane_index() % p.width;
#pragma unroll 1
    for (uint32_t from = 0; from * p.rows < EXPERTS_DOWN_ROWS; from += DOWN_HELD) {
        float acc[DOWN_HELD] = {};
#pragma unroll 1
        for (uint32_t w = lane; w < p.n || (first && w == lane); w += p.width) {
            wide_raw<TYPE> raw[DOWN_HELD] = {};
            down_load<TYPE>(a, t, p, from, w, raw);
            if (first) launch_begin();
            first = false;
            if (w < p.n) down_dot<TYPE>(t, w, raw, acc);
        }
#pragma unroll
        for (uint32_t k = 0; k < DOWN_HELD; k++) {
            const float v = lanes_sum(acc[k], (int)p.width);
            const uint32_t r = (from + k) * p.rows + lane_index() / p.width;
            if (lane == 0 && r < EXPERTS_DOWN_ROWS) t.out[r] = v;
        }
    }
}

/* The two units of 32 columns that wide unit w is made of, in the order of wide_half(). */
DEVICE uint32_t unit_of_wide(uint32_t type, uint32_t w, uint32_t k) {
    return type == CUDA_Q6_K_SPLIT ? w / 2 * 4 + w % 2 + 2 * k : 2 * w + k;
}

/* One unit as wide_dot has its two pieces. */
DEVICE float unit_dot_wide(uint32_t type, weight_unit &w, const uint4 (&x)[2],
                           const float2 (&factor)[2], float acc) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (type == CUDA_Q6_K_SPLIT) { /* values from 0 on, with a minimum */
            w.min[h] = 32.0f * w.scale[h];
            for (int i = 4 * h; i < 4 * h + 4; i++)
                w.q[i] = ((w.q[i] ^ 0x80808080u) + 0x20202020u) ^ 0x80808080u;
        }
        acc = fmaf(w.scale[h] * factor[h].x, (float)dot16(w.q + 4 * h, x[h]), acc);
        acc = fmaf(-w.min[h], factor[h].y, acc);
    }
    return acc;
}

/* Any quantized type, wide ones in the order of experts_down; the activations where they are. */
DEVICE float dot_in_place(const down_term &t, const unsigned char *row, uint32_t lane,
                          uint32_t width) {
    const bool wide = is_wide_type(t.m.type);
    const uint32_t parts = wide ? 2 : 1;
    float acc = 0;
#pragma unroll 1
    for (uint32_t i = lane; i < t.n_ff / (32 * parts); i += width) {
#pragma unroll 1
        for (uint32_t k = 0; k < parts; k++) {
            const uint32_t u = wide ? unit_of_wide(t.m.type, i, k) : i;
            const uint4 x[2] = {__ldcg((const uint4 *)t.act + 2 * u),
                                __ldcg((const uint4 *)t.act + 2 * u + 1)};
            const float2 factor[2] = {__ldcg(act_factors(t.act, t.n_ff) + 2 * u),
                                      __ldcg(act_factors(t.act, t.n_ff) + 2 * u + 1)};
            const shared_acts one = {x, factor, 1};
            weight_unit w;
            unit_any(t.m, row, u, w);
            acc =
                wide ? unit_dot_wide(t.m.type, w, x, factor, acc) : unit_dot(w, one, 0, 0, acc);
        }
    }
    return acc;
}

DEVICE void down_slow(const experts_down_args &a, const down_term &t) {
    const bool exact = t.act == 0 || is_float_type(t.m.type);
    const down_plan p =
        plan_down(!exact && is_wide_type(t.m.type) ? t.n_ff / WIDE : t.n_ff / 32);
    const uint32_t lane = lane_index() % p.width;
#pragma unroll 1
    for (uint32_t from = 0; from < EXPERTS_DOWN_ROWS; from += p.rows) {
        const uint32_t r = from + lane_index() / p.width;
        const unsigned char *at = down_row(a, t, r);
        float acc = 0;
        if (exact)
            acc = dot_exact(t.m, at, t.h, lane, p.width);
        else
            acc = dot_in_place(t, at, lane, p.width);
        acc = lanes_sum(acc, (int)p.width);
        if (lane == 0 && r < EXPERTS_DOWN_ROWS) t.out[r] = acc;
    }
}

/* One term by the warp; `first`: the warp has not waited yet. */
template <bool ANY>
DEVICE void down_one(const experts_down_args &a, uint32_t term, float *terms, bool first) {
    const uint32_t pair = blockIdx.y * a.n_used + term, lane = lane_index();
    const bool routed = term < a.n_used;
    uint64_t record = routed ? place_of(a.places, a.records, a.experts, pair) : 0;
    if (record & EXPERT_COMING) { /* its weights are there after the wait alone */
        if (first) launch_begin();
        first = false;
        record -= EXPERT_COMING;
    }
    const down_term t = term_of(a, term, record, terms);
    const bool here = !routed || record != 0;
    if (!ANY && here) {
        if (t.m.type == QUANT_Q4_K) return down_wide<QUANT_Q4_K>(a, t, first);
        if (t.m.type == QUANT_Q5_K) return down_wide<QUANT_Q5_K>(a, t, first);
        return down_wide<CUDA_Q6_K_SPLIT>(a, t, first);
    }
    if (first) launch_begin();
    if (ANY && here) return down_slow(a, t);
    const uint32_t out = blockIdx.x * EXPERTS_DOWN_ROWS + lane;
    if (lane < EXPERTS_DOWN_ROWS && out < a.n_embd)
        t.out[lane] = __ldcg(a.foreign + (uint64_t)pair * a.n_embd + out);
}

typedef struct down_sums {
    float terms[MAX_TERMS * EXPERTS_DOWN_ROWS];
    float weights[MAX_TERMS];
} down_sums;

/* The residual, then the terms in rank order, then the shared expert: moe_combine.h.  What is
 * added to and multiplied with is read before the wait, too. */
template <bool ANY> DEVICE void down_body(const experts_down_args &a, down_sums *s) {
    float *terms = s->terms, *weights = s->weights;
    const uint32_t n_terms = a.n_used + (a.n_ff_shared > 0 ? 1u : 0u), row = blockIdx.y;
    const uint32_t out = blockIdx.x * EXPERTS_DOWN_ROWS + threadIdx.x;
    const bool sums = threadIdx.x < EXPERTS_DOWN_ROWS && out < a.n_embd;
    float *x = a.x + row * a.x_stride + out;
    float sum = sums ? __ldcg(x) : 0.0f;
    for (uint32_t j = threadIdx.x; j < n_terms; j += blockDim.x)
        weights[j] = j < a.n_used ? __ldcg(a.weights + row * a.n_used + j)
                                  : sigmoid(__ldcg(a.shared_gate + row));
    const uint32_t warp = threadIdx.x / WARP;
    for (uint32_t term = warp; term < n_terms; term += blockDim.x / WARP)
        down_one<ANY>(a, term, terms, term == warp);
    __syncthreads();
    if (!sums) return;
    for (uint32_t j = 0; j < n_terms; j++)
        sum = fmaf(weights[j], terms[j * EXPERTS_DOWN_ROWS + threadIdx.x], sum);
    *x = sum;
}

KERNEL_FIT(experts_down, experts_down_args, EXPERTS_DOWN_BLOCK, 2) {
    __shared__ down_sums s[1];
    down_body<false>(a, s);
}

/* Any type, and float32 activations; nothing is loaded ahead. */
KERNEL(experts_down_any, experts_down_args, EXPERTS_DOWN_BLOCK) {
    __shared__ down_sums s[1];
    down_body<true>(a, s);
}
