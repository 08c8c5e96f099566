/* backend_cuda_probe.c - whether there is a GPU for this build, how much VRAM is free and how fast
 * it is. */
#include "worker/backend_cuda.h"

#include "kernels/cuda/matvec.h"
#include <stdio.h>
#include <stdlib.h>

enum { SM_OLDEST = 75 };

status cuda_check_card(const cuda_card *card, error *err) {
    if (card->major * 10 + card->minor >= SM_OLDEST) return STATUS_OK;
    return error_set(err, STATUS_UNAVAILABLE,
                     "%s has compute capability %d.%d, at least 7.5 is needed", card->name,
                     card->major, card->minor);
}

status backend_cuda_available(error *err) {
    cuda_driver *d = NULL;
    cuda_card card;
    status rc = cuda_find_kernels(NULL, err);
    if (rc == STATUS_OK) rc = cuda_driver_open(&d, err);
    if (rc == STATUS_OK) rc = cuda_card_read(d, 0, &card, err);
    if (rc == STATUS_OK) rc = cuda_check_card(&card, err);
    cuda_driver_close(d);
    return rc;
}

/* Without NVML a context is made for the question. */
static status ask_driver(const cuda_driver *d, const cuda_card *card, uint64_t *free_bytes,
                         uint64_t *total_bytes, error *err) {
    cuda_context context = NULL;
    size_t left = 0, total = 0;
    status rc = CUDA_CALL(d, err, cuDevicePrimaryCtxRetain, &context, card->device);
    if (rc != STATUS_OK) return rc;
    rc = CUDA_CALL(d, err, cuCtxSetCurrent, context);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuMemGetInfo, &left, &total);
    (void)d->cuCtxSetCurrent(NULL);
    (void)d->cuDevicePrimaryCtxRelease(card->device);
    *free_bytes = left;
    *total_bytes = total;
    return rc;
}

status backend_cuda_memory(uint64_t *free_bytes, uint64_t *total_bytes, error *err) {
    cuda_driver *d = NULL;
    gpu_sensors *sensors = NULL;
    gpu_reading reading;
    cuda_card card;
    status rc = cuda_driver_open(&d, err);
    if (rc == STATUS_OK) rc = cuda_card_read(d, 0, &card, err);
    if (rc == STATUS_OK) {
        if (gpu_sensors_open(&sensors, card.bus_id, NULL) == STATUS_OK &&
            gpu_sensors_read(sensors, &reading, NULL) == STATUS_OK) {
            *free_bytes = reading.total_bytes - reading.used_bytes;
            *total_bytes = reading.total_bytes;
        } else {
            rc = ask_driver(d, &card, free_bytes, total_bytes, err);
        }
    }
    gpu_sensors_close(sensors);
    cuda_driver_close(d);
    return rc;
}

/* What the card's use grew by since *from, which moves there. */
static status read_growth(const gpu_sensors *sensors, uint64_t *from, uint64_t *out,
                          error *err) {
    gpu_reading now;
    status rc = gpu_sensors_read(sensors, &now, err);
    if (rc != STATUS_OK) return rc;
    if (now.used_bytes < *from)
        return error_set(err, STATUS_UNAVAILABLE, "nvml: others gave back memory meanwhile");
    *out = now.used_bytes - *from;
    *from = now.used_bytes;
    return STATUS_OK;
}

/* A kernel without work, alone and in a graph: some memory is taken with the first of them. */
static status run_first(backend_cuda *b, error *err) {
    const cuda_driver *d = b->driver;
    const matvec_args nothing = {.n_segments = 0};
    const cuda_shape one = cuda_shape_of(1, 1, MATVEC_BLOCK);
    cuda_graph graph = NULL;
    cuda_graph_run runs = NULL;
    cuda_launch(b, CUDA_KERNEL_matvec_f32, one, &nothing);
    status rc = CUDA_CALL(d, err, cuStreamSynchronize, b->compute);
    if (rc == STATUS_OK)
        rc = CUDA_CALL(d, err, cuStreamBeginCapture, b->compute, CUDA_CAPTURE_THREAD_LOCAL);
    if (rc != STATUS_OK) return rc;
    cuda_launch(b, CUDA_KERNEL_matvec_f32, one, &nothing);
    rc = CUDA_CALL(d, err, cuStreamEndCapture, b->compute, &graph);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuGraphInstantiate, &runs, graph, 0);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuGraphLaunch, runs, b->compute);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuStreamSynchronize, b->compute);
    if (runs != NULL) (void)d->cuGraphExecDestroy(runs);
    if (graph != NULL) (void)d->cuGraphDestroy(graph);
    if (rc != STATUS_OK || b->failed == STATUS_OK) return rc;
    return error_set(err, b->failed, "%s", b->failure.text);
}

