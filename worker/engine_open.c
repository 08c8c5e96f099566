/* engine_open.c - opens a model by plan, with all that its requests will need. */
#include "worker/engine_parts.h"

#include "common/clock.h"
#include "common/gguf.h"
#include "kernels/cpu/pool.h"
#include "worker/memory/host_ram.h"
#include "worker/model/weights.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void engine_tell_progress(const engine *e, uint32_t permille, const char *what) {
    const engine_progress p = {.permille = permille, .what = what};
    if (e->params.on_progress != NULL) e->params.on_progress(e->params.progress_context, &p);
}

enum { LOADING_FROM = 50, LOADING_TO = ENGINE_LOADED }; /* permille of the bytes */

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
        .park_bytes = e->params.park_mib < 0 ? -1 : e->params.park_mib << 20,
        .ram_bytes =
            e->params.ram_mib > 0 ? e->params.ram_mib << 20 : host_ram_available_bytes(),
        .backend = e->params.backend,
        .has_lane = e->params.lane != CPU_LANE_OFF,
        .prefix_ram_mib = e->params.prefix_ram_mib,
        .prefix_states = e->params.prefix_states,
    };
    status rc = plan_vram_budget(&wish, e->params.vram_mib, err);
    if (rc != STATUS_OK) return rc;
    rc = model_config_read(&geometry, e->file, err);
    if (rc != STATUS_OK) return rc;
    rc = engine_plan_guesses(&e->params, e->file, &geometry, &wish, err);
    if (rc != STATUS_OK) return rc;
    rc = model_weights_map(&weights, &geometry, e->file, err);
    if (rc == STATUS_OK) rc = plan_make(&e->plan, &geometry, &weights, &wish, err);
    model_weights_release(&weights);
    if (rc == STATUS_OK) (void)plan_print(&e->plan, e->plan_text, sizeof e->plan_text);
    if (rc == STATUS_OK) rc = engine_read_expert_list(e, &geometry, err);
    return rc;
}

static status open_model(engine *e, error *err) {
    model_params p = {
        .backend = e->params.backend,
        .n_threads = e->params.n_threads > 0 ? e->params.n_threads : pool_usable_cores(),
        .kv = e->params.kv,
        .activations = e->params.activations,
        .n_pages = e->plan.n_pages,
        .n_states = e->plan.n_states + e->plan.n_snapshots,
        .max_rows = e->plan.max_rows,
        .max_outputs = e->plan.max_outputs,
        .n_remembered = e->plan.n_remembered,
        .n_slots = e->plan.n_slots,
        .pin_experts = e->plan.pins_experts,
        .host_records = e->plan.host_records,
        .n_loaders = e->params.n_loaders,
        .expert_uses = e->expert_uses,
        .progress = {progress_of_bytes, e},
        .lane = e->params.lane,
        .inserts_per_layer = e->params.inserts_per_layer,
        .no_graphs = e->params.no_graphs,
        .poison = e->params.poison,
    };
    status rc = model_open(&e->model, e->file, &p, err);
    if (rc != STATUS_OK) return rc;
    engine_tell_expert_list(e);
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

/* The first token of a word: what an answer of it alone begins with. */
static status first_token(const engine *e, const char *text, int32_t *out, error *err) {
    token_list ids = {0};
    status rc = tokenizer_encode(e->vocab, text, strlen(text), TOKENIZER_ADDED_NONE, &ids, err);
    *out = rc == STATUS_OK && ids.length > 0 ? ids.ids[0] : 0;
    token_list_release(&ids);
    return rc;
}

static embedding_pooling choose_pooling(const engine *e) {
    char name[64];
    int64_t type = 0;
    if (e->params.pooling != POOLING_AUTO) return e->params.pooling;
    (void)snprintf(name, sizeof name, "%s.pooling_type", model_configuration(e->model)->arch);
    const gguf_key *key = gguf_find_key(e->file, name);
    return key != NULL && gguf_read_i64(key, &type) && type == 1 ? POOLING_MEAN : POOLING_LAST;
}

/* The file's end of a text, where it wants one behind each. */
static int32_t find_text_end(const engine *e) {
    const gguf_key *wants = gguf_find_key(e->file, "tokenizer.ggml.add_eos_token");
    const gguf_key *end = gguf_find_key(e->file, "tokenizer.ggml.eos_token_id");
    bool adds = false;
    int64_t id = -1;
    if (wants == NULL || !gguf_read_bool(wants, &adds) || !adds) return -1;
    if (end == NULL || !gguf_read_i64(end, &id) || id < 0 || id >= e->context.n_vocab)
        return -1;
    return (int32_t)id;
}

static status open_vectors(engine *e, error *err) {
    e->context.n_embd = model_configuration(e->model)->n_embd;
    e->context.pooling = choose_pooling(e);
    e->context.text_end = find_text_end(e);
    status rc = first_token(e, "yes", &e->context.yes, err);
    return rc == STATUS_OK ? first_token(e, "no", &e->context.no, err) : rc;
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
    if (rc == STATUS_OK) rc = open_vectors(e, err);
    return rc == STATUS_OK ? make_masks(e, err) : rc;
}

static status make_step_memory(engine *e, error *err) {
    uint32_t n_vocab = model_configuration(e->model)->n_vocab, n = e->params.n_sequences;
    status rc = kv_pages_new(&e->pages, e->plan.n_pages, err);
    if (rc != STATUS_OK) return rc;
    rc = parked_store_new(&e->parked, e->model, e->plan.park_bytes, err);
    if (rc != STATUS_OK) return rc;
    scheduler_cache remembering = {0};
    rc = engine_open_prefixes(e, &remembering, err);
    if (rc != STATUS_OK) return rc;
    const scheduler_params order = {.pages = e->pages,
                                    .n_sequences = n,
                                    .states_per_sequence = e->plan.states_each,
                                    .chunk_tokens = e->plan.chunk_tokens,
                                    .max_waiting = ENGINE_MAX_WAITING,
                                    .max_step_ms = e->params.max_step_ms,
                                    .n_layers = model_configuration(e->model)->n_layers,
                                    .is_linear = model_configuration(e->model)->is_linear,
                                    .memory = engine_memory_hooks(e),
                                    .cache = remembering};
    rc = scheduler_new(&e->scheduler, &order, err);
    if (rc != STATUS_OK) return rc;
    rc = sampler_scratch_new(&e->scratch, n_vocab, err);
    if (rc != STATUS_OK) return rc;
    e->pieces = calloc(n, sizeof *e->pieces);
    e->segments = calloc(n, sizeof *e->segments);
    e->logits = model_logits_memory(e->model);
    e->owns_logits = e->logits == NULL;
    if (e->owns_logits)
        e->logits = calloc((size_t)e->plan.max_outputs * n_vocab, sizeof *e->logits);
    e->hidden = calloc((size_t)e->plan.max_rows * model_configuration(e->model)->n_embd,
                       sizeof *e->hidden);
    e->cut_rows = calloc((size_t)SEQUENCE_CUT_PLACES * e->plan.chunk_tokens,
                         model_configuration(e->model)->n_embd * sizeof *e->cut_rows);
    e->raw_row = calloc(n_vocab, sizeof *e->raw_row);
    e->fork_row = calloc(n_vocab, sizeof *e->fork_row);
    e->best = calloc(e->plan.max_outputs, sizeof *e->best);
    if (e->pieces == NULL || e->segments == NULL || e->logits == NULL || e->hidden == NULL ||
        e->cut_rows == NULL || e->raw_row == NULL || e->fork_row == NULL || e->best == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "engine: no memory for steps");
    }
    return STATUS_OK;
}

