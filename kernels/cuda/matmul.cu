/* matmul.cu - matrices against many rows of activations; kernels/cuda/matmul.h.
 *
 * Shapes  a block of matmul_q8 makes 128 rows x 64 tokens of the result, 128 columns at a time, a
 *         block of matmul_f32 32 x 32.
 * Launch  grid (row tiles of all matrices, token tiles), block 256 or 128 (matmul_choose); no dynamic
 *         shared memory.
 * Cost    matmul_q8: int8 tensor cores; a product of 16 x 8 x 32 is followed by 12 (with minima
 *         16) float operations a lane, which bound it.  Weights are decoded once a token tile; the
 *         next columns are on their way while these are multiplied.
 * Order   matmul_q8: k from left to right, 32 (or 16) columns at a time.  matmul_f32: in each 128
 *         columns a warp has 32; those are summed apart, and the four warps at the end, so that no
 *         sum is longer than a few dozen terms.  Both the same for every token.
 * Oracle  as matvec.cu; compared in tests/kernels/cuda_matrix_cases.c.
 *
 * Warp w of 8 has rows 32 (w / 2) of the tile and one half w % 2 of its tokens: 2 x up to 4 products
 * of 16 x 8.  Gated, rows 16 (2 i) .. of the tile are of the gate and 16 (2 i + 1) .. of up, so
 * that a lane has both of the same place.
 */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/unit.cuh"

enum {
    TILE = MATMUL_TILE_TOKENS,
    TILE_ROWS = MATMUL_TILE_ROWS,
    TILE_UNITS = 4, /* of 32 columns, in a stage */
    TILE_COLS = 32 * TILE_UNITS,
    TILE_PITCH = TILE_COLS + 16,                     /* bytes: rows start 4 banks apart */
    X_PIECES = 2 * TILE_UNITS * TILE / MATMUL_BLOCK, /* of 16 activations, of a thread */
    HIDDEN_PITCH = TILE_ROWS / 2 + 1,
    RARE = -1 /* types that come by bytes */
};

/* The places of a block: which rows of which matrix, which tokens. */
typedef struct tile_place {
    matmul_matrix matrix;
    uint32_t row;   /* the first */
    uint32_t first; /* of the lists of tokens */
    uint32_t n;     /* tokens, at most TILE; 0: nothing to do */
} tile_place;

/* Rows of a matrix that a block takes: each. */
DEVICE tile_place place_of_tile(const matmul_args &a, uint32_t each) {
    tile_place p = {
        {a.weights, a.out, a.row_bytes, a.split_d, a.out_stride, a.type, a.n_rows, a.add, 0},
        blockIdx.x,
        blockIdx.y * TILE,
        0};
    for (uint32_t i = 0; i < a.n_more; i++) {
        const uint32_t n = (p.matrix.n_rows + each - 1) / each;
        if (p.row < n) break;
        p.row -= n;
        p.matrix = a.more[i];
    }
    p.row *= each;
    if (a.n_groups == 0) {
        p.n = a.n_tokens - p.first < TILE ? a.n_tokens - p.first : (uint32_t)TILE;
        return p;
    }
    if (blockIdx.y >= __ldcg(a.n_tiles)) return p;
    const uint4 t = __ldcg((const uint4 *)a.tiles + blockIdx.y);
    const uint64_t record = __ldcg(a.records + t.x);
    if (record == 0) return p;
    p.matrix.weights = (const unsigned char *)(uintptr_t)record + a.offset;
    p.first = t.y;
    p.n = t.z - t.y;
    return p;
}

DEVICE uint32_t in_row(const matmul_args &a, uint32_t place) {
    return a.in_rows != 0 ? __ldcg(a.in_rows + place) : place;
}

