/* rows_avx2.h - products and factors of four weight rows at a time; AVX2 rows kernels only. */
#ifndef SILICEO_KERNELS_CPU_ROWS_AVX2_H
#define SILICEO_KERNELS_CPU_ROWS_AVX2_H

#include "kernels/cpu/unpack_avx2.h"

INLINE __m256 two_floats(float low, float high) {
    return _mm256_set_m128(_mm_set1_ps(high), _mm_set1_ps(low));
}

/* Lane 4 * i + r: the sum of the 128-bit lane i of x[r]. */
INLINE __m256i sum_halves(const __m256i x[4]) {
    __m256i a =
        _mm256_add_epi32(_mm256_unpacklo_epi32(x[0], x[1]), _mm256_unpackhi_epi32(x[0], x[1]));
    __m256i b =
        _mm256_add_epi32(_mm256_unpacklo_epi32(x[2], x[3]), _mm256_unpackhi_epi32(x[2], x[3]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* The sums of the groups of 16 in 32 columns of four rows, whose values stand `offset` too high. */
INLINE __m256i dots_of(const quant_type type, const int offset, const __m256i v[4], __m256i q) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i x[4], high = _mm256_setzero_si256();
    if (offset != 0) {
        __m256i all = _mm256_set1_epi8((char)offset);
        high = _mm256_madd_epi16(_mm256_maddubs_epi16(all, q), one);
    }
    UNROLL
    for (int r = 0; r < 4; r++) {
        x[r] = _mm256_madd_epi16(multiply_pairs(type, v[r], q), one);
        if (offset != 0) x[r] = _mm256_sub_epi32(x[r], high);
    }
    return sum_halves(x);
}

/* Eight words of four rows to [word][row] floats, two words a vector, times the row's factor. */
INLINE void factors_of(const int16_t *const words[4], size_t at, __m256 d, __m256 out[4]) {
    __m128i r[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        r[i] = load_128(words[i] + at);
    const __m128i a = _mm_unpacklo_epi16(r[0], r[1]), b = _mm_unpacklo_epi16(r[2], r[3]);
    const __m128i c = _mm_unpackhi_epi16(r[0], r[1]), e = _mm_unpackhi_epi16(r[2], r[3]);
    const __m128i x[4] = {_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b),
                          _mm_unpacklo_epi32(c, e), _mm_unpackhi_epi32(c, e)};
    UNROLL
    for (int i = 0; i < 4; i++)
        out[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(x[i])), d);
}

INLINE __m256 both_halves(__m128 x) {
    return _mm256_set_m128(x, x);
}

/* Scales and (negated) minima of a block of 256 of four rows, two groups a vector: four vectors of
 * groups of 32, or eight of groups of 16.  min is left alone where the type has none. */
INLINE void factors_of_block(const quant_type type, const uint8_t *const b[4], __m256 scale[8],
                             __m256 min[8]) {
    _Alignas(32) int16_t scales[4][16], mins[4][16];
    for (int r = 0; r < 4; r++) {
        __m256i row_mins;
        _mm256_store_si256((void *)scales[r], scales_256(type, b[r], &row_mins));
        _mm256_store_si256((void *)mins[r], row_mins);
    }
    const int16_t *const words[4] = {scales[0], scales[1], scales[2], scales[3]};
    const int16_t *const min_words[4] = {mins[0], mins[1], mins[2], mins[3]};
    const __m256 d = both_halves(factors_of_rows(b, factor_at(type)));
    factors_of(words, 0, d, scale);
    if (group_of(type) == 16) factors_of(words, 8, d, scale + 4);
    if (!has_min(type)) return;
    const __m256 dmin = _mm256_xor_ps(both_halves(factors_of_rows(b, factor_at(type) + 2)),
                                      _mm256_set1_ps(-0.0f));
    factors_of(min_words, 0, dmin, min);
    if (group_of(type) == 16) factors_of(min_words, 8, dmin, min + 4);
}

/* One or two blocks of 32 of four rows: vector k of row r, and the factors, two blocks a vector. */
INLINE void blocks_32(const quant_type type, const bool both, const uint8_t *const b[4],
                      __m256i v[2][4], __m256 *d, __m256 *m) {
    const size_t second = both ? bytes_of(type) : 0;
    const uint8_t *const next[4] = {b[0] + second, b[1] + second, b[2] + second, b[3] + second};
    if (type == QUANT_MXFP4)
        *d = _mm256_set_m128(factors_mxfp4(next), factors_mxfp4(b));
    else
        *d = _mm256_set_m128(factors_of_rows(next, 0), factors_of_rows(b, 0));
    *m = has_min(type) ? _mm256_set_m128(factors_of_rows(next, 2), factors_of_rows(b, 2))
                       : _mm256_setzero_ps();
    UNROLL
    for (int r = 0; r < 4; r++) {
        v[0][r] = unpack_32(type, b[r]);
        v[1][r] = both ? unpack_32(type, next[r]) : _mm256_setzero_si256();
    }
}

#endif
