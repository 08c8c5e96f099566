/* command_bench.c - `siliceo-worker bench`: how fast this machine runs this model.
 *
 * B requests of P pseudo-random ids (from --seed) and D tokens each, greedy, never ending
 * early, through the whole engine.  Prefill is measured until the last of them has its
 * first token, decode from there to the end.  Of --repeat runs the one with the fastest
 * decode is reported; the first also warms caches up.
 *
 * --cold begins with the first run after loading (figures with loaded_) and one from empty expert
 * slots, whose figures are those with cold_, first and turn in their names.  With --experts-dir a
 * first bench leaves its list of experts there, and what a second one loads is filled by it.  --routing replays a trace (routing_trace.h), and --skip leaves
 * the first decoded tokens out of the decode figures; with a prompt of one token and a skip of
 * 60 the figures are those of the trace's tokens 60 and later.
 *
 * --prompts 1,512,8192 runs each of these lengths in turn on one loaded model, and prints the figures
 * of each, a line of JSON or a block.
 *
 * --users N measures N requests at once instead, each with a trace of its own where {} stands in
 * the path of --routing, and with --beside what a prompt costs them: see bench_users.h.
 *
 * --project CARD adds projected_decode_tok_per_s, by the time that a card's bandwidths alone
 * would take for the bytes that this run needed a token:
 *   weights / (vram GB/s x KERNEL_SHARE) + shipped / pcie GB/s + launches x LAUNCH_US
 * weights: backbone without the embedding and the experts that a token uses.  Nothing overlaps.
 *
 * On a GPU floor_us_per_token is what a token's bytes alone would take: the same weights once, the
 * recurrent state read and written, over the bandwidth of copies within the memory (measured
 * before the model loads, or --bandwidth).  floor_share is that over the time a token took.
 */
#include "worker/bench_users.h"
#include "worker/commands.h"

#include "common/clock.h"
#include "common/json.h"
#include "worker/backend.h"
#include "worker/memory/cuda_layout.h"
#include "worker/memory/plan.h"
#include "worker/options.h"
#include "worker/routing_trace.h"
#include "worker/vram_watch.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef struct bench_options {
    model_options common;
    int64_t prompt;
    const char *prompts;
    int64_t decode;
    int64_t batch;
    int64_t users;
    int64_t beside;
    int64_t repeat;
    int64_t skip;
    const char *routing;
    const char *project;
    int64_t bandwidth;
    bool cold;
    bool json;
} bench_options;

static const config_key keys[] = {
    OPTIONS_MODEL_KEYS(bench_options, common),
    {"prompt", CONFIG_INT, offsetof(bench_options, prompt), "512", 1, 1048576, NULL,
     "tokens of each prompt"},
    {"prompts", CONFIG_STRING, offsetof(bench_options, prompts), NULL, 0, 0, NULL,
     "several numbers of tokens of a prompt, 1,512: one after the other, in place of prompt"},
    {"decode", CONFIG_INT, offsetof(bench_options, decode), "128", 2, 1048576, NULL,
     "tokens to generate for each"},
    {"batch", CONFIG_INT, offsetof(bench_options, batch), "1", 1, 256, NULL,
     "requests at the same time"},
    {"users", CONFIG_INT, offsetof(bench_options, users), "0", 0, 256, NULL,
     "requests at the same time, all counted while all decode; 0: as --batch says"},
    {"beside", CONFIG_INT, offsetof(bench_options, beside), "0", 0, 1048576, NULL,
     "with --users: tokens of a prompt that comes while they decode"},
    {"repeat", CONFIG_INT, offsetof(bench_options, repeat), "1", 1, 1000, NULL,
     "runs; the best is reported"},
    {"skip", CONFIG_INT, offsetof(bench_options, skip), "0", 0, 1048576, NULL,
     "decoded tokens that are not counted, from the first"},
    {"routing", CONFIG_STRING, offsetof(bench_options, routing), NULL, 0, 0, NULL,
     "trace whose expert ids replace the router's"},
    {"cold", CONFIG_BOOL, offsetof(bench_options, cold), "false", 0, 0, NULL,
     "empty the expert slots before the first run and report it too"},
    {"project", CONFIG_CHOICE, offsetof(bench_options, project), "none", 0, 0,
     "none|rtx2070|rtx3090", "project the decode rate of another card"},
    {"bandwidth", CONFIG_INT, offsetof(bench_options, bandwidth), "0", 0, 1000000, NULL,
     "GB/s of the GPU's memory for floor_share; 0: measure"},
    {"json", CONFIG_BOOL, offsetof(bench_options, json), "false", 0, 0, NULL,
     "print {\"figures\": {...}}"},
};