DEVICE void store_result(const matmul_args &a, const tile_place &p, uint32_t token,
                         uint32_t row, float v) {
    if (token >= p.n || row >= p.matrix.n_rows) return;
    const uint32_t place = p.first + token;
    const uint32_t to = a.out_rows != 0 ? __ldcg(a.out_rows + place) : place;
    float *out = p.matrix.out + to * p.matrix.out_stride + row;
    *out = p.matrix.add ? __ldcg(out) + v : v;
}

/* ---- int8 ---- */

DEVICE constexpr bool scales_of_16(int type) {
    return type == QUANT_Q6_K || type == CUDA_Q6_K_SPLIT || type == RARE;
}
DEVICE constexpr bool has_minima(int type) {
    return type == QUANT_Q4_K || type == QUANT_Q5_K || type == RARE;
}

/* Factors of weights: { scale, minimum } of a unit, or where scales are of 16 { scale 0, scale 1 }
 * and for the rare types { minimum 0, minimum 1 }.  Of activations: { scale, scale * sum } of a
 * unit, or for the rare types of each half. */
typedef struct q8_tile {
    unsigned char w[TILE_ROWS * TILE_PITCH];
    unsigned char x[TILE * TILE_PITCH];
    float2 w_factor[2][TILE_UNITS][TILE_ROWS];
    float2 x_factor[2 * TILE_UNITS][TILE];
} q8_tile;

/* What a thread holds of a stage.  Weights: two units of row t / 2 of the tile that share most of
 * their bytes; activations: unit t % 4 of token t / 4. */
typedef struct stage_held {
    raw_unit w[2];
    uint4 q[X_PIECES];
    float2 f[X_PIECES];
} stage_held;

/* Unit h of the thread's two, in the stage. */
template <int TYPE> DEVICE uint32_t unit_in_stage(uint32_t h) {
    const uint32_t p = threadIdx.x % 2;
    return TYPE == QUANT_Q6_K || TYPE == CUDA_Q6_K_SPLIT ? p + 2 * h : 2 * p + h;
}

/* The row of the thread; beyond the last it is the last, whose results are not stored. */
DEVICE const unsigned char *row_of_thread(const matmul_args &a, const tile_place &p,
                                          matrix_view &m) {
    const uint32_t r = threadIdx.x / 2;
    uint32_t row = p.row + r;
    if (a.gated_act != 0) {
        row = p.row + r / 32 * 16 + r % 16;
        if (r / 16 % 2 != 0) m.base += a.up_offset;
    }
    return matrix_row(m, row < p.matrix.n_rows ? row : p.matrix.n_rows - 1);
}

template <int TYPE>
DEVICE void load_weights(const matrix_view &m, const unsigned char *row, uint32_t stage,
                         stage_held &held) {
    if (TYPE == RARE) return;
    const uint32_t u = stage * TILE_UNITS + unit_in_stage<TYPE>(0);
    const uint32_t other = stage * TILE_UNITS + unit_in_stage<TYPE>(1);
    if (u < m.n_cols / 32) unit_load<TYPE, TYPE != QUANT_Q5_K>(m, row, u, held.w[0]);
    if (TYPE == QUANT_Q6_K)
        held.w[1].extra = load2(row + other / 8 * 210 + 192 + other % 8 * 2);
    else if (TYPE == CUDA_Q6_K_SPLIT)
        held.w[1].extra = load2(row + other / 8 * 208 + 192 + other % 8 * 2);
    else if (TYPE == QUANT_Q8_0 && other < m.n_cols / 32)
        unit_load<TYPE>(m, row, other, held.w[1]);
}

DEVICE void load_activations(const unsigned char *row, uint32_t n_cols, uint32_t stage,
                             stage_held &held) {
#pragma unroll
    for (uint32_t i = 0; i < X_PIECES; i++) {
        const uint32_t h = (stage * TILE_UNITS + threadIdx.x % TILE_UNITS) * X_PIECES + i;
        held.q[i] = make_uint4(0, 0, 0, 0);
        held.f[i] = make_float2(0, 0);
        if (row == 0 || h >= n_cols / 16) continue;
        held.q[i] = __ldcg((const uint4 *)row + h);
        held.f[i] = __ldcg(act_factors(row, n_cols) + h);
    }
}

