#include "worker/text/bpe.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHORT_PIECE = 32, /* up to here a search of all pairs beats the heap */
    MAX_PIECE_BYTES = 1 << 30,
    MAX_MERGES = 1 << 24
};
#define NO_RANK UINT32_MAX
#define NO_PAIR UINT64_MAX

/* What merging two tokens gives. */
typedef struct merge {
    uint64_t pair; /* left id, right id; NO_PAIR: a free slot */
    uint32_t rank;
    int32_t merged;
} merge;

struct bpe {
    const vocabulary *tokens;
    merge *slots; /* open addressing by pair */
    int shift;    /* 64 - log2 of the number of slots */
};

/* A token of a long piece in a doubly linked list; dead ones have id -1. */
typedef struct bpe_symbol {
    int32_t id;
    int32_t previous, next; /* -1: none */
    uint32_t rank;          /* of the pair with the next one */
} bpe_symbol;

static const merge no_merge = {NO_PAIR, NO_RANK, -1};

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static merge *slot_of(const bpe *b, uint64_t pair) {
    size_t mask = ((size_t)1 << (64 - b->shift)) - 1;
    size_t at = (size_t)((pair * UINT64_C(0x9E3779B97F4A7C15)) >> b->shift);
    while (b->slots[at].pair != pair && b->slots[at].pair != NO_PAIR)
        at = (at + 1) & mask;
    return &b->slots[at];
}

static const merge *find_merge(const bpe *b, int32_t left, int32_t right) {
    const merge *m = slot_of(b, pair_of(left, right));
    return m->pair == NO_PAIR ? &no_merge : m;
}

/* --- reading the file ---------------------------------------------------- */

/* One line of the table: "left right", divided at the first space but one at position 0. */
static status add_merge(bpe *b, gguf_string text, uint32_t rank, error *err) {
    const char *space = text.length < 3 ? NULL : memchr(text.bytes + 1, ' ', text.length - 2);
    char raw[2048];
    size_t n_left, n_right;
    if (space == NULL || text.length > sizeof raw) {
        return error_set(err, STATUS_BAD_INPUT,
                         "tokenizer.ggml.merges[%u]: not two tokens with a space between",
                         rank);
    }
    size_t split = (size_t)(space - text.bytes);
    if (!vocabulary_unmap(text.bytes, split, raw, &n_left) ||
        !vocabulary_unmap(space + 1, text.length - split - 1, raw + n_left, &n_right)) {
        return error_set(err, STATUS_BAD_INPUT,
                         "tokenizer.ggml.merges[%u]: a letter that stands for no byte", rank);
    }
    int32_t left = vocabulary_find(b->tokens, raw, n_left);
    int32_t right = vocabulary_find(b->tokens, raw + n_left, n_right);
    int32_t merged = vocabulary_find(b->tokens, raw, n_left + n_right);
    if (left < 0 || right < 0 || merged < 0) {
        return error_set(err, STATUS_BAD_INPUT,
                         "tokenizer.ggml.merges[%u]: '%.*s' is not in tokenizer.ggml.tokens",
                         rank, (int)(text.length < 100 ? text.length : 100), text.bytes);
    }
    merge *m = slot_of(b, pair_of(left, right));
    if (m->pair == NO_PAIR) *m = (merge){pair_of(left, right), rank, merged};
    return STATUS_OK;
}

