/* drafter_model.c - a smaller model of the same vocabulary, with sequences of its own.
 *
 * A place has what the draft holds of a sequence: the tokens that were known when it guessed
 * last, and behind them those of its own guesses that it ran, with the state after each.  The
 * next time the known tokens say how many of these came true; it goes on from that state.
 * What it lacks, a prompt or what came while it was not asked, it reads at most READ_ROWS a
 * time for all, and guesses where it has read all.
 */
#include "worker/drafter.h"

#include "worker/drafter_core.h"
#include "worker/memory/cuda_layout.h"
#include "worker/memory/plan.h"
#include <stdlib.h>
#include <string.h>

enum { READ_ROWS = 128, SMALL_BYTES = 32 * 1024 * 1024 };

typedef struct model_place {
    uint64_t key;
    uint32_t n_known; /* tokens of the sequence that it has run */
    uint32_t state;   /* after those, below n_states of a place */
    uint32_t n_ahead; /* guesses that it ran behind them */
    int32_t *ahead;   /* [depth] */
    uint32_t *after;  /* [depth] the state after each */
    uint32_t *pages;  /* [pages of n_context] */
    uint32_t n_pages;
    /* of the guessing under way */
    bool asked;
    drafter_ask *ask;    /* NULL: it does not guess (any more) */
    uint32_t next_state; /* for the segment */
} model_place;

typedef struct model_drafter {
    drafter base;
    drafter_model_params params;
    gguf_file *file;
    drafter_core core;
    model_place *places;
    model_place **in_step; /* [n_places] who each segment is of */
} model_drafter;

/* --- the vocabulary --- */

static status check_vocabulary(const gguf_file *target, const gguf_file *draft,
                               const char *path, error *err) {
    static const char name[] = "tokenizer.ggml.tokens";
    const gguf_key *a = gguf_find_key(target, name), *b = gguf_find_key(draft, name);
    if (a == NULL || b == NULL || a->n_items != b->n_items) {
        return error_set(err, STATUS_BAD_INPUT,
                         "draft %s: its vocabulary has %llu tokens, the model's has %llu", path,
                         (unsigned long long)(b != NULL ? b->n_items : 0),
                         (unsigned long long)(a != NULL ? a->n_items : 0));
    }
    gguf_cursor at_a = {0}, at_b = {0};
    gguf_string token_a, token_b;
    for (uint64_t i = 0; i < a->n_items; i++) {
        if (gguf_next_string(a, &at_a, &token_a) && gguf_next_string(b, &at_b, &token_b) &&
            token_a.length == token_b.length &&
            memcmp(token_a.bytes, token_b.bytes, token_a.length) == 0) {
            continue;
        }
        return error_set(err, STATUS_BAD_INPUT,
                         "draft %s: token %llu of its vocabulary is not the model's", path,
                         (unsigned long long)i);
    }
    return STATUS_OK;
}

/* --- what it runs --- */

static uint32_t states_a_place(const model_drafter *d) {
    return d->params.depth + 1;
}

static uint32_t state_of(const model_drafter *d, const model_place *p, uint32_t state) {
    return (uint32_t)(p - d->places) * states_a_place(d) + state;
}

static void empty_place(model_drafter *d, model_place *p, uint64_t key) {
    for (uint32_t i = 0; i < p->n_pages; i++)
        kv_pages_release(d->core.pages, p->pages[i]);
    p->n_pages = p->n_known = p->n_ahead = p->state = 0;
    p->key = key;
}

/* Take what came true of the guesses for known.  The last known token is always run again, for
 * its logits. */
static void settle(model_drafter *d, model_place *p, const drafter_ask *ask) {
    if (p->key != ask->key || p->n_known >= ask->n_tokens) empty_place(d, p, ask->key);
    uint32_t n = 0;
    while (n < p->n_ahead && p->n_known + n + 1 < ask->n_tokens &&
           p->ahead[n] == ask->tokens[p->n_known + n])
        n++;
    if (n > 0) p->state = p->after[n - 1];
    p->n_known += n;
    p->n_ahead = 0;
}

