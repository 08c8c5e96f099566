#include "coordinator/http_connection.h"

#include "common/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SOCKET_QUEUE_BYTES = 64 * 1024 }; /* unsent bytes in the kernel before we keep them */

typedef struct http_lingering {
    struct http_lingering *next;
    int fd;
    uint64_t deadline_ms;
} http_lingering;

/* A client that still sends a refused body would lose our reply to a reset when
 * the descriptor is closed over unread bytes; so a duplicate is read empty for a
 * short while. */
static void linger_begin(http_connections *c, int fd) {
    http_lingering *l = calloc(1, sizeof *l);
    if (l == NULL) return;
    l->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (l->fd < 0) {
        free(l);
        return;
    }
    (void)shutdown(l->fd, SHUT_WR);
    l->deadline_ms = clock_monotonic_ms() + c->linger_ms;
    l->next = c->lingers;
    c->lingers = l;
}

static void linger_run(http_connections *c, uint64_t now_ms) {
    static char sink[65536];
    for (http_lingering **at = &c->lingers; *at != NULL;) {
        http_lingering *l = *at;
        ssize_t n = 1;
        for (int i = 0; i < 64 && n > 0; i++)
            n = recv(l->fd, sink, sizeof sink, MSG_DONTWAIT);
        bool over = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
        if (!over && now_ms < l->deadline_ms) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        (void)close(l->fd);
        free(l);
    }
}

http_peer *http_connection_begin(http_connections *c, int fd, uint64_t deadline_ms) {
    http_peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL) return NULL;
    peer->fd = fd;
    peer->deadline_ms = deadline_ms;
    int low = SOCKET_QUEUE_BYTES;
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &low, sizeof low);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &low, sizeof low);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    peer->next = c->peers;
    if (c->peers != NULL) c->peers->previous = peer;
    c->peers = peer;
    c->n_open++;
    return peer;
}

void http_connection_end(http_connections *c, http_peer *peer) {
    if (peer == NULL) return;
    if (peer->linger) linger_begin(c, peer->fd);
    if (peer->previous != NULL)
        peer->previous->next = peer->next;
    else
        c->peers = peer->next;
    if (peer->next != NULL) peer->next->previous = peer->previous;
    free(peer);
    c->n_open--;
}

void http_connection_cut(http_peer *peer) {
    if (peer->cut) return;
    peer->cut = true;
    (void)shutdown(peer->fd, SHUT_RDWR);
}

size_t http_connections_tick(http_connections *c, uint64_t now_ms) {
    size_t n_cut = 0;
    for (http_peer *peer = c->peers; peer != NULL; peer = peer->next) {
        if (peer->deadline_ms == 0 || now_ms < peer->deadline_ms || peer->cut) continue;
        http_connection_cut(peer);
        n_cut++;
    }
    if (c->lingers != NULL) linger_run(c, now_ms);
    return n_cut;
}

void http_connections_close(http_connections *c) {
    linger_run(c, UINT64_MAX);
}
