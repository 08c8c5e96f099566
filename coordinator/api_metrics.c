/* GET /metrics: what the program counts, and the nodes as they stand at the scrape. */
#include "coordinator/api.h"

#include "common/clock.h"
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const double first_token_bounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                            2.5,   5,    10,    30,   60,  120,  300};
static const double between_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                        0.25,  0.5,    1,     2.5,  5,     10};
static const double duration_bounds[] = {0.05, 0.1, 0.25, 0.5, 1,   2.5,  5,   10,
                                         30,   60,  120,  300, 600, 1800, 3600};
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
    GAUGE_VRAM_TOTAL,
    GAUGE_RAM,
    GAUGE_PREFIX_TOKENS,
    GAUGE_PREFIX_ASKED,
    GAUGE_PREFIX_HITS,
    GAUGE_PREFIX_SNAPSHOTS,
    GAUGE_PREFIX_PAGES,
    GAUGE_PREFIX_BYTES,
    GAUGE_PREFIX_DISK,
    GAUGE_DISPLACED,
    GAUGE_GUESSES,
    GAUGE_TEMPERATURE,
    GAUGE_BEAT_AGE,
    GAUGE_ENGINE_AGE,
    GAUGE_TOKENS,
    GAUGE_SERVED,
    GAUGE_FAILED,
    GAUGE_TOTALS,
    GAUGE_OLDEST,
    GAUGE_QUEUE_LIMIT,
    GAUGE_LEDGER_WAITING,
    GAUGE_LEDGER_ROWS,
    GAUGE_MEMORY,
    GAUGE_DESCRIPTORS,
    GAUGE_PROCESSOR,
    N_GAUGES
} node_gauge;

static metric *counter(coordinator *c, const char *name, const char *help) {
    return metrics_child(metrics_family_add(&c->metrics, METRICS_COUNTER, name, help, NULL, 0),
                         "");
}

static bool is_total(const char *name) {
    size_t n = strlen(name);
    return n > 6 && strcmp(name + n - 6, "_total") == 0;
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
        {"siliceo_node_vram_total_bytes", "GPU memory there is"},
        {"siliceo_node_ram_used_bytes", "main memory in use by the worker"},
        {"siliceo_node_prefix_tokens_total", "prompt tokens that the node skipped"},
        {"siliceo_node_prefix_asked_tokens_total", "prompt tokens that the node looked up"},
        {"siliceo_node_prefix_hits_total", "prompts that skipped something, by where it lay"},
        {"siliceo_node_prefix_snapshots", "beginnings of prompts that can be gone on from"},
        {"siliceo_node_prefix_pages", "pages held of beginnings of prompts"},
        {"siliceo_node_prefix_bytes", "main memory for beginnings of prompts"},
        {"siliceo_node_prefix_disk_bytes", "room on disk for beginnings of prompts"},
        {"siliceo_node_displaced_total", "times that a sequence gave up its place"},
        {"siliceo_node_guessed_tokens_total", "tokens guessed ahead, by what came of them"},
        {"siliceo_node_temperature_celsius", "temperature of the GPU"},
        {"siliceo_node_beat_age_seconds", "time since the node was last heard"},
        {"siliceo_node_engine_age_seconds", "since the node's engine loop came round"},
        {"siliceo_node_completion_tokens_total", "tokens that came from the node"},
        {"siliceo_node_requests_finished_total", "requests that the node answered"},
        {"siliceo_node_requests_failed_total", "requests that failed on the node"},
        {"siliceo_requests", "requests now, by where they are"},
        {"siliceo_oldest_request_seconds", "age of the oldest request under way"},
        {"siliceo_queue_limit", "requests that may wait for a node"},
        {"siliceo_ledger_rows_waiting", "rows of the ledger that its database has yet to take"},
        {"siliceo_ledger_rows_total", "rows of the ledger by what became of them"},
        {"process_resident_memory_bytes", "main memory that the coordinator holds"},
        {"process_open_fds", "descriptors that the coordinator holds"},
        {"process_cpu_seconds_total", "processor time the coordinator has used"},
    };
    for (size_t i = 0; i < N_GAUGES; i++) {
        c->node_families[i] = metrics_family_add(
            &c->metrics, is_total(names[i][0]) ? METRICS_COUNTER : METRICS_GAUGE, names[i][0],
            names[i][1], NULL, 0);
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
    k->duration = metrics_child(metrics_family_add(&c->metrics, METRICS_HISTOGRAM,
                                                   "siliceo_request_duration_seconds",
                                                   "from a request's arrival to its end",
                                                   duration_bounds, COUNT(duration_bounds)),
                                "");
    metrics_family *build =
        metrics_family_add(&c->metrics, METRICS_GAUGE, "siliceo_build_info", "1", NULL, 0);
    json_text labels = {0};
    metrics_label(&labels, "version", SILICEO_BUILD);
    if (!labels.failed) metric_set(metrics_child(build, labels.bytes), 1);
    json_text_release(&labels);
    metric_set(metrics_child(
                   metrics_family_add(&c->metrics, METRICS_GAUGE, "process_start_time_seconds",
                                      "when the coordinator began, Unix time", NULL, 0),
                   ""),
               (double)c->started_wall_ms / 1000);
    open_node_gauges(c);
}

void api_count_reply(coordinator *c, unsigned http_status) {
    unsigned class_idx = http_status / 100;
    metric_add(c->counters.status[class_idx >= 1 && class_idx <= 5 ? class_idx - 1 : 4], 1);
}

