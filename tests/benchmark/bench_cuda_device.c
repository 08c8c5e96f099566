/* bench_cuda_device.c - the card that is timed: its memory, its launches, and their times.
 *
 * Launches added are captured in one graph (with programmatic serialization, as decode runs);
 * a time is the median of nine replays, a launch gap included.
 */
#include "tests/benchmark/bench_cuda.h"

#include "kernels/cuda/fatbin.h"
#include "kernels/cuda/mixers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cuda_driver *driver;
static cuda_card card;
static cuda_function functions[CUDA_KERNEL_COUNT];
static cuda_stream stream;
static double peak_gb_s;

#define CALL(name, ...)                                                                        \
    do {                                                                                       \
        error failure = {0};                                                                   \
        if (CUDA_CALL(driver, &failure, name, __VA_ARGS__) != STATUS_OK)                       \
            bench_stop(failure.text);                                                          \
    } while (0)

_Noreturn void bench_stop(const char *text) {
    (void)fprintf(stderr, "bench_cuda: %s\n", text);
    exit(1);
}

void bench_open(double peak) {
    static const char *const names[] = {
#define NAME(name) #name,
        CUDA_KERNELS(NAME)
#undef NAME
    };
    error err = {0};
    cuda_context context;
    cuda_module module;
    peak_gb_s = peak;
    if (kernels_fatbin_size == 0) bench_stop("this build has no CUDA kernels");
    if (cuda_driver_open(&driver, &err) != STATUS_OK) bench_stop(err.text);
    if (cuda_card_read(driver, 0, &card, &err) != STATUS_OK) bench_stop(err.text);
    CALL(cuDevicePrimaryCtxRetain, &context, card.device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, kernels_fatbin);
    for (int i = 0; i < CUDA_KERNEL_COUNT; i++)
        CALL(cuModuleGetFunction, &functions[i], module, names[i]);
    CALL(cuFuncSetAttribute, functions[CUDA_KERNEL_delta_net_chunks],
         CUDA_FUNCTION_SHARED_BYTES, DELTA_NET_CHUNK_SHARED);
    CALL(cuFuncSetAttribute, functions[CUDA_KERNEL_attention_tile], CUDA_FUNCTION_SHARED_BYTES,
         ATTENTION_TILE_SHARED);
    CALL(cuFuncSetAttribute, functions[CUDA_KERNEL_attention_half], CUDA_FUNCTION_SHARED_BYTES,
         ATTENTION_HALF_SHARED);
    CALL(cuStreamCreate, &stream, CUDA_STREAM_NON_BLOCKING);
    printf("%s, sm_%d%d, %d multiprocessors\n", card.name, card.major, card.minor, card.n_sms);
}

const cuda_card *bench_card(void) {
    return &card;
}

void *bench_alloc(size_t bytes) {
    cuda_pointer p;
    CALL(cuMemAlloc, &p, bytes);
    CALL(cuMemsetD8Async, p, 0xff, bytes, stream);
    CALL(cuStreamSynchronize, stream);
    return (void *)(uintptr_t)p;
}

void bench_free(void *p) {
    CALL(cuMemFree, (cuda_pointer)(uintptr_t)p);
}

/* On the stream of the launches: a copy from pageable memory returns before it has arrived. */
void bench_write(void *to, const void *from, size_t bytes) {
    CALL(cuMemcpyHtoDAsync, (cuda_pointer)(uintptr_t)to, from, bytes, stream);
    CALL(cuStreamSynchronize, stream);
}

void bench_read(void *to, const void *from, size_t bytes) {
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemcpyDtoH, to, (cuda_pointer)(uintptr_t)from, bytes);
}

void *bench_pin(size_t bytes) {
    void *p = NULL;
    CALL(cuMemHostAlloc, &p, bytes, 0);
    memset(p, 0, bytes);
    return p;
}

void bench_unpin(void *p) {
    CALL(cuMemFreeHost, p);
}

static void queue(cuda_kernel kernel, cuda_shape s, void *args, unsigned overlapped) {
    cuda_launch_attribute attribute = {.id = CUDA_LAUNCH_OVERLAPPED, .value = {.flag = 1}};
    const cuda_launch_config config = {.grid = {s.grid_x, s.grid_y, s.grid_z},
                                       .block = {s.block_x, 1, 1},
                                       .shared_bytes = s.shared_bytes,
                                       .stream = stream,
                                       .attributes = &attribute,
                                       .n_attributes = card.major >= 9 ? overlapped : 0};
    void *parameters[] = {args};
    CALL(cuLaunchKernelEx, &config, functions[kernel], parameters, NULL);
}

void bench_launch(cuda_kernel kernel, cuda_shape shape, const void *args, size_t bytes) {
    unsigned char copy[1024];
    memcpy(copy, args, bytes);
    queue(kernel, shape, copy, 0);
    CALL(cuStreamSynchronize, stream);
}

typedef struct launch {
    cuda_kernel kernel;
    cuda_shape shape;
    unsigned char args[512];
} launch;

enum { MAX_LAUNCHES = 1024, REPLAYS = 9 };
static launch launches[MAX_LAUNCHES];
static size_t n_launches;

void bench_add(cuda_kernel kernel, cuda_shape shape, const void *args, size_t bytes) {
    if (n_launches == MAX_LAUNCHES || bytes > sizeof launches[0].args) bench_stop("too much");
    launches[n_launches].kernel = kernel;
    launches[n_launches].shape = shape;
    memcpy(launches[n_launches++].args, args, bytes);
}

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void bench_report(const char *name, double per, double bytes, double flops) {
    cuda_graph graph;
    cuda_graph_run run;
    cuda_event from, to;
    float ms[REPLAYS];
    CALL(cuStreamBeginCapture, stream, CUDA_CAPTURE_THREAD_LOCAL);
    for (size_t i = 0; i < n_launches; i++)
        queue(launches[i].kernel, launches[i].shape, launches[i].args, 1);
    CALL(cuStreamEndCapture, stream, &graph);
    CALL(cuGraphInstantiate, &run, graph, 0);
    CALL(cuEventCreate, &from, 0);
    CALL(cuEventCreate, &to, 0);
    CALL(cuGraphLaunch, run, stream);
    for (int i = 0; i < REPLAYS; i++) {
        CALL(cuEventRecord, from, stream);
        CALL(cuGraphLaunch, run, stream);
        CALL(cuEventRecord, to, stream);
        CALL(cuEventSynchronize, to);
        CALL(cuEventElapsedTime, &ms[i], from, to);
    }
    qsort(ms, REPLAYS, sizeof ms[0], by_size);
    const double us = (double)ms[REPLAYS / 2] * 1000 / per;
    printf("%-44s %8.2f us", name, us);
    if (bytes > 0)
        printf(" %7.0f GB/s %5.1f %%", bytes / us * 1e-3, bytes / us * 1e-1 / peak_gb_s);
    if (flops > 0) printf(" %7.1f TFLOP/s", flops / us * 1e-6);
    printf("\n");
    CALL(cuEventDestroy, from);
    CALL(cuEventDestroy, to);
    CALL(cuGraphExecDestroy, run);
    CALL(cuGraphDestroy, graph);
    n_launches = 0;
}
