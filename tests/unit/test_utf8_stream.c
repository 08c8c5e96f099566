/* Tests of worker/text/utf8_stream: whole characters, wherever the bytes are cut. */
#include "worker/text/utf8_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BAD "\xEF\xBF\xBD"

/* Push text in pieces of `step` bytes; what comes out altogether. */
static char *stream(const char *text, size_t length, size_t step) {
    utf8_stream s = {0};
    json_text out = {0};
    json_text_add(&out, "", 0);
    for (size_t at = 0; at < length; at += step) {
        size_t n = length - at < step ? length - at : step;
        utf8_stream_push(&s, text + at, n, &out);
        size_t bad_at;
        assert_true(json_utf8_valid(out.bytes, out.length, &bad_at));
    }
    utf8_stream_finish(&s, &out);
    return out.bytes;
}

static void utf8_stream_is_the_same_however_it_is_cut(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"plain", "plain"},
        {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x9A\x80", "é€🚀"},
        {"a\xFFz", "a" BAD "z"},
        {"\xE2\x82z", BAD "z"},                /* one for the maximal subpart */
        {"\xE2\x28\xA1", BAD "(" BAD},         /* the second byte begins anew */
        {"\xF0\x9F\x9A", BAD},                 /* cut at the end */
        {"\xED\xA0\x80", BAD BAD BAD},         /* a surrogate: no byte of it belongs together */
        {"\xC0\xAF", BAD BAD},                 /* overlong */
        {"\xF4\x90\x80\x80", BAD BAD BAD BAD}, /* above U+10FFFF */
        {"\xE2\xE2\x82\xAC", BAD "€"},         /* a lead byte ends the one before */
        {"\x80\x80", BAD BAD},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t step = 1; step <= 5; step++) {
            char *text = stream(cases[i].bytes, strlen(cases[i].bytes), step);
            assert_string_equal(text, cases[i].text);
            free(text);
        }
    }
}

static void utf8_stream_emits_at_once_what_is_decided(void **state) {
    (void)state;
    utf8_stream s = {0};
    json_text out = {0};
    utf8_stream_push(&s, "ab\xE2\x82", 4, &out);
    assert_string_equal(out.bytes, "ab");
    utf8_stream_push(&s, "\xFF", 1, &out);
    assert_string_equal(out.bytes, "ab" BAD BAD);
    utf8_stream_push(&s, "\0", 1, &out);
    assert_int_equal(out.length, 9);
    json_text_release(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(utf8_stream_is_the_same_however_it_is_cut),
        cmocka_unit_test(utf8_stream_emits_at_once_what_is_decided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
