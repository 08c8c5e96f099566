/* engine_poison.c - what nobody owns is filled with NaN, where engine_params.poison asks for it.
 *
 * For tests: whoever reads a page or a state that was given back, or one that was not
 * written since it was taken, answers nonsense at once.  Expert slots are the backend's own.
 */
#include "worker/engine_parts.h"

#include <stdlib.h>
#include <string.h>

static void poison_page(void *context, uint32_t page) {
    const engine *e = context;
    model_page_load(e->model, page, e->poison);
}

void engine_poison_states(void *context, const sequence *who) {
    const engine *e = context;
    for (uint32_t i = 0; i < who->n_states; i++)
        model_state_load(e->model, who->states[i], e->poison);
}

status engine_poison_begin(engine *e, error *err) {
    if (!e->params.poison) return STATUS_OK;
    size_t page = model_page_bytes(e->model);
    size_t state = (size_t)model_config_state_bytes(model_configuration(e->model));
    size_t n = page > state ? page : state;
    e->poison = malloc(n);
    if (e->poison == NULL) return error_set(err, STATUS_NO_MEMORY, "engine: no memory");
    memset(e->poison, 0xFF, n); /* NaN as float, as half and as the scale of a block */
    for (uint32_t i = 0; i < e->plan.n_pages; i++)
        poison_page(e, i);
    for (uint32_t i = 0; i < e->plan.n_states + e->plan.n_snapshots; i++)
        model_state_load(e->model, i, e->poison);
    kv_pages_watch(e->pages, poison_page, e);
    return STATUS_OK;
}