/* Who does not take part now loses its pages first: most have ended. */
static bool take_page(model_drafter *d, uint32_t *page) {
    for (uint32_t i = 0; i < d->params.n_places; i++) {
        if (kv_pages_take(d->core.pages, page)) return true;
        if (!d->places[i].asked) empty_place(d, &d->places[i], 0);
    }
    return kv_pages_take(d->core.pages, page);
}

static bool grow(model_drafter *d, model_place *p, uint32_t n_tokens) {
    while (p->n_pages < drafter_pages_for(n_tokens)) {
        if (!take_page(d, &p->pages[p->n_pages])) return false;
        p->n_pages++;
    }
    return true;
}

/* A guess of each that asked; who has all it wanted takes no more part. */
static void take_guesses(model_drafter *d, size_t n) {
    const model_best *best = d->core.best;
    for (size_t i = 0; i < n; i++) {
        drafter_ask *ask = d->in_step[i]->ask;
        if (d->core.segments[i].n_outputs == 0 || ask == NULL) continue;
        int32_t id = (best++)->id;
        if (id >= 0) ask->guesses[ask->n_guesses++] = id;
        if (id < 0 || ask->n_guesses == ask->depth) d->in_step[i]->ask = NULL;
    }
}

/* What is known and was not run yet, as far as READ_ROWS reach. */
static size_t plan_reading(model_drafter *d, drafter_ask *asks, size_t n_asks) {
    size_t n = 0;
    uint32_t left = READ_ROWS;
    for (uint32_t i = 0; i < d->params.n_places; i++)
        d->places[i].asked = false;
    for (size_t i = 0; i < n_asks; i++)
        d->places[asks[i].place].asked = true;
    for (size_t i = 0; i < n_asks && left > 0; i++) {
        drafter_ask *ask = &asks[i];
        model_place *p = &d->places[ask->place];
        settle(d, p, ask);
        uint32_t rows = ask->n_tokens - p->n_known;
        if (rows > left) rows = left;
        if (!grow(d, p, ask->n_tokens + ask->depth)) continue; /* no pages: no guesses */
        if (p->n_known == 0) model_state_clear(d->core.model, state_of(d, p, p->state));
        bool whole = p->n_known + rows == ask->n_tokens;
        d->core.segments[n] = (model_segment){.state = state_of(d, p, p->state),
                                              .position = p->n_known,
                                              .n_tokens = rows,
                                              .n_outputs = whole ? 1 : 0,
                                              .tokens = ask->tokens + p->n_known,
                                              .pages = p->pages};
        d->in_step[n++] = p;
        uint32_t prompt = p->n_known < ask->n_prompt ? ask->n_prompt - p->n_known : 0;
        ask->n_read_prompt = prompt < rows ? prompt : rows;
        ask->n_read = rows - ask->n_read_prompt;
        p->ask = whole ? ask : NULL;
        p->n_known += rows;
        left -= rows;
    }
    return n;
}

/* The last guess of each that still takes part, on a state of its own. */
static size_t plan_guesses(model_drafter *d, size_t n_places) {
    size_t n = 0;
    for (size_t i = 0; i < n_places; i++) {
        model_place *p = d->in_step[i];
        if (p->ask == NULL) continue;
        uint32_t from = p->n_ahead > 0 ? p->after[p->n_ahead - 1] : p->state;
        uint32_t to = (p->state + 1 + p->n_ahead) % states_a_place(d);
        p->ahead[p->n_ahead] = p->ask->guesses[p->n_ahead];
        p->after[p->n_ahead] = to;
        p->next_state = state_of(d, p, to);
        d->core.segments[n] = (model_segment){.state = state_of(d, p, from),
                                              .position = p->n_known + p->n_ahead,
                                              .n_tokens = 1,
                                              .n_outputs = 1,
                                              .tokens = &p->ahead[p->n_ahead],
                                              .pages = p->pages,
                                              .states_after = &p->next_state};
        p->n_ahead++;
        p->ask->n_read++;
        d->in_step[n++] = p;
    }
    return n;
}

