#include "coordinator/http_watch.h"

#include "coordinator/http_server.h"
#include <stdlib.h>
#include <sys/epoll.h>

static bool grow(http_watch *w) {
    uint32_t n = w->n_slots == 0 ? 64 : w->n_slots * 2;
    void **owners = realloc(w->owners, n * sizeof(void *));
    if (owners == NULL) return false;
    w->owners = owners;
    uint32_t *generations = realloc(w->generations, n * sizeof *generations);
    if (generations == NULL) return false;
    w->generations = generations;
    for (uint32_t i = w->n_slots; i < n; i++) {
        owners[i] = NULL;
        generations[i] = 0;
    }
    w->n_slots = n;
    return true;
}

void http_watch_begin(http_watch *w, http_watched *at, int fd, void *owner) {
    if (at->generation != 0 || fd < 0) return;
    uint32_t slot = w->free_hint;
    while (slot < w->n_slots && w->owners[slot] != NULL)
        slot++;
    if (slot >= w->n_slots && !grow(w)) return;
    uint32_t generation = (w->generations[slot] + 1) & 0x7fffffffu;
    if (generation == 0) generation = 1;
    struct epoll_event event = {.events = EPOLLRDHUP};
    event.data.u64 = HTTP_EVENT_BIT | (uint64_t)generation << 32 | slot;
    if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &event) != 0) return;
    w->generations[slot] = generation;
    w->owners[slot] = owner;
    w->free_hint = slot + 1;
    *at = (http_watched){.fd = fd, .slot = slot, .generation = generation};
}

void http_watch_end(http_watch *w, http_watched *at) {
    if (at->generation == 0) return;
    (void)epoll_ctl(w->epoll, EPOLL_CTL_DEL, at->fd, NULL);
    w->owners[at->slot] = NULL;
    if (at->slot < w->free_hint) w->free_hint = at->slot;
    at->generation = 0;
}

void *http_watch_owner(const http_watch *w, uint64_t data) {
    uint32_t slot = (uint32_t)data;
    uint32_t generation = (uint32_t)(data >> 32) & 0x7fffffffu;
    if (slot >= w->n_slots || w->owners[slot] == NULL) return NULL;
    return w->generations[slot] == generation ? w->owners[slot] : NULL;
}

void http_watch_release(http_watch *w) {
    free(w->owners);
    free(w->generations);
}
