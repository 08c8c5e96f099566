/* /healthz, /readyz, /status and /admin/nodes: for scripts, probes and people. */
#include "coordinator/api.h"

#include "common/clock.h"
#include "common/log.h"
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

/* ------------------------------------------------------------ status as JSON */

static void add_text(json_text *out, const char *name, const char *text) {
    json_text_format(out, "\"%s\":", name);
    json_text_string(out, text, strlen(text));
    json_text_add(out, ",", 1);
}

/* A figure that may be unknown. */
static void add_real(json_text *out, const char *name, double value, bool known) {
    if (known)
        json_text_format(out, "\"%s\":%.10g,", name, value);
    else
        json_text_format(out, "\"%s\":null,", name);
}

static void add_count(json_text *out, const char *name, uint64_t value) {
    json_text_format(out, "\"%s\":%llu,", name, (unsigned long long)value);
}

static uint32_t node_running(const node *n) {
    if (n->state == NODE_DOWN) return 0;
    return n->max_sequences > 0 && n->in_flight > n->max_sequences ? (uint32_t)n->max_sequences
                                                                   : n->in_flight;
}

/* What the worker last said, word for word. */
static void add_beat(json_text *out, const node *n, uint64_t now_ms) {
    static const char *const states[] = {"", "loading", "ready", "draining", "failed"};
    const wire_beat *b = &n->beat;
    if (!n->has_beat) {
        json_text_format(out, "\"beat\":null");
        return;
    }
    json_text_format(out, "\"beat\":{");
    add_count(out, "number", b->number);
    add_count(out, "age_ms", now_ms - n->last_heard_ms);
    add_text(out, "state", b->state <= WIRE_FAILED ? states[b->state] : "");
    add_text(out, "reason", n->beat_reason);
    add_real(out, "loading", (double)b->loading_permille / 1000, true);
    add_count(out, "engine_age_ms", b->engine_age_ms);
    add_count(out, "running", b->running);
    add_count(out, "waiting", b->waiting);
    add_count(out, "free_sequences", b->free_sequences);
    add_count(out, "kv_pages_total", b->kv_pages_total);
    add_count(out, "kv_pages_free", b->kv_pages_free);
    add_count(out, "credit", b->credit);
    add_real(out, "hit_rate", b->hit_rate, b->hit_rate >= 0);
    add_real(out, "misses_per_token", b->misses_per_token, b->hit_rate >= 0);
    add_real(out, "prefill_tok_per_s", b->prefill_tok_per_s, true);
    add_real(out, "decode_tok_per_s", b->decode_tok_per_s, true);
    add_real(out, "temperature_c", b->temperature_c, b->temperature_c >= 0);
    add_real(out, "power_w", b->power_w, b->power_w >= 0);
    add_count(out, "vram_used_mib", b->vram_used_mib);
    add_count(out, "vram_total_mib", b->vram_total_mib);
    add_real(out, "gpu_use_percent", (double)b->gpu_use_percent, b->vram_total_mib > 0);
    add_count(out, "ram_used_mib", b->ram_used_mib);
    json_text_format(out, "\"rtt_us\":%llu}", (unsigned long long)b->rtt_us);
}

static void add_models(json_text *out, const node *n) {
    json_text_format(out, "\"models\":[");
    for (size_t i = 0; i < n->n_models; i++) {
        if (i > 0) json_text_add(out, ",", 1);
        json_text_string(out, n->models[i].name, strlen(n->models[i].name));
    }
    json_text_format(out, "],");
}

/* Rates learned from requests; a node's first model stands for it. */
static double learned_prefill(const node *n) {
    return n->n_models > 0 ? rates_prefill(&n->models[0].speed) : 0;
}

static double learned_decode(const node *n) {
    return n->n_models > 0 ? rates_decode(&n->models[0].speed, 1) : 0;
}

static void add_verdict(json_text *out, const char *name, const node_verdict *v) {
    json_text_format(out, "\"%s\":{", name);
    add_text(out, "verdict", v->word);
    json_text_format(out, "\"reason\":");
    json_text_string(out, v->reason, strlen(v->reason));
    json_text_add(out, "},", 2);
}

static void add_verdicts(json_text *out, const coordinator *c, const node *n, uint64_t now_ms) {
    node_verdicts v;
    node_judge_parts(n, &c->nodes.limits, now_ms, &v);
    add_verdict(out, "process", &v.process);
    add_verdict(out, "engine", &v.engine);
    add_verdict(out, "network", &v.path);
}