/* Unit h of the thread's two, decoded. */
template <int TYPE>
DEVICE void decode_weights(const matrix_view &m, const unsigned char *row, uint32_t u,
                           uint32_t h, const stage_held &held, weight_unit &w) {
    if (TYPE == RARE) {
        unit_any(m, row, u, w);
    } else if (h == 0 || TYPE == QUANT_Q8_0) {
        unit_decode<TYPE>(held.w[h], u, w);
    } else {
        raw_unit raw = held.w[0];
        if (scales_of_16(TYPE)) raw.extra = held.w[1].extra;
        unit_decode<TYPE>(raw, u, w);
    }
}

template <int TYPE>
DEVICE void put_weights(q8_tile *tile, const matrix_view &m, const unsigned char *row,
                        uint32_t stage, stage_held &held) {
    const uint32_t r = threadIdx.x / 2;
    /* Scales of Q5_K would be four registers too many; they lie where its bits just came from. */
    if (TYPE == QUANT_Q5_K) held.w[0].v[0] = load16(row + stage * TILE_UNITS / 8 * 176);
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t at = unit_in_stage<TYPE>(h), u = stage * TILE_UNITS + at;
        weight_unit w = {};
        if (u < m.n_cols / 32) decode_weights<TYPE>(m, row, u, h, held, w);
        uint4 *to = (uint4 *)(tile->w + r * TILE_PITCH + 32 * at);
        to[0] = make_uint4(w.q[0], w.q[1], w.q[2], w.q[3]);
        to[1] = make_uint4(w.q[4], w.q[5], w.q[6], w.q[7]);
        tile->w_factor[0][at][r] =
            make_float2(w.scale[0], scales_of_16(TYPE) ? w.scale[1] : w.min[0]);
        if (TYPE == RARE) tile->w_factor[1][at][r] = make_float2(w.min[0], w.min[1]);
    }
}

template <int TYPE> DEVICE void put_activations(q8_tile *tile, const stage_held &held) {
    const uint32_t token = threadIdx.x / TILE_UNITS, at = threadIdx.x % TILE_UNITS;
    uint4 *to = (uint4 *)(tile->x + token * TILE_PITCH + 32 * at);
    to[0] = held.q[0];
    to[1] = held.q[1];
    if (TYPE == RARE) {
        tile->x_factor[2 * at][token] = held.f[0];
        tile->x_factor[2 * at + 1][token] = held.f[1];
    } else {
        tile->x_factor[at][token] = make_float2(held.f[0].x, held.f[0].y + held.f[1].y);
    }
}

DEVICE uint32_t tile_word(const unsigned char *rows, uint32_t row, uint32_t byte) {
    return *(const uint32_t *)(rows + row * TILE_PITCH + byte);
}

/* Sums begin at the bits of 1.5 * 2^23, where a float's last bit is 1: so the bits of a sum are those
 * of the float beside it, and a difference does what a conversion would. */
#define SUM_BEGIN 0x4b400000

DEVICE float sum_value(int c) {
    return __uint_as_float((uint32_t)c) - 12582912.0f;
}

/* acc of a product: rows r, r + 8 and tokens c, c + 1. */
DEVICE void add_scaled(float (&acc)[4], const int (&c)[4], float s0, float s1, float d0,
                       float d1) {
    acc[0] = fmaf(sum_value(c[0]), s0 * d0, acc[0]);
    acc[1] = fmaf(sum_value(c[1]), s0 * d1, acc[1]);
    acc[2] = fmaf(sum_value(c[2]), s1 * d0, acc[2]);
    acc[3] = fmaf(sum_value(c[3]), s1 * d1, acc[3]);
}

