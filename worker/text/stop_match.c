#include "worker/text/stop_match.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* One stop string as a Knuth-Morris-Pratt automaton. */
typedef struct pattern {
    char *bytes;
    uint16_t *borders; /* borders[i]: the longest proper prefix of bytes[0..i] that ends it */
    size_t length;
    size_t n_matched; /* bytes of it that end the stream */
} pattern;

struct stop_match {
    size_t n_patterns;
    int matched; /* index, -1: none yet */
    pattern patterns[];
};
_Static_assert(STOP_MATCH_MAX_BYTES <= UINT16_MAX, "borders are 16 bits");

static void find_borders(pattern *p) {
    size_t k = 0;
    p->borders[0] = 0;
    for (size_t i = 1; i < p->length; i++) {
        while (k > 0 && p->bytes[i] != p->bytes[k])
            k = p->borders[k - 1];
        if (p->bytes[i] == p->bytes[k]) k++;
        p->borders[i] = (uint16_t)k;
    }
}

static status copy_string(pattern *p, const stop_string *string, size_t index, error *err) {
    if (string->length == 0 || string->length > STOP_MATCH_MAX_BYTES) {
        return error_set(err, STATUS_BAD_INPUT, "stop[%zu]: %zu bytes, 1 to %d are allowed",
                         index, string->length, STOP_MATCH_MAX_BYTES);
    }
    p->bytes = malloc(string->length);
    p->borders = malloc(string->length * sizeof *p->borders);
    if (p->bytes == NULL || p->borders == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "no memory for stop strings");
    }
    memcpy(p->bytes, string->bytes, string->length);
    p->length = string->length;
    find_borders(p);
    return STATUS_OK;
}

status stop_match_open(stop_match **out, const stop_string *strings, size_t n, error *err) {
    *out = NULL;
    if (n > STOP_MATCH_MAX_STRINGS) {
        return error_set(err, STATUS_BAD_INPUT, "stop: %zu strings, at most %d are allowed", n,
                         STOP_MATCH_MAX_STRINGS);
    }
    stop_match *m = calloc(1, sizeof *m + n * sizeof m->patterns[0]);
    if (m == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for stop strings");
    m->n_patterns = n;
    m->matched = -1;
    for (size_t i = 0; i < n; i++) {
        status rc = copy_string(&m->patterns[i], &strings[i], i, err);
        if (rc != STATUS_OK) {
            stop_match_close(m);
            return rc;
        }
    }
    *out = m;
    return STATUS_OK;
}

void stop_match_close(stop_match *m) {
    if (m == NULL) return;
    for (size_t i = 0; i < m->n_patterns; i++) {
        free(m->patterns[i].bytes);
        free(m->patterns[i].borders);
    }
    free(m);
}

void stop_match_reset(stop_match *m) {
    m->matched = -1;
    for (size_t i = 0; i < m->n_patterns; i++)
        m->patterns[i].n_matched = 0;
}

/* The pattern of which most is matched: what it has is what must be held back. */
static const pattern *longest(const stop_match *m) {
    const pattern *best = NULL;
    for (size_t i = 0; i < m->n_patterns; i++) {
        const pattern *p = &m->patterns[i];
        if (best == NULL || p->n_matched > best->n_matched) best = p;
    }
    return best;
}

static void advance(pattern *p, char byte) {
    while (p->n_matched > 0 && p->bytes[p->n_matched] != byte) {
        p->n_matched = p->borders[p->n_matched - 1];
    }
    if (p->bytes[p->n_matched] == byte) p->n_matched++;
}

/* Take one byte; the index of the longest string it completes, or -1. */
static int step(stop_match *m, char byte) {
    int done = -1;
    for (size_t i = 0; i < m->n_patterns; i++) {
        pattern *p = &m->patterns[i];
        advance(p, byte);
        if (p->n_matched < p->length) continue;
        if (done < 0 || p->length > m->patterns[done].length) done = (int)i;
    }
    return done;
}

/* What is held back equals the beginning of the longest match, so it is not
 * stored: the stream's undecided bytes are `held` of that pattern, then the new ones. */
int stop_match_push(stop_match *m, const char *bytes, size_t length, json_text *out) {
    if (m->matched >= 0) return m->matched;
    const pattern *before = longest(m);
    size_t n_held = before != NULL ? before->n_matched : 0;
    size_t n_taken = 0;
    while (n_taken < length && m->matched < 0)
        m->matched = step(m, bytes[n_taken++]);
    size_t n_keep = 0; /* bytes at the end that are not shown */
    if (m->matched >= 0) {
        n_keep = m->patterns[m->matched].length;
    } else if (before != NULL) {
        n_keep = longest(m)->n_matched;
    }
    size_t n_show = n_held + n_taken - n_keep;
    size_t n_old = n_show < n_held ? n_show : n_held;
    if (n_old > 0) json_text_add(out, before->bytes, n_old);
    json_text_add(out, bytes, n_show - n_old);
    return m->matched;
}

void stop_match_finish(stop_match *m, json_text *out) {
    const pattern *p = longest(m);
    if (m->matched < 0 && p != NULL) json_text_add(out, p->bytes, p->n_matched);
    stop_match_reset(m);
}
