#include "worker/text/utf8_stream.h"

#include "common/utf8.h"
#include <string.h>

static void add_replacement(json_text *out) {
    json_text_add(out, UTF8_REPLACEMENT, UTF8_REPLACEMENT_SIZE);
}

/* Add bytes to what is held, one by one, until it is decided.  The number taken. */
static size_t complete_held(utf8_stream *s, const unsigned char *bytes, size_t length,
                            json_text *out) {
    size_t at = 0;
    while (s->n_held > 0 && at < length) {
        uint32_t code_point;
        s->held[s->n_held] = bytes[at];
        int n = utf8_decode(s->held, s->n_held + 1, &code_point);
        if (n < 0) { /* the new byte does not belong to it and begins anew */
            add_replacement(out);
            s->n_held = 0;
            break;
        }
        at++;
        s->n_held++;
        if (n > 0) {
            json_text_add(out, (const char *)s->held, s->n_held);
            s->n_held = 0;
        }
    }
    return at;
}

void utf8_stream_push(utf8_stream *s, const char *bytes, size_t length, json_text *out) {
    const unsigned char *p = (const unsigned char *)bytes;
    size_t at = complete_held(s, p, length, out);
    size_t good = at; /* where the characters begin that are not written yet */
    while (at < length) {
        uint32_t code_point;
        int n = utf8_decode(p + at, length - at, &code_point);
        if (n > 0) {
            at += (size_t)n;
            continue;
        }
        json_text_add(out, bytes + good, at - good);
        if (n == 0) {
            s->n_held = length - at;
            memcpy(s->held, p + at, s->n_held);
            return;
        }
        add_replacement(out);
        at += (size_t)-n;
        good = at;
    }
    json_text_add(out, bytes + good, at - good);
}

void utf8_stream_finish(utf8_stream *s, json_text *out) {
    if (s->n_held > 0) add_replacement(out);
    s->n_held = 0;
}
