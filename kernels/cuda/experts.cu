/* experts.cu - the routed experts of a few rows in two launches, and what prefill needs around
 * the grouped matmul; kernels/cuda/experts.h.
 *
 * Shapes  35B-A3B: 8 of 256 experts a row, gate and up 512 x 2048, down 2048 x 512.
 * Launch  experts_up: grid (n_ff / 32, pairs and shared), block 512: a warp makes 2 rows of gate
 *         and the same 2 of up.  experts_down: grid (n_embd / 8, rows), block 256: the warps
 *         share out rows and experts, and one thread a row sums up in rank order.
 *         experts_sort: one block.
 * Cost    one read of the active experts' weights a pair; duplicates among rows meet in L2.
 * Oracle  kernels/cpu/moe_combine.c and float64 products on the same quantized
 *         activations; compared in tests/kernels/test_cuda_experts.cc.
 */
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/experts.h"

/* ---- gate, up, SwiGLU ---- */

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

/* v[0], v[1]: rows row, row + 1 of gate; v[2], v[3] of up.  Rows beyond n_ff repeat the last. */
DEVICE void gate_up_rows(const matrix_view &gate, const matrix_view &up, const shared_acts &x,
                         const float *x_f32, uint32_t row, uint32_t n_ff, float (&v)[4]) {
    const uint32_t lane = lane_index(), last = n_ff - 1;
    const uint32_t r0 = row < last ? row : last, r1 = row + 1 < last ? row + 1 : last;
    const matrix_view m[4] = {gate, gate, up, up};
    const unsigned char *const at[4] = {matrix_row(gate, r0), matrix_row(gate, r1),
                                        matrix_row(up, r0), matrix_row(up, r1)};
    const uint32_t token[4] = {0, 0, 0, 0};
    float acc[4][1] = {};
    if (x_f32 != 0) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            acc[r][0] = dot_exact(m[r], at[r], x_f32, lane, WARP);
    } else if (gate.type == up.type) {
        dot_rows<4, 1, false>(m, at, token, x, lane, WARP, acc);
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
        v[r] = lanes_sum(acc[r][0]);
}

/* Types that dot_rows has no code for, or gate and up of unequal types.  A rolled loop, and v
 * indexed by constants, so that it stays in registers. */
DEVICE void gate_up_rare(const matrix_view &gate, const matrix_view &up, const shared_acts &x,
                         uint32_t row, uint32_t n_ff, float (&v)[4]) {
    const uint32_t last = n_ff - 1;
#pragma unroll 1
    for (uint32_t r = 0; r < 4; r++) {
        matrix_view m = gate;
        if (r >= 2) m = up;
        const uint32_t i = row + r % 2;
        const unsigned char *at = matrix_row(m, i < last ? i : last);
        float acc = 0;
        for (uint32_t u = lane_index(); u < x.n_units; u += WARP) {
            weight_unit w;
            unit_any(m, at, u, w);
            acc = unit_dot(w, x, 0, u, acc);
        }
        acc = lanes_sum(acc);
        if (r == 0) v[0] = acc;
        if (r == 1) v[1] = acc;
        if (r == 2) v[2] = acc;
        if (r == 3) v[3] = acc;
    }
}

DEVICE bool has_fast_dot(uint32_t type) {
    return type == QUANT_Q4_K || type == QUANT_Q5_K || type == QUANT_Q6_K ||
           type == CUDA_Q6_K_SPLIT || type == QUANT_Q8_0;
}

DEVICE void store_hidden(const experts_up_args &a, uint32_t pair, uint32_t first, uint32_t n_ff,
                         const float *hidden) {
    const uint32_t i = threadIdx.x;
    if (i >= EXPERTS_UP_ROWS || first >= n_ff) return;
    const float v = first + i < n_ff ? hidden[i] : 0.0f;
    if (a.h != 0 && first + i < n_ff) a.h[pair * a.h_stride + first + i] = v;
    if (a.h_act != 0)
        act_store_group((unsigned char *)a.h_act + pair * a.h_act_stride, n_ff, first, v);
}

