/* drafter_mtp.c - the model's own block for the token after the next, spec 4.9.
 *
 * Row t of the block takes the model's row after the final norm at position t and the token at
 * t + 1, and gives the token at t + 2; a further guess takes the block's own row and the guess.
 * The model's rows are shown as they come, those of prompts too: the block's keys and values
 * of a position are made when the token after it is known.  Where rows are missing, as behind
 * cached beginnings of prompts, a place begins anew: what the block attends to is shorter then,
 * and only the differences of positions matter.
 */
#include "worker/drafter.h"

#include "worker/drafter_core.h"
#include "worker/memory/cuda_layout.h"
#include <stdlib.h>
#include <string.h>

typedef struct mtp_place {
    uint64_t key;
    uint32_t base;   /* position of the first row that was shown */
    uint32_t n_run;  /* rows behind it whose keys and values are there */
    uint32_t n_held; /* rows behind those, in held */
    float *held;     /* [cap_held][n_embd] */
    uint32_t *pages;
    uint32_t n_pages;
    float *last;      /* [n_embd] the block's row behind its last guess */
    drafter_ask *ask; /* NULL: it takes no part (any more) */
} mtp_place;

typedef struct mtp {
    drafter base;
    drafter_mtp_params params;
    drafter_core core; /* its model is the block */
    mtp_place *places;
    mtp_place **in_step; /* [n_places] who each segment is of */
} mtp;

static size_t row_floats(const mtp *d) {
    return model_configuration(d->core.model)->n_embd;
}

static void begin_anew(mtp *d, mtp_place *p, uint64_t key, uint32_t base) {
    for (uint32_t i = 0; i < p->n_pages; i++)
        kv_pages_release(d->core.pages, p->pages[i]);
    p->n_pages = p->n_run = p->n_held = 0;
    p->key = key;
    p->base = base;
}

static bool grow(mtp *d, mtp_place *p, uint32_t n_rows) {
    while (p->n_pages < drafter_pages_for(n_rows)) {
        if (!kv_pages_take(d->core.pages, &p->pages[p->n_pages])) return false;
        p->n_pages++;
    }
    return true;
}

/* n rows from `rows` on, the first of which is row p->n_run of the place. */
static model_segment segment_of(const mtp *d, const mtp_place *p, const int32_t *tokens,
                                const float *rows, uint32_t n) {
    return (model_segment){.state = (uint32_t)(p - d->places),
                           .position = p->n_run,
                           .n_tokens = n,
                           .tokens = tokens + p->base + p->n_run + 1,
                           .pages = p->pages,
                           .before = rows};
}

/* Rows whose next token is known, a step's worth at once; the last is kept for a guess. */
static status mtp_see(drafter *base, const drafter_rows *seen, error *err) {
    mtp *d = (mtp *)base;
    mtp_place *p = &d->places[seen->place];
    const size_t row = row_floats(d);
    uint32_t n = seen->n_rows, at = 0;
    if (p->key != seen->key || seen->position != p->base + p->n_run + p->n_held)
        begin_anew(d, p, seen->key, seen->position);
    while (p->n_held + n - at > d->params.cap_held) {
        uint32_t now = n - at - 1;
        if (now > d->params.max_rows) now = d->params.max_rows;
        const float *rows = seen->rows + at * row;
        if (p->n_held > 0) now = p->n_held, rows = p->held;
        if (!grow(d, p, p->n_run + now)) { /* no pages: what follows is a new beginning */
            begin_anew(d, p, 0, 0);
            return STATUS_OK;
        }
        const model_segment s = segment_of(d, p, seen->tokens, rows, now);
        status rc = model_step(d->core.model, &s, 1, NULL, err);
        if (rc != STATUS_OK) return rc;
        at += p->n_held > 0 ? 0 : now;
        p->n_held = 0;
        p->n_run += now;
    }
    memcpy(p->held + p->n_held * row, seen->rows + at * row, (n - at) * row * sizeof(float));
    p->n_held += n - at;
    return STATUS_OK;
}

/* The rows held, behind which the first guess comes. */
static size_t plan_held(mtp *d, drafter_ask *asks, size_t n_asks) {
    size_t n = 0;
    for (size_t i = 0; i < n_asks; i++) {
        drafter_ask *ask = &asks[i];
        mtp_place *p = &d->places[ask->place];
        p->ask = NULL;
        bool whole = p->key == ask->key && p->n_held > 0 &&
                     p->base + p->n_run + p->n_held + 1 == ask->n_tokens;
        if (!whole || !grow(d, p, p->n_run + p->n_held + ask->depth)) continue;
        model_segment *s = &d->core.segments[n];
        *s = segment_of(d, p, ask->tokens, p->held, p->n_held);
        s->n_outputs = s->n_hidden = 1;
        s->hidden = p->last;
        p->ask = ask;
        ask->n_read = p->n_held;
        p->n_run += p->n_held;
        p->n_held = 0;
        d->in_step[n++] = p;
    }
    return n;
}

/* A guess of each; who wants more goes on behind it with the block's own row. */
static size_t take_and_plan(mtp *d, size_t n_places) {
    size_t n = 0;
    for (size_t i = 0; i < n_places; i++) {
        mtp_place *p = d->in_step[i];
        drafter_ask *ask = p->ask;
        int32_t *guess = &ask->guesses[ask->n_guesses];
        *guess = d->core.best[i].id;
        if (*guess < 0) continue; /* no logit is a number */
        if (++ask->n_guesses == ask->depth) continue;
        ask->n_read++;
        d->core.segments[n] = (model_segment){.state = (uint32_t)(p - d->places),
                                              .position = p->n_run + ask->n_guesses - 1,
                                              .n_tokens = 1,
                                              .n_outputs = 1,
                                              .n_hidden = 1,
                                              .tokens = guess,
                                              .pages = p->pages,
                                              .before = p->last,
                                              .hidden = p->last};
        d->in_step[n++] = p;
    }
    return n;
}

