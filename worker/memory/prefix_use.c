/* prefix_use.c - what is held is found, gone on from, added to and given back. */
#include "worker/memory/prefix_cache_parts.h"

#include <string.h>

/* --- finding --- */

/* The deepest block that has these tokens, of n_blocks at most; *usable: the deepest whose
 * snapshot and all pages before it are in memory. */
static uint32_t walk(const prefix_cache *c, const int32_t *tokens, uint32_t n_blocks,
                     uint32_t *usable) {
    uint32_t at = PREFIX_NONE;
    bool whole = true;
    *usable = PREFIX_NONE;
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t next =
            prefix_index_child(c->index, at, tokens + (size_t)i * PREFIX_BLOCK_TOKENS);
        if (next == PREFIX_NONE) break;
        at = next;
        whole = whole && prefix_page_in_memory(&c->held[at]);
        if (whole && prefix_state_in_memory(&c->held[at])) *usable = at;
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
    for (uint32_t id = last; id != PREFIX_NONE; id = prefix_block_at(c, id)->parent) {
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
    c->memory.page_load(c->memory.context, *page,
                        ram_slots_at(c->ram_pages, c->held[id].page_slot));
    prefix_drop_page_slot(c, id);
    prefix_put_in_place(c, id, *page);
    return true;
}

/* The pages of a path, each with an owner more.  Those in place get theirs first, so that they
 * stay when others need room. */
static bool share_path(prefix_cache *c, uint32_t last, uint32_t *pages) {
    for (uint32_t id = last; id != PREFIX_NONE; id = prefix_block_at(c, id)->parent) {
        uint32_t place = c->held[id].place;
        pages[prefix_block_at(c, id)->depth] = place;
        if (place != PREFIX_NONE) kv_pages_share(c->pages, place);
    }
    for (uint32_t id = last; id != PREFIX_NONE; id = prefix_block_at(c, id)->parent) {
        uint32_t *page = &pages[prefix_block_at(c, id)->depth];
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
    (void)walk(c, tokens, usable_blocks(n_tokens), &last);
    if (last == PREFIX_NONE) return 0;
    c->clock++;
    prefix_touch_path(c, last, background);
    prefix_touch_state(c, last, background);
    uint32_t n = prefix_block_at(c, last)->depth + 1;
    if (!share_path(c, last, pages)) {
        for (uint32_t i = 0; i < n; i++) {
            if (pages[i] != PREFIX_NONE) kv_pages_release(c->pages, pages[i]);
        }
        return 0;
    }
    const prefix_holding *h = &c->held[last];
    if (h->state_place != PREFIX_NONE) {
        c->memory.state_copy(c->memory.context, state, h->state_place);
    } else {
        c->memory.state_load(c->memory.context, state,
                             ram_slots_at(c->ram_states, h->state_slot));
    }
    c->begun_in_place = h->state_place != PREFIX_NONE;
    return n * PREFIX_BLOCK_TOKENS;
}

void prefix_cache_count(prefix_cache *c, uint32_t n_tokens, uint32_t n_skipped) {
    c->lookups++;
    c->asked_tokens += n_tokens;
    c->hit_tokens += n_skipped;
    if (n_skipped == 0) return;
    c->hits++;
    c->hits_in_place += c->begun_in_place;
}

/* --- keeping --- */

static uint32_t add_block(prefix_cache *c, uint32_t parent, const int32_t *tokens,
                          bool background) {
    uint32_t id = prefix_index_add(c->index, parent, tokens);
    if (id == PREFIX_NONE) return PREFIX_NONE;
    c->held[id] = prefix_empty_holding(background);
    c->held[id].page_used = c->clock;
    return id;
}

/* From a state of the model to RAM, at the cost of what is older; else it is forgotten. */
static void move_state_out(prefix_cache *c, uint32_t id) {
    prefix_holding *h = &c->held[id];
    uint32_t serial = prefix_block_at(c, id)->serial, slot = PREFIX_NONE;
    bool has_room =
        h->state_slot != PREFIX_NONE || prefix_make_room(c, ram_slots_stride(c->ram_states),
                                                         h->state_background, h->state_used);
    if (!prefix_index_is(c->index, id, serial)) return;
    if (has_room && h->state_slot == PREFIX_NONE && ram_slots_take(c->ram_states, &slot)) {
        c->memory.state_save(c->memory.context, h->state_place,
                             ram_slots_at(c->ram_states, slot));
        h->state_slot = slot;
        prefix_list_add(c, STATE_IN_RAM, id);
    }
    prefix_drop_state_place(c, id);
    prefix_prune(c, id);
}

/* A state of the model for a new snapshot, if some are the cache's.  False: it goes to RAM. */
static bool have_free_state(prefix_cache *c, bool background) {
    while (c->n_free_states == 0) {
        uint32_t id = c->lists[STATE_IN_PLACE][PREFIX_BACKGROUND].oldest;
        if (id == PREFIX_NONE && !background)
            id = c->lists[STATE_IN_PLACE][PREFIX_INTERACTIVE].oldest;
        if (id == PREFIX_NONE || c->held[id].state_used >= c->clock) return false;
        move_state_out(c, id);
    }
    return true;
}

static void take_snapshot(prefix_cache *c, uint32_t id, uint32_t state) {
    prefix_holding *h = &c->held[id];
    h->state_used = c->clock;
    if (c->n_free_states > 0) {
        h->state_place = c->free_states[--c->n_free_states];
        c->memory.state_copy(c->memory.context, h->state_place, state);
        prefix_list_add(c, STATE_IN_PLACE, id);
        return;
    }
    bool taken = ram_slots_take(c->ram_states, &h->state_slot);
    CHECK(taken);
    c->memory.state_save(c->memory.context, state, ram_slots_at(c->ram_states, h->state_slot));
    prefix_list_add(c, STATE_IN_RAM, id);
}

/* Blocks for all the tokens, each with its page in memory; the last one, or PREFIX_NONE. */
static uint32_t add_path(prefix_cache *c, const int32_t *tokens, uint32_t n_blocks,
                         bool background, const uint32_t *pages) {
    uint32_t at = PREFIX_NONE;
    for (uint32_t i = 0; i < n_blocks; i++) {
        const int32_t *own = tokens + (size_t)i * PREFIX_BLOCK_TOKENS;
        uint32_t next = prefix_index_child(c->index, at, own);
        if (next == PREFIX_NONE) next = add_block(c, at, own, background);
        if (next == PREFIX_NONE) {
            prefix_prune(c, at);
            return PREFIX_NONE;
        }
        if (!prefix_page_in_memory(&c->held[next])) prefix_put_in_place(c, next, pages[i]);
        at = next;
    }
    return at;
}

bool prefix_cache_keep(prefix_cache *c, const int32_t *tokens, uint32_t n_tokens,
                       bool background, uint32_t state, const uint32_t *pages) {
    uint32_t n = n_tokens / PREFIX_BLOCK_TOKENS, usable = PREFIX_NONE;
    CHECK(n > 0 && n_tokens % PREFIX_BLOCK_TOKENS == 0);
    c->clock++;
    uint32_t last = walk(c, tokens, n, &usable);
    prefix_touch_path(c, last, background);
    if (usable != PREFIX_NONE && prefix_block_at(c, usable)->depth + 1 == n) {
        prefix_touch_state(c, usable, background);
        return true;
    }
    if (!have_free_state(c, background) &&
        !prefix_make_room(c, ram_slots_stride(c->ram_states), background, c->clock))
        return false;
    while (prefix_index_n_free(c->index) < n) {
        if (!prefix_drop_oldest(c, background, c->clock)) return false;
    }
    last = add_path(c, tokens, n, background, pages);
    if (last == PREFIX_NONE) return false;
    prefix_touch_path(c, last, background);
    if (!prefix_state_in_memory(&c->held[last])) take_snapshot(c, last, state);
    prefix_touch_state(c, last, background);
    prefix_write_path(c, last, background);
    return true;
}

/* --- names --- */

static void add_name(prefix_holding *h, uint64_t name) {
    for (size_t i = 0; i < PREFIX_MAX_NAMES; i++) {
        if (h->names[i] == name) return;
    }
    memmove(h->names + 1, h->names, (PREFIX_MAX_NAMES - 1) * sizeof h->names[0]);
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
            if (!prefix_has_state(&c->held[at])) continue;
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
    for (int class = PREFIX_CLASSES; class -- > 0;) {
        uint32_t id = c->lists[PAGE_IN_PLACE][class].oldest;
        for (; id != PREFIX_NONE; id = c->held[id].links[PAGE_IN_PLACE].newer) {
            if (kv_pages_owners(c->pages, c->held[id].place) == 1) return id;
        }
    }
    return PREFIX_NONE;
}

/* To RAM where there is room, at the cost of what is older; else it is on disk or forgotten. */
static void move_out(prefix_cache *c, uint32_t id) {
    prefix_holding *h = &c->held[id];
    uint32_t serial = prefix_block_at(c, id)->serial, slot = PREFIX_NONE;
    bool has_room =
        prefix_make_room(c, ram_slots_stride(c->ram_pages), h->page_background, h->page_used);
    if (!prefix_index_is(c->index, id, serial)) return; /* it went with what was older */
    if (has_room && ram_slots_take(c->ram_pages, &slot)) {
        c->memory.page_save(c->memory.context, h->place, ram_slots_at(c->ram_pages, slot));
        prefix_drop_place(c, id);
        h->page_slot = slot;
        prefix_list_add(c, PAGE_IN_RAM, id);
    } else if (h->page.on_disk || h->page.writing) {
        prefix_drop_place(c, id);
    } else {
        prefix_remove_subtree(c, id);
    }
}

void prefix_cache_reclaim(prefix_cache *c, uint32_t n) {
    uint32_t wanted = kv_pages_available(c->pages) + n;
    while (kv_pages_available(c->pages) < wanted) {
        uint32_t id = oldest_alone(c);
        if (id == PREFIX_NONE) return;
        move_out(c, id);
    }
}
