/* experts.cu - what prefill needs around the grouped matmul of the experts; kernels/cuda/experts.h.
 *
 * Launch  experts_sort: one block.  moe_combine: grid (rows, n_embd / 256), block 256.
 * Oracle  kernels/cpu/moe_combine.c; tests/kernels/cuda_expert_cases.c.
 */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/experts.h"

/* One block: counts in shared memory, then places by atomics.  The order within an expert is not
 * fixed, and no result depends on it. */
KERNEL(experts_sort, experts_sort_args, 1024) {
    __shared__ uint32_t next[1024];
    __shared__ uint32_t tiles_before[1024];
    launch_begin();
    for (uint32_t e = threadIdx.x; e < a.n_experts; e += blockDim.x)
        next[e] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.n_pairs; i += blockDim.x)
        atomicAdd(&next[__ldcg(a.experts + i)], 1u);
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t sum = 0, n_tiles = 0;
        for (uint32_t e = 0; e < a.n_experts; e++) {
            const uint32_t n = next[e];
            a.group_first[e] = next[e] = sum;
            tiles_before[e] = n_tiles;
            sum += n;
            n_tiles += (n + MATMUL_TILE_TOKENS - 1) / MATMUL_TILE_TOKENS;
        }
        a.group_first[a.n_experts] = sum;
        *a.n_tiles = n_tiles;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < a.n_experts; e += blockDim.x) {
        const uint32_t end = e + 1 < a.n_experts ? next[e + 1] : a.n_pairs;
        uint32_t tile = tiles_before[e];
        for (uint32_t at = next[e]; at < end; at += MATMUL_TILE_TOKENS) {
            const uint32_t stop = at + MATMUL_TILE_TOKENS;
            matmul_tile t = {e, at, stop < end ? stop : end, 0};
            a.tiles[tile++] = t;
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.n_pairs; i += blockDim.x) {
        const uint32_t at = atomicAdd(&next[__ldcg(a.experts + i)], 1u);
        a.pair_row[at] = i / a.n_used;
        a.pair_out[at] = i;
    }
}

KERNEL(moe_combine, combine_args, 256) {
    launch_begin();
    const moe_combine_args &b = a.base;
    const uint64_t row = blockIdx.x;
    const uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= b.dim) return;
    float sum = __ldcg(b.x + row * b.x_stride + i);
    for (uint32_t j = 0; j < b.n_used; j++) {
        const uint64_t pair = row * b.n_used + j;
        const bool here = a.records == 0 || __ldcg(a.records + __ldcg(a.experts + pair)) != 0;
        const float y =
            here ? __ldcg(b.y + pair * b.y_stride + i) : __ldcg(a.foreign + pair * b.dim + i);
        sum = fmaf(__ldcg(b.weights + pair), y, sum);
    }
    if (b.shared != 0)
        sum = fmaf(sigmoid(__ldcg(b.shared_gate + row * b.shared_gate_stride)),
                   __ldcg(b.shared + row * b.shared_stride + i), sum);
    b.out[row * b.out_stride + i] = sum;
}
