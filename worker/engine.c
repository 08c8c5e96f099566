/* engine.c - opens a model by plan, takes requests, and steps for all that run. */
#include "worker/engine.h"

#include "common/clock.h"
#include "common/gguf.h"
#include "kernels/cpu/pool.h"
#include "worker/engine_rates.h"
#include "worker/memory/host_ram.h"
#include "worker/memory/kv_pages.h"
#include "worker/memory/plan.h"
#include "worker/model/weights.h"
#include "worker/request.h"
#include "worker/request_format.h"
#include "worker/scheduler.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { MAX_WAITING = 256, RAM_READ_MS = 1000, MAX_WARNINGS = 4 };

struct engine {
    engine_params params;
    gguf_file *file;
    char hash[33];
    char numerics[64];
    tokenizer *vocab;
    token_trie *trie;
    memory_plan plan;
    char plan_text[2048];
    char warnings[MAX_WARNINGS][CHAT_WARNING_SIZE];
    size_t n_warnings;
    model *model;
    kv_pages *pages;
    scheduler *scheduler;
    request_context context;
    request *requests; /* newest first */
    uint64_t loading_since_ms;
    uint64_t seed;
    uint64_t n_submitted;
    /* of a step */
    scheduler_piece *pieces;
    model_segment *segments;
    float *logits;
    bool owns_logits; /* else the model does */
    model_best *best; /* [max_outputs], where a step wants no more */
    float *raw_row;   /* a row as the model gave it, for log probabilities */
    sampler_scratch *scratch;
    int32_t *masked; /* see make_masks() */
    size_t n_masked, n_masked_with_ends, n_masked_to_speak;
    model_stats before;
    engine_rates rates;
    uint64_t ram_read_ms;
    uint64_t ram_used_bytes;
};

/* --- open --- */

static void progress(const engine *e, uint32_t permille, const char *what) {
    const engine_progress p = {.permille = permille, .what = what};
    if (e->params.on_progress != NULL) e->params.on_progress(e->params.progress_context, &p);
}

enum { LOADING_FROM = 50, LOADING_TO = 900 }; /* permille of the bytes */

static void progress_of_bytes(void *context, uint64_t n_bytes, uint64_t n_total) {
    const engine *e = context;
    if (n_total == 0 || e->params.on_progress == NULL) return;
    double share = (double)n_bytes / (double)n_total;
    uint64_t spent_ms = clock_monotonic_ms() - e->loading_since_ms;
    const engine_progress p = {
        .permille = LOADING_FROM + (uint32_t)(share * (LOADING_TO - LOADING_FROM)),
        .what = "loading the model",
        .n_bytes = n_bytes,
        .n_total = n_total,
        .left_ms = share > 0 ? (uint64_t)((double)spent_ms * (1 - share) / share) : 0};
    e->params.on_progress(e->params.progress_context, &p);
}

static status make_plan(engine *e, error *err) {
    model_config geometry;
    model_weights weights = {0};
    plan_request wish = {
        .n_context = e->params.n_context,
        .n_sequences = e->params.n_sequences,
        .chunk_tokens = e->params.chunk_tokens,
        .kv = e->params.kv,
        .n_slots = e->params.n_slots,
        .ram_bytes =
            e->params.ram_mib > 0 ? e->params.ram_mib << 20 : host_ram_available_bytes(),
        .backend = e->params.backend,
    };
    status rc = plan_vram_budget(&wish, e->params.vram_mib, err);
    if (rc != STATUS_OK) return rc;
    rc = model_config_read(&geometry, e->file, err);
    if (rc != STATUS_OK) return rc;
    rc = model_weights_map(&weights, &geometry, e->file, err);
    if (rc == STATUS_OK) rc = plan_make(&e->plan, &geometry, &weights, &wish, err);
    model_weights_release(&weights);
    if (rc == STATUS_OK) (void)plan_print(&e->plan, e->plan_text, sizeof e->plan_text);
    return rc;
}

