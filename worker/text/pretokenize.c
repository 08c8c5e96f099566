#include "worker/text/pretokenize.h"

#include "common/utf8.h"
#include <stdbool.h>
#include <stdint.h>
#include <utf8proc.h>

typedef enum char_class { END, LETTER, MARK, NUMBER, SYMBOL, SPACE, NEWLINE } char_class;

/* One code point of the text, or one byte that is no UTF-8. */
typedef struct unit {
    uint32_t code_point;
    size_t size;
    char_class class;
} unit;

typedef struct text_view {
    const unsigned char *bytes;
    size_t length;
    bool marks_in_words;
} text_view;

static char_class class_of_ascii(uint32_t c) {
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return LETTER;
    if (c >= '0' && c <= '9') return NUMBER;
    if (c == '\n' || c == '\r') return NEWLINE;
    if (c == ' ' || (c >= 0x09 && c <= 0x0D)) return SPACE;
    return SYMBOL;
}

static char_class class_of(const text_view *t, uint32_t c) {
    if (c < 0x80) return class_of_ascii(c);
    if (utf8_is_space(c)) return SPACE;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) return LETTER;
    if (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME) {
        return t->marks_in_words ? MARK : SYMBOL;
    }
    if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) return NUMBER;
    return SYMBOL;
}
_Static_assert(UTF8PROC_CATEGORY_LU == 1 && UTF8PROC_CATEGORY_LO == 5 &&
                   UTF8PROC_CATEGORY_MN == 6 && UTF8PROC_CATEGORY_ME == 8 &&
                   UTF8PROC_CATEGORY_ND == 9 && UTF8PROC_CATEGORY_NO == 11,
               "the categories L, M and N are ranges");

static unit unit_at(const text_view *t, size_t at) {
    if (at >= t->length) return (unit){0, 0, END};
    uint32_t c = t->bytes[at];
    if (c < 0x80) return (unit){c, 1, class_of_ascii(c)};
    int n = utf8_decode(t->bytes + at, t->length - at, &c);
    if (n <= 0) return (unit){c, 1, SYMBOL};
    return (unit){c, (size_t)n, class_of(t, c)};
}

static bool is_word(char_class c) {
    return c == LETTER || c == MARK;
}

/* 's 't 'm 'd 're 've 'll in any case: their length with the quote, or 0. */
static size_t contraction_length(const text_view *t) {
    uint32_t first = t->length > 1 ? t->bytes[1] | 0x20u : 0;
    uint32_t second = t->length > 2 ? t->bytes[2] | 0x20u : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if ((first == 'r' || first == 'v') && second == 'e') return 3;
    if (first == 'l' && second == 'l') return 3;
    return 0;
}

/* End of the run of units from `at` for which the class is one of two. */
static size_t run_end(const text_view *t, size_t at, char_class one, char_class other) {
    for (;;) {
        unit u = unit_at(t, at);
        if (u.class == END || (u.class != one && u.class != other)) return at;
        at += u.size;
    }
}

/* White space: up to its last newline; else all but the last unit, which the
 * next piece may take as its first; else all. */
static size_t space_length(const text_view *t) {
    size_t at = 0, after_newline = 0, last = 0;
    unit u = unit_at(t, 0);
    while (u.class == SPACE || u.class == NEWLINE) {
        last = at;
        at += u.size;
        if (u.class == NEWLINE) after_newline = at;
        u = unit_at(t, at);
    }
    if (after_newline > 0) return after_newline;
    return u.class != END && last > 0 ? last : at;
}

size_t pretokenize_next(pretokenizer kind, const char *text, size_t length) {
    text_view t = {(const unsigned char *)text, length, kind == PRETOKENIZER_QWEN35};
    unit first = unit_at(&t, 0);
    if (first.code_point == '\'') {
        size_t n = contraction_length(&t);
        if (n > 0) return n;
    }
    if (is_word(first.class)) return run_end(&t, first.size, LETTER, MARK);
    if (first.class == NUMBER) return first.size;
    unit second = unit_at(&t, first.size);
    if (first.class != NEWLINE && is_word(second.class)) {
        return run_end(&t, first.size, LETTER, MARK);
    }
    if (first.class == SYMBOL || (first.code_point == ' ' && second.class == SYMBOL)) {
        return run_end(&t, run_end(&t, first.size, SYMBOL, SYMBOL), NEWLINE, NEWLINE);
    }
    return space_length(&t);
}
