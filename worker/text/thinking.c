#include "worker/text/thinking.h"

#include <string.h>

static const char close_tag[] = "</think>";
enum { CLOSE_TAG_BYTES = sizeof close_tag - 1 };

void thinking_init(thinking *t, bool starts_inside, int32_t open_id, int32_t close_id) {
    *t = (thinking){.open_id = open_id,
                    .close_id = close_id,
                    .inside = starts_inside,
                    .strip = starts_inside};
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void add_reasoning(thinking *t, char c, json_text *out) {
    if (c == '\n' && t->strip) {
        t->strip = false; /* one newline after the tag belongs to the tag */
        return;
    }
    t->strip = false;
    if (c == '\n') {
        t->n_newlines++;
        return;
    }
    for (; t->n_newlines > 0; t->n_newlines--)
        json_text_add(out, "\n", 1);
    json_text_add(out, &c, 1);
    if (!is_blank(c)) t->seen_text = true;
}

static void add_matched(thinking *t, json_text *out) {
    for (size_t i = 0; i < t->n_matched; i++)
        add_reasoning(t, close_tag[i], out);
    t->n_matched = 0;
}

static void enter(thinking *t, bool inside) {
    t->inside = inside;
    t->seen_text = false;
    t->strip = true;
    t->n_newlines = 0;
    t->n_matched = 0;
}

/* Only the first byte of the tag is a '<', so a mismatch restarts at this byte. */
static void push_reasoning(thinking *t, char c, json_text *reasoning) {
    if (t->n_matched > 0 && c != close_tag[t->n_matched]) add_matched(t, reasoning);
    if (c != close_tag[t->n_matched]) {
        add_reasoning(t, c, reasoning);
    } else if (++t->n_matched == CLOSE_TAG_BYTES) {
        enter(t, false);
    }
}

static void push_content(thinking *t, const char *bytes, size_t length, json_text *content) {
    size_t at = 0;
    while (t->strip && at < length && bytes[at] == '\n')
        at++;
    if (at == length) return;
    t->strip = false;
    json_text_add(content, bytes + at, length - at);
    for (; at < length && !t->seen_text; at++)
        t->seen_text = !is_blank(bytes[at]);
}

/* A tag that changes the channel, or says again what is so already.  False: it is text. */
static bool take_tag(thinking *t, int32_t id, json_text *reasoning) {
    if (id < 0 || (id != t->open_id && id != t->close_id)) return false;
    if (t->inside && id == t->close_id) {
        add_matched(t, reasoning);
        enter(t, false);
        return true;
    }
    if (t->seen_text || t->n_matched > 0) return false;
    enter(t, id == t->open_id);
    return true;
}

void thinking_push(thinking *t, int32_t id, const char *bytes, size_t length,
                   json_text *reasoning, json_text *content) {
    if (take_tag(t, id, reasoning)) return;
    size_t at = 0;
    while (t->inside && at < length)
        push_reasoning(t, bytes[at++], reasoning);
    if (!t->inside) push_content(t, bytes + at, length - at, content);
}

bool thinking_spills(const thinking *t, int32_t id, const char *bytes, size_t length) {
    size_t n = t->n_matched, at = 0;
    if (!t->inside || (id >= 0 && (id == t->open_id || id == t->close_id))) return false;
    for (; at < length && n < CLOSE_TAG_BYTES; at++)
        n = bytes[at] == close_tag[n] ? n + 1 : bytes[at] == close_tag[0];
    while (at < length && bytes[at] == '\n')
        at++;
    return n == CLOSE_TAG_BYTES && at < length;
}

void thinking_finish(thinking *t, json_text *reasoning) {
    if (t->inside) add_matched(t, reasoning);
}
