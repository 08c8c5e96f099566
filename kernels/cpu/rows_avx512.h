/* rows_avx512.h - factors and columns of four weight rows at a time; AVX-512 rows kernels only. */
#ifndef SILICEO_KERNELS_CPU_ROWS_AVX512_H
#define SILICEO_KERNELS_CPU_ROWS_AVX512_H

#include "kernels/cpu/unpack_avx512.h"

/* Factors of four blocks (at[] from the row's position) of four rows: lane 4 * block + row. */
INLINE __m512 factors_32(const uint8_t *const b[4], const size_t at[4], size_t field) {
    return _mm512_cvtph_ps(_mm256_set_epi64x((long long)halves_of_rows(b, at[3] + field),
                                             (long long)halves_of_rows(b, at[2] + field),
                                             (long long)halves_of_rows(b, at[1] + field),
                                             (long long)halves_of_rows(b, at[0] + field)));
}

/* The same for four whole blocks of Q8_0 in a row: two loads hold the four factors of a
 * row, and word permutations put them in place. */
INLINE __m512 factors_q8_0(const uint8_t *const b[4]) {
    const __m512i words = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 17,
                                           17, 17, 17, 0, 0, 0, 0, 17, 17, 17, 17, 0, 0, 0, 0);
    __m512i x = _mm512_setzero_si512();
    for (int r = 0; r < 4; r++) {
        x = _mm512_mask_permutexvar_epi16(x, 0x0011u << r, words, load_512(b[r]));
        x = _mm512_mask_permutexvar_epi16(x, 0x1100u << r, words, load_512(b[r] + 68));
    }
    return _mm512_cvtph_ps(_mm512_castsi512_si256(x));
}

/* 2^(e - 128) for the exponent bytes of four blocks of four rows. */
INLINE __m512 factors_mxfp4(const uint8_t *const b[4], const size_t at[4]) {
    uint32_t e[4];
    for (int j = 0; j < 4; j++) {
        e[j] = b[0][at[j]] | (uint32_t)b[1][at[j]] << 8 | (uint32_t)b[2][at[j]] << 16 |
               (uint32_t)b[3][at[j]] << 24;
    }
    __m512i x =
        _mm512_cvtepu8_epi32(_mm_setr_epi32((int)e[0], (int)e[1], (int)e[2], (int)e[3]));
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(x, _mm512_set1_epi32(1)), 23);
    __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), x);
    __mmask16 is_subnormal = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_subnormal, subnormal));
}

/* Four values, each in four neighbouring lanes. */
INLINE __m512i spread_four(__m128i x) {
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
        _mm512_castsi128_si512(x));
}

/* One of the four 128-bit lanes. */
INLINE __m128 lane_of(__m512 x, int block) {
    switch (block) {
    case 1:
        return _mm512_extractf32x4_ps(x, 1);
    case 2:
        return _mm512_extractf32x4_ps(x, 2);
    case 3:
        return _mm512_extractf32x4_ps(x, 3);
    default:
        return _mm512_castps512_ps128(x);
    }
}

/* Lane 4 * i + r: the sum of the 128-bit lane i of x[r]. */
INLINE __m512i sum_quarters(const __m512i x[4]) {
    __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Bytes of four rows, a 128-bit lane each, to [byte][row]. */
INLINE __m512i transpose_bytes(__m512i x) {
    x = _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), x);
    return _mm512_shuffle_epi8(x, EVERY_LANE(0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703));
}

/* Bytes 4 * i to 4 * i + 3 of four rows, times the row's factor. */
INLINE __m512 factors_of(const bool is_signed, __m512i bytes, const int i, __m512 d) {
    __m128i x;
    switch (i) {
    case 0:
        x = _mm512_castsi512_si128(bytes);
        break;
    case 1:
        x = _mm512_extracti32x4_epi32(bytes, 1);
        break;
    case 2:
        x = _mm512_extracti32x4_epi32(bytes, 2);
        break;
    default:
        x = _mm512_extracti32x4_epi32(bytes, 3);
        break;
    }
    __m512i y = is_signed ? _mm512_cvtepi8_epi32(x) : _mm512_cvtepu8_epi32(x);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(y), d);
}

/* The first n (all of 4 unless tail) floats, each in four neighbouring lanes. */
INLINE __m512 spread_floats(const float *p, const bool tail, size_t n) {
    const __mmask8 live = (__mmask8)((1u << n) - 1);
    return _mm512_castsi512_ps(
        spread_four(_mm_castps_si128(tail ? _mm_maskz_loadu_ps(live, p) : _mm_loadu_ps(p))));
}

/* The same of every other float, the even or the odd ones. */
INLINE __m512 spread_pairs(const float *p, const int odd, const bool tail, size_t n) {
    const __m512i order =
        _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6),
                         _mm512_set1_epi32(odd));
    const __mmask8 live = (__mmask8)((1u << 2 * n) - 1);
    __m256 x = tail ? _mm256_maskz_loadu_ps(live, p) : _mm256_loadu_ps(p);
    return _mm512_permutexvar_ps(order, _mm512_castps256_ps512(x));
}

/* n (1..4, 4 unless tail) blocks of 32 of four rows: vector k of row r holds two of them, d and m
 * the factors, lane 4 * block + row, at[] where the blocks' columns stand.  The last block stands in
 * for those that are not there. */
INLINE void blocks_32(const quant_type type, const bool tail, size_t n,
                      const uint8_t *const b[4], size_t at[4], __m512i v[2][4], __m512 *d,
                      __m512 *m) {
    size_t from[4];
    for (size_t j = 0; j < 4; j++) {
        const size_t block = tail && j >= n ? n - 1 : j;
        from[j] = block * bytes_of(type);
        at[j] = 32 * block;
    }
    if (type == QUANT_MXFP4) {
        *d = factors_mxfp4(b, from);
    } else if (type == QUANT_Q8_0 && !tail) {
        *d = factors_q8_0(b);
    } else {
        *d = factors_32(b, from, 0);
    }
    *m = has_min(type) ? factors_32(b, from, 2) : _mm512_setzero_ps();
    UNROLL
    for (int r = 0; r < 4; r++) {
        v[0][r] = unpack_two(type, b[r] + from[0], b[r] + from[1]);
        v[1][r] = unpack_two(type, b[r] + from[2], b[r] + from[3]);
    }
}

#endif