DEVICE void add_minima(float (&acc)[4], float m0, float m1, float sum0, float sum1) {
    acc[0] = fmaf(-m0, sum0, acc[0]);
    acc[1] = fmaf(-m0, sum1, acc[1]);
    acc[2] = fmaf(-m1, sum0, acc[2]);
    acc[3] = fmaf(-m1, sum1, acc[3]);
}

/* The warp's tokens: from `begin` on, fewer than `end`. */
typedef struct token_range {
    uint32_t begin, end;
} token_range;

DEVICE token_range tokens_of_warp(uint32_t n) {
    const uint32_t half = (n + 15) / 16 * 8, begin = threadIdx.x / WARP % 2 * half;
    token_range r = {begin, begin + half < n ? begin + half : n};
    return r;
}

/* A warp's operands of 32 columns of its 32 rows. */
typedef struct row_unit {
    uint32_t w[2][4];
    float2 f[2][2]; /* of rows lane / 4, + 8 */
    float2 m[2][2];
} row_unit;

template <int TYPE> DEVICE void take_rows(const q8_tile *tile, uint32_t at, row_unit &r) {
    const uint32_t g = lane_index() / 4, byte = 32 * at + 4 * (lane_index() % 4);
    const uint32_t row0 = threadIdx.x / WARP / 2 * 32 + g;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t row = row0 + 16 * (uint32_t)i;
        r.w[i][0] = tile_word(tile->w, row, byte);
        r.w[i][1] = tile_word(tile->w, row + 8, byte);
        r.w[i][2] = tile_word(tile->w, row, byte + 16);
        r.w[i][3] = tile_word(tile->w, row + 8, byte + 16);
        r.f[i][0] = tile->w_factor[0][at][row];
        r.f[i][1] = tile->w_factor[0][at][row + 8];
        if (TYPE != RARE) continue;
        r.m[i][0] = tile->w_factor[1][at][row];
        r.m[i][1] = tile->w_factor[1][at][row + 8];
    }
}

/* Against eight tokens, from `token` on. */
template <int TYPE>
DEVICE void multiply_tokens(const q8_tile *tile, uint32_t at, uint32_t token, const row_unit &r,
                            float (&acc0)[4], float (&acc1)[4]) {
    const uint32_t g = lane_index() / 4, l = lane_index() % 4;
    const uint32_t x[2] = {tile_word(tile->x, token + g, 32 * at + 4 * l),
                           tile_word(tile->x, token + g, 32 * at + 4 * l + 16)};
    const uint32_t k = TYPE == RARE ? 2 * at : at;
    const float4 low = *(const float4 *)&tile->x_factor[k][token + 2 * l];
    float4 high = low;
    if (TYPE == RARE) high = *(const float4 *)&tile->x_factor[k + 1][token + 2 * l];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float(&acc)[4] = i == 0 ? acc0 : acc1;
        const float2(&f)[2] = r.f[i];
        int c[4];
        if (scales_of_16(TYPE)) {
            int d[4];
            mma_k16_from(c, SUM_BEGIN, r.w[i][0], r.w[i][1], x[0]);
            mma_k16_from(d, SUM_BEGIN, r.w[i][2], r.w[i][3], x[1]);
            add_scaled(acc, c, f[0].x, f[1].x, low.x, low.z);
            add_scaled(acc, d, f[0].y, f[1].y, low.x, low.z);
        } else {
            mma_k32_from(c, SUM_BEGIN, r.w[i], x);
            add_scaled(acc, c, f[0].x, f[1].x, low.x, low.z);
        }
        if (TYPE == RARE) {
            add_minima(acc, r.m[i][0].x, r.m[i][1].x, low.y, low.w);
            add_minima(acc, r.m[i][0].y, r.m[i][1].y, high.y, high.w);
        } else if (has_minima(TYPE)) {
            add_minima(acc, f[0].y, f[1].y, low.y, low.w);
        }
    }
}

