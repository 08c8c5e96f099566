/* Tests of worker/text/pretokenize: the pieces of known texts, and that nothing is lost. */
#include "worker/text/pretokenize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Join the pieces with '|'. */
static void assert_pieces(pretokenizer kind, const char *text, const char *joined) {
    char out[256];
    size_t n_out = 0, length = strlen(text);
    for (size_t at = 0; at < length;) {
        size_t n = pretokenize_next(kind, text + at, length - at);
        assert_in_range(n, 1, length - at);
        if (at > 0) out[n_out++] = '|';
        memcpy(out + n_out, text + at, n);
        n_out += n;
        at += n;
    }
    out[n_out] = '\0';
    assert_string_equal(out, joined);
}

static void pretokenize_cuts_as_the_regular_expression(void **state) {
    (void)state;
    static const struct {
        const char *text, *pieces;
    } cases[] = {
        {"Hello world", "Hello| world"},
        {"I'll we'VE 'Re '' x's", "I|'ll| we|'VE| '|Re| ''| x|'s"},
        {"foo  bar   baz", "foo| | bar|  | baz"},
        {" \t x", " \t| x"},
        {"a\n\n b\n", "a|\n\n| b|\n"},
        {"12345 3.14", "1|2|3|4|5| |3|.|1|4"},
        {"x=1;\n\n\ny", "x|=|1|;\n\n\n|y"},
        {"  \n  z", "  \n| | z"},
        {"नमस्ते दुनिया", "नमस्ते| दुनिया"},
        {"\xCC\x81"
         "abc",
         "\xCC\x81"
         "abc"},
        {"🚀🚀 go!", "🚀🚀| go|!"},
        {"don't!\r\n", "don|'t|!\r\n"},
        {"trailing   ", "trailing|   "},
        {"C++ 2nd_item", "C|++| |2|nd|_item"},
        {"  (x)", " | (|x|)"},
        {"a\xC2\x85"
         "b",
         "a|\xC2\x85"
         "b"},
        {"'sam 'tis", "'s|am| '|tis"},
        {"'S'Ll'rE", "'S|'Ll|'rE"},
        {"'l'r'", "'l|'r|'"},
        {"\r\n\t\nx", "\r\n\t\n|x"},
        {"a \xE3\x80\x80"
         "b",
         "a| |\xE3\x80\x80"
         "b"},
        {"\xE2\x80\x8B"
         "a",
         "\xE2\x80\x8B"
         "a"}, /* U+200B is no white space */
        {"x \xE2\x80\x8B!", "x| \xE2\x80\x8B!"},
        {"½²٣", "½|²|٣"},
        {"\n", "\n"},
        {" ", " "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_pieces(PRETOKENIZER_QWEN35, cases[i].text, cases[i].pieces);
    }
}

static void pretokenize_qwen2_has_marks_among_symbols(void **state) {
    (void)state;
    assert_pieces(PRETOKENIZER_QWEN2, "नमस्ते", "नमस|्त|े");
    assert_pieces(PRETOKENIZER_QWEN2, "Hello 'world' 12", "Hello| '|world|'| |1|2");
    assert_pieces(PRETOKENIZER_QWEN2, "e\xCC\x81 ", "e|\xCC\x81| ");
}

static void pretokenize_takes_bad_bytes_as_symbols(void **state) {
    (void)state;
    assert_pieces(PRETOKENIZER_QWEN35, "a\xFF\xFE!b", "a|\xFF\xFE!|b");
    assert_pieces(PRETOKENIZER_QWEN35, "a \xE2\x82", "a| \xE2\x82");
    assert_pieces(PRETOKENIZER_QWEN35, "\xED\xA0\x80x", "\xED\xA0\x80|x");
    assert_pieces(PRETOKENIZER_QWEN35, "\xFFx", "\xFFx");
}

static void pretokenize_never_stalls_or_overruns(void **state) {
    (void)state;
    static const char alphabet[] = " \t\n\r'sSreEl1_.\xC2\xA0\xE3\x80\x80\xCC\x81\xFF";
    uint32_t seed = 1;
    for (int round = 0; round < 2000; round++) {
        size_t length = 1 + (size_t)round % 40;
        char *text = malloc(length); /* exactly, so that a sanitizer sees an overrun */
        assert_non_null(text);
        for (size_t i = 0; i < length; i++) {
            seed = seed * 1664525u + 1013904223u;
            text[i] = alphabet[(seed >> 16) % (sizeof alphabet - 1)];
        }
        for (size_t at = 0; at < length;) {
            size_t n = pretokenize_next((pretokenizer)(round & 1), text + at, length - at);
            assert_in_range(n, 1, length - at);
            at += n;
        }
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pretokenize_cuts_as_the_regular_expression),
        cmocka_unit_test(pretokenize_qwen2_has_marks_among_symbols),
        cmocka_unit_test(pretokenize_takes_bad_bytes_as_symbols),
        cmocka_unit_test(pretokenize_never_stalls_or_overruns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
