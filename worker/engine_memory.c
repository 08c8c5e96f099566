/* engine_memory.c - moves the bytes of sequences for the scheduler, see scheduler_memory. */
#include "worker/engine_parts.h"

#include "common/log.h"
#include <inttypes.h>

float *engine_cut_rows(const engine *e, const sequence *who) {
    size_t n_floats = (size_t)e->plan.chunk_tokens * model_configuration(e->model)->n_embd;
    return e->cut_rows + sequence_cut_place(who) * n_floats;
}

/* What who has there, or is to have. */
static parked_place place_of(const engine *e, const sequence *who) {
    size_t n_embd = model_configuration(e->model)->n_embd;
    uint32_t n_pages = (sequence_n_begun(who) + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
    return (parked_place){.state = who->state,
                          .n_pages = n_pages,
                          .pages = who->pages,
                          .rows = engine_cut_rows(e, who),
                          .n_floats = who->cut.n_rows * n_embd};
}

static bool park(void *context, const sequence *from, sequence *who) {
    engine *e = context;
    const request *r = who->owner;
    const parked_place place = place_of(e, from);
    who->parked = parked_store_keep(e->parked, &place);
    if (who->parked != NULL) return true;
    log_info("sequence-not-parked", "request=%" PRIu64 " choice=%u tokens=%u bytes=%" PRIu64,
             r->id, who->choice, sequence_n_begun(from), parked_store_bytes(e->parked, &place));
    return false;
}

static void unpark(void *context, sequence *who) {
    engine *e = context;
    const parked_place place = place_of(e, who);
    parked_store_restore(e->parked, who->parked, &place);
    who->parked = NULL;
}

static void forget(void *context, sequence *who) {
    engine *e = context;
    parked_store_forget(e->parked, who->parked);
    who->parked = NULL;
}

static void copy(void *context, const sequence *from, const sequence *to, uint32_t from_page,
                 uint32_t to_page) {
    engine *e = context;
    CHECK(!sequence_is_cut(from));
    model_state_copy(e->model, to->state, from->state);
    model_page_copy(e->model, to_page, from_page);
}

scheduler_memory engine_memory_hooks(engine *e) {
    return (scheduler_memory){e,      park, unpark,
                              forget, copy, e->params.poison ? engine_poison_states : NULL};
}