static status open_model(engine *e, error *err) {
    model_params p = {
        .backend = e->params.backend,
        .n_threads = e->params.n_threads > 0 ? e->params.n_threads : pool_usable_cores(),
        .kv = e->params.kv,
        .activations = e->params.activations,
        .n_pages = e->plan.n_pages,
        .n_states = e->plan.n_states,
        .max_rows = e->plan.max_rows,
        .max_outputs = e->plan.max_outputs,
        .n_slots = e->plan.n_slots,
        .pin_experts = e->plan.pins_experts,
        .host_records = e->plan.host_records,
        .n_loaders = e->params.n_loaders,
        .progress = {progress_of_bytes, e},
        .lane = e->params.lane,
        .inserts_per_layer = e->params.inserts_per_layer,
        .no_graphs = e->params.no_graphs,
    };
    status rc = model_open(&e->model, e->file, &p, err);
    if (rc != STATUS_OK) return rc;
    model_numerics_id(e->model, e->numerics, sizeof e->numerics);
    return STATUS_OK;
}

static void recognise_template(engine *e) {
    gguf_string text = {"", 0};
    const gguf_key *key = gguf_find_key(e->file, "tokenizer.chat_template");
    if (key != NULL) (void)gguf_read_string(key, &text);
    e->context.style =
        chat_template_recognise(text.bytes, text.length, e->warnings[e->n_warnings]);
    if (e->warnings[e->n_warnings][0] != '\0') e->n_warnings++;
}

/* The token that a text is, or -1. */
static status one_token(engine *e, const char *text, int32_t *out, error *err) {
    token_list ids = {0};
    status rc = tokenizer_encode(e->vocab, text, strlen(text), TOKENIZER_ADDED_NONE, &ids, err);
    *out = rc == STATUS_OK && ids.length == 1 ? ids.ids[0] : -1;
    token_list_release(&ids);
    return rc;
}

/* How the engine closes a deliberation: as the templates do. */
static status find_closing(engine *e, error *err) {
    status rc = one_token(e, "\n", &e->context.closing[0], err);
    e->context.closing[1] = tokenizer_find(e->vocab, "</think>");
    if (rc == STATUS_OK) rc = one_token(e, "\n\n", &e->context.closing[2], err);
    return rc;
}

/* What sampling must never choose; behind it what ends a text, for requests that ask not to
 * end; and <think>, for an answer that must begin. */
static status make_masks(engine *e, error *err) {
    size_t n = 0, n_tokens = tokenizer_n_tokens(e->vocab);
    const int32_t *never = tokenizer_masked(e->vocab, &n);
    e->masked = malloc((n + n_tokens + 2) * sizeof *e->masked);
    if (e->masked == NULL) return error_set(err, STATUS_NO_MEMORY, "engine: no memory");
    for (size_t i = 0; i < n; i++) {
        if ((uint32_t)never[i] < e->context.n_vocab) e->masked[e->n_masked++] = never[i];
    }
    e->n_masked_with_ends = e->n_masked;
    e->context.max_token_bytes = 1;
    for (int32_t id = 0; id < (int32_t)e->context.n_vocab; id++) {
        size_t length = 0;
        (void)tokenizer_bytes(e->vocab, id, &length);
        if (length > e->context.max_token_bytes) e->context.max_token_bytes = length;
        if (tokenizer_is_end(e->vocab, id)) e->masked[e->n_masked_with_ends++] = id;
    }
    int32_t opening = tokenizer_find(e->vocab, "<think>");
    e->n_masked_to_speak = e->n_masked_with_ends;
    if (opening >= 0 && (uint32_t)opening < e->context.n_vocab)
        e->masked[e->n_masked_to_speak++] = opening;
    return STATUS_OK;
}

static status open_text(engine *e, error *err) {
    status rc = tokenizer_open(&e->vocab, e->file, e->params.nfc, err);
    if (rc != STATUS_OK) return rc;
    recognise_template(e);
    size_t n_tokens = tokenizer_n_tokens(e->vocab);
    uint32_t n_vocab = model_configuration(e->model)->n_vocab;
    e->context.vocab = e->vocab;
    e->context.n_context = e->plan.n_context;
    e->context.n_vocab = n_tokens < n_vocab ? (uint32_t)n_tokens : n_vocab;
    job_default_sampling(&e->context.defaults, e->file);
    e->context.budgets = e->params.budgets;
    rc = token_trie_new(&e->trie, e->vocab, e->context.n_vocab, err);
    if (rc != STATUS_OK) return rc;
    e->context.trie = e->trie;
    rc = find_closing(e, err);
    return rc == STATUS_OK ? make_masks(e, err) : rc;
}