static void choose_seed(engine *e) {
    e->seed = e->params.seed;
    if (e->seed == 0) (void)!getrandom(&e->seed, sizeof e->seed, 0);
}

status engine_open(engine **out, const engine_params *params, const engine_sink *sink,
                   error *err) {
    *out = NULL;
    engine *e = calloc(1, sizeof *e);
    if (e == NULL) return error_set(err, STATUS_NO_MEMORY, "engine: no memory");
    e->params = *params;
    e->context.sink = *sink;
    engine_tell_progress(e, 0, "reading the file");
    status rc = gguf_open(&e->file, params->model_path, err);
    if (rc != STATUS_OK) goto fail;
    gguf_hash(e->file, e->hash);
    rc = make_plan(e, err);
    if (rc != STATUS_OK) goto fail;
    e->loading_since_ms = clock_monotonic_ms();
    engine_tell_progress(e, LOADING_FROM, "loading the model");
    rc = open_model(e, err);
    if (rc != STATUS_OK) goto fail;
    engine_tell_progress(e, LOADING_TO, "reading the vocabulary");
    rc = open_text(e, err);
    if (rc != STATUS_OK) goto fail;
    rc = make_step_memory(e, err);
    if (rc != STATUS_OK) goto fail;
    choose_seed(e);
    rc = engine_warm_up(e, err);
    if (rc == STATUS_OK) rc = engine_open_guesses(e, err);
    if (rc != STATUS_OK) goto fail;
    rc = engine_poison_begin(e, err);
    if (rc != STATUS_OK) goto fail;
    model_read_stats(e->model, &e->before);
    engine_tell_progress(e, 1000, "ready");
    *out = e;
    return STATUS_OK;
fail:
    engine_close(e);
    return rc;
}

void engine_close(engine *e) {
    if (e == NULL) return;
    request_fault closing =
        engine_fault(503, "shutting_down", true, STATUS_UNAVAILABLE, "the worker is closing");
    for (request *r = e->requests; r != NULL; r = r->next) {
        if (!r->over) engine_end_request(e, r, &closing);
    }
    engine_sweep(e);
    engine_forget_answered(e);
    engine_save_expert_list(e);
    free(e->expert_uses);
    free(e->masked);
    free(e->best);
    free(e->fork_row);
    free(e->raw_row);
    free(e->cut_rows);
    free(e->hidden);
    if (e->owns_logits) free(e->logits);
    free(e->segments);
    free(e->pieces);
    sampler_scratch_free(e->scratch);
    speculate_free(e->guesses);
    free(e->decoding);
    free(e->states_after);
    scheduler_free(e->scheduler);
    parked_store_free(e->parked);
    prefix_cache_close(e->prefixes);
    kv_pages_free(e->pages);
    free(e->poison); /* pages given back until here are filled with it */
    token_trie_free(e->trie);
    tokenizer_close(e->vocab);
    model_close(e->model);
    gguf_close(e->file);
    free(e);
}
