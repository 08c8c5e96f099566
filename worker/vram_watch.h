/* vram_watch.h - the most VRAM that was in use while something ran.
 *
 * A thread reads NVML every VRAM_WATCH_MS; what was in use at the start is taken off, so
 * start before the driver makes its context.  Other programs on the card count too.
 * Thread: start and stop from one thread.
 */
#ifndef SILICEO_WORKER_VRAM_WATCH_H
#define SILICEO_WORKER_VRAM_WATCH_H

#include "common/error.h"
#include <stdint.h>

enum { VRAM_WATCH_MS = 100 };

typedef struct vram_watch vram_watch;

/* On failure *out is NULL: there is no NVML. */
status vram_watch_start(vram_watch **out, error *err);
/* The peak so far, bytes above the start. */
uint64_t vram_watch_peak(const vram_watch *w);
void vram_watch_stop(vram_watch *w); /* accepts NULL */

#endif
