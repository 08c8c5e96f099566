/* token_trie.c - sorts the vocabulary and lays its tree out in preorder. */
#include "worker/text/token_trie.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOKEN_BYTES = 4096 };

typedef struct entry {
    const char *bytes;
    size_t length;
    int32_t id;
} entry;

static int compare_entries(const void *one, const void *other) {
    const entry *a = one, *b = other;
    size_t n = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->bytes, b->bytes, n);
    if (order != 0) return order;
    if (a->length != b->length) return a->length < b->length ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static uint32_t list_tokens(entry *out, const tokenizer *vocab, uint32_t n_vocab,
                            size_t *n_bytes) {
    uint32_t n = 0;
    *n_bytes = 0;
    for (int32_t id = 0; id < (int32_t)n_vocab; id++) {
        entry e = {.id = id};
        e.bytes = tokenizer_bytes(vocab, id, &e.length);
        if (tokenizer_kind(vocab, id) != TOKEN_NORMAL || e.length == 0 ||
            e.length > MAX_TOKEN_BYTES || tokenizer_is_end(vocab, id)) {
            continue;
        }
        *n_bytes += e.length;
        out[n++] = e;
    }
    qsort(out, n, sizeof *out, compare_entries);
    return n;
}

/* open[d]: the node of depth d + 1 whose subtree is still growing. */
static void close_from(token_trie *t, const uint32_t *open, size_t depth, size_t *n_open) {
    while (*n_open > depth)
        t->nodes[open[--*n_open]].end = t->n_nodes;
}

static void build(token_trie *t, const entry *entries, uint32_t *open) {
    size_t n_open = 0;
    for (uint32_t i = 0; i < t->n_ids; i++) {
        const entry *e = &entries[i];
        size_t shared = 0;
        while (shared < n_open && shared < e->length &&
               t->nodes[open[shared]].byte == (unsigned char)e->bytes[shared]) {
            shared++;
        }
        close_from(t, open, shared, &n_open);
        for (; n_open < e->length; n_open++) {
            open[n_open] = t->n_nodes;
            t->nodes[t->n_nodes++] = (token_trie_node){.tokens_end = i,
                                                       .depth = (uint16_t)(n_open + 1),
                                                       .byte = (unsigned char)e->bytes[n_open]};
        }
        t->ids[i] = e->id;
        t->nodes[t->n_nodes - 1].tokens_end = i + 1;
        if (e->length > t->max_depth) t->max_depth = (uint32_t)e->length;
    }
    close_from(t, open, 0, &n_open);
}

status token_trie_new(token_trie **out, const tokenizer *vocab, uint32_t n_vocab, error *err) {
    *out = NULL;
    size_t n_bytes = 0;
    uint32_t *open = NULL;
    token_trie *t = calloc(1, sizeof *t);
    entry *entries = calloc((size_t)n_vocab + 1, sizeof *entries);
    if (t == NULL || entries == NULL) goto no_memory;
    t->n_vocab = n_vocab;
    t->n_ids = list_tokens(entries, vocab, n_vocab, &n_bytes);
    t->ids = calloc((size_t)t->n_ids + 1, sizeof *t->ids);
    t->nodes = calloc(n_bytes + 1, sizeof *t->nodes);
    open = calloc(MAX_TOKEN_BYTES, sizeof *open);
    if (t->ids == NULL || t->nodes == NULL || open == NULL) goto no_memory;
    build(t, entries, open);
    token_trie_node *kept = realloc(t->nodes, ((size_t)t->n_nodes + 1) * sizeof *kept);
    if (kept != NULL) t->nodes = kept;
    free(open);
    free(entries);
    *out = t;
    return STATUS_OK;
no_memory:
    free(open);
    free(entries);
    token_trie_free(t);
    return error_set(err, STATUS_NO_MEMORY, "no memory for the tree of %u tokens", n_vocab);
}

void token_trie_free(token_trie *t) {
    if (t == NULL) return;
    free(t->ids);
    free(t->nodes);
    free(t);
}
