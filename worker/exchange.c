/* exchange.c - the rings between main, link and engine, and their items. */
#include "worker/exchange.h"

#include "common/log.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CAP_REPORTS = 8192, CAP_SMALL = 16 };

status exchange_init(exchange *x, size_t max_requests, error *err) {
    *x = (exchange)EXCHANGE_NONE;
    /* A request has a submit and a cancel in the ring at most; one stop comes last. */
    status rc = ring_init(&x->orders, 2 * max_requests + CAP_SMALL, err);
    if (rc == STATUS_OK) rc = ring_init(&x->reports, CAP_REPORTS, err);
    if (rc == STATUS_OK) rc = ring_init(&x->wishes, CAP_SMALL, err);
    if (rc == STATUS_OK) rc = ring_init(&x->notices, CAP_SMALL, err);
    if (rc != STATUS_OK) exchange_release(x);
    return rc;
}

void exchange_release(exchange *x) {
    void *item;
    while (x->orders.items != NULL && (item = ring_pop(&x->orders)) != NULL)
        order_free(item);
    while (x->reports.items != NULL && (item = ring_pop(&x->reports)) != NULL)
        free(item);
    while (x->notices.items != NULL && (item = ring_pop(&x->notices)) != NULL)
        free(item);
    ring_release(&x->orders);
    ring_release(&x->reports);
    ring_release(&x->wishes);
    ring_release(&x->notices);
}

void order_free(order *o) {
    if (o == NULL || o->kind == ORDER_STOP) return; /* the stop is static */
    wire_release(&o->message);
    if (o->kind == ORDER_SUBMIT) (void)zmq_msg_close(&o->frame);
    free(o);
}

/* ---- copies ---- */

/* Where the next piece of a copied message goes, behind its report. */
typedef struct copier {
    char *at;
} copier;

static size_t padded(size_t length) {
    return (length + 7) & ~(size_t)7;
}

static const void *keep(copier *c, const void *bytes, size_t length) {
    if (length == 0) return NULL;
    char *kept = c->at;
    memcpy(kept, bytes, length);
    c->at += padded(length);
    return kept;
}

static void keep_bytes(copier *c, wire_bytes *value) {
    value->bytes = keep(c, value->bytes, value->length);
}

static size_t copy_length(const wire_message *m) {
    if (m->type == WIRE_TOKENS) {
        return padded(m->tokens.n_ids * sizeof *m->tokens.ids) + padded(m->tokens.text.length) +
               padded(m->tokens.logprobs.length) + padded(m->tokens.call_name.length);
    }
    if (m->type == WIRE_DONE) {
        return padded(m->done.n_boundaries * sizeof *m->done.boundaries) +
               padded(m->done.n_lost * sizeof *m->done.lost) + padded(m->done.result.length);
    }
    CHECK(m->type == WIRE_ERROR);
    return padded(m->error.code.length) + padded(m->error.param.length) +
           padded(m->error.text.length);
}

report *report_new(report_kind kind) {
    report *r = calloc(1, sizeof *r);
    if (r == NULL) {
        log_error("report-lost", "no memory");
    } else {
        r->kind = kind;
    }
    return r;
}

report *report_copy(const wire_message *message) {
    size_t head = padded(sizeof(report));
    report *r = calloc(1, head + copy_length(message));
    if (r == NULL) return NULL;
    copier c = {.at = (char *)r + head};
    r->kind = REPORT_MESSAGE;
    r->message = *message;
    r->message.zone = NULL;
    if (message->type == WIRE_TOKENS) {
        wire_tokens *t = &r->message.tokens;
        t->ids = keep(&c, t->ids, t->n_ids * sizeof *t->ids);
        keep_bytes(&c, &t->text);
        keep_bytes(&c, &t->logprobs);
        keep_bytes(&c, &t->call_name);
    } else if (message->type == WIRE_DONE) {
        wire_done *d = &r->message.done;
        d->boundaries = keep(&c, d->boundaries, d->n_boundaries * sizeof *d->boundaries);
        d->lost = keep(&c, d->lost, d->n_lost * sizeof *d->lost);
        keep_bytes(&c, &d->result);
    } else {
        keep_bytes(&c, &r->message.error.code);
        keep_bytes(&c, &r->message.error.param);
        keep_bytes(&c, &r->message.error.text);
    }
    return r;
}

void exchange_report(exchange *x, report *r) {
    while (!ring_push(&x->reports, r)) {
        if (atomic_load(&x->link_gone)) {
            free(r);
            return;
        }
        const struct timespec pause = {.tv_nsec = 200000};
        (void)nanosleep(&pause, NULL);
    }
}
