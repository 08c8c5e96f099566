/* block_case.h - random numbers, and random blocks of every weight type with scales of a sensible
 * size.
 *
 * Header-only.  The sequence begins anew where case_rng is set.
 */
#ifndef SILICEO_TESTS_KERNELS_BLOCK_CASE_H
#define SILICEO_TESTS_KERNELS_BLOCK_CASE_H

#include "common/half.h"
#include "common/quant_type.h"
#include <string.h>

static uint32_t case_rng = 1;

static uint32_t case_random(void) {
    case_rng ^= case_rng << 13;
    case_rng ^= case_rng >> 17;
    case_rng ^= case_rng << 5;
    return case_rng;
}

/* Sum of four uniforms: near enough to a normal value, deviation about 1. */
static float case_normal(void) {
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(case_random() >> 8) / 16777216.0f - 0.5f;
    return sum * 1.73f;
}

static void case_put_half(uint8_t *at, float value) {
    uint16_t h = half_from_float(value);
    memcpy(at, &h, 2);
}

/* A block of random bits with scales of a sensible size. */
static void case_fill_block(quant_type type, uint8_t *b, size_t block_bytes) {
    for (size_t i = 0; i < block_bytes; i++)
        b[i] = (uint8_t)(case_random() >> 11);
    float d = 0.01f * case_normal(), m = 0.01f * case_normal();
    float value = case_normal();
    uint32_t bits = float_to_bits(value);
    switch (type) {
    case QUANT_F32:
        memcpy(b, &value, 4);
        break;
    case QUANT_F16:
        case_put_half(b, value);
        break;
    case QUANT_BF16:
        b[0] = (uint8_t)(bits >> 16);
        b[1] = (uint8_t)(bits >> 24);
        break;
    case QUANT_MXFP4:
        b[0] = (uint8_t)(case_random() % 200 == 0 ? b[0] % 3 : 115 + b[0] % 16);
        break;
    case QUANT_Q2_K:
        case_put_half(b + 80, d);
        case_put_half(b + 82, m);
        break;
    case QUANT_Q3_K:
        case_put_half(b + 108, d);
        break;
    case QUANT_Q6_K:
        case_put_half(b + 208, d);
        break;
    case QUANT_Q4_1:
    case QUANT_Q5_1:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
        case_put_half(b, d);
        case_put_half(b + 2, m);
        break;
    case QUANT_Q4_0:
    case QUANT_Q5_0:
    case QUANT_Q8_0:
    case QUANT_IQ4_NL:
    case QUANT_IQ4_XS:
    case QUANT_LIMIT:
        case_put_half(b, d);
        break;
    }
}

#endif
