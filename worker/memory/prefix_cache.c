/* prefix_cache.c - what is held for each block of the index, and what goes when room is needed.
 *
 * A use touches the whole path from a block to the root, the root last.  So a block's
 * descendants are never younger than it is, and the oldest page of a list has none below it
 * that should stay.
 */
#include "worker/memory/prefix_cache.h"

#include "worker/memory/ram_slots.h"
#include <stdlib.h>
#include <string.h>

enum { INTERACTIVE, BACKGROUND, N_CLASSES };
enum { MAX_BLOCKS = 1 << 16, MAX_NAMES = 4, MAX_LOST = 512 };

typedef enum kind { PAGE_IN_PLACE, PAGE_IN_RAM, STATE_IN_RAM, N_KINDS } kind;

typedef struct link {
    uint32_t older, newer;
} link;

/* What a block has.  PREFIX_NONE: not there.  Its page is in place or in RAM. */
typedef struct holding {
    uint32_t place;      /* page of the pool */
    uint32_t page_slot;  /* its copy in RAM */
    uint32_t state_slot; /* snapshot behind the block */
    bool page_background, state_background;
    uint64_t page_used, state_used;
    uint64_t names[MAX_NAMES]; /* of the snapshot; 0: none */
    link links[N_KINDS];
} holding;

typedef struct list {
    uint32_t oldest, newest;
} list;

struct prefix_cache {
    prefix_memory memory;
    kv_pages *pages;
    prefix_index *index;
    holding *held; /* by block */
    ram_slots *ram_pages, *ram_states;
    uint64_t ram_budget;
    list lists[N_KINDS][N_CLASSES];
    uint64_t clock; /* of uses */
    uint32_t n_in_place;
    uint64_t lookups, hits, hit_tokens;
    uint64_t lost[MAX_LOST];
    size_t n_lost;
};

/* --- lists, by age --- */

static list *list_of(prefix_cache *c, kind k, uint32_t id) {
    const holding *h = &c->held[id];
    bool background = k == STATE_IN_RAM ? h->state_background : h->page_background;
    return &c->lists[k][background ? BACKGROUND : INTERACTIVE];
}

static uint64_t used(const prefix_cache *c, kind k, uint32_t id) {
    return k == STATE_IN_RAM ? c->held[id].state_used : c->held[id].page_used;
}

/* Behind all that were not used later. */
static void list_add(prefix_cache *c, kind k, uint32_t id) {
    list *l = list_of(c, k, id);
    link at = {l->newest, PREFIX_NONE};
    while (at.older != PREFIX_NONE && used(c, k, at.older) > used(c, k, id)) {
        at.newer = at.older;
        at.older = c->held[at.older].links[k].older;
    }
    c->held[id].links[k] = at;
    *(at.older != PREFIX_NONE ? &c->held[at.older].links[k].newer : &l->oldest) = id;
    *(at.newer != PREFIX_NONE ? &c->held[at.newer].links[k].older : &l->newest) = id;
}

static void list_remove(prefix_cache *c, kind k, uint32_t id) {
    list *l = list_of(c, k, id);
    link at = c->held[id].links[k];
    *(at.older != PREFIX_NONE ? &c->held[at.older].links[k].newer : &l->oldest) = at.newer;
    *(at.newer != PREFIX_NONE ? &c->held[at.newer].links[k].older : &l->newest) = at.older;
}

static const prefix_block *block_at(const prefix_cache *c, uint32_t id) {
    return prefix_index_at(c->index, id);
}

static bool has_state(const prefix_cache *c, uint32_t id) {
    return c->held[id].state_slot != PREFIX_NONE;
}

/* --- uses --- */

static void touch_page(prefix_cache *c, uint32_t id, bool background) {
    holding *h = &c->held[id];
    if (h->place != PREFIX_NONE) list_remove(c, PAGE_IN_PLACE, id);
    if (h->page_slot != PREFIX_NONE) list_remove(c, PAGE_IN_RAM, id);
    if (!background) h->page_background = false;
    h->page_used = c->clock;
    if (h->place != PREFIX_NONE) list_add(c, PAGE_IN_PLACE, id);
    if (h->page_slot != PREFIX_NONE) list_add(c, PAGE_IN_RAM, id);
}

static void touch_path(prefix_cache *c, uint32_t last, bool background) {
    for (uint32_t id = last; id != PREFIX_NONE; id = block_at(c, id)->parent)
        touch_page(c, id, background);
}

static void touch_state(prefix_cache *c, uint32_t id, bool background) {
    holding *h = &c->held[id];
    list_remove(c, STATE_IN_RAM, id);
    if (!background) h->state_background = false;
    h->state_used = c->clock;
    list_add(c, STATE_IN_RAM, id);
}

