/* matvec.cu - out = W x for one to eight rows of activations; kernels/cuda/matvec.h.
 *
 * Shapes  see matvec.h; a warp takes one row at a time of the segments' rows in turn, a wide
 *         unit (wide.cuh) a lane, and the next one loads while the row is summed up.
 * Launch  grid (blocks, groups of tokens), block 256, dynamic shared memory for the activations
 *         (matvec_choose); persistent: blocks stride over the rows.
 * Cost    one read of the weights for every T tokens: bound by bandwidth.
 * Oracle  kernels/cpu/dequantize.c with the same quantized activations, in float64; compared in
 *         tests/kernels/cuda_matrix_cases.c.
 */
#include "kernels/cuda/halves.cuh"
#include "kernels/cuda/matvec.h"

/* The segment of a row counted over all segments; row becomes its own. */
DEVICE uint32_t segment_of(const matvec_args &a, uint32_t &row) {
    uint32_t s = 0;
    while (s + 1 < a.n_segments && row >= a.segments[s].n_rows)
        row -= a.segments[s++].n_rows;
    return s;
}

DEVICE matrix_view segment_view(const matvec_args &a, uint32_t s) {
    const matvec_segment &g = a.segments[s];
    matrix_view m = {(const unsigned char *)g.weights, g.row_bytes, g.split_d, g.type,
                     a.n_cols};
    return m;
}

DEVICE void segment_store(const matvec_segment &g, uint32_t token, uint32_t row, float v) {
    float *out = g.out + token * g.out_stride + row;
    *out = g.add ? __ldcg(out) + v : v;
}

DEVICE uint32_t rows_of_segments(const matvec_args &a) {
    uint32_t n = 0;
    for (uint32_t s = 0; s < a.n_segments; s++)
        n += a.segments[s].n_rows;
    return n;
}

/* Whether the launch has shared memory for activations; matvec_choose decides alike. */
DEVICE bool wants_acts(const matvec_args &a) {
    for (uint32_t s = 0; s < a.n_segments; s++)
        if (!is_float_type(a.segments[s].type)) return true;
    return false;
}

template <int T>
DEVICE void finish_row(const matvec_segment &g, uint32_t first, uint32_t n, uint32_t row,
                       float (&acc)[T]) {
#pragma unroll
    for (int t = 0; t < T; t++) {
        const float sum = lanes_sum(acc[t]);
        if (lane_index() == 0 && (uint32_t)t < n)
            segment_store(g, first + (uint32_t)t, row, sum);
        acc[t] = 0;
    }
}

/* What a lane has of a row before the type decides how it is read. */
typedef struct any_wide {
    uint4 v[5];
    uint2 scales;
    uint32_t d;
} any_wide;

template <int TYPE>
DEVICE void any_load(const matrix_view &m, uint32_t row, uint32_t w, any_wide &any) {
    wide_raw<TYPE> raw;
    if (w >= m.n_cols / WIDE) return;
    wide_load<TYPE>(m, matrix_row(m, row), w, raw);
#pragma unroll
    for (uint32_t i = 0; i < sizeof raw.v / sizeof *raw.v; i++)
        any.v[i] = raw.v[i];
    if (TYPE != CUDA_Q6_K_SPLIT) return;
    any.scales = raw.scales;
    any.d = raw.d;
}

/* Against T tokens; the copy is one of registers, which the compiler does without. */
template <int TYPE, int T>
DEVICE void any_dot(const any_wide &any, uint32_t w, const half_acts &x, float (&acc)[T]) {
    wide_raw<TYPE> raw;
#pragma unroll
    for (uint32_t i = 0; i < sizeof raw.v / sizeof *raw.v; i++)
        raw.v[i] = any.v[i];
    raw.scales = any.scales;
    raw.d = any.d;
    wide_dot_halves<TYPE, T>(raw, w, x, acc);
}

