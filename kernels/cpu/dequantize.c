/* dequantize.c - blocks of every tensor type to float32, one value at a time.
 *
 * This is the oracle: it follows the formula of each format as it is written,
 * with float32 products in this order and no fused multiply-add (the build has
 * -ffp-contract=off), so results are bit-equal to the reference's.
 * Shapes  n values, a multiple of the type's block; blocks need no alignment.
 * Source  the block layouts of ggml, as this project's GGUF notes give them.
 */
#include "common/error.h"
#include "common/half.h"
#include "kernels/matmul.h"

#include <string.h>

typedef void (*block_decoder)(const uint8_t *b, float *y);

/* The 16 levels that the IQ4 types share, and twice the values of E2M1. */
static const int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t mxfp4_levels[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                        0, -1, -2, -3, -4, -6, -8, -12};

static uint16_t load_u16(const uint8_t *b) {
    return (uint16_t)(b[0] | b[1] << 8);
}

static uint32_t load_u32(const uint8_t *b) {
    return (uint32_t)load_u16(b) | (uint32_t)load_u16(b + 2) << 16;
}

static float load_half(const uint8_t *b) {
    return half_to_float(load_u16(b));
}

/* Value e of 32 nibbles in 16 bytes: the low ones first, then the high ones. */
static int nibble_of_32(const uint8_t *q, int e) {
    return e < 16 ? q[e] & 15 : q[e - 16] >> 4;
}

static void decode_f32(const uint8_t *b, float *y) {
    memcpy(y, b, sizeof *y);
}

static void decode_f16(const uint8_t *b, float *y) {
    *y = load_half(b);
}

static void decode_bf16(const uint8_t *b, float *y) {
    *y = bf16_to_float(load_u16(b));
}

/* ---- blocks of 32 ---- */

static void decode_q8_0(const uint8_t *b, float *y) {
    float d = load_half(b);
    for (int e = 0; e < 32; e++)
        y[e] = (float)(int8_t)b[2 + e] * d;
}

static void decode_q4_0(const uint8_t *b, float *y) {
    float d = load_half(b);
    for (int e = 0; e < 32; e++)
        y[e] = (float)(nibble_of_32(b + 2, e) - 8) * d;
}

static void decode_q4_1(const uint8_t *b, float *y) {
    float d = load_half(b);
    float m = load_half(b + 2);
    for (int e = 0; e < 32; e++)
        y[e] = (float)nibble_of_32(b + 4, e) * d + m;
}

static void decode_q5_0(const uint8_t *b, float *y) {
    float d = load_half(b);
    uint32_t high = load_u32(b + 2);
    for (int e = 0; e < 32; e++) {
        int v = nibble_of_32(b + 6, e) | (int)(high >> e & 1u) << 4;
        y[e] = (float)(v - 16) * d;
    }
}

static void decode_q5_1(const uint8_t *b, float *y) {
    float d = load_half(b);
    float m = load_half(b + 2);
    uint32_t high = load_u32(b + 4);
    for (int e = 0; e < 32; e++) {
        int v = nibble_of_32(b + 8, e) | (int)(high >> e & 1u) << 4;
        y[e] = (float)v * d + m;
    }
}

static void decode_iq4_nl(const uint8_t *b, float *y) {
    float d = load_half(b);
    for (int e = 0; e < 32; e++)
        y[e] = d * (float)iq4_levels[nibble_of_32(b + 2, e)];
}

/* 2^(exponent - 128); exponents 0 and 1 give subnormal floats. */
static float mxfp4_scale(uint8_t exponent) {
    if (exponent < 2) return float_from_bits(0x00200000u << exponent);
    return float_from_bits((uint32_t)(exponent - 1) << 23);
}

static void decode_mxfp4(const uint8_t *b, float *y) {
    float d = mxfp4_scale(b[0]);
    for (int e = 0; e < 32; e++)
        y[e] = (float)mxfp4_levels[nibble_of_32(b + 1, e)] * d;
}

/* ---- blocks of 256 ---- */

/* Value e of 256 two-bit values in 64 bytes: halves of 128, four groups of 32 in each. */
static int pair_of_256(const uint8_t *q, int e) {
    return q[e / 128 * 32 + e % 32] >> (2 * (e % 128 / 32)) & 3;
}

static void decode_q2_k(const uint8_t *b, float *y) {
    const uint8_t *q = b + 16;
    float d = load_half(b + 80);
    float dmin = load_half(b + 82);
    for (int e = 0; e < 256; e++) {
        float scale = d * (float)(b[e / 16] & 15);
        float min = dmin * (float)(b[e / 16] >> 4);
        y[e] = scale * (float)pair_of_256(q, e) - min;
    }
}

