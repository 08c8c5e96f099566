/* wire.c - one table of fields a message; encoder and decoder both walk it.
 *
 * So a field's order, name and bound stand once.  msgpack-c does the format, but it
 * allocates what a length claims before it sees the bytes, so wire_guard() walks the frame
 * first.
 */
#include "common/wire.h"

#include "common/wire_guard.h"
#include <math.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

enum { N_LEADING = 2 }; /* version and type stand before the fields */

/* ---- the messages ---- */

typedef enum field_kind {
    FIELD_UINT,   /* uint64_t */
    FIELD_REAL,   /* double, finite; a peer may send an integer */
    FIELD_BOOL,   /* bool */
    FIELD_ENUM,   /* an enum of min..max */
    FIELD_BYTES,  /* wire_bytes of at most max */
    FIELD_IDS,    /* const int32_t * and a count */
    FIELD_HASHES, /* const uint64_t * and a count */
    FIELD_RECORD, /* a struct in place, as a nested array */
    FIELD_MODELS  /* const wire_model * and a count */
} field_kind;

typedef struct field {
    const char *name;
    field_kind kind;
    size_t offset;
    size_t count_offset; /* of a list's count */
    uint64_t min, max;   /* of a value, or of a length */
    const struct field *record;
    size_t n_record;
} field;

