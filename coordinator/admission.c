#include "coordinator/admission.h"

#include "coordinator/request.h"

static size_t level(const request *r) {
    return r->priority == 0 ? 0 : 1;
}

static uint64_t *last_turn(admission *q, const request *r) {
    return r->tenant != NULL ? &r->tenant->fair_round[level(r)] : &q->nobody[level(r)];
}

static void link_before(admission *q, request *r, request *before) {
    size_t p = level(r);
    r->queue_next = before;
    r->queue_previous = before != NULL ? before->queue_previous : q->tail[p];
    if (r->queue_previous != NULL)
        r->queue_previous->queue_next = r;
    else
        q->head[p] = r;
    if (before != NULL)
        before->queue_previous = r;
    else
        q->tail[p] = r;
}

static void unlink_from(admission *q, request *r) {
    size_t p = level(r);
    if (r->queue_previous != NULL)
        r->queue_previous->queue_next = r->queue_next;
    else
        q->head[p] = r->queue_next;
    if (r->queue_next != NULL)
        r->queue_next->queue_previous = r->queue_previous;
    else
        q->tail[p] = r->queue_previous;
    r->queue_next = r->queue_previous = NULL;
}

/* Behind all of its turn or an earlier one. */
static void link_in_turn(admission *q, request *r) {
    request *before = NULL;
    for (request *at = q->tail[level(r)]; at != NULL && at->turn > r->turn;
         at = at->queue_previous)
        before = at;
    link_before(q, r, before);
}

static void count_in(admission *q, request *r) {
    r->queued = true;
    q->n_waiting++;
    if (r->tenant != NULL) r->tenant->n_waiting++;
}

static void count_out(admission *q, request *r) {
    r->queued = false;
    q->n_waiting--;
    if (r->tenant != NULL) r->tenant->n_waiting--;
}

void admission_squeeze(admission *q, request *r) {
    uint64_t *last = last_turn(q, r);
    uint64_t now = q->turn[level(r)];
    r->turn = *last + 1 > now ? *last + 1 : now;
    *last = r->turn;
    link_in_turn(q, r);
    count_in(q, r);
}

bool admission_add(admission *q, request *r) {
    const tenant *t = r->tenant;
    if (q->n_waiting >= q->max_waiting) return false;
    if (t != NULL && t->limits.waiting > 0 && t->n_waiting >= t->limits.waiting) return false;
    admission_squeeze(q, r);
    return true;
}

void admission_put_back(admission *q, request *r) {
    r->turn = 0;
    link_before(q, r, q->head[level(r)]);
    count_in(q, r);
}

void admission_take(admission *q, request *r) {
    if (!r->queued) return;
    if (r->turn > q->turn[level(r)]) q->turn[level(r)] = r->turn;
    unlink_from(q, r);
    count_out(q, r);
}

void admission_remove(admission *q, request *r) {
    if (!r->queued) return;
    request *next = r->queue_next;
    unlink_from(q, r);
    count_out(q, r);
    if (r->turn == 0) return;
    uint64_t *last = last_turn(q, r);
    for (request *at = next; at != NULL; at = next) {
        next = at->queue_next;
        if (at->tenant != r->tenant) continue;
        unlink_from(q, at);
        at->turn--;
        link_in_turn(q, at);
    }
    if (*last > q->turn[level(r)]) (*last)--;
}

bool admission_may_run(const request *r) {
    const tenant *t = r->tenant;
    return t == NULL || t->limits.concurrent == 0 || t->n_running < t->limits.concurrent;
}

request *admission_first(const admission *q) {
    return q->head[0] != NULL ? q->head[0] : q->head[1];
}

request *admission_next(const admission *q, const request *r) {
    if (r->queue_next != NULL) return r->queue_next;
    return level(r) == 0 ? q->head[1] : NULL;
}

unsigned admission_retry_after_s(double expected_wait_s) {
    if (!(expected_wait_s > 1)) return 1;
    return expected_wait_s > 120 ? 120 : (unsigned)(expected_wait_s + 0.999);
}
