/* gguf_parse.c - reads and checks the header of one mapped GGUF file.
 *
 * Nothing is believed before it is checked: a length against the bytes that are
 * left, a count against the smallest record times the bytes that are left, a
 * product by overflow-checked arithmetic.  The checks, in order: size, magic,
 * version and byte order; counts; keys (length, duplicates, known type, strings,
 * arrays, bools); alignment; tensors (name, dimensions, type, whole blocks,
 * size, duplicates); offsets (alignment, end of file, overlap).
 * Source: the GGUF format, versions 2 and 3.
 */
#include "common/gguf_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_KEYS = 65536,
    MAX_TENSORS = 1000000,
    MAX_KEY_BYTES = 65535,
    MAX_TENSOR_NAME_BYTES = 63,
    MAX_STRING_BYTES = 16 << 20,
    MAX_ITEMS = 1 << 30,
    MIN_KEY_RECORD = 8 + 1 + 4 + 1,
    MIN_TENSOR_RECORD = 8 + 1 + 4 + 4 + 8,
    DEFAULT_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8,
    MAX_ALIGNMENT = 1 << 20
};

/* Where we are in a shard, and what to call it in an error. */
typedef struct cursor {
    const gguf_shard *shard;
    uint64_t at;
    error *err;
} cursor;

static uint64_t bytes_left(const cursor *c) {
    return c->shard->n_bytes - c->at;
}

/* Copy n bytes; what and of name the field in the error. */
static status take(cursor *c, void *out, size_t n, const char *what, const char *of) {
    if (bytes_left(c) < n) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: %s%s: needs %zu bytes at byte %" PRIu64 ", the file is %" PRIu64
                         " bytes (truncated?)",
                         c->shard->path, of, what, n, c->at, c->shard->n_bytes);
    }
    memcpy(out, c->shard->map + c->at, n);
    c->at += n;
    return STATUS_OK;
}

static status take_string(cursor *c, gguf_string *out, uint64_t cap, const char *what,
                          const char *of) {
    uint64_t length = 0;
    status rc = take(c, &length, sizeof length, what, of);
    if (rc != STATUS_OK) return rc;
    if (length > cap) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: %s%s: length %" PRIu64 " is more than %" PRIu64, c->shard->path,
                         of, what, length, cap);
    }
    if (length > bytes_left(c)) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: %s%s: length %" PRIu64 " is more than the %" PRIu64
                         " bytes that are left (truncated?)",
                         c->shard->path, of, what, length, bytes_left(c));
    }
    *out = (gguf_string){(const char *)c->shard->map + c->at, (size_t)length};
    c->at += length;
    return STATUS_OK;
}

/* ---- header ---- */

static status check_count(cursor *c, const char *what, uint64_t count, uint64_t record,
                          uint64_t cap) {
    if (count > cap) {
        return error_set(c->err, STATUS_BAD_INPUT, "%s: %s is %" PRIu64 ", more than %" PRIu64,
                         c->shard->path, what, count, cap);
    }
    if (count > bytes_left(c) / record) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: %s is %" PRIu64 ", too many for a file of %" PRIu64
                         " bytes (truncated?)",
                         c->shard->path, what, count, c->shard->n_bytes);
    }
    return STATUS_OK;
}

static status check_version(const cursor *c, uint32_t version) {
    if (version == 2 || version == 3) return STATUS_OK;
    if ((version & 0xFFFFu) == 0 && version != 0) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: version is 0x%08" PRIX32
                         ": wrong endianness, big-endian files cannot be read",
                         c->shard->path, version);
    }
    return error_set(c->err, STATUS_BAD_INPUT, "%s: version is %" PRIu32 ", can read 2 and 3",
                     c->shard->path, version);
}

