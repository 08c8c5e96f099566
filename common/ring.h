/* ring.h - bounded queue of pointers from one thread to one other, with an eventfd to poll.
 *
 * Exactly one thread pushes and exactly one pops.  Head and tail stand on cache
 * lines of their own.  Never blocks and never allocates after ring_init().
 */
#ifndef SILICEO_COMMON_RING_H
#define SILICEO_COMMON_RING_H

#include "common/error.h"
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct ring {
    alignas(64) atomic_size_t head; /* next to pop */
    alignas(64) atomic_size_t tail; /* next to push */
    alignas(64) void **items;
    size_t mask;
    int event_fd; /* readable when something was pushed; -1 when not built */
} ring;

/* cap_items is rounded up to a power of two. */
status ring_init(ring *r, size_t cap_items, error *err);
void ring_release(ring *r); /* does not free the items; accepts {.event_fd = -1} */

/* False when full: the caller still owns the item. */
bool ring_push(ring *r, void *item);
/* NULL when empty. */
void *ring_pop(ring *r);
/* Wake the popping thread's poll() without an item. */
void ring_wake(ring *r);
/* Called by the popping thread after poll() reported event_fd, before it drains. */
void ring_clear_event(ring *r);

#endif
