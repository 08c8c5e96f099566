#include "coordinator/request.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/coordinator.h"
#include "coordinator/dispatch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ table */

static request **bucket_of(coordinator *c, uint64_t id) {
    return &c->buckets[id % REQUEST_BUCKETS];
}

static void table_add(coordinator *c, request *r) {
    request **at = bucket_of(c, r->id);
    r->hash_next = *at;
    *at = r;
}

static void table_remove(coordinator *c, request *r) {
    for (request **at = bucket_of(c, r->id); *at != NULL; at = &(*at)->hash_next) {
        if (*at != r) continue;
        *at = r->hash_next;
        return;
    }
}

/* The request that a node's message is about, if that node still works on that epoch. */
static request *find(coordinator *c, const node *n, uint64_t id, uint64_t epoch) {
    for (request *r = *bucket_of(c, id); r != NULL; r = r->hash_next) {
        if (r->id == id) return r->node == n && r->epoch == epoch ? r : NULL;
    }
    return NULL;
}

request *request_new(const request_sink *sink, tenant *t) {
    request *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->sink = *sink;
    r->tenant = t;
    tenant_ref(t);
    return r;
}

void request_discard(request *r) {
    if (r == NULL) return;
    tenant_unref(r->tenant);
    free(r->body);
    free(r);
}

bool request_has_tried(const request *r, const node *n) {
    for (size_t i = 0; i < r->n_tried; i++) {
        if (r->tried[i] == n->instance) return true;
    }
    return false;
}

/* ------------------------------------------------------------ attaching */

void request_attach(coordinator *c, request *r, node *n, uint64_t now_ns) {
    admission_take(&c->queue, r);
    r->tenant->n_running++;
    r->state = REQUEST_SENT;
    r->node = n;
    r->sent_ns = now_ns;
    r->attempts++;
    r->next_number = 0;
    r->tokens = 0;
    r->first_token_ns = 0;
    r->node_previous = NULL;
    r->node_next = n->requests;
    if (n->requests != NULL) n->requests->node_previous = r;
    n->requests = r;
    n->in_flight++;
    c->n_running++;
}

static void detach(coordinator *c, request *r) {
    node *n = r->node;
    if (n == NULL) return;
    if (r->node_previous != NULL)
        r->node_previous->node_next = r->node_next;
    else
        n->requests = r->node_next;
    if (r->node_next != NULL) r->node_next->node_previous = r->node_previous;
    r->node_next = r->node_previous = NULL;
    r->node = NULL;
    CHECK(n->in_flight > 0 && c->n_running > 0 && r->tenant->n_running > 0);
    r->tenant->n_running--;
    n->in_flight--;
    c->n_running--;
    if (r->state == REQUEST_CANCELLING) c->n_cancelling--;
    c->dispatch_due = true;
}

static void forget(coordinator *c, request *r) {
    admission_remove(&c->queue, r);
    detach(c, r);
    table_remove(c, r);
    request_discard(r);
}

static void send_cancel(coordinator *c, const request *r) {
    wire_message m = {.type = WIRE_CANCEL};
    m.cancel.request = r->id;
    m.cancel.epoch = r->epoch;
    error err = {0};
    if (worker_link_send(c->link, r->node->identity, r->node->n_identity, &m, &err) !=
        STATUS_OK) {
        log_debug("cancel-not-sent", "request=%s node=%s error=\"%s\"", r->request_id,
                  r->node->name, err.text);
    }
}

/* ------------------------------------------------------------ the ends */

static void failure_set(request_failure *f, unsigned http_status, const char *code,
                        const char *param, unsigned retry_after_s, const char *message) {
    memset(f, 0, sizeof *f);
    f->http_status = http_status;
    f->retry_after_s = retry_after_s;
    (void)snprintf(f->code, sizeof f->code, "%s", code);
    (void)snprintf(f->param, sizeof f->param, "%s", param);
    (void)snprintf(f->message, sizeof f->message, "%s", message);
}

static void fail(coordinator *c, request *r, const request_failure *failure) {
    request_failure copy = *failure; /* it may stand in r */
    if (r->state == REQUEST_CANCELLING) {
        forget(c, r);
        return;
    }
    metric_add(copy.http_status < 500 ? c->counters.refused : c->counters.failed, 1);
    log_info("request-failed", "request=%s node=%s status=%u code=%s error=\"%s\"",
             r->request_id, r->node != NULL ? r->node->name : "-", copy.http_status, copy.code,
             copy.message);
    if (r->node != NULL) r->node->failed++;
    admission_remove(&c->queue, r);
    detach(c, r);
    table_remove(c, r);
    r->sink.on_error(r->sink.context, r, &copy);
    request_discard(r);
}

