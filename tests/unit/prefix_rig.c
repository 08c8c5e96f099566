#include "tests/unit/prefix_rig.h"

#include <string.h>

static void page_save(void *context, uint32_t page, void *bytes) {
    memcpy(bytes, &((rig *)context)->page[page], 8);
}

static void page_load(void *context, uint32_t page, const void *bytes) {
    memcpy(&((rig *)context)->page[page], bytes, 8);
}

static void state_save(void *context, uint32_t state, void *bytes) {
    memcpy(bytes, &((rig *)context)->state[state], 8);
}

static void state_load(void *context, uint32_t state, const void *bytes) {
    memcpy(&((rig *)context)->state[state], bytes, 8);
}

static void state_copy(void *context, uint32_t to, uint32_t from) {
    rig *r = context;
    r->state[to] = r->state[from];
}

uint32_t rig_n_spare;

void rig_open_with(rig *r, uint64_t ram_bytes, const char *folder, uint64_t disk_bytes) {
    memset(r, 0, sizeof *r);
    error err = {0};
    assert_int_equal(kv_pages_new(&r->pages, N_PAGES, &err), STATUS_OK);
    const prefix_params params = {
        .memory = {r, 8, 8, page_save, page_load, state_save, state_load, state_copy},
        .pages = r->pages,
        .first_state = 2,
        .n_states = rig_n_spare,
        .ram_bytes = ram_bytes,
        .disk_dir = folder,
        .disk_bytes = disk_bytes,
        .identity = "a model"};
    if (prefix_cache_open(&r->cache, &params, &err) != STATUS_OK) fail_msg("%s", err.text);
}

void rig_open(rig *r, uint64_t ram_bytes) {
    rig_open_with(r, ram_bytes, NULL, 0);
}

void rig_close(rig *r) {
    prefix_cache_close(r->cache);
    assert_int_equal(kv_pages_available(r->pages), N_PAGES);
    kv_pages_free(r->pages);
}

void write_text(int32_t *tokens, const char *words) {
    for (size_t i = 0; words[i] != '\0'; i++) {
        for (size_t j = 0; j < BLOCK; j++)
            tokens[i * BLOCK + j] = words[i];
    }
}

uint64_t hash_of(const int32_t *tokens, size_t n_blocks) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n_blocks * BLOCK; i++)
        h = (h ^ (uint64_t)tokens[i]) * 1099511628211u;
    return h;
}

void rig_poison(rig *r) {
    for (uint32_t i = 0; i < N_PAGES; i++) {
        if (kv_pages_owners(r->pages, i) == 0) r->page[i] = 0xdead;
    }
}

bool rig_start(rig *r, run *u, const char *words, bool background) {
    u->n_blocks = (uint32_t)strlen(words);
    write_text(u->tokens, words);
    u->n_skipped =
        prefix_cache_begin(r->cache, u->tokens, u->n_blocks * BLOCK, background, 0, u->pages) /
        BLOCK;
    prefix_cache_count(r->cache, u->n_blocks * BLOCK, u->n_skipped * BLOCK);
    assert_true(u->n_skipped < u->n_blocks);
    for (uint32_t i = 0; i < u->n_skipped; i++)
        assert_int_equal(r->page[u->pages[i]], hash_of(u->tokens, i + 1));
    if (u->n_skipped > 0) assert_int_equal(r->state[0], hash_of(u->tokens, u->n_skipped));
    uint32_t n_new = u->n_blocks - u->n_skipped, n_free = kv_pages_available(r->pages);
    if (n_free < n_new) prefix_cache_reclaim(r->cache, n_new - n_free);
    for (uint32_t i = u->n_skipped; i < u->n_blocks; i++) {
        if (!kv_pages_take(r->pages, &u->pages[i])) {
            u->n_blocks = i;
            return false;
        }
        r->page[u->pages[i]] = hash_of(u->tokens, i + 1);
    }
    return true;
}

bool rig_keep(rig *r, run *u, uint32_t n_blocks, bool background) {
    r->state[0] = hash_of(u->tokens, n_blocks);
    return prefix_cache_keep(r->cache, u->tokens, n_blocks * BLOCK, background, 0, u->pages);
}

void rig_end(rig *r, run *u) {
    for (uint32_t i = 0; i < u->n_blocks; i++)
        kv_pages_release(r->pages, u->pages[i]);
    rig_poison(r);
}

uint32_t rig_play(rig *r, const char *words, const char *depths, bool background) {
    run u;
    assert_true(rig_start(r, &u, words, background));
    for (; *depths != '\0'; depths++)
        (void)rig_keep(r, &u, (uint32_t)(*depths - '0'), background);
    rig_end(r, &u);
    return u.n_skipped;
}

bool rig_holds(rig *r, const char *words) {
    int32_t tokens[MAX_BLOCKS * BLOCK];
    write_text(tokens, words);
    const prefix_end whole = {(uint32_t)strlen(words) * BLOCK, 1};
    uint64_t name = 0;
    return prefix_cache_list_held(r->cache, tokens, &whole, 1, &name) == 1;
}
