/* http_watch.h - which client has gone: descriptors in the outer epoll for EPOLLRDHUP only.
 *
 * An event carries slot and generation, never a pointer: it may be older than the
 * owner that the slot holds by now.  `io` thread.
 */
#ifndef SILICEO_COORDINATOR_HTTP_WATCH_H
#define SILICEO_COORDINATOR_HTTP_WATCH_H

#include <stdbool.h>
#include <stdint.h>

typedef struct http_watch {
    int epoll;     /* the outer one; not owned */
    void **owners; /* by slot */
    uint32_t *generations;
    uint32_t n_slots;
    uint32_t free_hint;
} http_watch;

typedef struct http_watched {
    int fd;
    uint32_t slot;
    uint32_t generation; /* 0: not watched */
} http_watched;

/* Without memory or a descriptor that can be watched nothing happens. */
void http_watch_begin(http_watch *w, http_watched *at, int fd, void *owner);
void http_watch_end(http_watch *w, http_watched *at);
/* Whose client an event of the outer epoll says is gone; NULL: nobody's any more. */
void *http_watch_owner(const http_watch *w, uint64_t data);
void http_watch_release(http_watch *w);

#endif