/* What --prompts names, or --prompt alone. */
enum { MOST_PROMPTS = 32, MOST_PROMPT_TOKENS = 1048576 };

typedef struct prompt_list {
    int64_t n_tokens[MOST_PROMPTS];
    size_t n;
} prompt_list;

static status read_prompts(const bench_options *o, prompt_list *out, error *err) {
    const char *at = o->prompts;
    out->n_tokens[0] = o->prompt;
    out->n = at == NULL ? 1 : 0;
    while (at != NULL) {
        char *end = NULL;
        long n = strtol(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || n < 1 || n > MOST_PROMPT_TOKENS ||
            out->n == MOST_PROMPTS) {
            return error_set(err, STATUS_BAD_INPUT,
                             "prompts = %s: not up to %d numbers from 1 to %d", o->prompts,
                             MOST_PROMPTS, MOST_PROMPT_TOKENS);
        }
        out->n_tokens[out->n++] = n;
        at = *end == ',' ? end + 1 : NULL;
    }
    return STATUS_OK;
}

static int64_t longest(const prompt_list *list) {
    int64_t most = 0;
    for (size_t i = 0; i < list->n; i++)
        if (list->n_tokens[i] > most) most = list->n_tokens[i];
    return most;
}

/* Hit rates of the first decoded tokens, where a cold cache shows. */
enum { N_WINDOWS = 3 };
static const uint64_t windows[N_WINDOWS] = {32, 64, 128};

/* One run as it goes, seen through the sink. */
typedef struct run {
    engine *e;
    uint32_t n_requests, n_first, n_over;
    bool *has_first;
    bool failed;
    uint64_t begun_ns, first_ns, all_first_ns, ended_ns;
    uint64_t n_tokens, n_tokens_at_all_first;
    uint64_t all_first_counted_ns;
    model_stats at_begin;
    model_stats at_first;     /* the last prompt is through */
    model_stats at_all_first; /* counting begins */
    uint64_t skip;            /* tokens after the first that are not counted */
    bool counts;              /* the first counted token is out */
    model_stats at_window[N_WINDOWS];
} run;

typedef struct figures {
    double prefill_tok_per_s, decode_tok_per_s, ttft_ms;
    double hit_rate, misses_per_token, slot_bytes_per_token, launches_per_token;
    double disk_misses_per_token, disk_bytes_per_token;            /* past the page cache */
    double disk_wait_share;                                        /* of the time of decoding */
    double lane_experts_per_token, lane_share, prefill_lane_share; /* of what is missing */
    double
        prefill_hit_rate; /* of the prompt's distinct experts of a layer and step; negative: no cache */
    double window_hit_rate[N_WINDOWS]; /* negative: no cache, or too few tokens */
    double turn_tok_per_s;             /* prompt and answer, from beginning to end */
} figures;

/* What is added to the figures of the engine. */
typedef struct extras {
    figures loaded, cold; /* the first prompt after loading; the first of empty slots */
    double vram_peak_mib;
    double weight_bytes_per_token;
    double load_s;
    double file_resident_share;   /* at the end; negative: not known */
    double state_bytes_per_token; /* read and written */
    double bandwidth_gb_per_s;    /* 0: no GPU */
} extras;

static void read_model_stats(const run *r, model_stats *out) {
    engine_stats stats;
    engine_read_stats(r->e, &stats);
    *out = stats.model;
}

/* Decoding is counted from here on. */
static void start_counting(run *r) {
    r->counts = true;
    read_model_stats(r, &r->at_all_first);
    r->all_first_counted_ns = clock_monotonic_ns();
    r->n_tokens_at_all_first = r->n_tokens;
}