static status read_merges(bpe *b, const gguf_key *key, error *err) {
    gguf_cursor cursor = {0};
    gguf_string text;
    for (uint32_t rank = 0; rank < key->n_items; rank++) {
        if (!gguf_next_string(key, &cursor, &text)) {
            return error_set(err, STATUS_BAD_INPUT, "tokenizer.ggml.merges[%u]: no string",
                             rank);
        }
        status rc = add_merge(b, text, rank, err);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

status bpe_open(bpe **out, const gguf_file *file, const vocabulary *v, error *err) {
    static const char name[] = "tokenizer.ggml.merges";
    *out = NULL;
    const gguf_key *key = gguf_find_key(file, name);
    if (key == NULL || key->kind != GGUF_ARRAY || key->n_items > MAX_MERGES ||
        (key->n_items > 0 && key->item_kind != GGUF_STRING)) {
        return error_set(err, STATUS_BAD_INPUT, "%s: %s", name,
                         key == NULL ? "missing" : "not an array of at most 2^24 strings");
    }
    status rc;
    bpe *b = calloc(1, sizeof *b);
    if (b == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for the merges");
    int bits = 8;
    while (((uint64_t)1 << bits) < 2 * key->n_items)
        bits++;
    size_t n_slots = (size_t)1 << bits;
    b->tokens = v;
    b->shift = 64 - bits;
    b->slots = malloc(n_slots * sizeof *b->slots);
    if (b->slots == NULL) {
        rc = error_set(err, STATUS_NO_MEMORY, "no memory for the merges");
        goto fail;
    }
    for (size_t i = 0; i < n_slots; i++)
        b->slots[i] = no_merge;
    rc = read_merges(b, key, err);
    if (rc != STATUS_OK) goto fail;
    *out = b;
    return STATUS_OK;
fail:
    bpe_close(b);
    return rc;
}

void bpe_close(bpe *b) {
    if (b == NULL) return;
    free(b->slots);
    free(b);
}

void bpe_scratch_release(bpe_scratch *s) {
    free(s->symbols);
    free(s->heap);
    *s = (bpe_scratch){0};
}

/* --- short pieces -------------------------------------------------------- */

static status encode_short(const bpe *b, const char *piece, size_t length, token_list *out,
                           error *err) {
    int32_t ids[SHORT_PIECE];
    const merge *pairs[SHORT_PIECE]; /* pairs[i]: of ids[i] and ids[i + 1] */
    size_t n = length;
    for (size_t i = 0; i < n; i++)
        ids[i] = vocabulary_of_byte(b->tokens, (unsigned char)piece[i]);
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = find_merge(b, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (pairs[i]->rank < pairs[best]->rank) best = i;
        }
        if (pairs[best]->rank == NO_RANK) break;
        ids[best] = pairs[best]->merged;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof ids[0]);
        n--;
        if (best + 1 < n) {
            for (size_t i = best + 1; i + 1 < n; i++)
                pairs[i] = pairs[i + 1];
            pairs[best] = find_merge(b, ids[best], ids[best + 1]);
        }
        if (best > 0) pairs[best - 1] = find_merge(b, ids[best - 1], ids[best]);
    }
    for (size_t i = 0; i < n; i++) {
        status rc = token_list_add(out, ids[i], err);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

/* --- long pieces --------------------------------------------------------- */

/* A binary heap of (rank, position): the lowest rank, then the leftmost, on top. */
static status heap_push(bpe_scratch *s, uint64_t item, error *err) {
    if (s->n_heap == s->cap_heap) {
        size_t capacity = s->cap_heap == 0 ? 1024 : 2 * s->cap_heap;
        uint64_t *heap = realloc(s->heap, capacity * sizeof *heap);
        if (heap == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for a long word");
        s->heap = heap;
        s->cap_heap = capacity;
    }
    size_t at = s->n_heap++;
    for (; at > 0 && item < s->heap[(at - 1) / 2]; at = (at - 1) / 2) {
        s->heap[at] = s->heap[(at - 1) / 2];
    }
    s->heap[at] = item;
    return STATUS_OK;
}

static uint64_t heap_pop(bpe_scratch *s) {
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= s->n_heap) break;
        if (child + 1 < s->n_heap && s->heap[child + 1] < s->heap[child]) child++;
        if (last <= s->heap[child]) break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return top;
}

/* Note the rank of the pair that begins at `at`, and offer it. */
static status offer_pair(const bpe *b, bpe_scratch *s, int32_t at, error *err) {
    bpe_symbol *left = &s->symbols[at];
    left->rank =
        left->next < 0 ? NO_RANK : find_merge(b, left->id, s->symbols[left->next].id)->rank;
    if (left->rank == NO_RANK) return STATUS_OK;
    return heap_push(s, (uint64_t)left->rank << 32 | (uint32_t)at, err);
}

static status prepare_long(const bpe *b, bpe_scratch *s, const char *piece, size_t length,
                           error *err) {
    if (length > s->cap_symbols) {
        free(s->symbols);
        s->cap_symbols = 0;
        s->symbols = malloc(length * sizeof *s->symbols);
        if (s->symbols == NULL) {
            return error_set(err, STATUS_NO_MEMORY, "no memory for a long word");
        }
        s->cap_symbols = length;
    }
    s->n_heap = 0;
    for (size_t i = 0; i < length; i++) {
        int32_t at = (int32_t)i;
        s->symbols[i] = (bpe_symbol){vocabulary_of_byte(b->tokens, (unsigned char)piece[i]),
                                     at - 1, i + 1 < length ? at + 1 : -1, NO_RANK};
    }
    for (size_t i = 0; i + 1 < length; i++) {
        status rc = offer_pair(b, s, (int32_t)i, err);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

static status encode_long(const bpe *b, bpe_scratch *s, const char *piece, size_t length,
                          token_list *out, error *err) {
    status rc = prepare_long(b, s, piece, length, err);
    while (rc == STATUS_OK && s->n_heap > 0) {
        uint64_t item = heap_pop(s);
        int32_t at = (int32_t)(item & 0xFFFFFFFFu);
        bpe_symbol *left = &s->symbols[at];
        /* An offer is stale when its left token is gone or has another neighbour now. */
        if (left->id < 0 || left->rank != (uint32_t)(item >> 32)) continue;
        bpe_symbol *right = &s->symbols[left->next];
        left->id = find_merge(b, left->id, right->id)->merged;
        right->id = -1;
        left->next = right->next;
        if (left->next >= 0) s->symbols[left->next].previous = at;
        rc = offer_pair(b, s, at, err);
        if (rc == STATUS_OK && left->previous >= 0) rc = offer_pair(b, s, left->previous, err);
    }
    for (int32_t at = 0; rc == STATUS_OK && at >= 0; at = s->symbols[at].next) {
        rc = token_list_add(out, s->symbols[at].id, err);
    }
    return rc;
}

status bpe_encode(const bpe *b, bpe_scratch *scratch, const char *piece, size_t length,
                  token_list *out, error *err) {
    if (length == 0) return STATUS_OK;
    if (length <= SHORT_PIECE) return encode_short(b, piece, length, out, err);
    if (length > MAX_PIECE_BYTES) {
        return error_set(err, STATUS_BAD_INPUT, "a word of %zu bytes, at most 2^30 are encoded",
                         length);
    }
    return encode_long(b, scratch, piece, length, out, err);
}
