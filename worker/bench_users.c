#include "worker/bench_users.h"

#include "common/clock.h"
#include "common/json.h"
#include "worker/routing_trace.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct user {
    uint32_t n_tokens; /* that came */
    uint64_t last_ns;
    bool over;
} user;

typedef struct gaps {
    double *ms;
    size_t n, cap;
} gaps;

typedef struct run {
    const bench_users *b;
    engine *e;
    user *users; /* [n_users + 1]; the last is the one that comes beside them */
    uint32_t n_first, n_over;
    bool failed;
    gaps *into; /* where gaps of users are noted; NULL: nowhere */
    routing_trace *traces;
    uint32_t n_traces;
    uint64_t random;
} run;

typedef struct figures {
    double total_tok_per_s, step_ms;
    gaps quiet, beside;
    double experts_per_layer_step, hit_rate, misses_per_token, slot_bytes_per_token;
    double lane_experts_per_token, lane_share; /* of what is missing; negative: no lane */
    double lane_expert_us, lane_layer_us, ship_us;
    double beside_ms, longest_step_ms, beside_slices;
} figures;

/* --- what the sink is told --- */

static void note_gap(run *r, user *u, uint64_t now_ns) {
    gaps *g = r->into;
    if (g != NULL && u->n_tokens > 0 && g->n < g->cap)
        g->ms[g->n++] = (double)(now_ns - u->last_ns) / 1e6;
    u->last_ns = now_ns;
}

static void take_tokens(void *context, const wire_tokens *t) {
    run *r = context;
    user *u = &r->users[t->request];
    if (t->n_ids == 0) return;
    if (t->request < r->b->n_users) {
        note_gap(r, u, clock_monotonic_ns());
        r->n_first += u->n_tokens == 0;
    }
    u->n_tokens += (uint32_t)t->n_ids;
}

static void take_done(void *context, const wire_done *done) {
    run *r = context;
    r->users[done->request].over = true;
    r->n_over += done->request < r->b->n_users;
}

static void take_error(void *context, const wire_error *e) {
    run *r = context;
    r->failed = true;
    (void)fprintf(stderr, "siliceo-worker bench: %.*s\n", (int)e->text.length, e->text.bytes);
}

/* --- requests --- */

static status submit(run *r, uint32_t request, uint32_t n_prompt, uint32_t n_decode,
                     error *err) {
    json_text body = {0};
    uint32_t n_vocab = engine_model_config(r->e)->n_vocab;
    json_text_format(&body,
                     "{\"temperature\":0,\"repetition_penalty\":1,\"ignore_eos\":true,"
                     "\"max_tokens\":%u,\"prompt\":[",
                     n_decode);
    for (uint32_t i = 0; i < n_prompt; i++) {
        r->random = r->random * 6364136223846793005u + 1442695040888963407u;
        json_text_format(&body, "%s%" PRIu64, i > 0 ? "," : "", (r->random >> 33) % n_vocab);
    }
    json_text_format(&body, "]}");
    wire_submit wire = {.request = request,
                        .kind = WIRE_COMPLETION,
                        .body = wire_text(body.bytes, body.length)};
    status rc = body.failed ? error_set(err, STATUS_NO_MEMORY, "bench: no memory")
                            : engine_submit(r->e, &wire, err);
    json_text_release(&body);
    return rc;
}

static status submit_all(run *r, error *err) {
    memset(r->users, 0, (r->b->n_users + 1) * sizeof *r->users);
    r->n_first = r->n_over = 0;
    status rc = STATUS_OK;
    for (uint32_t i = 0; i < r->b->n_users && rc == STATUS_OK; i++)
        rc = submit(r, i, r->b->n_prompt, r->b->n_decode, err);
    return rc;
}

static status step(run *r, error *err) {
    bool working = false;
    status rc = engine_step(r->e, &working, err);
    if (rc != STATUS_OK) return rc;
    if (r->failed) return error_set(err, STATUS_BAD_INPUT, "a request failed");
    if (!working) return error_set(err, STATUS_BAD_INPUT, "there is nothing to do any more");
    return STATUS_OK;
}

