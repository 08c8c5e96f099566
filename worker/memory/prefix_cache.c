/* prefix_cache.c - what each block of the index has, and what goes when room is needed. */
#include "worker/memory/prefix_cache_parts.h"

#include <stdlib.h>
#include <string.h>

/* --- lists, by age --- */

static bool is_state(prefix_kind k) {
    return k == STATE_IN_PLACE || k == STATE_IN_RAM || k == STATE_ON_DISK;
}

static prefix_list *list_of(prefix_cache *c, prefix_kind k, uint32_t id) {
    const prefix_holding *h = &c->held[id];
    bool background = is_state(k) ? h->state_background : h->page_background;
    return &c->lists[k][background ? PREFIX_BACKGROUND : PREFIX_INTERACTIVE];
}

static uint64_t used(const prefix_cache *c, prefix_kind k, uint32_t id) {
    return is_state(k) ? c->held[id].state_used : c->held[id].page_used;
}

void prefix_list_add(prefix_cache *c, prefix_kind k, uint32_t id) {
    prefix_list *l = list_of(c, k, id);
    prefix_link at = {l->newest, PREFIX_NONE};
    while (at.older != PREFIX_NONE && used(c, k, at.older) > used(c, k, id)) {
        at.newer = at.older;
        at.older = c->held[at.older].links[k].older;
    }
    c->held[id].links[k] = at;
    *(at.older != PREFIX_NONE ? &c->held[at.older].links[k].newer : &l->oldest) = id;
    *(at.newer != PREFIX_NONE ? &c->held[at.newer].links[k].older : &l->newest) = id;
}

void prefix_list_remove(prefix_cache *c, prefix_kind k, uint32_t id) {
    prefix_list *l = list_of(c, k, id);
    prefix_link at = c->held[id].links[k];
    *(at.older != PREFIX_NONE ? &c->held[at.older].links[k].newer : &l->oldest) = at.newer;
    *(at.newer != PREFIX_NONE ? &c->held[at.newer].links[k].older : &l->newest) = at.older;
}

/* --- uses --- */

static void touch_page(prefix_cache *c, uint32_t id, bool background) {
    prefix_holding *h = &c->held[id];
    if (h->place != PREFIX_NONE) prefix_list_remove(c, PAGE_IN_PLACE, id);
    if (h->page_slot != PREFIX_NONE) prefix_list_remove(c, PAGE_IN_RAM, id);
    if (!background) h->page_background = false;
    h->page_used = c->clock;
    if (h->place != PREFIX_NONE) prefix_list_add(c, PAGE_IN_PLACE, id);
    if (h->page_slot != PREFIX_NONE) prefix_list_add(c, PAGE_IN_RAM, id);
}

void prefix_touch_path(prefix_cache *c, uint32_t last, bool background) {
    for (uint32_t id = last; id != PREFIX_NONE; id = prefix_block_at(c, id)->parent)
        touch_page(c, id, background);
}

void prefix_touch_state(prefix_cache *c, uint32_t id, bool background) {
    prefix_holding *h = &c->held[id];
    if (h->state_place != PREFIX_NONE) prefix_list_remove(c, STATE_IN_PLACE, id);
    if (h->state_slot != PREFIX_NONE) prefix_list_remove(c, STATE_IN_RAM, id);
    if (h->state.on_disk) prefix_list_remove(c, STATE_ON_DISK, id);
    if (!background) h->state_background = false;
    h->state_used = c->clock;
    if (h->state_place != PREFIX_NONE) prefix_list_add(c, STATE_IN_PLACE, id);
    if (h->state_slot != PREFIX_NONE) prefix_list_add(c, STATE_IN_RAM, id);
    if (h->state.on_disk) prefix_list_add(c, STATE_ON_DISK, id);
}

/* --- having and forgetting --- */

void prefix_put_in_place(prefix_cache *c, uint32_t id, uint32_t page) {
    kv_pages_share(c->pages, page);
    c->held[id].place = page;
    c->n_in_place++;
    prefix_list_add(c, PAGE_IN_PLACE, id);
}

void prefix_drop_place(prefix_cache *c, uint32_t id) {
    prefix_holding *h = &c->held[id];
    prefix_list_remove(c, PAGE_IN_PLACE, id);
    kv_pages_release(c->pages, h->place);
    h->place = PREFIX_NONE;
    c->n_in_place--;
}

void prefix_drop_page_slot(prefix_cache *c, uint32_t id) {
    prefix_holding *h = &c->held[id];
    prefix_list_remove(c, PAGE_IN_RAM, id);
    ram_slots_give(c->ram_pages, h->page_slot);
    h->page_slot = PREFIX_NONE;
}

void prefix_note_lost(prefix_cache *c, prefix_holding *h) {
    if (prefix_has_state(h)) return;
    for (size_t i = 0; i < PREFIX_MAX_NAMES; i++) {
        if (h->names[i] != 0 && c->n_lost < PREFIX_MAX_LOST) c->lost[c->n_lost++] = h->names[i];
        h->names[i] = 0;
    }
}

