/* ops_case.h - what the tests of the non-matrix kernels share: data, tiers, comparisons. */
#ifndef SILICEO_TESTS_KERNELS_OPS_CASE_H
#define SILICEO_TESTS_KERNELS_OPS_CASE_H

#include "common/half.h"
#include "kernels/cpu/tier.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The head of a loop over every tier that this machine has, the oracle first. */
#define OPS_EACH_TIER                                                                          \
    for (cpu_tier tier = CPU_SCALAR; tier <= cpu_tier_best(); tier = (cpu_tier)(tier + 1))

/* xorshift64; the same numbers in every run. */
static inline uint64_t ops_random(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Uniform in [low, high). */
static inline float ops_uniform(uint64_t *seed, float low, float high) {
    return low + (high - low) * (float)(ops_random(seed) >> 40) * 0x1p-24f;
}

/* n floats, 64-byte aligned; free() them. */
static inline float *ops_floats(size_t n) {
    float *p = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0, n * sizeof(float));
    return p;
}

static inline float *ops_random_floats(uint64_t *seed, size_t n, float low, float high) {
    float *p = ops_floats(n);
    for (size_t i = 0; i < n; i++)
        p[i] = ops_uniform(seed, low, high);
    return p;
}

static inline float *ops_copy(const float *from, size_t n) {
    float *p = ops_floats(n);
    memcpy(p, from, n * sizeof(float));
    return p;
}

/* |a - b| <= absolute + relative * |b| everywhere. */
static inline void ops_assert_close(const float *a, const double *b, size_t n, double absolute,
                                    double relative) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - b[i]) <= absolute + relative * fabs(b[i])))
            fail_msg("[%zu] is %.9g, not %.9g", i, (double)a[i], b[i]);
}

/* sqrt(sum (a - b)^2 / sum b^2) */
static inline double ops_relative_l2(const float *a, const double *b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}

/* The same bits; NaNs are equal whatever their payload. */
static inline int ops_same(float a, float b) {
    return float_to_bits(a) == float_to_bits(b) || (isnan(a) && isnan(b));
}

static inline void ops_assert_same(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!ops_same(a[i], b[i]))
            fail_msg("[%zu] is %.9g, not %.9g", i, (double)a[i], (double)b[i]);
}

#endif
