/* engine_prefix.c - the cache of prompts' beginnings between the scheduler and the model. */
#include "worker/engine_parts.h"

#include <stdio.h>
#include <stdlib.h>

/* --- the model's memory --- */

static void page_save(void *context, uint32_t page, void *bytes) {
    model_page_save(context, page, bytes);
}

static void page_load(void *context, uint32_t page, const void *bytes) {
    model_page_load(context, page, bytes);
}

static void state_save(void *context, uint32_t state, void *bytes) {
    model_state_save(context, state, bytes);
}

static void state_load(void *context, uint32_t state, const void *bytes) {
    model_state_load(context, state, bytes);
}

static void state_copy(void *context, uint32_t to, uint32_t from) {
    model_state_copy(context, to, from);
}

/* --- the scheduler's questions --- */

/* Counts what admission needs not take: pages that lie in RAM take free ones. */
static uint32_t find(void *context, const sequence *who) {
    const engine *e = context;
    if (who->runs_whole) return 0;
    return prefix_cache_find(e->prefixes, who->tokens, who->n_prompt).n_in_place *
           MODEL_PAGE_TOKENS;
}

static bool is_background(const sequence *who) {
    return who->priority == SEQUENCE_BACKGROUND;
}

static uint32_t begin(void *context, sequence *who) {
    engine *e = context;
    request *r = who->owner;
    if (who->runs_whole) return 0;
    uint32_t n = prefix_cache_begin(e->prefixes, who->tokens, who->n_prompt, is_background(who),
                                    who->state, who->pages);
    if (!r->ahead) prefix_cache_count(e->prefixes, who->n_prompt, n);
    who->n_pages = n / MODEL_PAGE_TOKENS;
    bool is_first = r->vectors == NULL && who->choice == 0 && r->started_ns == 0;
    if (is_first) r->n_cached = n;
    if (r->vectors != NULL && who->n_preempted == 0) r->n_cached += n;
    return n;
}

static void at_stop(void *context, sequence *who) {
    engine *e = context;
    CHECK(!sequence_is_cut(who));
    (void)prefix_cache_keep(e->prefixes, who->tokens, who->n_run, is_background(who),
                            who->state, who->pages);
}

static void reclaim(void *context, uint32_t n) {
    const engine *e = context;
    prefix_cache_reclaim(e->prefixes, n);
}

/* --- opening --- */

enum { REGULAR_SHARE = 8 }; /* of the snapshots, for regular ones of one prompt */

static uint32_t max_regular(uint64_t n_snapshots) {
    uint64_t n = n_snapshots / REGULAR_SHARE;
    if (n > SEQUENCE_MAX_STOPS / 2) n = SEQUENCE_MAX_STOPS / 2;
    return n < 1 ? 1 : (uint32_t)n;
}

status engine_open_prefixes(engine *e, scheduler_cache *hooks, error *err) {
    if (e->plan.prefix_bytes == 0) return STATUS_OK;
    char identity[sizeof e->hash + sizeof e->numerics];
    (void)snprintf(identity, sizeof identity, "%s %s", e->hash, e->numerics);
    const prefix_params params = {
        .memory = {.context = e->model,
                   .page_bytes = model_page_bytes(e->model),
                   .state_bytes = model_config_state_bytes(model_configuration(e->model)),
                   .page_save = page_save,
                   .page_load = page_load,
                   .state_save = state_save,
                   .state_load = state_load,
                   .state_copy = state_copy},
        .pages = e->pages,
        .first_state = e->plan.n_states,
        .n_states = e->plan.n_snapshots,
        .ram_bytes = e->plan.prefix_bytes,
        .disk_bytes = e->params.prefix_disk_mib << 20,
        .disk_dir = e->params.prefix_disk_dir,
        .identity = identity};
    status rc = prefix_cache_open(&e->prefixes, &params, err);
    if (rc != STATUS_OK) return rc;
    e->context.prefix =
        (prefix_rule){.on = true,
                      .every_tokens = e->params.prefix_every_tokens,
                      .max_regular = max_regular(params.ram_bytes / params.memory.state_bytes)};
    *hooks = (scheduler_cache){
        .context = e, .find = find, .begin = begin, .at_stop = at_stop, .reclaim = reclaim};
    return STATUS_OK;
}

/* --- what is on disk --- */

static const sequence *prompt_of(const request *r) {
    return &r->choices[0].timeline;
}

bool engine_fetch_prefix(engine *e, request *r) {
    if (e->prefixes == NULL || r->n_choices == 0) return false;
    prefix_cache_poll(e->prefixes, 0);
    const sequence *s = prompt_of(r);
    r->is_fetching = prefix_cache_fetch(e->prefixes, s->tokens, s->n_prompt, is_background(s));
    return r->is_fetching;
}

uint32_t engine_n_fetching(const engine *e) {
    uint32_t n = 0;
    for (const request *r = e->requests; r != NULL; r = r->next) {
        if (r->is_fetching && !r->over) n += r->n_choices;
    }
    return n;
}

bool engine_wait_fetching(engine *e) {
    if (engine_n_fetching(e) == 0) return false;
    prefix_cache_poll(e->prefixes, 1);
    return true;
}

bool engine_is_fetched(engine *e, const request *r) {
    const sequence *s = prompt_of(r);
    return !prefix_cache_is_loading(e->prefixes, s->tokens, s->n_prompt) &&
           scheduler_has_room(e->scheduler, r->n_choices);
}

/* --- what is told of it --- */

void engine_note_held(engine *e, request *r) {
    if (e->prefixes == NULL) return;
    r->n_lost = prefix_cache_take_lost(e->prefixes, r->lost, REQUEST_MAX_LOST);
    if (r->marks.n_ends == 0 || r->n_choices == 0) return;
    r->held = malloc(r->marks.n_ends * sizeof *r->held);
    if (r->held == NULL) return; /* nothing is said to be held */
    r->n_held = prefix_cache_list_held(e->prefixes, r->choices[0].timeline.tokens,
                                       r->marks.ends, r->marks.n_ends, r->held);
}
