/* http_connection.h - the TCP connections: their deadlines, and the ends of refused ones.
 *
 * libmicrohttpd's time-outs are per read, so a byte a second would live for ever:
 * each connection has a deadline of its own, and past it is shut down, not closed,
 * because the descriptor is libmicrohttpd's.  `io` thread.
 */
#ifndef SILICEO_COORDINATOR_HTTP_CONNECTION_H
#define SILICEO_COORDINATOR_HTTP_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A TCP connection; holds at most one exchange at a time. */
typedef struct http_peer {
    struct http_peer *next, *previous;
    int fd;
    uint64_t deadline_ms; /* 0: none */
    bool linger;          /* its last request was refused with the body still coming */
    bool cut;             /* shut down by us */
} http_peer;

typedef struct http_connections {
    http_peer *peers;
    struct http_lingering *lingers;
    uint64_t n_open;
    uint32_t linger_ms; /* a refused body is read for so long */
} http_connections;

/* NULL without memory: such a connection is served no request. */
http_peer *http_connection_begin(http_connections *c, int fd, uint64_t deadline_ms);
/* Accepts NULL. */
void http_connection_end(http_connections *c, http_peer *peer);
/* Shut it down, once. */
void http_connection_cut(http_peer *peer);
/* Cut what is past its deadline; how many were. */
size_t http_connections_tick(http_connections *c, uint64_t now_ms);
/* The last refused ones are let go of. */
void http_connections_close(http_connections *c);

#endif