static status parse_header(cursor *c, gguf_shard *shard, uint64_t *n_tensors) {
    if (shard->n_bytes < 24) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: the file is %" PRIu64 " bytes, a GGUF header needs 24",
                         shard->path, shard->n_bytes);
    }
    if (memcmp(shard->map, "GGUF", 4) != 0) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: magic is %02x %02x %02x %02x, not 'GGUF': no GGUF file",
                         shard->path, shard->map[0], shard->map[1], shard->map[2],
                         shard->map[3]);
    }
    uint64_t n_keys = 0;
    memcpy(&shard->version, shard->map + 4, sizeof shard->version);
    memcpy(n_tensors, shard->map + 8, sizeof *n_tensors);
    memcpy(&n_keys, shard->map + 16, sizeof n_keys);
    c->at = 24;
    status rc = check_version(c, shard->version);
    if (rc == STATUS_OK) rc = check_count(c, "kv_count", n_keys, MIN_KEY_RECORD, MAX_KEYS);
    if (rc == STATUS_OK) {
        rc = check_count(c, "tensor_count", *n_tensors, MIN_TENSOR_RECORD, MAX_TENSORS);
    }
    if (rc != STATUS_OK) return rc;
    shard->keys = calloc(n_keys == 0 ? 1 : (size_t)n_keys, sizeof *shard->keys);
    if (shard->keys == NULL) {
        return error_set(c->err, STATUS_NO_MEMORY, "%s: no memory for %" PRIu64 " keys",
                         shard->path, n_keys);
    }
    shard->n_keys = (size_t)n_keys;
    return STATUS_OK;
}

/* ---- keys ---- */

static status check_bools(const cursor *c, const uint8_t *bytes, uint64_t n, const char *of) {
    for (uint64_t i = 0; i < n; i++) {
        if (bytes[i] <= 1) continue;
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: %svalue %" PRIu64 ": bool is %u, not 0 or 1", c->shard->path, of,
                         i, bytes[i]);
    }
    return STATUS_OK;
}

static status take_kind(cursor *c, gguf_kind *out, const char *what, const char *of) {
    uint32_t kind = 0;
    status rc = take(c, &kind, sizeof kind, what, of);
    if (rc != STATUS_OK) return rc;
    if (kind > GGUF_F64) {
        return error_set(c->err, STATUS_BAD_INPUT, "%s: %s%s %" PRIu32 " is not known",
                         c->shard->path, of, what, kind);
    }
    *out = (gguf_kind)kind;
    return STATUS_OK;
}

/* Pass over n values of a kind with a fixed size; *payload is where they start. */
static status take_values(cursor *c, gguf_kind kind, uint64_t n, const void **payload,
                          const char *of) {
    uint64_t n_bytes = 0;
    if (__builtin_mul_overflow(n, (uint64_t)gguf_kind_bytes(kind), &n_bytes) ||
        n_bytes > bytes_left(c)) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: %s%" PRIu64 " values of %s are more than the %" PRIu64
                         " bytes that are left (truncated?)",
                         c->shard->path, of, n, gguf_kind_name(kind), bytes_left(c));
    }
    const uint8_t *bytes = c->shard->map + c->at;
    *payload = bytes;
    c->at += n_bytes;
    return kind == GGUF_BOOL ? check_bools(c, bytes, n, of) : STATUS_OK;
}

static status take_array(cursor *c, gguf_key *key, const char *of) {
    status rc = take_kind(c, &key->item_kind, "array item type", of);
    if (rc == STATUS_OK && key->item_kind == GGUF_ARRAY) {
        return error_set(c->err, STATUS_BAD_INPUT, "%s: %san array of arrays cannot be read",
                         c->shard->path, of);
    }
    if (rc == STATUS_OK) rc = take(c, &key->n_items, sizeof key->n_items, "array count", of);
    if (rc != STATUS_OK) return rc;
    if (key->n_items > MAX_ITEMS) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: %sarray count %" PRIu64 " is more than %d", c->shard->path, of,
                         key->n_items, MAX_ITEMS);
    }
    if (key->item_kind != GGUF_STRING) {
        return take_values(c, key->item_kind, key->n_items, &key->payload, of);
    }
    if (key->n_items > bytes_left(c) / sizeof(uint64_t)) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: %sarray count %" PRIu64 " of strings is too many for the %" PRIu64
                         " bytes that are left (truncated?)",
                         c->shard->path, of, key->n_items, bytes_left(c));
    }
    key->payload = c->shard->map + c->at;
    for (uint64_t i = 0; i < key->n_items && rc == STATUS_OK; i++) {
        gguf_string item;
        rc = take_string(c, &item, MAX_STRING_BYTES, "array item", of);
    }
    return rc;
}

