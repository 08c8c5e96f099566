/* inspect_json.c - a GGUF file's keys and tensors as one line of JSON. */
#include "worker/inspect.h"

#include "common/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static void add_real(json_text *t, double value, int digits) {
    if (isnan(value))
        json_text_format(t, "\"nan\"");
    else if (isinf(value))
        json_text_format(t, value < 0 ? "\"-inf\"" : "\"inf\"");
    else
        json_text_format(t, "%.*g", digits, value);
}

static void add_string(json_text *t, gguf_string s) {
    json_text_string(t, s.bytes, s.length);
}

static void add_value(json_text *t, const gguf_key *key) {
    uint64_t natural;
    int64_t whole;
    double real;
    bool on;
    gguf_string text;
    if (gguf_read_string(key, &text))
        add_string(t, text);
    else if (gguf_read_bool(key, &on))
        json_text_format(t, on ? "true" : "false");
    else if (gguf_read_u64(key, &natural))
        json_text_format(t, "%" PRIu64, natural);
    else if (gguf_read_i64(key, &whole))
        json_text_format(t, "%" PRId64, whole);
    else if (gguf_read_f64(key, &real))
        add_real(t, real, key->kind == GGUF_F32 ? 9 : 17);
}

/* An item is a key of its kind, seen from the outside. */
static void add_items(json_text *t, const gguf_key *key) {
    gguf_key item = {.kind = key->item_kind};
    const uint8_t *at = key->payload;
    size_t stride = gguf_kind_bytes(key->item_kind);
    gguf_cursor cursor = {0};
    gguf_string text;
    for (uint64_t i = 0; i < key->n_items; i++) {
        if (i > 0) json_text_add(t, ",", 1);
        if (gguf_next_string(key, &cursor, &text)) {
            add_string(t, text);
        } else {
            item.payload = at + i * stride;
            add_value(t, &item);
        }
    }
}

static void add_key(json_text *t, const gguf_key *key, bool arrays) {
    add_string(t, key->name);
    json_text_format(t, ":{\"type\":\"%s\"", gguf_kind_name(key->kind));
    if (key->kind != GGUF_ARRAY) {
        json_text_format(t, ",\"value\":");
        add_value(t, key);
    } else {
        json_text_format(t, ",\"item_type\":\"%s\",\"count\":%" PRIu64,
                         gguf_kind_name(key->item_kind), key->n_items);
        if (arrays) {
            json_text_format(t, ",\"value\":[");
            add_items(t, key);
            json_text_format(t, "]");
        }
    }
    json_text_format(t, "}");
}

static void add_tensor(json_text *t, const gguf_tensor *tensor) {
    json_text_format(t, "{\"name\":");
    add_string(t, tensor->name);
    json_text_format(t, ",\"type\":\"%s\",\"type_id\":%" PRIu32 ",\"shape\":[",
                     gguf_type_traits(tensor->type_id)->name, tensor->type_id);
    for (uint32_t d = 0; d < tensor->n_dims; d++)
        json_text_format(t, "%s%" PRIu64, d == 0 ? "" : ",", tensor->ne[d]);
    json_text_format(t,
                     "],\"offset\":%" PRIu64 ",\"file_offset\":%" PRIu64 ",\"bytes\":%" PRIu64
                     ",\"shard\":%" PRIu32 "}",
                     tensor->offset, tensor->file_offset, tensor->n_bytes, tensor->shard);
}

static void add_shards(json_text *t, const gguf_file *file) {
    for (uint32_t i = 0; i < gguf_n_shards(file); i++) {
        const char *path = gguf_shard_path(file, i);
        json_text_format(t, "%s{\"path\":", i == 0 ? "" : ",");
        json_text_string(t, path, strlen(path));
        json_text_format(t, ",\"bytes\":%" PRIu64 ",\"data_start\":%" PRIu64 "}",
                         gguf_file_bytes(file, i), gguf_data_start(file, i));
    }
}

status inspect_json(const gguf_file *file, bool arrays, FILE *out, error *err) {
    json_text t = {0};
    char hash[33];
    gguf_hash(file, hash);
    json_text_format(
        &t, "{\"version\":%" PRIu32 ",\"alignment\":%" PRIu32 ",\"hash\":\"%s\",\"shards\":[",
        gguf_version(file), gguf_alignment(file), hash);
    add_shards(&t, file);
    json_text_format(&t, "],\"keys\":{");
    for (size_t i = 0; i < gguf_n_keys(file); i++) {
        if (i > 0) json_text_add(&t, ",", 1);
        add_key(&t, gguf_key_at(file, i), arrays);
    }
    json_text_format(&t, "},\"tensors\":[");
    for (size_t i = 0; i < gguf_n_tensors(file); i++) {
        if (i > 0) json_text_add(&t, ",", 1);
        add_tensor(&t, gguf_tensor_at(file, i));
    }
    json_text_format(&t, "]}\n");
    status rc = STATUS_OK;
    if (t.failed) {
        rc = error_set(err, STATUS_NO_MEMORY, "no memory for the JSON of %s",
                       gguf_shard_path(file, 0));
    } else if (fwrite(t.bytes, 1, t.length, out) != t.length || fflush(out) != 0) {
        rc = error_set_errno(err, STATUS_IO, errno, "cannot write the JSON");
    }
    json_text_release(&t);
    return rc;
}
