#include "worker/memory/parked.h"

#include <stdlib.h>
#include <string.h>

struct parked {
    uint32_t n_pages;
    size_t n_floats;
    uint64_t n_bytes;
    unsigned char bytes[]; /* the state, the pages, the rows */
};

struct parked_store {
    model *model;
    uint64_t budget_bytes;
    uint64_t state_bytes;
    uint64_t page_bytes;
    parked_counts counts;
};

status parked_store_new(parked_store **out, model *m, uint64_t budget_bytes, error *err) {
    parked_store *s = calloc(1, sizeof *s);
    *out = s;
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "parked: no memory");
    s->model = m;
    s->budget_bytes = budget_bytes;
    s->state_bytes = model_config_state_bytes(model_configuration(m));
    s->page_bytes = model_page_bytes(m);
    return STATUS_OK;
}

void parked_store_free(parked_store *store) {
    if (store == NULL) return;
    CHECK(store->counts.used_bytes == 0);
    free(store);
}

uint64_t parked_store_bytes(const parked_store *store, const parked_place *of) {
    return store->state_bytes + of->n_pages * store->page_bytes + of->n_floats * sizeof(float);
}

parked *parked_store_keep(parked_store *store, const parked_place *from) {
    uint64_t n_bytes = parked_store_bytes(store, from);
    parked *p = NULL;
    if (store->counts.used_bytes + n_bytes <= store->budget_bytes)
        p = malloc(sizeof *p + n_bytes);
    if (p == NULL) {
        store->counts.refused++;
        return NULL;
    }
    p->n_pages = from->n_pages;
    p->n_floats = from->n_floats;
    p->n_bytes = n_bytes;
    unsigned char *at = p->bytes;
    model_state_save(store->model, from->state, at);
    at += store->state_bytes;
    for (uint32_t i = 0; i < from->n_pages; i++, at += store->page_bytes)
        model_page_save(store->model, from->pages[i], at);
    if (from->n_floats > 0) memcpy(at, from->rows, from->n_floats * sizeof(float));
    store->counts.used_bytes += n_bytes;
    store->counts.kept++;
    return p;
}

void parked_store_restore(parked_store *store, parked *what, const parked_place *to) {
    const unsigned char *at = what->bytes;
    CHECK(to->n_pages == what->n_pages && to->n_floats == what->n_floats);
    model_state_load(store->model, to->state, at);
    at += store->state_bytes;
    for (uint32_t i = 0; i < to->n_pages; i++, at += store->page_bytes)
        model_page_load(store->model, to->pages[i], at);
    if (to->n_floats > 0) memcpy(to->rows, at, to->n_floats * sizeof(float));
    store->counts.restored++;
    parked_store_forget(store, what);
}

void parked_store_forget(parked_store *store, parked *what) {
    store->counts.used_bytes -= what->n_bytes;
    free(what);
}

parked_counts parked_store_count(const parked_store *store) {
    return store->counts;
}