status backend_cuda_overhead(uint64_t *all_bytes, uint64_t *kernel_bytes, error *err) {
    backend_cuda *b = calloc(1, sizeof *b);
    gpu_sensors *sensors = NULL;
    gpu_reading before = {0};
    uint64_t context = 0;
    *all_bytes = *kernel_bytes = 0;
    if (b == NULL) return error_set(err, STATUS_NO_MEMORY, "cuda: no memory");
    status rc = cuda_find_kernels(NULL, err);
    if (rc == STATUS_OK) rc = cuda_driver_open(&b->driver, err);
    if (rc == STATUS_OK) rc = cuda_card_read(b->driver, 0, &b->card, err);
    if (rc == STATUS_OK) rc = gpu_sensors_open(&sensors, b->card.bus_id, err);
    if (rc == STATUS_OK) rc = gpu_sensors_read(sensors, &before, err);
    if (rc == STATUS_OK) rc = cuda_open_context(b, err);
    if (rc == STATUS_OK) rc = read_growth(sensors, &before.used_bytes, &context, err);
    if (rc == STATUS_OK) rc = cuda_load_kernels(b, err);
    if (rc == STATUS_OK) rc = run_first(b, err);
    if (rc == STATUS_OK) rc = read_growth(sensors, &before.used_bytes, kernel_bytes, err);
    if (rc == STATUS_OK) *all_bytes = context + *kernel_bytes;
    cuda_close_context(b);
    gpu_sensors_close(sensors);
    cuda_driver_close(b->driver);
    free(b);
    return rc;
}

void backend_cuda_describe(char *name, size_t name_cap, char *bus_id, size_t bus_id_cap,
                           uint64_t *vram_bytes) {
    cuda_driver *d = NULL;
    cuda_card card = {0};
    if (cuda_driver_open(&d, NULL) == STATUS_OK) (void)cuda_card_read(d, 0, &card, NULL);
    (void)snprintf(name, name_cap, "%s", card.name);
    (void)snprintf(bus_id, bus_id_cap, "%s", card.bus_id);
    *vram_bytes = card.total_bytes;
    cuda_driver_close(d);
}

enum { COPY_TIMES = 16, COPY_BYTES = 256 * 1024 * 1024 };

/* Copies from one half of `at` to the other, between two events. */
static status time_copies(const cuda_driver *d, cuda_pointer at, cuda_event from, cuda_event to,
                          double *gb_per_s, error *err) {
    float ms = 0;
    status rc = STATUS_OK;
    for (int i = 0; i <= COPY_TIMES && rc == STATUS_OK; i++) { /* the first warms up */
        rc = CUDA_CALL(d, err, cuMemcpyDtoDAsync, at + COPY_BYTES, at, COPY_BYTES, NULL);
        if (rc == STATUS_OK && i == 0) rc = CUDA_CALL(d, err, cuEventRecord, from, NULL);
    }
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuEventRecord, to, NULL);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuEventSynchronize, to);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuEventElapsedTime, &ms, from, to);
    if (rc == STATUS_OK && ms > 0)
        *gb_per_s = 2.0 * COPY_TIMES * (double)COPY_BYTES / ((double)ms * 1e6);
    return rc;
}

/* With the card's context current. */
static status measure_copies(const cuda_driver *d, double *gb_per_s, error *err) {
    cuda_pointer at = 0;
    cuda_event from = NULL, to = NULL;
    status rc = CUDA_CALL(d, err, cuMemAlloc, &at, 2 * (size_t)COPY_BYTES);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuEventCreate, &from, 0);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuEventCreate, &to, 0);
    if (rc == STATUS_OK) rc = time_copies(d, at, from, to, gb_per_s, err);
    if (to != NULL) (void)d->cuEventDestroy(to);
    if (from != NULL) (void)d->cuEventDestroy(from);
    if (at != 0) (void)d->cuMemFree(at);
    return rc;
}

status backend_cuda_bandwidth(double *gb_per_s, error *err) {
    cuda_driver *d = NULL;
    cuda_context context = NULL;
    cuda_card card;
    *gb_per_s = 0;
    status rc = cuda_driver_open(&d, err);
    if (rc == STATUS_OK) rc = cuda_card_read(d, 0, &card, err);
    if (rc == STATUS_OK)
        rc = CUDA_CALL(d, err, cuDevicePrimaryCtxRetain, &context, card.device);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuCtxSetCurrent, context);
    if (rc == STATUS_OK) rc = measure_copies(d, gb_per_s, err);
    if (context != NULL) {
        (void)d->cuCtxSetCurrent(NULL);
        (void)d->cuDevicePrimaryCtxRelease(card.device);
    }
    cuda_driver_close(d);
    return rc;
}
