/* command_bench.c - `siliceo-worker bench`: how fast this machine runs this model.
 *
 * B requests of P pseudo-random ids (from --seed) and D tokens each, greedy, never ending
 * early, through the whole engine.  Prefill is measured until the last of them has its
 * first token, decode from there to the end.  Of --repeat runs the one with the fastest
 * decode is reported; the first also warms caches up.
 */
#include "worker/commands.h"

#include "common/clock.h"
#include "common/json.h"
#include "worker/memory/plan.h"
#include "worker/options.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef struct bench_options {
    model_options common;
    int64_t prompt;
    int64_t decode;
    int64_t batch;
    int64_t repeat;
    bool json;
} bench_options;

static const config_key keys[] = {
    OPTIONS_MODEL_KEYS(bench_options, common),
    {"prompt", CONFIG_INT, offsetof(bench_options, prompt), "512", 1, 1048576, NULL,
     "tokens of each prompt"},
    {"decode", CONFIG_INT, offsetof(bench_options, decode), "128", 2, 1048576, NULL,
     "tokens to generate for each"},
    {"batch", CONFIG_INT, offsetof(bench_options, batch), "1", 1, 256, NULL,
     "requests at the same time"},
    {"repeat", CONFIG_INT, offsetof(bench_options, repeat), "1", 1, 1000, NULL,
     "runs; the best is reported"},
    {"json", CONFIG_BOOL, offsetof(bench_options, json), "false", 0, 0, NULL,
     "print {\"figures\": {...}}"},
};

/* One run as it goes, seen through the sink. */
typedef struct run {
    engine *e;
    uint32_t n_requests, n_first, n_over;
    bool *has_first;
    bool failed;
    uint64_t begun_ns, first_ns, all_first_ns, ended_ns;
    uint64_t n_tokens, n_tokens_at_all_first;
    model_stats at_all_first;
} run;

typedef struct figures {
    double prefill_tok_per_s, decode_tok_per_s, ttft_ms;
    double hit_rate, misses_per_token, slot_bytes_per_token, launches_per_token;
} figures;

static void take_tokens(void *context, const wire_tokens *tokens) {
    run *r = context;
    uint64_t now = clock_monotonic_ns();
    r->n_tokens += tokens->n_ids;
    if (r->has_first[tokens->request]) return;
    r->has_first[tokens->request] = true;
    if (r->n_first++ == 0) r->first_ns = now;
    if (r->n_first < r->n_requests) return;
    engine_stats stats;
    engine_read_stats(r->e, &stats);
    r->at_all_first = stats.model;
    r->all_first_ns = clock_monotonic_ns();
    r->n_tokens_at_all_first = r->n_tokens;
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
    out->decode_tok_per_s = n_decoded * 1e9 / (double)(r->ended_ns - r->all_first_ns);
    out->ttft_ms = (double)(r->first_ns - r->begun_ns) / 1e6;
    bool has_cache = engine_n_slots(r->e) > 0;
    out->hit_rate = has_cache && lookups > 0 ? hits / lookups : -1;
    out->misses_per_token = has_cache ? (lookups - hits) / n_decoded : 0;
    out->slot_bytes_per_token =
        (double)(b->expert_bytes_moved - a->expert_bytes_moved) / n_decoded;
    out->launches_per_token = (double)(b->launches - a->launches) / n_decoded;
}

static status run_once(const bench_options *o, run *r, uint64_t *random, figures *out,
                       error *err) {
    engine *e = r->e;
    memset(r->has_first, 0, (size_t)o->batch * sizeof *r->has_first);
    *r = (run){.e = e, .has_first = r->has_first, .n_requests = (uint32_t)o->batch};
    for (int64_t i = 0; i < o->batch; i++) {
        status rc = submit_one(o, e, (uint64_t)i, random, err);
        if (rc != STATUS_OK) return rc;
    }
    r->begun_ns = clock_monotonic_ns();
    for (bool working = true; working && !r->failed;) {
        status rc = engine_step(e, &working, err);
        if (rc != STATUS_OK) return rc;
    }
    if (r->failed) return error_set(err, STATUS_BAD_INPUT, "a request failed");
    judge(o, r, out);
    return STATUS_OK;
}

static void print_figures(const bench_options *o, const engine *e, const figures *f) {
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    bool gpu = strncmp(engine_numerics_id(e), "cpu", 3) != 0;
    const struct {
        const char *name;
        double value;
    } rows[] = {
        {"prefill_tok_per_s", f->prefill_tok_per_s},
        {"decode_tok_per_s", f->decode_tok_per_s},
        {"ttft_ms", f->ttft_ms},
        {"hit_rate", f->hit_rate},
        {"misses_per_token", f->misses_per_token},
        {"slot_bytes_per_token", f->slot_bytes_per_token},
        {"pcie_bytes_per_token", gpu ? f->slot_bytes_per_token : 0},
        {"launches_per_token", f->launches_per_token},
        {"vram_peak_mib", 0},
        {"ram_peak_mib", (double)usage.ru_maxrss / 1024},
        {"slots", engine_n_slots(e)},
        {"prompt_tokens", (double)o->prompt},
        {"decode_tokens", (double)o->decode},
        {"batch", (double)o->batch},
    };
    if (o->json) (void)printf("{\"figures\": {");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        (void)printf(o->json ? "%s\"%s\": %.10g" : "%s%-22s %.10g",
                     i == 0    ? ""
                     : o->json ? ", "
                               : "\n",
                     rows[i].name, rows[i].value);
    }
    (void)printf(o->json ? "}}\n" : "\n");
}

/* Room for what will be measured, where the user says nothing else. */
static status make_params(const bench_options *o, engine_params *out, error *err) {
    gguf_file *file = NULL;
    model_config geometry;
    status rc = gguf_open(&file, o->common.model, err);
    if (rc != STATUS_OK) return rc;
    rc = model_config_read(&geometry, file, err);
    gguf_close(file);
    if (rc != STATUS_OK) return rc;
    rc = options_engine_params(&o->common, plan_n_experts(&geometry), out, err);
    if (rc != STATUS_OK) return rc;
    out->n_sequences = (uint32_t)o->batch;
    if (out->n_context == 0) {
        int64_t needed =
            (o->prompt + o->decode + MODEL_PAGE_TOKENS) / MODEL_PAGE_TOKENS * MODEL_PAGE_TOKENS;
        out->n_context = needed < geometry.n_context ? (uint32_t)needed : geometry.n_context;
    }
    return STATUS_OK;
}

static status bench(const bench_options *o, error *err) {
    engine_params params;
    figures best = {0};
    run r = {0};
    status rc = make_params(o, &params, err);
    if (rc != STATUS_OK) return rc;
    r.has_first = calloc((size_t)o->batch, sizeof *r.has_first);
    if (r.has_first == NULL) return error_set(err, STATUS_NO_MEMORY, "bench: no memory");
    const engine_sink sink = {&r, take_tokens, take_done, take_error};
    rc = engine_open(&r.e, &params, &sink, err);
    uint64_t random = params.seed;
    for (int64_t i = 0; i < o->repeat && rc == STATUS_OK; i++) {
        figures f = {0};
        rc = run_once(o, &r, &random, &f, err);
        if (i == 0 || f.decode_tok_per_s > best.decode_tok_per_s) best = f;
    }
    if (rc == STATUS_OK) print_figures(o, r.e, &best);
    engine_close(r.e);
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
    status rc = bench(&options, &err);
    if (rc != STATUS_OK) (void)fprintf(stderr, "siliceo-worker bench: %s\n", err.text);
    config_release(&c);
    return rc == STATUS_OK ? 0 : 1;
}
