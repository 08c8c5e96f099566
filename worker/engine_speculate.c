/* engine_speculate.c - what the engine's settings mean for speculation, and who gets guesses. */
#include "worker/engine_parts.h"

#include "common/clock.h"
#include "common/log.h"
#include "kernels/cpu/pool.h"
#include "worker/backend.h"
#include <stdio.h>
#include <stdlib.h>

enum {
    USUAL_DEPTH = 8,  /* of guesses that cost time; look-up may go to the limit */
    STEP_GUESSES = 8, /* for each sequence, where all guess; one alone may take all of them */
    SHARE_OF_RAM = 32,
    MEASURE_ROUNDS = 4,
    MEASURE_AGAIN = 3, /* steps of as many rows, one after the other; the last counts */
    MEASURE_MS = 250,
    MEASURE_IDS = 512,
    LONG_MS = 10,
    BLOCK_ROWS = 256,
    CUDA_GUESSES = 4, /* where nobody says how many: a state each, in VRAM */
    MOST_AUTO_CONTEXT = 32768
};

/* Guesses of all sequences in a step, where one may have up to depth: rows are cheaper the more
 * there are, but each takes memory for its logits. */
static uint32_t guesses_of_step(const engine_params *p, uint32_t depth) {
    uint32_t each = depth < STEP_GUESSES ? depth : STEP_GUESSES, all = each * p->n_sequences;
    return all > depth ? all : depth;
}

/* What guesses that nobody asked for take must not be much: a state more for each sequence, and
 * for each row of a step what is remembered of it and its logits. */
static uint32_t depth_that_fits(const engine_params *p, const model_config *c,
                                const plan_request *wish, uint32_t depth) {
    uint64_t states = (uint64_t)p->n_sequences * model_config_state_bytes(c);
    uint64_t row = plan_remembered_bytes(c) + (uint64_t)c->n_vocab * sizeof(float);
    uint64_t most = wish->ram_bytes / SHARE_OF_RAM;
    while (depth > 0 && states + guesses_of_step(p, depth) * row > most)
        depth--;
    return depth;
}

/* A draft and the block run a row for every guess, and a draft keeps its state. */
static uint32_t dear_depth(const engine_params *p, uint32_t n_guesses) {
    return p->draft_tokens > 0 || n_guesses < USUAL_DEPTH ? n_guesses : USUAL_DEPTH;
}

static backend_kind draft_backend(const engine_params *p) {
    return p->backend == BACKEND_CUDA && p->draft_gpu_layers != 0 ? BACKEND_CUDA : BACKEND_CPU;
}

static drafter_model_params params_of_draft(const engine *e) {
    const engine_params *p = &e->params;
    return (drafter_model_params){.path = p->draft_path,
                                  .target = e->file,
                                  .backend = draft_backend(p),
                                  .n_gpu_layers = p->draft_gpu_layers,
                                  .n_threads =
                                      p->n_threads > 0 ? p->n_threads : pool_usable_cores(),
                                  .kv = p->kv,
                                  .activations = p->activations,
                                  .n_places = p->n_sequences,
                                  .n_context = e->plan.n_context,
                                  .n_pages = e->plan.n_pages,
                                  .depth = dear_depth(p, e->plan.n_guesses),
                                  .n_vocab = e->context.n_vocab};
}

static bool wants(const engine_params *p, speculate_wish kind) {
    return p->speculate == kind || p->speculate == SPECULATE_AUTO;
}

static bool wants_draft(const engine_params *p) {
    const char *path = p->draft_path;
    return wants(p, SPECULATE_DRAFT) && path != NULL && *path != '\0';
}

/* Metadata may promise a block that the file does not have (spec 2.3). */
static bool has_block(const gguf_file *file, const model_config *c) {
    char name[64];
    (void)snprintf(name, sizeof name, "blk.%u.nextn.eh_proj.weight", c->n_layers);
    return c->n_mtp_layers > 0 && gguf_find_tensor(file, name) != NULL;
}

/* Without what is known of an open engine alone. */
static drafter_mtp_params params_of_block(const engine_params *p, const gguf_file *file,
                                          uint32_t n_guesses) {
    uint32_t held = 1 + n_guesses, most = p->n_sequences * held;
    return (drafter_mtp_params){.file = file,
                                .backend = draft_backend(p),
                                .n_threads =
                                    p->n_threads > 0 ? p->n_threads : pool_usable_cores(),
                                .kv = p->kv,
                                .activations = p->activations,
                                .n_places = p->n_sequences,
                                .cap_held = held,
                                .max_rows = most > BLOCK_ROWS ? most : BLOCK_ROWS};
}