static void take_tokens(void *context, const wire_tokens *tokens) {
    run *r = context;
    uint64_t now = clock_monotonic_ns();
    r->n_tokens += tokens->n_ids;
    uint64_t n_decoded = r->n_tokens - r->n_requests;
    for (int i = 0; i < N_WINDOWS && r->n_first == r->n_requests; i++) {
        if (n_decoded == windows[i]) read_model_stats(r, &r->at_window[i]);
    }
    if (!r->has_first[tokens->request]) {
        r->has_first[tokens->request] = true;
        if (r->n_first++ == 0) r->first_ns = now;
        if (r->n_first == r->n_requests) {
            r->all_first_ns = clock_monotonic_ns();
            read_model_stats(r, &r->at_first);
        }
    }
    if (r->n_first == r->n_requests && !r->counts && r->n_tokens >= r->n_requests + r->skip)
        start_counting(r);
}

static void take_done(void *context, const wire_done *done) {
    run *r = context;
    (void)done;
    r->n_over++;
    r->ended_ns = clock_monotonic_ns();
}

static void take_error(void *context, const wire_error *e) {
    run *r = context;
    r->failed = true;
    (void)fprintf(stderr, "siliceo-worker bench: %.*s\n", (int)e->text.length, e->text.bytes);
}

static uint64_t random_next(uint64_t *x) {
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return *x >> 33;
}

static status submit_one(const bench_options *o, engine *e, uint64_t request, uint64_t *random,
                         error *err) {
    json_text body = {0};
    uint32_t n_vocab = engine_model_config(e)->n_vocab;
    json_text_format(&body,
                     "{\"temperature\":0,\"repetition_penalty\":1,\"ignore_eos\":true,"
                     "\"max_tokens\":%" PRId64 ",\"prompt\":[",
                     o->decode);
    for (int64_t i = 0; i < o->prompt; i++)
        json_text_format(&body, "%s%" PRIu64, i > 0 ? "," : "", random_next(random) % n_vocab);
    json_text_format(&body, "]}");
    wire_submit submit = {.request = request,
                          .kind = WIRE_COMPLETION,
                          .body = wire_text(body.bytes, body.length)};
    status rc = body.failed ? error_set(err, STATUS_NO_MEMORY, "bench: no memory")
                            : engine_submit(e, &submit, err);
    json_text_release(&body);
    return rc;
}

/* Of the experts that were missing between two looks, those that the CPU lane computed. */
static double lane_share(const model_stats *a, const model_stats *b) {
    uint64_t misses = b->expert_lookups - a->expert_lookups - (b->expert_hits - a->expert_hits);
    return misses > 0 ? (double)(b->lane_experts - a->lane_experts) / (double)misses : 0;
}

/* Of the look-ups between two looks; negative: there were none. */
static double hit_rate(const model_stats *a, const model_stats *b) {
    uint64_t n = b->expert_lookups - a->expert_lookups;
    return n > 0 ? (double)(b->expert_hits - a->expert_hits) / (double)n : -1;
}

/* Figures of a finished run; misses are those of decoding. */
static void judge(const bench_options *o, const run *r, figures *out) {
    engine_stats stats;
    engine_read_stats(r->e, &stats);
    const model_stats *a = &r->at_all_first, *b = &stats.model;
    double n_decoded = (double)(r->n_tokens - r->n_tokens_at_all_first);
    double lookups = (double)(b->expert_lookups - a->expert_lookups);
    double hits = (double)(b->expert_hits - a->expert_hits);
    out->prefill_tok_per_s =
        (double)(o->prompt * o->batch) * 1e9 / (double)(r->all_first_ns - r->begun_ns);
    out->decode_tok_per_s = n_decoded * 1e9 / (double)(r->ended_ns - r->all_first_counted_ns);
    out->ttft_ms = (double)(r->first_ns - r->begun_ns) / 1e6;
    bool has_cache = engine_n_slots(r->e) > 0;
    out->hit_rate = has_cache && lookups > 0 ? hits / lookups : -1;
    out->misses_per_token = has_cache ? (lookups - hits) / n_decoded : 0;
    out->slot_bytes_per_token =
        (double)(b->expert_bytes_moved - a->expert_bytes_moved) / n_decoded;
    out->disk_misses_per_token = (double)(b->disk_misses - a->disk_misses) / n_decoded;
    out->disk_bytes_per_token = (double)(b->disk_bytes - a->disk_bytes) / n_decoded;
    out->disk_wait_share = (double)(b->disk_wait_ns - a->disk_wait_ns) /
                           (double)(r->ended_ns - r->all_first_counted_ns);
    out->launches_per_token = (double)(b->launches - a->launches) / n_decoded;
    out->lane_experts_per_token = (double)(b->lane_experts - a->lane_experts) / n_decoded;
    out->lane_share = lane_share(a, b);
    out->prefill_lane_share = lane_share(&r->at_begin, &r->at_first);
    out->prefill_hit_rate = has_cache ? hit_rate(&r->at_begin, &r->at_first) : -1;
    out->turn_tok_per_s = (double)r->n_tokens * 1e9 / (double)(r->ended_ns - r->begun_ns);
    for (int i = 0; i < N_WINDOWS; i++) {
        const model_stats *w = &r->at_window[i];
        double n = (double)(w->expert_lookups - r->at_first.expert_lookups);
        double n_hits = (double)(w->expert_hits - r->at_first.expert_hits);
        bool whole = w->steps > 0 && has_cache && n > 0;
        out->window_hit_rate[i] = whole ? n_hits / n : -1;
    }
}

