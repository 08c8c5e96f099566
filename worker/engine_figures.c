/* engine_figures.c - what others want to know of an engine, and its own measurement. */
#include "worker/engine_parts.h"

#include "common/clock.h"
#include "worker/memory/host_ram.h"
#include <stdlib.h>
#include <string.h>

enum { RAM_READ_MS = 1000 };

void engine_read_stats(engine *e, engine_stats *out) {
    uint64_t now_ms = clock_monotonic_ms();
    if (e->ram_read_ms == 0 || now_ms - e->ram_read_ms >= RAM_READ_MS) {
        e->ram_read_ms = now_ms;
        e->ram_used_bytes = host_ram_used_bytes();
    }
    memset(out, 0, sizeof *out);
    out->running = scheduler_n_running(e->scheduler);
    out->waiting = scheduler_n_waiting(e->scheduler) + engine_n_fetching(e);
    out->free_sequences = scheduler_n_free(e->scheduler);
    if (e->ahead != NULL) { /* it gives way to whoever comes */
        bool runs = e->ahead->choices[0].timeline.phase == SEQUENCE_RUNNING;
        *(runs ? &out->running : &out->waiting) -= 1;
        out->free_sequences += runs;
    }
    out->kv_pages_total = kv_pages_total(e->pages);
    out->kv_pages_free = kv_pages_available(e->pages);
    if (e->prefixes != NULL) {
        prefix_cache_read_stats(e->prefixes, &out->prefixes);
        out->kv_pages_free += out->prefixes.n_alone; /* sequences can have them */
    }
    out->ram_used_bytes = e->ram_used_bytes;
    parked_counts kept = parked_store_count(e->parked);
    out->parked = kept.kept;
    out->not_parked = kept.refused;
    out->restored = kept.restored;
    model_read_stats(e->model, &out->model);
    if (e->guesses != NULL) speculate_read_stats(e->guesses, &out->guesses);
    engine_rates_read(&e->rates, clock_monotonic_ns(), out);
    if (e->plan.n_slots == 0) {
        out->hit_rate = -1;
        out->misses_per_token = 0;
    }
}

/* Pseudo-random, so that experts and pages are used as a text would use them. */
void engine_fill_ids(int32_t *ids, uint32_t n, uint32_t n_vocab) {
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

/* What a measurement's ids use is forgotten, and is no news for the list of experts: that is of
 * texts. */
typedef struct uses_before {
    uint32_t *uses; /* NULL: there are none */
    uint64_t tokens;
} uses_before;

static size_t uses_bytes(const engine *e) {
    const model_config *c = model_configuration(e->model);
    return (size_t)c->n_layers * c->n_experts * sizeof(uint32_t);
}

static uses_before save_uses(const engine *e) {
    const uint32_t *now = model_expert_uses(e->model);
    model_stats stats;
    model_read_stats(e->model, &stats);
    uses_before before = {.tokens = stats.tokens};
    if (now != NULL) before.uses = malloc(uses_bytes(e));
    if (before.uses != NULL) memcpy(before.uses, now, uses_bytes(e));
    return before;
}

static void restore_uses(engine *e, const uses_before *before) {
    model_stats stats;
    model_read_stats(e->model, &stats);
    e->uses_saved_tokens += stats.tokens - before->tokens;
    if (before->uses == NULL) return;
    memcpy(model_expert_uses(e->model), before->uses, uses_bytes(e));
    free(before->uses);
}

status engine_measure(engine *e, uint32_t budget_ms, double *prefill_tok_per_s,
                      double *decode_tok_per_s, error *err) {
    if (e->requests != NULL) {
        return error_set(err, STATUS_UNAVAILABLE, "measure: the engine is not empty");
    }
    if (e->prefixes != NULL) prefix_cache_reclaim(e->prefixes, e->plan.n_pages);
    /* Nobody owns a page or state now, so all are taken as they come. */
    uint32_t cap = e->plan.n_context, n = e->plan.chunk_tokens;
    if (n > cap / 2) n = cap / 2;
    int32_t *ids = calloc(n, sizeof *ids);
    uint32_t *pages = calloc(e->plan.n_pages, sizeof *pages);
    uses_before before = save_uses(e);
    status rc = STATUS_OK;
    if (ids == NULL || pages == NULL) {
        rc = error_set(err, STATUS_NO_MEMORY, "measure: no memory");
        goto done;
    }
    engine_fill_ids(ids, n, e->context.n_vocab);
    for (uint32_t i = 0; i < e->plan.n_pages; i++)
        pages[i] = i;
    model_segment s = {.tokens = ids, .n_tokens = n, .pages = pages, .n_outputs = 1};
    uint64_t half_ns = (uint64_t)budget_ms * 500000u;
    model_stats opened;
    model_read_stats(e->model, &opened);
    /* Where slots began full, what they hold is worth more than what these ids use. */
    model_set_trial(e->model,
                    opened.slots_filled > 0 && opened.slots_filled == e->plan.n_slots);
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
    model_set_trial(e->model, false);
    restore_uses(e, &before);
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

uint64_t engine_planned_vram(const engine *e) {
    return e->plan.vram_needed_bytes;
}

const char *engine_warning(const engine *e, size_t index) {
    return index < e->n_warnings ? e->warnings[index] : NULL;
}

status engine_set_routing(engine *e, const routing_trace *traces, uint32_t n_traces,
                          error *err) {
    if (e->prefixes != NULL) prefix_cache_clear(e->prefixes); /* other bits from now on */
    return model_set_routing(e->model, traces, n_traces, err);
}

void engine_forget_experts(engine *e) {
    model_forget_experts(e->model);
}
