/* ring.c - after Lamport's single-producer single-consumer queue: each index has one writer. */
#include "common/ring.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MAX_ITEMS = 1 << 24 };

status ring_init(ring *r, size_t cap_items, error *err) {
    memset(r, 0, sizeof *r);
    r->event_fd = -1;
    if (cap_items == 0 || cap_items > MAX_ITEMS) {
        return error_set(err, STATUS_BAD_INPUT, "ring of %zu items, allowed are 1 to %d",
                         cap_items, MAX_ITEMS);
    }
    size_t n = 1;
    while (n < cap_items)
        n *= 2;
    r->items = calloc(n, sizeof *r->items);
    if (r->items == NULL)
        return error_set(err, STATUS_NO_MEMORY, "no memory for a ring of %zu", n);
    r->mask = n - 1;
    r->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->event_fd < 0) {
        status rc = error_set_errno(err, STATUS_IO, errno, "eventfd");
        ring_release(r);
        return rc;
    }
    return STATUS_OK;
}

void ring_release(ring *r) {
    free(r->items);
    r->items = NULL;
    if (r->event_fd >= 0) (void)close(r->event_fd);
    r->event_fd = -1;
}

bool ring_push(ring *r, void *item) {
    size_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    size_t head = atomic_load_explicit(&r->head, memory_order_acquire);
    if (tail - head > r->mask) return false;
    r->items[tail & r->mask] = item;
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
    ring_wake(r);
    return true;
}

void *ring_pop(ring *r) {
    size_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    size_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
    if (head == tail) return NULL;
    void *item = r->items[head & r->mask];
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    return item;
}

void ring_wake(ring *r) {
    uint64_t one = 1;
    ssize_t written = write(r->event_fd, &one, sizeof one);
    (void)written; /* EAGAIN: the counter is full, so the descriptor is readable already */
}

void ring_clear_event(ring *r) {
    uint64_t count;
    ssize_t got = read(r->event_fd, &count, sizeof count);
    (void)got; /* EAGAIN: nothing was pushed since */
}
