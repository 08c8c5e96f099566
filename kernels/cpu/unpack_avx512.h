/* unpack_avx512.h - packed blocks to unsigned bytes and scale bytes; AVX-512 kernels only.
 *
 * The value of a weight is byte - OFFSET: every type is brought to unsigned bytes,
 * which vpdpbusd multiplies with signed activations.  Functions take the type as a
 * constant and are inlined into one kernel a type.
 */
#ifndef SILICEO_KERNELS_CPU_UNPACK_AVX512_H
#define SILICEO_KERNELS_CPU_UNPACK_AVX512_H

#include "kernels/cpu/unpack_types.h"

INLINE __m512i load_512(const void *p) {
    return _mm512_loadu_si512(p);
}

/* Two 32-byte pieces. */
INLINE __m512i load_halves(const void *low, const void *high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_256(low)), load_256(high), 1);
}

/* 64-bit lanes of the lower and of the upper half. */
INLINE __m512i halves_64(int64_t low, int64_t high) {
    return _mm512_set_epi64(high, high, high, high, low, low, low, low);
}

/* a where the bits of mask are clear, or-ed with b's bits where they are set: (b & mask) | a. */
INLINE __m512i or_masked(__m512i b, __m512i mask, __m512i a) {
    return _mm512_ternarylogic_epi32(b, mask, a, 0xEA);
}

/* What is added to the value to make it unsigned. */
INLINE int offset_of(quant_type type) {
    switch ((unsigned)type) {
    case QUANT_Q6_K:
        return 32;
    case QUANT_Q3_K:
        return 4;
    case QUANT_Q4_0:
        return 8;
    case QUANT_Q5_0:
        return 16;
    case QUANT_Q8_0:
    case QUANT_IQ4_NL:
    case QUANT_IQ4_XS:
    case QUANT_MXFP4:
        return 128;
    default:
        return 0;
    }
}

INLINE __m512i iq4_levels_128(void) {
    return _mm512_broadcast_i32x4(_mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char)129,
                                                (char)141, (char)153, (char)166, (char)181,
                                                (char)197, (char)217, (char)241));
}

INLINE __m512i mxfp4_levels_128(void) {
    return _mm512_broadcast_i32x4(_mm_setr_epi8((char)128, (char)129, (char)130, (char)131,
                                                (char)132, (char)134, (char)136, (char)140,
                                                (char)128, 127, 126, 125, 124, 122, 120, 116));
}

/* Two groups of 16 bytes to 64 nibbles: low 16, high 16 of the first, then of the second. */
INLINE __m512i nibbles_of_pair(__m128i first, __m128i second) {
    __m512i x = _mm512_castsi128_si512(first);
    x = _mm512_inserti32x4(_mm512_shuffle_i64x2(x, x, 0), second, 2);
    x = _mm512_shuffle_i64x2(x, x, _MM_SHUFFLE(2, 2, 0, 0));
    x = _mm512_srlv_epi64(x, _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0));
    return _mm512_and_si512(x, _mm512_set1_epi8(15));
}

INLINE void unpack_k4(quant_type type, const uint8_t *b, __m512i v[4]) {
    const __m512i low4 = _mm512_set1_epi8(15);
    const uint8_t *q = b + (type == QUANT_Q5_K ? 48 : 16);
    __m512i x = load_512(q), y = load_512(q + 64);
    v[0] = _mm512_and_si512(x, low4);
    v[1] = _mm512_and_si512(_mm512_srli_epi16(x, 4), low4);
    v[2] = _mm512_and_si512(y, low4);
    v[3] = _mm512_and_si512(_mm512_srli_epi16(y, 4), low4);
    if (type != QUANT_Q5_K) return;
    /* Bit j of group j goes to bit 4. */
    const __m512i bit4 = _mm512_set1_epi8(16);
    __m512i h = _mm512_broadcast_i64x4(load_256(b + 16));
    v[0] = or_masked(_mm512_rorv_epi64(h, halves_64(-4, -2)), bit4, v[0]);
    v[1] = or_masked(_mm512_rorv_epi64(h, halves_64(-3, -1)), bit4, v[1]);
    v[2] = or_masked(_mm512_rorv_epi64(h, halves_64(0, 2)), bit4, v[2]);
    v[3] = or_masked(_mm512_rorv_epi64(h, halves_64(1, 3)), bit4, v[3]);
}

