/* vram_watch.h - what NVML says of a card: now, and the most VRAM that was in use.
 *
 * A thread of its own reads, since NVML may take its time; what was in use at the start is
 * taken off the peak, so for that start before the driver makes its context.  Other programs
 * on the card count too.
 * Thread: start, look and stop from one thread.
 */
#ifndef SILICEO_WORKER_VRAM_WATCH_H
#define SILICEO_WORKER_VRAM_WATCH_H

#include "common/error.h"
#include "worker/cuda_driver.h"
#include <stdint.h>

enum { VRAM_WATCH_PEAK_MS = 100, VRAM_WATCH_NOW_MS = 1000 };

typedef struct vram_watch vram_watch;

/* Of the card with this PCI bus id, or the first (NULL), every interval_ms.  On failure *out is
 * NULL: there is no NVML. */
status vram_watch_start(vram_watch **out, const char *bus_id, uint32_t interval_ms, error *err);
/* The latest reading. */
void vram_watch_read(vram_watch *w, gpu_reading *out);
/* The peak so far, bytes above the start. */
uint64_t vram_watch_peak(const vram_watch *w);
void vram_watch_stop(vram_watch *w); /* accepts NULL */

#endif