static status make_step_memory(engine *e, error *err) {
    uint32_t n_vocab = model_configuration(e->model)->n_vocab, n = e->plan.n_states;
    status rc = kv_pages_new(&e->pages, e->plan.n_pages, err);
    if (rc != STATUS_OK) return rc;
    rc = scheduler_new(&e->scheduler, e->pages, n, e->plan.chunk_tokens, MAX_WAITING, err);
    if (rc != STATUS_OK) return rc;
    rc = sampler_scratch_new(&e->scratch, n_vocab, err);
    if (rc != STATUS_OK) return rc;
    e->pieces = calloc(n, sizeof *e->pieces);
    e->segments = calloc(n, sizeof *e->segments);
    e->logits = model_logits_memory(e->model);
    e->owns_logits = e->logits == NULL;
    if (e->owns_logits)
        e->logits = calloc((size_t)e->plan.max_outputs * n_vocab, sizeof *e->logits);
    e->raw_row = calloc(n_vocab, sizeof *e->raw_row);
    e->best = calloc(e->plan.max_outputs, sizeof *e->best);
    if (e->pieces == NULL || e->segments == NULL || e->logits == NULL || e->raw_row == NULL ||
        e->best == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "engine: no memory for steps");
    }
    return STATUS_OK;
}

static void choose_seed(engine *e) {
    e->seed = e->params.seed;
    if (e->seed == 0) (void)!getrandom(&e->seed, sizeof e->seed, 0);
}

/* One row through everything: pages of the backbone come in, threads start. */
static status warm_up(engine *e, error *err) {
    const int32_t token = 0;
    const uint32_t page = 0;
    model_segment one = {
        .state = 0, .tokens = &token, .n_tokens = 1, .pages = &page, .n_outputs = 1};
    model_state_clear(e->model, 0);
    return model_step(e->model, &one, 1, e->logits, err);
}

status engine_open(engine **out, const engine_params *params, const engine_sink *sink,
                   error *err) {
    *out = NULL;
    engine *e = calloc(1, sizeof *e);
    if (e == NULL) return error_set(err, STATUS_NO_MEMORY, "engine: no memory");
    e->params = *params;
    e->context.sink = *sink;
    progress(e, 0, "reading the file");
    status rc = gguf_open(&e->file, params->model_path, err);
    if (rc != STATUS_OK) goto fail;
    rc = make_plan(e, err);
    if (rc != STATUS_OK) goto fail;
    gguf_hash(e->file, e->hash);
    e->loading_since_ms = clock_monotonic_ms();
    progress(e, LOADING_FROM, "loading the model");
    rc = open_model(e, err);
    if (rc != STATUS_OK) goto fail;
    progress(e, LOADING_TO, "reading the vocabulary");
    rc = open_text(e, err);
    if (rc != STATUS_OK) goto fail;
    rc = make_step_memory(e, err);
    if (rc != STATUS_OK) goto fail;
    choose_seed(e);
    progress(e, 950, "warming up");
    rc = warm_up(e, err);
    if (rc != STATUS_OK) goto fail;
    model_read_stats(e->model, &e->before);
    progress(e, 1000, "ready");
    *out = e;
    return STATUS_OK;
fail:
    engine_close(e);
    return rc;
}

/* --- requests --- */

static void end_request(engine *e, request *r, const request_fault *fault) {
    for (uint32_t i = 0; i < r->n_choices; i++)
        scheduler_remove(e->scheduler, &r->choices[i].timeline);
    if (fault != NULL) {
        request_fail(r, fault);
    } else {
        request_done(r, e->plan.n_slots > 0);
    }
}

/* Free what is over.  Not while pieces of a step may still point to it. */
static void sweep(engine *e) {
    for (request **at = &e->requests; *at != NULL;) {
        request *r = *at;
        if (!r->over) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        request_free(r);
    }
}