INLINE void unpack_q6_k(const uint8_t *b, __m512i v[4]) {
    const __m512i low4 = _mm512_set1_epi8(15), bits45 = _mm512_set1_epi8(0x30);
    for (int n = 0; n < 2; n++) {
        __m512i l = load_512(b + 64 * n);
        __m512i h = _mm512_broadcast_i64x4(load_256(b + 128 + 32 * n));
        v[2 * n] = or_masked(_mm512_rorv_epi64(h, halves_64(-4, -2)), bits45,
                             _mm512_and_si512(l, low4));
        v[2 * n + 1] = or_masked(_mm512_rorv_epi64(h, halves_64(0, 2)), bits45,
                                 _mm512_and_si512(_mm512_srli_epi16(l, 4), low4));
    }
}

/* The two-bit values of Q2_K and Q3_K. */
INLINE void unpack_pairs(const uint8_t *q, __m512i v[4]) {
    const __m512i low2 = _mm512_set1_epi8(3);
    for (int n = 0; n < 2; n++) {
        __m512i x = _mm512_broadcast_i64x4(load_256(q + 32 * n));
        v[2 * n] = _mm512_and_si512(_mm512_srlv_epi64(x, halves_64(0, 2)), low2);
        v[2 * n + 1] = _mm512_and_si512(_mm512_srlv_epi64(x, halves_64(4, 6)), low2);
    }
}

INLINE void unpack_q3_k(const uint8_t *b, __m512i v[4]) {
    const __m512i bit2 = _mm512_set1_epi8(4);
    __m512i h = _mm512_broadcast_i64x4(load_256(b));
    unpack_pairs(b + 32, v);
    v[0] = or_masked(_mm512_rorv_epi64(h, halves_64(-2, -1)), bit2, v[0]);
    v[1] = or_masked(_mm512_rorv_epi64(h, halves_64(0, 1)), bit2, v[1]);
    v[2] = or_masked(_mm512_rorv_epi64(h, halves_64(2, 3)), bit2, v[2]);
    v[3] = or_masked(_mm512_rorv_epi64(h, halves_64(4, 5)), bit2, v[3]);
}

/* Groups of 32 in the two halves of vector k of unpack_256(): of Q4_K and Q5_K 0 2, 1 3, 4 6, 5 7, as
 * they come out of the nibbles; all others are in their own order. */
INLINE int low_group(quant_type type, int k) {
    return is_k4(type) ? k / 2 * 4 + k % 2 : 2 * k;
}

INLINE int high_group(quant_type type, int k) {
    return is_k4(type) ? low_group(type, k) + 2 : 2 * k + 1;
}

/* A block of 256 to four vectors of 64. */
INLINE void unpack_256(quant_type type, const uint8_t *b, __m512i v[4]) {
    switch ((unsigned)type) {
    case QUANT_Q6_K:
        unpack_q6_k(b, v);
        break;
    case QUANT_Q2_K:
        unpack_pairs(b + 16, v);
        break;
    case QUANT_Q3_K:
        unpack_q3_k(b, v);
        break;
    case QUANT_IQ4_XS:
        for (int k = 0; k < 4; k++) {
            __m512i n = nibbles_of_pair(load_128(b + 8 + 32 * k), load_128(b + 24 + 32 * k));
            v[k] = _mm512_shuffle_epi8(iq4_levels_128(), n);
        }
        break;
    default:
        unpack_k4(type, b, v);
        break;
    }
}

/* Four pieces of 16 bytes, one in each 128-bit lane. */
INLINE __m512i load_lanes(const uint8_t *const b[4], size_t at) {
    __m512i x = _mm512_castsi128_si512(load_128(b[0] + at));
    x = _mm512_inserti32x4(x, load_128(b[1] + at), 1);
    x = _mm512_inserti32x4(x, load_128(b[2] + at), 2);
    return _mm512_inserti32x4(x, load_128(b[3] + at), 3);
}

#define EVERY_LANE(a, b, c, d) _mm512_set4_epi32((int)(d), (int)(c), (int)(b), (int)(a))

