#include "coordinator/worker_link.h"

#include "common/log.h"
#include "coordinator/mesh_keys.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { QUEUE_MESSAGES = 4096 }; /* to a peer; credit keeps it far from full */

struct worker_link {
    worker_link_params params;
    void *context;
    void *router;
    void *monitor;
    mesh_keys *keys;
    mesh_gate *gate;
    char address[300];
    wire_frame frame;
    bool sent; /* since the router was last read empty */
};

static status set_int(void *socket, int option, int value, const char *name, error *err) {
    if (zmq_setsockopt(socket, option, &value, sizeof value) == 0) return STATUS_OK;
    return error_set(err, STATUS_IO, "mesh: option %s: %s", name, zmq_strerror(errno));
}

static status set_options(worker_link *link, error *err) {
    const struct {
        int option, value;
        const char *name;
    } options[] = {
        {ZMQ_ROUTER_MANDATORY, 1, "ROUTER_MANDATORY"},
        {ZMQ_HEARTBEAT_IVL, link->params.heartbeat_ms, "HEARTBEAT_IVL"},
        {ZMQ_HEARTBEAT_TIMEOUT, link->params.heartbeat_timeout_ms, "HEARTBEAT_TIMEOUT"},
        {ZMQ_SNDHWM, QUEUE_MESSAGES, "SNDHWM"},
        /* No bound: ZeroMQ 4.3 aborts the process when the peer of a full queue goes away and a
         * heartbeat is due after that.  Credit bounds what nodes have to say. */
        {ZMQ_RCVHWM, 0, "RCVHWM"},
        {ZMQ_LINGER, link->params.linger_ms, "LINGER"},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        status rc =
            set_int(link->router, options[i].option, options[i].value, options[i].name, err);
        if (rc != STATUS_OK) return rc;
    }
    if (strchr(link->params.address, '[') != NULL) {
        status rc = set_int(link->router, ZMQ_IPV6, 1, "IPV6", err);
        if (rc != STATUS_OK) return rc;
    }
    int64_t max = WIRE_MAX_FRAME;
    if (zmq_setsockopt(link->router, ZMQ_MAXMSGSIZE, &max, sizeof max) != 0) {
        return error_set(err, STATUS_IO, "mesh: option MAXMSGSIZE: %s", zmq_strerror(errno));
    }
    return STATUS_OK;
}

static status watch_connections(worker_link *link, error *err) {
    if (zmq_socket_monitor(link->router, "inproc://mesh-monitor", ZMQ_EVENT_DISCONNECTED) !=
        0) {
        return error_set(err, STATUS_IO, "mesh: monitor: %s", zmq_strerror(errno));
    }
    link->monitor = zmq_socket(link->context, ZMQ_PAIR);
    if (link->monitor == NULL || zmq_connect(link->monitor, "inproc://mesh-monitor") != 0) {
        return error_set(err, STATUS_IO, "mesh: monitor: %s", zmq_strerror(errno));
    }
    return STATUS_OK;
}

/* ZeroMQ listens at addresses and interfaces alone; localhost is what everybody has. */
static status bind_address(worker_link *link, error *err) {
    static const char named[] = "tcp://localhost:";
    const char *wanted = link->params.address;
    bool local = strncmp(wanted, named, sizeof named - 1) == 0;
    char address[280];
    int length = snprintf(address, sizeof address, "%s%s", local ? "tcp://127.0.0.1:" : "",
                          local ? wanted + sizeof named - 1 : wanted);
    size_t n = length < 0 ? sizeof address : (size_t)length;
    if (n >= sizeof address)
        return error_set(err, STATUS_BAD_INPUT, "mesh: '%s' is too long", wanted);
    if (n > 2 && strcmp(address + n - 2, ":0") == 0) address[n - 1] = '*';
    if (zmq_bind(link->router, address) != 0) {
        return error_set(err, STATUS_IO, "mesh: cannot listen on '%s': %s", wanted,
                         errno == ENODEV ? "it is no address of this machine"
                                         : zmq_strerror(errno));
    }
    size_t size = sizeof link->address;
    if (zmq_getsockopt(link->router, ZMQ_LAST_ENDPOINT, link->address, &size) != 0) {
        return error_set(err, STATUS_IO, "mesh: last endpoint: %s", zmq_strerror(errno));
    }
    return STATUS_OK;
}