/* Scale j of Q3_K: 4 low and 2 high bits packed in 12 bytes, less 32. */
static int q3_k_scale(const uint8_t *s, int j) {
    int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
    int high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
    return (low | high << 4) - 32;
}

static void decode_q3_k(const uint8_t *b, float *y) {
    float d = load_half(b + 108);
    for (int e = 0; e < 256; e++) {
        float scale = d * (float)q3_k_scale(b + 96, e / 16);
        int high = b[e % 32] >> (e / 32) & 1;
        y[e] = scale * (float)(pair_of_256(b + 32, e) - (high ? 0 : 4));
    }
}

/* Scale and minimum j of Q4_K and Q5_K: 6 bits each, packed in 12 bytes. */
static void k4_scale_min(const uint8_t *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        *min = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
}

/* Nibble e of 256 in 128 bytes: groups of 64, low nibbles before high ones. */
static int nibble_of_256(const uint8_t *q, int e) {
    int byte = q[e / 64 * 32 + e % 32];
    return e / 32 % 2 ? byte >> 4 : byte & 15;
}

/* high: the fifth bits of Q5_K, one byte for each of 32 columns; NULL for Q4_K. */
static void decode_k4(const uint8_t *b, const uint8_t *q, const uint8_t *high, float *y) {
    float d = load_half(b);
    float dmin = load_half(b + 2);
    for (int e = 0; e < 256; e++) {
        int scale;
        int min;
        k4_scale_min(b + 4, e / 32, &scale, &min);
        int v = nibble_of_256(q, e);
        if (high != NULL) v += (high[e % 32] >> (e / 32) & 1) << 4;
        y[e] = d * (float)scale * (float)v - dmin * (float)min;
    }
}

static void decode_q4_k(const uint8_t *b, float *y) {
    decode_k4(b, b + 16, NULL, y);
}

static void decode_q5_k(const uint8_t *b, float *y) {
    decode_k4(b, b + 48, b + 16, y);
}

static void decode_q6_k(const uint8_t *b, float *y) {
    float d = load_half(b + 208);
    for (int e = 0; e < 256; e++) {
        int half = e / 128;
        int group = e % 128 / 32;
        int low = b[half * 64 + group % 2 * 32 + e % 32];
        low = group >= 2 ? low >> 4 : low & 15;
        int high = b[128 + half * 32 + e % 32] >> (2 * group) & 3;
        float scale = d * (float)(int8_t)b[192 + e / 16];
        y[e] = scale * (float)((low | high << 4) - 32);
    }
}

static void decode_iq4_xs(const uint8_t *b, float *y) {
    float d = load_half(b);
    int scales_high = load_u16(b + 2);
    for (int e = 0; e < 256; e++) {
        int j = e / 32;
        int scale = b[4 + j / 2] >> (4 * (j % 2)) & 15;
        scale |= (scales_high >> (2 * j) & 3) << 4;
        int v = nibble_of_32(b + 8 + j * 16, e % 32);
        y[e] = d * (float)(scale - 32) * (float)iq4_levels[v];
    }
}

static const block_decoder decoders[QUANT_LIMIT] = {
    [QUANT_F32] = decode_f32,       [QUANT_F16] = decode_f16,
    [QUANT_BF16] = decode_bf16,     [QUANT_Q4_0] = decode_q4_0,
    [QUANT_Q4_1] = decode_q4_1,     [QUANT_Q5_0] = decode_q5_0,
    [QUANT_Q5_1] = decode_q5_1,     [QUANT_Q8_0] = decode_q8_0,
    [QUANT_Q2_K] = decode_q2_k,     [QUANT_Q3_K] = decode_q3_k,
    [QUANT_Q4_K] = decode_q4_k,     [QUANT_Q5_K] = decode_q5_k,
    [QUANT_Q6_K] = decode_q6_k,     [QUANT_IQ4_NL] = decode_iq4_nl,
    [QUANT_IQ4_XS] = decode_iq4_xs, [QUANT_MXFP4] = decode_mxfp4,
};

void dequantize_row(quant_type type, const void *blocks, size_t n, float *out) {
    const quant_traits *traits = quant_traits_of((uint32_t)type);
    CHECK(traits->name != NULL && n % traits->block_values == 0);
    block_decoder decode = decoders[type];
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i += traits->block_values) {
        decode(b, out + i);
        b += traits->block_bytes;
    }
}