static status parse_key(cursor *c, gguf_key *key, size_t number) {
    char of[128];
    (void)snprintf(of, sizeof of, "key %zu: ", number);
    status rc = take_string(c, &key->name, MAX_KEY_BYTES, "name", of);
    if (rc != STATUS_OK) return rc;
    if (key->name.length == 0) {
        return error_set(c->err, STATUS_BAD_INPUT, "%s: key %zu: name is empty", c->shard->path,
                         number);
    }
    (void)snprintf(of, sizeof of, "key %s: ", gguf_label_of(key->name).text);
    rc = take_kind(c, &key->kind, "value type", of);
    if (rc != STATUS_OK) return rc;
    if (key->kind == GGUF_ARRAY) return take_array(c, key, of);
    if (key->kind == GGUF_STRING) {
        gguf_string text;
        key->payload = c->shard->map + c->at;
        return take_string(c, &text, MAX_STRING_BYTES, "value", of);
    }
    return take_values(c, key->kind, 1, &key->payload, of);
}

static status parse_keys(cursor *c, gguf_shard *shard) {
    for (size_t i = 0; i < shard->n_keys; i++) {
        status rc = parse_key(c, &shard->keys[i], i);
        if (rc != STATUS_OK) return rc;
    }
    size_t twice = 0;
    status rc = gguf_sort_names(&shard->keys_by_name, shard->keys, shard->n_keys,
                                sizeof *shard->keys, &twice, c->err);
    if (rc == STATUS_BAD_INPUT) {
        return error_set(c->err, rc, "%s: key %s stands twice", shard->path,
                         gguf_label_of(shard->keys[twice].name).text);
    }
    return rc;
}

static status read_alignment(const cursor *c, gguf_shard *shard) {
    shard->alignment = DEFAULT_ALIGNMENT;
    const gguf_key *key = gguf_search_name(shard->keys_by_name, shard->keys, shard->n_keys,
                                           sizeof *shard->keys, "general.alignment");
    if (key == NULL) return STATUS_OK;
    uint64_t value = 0;
    if (!gguf_read_u64(key, &value)) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: key general.alignment: type %s is not an unsigned integer",
                         shard->path, gguf_kind_name(key->kind));
    }
    if (value < MIN_ALIGNMENT || value > MAX_ALIGNMENT || (value & (value - 1)) != 0) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: key general.alignment: %" PRIu64
                         " is not a power of two from %d to %d",
                         shard->path, value, MIN_ALIGNMENT, MAX_ALIGNMENT);
    }
    shard->alignment = (uint32_t)value;
    return STATUS_OK;
}

/* ---- tensors ---- */

static status take_dimensions(cursor *c, gguf_tensor *t, uint64_t *n_values, const char *of) {
    status rc = take(c, &t->n_dims, sizeof t->n_dims, "n_dims", of);
    if (rc != STATUS_OK) return rc;
    if (t->n_dims > 4) {
        return error_set(c->err, STATUS_BAD_INPUT, "%s: %sn_dims %" PRIu32 " is more than 4",
                         c->shard->path, of, t->n_dims);
    }
    *n_values = 1;
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d >= t->n_dims) continue;
        rc = take(c, &t->ne[d], sizeof t->ne[d], "dimension", of);
        if (rc != STATUS_OK) return rc;
        if (t->ne[d] == 0) {
            return error_set(c->err, STATUS_BAD_INPUT, "%s: %sne[%" PRIu32 "] is 0",
                             c->shard->path, of, d);
        }
        if (__builtin_mul_overflow(*n_values, t->ne[d], n_values) || *n_values > INT64_MAX) {
            return error_set(c->err, STATUS_BAD_INPUT,
                             "%s: %sne[%" PRIu32 "] %" PRIu64
                             " makes the number of values overflow 63 bits",
                             c->shard->path, of, d, t->ne[d]);
        }
    }
    return STATUS_OK;
}

