/* token_trie.h - the bytes of all normal tokens of a vocabulary, as a tree in one array.
 *
 * Nodes stand in preorder, each with the end of its subtree, so that walking it together
 * with an automaton is one loop: where the automaton refuses a byte, the whole subtree is
 * jumped over.  Control, user-defined and unused tokens are not in it.
 * Nothing changes after it is made; any thread.
 */
#ifndef SILICEO_WORKER_TEXT_TOKEN_TRIE_H
#define SILICEO_WORKER_TEXT_TOKEN_TRIE_H

#include "common/error.h"
#include "worker/text/tokenizer.h"
#include <stdint.h>

typedef struct token_trie_node {
    uint32_t end;        /* the first node behind the subtree */
    uint32_t tokens_end; /* ids[of the node before .. tokens_end) end at this one */
    uint16_t depth;      /* bytes to it, its own with them */
    unsigned char byte;
} token_trie_node;

typedef struct token_trie {
    token_trie_node *nodes;
    uint32_t n_nodes;
    uint32_t max_depth;
    int32_t *ids; /* in the order of their bytes */
    uint32_t n_ids;
    uint32_t n_vocab;
} token_trie;

/* Of the ids below n_vocab. */
status token_trie_new(token_trie **out, const tokenizer *vocab, uint32_t n_vocab, error *err);
void token_trie_free(token_trie *t); /* accepts NULL and a half-built one */

#endif
