/* prefix_cache_parts.h - what the files of the prefix cache share.
 *
 *   prefix_cache.c   what each block has, lists by age, forgetting, room in RAM
 *   prefix_use.c     finding, going on, keeping, giving pages back
 *   prefix_saved.c   the same things on disk: written behind, read ahead
 *
 * A use touches the whole path from a block to the root, the root last.  So a block's
 * descendants are never younger than it is, and the oldest page of a list has none below it
 * that should stay.
 *
 * Private to those.  Thread: engine.
 */
#ifndef SILICEO_WORKER_MEMORY_PREFIX_CACHE_PARTS_H
#define SILICEO_WORKER_MEMORY_PREFIX_CACHE_PARTS_H

#include "worker/memory/prefix_cache.h"
#include "worker/memory/prefix_disk.h"
#include "worker/memory/ram_slots.h"

enum { PREFIX_INTERACTIVE, PREFIX_BACKGROUND, PREFIX_CLASSES };
enum { PREFIX_MAX_BLOCKS = 1 << 16, PREFIX_MAX_NAMES = 4, PREFIX_MAX_LOST = 512 };

typedef enum prefix_kind {
    PAGE_IN_PLACE,
    PAGE_IN_RAM,
    STATE_IN_PLACE,
    STATE_IN_RAM,
    STATE_ON_DISK,
    PREFIX_KINDS
} prefix_kind;

typedef struct prefix_link {
    uint32_t older, newer;
} prefix_link;

typedef struct prefix_list {
    uint32_t oldest, newest;
} prefix_list;

/* Where a page or a snapshot is beside memory. */
typedef struct prefix_saved {
    bool on_disk;
    bool writing; /* it will be on disk */
    bool loading; /* it will be in RAM; on_disk too */
} prefix_saved;

/* What a block has.  PREFIX_NONE: not there.  In memory its page is in place or in RAM. */
typedef struct prefix_holding {
    uint32_t place;       /* page of the pool */
    uint32_t page_slot;   /* its copy in RAM */
    uint32_t state_place; /* snapshot behind the block: a state of the model */
    uint32_t state_slot;  /* or in RAM */
    prefix_saved page, state;
    bool page_background, state_background;
    uint64_t page_used, state_used;
    uint64_t names[PREFIX_MAX_NAMES]; /* of the snapshot; 0: none */
    prefix_link links[PREFIX_KINDS];
} prefix_holding;

struct prefix_cache {
    prefix_memory memory;
    kv_pages *pages;
    prefix_index *index;
    prefix_holding *held; /* by block */
    ram_slots *ram_pages, *ram_states;
    uint64_t ram_budget;
    uint32_t *free_states; /* of those that are the cache's */
    uint32_t n_states, n_free_states;
    prefix_list lists[PREFIX_KINDS][PREFIX_CLASSES];
    uint64_t clock; /* of uses */
    uint32_t n_in_place;
    uint64_t lookups, hits, hits_in_place, asked_tokens, hit_tokens, n_read;
    bool begun_in_place; /* the last begin, from a state of the model */
    uint64_t lost[PREFIX_MAX_LOST];
    size_t n_lost;
    prefix_disk *disk; /* NULL: none */
    prefix_key identity;
    uint64_t disk_budget, disk_used; /* files there and to come */
    uint32_t n_writing;
};

static inline const prefix_block *prefix_block_at(const prefix_cache *c, uint32_t id) {
    return prefix_index_at(c->index, id);
}
static inline bool prefix_page_in_memory(const prefix_holding *h) {
    return h->place != PREFIX_NONE || h->page_slot != PREFIX_NONE;
}
static inline bool prefix_state_in_memory(const prefix_holding *h) {
    return h->state_place != PREFIX_NONE || h->state_slot != PREFIX_NONE;
}
/* Is or will it be anywhere? */
static inline bool prefix_has_state(const prefix_holding *h) {
    return prefix_state_in_memory(h) || h->state.on_disk || h->state.writing;
}

/* Behind all that were not used later. */
void prefix_list_add(prefix_cache *c, prefix_kind k, uint32_t id);
void prefix_list_remove(prefix_cache *c, prefix_kind k, uint32_t id);

/* Used now, by a path's last block or by a snapshot. */
void prefix_touch_path(prefix_cache *c, uint32_t last, bool background);
void prefix_touch_state(prefix_cache *c, uint32_t id, bool background);

void prefix_put_in_place(prefix_cache *c, uint32_t id, uint32_t page); /* an owner more */
void prefix_drop_place(prefix_cache *c, uint32_t id);
void prefix_drop_page_slot(prefix_cache *c, uint32_t id);
void prefix_drop_state(prefix_cache *c, uint32_t id); /* from RAM */
void prefix_drop_state_place(prefix_cache *c, uint32_t id);
/* Nothing, but for whose it is. */
prefix_holding prefix_empty_holding(bool background);
/* It has been lost altogether, if it has. */
void prefix_note_lost(prefix_cache *c, prefix_holding *h);
/* From id upwards: pages behind which no snapshot stands are of no use. */
void prefix_prune(prefix_cache *c, uint32_t id);
/* Without its page nothing below a block can be used. */
void prefix_remove_subtree(prefix_cache *c, uint32_t top);

/* Forget the oldest thing in RAM that was not used since `before`, or any of background work;
 * that makes room among its own things alone.  False when there is none. */
bool prefix_drop_oldest(prefix_cache *c, bool background, uint64_t before);
/* So much RAM, in that way. */
bool prefix_make_room(prefix_cache *c, uint64_t bytes, bool background, uint64_t before);

/* --- on disk; each does nothing where there is none --- */

status prefix_open_disk(prefix_cache *c, const prefix_params *params, error *err);
void prefix_drop_page_file(prefix_cache *c, uint32_t id);
void prefix_drop_state_file(prefix_cache *c, uint32_t id);
/* Write what of a path and its last snapshot, all in memory now, is not on disk. */
void prefix_write_path(prefix_cache *c, uint32_t last, bool background);

#endif
