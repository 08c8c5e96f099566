/* simd.h - a vector of 16 floats, the same for AVX2 (two registers) and AVX-512 (one).
 *
 * The X_simd.h files are written over it once; X_avx2.c and X_avx512.c compile them with their
 * flags, and TIER(name) makes the external names differ.  Everything here is static inline: a
 * shared helper compiled for AVX-512 must never be the copy that the linker keeps.
 *
 * Each function rounds as its twin in scalar_math.h does, lane by lane.
 */
#ifndef SILICEO_KERNELS_CPU_SIMD_H
#define SILICEO_KERNELS_CPU_SIMD_H

#include "kernels/cpu/scalar_math.h"
#include <immintrin.h>

/* Before a loop of a constant few turns over an array of vectors: gcc keeps the array in
 * registers only when the loop is unrolled early. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#ifdef __AVX512F__

#define TIER(name) name##_avx512

/* Shapes of the register tiles: 4 x 4 dots; 4 queries x 64 columns; 8 rows x 32 columns. */
enum {
    TILE_DOT = 4,
    TILE_MIX_ROWS = 4,
    TILE_MIX_VECTORS = 4,
    TILE_GEMM_ROWS = 8,
    TILE_GEMM_VECTORS = 2
};

typedef __m512 v16;

static inline v16 v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, v16 a) {
    _mm512_storeu_ps(p, a);
}
/* The first n < 16 lanes; the others are 0. */
static inline v16 v_load_n(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
static inline void v_store_n(float *p, v16 a, size_t n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}
static inline v16 v_set(float x) {
    return _mm512_set1_ps(x);
}
static inline v16 v_add(v16 a, v16 b) {
    return _mm512_add_ps(a, b);
}
static inline v16 v_sub(v16 a, v16 b) {
    return _mm512_sub_ps(a, b);
}
static inline v16 v_mul(v16 a, v16 b) {
    return _mm512_mul_ps(a, b);
}
static inline v16 v_div(v16 a, v16 b) {
    return _mm512_div_ps(a, b);
}
/* a * b + c */
static inline v16 v_fma(v16 a, v16 b, v16 c) {
    return _mm512_fmadd_ps(a, b, c);
}
/* a * b - c */
static inline v16 v_fms(v16 a, v16 b, v16 c) {
    return _mm512_fmsub_ps(a, b, c);
}
/* c - a * b */
static inline v16 v_fnma(v16 a, v16 b, v16 c) {
    return _mm512_fnmadd_ps(a, b, c);
}
/* b where a lane of either is NaN */
static inline v16 v_max(v16 a, v16 b) {
    return _mm512_max_ps(a, b);
}
static inline v16 v_min(v16 a, v16 b) {
    return _mm512_min_ps(a, b);
}
static inline v16 v_abs(v16 a) {
    return _mm512_abs_ps(a);
}
/* p * 2^n for integral n */
static inline v16 v_scale(v16 p, v16 n) {
    return _mm512_scalef_ps(p, n);
}
static inline v16 v_from_half(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
static inline void v_to_half(void *p, v16 a) {
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
static inline v16 v_from_int8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}
/* Rounded to nearest even; |a| <= 127. */
static inline void v_to_int8(void *p, v16 a) {
    _mm_storeu_si128(p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}
/* Which lanes are equal, or NaN. */
static inline unsigned v_equal(v16 a, v16 b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
static inline unsigned v_is_nan(v16 a) {
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
/* Lanes i and i + 8 joined. */
static inline __m256 v_fold8(v16 a) {
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

/* out[a * out_stride + b] = dot(q[a], k + b * k_stride) over n values, n a multiple of 16.
 * The 16 trees are one: each step joins the halves of two vectors in one addition. */
static inline void tile_dot(const float *const q[4], const float *k, size_t k_stride, size_t n,
                            float *out, size_t out_stride) {
    v16 s[16];
    UNROLL
    for (int i = 0; i < 16; i++)
        s[i] = _mm512_setzero_ps();
    for (size_t d = 0; d < n; d += 16) {
        const v16 q0 = v_load(q[0] + d), q1 = v_load(q[1] + d);
        const v16 q2 = v_load(q[2] + d), q3 = v_load(q[3] + d);
        UNROLL
        for (int b = 0; b < 4; b++) {
            const v16 key = v_load(k + (size_t)b * k_stride + d);
            s[b] = v_fma(q0, key, s[b]);
            s[4 + b] = v_fma(q1, key, s[4 + b]);
            s[8 + b] = v_fma(q2, key, s[8 + b]);
            s[12 + b] = v_fma(q3, key, s[12 + b]);
        }
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        s[i] = v_add(_mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0x44),
                     _mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0xee));
    UNROLL
    for (int i = 0; i < 4; i++)
        s[i] = v_add(_mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0x88),
                     _mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0xdd));
    UNROLL
    for (int i = 0; i < 2; i++) {
        const __m512d a = _mm512_castps_pd(s[2 * i]), b = _mm512_castps_pd(s[2 * i + 1]);
        s[i] = v_add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                     _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const v16 sums =
        v_add(_mm512_shuffle_ps(s[0], s[1], 0x88), _mm512_shuffle_ps(s[0], s[1], 0xdd));
    /* Lane 4 b + a holds query a with key b: transpose. */
    const __m512i order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const v16 rows = _mm512_permutexvar_ps(order, sums);
    _mm_storeu_ps(out, _mm512_castps512_ps128(rows));
    _mm_storeu_ps(out + out_stride, _mm512_extractf32x4_ps(rows, 1));
    _mm_storeu_ps(out + 2 * out_stride, _mm512_extractf32x4_ps(rows, 2));
    _mm_storeu_ps(out + 3 * out_stride, _mm512_extractf32x4_ps(rows, 3));
}

#else /* AVX2 */

#define TIER(name) name##_avx2

/* Shapes of the register tiles: 2 x 2 dots; 2 queries x 32 columns; 4 rows x 16 columns. */
enum {
    TILE_DOT = 2,
    TILE_MIX_ROWS = 2,
    TILE_MIX_VECTORS = 2,
    TILE_GEMM_ROWS = 4,
    TILE_GEMM_VECTORS = 1
};

typedef struct v16 {
    __m256 lo, hi;
} v16;

static inline v16 v_load(const float *p) {
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline void v_store(float *p, v16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
/* The first n < 16 lanes; the others are 0. */
static inline v16 v_load_n(const float *p, size_t n) {
    float lanes[16] = {0};
    memcpy(lanes, p, n * sizeof(float));
    return v_load(lanes);
}
static inline void v_store_n(float *p, v16 a, size_t n) {
    float lanes[16];
    v_store(lanes, a);
    memcpy(p, lanes, n * sizeof(float));
}
static inline v16 v_set(float x) {
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
static inline v16 v_add(v16 a, v16 b) {
    return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
static inline v16 v_sub(v16 a, v16 b) {
    return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
static inline v16 v_mul(v16 a, v16 b) {
    return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
static inline v16 v_div(v16 a, v16 b) {
    return (v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
/* a * b + c */
static inline v16 v_fma(v16 a, v16 b, v16 c) {
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
/* a * b - c */
static inline v16 v_fms(v16 a, v16 b, v16 c) {
    return (v16){_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)};
}
/* c - a * b */
static inline v16 v_fnma(v16 a, v16 b, v16 c) {
    return (v16){_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
/* b where a lane of either is NaN */
static inline v16 v_max(v16 a, v16 b) {
    return (v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
static inline v16 v_min(v16 a, v16 b) {
    return (v16){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
static inline v16 v_abs(v16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
static inline __m256 scale8(__m256 p, __m256 n) {
    const __m256i e = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(e, 1);
    const __m256i bias = _mm256_set1_epi32(127), rest = _mm256_sub_epi32(e, half);
    const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}
/* p * 2^n for integral n */
static inline v16 v_scale(v16 p, v16 n) {
    return (v16){scale8(p.lo, n.lo), scale8(p.hi, n.hi)};
}
static inline v16 v_from_half(const void *p) {
    const __m128i *half = p;
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128(half)),
                 _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
}
static inline void v_to_half(void *p, v16 a) {
    __m128i *half = p;
    _mm_storeu_si128(half, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(half + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
static inline v16 v_from_int8(const void *p) {
    const __m128i bytes = _mm_loadu_si128(p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
/* Rounded to nearest even; |a| <= 127. */
static inline void v_to_int8(void *p, v16 a) {
    const __m256i words =
        _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    const __m256i order = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128(
        p, _mm_packs_epi16(_mm256_castsi256_si128(order), _mm256_extracti128_si256(order, 1)));
}
/* Which lanes are equal, or NaN. */
static inline unsigned v_equal(v16 a, v16 b) {
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)) << 8;
}
static inline unsigned v_is_nan(v16 a) {
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)) << 8;
}
/* Lanes i and i + 8 joined. */
static inline __m256 v_fold8(v16 a) {
    return _mm256_add_ps(a.lo, a.hi);
}

/* out[a * out_stride + b] = dot(q[a], k + b * k_stride) over n values, n a multiple of 16.
 * The 4 trees are one: each step joins the halves of two vectors in one addition. */
static inline void tile_dot(const float *const q[2], const float *k, size_t k_stride, size_t n,
                            float *out, size_t out_stride) {
    v16 s[4] = {v_set(0.0f), v_set(0.0f), v_set(0.0f), v_set(0.0f)};
    for (size_t d = 0; d < n; d += 16) {
        const v16 q0 = v_load(q[0] + d), q1 = v_load(q[1] + d);
        const v16 k0 = v_load(k + d), k1 = v_load(k + k_stride + d);
        s[0] = v_fma(q0, k0, s[0]);
        s[1] = v_fma(q0, k1, s[1]);
        s[2] = v_fma(q1, k0, s[2]);
        s[3] = v_fma(q1, k1, s[3]);
    }
    const __m256 f0 = v_fold8(s[0]), f1 = v_fold8(s[1]), f2 = v_fold8(s[2]), f3 = v_fold8(s[3]);
    const __m256d a = _mm256_castps_pd(_mm256_add_ps(_mm256_permute2f128_ps(f0, f2, 0x20),
                                                     _mm256_permute2f128_ps(f0, f2, 0x31)));
    const __m256d b = _mm256_castps_pd(_mm256_add_ps(_mm256_permute2f128_ps(f1, f3, 0x20),
                                                     _mm256_permute2f128_ps(f1, f3, 0x31)));
    const __m256 pairs = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                                       _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    const __m256 sums = _mm256_hadd_ps(pairs, pairs);
    _mm_storel_pi((__m64 *)(void *)out, _mm256_castps256_ps128(sums));
    _mm_storel_pi((__m64 *)(void *)(out + out_stride), _mm256_extractf128_ps(sums, 1));
}

#endif

static inline v16 v_zero(void) {
    return v_set(0.0f);
}

/* math_tree16() of the lanes. */
static inline float v_tree(v16 a) {
    const __m256 eight = v_fold8(a);
    const __m128 four =
        _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The largest lane; no lane is NaN. */
static inline float v_largest(v16 a) {
    float lanes[16], largest = -INFINITY;
    v_store(lanes, a);
    for (int i = 0; i < 16; i++)
        largest = lanes[i] > largest ? lanes[i] : largest;
    return largest;
}

/* math_dot(): any n. */
static inline float v_dot(const float *a, const float *b, size_t n) {
    v16 sum = v_zero();
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        sum = v_fma(v_load(a + i), v_load(b + i), sum);
    if (i < n) sum = v_fma(v_load_n(a + i, n - i), v_load_n(b + i, n - i), sum);
    return v_tree(sum);
}

static inline v16 v_exp(v16 x) {
    /* In this order of operands min and max keep a NaN of x. */
    x = v_max(v_set(MATH_EXP_MIN), v_min(v_set(MATH_EXP_MAX), x));
    const v16 n = v_sub(v_fma(x, v_set(MATH_LOG2E), v_set(MATH_ROUND)), v_set(MATH_ROUND));
    const v16 r = v_fnma(n, v_set(MATH_LN2_LO), v_fnma(n, v_set(MATH_LN2_HI), x));
    v16 p = v_set(1.0f / 5040);
    p = v_fma(p, r, v_set(1.0f / 720));
    p = v_fma(p, r, v_set(1.0f / 120));
    p = v_fma(p, r, v_set(1.0f / 24));
    p = v_fma(p, r, v_set(1.0f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_scale(p, n);
}

static inline v16 v_exp_negative(v16 x) { /* exp(-x) */
    return v_exp(v_mul(x, v_set(-1.0f)));
}

static inline v16 v_sigmoid(v16 x) {
    return v_div(v_set(1.0f), v_add(v_set(1.0f), v_exp_negative(x)));
}

static inline v16 v_silu(v16 x) {
    return v_div(x, v_add(v_set(1.0f), v_exp_negative(x)));
}

static inline v16 v_softplus(v16 x) {
    const v16 u = v_exp_negative(v_abs(x));
    const v16 s = v_div(u, v_add(v_set(2.0f), u)), z = v_mul(s, s);
    v16 p = v_set(1.0f / 15);
    p = v_fma(p, z, v_set(1.0f / 13));
    p = v_fma(p, z, v_set(1.0f / 11));
    p = v_fma(p, z, v_set(1.0f / 9));
    p = v_fma(p, z, v_set(1.0f / 7));
    p = v_fma(p, z, v_set(1.0f / 5));
    p = v_fma(p, z, v_set(1.0f / 3));
    p = v_fma(p, z, v_set(1.0f));
    return v_add(v_max(x, v_zero()), v_mul(v_mul(v_set(2.0f), s), p));
}

#endif
