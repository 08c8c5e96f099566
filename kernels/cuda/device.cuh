/* device.cuh - what every kernel file needs: loads, warp sums, half floats, integer products.
 *
 * The same sources are compiled by nvcc for the GPU and by g++ for tests on the CPU; the latter
 * include tests/kernels/cuda_emu.h first, which defines CUDA_EMU and stands in for the
 * machine-specific part of this file.
 * Loads of weights go through the read-only path (load16 and so on).  What an earlier launch
 * wrote is read with __ldcg, past the L1 cache: with programmatic launches a block may be
 * resident before the writer is done, and its L1 may hold what was there before.
 */
#ifndef SILICEO_KERNELS_CUDA_DEVICE_CUH
#define SILICEO_KERNELS_CUDA_DEVICE_CUH

#include "kernels/cuda/launch.h"

#ifndef CUDA_EMU
#include <cuda_fp16.h>

/* blocks: how many of the block must fit a multiprocessor; it bounds the registers. */
#define KERNEL_FIT(name, type, threads, blocks)                                                \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                              \
        name(const __grid_constant__ type a)
#define KERNEL(name, type, threads)                                                            \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ type a)
extern __shared__ uint4 dynamic_shared[];
#define DYNAMIC_SHARED(name) uint4 *name = dynamic_shared

/* Wait for what the previous launch wrote, then let the next one begin to start. */
__device__ __forceinline__ void launch_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Ask for a line of 128 bytes in the L2 cache.  Only worth it where launch_begin() waits. */
__device__ __forceinline__ void prefetch_line(const void *p) {
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

/* Volatile, so that loads of weights written before a wait stay before it. */
__device__ __forceinline__ uint4 load16(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
__device__ __forceinline__ uint2 load8(const void *p) {
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
__device__ __forceinline__ uint32_t load4(const void *p) {
    uint32_t v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
__device__ __forceinline__ uint32_t load2(const void *p) {
    unsigned short v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
__device__ __forceinline__ uint32_t load1(const void *p) {
    return __ldg((const unsigned char *)p);
}

/* Host memory that the host writes while the kernel runs.  An acquired word orders what this
 * block reads by load16_shared after its next barrier; a released one what it wrote before. */
__device__ __forceinline__ uint64_t load_acquired(const uint64_t *p) {
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_released(uint64_t *p, uint64_t v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ uint4 load16_shared(const void *p) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ uint64_t clock_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

__device__ __forceinline__ float half_value(uint32_t bits) {
    return __half2float(__ushort_as_half((unsigned short)bits));
}
__device__ __forceinline__ uint32_t half_bits(float x) {
    return __half_as_ushort(__float2half_rn(x));
}

/* c = `from` + A B for A [16][16] and B [16][8] of int8: a0 is row lane / 4, a1 row lane / 4 + 8, b
 * column lane / 4, each columns (rows) 4 (lane % 4) .. + 3; c: rows as a, columns 2 (lane % 4), + 1. */
__device__ __forceinline__ void mma_k16_from(int (&c)[4], int from, uint32_t a0, uint32_t a1,
                                             uint32_t b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%7,%7,%7,%7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(from));
#else
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%4,%4};"
        : "=r"(c[0]), "=r"(c[1])
        : "r"(a0), "r"(b), "r"(from));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%4,%4};"
        : "=r"(c[2]), "=r"(c[3])
        : "r"(a1), "r"(b), "r"(from));
#endif
}

/* The same with 32 columns: a2, a3 and b1 hold columns 16 .. 31. */
__device__ __forceinline__ void mma_k32_from(int (&c)[4], int from, const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(from));
#else
    mma_k16_from(c, from, a[0], a[1], b[0]);
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(c[0]), "+r"(c[1])
        : "r"(a[2]), "r"(b[1]));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(c[2]), "+r"(c[3])
        : "r"(a[3]), "r"(b[1]));
#endif
}

__device__ __forceinline__ void atomic_max_u64(uint64_t *p, uint64_t v) {
    atomicMax((unsigned long long *)p, (unsigned long long)v);
}

/* c += A B for A [16][16] and B [16][8] of half floats, two to a word: a0 and a1 as above of columns
 * 2 (lane % 4), + 1, a2 and a3 of the columns 8 further; b0, b1 the same rows of column lane / 4. */
__device__ __forceinline__ void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

/* The largest, the smallest of a warp's words. */
__device__ __forceinline__ uint32_t warp_max_u32(uint32_t v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, v);
#else
    for (int m = 16; m > 0; m /= 2)
        v = max(v, __shfl_xor_sync(0xffffffffu, v, m));
    return v;
#endif
}
__device__ __forceinline__ uint32_t warp_min_u32(uint32_t v) {
    return ~warp_max_u32(~v);
}
#endif

#define DEVICE      __device__ __forceinline__
#define DEVICE_CALL static __device__ __noinline__

enum { WARP = 32 };
#define FULL_WARP 0xffffffffu

DEVICE uint32_t lane_index() {
    return threadIdx.x % WARP;
}

/* A warp asks for bytes that it will read after the wait. */
DEVICE void prefetch_warp(const unsigned char *p, uint64_t bytes) {
    for (uint64_t at = lane_index() * 128; at < bytes; at += WARP * 128)
        prefetch_line(p + at);
}

/* Over groups of `width` neighbouring lanes, a power of two; every lane gets the result. */
DEVICE float lanes_sum(float v, int width = WARP) {
    for (int m = width / 2; m > 0; m /= 2)
        v += __shfl_xor_sync(FULL_WARP, v, m);
    return v;
}
DEVICE float lanes_max(float v, int width = WARP) {
    for (int m = width / 2; m > 0; m /= 2)
        v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, m));
    return v;
}
DEVICE int lanes_sum_int(int v, int width) {
    for (int m = width / 2; m > 0; m /= 2)
        v += __shfl_xor_sync(FULL_WARP, v, m);
    return v;
}

/* Over a block of whole warps; every thread gets the result.  parts: 32 floats of shared memory
 * that nobody else uses until the next barrier after the call. */
DEVICE float block_sum(float v, float *parts) {
    v = lanes_sum(v);
    if (lane_index() == 0) parts[threadIdx.x / WARP] = v;
    __syncthreads();
    v = lane_index() < blockDim.x / WARP ? parts[lane_index()] : 0.0f;
    __syncthreads();
    return lanes_sum(v);
}

DEVICE float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}
DEVICE float silu(float x) {
    return x / (1.0f + expf(-x));
}
/* exp(x) and silu(x) as kernels/cpu/scalar_math.h has them, to the last bit: experts come from
 * the CPU lane as they come from here. */
DEVICE float power_of_two(int n) {
    return __uint_as_float((uint32_t)(n + 127) << 23);
}
DEVICE float exp_of_cpu(float x) {
    if (x != x) return x;
    x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
    const float n = fmaf(x, 1.44269504f, 12582912.0f) - 12582912.0f;
    const float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
    float p = 1.0f / 5040;
    p = fmaf(p, r, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    const int e = (int)n, half = e / 2;
    return p * power_of_two(half) * power_of_two(e - half);
}
DEVICE float silu_of_cpu(float x) {
    return x / (1.0f + exp_of_cpu(-x));
}
/* log(1 + exp(x)) without overflow. */
DEVICE float softplus(float x) {
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

/* A key that orders floats as unsigned integers; every NaN becomes 0, the smallest. */
DEVICE uint32_t order_key(float x) {
    const uint32_t bits = __float_as_uint(x);
    if (x != x) return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEVICE float value_of_key(uint32_t key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

#endif
