/* engine_memory.c - moves the bytes of sequences for the scheduler, see scheduler_memory. */
#include "worker/engine_parts.h"

#include "common/log.h"
#include <inttypes.h>

static uint32_t pages_of(const sequence *who) {
    return (who->n_run + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
}

static bool park(void *context, const sequence *from, sequence *who) {
    engine *e = context;
    const request *r = who->owner;
    CHECK(!from->is_cut);
    who->parked = parked_store_keep(e->parked, from->state, from->pages, pages_of(from));
    if (who->parked != NULL) return true;
    log_info("sequence-not-parked", "request=%" PRIu64 " choice=%u tokens=%u bytes=%" PRIu64,
             r->id, who->choice, from->n_run, parked_store_bytes(e->parked, pages_of(from)));
    return false;
}

static void unpark(void *context, sequence *who) {
    engine *e = context;
    CHECK(parked_n_pages(who->parked) == pages_of(who));
    parked_store_restore(e->parked, who->parked, who->state, who->pages);
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
    CHECK(!from->is_cut);
    model_state_copy(e->model, to->state, from->state);
    model_page_copy(e->model, to_page, from_page);
}

scheduler_memory engine_memory_hooks(engine *e) {
    return (scheduler_memory){e,      park, unpark,
                              forget, copy, e->params.poison ? engine_poison_states : NULL};
}
