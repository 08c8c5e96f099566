/* panel_avx2.h - what the AVX2 panel kernels share: lanes are rows of weights. */
#ifndef SILICEO_KERNELS_CPU_PANEL_AVX2_H
#define SILICEO_KERNELS_CPU_PANEL_AVX2_H

#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/unpack_avx2.h"

/* How many vectors of four columns fit into sums of 16 bits: of a vector w * 127 * 2. */
INLINE int steps_in_16(quant_type type) {
    switch ((unsigned)type) {
    case QUANT_Q4_K:
        return 8;
    case QUANT_Q6_K:
        return 2;
    case QUANT_Q8_0:
    case QUANT_IQ4_XS:
        return 1;
    default:
        return 4; /* Q2_K, Q3_K: the whole group; at most 31 in Q5_K, Q5_0 and Q5_1 */
    }
}

INLINE void store_256(void *p, __m256i x) {
    _mm256_store_si256(p, x);
}

/* Transpose 8 x 8 values of 32 bits. */
INLINE void transpose(__m256i x[8]) {
    __m256i y[8];
    UNROLL
    for (int i = 0; i < 4; i++) {
        y[2 * i] = _mm256_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = _mm256_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        x[4 * i] = _mm256_unpacklo_epi64(y[4 * i], y[4 * i + 2]);
        x[4 * i + 1] = _mm256_unpackhi_epi64(y[4 * i], y[4 * i + 2]);
        x[4 * i + 2] = _mm256_unpacklo_epi64(y[4 * i + 1], y[4 * i + 3]);
        x[4 * i + 3] = _mm256_unpackhi_epi64(y[4 * i + 1], y[4 * i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        y[i] = _mm256_permute2x128_si256(x[i], x[4 + i], 0x20);
        y[4 + i] = _mm256_permute2x128_si256(x[i], x[4 + i], 0x31);
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        x[i] = y[i];
}

/* 32 columns of eight rows to their places in eight vectors of 16 rows, lane = row. */
INLINE void store_columns(__m256i x[8], uint8_t *q) {
    transpose(x);
    UNROLL
    for (int k = 0; k < 8; k++)
        store_256(q + 64 * k, x[k]);
}

/* 256 columns of 16 rows: group j of 32 to the eight vectors from q + j * group_bytes on. */
INLINE void unpack_values(quant_type type, const uint8_t *const b[16], void *q,
                          const size_t group_bytes) {
    UNROLL
    for (int j = 0; j < 8; j++) {
        for (size_t row = 0; row < 16; row += 8) {
            __m256i x[8];
            UNROLL
            for (size_t r = 0; r < 8; r++)
                x[r] = unpack_group(type, b[row + r], j);
            store_columns(x, (uint8_t *)q + (size_t)j * group_bytes + 4 * row);
        }
    }
}

/* The 32 columns of a block of 16 rows. */
INLINE void unpack_values_32(quant_type type, const uint8_t *const b[16], uint8_t (*q)[64]) {
    for (size_t row = 0; row < 16; row += 8) {
        __m256i x[8];
        UNROLL
        for (size_t r = 0; r < 8; r++)
            x[r] = unpack_32(type, b[row + r]);
        store_columns(x, q[0] + 4 * row);
    }
}

/* Eight words from `first` on, of eight rows, to vectors of 32-bit lanes: lane = row. */
INLINE void transpose_words(int16_t words[16][16], size_t row, size_t first, __m256i x[8]) {
    UNROLL
    for (size_t r = 0; r < 8; r++)
        x[r] = _mm256_cvtepi16_epi32(load_128(words[row + r] + first));
    transpose(x);
}

INLINE __m256i broadcast_32(const void *p) {
    return _mm256_set1_epi32((int)load32(p));
}

/* Add n_steps vectors of four columns of 16 rows, times each token's, to the pairs of 16
 * bits in c. */
INLINE void multiply_steps(const quant_type type, const uint8_t (*w)[64], const int n_steps,
                           const int8_t *const q[], size_t at, const int n_tokens,
                           __m256i c[2][MATMUL_TOKENS]) {
    UNROLL
    for (int k = 0; k < n_steps; k++) {
        __m256i w0 = load_256(w[k]), w1 = load_256(w[k] + 32);
        UNROLL
        for (int t = 0; t < n_tokens; t++) {
            __m256i y = broadcast_32(q[t] + at + 4 * k);
            __m256i x0 = multiply_pairs(type, w0, y), x1 = multiply_pairs(type, w1, y);
            c[0][t] = k == 0 ? x0 : _mm256_add_epi16(c[0][t], x0);
            c[1][t] = k == 0 ? x1 : _mm256_add_epi16(c[1][t], x1);
        }
    }
}

/* One group of columns, scaled and added to total. */
INLINE void multiply_group(const quant_type type, const uint8_t (*w)[64], const int n_steps,
                           __m256i s0, __m256i s1, const int8_t *const q[], size_t at,
                           const int n_tokens, __m256i total[2][MATMUL_TOKENS]) {
    const int run = steps_in_16(type) < n_steps ? steps_in_16(type) : n_steps;
    UNROLL
    for (int k = 0; k < n_steps; k += run) {
        __m256i c[2][MATMUL_TOKENS];
        multiply_steps(type, w + k, run, q, at + 4 * (size_t)k, n_tokens, c);
        UNROLL
        for (int t = 0; t < n_tokens; t++) {
            total[0][t] = _mm256_add_epi32(total[0][t], _mm256_madd_epi16(c[0][t], s0));
            total[1][t] = _mm256_add_epi32(total[1][t], _mm256_madd_epi16(c[1][t], s1));
        }
    }
}

#endif