static status mtp_guess(drafter *base, drafter_ask *asks, size_t n_asks, error *err) {
    mtp *d = (mtp *)base;
    size_t n = plan_held(d, asks, n_asks);
    while (n > 0) {
        status rc = drafter_core_step(&d->core, n, err);
        if (rc != STATUS_OK) return rc;
        n = take_and_plan(d, n);
    }
    return STATUS_OK;
}

/* --- opening and closing --- */

static void mtp_close(drafter *base) {
    mtp *d = (mtp *)base;
    if (d == NULL) return;
    for (uint32_t i = 0; d->places != NULL && i < d->params.n_places; i++) {
        free(d->places[i].held);
        free(d->places[i].last);
        free(d->places[i].pages);
    }
    free(d->in_step);
    free(d->places);
    drafter_core_release(&d->core);
    free(d);
}

static const drafter_ops ops = {mtp_close, mtp_guess, mtp_see};

static status make_places(mtp *d, error *err) {
    const drafter_mtp_params *p = &d->params;
    const model_config *c = model_configuration(d->core.model);
    d->places = calloc(p->n_places, sizeof *d->places);
    d->in_step = calloc(p->n_places, sizeof(mtp_place *));
    bool whole = d->places != NULL && d->in_step != NULL;
    for (uint32_t i = 0; whole && i < p->n_places; i++) {
        mtp_place *place = &d->places[i];
        place->held = calloc((size_t)p->cap_held * c->n_embd, sizeof *place->held);
        place->last = calloc(c->n_embd, sizeof *place->last);
        place->pages =
            calloc(drafter_pages_for(p->n_context + p->cap_held), sizeof *place->pages);
        whole = place->held != NULL && place->last != NULL && place->pages != NULL;
    }
    if (whole) return STATUS_OK;
    return error_set(err, STATUS_NO_MEMORY, "MTP block: no memory for %u sequences",
                     p->n_places);
}

static model_params params_of_block(const drafter_mtp_params *p) {
    return (model_params){.backend = p->backend,
                          .n_threads = p->n_threads,
                          .kv = p->kv,
                          .activations = p->activations,
                          .n_pages = p->n_pages,
                          .n_states = p->n_places,
                          .max_rows = p->max_rows,
                          .max_outputs = p->n_places,
                          .inserts_per_layer = 1};
}

status drafter_mtp_open(drafter **out, const drafter_mtp_params *params, error *err) {
    *out = NULL;
    mtp *d = calloc(1, sizeof *d);
    if (d == NULL) return error_set(err, STATUS_NO_MEMORY, "MTP block: no memory");
    d->base.ops = &ops;
    d->params = *params;
    const model_params p = params_of_block(params);
    CHECK(params->max_rows >= params->n_places * params->cap_held);
    status rc = model_open_block(&d->core.model, params->file, params->whole, &p, err);
    if (rc == STATUS_OK)
        rc = drafter_core_make(&d->core, params->n_places, params->n_pages, params->n_vocab,
                               err);
    if (rc == STATUS_OK) rc = make_places(d, err);
    if (rc != STATUS_OK) {
        mtp_close(&d->base);
        return rc;
    }
    *out = &d->base;
    return STATUS_OK;
}

static status map_block(model_config *c, model_weights *w, const gguf_file *file, error *err) {
    memset(w, 0, sizeof *w);
    status rc = model_config_read(c, file, err);
    if (rc == STATUS_OK && c->n_mtp_layers == 0)
        rc = error_set(err, STATUS_BAD_INPUT, "the file has no MTP block");
    if (rc != STATUS_OK) return rc;
    model_config_of_block(c);
    return model_weights_map_block(w, c, file, err);
}

status drafter_mtp_file_bytes(uint64_t *out, const gguf_file *file, bool with_head,
                              error *err) {
    model_config c;
    model_weights w;
    *out = 0;
    status rc = map_block(&c, &w, file, err);
    if (rc == STATUS_OK) {
        *out = cuda_backbone_walk(&w, NULL, NULL);
        if (!with_head) *out -= w.head.row_bytes * w.head.n_rows;
        if (c.moe) *out += layer_expert_bytes(&w.layers[0]) * c.n_experts;
    }
    model_weights_release(&w);
    return rc;
}

status drafter_mtp_vram_bytes(uint64_t *out, const drafter_mtp_params *params, error *err) {
    model_config c, whole;
    model_weights w, trunk = {0};
    *out = 0;
    status rc = map_block(&c, &w, params->file, err);
    if (rc == STATUS_OK) rc = model_config_read(&whole, params->file, err);
    if (rc == STATUS_OK) rc = model_weights_map(&trunk, &whole, params->file, err);
    if (rc == STATUS_OK) {
        const model_params p = params_of_block(params);
        cuda_layout l;
        if (w.head.data == trunk.head.data) w.head.data = NULL; /* it is there already */
        cuda_layout_make(&l, &c, &w, &p);
        *out = l.total_bytes;
    }
    model_weights_release(&trunk);
    model_weights_release(&w);
    return rc;
}
