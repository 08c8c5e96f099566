/* worker_link.h - the ROUTER socket to which the workers connect.
 *
 * Frames in and out, and the rules that were learned by measuring: ROUTER_MANDATORY and
 * DONTWAIT always, nothing more is sent after a failed identity frame, the
 * descriptors only hint so everything is drained until nothing is left, and
 * heartbeats of the transport find a peer that is gone without a word.
 * With CURVE an allow-list decides who connects (ZAP); its handler runs before
 * the socket is bound, because without one CURVE admits anyone.
 *
 * Threads: everything in `io`; the ZAP handler has a thread of its own, `zap`.
 */
#ifndef SILICEO_COORDINATOR_WORKER_LINK_H
#define SILICEO_COORDINATOR_WORKER_LINK_H

#include "common/error.h"
#include "common/wire.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct worker_link worker_link;

typedef struct worker_peer { /* who sent a message; borrowed for the call */
    const void *identity;
    size_t n_identity;
    int fd;              /* of the connection; -1: unknown */
    const char *address; /* its end of the connection, without the port; "" unknown */
    const char *user_id; /* node name that the allow-list gives to the key; "" without CURVE */
} worker_peer;

typedef struct worker_link_params {
    const char *address;           /* tcp://HOST:PORT */
    const char *curve_secret_file; /* "": plain text */
    const char *curve_allow_file;
    int heartbeat_ms;         /* of the transport */
    int heartbeat_timeout_ms; /* a peer that answers none for this is disconnected */
    int linger_ms;            /* for the last CANCELs at the end */
    void *context;
    void (*on_message)(void *context, const worker_peer *peer, const wire_message *message);
    /* A frame that is no message of this version; why names what is wrong. */
    void (*on_garbage)(void *context, const worker_peer *peer, const char *why);
    void (*on_disconnect)(void *context, int fd);
} worker_link_params;

status worker_link_open(worker_link **out, const worker_link_params *params, error *err);
void worker_link_close(worker_link *link); /* accepts NULL and a half-built one */
const char *worker_link_address(const worker_link *link); /* with the real port */
/* For the outer epoll, level-triggered. */
int worker_link_fd(const worker_link *link);
int worker_link_monitor_fd(const worker_link *link);

/* Read the allow-list again: on_removed is told each node that may connect no more.  Nothing to
 * do without CURVE. */
status worker_link_reload(worker_link *link, void *context,
                          void (*on_removed)(void *context, const char *name), error *err);
/* May this node be here, by the list as it is now? */
bool worker_link_allows(const worker_link *link, const char *node_name);

/* Receive up to max messages: when a descriptor is readable, or pending() says so.  True: there
 * may be more, call again before sleeping. */
bool worker_link_drain(worker_link *link, size_t max);
/* Is something there of which the descriptors no longer tell?  A send takes in what has come and
 * with it their signal.  Ask before each sleep. */
bool worker_link_pending(worker_link *link);

/* STATUS_UNAVAILABLE: the peer is not known (any more).  STATUS_TIMEOUT: its queue
 * is full.  Nothing was sent in either case; never blocks. */
status worker_link_send(worker_link *link, const void *identity, size_t n_identity,
                        const wire_message *message, error *err);

#endif
