/* piece.cuh - rows of weights in pieces that use every byte a lane loads, against activations in
 * shared memory.
 *
 * A unit (unit.cuh) is 32 neighbouring columns; in the K-quants two or four units share the bytes
 * of their low and high bits, so a lane that takes one unit loads bytes of its neighbours' too.
 * A piece is 16 bytes of low bits and all that belongs to them: 32 weights of Q4_K and Q5_K, 64
 * of split Q6_K, as halves (16 columns) of two or four units.
 *
 * Activations lie in shared memory by halves.  Half e of a row (columns 16 e ..) is named
 * [block of 256][n][g1][g0][h], e % 16 = n * 8 + g1 * 4 + g0 * 2 + h, and lies at
 *   g0 * plane + block * 8 + (h | n << 1 | (g1 ^ block % 2) << 2)
 * so that the eight lanes of a 16-byte load phase meet no bank twice, whatever the type.
 */
#ifndef SILICEO_KERNELS_CUDA_PIECE_CUH
#define SILICEO_KERNELS_CUDA_PIECE_CUH

#include "kernels/cuda/dot.cuh"

typedef struct piece_acts {
    const uint4 *q;       /* [tokens][2 * plane] */
    const float2 *factor; /* [tokens][2 * plane] */
    uint32_t plane;       /* 8 for each 256 columns, the last of which may be part */
} piece_acts;

/* Where the half of a piece lies in the first plane. */
DEVICE uint32_t piece_place(uint32_t block, uint32_t n, uint32_t g1, uint32_t h) {
    return block * 8 + (h | n << 1 | (g1 ^ (block & 1)) << 2);
}

/* All threads of the block copy n_rows rows; a barrier must follow. */
DEVICE piece_acts piece_acts_copy(uint4 *shared, const void *act, uint64_t stride,
                                  uint32_t n_cols, uint32_t n_rows) {
    const uint32_t n_halves = n_cols / 16, plane = (n_cols + 255) / 256 * 8;
    float2 *factor = (float2 *)(shared + n_rows * 2 * plane);
    for (uint32_t i = threadIdx.x; i < n_rows * n_halves; i += blockDim.x) {
        const uint32_t row = i / n_halves, e = i % n_halves;
        const unsigned char *from = (const unsigned char *)act + row * stride;
        const uint32_t to = (row * 2 + (e >> 1 & 1)) * plane +
                            piece_place(e / 16, e >> 3 & 1, e >> 2 & 1, e & 1);
        shared[to] = __ldcg((const uint4 *)from + e);
        factor[to] = __ldcg(act_factors(from, n_cols) + e);
    }
    piece_acts x = {shared, factor, plane};
    return x;
}

/* What piece_load fetches; nothing is computed from it before piece_dot. */
typedef struct raw_piece {
    uint4 head, low, high; /* Q6_K: head holds the second half of the low bits */
    uint2 scales;
    uint32_t d;
} raw_piece;

/* A row of a matrix, and of its plane of d. */
typedef struct piece_row {
    const unsigned char *blocks;
    const unsigned char *d;
} piece_row;

DEVICE piece_row row_of_pieces(const matrix_view &m, uint32_t row) {
    piece_row r = {matrix_row(m, row),
                   m.base + m.split_d + (uint64_t)row * (m.n_cols / 256) * 2};
    return r;
}

template <int TYPE> DEVICE uint32_t pieces_of_row(uint32_t n_cols) {
    return TYPE == CUDA_Q6_K_SPLIT ? n_cols / 64 : n_cols / 32;
}

template <int TYPE> DEVICE void piece_load(const piece_row &r, uint32_t i, raw_piece &p) {
    if (TYPE == CUDA_Q6_K_SPLIT) {
        const uint32_t block = i / 4, n = i / 2 % 2, h = i % 2;
        const unsigned char *b = r.blocks + block * 208;
        p.low = load16(b + n * 64 + h * 16);
        p.head = load16(b + n * 64 + 32 + h * 16);
        p.high = load16(b + 128 + n * 32 + h * 16);
        p.scales = load8(b + 192 + n * 8);
        p.d = load2(r.d + block * 2);
    } else {
        const uint32_t block = i / 8, in = i % 8, bytes = TYPE == QUANT_Q5_K ? 176 : 144;
        const unsigned char *b = r.blocks + block * bytes;
        p.head = load16(b);
        p.low = load16(b + (TYPE == QUANT_Q5_K ? 48 : 16) + in * 16);
        if (TYPE == QUANT_Q5_K) p.high = load16(b + 16 + in % 2 * 16);
    }
}

