/* unit.cuh - 32 consecutive weights of any quantized type as int8 with scales and minima.
 *
 * Every format is brought to one form: w[e] = scale[e / 16] * q[e] - min[e / 16], with q in
 * -128 .. 127, four to a word, in the order of the columns.  The products and the difference
 * are the ones of the format's formula, so dequantizing through a unit gives the same bits as
 * kernels/cpu/dequantize.c.  Loading and decoding are apart, so that several loads can be in
 * flight before the first value is needed.
 *
 * unit_load     block types in 16-byte loads where the format allows (Q4_K, Q5_K, split Q6_K), in
 *               words for the types that are only 2-aligned (Q6_K, Q8_0)
 * unit_any      every type, by bytes; for the rare ones
 */
#ifndef SILICEO_KERNELS_CUDA_UNIT_CUH
#define SILICEO_KERNELS_CUDA_UNIT_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/weights.h"

typedef struct weight_unit {
    uint32_t q[8];
    float scale[2];
    float min[2];
} weight_unit;

/* What unit_load fetches: v as the type wants it, extra a few loose bytes.  Nothing is computed
 * from loaded words before they are decoded, so that loading waits for nothing. */
typedef struct raw_unit {
    uint4 v[5];
    uint32_t extra;
} raw_unit;

/* A matrix as the kernels see it. */
typedef struct matrix_view {
    const unsigned char *base;
    uint64_t row_bytes;
    uint64_t split_d;
    uint32_t type;
    uint32_t n_cols;
} matrix_view;

DEVICE const unsigned char *matrix_row(const matrix_view &m, uint32_t row) {
    return m.base + row * m.row_bytes;
}

#define LOW_NIBBLES 0x0f0f0f0fu

/* Words of a byte array that may begin in the middle of a word. */
DEVICE uint32_t joined(uint32_t low, uint32_t high, uint32_t shift) {
    return __funnelshift_r(low, high, shift);
}

/* The words around 32 bytes at an even address, nine where they begin in the middle of a word;
 * never reads beyond them.  They are put together when they are used, so that nothing waits for
 * the loads here.  Word i of the nine is v[i / 4], and the ninth is `last`. */
DEVICE void load32_even(const unsigned char *p, uint4 *v, uint32_t &last) {
    const uint32_t odd = (uint32_t)((uintptr_t)p & 2);
    const unsigned char *w = p - odd;
    v[0].x = load4(w);
    v[0].y = load4(w + 4);
    v[0].z = load4(w + 8);
    v[0].w = load4(w + 12);
    v[1].x = load4(w + 16);
    v[1].y = load4(w + 20);
    v[1].z = load4(w + 24);
    v[1].w = load4(w + 28);
    last = odd ? load2(p + 30) : 0;
}

DEVICE void join32(const uint4 *v, uint32_t last, uint32_t shift, uint32_t *out) {
    out[0] = joined(v[0].x, v[0].y, shift);
    out[1] = joined(v[0].y, v[0].z, shift);
    out[2] = joined(v[0].z, v[0].w, shift);
    out[3] = joined(v[0].w, v[1].x, shift);
    out[4] = joined(v[1].x, v[1].y, shift);
    out[5] = joined(v[1].y, v[1].z, shift);
    out[6] = joined(v[1].z, v[1].w, shift);
    out[7] = joined(v[1].w, last, shift);
}

/* row: the row's first byte; u: which 32 columns of it.  HEAD: of Q5_K the scales too. */
template <int TYPE, bool HEAD = true>
DEVICE void unit_load(const matrix_view &m, const unsigned char *row, uint32_t u, raw_unit &r) {
    const uint32_t in = u % 8;
    if (TYPE == QUANT_Q4_K) {
        const unsigned char *b = row + u / 8 * 144;
        r.v[0] = load16(b);
        r.v[1] = load16(b + 16 + in / 2 * 32);
        r.v[2] = load16(b + 32 + in / 2 * 32);
    } else if (TYPE == QUANT_Q5_K) {
        const unsigned char *b = row + u / 8 * 176;
        if (HEAD) r.v[0] = load16(b);
        r.v[1] = load16(b + 48 + in / 2 * 32);
        r.v[2] = load16(b + 64 + in / 2 * 32);
        r.v[3] = load16(b + 16);
        r.v[4] = load16(b + 32);
    } else if (TYPE == CUDA_Q6_K_SPLIT) {
        const unsigned char *b = row + u / 8 * 208;
        const uint64_t block = (uint64_t)(b - m.base) / 208;
        r.v[0] = load16(b + in / 4 * 64 + in % 2 * 32);
        r.v[1] = load16(b + in / 4 * 64 + in % 2 * 32 + 16);
        r.v[2] = load16(b + 128 + in / 4 * 32);
        r.v[3] = load16(b + 128 + in / 4 * 32 + 16);
        r.extra = load2(b + 192 + in * 2);
        r.v[4].w = load2(m.base + m.split_d + 2 * block);
    } else if (TYPE == QUANT_Q6_K) {
        const unsigned char *b = row + u / 8 * 210;
        load32_even(b + in / 4 * 64 + in % 2 * 32, &r.v[0], r.v[4].x);
        load32_even(b + 128 + in / 4 * 32, &r.v[2], r.v[4].y);
        r.v[4].z = (uint32_t)((uintptr_t)b & 2) * 8;
        r.extra = load2(b + 192 + in * 2);
        r.v[4].w = load2(b + 208);
    } else if (TYPE == QUANT_Q8_0) {
        const unsigned char *b = row + u * 34;
        load32_even(b + 2, &r.v[0], r.v[4].x);
        r.v[4].z = (uint32_t)((uintptr_t)(b + 2) & 2) * 8;
        r.extra = load2(b);
    }
}

