/* link_requests.c - SUBMIT and CANCEL to the engine, its results to the coordinators. */
#include "worker/link_requests.h"

#include "common/log.h"
#include <stdlib.h>

wire_worker_state link_state(const coordinator_link *l) {
    if (l->failed) return WIRE_FAILED;
    if (l->stopping || l->draining) return WIRE_DRAINING;
    return l->loaded ? WIRE_READY : WIRE_LOADING;
}

/* The ring has a place for each flight's submit and cancel. */
static void give_order(coordinator_link *l, order *o) {
    CHECK(ring_push(&l->x->orders, o));
}

void link_cancel(coordinator_link *l, flight *f) {
    if (f->cancelled) return;
    order *o = calloc(1, sizeof *o);
    if (o == NULL) {
        log_error("cancel-not-given", "request=%llu no memory", (unsigned long long)f->request);
        return;
    }
    f->cancelled = true;
    o->kind = ORDER_CANCEL;
    o->request = f->key;
    o->epoch = f->epoch;
    give_order(l, o);
}

void link_drop_requests(coordinator_link *l, size_t peer, const char *why) {
    size_t n = 0;
    for (size_t i = 0; i < l->flights.n_places; i++) {
        flight *f = &l->flights.places[i];
        if (f->key == 0 || f->peer != peer || f->muted) continue;
        f->muted = true;
        link_cancel(l, f);
        n++;
    }
    peer_socket_drop_outbox(&l->peers[peer].socket);
    if (n > 0) {
        log_warn("requests-dropped", "address=%s n=%zu reason=%s", l->peers[peer].address, n,
                 why);
    }
}

/* False when the peer does not take it; its requests are then over. */
static bool send_result(coordinator_link *l, size_t peer, const wire_message *m) {
    error err;
    status rc = wire_encode(&l->frame, m, &err);
    if (rc == STATUS_OK) rc = peer_socket_send(&l->peers[peer].socket, &l->frame, &err);
    if (rc == STATUS_OK) return true;
    log_error("result-not-sent", "address=%s %s", l->peers[peer].address, err.text);
    return false;
}

bool link_send_error(coordinator_link *l, size_t peer, uint64_t request, uint64_t epoch,
                     uint64_t http_status, const char *code, const char *text) {
    const wire_message m = {.type = WIRE_ERROR,
                            .error = {.request = request,
                                      .epoch = epoch,
                                      .http_status = http_status,
                                      .code = link_text(code),
                                      .text = link_text(text),
                                      .retryable = true}};
    return send_result(l, peer, &m);
}

/* The coordinator does not read: end its requests with what a free outbox can hold. */
static void give_up_slow_peer(coordinator_link *l, size_t peer) {
    peer_socket_drop_outbox(&l->peers[peer].socket);
    for (size_t i = 0; i < l->flights.n_places; i++) {
        const flight *f = &l->flights.places[i];
        if (f->key == 0 || f->peer != peer || f->muted) continue;
        (void)link_send_error(l, peer, f->request, f->epoch, 503, "coordinator_slow",
                              "the coordinator does not take this worker's results");
    }
    for (size_t i = 0; i < l->flights.n_places; i++) {
        flight *f = &l->flights.places[i];
        if (f->key == 0 || f->peer != peer || f->muted) continue;
        f->muted = true;
        link_cancel(l, f);
    }
}

static const char *why_not_now(const coordinator_link *l, size_t peer, const char **code) {
    switch (link_state(l)) {
    case WIRE_LOADING:
        *code = "loading";
        return "the model is being loaded";
    case WIRE_DRAINING:
        *code = "draining";
        return "this worker takes no new work";
    case WIRE_FAILED:
        *code = "engine_failed";
        return "the engine has failed";
    case WIRE_READY:
        break;
    }
    *code = "busy";
    if (flights_of_peer(&l->flights, peer) >= l->peers[peer].grant) {
        return "over the credit that this worker granted";
    }
    return l->flights.n_used >= l->flights.n_places ? "all sequences are taken" : NULL;
}

