/* backend_cuda_probe.c - whether there is a GPU for this build, how much VRAM is free and how fast
 * it is. */
#include "worker/backend_cuda.h"

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