/* --- forgetting --- */

static void note_lost(prefix_cache *c, holding *h) {
    for (size_t i = 0; i < MAX_NAMES; i++) {
        if (h->names[i] != 0 && c->n_lost < MAX_LOST) c->lost[c->n_lost++] = h->names[i];
        h->names[i] = 0;
    }
}

static void drop_state(prefix_cache *c, uint32_t id) {
    holding *h = &c->held[id];
    list_remove(c, STATE_IN_RAM, id);
    ram_slots_give(c->ram_states, h->state_slot);
    h->state_slot = PREFIX_NONE;
    note_lost(c, h);
}

static void drop_place(prefix_cache *c, uint32_t id) {
    holding *h = &c->held[id];
    list_remove(c, PAGE_IN_PLACE, id);
    kv_pages_release(c->pages, h->place);
    h->place = PREFIX_NONE;
    c->n_in_place--;
}

static void drop_page_slot(prefix_cache *c, uint32_t id) {
    holding *h = &c->held[id];
    list_remove(c, PAGE_IN_RAM, id);
    ram_slots_give(c->ram_pages, h->page_slot);
    h->page_slot = PREFIX_NONE;
}

static void remove_block(prefix_cache *c, uint32_t id) {
    const holding *h = &c->held[id];
    if (has_state(c, id)) drop_state(c, id);
    if (h->place != PREFIX_NONE) drop_place(c, id);
    if (h->page_slot != PREFIX_NONE) drop_page_slot(c, id);
    prefix_index_remove(c->index, id);
}

/* Pages behind which no snapshot stands are of no use. */
static void prune(prefix_cache *c, uint32_t id) {
    while (id != PREFIX_NONE && block_at(c, id)->first_child == PREFIX_NONE &&
           !has_state(c, id)) {
        uint32_t parent = block_at(c, id)->parent;
        remove_block(c, id);
        id = parent;
    }
}

/* Without its page nothing below a block can be used. */
static void remove_subtree(prefix_cache *c, uint32_t top) {
    uint32_t above = block_at(c, top)->parent;
    for (uint32_t id = top;;) {
        while (block_at(c, id)->first_child != PREFIX_NONE)
            id = block_at(c, id)->first_child;
        uint32_t parent = block_at(c, id)->parent;
        remove_block(c, id);
        if (id == top) break;
        id = parent;
    }
    prune(c, above);
}

/* --- room in RAM --- */

static uint64_t ram_used(const prefix_cache *c) {
    return (uint64_t)ram_slots_in_use(c->ram_pages) * ram_slots_stride(c->ram_pages) +
           (uint64_t)ram_slots_in_use(c->ram_states) * ram_slots_stride(c->ram_states);
}

/* Forget the oldest thing in RAM of a class, if it is older than `before`. */
static bool drop_oldest_of(prefix_cache *c, int class, uint64_t before) {
    uint32_t state = c->lists[STATE_IN_RAM][class].oldest;
    uint32_t page = c->lists[PAGE_IN_RAM][class].oldest;
    uint64_t state_used = state != PREFIX_NONE ? c->held[state].state_used : UINT64_MAX;
    uint64_t page_used = page != PREFIX_NONE ? c->held[page].page_used : UINT64_MAX;
    if (state_used >= before && page_used >= before) return false;
    if (state_used <= page_used) {
        drop_state(c, state);
        prune(c, state);
    } else {
        remove_subtree(c, page);
    }
    return true;
}

/* Background work makes room among its own things alone. */
static bool drop_oldest(prefix_cache *c, bool background, uint64_t before) {
    if (drop_oldest_of(c, BACKGROUND, before)) return true;
    return !background && drop_oldest_of(c, INTERACTIVE, before);
}

static bool make_room(prefix_cache *c, size_t bytes, bool background, uint64_t before) {
    if (bytes > c->ram_budget) return false;
    while (ram_used(c) + bytes > c->ram_budget) {
        if (!drop_oldest(c, background, before)) return false;
    }
    uint64_t resident =
        ram_slots_resident_bytes(c->ram_pages) + ram_slots_resident_bytes(c->ram_states);
    if (resident + bytes > c->ram_budget) {
        ram_slots_trim(c->ram_pages);
        ram_slots_trim(c->ram_states);
    }
    return true;
}

/* --- opening and closing --- */

static uint32_t slots_for(uint64_t budget, size_t bytes) {
    uint64_t stride = (bytes + RAM_SLOT_ALIGN - 1) / RAM_SLOT_ALIGN * RAM_SLOT_ALIGN;
    uint64_t n = budget / stride;
    return n < 1 ? 1 : n > MAX_BLOCKS ? MAX_BLOCKS : (uint32_t)n;
}

