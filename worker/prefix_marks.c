#include "worker/prefix_marks.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = PREFIX_BLOCK_TOKENS, MAX_ENDS = 4, LEAST_GAP = 256 };

void prefix_marks_release(prefix_marks *m) {
    free(m->ends);
    memset(m, 0, sizeof *m);
}

static uint32_t distance(uint32_t a, uint32_t b) {
    return a < b ? b - a : a - b;
}

/* Only where no other stop is nearer than gap. */
static bool add_stop(prefix_marks *m, size_t place, uint32_t gap) {
    uint32_t position = (uint32_t)(place / BLOCK * BLOCK), at = m->n_stops;
    if (position == 0 || m->n_stops == SEQUENCE_MAX_STOPS) return false;
    for (uint32_t i = 0; i < m->n_stops; i++) {
        uint32_t away = distance(m->stops[i], position);
        if (away == 0 || away < gap) return false;
    }
    while (at > 0 && m->stops[at - 1] > position)
        at--;
    memmove(m->stops + at + 1, m->stops + at, (m->n_stops - at) * sizeof *m->stops);
    m->stops[at] = position;
    m->n_stops++;
    return true;
}

static void add_regular(prefix_marks *m, size_t n_tokens, const prefix_rule *rule) {
    if (rule->every_tokens == 0 || rule->max_regular == 0) return;
    size_t every = rule->every_tokens, widest = n_tokens / rule->max_regular + 1;
    if (every < widest) every = widest;
    every = (every + BLOCK - 1) / BLOCK * BLOCK;
    for (size_t at = every; at < n_tokens; at += every)
        (void)add_stop(m, at, LEAST_GAP);
}

void prefix_marks_of_text(prefix_marks *m, size_t n_tokens, const prefix_rule *rule) {
    if (!rule->on) return;
    (void)add_stop(m, n_tokens, 0);
    add_regular(m, n_tokens, rule);
}

/* Where what bound i ends can be told from another text first. */
static size_t place_of(const prompt *p, size_t i) {
    bool answered = i + 1 < p->n_bounds && p->bounds[i].kind == PROMPT_BOUND_MESSAGE &&
                    p->bounds[i + 1].kind == PROMPT_BOUND_ASSISTANT;
    return p->bounds[answered ? i + 1 : i].n_tokens;
}

static void add_messages(prefix_marks *m, const prompt *p) {
    int n = 0;
    for (size_t i = p->n_bounds; i-- > 0 && n < MAX_ENDS;) {
        if (p->bounds[i].kind != PROMPT_BOUND_MESSAGE) continue;
        (void)add_stop(m, place_of(p, i), LEAST_GAP);
        n++;
    }
}

/* Ends of messages whose place is known, with their names. */
static status name_ends(prefix_marks *m, const prompt *p, const uint64_t *names, size_t n_names,
                        error *err) {
    if (n_names == 0 || n_names > p->n_messages) return STATUS_OK;
    m->ends = malloc(n_names * sizeof *m->ends);
    if (m->ends == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for a prompt");
    size_t n_unnamed = p->n_messages - n_names;
    for (size_t i = 0; i < p->n_bounds; i++) {
        const prompt_bound *b = &p->bounds[i];
        if (b->kind != PROMPT_BOUND_MESSAGE || b->n_messages <= n_unnamed) continue;
        if (m->n_ends == n_names) break;
        m->ends[m->n_ends++] =
            (prefix_end){(uint32_t)place_of(p, i), names[b->n_messages - n_unnamed - 1]};
    }
    return STATUS_OK;
}

status prefix_marks_of_chat(prefix_marks *m, const prompt *p, size_t n_tokens,
                            const prefix_rule *rule, const uint64_t *names, size_t n_names,
                            error *err) {
    if (!rule->on || p->n_bounds == 0) return STATUS_OK;
    (void)add_stop(m, p->bounds[p->n_bounds - 1].n_tokens, 0);
    (void)add_stop(m, place_of(p, 0), 0);
    add_messages(m, p);
    add_regular(m, n_tokens, rule);
    return name_ends(m, p, names, n_names, err);
}
