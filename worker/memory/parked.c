#include "worker/memory/parked.h"

#include <stdlib.h>

struct parked {
    uint32_t n_pages;
    uint64_t n_bytes;
    unsigned char *pages; /* behind the state */
    unsigned char state[];
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

uint64_t parked_store_bytes(const parked_store *store, uint32_t n_pages) {
    return store->state_bytes + n_pages * store->page_bytes;
}

parked *parked_store_keep(parked_store *store, uint32_t state, const uint32_t *pages,
                          uint32_t n_pages) {
    uint64_t n_bytes = parked_store_bytes(store, n_pages);
    parked *p = NULL;
    if (store->counts.used_bytes + n_bytes <= store->budget_bytes)
        p = malloc(sizeof *p + n_bytes);
    if (p == NULL) {
        store->counts.refused++;
        return NULL;
    }
    p->n_pages = n_pages;
    p->n_bytes = n_bytes;
    p->pages = p->state + store->state_bytes;
    model_state_save(store->model, state, p->state);
    for (uint32_t i = 0; i < n_pages; i++)
        model_page_save(store->model, pages[i], p->pages + i * store->page_bytes);
    store->counts.used_bytes += n_bytes;
    store->counts.kept++;
    return p;
}

void parked_store_restore(parked_store *store, parked *what, uint32_t state,
                          const uint32_t *pages) {
    model_state_load(store->model, state, what->state);
    for (uint32_t i = 0; i < what->n_pages; i++)
        model_page_load(store->model, pages[i], what->pages + i * store->page_bytes);
    store->counts.restored++;
    parked_store_forget(store, what);
}

void parked_store_forget(parked_store *store, parked *what) {
    store->counts.used_bytes -= what->n_bytes;
    free(what);
}

uint32_t parked_n_pages(const parked *what) {
    return what->n_pages;
}

parked_counts parked_store_count(const parked_store *store) {
    return store->counts;
}
