/* peer_socket.c - the DEALER's options, its monitor and its outbox. */
#include "worker/peer_socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct peer_frame {
    char *bytes;
    size_t length;
} peer_frame;

enum { QUEUED_MESSAGES = 1000 };

static int set_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

/* ZeroMQ tries the first address of a name alone.  Debian's /etc/hosts gives ::1 first for
 * localhost, where a coordinator of the default settings, on 127.0.0.1, does not listen. */
static int may_be_ipv6(const char *address) {
    return strncmp(address, "tcp://localhost:", strlen("tcp://localhost:")) != 0;
}

static int set_options(void *socket, const char *address, uint64_t instance, size_t index,
                       const link_times *times) {
    const int options[][2] = {
        {ZMQ_LINGER, 0},
        {ZMQ_IMMEDIATE, 1},
        {ZMQ_IPV6, may_be_ipv6(address)},
        {ZMQ_SNDHWM, QUEUED_MESSAGES},
        /* No bound: ZeroMQ 4.3 aborts the process when the peer of a full queue goes away and a
         * heartbeat is due after that.  The credit that we grant bounds what comes. */
        {ZMQ_RCVHWM, 0},
        {ZMQ_HEARTBEAT_IVL, (int)times->heartbeat_ms},
        {ZMQ_HEARTBEAT_TIMEOUT, (int)times->heartbeat_timeout_ms},
        {ZMQ_HEARTBEAT_TTL, (int)times->heartbeat_timeout_ms},
        {ZMQ_RECONNECT_IVL, (int)times->reconnect_ms},
        {ZMQ_RECONNECT_IVL_MAX, (int)times->reconnect_max_ms},
        {ZMQ_CONNECT_TIMEOUT, (int)times->connect_ms},
        {ZMQ_HANDSHAKE_IVL, (int)times->connect_ms},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (set_int(socket, options[i][0], options[i][1]) != 0) return -1;
    }
    const int64_t max_bytes = WIRE_MAX_FRAME;
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max_bytes, sizeof max_bytes) != 0) return -1;
    char id[64]; /* begins with a letter: ids with a zero byte in front are ZeroMQ's own */
    int n = snprintf(id, sizeof id, "w%016llx-%zu", (unsigned long long)instance, index);
    return zmq_setsockopt(socket, ZMQ_ROUTING_ID, id, (size_t)n);
}

static int open_monitor(peer_socket *p, void *context, size_t index) {
    char name[64];
    (void)snprintf(name, sizeof name, "inproc://peer-monitor-%zu", index);
    int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    if (zmq_socket_monitor(p->socket, name, events) != 0) return -1;
    p->monitor = zmq_socket(context, ZMQ_PAIR);
    if (p->monitor == NULL || set_int(p->monitor, ZMQ_LINGER, 0) != 0) return -1;
    return zmq_connect(p->monitor, name);
}

