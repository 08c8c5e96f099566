/* request_nodes.c - what the nodes say of requests: tokens, ends, errors, silence. */
#include "coordinator/request_parts.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/account.h"
#include "coordinator/coordinator.h"
#include "coordinator/dispatch.h"
#include "coordinator/learning.h"
#include <stdio.h>
#include <string.h>

static void count_tokens(coordinator *c, request *r, const wire_tokens *tokens) {
    uint64_t now_ns = clock_monotonic_ns();
    if (r->state == REQUEST_SENT) {
        r->state = REQUEST_RUNNING;
        if (r->first_token_ns == 0) {
            r->first_token_ns = now_ns;
            metric_observe(c->counters.first_token, (double)(now_ns - r->received_ns) * 1e-9);
        }
        learning_tokens(r, tokens->n_ids, true, now_ns);
    } else {
        metric_observe(c->counters.between_tokens, (double)(now_ns - r->last_token_ns) * 1e-9);
        learning_tokens(r, tokens->n_ids, false, now_ns);
    }
    r->last_token_ns = now_ns;
    r->tokens += tokens->n_ids;
    if (tokens->channel == WIRE_REASONING) r->reasoning_tokens += tokens->n_ids;
    if (tokens->prompt_tokens > 0) {
        r->prompt_tokens = tokens->prompt_tokens;
        r->cached_tokens = tokens->cached_tokens;
    }
    if (tokens->finish != WIRE_FINISH_NONE) r->finish = tokens->finish;
    r->node->tokens_out += tokens->n_ids;
    metric_add(c->counters.completion_tokens, (double)tokens->n_ids);
}

/* What the node sent makes no sense: give the place back and try elsewhere.  A node is judged
 * by the time at which it was heard: at a later one, when this process was stopped between,
 * it might be down, and its requests would be taken from it while one of them is at hand. */
static void mistrust(coordinator *c, request *r, const char *what) {
    request_failure failure;
    char message[400];
    (void)snprintf(message, sizeof message, "node %s: %s", r->node->name, what);
    failure_set(&failure, 502, "bad_node_reply", "", 0, message);
    request_send_cancel(c, r);
    node_table_failure(&c->nodes, r->node, false, r->node->last_heard_ms);
    request_fail_over(c, r, &failure);
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

/* A node that was lost works on what another has taken over: it may stop. */
static void refuse_stale(coordinator *c, const node *n, const wire_tokens *tokens) {
    wire_message m = {.type = WIRE_CANCEL};
    m.cancel.request = tokens->request;
    m.cancel.epoch = tokens->epoch;
    error err = {0};
    (void)coordinator_send(c, n->identity, n->n_identity, &m, &err);
}

void request_on_tokens(coordinator *c, node *n, const wire_tokens *tokens) {
    request *r = request_find(c, n, tokens->request, tokens->epoch);
    if (r == NULL) {
        refuse_stale(c, n, tokens);
        return;
    }
    if (r->state == REQUEST_CANCELLING || !number_fits(c, r, tokens->number)) return;
    count_tokens(c, r, tokens);
    replay_add(&r->given, tokens);
    error err = {0};
    if (r->sink.on_tokens(r->sink.context, tokens, &err) != STATUS_OK) mistrust(c, r, err.text);
}

static void count_done(coordinator *c, const request *r, const wire_done *done) {
    r->node->served++;
    r->node->tokens_in += done->prompt_tokens;
    metric_add(c->counters.finished, 1);
    metric_observe(c->counters.duration,
                   (double)(clock_monotonic_ns() - r->received_ns) * 1e-9);
    metric_add(c->counters.prompt_tokens, (double)done->prompt_tokens);
    metric_add(c->counters.cached_tokens, (double)done->cached_tokens);
}

void request_on_done(coordinator *c, node *n, const wire_done *done) {
    request *r = request_find(c, n, done->request, done->epoch);
    if (r == NULL) return;
    if (r->state == REQUEST_CANCELLING) {
        request_forget(c, r);
        return;
    }
    if (!number_fits(c, r, done->number)) return;
    account_done(c, r, n, done);
    count_done(c, r, done);
    learning_done(r, done, clock_monotonic_ns());
    node_table_success(&c->nodes, n, n->last_heard_ms);
    log_info(
        "request-done", "request=%s node=%s prompt=%llu cached=%llu completion=%llu ms=%.1f",
        r->request_id, n->name, (unsigned long long)done->prompt_tokens,
        (unsigned long long)done->cached_tokens, (unsigned long long)done->completion_tokens,
        (double)(clock_monotonic_ns() - r->received_ns) * 1e-6);
    request_sink sink = r->sink;
    request_detach(c, r);
    request_table_remove(c, r);
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
    request *r = request_find(c, n, e->request, e->epoch);
    if (r == NULL) return;
    if (r->state == REQUEST_CANCELLING) {
        request_forget(c, r);
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
    if (strcmp(failure.code, "deadline_exceeded") == 0) { /* the client's: nobody's fault */
        request_fail(c, r, &failure);
        return;
    }
    bool busy = r->state == REQUEST_SENT && strcmp(failure.code, "busy") == 0;
    if (busy) {
        /* More was sent than it now has room for; its next beat says how much. */
        n->credit = n->in_flight - 1;
    } else if (failure.http_status >= 500) {
        node_table_failure(&c->nodes, n, false, n->last_heard_ms);
    }
    if (busy) {
        request_detach(c, r);
        r->epoch++;
        r->state = REQUEST_QUEUED;
        admission_put_back(&c->queue, r);
    } else if (e->retryable || failure.http_status >= 500 ||
               (strcmp(failure.code, "context_length_exceeded") == 0 &&
                larger_context_exists(c, r))) {
        request_fail_over(c, r, &failure);
    } else {
        request_fail(c, r, &failure);
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
            request_fail_over(c, r, &failure);
        } else if (r->state ==
                   REQUEST_SENT) { /* also one that goes on here but has not begun */
            /* Only if another node can have it: this one may be back in a moment. */
            r->tried[r->n_tried % REQUEST_MAX_TRIED] = n->instance;
            r->n_tried++;
            bool elsewhere = dispatch_look(c, r) == DISPATCH_POSSIBLE;
            r->n_tried--;
            if (elsewhere && r->n_tried < REQUEST_MAX_TRIED) request_fail_over(c, r, &failure);
        }
    }
}
