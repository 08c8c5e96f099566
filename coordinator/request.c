#include "coordinator/request_parts.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/account.h"
#include "coordinator/coordinator.h"
#include "coordinator/dispatch.h"
#include "coordinator/forecast.h"
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

void request_table_remove(coordinator *c, request *r) {
    for (request **at = bucket_of(c, r->id); *at != NULL; at = &(*at)->hash_next) {
        if (*at != r) continue;
        *at = r->hash_next;
        return;
    }
}

/* The request that a node's message is about, if that node still works on that epoch. */
request *request_find(coordinator *c, const node *n, uint64_t id, uint64_t epoch) {
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
    prefix_chain_release(&r->chain);
    replay_release(&r->given);
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

/* Whose file and arithmetic the answer has from now on. */
static void note_node(request *r) {
    const node_model *m = node_find_model(r->node, r->model);
    if (m == NULL) return;
    replay *given = &r->given;
    if (given->n_ids > 0 && strcmp(given->numerics, m->numerics) != 0)
        given->approximate = true;
    memcpy(given->hash, m->hash, sizeof given->hash);
    memcpy(given->numerics, m->numerics, sizeof given->numerics);
}

void request_attach(coordinator *c, request *r, node *n, uint64_t now_ns) {
    admission_take(&c->queue, r);
    r->tenant->n_running++;
    r->state = REQUEST_SENT;
    r->node = n;
    r->sent_ns = now_ns;
    if (r->first_sent_ns == 0) r->first_sent_ns = now_ns;
    r->attempts++;
    r->next_number = 0;
    note_node(r);
    r->node_previous = NULL;
    r->node_next = n->requests;
    if (n->requests != NULL) n->requests->node_previous = r;
    n->requests = r;
    n->in_flight++;
    c->n_running++;
}

void request_detach(coordinator *c, request *r) {
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

void request_forget(coordinator *c, request *r) {
    admission_remove(&c->queue, r);
    request_detach(c, r);
    request_table_remove(c, r);
    request_discard(r);
}

void request_send_cancel(coordinator *c, const request *r) {
    wire_message m = {.type = WIRE_CANCEL};
    m.cancel.request = r->id;
    m.cancel.epoch = r->epoch;
    error err = {0};
    if (coordinator_send(c, r->node->identity, r->node->n_identity, &m, &err) != STATUS_OK) {
        log_debug("cancel-not-sent", "request=%s node=%s error=\"%s\"", r->request_id,
                  r->node->name, err.text);
    }
}

/* ------------------------------------------------------------ the ends */

void failure_set(request_failure *f, unsigned http_status, const char *code, const char *param,
                 unsigned retry_after_s, const char *message) {
    memset(f, 0, sizeof *f);
    f->http_status = http_status;
    f->retry_after_s = retry_after_s;
    (void)snprintf(f->code, sizeof f->code, "%s", code);
    (void)snprintf(f->param, sizeof f->param, "%s", param);
    (void)snprintf(f->message, sizeof f->message, "%s", message);
}

void request_fail(coordinator *c, request *r, const request_failure *failure) {
    request_failure copy = *failure; /* it may stand in r */
    if (r->state == REQUEST_CANCELLING) {
        request_forget(c, r);
        return;
    }
    metric_add(copy.http_status < 500 ? c->counters.refused : c->counters.failed, 1);
    metric_observe(c->counters.duration,
                   (double)(clock_monotonic_ns() - r->received_ns) * 1e-9);
    log_info("request-failed", "request=%s node=%s status=%u code=%s error=\"%s\"",
             r->request_id, r->node != NULL ? r->node->name : "-", copy.http_status, copy.code,
             copy.message);
    account_failed(c, r, &copy);
    if (r->node != NULL) r->node->failed++;
    admission_remove(&c->queue, r);
    request_detach(c, r);
    request_table_remove(c, r);
    r->sink.on_error(r->sink.context, r, &copy);
    request_discard(r);
}

/* ------------------------------------------------------------ from the API */

void request_describe_outlook(const coordinator *c, const request *r, dispatch_outlook outlook,
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
    } else if (dispatch_loading_s(c, r) >= 0) {
        double left_s = dispatch_loading_s(c, r);
        (void)snprintf(message, sizeof message,
                       "no node that serves the model '%s' is ready now; one is being loaded, "
                       "about %.0f s are left",
                       r->model, left_s);
        failure_set(failure, 503, "loading", "", admission_retry_after_s(left_s), message);
    } else {
        (void)snprintf(message, sizeof message,
                       "no node that serves the model '%s' is ready now", r->model);
        failure_set(failure, 503, "no_node", "", 5, message);
    }
}

/* The same with a short answer: nobody knows how long it will be, and one that is refused
 * for what is only likely would never be learned from. */
static double at_least_s(const coordinator *c, const request *r, const router_cost *cost) {
    const node_model *m = NULL;
    for (node *n = c->nodes.first; n != NULL && m == NULL; n = n->next)
        m = node_find_model(n, r->model);
    if (m == NULL) return cost->total_s;
    double share = lengths_short(m->answers, r->max_output) / forecast_output_tokens(r, m);
    return cost->total_s - cost->decode_s * (share < 1 ? 1 - share : 0);
}

/* A client's own deadline that cannot be met is better refused now than missed later: for
 * good where even an idle node would take longer, else with the time after which the
 * queue may be short enough. */
static bool deadline_is_hopeless(coordinator *c, const request *r, request_failure *failure) {
    router_cost cost = {0};
    if (r->deadline_ns == 0 || !dispatch_forecast(c, r, true, &cost)) return false;
    double left_s = ((double)r->deadline_ns - (double)clock_monotonic_ns()) * 1e-9;
    double least_s = at_least_s(c, r, &cost);
    char message[300];
    if (least_s > left_s) {
        (void)snprintf(
            message, sizeof message,
            "even a short answer would take about %.1f s on an idle node (%.1f s for "
            "the prompt), the deadline is in %.1f s",
            least_s, cost.prefill_s, left_s);
        failure_set(failure, 504, "deadline_unreachable", "", 0, message);
        return true;
    }
    if (!dispatch_forecast(c, r, false, &cost)) return false;
    least_s = at_least_s(c, r, &cost);
    if (least_s <= left_s) return false;
    (void)snprintf(
        message, sizeof message,
        "even a short answer would be ready in about %.1f s (%.1f s of waiting), the "
        "deadline is in %.1f s",
        least_s, cost.wait_s, left_s);
    failure_set(failure, 429, "deadline_unreachable", "",
                admission_retry_after_s(least_s - left_s), message);
    return true;
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

static status submit(coordinator *c, request *r, request_failure *failure) {
    r->received_ns = r->queued_ns = clock_monotonic_ns();
    if (c->draining) {
        failure_set(failure, 503, "draining", "", 10, "the coordinator is shutting down");
        return STATUS_UNAVAILABLE;
    }
    if (ledger_is_full(c->ledger)) {
        failure_set(failure, 503, "ledger_behind", "", 5,
                    "the ledger's database does not take rows, and no request goes unrecorded");
        return STATUS_UNAVAILABLE;
    }
    dispatch_outlook outlook = dispatch_look(c, r);
    if (outlook != DISPATCH_POSSIBLE && outlook != DISPATCH_LOADING) {
        request_describe_outlook(c, r, outlook, failure);
        return outlook == DISPATCH_UNKNOWN ? STATUS_BAD_INPUT : STATUS_UNAVAILABLE;
    }
    if (deadline_is_hopeless(c, r, failure)) return STATUS_TIMEOUT;
    if (!begin_of_tenant(r, failure)) return STATUS_UNAVAILABLE;
    r->id = ++c->last_request;
    r->epoch = 1;
    r->state = REQUEST_QUEUED;
    /* First try to place it over a full queue: a free node needs no queue. */
    table_add(c, r);
    bool full = !admission_add(&c->queue, r);
    if (full) admission_squeeze(&c->queue, r);
    dispatch_run(c);
    if (r->state != REQUEST_QUEUED || (r->queued && !full)) return STATUS_OK;
    admission_remove(&c->queue, r);
    request_table_remove(c, r);
    tenant_take_back(r->tenant);
    describe_full(c, r, failure);
    return STATUS_UNAVAILABLE;
}

status request_submit(coordinator *c, request *r, request_failure *failure) {
    status rc = submit(c, r, failure);
    if (rc != STATUS_OK) account_failed(c, r, failure);
    return rc;
}

void request_cancel(coordinator *c, request *r, const char *why) {
    if (r->state == REQUEST_CANCELLING) return;
    metric_add(c->counters.cancelled, 1);
    metric_observe(c->counters.duration,
                   (double)(clock_monotonic_ns() - r->received_ns) * 1e-9);
    log_info("request-cancelled", "request=%s node=%s reason=%s tokens=%llu", r->request_id,
             r->node != NULL ? r->node->name : "-", why, (unsigned long long)r->tokens);
    account_cancelled(c, r, why);
    memset(&r->sink, 0, sizeof r->sink);
    if (r->node == NULL) {
        request_forget(c, r);
        return;
    }
    r->state = REQUEST_CANCELLING;
    r->cancelled_ns = clock_monotonic_ns();
    c->n_cancelling++;
    request_send_cancel(c, r);
}

void request_fail_all(coordinator *c, const char *why) {
    request_failure failure;
    failure_set(&failure, 503, "shutting_down", "", 10, why);
    for (size_t i = 0; i < REQUEST_BUCKETS; i++) {
        while (c->buckets[i] != NULL) {
            request *r = c->buckets[i];
            if (r->node != NULL && r->state != REQUEST_CANCELLING) request_send_cancel(c, r);
            request_fail(c, r, &failure);
        }
    }
}