/* Pages that a model on the GPU may get at most. */
static uint32_t most_pages(const engine_params *p, const model_config *c) {
    uint32_t context = p->n_context > 0 ? p->n_context : c->n_context;
    if (p->n_context == 0 && context > MOST_AUTO_CONTEXT) context = MOST_AUTO_CONTEXT;
    return (context + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS * p->n_sequences;
}

/* On the GPU it is planned with as many pages as the model may get at most. */
static status plan_draft_vram(const engine_params *p, const gguf_file *target,
                              const model_config *c, plan_request *wish, error *err) {
    uint32_t context = p->n_context > 0 ? p->n_context : c->n_context;
    if (p->n_context == 0 && context > MOST_AUTO_CONTEXT) context = MOST_AUTO_CONTEXT;
    const drafter_model_params draft = {.path = p->draft_path,
                                        .target = target,
                                        .backend = BACKEND_CUDA,
                                        .n_gpu_layers = p->draft_gpu_layers,
                                        .kv = p->kv,
                                        .activations = p->activations,
                                        .n_places = p->n_sequences,
                                        .n_context = context,
                                        .n_pages = most_pages(p, c),
                                        .depth = dear_depth(p, wish->n_guesses)};
    drafter_model_parts parts;
    status rc = drafter_model_measure(&parts, &draft, err);
    wish->draft_vram_bytes = parts.vram_bytes;
    wish->draft_bytes = parts.ram_bytes;
    wish->draft_page_bytes = parts.ram_page_bytes;
    wish->draft_layers = parts.n_layers;
    wish->draft_gpu_layers = parts.n_gpu_layers;
    return rc;
}

static status plan_draft(const engine_params *p, const gguf_file *target, const model_config *c,
                         plan_request *wish, error *err) {
    if (wish->n_guesses == 0 && p->backend == BACKEND_CUDA) wish->n_guesses = CUDA_GUESSES;
    if (draft_backend(p) == BACKEND_CUDA) return plan_draft_vram(p, target, c, wish, err);
    return drafter_model_fixed_bytes(
        &wish->draft_bytes, &wish->draft_page_bytes, p->draft_path, target, p->kv,
        p->n_sequences * (dear_depth(p, wish->n_guesses) + 1), err);
}

/* On the GPU the block reads the model's head; on the CPU beside one it reads the file's. */
static status plan_block(const engine_params *p, const gguf_file *file, const model_config *c,
                         plan_request *wish, error *err) {
    if (!has_block(file, c))
        return error_set(err, STATUS_BAD_INPUT, "speculate = mtp: the file has no MTP block");
    wish->draft_is_block = true;
    if (draft_backend(p) == BACKEND_CUDA) {
        drafter_mtp_params block = params_of_block(p, file, wish->n_guesses);
        block.n_pages = most_pages(p, c);
        return drafter_mtp_vram_bytes(&wish->draft_vram_bytes, &block, err);
    }
    status rc =
        drafter_mtp_file_bytes(&wish->draft_bytes, file, wish->backend == BACKEND_CUDA, err);
    model_config block = *c;
    model_config_of_block(&block);
    wish->draft_page_bytes = plan_page_bytes(&block, p->kv);
    wish->draft_bytes += (uint64_t)p->n_sequences * sizeof(float) *
                         (c->n_vocab + (uint64_t)(wish->n_guesses + 2) * c->n_embd);
    return rc;
}

status engine_plan_guesses(const engine_params *p, const gguf_file *file, const model_config *c,
                           plan_request *wish, error *err) {
    if (p->speculate == SPECULATE_OFF) return STATUS_OK;
    if (p->speculate == SPECULATE_DRAFT && !wants_draft(p))
        return error_set(err, STATUS_BAD_INPUT, "speculate = draft: no draft is named");
    if (p->draft_tokens > SPECULATE_MAX_DEPTH) {
        return error_set(err, STATUS_BAD_INPUT, "draft_tokens = %u is not in 0..%d",
                         p->draft_tokens, SPECULATE_MAX_DEPTH);
    }
    if (wish->backend == BACKEND_CUDA) {
        /* A state a guess takes the place of slots, so look-up alone is not taken unasked. */
        if (p->speculate == SPECULATE_AUTO && !wants_draft(p)) return STATUS_OK;
        wish->n_guesses = p->draft_tokens > 0 ? p->draft_tokens : CUDA_GUESSES;
        if (p->speculate == SPECULATE_MTP) return plan_block(p, file, c, wish, err);
        return wants_draft(p) ? plan_draft(p, file, c, wish, err) : STATUS_OK;
    }
    bool looks_up = wants(p, SPECULATE_LOOKUP);
    wish->remembers_guesses = true;
    wish->n_guesses =
        p->draft_tokens > 0
            ? p->draft_tokens
            : depth_that_fits(p, c, wish, looks_up ? SPECULATE_MAX_DEPTH : USUAL_DEPTH);
    if (wish->n_guesses == 0 && p->speculate != SPECULATE_AUTO) wish->n_guesses = 1;
    wish->n_step_guesses = guesses_of_step(p, wish->n_guesses);
    if (p->speculate == SPECULATE_MTP) return plan_block(p, file, c, wish, err);
    if (wish->n_guesses == 0 || !wants_draft(p)) return STATUS_OK;
    return plan_draft(p, file, c, wish, err);
}

uint64_t engine_cost_ns(const engine *e) {
    return e->params.backend == BACKEND_CPU ? clock_thread_ns() : clock_monotonic_ns();
}

/* A step of so many rows.  Nobody owns a page or a state now, and slots of experts stay as they are
 * (model_set_trial()). */
static status try_rows(engine *e, const int32_t *tokens, uint32_t n_rows, uint64_t *took_ns,
                       error *err) {
    static const uint32_t page = 0;
    uint32_t states[1 + SPECULATE_MAX_DEPTH];
    bool remembers = e->plan.n_remembered > 0;
    for (uint32_t i = 0; i < n_rows; i++)
        states[i] = i + remembers;
    const model_segment s = {.tokens = tokens,
                             .n_tokens = n_rows,
                             .pages = &page,
                             .n_outputs = n_rows,
                             .states_after = states,
                             .remembered = remembers};
    uint64_t begun_ns = engine_cost_ns(e);
    status rc = model_finds_best(e->model)
                    ? model_step_best(e->model, &s, 1, e->context.n_vocab, e->best, err)
                    : model_step(e->model, &s, 1, e->logits, err);
    *took_ns = engine_cost_ns(e) - begun_ns;
    return rc;
}

/* What rows cost beside each other, as long as it takes no more time than MEASURE_MS.  A step is
 * to find in the caches what one of as many rows left there, as in an answer; where it takes long
 * nothing of that stays.  The tokens are others each time: of text, too, a step's experts are mostly
 * others than those of the step before. */
static status measure_rows(engine *e, error *err) {
    static const uint32_t tried[] = {1, 2, 3, 4, 5, 6, 8, 9, 12, 17, 25, 40, 64};
    uint64_t spent_ns = 0, took_ns = 0;
    uint32_t most = 1 + e->plan.n_guesses, at = 0;
    int32_t ids[MEASURE_IDS];
    engine_fill_ids(ids, MEASURE_IDS, e->context.n_vocab);
    model_state_clear(e->model, 0);
    for (int round = 0; round < MEASURE_ROUNDS; round++) {
        for (size_t i = 0; i < sizeof tried / sizeof tried[0] && tried[i] <= most; i++) {
            uint32_t rows = tried[i];
            bool some = round > 0 || rows > 3;
            if (some && spent_ns > (uint64_t)MEASURE_MS * 1000000u) return STATUS_OK;
            for (int again = 0; again < MEASURE_AGAIN; again++) {
                if (at + rows > MEASURE_IDS) at = 0;
                status rc = try_rows(e, ids + at, rows, &took_ns, err);
                if (rc != STATUS_OK) return rc;
                at += rows;
                spent_ns += took_ns;
                if (took_ns > (uint64_t)LONG_MS * 1000000u) break;
            }
            speculate_try_step(e->guesses, rows, took_ns);
        }
    }
    return STATUS_OK;
}

status engine_open_guesses(engine *e, error *err) {
    drafter *kinds[DRAFTER_KINDS] = {0};
    uint32_t n = e->params.n_sequences, depth = e->plan.n_guesses;
    if (depth == 0) return STATUS_OK;
    e->states_after = calloc((size_t)n * e->plan.states_each, sizeof *e->states_after);
    e->decoding = calloc(n, sizeof(sequence *));
    if (e->states_after == NULL || e->decoding == NULL)
        return error_set(err, STATUS_NO_MEMORY, "engine: no memory for guesses");
    status rc = STATUS_OK;
    if (wants(&e->params, SPECULATE_LOOKUP))
        rc = drafter_lookup_open(&kinds[DRAFTER_LOOKUP], n, e->plan.n_context, err);
    if (rc == STATUS_OK && wants_draft(&e->params)) {
        const drafter_model_params p = params_of_draft(e);
        rc = drafter_model_open(&kinds[DRAFTER_MODEL], &p, err);
    }
    if (rc == STATUS_OK && e->params.speculate == SPECULATE_MTP) {
        drafter_mtp_params p = params_of_block(&e->params, e->file, depth);
        p.whole = p.backend == e->params.backend ? e->model : NULL;
        p.n_context = e->plan.n_context;
        p.n_pages = e->plan.n_pages;
        p.n_vocab = e->context.n_vocab;
        rc = drafter_mtp_open(&kinds[DRAFTER_MTP], &p, err);
    }
    if (rc != STATUS_OK) {
        for (int k = 0; k < DRAFTER_KINDS; k++)
            if (kinds[k] != NULL) kinds[k]->ops->close(kinds[k]);
        return rc;
    }
    const speculate_params p = {
        .n_places = n,
        .step_guesses = e->plan.n_step_guesses,
        .ends = e->masked + e->n_masked,
        .n_ends = e->n_masked_with_ends - e->n_masked,
        .depth = {depth, dear_depth(&e->params, depth), dear_depth(&e->params, depth)}};
    rc = speculate_new(&e->guesses, kinds, &p, err);
    if (rc != STATUS_OK) return rc;
    if (e->params.fixed_depth) { /* whatever it costs */
        speculate_fix_depth(e->guesses, depth);
        return STATUS_OK;
    }
    rc = speculate_measure(e->guesses, err);
    if (rc != STATUS_OK) return rc;
    model_set_trial(e->model, true);
    rc = measure_rows(e, err);
    model_set_trial(e->model, false);
    model_state_clear(e->model, 0);
    return rc;
}

static bool may_guess(const sequence *who) {
    return who->phase == SEQUENCE_RUNNING && who->n_run >= who->n_prompt &&
           who->n_run + 1 == who->n_tokens;
}

/* Answers need no guesses: what runs goes on without. */
static void end_speculation(engine *e, const error *cause) {
    log_error("speculation-ended", "%s", cause->text);
    speculate_free(e->guesses);
    e->guesses = NULL;
}

void engine_show_rows(engine *e, const sequence *who, const model_segment *s, uint32_t n_rows) {
    error err = {0};
    if (e->guesses == NULL || s->n_hidden != s->n_tokens || who->phase != SEQUENCE_RUNNING)
        return;
    status rc = speculate_see(e->guesses, who, s->position, s->hidden, n_rows, &err);
    if (rc != STATUS_OK) end_speculation(e, &err);
}

void engine_guess(engine *e) {
    size_t n = 0;
    error err = {0};
    if (e->guesses == NULL) return;
    for (request *r = e->requests; r != NULL; r = r->next) {
        for (uint32_t i = 0; i < r->n_choices; i++)
            if (may_guess(&r->choices[i].timeline)) e->decoding[n++] = &r->choices[i].timeline;
    }
    if (speculate_guess(e->guesses, e->decoding, n, &err) == STATUS_OK) return;
    end_speculation(e, &err);
    for (size_t i = 0; i < n; i++)
        e->decoding[i]->n_drafted = 0;
}

/* The states after the rows are the others of its states in turn, its own last; where rows are
 * remembered it has one other. */
void engine_verify_rows(engine *e, size_t piece, model_segment *s) {
    const sequence *who = e->pieces[piece].who;
    uint32_t *out = e->states_after + piece * e->plan.states_each, at = 0;
    while (who->states[at] != who->state)
        at++;
    for (uint32_t i = 0; i < who->n_states; i++)
        out[i] = who->states[(at + 1 + i) % who->n_states];
    s->states_after = out;
    s->remembered = e->plan.n_remembered > 0;
}

void engine_keep_rows(engine *e, size_t piece, uint32_t n_rows) {
    sequence *who = e->pieces[piece].who;
    const model_segment *s = &e->segments[piece];
    if (!s->remembered || n_rows == s->n_tokens) {
        who->state = s->states_after[s->remembered ? 0 : n_rows - 1];
        return;
    }
    uint64_t begun_ns = engine_cost_ns(e);
    model_replay(e->model, piece, n_rows);
    e->model_ns += engine_cost_ns(e) - begun_ns;
}
