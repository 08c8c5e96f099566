/* backend_cuda_probe.c - whether there is a GPU for this build, and how much VRAM is free. */
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
