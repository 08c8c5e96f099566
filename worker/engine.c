/* engine.c - takes requests, and ends them. */
#include "worker/engine_parts.h"

#include "worker/embedding.h"
#include <inttypes.h>

void engine_end_request(engine *e, request *r, const request_fault *fault) {
    if (r == e->ahead) e->ahead = NULL;
    if (fault == NULL) engine_note_held(e, r);
    for (uint32_t i = 0; i < r->n_choices; i++)
        scheduler_remove(e->scheduler, &r->choices[i].timeline);
    for (size_t i = 0; r->vectors != NULL && i < r->vectors->n_begun; i++)
        scheduler_remove(e->scheduler, &r->vectors->inputs[i].timeline);
    if (fault != NULL) {
        request_fail(r, fault);
    } else {
        request_done(r, e->plan.n_slots > 0);
    }
}

void engine_sweep(engine *e) {
    for (request **at = &e->requests; *at != NULL;) {
        request *r = *at;
        if (!r->over) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        if (!engine_keep_for_ahead(e, r)) request_free(r);
    }
}

request_fault engine_fault(uint32_t http_status, const char *code, bool retryable, status rc,
                           const char *text) {
    request_fault f = {.http_status = http_status, .code = code, .retryable = retryable};
    error_record(&f.err, rc, "%s", text);
    return f;
}

static request *find_request(engine *e, uint64_t id, uint64_t epoch) {
    for (request *r = e->requests; r != NULL; r = r->next) {
        if (r->id == id && r->epoch == epoch && !r->over && !r->ahead) return r;
    }
    return NULL;
}

static void schedule(engine *e, request *r) {
    for (uint32_t i = 0; i < r->n_choices; i++) {
        if (request_finish_if_over(r, &r->choices[i])) continue;
        if (i > 0) r->choices[i].timeline.leader = &r->choices[0].timeline;
        bool taken = scheduler_submit(e->scheduler, &r->choices[i].timeline);
        CHECK(taken);
    }
    if (r->n_open == 0) engine_end_request(e, r, NULL); /* a count, or a resume that was over */
}

static void start_request(engine *e, request *r) {
    engine_leave_ahead(e);
    r->next = e->requests;
    e->requests = r;
    if (!engine_fetch_prefix(e, r)) schedule(e, r);
    engine_sweep(e);
}

void engine_start_fetched(engine *e) {
    if (e->prefixes == NULL) return;
    prefix_cache_poll(e->prefixes, 0);
    for (request *r = e->requests; r != NULL; r = r->next) {
        if (!r->is_fetching || r->over || !engine_is_fetched(e, r)) continue;
        r->is_fetching = false;
        schedule(e, r);
    }
    engine_sweep(e);
}

status engine_submit(engine *e, const wire_submit *submit, error *err) {
    if (find_request(e, submit->request, submit->epoch) != NULL) {
        return error_set(err, STATUS_BAD_INPUT,
                         "request %" PRIu64 " epoch %" PRIu64 " runs already", submit->request,
                         submit->epoch);
    }
    uint32_t n_fetching = engine_n_fetching(e);
    if (!scheduler_has_room(e->scheduler, 1 + n_fetching)) {
        return error_set(err, STATUS_UNAVAILABLE, "queue: %u sequences wait already",
                         scheduler_n_waiting(e->scheduler));
    }
    request *r = NULL;
    request_fault fault;
    /* A coordinator's seed holds on every node, so that a resume draws on. */
    uint64_t seed =
        submit->seed != 0 ? submit->seed : e->seed + 0x9E3779B97F4A7C15u * e->n_submitted;
    status rc = request_make(&r, &e->context, submit, seed, &fault);
    if (rc == STATUS_NO_MEMORY) return error_set(err, rc, "%s", fault.err.text);
    if (rc != STATUS_OK) {
        request_refuse(&e->context, submit, &fault);
        return STATUS_OK;
    }
    if (!scheduler_has_room(e->scheduler, r->n_choices + n_fetching)) {
        uint32_t n = r->n_choices;
        request_free(r);
        return error_set(err, STATUS_UNAVAILABLE,
                         "queue: %u sequences wait, no room for %u more",
                         scheduler_n_waiting(e->scheduler), n);
    }
    e->n_submitted++;
    start_request(e, r);
    return STATUS_OK;
}

bool engine_cancel(engine *e, uint64_t id, uint64_t epoch) {
    request *r = find_request(e, id, epoch);
    if (r == NULL) return false;
    request_fault f = engine_fault(499, "cancelled", false, STATUS_CANCELLED, "cancelled");
    engine_end_request(e, r, &f);
    engine_sweep(e);
    return true;
}

void engine_end_late_requests(engine *e, uint64_t now_ns) {
    for (request *r = e->requests; r != NULL; r = r->next) {
        if (r->over || r->deadline_ns == 0 || now_ns < r->deadline_ns) continue;
        request_fault f = engine_fault(504, "deadline_exceeded", false, STATUS_TIMEOUT,
                                       "the deadline has passed");
        engine_end_request(e, r, &f);
    }
    engine_sweep(e);
}
