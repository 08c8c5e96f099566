/* matmul.cu - matrices against many rows of activations; kernels/cuda/matmul.h.
 *
 * Shapes  a block makes 64 rows x 64 tokens of the result, K columns at a time.
 * Launch  grid (row tiles, token tiles), block 128 (matmul_choose); no dynamic shared memory.
 * Cost    matmul_q8: int8 tensor cores; a product of 16 x 8 x 32 is followed by 16 (with minima
 *         20) float operations a lane, which bound it.  Weights are decoded once a token tile.
 * Order   k from left to right, 32 (or 16) columns at a time, the same for every token.
 * Oracle  as matvec.cu; compared in tests/kernels/test_cuda_matmul.cc.
 *
 * Warp w of 4 has rows 32 (w / 2) and tokens 32 (w % 2) of the tile: 2 x 4 products of 16 x 8.
 */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/unit.cuh"

enum {
    TILE = 64,
    TILE_UNITS = 4, /* of 32 columns, in a stage */
    TILE_COLS = 32 * TILE_UNITS,
    TILE_PITCH = TILE_COLS + 16, /* bytes: rows start 4 banks apart */
    STAGE_UNITS = TILE * TILE_UNITS / MATMUL_BLOCK
};

/* Where a block's tokens come from, and which matrix it multiplies. */
typedef struct tile_place {
    const unsigned char *weights;
    uint32_t first; /* of the lists */
    uint32_t n;     /* tokens, at most TILE; 0: nothing to do */
} tile_place;

DEVICE tile_place place_of_tile(const matmul_args &a) {
    tile_place p = {(const unsigned char *)a.weights, blockIdx.y * TILE, 0};
    if (a.n_groups == 0) {
        p.n = a.n_tokens - p.first < TILE ? a.n_tokens - p.first : (uint32_t)TILE;
        return p;
    }
    if (blockIdx.y >= __ldcg(a.n_tiles)) return p;
    const uint4 t = __ldcg((const uint4 *)a.tiles + blockIdx.y);
    const uint64_t record = __ldcg(a.records + t.x);
    if (record == 0) return p;
    p.weights = (const unsigned char *)(uintptr_t)record + a.offset;
    p.first = t.y;
    p.n = t.z - t.y;
    return p;
}

DEVICE uint32_t in_row(const matmul_args &a, uint32_t place) {
    return a.in_rows != 0 ? __ldcg(a.in_rows + place) : place;
}

DEVICE void store_result(const matmul_args &a, const tile_place &p, uint32_t token,
                         uint32_t row, float v) {
    if (token >= p.n || row >= a.n_rows) return;
    const uint32_t place = p.first + token;
    const uint32_t to = a.out_rows != 0 ? __ldcg(a.out_rows + place) : place;
    float *out = a.out + to * a.out_stride + row;
    *out = a.add ? __ldcg(out) + v : v;
}

/* ---- int8 ---- */

typedef struct q8_tile {
    unsigned char w[TILE * TILE_PITCH];
    unsigned char x[TILE * TILE_PITCH];
    float4 w_factor[TILE_UNITS][TILE]; /* scale 0, 1, min 0, 1 */
    float2 x_factor[2 * TILE_UNITS][TILE];
} q8_tile;

DEVICE void zero_unit(weight_unit &u) {
    for (int i = 0; i < 8; i++)
        u.q[i] = 0;
    unit_factors(u, 0, 0);
}

