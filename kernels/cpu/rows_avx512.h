/* rows_avx512.h - factors and columns of four weight rows at a time; AVX-512 rows kernels only. */
#ifndef SILICEO_KERNELS_CPU_ROWS_AVX512_H
#define SILICEO_KERNELS_CPU_ROWS_AVX512_H

#include "kernels/cpu/unpack_avx512.h"

/* Groups of 32 in the two halves of vector k. */
INLINE int low_group(quant_type type, int k) {
    return is_k4(type) ? k / 2 * 4 + k % 2 : 2 * k;
}

INLINE int high_group(quant_type type, int k) {
    return is_k4(type) ? low_group(type, k) + 2 : 2 * k + 1;
}

/* Four halves, one of each row. */
INLINE uint64_t halves_of_rows(const uint8_t *const b[4], size_t at) {
    return load16(b[0] + at) | (uint64_t)load16(b[1] + at) << 16 |
           (uint64_t)load16(b[2] + at) << 32 | (uint64_t)load16(b[3] + at) << 48;
}

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

#endif