KERNEL(experts_up, experts_up_args, EXPERTS_UP_BLOCK) {
    DYNAMIC_SHARED(shared);
    __shared__ float hidden[EXPERTS_UP_ROWS];
    launch_begin();
    const uint32_t n_pairs = a.n_rows * a.n_used, pair = blockIdx.y;
    const bool routed = pair < n_pairs;
    const uint32_t row = routed ? pair / a.n_used : pair - n_pairs;
    const uint32_t n_ff = routed ? a.n_ff : a.n_ff_shared;
    const uint32_t first = blockIdx.x * EXPERTS_UP_ROWS;
    const uint64_t record = routed ? __ldcg(a.records + __ldcg(a.experts + pair)) : 0;
    if (first >= n_ff || (routed && record == 0)) return;
    const matrix_view gate = expert_view(a.gate, record, a.n_cols);
    const matrix_view up = expert_view(a.up, record, a.n_cols);
    const bool exact = a.act == 0 || is_float_type(gate.type);
    shared_acts x = {shared, 0, 0};
    if (!exact)
        x = acts_copy(shared, (const unsigned char *)a.act + row * a.act_stride, a.act_stride,
                      a.n_cols, 1);
    __syncthreads();
    const uint32_t mine = threadIdx.x / WARP * 2;
    float v[4];
    if (exact || (gate.type == up.type && has_fast_dot(gate.type)))
        gate_up_rows(gate, up, x, exact ? a.x + row * a.x_stride : 0, first + mine, n_ff, v);
    else
        gate_up_rare(gate, up, x, first + mine, n_ff, v);
    if (lane_index() == 0) {
        hidden[mine] = silu(v[0]) * v[2];
        hidden[mine + 1] = silu(v[1]) * v[3];
    }
    __syncthreads();
    store_hidden(a, pair, first, n_ff, hidden);
}

/* ---- down, weighted sum ---- */

enum { MAX_TERMS = ROUTER_MAX_USED + 1 };

/* One output row of one expert (or of the shared one, term n_used), over `width` lanes. */
DEVICE float down_row(const experts_down_args &a, uint32_t row, uint32_t term, uint64_t record,
                      uint32_t out, const shared_acts &x, uint32_t lane, uint32_t width) {
    const bool routed = term < a.n_used;
    const matrix_view m = expert_view(a.down, record, routed ? a.n_ff : a.n_ff_shared);
    const unsigned char *at = matrix_row(m, out);
    if (a.h_act == 0 || is_float_type(m.type)) {
        const uint32_t pair = routed ? row * a.n_used + term : a.n_rows * a.n_used + row;
        return dot_exact(m, at, a.h + pair * a.h_stride, lane, width);
    }
    float acc = 0;
    for (uint32_t u = lane; u < x.n_units; u += width) {
        weight_unit w;
        unit_any(m, at, u, w);
        acc = unit_dot(w, x, 0, u, acc);
    }
    return acc;
}

/* The activations of all terms in shared memory, one after another in the order of rank. */
DEVICE void down_acts(const experts_down_args &a, uint32_t row, uint4 *shared) {
    const uint32_t each = a.n_ff / 16, n = a.n_used * each;
    const uint32_t all = n + (a.n_ff_shared > 0 ? a.n_ff_shared / 16 : 0);
    float2 *factor = (float2 *)(shared + all);
    for (uint32_t i = threadIdx.x; i < all; i += blockDim.x) {
        const bool routed = i < n;
        const uint32_t term = routed ? i / each : a.n_used, h = i - term * each;
        const uint32_t n_ff = routed ? a.n_ff : a.n_ff_shared;
        const uint32_t pair = routed ? row * a.n_used + term : a.n_rows * a.n_used + row;
        const unsigned char *from = (const unsigned char *)a.h_act + pair * a.h_act_stride;
        const uint32_t to = term * each + h % 2 * (n_ff / 32) + h / 2;
        shared[to] = __ldcg((const uint4 *)from + h);
        factor[to] = __ldcg(act_factors(from, n_ff) + h);
    }
}

DEVICE shared_acts acts_of_term(const experts_down_args &a, const uint4 *shared,
                                uint32_t term) {
    const uint32_t each = a.n_ff / 16;
    const uint32_t all = a.n_used * each + (a.n_ff_shared > 0 ? a.n_ff_shared / 16 : 0);
    const float2 *factor = (const float2 *)(shared + all);
    shared_acts x = {shared + term * each, factor + term * each,
                     (term < a.n_used ? a.n_ff : a.n_ff_shared) / 32};
    return x;
}

/* The residual, then the terms in rank order, then the shared expert: moe_combine.h. */
DEVICE void down_sum(const experts_down_args &a, uint32_t row, uint32_t out,
                     const float *terms) {
    float *x = a.x + row * a.x_stride + out;
    float sum = __ldcg(x);
    for (uint32_t j = 0; j < a.n_used; j++) {
        const uint32_t pair = row * a.n_used + j;
        const bool here = __ldcg(a.records + __ldcg(a.experts + pair)) != 0;
        const float y = here ? terms[j * EXPERTS_DOWN_ROWS]
                             : __ldcg(a.foreign + (uint64_t)pair * a.n_embd + out);
        sum = fmaf(__ldcg(a.weights + pair), y, sum);
    }
    if (a.n_ff_shared > 0)
        sum = fmaf(sigmoid(__ldcg(a.shared_gate + row)), terms[a.n_used * EXPERTS_DOWN_ROWS],
                   sum);
    *x = sum;
}