static status model_guess(drafter *base, drafter_ask *asks, size_t n_asks, error *err) {
    model_drafter *d = (model_drafter *)base;
    size_t n = plan_reading(d, asks, n_asks);
    while (n > 0) {
        status rc = drafter_core_step(&d->core, n, err);
        if (rc != STATUS_OK) { /* what it had run is not known now */
            for (size_t i = 0; i < n; i++)
                empty_place(d, d->in_step[i], 0);
            return rc;
        }
        take_guesses(d, n);
        n = plan_guesses(d, n);
    }
    return STATUS_OK;
}

/* --- opening and closing --- */

static void model_drafter_close(drafter *base) {
    model_drafter *d = (model_drafter *)base;
    if (d == NULL) return;
    for (uint32_t i = 0; d->places != NULL && i < d->params.n_places; i++) {
        free(d->places[i].ahead);
        free(d->places[i].after);
        free(d->places[i].pages);
    }
    free(d->in_step);
    free(d->places);
    drafter_core_release(&d->core);
    gguf_close(d->file);
    free(d);
}

static const drafter_ops ops = {model_drafter_close, model_guess, NULL};

/* Of n_layers layers, those that compute on the CPU beside a GPU. */
static uint32_t cpu_layers(const drafter_model_params *p, uint32_t n_layers) {
    bool whole = p->backend != BACKEND_CUDA || p->n_gpu_layers < 0 ||
                 (uint32_t)p->n_gpu_layers >= n_layers;
    return whole ? 0 : n_layers - (uint32_t)p->n_gpu_layers;
}

static model_params params_of_model(const drafter_model_params *p, uint32_t n_layers,
                                    uint32_t n_threads) {
    return (model_params){.backend = p->backend,
                          .n_cpu_layers = cpu_layers(p, n_layers),
                          .n_threads = n_threads,
                          .kv = p->kv,
                          .activations = p->activations,
                          .n_pages = p->n_pages,
                          .n_states = p->n_places * (p->depth + 1),
                          .max_rows = READ_ROWS > p->n_places ? READ_ROWS : p->n_places,
                          .max_outputs = p->n_places,
                          .inserts_per_layer = 1};
}

static status make_places(model_drafter *d, error *err) {
    const drafter_model_params *p = &d->params;
    d->places = calloc(p->n_places, sizeof *d->places);
    d->in_step = calloc(p->n_places, sizeof(model_place *));
    bool whole = d->places != NULL && d->in_step != NULL;
    for (uint32_t i = 0; whole && i < p->n_places; i++) {
        model_place *place = &d->places[i];
        place->ahead = calloc(p->depth, sizeof *place->ahead);
        place->after = calloc(p->depth, sizeof *place->after);
        place->pages = calloc(drafter_pages_for(p->n_context + p->depth), sizeof *place->pages);
        whole = place->ahead != NULL && place->after != NULL && place->pages != NULL;
    }
    if (whole) return STATUS_OK;
    return error_set(err, STATUS_NO_MEMORY, "draft %s: no memory for %u sequences", p->path,
                     p->n_places);
}

/* A matrix of a few rows is done before a second thread has woken. */
static uint32_t threads_for(const model_drafter *d) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < gguf_n_shards(d->file); i++)
        bytes += gguf_file_bytes(d->file, i);
    return bytes <= SMALL_BYTES ? 1 : d->params.n_threads;
}

static status open_model(model_drafter *d, error *err) {
    model_config c;
    status rc = model_config_read(&c, d->file, err);
    if (rc != STATUS_OK) return rc;
    const model_params p = params_of_model(&d->params, c.n_layers, threads_for(d));
    return model_open(&d->core.model, d->file, &p, err);
}