DEVICE uint32_t low_or_high(uint32_t word, uint32_t shift) {
    return (word >> shift) & LOW_NIBBLES;
}

/* Scale and minimum j of the 12 bytes of Q4_K and Q5_K, which are words y, z, w of the block. */
DEVICE void k4_scale_min(const uint4 &head, uint32_t j, weight_unit &u) {
    const uint32_t shift = j % 4 * 8;
    const uint32_t a = head.y >> shift & 255, b = head.z >> shift & 255,
                   c = head.w >> shift & 255;
    const uint32_t scale = j < 4 ? a & 63 : (c & 15) | a >> 6 << 4;
    const uint32_t min = j < 4 ? b & 63 : c >> 4 | b >> 6 << 4;
    u.scale[0] = u.scale[1] = half_value(head.x & 0xffff) * (float)scale;
    u.min[0] = u.min[1] = half_value(head.x >> 16) * (float)min;
}

/* Subtract n from each byte; the bytes are below 128. */
DEVICE uint32_t bytes_less(uint32_t v, uint32_t n) {
    return ((v | 0x80808080u) - n) ^ 0x80808080u;
}

DEVICE void words_of(const uint4 &a, const uint4 &b, uint32_t *w) {
    w[0] = a.x;
    w[1] = a.y;
    w[2] = a.z;
    w[3] = a.w;
    w[4] = b.x;
    w[5] = b.y;
    w[6] = b.z;
    w[7] = b.w;
}

/* OFFSET: Q6_K as 0 .. 63 with minima of 32 scales, which is less work; the same value but for
 * rounding. */
template <int TYPE, bool OFFSET = false>
DEVICE void unit_decode(const raw_unit &r, uint32_t u, weight_unit &out) {
    const uint32_t in = u % 8;
    uint32_t low[8], high[8];
    if (TYPE == QUANT_Q4_K || TYPE == QUANT_Q5_K) {
        k4_scale_min(r.v[0], in, out);
        words_of(r.v[1], r.v[2], low);
        if (TYPE == QUANT_Q5_K) words_of(r.v[3], r.v[4], high);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            out.q[i] = low_or_high(low[i], in % 2 * 4);
            if (TYPE == QUANT_Q5_K) out.q[i] |= ((high[i] >> in) & 0x01010101u) << 4;
        }
    } else if (TYPE == QUANT_Q6_K || TYPE == CUDA_Q6_K_SPLIT) {
        if (TYPE == QUANT_Q6_K) {
            join32(&r.v[0], r.v[4].x, r.v[4].z, low);
            join32(&r.v[2], r.v[4].y, r.v[4].z, high);
        } else {
            words_of(r.v[0], r.v[1], low);
            words_of(r.v[2], r.v[3], high);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t upper = high[i] >> in % 4 * 2 << 4;
            const uint32_t v = low_or_high(low[i], in % 4 / 2 * 4) | (upper & 0x30303030u);
            out.q[i] = OFFSET ? v : bytes_less(v, 0x20202020u);
        }
        const float d = half_value(r.v[4].w);
        out.scale[0] = d * (float)(signed char)(r.extra & 255);
        out.scale[1] = d * (float)(signed char)(r.extra >> 8 & 255);
        out.min[0] = OFFSET ? 32.0f * out.scale[0] : 0.0f;
        out.min[1] = OFFSET ? 32.0f * out.scale[1] : 0.0f;
    } else if (TYPE == QUANT_Q8_0) {
        join32(&r.v[0], r.v[4].x, r.v[4].z, out.q);
        out.scale[0] = out.scale[1] = half_value(r.extra);
        out.min[0] = out.min[1] = 0;
    }
}