/* A warp's rows row, row + step, ... of a segment: a lane takes the wide units lane, lane + 32, ...,
 * and loads the next one as soon as it has used the one before. */
template <int TYPE, int T>
DEVICE void matvec_wides(const matvec_segment &g, const matrix_view &m, const half_acts &x,
                         uint32_t first, uint32_t n, uint32_t row, uint32_t step,
                         any_wide &any) {
    const uint32_t n_wide = m.n_cols / WIDE, lane = lane_index();
#pragma unroll 1
    for (; row < g.n_rows; row += step) {
        float acc[T] = {};
#pragma unroll 1
        for (uint32_t w = lane; w - lane < n_wide; w += WARP) {
            const bool last = w - lane + WARP >= n_wide;
            if (w < n_wide) any_dot<TYPE, T>(any, w, x, acc);
            if (!last)
                any_load<TYPE>(m, row, w + WARP, any);
            else if (row + step < g.n_rows)
                any_load<TYPE>(m, row + step, lane, any);
        }
        finish_row<T>(g, first, n, row, acc);
    }
}

/* Types in units of 32 columns. */
template <int TYPE, int T>
DEVICE void matvec_units(const matvec_segment &g, const matrix_view &m, const half_acts &x,
                         uint32_t first, uint32_t n, uint32_t row, uint32_t step) {
    for (; row < g.n_rows; row += step) {
        float acc[T] = {};
        for (uint32_t u = lane_index(); u < m.n_cols / 32; u += WARP) {
            weight_unit w;
            raw_unit raw;
            unit_load<TYPE>(m, matrix_row(m, row), u, raw);
            unit_decode<TYPE, true>(raw, u, w);
            unit_dot_halves<T>(w, u, x, acc);
        }
        finish_row<T>(g, first, n, row, acc);
    }
}

/* Float weights; with RARE also every quantized type, a token at a time.  Apart from the fast types,
 * since the call that decodes rare ones would cost those their registers. */
template <bool RARE>
DEVICE void matvec_slow_rows(const matvec_args &a, const matvec_segment &g,
                             const matrix_view &m, const half_acts &x, uint32_t first,
                             uint32_t n, uint32_t row, uint32_t step) {
    const uint32_t lane = lane_index();
    for (; row < g.n_rows; row += step) {
        for (uint32_t t = 0; t < n; t++) {
            float acc[1] = {};
            if (is_float_type(m.type)) {
                acc[0] = dot_float(m.type, matrix_row(m, row), a.x + (first + t) * a.x_stride,
                                   a.n_cols, lane, WARP);
            } else if (RARE) {
                const half_acts own = {x.q + t * 4 * x.plane, x.factor + t * 4 * x.plane,
                                       x.plane};
                for (uint32_t u = lane; u < m.n_cols / 32; u += WARP) {
                    weight_unit w;
                    unit_any(m, matrix_row(m, row), u, w);
                    unit_dot_halves<1>(w, u, own, acc);
                }
            }
            const float sum = lanes_sum(acc[0]);
            if (lane == 0) segment_store(g, first + t, row, sum);
        }
    }
}

/* Begin a segment: what a warp needs of it before the activations are there. */
DEVICE void segment_begin(const matvec_args &a, uint32_t s, uint32_t row, any_wide &any) {
    const matrix_view m = segment_view(a, s);
    if (row >= a.segments[s].n_rows) return;
    if (m.type == QUANT_Q4_K) any_load<QUANT_Q4_K>(m, row, lane_index(), any);
    if (m.type == QUANT_Q5_K) any_load<QUANT_Q5_K>(m, row, lane_index(), any);
    if (m.type == CUDA_Q6_K_SPLIT) any_load<CUDA_Q6_K_SPLIT>(m, row, lane_index(), any);
}

