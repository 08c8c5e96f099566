/* act_avx2.c - activation rows to 8 bits, in AVX2.  Bytes are those of act.c. */
#include "kernels/cpu/act_layout.h"

#include "common/half.h"
#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i magnitudes(__m256 x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

INLINE uint32_t largest(__m256i x) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* 32 values to bytes. */
INLINE __m256i round_32(const float *x, __m256 inverse) {
    __m256i v[4];
    for (int k = 0; k < 4; k++)
        v[k] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * k), inverse));
    /* The packs work inside 128-bit lanes; the permutation puts the columns in order. */
    __m256i q =
        _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    return _mm256_permutevar8x32_epi32(q, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Sums of four neighbouring bytes. */
INLINE __m256i sums_of_four(__m256i q) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q),
                             _mm256_set1_epi16(1));
}

/* Quantize n (a multiple of 32) values; the scale. */
INLINE float quantize(const float *x, const int n, int8_t *q) {
    __m256i m = _mm256_setzero_si256();
    for (int k = 0; k < n; k += 8)
        m = _mm256_max_epu32(m, magnitudes(_mm256_loadu_ps(x + k)));
    uint32_t amax_bits = largest(m);
    float amax = float_from_bits(amax_bits);
    if (!(amax >= ACT_LEAST_AMAX && amax < INFINITY)) {
        for (int k = 0; k < n; k += 32)
            _mm256_storeu_si256((void *)(q + k), _mm256_setzero_si256());
        return amax_bits < 0x7f800000u ? 0.0f : NAN;
    }
    __m256 inverse = _mm256_set1_ps(127.0f / amax);
    for (int k = 0; k < n; k += 32)
        _mm256_storeu_si256((void *)(q + k), round_32(x + k, inverse));
    return amax / 127.0f;
}

/* Sums of 16 from the sums of four of 64 values: pairs of 128-bit lanes hold 16 values each. */
INLINE __m128i sums_of_16(__m256i first, __m256i second) {
    __m256i x = _mm256_hadd_epi32(first, second); /* f0 f0 s0 s0, f1 f1 s1 s1 */
    x = _mm256_hadd_epi32(x, x);                  /* f0 s0 f0 s0, f1 s1 f1 s1 */
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

INLINE void store_sums(act_block *block) {
    __m128i s[4];
    for (int k = 0; k < 4; k++) {
        const __m256i *q = (const void *)(block->q + 64 * k);
        s[k] = sums_of_16(sums_of_four(_mm256_loadu_si256(q)),
                          sums_of_four(_mm256_loadu_si256(q + 1)));
    }
    __m128i low = _mm_packs_epi32(s[0], s[1]), high = _mm_packs_epi32(s[2], s[3]);
    _mm_storeu_si128((void *)block->sums16, low);
    _mm_storeu_si128((void *)(block->sums16 + 8), high);
    _mm_storeu_si128((void *)block->sums32, _mm_hadd_epi16(low, high));
}

void act_quantize_256_avx2(const float *x, size_t n_cols, void *out) {
    act_block *block = out;
    for (size_t i = 0; i < n_cols; i += 256, block++, x += 256) {
        _mm256_store_si256((void *)block, _mm256_setzero_si256());
        _mm256_store_si256((__m256i *)(void *)block + 1, _mm256_setzero_si256());
        block->scale = quantize(x, 256, block->q);
        store_sums(block);
    }
}

void act_quantize_32_avx2(const float *x, size_t n_cols, void *out) {
    int8_t *q = out;
    float *scales = act32_scales_of(out, n_cols);
    int32_t *sums = (void *)(scales + n_cols / 32);
    for (size_t i = 0; i < n_cols / 32; i++) {
        scales[i] = quantize(x + 32 * i, 32, q + 32 * i);
        __m256i four = sums_of_four(_mm256_loadu_si256((const void *)(q + 32 * i)));
        __m128i two =
            _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
        two = _mm_add_epi32(two, _mm_shuffle_epi32(two, 0x4e));
        sums[i] = _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
    }
}

INLINE __m256i magnitudes_of_16(const float *x) {
    return _mm256_max_epu32(magnitudes(_mm256_loadu_ps(x)), magnitudes(_mm256_loadu_ps(x + 8)));
}

/* What 16 or 32 values are multiplied by; their scale. */
INLINE float scale_of(uint32_t amax_bits, float *inverse) {
    const float amax = float_from_bits(amax_bits);
    const bool usable = amax >= ACT_LEAST_AMAX && amax < INFINITY;
    *inverse = usable ? 127.0f / amax : 0.0f;
    return usable ? amax / 127.0f : amax_bits < 0x7f800000u ? 0.0f : NAN;
}

/* 16 values to words; an inverse of 0 gives 0 even where a value has none. */
INLINE __m256i round_16(const float *x, float inverse) {
    const __m256 f = _mm256_set1_ps(inverse);
    const __m256 usable = _mm256_cmp_ps(f, _mm256_setzero_ps(), _CMP_NEQ_OQ);
    __m256i v[2];
    for (int k = 0; k < 2; k++) {
        __m256i r = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * k), f));
        v[k] = _mm256_and_si256(r, _mm256_castps_si256(usable));
    }
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(v[0], v[1]), 0xd8);
}

void act_quantize_16_avx2(const float *x, bool pair, int8_t *q, float *scales, int32_t *sums) {
    __m256i m[2] = {magnitudes_of_16(x), magnitudes_of_16(x + 16)};
    float inverse[2];
    if (pair) m[0] = m[1] = _mm256_max_epu32(m[0], m[1]);
    scales[0] = scale_of(largest(m[0]), &inverse[0]);
    scales[1] = pair ? scales[0] : scale_of(largest(m[1]), &inverse[1]);
    if (pair) inverse[1] = inverse[0];
    __m256i words = _mm256_packs_epi16(round_16(x, inverse[0]), round_16(x + 16, inverse[1]));
    __m256i bytes = _mm256_permute4x64_epi64(words, 0xd8);
    _mm256_storeu_si256((void *)q, bytes);
    __m256i four = sums_of_four(bytes);
    __m256i two = _mm256_hadd_epi32(four, four);
    two = _mm256_hadd_epi32(two, two);
    sums[0] = _mm256_extract_epi32(two, 0);
    sums[1] = _mm256_extract_epi32(two, 4);
}
