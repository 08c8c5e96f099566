/* fuzz_tool_call.c - what a model writes, cut anywhere.  First byte: how long the pieces are,
 * whether one call is all, and whether the model ended it; the rest: the text.  The pieces
 * are the same however it is cut, the arguments of a complete call are a JSON object, and
 * those of an open one are none. */
#include "worker/text/tool_call.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_json[] = "[{\"function\":{\"name\":\"f\",\"parameters\":{"
                                 "\"properties\":{\"s\":{\"type\":\"string\"},"
                                 "\"i\":{\"type\":\"integer\"},\"b\":{\"type\":[\"boolean\","
                                 "\"null\"]},\"o\":{\"$ref\":\"#/d\"}},"
                                 "\"d\":{\"$ref\":\"#/d\"}}}},{\"function\":{\"name\":\"g\"}}]";

typedef struct heard {
    json_text all;       /* kinds and bytes, in order */
    json_text arguments; /* of the call under way */
    tool_piece_kind last;
    uint32_t n_begun;
} heard;

/* Complete arguments parse. */
static void end_call(heard *h, bool complete) {
    cJSON *value = NULL;
    if (h->n_begun == 0 || h->arguments.failed) return;
    status rc = json_parse(&value, h->arguments.bytes, h->arguments.length, "fuzz", NULL);
    if (complete && rc != STATUS_OK && rc != STATUS_NO_MEMORY) abort();
    if (rc == STATUS_OK && (!complete || !cJSON_IsObject(value))) abort();
    cJSON_Delete(value);
}

static void hear(heard *h, const tool_call *t) {
    static const char marks[] = {'\1', '\2', '\3'};
    for (size_t i = 0; i < t->n_pieces; i++) {
        const tool_piece *p = &t->pieces[i];
        if (p->length == 0 || p->at + p->length > t->out.length) abort();
        const char *bytes = t->out.bytes + p->at;
        if (p->kind == TOOL_BEGIN) {
            end_call(h, true);
            if (p->call != h->n_begun++) abort();
            json_text_clear(&h->arguments);
            json_text_add(&h->arguments, "", 0);
        }
        if (p->kind == TOOL_ARGUMENTS) {
            if (p->call + 1 != h->n_begun) abort();
            json_text_add(&h->arguments, bytes, p->length);
        }
        if (h->all.length == 0 || p->kind != h->last || p->kind == TOOL_BEGIN)
            json_text_add(&h->all, &marks[p->kind], 1);
        h->last = p->kind;
        json_text_add(&h->all, bytes, p->length);
    }
}

static heard listen(const cJSON *tools, const char *text, size_t length, size_t every,
                    bool single, bool natural) {
    heard h = {0};
    tool_call t;
    tool_call_init(&t, tools, single);
    json_text_add(&h.all, "", 0);
    for (size_t at = 0; at < length;) {
        size_t n = length - at < every ? length - at : every;
        while (at + n < length && ((unsigned char)text[at + n] & 0xC0) == 0x80)
            n++;
        tool_call_clear(&t);
        tool_call_push(&t, text + at, n);
        hear(&h, &t);
        at += n;
    }
    tool_call_clear(&t);
    tool_call_finish(&t, natural);
    hear(&h, &t);
    if (!t.failed) end_call(&h, !t.open);
    if (t.open != (t.n_calls + 1 == h.n_begun) || (t.open && !t.cut)) abort();
    tool_call_release(&t);
    return h;
}

static void release(heard *h) {
    json_text_release(&h->all);
    json_text_release(&h->arguments);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t bad = 0;
    if (size < 1 || !json_utf8_valid((const char *)data + 1, size - 1, &bad)) return 0;
    if (memchr(data + 1, 0, size - 1) != NULL) return 0; /* no token has it, and no JSON */
    cJSON *tools = cJSON_Parse(tools_json);
    if (tools == NULL) return 0;
    const char *text = (const char *)data + 1;
    bool single = (data[0] & 64) != 0, natural = (data[0] & 128) != 0;
    heard whole = listen(tools, text, size - 1, size, single, natural);
    heard parts = listen(tools, text, size - 1, 1u + (data[0] & 15u), single, natural);
    if (!whole.all.failed && !parts.all.failed &&
        (whole.all.length != parts.all.length ||
         memcmp(whole.all.bytes, parts.all.bytes, whole.all.length) != 0)) {
        abort();
    }
    release(&whole);
    release(&parts);
    cJSON_Delete(tools);
    return 0;
}
