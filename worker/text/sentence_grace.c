#include "worker/text/sentence_grace.h"

#include <string.h>

/* Ends of sentences beside . ! ?: the ellipsis, the double marks, and those of CJK (full and
 * half width), Arabic, Urdu, Devanagari, Armenian, Ethiopic, Khmer, Burmese and Tibetan. */
static const uint32_t ends[] = {
    0x2026, 0x203C, 0x203D, 0x2047, 0x2048, 0x2049, /* general punctuation */
    0x3002, 0xFF01, 0xFF0E, 0xFF1F, 0xFF61,         /* CJK */
    0x061F, 0x06D4,                                 /* Arabic, Urdu */
    0x0964, 0x0965,                                 /* Devanagari */
    0x0589, 0x1362, 0x1367, 0x17D4, 0x104B, 0x0F0D,
};

/* What may stand between a sentence's end and the next sentence. */
static const uint32_t closers[] = {
    '"',    '\'',   ')',    ']',    '}',    '*',    '_',    '`',    0x00BB,
    0x2019, 0x201D, 0x203A, 0x300D, 0x300F, 0x3011, 0x300B, 0xFF09, 0xFF02,
};

static bool is_one_of(uint32_t c, const uint32_t *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (list[i] == c) return true;
    }
    return false;
}

static bool is_end(uint32_t c) {
    return c == '.' || c == '!' || c == '?' || is_one_of(c, ends, sizeof ends / sizeof ends[0]);
}

static bool is_closer(uint32_t c) {
    return is_one_of(c, closers, sizeof closers / sizeof closers[0]);
}

static bool is_letter(uint32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
}

void sentence_grace_init(sentence_grace *g) {
    memset(g, 0, sizeof *g);
}

/* "3." of 3.14, and "e." of e.g.: more may come. */
static bool is_doubtful(const sentence_grace *g, uint32_t c) {
    if (c != '.') return false;
    uint32_t before = g->previous[0], earlier = g->previous[1];
    if (before >= '0' && before <= '9') return true;
    return is_letter(before) && before < 0x80 && !is_letter(earlier);
}

static void take_character(sentence_grace *g, uint32_t c) {
    if (c == '\n') {
        /* A full stop that was doubtful is none at the end of its line. */
        bool stop = is_end(g->previous[0]) && !g->line_ended;
        g->ended = g->ended || stop || (g->line_ended && g->any);
        g->line_ended = true;
    } else if (c == ' ' || c == '\t' || c == '\r') {
        g->ended = g->ended && !g->line_ended; /* the next line's indentation is its text */
    } else {
        bool goes_on = is_closer(c) && g->ended && !g->line_ended;
        g->ended = goes_on || (is_end(c) && !is_doubtful(g, c));
        g->line_ended = false;
        g->any = true;
    }
    g->previous[2] = g->previous[1];
    g->previous[1] = g->previous[0];
    g->previous[0] = c;
}

static size_t width_of(unsigned char first) {
    if (first < 0x80) return 1;
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

void sentence_grace_push(sentence_grace *g, const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        g->held[g->n_held++] = (unsigned char)bytes[i];
        if (g->n_held < width_of(g->held[0])) continue;
        uint32_t c = g->held[0];
        if (g->n_held > 1) c &= 0xFFU >> (g->n_held + 1);
        for (size_t k = 1; k < g->n_held; k++)
            c = c << 6 | (g->held[k] & 0x3FU);
        g->n_held = 0;
        take_character(g, c);
    }
}

bool sentence_grace_may_end(const sentence_grace *g, bool in_fence) {
    if (g->n_held > 0) return false;
    return in_fence ? g->previous[0] == '\n' : g->ended;
}
