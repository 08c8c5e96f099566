/* prefix_file.c - a header of fixed places.  Hash: XXH3 of xxhash. */
#include "worker/memory/prefix_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { MAGIC_SIZE = 8, VERSION = 1, MAX_DEPTH = 1 << 20 };

typedef struct header {
    uint64_t magic;
    uint32_t version, part, background, depth;
    prefix_key identity, key, parent;
    int32_t tokens[PREFIX_BLOCK_TOKENS];
    uint64_t n_bytes, bytes_hash, own_hash; /* of what is before it */
} header;
_Static_assert(sizeof(header) <= PREFIX_FILE_HEADER, "a header has its place");
_Static_assert(offsetof(header, own_hash) + 8 == sizeof(header), "its hash is its end");

static const uint64_t MAGIC = 0x3158465045434c53u; /* "SLCEPFX1" */

prefix_key prefix_file_identity(const char *text) {
    XXH128_hash_t h = XXH3_128bits(text, strlen(text));
    return (prefix_key){h.low64, h.high64};
}

uint64_t prefix_file_hash(const void *bytes, size_t n) {
    return XXH3_64bits(bytes, n);
}

static uint64_t hash_header(const header *h) {
    return XXH3_64bits(h, offsetof(header, own_hash));
}

void prefix_file_write(const prefix_file *file, unsigned char out[PREFIX_FILE_HEADER]) {
    header h = {.magic = MAGIC,
                .version = VERSION,
                .part = file->part,
                .background = file->background,
                .depth = file->depth,
                .identity = file->identity,
                .key = file->key,
                .parent = file->parent,
                .n_bytes = file->n_bytes,
                .bytes_hash = file->bytes_hash};
    memcpy(h.tokens, file->tokens, sizeof h.tokens);
    h.own_hash = hash_header(&h);
    memset(out, 0, PREFIX_FILE_HEADER);
    memcpy(out, &h, sizeof h);
}

status prefix_file_read(prefix_file *out, const unsigned char *bytes, size_t n, error *err) {
    header h;
    if (n < PREFIX_FILE_HEADER)
        return error_set(err, STATUS_BAD_INPUT, "header: %zu bytes of %d", n,
                         PREFIX_FILE_HEADER);
    memcpy(&h, bytes, sizeof h);
    if (h.magic != MAGIC)
        return error_set(err, STATUS_BAD_INPUT, "magic = %016" PRIx64, h.magic);
    if (h.version != VERSION)
        return error_set(err, STATUS_BAD_INPUT, "version = %" PRIu32, h.version);
    if (h.own_hash != hash_header(&h))
        return error_set(err, STATUS_BAD_INPUT, "the header's hash is another");
    if (h.part != PREFIX_PAGE && h.part != PREFIX_STATE)
        return error_set(err, STATUS_BAD_INPUT, "part = %" PRIu32, h.part);
    if (h.background > 1 || h.depth >= MAX_DEPTH)
        return error_set(err, STATUS_BAD_INPUT, "background = %" PRIu32 ", depth = %" PRIu32,
                         h.background, h.depth);
    *out = (prefix_file){.part = (prefix_part)h.part,
                         .background = h.background != 0,
                         .identity = h.identity,
                         .key = h.key,
                         .parent = h.parent,
                         .depth = h.depth,
                         .n_bytes = h.n_bytes,
                         .bytes_hash = h.bytes_hash};
    memcpy(out->tokens, h.tokens, sizeof out->tokens);
    return STATUS_OK;
}

void prefix_file_name(prefix_key key, prefix_part part, char out[PREFIX_FILE_NAME]) {
    (void)snprintf(out, PREFIX_FILE_NAME, "%016" PRIx64 "%016" PRIx64 ".%s", key.high, key.low,
                   part == PREFIX_PAGE ? "page" : "state");
}

static bool parse_digits(const char *text, uint64_t *out) {
    *out = 0;
    for (int i = 0; i < 16; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *at = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
        if (at == NULL) return false;
        *out = *out << 4 | (uint64_t)(at - digits);
    }
    return true;
}

bool prefix_file_parse_name(const char *name, prefix_key *key, prefix_part *part) {
    if (!parse_digits(name, &key->high) || !parse_digits(name + 16, &key->low)) return false;
    *part = strcmp(name + 32, ".page") == 0 ? PREFIX_PAGE : PREFIX_STATE;
    return *part == PREFIX_PAGE || strcmp(name + 32, ".state") == 0;
}