/* Scales and minima of two neighbouring sub-blocks of Q4_K or Q5_K, a byte each. */
DEVICE void k4_scale_min_pair(const uint4 &head, uint32_t pair, uint32_t &scale,
                              uint32_t &min) {
    const uint32_t shift = pair % 2 * 16;
    const uint32_t a = head.y >> shift, b = head.z >> shift, c = head.w >> shift;
    scale = pair < 2 ? a & 0x3f3fu : (c & 0x0f0fu) | (a >> 2 & 0x3030u);
    min = pair < 2 ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u);
}

/* Four words of low bits with the bits of `high` above them. */
DEVICE void half_words(const uint4 &low, uint32_t low_shift, const uint4 &high,
                       uint32_t high_shift, uint32_t high_mask, uint32_t (&w)[4]) {
    w[0] = (low.x >> low_shift & LOW_NIBBLES) | ((high.x >> high_shift) << 4 & high_mask);
    w[1] = (low.y >> low_shift & LOW_NIBBLES) | ((high.y >> high_shift) << 4 & high_mask);
    w[2] = (low.z >> low_shift & LOW_NIBBLES) | ((high.z >> high_shift) << 4 & high_mask);
    w[3] = (low.w >> low_shift & LOW_NIBBLES) | ((high.w >> high_shift) << 4 & high_mask);
}

/* acc[t] += scale * (w x) - min * sum(x) of one half of each of T tokens. */
template <int T>
DEVICE void half_dot(const uint32_t (&w)[4], float scale, float min, const piece_acts &x,
                     uint32_t at, float (&acc)[T]) {
#pragma unroll
    for (int t = 0; t < T; t++) {
        const uint32_t i = (uint32_t)t * 2 * x.plane + at;
        const float2 f = x.factor[i];
        acc[t] = fmaf(scale * f.x, (float)dot16(w, x.q[i]), acc[t]);
        acc[t] = fmaf(-min, f.y, acc[t]);
    }
}

template <int TYPE, int T>
DEVICE void piece_dot(const raw_piece &p, uint32_t i, const piece_acts &x, float (&acc)[T]) {
    uint32_t w[4];
    if (TYPE == CUDA_Q6_K_SPLIT) {
        const uint32_t block = i / 4, n = i / 2 % 2, h = i % 2;
        const float d = half_value(p.d);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) { /* units n * 4 + k */
            half_words(k % 2 == 0 ? p.low : p.head, k / 2 * 4, p.high, k * 2, 0x30303030u, w);
            const uint32_t word = k < 2 ? p.scales.x : p.scales.y;
            const float scale = d * (float)(signed char)(word >> (k % 2 * 16 + h * 8) & 255);
            half_dot<T>(w, scale, 32.0f * scale, x,
                        k % 2 * x.plane + piece_place(block, n, k / 2, h), acc);
        }
        return;
    }
    const uint32_t block = i / 8, pair = i % 8 / 2, h = i % 2;
    const uint32_t at = piece_place(block, pair / 2, pair % 2, h);
    const float d = half_value(p.head.x & 0xffff), d_min = half_value(p.head.x >> 16);
    uint32_t scales, mins;
    k4_scale_min_pair(p.head, pair, scales, mins);
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        if (TYPE == QUANT_Q5_K)
            half_words(p.low, k * 4, p.high, pair * 2 + k, 0x10101010u, w);
        else
            half_words(p.low, k * 4, p.low, 0, 0, w);
        half_dot<T>(w, d * (float)(scales >> k * 8 & 63), d_min * (float)(mins >> k * 8 & 63),
                    x, k * x.plane + at, acc);
    }
}

/* Unit u against T tokens, for the types without pieces. */
template <int T>
DEVICE void unit_dot_pieces(const weight_unit &w, uint32_t u, const piece_acts &x,
                            float (&acc)[T]) {
    const uint32_t in = u % 8,
                   at = in % 2 * x.plane + piece_place(u / 8, in / 4, in / 2 % 2, 0);
    const uint32_t first[4] = {w.q[0], w.q[1], w.q[2], w.q[3]};
    const uint32_t second[4] = {w.q[4], w.q[5], w.q[6], w.q[7]};
    half_dot<T>(first, w.scale[0], w.min[0], x, at, acc);
    half_dot<T>(second, w.scale[1], w.min[1], x, at + 1, acc);
}

#endif