static status run_once(const bench_options *o, run *r, uint64_t *random, figures *out,
                       error *err) {
    engine *e = r->e;
    memset(r->has_first, 0, (size_t)o->batch * sizeof *r->has_first);
    *r = (run){.e = e,
               .has_first = r->has_first,
               .n_requests = (uint32_t)o->batch,
               .skip = (uint64_t)(o->skip * o->batch)};
    for (int64_t i = 0; i < o->batch; i++) {
        status rc = submit_one(o, e, (uint64_t)i, random, err);
        if (rc != STATUS_OK) return rc;
    }
    read_model_stats(r, &r->at_begin);
    r->begun_ns = clock_monotonic_ns();
    for (bool working = true; working && !r->failed;) {
        status rc = engine_step(e, &working, err);
        if (rc != STATUS_OK) return rc;
    }
    if (r->failed) return error_set(err, STATUS_BAD_INPUT, "a request failed");
    judge(o, r, out);
    return STATUS_OK;
}

/* A card's bandwidths, GB/s: its memory's by data sheet, its bus's as pinned copies of two
 * megabytes reach it. */
typedef struct card {
    const char *name;
    double vram, pcie;
} card;
static const card cards[] = {{"rtx2070", 448, 12.6}, {"rtx3090", 936, 25}};
static const double KERNEL_SHARE = 0.6, LAUNCH_US = 2.5;

static double project(const bench_options *o, const figures *f, const extras *x) {
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        const card *c = &cards[i];
        if (strcmp(o->project, c->name) != 0) continue;
        double us = x->weight_bytes_per_token / (c->vram * KERNEL_SHARE * 1e3) +
                    f->slot_bytes_per_token / (c->pcie * 1e3) +
                    f->launches_per_token * LAUNCH_US;
        return 1e6 / us;
    }
    return 0;
}

/* 0 where it is not known. */
static double floor_us(const extras *x) {
    if (x->bandwidth_gb_per_s <= 0) return 0;
    return (x->weight_bytes_per_token + x->state_bytes_per_token) /
           (x->bandwidth_gb_per_s * 1e3);
}

typedef struct figure {
    const char *name;
    double value;
    bool hidden;
} figure;

static void print_list(const bench_options *o, const figure *rows, size_t n) {
    bool first = true;
    if (o->json) (void)printf("{\"figures\": {");
    for (size_t i = 0; i < n; i++) {
        if (rows[i].hidden) continue;
        const char *between = first ? "" : o->json ? ", " : "\n";
        (void)printf(o->json ? "%s\"%s\": %.10g" : "%s%-26s %.10g", between, rows[i].name,
                     rows[i].value);
        first = false;
    }
    (void)printf(o->json ? "}}\n" : "\n");
}

/* Since the engine was opened; see speculate_stats. */
typedef struct guess_figures {
    double drafted, accepted, draft_us, rows;
} guess_figures;

static guess_figures sum_guesses(const speculate_stats *s) {
    guess_figures g = {.rows = (double)s->rows_steps};
    for (int k = 0; k < DRAFTER_KINDS; k++) {
        g.drafted += (double)s->drafted[k];
        g.accepted += (double)s->accepted[k];
        g.draft_us += (double)s->draft_ns[k] / 1e3;
    }
    return g;
}

