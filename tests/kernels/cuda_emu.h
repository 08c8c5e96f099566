/* cuda_emu.h - enough of CUDA on the CPU to run the kernel sources in tests.
 *
 * A block's threads are fibers of one thread; barriers and shuffles are the points where they
 * take turns.  Blocks run one after another.  What it is for is logic: indexes, barriers,
 * shuffles, alignment (a misaligned vector access ends the program).  It finds no race that
 * needs another order than its own.  Fibers begin by swapcontext and switch by setjmp, which
 * asks the kernel for nothing.
 */
#ifndef SILICEO_TESTS_KERNELS_CUDA_EMU_H
#define SILICEO_TESTS_KERNELS_CUDA_EMU_H

#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sched.h>
#include <ucontext.h>

#define CUDA_EMU 1
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__   static
#define __align__(n) __attribute__((aligned(n)))

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline float2 make_float2(float x, float y) {
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

struct emu_index {
    uint32_t x, y, z;
};
static emu_index threadIdx, blockIdx, blockDim, gridDim;

/* ---- fibers ---- */

enum { EMU_MAX_THREADS = 1024, EMU_STACK = 256 * 1024, EMU_MAX_WARPS = EMU_MAX_THREADS / 32 };

struct emu_fiber {
    ucontext_t start;
    jmp_buf at;
    char *stack;
    bool begun, done;
};
static emu_fiber emu_fibers[EMU_MAX_THREADS];
static jmp_buf emu_scheduler;
static ucontext_t emu_home;
static void (*emu_body)(void);
static uint32_t emu_current, emu_threads;
static uint32_t emu_arrived, emu_generation;
static uint32_t emu_warp_arrived[EMU_MAX_WARPS], emu_warp_generation[EMU_MAX_WARPS];
static uint64_t emu_words[2][EMU_MAX_WARPS][32][3];

static inline void emu_yield(void) {
    if (_setjmp(emu_fibers[emu_current].at) == 0) _longjmp(emu_scheduler, 1);
}

static void emu_entry(void) {
    emu_body();
    emu_fibers[emu_current].done = true;
    _longjmp(emu_scheduler, 1);
}

static void emu_begin(emu_fiber *f) {
    if (f->stack == nullptr) f->stack = (char *)malloc(EMU_STACK);
    f->begun = true;
    getcontext(&f->start);
    f->start.uc_stack.ss_sp = f->stack;
    f->start.uc_stack.ss_size = EMU_STACK;
    f->start.uc_link = nullptr;
    makecontext(&f->start, emu_entry, 0);
    swapcontext(&emu_home, &f->start);
}

static void emu_resume(uint32_t t) {
    emu_current = t;
    threadIdx = {t, 0, 0};
    if (_setjmp(emu_scheduler) != 0) return;
    if (emu_fibers[t].begun)
        _longjmp(emu_fibers[t].at, 1);
    else
        emu_begin(&emu_fibers[t]);
}

static void emu_fail(const char *what) {
    fprintf(stderr, "cuda_emu: %s, block %u %u %u thread %u\n", what, blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x);
    abort();
}

static void emu_run_block(void) {
    emu_arrived = 0;
    memset(emu_warp_arrived, 0, sizeof emu_warp_arrived);
    for (uint32_t t = 0; t < emu_threads; t++)
        emu_fibers[t].begun = emu_fibers[t].done = false;
    volatile uint32_t left = emu_threads, rounds = 0;
    while (left > 0) {
        if (++rounds > 1000000) emu_fail("threads wait for each other for ever");
        for (volatile uint32_t t = 0; t < emu_threads; t++) {
            if (emu_fibers[t].done) continue;
            emu_resume(t);
            if (emu_fibers[t].done) left = left - 1;
        }
    }
}

/* ---- barriers and shuffles ---- */

static inline void __syncthreads() {
    const uint32_t generation = emu_generation;
    if (++emu_arrived == emu_threads) {
        emu_arrived = 0;
        emu_generation++;
        return;
    }
    while (emu_generation == generation)
        emu_yield();
}

static inline void __syncwarp() {
    const uint32_t w = threadIdx.x / 32, generation = emu_warp_generation[w];
    if (++emu_warp_arrived[w] == 32) {
        emu_warp_arrived[w] = 0;
        emu_warp_generation[w]++;
        return;
    }
    while (emu_warp_generation[w] == generation)
        emu_yield();
}

/* Every lane gives three words and may then read those of all others, until its next call but
 * one: the words of two rounds are kept apart. */
typedef uint64_t emu_round[32][3];
static inline const emu_round &emu_exchange(uint64_t a, uint64_t b, uint64_t c) {
    const uint32_t w = threadIdx.x / 32, lane = threadIdx.x % 32;
    emu_round &round = emu_words[emu_warp_generation[w] % 2][w];
    round[lane][0] = a;
    round[lane][1] = b;
    round[lane][2] = c;
    __syncwarp();
    return round;
}

template <class T> T emu_shuffle(T v, uint32_t from) {
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = emu_exchange(bits, 0, 0)[from % 32][0];
    memcpy(&v, &bits, sizeof v);
    return v;
}
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) {
    return emu_shuffle(v, threadIdx.x % 32 ^ (uint32_t)mask);
}
template <class T> T __shfl_sync(unsigned, T v, int lane) {
    return emu_shuffle(v, (uint32_t)lane);
}
template <class T> T __shfl_up_sync(unsigned, T v, uint32_t by) {
    const uint32_t lane = threadIdx.x % 32;
    return emu_shuffle(v, lane >= by ? lane - by : lane);
}
static inline uint32_t warp_max_u32(uint32_t v) {
    const emu_round &all = emu_exchange(v, 0, 0);
    uint32_t most = 0;
    for (int i = 0; i < 32; i++)
        most = all[i][0] > most ? (uint32_t)all[i][0] : most;
    return most;
}
static inline uint32_t warp_min_u32(uint32_t v) {
    return ~warp_max_u32(~v);
}
static inline void atomic_max_u64(uint64_t *p, uint64_t v) {
    *p = v > *p ? v : *p;
}
static inline void __threadfence() {}
static inline uint32_t atomicAdd(uint32_t *p, uint32_t v) {
    const uint32_t old = *p;
    *p += v;
    return old;
}

