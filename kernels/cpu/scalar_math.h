/* scalar_math.h - the functions and reductions whose bits all tiers agree on, one value a time.
 *
 * Every rounding is written out: fmaf where a multiply and an add are one rounding, and
 * sums in 16 lanes (lane i takes elements i, i + 16, ...) that a fixed tree joins (i with
 * i + 8, + 4, + 2, + 1).  simd.h does the same sixteen at a time, so a row has the same bits
 * on every machine.
 *
 * exp: Cody-Waite reduction by ln 2 in two parts and the Taylor polynomial of degree 7 on
 * |r| <= ln(2)/2; relative error <= 1e-7; NaN stays NaN, overflow is infinity, underflow
 * passes through the subnormals to 0.
 * log1p(u), 0 <= u <= 1: 2 atanh(s) with s = u / (2 + u), series to s^15.
 */
#ifndef SILICEO_KERNELS_CPU_SCALAR_MATH_H
#define SILICEO_KERNELS_CPU_SCALAR_MATH_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MATH_EXP_MIN (-104.0f) /* exp() of it and below rounds to 0 */
#define MATH_EXP_MAX 89.0f     /* exp() of it and above rounds to infinity */
#define MATH_LOG2E   1.44269504f
#define MATH_LN2_HI  0.693359375f
#define MATH_LN2_LO  (-2.12194440e-4f)
#define MATH_ROUND   12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */

static inline float math_pow2(int n) { /* -126 <= n <= 127 */
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline float math_exp(float x) {
    if (x != x) return x;
    x = x < MATH_EXP_MIN ? MATH_EXP_MIN : x > MATH_EXP_MAX ? MATH_EXP_MAX : x;
    const float n = fmaf(x, MATH_LOG2E, MATH_ROUND) - MATH_ROUND;
    const float r = fmaf(n, -MATH_LN2_LO, fmaf(n, -MATH_LN2_HI, x));
    float p = 1.0f / 5040;
    p = fmaf(p, r, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* In two steps, so that neither factor overflows; only the second can round. */
    const int e = (int)n, half = e / 2;
    return p * math_pow2(half) * math_pow2(e - half);
}

static inline float math_sigmoid(float x) {
    return 1.0f / (1.0f + math_exp(-x));
}

static inline float math_silu(float x) {
    return x / (1.0f + math_exp(-x));
}

/* log(1 + exp(x)) without overflow; x itself (in float32) from about 17 on. */
static inline float math_softplus(float x) {
    const float u = math_exp(-fabsf(x));
    const float s = u / (2.0f + u), z = s * s;
    float p = 1.0f / 15;
    p = fmaf(p, z, 1.0f / 13);
    p = fmaf(p, z, 1.0f / 11);
    p = fmaf(p, z, 1.0f / 9);
    p = fmaf(p, z, 1.0f / 7);
    p = fmaf(p, z, 1.0f / 5);
    p = fmaf(p, z, 1.0f / 3);
    p = fmaf(p, z, 1.0f);
    return (x > 0.0f ? x : 0.0f) + 2.0f * s * p;
}

/* The tree that joins 16 lanes. */
static inline float math_tree16(const float lanes[16]) {
    float a[8];
    for (int i = 0; i < 8; i++)
        a[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; i++)
        a[i] += a[i + 4];
    return (a[0] + a[2]) + (a[1] + a[3]);
}

static inline float math_dot(const float *a, const float *b, size_t n) {
    float lanes[16] = {0};
    for (size_t i = 0; i < n; i++)
        lanes[i % 16] = fmaf(a[i], b[i], lanes[i % 16]);
    return math_tree16(lanes);
}

#endif
