/* act_avx512.c - activation rows to 8 bits, in AVX-512.  Bytes are those of act.c. */
#include "kernels/cpu/act_layout.h"

#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

/* The bits of the magnitudes of 16 values, ordered as unsigned integers. */
INLINE __m512i magnitudes(__m512 x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

/* Lanes whose largest magnitude can be divided by. */
INLINE __mmask16 usable(__m512i amax) {
    __m512i least = _mm512_castps_si512(_mm512_set1_ps(ACT_LEAST_AMAX));
    return _mm512_cmpge_epu32_mask(amax, least) &
           _mm512_cmplt_epu32_mask(amax, _mm512_set1_epi32(0x7f800000));
}

INLINE __m512 scales_of(__m512i amax, __mmask16 ok) {
    __mmask16 is_bad = _mm512_cmpge_epu32_mask(amax, _mm512_set1_epi32(0x7f800000));
    __m512 scale = _mm512_maskz_div_ps(ok, _mm512_castsi512_ps(amax), _mm512_set1_ps(127));
    return _mm512_mask_mov_ps(scale, is_bad, _mm512_set1_ps(NAN));
}

INLINE __m512 inverses_of(__m512i amax, __mmask16 ok) {
    return _mm512_maskz_div_ps(ok, _mm512_set1_ps(127), _mm512_castsi512_ps(amax));
}

/* 16 values to bytes; 0 where they cannot be scaled. */
INLINE __m128i round_16(const float *x, __m512 inverse, __mmask16 ok) {
    __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x), inverse);
    return _mm512_cvtsepi32_epi8(_mm512_maskz_cvtps_epi32(ok, scaled));
}

INLINE __m256i round_32(const float *x, __m512 inverse, __mmask16 ok) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(round_16(x, inverse, ok)),
                                   round_16(x + 16, inverse, ok), 1);
}

/* Element 4 * lane + k of the result is the sum of 128-bit lane `lane` of x[k]. */
INLINE __m512i add_lanes(const __m512i x[4]) {
    __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* x[k]: the sums of four neighbours in columns 64 * k to 64 * k + 63. */
INLINE void store_sums(const __m512i x[4], act_block *block) {
    const __m512i order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256i sums16 = _mm512_cvtepi32_epi16(_mm512_permutexvar_epi32(order, add_lanes(x)));
    __m256i sums32 = _mm256_madd_epi16(sums16, _mm256_set1_epi16(1));
    _mm256_storeu_si256((void *)block->sums16, sums16);
    _mm_storeu_si128((void *)block->sums32, _mm256_cvtepi32_epi16(sums32));
}

void act_quantize_256_avx512(const float *x, size_t n_cols, void *out) {
    act_block *block = out;
    for (size_t i = 0; i < n_cols; i += 256, block++, x += 256) {
        __m512i amax = _mm512_setzero_si512();
        for (int k = 0; k < 16; k++)
            amax = _mm512_max_epu32(amax, magnitudes(_mm512_loadu_ps(x + 16 * k)));
        amax = _mm512_set1_epi32((int)_mm512_reduce_max_epu32(amax));
        __mmask16 ok = usable(amax);
        __m512 inverse = inverses_of(amax, ok);
        _mm512_store_si512(block, _mm512_setzero_si512());
        block->scale = _mm512_cvtss_f32(scales_of(amax, ok));
        __m512i four[4];
        for (int k = 0; k < 4; k++) {
            __m512i q =
                _mm512_inserti64x4(_mm512_castsi256_si512(round_32(x + 64 * k, inverse, ok)),
                                   round_32(x + 64 * k + 32, inverse, ok), 1);
            _mm512_store_si512(block->q + 64 * k, q);
            four[k] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), q);
        }
        store_sums(four, block);
    }
}

/* Element k of each 128-bit lane is the largest of all lanes of x[k]. */
INLINE __m512i max_lanes(const __m512i x[4]) {
    __m512i a =
        _mm512_max_epu32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    __m512i b =
        _mm512_max_epu32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    __m512i c = _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    c = _mm512_max_epu32(c, _mm512_shuffle_i32x4(c, c, _MM_SHUFFLE(1, 0, 3, 2)));
    return _mm512_max_epu32(c, _mm512_shuffle_i32x4(c, c, _MM_SHUFFLE(2, 3, 0, 1)));
}

/* Up to four blocks of 32. */
INLINE void quantize_four(const float *x, size_t n, int8_t *q, float *scales, int32_t *sums) {
    __m512i m[4];
    for (size_t k = 0; k < 4; k++) {
        const float *block = x + 32 * (k < n ? k : n - 1);
        m[k] = _mm512_max_epu32(magnitudes(_mm512_loadu_ps(block)),
                                magnitudes(_mm512_loadu_ps(block + 16)));
    }
    __m512i amax = max_lanes(m);
    __mmask16 ok = usable(amax);
    __m512 inverse = inverses_of(amax, ok);
    const __mmask8 live = (__mmask8)((1u << n) - 1);
    _mm_mask_storeu_ps(scales, live, _mm512_castps512_ps128(scales_of(amax, ok)));
    __m512i four[4];
    for (size_t k = 0; k < 4; k++) {
        size_t at = 32 * (k < n ? k : n - 1);
        __m512 f = _mm512_permutexvar_ps(_mm512_set1_epi32((int)(at / 32)), inverse);
        __m256i v = round_32(x + at, f, ok >> (at / 32) & 1 ? 0xffff : 0);
        _mm256_storeu_si256((void *)(q + at), v);
        four[k] = _mm512_zextsi256_si512(
            _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), v));
    }
    __m512i lanes = add_lanes(four);
    _mm_mask_storeu_epi32(
        sums, live,
        _mm_add_epi32(_mm512_castsi512_si128(lanes), _mm512_extracti32x4_epi32(lanes, 1)));
}

void act_quantize_32_avx512(const float *x, size_t n_cols, void *out) {
    int8_t *q = out;
    float *scales = act32_scales_of(out, n_cols);
    int32_t *sums = (void *)(scales + n_cols / 32);
    size_t n_blocks = n_cols / 32;
    for (size_t i = 0; i < n_blocks; i += 4) {
        size_t n = n_blocks - i < 4 ? n_blocks - i : 4;
        quantize_four(x + 32 * i, n, q + 32 * i, scales + i, sums + i);
    }
}
