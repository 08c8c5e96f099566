/* wire_guard.c - a walk over the heads of a msgpack frame; the format is msgpack's spec.md. */
#include "common/wire_guard.h"

#include "common/wire.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    MAX_DEPTH = 6,                     /* three are used; a newer peer may append some */
    MAX_OBJECTS = WIRE_MAX_IDS + 8192, /* the longest list and everything around it */
    N_LEADING = 2                      /* version and type */
};

typedef struct cursor {
    const unsigned char *bytes;
    size_t length;
    size_t at;
} cursor;

/* What one msgpack head says: bytes of payload that follow, or items of an array. */
typedef struct head {
    bool is_array;
    bool is_uint;
    bool allowed; /* nil, bool, number, str, bin, array; no map, no ext */
    uint64_t size;
} head;

static bool read_big_endian(cursor *c, size_t n, uint64_t *out) {
    if (c->length - c->at < n) return false;
    *out = 0;
    for (size_t i = 0; i < n; i++)
        *out = *out << 8 | c->bytes[c->at + i];
    c->at += n;
    return true;
}

/* False when the frame ends inside the head. */
static bool read_head(cursor *c, head *out) {
    uint64_t tag;
    if (!read_big_endian(c, 1, &tag)) return false;
    *out = (head){0};
    bool map = (tag >= 0x80 && tag <= 0x8f) || tag == 0xde || tag == 0xdf;
    bool extension = (tag >= 0xc7 && tag <= 0xc9) || (tag >= 0xd4 && tag <= 0xd8);
    out->allowed = !map && !extension && tag != 0xc1; /* c1 is never used */
    out->is_uint = tag <= 0x7f || (tag >= 0xcc && tag <= 0xcf);
    out->is_array = (tag >= 0x90 && tag <= 0x9f) || tag == 0xdc || tag == 0xdd;
    if (tag >= 0x90 && tag <= 0x9f) {
        out->size = tag & 0x0f;
    } else if (tag >= 0xa0 && tag <= 0xbf) {
        out->size = tag & 0x1f;
    } else if (tag >= 0xc4 && tag <= 0xc6) { /* bin, its length in 1, 2 or 4 bytes */
        return read_big_endian(c, (size_t)1 << (tag - 0xc4), &out->size);
    } else if (tag == 0xca || tag == 0xcb) { /* float */
        out->size = tag == 0xca ? 4 : 8;
    } else if (tag >= 0xcc && tag <= 0xd3) { /* uint and int of 1, 2, 4, 8 bytes */
        out->size = (uint64_t)1 << ((tag - 0xcc) & 3);
    } else if (tag >= 0xd9 && tag <= 0xdb) { /* str */
        return read_big_endian(c, (size_t)1 << (tag - 0xd9), &out->size);
    } else if (tag == 0xdc || tag == 0xdd) { /* array */
        return read_big_endian(c, tag == 0xdc ? 2 : 4, &out->size);
    }
    return true;
}

/* The version stands first so that it can be told whatever else has changed. */
static status guard_version(cursor c, error *err) {
    head h;
    uint64_t version = 0;
    if (!read_head(&c, &h) || !h.is_array || h.size < N_LEADING) {
        return error_set(err, STATUS_BAD_INPUT,
                         "frame of %zu bytes is no array [version, type, ...]", c.length);
    }
    size_t before = c.at;
    bool whole = read_head(&c, &h) && h.is_uint;
    if (whole && h.size == 0) version = c.bytes[before];
    if (whole && h.size > 0) whole = read_big_endian(&c, (size_t)h.size, &version);
    if (!whole)
        return error_set(err, STATUS_BAD_INPUT, "frame: the version is no whole number");
    if (version != WIRE_VERSION) {
        return error_set(err, STATUS_BAD_INPUT,
                         "the peer speaks wire version %llu, this build speaks version %d",
                         (unsigned long long)version, WIRE_VERSION);
    }
    return STATUS_OK;
}

/* One item: moves past its head and payload; *n_items is what an array holds. */
static status guard_item(cursor *c, uint64_t *n_items, error *err) {
    size_t at = c->at;
    head h;
    if (!read_head(c, &h)) {
        return error_set(err, STATUS_BAD_INPUT, "frame ends inside an item at byte %zu", at);
    }
    if (!h.allowed) {
        return error_set(err, STATUS_BAD_INPUT, "frame has a map or extension at byte %zu", at);
    }
    /* An item is a byte at least, so this bounds an array's count as well. */
    if (h.size > c->length - c->at) {
        return error_set(
            err, STATUS_BAD_INPUT,
            "frame: the item at byte %zu claims a size of %llu, %zu bytes are left", at,
            (unsigned long long)h.size, c->length - c->at);
    }
    if (!h.is_array) c->at += (size_t)h.size;
    *n_items = h.is_array ? h.size : 0;
    return STATUS_OK;
}

status wire_guard(const void *bytes, size_t length, error *err) {
    if (length > WIRE_MAX_FRAME) {
        return error_set(err, STATUS_BAD_INPUT, "frame of %zu bytes, at most %d are allowed",
                         length, WIRE_MAX_FRAME);
    }
    cursor c = {.bytes = bytes, .length = length};
    status rc = guard_version(c, err);
    if (rc != STATUS_OK) return rc;
    uint64_t left[MAX_DEPTH + 1] = {1}; /* items to come at each depth */
    size_t depth = 0;
    uint64_t n_objects = 1;
    while (depth > 0 || left[0] > 0) {
        if (left[depth] == 0) {
            depth--;
            continue;
        }
        left[depth]--;
        uint64_t n_items = 0;
        rc = guard_item(&c, &n_items, err);
        if (rc != STATUS_OK) return rc;
        n_objects += n_items;
        if (n_objects > MAX_OBJECTS) {
            return error_set(err, STATUS_BAD_INPUT, "frame has over %d items", MAX_OBJECTS);
        }
        if (n_items == 0) continue;
        if (depth == MAX_DEPTH) {
            return error_set(err, STATUS_BAD_INPUT, "frame nests deeper than %d", MAX_DEPTH);
        }
        left[++depth] = n_items;
    }
    if (c.at != length) {
        return error_set(err, STATUS_BAD_INPUT, "frame has %zu bytes after the message",
                         length - c.at);
    }
    return STATUS_OK;
}