/* Another node, if the client has seen nothing and there is one; otherwise the end. */
static void fail_over(coordinator *c, request *r, const request_failure *why) {
    node *n = r->node;
    if (r->state == REQUEST_CANCELLING) {
        forget(c, r);
        return;
    }
    if (n != NULL && r->n_tried < REQUEST_MAX_TRIED) r->tried[r->n_tried++] = n->instance;
    r->last_failure = *why;
    if (!r->replayable || r->n_tried == REQUEST_MAX_TRIED || c->draining ||
        dispatch_look(c, r) != DISPATCH_POSSIBLE) {
        fail(c, r, why);
        return;
    }
    log_info("request-failover", "request=%s from=%s epoch=%llu error=\"%s\"", r->request_id,
             n != NULL ? n->name : "-", (unsigned long long)r->epoch, why->message);
    metric_add(c->counters.failed_over, 1);
    detach(c, r);
    r->epoch++;
    r->state = REQUEST_QUEUED;
    r->sink.on_restart(r->sink.context);
    admission_put_back(&c->queue, r);
    c->dispatch_due = true;
}

/* ------------------------------------------------------------ from the API */

static void describe_outlook(const coordinator *c, const request *r, dispatch_outlook outlook,
                             request_failure *failure) {
    char message[400];
    if (outlook == DISPATCH_UNKNOWN) {
        (void)snprintf(message, sizeof message,
                       "the model '%s' does not exist; GET /v1/models "
                       "lists those that do",
                       r->model);
        failure_set(failure, 404, "model_not_found", "model", 0, message);
    } else if (c->nodes.first == NULL) {
        failure_set(failure, 503, "no_node", "", 2, "no worker has connected yet");
    } else {
        (void)snprintf(message, sizeof message,
                       "no node that serves the model '%s' is ready now", r->model);
        failure_set(failure, 503, "no_node", "", 5, message);
    }
}

/* Counts the request against its key's limits, or says which of them it is over. */
static bool begin_of_tenant(request *r, request_failure *failure) {
    double wait_s = 0;
    const char *limit = tenant_begin(r->tenant, clock_monotonic_ms(), &wait_s);
    if (limit == NULL) return true;
    char message[200];
    (void)snprintf(message, sizeof message, "the key '%s' is over its limit %s",
                   r->tenant->name, limit);
    failure_set(failure, 429, "rate_limit_exceeded", limit, admission_retry_after_s(wait_s),
                message);
    return false;
}

static void describe_full(const coordinator *c, const request *r, request_failure *failure) {
    char message[240];
    const tenant *t = r->tenant;
    bool own = c->queue.n_waiting < c->queue.max_waiting;
    double wait_s = dispatch_expected_wait_s(c, r->model, own ? t : NULL);
    if (own) {
        (void)snprintf(message, sizeof message,
                       "the key '%s' has as many requests as it may (%u running, %u waiting)",
                       t->name, t->n_running, t->n_waiting);
    } else {
        (void)snprintf(message, sizeof message,
                       "all nodes are busy and the queue is full (%zu waiting)",
                       c->queue.n_waiting);
    }
    failure_set(failure, 429, own ? "key_limit" : "queue_full", "",
                admission_retry_after_s(wait_s), message);
}

status request_submit(coordinator *c, request *r, request_failure *failure) {
    if (c->draining) {
        failure_set(failure, 503, "draining", "", 10, "the coordinator is shutting down");
        return STATUS_UNAVAILABLE;
    }
    dispatch_outlook outlook = dispatch_look(c, r);
    if (outlook != DISPATCH_POSSIBLE) {
        describe_outlook(c, r, outlook, failure);
        return outlook == DISPATCH_UNKNOWN ? STATUS_BAD_INPUT : STATUS_UNAVAILABLE;
    }
    if (!begin_of_tenant(r, failure)) return STATUS_UNAVAILABLE;
    r->id = ++c->last_request;
    r->epoch = 1;
    r->received_ns = clock_monotonic_ns();
    r->state = REQUEST_QUEUED;
    /* First try to place it over a full queue: a free node needs no queue. */
    table_add(c, r);
    bool full = !admission_add(&c->queue, r);
    if (full) admission_squeeze(&c->queue, r);
    dispatch_run(c);
    if (r->state != REQUEST_QUEUED || (r->queued && !full)) return STATUS_OK;
    admission_remove(&c->queue, r);
    table_remove(c, r);
    tenant_take_back(r->tenant);
    describe_full(c, r, failure);
    return STATUS_UNAVAILABLE;
}

