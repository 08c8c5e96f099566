/* engine_step.c - one step for all that run: pieces to segments, rows to tokens.
 *
 * Where a piece of a prompt is cut by layers, a step is two of the model's: the decoding rows, and
 * then a slice of that piece.  What its layers have made waits in e->cut_rows, also while others'
 * slices run.
 */
#include "worker/engine_parts.h"

#include "common/clock.h"
#include "worker/embedding.h"
#include "worker/request_format.h"
#include <math.h>
#include <string.h>

static choice *choice_of(const scheduler_piece *piece) {
    request *r = piece->who->owner;
    return &r->choices[piece->who->choice];
}

/* Rows for vectors, or of all tokens for who guesses by them. */
static float *ask_rows(const engine *e, const scheduler_piece *piece, model_segment *s,
                       float *place) {
    const request *r = piece->who->owner;
    if (r->vectors != NULL) return engine_ask_vectors(piece, s, place);
    if (r->ahead) {
        s->n_outputs = 0;
        return place;
    }
    if (e->guesses == NULL || !speculate_wants_rows(e->guesses)) return place;
    s->n_hidden = s->n_tokens;
    s->hidden = place;
    return place + (size_t)s->n_tokens * model_configuration(e->model)->n_embd;
}

static void clear_states(engine *e, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (e->pieces[i].who->n_run == 0) model_state_clear(e->model, e->pieces[i].who->state);
    }
}

/* Segments of the model for the pieces; the number of rows is returned. */
static uint32_t make_segments(engine *e, size_t n, uint64_t now_ns) {
    uint32_t n_rows = 0;
    float *hidden = e->hidden;
    for (size_t i = 0; i < n; i++) {
        sequence *who = e->pieces[i].who;
        request *r = who->owner;
        if (r->started_ns == 0) r->started_ns = now_ns;
        e->segments[i] = (model_segment){
            .state = who->state,
            .position = who->n_run,
            .tokens = who->tokens + who->n_run,
            .n_tokens = e->pieces[i].n_tokens,
            .pages = who->pages,
            .trace = (uint32_t)r->id,
            .n_outputs = e->pieces[i].wants_logits ? 1 + e->pieces[i].n_drafted : 0};
        if (e->pieces[i].n_drafted > 0) engine_verify_rows(e, i, &e->segments[i]);
        hidden = ask_rows(e, &e->pieces[i], &e->segments[i], hidden);
        n_rows += e->pieces[i].n_tokens;
    }
    return n_rows;
}

static void fail_step(engine *e, size_t n, const error *cause) {
    request_fault f = engine_fault(500, "device_error", true, cause->code, cause->text);
    for (size_t i = 0; i < n; i++) {
        request *r = e->pieces[i].who->owner;
        if (!r->over) engine_end_request(e, r, &f);
    }
    engine_sweep(e);
}

/* Guesses are not counted as decoded; those that came true are added later.  n_whole: of the rows,
 * those for which no layer is left. */
static engine_rates_step count_step(engine *e, size_t n, uint32_t n_rows, uint32_t n_whole,
                                    uint64_t begun_ns) {
    model_stats now;
    model_read_stats(e->model, &now);
    uint64_t lookups = now.expert_lookups - e->before.expert_lookups;
    uint64_t hits = now.expert_hits - e->before.expert_hits;
    e->before = now;
    engine_rates_step step = {
        .ended_ns = clock_monotonic_ns(), .expert_lookups = lookups, .expert_hits = hits};
    step.is_slice = n_whole < n_rows;
    step.took_ns = step.ended_ns - begun_ns;
    for (size_t i = 0; i < n; i++) {
        request *r = e->pieces[i].who->owner;
        uint32_t rows = e->pieces[i].n_tokens;
        r->expert_lookups += lookups;
        r->expert_hits += hits;
        r->expert_misses += (double)(lookups - hits) * rows / n_rows;
        if (step.is_slice) continue;
        r->rows += rows;
        bool is_prompt = e->pieces[i].who->n_run < e->pieces[i].who->n_prompt;
        *(is_prompt ? &step.n_prompt : &step.n_decoded) += rows - e->pieces[i].n_drafted;
    }
    return step;
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
        if (e->segments[i].n_outputs == 0) continue;
        if (r->vectors != NULL) return false;
        const choice *c = choice_of(&e->pieces[i]);
        if (r->job.logprobs) return false;
        if (request_forced(c) < 0 && !sampler_is_plain(c->draws)) return false;
    }
    return model_finds_best(e->model);
}

/* Whether a row's best may be taken: a number, and not masked. */
static bool best_will_do(const engine *e, const request *r, choice *c, const model_best *best) {
    if (request_forced(c) >= 0) return true;
    if (best->id < 0 || isinf(best->logit) || !sampler_is_plain(c->draws)) return false;
    if (request_format_holds(c) && !request_format_allows(c, best->id)) return false;
    size_t n_masked = count_masked(e, r, c);
    for (size_t j = 0; j < n_masked; j++) {
        if (e->masked[j] == best->id) return false;
    }
    return true;
}