template <int T, bool RARE>
DEVICE void segment_rows(const matvec_args &a, uint32_t s, const half_acts &x, uint32_t first,
                         uint32_t n, uint32_t row, uint32_t step, any_wide &any) {
    const matrix_view m = segment_view(a, s);
    const matvec_segment &g = a.segments[s];
    if (RARE) return matvec_slow_rows<true>(a, g, m, x, first, n, row, step);
    switch (m.type) {
    case QUANT_Q4_K:
        return matvec_wides<QUANT_Q4_K, T>(g, m, x, first, n, row, step, any);
    case QUANT_Q5_K:
        return matvec_wides<QUANT_Q5_K, T>(g, m, x, first, n, row, step, any);
    case CUDA_Q6_K_SPLIT:
        return matvec_wides<CUDA_Q6_K_SPLIT, T>(g, m, x, first, n, row, step, any);
    case QUANT_Q6_K:
        return matvec_units<QUANT_Q6_K, T>(g, m, x, first, n, row, step);
    case QUANT_Q8_0:
        return matvec_units<QUANT_Q8_0, T>(g, m, x, first, n, row, step);
    default:
        return matvec_slow_rows<false>(a, g, m, x, first, n, row, step);
    }
}

/* The warp's first rows, of all segments, go to the L2 cache while the launch before ends. */
enum { ROWS_AHEAD = 4 };

DEVICE void prefetch_rows(const matvec_args &a, uint32_t row, uint32_t step) {
    for (uint32_t k = 0, s = 0; k < ROWS_AHEAD; k++, row += step) {
        for (; s < a.n_segments && row >= a.segments[s].n_rows; s++)
            row -= a.segments[s].n_rows;
        if (s == a.n_segments) return;
        const matvec_segment &g = a.segments[s];
        prefetch_warp((const unsigned char *)g.weights + row * g.row_bytes, g.row_bytes);
    }
}

/* ---- the norm ---- */

/* Four columns of a row that a thread keeps: the first NORM_CHUNKS before the wait. */
enum { NORM_CHUNKS = MATVEC_MAX_NORM / 4 / MATVEC_BLOCK };

typedef struct norm_weights {
    float4 w[NORM_CHUNKS];
} norm_weights;

DEVICE float4 zero_float4() {
    return make_float4(0, 0, 0, 0);
}

DEVICE norm_weights norm_begin(const matvec_args &a) {
    norm_weights n;
#pragma unroll
    for (uint32_t k = 0; k < NORM_CHUNKS; k++) {
        const uint32_t c = threadIdx.x + k * MATVEC_BLOCK;
        n.w[k] = zero_float4();
        if (a.norm != 0 && c < a.n_cols / 4)
            n.w[k] = load_float4(QUANT_F32, (const unsigned char *)a.norm, c);
    }
    return n;
}

DEVICE uint32_t magnitude_bits(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}
DEVICE uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* Chunk c of a row, quantized as act_store_group does it, into the place of its half; the 32
 * values of a scale lie in eight neighbouring lanes.  Whole warps come here. */
DEVICE void norm_store(uint4 *q, float2 *factor, uint32_t plane, uint32_t c, bool mine,
                       const float4 &v) {
    uint32_t bits = magnitude_bits(v.x);
    bits = max_u32(bits, magnitude_bits(v.y));
    bits = max_u32(bits, magnitude_bits(v.z));
    bits = max_u32(bits, magnitude_bits(v.w));
    for (int m = 4; m > 0; m /= 2)
        bits = max_u32(bits, __shfl_xor_sync(FULL_WARP, bits, m));
    const float amax = __uint_as_float(bits);
    const bool sound = bits < 0x7f800000u, alive = sound && amax >= CUDA_ACT_LEAST_AMAX;
    const float scale = alive ? amax / 127.0f : sound ? 0.0f : __uint_as_float(0x7fc00000u);
    const float factor_of = alive ? 127.0f / amax : 0.0f;
    const int q0 = __float2int_rn(v.x * factor_of), q1 = __float2int_rn(v.y * factor_of);
    const int q2 = __float2int_rn(v.z * factor_of), q3 = __float2int_rn(v.w * factor_of);
    const int sum = lanes_sum_int(alive ? q0 + q1 + q2 + q3 : 0, 4);
    if (!mine) return;
    const uint32_t to = half_place(plane, c / 4);
    const uint32_t word = ((uint32_t)q0 & 255) | ((uint32_t)q1 & 255) << 8 |
                          ((uint32_t)q2 & 255) << 16 | (uint32_t)q3 << 24;
    ((uint32_t *)(q + to))[c % 4] = alive ? word : 0;
    if (c % 4 == 0) factor[to] = make_float2(scale, scale * (float)sum);
}

