#include "coordinator/admission.h"

#include "coordinator/request.h"

static size_t level(const request *r) {
    return r->priority == 0 ? 0 : 1;
}

static void insert(admission *q, request *r, request *before) {
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
    r->queued = true;
    q->n_waiting++;
}

bool admission_add(admission *q, request *r) {
    if (q->n_waiting >= q->max_waiting) return false;
    insert(q, r, NULL);
    return true;
}

void admission_put_back(admission *q, request *r) {
    insert(q, r, q->head[level(r)]);
}

void admission_remove(admission *q, request *r) {
    if (!r->queued) return;
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
    r->queued = false;
    q->n_waiting--;
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