/* The same of the first row of each piece; of rows after it, it depends on those before. */
static bool bests_will_do(const engine *e, size_t n) {
    const model_best *best = e->best;
    for (size_t i = 0; i < n; i++) {
        if (e->segments[i].n_outputs == 0) continue;
        const scheduler_piece *piece = &e->pieces[i];
        if (!best_will_do(e, piece->who->owner, choice_of(piece), best)) return false;
        best += e->segments[i].n_outputs;
    }
    return true;
}

/* Run the step.  e->has_logits: of the rows that want them they are in e->logits, else what is
 * best of each is in e->best. */
static status run_model(engine *e, size_t n, error *err) {
    uint64_t begun_ns = engine_cost_ns(e);
    e->has_logits = !wants_best_alone(e, n);
    status rc = e->has_logits ? model_step(e->model, e->segments, n, e->logits, err)
                              : model_step_best(e->model, e->segments, n, e->context.n_vocab,
                                                e->best, err);
    e->model_ns = engine_cost_ns(e) - begun_ns;
    if (rc != STATUS_OK || e->has_logits || bests_will_do(e, n)) return rc;
    e->has_logits = true;
    return model_read_logits(e->model, e->logits, err);
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
        request_fault f = engine_fault(500, "model_error", true, STATUS_DEVICE,
                                       "the model gave no number for any token");
        engine_end_request(e, r, &f);
        return;
    }
    if (r->job.logprobs) request_note_logprobs(r, e->scratch, e->raw_row, id);
    bool lost = r->logprobs.failed;
    if (!request_take(r, c, id)) scheduler_remove(e->scheduler, &c->timeline);
    if (lost || c->text.failed) {
        request_fault f = engine_fault(503, "out_of_memory", true, STATUS_NO_MEMORY,
                                       "no memory for the text");
        engine_end_request(e, r, &f);
    } else if (r->n_open == 0) {
        engine_end_request(e, r, NULL);
    }
}

/* The prompt of a piece has run: the other choices that wait for it take a token of the same
 * row. */
static void take_forks(engine *e, const scheduler_piece *piece, const float *logits,
                       const model_best *best) {
    request *r = piece->who->owner;
    for (uint32_t i = 0; i < r->n_choices && !r->over; i++) {
        scheduler_piece fork = {.who = &r->choices[i].timeline};
        if (fork.who->leader != piece->who) continue;
        if (!scheduler_fork(e->scheduler, piece->who, fork.who)) continue;
        if (best == NULL) memcpy(e->fork_row, logits, e->context.n_vocab * sizeof *logits);
        take_row(e, &fork, e->fork_row, best);
    }
}

static void take_rows(engine *e, const scheduler_piece *piece, float *logits,
                      const model_best *best) {
    const request *r = piece->who->owner;
    if (piece->who->n_run == piece->who->n_prompt) take_forks(e, piece, logits, best);
    if (!r->over) take_row(e, piece, logits, best);
}

/* What a device found best may be of no use behind a guess: then all logits are read.  False
 * where that failed, and the request with it. */
static bool need_row(engine *e, const scheduler_piece *piece, const model_best *best) {
    request *r = piece->who->owner;
    error cause = {0};
    if (e->has_logits || best_will_do(e, r, choice_of(piece), best)) return true;
    e->has_logits = true;
    status rc = model_read_logits(e->model, e->logits, &cause);
    if (rc == STATUS_OK) return true;
    request_fault f = engine_fault(500, "device_error", true, rc, cause.text);
    engine_end_request(e, r, &f);
    return false;
}

/* The token of each row as long as it is the one that was guessed; `row` counts the step's.
 * Returns the guesses that came true. */
static uint32_t take_guessed(engine *e, const scheduler_piece *piece, const model_segment *s,
                             size_t row) {
    sequence *who = piece->who;
    const request *r = who->owner;
    uint32_t n_true = 0;
    for (;; n_true++, row++) {
        int32_t guess = n_true < piece->n_drafted ? who->tokens[who->n_tokens] : -1;
        if (!need_row(e, piece, &e->best[row])) break;
        take_row(e, piece, e->logits + row * model_configuration(e->model)->n_vocab,
                 e->has_logits ? NULL : &e->best[row]);
        bool goes_on = !r->over && who->phase == SEQUENCE_RUNNING;
        if (!goes_on || guess != who->tokens[who->n_tokens - 1]) break;
    }
    if (who->phase == SEQUENCE_RUNNING)
        engine_keep_rows(e, (size_t)(s - e->segments), 1 + n_true);
    who->n_drafted = 0;
    scheduler_advance(e->scheduler, who, piece->n_tokens - piece->n_drafted + n_true);
    return n_true;
}