static void print_figures(const bench_options *o, const run *r, const figures *f,
                          const extras *x) {
    const engine *e = r->e;
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    engine_stats stats;
    engine_read_stats(r->e, &stats);
    const model_stats *m = &stats.model;
    bool gpu = strncmp(engine_numerics_id(e), "cpu", 3) != 0;
    bool warm = !o->cold;
    /* Of several sequences at once a step reads the backbone once for all. */
    bool no_floor = x->bandwidth_gb_per_s <= 0 || o->batch > 1;
    const figures *c = &x->cold;
    bool has_cache = f->prefill_hit_rate >= 0;
    bool no_lane = m->ship_us == 0;
    const guess_figures guessed = sum_guesses(&stats.guesses), *g = &guessed;
    const figure rows[] = {
        {"prefill_tok_per_s", f->prefill_tok_per_s, false},
        {"decode_tok_per_s", f->decode_tok_per_s, false},
        {"ttft_ms", f->ttft_ms, false},
        {"hit_rate", f->hit_rate, false},
        {"misses_per_token", f->misses_per_token, false},
        {"slot_bytes_per_token", f->slot_bytes_per_token, false},
        {"pcie_bytes_per_token", gpu ? f->slot_bytes_per_token : 0, false},
        {"launches_per_token", f->launches_per_token, false},
        {"lane_experts_per_token", f->lane_experts_per_token, no_lane},
        {"lane_share", f->lane_share, no_lane},
        {"prefill_lane_share", f->prefill_lane_share, no_lane},
        {"prefill_hit_rate", f->prefill_hit_rate, !has_cache},
        {"lane_step_expert_us", m->lane_first_us[0], no_lane},
        {"lane_step_layer_us", m->lane_more_us[0], no_lane},
        {"lane_prompt_expert_us", m->lane_first_us[1], no_lane},
        {"lane_prompt_row_us", m->lane_more_us[1], no_lane},
        {"ship_us", m->ship_us, no_lane},
        {"vram_peak_mib", x->vram_peak_mib, false},
        {"vram_planned_mib", (double)engine_planned_vram(e) / 1048576, !gpu},
        /* The driver's own pinned memory is not resident memory of a process. */
        {"ram_peak_mib", (double)usage.ru_maxrss / 1024 + (double)m->pinned_bytes / 1048576,
         false},
        {"load_s", x->load_s, false},
        {"file_resident_share", x->file_resident_share, x->file_resident_share < 0},
        {"disk_read_mib", (double)m->disk_bytes / 1048576, m->disk_bytes == 0},
        {"disk_direct", m->disk_direct, m->disk_bytes == 0},
        {"disk_misses_per_token", f->disk_misses_per_token, m->disk_bytes == 0},
        {"disk_bytes_per_token", f->disk_bytes_per_token, m->disk_bytes == 0},
        {"disk_wait_share", f->disk_wait_share, m->disk_bytes == 0},
        {"host_received", (double)m->host_received, m->host_received == 0},
        {"weight_bytes_per_token", x->weight_bytes_per_token, false},
        {"loaded_prefill_tok_per_s", x->loaded.prefill_tok_per_s, warm},
        {"loaded_ttft_ms", x->loaded.ttft_ms, warm},
        {"loaded_prefill_hit_rate", x->loaded.prefill_hit_rate, warm || !has_cache},
        {"slots_by_use", m->slots_by_use, o->common.experts_dir == NULL},
        {"state_bytes_per_token", x->state_bytes_per_token, false},
        {"bandwidth_gb_per_s", x->bandwidth_gb_per_s, no_floor},
        {"floor_us_per_token", floor_us(x), no_floor},
        {"floor_share", floor_us(x) * f->decode_tok_per_s / 1e6, no_floor},
        {"cold_prefill_tok_per_s", c->prefill_tok_per_s, warm},
        {"cold_decode_tok_per_s", c->decode_tok_per_s, warm},
        {"cold_ttft_ms", c->ttft_ms, warm},
        {"cold_prefill_lane_share", c->prefill_lane_share, warm || no_lane},
        {"first32_hit_rate", c->window_hit_rate[0], warm},
        {"first64_hit_rate", c->window_hit_rate[1], warm},
        {"first128_hit_rate", c->window_hit_rate[2], warm},
        {"turn_tok_per_s", c->turn_tok_per_s, warm},
        {"PROJECTED_decode_tok_per_s", project(o, f, x), strcmp(o->project, "none") == 0},
        {"drafted", g->drafted, g->drafted == 0},
        {"accepted_share", g->accepted / g->drafted, g->drafted == 0},
        {"tokens_per_row_step", (g->rows + g->accepted) / g->rows, g->drafted == 0},
        {"us_per_guess", g->draft_us / g->drafted, g->drafted == 0},
        {"slots", engine_n_slots(e), false},
        {"prompt_tokens", (double)o->prompt, false},
        {"decode_tokens", (double)o->decode, false},
        {"skipped_tokens", (double)o->skip, o->skip == 0},
        {"batch", (double)o->batch, false},
    };
    print_list(o, rows, sizeof rows / sizeof rows[0]);
}

