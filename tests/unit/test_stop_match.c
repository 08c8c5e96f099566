/* Tests of worker/text/stop_match: what is shown, what is held, and which string ends it. */
#include "worker/text/stop_match.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_STOPS = 4 };

static stop_match *open_match(const char *const *stops) {
    stop_string strings[MAX_STOPS];
    size_t n = 0;
    for (; n < MAX_STOPS && stops[n] != NULL; n++) {
        strings[n] = (stop_string){stops[n], strlen(stops[n])};
    }
    stop_match *m = NULL;
    error err = {0};
    if (stop_match_open(&m, strings, n, &err) != STATUS_OK) fail_msg("%s", err.text);
    return m;
}

typedef struct stop_case {
    const char *stops[MAX_STOPS + 1];
    const char *text, *shown;
    int matched;
} stop_case;

static const stop_case cases[] = {
    {{"STOP"}, "go STOP on", "go ", 0},
    {{"STOP"}, "go STO", "go STO", -1},
    {{"STOP"}, "STSTOP", "ST", 0},
    {{"aab"}, "aaaab!", "aa", 0},
    {{"abab", "bab"}, "xabab", "x", 0}, /* ending together: the longest */
    {{"abcd", "bc"}, "abcd", "a", 1},   /* the one that ends first */
    {{"\n\n", "\nUser:"}, "hi\nUser:", "hi", 1},
    {{"\n\n", "\nUser:"}, "hi\nUse\n\n", "hi\nUse", 0},
    {{"ababac"}, "abababac", "ab", 0},
    {{"aabaaac"}, "aabaaabaaac", "aaba", 0}, /* a border found through a border */
    {{"é"}, "caf\xC3\xA9", "caf", 0},
    {{NULL}, "anything", "anything", -1},
    {{"x"}, "", "", -1},
    {{"aaaa"}, "aaabaaa", "aaabaaa", -1},
};

static void stop_match_is_the_same_however_it_is_cut(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const stop_case *c = &cases[i];
        size_t length = strlen(c->text);
        for (size_t step = 1; step <= length + 1; step++) {
            stop_match *m = open_match(c->stops);
            json_text out = {0};
            int matched = -1;
            json_text_add(&out, "", 0);
            for (size_t at = 0; at < length; at += step) {
                size_t n = length - at < step ? length - at : step;
                matched = stop_match_push(m, c->text + at, n, &out);
            }
            assert_int_equal(matched, c->matched);
            stop_match_finish(m, &out);
            assert_string_equal(out.bytes, c->shown);
            json_text_release(&out);
            stop_match_close(m);
        }
    }
}

static void stop_match_holds_back_no_more_than_it_must(void **state) {
    (void)state;
    stop_match *m = open_match((const char *const[]){"\nUser:", NULL});
    json_text out = {0};
    (void)stop_match_push(m, "hello", 5, &out);
    assert_string_equal(out.bytes, "hello");
    (void)stop_match_push(m, "\nUs", 3, &out);
    assert_string_equal(out.bytes, "hello");
    (void)stop_match_push(m, "\nU", 2, &out);
    assert_string_equal(out.bytes, "hello\nUs");
    (void)stop_match_push(m, "x", 1, &out);
    assert_string_equal(out.bytes, "hello\nUs\nUx");
    json_text_release(&out);
    stop_match_close(m);
}

static void stop_match_shows_nothing_after_a_match(void **state) {
    (void)state;
    stop_match *m = open_match((const char *const[]){"b", NULL});
    json_text out = {0};
    assert_int_equal(stop_match_push(m, "abc", 3, &out), 0);
    assert_int_equal(stop_match_push(m, "def", 3, &out), 0);
    assert_string_equal(out.bytes, "a");
    stop_match_reset(m);
    assert_int_equal(stop_match_push(m, "xb", 2, &out), 0);
    assert_string_equal(out.bytes, "ax");
    json_text_release(&out);
    stop_match_close(m);
}

static void stop_match_refuses_empty_long_and_many_strings(void **state) {
    (void)state;
    static char long_bytes[STOP_MATCH_MAX_BYTES + 1];
    stop_string strings[STOP_MATCH_MAX_STRINGS + 1];
    stop_match *m = NULL;
    error err = {0};
    for (size_t i = 0; i <= STOP_MATCH_MAX_STRINGS; i++)
        strings[i] = (stop_string){"x", 1};
    assert_int_equal(stop_match_open(&m, strings, STOP_MATCH_MAX_STRINGS + 1, &err),
                     STATUS_BAD_INPUT);
    assert_string_equal(err.text, "stop: 33 strings, at most 32 are allowed");
    strings[1].length = 0;
    assert_int_equal(stop_match_open(&m, strings, 2, &err), STATUS_BAD_INPUT);
    assert_string_equal(err.text, "stop[1]: 0 bytes, 1 to 4096 are allowed");
    strings[0] = (stop_string){long_bytes, sizeof long_bytes};
    assert_int_equal(stop_match_open(&m, strings, 1, &err), STATUS_BAD_INPUT);
    assert_null(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_match_is_the_same_however_it_is_cut),
        cmocka_unit_test(stop_match_holds_back_no_more_than_it_must),
        cmocka_unit_test(stop_match_shows_nothing_after_a_match),
        cmocka_unit_test(stop_match_refuses_empty_long_and_many_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
