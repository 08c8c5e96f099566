/* request_time.c - the limits of time: first token, between tokens, in all, in the queue. */
#include "coordinator/request_parts.h"

#include "common/clock.h"
#include "coordinator/coordinator.h"
#include "coordinator/dispatch.h"
#include "coordinator/forecast.h"
#include <stdio.h>
#include <string.h>

static bool older(uint64_t now_ns, uint64_t since_ns, double limit_s) {
    return since_ns != 0 && now_ns > since_ns && (double)(now_ns - since_ns) * 1e-9 > limit_s;
}

/* Inputs of vectors come back all at once, and short ones with other work between them run far
 * slower than a prompt; a node that hangs shows in its beats meanwhile. */
static double patience(const request *r) {
    return r->kind == WIRE_EMBED || r->kind == WIRE_RERANK ? 20 : 3;
}

static double first_token_limit_s(const coordinator *c, request *r) {
    const node_model *m = node_find_model(r->node, r->model);
    if (m == NULL) return c->options->limit_first_token_s;
    double prefill_s = forecast_prompt_tokens(r, m) / rates_prefill(&m->speed);
    /* What was given elsewhere runs again token by token. */
    prefill_s += (double)r->given.n_ids / rates_decode(&m->speed, r->node->in_flight);
    return c->options->limit_first_token_s + patience(r) * prefill_s;
}

/* Nobody is late for whose model the node loads; the time counts from when it is there. */
static bool first_token_is_late(const coordinator *c, request *r, uint64_t now_ns) {
    const node_model *m = node_find_model(r->node, r->model);
    uint64_t since_ns = r->sent_ns;
    if (m != NULL && m->absent) return false;
    if (m != NULL && m->loaded_ms * 1000000u > since_ns) since_ns = m->loaded_ms * 1000000u;
    return older(now_ns, since_ns, first_token_limit_s(c, r));
}

static void time_out(coordinator *c, request *r, const char *code, const char *message) {
    request_failure failure;
    failure_set(&failure, 504, code, "", 0, message);
    if (r->node != NULL) request_send_cancel(c, r);
    request_fail(c, r, &failure);
}

/* The node is judged by the time of this tick, as it was just before: at a later one it might
 * be down, and all its requests would be taken from it, this one too, in the midst of a walk
 * over them. */
static void blame_node(coordinator *c, request *r, const char *code, const char *message,
                       uint64_t now_ns) {
    request_failure failure;
    failure_set(&failure, 504, code, "", 0, message);
    request_send_cancel(c, r);
    node_table_failure(&c->nodes, r->node, true, now_ns / 1000000u);
    request_fail_over(c, r, &failure);
}

static void tick_placed(coordinator *c, request *r, uint64_t now_ns) {
    const options *o = c->options;
    if (r->state == REQUEST_CANCELLING) {
        if (older(now_ns, r->cancelled_ns, o->limit_cancel_s)) request_forget(c, r);
    } else if (r->deadline_ns != 0 && now_ns >= r->deadline_ns) {
        time_out(c, r, "deadline_exceeded", "the client's deadline has passed");
    } else if (older(now_ns, r->received_ns, o->limit_total_s)) {
        time_out(c, r, "total_timeout", "the request took longer than limit.total_s");
    } else if (r->state == REQUEST_SENT && first_token_is_late(c, r, now_ns)) {
        blame_node(c, r, "first_token_timeout", "the node gave no first token in time", now_ns);
    } else if (r->state == REQUEST_RUNNING &&
               older(now_ns, r->last_token_ns, o->limit_between_tokens_s)) {
        blame_node(c, r, "token_timeout", "the node gave no further token in time", now_ns);
    } else if (!r->node->connected &&
               older(now_ns, r->node->disconnected_ms * 1000000u, o->node_reconnect_s)) {
        request_failure failure;
        failure_set(&failure, 503, "node_lost", "", 2, "the connection to the node broke");
        request_fail_over(c, r, &failure);
    }
}

/* A drained node cuts what runs at the end of its time; one that does not is cut off. */
static void tick_drained(coordinator *c, node *n, uint64_t now_ns) {
    double limit_s = c->options->drain_s + c->options->limit_cancel_s;
    if (!n->drained_by_admin || !older(now_ns, n->drained_ms * 1000000u, limit_s)) return;
    request_failure failure;
    failure_set(&failure, 503, "draining", "", 2, "the node is drained and its time is over");
    request *next;
    for (request *r = n->requests; r != NULL; r = next) {
        next = r->node_next;
        if (r->state != REQUEST_CANCELLING) request_send_cancel(c, r);
        request_fail_over(c, r, &failure);
    }
}

/* Whoever had a node before waits for another one: the end says why. */
static void fail_without_node(coordinator *c, request *r) {
    request_failure failure;
    request_describe_outlook(c, r, DISPATCH_NO_NODE, &failure);
    if (r->last_failure.http_status != 0) {
        char text[sizeof failure.message];
        (void)snprintf(text, sizeof text, "%.200s; %.250s", r->last_failure.message,
                       failure.message);
        memcpy(failure.message, text, sizeof text);
    }
    request_fail(c, r, &failure);
}

static void tick_queued(coordinator *c, request *r, uint64_t now_ns) {
    request_failure failure;
    dispatch_outlook outlook = dispatch_look(c, r);
    if (outlook == DISPATCH_TRIED && r->last_failure.http_status != 0) {
        request_fail(c, r, &r->last_failure);
    } else if (r->deadline_ns != 0 && now_ns >= r->deadline_ns) {
        failure_set(&failure, 504, "deadline_exceeded", "", 0,
                    "the client's deadline passed before a node was free");
        request_fail(c, r, &failure);
    } else if (older(now_ns, r->received_ns, c->options->limit_total_s)) {
        time_out(c, r, "total_timeout", "the request took longer than limit.total_s");
    } else if (outlook != DISPATCH_POSSIBLE && outlook != DISPATCH_LOADING) {
        fail_without_node(c, r);
    } else if (older(now_ns, r->queued_ns, c->options->queue_max_wait_s)) {
        failure_set(&failure, 429, "queue_timeout", "",
                    admission_retry_after_s(dispatch_expected_wait_s(c, r->model, NULL)),
                    "no node was free within queue.max_wait_s");
        request_fail(c, r, &failure);
    }
}

/* Every request is looked at by its id, so that none lives beyond its limits whatever list it
 * stands on. */
void request_tick(coordinator *c, uint64_t now_ns) {
    for (node *n = c->nodes.first; n != NULL; n = n->next)
        tick_drained(c, n, now_ns);
    for (size_t i = 0; i < REQUEST_BUCKETS; i++) {
        request *next;
        for (request *r = c->buckets[i]; r != NULL; r = next) {
            next = r->hash_next;
            if (r->node != NULL)
                tick_placed(c, r, now_ns);
            else
                tick_queued(c, r, now_ns);
        }
    }
    if (c->queue.n_waiting > 0) c->dispatch_due = true;
}

double request_oldest_s(const coordinator *c, uint64_t now_ns) {
    uint64_t oldest_ns = now_ns;
    for (size_t i = 0; i < REQUEST_BUCKETS; i++) {
        for (const request *r = c->buckets[i]; r != NULL; r = r->hash_next) {
            if (r->state != REQUEST_CANCELLING && r->received_ns < oldest_ns)
                oldest_ns = r->received_ns;
        }
    }
    return (double)(now_ns - oldest_ns) * 1e-9;
}
