#include "worker/result.h"

#include "common/json.h"

static bool asks(const job *j, const char *name) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(j->body, name));
}

/* Some tokens are a part of a character: those are given as bytes. */
static void add_piece(json_text *out, const tokenizer *vocab, int32_t id) {
    size_t n = 0, bad_at;
    const char *bytes = tokenizer_bytes(vocab, id, &n);
    json_text_format(out, "{\"id\":%d,\"piece\":", id);
    if (json_utf8_valid(bytes, n, &bad_at)) {
        json_text_string(out, bytes, n);
    } else {
        for (size_t i = 0; i < n; i++)
            json_text_format(out, "%c%u", i > 0 ? ',' : '[', (unsigned)(unsigned char)bytes[i]);
        json_text_add(out, "]", 1);
    }
    json_text_add(out, "}", 1);
}

static void write_tokens(json_text *out, const job *j, const tokenizer *vocab,
                         uint32_t n_context, const token_list *ids) {
    bool pieces = asks(j, "with_pieces");
    json_text_format(out, "{\"tokens\":[");
    for (size_t i = 0; i < ids->length; i++) {
        if (i > 0) json_text_add(out, ",", 1);
        if (pieces)
            add_piece(out, vocab, ids->ids[i]);
        else
            json_text_format(out, "%d", ids->ids[i]);
    }
    json_text_format(out, "],\"count\":%zu,\"max_model_len\":%u", ids->length, n_context);
    if (asks(j, "return_token_strs")) {
        json_text_format(out, ",\"token_strs\":[");
        for (size_t i = 0; i < ids->length; i++) {
            size_t n = 0;
            const char *bytes = tokenizer_bytes(vocab, ids->ids[i], &n);
            if (i > 0) json_text_add(out, ",", 1);
            json_text_string(out, bytes, n);
        }
        json_text_add(out, "]", 1);
    }
    json_text_add(out, "}", 1);
}

static void write_text(json_text *out, const tokenizer *vocab, const token_list *ids) {
    json_text text = {0};
    for (size_t i = 0; i < ids->length; i++) {
        size_t n = 0;
        const char *bytes = tokenizer_bytes(vocab, ids->ids[i], &n);
        json_text_add(&text, bytes, n);
    }
    json_text_format(out, "{\"content\":");
    json_text_string(out, text.length > 0 ? text.bytes : "", text.length);
    json_text_format(out, ",\"prompt\":");
    json_text_string(out, text.length > 0 ? text.bytes : "", text.length);
    json_text_add(out, "}", 1);
    if (text.failed) out->failed = true;
    json_text_release(&text);
}

char *result_write(const job *j, const tokenizer *vocab, uint32_t n_context,
                   const token_list *ids) {
    json_text out = {0};
    if (j->kind == WIRE_COUNT)
        json_text_format(&out, "{\"tokens\":%zu}", ids->length);
    else if (j->kind == WIRE_DETOKENIZE)
        write_text(&out, vocab, ids);
    else
        write_tokens(&out, j, vocab, n_context, ids);
    if (!out.failed) return out.bytes;
    json_text_release(&out);
    return NULL;
}