/* The block's rows of activations from rows of x; a barrier must follow. */
DEVICE half_acts norm_acts(const matvec_args &a, const norm_weights &weights, uint4 *shared,
                           uint32_t first, uint32_t n) {
    __shared__ float parts[MATVEC_BLOCK / WARP];
    const half_acts acts = half_acts_of(shared, a.n_cols, n);
    const uint32_t plane = acts.plane;
    float2 *factor = (float2 *)acts.factor;
    for (uint32_t t = 0; t < n; t++) {
        const float4 *x = (const float4 *)(a.x + (first + t) * a.x_stride);
        float4 v[NORM_CHUNKS];
        float sum = 0;
#pragma unroll
        for (uint32_t k = 0; k < NORM_CHUNKS; k++) {
            const uint32_t c = threadIdx.x + k * MATVEC_BLOCK;
            v[k] = zero_float4();
            if (c < a.n_cols / 4) v[k] = __ldcg(x + c);
        }
#pragma unroll
        for (uint32_t k = 0; k < NORM_CHUNKS; k++) {
            sum = fmaf(v[k].x, v[k].x, sum);
            sum = fmaf(v[k].y, v[k].y, sum);
            sum = fmaf(v[k].z, v[k].z, sum);
            sum = fmaf(v[k].w, v[k].w, sum);
        }
        const float scale = 1.0f / sqrtf(block_sum(sum, parts) / (float)a.n_cols + a.eps);
#pragma unroll
        for (uint32_t k = 0; k < NORM_CHUNKS; k++) {
            const uint32_t c = threadIdx.x + k * MATVEC_BLOCK;
            if (k * MATVEC_BLOCK >= a.n_cols / 4) break;
            const float4 w = weights.w[k];
            const float4 y = make_float4(v[k].x * scale * w.x, v[k].y * scale * w.y,
                                         v[k].z * scale * w.z, v[k].w * scale * w.w);
            norm_store(shared + t * 4 * plane, factor + t * 4 * plane, plane, c,
                       c < a.n_cols / 4, y);
        }
    }
    return acts;
}

/* Rows of activations beyond n_tokens are not there: what stands in their places is multiplied
 * and thrown away. */
template <int T, bool RARE> DEVICE void matvec_body(const matvec_args &a) {
    DYNAMIC_SHARED(shared);
    const uint32_t warps = blockDim.x / WARP, step = gridDim.x * warps;
    const uint32_t first = blockIdx.y * T, left = a.n_tokens - first;
    const uint32_t n = left < T ? left : T;
    uint32_t row = blockIdx.x * warps + threadIdx.x / WARP;
    any_wide any = {}; /* defined on every path */
    uint32_t s = segment_of(a, row);
    if (!RARE) segment_begin(a, s, row, any);
    prefetch_rows(a, blockIdx.x * warps + threadIdx.x / WARP, step);
    const norm_weights weights = norm_begin(a);
    launch_begin();
    half_acts x = {shared, 0, 0};
    if (a.norm != 0)
        x = norm_acts(a, weights, shared, first, n);
    else if (wants_acts(a))
        x = half_acts_copy(shared, (const unsigned char *)a.act + first * a.act_stride,
                           a.act_stride, a.n_cols, n);
    __syncthreads();
#pragma unroll 1
    while (true) {
        segment_rows<T, RARE>(a, s, x, first, n, row, step, any);
        /* The warp's first row in the next segment. */
        const uint32_t n_rows = a.segments[s].n_rows;
        const uint32_t done = row < n_rows ? (n_rows - row + step - 1) / step : 0;
        row = row + done * step - n_rows;
        if (++s >= a.n_segments) return;
        if (!RARE) segment_begin(a, s, row, any);
    }
}

