/* rows.cu - embedding, norm, SwiGLU, quantizing and argmax of rows; kernels/cuda/rows.h.
 *
 * Launch  the shapes in rows.h and act.h; no dynamic shared memory.
 * Cost    one read and one write of each row; a single row is bound by latency.
 * Oracle  kernels/cpu/embed.c, rmsnorm.c, swiglu.c, act.c (by its rule of rounding) and
 *         vector_argmax(); compared in tests/kernels/cuda_row_cases.c.
 */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/unit.cuh"

KERNEL(embed, embed_args, 128) {
    launch_begin();
    const uint32_t token = (uint32_t)__ldcg(a.tokens + blockIdx.x);
    matrix_view m = {(const unsigned char *)a.table, a.row_bytes, 0, a.type, a.dim};
    const unsigned char *row = matrix_row(m, token);
    float *out = a.out + blockIdx.x * a.out_stride;
    if (is_float_type(a.type)) {
        for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < a.dim / 4;
             i += gridDim.y * blockDim.x)
            ((float4 *)out)[i] = load_float4(a.type, row, i);
        return;
    }
    for (uint32_t u = blockIdx.y * blockDim.x + threadIdx.x; u < a.dim / 32;
         u += gridDim.y * blockDim.x) {
        weight_unit w;
        unit_any(m, row, u, w);
#pragma unroll
        for (int e = 0; e < 32; e++)
            out[u * 32 + e] = unit_value(w, e);
    }
}

/* Whole warps, so that the lanes of a group of 32 values stay together. */
KERNEL(quantize, quantize_args, 256) {
    launch_begin();
    const float *x = a.x + blockIdx.x * a.x_stride;
    void *row = (unsigned char *)a.act + blockIdx.x * a.act_stride;
    for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < a.n_cols;
         i += gridDim.y * blockDim.x)
        act_store_group(row, a.n_cols, i - lane_index(), __ldcg(x + i));
}

/* A thread keeps the first NORM_HELD of its values in registers, and their weights, which are
 * loaded before the wait for x; of longer rows the rest is read a second time.  Every block of a
 * row makes its sum; the values that it then writes are every gridDim.y-th NORM_BLOCK of them. */
enum { NORM_HELD = 8 };

/* Lanes of a warp that is not whole come here only where act is NULL. */
DEVICE void norm_output(const norm_args &a, uint32_t i, float v) {
    if (a.y != 0) a.y[blockIdx.x * a.y_stride + i] = v;
    if (a.act != 0)
        act_store_group((unsigned char *)a.act + blockIdx.x * a.act_stride, a.dim,
                        i - lane_index(), v);
}

KERNEL(rmsnorm, norm_args, NORM_BLOCK) {
    __shared__ float parts[NORM_BLOCK / WARP];
    float held[NORM_HELD], weight[NORM_HELD], sum = 0;
#pragma unroll
    for (uint32_t k = 0; k < NORM_HELD; k++) {
        const uint32_t i = threadIdx.x + k * NORM_BLOCK;
        const bool mine = i < a.dim && k % gridDim.y == blockIdx.y;
        weight[k] = mine ? __uint_as_float(load4(a.weight + i)) : 0.0f;
    }
    launch_begin();
    const float *x =
        a.x + (a.rows != 0 ? __ldcg(a.rows + blockIdx.x) : blockIdx.x) * a.x_stride;
#pragma unroll
    for (uint32_t k = 0; k < NORM_HELD; k++) {
        const uint32_t i = threadIdx.x + k * NORM_BLOCK;
        held[k] = i < a.dim ? __ldcg(x + i) : 0.0f;
    }
#pragma unroll
    for (uint32_t k = 0; k < NORM_HELD; k++)
        sum = fmaf(held[k], held[k], sum);
    for (uint32_t i = threadIdx.x + NORM_HELD * NORM_BLOCK; i < a.dim; i += NORM_BLOCK) {
        const float v = __ldcg(x + i);
        sum = fmaf(v, v, sum);
    }
    const float scale = 1.0f / sqrtf(block_sum(sum, parts) / (float)a.dim + a.eps);
#pragma unroll
    for (uint32_t k = 0; k < NORM_HELD; k++) {
        const uint32_t i = threadIdx.x + k * NORM_BLOCK;
        if (i < a.dim && k % gridDim.y == blockIdx.y)
            norm_output(a, i, held[k] * scale * weight[k]);
    }
    for (uint32_t k = NORM_HELD; k * NORM_BLOCK < a.dim; k++) {
        const uint32_t i = threadIdx.x + k * NORM_BLOCK;
        if (i < a.dim && k % gridDim.y == blockIdx.y)
            norm_output(a, i, __ldcg(x + i) * scale * a.weight[i]);
    }
}

KERNEL(swiglu, swiglu_q8_args, 256) {
    launch_begin();
    const uint64_t r = blockIdx.x;
    void *row = (unsigned char *)a.act + r * a.act_stride;
    for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < a.n_cols;
         i += gridDim.y * blockDim.x) {
        const float v = silu_of_cpu(__ldcg(a.gate + r * a.gate_stride + i)) *
                        __ldcg(a.up + r * a.up_stride + i);
        if (a.out != 0) a.out[r * a.out_stride + i] = v;
        if (a.act != 0) act_store_group(row, a.n_cols, i - lane_index(), v);
    }
}

DEVICE uint64_t larger_key(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

KERNEL(argmax, argmax_args, ARGMAX_BLOCK) {
    __shared__ uint64_t best[ARGMAX_BLOCK / WARP];
    launch_begin();
    const float *x = a.x + blockIdx.x * a.stride;
    uint64_t key = 0;
#pragma unroll 8
    for (uint32_t i = blockIdx.y * ARGMAX_BLOCK + threadIdx.x; i < a.n;
         i += gridDim.y * ARGMAX_BLOCK) {
        const uint32_t order = order_key(__ldcg(x + i));
        key = larger_key(key, order == 0 ? 0 : (uint64_t)order << 32 | (uint32_t)~i);
    }
    for (int m = WARP / 2; m > 0; m /= 2)
        key = larger_key(key, __shfl_xor_sync(FULL_WARP, key, m));
    if (lane_index() == 0) best[threadIdx.x / WARP] = key;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (uint32_t i = 0; i < ARGMAX_BLOCK / WARP; i++)
        key = larger_key(key, best[i]);
    atomic_max_u64(a.keys + blockIdx.x, key);
}