void request_cancel(coordinator *c, request *r, const char *why) {
    if (r->state == REQUEST_CANCELLING) return;
    metric_add(c->counters.cancelled, 1);
    log_info("request-cancelled", "request=%s node=%s reason=%s tokens=%llu", r->request_id,
             r->node != NULL ? r->node->name : "-", why, (unsigned long long)r->tokens);
    memset(&r->sink, 0, sizeof r->sink);
    if (r->node == NULL) {
        forget(c, r);
        return;
    }
    r->state = REQUEST_CANCELLING;
    r->cancelled_ns = clock_monotonic_ns();
    c->n_cancelling++;
    send_cancel(c, r);
}

/* ------------------------------------------------------------ from the nodes */

/* End the stretch of decoding and learn from it when it was long enough to tell. */
static void end_stretch(request *r, uint64_t now_ns) {
    node_model *m = node_find_model(r->node, r->model);
    double seconds = (double)(now_ns - r->stretch_ns) * 1e-9;
    if (m != NULL && r->stretch_tokens >= 8 && seconds > 0.02) {
        rates_learn_decode(&m->speed, r->stretch_occupancy, (double)r->stretch_tokens, seconds);
    }
    r->stretch_ns = now_ns;
    r->stretch_tokens = 0;
    r->stretch_occupancy = r->node->in_flight;
}

static void count_tokens(coordinator *c, request *r, const wire_tokens *tokens) {
    uint64_t now_ns = clock_monotonic_ns();
    if (r->state == REQUEST_SENT) {
        r->state = REQUEST_RUNNING;
        r->first_token_ns = now_ns;
        metric_observe(c->counters.first_token, (double)(now_ns - r->received_ns) * 1e-9);
        end_stretch(r, now_ns);
        r->stretch_tokens = 0;
    } else {
        metric_observe(c->counters.between_tokens, (double)(now_ns - r->last_token_ns) * 1e-9);
        r->stretch_tokens += tokens->n_ids;
        if (r->stretch_tokens >= 32 || r->stretch_occupancy != r->node->in_flight) {
            end_stretch(r, now_ns);
        }
    }
    r->last_token_ns = now_ns;
    r->tokens += tokens->n_ids;
    r->node->tokens_out += tokens->n_ids;
    metric_add(c->counters.completion_tokens, (double)tokens->n_ids);
}

/* What the node sent makes no sense: give the place back and try elsewhere. */
static void mistrust(coordinator *c, request *r, const char *what) {
    request_failure failure;
    char message[400];
    (void)snprintf(message, sizeof message, "node %s: %s", r->node->name, what);
    failure_set(&failure, 502, "bad_node_reply", "", 0, message);
    send_cancel(c, r);
    node_table_failure(&c->nodes, r->node, false, clock_monotonic_ms());
    fail_over(c, r, &failure);
}

/* Numbers have no gaps: a gap is tokens lost on the way. */
static bool number_fits(coordinator *c, request *r, uint64_t number) {
    if (number == r->next_number++) return true;
    char what[160];
    (void)snprintf(what, sizeof what, "message %llu came where %llu was due: tokens are lost",
                   (unsigned long long)number, (unsigned long long)r->next_number - 1);
    mistrust(c, r, what);
    return false;
}

void request_on_tokens(coordinator *c, node *n, const wire_tokens *tokens) {
    request *r = find(c, n, tokens->request, tokens->epoch);
    if (r == NULL || r->state == REQUEST_CANCELLING) return;
    if (!number_fits(c, r, tokens->number)) return;
    count_tokens(c, r, tokens);
    error err = {0};
    if (r->sink.on_tokens(r->sink.context, tokens, &err) != STATUS_OK) mistrust(c, r, err.text);
}