static void add_node(json_text *out, const coordinator *c, const node *n, uint64_t now_ms) {
    json_text_format(out, "{");
    add_text(out, "name", n->name);
    add_text(out, "state", node_state_name(n->state));
    add_text(out, "reason", n->reason);
    add_count(out, "state_age_ms", now_ms - n->state_since_ms);
    uint32_t running = node_running(n);
    add_count(out, "running", running);
    add_count(out, "waiting", n->state == NODE_DOWN ? 0 : n->in_flight - running);
    add_models(out, n);
    add_text(out, "backend", n->backend);
    if (n->gpu[0] != '\0')
        add_text(out, "gpu", n->gpu);
    else
        json_text_format(out, "\"gpu\":null,");
    add_text(out, "profile", n->profile);
    add_text(out, "build", n->build);
    add_count(out, "slots", n->slots);
    add_count(out, "experts_total", n->experts_total);
    add_count(out, "max_sequences", n->max_sequences);
    add_real(out, "hit_rate", n->beat.hit_rate, n->has_beat && n->beat.hit_rate >= 0);
    add_real(out, "misses_per_token", n->beat.misses_per_token,
             n->has_beat && n->beat.hit_rate >= 0);
    add_real(out, "prefill_tok_per_s", learned_prefill(n), n->n_models > 0);
    add_real(out, "decode_tok_per_s", learned_decode(n), n->n_models > 0);
    add_count(out, "vram_used_mib", n->beat.vram_used_mib);
    add_count(out, "vram_total_mib", n->beat.vram_total_mib);
    add_text(out, "path", node_path_name(n));
    add_text(out, "address", n->address);
    add_real(out, "rtt_ms", node_round_trip_s(n) * 1e3, node_round_trip_s(n) > 0);
    double left_s = n->state == NODE_LOADING ? node_loading_left_s(n, now_ms) : -1;
    add_real(out, "loading_left_s", left_s, left_s >= 0);
    add_verdicts(out, c, n, now_ms);
    add_count(out, "served", n->served);
    add_count(out, "failed", n->failed);
    add_count(out, "tokens_in", n->tokens_in);
    add_count(out, "tokens_out", n->tokens_out);
    add_beat(out, n, now_ms);
    json_text_format(out, "}");
}

static void add_totals(json_text *out, const coordinator *c) {
    const counters *k = &c->counters;
    http_stats http = http_server_stats(c->http);
    json_text_format(out,
                     "\"queue\":{\"waiting\":%zu,\"limit\":%zu},"
                     "\"requests\":{\"running\":%u,\"waiting\":%zu,\"cancelling\":%u,"
                     "\"finished\":%.0f,\"failed\":%.0f,\"cancelled\":%.0f,\"refused\":%.0f,"
                     "\"failed_over\":%.0f,\"resumed\":%.0f},",
                     c->queue.n_waiting, c->queue.max_waiting, c->n_running, c->queue.n_waiting,
                     c->n_cancelling, metric_value(k->finished), metric_value(k->failed),
                     metric_value(k->cancelled), metric_value(k->refused),
                     metric_value(k->failed_over), metric_value(k->resumed));
    json_text_format(out,
                     "\"http\":{\"connections\":%llu,\"exchanges\":%llu,\"refused\":%llu,"
                     "\"timed_out\":%llu,\"slow_readers\":%llu}",
                     (unsigned long long)http.connections, (unsigned long long)http.exchanges,
                     (unsigned long long)http.refused, (unsigned long long)http.timed_out,
                     (unsigned long long)http.slow_readers);
}

static void status_json(const coordinator *c, json_text *out) {
    uint64_t now_ms = clock_monotonic_ms();
    json_text_format(out, "{");
    add_text(out, "name", c->options->name);
    add_text(out, "build", SILICEO_BUILD);
    add_count(out, "uptime_s", (clock_wall_ms() - c->started_wall_ms) / 1000);
    json_text_format(out, "\"draining\":%s,\"nodes\":[", c->draining ? "true" : "false");
    for (const node *n = c->nodes.first; n != NULL; n = n->next) {
        if (n != c->nodes.first) json_text_add(out, ",", 1);
        add_node(out, c, n, now_ms);
    }
    json_text_format(out, "],");
    add_totals(out, c);
    json_text_format(out, "}\n");
}

/* ------------------------------------------------------------ status as a table */

static void status_text(const coordinator *c, json_text *out) {
    json_text_format(out, "%-16s %-11s %4s %4s  %-14s %-7s %6s %5s %6s %9s %9s %8s  %s\n",
                     "NODE", "STATE", "RUN", "WAIT", "MODEL", "BACKEND", "SLOTS", "HIT%",
                     "MISS/T", "PREFILL/S", "DECODE/S", "VRAM MiB", "REASON");
    for (const node *n = c->nodes.first; n != NULL; n = n->next) {
        bool cache = n->has_beat && n->beat.hit_rate >= 0;
        char hit[16] = "-", misses[16] = "-";
        if (cache) {
            (void)snprintf(hit, sizeof hit, "%.1f", n->beat.hit_rate * 100);
            (void)snprintf(misses, sizeof misses, "%.2f", n->beat.misses_per_token);
        }
        uint32_t running = node_running(n);
        json_text_format(
            out, "%-16s %-11s %4u %4u  %-14s %-7s %6llu %5s %6s %9.1f %9.1f %8llu  %s\n",
            n->name, node_state_name(n->state), running,
            n->state == NODE_DOWN ? 0 : n->in_flight - running,
            n->n_models > 0 ? n->models[0].name : "-", n->backend, (unsigned long long)n->slots,
            hit, misses, learned_prefill(n), learned_decode(n),
            (unsigned long long)n->beat.vram_used_mib, n->reason[0] != '\0' ? n->reason : "-");
    }
    json_text_format(out,
                     "queue %zu of %zu waiting; %u running; %.0f finished, %.0f failed, "
                     "%.0f cancelled, %.0f refused\n",
                     c->queue.n_waiting, c->queue.max_waiting, c->n_running,
                     metric_value(c->counters.finished), metric_value(c->counters.failed),
                     metric_value(c->counters.cancelled), metric_value(c->counters.refused));
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
        status_json(c, &out);
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
