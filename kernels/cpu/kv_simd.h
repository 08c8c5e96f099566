/* kv_simd.h - rows of a KV block (kernels/kv_layout.h) to and from vectors. */
#ifndef SILICEO_KERNELS_CPU_KV_SIMD_H
#define SILICEO_KERNELS_CPU_KV_SIMD_H

#include "common/half.h"
#include "kernels/cpu/simd.h"
#include "kernels/kv_layout.h"

/* Sixteen values of 4 bits, two a byte, as floats. */
static inline v16 kv_from_pairs(const unsigned char *pairs) {
    unsigned char bytes[16];
    const __m128i two = _mm_loadl_epi64((const __m128i *)(const void *)pairs);
    const __m128i low = _mm_set1_epi8(15);
    _mm_storeu_si128(
        (__m128i *)(void *)bytes,
        _mm_unpacklo_epi8(_mm_and_si128(two, low), _mm_and_si128(_mm_srli_epi16(two, 4), low)));
    return v_from_int8(bytes);
}

/* Thirty-two floats, 0 .. 15, to 16 bytes. */
static inline void kv_to_pairs(unsigned char *pairs, v16 a, v16 b) {
    unsigned char bytes[32];
    const __m128i weights = _mm_set1_epi16(0x1001); /* 1 and 16 */
    v_to_int8(bytes, a);
    v_to_int8(bytes + 16, b);
    const __m128i *at = (const __m128i *)(const void *)bytes;
    const __m128i first = _mm_maddubs_epi16(_mm_loadu_si128(at), weights);
    const __m128i second = _mm_maddubs_epi16(_mm_loadu_si128(at + 1), weights);
    _mm_storeu_si128((__m128i *)(void *)pairs, _mm_packus_epi16(first, second));
}

/* Values from .. from + n - 1 of position slot; from is a multiple of 32, n of 16. */
static inline void kv_read(uint32_t type, const unsigned char *block, uint32_t head_dim,
                           uint32_t slot, uint32_t from, uint32_t n, float *out) {
    const size_t at = (size_t)slot * head_dim + from;
    if (type == KV_F16) {
        for (uint32_t i = 0; i < n; i += 16)
            v_store(out + i, v_from_half(block + (at + i) * 2));
    } else if (type == KV_Q8) {
        const unsigned char *scales =
            block + (size_t)KV_PAGE_TOKENS * head_dim + at / KV_GROUP * 2;
        for (uint32_t i = 0; i < n; i += 16) {
            uint16_t half;
            memcpy(&half, scales + i / KV_GROUP * 2, 2);
            const v16 scale = v_set(_cvtsh_ss(half));
            v_store(out + i, v_mul(scale, v_from_int8(block + at + i)));
        }
    } else if (type == KV_Q4) {
        const unsigned char *scales =
            block + (size_t)KV_PAGE_TOKENS * head_dim / 2 + at / KV_GROUP * 4;
        for (uint32_t i = 0; i < n; i += 16) {
            int32_t halves;
            memcpy(&halves, scales + i / KV_GROUP * 4, 4);
            const __m128 two = _mm_cvtph_ps(_mm_cvtsi32_si128(halves));
            const v16 scale = v_set(_mm_cvtss_f32(two));
            const v16 minimum = v_set(_mm_cvtss_f32(_mm_movehdup_ps(two)));
            v_store(out + i, v_fma(scale, kv_from_pairs(block + (at + i) / 2), minimum));
        }
    } else {
        memcpy(out, block + at * 4, (size_t)n * 4);
    }
}

static inline void kv_write_q8(unsigned char *values, unsigned char *scale, const float *row) {
    const v16 a = v_load(row), b = v_load(row + 16);
    float largest = v_largest(v_max(v_abs(a), v_max(v_abs(b), v_zero())));
    if (v_is_nan(a) | v_is_nan(b)) largest = NAN;
    const uint16_t half = half_from_float(largest / 127.0f);
    const float rounded = half_to_float(half);
    const v16 inverse = v_set(rounded > 0.0f ? 1.0f / rounded : 0.0f);
    const v16 limit = v_set(127.0f), floor = v_set(-127.0f);
    v_to_int8(values, v_max(v_min(v_mul(a, inverse), limit), floor));
    v_to_int8(values + 16, v_max(v_min(v_mul(b, inverse), limit), floor));
    memcpy(scale, &half, 2);
}

static inline void kv_write_q4(unsigned char *pairs, unsigned char *scale, const float *row) {
    const v16 a = v_load(row), b = v_load(row + 16), minus = v_set(-1.0f);
    const float high = v_largest(v_max(a, b));
    float low = -v_largest(v_max(v_mul(a, minus), v_mul(b, minus)));
    if (v_is_nan(a) | v_is_nan(b)) low = NAN;
    const uint16_t halves[2] = {half_from_float((high - low) / 15.0f),
                                half_from_float(low + 0.0f)}; /* no -0 */
    const float step = half_to_float(halves[0]);
    const v16 inverse = v_set(step > 0.0f ? 1.0f / step : 0.0f);
    const v16 minimum = v_set(half_to_float(halves[1])), limit = v_set(15.0f);
    kv_to_pairs(pairs, v_max(v_min(v_mul(v_sub(a, minimum), inverse), limit), v_zero()),
                v_max(v_min(v_mul(v_sub(b, minimum), inverse), limit), v_zero()));
    memcpy(scale, halves, 4);
}

/* kv_row_write() */
static inline void kv_write(uint32_t type, unsigned char *block, uint32_t head_dim,
                            uint32_t slot, const float *row) {
    const size_t at = (size_t)slot * head_dim;
    if (type == KV_F16) {
        for (uint32_t i = 0; i < head_dim; i += 16)
            v_to_half(block + (at + i) * 2, v_load(row + i));
    } else if (type == KV_Q8) {
        unsigned char *scales = block + (size_t)KV_PAGE_TOKENS * head_dim;
        for (uint32_t i = 0; i < head_dim; i += KV_GROUP)
            kv_write_q8(block + at + i, scales + (at + i) / KV_GROUP * 2, row + i);
    } else if (type == KV_Q4) {
        unsigned char *scales = block + (size_t)KV_PAGE_TOKENS * head_dim / 2;
        for (uint32_t i = 0; i < head_dim; i += KV_GROUP)
            kv_write_q4(block + (at + i) / 2, scales + (at + i) / KV_GROUP * 4, row + i);
    } else {
        memcpy(block + at * 4, row, (size_t)head_dim * 4);
    }
}

#endif
