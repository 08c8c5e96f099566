/* dequantize.c - blocks of every tensor type to float32, one value at a time.
 *
 * This is the oracle: it follows the formula of each format as it is written,
 * with float32 products in this order and no fused multiply-add (the build has
 * -ffp-contract=off), so results are bit-equal to the reference's.
 * Shapes  n values, a multiple of the type's block; blocks need no alignment.
 * Source  the block layouts of ggml, as this project's GGUF notes give them.
 */
#include "common/error.h"
#include "kernels/cpu/block_bits.h"
#include "kernels/cpu/dequantize_impl.h"
#include "kernels/matmul.h"

#include <string.h>

typedef void (*block_decoder)(const uint8_t *b, float *y);

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

static void decode_mxfp4(const uint8_t *b, float *y) {
    float d = mxfp4_scale(b[0]);
    for (int e = 0; e < 32; e++)
        y[e] = (float)mxfp4_levels[nibble_of_32(b + 1, e)] * d;
}

/* ---- blocks of 256 ---- */

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

static void decode_q3_k(const uint8_t *b, float *y) {
    float d = load_half(b + 108);
    for (int e = 0; e < 256; e++) {
        float scale = d * (float)q3_k_scale(b + 96, e / 16);
        int high = b[e % 32] >> (e / 32) & 1;
        y[e] = scale * (float)(pair_of_256(b + 32, e) - (high ? 0 : 4));
    }
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
        float scale = d * (float)(int8_t)b[192 + e / 16];
        y[e] = scale * (float)(q6_k_value(b, e) - 32);
    }
}

static void decode_iq4_xs(const uint8_t *b, float *y) {
    float d = load_half(b);
    for (int e = 0; e < 256; e++) {
        int j = e / 32;
        int v = nibble_of_32(b + 8 + j * 16, e % 32);
        y[e] = d * (float)iq4_xs_scale(b, j) * (float)iq4_levels[v];
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

void dequantize_row_fast(cpu_tier tier, quant_type type, const void *blocks, size_t n,
                         float *out) {
    if (tier != CPU_SCALAR && dequantize_row_avx2(type, blocks, n, out)) return;
    dequantize_row(type, blocks, n, out);
}
