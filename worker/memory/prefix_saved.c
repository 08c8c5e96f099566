/* prefix_saved.c - the cache's blocks on disk: written behind it, read ahead of who wants them.
 *
 * What is kept is written when there is room for its snapshot and pages together; the snapshot
 * unused for longest makes it.  Pages' files go with their blocks.
 */
#include "worker/memory/prefix_cache_parts.h"

#include "common/log.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_QUEUED_MIB = 256 };

static size_t part_bytes(const prefix_cache *c, prefix_part part) {
    return part == PREFIX_PAGE ? c->memory.page_bytes : c->memory.state_bytes;
}

static uint64_t file_bytes(const prefix_cache *c, prefix_part part) {
    return PREFIX_FILE_HEADER + (uint64_t)part_bytes(c, part);
}

static prefix_saved *saved_of(prefix_cache *c, uint32_t id, prefix_part part) {
    return part == PREFIX_PAGE ? &c->held[id].page : &c->held[id].state;
}

static prefix_file describe(const prefix_cache *c, uint32_t id, prefix_part part) {
    const prefix_block *b = prefix_block_at(c, id);
    const prefix_holding *h = &c->held[id];
    prefix_file f = {.part = part,
                     .background =
                         part == PREFIX_PAGE ? h->page_background : h->state_background,
                     .identity = c->identity,
                     .key = b->key,
                     .depth = b->depth,
                     .n_bytes = part_bytes(c, part)};
    if (b->parent != PREFIX_NONE) f.parent = prefix_block_at(c, b->parent)->key;
    memcpy(f.tokens, b->tokens, sizeof f.tokens);
    return f;
}

/* --- files go --- */

static void remove_file(prefix_cache *c, prefix_key key, prefix_part part) {
    c->disk_used -= file_bytes(c, part);
    prefix_disk_remove(c->disk, key, part);
}

void prefix_drop_page_file(prefix_cache *c, uint32_t id) {
    c->held[id].page.on_disk = false;
    remove_file(c, prefix_block_at(c, id)->key, PREFIX_PAGE);
}

void prefix_drop_state_file(prefix_cache *c, uint32_t id) {
    prefix_holding *h = &c->held[id];
    prefix_list_remove(c, STATE_ON_DISK, id);
    h->state.on_disk = false;
    remove_file(c, prefix_block_at(c, id)->key, PREFIX_STATE);
    prefix_note_lost(c, h);
}

static bool drop_oldest_file(prefix_cache *c, int class, uint64_t before) {
    uint32_t id = c->lists[STATE_ON_DISK][class].oldest;
    if (id == PREFIX_NONE || c->held[id].state_used >= before) return false;
    prefix_drop_state_file(c, id);
    prefix_prune(c, id);
    return true;
}

static bool make_disk_room(prefix_cache *c, uint64_t bytes, bool background, uint64_t before) {
    while (c->disk_used + bytes > c->disk_budget) {
        if (drop_oldest_file(c, PREFIX_BACKGROUND, before)) continue;
        if (background || !drop_oldest_file(c, PREFIX_INTERACTIVE, before)) return false;
    }
    return true;
}

/* --- writing --- */

/* A copy of what is in memory now goes to the writer. */
static void write_part(prefix_cache *c, uint32_t id, prefix_part part) {
    prefix_holding *h = &c->held[id];
    prefix_file f = describe(c, id, part);
    prefix_job *j = prefix_job_new(&f, true);
    if (j == NULL) return; /* it stays in memory alone */
    if (part == PREFIX_STATE && h->state_place != PREFIX_NONE) {
        c->memory.state_save(c->memory.context, h->state_place, j->bytes);
    } else if (part == PREFIX_STATE) {
        memcpy(j->bytes, ram_slots_at(c->ram_states, h->state_slot), (size_t)f.n_bytes);
    } else if (h->place != PREFIX_NONE) {
        c->memory.page_save(c->memory.context, h->place, j->bytes);
    } else {
        memcpy(j->bytes, ram_slots_at(c->ram_pages, h->page_slot), (size_t)f.n_bytes);
    }
    j->block = id;
    j->serial = prefix_block_at(c, id)->serial;
    saved_of(c, id, part)->writing = true;
    c->disk_used += file_bytes(c, part);
    c->n_writing++;
    prefix_disk_push(c->disk, j);
}