void prefix_drop_state(prefix_cache *c, uint32_t id) {
    prefix_holding *h = &c->held[id];
    prefix_list_remove(c, STATE_IN_RAM, id);
    ram_slots_give(c->ram_states, h->state_slot);
    h->state_slot = PREFIX_NONE;
    prefix_note_lost(c, h);
}

void prefix_drop_state_place(prefix_cache *c, uint32_t id) {
    prefix_holding *h = &c->held[id];
    prefix_list_remove(c, STATE_IN_PLACE, id);
    c->free_states[c->n_free_states++] = h->state_place;
    h->state_place = PREFIX_NONE;
    prefix_note_lost(c, h);
}

prefix_holding prefix_empty_holding(bool background) {
    return (prefix_holding){.place = PREFIX_NONE,
                            .page_slot = PREFIX_NONE,
                            .state_place = PREFIX_NONE,
                            .state_slot = PREFIX_NONE,
                            .page_background = background,
                            .state_background = background};
}

static void remove_block(prefix_cache *c, uint32_t id) {
    prefix_holding *h = &c->held[id];
    h->state.writing = false; /* who comes back from it finds another serial */
    if (h->state.on_disk) prefix_drop_state_file(c, id);
    if (h->state_place != PREFIX_NONE) prefix_drop_state_place(c, id);
    if (h->state_slot != PREFIX_NONE) prefix_drop_state(c, id);
    prefix_note_lost(c, h);
    if (h->place != PREFIX_NONE) prefix_drop_place(c, id);
    if (h->page_slot != PREFIX_NONE) prefix_drop_page_slot(c, id);
    if (h->page.on_disk) prefix_drop_page_file(c, id);
    prefix_index_remove(c->index, id);
}

void prefix_prune(prefix_cache *c, uint32_t id) {
    while (id != PREFIX_NONE && prefix_block_at(c, id)->first_child == PREFIX_NONE &&
           !prefix_has_state(&c->held[id])) {
        uint32_t parent = prefix_block_at(c, id)->parent;
        remove_block(c, id);
        id = parent;
    }
}

void prefix_remove_subtree(prefix_cache *c, uint32_t top) {
    uint32_t above = prefix_block_at(c, top)->parent;
    for (uint32_t id = top;;) {
        while (prefix_block_at(c, id)->first_child != PREFIX_NONE)
            id = prefix_block_at(c, id)->first_child;
        uint32_t parent = prefix_block_at(c, id)->parent;
        remove_block(c, id);
        if (id == top) break;
        id = parent;
    }
    prefix_prune(c, above);
}

/* --- room in RAM --- */

static uint64_t ram_used(const prefix_cache *c) {
    return (uint64_t)ram_slots_in_use(c->ram_pages) * ram_slots_stride(c->ram_pages) +
           (uint64_t)ram_slots_in_use(c->ram_states) * ram_slots_stride(c->ram_states);
}

static bool drop_oldest_of(prefix_cache *c, int class, uint64_t before) {
    uint32_t state = c->lists[STATE_IN_RAM][class].oldest;
    uint32_t page = c->lists[PAGE_IN_RAM][class].oldest;
    uint64_t state_used = state != PREFIX_NONE ? c->held[state].state_used : UINT64_MAX;
    uint64_t page_used = page != PREFIX_NONE ? c->held[page].page_used : UINT64_MAX;
    if (state_used >= before && page_used >= before) return false;
    if (state_used <= page_used) {
        prefix_drop_state(c, state);
        prefix_prune(c, state);
    } else if (c->held[page].page.on_disk || c->held[page].page.writing) {
        prefix_drop_page_slot(c, page);
    } else {
        prefix_remove_subtree(c, page);
    }
    return true;
}

bool prefix_drop_oldest(prefix_cache *c, bool background, uint64_t before) {
    uint64_t limit = background ? before : c->clock; /* but for what is in use right now */
    if (drop_oldest_of(c, PREFIX_BACKGROUND, limit)) return true;
    return !background && drop_oldest_of(c, PREFIX_INTERACTIVE, before);
}