/* Bytes of weights that one token reads: the whole backbone but the embedding, and its own
 * experts. */
static status count_weight_bytes(const gguf_file *file, const model_config *c, double *out,
                                 error *err) {
    model_weights w;
    status rc = model_weights_map(&w, c, file, err);
    if (rc != STATUS_OK) return rc;
    uint64_t bytes = cuda_backbone_walk(&w, NULL, NULL);
    for (uint32_t i = 0; c->moe && i < w.n_layers; i++)
        bytes += layer_expert_bytes(&w.layers[i]) * c->n_experts_used;
    model_weights_release(&w);
    *out = (double)bytes;
    return STATUS_OK;
}

/* Room for what will be measured, where the user says nothing else. */
static status make_params(const bench_options *o, engine_params *out, extras *x, error *err) {
    gguf_file *file = NULL;
    model_config geometry;
    status rc = gguf_open(&file, o->common.model, err);
    if (rc != STATUS_OK) return rc;
    rc = model_config_read(&geometry, file, err);
    if (rc == STATUS_OK)
        rc = count_weight_bytes(file, &geometry, &x->weight_bytes_per_token, err);
    gguf_close(file);
    if (rc != STATUS_OK) return rc;
    x->state_bytes_per_token = 2.0 * (double)model_config_state_bytes(&geometry);
    rc = options_engine_params(&o->common, plan_n_experts(&geometry), out, err);
    if (rc != STATUS_OK) return rc;
    if (out->prefix_ram_mib < 0) out->prefix_ram_mib = 0; /* every prompt runs whole */
    x->bandwidth_gb_per_s = out->backend == BACKEND_CUDA ? (double)o->bandwidth : 0;
    if (out->backend == BACKEND_CUDA && o->bandwidth == 0)
        (void)backend_cuda_bandwidth(&x->bandwidth_gb_per_s, NULL); /* then there is no floor */
    bool beside = o->users > 0 && o->beside > 0;
    out->n_sequences = (uint32_t)(o->users > 0 ? o->users + beside : o->batch);
    if (out->n_context == 0) {
        int64_t most = o->prompt + o->decode;
        if (beside && o->beside + 1 > most) most = o->beside + 1;
        int64_t needed = (most + MODEL_PAGE_TOKENS) / MODEL_PAGE_TOKENS * MODEL_PAGE_TOKENS;
        out->n_context = needed < geometry.n_context ? (uint32_t)needed : geometry.n_context;
    }
    return STATUS_OK;
}

/* Of the file's pages in memory, whoever brought them there. */
static double resident_share(const char *path) {
    gguf_file *file = NULL;
    if (gguf_open(&file, path, NULL) != STATUS_OK) return -1;
    double share = gguf_resident_share(file);
    gguf_close(file);
    return share;
}

/* Of --repeat runs the fastest; the first and a cold one come before and are not among them. */
static status run_all(const bench_options *o, run *r, uint64_t seed, figures *best, extras *x,
                      error *err) {
    uint64_t random = seed;
    status rc = STATUS_OK;
    if (o->cold) rc = run_once(o, r, &random, &x->loaded, err);
    if (o->cold || o->routing != NULL) engine_forget_experts(r->e);
    if (o->cold && rc == STATUS_OK) rc = run_once(o, r, &random, &x->cold, err);
    for (int64_t i = 0; i < o->repeat && rc == STATUS_OK; i++) {
        figures f = {0};
        rc = run_once(o, r, &random, &f, err);
        if (i == 0 || f.decode_tok_per_s > best->decode_tok_per_s) *best = f;
    }
    return rc;
}

