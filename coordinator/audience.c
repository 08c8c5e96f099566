#include "coordinator/audience.h"

#include <stdlib.h>
#include <string.h>

typedef struct listener {
    struct listener *next;
    audience *a;
    http_exchange *x; /* NULL: it has gone */
} listener;

static bool is_empty(const audience *a) {
    for (const listener *l = a->first; l != NULL; l = l->next) {
        if (l->x != NULL) return false;
    }
    return true;
}

static void sweep(audience *a) {
    for (listener **at = &a->first; *at != NULL;) {
        listener *l = *at;
        if (l->x != NULL) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free(l);
    }
}

/* The end of a walk; false: everybody has gone and so has the owner. */
static bool leave(audience *a) {
    if (--a->busy > 0) return true;
    sweep(a);
    if (a->first != NULL) return true;
    a->on_left(a->context);
    return false;
}

void audience_hold(audience *a) {
    a->busy++;
}

bool audience_let(audience *a) {
    return leave(a);
}

static void on_close(void *context, bool complete) {
    listener *l = context;
    audience *a = l->a;
    l->x = NULL;
    a->on_gone(a->context, complete);
    if (a->busy > 0 || !is_empty(a)) {
        if (a->busy == 0) sweep(a);
        return;
    }
    sweep(a);
    a->on_left(a->context);
}

void audience_release(audience *a) {
    sweep(a);
    json_text_release(&a->kept);
}

bool audience_join(audience *a, http_exchange *x) {
    if (a->begun && (!a->keeps || a->overflowed || a->kept.failed)) return false;
    listener *l = calloc(1, sizeof *l);
    if (l == NULL) return false;
    *l = (listener){a->first, a, x};
    a->first = l;
    http_on_close(x, l, on_close);
    if (!a->begun) return true;
    a->on_headers(a->context, x);
    http_stream_begin(x);
    json_text_add(http_stream_out(x), a->kept.bytes, a->kept.length);
    (void)http_stream_flush(x); /* the others are there still, so a stays */
    return true;
}

static void keep(audience *a, const char *bytes, size_t n) {
    if (!a->keeps || a->overflowed) return;
    if (n > AUDIENCE_KEEP_BYTES - a->kept.length) {
        a->overflowed = true;
        json_text_release(&a->kept);
        return;
    }
    json_text_add(&a->kept, bytes, n);
}

bool audience_write(audience *a, const char *bytes, size_t n) {
    bool begins = !a->begun;
    a->begun = true;
    keep(a, bytes, n);
    a->busy++;
    for (listener *l = a->first; l != NULL; l = l->next) {
        if (l->x == NULL) continue;
        if (begins) {
            a->on_headers(a->context, l->x);
            http_stream_begin(l->x);
        }
        json_text_add(http_stream_out(l->x), bytes, n);
        (void)http_stream_flush(l->x);
    }
    return leave(a);
}

bool audience_end(audience *a) {
    a->busy++;
    for (listener *l = a->first; l != NULL; l = l->next) {
        if (l->x != NULL) http_stream_end(l->x);
    }
    return leave(a);
}

bool audience_abort(audience *a) {
    a->busy++;
    for (listener *l = a->first; l != NULL; l = l->next) {
        if (l->x != NULL) http_abort(l->x);
    }
    return leave(a);
}

bool audience_reply(audience *a, const char *content_type, const char *body, size_t n) {
    a->busy++;
    for (listener *l = a->first; l != NULL; l = l->next) {
        if (l->x == NULL) continue;
        a->on_headers(a->context, l->x);
        http_reply(l->x, 200, content_type, body, n);
    }
    return leave(a);
}

bool audience_error(audience *a, unsigned http_status, const char *code, const char *param,
                    unsigned retry_after_s, const char *message) {
    a->busy++;
    for (listener *l = a->first; l != NULL; l = l->next) {
        if (l->x != NULL)
            http_reply_error(l->x, http_status, code, param, retry_after_s, message);
    }
    return leave(a);
}
