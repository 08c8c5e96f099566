/* wide.cuh - 64 columns of a row at a time, for the types whose bytes hold two groups of 32 each.
 *
 * A lane loads every byte of its columns once (unit.cuh's 32 columns would load them twice), and
 * a row of 2048 columns is one load for each lane of a warp.  The 64 columns are four pieces of 16;
 * piece p of wide unit w is half wide_half(w, p) of the row (16 columns each):
 *   Q4_K, Q5_K       halves 4 w + p
 *   CUDA_Q6_K_SPLIT  of each 128 columns, wide units 0 and 1 have columns 0.., 64.. and 32.., 96..
 * Products and their order are those of dot.cuh, piece after piece; lane l takes the wide units
 * l, l + width, ...
 */
#ifndef SILICEO_KERNELS_CUDA_WIDE_CUH
#define SILICEO_KERNELS_CUDA_WIDE_CUH

#include "kernels/cuda/dot.cuh"

enum { WIDE = 64, PIECES = 4 };

DEVICE bool is_wide_type(uint32_t type) {
    return type == QUANT_Q4_K || type == QUANT_Q5_K || type == CUDA_Q6_K_SPLIT;
}

template <int TYPE> DEVICE uint32_t wide_half(uint32_t w, uint32_t piece) {
    if (TYPE != CUDA_Q6_K_SPLIT) return PIECES * w + piece;
    return w / 2 * 8 + w % 2 * 2 + piece / 2 * 4 + piece % 2;
}

/* Nothing is computed from loaded words before wide_settle. */
template <int TYPE> struct wide_raw {
    uint4 v[TYPE == QUANT_Q4_K ? 3 : TYPE == QUANT_Q5_K ? 5 : 4];
    uint2 scales; /* CUDA_Q6_K_SPLIT alone, and d */
    uint32_t d;
};

/* FRESH: the running launch itself wrote the weights, Q4_K or Q5_K, which forbids the read-only path. */
template <bool FRESH> DEVICE uint4 wide_load16(const void *p) {
    return FRESH ? __ldcg((const uint4 *)p) : load16(p);
}

template <int TYPE, bool FRESH = false>
DEVICE void wide_load(const matrix_view &m, const unsigned char *row, uint32_t w,
                      wide_raw<TYPE> &r) {
    const uint32_t in = w % 4;
    if (TYPE == CUDA_Q6_K_SPLIT) {
        const unsigned char *b = row + w / 4 * 208;
        r.v[0] = load16(b + in * 32);
        r.v[1] = load16(b + in * 32 + 16);
        r.v[2] = load16(b + 128 + in / 2 * 32);
        r.v[3] = load16(b + 128 + in / 2 * 32 + 16);
        r.scales = load8(b + 192 + in / 2 * 8);
        r.d = load2(m.base + m.split_d + (uint64_t)(b - m.base) / 208 * 2);
        return;
    }
    const unsigned char *b = row + w / 4 * (TYPE == QUANT_Q4_K ? 144 : 176);
    const unsigned char *q = b + (TYPE == QUANT_Q4_K ? 16 : 48) + in * 32;
    r.v[0] = wide_load16<FRESH>(b);
    r.v[1] = wide_load16<FRESH>(q);
    r.v[2] = wide_load16<FRESH>(q + 16);
    if (TYPE == QUANT_Q5_K) {
        r.v[TYPE == QUANT_Q5_K ? 3 : 0] = wide_load16<FRESH>(b + 16);
        r.v[TYPE == QUANT_Q5_K ? 4 : 0] = wide_load16<FRESH>(b + 32);
    }
}

/* Scales and minima j, j + 1 (j even) of the 12 bytes of Q4_K and Q5_K in one word: scale, scale,
 * minimum, minimum.  Words y, z, w of the block hold them. */
DEVICE uint32_t k4_two(const uint4 &head, uint32_t j) {
    const uint32_t shift = j % 4 * 8;
    const uint32_t a = head.y >> shift & 0xffff, b = head.z >> shift & 0xffff,
                   c = head.w >> shift & 0xffff;
    if (j < 4) return (a & 0x3f3f) | (b & 0x3f3f) << 16;
    const uint32_t scales = (c & 0x0f0f) | (a >> 2 & 0x3030);
    return scales | ((c >> 4 & 0x0f0f) | (b >> 2 & 0x3030)) << 16;
}

