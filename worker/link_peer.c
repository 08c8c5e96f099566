/* link_peer.c - greeting and beats of one coordinator. */
#include "worker/link_peer.h"

#include "common/clock.h"
#include "common/log.h"
#include <string.h>

enum {
    SEND_AGAIN_MS = 50,   /* the socket took nothing */
    UNANSWERED_BEATS = 4, /* then say HELLO again */
    BEAT_MS = 1000,
    BEAT_MIN_MS = 20,
    BEAT_MAX_MS = 10000
};

static void go_down(link_peer *p, uint64_t now_ms) {
    if (p->up) log_warn("coordinator-disconnected", "address=%s", p->address);
    if (p->up || p->down_since_ms == LINK_NEVER_MS) p->down_since_ms = now_ms;
    p->up = p->welcomed = p->refused = false;
    p->socket.hold = true;
}

void link_peer_follow(link_peer *p, uint64_t now_ms) {
    peer_event event;
    while ((event = peer_socket_next_event(&p->socket)) != PEER_NOTHING) {
        if (event == PEER_UP) {
            p->up = true;
            p->welcomed = p->refused = false;
            p->hello_due_ms = p->beat_due_ms = now_ms;
            p->hello_again_ms = p->times->hello_ms;
            if (p->beat_interval_ms == 0) p->beat_interval_ms = BEAT_MS;
            log_info("coordinator-connected", "address=%s", p->address);
        } else if (event == PEER_DOWN) {
            go_down(p, now_ms);
        } else if (p->complained_ms == 0 || now_ms - p->complained_ms >= p->times->refused_ms) {
            p->complained_ms = now_ms;
            log_error("coordinator-handshake-failed",
                      "address=%s the other end is no coordinator, or a CURVE key is wrong",
                      p->address);
        }
    }
}

bool link_peer_hello_due(link_peer *p, uint64_t now_ms) {
    if (!p->up) return false;
    if (p->welcomed && now_ms - p->acked_ms > UNANSWERED_BEATS * p->beat_interval_ms &&
        now_ms - p->hello_sent_ms >= p->times->hello_ms) {
        return true;
    }
    return now_ms >= p->hello_due_ms;
}

void link_peer_send_hello(link_peer *p, wire_frame *frame, const wire_hello *hello,
                          uint64_t now_ms) {
    wire_message m = {.type = WIRE_HELLO, .hello = *hello};
    error err;
    if (wire_encode(frame, &m, &err) != STATUS_OK) {
        log_error("hello-not-sent", "address=%s %s", p->address, err.text);
        p->hello_due_ms = now_ms + p->times->refused_ms;
        return;
    }
    if (!peer_socket_try(&p->socket, frame)) {
        p->hello_due_ms = now_ms + SEND_AGAIN_MS;
        return;
    }
    p->hello_sent_ms = now_ms;
    p->beat_due_ms = now_ms; /* the state follows at once */
    p->hello_due_ms = p->welcomed ? UINT64_MAX : now_ms + p->hello_again_ms;
}

bool link_peer_beat_due(const link_peer *p, uint64_t now_ms) {
    return p->up && !p->refused && p->hello_sent_ms != 0 && now_ms >= p->beat_due_ms;
}

void link_peer_send_beat(link_peer *p, wire_frame *frame, wire_beat *beat, uint64_t now_ms) {
    beat->number = p->beat_number + 1;
    beat->rtt_us = p->rtt_us;
    wire_message m = {.type = WIRE_BEAT, .beat = *beat};
    error err;
    if (wire_encode(frame, &m, &err) != STATUS_OK) {
        log_error("beat-not-sent", "address=%s %s", p->address, err.text);
    } else if (!peer_socket_try(&p->socket, frame)) {
        p->beat_due_ms = now_ms + SEND_AGAIN_MS;
        return;
    } else {
        p->beat_number++;
        p->beat_sent_ns = clock_monotonic_ns();
    }
    p->beat_due_ms = now_ms + p->beat_interval_ms;
}

uint64_t link_peer_wait_ms(const link_peer *p, uint64_t now_ms, uint64_t cap) {
    if (!p->up) return cap;
    uint64_t due = p->hello_due_ms;
    if (!p->refused && p->beat_due_ms < due) due = p->beat_due_ms;
    uint64_t wait = due > now_ms ? due - now_ms : 0;
    return wait < cap ? wait : cap;
}

bool link_peer_welcome(link_peer *p, const wire_welcome *welcome, uint64_t now_ms) {
    bool other = p->coordinator != 0 && p->coordinator != welcome->instance;
    if (!p->welcomed || other) {
        log_info("coordinator-welcome", "address=%s coordinator=%.*s build=%.*s", p->address,
                 (int)welcome->coordinator.length, welcome->coordinator.bytes,
                 (int)(welcome->build.length < 200 ? welcome->build.length : 200),
                 welcome->build.bytes);
    }
    uint64_t interval = welcome->beat_interval_ms == 0 ? BEAT_MS : welcome->beat_interval_ms;
    if (interval < BEAT_MIN_MS) interval = BEAT_MIN_MS;
    p->beat_interval_ms = interval < BEAT_MAX_MS ? interval : BEAT_MAX_MS;
    p->coordinator = welcome->instance;
    p->welcomed = true;
    p->refused = false;
    p->acked_ms = now_ms;
    p->beat_due_ms = now_ms;
    p->hello_due_ms = UINT64_MAX;
    return other;
}

void link_peer_ack(link_peer *p, const wire_ack *ack, uint64_t now_ms) {
    p->acked_ms = now_ms;
    if (ack->number == p->beat_number) {
        p->rtt_us = (clock_monotonic_ns() - p->beat_sent_ns) / 1000;
    }
}

void link_peer_refused(link_peer *p, const wire_error *refusal) {
    if (!p->refused) {
        log_error("coordinator-refuses", "address=%s %.*s", p->address,
                  (int)(refusal->text.length < 400 ? refusal->text.length : 400),
                  refusal->text.bytes);
    }
    /* "Say HELLO first" of one that was restarted is retryable and answered at once; what needs
     * a person is asked again seldom. */
    p->refused = true;
    p->welcomed = false;
    p->hello_again_ms = refusal->retryable ? p->times->hello_ms : p->times->refused_ms;
    p->hello_due_ms = p->hello_sent_ms + p->hello_again_ms;
}

void link_peer_complain(link_peer *p, wire_frame *frame, const error *reason, uint64_t now_ms) {
    if (p->complained_ms != 0 && now_ms - p->complained_ms < 1000) return;
    p->complained_ms = now_ms;
    log_error("coordinator-bad-frame", "address=%s %s", p->address, reason->text);
    static const char code[] = "bad_frame";
    wire_message m = {.type = WIRE_ERROR,
                      .error = {.http_status = 400,
                                .code = wire_text(code, sizeof code - 1),
                                .text = wire_text(reason->text, strlen(reason->text))}};
    if (wire_encode(frame, &m, NULL) == STATUS_OK) (void)peer_socket_try(&p->socket, frame);
}