status peer_socket_open(peer_socket *p, void *context, const char *address, uint64_t instance,
                        size_t index, const mesh_security *security, const link_times *times,
                        error *err) {
    *p = (peer_socket){.hold = true};
    status rc = mesh_security_check(security, address, err);
    if (rc != STATUS_OK) return rc;
    p->outbox = calloc(PEER_MAX_FRAMES, sizeof *p->outbox);
    if (p->outbox == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for an outbox");
    p->socket = zmq_socket(context, ZMQ_DEALER);
    if (p->socket == NULL || set_options(p->socket, address, instance, index, times) != 0 ||
        open_monitor(p, context, index) != 0) {
        rc = error_set(err, STATUS_IO, "socket to %s: %s", address, zmq_strerror(errno));
        goto fail;
    }
    rc = mesh_security_apply(security, p->socket, err);
    if (rc != STATUS_OK) goto fail;
    if (zmq_connect(p->socket, address) != 0) {
        rc = error_set(err, STATUS_BAD_INPUT, "coordinator = '%s': %s", address,
                       zmq_strerror(errno));
        goto fail;
    }
    return STATUS_OK;
fail:
    peer_socket_close(p, 0);
    return rc;
}

void peer_socket_close(peer_socket *p, int linger_ms) {
    if (p->outbox != NULL) peer_socket_drop_outbox(p);
    free(p->outbox);
    if (p->socket != NULL) {
        (void)zmq_socket_monitor(p->socket, NULL, 0);
        (void)set_int(p->socket, ZMQ_LINGER, linger_ms);
        (void)zmq_close(p->socket);
    }
    if (p->monitor != NULL) (void)zmq_close(p->monitor);
    memset(p, 0, sizeof *p);
}

/* An event is two frames: number and value, then the address, which we know. */
peer_event peer_socket_next_event(peer_socket *p) {
    for (;;) {
        unsigned char head[6];
        int n = zmq_recv(p->monitor, head, sizeof head, ZMQ_DONTWAIT);
        if (n < 0) return PEER_NOTHING;
        (void)zmq_recv(p->monitor, NULL, 0, ZMQ_DONTWAIT);
        uint16_t event;
        memcpy(&event, head, sizeof event);
        if (n < (int)sizeof event) continue;
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) return PEER_UP;
        if (event == ZMQ_EVENT_DISCONNECTED) return PEER_DOWN;
        if ((event & (ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                      ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)) !=
            0) {
            return PEER_NOT_ADMITTED;
        }
    }
}

bool peer_socket_try(peer_socket *p, const wire_frame *frame) {
    return zmq_send(p->socket, frame->bytes, frame->length, ZMQ_DONTWAIT) >= 0;
}

status peer_socket_send(peer_socket *p, const wire_frame *frame, error *err) {
    if (!p->hold && p->n_frames == 0 && peer_socket_try(p, frame)) return STATUS_OK;
    if (p->n_frames == PEER_MAX_FRAMES || frame->length > PEER_MAX_BYTES - p->n_bytes) {
        return error_set(err, STATUS_UNAVAILABLE, "outbox is full: %zu frames, %zu bytes",
                         p->n_frames, p->n_bytes);
    }
    char *copy = malloc(frame->length);
    if (copy == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for a waiting frame");
    memcpy(copy, frame->bytes, frame->length);
    peer_frame *last = &p->outbox[(p->first + p->n_frames) % PEER_MAX_FRAMES];
    last->bytes = copy;
    last->length = frame->length;
    p->n_frames++;
    p->n_bytes += frame->length;
    return STATUS_OK;
}

static void drop_first(peer_socket *p) {
    peer_frame *f = &p->outbox[p->first];
    p->n_bytes -= f->length;
    p->n_frames--;
    p->first = (p->first + 1) % PEER_MAX_FRAMES;
    free(f->bytes);
    *f = (peer_frame){0};
}

void peer_socket_flush(peer_socket *p) {
    while (!p->hold && p->n_frames > 0) {
        const peer_frame *f = &p->outbox[p->first];
        if (zmq_send(p->socket, f->bytes, f->length, ZMQ_DONTWAIT) < 0) return;
        drop_first(p);
    }
}

void peer_socket_drop_outbox(peer_socket *p) {
    while (p->n_frames > 0)
        drop_first(p);
}

bool peer_socket_receive(peer_socket *p, zmq_msg_t *frame) {
    for (;;) {
        (void)zmq_msg_init(frame);
        if (zmq_msg_recv(frame, p->socket, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(frame);
            return false;
        }
        if (zmq_msg_more(frame) == 0) return true;
        do {
            (void)zmq_msg_close(frame);
            (void)zmq_msg_init(frame);
        } while (zmq_msg_recv(frame, p->socket, ZMQ_DONTWAIT) >= 0 && zmq_msg_more(frame) != 0);
        (void)zmq_msg_close(frame);
    }
}