/* The loaded header becomes what wide_factors_of reads: fewer registers, and less work. */
template <int TYPE> DEVICE void wide_settle(wide_raw<TYPE> &r, uint32_t w) {
    if (TYPE != CUDA_Q6_K_SPLIT) r.v[0].y = k4_two(r.v[0], w % 4 * 2);
}

/* What sums of products and of activations are multiplied with: of pieces 2 h and 2 h + 1. */
typedef struct wide_factors {
    float scale[2], min[2];
} wide_factors;

template <int TYPE>
DEVICE wide_factors wide_factors_of(const wide_raw<TYPE> &r, uint32_t w, uint32_t h) {
    wide_factors f;
    if (TYPE == CUDA_Q6_K_SPLIT) {
        const uint32_t two = (h == 0 ? r.scales.x : r.scales.y) >> w % 2 * 16;
        f.scale[0] = half_value(r.d) * (float)(signed char)(two & 255);
        f.scale[1] = half_value(r.d) * (float)(signed char)(two >> 8 & 255);
        f.min[0] = 32.0f * f.scale[0];
        f.min[1] = 32.0f * f.scale[1];
    } else {
        const uint32_t four = r.v[0].y >> 8 * h;
        f.scale[0] = half_value(r.v[0].x & 0xffff) * (float)(four & 255);
        f.min[0] = half_value(r.v[0].x >> 16) * (float)(four >> 16 & 255);
        f.scale[1] = f.scale[0];
        f.min[1] = f.min[0];
    }
    return f;
}

/* The 16 weights of a piece, four to a word. */
template <int TYPE>
DEVICE void wide_words(const wide_raw<TYPE> &r, uint32_t w, int piece, uint32_t (&q)[4]) {
    const int low = TYPE == CUDA_Q6_K_SPLIT ? 0 : 1, high = TYPE == CUDA_Q6_K_SPLIT ? 2 : 3;
    const uint4 l = r.v[low + piece % 2];
    const uint32_t words[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        q[i] = (words[i] >> piece / 2 * 4) & LOW_NIBBLES;
    if (TYPE == QUANT_Q4_K) return;
    const uint4 h = r.v[TYPE == QUANT_Q4_K ? 0 : high + piece % 2];
    const uint32_t upper[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (TYPE == QUANT_Q5_K)
            q[i] |= ((upper[i] >> (w % 4 * 2 + (uint32_t)piece / 2)) & 0x01010101u) << 4;
        else
            q[i] |= ((upper[i] >> (w % 2 * 2 + (uint32_t)piece / 2 * 4)) & 0x03030303u) << 4;
    }
}

/* One piece's part of a row's sum; x and factor are the activations of the same 16 columns. */
template <int TYPE>
DEVICE float wide_dot(const wide_raw<TYPE> &r, const wide_factors &f, uint32_t w, int piece,
                      const uint4 &x, const float2 &factor, float acc) {
    uint32_t q[4];
    wide_words<TYPE>(r, w, piece, q);
    acc = fmaf(f.scale[piece % 2] * factor.x, (float)dot16(q, x), acc);
    return fmaf(-f.min[piece % 2], factor.y, acc);
}

/* An activation row in shared memory, [pieces][n_wide], so that the lanes' loads of 16 bytes meet
 * no bank twice. */
typedef struct wide_acts {
    const uint4 *q;
    const float2 *factor;
    uint32_t n_wide;
} wide_acts;

/* All threads of the block take part; a barrier must follow. */
template <int TYPE>
DEVICE wide_acts wide_acts_copy(uint4 *shared, const void *act, uint32_t n_cols) {
    const uint32_t n_wide = n_cols / WIDE;
    float2 *factor = (float2 *)(shared + PIECES * n_wide);
    for (uint32_t i = threadIdx.x; i < PIECES * n_wide; i += blockDim.x) {
        const uint32_t h = wide_half<TYPE>(i % n_wide, i / n_wide);
        shared[i] = __ldcg((const uint4 *)act + h);
        factor[i] = __ldcg(act_factors(act, n_cols) + h);
    }
    wide_acts x = {shared, factor, n_wide};
    return x;
}

#endif
