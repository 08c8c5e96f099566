/* router.c - a ROUTER, and what a coordinator says. */
#include "tests/unit/router.h"

#include "common/clock.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include <cmocka.h>

enum { PATIENCE_MS = 5000 };

static void bind_socket(router *r, const char *address) {
    int zero = 0, one = 1;
    assert_int_equal(zmq_setsockopt(r->socket, ZMQ_LINGER, &zero, sizeof zero), 0);
    assert_int_equal(zmq_setsockopt(r->socket, ZMQ_ROUTER_HANDOVER, &one, sizeof one), 0);
    uint64_t until_ms = clock_monotonic_ms() + PATIENCE_MS;
    /* The port of a closed socket is free only when ZeroMQ's own thread has closed it. */
    while (zmq_bind(r->socket, address == NULL ? "tcp://127.0.0.1:*" : address) != 0) {
        if (clock_monotonic_ms() > until_ms) fail_msg("bind: %s", zmq_strerror(zmq_errno()));
        (void)zmq_poll(NULL, 0, 5);
    }
    size_t length = sizeof r->address;
    assert_int_equal(zmq_getsockopt(r->socket, ZMQ_LAST_ENDPOINT, r->address, &length), 0);
}

static void make_socket(router *r) {
    memset(r, 0, sizeof *r);
    r->context = zmq_ctx_new();
    r->socket = zmq_socket(r->context, ZMQ_ROUTER);
    assert_non_null(r->socket);
}

void router_open(router *r, const char *address) {
    char copy[128] = "";
    if (address != NULL) (void)snprintf(copy, sizeof copy, "%s", address);
    make_socket(r);
    bind_socket(r, address == NULL ? NULL : copy);
}

void router_open_curve(router *r, const char *secret_key) {
    int one = 1;
    make_socket(r);
    assert_int_equal(zmq_setsockopt(r->socket, ZMQ_CURVE_SERVER, &one, sizeof one), 0);
    assert_int_equal(zmq_setsockopt(r->socket, ZMQ_CURVE_SECRETKEY, secret_key, 41), 0);
    bind_socket(r, NULL);
}

static void forget(router *r) {
    wire_release(&r->got);
    free(r->frame);
    r->frame = NULL;
}

void router_close(router *r) {
    if (r->socket == NULL) return;
    forget(r);
    (void)zmq_close(r->socket);
    (void)zmq_ctx_term(r->context);
    r->socket = NULL;
}

bool router_next(router *r, int timeout_ms) {
    forget(r);
    zmq_pollitem_t item = {.socket = r->socket, .events = ZMQ_POLLIN};
    if (zmq_poll(&item, 1, timeout_ms) <= 0) return false;
    int id = zmq_recv(r->socket, r->peer, sizeof r->peer, 0);
    assert_in_range(id, 1, sizeof r->peer);
    r->peer_length = (size_t)id;
    zmq_msg_t body;
    (void)zmq_msg_init(&body);
    assert_true(zmq_msg_recv(&body, r->socket, 0) >= 0);
    assert_int_equal(zmq_msg_more(&body), 0);
    size_t length = zmq_msg_size(&body);
    r->frame = malloc(length + 1);
    assert_non_null(r->frame);
    memcpy(r->frame, zmq_msg_data(&body), length);
    (void)zmq_msg_close(&body);
    error err;
    if (wire_decode(&r->got, r->frame, length, &err) != STATUS_OK) fail_msg("%s", err.text);
    return true;
}

const wire_message *router_expect(router *r, wire_type type) {
    uint64_t until_ms = clock_monotonic_ms() + PATIENCE_MS;
    for (uint64_t now = clock_monotonic_ms(); now < until_ms; now = clock_monotonic_ms()) {
        if (router_next(r, (int)(until_ms - now)) && r->got.type == type) return &r->got;
    }
    fail_msg("no %s came", wire_type_name(type));
    return NULL;
}

void router_expect_none(router *r, wire_type type, int ms) {
    uint64_t until_ms = clock_monotonic_ms() + (uint64_t)ms;
    for (uint64_t now = clock_monotonic_ms(); now < until_ms; now = clock_monotonic_ms()) {
        if (router_next(r, (int)(until_ms - now)) && r->got.type == type) {
            fail_msg("%s came", wire_type_name(type));
        }
    }
}

void router_send_bytes(router *r, const void *bytes, size_t length) {
    assert_int_equal(zmq_send(r->socket, r->peer, r->peer_length, ZMQ_SNDMORE), r->peer_length);
    assert_int_equal(zmq_send(r->socket, bytes, length, 0), length);
}

void router_send(router *r, const wire_message *m) {
    wire_frame frame = {0};
    assert_int_equal(wire_encode(&frame, m, NULL), STATUS_OK);
    router_send_bytes(r, frame.bytes, frame.length);
    wire_frame_release(&frame);
}

void router_welcome(router *r, uint64_t instance) {
    (void)router_expect(r, WIRE_HELLO);
    const wire_message m = {.type = WIRE_WELCOME,
                            .welcome = {.coordinator = wire_text("test", 4),
                                        .instance = instance,
                                        .beat_interval_ms = 50}};
    router_send(r, &m);
}

void router_until_ready(router *r, uint64_t instance) {
    router_welcome(r, instance);
    while (router_expect(r, WIRE_BEAT)->beat.state != WIRE_READY || r->got.beat.credit == 0) {
    }
}

void router_submit(router *r, uint64_t request, uint64_t epoch, const char *body) {
    const wire_message m = {.type = WIRE_SUBMIT,
                            .submit = {.request = request,
                                       .epoch = epoch,
                                       .kind = WIRE_CHAT,
                                       .body = wire_text(body, strlen(body))}};
    router_send(r, &m);
}

void router_cancel(router *r, uint64_t request, uint64_t epoch) {
    const wire_message m = {.type = WIRE_CANCEL, .cancel = {request, epoch}};
    router_send(r, &m);
}
