/* kv_pages.h - who owns which KV page and which recurrent state: reference counts.
 *
 * Pages are numbers 0..n-1 of 64 tokens for all full-attention layers; the bytes
 * belong to the model.  A page may be shared by sequences (copy on write is the
 * caller's: a page with more than one owner is never written).  Thread: engine.
 */
#ifndef SILICEO_WORKER_MEMORY_KV_PAGES_H
#define SILICEO_WORKER_MEMORY_KV_PAGES_H

#include "common/error.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct kv_pages kv_pages;

status kv_pages_new(kv_pages **out, uint32_t n_pages, error *err);
void kv_pages_free(kv_pages *pages);

/* Take a free page with one owner; false when none is left. */
bool kv_pages_take(kv_pages *pages, uint32_t *page);
void kv_pages_share(kv_pages *pages, uint32_t page);   /* one owner more */
void kv_pages_release(kv_pages *pages, uint32_t page); /* one less; free at 0 */
/* From now on fn is told of every page that nobody owns any more, before it can be taken. */
void kv_pages_watch(kv_pages *pages, void (*fn)(void *context, uint32_t page), void *context);
uint32_t kv_pages_owners(const kv_pages *pages, uint32_t page);
uint32_t kv_pages_available(const kv_pages *pages);
uint32_t kv_pages_total(const kv_pages *pages);

#endif
