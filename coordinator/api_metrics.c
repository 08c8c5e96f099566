/* GET /metrics: what the program counts, and the nodes as they stand at the scrape. */
#include "coordinator/api.h"

#include "common/clock.h"
#include <stdio.h>
#include <string.h>

static const double first_token_bounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                            2.5,   5,    10,    30,   60,  120,  300};
static const double between_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                        0.25,  0.5,    1,     2.5,  5,     10};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef enum node_gauge {
    GAUGE_STATE,
    GAUGE_RUNNING,
    GAUGE_PLACES,
    GAUGE_PREFILL,
    GAUGE_DECODE,
    GAUGE_HIT_RATE,
    GAUGE_MISSES,
    GAUGE_VRAM,
    GAUGE_RAM,
    GAUGE_TEMPERATURE,
    GAUGE_BEAT_AGE,
    GAUGE_TOTALS,
    N_GAUGES
} node_gauge;

static metric *counter(coordinator *c, const char *name, const char *help) {
    return metrics_child(metrics_family_add(&c->metrics, METRICS_COUNTER, name, help, NULL, 0),
                         "");
}

static void open_node_gauges(coordinator *c) {
    static const char *const names[N_GAUGES][2] = {
        {"siliceo_node_state", "1 for the state the node is in, 0 for the others"},
        {"siliceo_node_requests", "requests that hold a place on the node"},
        {"siliceo_node_places", "requests the node serves at once"},
        {"siliceo_node_prefill_tokens_per_second", "learned prompt rate of the node"},
        {"siliceo_node_decode_tokens_per_second", "learned rate of one sequence on the node"},
        {"siliceo_node_expert_hit_ratio", "share of expert look-ups found in slots lately"},
        {"siliceo_node_expert_misses_per_token", "experts fetched for a token lately"},
        {"siliceo_node_vram_used_bytes", "GPU memory in use"},
        {"siliceo_node_ram_used_bytes", "main memory in use by the worker"},
        {"siliceo_node_temperature_celsius", "temperature of the GPU"},
        {"siliceo_node_beat_age_seconds", "time since the node was last heard"},
        {"siliceo_requests", "requests now, by where they are"},
    };
    for (size_t i = 0; i < N_GAUGES; i++) {
        c->node_families[i] =
            metrics_family_add(&c->metrics, METRICS_GAUGE, names[i][0], names[i][1], NULL, 0);
    }
}

void api_metrics_open(coordinator *c) {
    _Static_assert(N_GAUGES == COUNT(((coordinator *)0)->node_families), "one family a gauge");
    static const char *const classes[6] = {"code=\"1xx\"", "code=\"2xx\"", "code=\"3xx\"",
                                           "code=\"4xx\"", "code=\"5xx\"", "code=\"cut\""};
    counters *k = &c->counters;
    metrics_init(&c->metrics);
    metrics_family *replies =
        metrics_family_add(&c->metrics, METRICS_COUNTER, "siliceo_http_replies_total",
                           "replies under /v1 by class; cut: the client left first", NULL, 0);
    for (size_t i = 0; i < 6; i++)
        k->status[i] = metrics_child(replies, classes[i]);
    k->finished = counter(c, "siliceo_requests_finished_total", "requests that ended well");
    k->failed =
        counter(c, "siliceo_requests_failed_total", "requests that failed here or on a node");
    k->cancelled = counter(c, "siliceo_requests_cancelled_total", "requests whose client left");
    k->refused = counter(c, "siliceo_requests_refused_total",
                         "requests that were wrong, or found no place");
    k->failed_over = counter(c, "siliceo_requests_failed_over_total",
                             "times a request began again or went on on another node");
    k->joined = counter(c, "siliceo_requests_joined_total",
                        "retries that joined the request that still ran");
    k->resumed = counter(c, "siliceo_requests_resumed_total",
                         "times a begun answer went on on another node");
    k->prompt_tokens =
        counter(c, "siliceo_prompt_tokens_total", "prompt tokens of ended requests");
    k->cached_tokens = counter(c, "siliceo_cached_tokens_total",
                               "prompt tokens that a node did not have to compute");
    k->completion_tokens =
        counter(c, "siliceo_completion_tokens_total", "tokens from the nodes");
    k->garbage = counter(c, "siliceo_mesh_garbage_total", "frames that were no message");
    k->first_token = metrics_child(
        metrics_family_add(&c->metrics, METRICS_HISTOGRAM, "siliceo_first_token_seconds",
                           "from a request's arrival to its first token", first_token_bounds,
                           COUNT(first_token_bounds)),
        "");
    k->between_tokens = metrics_child(metrics_family_add(&c->metrics, METRICS_HISTOGRAM,
                                                         "siliceo_between_tokens_seconds",
                                                         "between the tokens of a request",
                                                         between_bounds, COUNT(between_bounds)),
                                      "");
    open_node_gauges(c);
}