/* Thread t has units t, t + 128: unit i is row i / TILE_UNITS, columns 32 (i % TILE_UNITS). */
DEVICE void put_weights(q8_tile *tile, const matmul_args &a, const matrix_view &m,
                        uint32_t stage) {
#pragma unroll
    for (uint32_t i = threadIdx.x; i < TILE * TILE_UNITS; i += MATMUL_BLOCK) {
        const uint32_t row = blockIdx.x * TILE + i / TILE_UNITS, at = i % TILE_UNITS;
        const uint32_t u = stage * TILE_UNITS + at;
        weight_unit w;
        if (row < a.n_rows && u < a.n_cols / 32)
            unit_any(m, matrix_row(m, row), u, w);
        else
            zero_unit(w);
        uint4 *to = (uint4 *)(tile->w + i / TILE_UNITS * TILE_PITCH + 32 * at);
        to[0] = make_uint4(w.q[0], w.q[1], w.q[2], w.q[3]);
        to[1] = make_uint4(w.q[4], w.q[5], w.q[6], w.q[7]);
        tile->w_factor[at][i / TILE_UNITS] =
            make_float4(w.scale[0], w.scale[1], w.min[0], w.min[1]);
    }
}

/* Thread t has half t % 2 of token t / 2's columns of the stage: 4 pieces of 16. */
DEVICE void put_activations(q8_tile *tile, const matmul_args &a, const unsigned char *row,
                            uint32_t stage) {
    const uint32_t token = threadIdx.x / 2;
#pragma unroll
    for (uint32_t i = 0; i < TILE_UNITS; i++) {
        const uint32_t piece = threadIdx.x % 2 * TILE_UNITS + i;
        const uint32_t h = stage * 2 * TILE_UNITS + piece;
        uint4 q = make_uint4(0, 0, 0, 0);
        float2 f = make_float2(0, 0);
        if (row != 0 && h < a.n_cols / 16) {
            q = __ldcg((const uint4 *)row + h);
            f = __ldcg(act_factors(row, a.n_cols) + h);
        }
        *(uint4 *)(tile->x + token * TILE_PITCH + 16 * piece) = q;
        tile->x_factor[piece][token] = f;
    }
}

DEVICE uint32_t tile_word(const unsigned char *rows, uint32_t row, uint32_t byte) {
    return *(const uint32_t *)(rows + row * TILE_PITCH + byte);
}

/* acc of a product: rows r, r + 8 and tokens c, c + 1. */
DEVICE void add_scaled(float (&acc)[4], const int (&c)[4], float s0, float s1, float d0,
                       float d1) {
    acc[0] = fmaf((float)c[0], s0 * d0, acc[0]);
    acc[1] = fmaf((float)c[1], s0 * d1, acc[1]);
    acc[2] = fmaf((float)c[2], s1 * d0, acc[2]);
    acc[3] = fmaf((float)c[3], s1 * d1, acc[3]);
}

DEVICE void add_minima(float (&acc)[4], float m0, float m1, float sum0, float sum1) {
    acc[0] = fmaf(-m0, sum0, acc[0]);
    acc[1] = fmaf(-m0, sum1, acc[1]);
    acc[2] = fmaf(-m1, sum0, acc[2]);
    acc[3] = fmaf(-m1, sum1, acc[3]);
}

DEVICE bool has_minima(uint32_t type) {
    return type == QUANT_Q4_K || type == QUANT_Q5_K || type == QUANT_Q2_K ||
           type == QUANT_Q4_1 || type == QUANT_Q5_1;
}

DEVICE bool scales_of_16(uint32_t type) {
    return type == QUANT_Q6_K || type == CUDA_Q6_K_SPLIT || type == QUANT_Q2_K ||
           type == QUANT_Q3_K;
}