static bool is_saved(const prefix_saved *s) {
    return s->on_disk || s->writing;
}

void prefix_write_path(prefix_cache *c, uint32_t last, bool background) {
    if (c->disk == NULL || is_saved(&c->held[last].state)) return;
    uint64_t needed = file_bytes(c, PREFIX_STATE);
    for (uint32_t id = last; id != PREFIX_NONE; id = prefix_block_at(c, id)->parent) {
        if (!is_saved(&c->held[id].page)) needed += file_bytes(c, PREFIX_PAGE);
    }
    uint64_t queued = prefix_disk_queued_bytes(c->disk);
    if (queued > 0 && queued + needed > (uint64_t)MAX_QUEUED_MIB << 20) return;
    if (!make_disk_room(c, needed, background, c->clock)) return;
    for (uint32_t id = last; id != PREFIX_NONE; id = prefix_block_at(c, id)->parent) {
        if (!is_saved(&c->held[id].page)) write_part(c, id, PREFIX_PAGE);
    }
    write_part(c, last, PREFIX_STATE);
}

/* --- reading --- */

static bool is_reachable(const prefix_holding *h) {
    return prefix_page_in_memory(h) || h->page.on_disk;
}

/* The deepest block from which one could go on if all of its path were in memory. */
static uint32_t deepest_saved(const prefix_cache *c, const int32_t *tokens, uint32_t n_blocks) {
    uint32_t at = PREFIX_NONE, best = PREFIX_NONE;
    for (uint32_t i = 0; i < n_blocks; i++) {
        at = prefix_index_child(c->index, at, tokens + (size_t)i * PREFIX_BLOCK_TOKENS);
        if (at == PREFIX_NONE || !is_reachable(&c->held[at])) break;
        const prefix_holding *h = &c->held[at];
        if (prefix_state_in_memory(h) || h->state.on_disk) best = at;
    }
    return best;
}

static uint32_t blocks_before(uint32_t n_tokens) {
    return n_tokens == 0 ? 0 : (n_tokens - 1) / PREFIX_BLOCK_TOKENS;
}

/* RAM that the path wants beyond what it has, and is getting. */
static uint64_t bytes_to_read(const prefix_cache *c, uint32_t last) {
    const prefix_holding *end = &c->held[last];
    uint64_t n = 0;
    if (!prefix_state_in_memory(end) && !end->state.loading)
        n += ram_slots_stride(c->ram_states);
    for (uint32_t id = last; id != PREFIX_NONE; id = prefix_block_at(c, id)->parent) {
        const prefix_holding *h = &c->held[id];
        if (!prefix_page_in_memory(h) && !h->page.loading) n += ram_slots_stride(c->ram_pages);
    }
    return n;
}

static bool read_part(prefix_cache *c, uint32_t id, prefix_part part) {
    ram_slots *slots = part == PREFIX_PAGE ? c->ram_pages : c->ram_states;
    prefix_file f = describe(c, id, part);
    prefix_job *j = prefix_job_new(&f, false);
    if (j == NULL || !ram_slots_take(slots, &j->slot)) {
        prefix_job_free(j);
        return false;
    }
    j->bytes = ram_slots_at(slots, j->slot);
    j->block = id;
    j->serial = prefix_block_at(c, id)->serial;
    saved_of(c, id, part)->loading = true;
    prefix_disk_push(c->disk, j);
    return true;
}

bool prefix_cache_is_loading(const prefix_cache *c, const int32_t *tokens, uint32_t n_tokens) {
    uint32_t at = PREFIX_NONE, n_blocks = blocks_before(n_tokens);
    if (c->disk == NULL) return false;
    for (uint32_t i = 0; i < n_blocks; i++) {
        at = prefix_index_child(c->index, at, tokens + (size_t)i * PREFIX_BLOCK_TOKENS);
        if (at == PREFIX_NONE) return false;
        if (c->held[at].page.loading || c->held[at].state.loading) return true;
    }
    return false;
}