status prefix_cache_open(prefix_cache **out, const prefix_params *params, error *err) {
    *out = NULL;
    const prefix_memory *m = &params->memory;
    prefix_cache *c = calloc(1, sizeof *c);
    if (c == NULL) return error_set(err, STATUS_NO_MEMORY, "prefix cache: no memory");
    c->memory = *m;
    c->pages = params->pages;
    c->ram_budget = params->ram_bytes;
    memset(c->lists, 0xff, sizeof c->lists);
    status rc = STATUS_OK;
    if (params->ram_bytes < m->state_bytes) {
        rc = error_set(err, STATUS_BAD_INPUT,
                       "prefix cache: %.1f MiB of RAM hold no snapshot of %.1f MiB",
                       (double)params->ram_bytes / 1048576, (double)m->state_bytes / 1048576);
        goto fail;
    }
    uint32_t n_page_slots = slots_for(params->ram_bytes, m->page_bytes);
    uint64_t cap = (uint64_t)n_page_slots + kv_pages_total(params->pages);
    if (cap > MAX_BLOCKS) cap = MAX_BLOCKS;
    rc = ram_slots_new(&c->ram_pages, m->page_bytes, n_page_slots, err);
    if (rc == STATUS_OK) {
        uint32_t n = slots_for(params->ram_bytes, m->state_bytes);
        rc = ram_slots_new(&c->ram_states, m->state_bytes, n, err);
    }
    if (rc == STATUS_OK) rc = prefix_index_new(&c->index, (uint32_t)cap, params->identity, err);
    if (rc != STATUS_OK) goto fail;
    c->held = malloc(cap * sizeof *c->held);
    if (c->held == NULL) {
        rc = error_set(err, STATUS_NO_MEMORY, "prefix cache: no memory for %u blocks",
                       (uint32_t)cap);
        goto fail;
    }
    *out = c;
    return STATUS_OK;
fail:
    prefix_cache_close(c);
    return rc;
}

void prefix_cache_clear(prefix_cache *c) {
    for (int class = 0; class < N_CLASSES; class ++) {
        uint32_t id;
        while ((id = c->lists[STATE_IN_RAM][class].oldest) != PREFIX_NONE) {
            drop_state(c, id);
            prune(c, id);
        }
    }
}

void prefix_cache_close(prefix_cache *c) {
    if (c == NULL) return;
    if (c->held != NULL) prefix_cache_clear(c);
    free(c->held);
    prefix_index_free(c->index);
    ram_slots_free(c->ram_states);
    ram_slots_free(c->ram_pages);
    free(c);
}

/* --- finding --- */

/* The deepest block that has these tokens, of n_blocks at most; *with_state: the deepest with
 * a snapshot. */
static uint32_t walk(const prefix_cache *c, const int32_t *tokens, uint32_t n_blocks,
                     uint32_t *with_state) {
    uint32_t at = PREFIX_NONE;
    *with_state = PREFIX_NONE;
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t next =
            prefix_index_child(c->index, at, tokens + (size_t)i * PREFIX_BLOCK_TOKENS);
        if (next == PREFIX_NONE) break;
        at = next;
        if (has_state(c, at)) *with_state = at;
    }
    return at;
}

/* One token at least must run, to say what comes next. */
static uint32_t usable_blocks(uint32_t n_tokens) {
    return n_tokens == 0 ? 0 : (n_tokens - 1) / PREFIX_BLOCK_TOKENS;
}

prefix_found prefix_cache_find(const prefix_cache *c, const int32_t *tokens,
                               uint32_t n_tokens) {
    prefix_found found = {0};
    uint32_t last = PREFIX_NONE;
    (void)walk(c, tokens, usable_blocks(n_tokens), &last);
    for (uint32_t id = last; id != PREFIX_NONE; id = block_at(c, id)->parent) {
        found.n_tokens += PREFIX_BLOCK_TOKENS;
        if (c->held[id].place != PREFIX_NONE) found.n_in_place++;
    }
    return found;
}

/* --- going on --- */

/* A page of its own for a block whose page is in RAM; false when none can be had. */
static bool bring_in_place(prefix_cache *c, uint32_t id, uint32_t *page) {
    if (!kv_pages_take(c->pages, page)) {
        prefix_cache_reclaim(c, 1);
        if (!kv_pages_take(c->pages, page)) return false;
    }
    holding *h = &c->held[id];
    c->memory.page_load(c->memory.context, *page, ram_slots_at(c->ram_pages, h->page_slot));
    drop_page_slot(c, id);
    kv_pages_share(c->pages, *page);
    h->place = *page;
    c->n_in_place++;
    list_add(c, PAGE_IN_PLACE, id);
    return true;
}

