/* act_layout.h - how quantized activation rows lie in memory; internal to the matrix kernels.
 *
 * Q8_256: one act_block a 256 columns.  Q8_32: all q of the row (padded to 64 bytes), then a
 * float scale and an int32 sum of q for each 32 columns.  STEP_16 and STEP_32: all q (padded
 * likewise), then arrays of a value for each 16 columns: float scale, float scale * sum of q, int32
 * sum of q.  Q8_16_PAIRS: the same, and the float sum of two scale * sum for each 32 columns.
 * All are symmetric: scale = amax / 127, q = x * (127 / amax) to the nearest, ties to
 * even, so q lies in -127..127.  amax below 2^-100 gives scale 0; a NaN or an infinity
 * among the values gives a NaN scale and q 0, so that it shows in the result.
 */
#ifndef SILICEO_KERNELS_CPU_ACT_LAYOUT_H
#define SILICEO_KERNELS_CPU_ACT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct act_block {
    float scale;
    int16_t sums32[8];  /* sum of q over each 32 columns */
    int16_t sums16[16]; /* and over each 16 */
    uint8_t unused[12];
    int8_t q[256];
} act_block;

_Static_assert(sizeof(act_block) == 320, "whole cache lines");
_Static_assert(offsetof(act_block, q) == 64, "q on a cache line");

#define ACT_LEAST_AMAX 0x1p-100f

static inline size_t act32_q_bytes(size_t n_cols) {
    return (n_cols + 63) / 64 * 64;
}

static inline const int8_t *act32_q(const void *row) {
    return row;
}

static inline const float *act32_scales(const void *row, size_t n_cols) {
    return (const void *)((const uint8_t *)row + act32_q_bytes(n_cols));
}

static inline const int32_t *act32_sums(const void *row, size_t n_cols) {
    return (const void *)(act32_scales(row, n_cols) + n_cols / 32);
}

static inline float *act32_scales_of(void *row, size_t n_cols) {
    return (void *)((uint8_t *)row + act32_q_bytes(n_cols));
}

/* Rows of STEP_16, STEP_32 and Q8_16_PAIRS; q lies as in Q8_32. */
static inline const float *act16_scales(const void *row, size_t n_cols) {
    return (const void *)((const uint8_t *)row + act32_q_bytes(n_cols));
}

static inline const float *act16_scaled(const void *row, size_t n_cols) {
    return act16_scales(row, n_cols) + n_cols / 16;
}

static inline const int32_t *act16_sums(const void *row, size_t n_cols) {
    return (const void *)(act16_scales(row, n_cols) + n_cols / 8);
}

/* Of Q8_16_PAIRS alone. */
static inline const float *act16_scaled_pairs(const void *row, size_t n_cols) {
    return act16_scales(row, n_cols) + n_cols / 16 * 3;
}

/* What kernels read of such a row, from a column on that is a multiple of 32. */
typedef struct act16_row {
    const int8_t *q;
    const float *scales;
    const float *scaled; /* of groups of 16, or of Q8_16_PAIRS of 32 */
    const int32_t *sums;
} act16_row;

static inline act16_row act16_row_at(const void *row, size_t n_cols, size_t group,
                                     size_t first) {
    const float *scaled =
        group == 32 ? act16_scaled_pairs(row, n_cols) : act16_scaled(row, n_cols);
    return (act16_row){.q = act32_q(row) + first,
                       .scales = act16_scales(row, n_cols) + first / 16,
                       .scaled = scaled + first / group,
                       .sums = act16_sums(row, n_cols) + first / 16};
}

/* The quantizers of one tier: n_cols is a multiple of the block.  Padding of Q8_32 rows
 * is left to the caller. */
void act_quantize_256_avx2(const float *x, size_t n_cols, void *out);
void act_quantize_256_avx512(const float *x, size_t n_cols, void *out);
void act_quantize_32_avx2(const float *x, size_t n_cols, void *out);
void act_quantize_32_avx512(const float *x, size_t n_cols, void *out);
/* 32 columns: two scales, equal for a pair, and two sums.  AVX2 serves both fast tiers. */
void act_quantize_16_avx2(const float *x, bool pair, int8_t *q, float *scales, int32_t *sums);

#endif