/* Float matrices alone: the block's warps share the columns of a row. */
KERNEL(matvec_float, matvec_args, MATVEC_BLOCK) {
    __shared__ float parts[MATVEC_BLOCK / WARP];
    const uint32_t n_rows = rows_of_segments(a), first = blockIdx.y * MATVEC_MAX_TOKENS;
    const uint32_t left = a.n_tokens - first;
    const uint32_t n = left < MATVEC_MAX_TOKENS ? left : (uint32_t)MATVEC_MAX_TOKENS;
    for (uint32_t i = blockIdx.x; i < n_rows; i += gridDim.x) {
        uint32_t row = i;
        const uint32_t s = segment_of(a, row), t4 = threadIdx.x;
        const matrix_view m = segment_view(a, s);
        const unsigned char *at = matrix_row(m, row);
        float4 w[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
#pragma unroll
        for (uint32_t k = 0; k < 2; k++)
            if (t4 + k * MATVEC_BLOCK < a.n_cols / 4)
                w[k] = load_float4(m.type, at, t4 + k * MATVEC_BLOCK);
        if (i == blockIdx.x) launch_begin();
        for (uint32_t t = 0; t < n; t++) {
            const float4 *x = (const float4 *)(a.x + (first + t) * a.x_stride);
            float acc = 0;
            for (uint32_t c = t4, k = 0; c < a.n_cols / 4; c += MATVEC_BLOCK, k++) {
                const float4 v = __ldcg(x + c);
                float4 f = w[0];
                if (k == 1) f = w[1];
                if (k > 1) f = load_float4(m.type, at, c);
                acc = fmaf(f.x, v.x, acc);
                acc = fmaf(f.y, v.y, acc);
                acc = fmaf(f.z, v.z, acc);
                acc = fmaf(f.w, v.w, acc);
            }
            const float sum = block_sum(acc, parts);
            if (threadIdx.x == 0) segment_store(a.segments[s], first + t, row, sum);
        }
    }
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define FIT_1 MATVEC_FIT_TURING
#else
#define FIT_1 MATVEC_FIT
#endif
KERNEL_FIT(matvec_1, matvec_args, MATVEC_BLOCK, FIT_1) {
    matvec_body<1, false>(a);
}
KERNEL_FIT(matvec_2, matvec_args, MATVEC_BLOCK, 2) {
    matvec_body<2, false>(a);
}
KERNEL_FIT(matvec_4, matvec_args, MATVEC_BLOCK, 2) {
    matvec_body<4, false>(a);
}
KERNEL_FIT(matvec_8, matvec_args, MATVEC_BLOCK, 2) {
    matvec_body<8, false>(a);
}
KERNEL_FIT(matvec_any, matvec_args, MATVEC_BLOCK, 2) {
    matvec_body<1, true>(a);
}

KERNEL(matvec_f32, matvec_args, MATVEC_BLOCK) {
    launch_begin();
    const uint32_t n_rows = rows_of_segments(a), warps = blockDim.x / WARP;
    for (uint32_t i = blockIdx.x * warps + threadIdx.x / WARP; i < n_rows;
         i += gridDim.x * warps) {
        uint32_t row = i;
        const uint32_t s = segment_of(a, row);
        const matrix_view m = segment_view(a, s);
        const float *x = a.x + blockIdx.y * a.x_stride;
        const float sum = lanes_sum(dot_exact(m, matrix_row(m, row), x, lane_index(), WARP));
        if (lane_index() == 0) segment_store(a.segments[s], blockIdx.y, row, sum);
    }
}