static request_fault make_fault(uint32_t http_status, const char *code, bool retryable,
                                status rc, const char *text) {
    request_fault f = {.http_status = http_status, .code = code, .retryable = retryable};
    error_record(&f.err, rc, "%s", text);
    return f;
}

static request *find_request(engine *e, uint64_t id, uint64_t epoch) {
    for (request *r = e->requests; r != NULL; r = r->next) {
        if (r->id == id && r->epoch == epoch && !r->over) return r;
    }
    return NULL;
}

void engine_close(engine *e) {
    if (e == NULL) return;
    request_fault closing =
        make_fault(503, "shutting_down", true, STATUS_UNAVAILABLE, "the worker is closing");
    for (request *r = e->requests; r != NULL; r = r->next) {
        if (!r->over) end_request(e, r, &closing);
    }
    sweep(e);
    free(e->masked);
    free(e->best);
    free(e->raw_row);
    if (e->owns_logits) free(e->logits);
    free(e->segments);
    free(e->pieces);
    sampler_scratch_free(e->scratch);
    scheduler_free(e->scheduler);
    kv_pages_free(e->pages);
    token_trie_free(e->trie);
    tokenizer_close(e->vocab);
    model_close(e->model);
    gguf_close(e->file);
    free(e);
}

static void start_request(engine *e, request *r) {
    r->next = e->requests;
    e->requests = r;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        if (request_finish_if_over(r, &r->choices[i])) continue;
        bool taken = scheduler_submit(e->scheduler, &r->choices[i].timeline);
        CHECK(taken);
    }
    if (r->n_open == 0) end_request(e, r, NULL); /* a count, or a resume that was over */
    sweep(e);
}

status engine_submit(engine *e, const wire_submit *submit, error *err) {
    if (find_request(e, submit->request, submit->epoch) != NULL) {
        return error_set(err, STATUS_BAD_INPUT,
                         "request %" PRIu64 " epoch %" PRIu64 " runs already", submit->request,
                         submit->epoch);
    }
    if (!scheduler_has_room(e->scheduler, 1)) {
        return error_set(err, STATUS_UNAVAILABLE, "queue: %u sequences wait already",
                         scheduler_n_waiting(e->scheduler));
    }
    request *r = NULL;
    request_fault fault;
    /* A coordinator's seed holds on every node, so that a resume draws on. */
    uint64_t seed =
        submit->seed != 0 ? submit->seed : e->seed + 0x9E3779B97F4A7C15u * e->n_submitted;
    status rc = request_make(&r, &e->context, submit, seed, &fault);
    if (rc == STATUS_NO_MEMORY) return error_set(err, rc, "%s", fault.err.text);
    if (rc != STATUS_OK) {
        request_refuse(&e->context, submit, &fault);
        return STATUS_OK;
    }
    if (!scheduler_has_room(e->scheduler, r->n_choices)) {
        uint32_t n = r->n_choices;
        request_free(r);
        return error_set(err, STATUS_UNAVAILABLE,
                         "queue: %u sequences wait, no room for %u more",
                         scheduler_n_waiting(e->scheduler), n);
    }
    e->n_submitted++;
    start_request(e, r);
    return STATUS_OK;
}

bool engine_cancel(engine *e, uint64_t id, uint64_t epoch) {
    request *r = find_request(e, id, epoch);
    if (r == NULL) return false;
    request_fault f = make_fault(499, "cancelled", false, STATUS_CANCELLED, "cancelled");
    end_request(e, r, &f);
    sweep(e);
    return true;
}

static void end_late_requests(engine *e, uint64_t now_ns) {
    for (request *r = e->requests; r != NULL; r = r->next) {
        if (r->over || r->deadline_ns == 0 || now_ns < r->deadline_ns) continue;
        request_fault f = make_fault(504, "deadline_exceeded", false, STATUS_TIMEOUT,
                                     "the deadline has passed");
        end_request(e, r, &f);
    }
    sweep(e);
}

/* --- the step --- */

static choice *choice_of(const scheduler_piece *piece) {
    request *r = piece->who->owner;
    return &r->choices[piece->who->choice];
}