static void learn_from_done(coordinator *c, request *r, const wire_done *done) {
    node *n = r->node;
    node_model *m = node_find_model(n, r->model);
    n->served++;
    n->tokens_in += done->prompt_tokens;
    metric_add(c->counters.finished, 1);
    metric_add(c->counters.prompt_tokens, (double)done->prompt_tokens);
    metric_add(c->counters.cached_tokens, (double)done->cached_tokens);
    if (m == NULL) return;
    end_stretch(r, clock_monotonic_ns());
    if (done->prompt_tokens > done->cached_tokens) {
        rates_learn_prefill(&m->speed, (double)(done->prompt_tokens - done->cached_tokens),
                            done->prefill_ms * 1e-3);
    }
    rates_learn_request(&m->speed, r->prompt_bytes, (double)done->prompt_tokens,
                        (double)done->completion_tokens);
}

void request_on_done(coordinator *c, node *n, const wire_done *done) {
    request *r = find(c, n, done->request, done->epoch);
    if (r == NULL) return;
    if (r->state == REQUEST_CANCELLING) {
        forget(c, r);
        return;
    }
    if (!number_fits(c, r, done->number)) return;
    learn_from_done(c, r, done);
    node_table_success(&c->nodes, n, clock_monotonic_ms());
    log_info(
        "request-done", "request=%s node=%s prompt=%llu cached=%llu completion=%llu ms=%.1f",
        r->request_id, n->name, (unsigned long long)done->prompt_tokens,
        (unsigned long long)done->cached_tokens, (unsigned long long)done->completion_tokens,
        (double)(clock_monotonic_ns() - r->received_ns) * 1e-6);
    request_sink sink = r->sink;
    detach(c, r);
    table_remove(c, r);
    r->node = n; /* for the owner's account; it holds no place there any more */
    sink.on_done(sink.context, r, done);
    request_discard(r);
}

static void copy_bytes(char *out, size_t cap, wire_bytes text) {
    size_t n = text.length < cap ? text.length : cap - 1;
    if (n > 0) memcpy(out, text.bytes, n);
    out[n] = '\0';
}

/* A longer context elsewhere makes "too long" a matter of placement. */
static bool larger_context_exists(const coordinator *c, request *r) {
    const node_model *here = node_find_model(r->node, r->model);
    if (here == NULL || here->context_tokens == 0) return false;
    r->min_context = here->context_tokens + 1;
    return dispatch_look(c, r) == DISPATCH_POSSIBLE;
}

void request_on_error(coordinator *c, node *n, const wire_error *e) {
    request *r = find(c, n, e->request, e->epoch);
    if (r == NULL) return;
    if (r->state == REQUEST_CANCELLING) {
        forget(c, r);
        return;
    }
    request_failure failure = {0};
    failure.http_status =
        e->http_status >= 400 && e->http_status <= 599 ? (unsigned)e->http_status : 502;
    copy_bytes(failure.code, sizeof failure.code, e->code);
    copy_bytes(failure.param, sizeof failure.param, e->param);
    copy_bytes(failure.message, sizeof failure.message, e->text);
    if (failure.http_status == 499)
        failure.http_status = 503; /* nobody here has cancelled it */
    if (failure.http_status == 503 || failure.http_status == 429) failure.retry_after_s = 2;
    bool busy = strcmp(failure.code, "busy") == 0;
    if (busy) {
        /* More was sent than it now has room for; its next beat says how much. */
        n->credit = n->in_flight - 1;
    } else if (failure.http_status >= 500) {
        node_table_failure(&c->nodes, n, false, clock_monotonic_ms());
    }
    if (busy && r->replayable) {
        detach(c, r);
        r->epoch++;
        r->state = REQUEST_QUEUED;
        admission_put_back(&c->queue, r);
    } else if (e->retryable || failure.http_status >= 500 ||
               (strcmp(failure.code, "context_length_exceeded") == 0 &&
                larger_context_exists(c, r))) {
        fail_over(c, r, &failure);
    } else {
        fail(c, r, &failure);
    }
}

void request_node_lost(coordinator *c, node *n, bool only_unstarted, const char *why) {
    request_failure failure;
    char message[400];
    (void)snprintf(message, sizeof message, "node %s is lost: %s", n->name, why);
    failure_set(&failure, 503, "node_lost", "", 2, message);
    request *next;
    for (request *r = n->requests; r != NULL; r = next) {
        next = r->node_next;
        if (!only_unstarted) {
            fail_over(c, r, &failure);
        } else if (r->state == REQUEST_SENT) {
            /* Only if another node can have it: this one may be back in a moment. */
            r->tried[r->n_tried % REQUEST_MAX_TRIED] = n->instance;
            r->n_tried++;
            bool elsewhere = dispatch_look(c, r) == DISPATCH_POSSIBLE;
            r->n_tried--;
            if (elsewhere && r->n_tried < REQUEST_MAX_TRIED) fail_over(c, r, &failure);
        }
    }
}