bool prefix_make_room(prefix_cache *c, uint64_t bytes, bool background, uint64_t before) {
    if (bytes > c->ram_budget) return false;
    while (ram_used(c) + bytes > c->ram_budget) {
        if (!prefix_drop_oldest(c, background, before)) return false;
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
    return n < 1 ? 1 : n > PREFIX_MAX_BLOCKS ? PREFIX_MAX_BLOCKS : (uint32_t)n;
}

static status open_memory(prefix_cache *c, const prefix_params *params, error *err) {
    const prefix_memory *m = &params->memory;
    if (params->ram_bytes < m->state_bytes) {
        return error_set(err, STATUS_BAD_INPUT,
                         "prefix cache: %.1f MiB of RAM hold no snapshot of %.1f MiB",
                         (double)params->ram_bytes / 1048576, (double)m->state_bytes / 1048576);
    }
    uint32_t n_page_slots = slots_for(params->ram_bytes, m->page_bytes);
    uint64_t cap = (uint64_t)n_page_slots + kv_pages_total(params->pages) +
                   params->disk_bytes / (m->page_bytes + PREFIX_FILE_HEADER);
    if (cap > PREFIX_MAX_BLOCKS) cap = PREFIX_MAX_BLOCKS;
    status rc = ram_slots_new(&c->ram_pages, m->page_bytes, n_page_slots, err);
    if (rc != STATUS_OK) return rc;
    uint32_t n_state_slots = slots_for(params->ram_bytes, m->state_bytes);
    rc = ram_slots_new(&c->ram_states, m->state_bytes, n_state_slots, err);
    if (rc == STATUS_OK) rc = prefix_index_new(&c->index, (uint32_t)cap, params->identity, err);
    if (rc != STATUS_OK) return rc;
    c->held = calloc(cap, sizeof *c->held);
    c->free_states = malloc((params->n_states + 1) * sizeof *c->free_states);
    if (c->held != NULL && c->free_states != NULL) {
        c->n_states = c->n_free_states = params->n_states;
        for (uint32_t i = 0; i < params->n_states; i++)
            c->free_states[i] = params->first_state + i;
        return STATUS_OK;
    }
    return error_set(err, STATUS_NO_MEMORY, "prefix cache: no memory for %u blocks",
                     (uint32_t)cap);
}

status prefix_cache_open(prefix_cache **out, const prefix_params *params, error *err) {
    *out = NULL;
    prefix_cache *c = calloc(1, sizeof *c);
    if (c == NULL) return error_set(err, STATUS_NO_MEMORY, "prefix cache: no memory");
    c->memory = params->memory;
    c->pages = params->pages;
    c->ram_budget = params->ram_bytes;
    memset(c->lists, 0xff, sizeof c->lists);
    status rc = open_memory(c, params, err);
    if (rc == STATUS_OK && params->disk_bytes > 0) rc = prefix_open_disk(c, params, err);
    if (rc != STATUS_OK) {
        prefix_cache_close(c);
        return rc;
    }
    *out = c;
    return STATUS_OK;
}

/* Blocks of a list of snapshots and all above them. */
static void clear_list(prefix_cache *c, prefix_list *l) {
    uint32_t id;
    while ((id = l->oldest) != PREFIX_NONE)
        prefix_remove_subtree(c, id);
}

void prefix_cache_clear(prefix_cache *c) {
    for (int class = 0; class < PREFIX_CLASSES; class ++) {
        clear_list(c, &c->lists[STATE_IN_PLACE][class]);
        clear_list(c, &c->lists[STATE_IN_RAM][class]);
        clear_list(c, &c->lists[STATE_ON_DISK][class]);
        clear_list(c, &c->lists[PAGE_IN_PLACE][class]);
        clear_list(c, &c->lists[PAGE_IN_RAM][class]);
    }
}

void prefix_cache_close(prefix_cache *c) {
    if (c == NULL) return;
    prefix_disk_close(c->disk); /* before the slots that it may still read into */
    for (int class = 0; c->held != NULL && class < PREFIX_CLASSES; class ++) {
        while (c->lists[PAGE_IN_PLACE][class].oldest != PREFIX_NONE)
            prefix_drop_place(c, c->lists[PAGE_IN_PLACE][class].oldest);
    }
    free(c->free_states);
    free(c->held);
    prefix_index_free(c->index);
    ram_slots_free(c->ram_states);
    ram_slots_free(c->ram_pages);
    free(c);
}

/* --- figures --- */

static uint32_t count_alone(const prefix_cache *c) {
    uint32_t n = 0;
    for (int class = 0; class < PREFIX_CLASSES; class ++) {
        uint32_t id = c->lists[PAGE_IN_PLACE][class].oldest;
        for (; id != PREFIX_NONE; id = c->held[id].links[PAGE_IN_PLACE].newer)
            n += kv_pages_owners(c->pages, c->held[id].place) == 1;
    }
    return n;
}

void prefix_cache_read_stats(const prefix_cache *c, prefix_stats *out) {
    *out = (prefix_stats){
        .lookups = c->lookups,
        .hits = c->hits,
        .hits_in_place = c->hits_in_place,
        .asked_tokens = c->asked_tokens,
        .hit_tokens = c->hit_tokens,
        .n_read = c->n_read,
        .ram_bytes = ram_used(c),
        .ram_budget_bytes = c->ram_budget,
        .disk_bytes = c->disk_used,
        .n_writing = c->n_writing,
        .n_snapshots = ram_slots_in_use(c->ram_states) + c->n_states - c->n_free_states,
        .n_blocks = prefix_index_capacity(c->index) - prefix_index_n_free(c->index),
        .n_in_place = c->n_in_place,
        .n_alone = count_alone(c)};
}