/* Segments of the model for the pieces; the number of rows is returned. */
static uint32_t make_segments(engine *e, size_t n, uint64_t now_ns) {
    uint32_t n_rows = 0;
    for (size_t i = 0; i < n; i++) {
        sequence *who = e->pieces[i].who;
        request *r = who->owner;
        if (r->started_ns == 0) r->started_ns = now_ns;
        if (who->n_run == 0) model_state_clear(e->model, who->state);
        e->segments[i] = (model_segment){.state = who->state,
                                         .position = who->n_run,
                                         .tokens = who->tokens + who->n_run,
                                         .n_tokens = e->pieces[i].n_tokens,
                                         .pages = who->pages,
                                         .n_outputs = e->pieces[i].wants_logits ? 1 : 0};
        n_rows += e->pieces[i].n_tokens;
    }
    return n_rows;
}

static void fail_step(engine *e, size_t n, const error *cause) {
    request_fault f = make_fault(500, "device_error", true, cause->code, cause->text);
    for (size_t i = 0; i < n; i++) {
        request *r = e->pieces[i].who->owner;
        if (!r->over) end_request(e, r, &f);
    }
    sweep(e);
}

static void count_step(engine *e, size_t n, uint32_t n_rows, uint64_t begun_ns) {
    model_stats now;
    model_read_stats(e->model, &now);
    uint64_t lookups = now.expert_lookups - e->before.expert_lookups;
    uint64_t hits = now.expert_hits - e->before.expert_hits;
    e->before = now;
    engine_rates_step step = {
        .ended_ns = clock_monotonic_ns(), .expert_lookups = lookups, .expert_hits = hits};
    step.took_ns = step.ended_ns - begun_ns;
    for (size_t i = 0; i < n; i++) {
        request *r = e->pieces[i].who->owner;
        uint32_t rows = e->pieces[i].n_tokens;
        r->expert_lookups += lookups;
        r->expert_hits += hits;
        r->expert_misses += (double)(lookups - hits) * rows / n_rows;
        r->rows += rows;
        bool is_prompt = e->pieces[i].who->n_run < e->pieces[i].who->n_prompt;
        *(is_prompt ? &step.n_prompt : &step.n_decoded) += rows;
    }
    engine_rates_add(&e->rates, &step);
}

static size_t count_masked(const engine *e, const request *r, const choice *c) {
    if (request_format_holds(c)) return e->n_masked; /* it knows where the text may end */
    if (request_must_speak(c)) return e->n_masked_to_speak;
    return r->job.ignore_end ? e->n_masked_with_ends : e->n_masked;
}

/* Whether nobody needs more of a step's logits than the largest of each row. */
static bool wants_best_alone(const engine *e, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const request *r = e->pieces[i].who->owner;
        if (!e->pieces[i].wants_logits) continue;
        const choice *c = choice_of(&e->pieces[i]);
        if (r->job.logprobs) return false;
        if (request_forced(c) < 0 && !sampler_is_plain(c->draws)) return false;
    }
    return model_finds_best(e->model);
}

/* Whether every row's best may be taken: a number, and not masked. */
static bool best_will_do(const engine *e, size_t n) {
    const model_best *best = e->best;
    for (size_t i = 0; i < n; i++) {
        if (!e->pieces[i].wants_logits) continue;
        choice *c = choice_of(&e->pieces[i]);
        size_t n_masked = count_masked(e, e->pieces[i].who->owner, c);
        if (request_forced(c) >= 0) {
            best++;
            continue;
        }
        if (best->id < 0 || isinf(best->logit)) return false;
        if (request_format_holds(c) && !request_format_allows(c, best->id)) return false;
        for (size_t j = 0; j < n_masked; j++) {
            if (e->masked[j] == best->id) return false;
        }
        best++;
    }
    return true;
}

/* Run the step.  *best: of each row that wants logits; NULL where they are in e->logits. */
static status run_model(engine *e, size_t n, const model_best **best, error *err) {
    *best = NULL;
    if (!wants_best_alone(e, n)) return model_step(e->model, e->segments, n, e->logits, err);
    status rc = model_step_best(e->model, e->segments, n, e->context.n_vocab, e->best, err);
    if (rc != STATUS_OK) return rc;
    if (!best_will_do(e, n)) return model_read_logits(e->model, e->logits, err);
    *best = e->best;
    return STATUS_OK;
}