static status bench_together(const bench_options *o, error *err) {
    extras x = {0};
    vram_watch *watch = NULL;
    (void)vram_watch_start(&watch, NULL, VRAM_WATCH_PEAK_MS, NULL); /* NULL without NVML */
    bench_users b = {.n_users = (uint32_t)o->users,
                     .n_prompt = (uint32_t)o->prompt,
                     .n_decode = (uint32_t)o->decode,
                     .n_skip = (uint32_t)o->skip,
                     .n_beside = (uint32_t)o->beside,
                     .routing = o->routing,
                     .json = o->json};
    status rc = STATUS_OK;
    if (o->skip + 1 >= o->decode) {
        rc = error_set(err, STATUS_BAD_INPUT, "skip = %" PRId64 " of %" PRId64 " tokens",
                       o->skip, o->decode);
    }
    if (rc == STATUS_OK) rc = make_params(o, &b.engine, &x, err);
    if (o->routing != NULL) b.engine.speculate = SPECULATE_OFF;
    b.watch = b.engine.backend == BACKEND_CUDA ? watch : NULL;
    if (rc == STATUS_OK) rc = bench_users_run(&b, err);
    vram_watch_stop(watch);
    return rc;
}

static status bench(const bench_options *o, error *err) {
    engine_params params;
    figures best = {0};
    extras x = {0};
    run r = {0};
    routing_trace trace = {0};
    vram_watch *watch = NULL;
    prompt_list prompts;
    bench_options one = *o;
    (void)vram_watch_start(&watch, NULL, VRAM_WATCH_PEAK_MS, NULL); /* NULL without NVML */
    const engine_sink sink = {&r, take_tokens, take_done, take_error};
    status rc = read_prompts(o, &prompts, err);
    one.prompt = longest(&prompts);
    if (rc == STATUS_OK) rc = make_params(&one, &params, &x, err);
    if (rc != STATUS_OK) goto done;
    r.has_first = calloc((size_t)o->batch, sizeof *r.has_first);
    rc = r.has_first != NULL ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "bench: no memory");
    if (rc == STATUS_OK && o->routing != NULL) rc = routing_trace_read(&trace, o->routing, err);
    uint64_t begun_ns = clock_monotonic_ns();
    if (rc == STATUS_OK) rc = engine_open(&r.e, &params, &sink, err);
    x.load_s = (double)(clock_monotonic_ns() - begun_ns) / 1e9;
    if (rc != STATUS_OK) goto done;
    if (params.backend == BACKEND_CUDA) (void)fputs(engine_plan_text(r.e), stderr);
    if (trace.ids != NULL) rc = engine_set_routing(r.e, &trace, 1, err);
    for (size_t i = 0; i < prompts.n && rc == STATUS_OK; i++) {
        one.prompt = prompts.n_tokens[i];
        rc = run_all(&one, &r, params.seed, &best, &x, err);
        if (rc != STATUS_OK) break;
        if (watch != NULL && params.backend == BACKEND_CUDA)
            x.vram_peak_mib = (double)vram_watch_peak(watch) / 1048576.0;
        x.file_resident_share = resident_share(o->common.model);
        print_figures(&one, &r, &best, &x);
        (void)fflush(stdout); /* what is measured stays, whatever becomes of the next */
    }
done:
    engine_close(r.e);
    vram_watch_stop(watch);
    routing_trace_release(&trace);
    free(r.has_first);
    return rc;
}

int command_bench(int argc, char *argv[]) {
    bench_options options = {0};
    config c = {0};
    error err = {0};
    int code = options_read(&c, "siliceo-worker bench", keys, sizeof keys / sizeof keys[0],
                            &options, &options.common, true, argc, argv);
    if (code >= 0) return code;
    status rc = options.users > 0 ? bench_together(&options, &err) : bench(&options, &err);
    if (rc != STATUS_OK) (void)fprintf(stderr, "siliceo-worker bench: %s\n", err.text);
    config_release(&c);
    return rc == STATUS_OK ? 0 : 1;
}
