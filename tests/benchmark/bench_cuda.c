/* bench_cuda.c - every CUDA kernel on this machine's GPU: checked, then timed alone.
 *
 *     bench_cuda [check|time] [PEAK_GB_S]
 *
 * Checks are those of tests/kernels/cuda_cases.c.  Times are of the shapes of a 35B-A3B layer:
 * launches over rotating weights captured in one graph (with programmatic serialization, as
 * decode runs), the median of nine replays, a launch gap included.  Bytes count weights, states
 * or pages once; percent is of PEAK_GB_S (default 4200).  Exit 1 when a check fails.
 */
#include "common/half.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/fatbin.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/mixers.h"
#include "kernels/cuda/router.h"
#include "kernels/cuda/rows.h"
#include "tests/kernels/cuda_cases.h"
#include "worker/cuda_driver.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cuda_driver *driver;
static cuda_card card;
static cuda_function functions[CUDA_KERNEL_COUNT];
static cuda_stream stream;
static double peak_gb_s = 4200;

#define CALL(name, ...)                                                                        \
    do {                                                                                       \
        error failure = {0};                                                                   \
        if (CUDA_CALL(driver, &failure, name, __VA_ARGS__) != STATUS_OK) stop(failure.text);   \
    } while (0)

static void stop(const char *text) {
    (void)fprintf(stderr, "bench_cuda: %s\n", text);
    exit(1);
}