bool prefix_cache_fetch(prefix_cache *c, const int32_t *tokens, uint32_t n_tokens,
                        bool background) {
    if (c->disk == NULL) return false;
    uint32_t last = deepest_saved(c, tokens, blocks_before(n_tokens));
    if (last == PREFIX_NONE) return false;
    uint64_t needed = bytes_to_read(c, last);
    if (needed == 0) return prefix_cache_is_loading(c, tokens, n_tokens);
    c->clock++;
    prefix_touch_path(c, last, background);
    prefix_touch_state(c, last, background);
    if (!prefix_make_room(c, needed, background, c->clock)) return false;
    bool all = true;
    if (!prefix_state_in_memory(&c->held[last]) && !c->held[last].state.loading)
        all = read_part(c, last, PREFIX_STATE);
    for (uint32_t id = last; all && id != PREFIX_NONE; id = prefix_block_at(c, id)->parent) {
        const prefix_holding *h = &c->held[id];
        if (!prefix_page_in_memory(h) && !h->page.loading) all = read_part(c, id, PREFIX_PAGE);
    }
    return prefix_cache_is_loading(c, tokens, n_tokens);
}

/* --- what has been done --- */

static void end_write(prefix_cache *c, const prefix_job *j) {
    prefix_part part = j->file.part;
    c->n_writing--;
    bool stands = prefix_index_is(c->index, j->block, j->serial);
    if (!stands) {
        uint32_t heir = prefix_index_find(c->index, j->file.key);
        c->disk_used -= file_bytes(c, part);
        /* The same text may have come back since: then the file is also its own. */
        if (heir == PREFIX_NONE || !is_saved(saved_of(c, heir, part)))
            prefix_disk_remove(c->disk, j->file.key, part);
        return;
    }
    prefix_holding *h = &c->held[j->block];
    saved_of(c, j->block, part)->writing = false;
    if (!j->failed) {
        saved_of(c, j->block, part)->on_disk = true;
        if (part == PREFIX_STATE) prefix_list_add(c, STATE_ON_DISK, j->block);
        return;
    }
    c->disk_used -= file_bytes(c, part);
    if (part == PREFIX_STATE) {
        prefix_note_lost(c, h);
        prefix_prune(c, j->block);
    } else if (!prefix_page_in_memory(h)) {
        prefix_remove_subtree(c, j->block);
    }
}

static void end_read(prefix_cache *c, const prefix_job *j) {
    prefix_part part = j->file.part;
    ram_slots *slots = part == PREFIX_PAGE ? c->ram_pages : c->ram_states;
    if (!prefix_index_is(c->index, j->block, j->serial)) {
        ram_slots_give(slots, j->slot);
        return;
    }
    prefix_holding *h = &c->held[j->block];
    saved_of(c, j->block, part)->loading = false;
    bool has = part == PREFIX_PAGE ? prefix_page_in_memory(h) : prefix_state_in_memory(h);
    if (j->failed || has) {
        ram_slots_give(slots, j->slot);
    } else if (part == PREFIX_PAGE) {
        h->page_slot = j->slot;
        prefix_list_add(c, PAGE_IN_RAM, j->block);
    } else {
        h->state_slot = j->slot;
        prefix_list_add(c, STATE_IN_RAM, j->block);
        c->n_read++;
    }
    if (!j->failed) return;
    if (part == PREFIX_STATE) {
        if (h->state.on_disk) prefix_drop_state_file(c, j->block);
        prefix_prune(c, j->block);
    } else {
        if (h->page.on_disk) prefix_drop_page_file(c, j->block);
        if (!has) prefix_remove_subtree(c, j->block);
    }
}

void prefix_cache_poll(prefix_cache *c, uint32_t wait_ms) {
    if (c->disk == NULL) return;
    if (wait_ms > 0) prefix_disk_wait(c->disk, wait_ms);
    for (prefix_job *j; (j = prefix_disk_take_done(c->disk)) != NULL; prefix_job_free(j)) {
        if (j->writes) {
            end_write(c, j);
        } else {
            end_read(c, j);
        }
    }
}

