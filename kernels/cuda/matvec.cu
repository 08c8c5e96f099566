/* matvec.cu - out = W x for one to eight rows of activations; kernels/cuda/matvec.h.
 *
 * Shapes  see matvec.h; a warp takes one row at a time of the segments' rows in turn.
 * Launch  grid (blocks, groups of tokens), block 256, dynamic shared memory for the activations
 *         (matvec_choose); persistent: blocks stride over the rows.
 * Cost    one read of the weights for every T tokens: bound by bandwidth.
 * Oracle  kernels/cpu/dequantize.c with the same quantized activations, in float64; compared in
 *         tests/kernels/test_cuda_matvec.cc.
 */
#include "kernels/cuda/dot.cuh"
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

template <int T, bool RARE>
DEVICE void matvec_row(const matvec_args &a, const shared_acts &x, uint32_t first, uint32_t n,
                       uint32_t row) {
    const uint32_t s = segment_of(a, row), lane = lane_index();
    const matrix_view m[1] = {segment_view(a, s)};
    const unsigned char *const at[1] = {matrix_row(m[0], row)};
    const uint32_t token[1] = {0};
    float acc[1][T] = {};
    if (is_float_type(m[0].type)) {
        for (uint32_t t = 0; t < n; t++) {
            const float *v = a.x + (first + t) * a.x_stride;
            const float sum = lanes_sum(dot_float(m[0].type, at[0], v, a.n_cols, lane, WARP));
            if (lane == 0) segment_store(a.segments[s], first + t, row, sum);
        }
        return;
    }
    dot_rows<1, T, RARE>(m, at, token, x, lane, WARP, acc);
#pragma unroll
    for (int t = 0; t < T; t++) {
        const float sum = lanes_sum(acc[0][t]);
        if (lane == 0 && (uint32_t)t < n)
            segment_store(a.segments[s], first + (uint32_t)t, row, sum);
    }
}

/* Rows of activations beyond n_tokens are not there: what stands in their places is multiplied
 * and thrown away. */
template <int T, bool RARE> DEVICE void matvec_body(const matvec_args &a) {
    DYNAMIC_SHARED(shared);
    launch_begin();
    const uint32_t first = blockIdx.y * T, left = a.n_tokens - first;
    const uint32_t n = left < T ? left : T;
    shared_acts x = {shared, 0, 0};
    if (wants_acts(a))
        x = acts_copy(shared, (const unsigned char *)a.act + first * a.act_stride, a.act_stride,
                      a.n_cols, n);
    __syncthreads();
    const uint32_t n_rows = rows_of_segments(a), warps = blockDim.x / WARP;
    for (uint32_t row = blockIdx.x * warps + threadIdx.x / WARP; row < n_rows;
         row += gridDim.x * warps)
        matvec_row<T, RARE>(a, x, first, n, row);
}

KERNEL(matvec_1, matvec_args, MATVEC_BLOCK) {
    matvec_body<1, false>(a);
}
KERNEL(matvec_2, matvec_args, MATVEC_BLOCK) {
    matvec_body<2, false>(a);
}
KERNEL(matvec_4, matvec_args, MATVEC_BLOCK) {
    matvec_body<4, false>(a);
}
KERNEL_FIT(matvec_8, matvec_args, MATVEC_BLOCK, 2) {
    matvec_body<8, false>(a);
}
KERNEL(matvec_any, matvec_args, MATVEC_BLOCK) {
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