/* How the block's warps share the work: warp w takes the places w, w + 8, ... of (term, group of
 * rows); `width` lanes work on a row. */
typedef struct down_plan {
    uint32_t width, a_warp, groups, n_places;
} down_plan;

DEVICE down_plan plan_down(const experts_down_args &a) {
    down_plan p;
    p.width = lanes_a_row(a.n_ff / 32);
    p.a_warp = WARP / p.width;
    p.groups = (EXPERTS_DOWN_ROWS + p.a_warp - 1) / p.a_warp;
    p.n_places = p.groups * (a.n_used + (a.n_ff_shared > 0 ? 1u : 0u));
    return p;
}

/* The term and the block's row of a place; the output row repeats the last beyond n_embd. */
DEVICE uint32_t place_row(const experts_down_args &a, const down_plan &p, uint32_t place,
                          uint32_t &r) {
    r = place % p.groups * p.a_warp + lane_index() / p.width;
    const uint32_t out = blockIdx.x * EXPERTS_DOWN_ROWS + r;
    return out < a.n_embd ? out : a.n_embd - 1;
}

enum { DOWN_WARPS = EXPERTS_DOWN_BLOCK / WARP };

/* Whether every lane has at most one unit of a row, all of one fast type. */
DEVICE bool down_is_short(const experts_down_args &a, const down_plan &p) {
    return a.h_act != 0 && has_fast_dot(a.down.type) && a.n_ff / 32 <= p.width &&
           (a.n_ff_shared == 0 ||
            (a.n_ff_shared == a.n_ff && a.down.shared_type == a.down.type));
}

/* HELD places of the warp, from its place `first` on: their weights. */
template <int TYPE, int HELD>
DEVICE void down_load(const experts_down_args &a, const down_plan &p, uint32_t first,
                      raw_unit (&raw)[HELD]) {
    const uint32_t lane = lane_index() % p.width;
    uint64_t record[HELD];
#pragma unroll
    for (uint32_t k = 0; k < HELD; k++) {
        const uint32_t place = first + k * DOWN_WARPS, term = place / p.groups;
        record[k] = 0;
        if (place < p.n_places && term < a.n_used)
            record[k] = __ldcg(a.records + __ldcg(a.experts + blockIdx.y * a.n_used + term));
    }
#pragma unroll
    for (uint32_t k = 0; k < HELD; k++) {
        const uint32_t place = first + k * DOWN_WARPS, term = place / p.groups;
        uint32_t r;
        const uint32_t out = place_row(a, p, place, r);
        const matrix_view m = expert_view(a.down, record[k], a.n_ff);
        if (lane < a.n_ff / 32 && place < p.n_places && (term == a.n_used || record[k] != 0))
            unit_load<TYPE>(m, matrix_row(m, out), lane, raw[k]);
    }
}

/* The first weights of the warp are on their way before it waits for the hidden rows: what it needs
 * for that was written before experts_up began. */
template <int TYPE, int HELD>
DEVICE void down_short(const experts_down_args &a, const down_plan &p, uint4 *shared,
                       float *terms) {
    const uint32_t lane = lane_index() % p.width;
#pragma unroll 1
    for (uint32_t from = 0; from < p.n_places; from += HELD * DOWN_WARPS) {
        const uint32_t first = from + threadIdx.x / WARP;
        raw_unit raw[HELD] = {};
        down_load<TYPE, HELD>(a, p, first, raw);
        if (from == 0) {
            launch_begin();
            down_acts(a, blockIdx.y, shared);
            __syncthreads();
        }
#pragma unroll
        for (uint32_t k = 0; k < HELD; k++) {
            const uint32_t place = first + k * DOWN_WARPS, term = place / p.groups;
            if (place >= p.n_places) break;
            uint32_t r;
            float v = 0;
            place_row(a, p, place, r);
            if (lane < a.n_ff / 32) {
                weight_unit w;
                unit_decode<TYPE, true>(raw[k], lane, w);
                v = unit_dot(w, acts_of_term(a, shared, term), 0, lane, 0.0f);
            }
            v = lanes_sum(v, (int)p.width);
            if (lane == 0 && r < EXPERTS_DOWN_ROWS) terms[term * EXPERTS_DOWN_ROWS + r] = v;
        }
    }
}

