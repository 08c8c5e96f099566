#include "coordinator/status.h"

#include "common/clock.h"
#include "coordinator/account.h"
#include <stdlib.h>
#include <string.h>

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
    add_count(out, "prefix_tokens", b->prefix_tokens);
    add_count(out, "prefix_snapshots", b->prefix_snapshots);
    add_count(out, "prefix_mib", b->prefix_mib);
    add_count(out, "prefix_asked_tokens", b->prefix_asked_tokens);
    add_count(out, "prefix_pages", b->prefix_pages);
    add_count(out, "prefix_disk_mib", b->prefix_disk_mib);
    add_count(out, "prefix_hits", b->prefix_hits);
    add_count(out, "prefix_hits_in_place", b->prefix_hits_in_place);
    add_count(out, "prefix_reads", b->prefix_reads);
    add_count(out, "displaced", b->displaced);
    add_count(out, "guesses", b->guesses);
    add_count(out, "guesses_true", b->guesses_true);
    json_text_format(out, "\"rtt_us\":%llu}", (unsigned long long)b->rtt_us);
}

static void add_models(json_text *out, const node *n) {
    json_text_format(out, "\"models\":[");
    for (size_t i = 0; i < n->n_models; i++) {
        if (i > 0) json_text_add(out, ",", 1);
        json_text_string(out, n->models[i].name, strlen(n->models[i].name));
    }
    json_text_format(out, "],\"model_states\":{");
    for (size_t i = 0; i < n->n_models; i++) {
        if (i > 0) json_text_add(out, ",", 1);
        json_text_string(out, n->models[i].name, strlen(n->models[i].name));
        json_text_format(out, ":\"%s\"", node_model_state_name(&n->models[i]));
    }
    json_text_format(out, "},");
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
    uint32_t running = status_running(n);
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
    add_count(out, "places", node_places(n));
    add_real(out, "hit_rate", n->beat.hit_rate, n->has_beat && n->beat.hit_rate >= 0);
    add_real(out, "misses_per_token", n->beat.misses_per_token,
             n->has_beat && n->beat.hit_rate >= 0);
    add_real(out, "prefix_hit_rate", status_prefix_share(n), status_prefix_share(n) >= 0);
    add_real(out, "prefill_tok_per_s", status_prefill(n), n->n_models > 0);
    add_real(out, "decode_tok_per_s", status_decode(n), n->n_models > 0);
    add_count(out, "vram_used_mib", n->beat.vram_used_mib);
    add_count(out, "vram_total_mib", n->beat.vram_total_mib);
    add_count(out, "ram_total_mib", n->ram_mib);
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

/* Requests under way, the oldest first; ids are of this process and rise. */
static int older_first(const void *a, const void *b) {
    const request *left = *(const request *const *)a, *right = *(const request *const *)b;
    return left->id < right->id ? -1 : left->id > right->id;
}

static void add_request(json_text *out, const request *r, uint64_t now_ns) {
    static const char *const states[] = {"new", "queued", "sent", "running", "cancelling"};
    json_text_format(out, "{");
    add_count(out, "id", r->id);
    add_text(out, "request_id", r->request_id);
    add_text(out, "key", r->tenant != NULL ? r->tenant->name : "");
    add_text(out, "model", r->model);
    add_text(out, "state", states[r->state]);
    if (r->node != NULL)
        add_text(out, "node", r->node->name);
    else
        json_text_format(out, "\"node\":null,");
    add_text(out, "priority", r->priority > 0 ? "background" : "interactive");
    add_count(out, "attempts", r->attempts);
    add_count(out, "tokens", r->tokens);
    json_text_format(out, "\"age_ms\":%llu}",
                     (unsigned long long)((now_ns - r->received_ns) / 1000000u));
}

/* A key sees its own requests, an admin's all of them. */
static void add_requests(json_text *out, const coordinator *c, const tenant *asks) {
    uint64_t now_ns = clock_monotonic_ns();
    size_t n = 0, most = (size_t)c->n_running + c->queue.n_waiting;
    const request **list = calloc(most + 1, sizeof(const request *));
    for (size_t i = 0; list != NULL && i < REQUEST_BUCKETS; i++) {
        for (const request *r = c->buckets[i]; r != NULL && n < most; r = r->hash_next) {
            if (asks->limits.admin || r->tenant == asks) list[n++] = r;
        }
    }
    if (n > 1) qsort(list, n, sizeof(const request *), older_first);
    json_text_format(out, "\"running_requests\":[");
    for (size_t i = 0; i < n && i < STATUS_MAX_REQUESTS; i++) {
        if (i > 0) json_text_add(out, ",", 1);
        add_request(out, list[i], now_ns);
    }
    json_text_format(out, "],");
    free(list);
}

void status_json(const coordinator *c, const tenant *asks, bool with_history, json_text *out) {
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
    json_text_format(out, "],\"admin\":%s,", asks->limits.admin ? "true" : "false");
    add_requests(out, c, asks);
    if (with_history) {
        json_text_format(out, "\"history\":");
        history_print(&c->history, out);
        json_text_add(out, ",", 1);
    }
    add_totals(out, c);
    json_text_add(out, ",", 1);
    account_status(c, out);
    json_text_format(out, "}\n");
}