/* The pages of a path, each with an owner more.  Those in place get theirs first, so that they
 * stay when others need room. */
static bool share_path(prefix_cache *c, uint32_t last, uint32_t *pages) {
    for (uint32_t id = last; id != PREFIX_NONE; id = block_at(c, id)->parent) {
        uint32_t place = c->held[id].place;
        pages[block_at(c, id)->depth] = place;
        if (place != PREFIX_NONE) kv_pages_share(c->pages, place);
    }
    for (uint32_t id = last; id != PREFIX_NONE; id = block_at(c, id)->parent) {
        uint32_t *page = &pages[block_at(c, id)->depth];
        if (*page == PREFIX_NONE && !bring_in_place(c, id, page)) {
            *page = PREFIX_NONE;
            return false;
        }
    }
    return true;
}

uint32_t prefix_cache_begin(prefix_cache *c, const int32_t *tokens, uint32_t n_tokens,
                            bool background, uint32_t state, uint32_t *pages) {
    uint32_t last = PREFIX_NONE;
    c->lookups++;
    (void)walk(c, tokens, usable_blocks(n_tokens), &last);
    if (last == PREFIX_NONE) return 0;
    c->clock++;
    touch_path(c, last, background);
    touch_state(c, last, background);
    uint32_t n = block_at(c, last)->depth + 1;
    if (!share_path(c, last, pages)) {
        for (uint32_t i = 0; i < n; i++) {
            if (pages[i] != PREFIX_NONE) kv_pages_release(c->pages, pages[i]);
        }
        return 0;
    }
    c->memory.state_load(c->memory.context, state,
                         ram_slots_at(c->ram_states, c->held[last].state_slot));
    c->hits++;
    c->hit_tokens += (uint64_t)n * PREFIX_BLOCK_TOKENS;
    return n * PREFIX_BLOCK_TOKENS;
}

/* --- keeping --- */

static uint32_t add_block(prefix_cache *c, uint32_t parent, const int32_t *tokens,
                          bool background, uint32_t page) {
    uint32_t id = prefix_index_add(c->index, parent, tokens);
    if (id == PREFIX_NONE) return PREFIX_NONE;
    c->held[id] = (holding){.place = page,
                            .page_slot = PREFIX_NONE,
                            .state_slot = PREFIX_NONE,
                            .page_background = background,
                            .page_used = c->clock};
    kv_pages_share(c->pages, page);
    c->n_in_place++;
    return id;
}

/* Blocks for all the tokens; the last one, or PREFIX_NONE.  Lists get theirs afterwards, by
 * touch_path(), the last first. */
static uint32_t add_path(prefix_cache *c, const int32_t *tokens, uint32_t n_blocks,
                         bool background, const uint32_t *pages) {
    uint32_t at = PREFIX_NONE;
    for (uint32_t i = 0; i < n_blocks; i++) {
        const int32_t *own = tokens + (size_t)i * PREFIX_BLOCK_TOKENS;
        uint32_t next = prefix_index_child(c->index, at, own);
        if (next == PREFIX_NONE) {
            next = add_block(c, at, own, background, pages[i]);
            if (next != PREFIX_NONE) list_add(c, PAGE_IN_PLACE, next);
        }
        if (next == PREFIX_NONE) {
            if (at != PREFIX_NONE) prune(c, at);
            return PREFIX_NONE;
        }
        at = next;
    }
    return at;
}

bool prefix_cache_keep(prefix_cache *c, const int32_t *tokens, uint32_t n_tokens,
                       bool background, uint32_t state, const uint32_t *pages) {
    uint32_t n = n_tokens / PREFIX_BLOCK_TOKENS, with_state = PREFIX_NONE;
    CHECK(n > 0 && n_tokens % PREFIX_BLOCK_TOKENS == 0);
    c->clock++;
    uint32_t last = walk(c, tokens, n, &with_state);
    touch_path(c, last, background);
    if (with_state != PREFIX_NONE && block_at(c, with_state)->depth + 1 == n) {
        touch_state(c, with_state, background);
        return true;
    }
    if (!make_room(c, ram_slots_stride(c->ram_states), background, c->clock)) return false;
    while (prefix_index_n_free(c->index) < n) {
        if (!drop_oldest(c, background, c->clock)) return false;
    }
    last = add_path(c, tokens, n, background, pages);
    if (last == PREFIX_NONE) return false;
    touch_path(c, last, background);
    holding *h = &c->held[last];
    bool taken = ram_slots_take(c->ram_states, &h->state_slot);
    CHECK(taken);
    h->state_background = background;
    h->state_used = c->clock;
    list_add(c, STATE_IN_RAM, last);
    c->memory.state_save(c->memory.context, state, ram_slots_at(c->ram_states, h->state_slot));
    return true;
}