/* A token of a row.  Taking the largest, most answers fit their format by themselves: it is
 * tested alone first.  Any other choice is made among what the format allows. */
static int32_t pick(engine *e, const request *r, choice *c, float *logits) {
    uint32_t n_vocab = e->context.n_vocab;
    size_t n_masked = count_masked(e, r, c);
    bool formed = request_format_holds(c), plain = sampler_is_plain(c->draws);
    if (formed && !plain) request_format_mask(c, logits, n_vocab);
    int32_t id = sampler_pick(c->draws, e->scratch, logits, n_vocab, e->masked, n_masked);
    if (id < 0 || !formed || !plain || request_format_allows(c, id)) return id;
    request_format_mask(c, logits, n_vocab);
    return sampler_pick(c->draws, e->scratch, logits, n_vocab, e->masked, n_masked);
}

/* best: what the model says of the row, NULL where its logits are here. */
static void take_row(engine *e, const scheduler_piece *piece, float *logits,
                     const model_best *best) {
    request *r = piece->who->owner;
    choice *c = choice_of(piece);
    uint32_t n_vocab = e->context.n_vocab;
    if (r->job.logprobs) memcpy(e->raw_row, logits, n_vocab * sizeof *logits);
    int32_t id = request_forced(c);
    if (id < 0 && best != NULL) {
        id = request_settle(r, c, best->id);
    } else if (id < 0) {
        id = pick(e, r, c, logits);
        if (id >= 0) id = request_settle(r, c, id);
    }
    if (id < 0) {
        request_fault f = make_fault(500, "model_error", true, STATUS_DEVICE,
                                     "the model gave no number for any token");
        end_request(e, r, &f);
        return;
    }
    if (r->job.logprobs) request_note_logprobs(r, e->scratch, e->raw_row, id);
    bool lost = r->logprobs.failed;
    if (!request_take(r, c, id)) scheduler_remove(e->scheduler, &c->timeline);
    if (lost || c->text.failed) {
        request_fault f =
            make_fault(503, "out_of_memory", true, STATUS_NO_MEMORY, "no memory for the text");
        end_request(e, r, &f);
    } else if (r->n_open == 0) {
        end_request(e, r, NULL);
    }
}

status engine_step(engine *e, bool *did_work, error *err) {
    uint64_t begun_ns = clock_monotonic_ns();
    *did_work = false;
    end_late_requests(e, begun_ns);
    size_t n = scheduler_plan(e->scheduler, e->pieces);
    if (n == 0) return STATUS_OK;
    *did_work = true;
    uint32_t n_rows = make_segments(e, n, begun_ns);
    error cause = {0};
    const model_best *best = NULL;
    status rc = run_model(e, n, &best, &cause);
    if (rc != STATUS_OK) {
        fail_step(e, n, &cause);
        return error_set(err, rc, "%s", cause.text);
    }
    count_step(e, n, n_rows, begun_ns);
    float *row = e->logits;
    for (size_t i = 0; i < n; i++) {
        const scheduler_piece *piece = &e->pieces[i];
        piece->who->n_run += piece->n_tokens;
        const request *r = piece->who->owner;
        if (!piece->wants_logits) continue;
        if (!r->over) take_row(e, piece, row, best);
        row += model_configuration(e->model)->n_vocab;
        if (best != NULL) best++;
    }
    sweep(e);
    return STATUS_OK;
}

/* --- figures --- */

void engine_read_stats(engine *e, engine_stats *out) {
    uint64_t now_ms = clock_monotonic_ms();
    if (e->ram_read_ms == 0 || now_ms - e->ram_read_ms >= RAM_READ_MS) {
        e->ram_read_ms = now_ms;
        e->ram_used_bytes = host_ram_used_bytes();
    }
    memset(out, 0, sizeof *out);
    out->running = scheduler_n_running(e->scheduler);
    out->waiting = scheduler_n_waiting(e->scheduler);
    out->free_sequences = scheduler_n_free_states(e->scheduler);
    out->kv_pages_total = kv_pages_total(e->pages);
    out->kv_pages_free = kv_pages_available(e->pages);
    out->ram_used_bytes = e->ram_used_bytes;
    model_read_stats(e->model, &out->model);
    engine_rates_read(&e->rates, clock_monotonic_ns(), out);
    if (e->plan.n_slots == 0) {
        out->hit_rate = -1;
        out->misses_per_token = 0;
    }
}