status worker_link_open(worker_link **out, const worker_link_params *params, error *err) {
    *out = NULL;
    worker_link *link = calloc(1, sizeof *link);
    if (link == NULL) return error_set(err, STATUS_NO_MEMORY, "mesh: no memory");
    link->params = *params;
    status rc = STATUS_OK;
    link->context = zmq_ctx_new();
    link->router = link->context == NULL ? NULL : zmq_socket(link->context, ZMQ_ROUTER);
    if (link->router == NULL) {
        rc = error_set(err, STATUS_IO, "mesh: ZeroMQ does not start: %s", zmq_strerror(errno));
        goto fail;
    }
    if ((rc = set_options(link, err)) != STATUS_OK) goto fail;
    if (params->curve_secret_file[0] != '\0') {
        rc = mesh_keys_read(&link->keys, params->curve_secret_file, params->curve_allow_file,
                            err);
        if (rc != STATUS_OK) goto fail;
        rc = mesh_gate_open(&link->gate, link->context, link->keys, err);
        if (rc != STATUS_OK) goto fail;
        rc = mesh_keys_apply(link->keys, link->router, err);
        if (rc != STATUS_OK) goto fail;
    }
    if ((rc = watch_connections(link, err)) != STATUS_OK) goto fail;
    if ((rc = bind_address(link, err)) != STATUS_OK) goto fail;
    *out = link;
    return STATUS_OK;
fail:
    worker_link_close(link);
    return rc;
}

void worker_link_close(worker_link *link) {
    if (link == NULL) return;
    if (link->monitor != NULL) {
        (void)zmq_socket_monitor(link->router, NULL, 0);
        (void)zmq_close(link->monitor);
    }
    if (link->router != NULL) (void)zmq_close(link->router);
    mesh_gate_close(link->gate);
    if (link->context != NULL) (void)zmq_ctx_term(link->context);
    mesh_keys_free(link->keys);
    wire_frame_release(&link->frame);
    free(link);
}

status worker_link_reload(worker_link *link, void *context,
                          void (*on_removed)(void *context, const char *name), error *err) {
    if (link->keys == NULL) return STATUS_OK;
    return mesh_keys_reload(link->keys, link->params.curve_allow_file, context, on_removed,
                            err);
}

bool worker_link_allows(const worker_link *link, const char *node_name) {
    return link->keys == NULL || mesh_keys_allow(link->keys, node_name);
}

const char *worker_link_address(const worker_link *link) {
    return link->address;
}

static int socket_fd(void *socket) {
    int fd = -1;
    size_t size = sizeof fd;
    if (zmq_getsockopt(socket, ZMQ_FD, &fd, &size) != 0) return -1;
    return fd;
}

int worker_link_fd(const worker_link *link) {
    return socket_fd(link->router);
}

int worker_link_monitor_fd(const worker_link *link) {
    return socket_fd(link->monitor);
}

static bool readable(void *socket) {
    int events = 0;
    size_t size = sizeof events;
    return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 &&
           (events & ZMQ_POLLIN) != 0;
}

bool worker_link_pending(worker_link *link) {
    link->sent = link->sent && readable(link->router);
    return link->sent;
}

/* ------------------------------------------------------------ receiving */

