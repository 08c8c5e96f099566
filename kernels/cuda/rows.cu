/* rows.cu - embedding, norm, SwiGLU, quantizing and argmax of rows; kernels/cuda/rows.h.
 *
 * Launch  the shapes in rows.h and act.h; no dynamic shared memory.
 * Cost    one read and one write of each row; a single row is bound by latency.
 * Oracle  kernels/cpu/embed.c, rmsnorm.c, swiglu.c, act.c (by its rule of rounding) and
 *         vector_argmax(); compared in tests/kernels/test_cuda_rows.cc.
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
 * loaded before the wait for x; longer rows are read a second time. */
enum { NORM_BLOCK = 1024, NORM_HELD = 2 };

DEVICE float norm_input(const norm_args &a, float *x, uint32_t i) {
    float v = __ldcg(x + i);
    if (a.delta == 0) return v;
    v += __ldcg(a.delta + blockIdx.x * a.delta_stride + i);
    x[i] = v;
    return v;
}

/* Lanes of a warp that is not whole come here only where act is NULL. */
DEVICE void norm_output(const norm_args &a, uint32_t i, float v) {
    if (a.y != 0) a.y[blockIdx.x * a.y_stride + i] = v;
    if (a.act != 0)
        act_store_group((unsigned char *)a.act + blockIdx.x * a.act_stride, a.dim,
                        i - lane_index(), v);
}

KERNEL(rmsnorm, norm_args, NORM_BLOCK) {
    __shared__ float parts[WARP];
    float held[NORM_HELD], weight[NORM_HELD], sum = 0;
#pragma unroll
    for (uint32_t k = 0; k < NORM_HELD; k++) {
        const uint32_t i = threadIdx.x + k * NORM_BLOCK;
        weight[k] = i < a.dim ? __uint_as_float(load4(a.weight + i)) : 0.0f;
    }
    launch_begin();
    float *x = a.x + (a.rows != 0 ? __ldcg(a.rows + blockIdx.x) : blockIdx.x) * a.x_stride;
#pragma unroll
    for (uint32_t k = 0; k < NORM_HELD; k++) {
        const uint32_t i = threadIdx.x + k * NORM_BLOCK;
        held[k] = i < a.dim ? norm_input(a, x, i) : 0.0f;
    }
#pragma unroll
    for (uint32_t k = 0; k < NORM_HELD; k++)
        sum = fmaf(held[k], held[k], sum);
    for (uint32_t i = threadIdx.x + NORM_HELD * NORM_BLOCK; i < a.dim; i += NORM_BLOCK) {
        const float v = norm_input(a, x, i);
        sum = fmaf(v, v, sum);
    }
    const float scale = 1.0f / sqrtf(block_sum(sum, parts) / (float)a.dim + a.eps);
#pragma unroll
    for (uint32_t k = 0; k < NORM_HELD; k++) {
        const uint32_t i = threadIdx.x + k * NORM_BLOCK;
        if (i < a.dim) norm_output(a, i, held[k] * scale * weight[k]);
    }
    for (uint32_t i = threadIdx.x + NORM_HELD * NORM_BLOCK; i < a.dim; i += NORM_BLOCK)
        norm_output(a, i, __ldcg(x + i) * scale * a.weight[i]);
}

KERNEL(swiglu, swiglu_q8_args, 256) {
    launch_begin();
    const uint64_t r = blockIdx.x;
    void *row = (unsigned char *)a.act + r * a.act_stride;
    for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < a.n_cols;
         i += gridDim.y * blockDim.x) {
        const float v =
            silu(__ldcg(a.gate + r * a.gate_stride + i)) * __ldcg(a.up + r * a.up_stride + i);
        if (a.out != 0) a.out[r * a.out_stride + i] = v;
        if (a.act != 0) act_store_group(row, a.n_cols, i - lane_index(), v);
    }
}

/* Keys of 64 bits: the value's order, then the index turned round, so that the largest key is
 * the lowest index among the largest values. */
DEVICE uint64_t argmax_key(float x, uint32_t i) {
    const uint32_t order = order_key(x);
    return order == 0 ? 0 : (uint64_t)order << 32 | (uint32_t)~i;
}

DEVICE uint64_t larger_key(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

KERNEL(argmax, argmax_args, 1024) {
    __shared__ uint64_t best[WARP];
    launch_begin();
    const float *x = a.x + blockIdx.x * a.stride;
    uint64_t key = 0;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < a.n; i += blockDim.x)
        key = larger_key(key, argmax_key(__ldcg(x + i), i));
    for (int m = WARP / 2; m > 0; m /= 2)
        key = larger_key(key, __shfl_xor_sync(FULL_WARP, key, m));
    if (lane_index() == 0) best[threadIdx.x / WARP] = key;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (uint32_t i = 0; i < blockDim.x / WARP; i++)
        key = larger_key(key, best[i]);
    a.index[blockIdx.x] = key == 0 ? -1 : (int32_t) ~(uint32_t)key;
}

/* A warp's worth of blocks at a time: 105 half words a block. */
KERNEL(repack_q6_k, repack_args, 128) {
    launch_begin();
    const uint64_t begin = (uint64_t)blockIdx.x * 32;
    for (uint32_t i = threadIdx.x; i < 32 * 105; i += blockDim.x) {
        const uint64_t block = begin + i / 105;
        if (block >= a.n_blocks) continue;
        const uint32_t w = i % 105;
        const unsigned short v =
            (unsigned short)load2((const unsigned char *)a.src + block * 210 + 2 * w);
        unsigned short *dst = (unsigned short *)a.dst;
        if (w < 104)
            dst[(a.first + block) * 104 + w] = v;
        else
            dst[a.n_all * 104 + a.first + block] = v;
    }
}
