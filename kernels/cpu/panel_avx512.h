/* panel_avx512.h - what the AVX-512 panel kernels share: lanes are rows of weights. */
#ifndef SILICEO_KERNELS_CPU_PANEL_AVX512_H
#define SILICEO_KERNELS_CPU_PANEL_AVX512_H

#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/unpack_avx512.h"

/* Transpose 16 x 16 values of 32 bits. */
INLINE void transpose(__m512i x[16]) {
    __m512i y[16];
    for (int i = 0; i < 8; i++) {
        y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        x[4 * i] = _mm512_unpacklo_epi64(y[4 * i], y[4 * i + 2]);
        x[4 * i + 1] = _mm512_unpackhi_epi64(y[4 * i], y[4 * i + 2]);
        x[4 * i + 2] = _mm512_unpacklo_epi64(y[4 * i + 1], y[4 * i + 3]);
        x[4 * i + 3] = _mm512_unpackhi_epi64(y[4 * i + 1], y[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        y[i] = _mm512_shuffle_i32x4(x[i], x[4 + i], 0x88);
        y[4 + i] = _mm512_shuffle_i32x4(x[i], x[4 + i], 0xdd);
        y[8 + i] = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0x88);
        y[12 + i] = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        x[i] = _mm512_shuffle_i32x4(y[i], y[8 + i], 0x88);
        x[8 + i] = _mm512_shuffle_i32x4(y[i], y[8 + i], 0xdd);
        x[4 + i] = _mm512_shuffle_i32x4(y[4 + i], y[12 + i], 0x88);
        x[12 + i] = _mm512_shuffle_i32x4(y[4 + i], y[12 + i], 0xdd);
    }
}

/* 256 columns of 16 rows, lane = row: group j of 32 to the eight vectors from q + j * group_bytes on. */
INLINE void unpack_values(quant_type type, const uint8_t *const b[16], void *q,
                          const size_t group_bytes) {
    __m512i v[16][4];
    for (int r = 0; r < 16; r++)
        unpack_256(type, b[r], v[r]);
    for (int c = 0; c < 4; c++) {
        __m512i x[16];
        for (int r = 0; r < 16; r++)
            x[r] = v[r][c];
        transpose(x);
        uint8_t *low = (uint8_t *)q + (size_t)low_group(type, c) * group_bytes;
        uint8_t *high = (uint8_t *)q + (size_t)high_group(type, c) * group_bytes;
        for (int k = 0; k < 8; k++) {
            _mm512_store_si512(low + 64 * k, x[k]);
            _mm512_store_si512(high + 64 * k, x[8 + k]);
        }
    }
}

/* 16 bytes of 16 rows to 16 vectors of 32-bit lanes, lane = row. */
INLINE void transpose_bytes(bool is_signed, uint8_t bytes[16][16], __m512i x[16]) {
    for (int r = 0; r < 16; r++) {
        x[r] = is_signed ? _mm512_cvtepi8_epi32(load_128(bytes[r]))
                         : _mm512_cvtepu8_epi32(load_128(bytes[r]));
    }
    transpose(x);
}

INLINE float factor_32(quant_type type, const uint8_t *b) {
    if (type != QUANT_MXFP4) return _cvtsh_ss(load16(b));
    uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23;
    float d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

INLINE __m512i broadcast_32(const void *p) {
    return _mm512_set1_epi32((int)load32(p));
}

/* Four columns of 32 rows against each token, added to c. */
INLINE void multiply_four(const uint8_t *w0, const uint8_t *w1, const int8_t *const q[],
                          size_t at, const int n_tokens, __m512i c[2][MATMUL_PANEL_TOKENS]) {
    __m512i x0 = _mm512_load_si512(w0), x1 = _mm512_load_si512(w1);
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        __m512i y = broadcast_32(q[t] + at);
        c[0][t] = _mm512_dpbusd_epi32(c[0][t], x0, y);
        c[1][t] = _mm512_dpbusd_epi32(c[1][t], x1, y);
    }
}

INLINE void clear(const int n_tokens, __m512i c[2][MATMUL_PANEL_TOKENS]) {
    UNROLL
    for (int t = 0; t < n_tokens; t++)
        c[0][t] = c[1][t] = _mm512_setzero_si512();
}

#endif