/* Takes *frame over, which *m points into; either is released by the engine's loop. */
static status start_flight(coordinator_link *l, size_t peer, wire_message *m,
                           zmq_msg_t *frame) {
    const wire_submit *s = &m->submit;
    order *o = calloc(1, sizeof *o);
    flight *f = o == NULL ? NULL : flights_add(&l->flights, peer, s->request, s->epoch);
    if (f == NULL) {
        free(o);
        return STATUS_NO_MEMORY;
    }
    o->kind = ORDER_SUBMIT;
    o->request = f->key;
    o->epoch = f->epoch;
    /* A short ZeroMQ message holds its bytes inside itself: moving it moves them, and what was
     * decoded must be decoded again where they now stand. */
    (void)zmq_msg_init(&o->frame);
    (void)zmq_msg_move(&o->frame, frame);
    wire_release(m);
    memset(m, 0, sizeof *m);
    status rc =
        wire_decode(&o->message, zmq_msg_data(&o->frame), zmq_msg_size(&o->frame), NULL);
    if (rc != STATUS_OK) {
        flights_end(&l->flights, f);
        order_free(o);
        return rc;
    }
    give_order(l, o);
    return STATUS_OK;
}

void link_take_submit(coordinator_link *l, size_t peer, wire_message *m, zmq_msg_t *frame) {
    const uint64_t request = m->submit.request, epoch = m->submit.epoch;
    if (request == 0) { /* an ERROR of request 0 would mean the peer itself */
        log_warn("submit-without-number", "address=%s", l->peers[peer].address);
        return;
    }
    if (flights_is_stale(&l->flights, peer, request, epoch)) {
        log_info("stale-submit", "request=%llu epoch=%llu", (unsigned long long)request,
                 (unsigned long long)epoch);
        return;
    }
    flight *older = flights_by_request(&l->flights, peer, request);
    if (older != NULL) {
        older->muted = true;
        link_cancel(l, older);
    }
    const char *code = NULL;
    const char *why = why_not_now(l, peer, &code);
    if (why == NULL && start_flight(l, peer, m, frame) != STATUS_OK) why = "no memory";
    if (why != NULL && !link_send_error(l, peer, request, epoch, 503, code, why)) {
        give_up_slow_peer(l, peer);
    }
}

void link_take_cancel(coordinator_link *l, size_t peer, const wire_cancel *c) {
    flight *f = flights_by_request(&l->flights, peer, c->request);
    if (f != NULL && c->epoch >= f->epoch) link_cancel(l, f);
}

void link_pass_result(coordinator_link *l, wire_message *m) {
    /* request is the first field of all three. */
    uint64_t key = m->type == WIRE_TOKENS ? m->tokens.request
                   : m->type == WIRE_DONE ? m->done.request
                                          : m->error.request;
    flight *f = flights_by_key(&l->flights, key);
    if (f == NULL) return;
    bool ends = m->type != WIRE_TOKENS;
    if (m->type == WIRE_TOKENS) {
        m->tokens.request = f->request;
        m->tokens.epoch = f->epoch;
        m->tokens.number = f->next_number++;
    } else if (m->type == WIRE_DONE) {
        m->done.request = f->request;
        m->done.epoch = f->epoch;
        m->done.number = f->next_number;
    } else {
        m->error.request = f->request;
        m->error.epoch = f->epoch;
        if (f->cut) {
            m->error.http_status = 503;
            m->error.code = link_text("draining");
            m->error.text = link_text("this worker stops; the drain limit is over");
            m->error.retryable = true;
        }
    }
    size_t peer = f->peer;
    bool wanted = !f->muted;
    if (ends) flights_end(&l->flights, f);
    if (wanted && !send_result(l, peer, m)) give_up_slow_peer(l, peer);
}