/* ------------------------------------------------------------ time */

static bool older(uint64_t now_ns, uint64_t since_ns, double limit_s) {
    return since_ns != 0 && now_ns > since_ns && (double)(now_ns - since_ns) * 1e-9 > limit_s;
}

static double first_token_limit_s(const coordinator *c, request *r) {
    const node_model *m = node_find_model(r->node, r->model);
    double prefill_s = m == NULL ? 0 : dispatch_prompt_tokens(r, m) / rates_prefill(&m->speed);
    return c->options->limit_first_token_s + 3 * prefill_s;
}

static void time_out(coordinator *c, request *r, const char *code, const char *message,
                     bool node_is_to_blame) {
    request_failure failure;
    failure_set(&failure, 504, code, "", 0, message);
    if (r->node != NULL) {
        send_cancel(c, r);
        if (node_is_to_blame)
            node_table_failure(&c->nodes, r->node, true, clock_monotonic_ms());
    }
    if (node_is_to_blame)
        fail_over(c, r, &failure);
    else
        fail(c, r, &failure);
}

static void tick_placed(coordinator *c, request *r, uint64_t now_ns) {
    const options *o = c->options;
    if (r->state == REQUEST_CANCELLING) {
        if (older(now_ns, r->cancelled_ns, o->limit_cancel_s)) forget(c, r);
    } else if (older(now_ns, r->received_ns, o->limit_total_s)) {
        time_out(c, r, "total_timeout", "the request took longer than limit.total_s", false);
    } else if (r->state == REQUEST_SENT &&
               older(now_ns, r->sent_ns, first_token_limit_s(c, r))) {
        time_out(c, r, "first_token_timeout", "the node gave no first token in time", true);
    } else if (r->state == REQUEST_RUNNING &&
               older(now_ns, r->last_token_ns, o->limit_between_tokens_s)) {
        time_out(c, r, "token_timeout", "the node gave no further token in time", true);
    } else if (!r->node->connected &&
               older(now_ns, r->node->disconnected_ms * 1000000u, o->node_reconnect_s)) {
        request_failure failure;
        failure_set(&failure, 503, "node_lost", "", 2, "the connection to the node broke");
        fail_over(c, r, &failure);
    }
}

static void tick_queued(coordinator *c, request *r, uint64_t now_ns) {
    request_failure failure;
    dispatch_outlook outlook = dispatch_look(c, r);
    if (outlook == DISPATCH_TRIED && r->last_failure.http_status != 0) {
        fail(c, r, &r->last_failure);
    } else if (outlook != DISPATCH_POSSIBLE) {
        describe_outlook(c, r, DISPATCH_NO_NODE, &failure);
        fail(c, r, &failure);
    } else if (older(now_ns, r->received_ns, c->options->queue_max_wait_s)) {
        failure_set(&failure, 429, "queue_timeout", "",
                    admission_retry_after_s(dispatch_expected_wait_s(c, r->model, NULL)),
                    "no node was free within queue.max_wait_s");
        fail(c, r, &failure);
    }
}

void request_tick(coordinator *c, uint64_t now_ns) {
    request *next;
    for (node *n = c->nodes.first; n != NULL; n = n->next) {
        for (request *r = n->requests; r != NULL; r = next) {
            next = r->node_next;
            tick_placed(c, r, now_ns);
        }
    }
    for (request *r = admission_first(&c->queue); r != NULL; r = next) {
        next = admission_next(&c->queue, r);
        tick_queued(c, r, now_ns);
    }
    if (c->queue.n_waiting > 0) c->dispatch_due = true;
}

void request_fail_all(coordinator *c, const char *why) {
    request_failure failure;
    failure_set(&failure, 503, "shutting_down", "", 10, why);
    for (size_t i = 0; i < REQUEST_BUCKETS; i++) {
        while (c->buckets[i] != NULL) {
            request *r = c->buckets[i];
            if (r->node != NULL && r->state != REQUEST_CANCELLING) send_cancel(c, r);
            fail(c, r, &failure);
        }
    }
}
