/* dequantize_avx2.c - blocks of the K types, Q8_0 and half floats to float32, in AVX2.
 *
 * Products and differences are rounded in the order of dequantize.c, without fused
 * multiply-add, so the results are the same bits (tests/kernels/test_matmul.c).  The
 * AVX-512 tier uses these too: writing the floats takes longer than making them.
 */
#include "kernels/cpu/dequantize_impl.h"
#include "kernels/cpu/unpack_avx2.h"

/* Group j of 32 columns: y = scale * (v - offset) - min, v unsigned bytes.  The scales
 * of groups of 16 differ between the two halves. */
INLINE void store_group(__m256i v, int offset, const float scale[2], const float *min,
                        float *y) {
    for (int k = 0; k < 4; k++) {
        __m128i eight = k < 2 ? _mm256_castsi256_si128(v) : _mm256_extracti128_si256(v, 1);
        if (k % 2) eight = _mm_srli_si128(eight, 8);
        __m256i i = _mm256_sub_epi32(_mm256_cvtepu8_epi32(eight), _mm256_set1_epi32(offset));
        __m256 f = _mm256_mul_ps(_mm256_set1_ps(scale[k / 2]), _mm256_cvtepi32_ps(i));
        if (min != NULL) f = _mm256_sub_ps(f, _mm256_set1_ps(min[k / 2]));
        _mm256_storeu_ps(y + 8 * k, f);
    }
}

/* The float scales and minima of the 16 halves of groups. */
INLINE void float_scales(quant_type type, const uint8_t *b, float scale[16], float min[16]) {
    const size_t at = factor_at(type);
    int16_t s[16], m[16];
    __m256i mins, scales = scales_256(type, b, &mins);
    _mm256_storeu_si256((void *)s, scales);
    _mm256_storeu_si256((void *)m, mins);
    const float d = _cvtsh_ss(load16(b + at));
    const float dmin = has_min(type) ? _cvtsh_ss(load16(b + at + 2)) : 0;
    for (int g = 0; g < 16; g++) {
        int i = is_k4(type) ? g / 2 : g;
        scale[g] = d * (float)s[i];
        min[g] = dmin * (float)m[i];
    }
}

INLINE void decode_256(quant_type type, const uint8_t *b, size_t n, float *y) {
    for (size_t i = 0; i < n; i += 256, b += bytes_of(type)) {
        float scale[16], min[16];
        float_scales(type, b, scale, min);
        for (int j = 0; j < 8; j++) {
            store_group(unpack_group(type, b, j), offset_of(type), scale + 2 * j,
                        has_min(type) ? min + 2 * j : NULL, y + i + 32 * (size_t)j);
        }
    }
}

static void decode_q8_0(const uint8_t *b, size_t n, float *y) {
    for (size_t i = 0; i < n; i += 32, b += 34) {
        __m256 d = _mm256_set1_ps(_cvtsh_ss(load16(b)));
        for (size_t k = 0; k < 32; k += 8) {
            __m256i v = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(b + 2 + k)));
            _mm256_storeu_ps(y + i + k, _mm256_mul_ps(_mm256_cvtepi32_ps(v), d));
        }
    }
}

bool dequantize_row_avx2(quant_type type, const void *blocks, size_t n, float *out) {
    switch ((unsigned)type) {
    case QUANT_Q8_0:
        decode_q8_0(blocks, n, out);
        return true;
    case QUANT_Q2_K:
        decode_256(QUANT_Q2_K, blocks, n, out);
        return true;
    case QUANT_Q3_K:
        decode_256(QUANT_Q3_K, blocks, n, out);
        return true;
    case QUANT_Q4_K:
        decode_256(QUANT_Q4_K, blocks, n, out);
        return true;
    case QUANT_Q5_K:
        decode_256(QUANT_Q5_K, blocks, n, out);
        return true;
    case QUANT_Q6_K:
        decode_256(QUANT_Q6_K, blocks, n, out);
        return true;
    default:
        return false;
    }
}
