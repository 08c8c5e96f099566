/* engine_warm.c - steps before anybody asks for one.
 *
 * A first request would pay for what happens once: pages of the backbone come in, a driver loads
 * kernels when they are first launched, graphs of decoding steps are recorded at their second time,
 * threads start, and what an expert costs on the bus and on the CPU lane is a guess until it was
 * measured.  So a token runs through everything, decoding steps follow as they are recorded and
 * replayed, and prompts as small as the scheduler's pieces and as large as a usual step.
 *
 * What is expected to end after warm_up_ms is left out.  The trial of the model (model.h) keeps slots and
 * figures as they were, and state 0 is cleared; what stays is what was learnt of the machine.
 */
#include "worker/engine_parts.h"

#include "common/clock.h"
#include <stdlib.h>

enum { GPU_MS = 1000, WARM_TOKENS = 512, DECODING_STEPS = 3 };

typedef struct warm_steps {
    engine *e;
    model_segment segment;
    int32_t *ids;    /* [WARM_TOKENS] */
    uint32_t *pages; /* [n_pages] */
    uint64_t begun_ns, limit_ns;
    uint64_t first_ns; /* what the first step took, with reads from disk */
    uint64_t last_ns;  /* what the step before took */
} warm_steps;

static bool has_time(const warm_steps *w, uint64_t expected_ns) {
    uint64_t spent_ns = clock_monotonic_ns() - w->begun_ns;
    return spent_ns + expected_ns <= w->limit_ns;
}

/* The next n tokens; the logits, or the largest of them where a device finds it. */
static status run_tokens(warm_steps *w, uint32_t n, bool best, error *err) {
    const engine *e = w->e;
    model_segment *s = &w->segment;
    uint64_t begun_ns = clock_monotonic_ns();
    s->n_tokens = n;
    status rc = best ? model_step_best(e->model, s, 1, e->context.n_vocab, e->best, err)
                     : model_step(e->model, s, 1, e->logits, err);
    s->position += n;
    w->last_ns = clock_monotonic_ns() - begun_ns;
    return rc;
}

/* A prompt of n tokens takes so long after one of n_before.  Where experts come over the bus, few
 * rows want nearly as many as many do: all of a layer, instead of a token's own.  Where they come from disk, those of a decoding token are
 * in RAM already, and those of a prompt are not. */
static uint64_t expect_ns(const warm_steps *w, uint32_t n_before, uint32_t n) {
    const model_config *c = model_configuration(w->e->model);
    uint64_t by_rows = n / n_before, by_experts = 2;
    if (n_before == 1 && c->n_experts_used > 0) by_experts = c->n_experts / c->n_experts_used;
    bool ships = w->e->params.backend == BACKEND_CUDA && w->e->plan.n_slots > 0;
    bool reads = n_before == 1 && ships && !w->e->plan.pins_experts;
    uint64_t one_ns = reads && w->first_ns > w->last_ns ? w->first_ns : w->last_ns;
    return one_ns * (ships && by_experts < by_rows ? by_experts : by_rows);
}

static status run_decoding(warm_steps *w, bool best, error *err) {
    status rc = STATUS_OK;
    for (int i = 0; i < DECODING_STEPS && rc == STATUS_OK && has_time(w, w->last_ns); i++)
        rc = run_tokens(w, 1, best, err);
    return rc;
}

static status run_prompts(warm_steps *w, error *err) {
    const engine *e = w->e;
    const uint32_t sizes[] = {MODEL_CHUNK_TOKENS, WARM_TOKENS};
    uint32_t n_before = 1;
    status rc = STATUS_OK;
    for (size_t i = 0; i < 2 && rc == STATUS_OK; i++) {
        uint32_t n = sizes[i] < e->plan.chunk_tokens ? sizes[i] : e->plan.chunk_tokens;
        if (n > e->plan.n_context) n = e->plan.n_context;
        if (n <= n_before || !has_time(w, expect_ns(w, n_before, n))) break;
        engine_tell_progress(e, 960 + (uint32_t)i * 15, "warming up: prompts");
        model_state_clear(e->model, 0);
        w->segment.position = 0;
        rc = run_tokens(w, n, false, err);
        n_before = n;
    }
    return rc;
}

static uint64_t limit_ms(const engine *e) {
    if (e->params.warm_up_ms >= 0) return (uint64_t)e->params.warm_up_ms;
    return e->params.backend == BACKEND_CUDA ? GPU_MS : 0;
}

static status run_steps(warm_steps *w, error *err) {
    const engine *e = w->e;
    model_state_clear(e->model, 0);
    engine_tell_progress(e, 950, "warming up");
    status rc = run_tokens(w, 1, false, err);
    w->first_ns = w->last_ns;
    if (rc != STATUS_OK || e->plan.n_context <= 2 * DECODING_STEPS) return rc;
    rc = run_decoding(w, false, err);
    if (rc == STATUS_OK && model_finds_best(e->model)) rc = run_decoding(w, true, err);
    return rc == STATUS_OK ? run_prompts(w, err) : rc;
}

status engine_warm_up(engine *e, error *err) {
    warm_steps w = {
        .e = e, .begun_ns = clock_monotonic_ns(), .limit_ns = limit_ms(e) * 1000000};
    w.ids = calloc(WARM_TOKENS, sizeof *w.ids);
    w.pages = calloc(e->plan.n_pages, sizeof *w.pages);
    status rc = STATUS_OK;
    if (w.ids == NULL || w.pages == NULL) {
        rc = error_set(err, STATUS_NO_MEMORY, "warm-up: no memory");
        goto done;
    }
    engine_fill_ids(w.ids, WARM_TOKENS, e->context.n_vocab);
    for (uint32_t i = 0; i < e->plan.n_pages; i++)
        w.pages[i] = i;
    w.segment = (model_segment){.tokens = w.ids, .pages = w.pages, .n_outputs = 1};
    model_set_trial(e->model, true);
    rc = run_steps(&w, err);
    model_set_trial(e->model, false);
    model_state_clear(e->model, 0);
done:
    free(w.pages);
    free(w.ids);
    return rc;
}
