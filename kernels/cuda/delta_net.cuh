/* delta_net.cuh - what the step and the chunks of the delta net share: where a head's parts lie, its
 * decay and beta. */
#ifndef SILICEO_KERNELS_CUDA_DELTA_NET_CUH
#define SILICEO_KERNELS_CUDA_DELTA_NET_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/delta_net.h"

DEVICE uint32_t key_head_of(const delta_net_args &a, uint32_t head) {
    return a.grouped ? head / (a.n_value_heads / a.n_key_heads) : head % a.n_key_heads;
}

/* Where a head's q, k and v of a row begin. */
typedef struct qkv_place {
    const float *q, *k, *v;
} qkv_place;

DEVICE qkv_place qkv_of(const delta_net_args &a, uint64_t row, uint32_t head) {
    const float *base = a.qkv + row * a.qkv_stride;
    const uint32_t key = key_head_of(a, head) * a.dim, keys = a.n_key_heads * a.dim;
    qkv_place p = {base + key, base + keys + key, base + 2 * keys + head * a.dim};
    return p;
}

/* The logarithm of the decay. */
DEVICE float decay_of(const delta_net_args &a, uint64_t row, uint32_t head) {
    const float x = __ldcg(a.alpha + row * a.alpha_stride + head) + a.dt[head];
    const float g = a.a[head] * softplus(x);
    return g < -88.0f ? -88.0f : g;
}

DEVICE float beta_of(const delta_net_args &a, uint64_t row, uint32_t head) {
    return sigmoid(__ldcg(a.beta + row * a.beta_stride + head));
}

DEVICE void add4(float4 &sum, float f, const float4 &v) {
    sum.x = fmaf(f, v.x, sum.x);
    sum.y = fmaf(f, v.y, sum.y);
    sum.z = fmaf(f, v.z, sum.z);
    sum.w = fmaf(f, v.w, sum.w);
}

#endif