/* ---- every type, a byte at a time ---- */

#ifdef CUDA_EMU
#define CONSTANT_TABLE static const
#else
#define CONSTANT_TABLE __device__ const
#endif
CONSTANT_TABLE signed char unit_iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                  1,    13,   25,  38,  53,  69,  89,  113};
CONSTANT_TABLE signed char unit_mxfp4_levels[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                    0, -1, -2, -3, -4, -6, -8, -12};

DEVICE uint32_t unit_u16(const unsigned char *b) {
    return load1(b) | load1(b + 1) << 8;
}
DEVICE float unit_half(const unsigned char *b) {
    return half_value(unit_u16(b));
}
/* Nibble e of 32 in 16 bytes: the low ones first. */
DEVICE int unit_nibble(const unsigned char *q, int e) {
    return (int)(load1(q + e % 16) >> (e / 16 * 4) & 15);
}
DEVICE void unit_factors(weight_unit &u, float scale, float min) {
    u.scale[0] = u.scale[1] = scale;
    u.min[0] = u.min[1] = min;
}

/* Blocks of 32: value e of block b, and the block's factors. */
DEVICE int value_of_32(uint32_t type, const unsigned char *b, int e) {
    switch (type) {
    case QUANT_Q4_0:
        return unit_nibble(b + 2, e) - 8;
    case QUANT_Q4_1:
        return unit_nibble(b + 4, e);
    case QUANT_Q5_0:
        return (unit_nibble(b + 6, e) | (int)(load1(b + 2 + e / 8) >> e % 8 & 1) << 4) - 16;
    case QUANT_Q5_1:
        return unit_nibble(b + 8, e) | (int)(load1(b + 4 + e / 8) >> e % 8 & 1) << 4;
    case QUANT_Q8_0:
        return (signed char)load1(b + 2 + e);
    case QUANT_IQ4_NL:
        return unit_iq4_levels[unit_nibble(b + 2, e)];
    default: /* QUANT_MXFP4 */
        return unit_mxfp4_levels[unit_nibble(b + 1, e)];
    }
}

/* 2^(exponent - 128); exponents 0 and 1 give subnormal floats. */
DEVICE float mxfp4_factor(uint32_t exponent) {
    return __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

DEVICE uint32_t block_bytes_of_32(uint32_t type) {
    switch (type) {
    case QUANT_Q4_1:
        return 20;
    case QUANT_Q5_0:
        return 22;
    case QUANT_Q5_1:
        return 24;
    case QUANT_Q8_0:
        return 34;
    case QUANT_MXFP4:
        return 17;
    default:
        return 18; /* QUANT_Q4_0, QUANT_IQ4_NL */
    }
}

DEVICE void factors_of_32(uint32_t type, const unsigned char *b, weight_unit &u) {
    if (type == QUANT_MXFP4)
        unit_factors(u, mxfp4_factor(load1(b)), 0);
    else if (type == QUANT_Q4_1 || type == QUANT_Q5_1)
        unit_factors(u, unit_half(b), -unit_half(b + 2));
    else
        unit_factors(u, unit_half(b), 0);
}

/* Blocks of 256: value e (0..31) of unit `in` of block b. */
DEVICE int value_of_256(uint32_t type, const unsigned char *b, uint32_t in, int e) {
    const unsigned char *pairs = b + (type == QUANT_Q2_K ? 16 : 32) + in / 4 * 32;
    if (type == QUANT_IQ4_XS) return unit_iq4_levels[unit_nibble(b + 8 + in * 16, e)];
    const int v = (int)(load1(pairs + e) >> (in % 4 * 2) & 3);
    if (type == QUANT_Q2_K) return v;
    return v - (load1(b + e) >> in & 1 ? 0 : 4); /* QUANT_Q3_K */
}

DEVICE int q3_k_group_scale(const unsigned char *s, uint32_t j) {
    const uint32_t low = j < 8 ? load1(s + j) & 15 : load1(s + j - 8) >> 4;
    return (int)(low | (load1(s + 8 + j % 4) >> (j / 4 * 2) & 3) << 4) - 32;
}

DEVICE void factors_of_256(uint32_t type, const unsigned char *b, uint32_t in, weight_unit &u) {
    if (type == QUANT_IQ4_XS) {
        const uint32_t low = load1(b + 4 + in / 2) >> (in % 2 * 4) & 15;
        const uint32_t high = unit_u16(b + 2) >> (2 * in) & 3;
        unit_factors(u, unit_half(b) * (float)((int)(low | high << 4) - 32), 0);
        return;
    }
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t g = in * 2 + h;
        if (type == QUANT_Q2_K) {
            u.scale[h] = unit_half(b + 80) * (float)(load1(b + g) & 15);
            u.min[h] = unit_half(b + 82) * (float)(load1(b + g) >> 4);
        } else {
            u.scale[h] = unit_half(b + 108) * (float)q3_k_group_scale(b + 96, g);
            u.min[h] = 0;
        }
    }
}