static status set_size(const cursor *c, gguf_tensor *t, uint64_t n_values, const char *of) {
    const quant_traits *traits = gguf_type_traits(t->type_id);
    if (traits->name == NULL) {
        return error_set(c->err, STATUS_BAD_INPUT, "%s: %stype %" PRIu32 " is not known",
                         c->shard->path, of, t->type_id);
    }
    if (t->ne[0] % traits->block_values != 0) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: %sne[0] %" PRIu64
                         " is not a multiple of the block of %s, %" PRIu32,
                         c->shard->path, of, t->ne[0], traits->name, traits->block_values);
    }
    if (__builtin_mul_overflow(n_values / traits->block_values, (uint64_t)traits->block_bytes,
                               &t->n_bytes)) {
        return error_set(c->err, STATUS_BAD_INPUT,
                         "%s: %ssize of %" PRIu64 " values of %s overflows 64 bits",
                         c->shard->path, of, n_values, traits->name);
    }
    return STATUS_OK;
}

static status parse_tensor(cursor *c, gguf_tensor *t, size_t number) {
    char of[128];
    (void)snprintf(of, sizeof of, "tensor %zu: ", number);
    status rc = take_string(c, &t->name, MAX_TENSOR_NAME_BYTES, "name", of);
    if (rc != STATUS_OK) return rc;
    if (t->name.length == 0 || memchr(t->name.bytes, 0, t->name.length) != NULL) {
        return error_set(c->err, STATUS_BAD_INPUT, "%s: tensor %zu: name '%s' %s",
                         c->shard->path, number, gguf_label_of(t->name).text,
                         t->name.length == 0 ? "is empty" : "has a zero byte");
    }
    (void)snprintf(of, sizeof of, "tensor %s: ", gguf_label_of(t->name).text);
    uint64_t n_values = 0;
    rc = take_dimensions(c, t, &n_values, of);
    if (rc == STATUS_OK) rc = take(c, &t->type_id, sizeof t->type_id, "type", of);
    if (rc == STATUS_OK) rc = take(c, &t->offset, sizeof t->offset, "offset", of);
    if (rc == STATUS_OK) rc = set_size(c, t, n_values, of);
    return rc;
}

/* Offset and end of every tensor against the file; the error of a file that
 * ends too early says how long it would have to be. */
static status place_tensors(const cursor *c, const gguf_shard *shard, gguf_tensor *tensors) {
    uint64_t needed = 0;
    const gguf_tensor *beyond = NULL;
    for (size_t i = 0; i < shard->n_tensors; i++) {
        gguf_tensor *t = &tensors[i];
        if (t->offset % shard->alignment != 0) {
            return error_set(
                c->err, STATUS_BAD_INPUT,
                "%s: tensor %s: offset %" PRIu64 " is not a multiple of the alignment %" PRIu32,
                shard->path, gguf_label_of(t->name).text, t->offset, shard->alignment);
        }
        uint64_t end = 0;
        if (__builtin_add_overflow(shard->data_start, t->offset, &t->file_offset) ||
            __builtin_add_overflow(t->file_offset, t->n_bytes, &end)) {
            return error_set(c->err, STATUS_BAD_INPUT,
                             "%s: tensor %s: offset %" PRIu64 " + size %" PRIu64
                             " overflows 64 bits",
                             shard->path, gguf_label_of(t->name).text, t->offset, t->n_bytes);
        }
        if (end > shard->n_bytes && beyond == NULL) beyond = t;
        if (end > needed) needed = end;
    }
    if (beyond == NULL) return STATUS_OK;
    return error_set(c->err, STATUS_BAD_INPUT,
                     "%s: tensor %s: offset %" PRIu64 " + size %" PRIu64
                     " ends after the file: it is %" PRIu64 " bytes, needs %" PRIu64
                     " (truncated?)",
                     shard->path, gguf_label_of(beyond->name).text, beyond->offset,
                     beyond->n_bytes, shard->n_bytes, needed);
}

