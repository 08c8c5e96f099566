#include "worker/vram_watch.h"

#include "common/thread.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

struct vram_watch {
    gpu_sensors *sensors;
    thread reader;
    uint32_t interval_ms;
    pthread_mutex_t lock; /* of the latest reading */
    gpu_reading latest;
    uint64_t at_start;
    _Atomic uint64_t most;
    atomic_bool over;
};

static void take_reading(vram_watch *w) {
    gpu_reading r;
    if (gpu_sensors_read(w->sensors, &r, NULL) != STATUS_OK) return;
    (void)pthread_mutex_lock(&w->lock);
    w->latest = r;
    (void)pthread_mutex_unlock(&w->lock);
    if (r.used_bytes > atomic_load(&w->most)) atomic_store(&w->most, r.used_bytes);
}

static void read_on(void *argument) {
    vram_watch *w = argument;
    const struct timespec pause = {.tv_nsec = VRAM_WATCH_PEAK_MS * 1000000L};
    thread_ready();
    for (uint32_t slept_ms = 0; !atomic_load(&w->over);) {
        if (slept_ms % w->interval_ms == 0) take_reading(w);
        (void)nanosleep(&pause, NULL); /* not longer, for the sake of the end */
        slept_ms += VRAM_WATCH_PEAK_MS;
    }
}

status vram_watch_start(vram_watch **out, const char *bus_id, uint32_t interval_ms,
                        error *err) {
    *out = NULL;
    gpu_reading r;
    vram_watch *w = calloc(1, sizeof *w);
    if (w == NULL) return error_set(err, STATUS_NO_MEMORY, "vram watch: no memory");
    (void)pthread_mutex_init(&w->lock, NULL);
    w->interval_ms = interval_ms;
    status rc = gpu_sensors_open(&w->sensors, bus_id, err);
    if (rc != STATUS_OK) goto fail;
    rc = gpu_sensors_read(w->sensors, &r, err);
    if (rc != STATUS_OK) goto fail;
    w->at_start = r.used_bytes;
    w->latest = r;
    atomic_store(&w->most, r.used_bytes);
    rc = thread_start(&w->reader, "vram-watch", read_on, w, err);
    if (rc != STATUS_OK) goto fail;
    *out = w;
    return STATUS_OK;
fail:
    vram_watch_stop(w);
    return rc;
}

void vram_watch_read(vram_watch *w, gpu_reading *out) {
    (void)pthread_mutex_lock(&w->lock);
    *out = w->latest;
    (void)pthread_mutex_unlock(&w->lock);
}

uint64_t vram_watch_peak(const vram_watch *w) {
    return atomic_load(&w->most) - w->at_start;
}

void vram_watch_stop(vram_watch *w) {
    if (w == NULL) return;
    atomic_store(&w->over, true);
    thread_join(&w->reader);
    gpu_sensors_close(w->sensors);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}
