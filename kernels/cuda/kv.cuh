/* kv.cuh - reading and writing rows of KV pages on the device; the layout is kv_layout.h's. */
#ifndef SILICEO_KERNELS_CUDA_KV_CUH
#define SILICEO_KERNELS_CUDA_KV_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/kv_layout.h"

DEVICE uint64_t kv_bytes_of_block(uint32_t type, uint32_t head_dim) {
    const uint64_t values = (uint64_t)KV_PAGE_TOKENS * head_dim;
    return type == KV_F32   ? values * 4
           : type == KV_F16 ? values * 2
           : type == KV_Q8  ? values + values / KV_GROUP * 2
                            : values / 2 + values / KV_GROUP * 4;
}

/* part: head for keys, n_kv_heads + head for values. */
DEVICE unsigned char *kv_block_of(const kv_view &v, uint32_t page, uint32_t part) {
    return v.base + page * v.page_bytes + v.layer_offset +
           part * kv_bytes_of_block(v.type, v.head_dim);
}

DEVICE float kv_q8_scale(const unsigned char *block, uint32_t dim, uint32_t slot, uint32_t i) {
    const unsigned short *scales = (const unsigned short *)(block + KV_PAGE_TOKENS * dim);
    return half_value(__ldcg(scales + slot * (dim / KV_GROUP) + i / KV_GROUP));
}

/* Scale and minimum of value i's group, as they lie. */
DEVICE uint32_t kv_q4_halves(const unsigned char *block, uint32_t dim, uint32_t slot,
                             uint32_t i) {
    const unsigned int *halves = (const unsigned int *)(block + KV_PAGE_TOKENS * dim / 2);
    return __ldcg(halves + slot * (dim / KV_GROUP) + i / KV_GROUP);
}

/* The lowest four bits as a value. */
DEVICE float kv_q4_value(uint32_t halves, uint32_t bits) {
    return fmaf(half_value(halves & 0xffff), (float)(bits & 15), half_value(halves >> 16));
}

DEVICE float4 kv_q4_value4(uint32_t halves, uint32_t bits) {
    return make_float4(kv_q4_value(halves, bits), kv_q4_value(halves, bits >> 4),
                       kv_q4_value(halves, bits >> 8), kv_q4_value(halves, bits >> 12));
}

/* Value i of position slot.  The type is a constant where many are loaded, so that no branch
 * stands between the loads. */
template <uint32_t TYPE>
DEVICE float kv_value(const unsigned char *block, uint32_t dim, uint32_t slot, uint32_t i) {
    const uint32_t at = slot * dim + i;
    if (TYPE == KV_F16) return half_value(__ldcg((const unsigned short *)block + at));
    if (TYPE == KV_F32) return __ldcg((const float *)block + at);
    if (TYPE == KV_Q4)
        return kv_q4_value(kv_q4_halves(block, dim, slot, i),
                           __ldcg(block + at / 2) >> at % 2 * 4);
    return kv_q8_scale(block, dim, slot, i) * (float)__ldcg((const signed char *)block + at);
}

/* Values 4 i .. 4 i + 3. */
template <uint32_t TYPE>
DEVICE float4 kv_value4(const unsigned char *block, uint32_t dim, uint32_t slot, uint32_t i) {
    const uint32_t at = slot * (dim / 4) + i;
    if (TYPE == KV_F32) return __ldcg((const float4 *)block + at);
    if (TYPE == KV_F16) {
        const uint2 w = __ldcg((const uint2 *)block + at);
        return make_float4(half_value(w.x & 0xffff), half_value(w.x >> 16),
                           half_value(w.y & 0xffff), half_value(w.y >> 16));
    }
    if (TYPE == KV_Q4)
        return kv_q4_value4(kv_q4_halves(block, dim, slot, 4 * i),
                            __ldcg((const unsigned short *)block + at));
    const uint32_t w = __ldcg((const unsigned int *)block + at);
    const float scale = kv_q8_scale(block, dim, slot, 4 * i);
    return make_float4(
        scale * (float)(signed char)(w & 255), scale * (float)(signed char)(w >> 8 & 255),
        scale * (float)(signed char)(w >> 16 & 255), scale * (float)(signed char)(w >> 24));
}

/* Values 8 i .. 8 i + 7. */
template <uint32_t TYPE>
DEVICE void kv_value8(const unsigned char *block, uint32_t dim, uint32_t slot, uint32_t i,
                      float4 &a, float4 &b) {
    if (TYPE == KV_Q4) {
        const uint32_t halves = kv_q4_halves(block, dim, slot, 8 * i);
        const uint32_t w = __ldcg((const unsigned int *)block + slot * (dim / 8) + i);
        a = kv_q4_value4(halves, w);
        b = kv_q4_value4(halves, w >> 16);
        return;
    }
    a = kv_value4<TYPE>(block, dim, slot, 2 * i);
    b = kv_value4<TYPE>(block, dim, slot, 2 * i + 1);
}

/* kv_store_group() for 4 bits. */
DEVICE float kv_store_q4(unsigned char *block, uint32_t dim, uint32_t slot, uint32_t i,
                         float v) {
    const bool poison = warp_max_u32(__float_as_uint(v) & 0x7fffffffu) > 0x7f800000u;
    const float high = lanes_max(v), low = -lanes_max(-v);
    const uint32_t scale_bits = half_bits((high - low) / 15.0f);
    const uint32_t minimum_bits = poison ? 0x7e00u : half_bits(low + 0.0f);
    const float scale = half_value(scale_bits), minimum = half_value(minimum_bits);
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    const float x = (v - minimum) * inverse;
    const float q = x < 15.0f ? x : 15.0f;
    const uint32_t rounded = (uint32_t)__float2int_rn(q > 0.0f ? q : 0.0f);
    const uint32_t next = __shfl_xor_sync(FULL_WARP, rounded, 1);
    if (lane_index() % 2 == 0)
        block[(slot * dim + i) / 2] = (unsigned char)(rounded | next << 4);
    unsigned int *halves = (unsigned int *)(block + KV_PAGE_TOKENS * dim / 2);
    if (lane_index() == 0)
        halves[slot * (dim / KV_GROUP) + i / KV_GROUP] = scale_bits | minimum_bits << 16;
    return fmaf(scale, (float)rounded, minimum);
}

/* The warp writes values first .. first + 31 of position slot, lane by lane; returns what will be
 * read for the lane's. */
DEVICE float kv_store_group(uint32_t type, unsigned char *block, uint32_t dim, uint32_t slot,
                            uint32_t first, float v) {
    const uint32_t i = first + lane_index(), at = slot * dim + i;
    if (type == KV_F32) {
        ((float *)block)[at] = v;
        return v;
    }
    if (type == KV_F16) {
        ((unsigned short *)block)[at] = (unsigned short)half_bits(v);
        return half_value(half_bits(v));
    }
    if (type == KV_Q4) return kv_store_q4(block, dim, slot, i, v);
    const uint32_t most = warp_max_u32(__float_as_uint(v) & 0x7fffffffu);
    const uint32_t bits = half_bits(__uint_as_float(most) / 127.0f);
    const float scale = half_value(bits);
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    const float q = v * inverse < 127.0f ? v * inverse : 127.0f;
    const int rounded = __float2int_rn(q > -127.0f ? q : -127.0f);
    ((signed char *)block)[at] = (signed char)rounded;
    unsigned short *scales = (unsigned short *)(block + KV_PAGE_TOKENS * dim);
    if (lane_index() == 0)
        scales[slot * (dim / KV_GROUP) + i / KV_GROUP] = (unsigned short)bits;
    return scale * (float)rounded;
}

#endif
