/* peer_socket.h - one DEALER to one coordinator: connects for ever, never blocks, tells when it is up.
 *
 * A frame that the socket does not take now waits in a bounded outbox, also while
 * the connection is away for a moment; past the bound the peer counts as too slow.
 * ZeroMQ's own queue is used only while connected (ZMQ_IMMEDIATE), so nothing old is
 * delivered to a coordinator that comes back later.  Link thread only.
 */
#ifndef SILICEO_WORKER_PEER_SOCKET_H
#define SILICEO_WORKER_PEER_SOCKET_H

#include "common/error.h"
#include "common/wire.h"
#include "worker/link_times.h"
#include "worker/mesh_security.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

enum { PEER_MAX_FRAMES = 4096, PEER_MAX_BYTES = 64 * 1024 * 1024 };

typedef enum peer_event {
    PEER_NOTHING,
    PEER_UP,           /* the handshake is over: frames pass */
    PEER_DOWN,         /* the connection ended; it is being made again */
    PEER_NOT_ADMITTED, /* the handshake failed: keys, or no ZeroMQ at the other end */
} peer_event;

typedef struct peer_socket {
    void *socket;              /* ZMQ_DEALER */
    void *monitor;             /* ZMQ_PAIR with the socket's events */
    struct peer_frame *outbox; /* ring of PEER_MAX_FRAMES */
    size_t first, n_frames, n_bytes;
    bool hold; /* what is sent waits: the coordinator has not said WELCOME */
} peer_socket;

/* instance and index make the routing id: fresh with every process start. */
status peer_socket_open(peer_socket *p, void *context, const char *address, uint64_t instance,
                        size_t index, const mesh_security *security, const link_times *times,
                        error *err);
/* Waits linger_ms at most (in zmq_ctx_term) for what was sent.  Accepts a zeroed one. */
void peer_socket_close(peer_socket *p, int linger_ms);

/* The next event of the connection; PEER_NOTHING when there is none. */
peer_event peer_socket_next_event(peer_socket *p);

/* Send now or lose it: for HELLO and BEAT, which come again.  False: not sent. */
bool peer_socket_try(peer_socket *p, const wire_frame *frame);
/* Send after what waits.  STATUS_UNAVAILABLE: the outbox is full. */
status peer_socket_send(peer_socket *p, const wire_frame *frame, error *err);
/* Send what waits as far as the socket takes it. */
void peer_socket_flush(peer_socket *p);
void peer_socket_drop_outbox(peer_socket *p);

/* One whole message into *frame, which the caller closes; false when there is none.
 * Messages of several frames, which no peer sends, are dropped. */
bool peer_socket_receive(peer_socket *p, zmq_msg_t *frame);

#endif