/* Until all users have so many tokens more than the first. */
static status decode_until(run *r, uint32_t n_tokens, error *err) {
    for (uint32_t i = 0; i < r->b->n_users;) {
        if (r->users[i].n_tokens > n_tokens) {
            i++;
            continue;
        }
        status rc = step(r, err);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

static status finish(run *r, error *err) {
    status rc = STATUS_OK;
    while (rc == STATUS_OK && r->n_over < r->b->n_users)
        rc = step(r, err);
    return rc;
}

/* --- experts --- */

/* Distinct experts of all layers, by the traces, of the step that comes. */
static uint32_t count_union(const run *r) {
    const routing_trace *any = &r->traces[0];
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < any->n_layers; layer++) {
        uint64_t seen[65536 / 64] = {0};
        for (uint32_t i = 0; i < r->b->n_users; i++) {
            const routing_trace *t = &r->traces[i % r->n_traces];
            uint32_t position = r->b->n_prompt + r->users[i].n_tokens - 1;
            const uint16_t *ids = routing_trace_at(t, position, layer);
            for (uint32_t j = 0; j < t->n_used; j++) {
                uint64_t bit = (uint64_t)1 << (ids[j] % 64);
                n += (seen[ids[j] / 64] & bit) == 0;
                seen[ids[j] / 64] |= bit;
            }
        }
    }
    return n;
}

static status read_traces(run *r, error *err) {
    const char *path = r->b->routing, *number = path != NULL ? strstr(path, "{}") : NULL;
    if (path == NULL) return STATUS_OK;
    uint32_t n = number != NULL ? r->b->n_users : 1;
    r->traces = calloc(n, sizeof *r->traces);
    if (r->traces == NULL) return error_set(err, STATUS_NO_MEMORY, "bench: no memory");
    for (uint32_t i = 0; i < n; i++) {
        char one[4096];
        int length = number == NULL ? snprintf(one, sizeof one, "%s", path)
                                    : snprintf(one, sizeof one, "%.*s%u%s",
                                               (int)(number - path), path, i + 1, number + 2);
        if (length < 0 || (size_t)length >= sizeof one)
            return error_set(err, STATUS_BAD_INPUT, "routing: the path is too long");
        status rc = routing_trace_read(&r->traces[i], one, err);
        if (rc != STATUS_OK) return rc;
        r->n_traces++;
    }
    return engine_set_routing(r->e, r->traces, n, err);
}

/* --- the two measurements --- */

static model_stats stats_now(const run *r) {
    engine_stats stats;
    engine_read_stats(r->e, &stats);
    return stats.model;
}

static double tokens_of_users(const run *r) {
    double n = 0;
    for (uint32_t i = 0; i < r->b->n_users; i++)
        n += r->users[i].n_tokens;
    return n;
}

/* All decode; every step has a token of each. */
static status measure_decode(run *r, figures *f, error *err) {
    const bench_users *b = r->b;
    status rc = submit_all(r, err);
    if (rc == STATUS_OK) rc = decode_until(r, b->n_skip, err);
    if (rc != STATUS_OK) return rc;
    r->into = &f->quiet;
    model_stats before = stats_now(r);
    double n_tokens = -tokens_of_users(r);
    uint64_t n_experts = 0, n_steps = 0, begun_ns = clock_monotonic_ns();
    for (; r->n_over == 0; n_steps++) {
        if (r->traces != NULL) n_experts += count_union(r);
        rc = step(r, err);
        if (rc != STATUS_OK) return rc;
    }
    double took_ms = (double)(clock_monotonic_ns() - begun_ns) / 1e6;
    model_stats after = stats_now(r);
    r->into = NULL;
    n_tokens += tokens_of_users(r);
    double lookups = (double)(after.expert_lookups - before.expert_lookups);
    double hits = (double)(after.expert_hits - before.expert_hits);
    double n_layers = (double)n_steps * engine_model_config(r->e)->n_layers;
    bool has_cache = engine_n_slots(r->e) > 0 && lookups > 0;
    f->total_tok_per_s = n_tokens * 1e3 / took_ms;
    f->step_ms = took_ms / (double)n_steps;
    f->experts_per_layer_step = (r->traces != NULL ? (double)n_experts : lookups) / n_layers;
    f->hit_rate = has_cache ? hits / lookups : -1;
    f->misses_per_token = has_cache ? (lookups - hits) / n_tokens : 0;
    f->slot_bytes_per_token =
        (double)(after.expert_bytes_moved - before.expert_bytes_moved) / n_tokens;
    double on_lane = (double)(after.lane_experts - before.lane_experts);
    f->lane_experts_per_token = on_lane / n_tokens;
    f->lane_share = after.ship_us == 0 ? -1 : lookups > hits ? on_lane / (lookups - hits) : 0;
    f->lane_expert_us = after.lane_first_us[0];
    f->lane_layer_us = after.lane_more_us[0];
    f->ship_us = after.ship_us;
    return finish(r, err);
}

/* All decode, and a prompt comes. */
static status measure_beside(run *r, figures *f, error *err) {
    const bench_users *b = r->b;
    user *guest = &r->users[b->n_users];
    status rc = submit_all(r, err);
    if (rc == STATUS_OK) rc = decode_until(r, 8, err);
    if (rc == STATUS_OK) rc = submit(r, b->n_users, b->n_beside, 1, err);
    uint64_t begun_ns = clock_monotonic_ns(), n_slices = stats_now(r).slices;
    r->into = &f->beside;
    while (rc == STATUS_OK && !guest->over) {
        uint64_t step_ns = clock_monotonic_ns();
        if (r->n_over > 0) {
            return error_set(err, STATUS_BAD_INPUT,
                             "decode = %u: all was decoded before the prompt beside had run",
                             b->n_decode);
        }
        rc = step(r, err);
        double ms = (double)(clock_monotonic_ns() - step_ns) / 1e6;
        if (ms > f->longest_step_ms) f->longest_step_ms = ms;
    }
    r->into = NULL;
    f->beside_ms = (double)(clock_monotonic_ns() - begun_ns) / 1e6;
    f->beside_slices = (double)(stats_now(r).slices - n_slices);
    return rc == STATUS_OK ? finish(r, err) : rc;
}

/* --- the figures --- */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* of an ordered list; 0 of none. */
static double quantile(const gaps *g, double q) {
    if (g->n == 0) return 0;
    size_t at = (size_t)(q * (double)g->n);
    return g->ms[at < g->n ? at : g->n - 1];
}

static void print_figures(const run *r, figures *f) {
    const bench_users *b = r->b;
    qsort(f->quiet.ms, f->quiet.n, sizeof *f->quiet.ms, by_size);
    qsort(f->beside.ms, f->beside.n, sizeof *f->beside.ms, by_size);
    const double planned_mib = (double)engine_planned_vram(r->e) / 1048576;
    const double peak_mib = b->watch != NULL ? (double)vram_watch_peak(b->watch) / 1048576 : 0;
    const struct {
        const char *name;
        double value;
        bool shown;
    } rows[] = {
        {"users", b->n_users, true},
        {"total_tok_per_s", f->total_tok_per_s, true},
        {"user_tok_per_s", f->total_tok_per_s / b->n_users, true},
        {"step_ms", f->step_ms, true},
        {"gap_p50_ms", quantile(&f->quiet, 0.5), true},
        {"gap_p99_ms", quantile(&f->quiet, 0.99), true},
        {"experts_per_layer_step", f->experts_per_layer_step, f->experts_per_layer_step > 0},
        {"hit_rate", f->hit_rate, f->hit_rate >= 0},
        {"misses_per_token", f->misses_per_token, f->hit_rate >= 0},
        {"slot_bytes_per_token", f->slot_bytes_per_token, f->hit_rate >= 0},
        {"lane_experts_per_token", f->lane_experts_per_token, f->lane_share >= 0},
        {"lane_share", f->lane_share, f->lane_share >= 0},
        {"lane_step_expert_us", f->lane_expert_us, f->lane_share >= 0},
        {"lane_step_layer_us", f->lane_layer_us, f->lane_share >= 0},
        {"ship_us", f->ship_us, f->lane_share >= 0},
        {"vram_peak_mib", peak_mib, b->watch != NULL},
        {"vram_planned_mib", planned_mib, planned_mib > 0},
        {"slots", engine_n_slots(r->e), true},
        {"prompt_tokens", b->n_prompt, true},
        {"decode_tokens", b->n_decode, true},
        {"skipped_tokens", b->n_skip, b->n_skip > 0},
        {"beside_prompt_tokens", b->n_beside, b->n_beside > 0},
        {"beside_prompt_ms", f->beside_ms, b->n_beside > 0},
        {"beside_prompt_tok_per_s", f->beside_ms > 0 ? b->n_beside * 1e3 / f->beside_ms : 0,
         b->n_beside > 0},
        {"beside_gap_p50_ms", quantile(&f->beside, 0.5), b->n_beside > 0},
        {"beside_gap_p99_ms", quantile(&f->beside, 0.99), b->n_beside > 0},
        {"beside_gap_max_ms", quantile(&f->beside, 1), b->n_beside > 0},
        {"beside_longest_step_ms", f->longest_step_ms, b->n_beside > 0},
        {"beside_slices", f->beside_slices, b->n_beside > 0},
        {"step_max_ms", b->engine.max_step_ms, b->n_beside > 0},
    };
    if (b->json) (void)printf("{\"figures\": {");
    for (size_t i = 0, n = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!rows[i].shown) continue;
        const char *between = n++ == 0 ? "" : b->json ? ", " : "\n";
        (void)printf(b->json ? "%s\"%s\": %.10g" : "%s%-26s %.10g", between, rows[i].name,
                     rows[i].value);
    }
    (void)printf(b->json ? "}}\n" : "\n");
}

