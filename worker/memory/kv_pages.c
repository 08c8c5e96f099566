/* kv_pages.c - a stack of free page numbers and a count of owners for each. */
#include "worker/memory/kv_pages.h"
#include <stdlib.h>

struct kv_pages {
    uint32_t n_pages;
    uint32_t n_free;
    uint32_t *free_pages;
    uint32_t *owners;
    void (*on_free)(void *context, uint32_t page);
    void *context;
};

status kv_pages_new(kv_pages **out, uint32_t n_pages, error *err) {
    *out = NULL;
    kv_pages *p = calloc(1, sizeof *p);
    if (p == NULL) goto no_memory;
    p->n_pages = n_pages;
    p->n_free = n_pages;
    p->free_pages = malloc((size_t)n_pages * sizeof *p->free_pages + 1);
    p->owners = calloc((size_t)n_pages + 1, sizeof *p->owners);
    if (p->free_pages == NULL || p->owners == NULL) goto no_memory;
    for (uint32_t i = 0; i < n_pages; i++)
        p->free_pages[i] = n_pages - 1 - i;
    *out = p;
    return STATUS_OK;
no_memory:
    kv_pages_free(p);
    return error_set(err, STATUS_NO_MEMORY, "kv pages: no memory to count %u pages", n_pages);
}

void kv_pages_free(kv_pages *pages) {
    if (pages == NULL) return;
    free(pages->owners);
    free(pages->free_pages);
    free(pages);
}

bool kv_pages_take(kv_pages *pages, uint32_t *page) {
    if (pages->n_free == 0) return false;
    *page = pages->free_pages[--pages->n_free];
    CHECK(pages->owners[*page] == 0);
    pages->owners[*page] = 1;
    return true;
}

void kv_pages_share(kv_pages *pages, uint32_t page) {
    CHECK(page < pages->n_pages && pages->owners[page] > 0);
    pages->owners[page]++;
}

void kv_pages_release(kv_pages *pages, uint32_t page) {
    CHECK(page < pages->n_pages && pages->owners[page] > 0);
    pages->owners[page]--;
    if (pages->owners[page] > 0) return;
    if (pages->on_free != NULL) pages->on_free(pages->context, page);
    pages->free_pages[pages->n_free++] = page;
}

void kv_pages_watch(kv_pages *pages, void (*fn)(void *context, uint32_t page), void *context) {
    pages->on_free = fn;
    pages->context = context;
}

uint32_t kv_pages_owners(const kv_pages *pages, uint32_t page) {
    return page < pages->n_pages ? pages->owners[page] : 0;
}

uint32_t kv_pages_available(const kv_pages *pages) {
    return pages->n_free;
}

uint32_t kv_pages_total(const kv_pages *pages) {
    return pages->n_pages;
}
