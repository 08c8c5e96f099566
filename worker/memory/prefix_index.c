/* prefix_index.c - blocks in one array, found through a table with linear probing.
 *
 * Hash: XXH3, 128 bits, of xxhash.
 */
#include "worker/memory/prefix_index.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct prefix_index {
    prefix_block *blocks;
    uint32_t cap;
    uint32_t *free_blocks;
    uint32_t n_free;
    uint32_t *places;  /* of the table: a block or PREFIX_NONE; never more than half full */
    uint32_t n_places; /* a power of two */
    uint32_t n_added;
    prefix_key root;
    uint32_t first_root; /* child of the root */
};

status prefix_index_new(prefix_index **out, uint32_t cap_blocks, const char *identity,
                        error *err) {
    *out = NULL;
    CHECK(cap_blocks > 0 && cap_blocks <= 1u << 24);
    prefix_index *ix = calloc(1, sizeof *ix);
    if (ix == NULL) goto no_memory;
    ix->cap = ix->n_free = cap_blocks;
    ix->n_places = 2;
    while (ix->n_places < 2 * cap_blocks)
        ix->n_places *= 2;
    ix->blocks = calloc(cap_blocks, sizeof *ix->blocks);
    ix->free_blocks = malloc(cap_blocks * sizeof *ix->free_blocks);
    ix->places = malloc(ix->n_places * sizeof *ix->places);
    if (ix->blocks == NULL || ix->free_blocks == NULL || ix->places == NULL) goto no_memory;
    for (uint32_t i = 0; i < cap_blocks; i++)
        ix->free_blocks[i] = cap_blocks - 1 - i;
    memset(ix->places, 0xff, ix->n_places * sizeof *ix->places);
    XXH128_hash_t h = XXH3_128bits(identity, strlen(identity));
    ix->root = (prefix_key){h.low64, h.high64};
    ix->first_root = PREFIX_NONE;
    *out = ix;
    return STATUS_OK;
no_memory:
    prefix_index_free(ix);
    return error_set(err, STATUS_NO_MEMORY, "prefix index: no memory for %u blocks",
                     cap_blocks);
}

void prefix_index_free(prefix_index *ix) {
    if (ix == NULL) return;
    free(ix->places);
    free(ix->free_blocks);
    free(ix->blocks);
    free(ix);
}

prefix_key prefix_index_key(const prefix_index *ix, uint32_t parent, const int32_t *tokens) {
    struct {
        prefix_key above;
        int32_t tokens[PREFIX_BLOCK_TOKENS];
    } text;
    text.above = parent == PREFIX_NONE ? ix->root : ix->blocks[parent].key;
    memcpy(text.tokens, tokens, sizeof text.tokens);
    XXH128_hash_t h = XXH3_128bits(&text, sizeof text);
    return (prefix_key){h.low64, h.high64};
}

static bool same_key(prefix_key a, prefix_key b) {
    return a.low == b.low && a.high == b.high;
}

/* Where the block with this key stands, or the free place where it would. */
static uint32_t place_of(const prefix_index *ix, prefix_key key) {
    uint32_t i = (uint32_t)key.low & (ix->n_places - 1);
    while (ix->places[i] != PREFIX_NONE && !same_key(ix->blocks[ix->places[i]].key, key))
        i = (i + 1) & (ix->n_places - 1);
    return i;
}

uint32_t prefix_index_find(const prefix_index *ix, prefix_key key) {
    return ix->places[place_of(ix, key)];
}

uint32_t prefix_index_child(const prefix_index *ix, uint32_t parent, const int32_t *tokens) {
    uint32_t id = prefix_index_find(ix, prefix_index_key(ix, parent, tokens));
    if (id == PREFIX_NONE) return PREFIX_NONE;
    const prefix_block *b = &ix->blocks[id];
    bool same = b->parent == parent && memcmp(b->tokens, tokens, sizeof b->tokens) == 0;
    return same ? id : PREFIX_NONE;
}

static uint32_t *first_child_of(prefix_index *ix, uint32_t parent) {
    return parent == PREFIX_NONE ? &ix->first_root : &ix->blocks[parent].first_child;
}

uint32_t prefix_index_add(prefix_index *ix, uint32_t parent, const int32_t *tokens) {
    prefix_key key = prefix_index_key(ix, parent, tokens);
    uint32_t place = place_of(ix, key);
    if (ix->n_free == 0 || ix->places[place] != PREFIX_NONE) return PREFIX_NONE;
    uint32_t id = ix->free_blocks[--ix->n_free];
    uint32_t *first = first_child_of(ix, parent);
    prefix_block *b = &ix->blocks[id];
    *b = (prefix_block){.key = key,
                        .parent = parent,
                        .depth = parent == PREFIX_NONE ? 0 : ix->blocks[parent].depth + 1,
                        .first_child = PREFIX_NONE,
                        .next_sibling = *first,
                        .previous_sibling = PREFIX_NONE};
    memcpy(b->tokens, tokens, sizeof b->tokens);
    if (++ix->n_added == 0) ix->n_added = 1;
    b->serial = ix->n_added;
    if (*first != PREFIX_NONE) ix->blocks[*first].previous_sibling = id;
    *first = id;
    ix->places[place] = id;
    return id;
}

/* Those behind it in its run of places move up, where they are still found. */
static void forget_place(prefix_index *ix, prefix_key key) {
    uint32_t mask = ix->n_places - 1, hole = place_of(ix, key);
    ix->places[hole] = PREFIX_NONE;
    for (uint32_t i = (hole + 1) & mask; ix->places[i] != PREFIX_NONE; i = (i + 1) & mask) {
        uint32_t moved = ix->places[i];
        ix->places[i] = PREFIX_NONE;
        ix->places[place_of(ix, ix->blocks[moved].key)] = moved;
    }
}

void prefix_index_remove(prefix_index *ix, uint32_t block) {
    prefix_block *b = &ix->blocks[block];
    CHECK(block < ix->cap && b->serial != 0 && b->first_child == PREFIX_NONE);
    forget_place(ix, b->key);
    if (b->previous_sibling != PREFIX_NONE) {
        ix->blocks[b->previous_sibling].next_sibling = b->next_sibling;
    } else {
        *first_child_of(ix, b->parent) = b->next_sibling;
    }
    if (b->next_sibling != PREFIX_NONE)
        ix->blocks[b->next_sibling].previous_sibling = b->previous_sibling;
    b->serial = 0;
    ix->free_blocks[ix->n_free++] = block;
}

bool prefix_index_is(const prefix_index *ix, uint32_t block, uint32_t serial) {
    return ix->blocks[block].serial == serial;
}

const prefix_block *prefix_index_at(const prefix_index *ix, uint32_t block) {
    CHECK(block < ix->cap && ix->blocks[block].serial != 0);
    return &ix->blocks[block];
}

uint32_t prefix_index_n_free(const prefix_index *ix) {
    return ix->n_free;
}

uint32_t prefix_index_capacity(const prefix_index *ix) {
    return ix->cap;
}
