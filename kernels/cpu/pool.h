/* pool.h - a few threads that run the chunks of one operation after another.
 *
 * The caller is worker 0 and takes part.  Chunks are handed out by an atomic
 * counter; waiting spins for a bounded, adaptive time and then sleeps on a
 * futex, so a busy neighbour on the machine costs microseconds and not the
 * whole time slice that a spinning barrier waits.
 *
 * Thread: one owner calls pool_run(); chunk functions run on any worker.
 */
#ifndef SILICEO_KERNELS_CPU_POOL_H
#define SILICEO_KERNELS_CPU_POOL_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct pool pool;
typedef void (*pool_chunk)(void *context, size_t chunk, uint32_t worker);

/* n_threads >= 1 counts the caller: 1 starts no thread. */
status pool_new(pool **out, uint32_t n_threads, error *err);
void pool_free(pool *p);
uint32_t pool_n_threads(const pool *p);

/* Run fn for chunks 0..n_chunks-1, each once; returns when all are done and their
 * writes are visible.  n_chunks of 0 or 1 runs on the caller alone. */
void pool_run(pool *p, size_t n_chunks, pool_chunk fn, void *context);

/* Held, waiting threads spin without a limit, awake at once for operations that come at any time
 * and are worth less than a wake-up; let go, they sleep again.  Between operations. */
void pool_hold(pool *p, bool held);

/* Cores this process may use (affinity and cgroup quota taken into account). */
uint32_t pool_usable_cores(void);

#endif