status drafter_model_open(drafter **out, const drafter_model_params *params, error *err) {
    *out = NULL;
    model_drafter *d = calloc(1, sizeof *d);
    if (d == NULL) return error_set(err, STATUS_NO_MEMORY, "draft: no memory");
    d->base.ops = &ops;
    d->params = *params;
    status rc = gguf_open(&d->file, params->path, err);
    if (rc != STATUS_OK) goto fail;
    rc = check_vocabulary(params->target, d->file, params->path, err);
    if (rc != STATUS_OK) goto fail;
    rc = open_model(d, err);
    if (rc != STATUS_OK) goto fail;
    if (!model_verifies_rows(d->core.model)) {
        rc = error_set(err, STATUS_BAD_INPUT, "draft %s: this backend keeps no states a row",
                       params->path);
        goto fail;
    }
    rc = drafter_core_make(&d->core, params->n_places, params->n_pages, params->n_vocab, err);
    if (rc == STATUS_OK) rc = make_places(d, err);
    if (rc != STATUS_OK) goto fail;
    *out = &d->base;
    return STATUS_OK;
fail:
    model_drafter_close(&d->base);
    return rc;
}

status drafter_model_fixed_bytes(uint64_t *fixed, uint64_t *page, const char *path,
                                 const gguf_file *target, kv_type kv, uint32_t n_states,
                                 error *err) {
    gguf_file *file = NULL;
    model_config c;
    *fixed = *page = 0;
    status rc = gguf_open(&file, path, err);
    if (rc == STATUS_OK) rc = check_vocabulary(target, file, path, err);
    if (rc == STATUS_OK) rc = model_config_read(&c, file, err);
    if (rc == STATUS_OK) {
        *page = plan_page_bytes(&c, kv);
        *fixed = n_states * model_config_state_bytes(&c);
        for (uint32_t i = 0; i < gguf_n_shards(file); i++)
            *fixed += gguf_file_bytes(file, i);
    }
    gguf_close(file);
    return rc;
}

static void measure_parts(drafter_model_parts *out, const model_config *c,
                          const model_weights *w, const drafter_model_params *params) {
    const model_params p = params_of_model(params, c->n_layers, 1);
    uint32_t n = p.n_cpu_layers;
    model_config part = *c;
    model_weights layers;
    cuda_layout l;
    model_config_of_layers(&part, n, c->n_layers - n);
    model_weights_of_layers(&layers, w, n, c->n_layers - n);
    cuda_layout_make(&l, &part, &layers, &p);
    *out = (drafter_model_parts){
        .n_layers = c->n_layers, .n_gpu_layers = c->n_layers - n, .vram_bytes = l.total_bytes};
    if (n == 0) return;
    part = *c;
    model_config_of_layers(&part, 0, n);
    model_weights_of_layers(&layers, w, 0, n);
    out->ram_page_bytes = plan_page_bytes(&part, p.kv);
    out->ram_bytes = cuda_backbone_walk(&layers, NULL, NULL) +
                     (uint64_t)w->embedding.n_rows * w->embedding.row_bytes +
                     p.n_states * model_config_state_bytes(&part);
}

status drafter_model_measure(drafter_model_parts *out, const drafter_model_params *params,
                             error *err) {
    gguf_file *file = NULL;
    model_config c;
    model_weights w = {0};
    memset(out, 0, sizeof *out);
    status rc = gguf_open(&file, params->path, err);
    if (rc == STATUS_OK) rc = check_vocabulary(params->target, file, params->path, err);
    if (rc == STATUS_OK) rc = model_config_read(&c, file, err);
    if (rc == STATUS_OK) rc = model_weights_map(&w, &c, file, err);
    if (rc == STATUS_OK) measure_parts(out, &c, &w, params);
    model_weights_release(&w);
    gguf_close(file);
    return rc;
}