/* A stage; where all 32 tokens are there nothing stands between their products. */
template <int TYPE>
DEVICE void multiply_stage(const q8_tile *tile, uint32_t n, float (&acc)[2][4][4]) {
    const token_range tokens = tokens_of_warp(n);
    const bool whole = TYPE != RARE && tokens.end - tokens.begin == 32;
#pragma unroll 1
    for (uint32_t at = 0; at < TILE_UNITS && whole; at++) {
        row_unit r;
        take_rows<TYPE>(tile, at, r);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            multiply_tokens<TYPE>(tile, at, tokens.begin + 8 * j, r, acc[0][j], acc[1][j]);
    }
#pragma unroll 1
    for (uint32_t at = 0; at < TILE_UNITS && !whole; at++) {
        row_unit r;
        take_rows<TYPE>(tile, at, r);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            if (tokens.begin + 8 * j >= tokens.end) break;
            multiply_tokens<TYPE>(tile, at, tokens.begin + 8 * j, r, acc[0][j], acc[1][j]);
        }
    }
}

/* Of a plain product the first weights come before what they are multiplied by is waited for. */
template <int TYPE>
DEVICE void multiply_tile(const matmul_args &a, const tile_place *p, q8_tile *tile,
                          float (&acc)[2][4][4]) {
    matrix_view m = {(const unsigned char *)p->matrix.weights, p->matrix.row_bytes,
                     p->matrix.split_d, p->matrix.type, a.n_cols};
    const unsigned char *row = row_of_thread(a, *p, m), *x = 0;
    const uint32_t token = threadIdx.x / TILE_UNITS,
                   n_stages = (a.n_cols + TILE_COLS - 1) / TILE_COLS;
    stage_held held;
    load_weights<TYPE>(m, row, 0, held);
    if (a.n_groups == 0) launch_begin();
    if (token < p->n)
        x = (const unsigned char *)a.act + in_row(a, p->first + token) * a.act_stride;
    load_activations(x, a.n_cols, 0, held);
#pragma unroll
    for (int i = 0; i < 32; i++)
        acc[i / 16][i / 4 % 4][i % 4] = 0;
#pragma unroll 1
    for (uint32_t stage = 0; stage < n_stages; stage++) {
        __syncthreads();
        put_weights<TYPE>(tile, m, row, stage, held);
        put_activations<TYPE>(tile, held);
        __syncthreads();
        if (stage + 1 < n_stages) {
            load_weights<TYPE>(m, row, stage + 1, held);
            load_activations(x, a.n_cols, stage + 1, held);
        }
        multiply_stage<TYPE>(tile, p->n, acc);
    }
}

/* silu(gate) * up to shared memory, then a warp a token. */
DEVICE void store_gated(const matmul_args &a, const tile_place &p, const token_range &tokens,
                        const float (&acc)[2][4][4], float *hidden) {
    enum { GROUPS = TILE_ROWS / 2 / WARP };
    const uint32_t warp = threadIdx.x / WARP, g = lane_index() / 4, l = lane_index() % 4;
#pragma unroll
    for (uint32_t e = 0; e < 16; e++) {
        const uint32_t j = e / 4, c = e % 4, token = tokens.begin + 8 * j + 2 * l + c % 2;
        if (token < tokens.end)
            hidden[token * HIDDEN_PITCH + warp / 2 * 16 + g + c / 2 * 8] =
                silu_of_cpu(acc[0][j][c]) * acc[1][j][c];
    }
    __syncthreads();
    for (uint32_t i = warp; i < p.n * GROUPS; i += MATMUL_BLOCK / WARP) {
        const uint32_t token = i / GROUPS, at = i % GROUPS * WARP;
        if (p.row + at >= a.n_rows) continue;
        act_store_group((unsigned char *)a.gated_act + (p.first + token) * a.gated_stride,
                        a.n_rows, p.row + at, hidden[token * HIDDEN_PITCH + at + lane_index()]);
    }
}

