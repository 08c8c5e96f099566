/* /healthz, /readyz, /status and /admin/nodes: for scripts, probes and people. */
#include "coordinator/api.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/status.h"
#include <stdio.h>
#include <string.h>

void api_health(coordinator *c, http_exchange *x) {
    (void)c;
    http_reply(x, 200, "text/plain; charset=utf-8", "ok\n", 3);
}

void api_ready(coordinator *c, http_exchange *x) {
    bool ready = false;
    for (node *n = c->nodes.first; n != NULL; n = n->next)
        ready = ready || n->state == NODE_READY;
    if (ready && !c->draining) {
        http_reply(x, 200, "text/plain; charset=utf-8", "ready\n", 6);
    } else {
        http_reply_error(x, 503, "not_ready", NULL, 2,
                         c->draining ? "the coordinator is shutting down" : "no node is ready");
    }
}

/* What was weighed when a request was placed: /status?explain=REQUEST. */
static void explain(const coordinator *c, http_exchange *x, const char *request_id) {
    json_text out = {0};
    json_text_format(&out, "{\"decisions\":");
    bool found = decisions_print(&c->decisions, request_id, &out);
    json_text_format(&out, "}\n");
    if (!found)
        http_reply_error(x, 404, "request_not_found", "explain", 0,
                         "no decision about this request is kept (any more)");
    else if (out.failed)
        http_reply_error(x, 503, "no_memory", NULL, 1, "no memory for the reply");
    else
        http_reply(x, 200, "application/json", out.bytes, out.length);
    json_text_release(&out);
}

void api_status(coordinator *c, http_exchange *x) {
    json_text out = {0};
    if (http_query(x, "explain") != NULL) {
        explain(c, x, http_query(x, "explain"));
        return;
    }
    const char *format = http_query(x, "format");
    bool text = format != NULL && strcmp(format, "text") == 0;
    if (format != NULL && !text && strcmp(format, "json") != 0) {
        http_reply_error(x, 400, "invalid_value", "format", 0,
                         "format: is neither json nor text");
        return;
    }
    if (text)
        status_text(c, &out);
    else
        status_json(c, http_owner(x), http_query(x, "history") != NULL, &out);
    if (out.failed)
        http_reply_error(x, 503, "no_memory", NULL, 1, "no memory for the reply");
    else
        http_reply(x, 200, text ? "text/plain; charset=utf-8" : "application/json", out.bytes,
                   out.length);
    json_text_release(&out);
}

/* ------------------------------------------------------------ admin */

static void send_drain(coordinator *c, node *n, bool resume) {
    wire_message m = {.type = WIRE_DRAIN};
    m.drain.limit_ms = (uint64_t)(c->options->drain_s * 1000);
    m.drain.resume = resume;
    error err = {0};
    if (coordinator_send(c, n->identity, n->n_identity, &m, &err) != STATUS_OK) {
        log_warn("drain-not-sent", "node=%s error=\"%s\"", n->name, err.text);
    }
}

static bool act(coordinator *c, node *n, const char *verb) {
    bool drain = strcmp(verb, "drain") == 0;
    if (drain || strcmp(verb, "resume") == 0) {
        log_info("node-admin", "node=%s verb=%s", n->name, verb);
        node_table_drain(&c->nodes, n, drain, clock_monotonic_ms());
        if (n->state != NODE_DOWN) send_drain(c, n, !drain);
        c->dispatch_due = true;
        return true;
    }
    if (strcmp(verb, "forget") != 0) return false;
    node_table_forget(&c->nodes, n);
    return true;
}

void api_admin(coordinator *c, http_exchange *x, const char *rest) {
    const char *slash = strchr(rest, '/');
    char name[WIRE_MAX_NAME + 1];
    size_t length = slash == NULL ? strlen(rest) : (size_t)(slash - rest);
    (void)snprintf(name, sizeof name, "%.*s", (int)(length > WIRE_MAX_NAME ? 0 : length), rest);
    node *n = node_table_by_name(&c->nodes, name);
    if (n == NULL) {
        char message[200];
        (void)snprintf(message, sizeof message, "there is no node '%s'", name);
        http_reply_error(x, 404, "node_not_found", "name", 0, message);
    } else if (slash == NULL || !act(c, n, slash + 1)) {
        http_reply_error(x, 404, "not_found", NULL, 0,
                         "a node can be told to drain, resume or forget");
    } else {
        http_reply(x, 200, "application/json", "{\"ok\":true}\n", 12);
    }
}
