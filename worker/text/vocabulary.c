#include "worker/text/vocabulary.h"

#include "common/utf8.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MAPPED_LETTERS = 324 }; /* 256 bytes: 188 stand for themselves, 68 from U+0100 on */
enum { MAX_TOKENS = 1 << 24 };

struct vocabulary {
    size_t n_tokens;
    char *bytes;          /* of all tokens, one after the other */
    uint32_t *begins;     /* [n_tokens + 1] into bytes */
    unsigned char *kinds; /* [n_tokens] token_kind */
    int32_t *slots;       /* [n_slots] hash table of normal tokens by bytes; -1: free */
    size_t n_slots;       /* a power of two, at least twice n_tokens */
    int32_t of_byte[256];
    int32_t *added;         /* control and user-defined ids by first byte, longest first */
    size_t added_from[257]; /* where those of a first byte begin in added */
};

static bool maps_to_itself(unsigned byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The byte that a letter stands for, or -1.  The others map in order to U+0100..U+0143. */
static int byte_of_letter(uint32_t letter) {
    if (letter < 256) return maps_to_itself(letter) ? (int)letter : -1;
    if (letter >= MAPPED_LETTERS) return -1;
    unsigned n = letter - 256;
    if (n <= 32) return (int)n;
    return n < 67 ? (int)(127 + n - 33) : 173;
}

bool vocabulary_unmap(const char *text, size_t length, char *out, size_t *n_out) {
    const unsigned char *p = (const unsigned char *)text;
    size_t n = 0;
    for (size_t at = 0; at < length;) {
        uint32_t letter;
        int size = utf8_decode(p + at, length - at, &letter);
        int byte = size > 0 ? byte_of_letter(letter) : -1;
        if (byte < 0) return false;
        out[n++] = (char)byte;
        at += (size_t)size;
    }
    *n_out = n;
    return true;
}

size_t vocabulary_size(const vocabulary *v) {
    return v->n_tokens;
}

static bool known(const vocabulary *v, int32_t id) {
    return id >= 0 && (size_t)id < v->n_tokens;
}

const char *vocabulary_bytes(const vocabulary *v, int32_t id, size_t *length) {
    *length = 0;
    if (!known(v, id)) return "";
    *length = v->begins[id + 1] - v->begins[id];
    return v->bytes + v->begins[id];
}

token_kind vocabulary_kind(const vocabulary *v, int32_t id) {
    return known(v, id) ? (token_kind)v->kinds[id] : TOKEN_UNUSED;
}

static bool has_bytes(const vocabulary *v, int32_t id, const char *bytes, size_t length) {
    size_t n;
    const char *own = vocabulary_bytes(v, id, &n);
    return n == length && memcmp(own, bytes, n) == 0;
}

/* The slot that holds these bytes or is free for them. */
static size_t slot_of(const vocabulary *v, const char *bytes, size_t length) {
    size_t at = XXH3_64bits(bytes, length) & (v->n_slots - 1);
    while (v->slots[at] >= 0 && !has_bytes(v, v->slots[at], bytes, length)) {
        at = (at + 1) & (v->n_slots - 1);
    }
    return at;
}

int32_t vocabulary_find(const vocabulary *v, const char *bytes, size_t length) {
    return v->slots[slot_of(v, bytes, length)];
}

int32_t vocabulary_of_byte(const vocabulary *v, unsigned char byte) {
    return v->of_byte[byte];
}

bool vocabulary_added_begins(const vocabulary *v, unsigned char byte) {
    return v->added_from[byte] < v->added_from[byte + 1];
}

int32_t vocabulary_match_added(const vocabulary *v, const char *text, size_t length,
                               bool control) {
    if (length == 0) return -1;
    unsigned char first = (unsigned char)text[0];
    for (size_t i = v->added_from[first]; i < v->added_from[first + 1]; i++) {
        int32_t id = v->added[i];
        size_t n;
        const char *bytes = vocabulary_bytes(v, id, &n);
        if (v->kinds[id] == TOKEN_CONTROL && !control) continue;
        if (n <= length && memcmp(bytes, text, n) == 0) return id;
    }
    return -1;
}

int32_t vocabulary_find_added(const vocabulary *v, const char *text, size_t length) {
    if (length == 0) return -1;
    unsigned char first = (unsigned char)text[0];
    for (size_t i = v->added_from[first]; i < v->added_from[first + 1]; i++) {
        if (has_bytes(v, v->added[i], text, length)) return v->added[i];
    }
    return -1;
}

/* --- reading the file ---------------------------------------------------- */

static status read_kinds(vocabulary *v, const gguf_file *file, error *err) {
    static const char name[] = "tokenizer.ggml.token_type";
    const gguf_key *key = gguf_find_key(file, name);
    if (key == NULL) return STATUS_OK; /* all normal */
    if (key->kind != GGUF_ARRAY || key->n_items != v->n_tokens) {
        return error_set(err, STATUS_BAD_INPUT, "%s: not an array of %zu items", name,
                         v->n_tokens);
    }
    static const token_kind kinds[] = {TOKEN_NORMAL,  TOKEN_NORMAL,       TOKEN_UNUSED,
                                       TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED,
                                       TOKEN_NORMAL};
    for (size_t i = 0; i < v->n_tokens; i++) {
        int64_t type;
        if (!gguf_item_i64(key, i, &type) || type < 0 ||
            type >= (int64_t)(sizeof kinds / sizeof kinds[0])) {
            return error_set(err, STATUS_BAD_INPUT, "%s[%zu]: not a token type (0..6)", name,
                             i);
        }
        v->kinds[i] = (unsigned char)kinds[type];
    }
    return STATUS_OK;
}

/* The converter fills the table up with [PADn] at id n, whatever type it gives them. */
static bool is_padding(gguf_string text, size_t id) {
    char expected[32];
    int n = snprintf(expected, sizeof expected, "[PAD%zu]", id);
    return n > 0 && text.length == (size_t)n && memcmp(text.bytes, expected, text.length) == 0;
}

static status read_bytes(vocabulary *v, const gguf_key *key, error *err) {
    gguf_cursor cursor = {0};
    gguf_string text;
    uint64_t total = 0;
    for (size_t i = 0; i < v->n_tokens; i++) {
        if (!gguf_next_string(key, &cursor, &text)) {
            return error_set(err, STATUS_BAD_INPUT, "tokenizer.ggml.tokens[%zu]: no string", i);
        }
        total += text.length;
    }
    if (total > UINT32_MAX) {
        return error_set(err, STATUS_BAD_INPUT,
                         "tokenizer.ggml.tokens: more than 4 GiB of text");
    }
    v->bytes = malloc((size_t)total + 1);
    if (v->bytes == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for the tokens");
    size_t at = 0;
    cursor = (gguf_cursor){0};
    for (size_t i = 0; i < v->n_tokens; i++) {
        size_t n = 0; /* unused tokens have no bytes */
        if (!gguf_next_string(key, &cursor, &text)) break;
        if (is_padding(text, i)) v->kinds[i] = TOKEN_UNUSED;
        if (v->kinds[i] != TOKEN_UNUSED &&
            (v->kinds[i] != TOKEN_NORMAL ||
             !vocabulary_unmap(text.bytes, text.length, v->bytes + at, &n))) {
            n = text.length;
            if (n > 0) memcpy(v->bytes + at, text.bytes, n);
        }
        at += n;
        v->begins[i + 1] = (uint32_t)at;
    }
    return STATUS_OK;
}

static status index_normal(vocabulary *v, error *err) {
    v->n_slots = 1024;
    while (v->n_slots < 2 * v->n_tokens)
        v->n_slots *= 2;
    v->slots = malloc(v->n_slots * sizeof *v->slots);
    if (v->slots == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for the tokens");
    for (size_t i = 0; i < v->n_slots; i++)
        v->slots[i] = -1;
    for (size_t i = 0; i < v->n_tokens; i++) {
        size_t n;
        const char *bytes = vocabulary_bytes(v, (int32_t)i, &n);
        if (v->kinds[i] != TOKEN_NORMAL || n == 0) continue;
        size_t slot = slot_of(v, bytes, n);
        if (v->slots[slot] < 0) v->slots[slot] = (int32_t)i; /* of twins the first */
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        v->of_byte[byte] = vocabulary_find(v, &c, 1);
        if (v->of_byte[byte] < 0) {
            return error_set(err, STATUS_BAD_INPUT,
                             "tokenizer.ggml.tokens: no token for the single byte 0x%02X",
                             byte);
        }
    }
    return STATUS_OK;
}

static bool is_added(const vocabulary *v, size_t id) {
    bool kind = v->kinds[id] == TOKEN_CONTROL || v->kinds[id] == TOKEN_USER_DEFINED;
    return kind && v->begins[id + 1] > v->begins[id];
}

static size_t length_of(const vocabulary *v, int32_t id) {
    return v->begins[id + 1] - v->begins[id];
}

/* Counting sort by first byte, then by insertion, longest first, within each. */
static status index_added(vocabulary *v, error *err) {
    size_t counts[256] = {0}, n_added = 0;
    for (size_t i = 0; i < v->n_tokens; i++) {
        if (!is_added(v, i)) continue;
        counts[(unsigned char)v->bytes[v->begins[i]]]++;
        n_added++;
    }
    v->added = malloc((n_added + 1) * sizeof *v->added);
    if (v->added == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for the tokens");
    if (n_added > 4096) {
        return error_set(err, STATUS_BAD_INPUT,
                         "tokenizer.ggml.token_type: %zu control and user-defined tokens, "
                         "at most 4096 are handled",
                         n_added);
    }
    for (size_t b = 0; b < 256; b++)
        v->added_from[b + 1] = v->added_from[b] + counts[b];
    size_t filled[256] = {0};
    for (size_t i = 0; i < v->n_tokens; i++) {
        if (!is_added(v, i)) continue;
        unsigned char first = (unsigned char)v->bytes[v->begins[i]];
        int32_t *group = v->added + v->added_from[first];
        size_t at = filled[first]++;
        for (; at > 0 && length_of(v, group[at - 1]) < length_of(v, (int32_t)i); at--) {
            group[at] = group[at - 1];
        }
        group[at] = (int32_t)i;
    }
    return STATUS_OK;
}

status vocabulary_open(vocabulary **out, const gguf_file *file, error *err) {
    static const char name[] = "tokenizer.ggml.tokens";
    status rc;
    *out = NULL;
    const gguf_key *key = gguf_find_key(file, name);
    if (key == NULL || key->kind != GGUF_ARRAY || key->item_kind != GGUF_STRING ||
        key->n_items == 0 || key->n_items > MAX_TOKENS) {
        return error_set(err, STATUS_BAD_INPUT, "%s: %s", name,
                         key == NULL ? "missing" : "not an array of 1..2^24 strings");
    }
    vocabulary *v = calloc(1, sizeof *v);
    if (v == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for the tokens");
    v->n_tokens = (size_t)key->n_items;
    v->kinds = calloc(v->n_tokens, 1);
    v->begins = calloc(v->n_tokens + 1, sizeof *v->begins);
    if (v->kinds == NULL || v->begins == NULL) {
        rc = error_set(err, STATUS_NO_MEMORY, "no memory for the tokens");
        goto fail;
    }
    rc = read_kinds(v, file, err);
    if (rc != STATUS_OK) goto fail;
    rc = read_bytes(v, key, err);
    if (rc != STATUS_OK) goto fail;
    rc = index_normal(v, err);
    if (rc != STATUS_OK) goto fail;
    rc = index_added(v, err);
    if (rc != STATUS_OK) goto fail;
    *out = v;
    return STATUS_OK;
fail:
    vocabulary_close(v);
    return rc;
}

void vocabulary_close(vocabulary *v) {
    if (v == NULL) return;
    free(v->added);
    free(v->slots);
    free(v->begins);
    free(v->kinds);
    free(v->bytes);
    free(v);
}
