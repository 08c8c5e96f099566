/* act.cuh - quantizing a group of 32 values that lie in the lanes of a warp, and reading rows;
 * the layout is act.h's. */
#ifndef SILICEO_KERNELS_CUDA_ACT_CUH
#define SILICEO_KERNELS_CUDA_ACT_CUH

#include "kernels/cuda/act.h"
#include "kernels/cuda/device.cuh"

DEVICE const float2 *act_factors(const void *row, uint32_t n_cols) {
    return (const float2 *)((const unsigned char *)row + n_cols);
}

/* The scale of the warp's values, and the lane's own as int8.  The largest magnitude is found on
 * the bits, where a NaN or an infinity is largest. */
DEVICE float act_scale(float v, int &q) {
    const uint32_t most = warp_max_u32(__float_as_uint(v) & 0x7fffffffu);
    const float amax = __uint_as_float(most);
    const bool sound = most < 0x7f800000u, alive = sound && amax >= CUDA_ACT_LEAST_AMAX;
    q = alive ? __float2int_rn(v * (127.0f / amax)) : 0;
    return alive ? amax / 127.0f : sound ? 0.0f : __uint_as_float(0x7fc00000u);
}

/* Lane i holds value `first + i` of the row; every lane of the warp takes part. */
DEVICE void act_store_group(void *row, uint32_t n_cols, uint32_t first, float v) {
    const uint32_t lane = lane_index();
    int q;
    const float scale = act_scale(v, q);
    const int sum = lanes_sum_int(q, 16);
    ((signed char *)row)[first + lane] = (signed char)q;
    if (lane % 16 == 0) {
        float2 f;
        f.x = scale;
        f.y = scale * (float)sum;
        ((float2 *)((unsigned char *)row + n_cols))[(first + lane) / 16] = f;
    }
}

/* 16 values with a scale of their own: lanes i and i + 16 hold value `first + i`, a whole warp. */
DEVICE void act_store_half(void *row, uint32_t n_cols, uint32_t first, float v) {
    const uint32_t lane = lane_index();
    int q;
    const float scale = act_scale(v, q);
    const int sum = lanes_sum_int(q, 16);
    if (lane < 16) ((signed char *)row)[first + lane] = (signed char)q;
    if (lane != 0) return;
    float2 f;
    f.x = scale;
    f.y = scale * (float)sum;
    ((float2 *)((unsigned char *)row + n_cols))[first / 16] = f;
}

#endif