#define UINT(s, f)                                                                             \
    { #f, FIELD_UINT, offsetof(s, f), 0, 0, UINT64_MAX, NULL, 0 }
#define UINT_TO(s, f, max)                                                                     \
    { #f, FIELD_UINT, offsetof(s, f), 0, 0, (max), NULL, 0 }
#define REAL(s, f)                                                                             \
    { #f, FIELD_REAL, offsetof(s, f), 0, 0, 0, NULL, 0 }
#define BOOL(s, f)                                                                             \
    { #f, FIELD_BOOL, offsetof(s, f), 0, 0, 0, NULL, 0 }
#define ENUM(s, f, min, max)                                                                   \
    { #f, FIELD_ENUM, offsetof(s, f), 0, (min), (max), NULL, 0 }
#define BYTES(s, f, max)                                                                       \
    { #f, FIELD_BYTES, offsetof(s, f), 0, 0, (max), NULL, 0 }
#define LIST(s, f, kind, max, record, n)                                                       \
    { #f, (kind), offsetof(s, f), offsetof(s, n_##f), 0, (max), (record), (n) }
#define COUNT(table) (sizeof(table) / sizeof(table)[0])

_Static_assert(sizeof(wire_kind) == sizeof(unsigned) &&
                   sizeof(wire_channel) == sizeof(unsigned) &&
                   sizeof(wire_finish) == sizeof(unsigned) &&
                   sizeof(wire_worker_state) == sizeof(unsigned),
               "FIELD_ENUM is read and written as an unsigned");

static const field model_fields[] = {
    BYTES(wire_model, name, WIRE_MAX_NAME), BYTES(wire_model, hash, WIRE_MAX_NAME),
    BYTES(wire_model, arch, WIRE_MAX_NAME), BYTES(wire_model, numerics, WIRE_MAX_NAME),
    UINT(wire_model, context_tokens),
};
static const field hello_fields[] = {
    BYTES(wire_hello, node, WIRE_MAX_NAME),
    UINT(wire_hello, instance),
    BYTES(wire_hello, build, WIRE_MAX_TEXT),
    BYTES(wire_hello, profile, WIRE_MAX_NAME),
    BYTES(wire_hello, backend, WIRE_MAX_NAME),
    BYTES(wire_hello, gpu, WIRE_MAX_TEXT),
    UINT(wire_hello, vram_mib),
    UINT(wire_hello, ram_mib),
    UINT(wire_hello, slots),
    UINT(wire_hello, experts_total),
    UINT(wire_hello, threads),
    UINT(wire_hello, max_sequences),
    UINT(wire_hello, credit),
    REAL(wire_hello, prior_prefill_tok_per_s),
    REAL(wire_hello, prior_decode_tok_per_s),
    LIST(wire_hello, models, FIELD_MODELS, WIRE_MAX_MODELS, model_fields, COUNT(model_fields)),
};
static const field beat_fields[] = {
    UINT(wire_beat, number),
    UINT(wire_beat, instance),
    ENUM(wire_beat, state, WIRE_LOADING, WIRE_FAILED),
    BYTES(wire_beat, reason, WIRE_MAX_TEXT),
    UINT_TO(wire_beat, loading_permille, 1000),
    UINT(wire_beat, engine_age_ms),
    UINT(wire_beat, running),
    UINT(wire_beat, waiting),
    UINT(wire_beat, free_sequences),
    UINT(wire_beat, kv_pages_total),
    UINT(wire_beat, kv_pages_free),
    UINT(wire_beat, credit),
    REAL(wire_beat, hit_rate),
    REAL(wire_beat, misses_per_token),
    REAL(wire_beat, prefill_tok_per_s),
    REAL(wire_beat, decode_tok_per_s),
    REAL(wire_beat, temperature_c),
    REAL(wire_beat, power_w),
    UINT(wire_beat, vram_used_mib),
    UINT(wire_beat, vram_total_mib),
    UINT(wire_beat, ram_used_mib),
    UINT(wire_beat, rtt_us),
    UINT(wire_beat, loading_left_ms),
    UINT(wire_beat, gpu_use_percent),
    UINT(wire_beat, unloaded_models),
    UINT_TO(wire_beat, loading_model, WIRE_MAX_MODELS),
    UINT(wire_beat, prefix_tokens),
    UINT(wire_beat, prefix_snapshots),
    UINT(wire_beat, prefix_mib),
    UINT(wire_beat, prefix_asked_tokens),
    UINT(wire_beat, prefix_pages),
    UINT(wire_beat, prefix_disk_mib),
    UINT(wire_beat, prefix_hits),
    UINT(wire_beat, prefix_hits_in_place),
    UINT(wire_beat, prefix_reads),
    UINT(wire_beat, displaced),
    UINT(wire_beat, guesses),
    UINT(wire_beat, guesses_true),
};
static const field tokens_fields[] = {
    UINT(wire_tokens, request),
    UINT(wire_tokens, epoch),
    UINT(wire_tokens, number),
    UINT_TO(wire_tokens, choice, WIRE_MAX_CHOICES - 1),
    ENUM(wire_tokens, channel, WIRE_CONTENT, WIRE_TOOL_CALL),
    LIST(wire_tokens, ids, FIELD_IDS, WIRE_MAX_IDS, NULL, 0),
    BYTES(wire_tokens, text, WIRE_MAX_TOKENS_TEXT),
    UINT(wire_tokens, flags),
    ENUM(wire_tokens, finish, WIRE_FINISH_NONE, WIRE_FINISH_TOOL_CALLS),
    BYTES(wire_tokens, logprobs, WIRE_MAX_TOKENS_TEXT),
    UINT(wire_tokens, draws),
    UINT(wire_tokens, prompt_tokens),
    UINT(wire_tokens, cached_tokens),
    UINT_TO(wire_tokens, call, WIRE_MAX_CALLS - 1),
    BYTES(wire_tokens, call_name, WIRE_MAX_NAME),
};
static const field done_fields[] = {
    UINT(wire_done, request),
    UINT(wire_done, epoch),
    UINT(wire_done, number),
    UINT(wire_done, prompt_tokens),
    UINT(wire_done, cached_tokens),
    UINT(wire_done, completion_tokens),
    UINT(wire_done, reasoning_tokens),
    REAL(wire_done, queue_ms),
    REAL(wire_done, prefill_ms),
    REAL(wire_done, decode_ms),
    REAL(wire_done, hit_rate),
    REAL(wire_done, misses_per_token),
    LIST(wire_done, boundaries, FIELD_HASHES, WIRE_MAX_BOUNDARIES, NULL, 0),
    BYTES(wire_done, result, WIRE_MAX_BODY),
    LIST(wire_done, lost, FIELD_HASHES, WIRE_MAX_BOUNDARIES, NULL, 0),
};
static const field error_fields[] = {
    UINT(wire_error, request),
    UINT(wire_error, epoch),
    UINT_TO(wire_error, http_status, 999),
    BYTES(wire_error, code, WIRE_MAX_NAME),
    BYTES(wire_error, param, WIRE_MAX_NAME),
    BYTES(wire_error, text, WIRE_MAX_TEXT),
    BOOL(wire_error, retryable),
};
static const field bye_fields[] = {
    UINT(wire_bye, instance),
    BYTES(wire_bye, reason, WIRE_MAX_TEXT),
};
static const field welcome_fields[] = {
    BYTES(wire_welcome, coordinator, WIRE_MAX_NAME),
    UINT(wire_welcome, instance),
    BYTES(wire_welcome, build, WIRE_MAX_TEXT),
    UINT(wire_welcome, beat_interval_ms),
};
static const field resume_fields[] = {
    LIST(wire_resume, ids, FIELD_IDS, WIRE_MAX_IDS, NULL, 0),
    ENUM(wire_resume, channel, WIRE_CONTENT, WIRE_TOOL_CALL),
    UINT(wire_resume, reasoning_spent),
    UINT(wire_resume, answer_spent),
    UINT(wire_resume, sampler_counter),
};
static const field submit_fields[] = {
    UINT(wire_submit, request),
    UINT(wire_submit, epoch),
    ENUM(wire_submit, kind, WIRE_CHAT, WIRE_DETOKENIZE),
    BYTES(wire_submit, request_id, WIRE_MAX_NAME),
    BYTES(wire_submit, model, WIRE_MAX_NAME),
    BYTES(wire_submit, body, WIRE_MAX_BODY),
    UINT(wire_submit, deadline_ms),
    UINT_TO(wire_submit, priority, 1),
    {"resume", FIELD_RECORD, offsetof(wire_submit, resume), 0, 0, 0, resume_fields,
     COUNT(resume_fields)},
    UINT(wire_submit, seed),
    LIST(wire_submit, boundaries, FIELD_HASHES, WIRE_MAX_BOUNDARIES, NULL, 0),
};
static const field cancel_fields[] = {
    UINT(wire_cancel, request),
    UINT(wire_cancel, epoch),
};
static const field drain_fields[] = {
    UINT(wire_drain, limit_ms),
    BOOL(wire_drain, resume),
};
static const field ack_fields[] = {
    UINT(wire_ack, number),
};

typedef struct layout {
    wire_type type;
    const char *name;
    size_t offset; /* of the member of wire_message */
    const field *fields;
    size_t n_fields;
    size_t n_appended; /* of them, those that a peer of an older build does not send */
} layout;

#define LAYOUT(type, text, member)                                                             \
    { type, text, offsetof(wire_message, member), member##_fields, COUNT(member##_fields), 0 }
#define LAYOUT_APPENDED(type, text, member, n)                                                 \
    { type, text, offsetof(wire_message, member), member##_fields, COUNT(member##_fields), (n) }
static const layout layouts[] = {
    LAYOUT(WIRE_HELLO, "HELLO", hello),
    LAYOUT_APPENDED(WIRE_BEAT, "BEAT", beat, 16),
    LAYOUT_APPENDED(WIRE_TOKENS, "TOKENS", tokens, 5),
    LAYOUT_APPENDED(WIRE_DONE, "DONE", done, 1),
    LAYOUT(WIRE_ERROR, "ERROR", error),
    LAYOUT(WIRE_BYE, "BYE", bye),
    LAYOUT(WIRE_WELCOME, "WELCOME", welcome),
    LAYOUT_APPENDED(WIRE_SUBMIT, "SUBMIT", submit, 2),
    LAYOUT(WIRE_CANCEL, "CANCEL", cancel),
    LAYOUT(WIRE_DRAIN, "DRAIN", drain),
    LAYOUT(WIRE_ACK, "ACK", ack),
};

static const layout *find_layout(uint64_t type) {
    for (size_t i = 0; i < COUNT(layouts); i++) {
        if ((uint64_t)layouts[i].type == type) return &layouts[i];
    }
    return NULL;
}

const char *wire_type_name(wire_type type) {
    const layout *found = find_layout((uint64_t)type);
    return found == NULL ? "unknown" : found->name;
}

/* ---- encode ---- */

void wire_frame_release(wire_frame *frame) {
    free(frame->bytes);
    *frame = (wire_frame){0};
}

/* The packer's writer: 0, or -1 when there is no memory or the frame is over its bound. */
static int frame_append(void *context, const char *bytes, size_t length) {
    wire_frame *frame = context;
    if (length > WIRE_MAX_FRAME - frame->length) return -1;
    size_t need = frame->length + length;
    if (need > frame->capacity) {
        size_t capacity = frame->capacity == 0 ? 512 : frame->capacity;
        while (capacity < need)
            capacity *= 2;
        char *grown = realloc(frame->bytes, capacity);
        if (grown == NULL) return -1;
        frame->bytes = grown;
        frame->capacity = capacity;
    }
    if (length > 0) memcpy(frame->bytes + frame->length, bytes, length);
    frame->length = need;
    return 0;
}

typedef struct encoder {
    msgpack_packer packer;
    wire_frame *frame;
    const char *message; /* name, for errors */
    error *err;
} encoder;

static status encode_fields(encoder *e, const field *fields, size_t n, const char *base);

static status over_bound(const char *message, const field *f, uint64_t value, const char *unit,
                         error *err) {
    return error_set(err, STATUS_BAD_INPUT, "%s.%s: %llu%s, allowed are %llu to %llu", message,
                     f->name, (unsigned long long)value, unit, (unsigned long long)f->min,
                     (unsigned long long)f->max);
}

static status frame_full(const encoder *e, const field *f) {
    return error_set(e->err, STATUS_NO_MEMORY, "%s.%s: no memory, or a frame over %d bytes",
                     e->message, f->name, WIRE_MAX_FRAME);
}

static status encode_record(encoder *e, const field *f, const char *base) {
    if (msgpack_pack_array(&e->packer, f->n_record) != 0) return frame_full(e, f);
    return encode_fields(e, f->record, f->n_record, base);
}

static status encode_list(encoder *e, const field *f, const char *base) {
    size_t n = *(const size_t *)(const void *)(base + f->count_offset);
    const void *items = *(const void *const *)(const void *)(base + f->offset);
    if (n > f->max) return over_bound(e->message, f, n, " items", e->err);
    int failed = msgpack_pack_array(&e->packer, n);
    for (size_t i = 0; i < n && failed == 0; i++) {
        if (f->kind == FIELD_IDS) {
            int32_t id = ((const int32_t *)items)[i];
            if (id < 0) {
                return error_set(e->err, STATUS_BAD_INPUT,
                                 "%s.%s: item %zu is %d, not a token id", e->message, f->name,
                                 i, id);
            }
            failed = msgpack_pack_int32(&e->packer, id);
        } else if (f->kind == FIELD_HASHES) {
            failed = msgpack_pack_uint64(&e->packer, ((const uint64_t *)items)[i]);
        } else {
            const wire_model *model = (const wire_model *)items + i;
            status rc = encode_record(e, f, (const char *)model);
            if (rc != STATUS_OK) return rc;
        }
    }
    return failed == 0 ? STATUS_OK : frame_full(e, f);
}

static status encode_bytes(encoder *e, const field *f, const wire_bytes *value) {
    if (value->length > f->max)
        return over_bound(e->message, f, value->length, " bytes", e->err);
    int failed = msgpack_pack_str(&e->packer, value->length);
    if (failed == 0) failed = msgpack_pack_str_body(&e->packer, value->bytes, value->length);
    return failed == 0 ? STATUS_OK : frame_full(e, f);
}

static status encode_field(encoder *e, const field *f, const char *base) {
    const void *at = base + f->offset;
    int failed = 0;
    switch (f->kind) {
    case FIELD_UINT: {
        uint64_t value = *(const uint64_t *)at;
        if (value > f->max) return over_bound(e->message, f, value, "", e->err);
        failed = msgpack_pack_uint64(&e->packer, value);
        break;
    }
    case FIELD_ENUM: {
        unsigned value = *(const unsigned *)at;
        if (value < f->min || value > f->max)
            return over_bound(e->message, f, value, "", e->err);
        failed = msgpack_pack_unsigned_int(&e->packer, value);
        break;
    }
    case FIELD_REAL: {
        double value = *(const double *)at;
        if (!isfinite(value)) {
            return error_set(e->err, STATUS_BAD_INPUT, "%s.%s: %f is not finite", e->message,
                             f->name, value);
        }
        failed = msgpack_pack_double(&e->packer, value);
        break;
    }
    case FIELD_BOOL:
        failed =
            *(const bool *)at ? msgpack_pack_true(&e->packer) : msgpack_pack_false(&e->packer);
        break;
    case FIELD_BYTES:
        return encode_bytes(e, f, at);
    case FIELD_RECORD:
        return encode_record(e, f, at);
    case FIELD_IDS:
    case FIELD_HASHES:
    case FIELD_MODELS:
        return encode_list(e, f, base);
    }
    return failed == 0 ? STATUS_OK : frame_full(e, f);
}

static status encode_fields(encoder *e, const field *fields, size_t n, const char *base) {
    for (size_t i = 0; i < n; i++) {
        status rc = encode_field(e, &fields[i], base);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

status wire_encode(wire_frame *frame, const wire_message *message, error *err) {
    const layout *l = find_layout((uint64_t)message->type);
    if (l == NULL) {
        return error_set(err, STATUS_BAD_INPUT, "message type %u is unknown",
                         (unsigned)message->type);
    }
    encoder e = {.frame = frame, .message = l->name, .err = err};
    msgpack_packer_init(&e.packer, frame, frame_append);
    frame->length = 0;
    int failed = msgpack_pack_array(&e.packer, N_LEADING + l->n_fields);
    if (failed == 0) failed = msgpack_pack_unsigned_int(&e.packer, WIRE_VERSION);
    if (failed == 0) failed = msgpack_pack_unsigned_int(&e.packer, (unsigned)l->type);
    if (failed != 0) return frame_full(&e, l->fields);
    return encode_fields(&e, l->fields, l->n_fields, (const char *)message + l->offset);
}

/* ---- decode ---- */

typedef struct decoder {
    msgpack_zone *zone;
    const char *message; /* name, for errors */
    error *err;
} decoder;

static status decode_fields(decoder *d, const field *fields, size_t n,
                            const msgpack_object *items, size_t n_items, char *base);

static status wrong_kind(const decoder *d, const field *f, const char *wanted) {
    return error_set(d->err, STATUS_BAD_INPUT, "%s.%s: is no %s", d->message, f->name, wanted);
}

static bool object_real(const msgpack_object *o, double *out) {
    if (o->type == MSGPACK_OBJECT_FLOAT64 || o->type == MSGPACK_OBJECT_FLOAT32) {
        *out = o->via.f64;
    } else if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        *out = (double)o->via.u64;
    } else if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER) {
        *out = (double)o->via.i64;
    } else {
        return false;
    }
    return isfinite(*out);
}

static bool object_bytes(const msgpack_object *o, wire_bytes *out) {
    if (o->type == MSGPACK_OBJECT_STR) {
        *out = wire_text(o->via.str.ptr, o->via.str.size);
    } else if (o->type == MSGPACK_OBJECT_BIN) {
        *out = wire_text(o->via.bin.ptr, o->via.bin.size);
    } else {
        return false;
    }
    return true;
}

static size_t list_item_size(field_kind kind) {
    if (kind == FIELD_IDS) return sizeof(int32_t);
    return kind == FIELD_HASHES ? sizeof(uint64_t) : sizeof(wire_model);
}

static status decode_list_item(decoder *d, const field *f, const msgpack_object *o, char *out) {
    if (f->kind == FIELD_MODELS) {
        if (o->type != MSGPACK_OBJECT_ARRAY) return wrong_kind(d, f, "list of records");
        return decode_fields(d, f->record, f->n_record, o->via.array.ptr, o->via.array.size,
                             out);
    }
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return wrong_kind(d, f, "list of whole numbers");
    if (f->kind == FIELD_HASHES) {
        *(uint64_t *)(void *)out = o->via.u64;
        return STATUS_OK;
    }
    if (o->via.u64 > INT32_MAX) {
        return error_set(d->err, STATUS_BAD_INPUT, "%s.%s: %llu is no token id", d->message,
                         f->name, (unsigned long long)o->via.u64);
    }
    *(int32_t *)(void *)out = (int32_t)o->via.u64;
    return STATUS_OK;
}

static status decode_list(decoder *d, const field *f, const msgpack_object *o, char *base) {
    if (o->type != MSGPACK_OBJECT_ARRAY) return wrong_kind(d, f, "list");
    size_t n = o->via.array.size, size = list_item_size(f->kind);
    if (n > f->max) return over_bound(d->message, f, n, " items", d->err);
    if (n == 0) return STATUS_OK;
    char *items = msgpack_zone_malloc(d->zone, n * size);
    if (items == NULL) {
        return error_set(d->err, STATUS_NO_MEMORY, "%s.%s: no memory for %zu items", d->message,
                         f->name, n);
    }
    memset(items, 0, n * size);
    for (size_t i = 0; i < n; i++) {
        status rc = decode_list_item(d, f, &o->via.array.ptr[i], items + i * size);
        if (rc != STATUS_OK) return rc;
    }
    *(void **)(void *)(base + f->offset) = items;
    *(size_t *)(void *)(base + f->count_offset) = n;
    return STATUS_OK;
}

static status decode_field(decoder *d, const field *f, const msgpack_object *o, char *base) {
    void *at = base + f->offset;
    switch (f->kind) {
    case FIELD_UINT:
    case FIELD_ENUM:
        if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return wrong_kind(d, f, "whole number");
        if (o->via.u64 < f->min || o->via.u64 > f->max) {
            return over_bound(d->message, f, o->via.u64, "", d->err);
        }
        if (f->kind == FIELD_UINT) {
            *(uint64_t *)at = o->via.u64;
        } else {
            *(unsigned *)at = (unsigned)o->via.u64;
        }
        return STATUS_OK;
    case FIELD_REAL:
        return object_real(o, at) ? STATUS_OK : wrong_kind(d, f, "finite number");
    case FIELD_BOOL:
        if (o->type != MSGPACK_OBJECT_BOOLEAN) return wrong_kind(d, f, "boolean");
        *(bool *)at = o->via.boolean;
        return STATUS_OK;
    case FIELD_BYTES: {
        wire_bytes *value = at;
        if (!object_bytes(o, value)) return wrong_kind(d, f, "text");
        if (value->length > f->max)
            return over_bound(d->message, f, value->length, " bytes", d->err);
        if (value->length == 0) value->bytes = NULL;
        return STATUS_OK;
    }
    case FIELD_RECORD:
        if (o->type != MSGPACK_OBJECT_ARRAY) return wrong_kind(d, f, "record");
        return decode_fields(d, f->record, f->n_record, o->via.array.ptr, o->via.array.size,
                             at);
    case FIELD_IDS:
    case FIELD_HASHES:
    case FIELD_MODELS:
        return decode_list(d, f, o, base);
    }
    return wrong_kind(d, f, "known kind");
}

static status decode_fields(decoder *d, const field *fields, size_t n,
                            const msgpack_object *items, size_t n_items, char *base) {
    if (n_items < n) {
        return error_set(d->err, STATUS_BAD_INPUT, "%s.%s: is missing, %zu of %zu fields came",
                         d->message, fields[n_items].name, n_items, n);
    }
    for (size_t i = 0; i < n; i++) {
        status rc = decode_field(d, &fields[i], &items[i], base);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

static status decode_message(wire_message *out, msgpack_zone *zone, const msgpack_object *root,
                             error *err) {
    const msgpack_object *items = root->via.array.ptr; /* wire_guard() saw two at least */
    const layout *l = NULL;
    if (items[1].type == MSGPACK_OBJECT_POSITIVE_INTEGER) l = find_layout(items[1].via.u64);
    if (l == NULL) {
        bool number = items[1].type == MSGPACK_OBJECT_POSITIVE_INTEGER;
        return error_set(err, STATUS_BAD_INPUT, "message type %llu is unknown",
                         number ? (unsigned long long)items[1].via.u64 : 0ull);
    }
    decoder d = {.zone = zone, .message = l->name, .err = err};
    out->type = l->type;
    size_t n_items = root->via.array.size - N_LEADING, n_fields = l->n_fields;
    size_t n_least = l->n_fields - l->n_appended;
    if (n_items < n_fields) n_fields = n_items > n_least ? n_items : n_least;
    return decode_fields(&d, l->fields, n_fields, items + N_LEADING, n_items,
                         (char *)out + l->offset);
}

status wire_decode(wire_message *out, const void *bytes, size_t length, error *err) {
    memset(out, 0, sizeof *out);
    status rc = wire_guard(bytes, length, err);
    if (rc != STATUS_OK) return rc;
    msgpack_unpacked unpacked;
    msgpack_unpacked_init(&unpacked);
    size_t used = 0;
    msgpack_unpack_return got = msgpack_unpack_next(&unpacked, bytes, length, &used);
    if (got == MSGPACK_UNPACK_NOMEM_ERROR) {
        rc =
            error_set(err, STATUS_NO_MEMORY, "frame of %zu bytes: no memory to decode", length);
    } else if (got != MSGPACK_UNPACK_SUCCESS || used != length || unpacked.zone == NULL) {
        rc = error_set(err, STATUS_BAD_INPUT, "frame of %zu bytes is no msgpack array", length);
    } else {
        rc = decode_message(out, unpacked.zone, &unpacked.data, err);
    }
    if (rc == STATUS_OK) {
        out->zone = msgpack_unpacked_release_zone(&unpacked);
    } else {
        memset(out, 0, sizeof *out);
    }
    msgpack_unpacked_destroy(&unpacked);
    return rc;
}

void wire_release(wire_message *message) {
    if (message->zone != NULL) msgpack_zone_free(message->zone);
    message->zone = NULL;
}