/* --- what is there at the beginning --- */

/* False: it belongs to nothing that is there. */
static bool take_page(prefix_cache *c, const prefix_file *f) {
    uint32_t parent = f->depth == 0 ? PREFIX_NONE : prefix_index_find(c->index, f->parent);
    if (f->depth > 0 &&
        (parent == PREFIX_NONE || prefix_block_at(c, parent)->depth + 1 != f->depth))
        return false;
    prefix_key key = prefix_index_key(c->index, parent, f->tokens);
    if (memcmp(&key, &f->key, sizeof key) != 0) return false;
    uint32_t id = prefix_index_add(c->index, parent, f->tokens);
    if (id == PREFIX_NONE) return false;
    c->held[id] = prefix_empty_holding(f->background);
    c->held[id].page.on_disk = true;
    return true;
}

static bool take_state(prefix_cache *c, const prefix_disk_entry *e) {
    uint32_t id = prefix_index_find(c->index, e->file.key);
    if (id == PREFIX_NONE || prefix_block_at(c, id)->depth != e->file.depth) return false;
    prefix_holding *h = &c->held[id];
    h->state = (prefix_saved){.on_disk = true};
    h->state_background = e->file.background;
    h->state_used = e->written_ns; /* until all are there */
    prefix_list_add(c, STATE_ON_DISK, id);
    return true;
}

/* From times of files to those of this cache's clock; a path is as young as its youngest. */
static void number_uses(prefix_cache *c) {
    for (;;) {
        uint32_t oldest[PREFIX_CLASSES];
        for (int class = 0; class < PREFIX_CLASSES; class ++) {
            uint32_t id = c->lists[STATE_ON_DISK][class].oldest;
            while (id != PREFIX_NONE && c->held[id].state_used <= c->clock)
                id = c->held[id].links[STATE_ON_DISK].newer;
            oldest[class] = id;
        }
        uint32_t id = oldest[0];
        if (id == PREFIX_NONE || (oldest[1] != PREFIX_NONE &&
                                  c->held[oldest[1]].state_used < c->held[id].state_used))
            id = oldest[1];
        if (id == PREFIX_NONE) return;
        c->held[id].state_used = ++c->clock;
        prefix_touch_path(c, id, c->held[id].state_background);
    }
}

/* Leaves without a snapshot: their files' snapshots were lost. */
static void prune_all(prefix_cache *c, const prefix_disk_entry *entries, size_t n) {
    for (size_t i = n; i-- > 0;) {
        uint32_t id = prefix_index_find(c->index, entries[i].file.key);
        if (entries[i].file.part == PREFIX_PAGE && id != PREFIX_NONE) prefix_prune(c, id);
    }
}

status prefix_open_disk(prefix_cache *c, const prefix_params *params, error *err) {
    const prefix_disk_params p = {.folder = params->disk_dir,
                                  .identity = params->identity,
                                  .page_bytes = c->memory.page_bytes,
                                  .state_bytes = c->memory.state_bytes};
    prefix_disk_entry *entries = NULL;
    size_t n = 0;
    c->identity = prefix_file_identity(params->identity);
    c->disk_budget = params->disk_bytes;
    status rc = prefix_disk_open(&c->disk, &p, &entries, &n, err);
    if (rc != STATUS_OK) return rc;
    for (size_t i = 0; i < n; i++) {
        const prefix_file *f = &entries[i].file;
        c->disk_used += file_bytes(c, f->part);
        bool taken = f->part == PREFIX_PAGE ? take_page(c, f) : take_state(c, &entries[i]);
        if (!taken) remove_file(c, f->key, f->part);
    }
    number_uses(c);
    prune_all(c, entries, n);
    free(entries);
    c->clock++;
    (void)make_disk_room(c, 0, false, c->clock);
    if (n > 0)
        log_info("prefixes-found", "files=%zu mib=%llu", n,
                 (unsigned long long)(c->disk_used >> 20));
    return STATUS_OK;
}