static void drain_monitor(worker_link *link) {
    for (;;) {
        zmq_msg_t first, second;
        (void)zmq_msg_init(&first);
        if (zmq_msg_recv(&first, link->monitor, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(&first);
            return;
        }
        (void)zmq_msg_init(&second);
        if (zmq_msg_more(&first)) (void)zmq_msg_recv(&second, link->monitor, ZMQ_DONTWAIT);
        if (zmq_msg_size(&first) == 6) { /* uint16 event, uint32 value: the descriptor */
            uint16_t event;
            int32_t fd;
            memcpy(&event, zmq_msg_data(&first), sizeof event);
            memcpy(&fd, (const char *)zmq_msg_data(&first) + 2, sizeof fd);
            if (event == ZMQ_EVENT_DISCONNECTED)
                link->params.on_disconnect(link->params.context, fd);
        }
        (void)zmq_msg_close(&first);
        (void)zmq_msg_close(&second);
    }
}

/* The rest of a message with more frames than one. */
static bool skip_rest(worker_link *link, zmq_msg_t *part) {
    bool skipped = false;
    while (zmq_msg_more(part)) {
        skipped = true;
        if (zmq_msg_recv(part, link->router, ZMQ_DONTWAIT) < 0) break;
    }
    return skipped;
}

static void deliver(worker_link *link, zmq_msg_t *identity, zmq_msg_t *body) {
    const char *user = zmq_msg_gets(body, "User-Id");
    const char *address = zmq_msg_gets(body, "Peer-Address");
    worker_peer peer = {.identity = zmq_msg_data(identity),
                        .n_identity = zmq_msg_size(identity),
                        .fd = zmq_msg_get(body, ZMQ_SRCFD),
                        .address = address == NULL ? "" : address,
                        .user_id = user == NULL ? "" : user};
    wire_message message;
    error err = {0};
    if (wire_decode(&message, zmq_msg_data(body), zmq_msg_size(body), &err) != STATUS_OK) {
        link->params.on_garbage(link->params.context, &peer, err.text);
        return;
    }
    /* Whose place a new process wants must be known to be gone, if it is. */
    if (message.type == WIRE_HELLO) drain_monitor(link);
    link->params.on_message(link->params.context, &peer, &message);
    wire_release(&message);
}

static bool receive_one(worker_link *link) {
    zmq_msg_t identity, body;
    (void)zmq_msg_init(&identity);
    if (zmq_msg_recv(&identity, link->router, ZMQ_DONTWAIT) < 0) {
        (void)zmq_msg_close(&identity);
        return false;
    }
    (void)zmq_msg_init(&body);
    bool whole =
        zmq_msg_more(&identity) && zmq_msg_recv(&body, link->router, ZMQ_DONTWAIT) >= 0;
    if (whole && zmq_msg_more(&body)) {
        (void)skip_rest(link, &body);
        worker_peer peer = {zmq_msg_data(&identity), zmq_msg_size(&identity), -1, "", ""};
        link->params.on_garbage(link->params.context, &peer, "more than one frame");
    } else if (whole) {
        deliver(link, &identity, &body);
    }
    (void)zmq_msg_close(&identity);
    (void)zmq_msg_close(&body);
    return true;
}

bool worker_link_drain(worker_link *link, size_t max) {
    for (size_t i = 0; i < max; i++) {
        /* The end of a connection must be known before what comes over the next one. */
        if (i % 64 == 0 && readable(link->monitor)) drain_monitor(link);
        if (receive_one(link)) continue;
        link->sent = false; /* looking in vain hears of everything, as ZMQ_EVENTS would */
        return false;
    }
    return true;
}

/* ------------------------------------------------------------ sending */

status worker_link_send(worker_link *link, const void *identity, size_t n_identity,
                        const wire_message *message, error *err) {
    status rc = wire_encode(&link->frame, message, err);
    if (rc != STATUS_OK) return rc;
    link->sent = true;
    if (zmq_send(link->router, identity, n_identity, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        return error_set(err, errno == EAGAIN ? STATUS_TIMEOUT : STATUS_UNAVAILABLE,
                         "mesh: %s is not sent: %s", wire_type_name(message->type),
                         zmq_strerror(errno));
    }
    if (zmq_send(link->router, link->frame.bytes, link->frame.length, ZMQ_DONTWAIT) < 0) {
        return error_set(err, STATUS_IO, "mesh: %s is not sent: %s",
                         wire_type_name(message->type), zmq_strerror(errno));
    }
    return STATUS_OK;
}