DEVICE bool is_block_of_256(uint32_t type) {
    return type == QUANT_Q2_K || type == QUANT_Q3_K || type == QUANT_IQ4_XS;
}

/* A call, not inlined: the code is large and its callers are many. */
DEVICE_CALL weight_unit unit_of_rare(uint32_t type, const unsigned char *row, uint32_t u) {
    weight_unit out;
    const bool large = is_block_of_256(type);
    const uint32_t bytes = type == QUANT_Q2_K     ? 84
                           : type == QUANT_Q3_K   ? 110
                           : type == QUANT_IQ4_XS ? 136
                                                  : block_bytes_of_32(type);
    const unsigned char *b = row + (large ? u / 8 : u) * (uint64_t)bytes;
    if (large)
        factors_of_256(type, b, u % 8, out);
    else
        factors_of_32(type, b, out);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t word = 0;
        for (int k = 0; k < 4; k++) {
            const int v = large ? value_of_256(type, b, u % 8, 4 * i + k)
                                : value_of_32(type, b, 4 * i + k);
            word |= (uint32_t)(v & 255) << (8 * k);
        }
        out.q[i] = word;
    }
    return out;
}

DEVICE void unit_rare(const matrix_view &m, const unsigned char *row, uint32_t u,
                      weight_unit &out) {
    out = unit_of_rare(m.type, row, u);
}

template <int TYPE>
DEVICE void unit_of(const matrix_view &m, const unsigned char *row, uint32_t u,
                    weight_unit &out) {
    raw_unit raw;
    unit_load<TYPE>(m, row, u, raw);
    unit_decode<TYPE>(raw, u, out);
}

/* Any quantized type, chosen when the kernel runs. */
DEVICE void unit_any(const matrix_view &m, const unsigned char *row, uint32_t u,
                     weight_unit &out) {
    switch (m.type) {
    case QUANT_Q4_K:
        return unit_of<QUANT_Q4_K>(m, row, u, out);
    case QUANT_Q5_K:
        return unit_of<QUANT_Q5_K>(m, row, u, out);
    case QUANT_Q6_K:
        return unit_of<QUANT_Q6_K>(m, row, u, out);
    case CUDA_Q6_K_SPLIT:
        return unit_of<CUDA_Q6_K_SPLIT>(m, row, u, out);
    case QUANT_Q8_0:
        return unit_of<QUANT_Q8_0>(m, row, u, out);
    default:
        return unit_rare(m, row, u, out);
    }
}

DEVICE float unit_value(const weight_unit &u, int e) {
    const int q = (signed char)(u.q[e / 4] >> (e % 4 * 8) & 255);
    return (float)q * u.scale[e / 16] - u.min[e / 16];
}

/* ---- float weights: four at a time ---- */

DEVICE bool is_float_type(uint32_t type) {
    return type == QUANT_F32 || type == QUANT_F16 || type == QUANT_BF16;
}

/* Columns 4 i .. 4 i + 3 of a row. */
DEVICE float4 load_float4(uint32_t type, const unsigned char *row, uint32_t i) {
    float4 v;
    if (type == QUANT_F32) {
        const uint4 w = load16(row + 16 * (uint64_t)i);
        v.x = __uint_as_float(w.x);
        v.y = __uint_as_float(w.y);
        v.z = __uint_as_float(w.z);
        v.w = __uint_as_float(w.w);
        return v;
    }
    const uint2 w = load8(row + 8 * (uint64_t)i);
    if (type == QUANT_F16) {
        v.x = half_value(w.x & 0xffff);
        v.y = half_value(w.x >> 16);
        v.z = half_value(w.y & 0xffff);
        v.w = half_value(w.y >> 16);
    } else {
        v.x = __uint_as_float(w.x << 16);
        v.y = __uint_as_float(w.x & 0xffff0000u);
        v.z = __uint_as_float(w.y << 16);
        v.w = __uint_as_float(w.y & 0xffff0000u);
    }
    return v;
}

#endif