/* Pseudo-random ids, so that experts and pages are used as a text would use them. */
static void fill_ids(int32_t *ids, uint32_t n, uint32_t n_vocab) {
    uint32_t x = 2463534242u;
    for (uint32_t i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        ids[i] = (int32_t)(x % n_vocab);
    }
}

/* Run one segment of state 0 again and again for budget_ns or until the pages are full. */
static status measure(engine *e, model_segment *s, uint32_t cap_tokens, uint64_t budget_ns,
                      double *tok_per_s, error *err) {
    uint64_t begun = clock_monotonic_ns(), now = begun;
    uint32_t n_run = 0;
    while (s->position + s->n_tokens <= cap_tokens && (n_run == 0 || now - begun < budget_ns)) {
        status rc = model_step(e->model, s, 1, e->logits, err);
        if (rc != STATUS_OK) return rc;
        s->position += s->n_tokens;
        n_run += s->n_tokens;
        now = clock_monotonic_ns();
    }
    *tok_per_s = now > begun ? n_run * 1e9 / (double)(now - begun) : 0;
    return STATUS_OK;
}

status engine_measure(engine *e, uint32_t budget_ms, double *prefill_tok_per_s,
                      double *decode_tok_per_s, error *err) {
    if (e->requests != NULL) {
        return error_set(err, STATUS_UNAVAILABLE, "measure: the engine is not empty");
    }
    /* Nobody owns a page or state now, so all are taken as they come. */
    uint32_t cap = e->plan.n_context, n = e->plan.chunk_tokens;
    if (n > cap / 2) n = cap / 2;
    int32_t *ids = calloc(n, sizeof *ids);
    uint32_t *pages = calloc(e->plan.n_pages, sizeof *pages);
    status rc = STATUS_OK;
    if (ids == NULL || pages == NULL) {
        rc = error_set(err, STATUS_NO_MEMORY, "measure: no memory");
        goto done;
    }
    fill_ids(ids, n, e->context.n_vocab);
    for (uint32_t i = 0; i < e->plan.n_pages; i++)
        pages[i] = i;
    model_segment s = {.tokens = ids, .n_tokens = n, .pages = pages, .n_outputs = 1};
    uint64_t half_ns = (uint64_t)budget_ms * 500000u;
    if (s.n_tokens > MODEL_CHUNK_TOKENS) s.n_tokens = MODEL_CHUNK_TOKENS;
    model_state_clear(e->model, 0);
    rc = measure(e, &s, cap / 2, 0, prefill_tok_per_s, err);
    if (rc != STATUS_OK) goto done;
    /* A whole step is what prompts get, if this machine does one in the time given. */
    if (n * 1e9 / *prefill_tok_per_s < (double)half_ns && s.position + n <= cap / 2) {
        s.n_tokens = n;
        rc = measure(e, &s, cap / 2, half_ns, prefill_tok_per_s, err);
        if (rc != STATUS_OK) goto done;
    }
    s.n_tokens = 1;
    rc = measure(e, &s, cap, half_ns, decode_tok_per_s, err);
    model_read_stats(e->model, &e->before);
done:
    free(pages);
    free(ids);
    return rc;
}

const model_config *engine_model_config(const engine *e) {
    return model_configuration(e->model);
}

const char *engine_file_hash(const engine *e) {
    return e->hash;
}

const char *engine_numerics_id(const engine *e) {
    return e->numerics;
}

uint32_t engine_context_tokens(const engine *e) {
    return e->plan.n_context;
}

uint32_t engine_n_slots(const engine *e) {
    return e->plan.n_slots;
}

const char *engine_plan_text(const engine *e) {
    return e->plan_text;
}

const char *engine_warning(const engine *e, size_t index) {
    return index < e->n_warnings ? e->warnings[index] : NULL;
}

status engine_set_routing(engine *e, const routing_trace *trace, error *err) {
    return model_set_routing(e->model, trace, err);
}

void engine_forget_experts(engine *e) {
    model_forget_experts(e->model);
}