void api_count_reply(coordinator *c, unsigned http_status) {
    unsigned class_idx = http_status / 100;
    metric_add(c->counters.status[class_idx >= 1 && class_idx <= 5 ? class_idx - 1 : 4], 1);
}

static void set_node(coordinator *c, const node *n, json_text *labels, uint64_t now_ms) {
    metrics_family **f = c->node_families;
    for (int s = 0; s < NODE_STATES; s++) {
        json_text_clear(labels);
        metrics_label(labels, "node", n->name);
        metrics_label(labels, "state", node_state_name((node_state)s));
        if (labels->failed) return;
        metric_set(metrics_child(f[GAUGE_STATE], labels->bytes), (int)n->state == s);
    }
    json_text_clear(labels);
    metrics_label(labels, "node", n->name);
    if (labels->failed) return;
    const char *l = labels->bytes;
    metric_set(metrics_child(f[GAUGE_RUNNING], l), n->in_flight);
    metric_set(metrics_child(f[GAUGE_PLACES], l), node_places(n));
    metric_set(metrics_child(f[GAUGE_BEAT_AGE], l), (double)(now_ms - n->last_heard_ms) / 1000);
    if (n->n_models > 0) {
        metric_set(metrics_child(f[GAUGE_PREFILL], l), rates_prefill(&n->models[0].speed));
        metric_set(metrics_child(f[GAUGE_DECODE], l), rates_decode(&n->models[0].speed, 1));
    }
    if (!n->has_beat) return;
    metric_set(metrics_child(f[GAUGE_VRAM], l), (double)n->beat.vram_used_mib * 1048576);
    metric_set(metrics_child(f[GAUGE_RAM], l), (double)n->beat.ram_used_mib * 1048576);
    if (n->beat.temperature_c >= 0) {
        metric_set(metrics_child(f[GAUGE_TEMPERATURE], l), n->beat.temperature_c);
    }
    if (n->beat.hit_rate < 0) return;
    metric_set(metrics_child(f[GAUGE_HIT_RATE], l), n->beat.hit_rate);
    metric_set(metrics_child(f[GAUGE_MISSES], l), n->beat.misses_per_token);
}

void api_metrics(coordinator *c, http_exchange *x) {
    json_text labels = {0}, out = {0};
    uint64_t now_ms = clock_monotonic_ms();
    for (size_t i = 0; i < N_GAUGES; i++)
        metrics_family_clear(c->node_families[i]);
    for (const node *n = c->nodes.first; n != NULL; n = n->next)
        set_node(c, n, &labels, now_ms);
    metrics_family *totals = c->node_families[GAUGE_TOTALS];
    metric_set(metrics_child(totals, "where=\"node\""), c->n_running);
    metric_set(metrics_child(totals, "where=\"queue\""), (double)c->queue.n_waiting);
    metrics_print(&c->metrics, &out);
    if (out.failed)
        http_reply_error(x, 503, "no_memory", NULL, 1, "no memory for the reply");
    else
        http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.bytes, out.length);
    json_text_release(&labels);
    json_text_release(&out);
}