DEVICE void down_long(const experts_down_args &a, const down_plan &p, uint4 *shared,
                      float *terms) {
    const uint32_t row = blockIdx.y, lane = lane_index() % p.width;
    launch_begin();
    if (a.h_act != 0) down_acts(a, row, shared);
    __syncthreads();
    for (uint32_t i = threadIdx.x / WARP; i < p.n_places; i += DOWN_WARPS) {
        const uint32_t term = i / p.groups;
        uint32_t r;
        const uint32_t out = place_row(a, p, i, r);
        uint64_t record = 0;
        if (term < a.n_used) {
            record = __ldcg(a.records + __ldcg(a.experts + row * a.n_used + term));
            if (record == 0) continue;
        }
        const float v = lanes_sum(
            down_row(a, row, term, record, out, acts_of_term(a, shared, term), lane, p.width),
            (int)p.width);
        if (lane == 0 && r < EXPERTS_DOWN_ROWS) terms[term * EXPERTS_DOWN_ROWS + r] = v;
    }
}

KERNEL_FIT(experts_down, experts_down_args, EXPERTS_DOWN_BLOCK, 2) {
    DYNAMIC_SHARED(shared);
    __shared__ float terms[MAX_TERMS * EXPERTS_DOWN_ROWS];
    const down_plan p = plan_down(a);
    if (!down_is_short(a, p))
        down_long(a, p, shared, terms);
    else if (a.down.type == QUANT_Q4_K)
        down_short<QUANT_Q4_K, 5>(a, p, shared, terms);
    else if (a.down.type == QUANT_Q5_K)
        down_short<QUANT_Q5_K, 3>(a, p, shared, terms);
    else if (a.down.type == QUANT_Q6_K)
        down_short<QUANT_Q6_K, 3>(a, p, shared, terms);
    else if (a.down.type == CUDA_Q6_K_SPLIT)
        down_short<CUDA_Q6_K_SPLIT, 3>(a, p, shared, terms);
    else
        down_short<QUANT_Q8_0, 3>(a, p, shared, terms);
    __syncthreads();
    const uint32_t out = blockIdx.x * EXPERTS_DOWN_ROWS + threadIdx.x;
    if (threadIdx.x < EXPERTS_DOWN_ROWS && out < a.n_embd)
        down_sum(a, blockIdx.y, out, terms + threadIdx.x);
}

/* ---- prefill ---- */

/* One block: counts in shared memory, then places by atomics.  The order within an expert is not
 * fixed, and no result depends on it. */
KERNEL(experts_sort, experts_sort_args, 1024) {
    __shared__ uint32_t next[1024];
    __shared__ uint32_t tiles_before[1024];
    launch_begin();
    for (uint32_t e = threadIdx.x; e < a.n_experts; e += blockDim.x)
        next[e] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.n_pairs; i += blockDim.x)
        atomicAdd(&next[__ldcg(a.experts + i)], 1u);
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t sum = 0, n_tiles = 0;
        for (uint32_t e = 0; e < a.n_experts; e++) {
            const uint32_t n = next[e];
            a.group_first[e] = next[e] = sum;
            tiles_before[e] = n_tiles;
            sum += n;
            n_tiles += (n + MATMUL_TILE_TOKENS - 1) / MATMUL_TILE_TOKENS;
        }
        a.group_first[a.n_experts] = sum;
        *a.n_tiles = n_tiles;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < a.n_experts; e += blockDim.x) {
        const uint32_t end = e + 1 < a.n_experts ? next[e + 1] : a.n_pairs;
        uint32_t tile = tiles_before[e];
        for (uint32_t at = next[e]; at < end; at += MATMUL_TILE_TOKENS) {
            const uint32_t stop = at + MATMUL_TILE_TOKENS;
            matmul_tile t = {e, at, stop < end ? stop : end, 0};
            a.tiles[tile++] = t;
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.n_pairs; i += blockDim.x) {
        const uint32_t at = atomicAdd(&next[__ldcg(a.experts + i)], 1u);
        a.pair_row[at] = i / a.n_used;
        a.pair_out[at] = i;
    }
}

KERNEL(moe_combine, combine_args, 256) {
    launch_begin();
    const moe_combine_args &b = a.base;
    const uint64_t row = blockIdx.x;
    const uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= b.dim) return;
    float sum = __ldcg(b.x + row * b.x_stride + i);
    for (uint32_t j = 0; j < b.n_used; j++) {
        const uint64_t pair = row * b.n_used + j;
        const bool here = a.records == 0 || __ldcg(a.records + __ldcg(a.experts + pair)) != 0;
        const float y =
            here ? __ldcg(b.y + pair * b.y_stride + i) : __ldcg(a.foreign + pair * b.dim + i);
        sum = fmaf(__ldcg(b.weights + pair), y, sum);
    }
    if (b.shared != 0)
        sum = fmaf(sigmoid(__ldcg(b.shared_gate + row * b.shared_gate_stride)),
                   __ldcg(b.shared + row * b.shared_stride + i), sum);
    b.out[row * b.out_stride + i] = sum;
}
