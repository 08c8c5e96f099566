/* gguf_values.c - values of keys, items of arrays, names of types and of errors. */
#include "common/gguf_parts.h"

#include <stdio.h>
#include <string.h>

size_t gguf_kind_bytes(gguf_kind kind) {
    switch (kind) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL:
        return 1;
    case GGUF_U16:
    case GGUF_I16:
        return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32:
        return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64:
        return 8;
    case GGUF_STRING:
    case GGUF_ARRAY:
        break;
    }
    return 0;
}

const char *gguf_kind_name(gguf_kind kind) {
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
}

/* An integer of the file: its value modulo 2^64 and whether that is negative. */
typedef struct wide {
    uint64_t bits;
    bool negative;
} wide;

static wide wide_signed(int64_t value) {
    return (wide){(uint64_t)value, value < 0};
}

#define LOAD(type, from)                                                                       \
    type value;                                                                                \
    memcpy(&value, (from), sizeof value)

static bool load_integer(gguf_kind kind, const uint8_t *from, wide *out) {
    switch (kind) {
    case GGUF_BOOL:
    case GGUF_U8:
        *out = (wide){*from, false};
        return true;
    case GGUF_I8: {
        LOAD(int8_t, from);
        *out = wide_signed(value);
        return true;
    }
    case GGUF_U16: {
        LOAD(uint16_t, from);
        *out = (wide){value, false};
        return true;
    }
    case GGUF_I16: {
        LOAD(int16_t, from);
        *out = wide_signed(value);
        return true;
    }
    case GGUF_U32: {
        LOAD(uint32_t, from);
        *out = (wide){value, false};
        return true;
    }
    case GGUF_I32: {
        LOAD(int32_t, from);
        *out = wide_signed(value);
        return true;
    }
    case GGUF_U64: {
        LOAD(uint64_t, from);
        *out = (wide){value, false};
        return true;
    }
    case GGUF_I64: {
        LOAD(int64_t, from);
        *out = wide_signed(value);
        return true;
    }
    case GGUF_F32:
    case GGUF_F64:
    case GGUF_STRING:
    case GGUF_ARRAY:
        break;
    }
    return false;
}

static bool load_real(gguf_kind kind, const uint8_t *from, double *out) {
    if (kind == GGUF_F32) {
        LOAD(float, from);
        *out = (double)value;
        return true;
    }
    if (kind == GGUF_F64) {
        memcpy(out, from, sizeof *out);
        return true;
    }
    wide integer;
    if (kind == GGUF_BOOL || !load_integer(kind, from, &integer)) return false;
    *out = integer.negative ? (double)(int64_t)integer.bits : (double)integer.bits;
    return true;
}

static bool wide_to_i64(wide value, int64_t *out) {
    if (!value.negative && value.bits > (uint64_t)INT64_MAX) return false;
    *out = (int64_t)value.bits;
    return true;
}

bool gguf_read_u64(const gguf_key *key, uint64_t *out) {
    wide value;
    if (key == NULL || key->kind == GGUF_BOOL) return false;
    if (!load_integer(key->kind, key->payload, &value) || value.negative) return false;
    *out = value.bits;
    return true;
}

bool gguf_read_i64(const gguf_key *key, int64_t *out) {
    wide value;
    if (key == NULL || key->kind == GGUF_BOOL) return false;
    return load_integer(key->kind, key->payload, &value) && wide_to_i64(value, out);
}

bool gguf_read_f64(const gguf_key *key, double *out) {
    return key != NULL && load_real(key->kind, key->payload, out);
}

bool gguf_read_bool(const gguf_key *key, bool *out) {
    if (key == NULL || key->kind != GGUF_BOOL) return false;
    *out = *(const uint8_t *)key->payload != 0;
    return true;
}

static gguf_string load_string(const uint8_t *from) {
    uint64_t length;
    memcpy(&length, from, sizeof length);
    return (gguf_string){(const char *)from + sizeof length, (size_t)length};
}

bool gguf_read_string(const gguf_key *key, gguf_string *out) {
    if (key == NULL || key->kind != GGUF_STRING) return false;
    *out = load_string(key->payload);
    return true;
}

static const uint8_t *item_at(const gguf_key *key, uint64_t index) {
    if (key == NULL || key->kind != GGUF_ARRAY || index >= key->n_items) return NULL;
    size_t n_bytes = gguf_kind_bytes(key->item_kind);
    return n_bytes == 0 ? NULL : (const uint8_t *)key->payload + index * n_bytes;
}

bool gguf_item_i64(const gguf_key *key, uint64_t index, int64_t *out) {
    const uint8_t *item = item_at(key, index);
    wide value;
    return item != NULL && load_integer(key->item_kind, item, &value) &&
           wide_to_i64(value, out);
}

bool gguf_item_f64(const gguf_key *key, uint64_t index, double *out) {
    const uint8_t *item = item_at(key, index);
    return item != NULL && load_real(key->item_kind, item, out);
}

bool gguf_next_string(const gguf_key *key, gguf_cursor *cursor, gguf_string *out) {
    if (key == NULL || key->kind != GGUF_ARRAY || key->item_kind != GGUF_STRING) return false;
    if (cursor->index >= key->n_items) return false;
    *out = load_string((const uint8_t *)key->payload + cursor->at);
    cursor->at += sizeof(uint64_t) + out->length;
    cursor->index++;
    return true;
}

/* Types that the format knows and this build does not compute with: sizes are
 * needed all the same, to check and to show such a file. */
static const struct {
    uint32_t id;
    quant_traits traits;
} foreign_types[] = {
    {9, {"Q8_1", 32, 36}},     {15, {"Q8_K", 256, 292}},   {16, {"IQ2_XXS", 256, 66}},
    {17, {"IQ2_XS", 256, 74}}, {18, {"IQ3_XXS", 256, 98}}, {19, {"IQ1_S", 256, 50}},
    {21, {"IQ3_S", 256, 110}}, {22, {"IQ2_S", 256, 82}},   {24, {"I8", 1, 1}},
    {25, {"I16", 1, 2}},       {26, {"I32", 1, 4}},        {27, {"I64", 1, 8}},
    {28, {"F64", 1, 8}},       {29, {"IQ1_M", 256, 56}},   {34, {"TQ1_0", 256, 54}},
    {35, {"TQ2_0", 256, 66}},
};

const quant_traits *gguf_type_traits(uint32_t type_id) {
    const quant_traits *own = quant_traits_of(type_id);
    if (own->name != NULL) return own;
    for (size_t i = 0; i < sizeof foreign_types / sizeof foreign_types[0]; i++) {
        if (foreign_types[i].id == type_id) return &foreign_types[i].traits;
    }
    return own;
}

gguf_label gguf_label_of(gguf_string name) {
    gguf_label label;
    size_t n = 0;
    for (; n < name.length && n < sizeof label.text - 4; n++) {
        char c = name.bytes[n];
        label.text[n] = (c >= ' ' && c <= '~') ? c : '?';
    }
    (void)snprintf(label.text + n, sizeof label.text - n, "%s", n < name.length ? "..." : "");
    return label;
}