/* 32 columns: unit `at` of the stage; tokens from n on are left out, eight at a time. */
template <bool HALVES, bool MINIMA>
DEVICE void multiply_unit(const q8_tile *tile, uint32_t at, uint32_t n, float (&acc)[2][4][4]) {
    const uint32_t warp = threadIdx.x / WARP, g = lane_index() / 4, l = lane_index() % 4;
    const uint32_t row0 = warp / 2 * 32 + g, token0 = warp % 2 * 32;
    uint32_t w[2][4];
    float4 f[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t row = row0 + 16 * (uint32_t)i, byte = 32 * at + 4 * l;
        w[i][0] = tile_word(tile->w, row, byte);
        w[i][1] = tile_word(tile->w, row + 8, byte);
        w[i][2] = tile_word(tile->w, row, byte + 16);
        w[i][3] = tile_word(tile->w, row + 8, byte + 16);
        f[i][0] = tile->w_factor[at][row];
        f[i][1] = tile->w_factor[at][row + 8];
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t token = token0 + 8 * (uint32_t)j;
        if (token >= n) break;
        const uint32_t x[2] = {tile_word(tile->x, token + g, 32 * at + 4 * l),
                               tile_word(tile->x, token + g, 32 * at + 4 * l + 16)};
        const float4 low = *(const float4 *)&tile->x_factor[2 * at][token + 2 * l];
        const float4 high = *(const float4 *)&tile->x_factor[2 * at + 1][token + 2 * l];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int c[4] = {0, 0, 0, 0};
            if (HALVES) {
                int d[4] = {0, 0, 0, 0};
                mma_k16(c, w[i][0], w[i][1], x[0]);
                mma_k16(d, w[i][2], w[i][3], x[1]);
                add_scaled(acc[i][j], c, f[i][0].x, f[i][1].x, low.x, low.z);
                add_scaled(acc[i][j], d, f[i][0].y, f[i][1].y, low.x, low.z);
                if (MINIMA) {
                    add_minima(acc[i][j], f[i][0].z, f[i][1].z, low.y, low.w);
                    add_minima(acc[i][j], f[i][0].w, f[i][1].w, high.y, high.w);
                }
            } else {
                mma_k32(c, w[i], x);
                add_scaled(acc[i][j], c, f[i][0].x, f[i][1].x, low.x, low.z);
                if (MINIMA)
                    add_minima(acc[i][j], f[i][0].z, f[i][1].z, low.y + high.y, low.w + high.w);
            }
        }
    }
}

template <bool HALVES, bool MINIMA>
DEVICE void multiply_stage(const q8_tile *tile, uint32_t n, float (&acc)[2][4][4]) {
    if (threadIdx.x / WARP % 2 * 32 >= n) return;
#pragma unroll
    for (uint32_t at = 0; at < TILE_UNITS; at++)
        multiply_unit<HALVES, MINIMA>(tile, at, n, acc);
}

DEVICE void multiply(const q8_tile *tile, uint32_t type, uint32_t n, float (&acc)[2][4][4]) {
    if (scales_of_16(type)) {
        if (has_minima(type))
            multiply_stage<true, true>(tile, n, acc);
        else
            multiply_stage<true, false>(tile, n, acc);
    } else if (has_minima(type)) {
        multiply_stage<false, true>(tile, n, acc);
    } else {
        multiply_stage<false, false>(tile, n, acc);
    }
}

KERNEL(matmul_q8, matmul_args, MATMUL_BLOCK) {
    __shared__ __align__(16) q8_tile tile[1];
    launch_begin();
    const tile_place p = place_of_tile(a);
    if (p.n == 0) return;
    const matrix_view m = {p.weights, a.row_bytes, a.split_d, a.type, a.n_cols};
    const uint32_t token = threadIdx.x / 2;
    const unsigned char *x = 0;
    if (token < p.n)
        x = (const unsigned char *)a.act + in_row(a, p.first + token) * a.act_stride;
    float acc[2][4][4] = {};
    for (uint32_t stage = 0; stage * TILE_COLS < a.n_cols; stage++) {
        __syncthreads();
        put_weights(tile, a, m, stage);
        put_activations(tile, a, x, stage);
        __syncthreads();
        multiply(tile, a.type, p.n, acc);
    }
    const uint32_t warp = threadIdx.x / WARP, g = lane_index() / 4, l = lane_index() % 4;
#pragma unroll
    for (int e = 0; e < 32; e++) {
        const uint32_t i = e / 16, j = e / 4 % 4, c = e % 4;
        store_result(a, p, warp % 2 * 32 + 8 * j + 2 * l + c % 2,
                     blockIdx.x * TILE + warp / 2 * 32 + 16 * i + g + c / 2 * 8, acc[i][j][c]);
    }
}