template <int TYPE>
DEVICE void make_tile(const matmul_args &a, q8_tile *tile, const tile_place *kept) {
    float acc[2][4][4];
    multiply_tile<TYPE>(a, kept, tile, acc);
    __syncthreads();
    const tile_place p = *kept;
    const token_range tokens = tokens_of_warp(p.n);
    if (a.gated_act != 0) {
        store_gated(a, p, tokens, acc, (float *)tile);
        return;
    }
    const uint32_t warp = threadIdx.x / WARP, g = lane_index() / 4, l = lane_index() % 4;
#pragma unroll
    for (uint32_t e = 0; e < 32; e++) {
        const uint32_t i = e / 16, j = e / 4 % 4, c = e % 4;
        const uint32_t token = tokens.begin + 8 * j + 2 * l + c % 2;
        if (token < tokens.end)
            store_result(a, p, token, p.row + warp / 2 * 32 + 16 * i + g + c / 2 * 8,
                         acc[i][j][c]);
    }
}

/* The place is kept in shared memory, so that it fills no registers while the tile is made. */
KERNEL_FIT(matmul_q8, matmul_args, MATMUL_BLOCK, 2) {
    __shared__ __align__(16) q8_tile tile[1];
    __shared__ tile_place kept[1];
    if (a.n_groups > 0) launch_begin();
    const tile_place p = place_of_tile(a, a.gated_act != 0 ? TILE_ROWS / 2 : TILE_ROWS);
    if (p.n == 0) return;
    if (threadIdx.x == 0) kept[0] = p;
    __syncthreads();
    switch (p.matrix.type) {
    case QUANT_Q4_K:
        return make_tile<QUANT_Q4_K>(a, tile, kept);
    case QUANT_Q5_K:
        return make_tile<QUANT_Q5_K>(a, tile, kept);
    case QUANT_Q6_K:
        return make_tile<QUANT_Q6_K>(a, tile, kept);
    case CUDA_Q6_K_SPLIT:
        return make_tile<CUDA_Q6_K_SPLIT>(a, tile, kept);
    case QUANT_Q8_0:
        return make_tile<QUANT_Q8_0>(a, tile, kept);
    default:
        return make_tile<RARE>(a, tile, kept);
    }
}

/* ---- float32 ---- */

enum {
    FLOAT_TILE = MATMUL_FLOAT_TILE,
    FLOAT_WARPS = MATMUL_FLOAT_BLOCK / WARP,
    FLOAT_COLS = 32 * FLOAT_WARPS,
    FLOAT_PITCH = FLOAT_TILE + 4
};

/* Columns first: lanes read neighbouring rows (tokens). */
typedef struct f32_tile {
    float w[FLOAT_COLS][FLOAT_PITCH];
    float x[FLOAT_COLS][FLOAT_PITCH];
} f32_tile;

DEVICE void put_float4(float (*to)[FLOAT_PITCH], uint32_t col, uint32_t row, const float4 &v) {
    to[col][row] = v.x;
    to[col + 1][row] = v.y;
    to[col + 2][row] = v.z;
    to[col + 3][row] = v.w;
}

/* Thread t brings columns 32 (t / 32) .. + 31 of row t % 32. */
DEVICE void put_float_weights(f32_tile *tile, const tile_place &p, const matrix_view &m,
                              uint32_t col) {
    const uint32_t r = lane_index(), first = threadIdx.x / WARP * 32;
    const bool live = p.row + r < p.matrix.n_rows && col + first < m.n_cols;
    const unsigned char *row = matrix_row(m, p.row + r);
    if (live && !is_float_type(m.type)) {
        weight_unit w;
        unit_any(m, row, (col + first) / 32, w);
#pragma unroll
        for (int e = 0; e < 32; e++)
            tile->w[first + (uint32_t)e][r] = unit_value(w, e);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        float4 v = make_float4(0, 0, 0, 0);
        if (live && col + first + 4 * i < m.n_cols)
            v = load_float4(m.type, row, (col + first) / 4 + i);
        put_float4(tile->w, first + 4 * i, r, v);
    }
}

