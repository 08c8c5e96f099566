/* dot.cuh - rows of weights against activations in shared memory, a warp (or part of one) a row.
 *
 * A lane takes 32 columns at a time (unit.cuh): integer products of 16 by dp4a, then
 *   acc = fmaf(scale * d, dot, acc) for each half, and acc = fmaf(-min, d * sum, acc)
 * unit after unit, lane l the units l, l + width, ...; the lanes are joined by a tree.  That order
 * depends on n_cols alone.
 */
#ifndef SILICEO_KERNELS_CUDA_DOT_CUH
#define SILICEO_KERNELS_CUDA_DOT_CUH

#include "kernels/cuda/act.cuh"
#include "kernels/cuda/unit.cuh"

/* Activation rows in shared memory: of each row first the q of the even halves (16 values) of
 * all units, then of the odd ones, so that the lanes' loads of 16 bytes meet no bank twice. */
typedef struct shared_acts {
    const uint4 *q;       /* [rows][2][n_units] */
    const float2 *factor; /* [rows][2][n_units] */
    uint32_t n_units;
} shared_acts;

/* All threads of the block copy n_rows rows; a barrier must follow. */
DEVICE shared_acts acts_copy(uint4 *shared, const void *act, uint64_t stride, uint32_t n_cols,
                             uint32_t n_rows) {
    const uint32_t n_units = n_cols / 32, n_halves = 2 * n_units;
    float2 *factor = (float2 *)(shared + n_rows * n_halves);
    for (uint32_t i = threadIdx.x; i < n_rows * n_halves; i += blockDim.x) {
        const uint32_t row = i / n_halves, h = i % n_halves;
        const unsigned char *from = (const unsigned char *)act + row * stride;
        const uint32_t to = (row * 2 + h % 2) * n_units + h / 2;
        shared[to] = __ldcg((const uint4 *)from + h);
        factor[to] = __ldcg(act_factors(from, n_cols) + h);
    }
    shared_acts s = {shared, factor, n_units};
    return s;
}

DEVICE int dot16(const uint32_t *w, const uint4 &x) {
    int sum = __dp4a((int)w[0], (int)x.x, 0);
    sum = __dp4a((int)w[1], (int)x.y, sum);
    sum = __dp4a((int)w[2], (int)x.z, sum);
    return __dp4a((int)w[3], (int)x.w, sum);
}

/* One unit against activation row `token`. */
DEVICE float unit_dot(const weight_unit &w, const shared_acts &x, uint32_t token, uint32_t u,
                      float acc) {
    const uint32_t at = token * 2 * x.n_units + u;
    const float2 f0 = x.factor[at], f1 = x.factor[at + x.n_units];
    acc = fmaf(w.scale[0] * f0.x, (float)dot16(w.q, x.q[at]), acc);
    acc = fmaf(w.scale[1] * f1.x, (float)dot16(w.q + 4, x.q[at + x.n_units]), acc);
    acc = fmaf(-w.min[0], f0.y, acc);
    return fmaf(-w.min[1], f1.y, acc);
}

/* R rows, each against activation rows token[r] .. token[r] + T - 1.  lane and width: of the part
 * of the warp that works together.  Loads of all rows come before the first product. */
template <int TYPE, int R, int T>
DEVICE void dot_units(const matrix_view (&m)[R], const unsigned char *const (&row)[R],
                      const uint32_t (&token)[R], const shared_acts &x, uint32_t lane,
                      uint32_t width, float (&acc)[R][T]) {
    for (uint32_t u = lane; u < x.n_units; u += width) {
        raw_unit raw[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            unit_load<TYPE>(m[r], row[r], u, raw[r]);
#pragma unroll
        for (int r = 0; r < R; r++) {
            weight_unit w;
            unit_decode<TYPE, true>(raw[r], u, w);
#pragma unroll
            for (int t = 0; t < T; t++)
                acc[r][t] = unit_dot(w, x, token[r] + (uint32_t)t, u, acc[r][t]);
        }
    }
}

template <int R, int T>
DEVICE void dot_units_rare(const matrix_view (&m)[R], const unsigned char *const (&row)[R],
                           const uint32_t (&token)[R], const shared_acts &x, uint32_t lane,
                           uint32_t width, float (&acc)[R][T]) {
    for (int r = 0; r < R; r++) {
        for (uint32_t u = lane; u < x.n_units; u += width) {
            weight_unit w;
            unit_rare(m[r], row[r], u, w);
            for (int t = 0; t < T; t++)
                acc[r][t] = unit_dot(w, x, token[r] + (uint32_t)t, u, acc[r][t]);
        }
    }
}

/* The same for a type known when the kernel runs; all rows have it. */
template <int R, int T, bool RARE>
DEVICE void dot_rows(const matrix_view (&m)[R], const unsigned char *const (&row)[R],
                     const uint32_t (&token)[R], const shared_acts &x, uint32_t lane,
                     uint32_t width, float (&acc)[R][T]) {
    switch (m[0].type) {
    case QUANT_Q4_K:
        return dot_units<QUANT_Q4_K, R, T>(m, row, token, x, lane, width, acc);
    case QUANT_Q5_K:
        return dot_units<QUANT_Q5_K, R, T>(m, row, token, x, lane, width, acc);
    case QUANT_Q6_K:
        return dot_units<QUANT_Q6_K, R, T>(m, row, token, x, lane, width, acc);
    case CUDA_Q6_K_SPLIT:
        return dot_units<CUDA_Q6_K_SPLIT, R, T>(m, row, token, x, lane, width, acc);
    case QUANT_Q8_0:
        return dot_units<QUANT_Q8_0, R, T>(m, row, token, x, lane, width, acc);
    default:
        if (RARE) dot_units_rare<R, T>(m, row, token, x, lane, width, acc);
    }
}

/* Float weights against float32 activations in global memory; n_cols is a multiple of 4. */
DEVICE float dot_float(uint32_t type, const unsigned char *row, const float *x, uint32_t n_cols,
                       uint32_t lane, uint32_t width) {
    float acc = 0;
#pragma unroll 4
    for (uint32_t i = lane; i < n_cols / 4; i += width) {
        const float4 w = load_float4(type, row, i);
        const float4 v = __ldcg((const float4 *)x + i);
        acc = fmaf(w.x, v.x, acc);
        acc = fmaf(w.y, v.y, acc);
        acc = fmaf(w.z, v.z, acc);
        acc = fmaf(w.w, v.w, acc);
    }
    return acc;
}

/* Any type, dequantized, against float32 activations. */
DEVICE float dot_exact(const matrix_view &m, const unsigned char *row, const float *x,
                       uint32_t lane, uint32_t width) {
    if (is_float_type(m.type)) return dot_float(m.type, row, x, m.n_cols, lane, width);
    float acc = 0;
    for (uint32_t u = lane; u < m.n_cols / 32; u += width) {
        weight_unit w;
        unit_any(m, row, u, w);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float4 v = __ldcg((const float4 *)x + u * 8 + i);
            acc = fmaf(unit_value(w, 4 * i), v.x, acc);
            acc = fmaf(unit_value(w, 4 * i + 1), v.y, acc);
            acc = fmaf(unit_value(w, 4 * i + 2), v.z, acc);
            acc = fmaf(unit_value(w, 4 * i + 3), v.w, acc);
        }
    }
    return acc;
}

/* Lanes that work on one row: a power of two, at most a warp. */
DEVICE uint32_t lanes_a_row(uint32_t n_units) {
    uint32_t width = WARP;
    while (width > 4 && width / 2 >= n_units)
        width /= 2;
    return width;
}

#endif
