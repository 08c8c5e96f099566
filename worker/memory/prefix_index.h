/* prefix_index.h - the beginnings of prompts that are known, as a tree of blocks of tokens.
 *
 * A block is PREFIX_BLOCK_TOKENS tokens behind all blocks above it, so it stands for one
 * beginning of a text.  Its key is a hash of the key above it and its own tokens; the root's
 * is a hash of what the bits depend on besides (the identity: file, arithmetic).  A block is
 * found by its key and then compared token by token, so two texts never pass for each other.
 *
 * Holds no pages and no states: whoever does keeps them by the number of the block.
 * Allocates only in its constructor.  One thread.
 */
#ifndef SILICEO_WORKER_MEMORY_PREFIX_INDEX_H
#define SILICEO_WORKER_MEMORY_PREFIX_INDEX_H

#include "common/error.h"
#include "worker/model/model.h"
#include <stdbool.h>
#include <stdint.h>

enum { PREFIX_BLOCK_TOKENS = MODEL_PAGE_TOKENS };
/* A snapshot stands where pages and pieces of a prompt end. */
_Static_assert(MODEL_PAGE_TOKENS == MODEL_CHUNK_TOKENS, "a block is a page and a chunk");

#define PREFIX_NONE UINT32_MAX /* no block; as a parent: the root */

typedef struct prefix_key {
    uint64_t low, high;
} prefix_key;

typedef struct prefix_block {
    prefix_key key;
    int32_t tokens[PREFIX_BLOCK_TOKENS];
    uint32_t parent;
    uint32_t depth; /* blocks above it */
    uint32_t first_child, next_sibling, previous_sibling;
    uint32_t serial; /* changes when the number stands for another block; 0: free */
} prefix_block;

typedef struct prefix_index prefix_index;

status prefix_index_new(prefix_index **out, uint32_t cap_blocks, const char *identity,
                        error *err);
void prefix_index_free(prefix_index *ix); /* accepts NULL */

prefix_key prefix_index_key(const prefix_index *ix, uint32_t parent, const int32_t *tokens);
/* The block with these tokens right below parent; PREFIX_NONE: there is none. */
uint32_t prefix_index_child(const prefix_index *ix, uint32_t parent, const int32_t *tokens);
/* The block with this key, whatever its tokens. */
uint32_t prefix_index_find(const prefix_index *ix, prefix_key key);
/* Add one that is not there; PREFIX_NONE: no room, or another text has its key. */
uint32_t prefix_index_add(prefix_index *ix, uint32_t parent, const int32_t *tokens);
/* It must have no children. */
void prefix_index_remove(prefix_index *ix, uint32_t block);

/* Does the number still stand for the block that had this serial? */
bool prefix_index_is(const prefix_index *ix, uint32_t block, uint32_t serial);
const prefix_block *prefix_index_at(const prefix_index *ix, uint32_t block);
uint32_t prefix_index_n_free(const prefix_index *ix);
uint32_t prefix_index_capacity(const prefix_index *ix);

#endif
