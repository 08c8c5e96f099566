/* engine_experts.c - which experts the texts of a model use, over restarts.
 *
 * The counts are the expert cache's; with a folder they are read before the model opens, so that its
 * slots begin with what was used most, and written every experts_save_ms and when the engine closes,
 * where tokens have run since.  A file that is not this model's, or damaged, is named in the
 * log and counts as none; the next one takes its place.
 */
#include "worker/engine_parts.h"

#include "common/log.h"
#include "worker/memory/expert_list.h"
#include <stdio.h>
#include <stdlib.h>

static expert_list list_of(const engine *e, const model_config *c) {
    return (expert_list){e->hash, c->n_layers, c->n_experts};
}

status engine_read_expert_list(engine *e, const model_config *c, error *err) {
    const expert_list list = list_of(e, c);
    error why = {0};
    bool found = false;
    if (e->params.experts_dir == NULL || e->plan.n_slots == 0) return STATUS_OK;
    e->expert_uses = calloc((size_t)c->n_layers * c->n_experts, sizeof *e->expert_uses);
    if (e->expert_uses == NULL) return error_set(err, STATUS_NO_MEMORY, "engine: no memory");
    if (expert_list_load(&list, e->params.experts_dir, e->expert_uses, &found, &why) !=
        STATUS_OK)
        log_warn("expert-list-refused", "%s", why.text);
    if (found) return STATUS_OK;
    free(e->expert_uses);
    e->expert_uses = NULL;
    return STATUS_OK;
}

void engine_tell_expert_list(engine *e) {
    model_stats opened;
    char text[80];
    model_read_stats(e->model, &opened);
    free(e->expert_uses);
    e->expert_uses = NULL;
    if (e->params.experts_dir == NULL || e->plan.n_slots == 0) return;
    (void)snprintf(text, sizeof text, "%u of %u expert slots filled with those used most",
                   opened.slots_by_use, e->plan.n_slots);
    engine_tell_progress(e, ENGINE_LOADED, text);
    log_info("expert-list", "folder=%s model=%s slots=%u filled=%u by_use=%u",
             e->params.experts_dir, e->hash, e->plan.n_slots, opened.slots_filled,
             opened.slots_by_use);
}

void engine_save_expert_list(engine *e) {
    const uint32_t *uses = NULL;
    model_stats now;
    error why = {0};
    if (e->params.experts_dir == NULL || e->model == NULL) return;
    uses = model_expert_uses(e->model);
    model_read_stats(e->model, &now);
    if (uses == NULL || now.tokens == e->uses_saved_tokens) return;
    const expert_list list = list_of(e, model_configuration(e->model));
    if (expert_list_save(&list, e->params.experts_dir, uses, &why) == STATUS_OK) {
        e->uses_saved_tokens = now.tokens;
        e->uses_complained = false;
        return;
    }
    if (!e->uses_complained) log_warn("expert-list-not-written", "%s", why.text);
    e->uses_complained = true;
}

void engine_tend_experts(engine *e, uint64_t now_ms) {
    if (e->params.experts_dir == NULL) return;
    if (e->uses_saved_ms == 0) e->uses_saved_ms = now_ms;
    if (now_ms - e->uses_saved_ms < e->params.experts_save_ms) return;
    e->uses_saved_ms = now_ms;
    engine_save_expert_list(e);
}
