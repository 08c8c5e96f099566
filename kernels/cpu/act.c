/* act.c - activation rows in the formats of the matrix kernels; the plain quantizer.
 *
 * act_layout.h describes the layout and the rounding.  The largest magnitude is
 * found on the bits of the floats as integers, which no order of comparison and no
 * NaN can change; every tier gives the same bytes.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/matmul.h"

#include "common/error.h"
#include "common/half.h"
#include <math.h>
#include <string.h>

act_format act_format_of(quant_type type) {
    switch (quant_traits_of((uint32_t)type)->block_values) {
    case 256:
        return ACT_Q8_256;
    case 32:
        return ACT_Q8_32;
    default:
        return ACT_F32;
    }
}

size_t act_row_bytes(act_format format, size_t n_cols) {
    size_t bytes = n_cols * sizeof(float);
    if (format == ACT_Q8_256) bytes = n_cols / 256 * sizeof(act_block);
    if (format == ACT_Q8_32) bytes = act32_q_bytes(n_cols) + n_cols / 32 * 8;
    if (format == ACT_STEP_32 || format == ACT_STEP_16)
        bytes = act32_q_bytes(n_cols) + n_cols / 16 * 12;
    if (format == ACT_Q8_16_PAIRS) bytes = act32_q_bytes(n_cols) + n_cols / 32 * 28;
    return (bytes + 63) / 64 * 64;
}

/* Quantize n values to q; the scale. */
static float quantize(const float *x, size_t n, int8_t *q) {
    uint32_t amax_bits = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        bits &= 0x7fffffffu;
        if (bits > amax_bits) amax_bits = bits;
    }
    float amax = float_from_bits(amax_bits);
    if (!(amax >= ACT_LEAST_AMAX && amax < INFINITY)) {
        memset(q, 0, n);
        return amax_bits < 0x7f800000u ? 0.0f : NAN;
    }
    float inverse = 127.0f / amax;
    for (size_t i = 0; i < n; i++)
        q[i] = (int8_t)lrintf(x[i] * inverse);
    return amax / 127.0f;
}

static int32_t sum_of(const int8_t *q, size_t n) {
    int32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += q[i];
    return sum;
}

static void quantize_256(const float *x, size_t n_cols, void *out) {
    act_block *block = out;
    for (size_t i = 0; i < n_cols; i += 256, block++) {
        memset(block, 0, sizeof *block);
        block->scale = quantize(x + i, 256, block->q);
        for (size_t g = 0; g < 16; g++)
            block->sums16[g] = (int16_t)sum_of(block->q + 16 * g, 16);
        for (size_t g = 0; g < 8; g++)
            block->sums32[g] = (int16_t)sum_of(block->q + 32 * g, 32);
    }
}

static void quantize_32(const float *x, size_t n_cols, void *out) {
    int8_t *q = out;
    float *scales = act32_scales_of(out, n_cols);
    int32_t *sums = (void *)(scales + n_cols / 32);
    for (size_t i = 0; i < n_cols / 32; i++) {
        scales[i] = quantize(x + 32 * i, 32, q + 32 * i);
        sums[i] = sum_of(q + 32 * i, 32);
    }
}

static void quantize_two_16(const float *x, bool pair, int8_t *q, float *scales,
                            int32_t *sums) {
    const size_t group = pair ? 32 : 16;
    for (size_t i = 0; i < 32; i += 16) {
        if (i % group == 0) scales[i / 16] = quantize(x + i, group, q + i);
        if (i % group != 0) scales[1] = scales[0];
        sums[i / 16] = sum_of(q + i, 16);
    }
}

static void quantize_16(cpu_tier tier, act_format format, const float *x, size_t n_cols,
                        void *out) {
    const bool pair = format != ACT_STEP_16;
    int8_t *q = out;
    float *scales = act32_scales_of(out, n_cols), *scaled = scales + n_cols / 16;
    int32_t *sums = (void *)(scaled + n_cols / 16);
    float *scaled_pairs = (void *)(sums + n_cols / 16);
    for (size_t i = 0; i < n_cols / 16; i += 2) {
        if (tier == CPU_SCALAR)
            quantize_two_16(x + 16 * i, pair, q + 16 * i, scales + i, sums + i);
        else
            act_quantize_16_avx2(x + 16 * i, pair, q + 16 * i, scales + i, sums + i);
        scaled[i] = scales[i] * (float)sums[i];
        scaled[i + 1] = scales[i + 1] * (float)sums[i + 1];
        if (format == ACT_Q8_16_PAIRS) scaled_pairs[i / 2] = scaled[i] + scaled[i + 1];
    }
}

/* Zero what no value stands in, so that whole rows can be compared. */
static void clear_padding(act_format format, size_t n_cols, uint8_t *row) {
    memset(row + n_cols, 0, act32_q_bytes(n_cols) - n_cols);
    memset(row + act_row_bytes(format, n_cols) - 64, 0, 64);
}

typedef void (*quantizer)(const float *x, size_t n_cols, void *out);

void act_quantize_row(cpu_tier tier, act_format format, const float *x, size_t n_cols,
                      void *out) {
    static const quantizer by_256[] = {quantize_256, act_quantize_256_avx2,
                                       act_quantize_256_avx512};
    static const quantizer by_32[] = {quantize_32, act_quantize_32_avx2,
                                      act_quantize_32_avx512};
    switch (format) {
    case ACT_F32:
        memcpy(out, x, n_cols * sizeof *x);
        break;
    case ACT_Q8_256:
        CHECK(n_cols % 256 == 0);
        by_256[tier](x, n_cols, out);
        break;
    case ACT_Q8_32:
        CHECK(n_cols % 32 == 0);
        clear_padding(format, n_cols, out);
        by_32[tier](x, n_cols, out);
        break;
    case ACT_Q8_16_PAIRS:
    case ACT_STEP_32:
    case ACT_STEP_16:
        CHECK(n_cols % 32 == 0);
        clear_padding(format, n_cols, out);
        quantize_16(tier, format, x, n_cols, out);
        break;
    case ACT_FORMATS:
        break;
    }
}