/* ---- float32 ---- */

enum { FLOAT_COLS = 32, FLOAT_PITCH = TILE + 4 };

/* Columns first: lanes read neighbouring rows (tokens). */
typedef struct f32_tile {
    float w[FLOAT_COLS][FLOAT_PITCH];
    float x[FLOAT_COLS][FLOAT_PITCH];
} f32_tile;

/* Thread t brings half t / 64 of row t % 64: 16 columns. */
DEVICE void put_float_weights(f32_tile *tile, const matmul_args &a, const matrix_view &m,
                              uint32_t col) {
    const uint32_t r = threadIdx.x % TILE, row = blockIdx.x * TILE + r;
    const uint32_t first = threadIdx.x / TILE * 16;
    float v[16] = {};
    if (row < a.n_rows && is_float_type(m.type)) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (col + first + 4 * i >= a.n_cols) break;
            const float4 w = load_float4(m.type, matrix_row(m, row), (col + first) / 4 + i);
            v[4 * i] = w.x;
            v[4 * i + 1] = w.y;
            v[4 * i + 2] = w.z;
            v[4 * i + 3] = w.w;
        }
    } else if (row < a.n_rows) {
        weight_unit w;
        unit_any(m, matrix_row(m, row), col / 32, w);
#pragma unroll
        for (int e = 0; e < 16; e++)
            v[e] = first == 0 ? unit_value(w, e) : unit_value(w, 16 + e);
    }
#pragma unroll
    for (int e = 0; e < 16; e++)
        tile->w[first + e][r] = v[e];
}

DEVICE void put_float_activations(f32_tile *tile, const matmul_args &a, const float *x,
                                  uint32_t col) {
    const uint32_t first = threadIdx.x / TILE * 16;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        float4 v = make_float4(0, 0, 0, 0);
        if (x != 0 && col + first + 4 * i < a.n_cols)
            v = __ldcg((const float4 *)(x + col + first) + i);
        tile->x[first + 4 * i][threadIdx.x % TILE] = v.x;
        tile->x[first + 4 * i + 1][threadIdx.x % TILE] = v.y;
        tile->x[first + 4 * i + 2][threadIdx.x % TILE] = v.z;
        tile->x[first + 4 * i + 3][threadIdx.x % TILE] = v.w;
    }
}

/* Thread t has rows 4 (t % 16) .. + 3 and tokens 8 (t / 16) .. + 7. */
KERNEL_FIT(matmul_f32, matmul_args, MATMUL_BLOCK, 4) {
    __shared__ __align__(16) f32_tile tile[1];
    launch_begin();
    const tile_place p = place_of_tile(a);
    if (p.n == 0) return;
    const matrix_view m = {p.weights, a.row_bytes, a.split_d, a.type, a.n_cols};
    const uint32_t mine = threadIdx.x % TILE;
    const float *x = mine < p.n ? a.x + in_row(a, p.first + mine) * a.x_stride : 0;
    const uint32_t r = threadIdx.x % 16 * 4, t = threadIdx.x / 16 * 8;
    float acc[8][4] = {};
    for (uint32_t col = 0; col < a.n_cols; col += FLOAT_COLS) {
        __syncthreads();
        put_float_weights(tile, a, m, col);
        put_float_activations(tile, a, x, col);
        __syncthreads();
        for (uint32_t k = 0; k < FLOAT_COLS; k++) {
            const float4 w = *(const float4 *)&tile->w[k][r];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float v = tile->x[k][t + (uint32_t)i];
                acc[i][0] = fmaf(w.x, v, acc[i][0]);
                acc[i][1] = fmaf(w.y, v, acc[i][1]);
                acc[i][2] = fmaf(w.z, v, acc[i][2]);
                acc[i][3] = fmaf(w.w, v, acc[i][3]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 32; i++)
        store_result(a, p, t + (uint32_t)i / 4, blockIdx.x * TILE + r + (uint32_t)i % 4,
                     acc[i / 4][i % 4]);
}