/* --- names --- */

static void add_name(holding *h, uint64_t name) {
    for (size_t i = 0; i < MAX_NAMES; i++) {
        if (h->names[i] == name) return;
    }
    memmove(h->names + 1, h->names, (MAX_NAMES - 1) * sizeof h->names[0]);
    h->names[0] = name;
}

size_t prefix_cache_list_held(prefix_cache *c, const int32_t *tokens, const prefix_end *ends,
                              size_t n_ends, uint64_t *names) {
    size_t e = 0, n = 0;
    uint32_t at = PREFIX_NONE;
    while (e < n_ends && ends[e].n_tokens < PREFIX_BLOCK_TOKENS)
        e++;
    for (uint32_t i = 0; e < n_ends; i++) {
        at = prefix_index_child(c->index, at, tokens + (size_t)i * PREFIX_BLOCK_TOKENS);
        if (at == PREFIX_NONE) break;
        for (; e < n_ends && ends[e].n_tokens / PREFIX_BLOCK_TOKENS == i + 1; e++) {
            if (!has_state(c, at)) continue;
            add_name(&c->held[at], ends[e].name);
            names[n++] = ends[e].name;
        }
    }
    return n;
}

size_t prefix_cache_take_lost(prefix_cache *c, uint64_t *names, size_t cap) {
    size_t n = c->n_lost < cap ? c->n_lost : cap;
    c->n_lost -= n;
    memcpy(names, c->lost, n * sizeof *names);
    memmove(c->lost, c->lost + n, c->n_lost * sizeof *names);
    return n;
}

/* --- giving pages back --- */

/* The oldest page in place that nobody but the cache owns. */
static uint32_t oldest_alone(const prefix_cache *c) {
    for (int class = N_CLASSES; class -- > 0;) {
        uint32_t id = c->lists[PAGE_IN_PLACE][class].oldest;
        for (; id != PREFIX_NONE; id = c->held[id].links[PAGE_IN_PLACE].newer) {
            if (kv_pages_owners(c->pages, c->held[id].place) == 1) return id;
        }
    }
    return PREFIX_NONE;
}

/* To RAM where there is room, at the cost of what is older; else it is forgotten. */
static void move_out(prefix_cache *c, uint32_t id) {
    holding *h = &c->held[id];
    uint32_t serial = block_at(c, id)->serial, slot = PREFIX_NONE;
    bool has_room =
        make_room(c, ram_slots_stride(c->ram_pages), h->page_background, h->page_used);
    if (!prefix_index_is(c->index, id, serial)) return; /* it went with what was older */
    if (!has_room || !ram_slots_take(c->ram_pages, &slot)) {
        remove_subtree(c, id);
        return;
    }
    c->memory.page_save(c->memory.context, h->place, ram_slots_at(c->ram_pages, slot));
    drop_place(c, id);
    h->page_slot = slot;
    list_add(c, PAGE_IN_RAM, id);
}

void prefix_cache_reclaim(prefix_cache *c, uint32_t n) {
    uint32_t wanted = kv_pages_available(c->pages) + n;
    while (kv_pages_available(c->pages) < wanted) {
        uint32_t id = oldest_alone(c);
        if (id == PREFIX_NONE) return;
        move_out(c, id);
    }
}

static uint32_t count_alone(const prefix_cache *c) {
    uint32_t n = 0;
    for (int class = 0; class < N_CLASSES; class ++) {
        uint32_t id = c->lists[PAGE_IN_PLACE][class].oldest;
        for (; id != PREFIX_NONE; id = c->held[id].links[PAGE_IN_PLACE].newer)
            n += kv_pages_owners(c->pages, c->held[id].place) == 1;
    }
    return n;
}

void prefix_cache_read_stats(const prefix_cache *c, prefix_stats *out) {
    *out = (prefix_stats){.lookups = c->lookups,
                          .hits = c->hits,
                          .hit_tokens = c->hit_tokens,
                          .ram_bytes = ram_used(c),
                          .ram_budget_bytes = c->ram_budget,
                          .n_snapshots = ram_slots_in_use(c->ram_states),
                          .n_blocks =
                              prefix_index_capacity(c->index) - prefix_index_n_free(c->index),
                          .n_in_place = c->n_in_place,
                          .n_alone = count_alone(c)};
}