typedef struct extent {
    uint64_t offset;
    size_t index; /* of the tensor */
} extent;

static int by_offset(const void *a, const void *b) {
    const extent *x = a;
    const extent *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static status check_overlap(const cursor *c, const gguf_shard *shard,
                            const gguf_tensor *tensors) {
    extent *order = calloc(shard->n_tensors + 1, sizeof *order);
    if (order == NULL) {
        return error_set(c->err, STATUS_NO_MEMORY, "%s: no memory to sort %zu tensors",
                         shard->path, shard->n_tensors);
    }
    for (size_t i = 0; i < shard->n_tensors; i++)
        order[i] = (extent){tensors[i].offset, i};
    qsort(order, shard->n_tensors, sizeof *order, by_offset);
    status rc = STATUS_OK;
    for (size_t i = 1; i < shard->n_tensors && rc == STATUS_OK; i++) {
        const gguf_tensor *a = &tensors[order[i - 1].index];
        const gguf_tensor *b = &tensors[order[i].index];
        if (a->offset + a->n_bytes <= b->offset) continue;
        rc = error_set(c->err, STATUS_BAD_INPUT,
                       "%s: tensor %s: offset %" PRIu64 " overlaps tensor %s, offset %" PRIu64
                       " + size %" PRIu64,
                       shard->path, gguf_label_of(b->name).text, b->offset,
                       gguf_label_of(a->name).text, a->offset, a->n_bytes);
    }
    free(order);
    return rc;
}

static status parse_tensors(cursor *c, gguf_file *file, uint32_t index, uint64_t n_tensors) {
    gguf_shard *shard = &file->shards[index];
    size_t total = file->n_tensors + (size_t)n_tensors;
    gguf_tensor *grown = realloc(file->tensors, (total + 1) * sizeof *grown);
    if (grown == NULL) {
        return error_set(c->err, STATUS_NO_MEMORY, "%s: no memory for %zu tensors", shard->path,
                         total);
    }
    file->tensors = grown;
    gguf_tensor *tensors = grown + file->n_tensors;
    memset(tensors, 0, (size_t)n_tensors * sizeof *tensors);
    shard->first_tensor = file->n_tensors;
    shard->n_tensors = (size_t)n_tensors;
    status rc = STATUS_OK;
    for (size_t i = 0; i < n_tensors && rc == STATUS_OK; i++)
        rc = parse_tensor(c, &tensors[i], i);
    if (rc != STATUS_OK) return rc;
    shard->infos_end = c->at;
    shard->data_start = (c->at + shard->alignment - 1) / shard->alignment * shard->alignment;
    rc = place_tensors(c, shard, tensors);
    if (rc == STATUS_OK) rc = check_overlap(c, shard, tensors);
    if (rc != STATUS_OK) return rc;
    for (size_t i = 0; i < n_tensors; i++) {
        tensors[i].shard = index;
        tensors[i].data = shard->map + tensors[i].file_offset;
    }
    file->n_tensors = total;
    return STATUS_OK;
}

status gguf_parse_shard(gguf_file *file, uint32_t index, error *err) {
    gguf_shard *shard = &file->shards[index];
    cursor c = {shard, 0, err};
    uint64_t n_tensors = 0;
    status rc = parse_header(&c, shard, &n_tensors);
    if (rc == STATUS_OK) rc = parse_keys(&c, shard);
    if (rc == STATUS_OK) rc = read_alignment(&c, shard);
    if (rc == STATUS_OK) rc = parse_tensors(&c, file, index, n_tensors);
    return rc;
}
