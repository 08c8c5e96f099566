/* clock.h - time in integers with the unit in the name.  Any thread. */
#ifndef SILICEO_COMMON_CLOCK_H
#define SILICEO_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_monotonic_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* What the calling thread has computed: others that take the processor do not count. */
static inline uint64_t clock_thread_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t clock_monotonic_ms(void) {
    return clock_monotonic_ns() / 1000000u;
}

/* Milliseconds since 1970-01-01 UTC; for people and logs, never for intervals. */
static inline uint64_t clock_wall_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

#endif