/* Returns the tokens beyond those of a step without guesses. */
static uint32_t take_piece(engine *e, const scheduler_piece *piece, const model_segment *s,
                           size_t row) {
    sequence *who = piece->who;
    const request *r = who->owner;
    bool decodes = who->n_run >= who->n_prompt;
    uint32_t n_true = 0;
    if (r->ahead) {
        engine_advance_ahead(e, piece);
        return 0;
    }
    if (piece->n_drafted > 0 && !r->over) {
        n_true = take_guessed(e, piece, s, row);
    } else {
        scheduler_advance(e->scheduler, who, piece->n_tokens);
        float *logits = e->logits + row * model_configuration(e->model)->n_vocab;
        if (!r->over && r->vectors != NULL)
            engine_take_vectors(e, piece, s, logits);
        else if (!r->over && s->n_outputs > 0)
            take_rows(e, piece, logits, e->has_logits ? NULL : &e->best[row]);
    }
    if (r->vectors != NULL) return 0;
    engine_show_rows(e, who, s, piece->n_tokens - piece->n_drafted + n_true);
    if (e->guesses != NULL && decodes)
        speculate_take(e->guesses, who, piece->n_drafted, n_true);
    return n_true;
}

/* The step of pieces that are not cut.  alone: no slice runs behind it, whose experts would make the
 * next such step slower than guesses can be blamed for. */
static status run_pieces(engine *e, size_t n, bool alone, uint64_t begun_ns, error *err) {
    clear_states(e, n);
    uint32_t n_rows = make_segments(e, n, begun_ns);
    error cause = {0};
    status rc = run_model(e, n, &cause);
    if (rc != STATUS_OK) {
        fail_step(e, n, &cause);
        return error_set(err, rc, "%s", cause.text);
    }
    engine_rates_step figures = count_step(e, n, n_rows, n_rows, begun_ns);
    size_t row = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t n_outputs = e->segments[i].n_outputs;
        figures.n_decoded += take_piece(e, &e->pieces[i], &e->segments[i], row);
        row += n_outputs;
    }
    if (e->guesses != NULL && alone && figures.n_prompt == 0)
        speculate_note_step(e->guesses, n_rows, e->model_ns);
    engine_rates_add(&e->rates, &figures);
    scheduler_note_time(e->scheduler, clock_monotonic_ns() - begun_ns);
    return STATUS_OK;
}

/* Layers of a piece that is cut.  With the last of them the piece has run. */
static status run_slice(engine *e, const scheduler_slice *slice, error *err) {
    uint64_t begun_ns = clock_monotonic_ns();
    bool is_last = slice->end_layer == model_configuration(e->model)->n_layers;
    e->pieces[0] = slice->piece;
    if (slice->first_layer == 0) clear_states(e, 1);
    uint32_t n_rows = make_segments(e, 1, begun_ns);
    const model_slice layers = {slice->first_layer, slice->end_layer,
                                engine_cut_rows(e, slice->piece.who)};
    error cause = {0};
    status rc = model_step_slice(e->model, &e->segments[0], &layers, e->logits, &cause);
    if (rc != STATUS_OK) {
        fail_step(e, 1, &cause);
        return error_set(err, rc, "%s", cause.text);
    }
    e->has_logits = true;
    engine_rates_step figures = count_step(e, 1, n_rows, is_last ? n_rows : 0, begun_ns);
    if (is_last) (void)take_piece(e, &e->pieces[0], &e->segments[0], 0);
    engine_rates_add(&e->rates, &figures);
    scheduler_note_slice(e->scheduler, clock_monotonic_ns() - begun_ns);
    return STATUS_OK;
}

status engine_step(engine *e, bool *did_work, error *err) {
    uint64_t begun_ns = clock_monotonic_ns();
    *did_work = false;
    engine_end_late_requests(e, begun_ns);
    engine_start_fetched(e);
    engine_begin_vectors(e);
    engine_guess(e);
    scheduler_slice slice;
    size_t n = scheduler_plan(e->scheduler, e->pieces, &slice);
    if (n == 0 && slice.piece.who == NULL) {
        *did_work = engine_wait_fetching(e) || engine_begin_ahead(e);
        return STATUS_OK;
    }
    *did_work = true;
    bool alone = slice.piece.who == NULL;
    status rc = n > 0 ? run_pieces(e, n, alone, begun_ns, err) : STATUS_OK;
    /* A token just taken may have ended the request of the piece that is cut. */
    if (rc == STATUS_OK && slice.piece.who != NULL && sequence_is_cut(slice.piece.who))
        rc = run_slice(e, &slice, err);
    if (rc != STATUS_OK) return rc;
    engine_sweep(e);
    engine_begin_vectors(e); /* so that the figures between steps tell that there is work */
    return STATUS_OK;
}