/* ---- arithmetic ---- */

static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++)
        c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    return c;
}
static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
    return (uint32_t)(((uint64_t)high << 32 | low) >> (shift & 31));
}
static inline float __uint_as_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline uint32_t __float_as_uint(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}
static inline int __float2int_rn(float f) {
    return f != f ? 0 : (int)lrintf(f);
}
static inline float half_value(uint32_t bits) {
    _Float16 h;
    const uint16_t b = (uint16_t)bits;
    memcpy(&h, &b, 2);
    return (float)h;
}
static inline uint32_t half_bits(float x) {
    const _Float16 h = (_Float16)x;
    uint16_t b;
    memcpy(&b, &h, 2);
    return b;
}

/* c += A B, [16][16] by [16][8]; kernels/cuda/device.cuh says which lane has what. */
static inline void mma_k16_add(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    const emu_round &all = emu_exchange(a0, a1, b);
    const uint32_t g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t q = 0; q < 4; q++)
            c[i] =
                __dp4a((int)all[g * 4 + q][i / 2], (int)all[(2 * l + i % 2) * 4 + q][2], c[i]);
}
static inline void mma_k16_from(int (&c)[4], int from, uint32_t a0, uint32_t a1, uint32_t b) {
    c[0] = c[1] = c[2] = c[3] = from;
    mma_k16_add(c, a0, a1, b);
}
static inline void mma_k32_from(int (&c)[4], int from, const uint32_t (&a)[4],
                                const uint32_t (&b)[2]) {
    mma_k16_from(c, from, a[0], a[1], b[0]);
    mma_k16_add(c, a[2], a[3], b[1]);
}

static inline float half_value(uint32_t bits);
static inline void mma_half_k8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    const emu_round &all = emu_exchange(a0, a1, b);
    const uint32_t g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t k = 0; k < 8; k++) {
            const uint32_t shift = k % 2 * 16;
            c[i] += half_value((uint32_t)all[g * 4 + k / 2][i / 2] >> shift & 0xffff) *
                    half_value((uint32_t)all[(2 * l + i % 2) * 4 + k / 2][2] >> shift & 0xffff);
        }
}
static inline void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_half_k8(c, a[0], a[1], b0);
    mma_half_k8(c, a[2], a[3], b1);
}

/* ---- memory ---- */

template <class T> T emu_load(const void *p) {
    if ((uintptr_t)p % sizeof(T) != 0) emu_fail("misaligned load");
    T v;
    memcpy(&v, p, sizeof v);
    return v;
}
template <class T> T __ldcg(const T *p) {
    return emu_load<T>(p);
}
static inline uint4 load16(const void *p) {
    return emu_load<uint4>(p);
}
static inline uint2 load8(const void *p) {
    return emu_load<uint2>(p);
}
static inline uint32_t load4(const void *p) {
    return emu_load<uint32_t>(p);
}
static inline uint32_t load2(const void *p) {
    return emu_load<uint16_t>(p);
}
static inline uint32_t load1(const void *p) {
    return emu_load<uint8_t>(p);
}

/* Words that another thread of the program writes meanwhile; who waits for one lets it run. */
static inline uint64_t load_acquired(const uint64_t *p) {
    sched_yield();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline void store_released(uint64_t *p, uint64_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
static inline uint4 load16_shared(const void *p) {
    return emu_load<uint4>(p);
}
static inline uint64_t clock_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

enum { EMU_SHARED = 64 * 1024 };
alignas(16) static unsigned char emu_shared[EMU_SHARED];

#define DYNAMIC_SHARED(name)                    uint4 *name = (uint4 *)emu_shared
#define KERNEL(name, type, threads)             static void name(const type a)
#define KERNEL_FIT(name, type, threads, blocks) static void name(const type a)
static inline void launch_begin() {}
static inline void prefetch_line(const void *) {}

#endif