static void open_device(void) {
    static const char *const names[] = {
#define NAME(name) #name,
        CUDA_KERNELS(NAME)
#undef NAME
    };
    error err = {0};
    cuda_context context;
    cuda_module module;
    if (kernels_fatbin_size == 0) stop("this build has no CUDA kernels");
    if (cuda_driver_open(&driver, &err) != STATUS_OK) stop(err.text);
    if (cuda_card_read(driver, 0, &card, &err) != STATUS_OK) stop(err.text);
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

/* ---- the device of the cases ---- */

static void *device_alloc(size_t bytes) {
    cuda_pointer p;
    CALL(cuMemAlloc, &p, bytes);
    CALL(cuMemsetD8Async, p, 0xff, bytes, stream);
    CALL(cuStreamSynchronize, stream);
    return (void *)(uintptr_t)p;
}

static void device_free(void *p) {
    CALL(cuMemFree, (cuda_pointer)(uintptr_t)p);
}

/* On the stream of the launches: a copy from pageable memory returns before it has arrived. */
static void device_write(void *to, const void *from, size_t bytes) {
    CALL(cuMemcpyHtoDAsync, (cuda_pointer)(uintptr_t)to, from, bytes, stream);
    CALL(cuStreamSynchronize, stream);
}

static void device_read(void *to, const void *from, size_t bytes) {
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemcpyDtoH, to, (cuda_pointer)(uintptr_t)from, bytes);
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

static void device_launch(cuda_kernel kernel, cuda_shape shape, const void *args,
                          size_t bytes) {
    unsigned char copy[1024];
    memcpy(copy, args, bytes);
    queue(kernel, shape, copy, 0);
    CALL(cuStreamSynchronize, stream);
}

static int check(void) {
    const kernel_device device = {device_alloc, device_free,   device_write,
                                  device_read,  device_launch, (uint32_t)card.n_sms};
    int failed = 0;
    for (size_t i = 0; i < n_cuda_cases; i++) {
        const cuda_case *c = &cuda_cases[i];
        const double off = c->run(&device);
        const int ok = off <= c->tolerance;
        printf("%s %-36s error %.2g, at most %.2g\n", ok ? "ok    " : "FAILED", c->name, off,
               c->tolerance);
        failed += !ok;
    }
    printf("%zu passed, %d failed\n", n_cuda_cases - (size_t)failed, failed);
    return failed;
}

/* ---- timing ---- */

typedef struct launch {
    cuda_kernel kernel;
    cuda_shape shape;
    unsigned char args[512];
} launch;

enum { MAX_LAUNCHES = 1024, REPLAYS = 9 };
static launch launches[MAX_LAUNCHES];
static size_t n_launches;

static void add_launch(cuda_kernel kernel, cuda_shape shape, const void *args, size_t bytes) {
    if (n_launches == MAX_LAUNCHES || bytes > sizeof launches[0].args) stop("too much");
    launches[n_launches].kernel = kernel;
    launches[n_launches].shape = shape;
    memcpy(launches[n_launches++].args, args, bytes);
}
#define ADD(kernel, shape, args)                                                               \
    add_launch(CUDA_KERNEL_##kernel, (shape), &(args), sizeof(args))

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Time the launches added since the last call; `per` operations, `bytes` each. */
static void report(const char *name, double per, double bytes, double flops) {
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

/* A pool of device memory, cut from the front and begun again for each benchmark. */
static unsigned char *pool;
static const size_t pool_bytes = (size_t)3 << 30;
static size_t pool_used;

static void *take(size_t bytes) {
    void *p = pool + pool_used;
    pool_used += (bytes + 255) / 256 * 256;
    if (pool_used > pool_bytes) stop("the pool is too small");
    return p;
}

/* Valid blocks of a type: one megabyte or so of random ones, again and again. */
static void *take_weights(uint32_t type, size_t bytes) {
    enum { SAMPLE = 1 << 20 };
    static unsigned char sample[SAMPLE];
    const size_t block = quant_traits_of(type)->block_bytes, whole = SAMPLE / block * block;
    unsigned char *p = take(bytes);
    cuda_case_fill(type, sample, whole);
    for (size_t at = 0; at < bytes; at += whole)
        device_write(p + at, sample, bytes - at < whole ? bytes - at : whole);
    return p;
}

static float *take_floats(size_t n) {
    return take_weights(QUANT_F32, n * 4);
}

/* Activation rows, quantized from random floats. */
static void *take_acts(uint32_t n_rows, uint32_t n_cols) {
    void *act = take(n_rows * cuda_act_row_bytes(n_cols));
    const quantize_args args = {take_floats((size_t)n_rows * n_cols), act,    n_cols,
                                cuda_act_row_bytes(n_cols),           n_cols, n_rows};
    device_launch(CUDA_KERNEL_quantize, quantize_shape(&args), &args, sizeof args);
    return act;
}

typedef struct part {
    uint32_t type, n_rows;
} part;

/* Segments on one input, over as many copies of the weights as pass the L2 cache. */
static void time_matvec(const char *name, uint32_t n_cols, uint32_t n_tokens, const part *parts,
                        uint32_t n_parts, bool norm) {
    enum { TIMES = 48 };
    double bytes = 0;
    pool_used = 0;
    matvec_args args = {.x = take_floats((size_t)n_tokens * n_cols),
                        .act = norm ? NULL : take_acts(n_tokens, n_cols),
                        .norm = norm ? take_floats(n_cols) : NULL,
                        .x_stride = n_cols,
                        .act_stride = cuda_act_row_bytes(n_cols),
                        .n_cols = n_cols,
                        .n_tokens = n_tokens,
                        .n_segments = n_parts};
    for (uint32_t i = 0; i < n_parts; i++)
        bytes += (double)parts[i].n_rows *
                 (double)quant_row_bytes(
                     parts[i].type == CUDA_Q6_K_SPLIT ? QUANT_Q6_K : (quant_type)parts[i].type,
                     n_cols);
    const int copies = bytes > 1e8                      ? 4
                       : (int)(4e8 / bytes) + 2 > TIMES ? TIMES
                                                        : (int)(4e8 / bytes) + 2;
    matvec_segment *segments = calloc((size_t)copies * n_parts, sizeof *segments);
    if (segments == NULL) stop("no memory");
    for (int c = 0; c < copies; c++) {
        for (uint32_t i = 0; i < n_parts; i++) {
            const int split = parts[i].type == CUDA_Q6_K_SPLIT;
            const uint32_t type = split ? (uint32_t)QUANT_Q6_K : parts[i].type;
            const size_t row = quant_row_bytes((quant_type)type, n_cols);
            segments[(size_t)c * n_parts + i] =
                (matvec_segment){.weights = take_weights(type, row * parts[i].n_rows),
                                 .out = take((size_t)n_tokens * parts[i].n_rows * 4),
                                 .row_bytes = split ? row / 210 * 208 : row,
                                 .out_stride = parts[i].n_rows,
                                 .split_d = (uint64_t)n_cols / 256 * parts[i].n_rows * 208,
                                 .type = parts[i].type,
                                 .n_rows = parts[i].n_rows};
        }
    }
    const int times = bytes > 1e8 ? 8 : TIMES;
    for (int k = 0; k < times; k++) {
        memcpy(args.segments, segments + (size_t)(k % copies) * n_parts,
               n_parts * sizeof *segments);
        cuda_shape shape;
        const cuda_kernel kernel =
            matvec_choose(&args, (uint32_t)card.n_sms, (uint32_t)card.major, &shape);
        add_launch(kernel, shape, &args, sizeof args);
    }
    free(segments);
    report(name, times, bytes, 0);
}

enum { E = 2048, F = 512, N_EXPERTS = 256, USED = 8 };

static void time_rows(void) {
    enum { TIMES = 100 };
    pool_used = 0;
    const norm_args norm = {.x = take_floats(E),
                            .weight = take_floats(E),
                            .y = take(E * 4),
                            .act = take(E * 2),
                            .x_stride = E,
                            .y_stride = E,
                            .act_stride = cuda_act_row_bytes(E),
                            .dim = E,
                            .eps = 1e-6f};
    for (int i = 0; i < TIMES; i++)
        ADD(rmsnorm, rmsnorm_shape(&norm, 1), norm);
    report("rmsnorm + q8, 2048", TIMES, 0, 0);
    const router_cuda_args route = {
        .base = {take_floats(N_EXPERTS), take(64), take(64), N_EXPERTS, N_EXPERTS, USED},
        .records = take(N_EXPERTS * 8),
        .places = take(64)};
    for (int i = 0; i < TIMES; i++)
        ADD(router, router_shape(1), route);
    report("router top-8 of 256", TIMES, 0, 0);
    const argmax_args arg = {take_floats(248320), take(8), 248320, 248320, 1};
    for (int i = 0; i < TIMES; i++)
        ADD(argmax, argmax_shape(&arg), arg);
    report("argmax 248320", TIMES, 248320 * 4, 0);
}

/* The records of N_EXPERTS experts, and their table. */
static uint32_t file_type(uint32_t type) {
    return type == CUDA_Q6_K_SPLIT ? (uint32_t)QUANT_Q6_K : type;
}

static uint64_t *take_records(uint32_t down_type, size_t *down_at) {
    const size_t up = F * quant_row_bytes(QUANT_Q4_K, E);
    const size_t down = E * quant_row_bytes((quant_type)file_type(down_type), F);
    uint64_t table[N_EXPERTS];
    for (int e = 0; e < N_EXPERTS; e++) {
        unsigned char *p = take_weights(QUANT_Q4_K, 2 * up);
        take_weights(file_type(down_type), down); /* it follows: 2 * up is a multiple of 256 */
        table[e] = (uint64_t)(uintptr_t)p;
    }
    uint64_t *device = take(sizeof table);
    device_write(device, table, sizeof table);
    *down_at = 2 * up;
    return device;
}

typedef struct expert_step {
    experts_up_args up;
    experts_down_args down;
    int32_t *chosen; /* [EXPERT_STEPS][8][USED] on the device */
} expert_step;

enum { EXPERT_STEPS = 32 };

static expert_step take_experts(uint32_t down_type, uint32_t n_rows) {
    size_t down_at;
    uint64_t *records = take_records(down_type, &down_at);
    const size_t row = quant_row_bytes(QUANT_Q4_K, E);
    const size_t down_file = quant_row_bytes((quant_type)file_type(down_type), F);
    const size_t down_row = down_type == CUDA_Q6_K_SPLIT ? down_file / 210 * 208 : down_file;
    const uint64_t split_d = E * down_row;
    const unsigned char *shared = take_weights(QUANT_Q4_K, 2 * F * row);
    const void *shared_down = take_weights(file_type(down_type), E * down_file);
    int32_t *chosen = take(EXPERT_STEPS * 8 * USED * 4);
    int32_t ids[EXPERT_STEPS * 8 * USED];
    for (int i = 0; i < EXPERT_STEPS * 8 * USED; i++)
        ids[i] = i * 37 % N_EXPERTS;
    device_write(chosen, ids, sizeof ids);
    const experts_up_args up = {
        .records = records,
        .act = take_acts(n_rows, E),
        .h = take(100 * F * 4),
        .h_act = take(100 * cuda_act_row_bytes(F)),
        .act_stride = cuda_act_row_bytes(E),
        .h_stride = F,
        .h_act_stride = cuda_act_row_bytes(F),
        .gate = {shared, 0, row, row, 0, 0, QUANT_Q4_K, QUANT_Q4_K},
        .up = {shared + F * row, F * row, row, row, 0, 0, QUANT_Q4_K, QUANT_Q4_K},
        .n_rows = n_rows,
        .n_used = USED,
        .n_cols = E,
        .n_ff = F,
        .n_ff_shared = F,
        .down_offset = down_at,
        .down_bytes = E * down_file};
    const experts_down_args down = {.records = records,
                                    .weights = take_floats(8 * USED),
                                    .shared_gate = take_floats(8),
                                    .h = up.h,
                                    .h_act = up.h_act,
                                    .x = take_floats(8 * E),
                                    .h_stride = F,
                                    .h_act_stride = up.h_act_stride,
                                    .x_stride = E,
                                    .down = {shared_down, down_at, down_row, down_row, split_d,
                                             split_d, down_type, down_type},
                                    .n_rows = n_rows,
                                    .n_used = USED,
                                    .n_embd = E,
                                    .n_ff = F,
                                    .n_ff_shared = F};
    return (expert_step){up, down, chosen};
}

static void add_up(experts_up_args up, const int32_t *chosen) {
    cuda_shape shape;
    up.experts = chosen;
    const cuda_kernel kernel = experts_up_choose(&up, &shape);
    add_launch(kernel, shape, &up, sizeof up);
}

static void add_down(experts_down_args down, const int32_t *chosen) {
    cuda_shape shape;
    down.experts = chosen;
    const cuda_kernel kernel = experts_down_choose(&down, &shape);
    add_launch(kernel, shape, &down, sizeof down);
}

static void time_experts(uint32_t down_type, uint32_t n_rows) {
    pool_used = 0;
    const expert_step s = take_experts(down_type, n_rows);
    char name[96];
    const double pairs = n_rows * 9.0;
    for (int i = 0; i < EXPERT_STEPS; i++)
        add_up(s.up, s.chosen + i * 8 * USED);
    (void)snprintf(name, sizeof name, "experts_up Q4_K, %u rows, 8 + 1", n_rows);
    report(name, EXPERT_STEPS, pairs * 2 * F * (double)s.up.gate.row_bytes, 0);
    for (int i = 0; i < EXPERT_STEPS; i++)
        add_down(s.down, s.chosen + i * 8 * USED);
    (void)snprintf(name, sizeof name, "experts_down %s, %u rows",
                   quant_traits_of(file_type(down_type))->name, n_rows);
    report(name, EXPERT_STEPS, pairs * (double)s.up.down_bytes, 0);
}

/* A step's places and turns, its first n_missing pairs coming; missing records go to one of
 * N_EXPERTS others. */
static void take_turns(expert_step *s, uint32_t n_rows, uint32_t n_missing, int step) {
    uint64_t places[8 * USED], table[N_EXPERTS];
    expert_turn turns[8 * USED];
    device_read(table, s->up.records, sizeof table);
    for (uint32_t i = 0; i < n_rows * USED; i++) {
        const uint32_t e = ((uint32_t)step * 8 * USED + i) * 37 % N_EXPERTS;
        places[i] = table[e] | (i < n_missing ? EXPERT_COMING : 0);
        turns[i] = (expert_turn){places[i], i, e};
    }
    uint64_t *at = take(sizeof places);
    expert_turn *order = take(sizeof turns);
    device_write(at, places, sizeof places);
    device_write(order, turns, sizeof turns);
    s->up.places = s->down.places = at;
    s->up.turns = order;
}

static void time_missing(expert_step s, uint32_t n_rows, uint32_t n_missing) {
    char name[96];
    s.up.n_rows = s.down.n_rows = n_rows;
    for (int i = 0; i < EXPERT_STEPS; i++) {
        take_turns(&s, n_rows, n_missing, i);
        add_up(s.up, s.chosen + i * 8 * USED);
        add_down(s.down, s.chosen + i * 8 * USED);
    }
    (void)snprintf(name, sizeof name, "experts up + down, %u rows, %u missing", n_rows,
                   n_missing);
    report(name, EXPERT_STEPS, n_missing * (double)(s.up.down_offset + s.up.down_bytes), 0);
}

/* Both launches of a layer, some of whose experts come from pinned memory, which holds zeros; GB/s
 * are the bus's. */
static void time_coming(void) {
    void *source = NULL;
    pool_used = 0;
    expert_step s = take_experts(QUANT_Q4_K, 8);
    s.up.slot_bytes = (s.up.down_offset + s.up.down_bytes + 255) / 256 * 256;
    CALL(cuMemHostAlloc, &source, N_EXPERTS * s.up.slot_bytes, 0);
    memset(source, 0, N_EXPERTS * s.up.slot_bytes);
    s.up.source = source;
    for (uint32_t missing = 0; missing <= 4; missing++)
        time_missing(s, 1, missing);
    time_missing(s, 8, 0);
    time_missing(s, 8, 16);
    CALL(cuMemFreeHost, source);
}

static batch_view take_batch(uint32_t n_rows, uint32_t position, uint32_t n_pages) {
    const batch_run run = {0, n_rows, position, 0, 0, 0};
    uint32_t *ids = calloc(n_pages + n_rows + 1, 4);
    if (ids == NULL) stop("no memory");
    batch_run *runs = take(sizeof run);
    uint32_t *row_run = take(n_rows * 4), *pages = take(n_pages * 4);
    device_write(row_run, ids, n_rows * 4);
    for (uint32_t i = 0; i < n_pages; i++)
        ids[i] = n_pages - 1 - i;
    device_write(pages, ids, n_pages * 4);
    device_write(runs, &run, sizeof run);
    free(ids);
    return (batch_view){runs, row_run, pages, n_rows, 1};
}

static void time_delta_net(uint32_t n_rows) {
    enum { HEADS = 32, KEYS = 16, D = 128, CONV = 8192, LAYERS = 30 };
    pool_used = 0;
    const batch_view batch = take_batch(n_rows, 0, 1);
    const size_t matrices = (size_t)HEADS * D * D, state = matrices + 3 * CONV;
    float *states = take_floats(LAYERS * state);
    float *u = take_floats((size_t)n_rows * CONV), *y = take((size_t)n_rows * CONV * 4);
    delta_net_cuda_args a = {.base = {.batch = batch,
                                      .qkv = u,
                                      .z = take_floats((size_t)n_rows * HEADS * D),
                                      .alpha = take_floats((size_t)n_rows * HEADS),
                                      .beta = take_floats((size_t)n_rows * HEADS),
                                      .a = take_floats(HEADS),
                                      .dt = take_floats(HEADS),
                                      .norm = take_floats(D),
                                      .out = take((size_t)n_rows * HEADS * D * 4),
                                      .qkv_stride = CONV,
                                      .z_stride = HEADS * D,
                                      .alpha_stride = HEADS,
                                      .beta_stride = HEADS,
                                      .out_stride = HEADS * D,
                                      .state_stride = state,
                                      .n_key_heads = KEYS,
                                      .n_value_heads = HEADS,
                                      .dim = D,
                                      .eps = 1e-6f},
                             .act = take(n_rows * cuda_act_row_bytes(HEADS * D)),
                             .act_stride = cuda_act_row_bytes(HEADS * D),
                             .workspace = take(delta_net_workspace_bytes(n_rows, 1, HEADS)),
                             .raw = take((size_t)n_rows * HEADS * D * 4)};
    conv1d_args c = {batch, u, take_floats(4 * CONV), NULL, y, CONV, CONV, state, CONV, 4};
    char name[96];
    for (int i = 0; i < LAYERS; i++) {
        c.state = states + i * state + matrices;
        ADD(conv1d, conv1d_shape(&c), c);
    }
    (void)snprintf(name, sizeof name, "conv1d, %u rows", n_rows);
    report(name, LAYERS, (2.0 * n_rows + 10) * CONV * 4, 0);
    delta_step_args step = {.base = a.base,
                            .taps = take_floats(4 * CONV),
                            .turns = take(KEYS * 4),
                            .act = a.act,
                            .act_stride = a.act_stride,
                            .n_taps = 4};
    const uint32_t zeros[KEYS] = {0};
    device_write(step.turns, zeros, sizeof zeros);
    for (int i = 0; i < LAYERS && n_rows <= 8; i++) {
        step.base.state = states + i * state;
        step.conv_state = step.base.state + matrices;
        ADD(delta_net_step, delta_step_shape(&step), step);
    }
    (void)snprintf(name, sizeof name, "delta_net_step, %u rows", n_rows);
    if (n_launches > 0) report(name, LAYERS, 2.0 * matrices * 4, 0);
    if (n_rows < 64) return;
    a.base.state = states;
    for (int i = 0; i < 4; i++)
        ADD(delta_net_scores, delta_net_scores_shape(&a), a);
    report("  delta_net_scores", 4, 0, 0);
    for (int i = 0; i < 4; i++)
        ADD(delta_net_chunks, delta_net_chunks_shape(&a), a);
    report("  delta_net_chunks", 4, 0, 0);
    for (int i = 0; i < 4; i++)
        ADD(delta_net_norm, delta_net_norm_shape(&a), a);
    report("  delta_net_norm", 4, 0, 0);
}

static void time_attention(uint32_t n_rows, uint32_t position, uint32_t type) {
    enum { HEADS = 16, KV = 2, D = 256, LAYERS = 10 };
    pool_used = 0;
    const uint32_t n_pages = (position + n_rows + 63) / 64;
    const batch_view batch = take_batch(n_rows, position, n_pages);
    const size_t layer = kv_layer_bytes(type, KV, D);
    const char *kv_name = type == KV_F32   ? "f32"
                          : type == KV_F16 ? "f16"
                          : type == KV_Q8  ? "q8"
                                           : "q4";
    kv_view kv = {
        take_weights(type == KV_F32 ? QUANT_F32 : QUANT_F16, n_pages * layer * LAYERS),
        layer * LAYERS,
        0,
        type,
        KV,
        D,
        0};
    const uint32_t qg = 2 * HEADS * D;
    prepare_args p = {.base = {.batch = batch,
                               .kv = kv,
                               .qg = take_floats((size_t)n_rows * qg),
                               .k = take_floats((size_t)n_rows * KV * D),
                               .v = take_floats((size_t)n_rows * KV * D),
                               .q_norm = take_floats(D),
                               .k_norm = take_floats(D),
                               .qg_stride = qg,
                               .k_stride = KV * D,
                               .v_stride = KV * D,
                               .n_heads = HEADS,
                               .n_rot = 64,
                               .eps = 1e-6f},
                      .inv_freq = take_floats(32)};
    attention_cuda_args a = {.base = {.batch = batch,
                                      .kv = kv,
                                      .qg = p.base.qg,
                                      .out = take((size_t)n_rows * HEADS * D * 4),
                                      .qg_stride = qg,
                                      .out_stride = HEADS * D,
                                      .n_heads = HEADS,
                                      .scale = 0.0625f},
                             .act = take(n_rows * cuda_act_row_bytes(HEADS * D)),
                             .act_stride = cuda_act_row_bytes(HEADS * D)};
    const double pages = (double)(position + n_rows) * (double)layer / KV_PAGE_TOKENS;
    char name[96];
    if (n_rows == 1) {
        a.n_splits = attention_step_splits(&p, position + 64, (uint32_t)card.n_sms);
        a.workspace = take(attention_workspace_bytes(1, HEADS, D, a.n_splits));
        attention_step_args step = {p, a.workspace, a.n_splits, 0.0625f};
        for (uint32_t i = 0; i < LAYERS; i++) {
            cuda_shape shape;
            const cuda_kernel kernel = attention_step_choose(&step, &shape);
            step.prepare.base.kv.layer_offset = i * layer;
            add_launch(kernel, shape, &step, sizeof step);
        }
        (void)snprintf(name, sizeof name, "attention_step %s at %u", kv_name, position);
        report(name, LAYERS, pages, 0);
        for (uint32_t i = 0; i < LAYERS; i++)
            ADD(attention_combine, attention_combine_shape(&a), a);
        (void)snprintf(name, sizeof name, "attention_combine at %u", position);
        report(name, LAYERS, 0, 0);
        return;
    }
    for (uint32_t i = 0; i < LAYERS; i++) {
        p.base.kv.layer_offset = i * layer;
        ADD(attention_prepare, attention_prepare_shape(&p), p);
    }
    (void)snprintf(name, sizeof name, "attention_prepare, %u rows", n_rows);
    report(name, LAYERS, 0, 0);
    for (uint32_t i = 0; i < 4; i++) {
        a.base.kv.layer_offset = i * layer;
        ADD(attention_half, attention_half_shape(&a), a);
    }
    (void)snprintf(name, sizeof name, "attention_half, %u rows at %u", n_rows, position);
    report(name, 4, 0, 4.0 * HEADS * D * n_rows * (position + n_rows / 2.0));
}

static void time_matmul(uint32_t type, uint32_t n_rows, uint32_t n_cols, uint32_t n_tokens) {
    pool_used = 0;
    const size_t row = quant_row_bytes((quant_type)type, n_cols);
    matmul_args a = {.act = take_acts(n_tokens, n_cols),
                     .x = take_floats((size_t)n_tokens * n_cols),
                     .out = take((size_t)n_tokens * n_rows * 4),
                     .row_bytes = row,
                     .x_stride = n_cols,
                     .act_stride = cuda_act_row_bytes(n_cols),
                     .out_stride = n_rows,
                     .type = type,
                     .n_rows = n_rows,
                     .n_cols = n_cols,
                     .n_tokens = n_tokens};
    for (int i = 0; i < 6; i++) {
        cuda_shape shape;
        a.weights = take_weights(type, row * n_rows);
        const cuda_kernel kernel = matmul_choose(&a, &shape);
        add_launch(kernel, shape, &a, sizeof a);
    }
    char name[96];
    (void)snprintf(name, sizeof name, "matmul %s %u x %u, %u tokens",
                   quant_traits_of(type)->name, n_rows, n_cols, n_tokens);
    report(name, 6, 0, 2.0 * n_rows * n_cols * n_tokens);
}

static void time_grouped(uint32_t n_tokens) {
    pool_used = 0;
    size_t down_at;
    const uint32_t pairs = n_tokens * USED;
    int32_t *ids = malloc(pairs * 4);
    if (ids == NULL) stop("no memory");
    for (uint32_t i = 0; i < pairs; i++)
        ids[i] = (int32_t)(i * 37 % N_EXPERTS);
    uint64_t *records = take_records(QUANT_Q6_K, &down_at);
    int32_t *experts = take(pairs * 4);
    device_write(experts, ids, pairs * 4);
    free(ids);
    const experts_sort_args sort = {
        experts,
        take(pairs * 4),
        take(pairs * 4),
        take((N_EXPERTS + 1) * 4),
        take(matmul_max_tiles(pairs, N_EXPERTS) * sizeof(matmul_tile)),
        take(4),
        pairs,
        USED,
        N_EXPERTS,
        0};
    for (int i = 0; i < 4; i++)
        ADD(experts_sort, experts_sort_shape(), sort);
    char name[96];
    (void)snprintf(name, sizeof name, "experts_sort, %u tokens", n_tokens);
    report(name, 4, 0, 0);
    matmul_args a = {.act = take_acts(n_tokens, E),
                     .out = take((size_t)pairs * E * 4),
                     .records = records,
                     .tiles = sort.tiles,
                     .n_tiles = sort.n_tiles,
                     .in_rows = sort.pair_row,
                     .row_bytes = quant_row_bytes(QUANT_Q4_K, E),
                     .act_stride = cuda_act_row_bytes(E),
                     .out_stride = F,
                     .type = QUANT_Q4_K,
                     .n_rows = F,
                     .n_cols = E,
                     .n_tokens = pairs,
                     .n_groups = N_EXPERTS};
    cuda_shape shape;
    for (int i = 0; i < 4; i++) {
        const cuda_kernel kernel = matmul_choose(&a, &shape);
        add_launch(kernel, shape, &a, sizeof a);
    }
    (void)snprintf(name, sizeof name, "experts gate, Q4_K, %u tokens", n_tokens);
    report(name, 4, 256.0 * F * (double)a.row_bytes, 2.0 * E * F * pairs);
    a.act = take_acts(pairs, F);
    a.in_rows = NULL;
    a.out_rows = sort.pair_out;
    a.offset = down_at;
    a.act_stride = cuda_act_row_bytes(F);
    a.out_stride = E;
    a.type = QUANT_Q6_K;
    a.row_bytes = quant_row_bytes(QUANT_Q6_K, F);
    a.n_rows = E;
    a.n_cols = F;
    for (int i = 0; i < 4; i++) {
        const cuda_kernel kernel = matmul_choose(&a, &shape);
        add_launch(kernel, shape, &a, sizeof a);
    }
    (void)snprintf(name, sizeof name, "experts down, Q6_K, %u tokens", n_tokens);
    report(name, 4, 256.0 * E * (double)a.row_bytes, 2.0 * E * F * pairs);
}

static void time_router_logits(void) {
    enum { TIMES = 48 };
    pool_used = 0;
    router_logits_args a = {.x = take_floats(E),
                            .norm = take_floats(E),
                            .y = take(E * 4),
                            .act = take(cuda_act_row_bytes(E)),
                            .x_stride = E,
                            .y_stride = E,
                            .act_stride = cuda_act_row_bytes(E),
                            .n_cols = E,
                            .n_tokens = 1,
                            .n_segments = 2,
                            .eps = 1e-6f};
    float *logits = take((N_EXPERTS + 1) * 4);
    for (int i = 0; i < TIMES; i++) {
        const float *w = take_floats((size_t)E * (N_EXPERTS + 1));
        for (uint32_t s = 0; s < 2; s++)
            a.segments[s] = (matvec_segment){.weights = w + s * E * N_EXPERTS,
                                             .out = logits + s * N_EXPERTS,
                                             .row_bytes = E * 4,
                                             .out_stride = N_EXPERTS,
                                             .type = QUANT_F32,
                                             .n_rows = s ? 1 : N_EXPERTS};
        ADD(router_logits, router_logits_shape(&a), a);
    }
    report("norm + router logits F32 257 x 2048", TIMES, 257.0 * E * 4, 0);
}

static void time_all(void) {
    static const part qkv[] = {{QUANT_Q5_K, 8192}, {QUANT_Q4_K, 4096}, {QUANT_Q4_K, 64}};
    static const part full[] = {{QUANT_Q4_K, 8192}, {QUANT_Q4_K, 512}, {QUANT_Q6_K, 512}};
    static const part out[] = {{QUANT_Q4_K, 2048}};
    static const part head[] = {{QUANT_Q6_K, 248320}}, split[] = {{CUDA_Q6_K_SPLIT, 248320}};
    static const part q8[] = {{QUANT_Q8_0, 8192}};
    pool = device_alloc(pool_bytes);
    time_rows();
    time_matvec("matvec qkv + z + a/b, 12352 x 2048", 2048, 1, qkv, 3, false);
    time_matvec("  norm inside", 2048, 1, qkv, 3, true);
    time_matvec("  2 tokens", 2048, 2, qkv, 3, false);
    time_matvec("  4 tokens", 2048, 4, qkv, 3, false);
    time_matvec("  8 tokens", 2048, 8, qkv, 3, false);
    time_matvec("matvec q + k + v, 9216 x 2048", 2048, 1, full, 3, false);
    time_matvec("  norm inside", 2048, 1, full, 3, true);
    time_matvec("matvec out, Q4_K 2048 x 4096", 4096, 1, out, 1, false);
    time_matvec("matvec Q8_0 8192 x 2048", 2048, 1, q8, 1, false);
    time_router_logits();
    time_matvec("matvec head, Q6_K 248320 x 2048", 2048, 1, head, 1, false);
    time_matvec("matvec head, split Q6_K", 2048, 1, split, 1, false);
    time_experts(QUANT_Q4_K, 1);
    time_experts(CUDA_Q6_K_SPLIT, 1);
    time_experts(QUANT_Q4_K, 4);
    time_coming();
    time_delta_net(1);
    time_attention(1, 1000, KV_F16);
    time_attention(1, 8000, KV_F16);
    time_attention(1, 32000, KV_F16);
    time_attention(1, 1000, KV_F32);
    time_attention(1, 8000, KV_Q8);
    time_attention(1, 8000, KV_Q4);
    time_matmul(QUANT_Q5_K, 8192, 2048, 512);
    time_matmul(QUANT_Q4_K, 8192, 2048, 2048);
    time_matmul(QUANT_Q6_K, 8192, 2048, 2048);
    time_matmul(QUANT_F32, 256, 2048, 2048);
    time_grouped(512);
    time_grouped(2048);
    time_delta_net(2048);
    time_attention(2048, 0, KV_F16);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (argc > 2) peak_gb_s = atof(argv[2]);
    open_device();
    const int failed = strcmp(what, "time") != 0 ? check() : 0;
    (void)fflush(stdout);
    if (strcmp(what, "check") != 0) time_all();
    return failed > 0;
}
