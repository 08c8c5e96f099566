#include "worker/text/prompt.h"

#include <stdlib.h>
#include <string.h>

void prompt_release(prompt *p) {
    json_text_release(&p->text);
    free(p->spans);
    free(p->bounds);
    *p = (prompt){0};
}

/* One more item in an array that doubles; false when there is no memory. */
static bool reserve_one(void **items, size_t *capacity, size_t n, size_t item_bytes) {
    if (n < *capacity) return true;
    size_t wanted = *capacity == 0 ? 16 : 2 * *capacity;
    void *grown = realloc(*items, wanted * item_bytes);
    if (grown == NULL) return false;
    *items = grown;
    *capacity = wanted;
    return true;
}

void prompt_add(prompt *p, const char *bytes, size_t length, bool trusted) {
    if (length == 0 || p->text.failed) return;
    json_text_add(&p->text, bytes, length);
    if (p->n_spans > 0 && p->spans[p->n_spans - 1].trusted == trusted) {
        p->spans[p->n_spans - 1].end = p->text.length;
        return;
    }
    void *items = p->spans;
    if (!reserve_one(&items, &p->cap_spans, p->n_spans, sizeof *p->spans)) {
        p->text.failed = true;
        return;
    }
    p->spans = items;
    p->spans[p->n_spans++] = (prompt_span){p->text.length, trusted};
}

void prompt_add_literal(prompt *p, const char *words) {
    prompt_add(p, words, strlen(words), true);
}

void prompt_add_part(prompt *p, const prompt *source, size_t from, size_t to) {
    if (source->text.failed) p->text.failed = true;
    for (size_t s = 0; s < source->n_spans && from < to; s++) {
        size_t end = source->spans[s].end < to ? source->spans[s].end : to;
        if (end <= from) continue;
        prompt_add(p, source->text.bytes + from, end - from, source->spans[s].trusted);
        from = end;
    }
}

void prompt_add_bound(prompt *p, prompt_bound_kind kind) {
    if (p->text.failed) return;
    void *items = p->bounds;
    if (!reserve_one(&items, &p->cap_bounds, p->n_bounds, sizeof *p->bounds)) {
        p->text.failed = true;
        return;
    }
    p->bounds = items;
    p->bounds[p->n_bounds++] = (prompt_bound){p->text.length, kind, p->n_messages, 0};
}