/* A counter of the node with one label more. */
static void add_with(metrics_family *family, const node *n, json_text *labels, const char *name,
                     const char *value, uint64_t count) {
    json_text_clear(labels);
    metrics_label(labels, "node", n->name);
    metrics_label(labels, name, value);
    if (!labels->failed) metric_add(metrics_child(family, labels->bytes), (double)count);
}

/* What the node remembers of prompts, and guesses; leaves other labels. */
static void set_shortcuts(coordinator *c, const node *n, json_text *labels) {
    metrics_family **f = c->node_families;
    const wire_beat *b = &n->beat;
    const char *l = labels->bytes;
    metric_add(metrics_child(f[GAUGE_PREFIX_TOKENS], l), (double)b->prefix_tokens);
    metric_add(metrics_child(f[GAUGE_PREFIX_ASKED], l), (double)b->prefix_asked_tokens);
    metric_set(metrics_child(f[GAUGE_PREFIX_SNAPSHOTS], l), (double)b->prefix_snapshots);
    metric_set(metrics_child(f[GAUGE_PREFIX_PAGES], l), (double)b->prefix_pages);
    metric_set(metrics_child(f[GAUGE_PREFIX_BYTES], l), (double)b->prefix_mib * 1048576);
    metric_set(metrics_child(f[GAUGE_PREFIX_DISK], l), (double)b->prefix_disk_mib * 1048576);
    metric_add(metrics_child(f[GAUGE_DISPLACED], l), (double)b->displaced);
    uint64_t near =
        b->prefix_hits_in_place < b->prefix_hits ? b->prefix_hits_in_place : b->prefix_hits;
    add_with(f[GAUGE_PREFIX_HITS], n, labels, "from", "place", near);
    add_with(f[GAUGE_PREFIX_HITS], n, labels, "from", "ram", b->prefix_hits - near);
    uint64_t came = b->guesses_true < b->guesses ? b->guesses_true : b->guesses;
    add_with(f[GAUGE_GUESSES], n, labels, "came", "true", came);
    add_with(f[GAUGE_GUESSES], n, labels, "came", "false", b->guesses - came);
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
    metric_add(metrics_child(f[GAUGE_TOKENS], l), (double)n->tokens_out);
    metric_add(metrics_child(f[GAUGE_SERVED], l), (double)n->served);
    metric_add(metrics_child(f[GAUGE_FAILED], l), (double)n->failed);
    if (n->n_models > 0) {
        metric_set(metrics_child(f[GAUGE_PREFILL], l), rates_prefill(&n->models[0].speed));
        metric_set(metrics_child(f[GAUGE_DECODE], l), rates_decode(&n->models[0].speed, 1));
    }
    if (!n->has_beat) return;
    metric_set(metrics_child(f[GAUGE_ENGINE_AGE], l), (double)n->beat.engine_age_ms / 1000);
    metric_set(metrics_child(f[GAUGE_VRAM_TOTAL], l), (double)n->beat.vram_total_mib * 1048576);
    metric_set(metrics_child(f[GAUGE_VRAM], l), (double)n->beat.vram_used_mib * 1048576);
    metric_set(metrics_child(f[GAUGE_RAM], l), (double)n->beat.ram_used_mib * 1048576);
    if (n->beat.temperature_c >= 0) {
        metric_set(metrics_child(f[GAUGE_TEMPERATURE], l), n->beat.temperature_c);
    }
    if (n->beat.hit_rate >= 0) {
        metric_set(metrics_child(f[GAUGE_HIT_RATE], l), n->beat.hit_rate);
        metric_set(metrics_child(f[GAUGE_MISSES], l), n->beat.misses_per_token);
    }
    set_shortcuts(c, n, labels);
}

/* What the kernel says of this process; nothing where /proc is not there. */
static void set_process(coordinator *c) {
    metrics_family **f = c->node_families;
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        metric_add(metrics_child(f[GAUGE_PROCESSOR], ""),
                   (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
    }
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file != NULL) {
        if (fscanf(file, "%lu %lu", &all, &resident) == 2) {
            metric_set(metrics_child(f[GAUGE_MEMORY], ""),
                       (double)resident * (double)sysconf(_SC_PAGESIZE));
        }
        (void)fclose(file);
    }
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return;
    int n = -3; /* "." and ".." and this folder's own */
    while (readdir(folder) != NULL)
        n++;
    (void)closedir(folder);
    metric_set(metrics_child(f[GAUGE_DESCRIPTORS], ""), n);
}

static void set_ledger(coordinator *c) {
    if (c->ledger == NULL) return;
    ledger_stats s = ledger_get_stats(c->ledger);
    metrics_family *rows = c->node_families[GAUGE_LEDGER_ROWS];
    metric_set(metrics_child(c->node_families[GAUGE_LEDGER_WAITING], ""), (double)s.waiting);
    metric_set(metrics_child(rows, "end=\"written\""), (double)s.written);
    metric_set(metrics_child(rows, "end=\"lost\""), (double)s.lost);
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
    metric_set(metrics_child(c->node_families[GAUGE_OLDEST], ""),
               request_oldest_s(c, clock_monotonic_ns()));
    metric_set(metrics_child(c->node_families[GAUGE_QUEUE_LIMIT], ""),
               (double)c->queue.max_waiting);
    set_ledger(c);
    set_process(c);
    metrics_print(&c->metrics, &out);
    if (out.failed)
        http_reply_error(x, 503, "no_memory", NULL, 1, "no memory for the reply");
    else
        http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.bytes, out.length);
    json_text_release(&labels);
    json_text_release(&out);
}