DEVICE void put_float_activations(f32_tile *tile, const float *x, uint32_t n_cols,
                                  uint32_t col) {
    const uint32_t first = threadIdx.x / WARP * 32;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        float4 v = make_float4(0, 0, 0, 0);
        if (x != 0 && col + first + 4 * i < n_cols)
            v = __ldcg((const float4 *)(x + col + first) + i);
        put_float4(tile->x, first + 4 * i, lane_index(), v);
    }
}

/* The warp's 32 columns of a stage: lane l has rows 4 (l % 8) .. + 3, tokens 8 (l / 8) .. + 7. */
DEVICE void multiply_floats(const f32_tile *tile, float (&part)[8][4]) {
    const uint32_t r = lane_index() % 8 * 4, t = lane_index() / 8 * 8;
    const uint32_t first = threadIdx.x / WARP * 32;
#pragma unroll 4
    for (uint32_t k = first; k < first + 32; k++) {
        const float4 w = *(const float4 *)&tile->w[k][r];
        const float4 x0 = *(const float4 *)&tile->x[k][t];
        const float4 x1 = *(const float4 *)&tile->x[k][t + 4];
        const float x[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            part[i][0] = fmaf(w.x, x[i], part[i][0]);
            part[i][1] = fmaf(w.y, x[i], part[i][1]);
            part[i][2] = fmaf(w.z, x[i], part[i][2]);
            part[i][3] = fmaf(w.w, x[i], part[i][3]);
        }
    }
}

/* The four warps' sums of the lane's place i, by warp i / 8. */
DEVICE void join_floats(const matmul_args &a, const tile_place &p, float *sums,
                        const float (&acc)[8][4]) {
    enum { EACH = FLOAT_TILE * FLOAT_TILE };
    const uint32_t warp = threadIdx.x / WARP;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < 32; i++)
        sums[warp * EACH + i * WARP + lane_index()] = acc[i / 4][i % 4];
    __syncthreads();
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        const uint32_t i = warp * 8 + k, at = i * WARP + lane_index();
        const float v =
            (sums[at] + sums[EACH + at]) + (sums[2 * EACH + at] + sums[3 * EACH + at]);
        store_result(a, p, lane_index() / 8 * 8 + i / 4, p.row + lane_index() % 8 * 4 + i % 4,
                     v);
    }
}

KERNEL_FIT(matmul_f32, matmul_args, MATMUL_FLOAT_BLOCK, 4) {
    __shared__ __align__(16) f32_tile tile[1];
    launch_begin();
    tile_place p = place_of_tile(a, FLOAT_TILE);
    const uint32_t skipped = blockIdx.z * FLOAT_TILE;
    if (p.n <= skipped) return;
    p.first += skipped;
    p.n = p.n - skipped < FLOAT_TILE ? p.n - skipped : (uint32_t)FLOAT_TILE;
    const matrix_view m = {(const unsigned char *)p.matrix.weights, p.matrix.row_bytes,
                           p.matrix.split_d, p.matrix.type, a.n_cols};
    const float *x = 0;
    if (lane_index() < p.n) x = a.x + in_row(a, p.first + lane_index()) * a.x_stride;
    float acc[8][4] = {};
#pragma unroll 1
    for (uint32_t col = 0; col < a.n_cols; col += FLOAT_COLS) {
        float part[8][4] = {};
        __syncthreads();
        put_float_weights(tile, p, m, col);
        put_float_activations(tile, x, a.n_cols, col);
        __syncthreads();
        multiply_floats(tile, part);
#pragma unroll
        for (int i = 0; i < 32; i++)
            acc[i / 4][i % 4] += part[i / 4][i % 4];
    }
    join_floats(a, p, (float *)tile, acc);
}