static status make_room(run *r, figures *f, error *err) {
    size_t cap = (size_t)r->b->n_users * r->b->n_decode;
    r->users = calloc(r->b->n_users + 1u, sizeof *r->users);
    f->quiet = (gaps){calloc(cap, sizeof(double)), 0, cap};
    f->beside = (gaps){calloc(cap, sizeof(double)), 0, cap};
    if (r->users == NULL || f->quiet.ms == NULL || f->beside.ms == NULL)
        return error_set(err, STATUS_NO_MEMORY, "bench: no memory for %zu gaps", cap);
    return STATUS_OK;
}

status bench_users_run(const bench_users *b, error *err) {
    figures f = {0};
    run r = {.b = b, .random = b->engine.seed};
    const engine_sink sink = {&r, take_tokens, take_done, take_error};
    status rc = make_room(&r, &f, err);
    if (rc == STATUS_OK) rc = engine_open(&r.e, &b->engine, &sink, err);
    if (rc != STATUS_OK) goto done;
    if (b->engine.backend == BACKEND_CUDA) (void)fputs(engine_plan_text(r.e), stderr);
    rc = read_traces(&r, err);
    if (rc == STATUS_OK) rc = measure_decode(&r, &f, err);
    if (rc == STATUS_OK && b->n_beside > 0) rc = measure_beside(&r, &f, err);
    if (rc == STATUS_OK) print_figures(&r, &f);
done:
    engine_close(r.e);
    for (uint32_t i = 0; i < r.n_traces; i++)
        routing_trace_release(&r.traces[i]);
    free(r.traces);
    free(f.beside.ms);
    free(f.quiet.ms);
    free(r.users);
    return rc;
}