/* 12 packed bytes after d and dmin: 8 scales, then 8 minima. */
INLINE __m512i scales_k4(__m512i header) {
    __m512i x =
        _mm512_shuffle_epi8(header, EVERY_LANE(0x07060504, 0x0f0e0d0c, 0x0b0a0908, 0x0f0e0d0c));
    x = _mm512_and_si512(_mm512_srlv_epi32(x, EVERY_LANE(0, 0, 0, 4)),
                         EVERY_LANE(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    __m512i high = _mm512_shuffle_epi8(
        header, EVERY_LANE(0x80808080u, 0x07060504, 0x80808080u, 0x0b0a0908));
    return or_masked(_mm512_srli_epi32(high, 2), _mm512_set1_epi8(0x30), x);
}

/* The last 16 bytes of a Q3_K block: two bytes of values, 12 packed bytes, d. */
INLINE __m512i scales_q3_k(__m512i tail) {
    __m512i low =
        _mm512_shuffle_epi8(tail, EVERY_LANE(0x05040302, 0x09080706, 0x05040302, 0x09080706));
    low =
        _mm512_and_si512(_mm512_srlv_epi32(low, EVERY_LANE(0, 0, 4, 4)), _mm512_set1_epi8(15));
    __m512i high =
        _mm512_shuffle_epi8(tail, EVERY_LANE(0x0d0c0b0a, 0x0d0c0b0a, 0x0d0c0b0a, 0x0d0c0b0a));
    high = _mm512_rorv_epi32(high, EVERY_LANE(-4, -2, 0, 2));
    return _mm512_sub_epi8(or_masked(high, _mm512_set1_epi8(0x30), low), _mm512_set1_epi8(32));
}

/* The scale bytes of four blocks, a 128-bit lane each: signed for Q3_K, Q6_K and IQ4_XS.
 * Q4_K, Q5_K: 8 scales, 8 minima.  Q2_K: 16 scales, and the minima in *mins. */
INLINE __m512i scales_256(quant_type type, const uint8_t *const b[4], __m512i *mins) {
    __m512i x;
    switch ((unsigned)type) {
    case QUANT_Q6_K:
        return load_lanes(b, 192);
    case QUANT_Q3_K:
        return scales_q3_k(load_lanes(b, 94));
    case QUANT_Q2_K:
        x = load_lanes(b, 0);
        *mins = _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
        return _mm512_and_si512(x, _mm512_set1_epi8(15));
    case QUANT_IQ4_XS:
        x = _mm512_castsi128_si512(scales_iq4_xs(b[0]));
        x = _mm512_inserti32x4(x, scales_iq4_xs(b[1]), 1);
        x = _mm512_inserti32x4(x, scales_iq4_xs(b[2]), 2);
        return _mm512_inserti32x4(x, scales_iq4_xs(b[3]), 3);
    default:
        return scales_k4(load_lanes(b, 0));
    }
}

/* The factors of four blocks; dmin only for types that have minima. */
INLINE void factors_256(quant_type type, const uint8_t *const b[4], __m128 *d, __m128 *dmin) {
    const size_t at = factor_at(type);
    if (has_min(type)) {
        __m128i x = _mm_set_epi32((int)load32(b[3] + at), (int)load32(b[2] + at),
                                  (int)load32(b[1] + at), (int)load32(b[0] + at));
        __m256 y = _mm256_permutevar8x32_ps(_mm256_cvtph_ps(x),
                                            _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
        *d = _mm256_castps256_ps128(y);
        *dmin = _mm256_extractf128_ps(y, 1);
        return;
    }
    *d = factors_of_rows(b, at);
    *dmin = _mm_setzero_ps();
}

/* ---- blocks of 32 ---- */

/* Two blocks of 32 to 64 unsigned bytes. */
INLINE __m512i unpack_two(quant_type type, const uint8_t *first, const uint8_t *second) {
    if (type == QUANT_Q8_0) {
        return _mm512_xor_si512(load_halves(first + 2, second + 2),
                                _mm512_set1_epi8((char)0x80));
    }
    size_t at = nibbles_at(type);
    __m512i v = nibbles_of_pair(load_128(first + at), load_128(second + at));
    if (type == QUANT_Q5_0 || type == QUANT_Q5_1) {
        uint64_t high = load32(first + at - 4) | (uint64_t)load32(second + at - 4) << 32;
        return _mm512_mask_add_epi8(v, high, v, _mm512_set1_epi8(16));
    }
    if (type == QUANT_IQ4_NL) return _mm512_shuffle_epi8(iq4_levels_128(), v);
    if (type == QUANT_MXFP4) return _mm512_shuffle_epi8(mxfp4_levels_128(), v);
    return v;
}

#endif
