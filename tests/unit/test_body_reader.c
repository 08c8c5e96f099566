/* test_body_reader.c - a body is an object or refused, and a wrong field is named. */
#include "common/body_reader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static char param[CHAT_PARAM_SIZE];
static error err;

static status open_text(body_reader *r, const char *text) {
    (void)strcpy(param, "of before");
    return body_open(r, text, strlen(text), param, &err);
}

static void what_is_no_object_is_refused_and_leaves_nothing(void **state) {
    (void)state;
    static const char *const cases[] = {"", "{", "[]", "7", "\"a\"", "null"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        body_reader r;
        assert_int_equal(open_text(&r, cases[i]), STATUS_BAD_INPUT);
        assert_null(r.body);
        assert_string_equal(param, "");
        assert_ptr_equal(strstr(err.text, "request body: "), err.text);
    }
}

static void a_null_is_no_field(void **state) {
    (void)state;
    body_reader r;
    assert_int_equal(open_text(&r, "{\"a\":null,\"b\":false,\"B\":1}"), STATUS_OK);
    assert_null(body_find(&r, "a"));
    assert_null(body_find(&r, "c"));
    assert_true(cJSON_IsFalse(body_find(&r, "b"))); /* not B */
    assert_null(body_field(NULL, "a"));
    cJSON_Delete(r.body);
}

static void a_refusal_names_the_path_twice(void **state) {
    (void)state;
    body_reader r;
    char path[2 * CHAT_PARAM_SIZE];
    assert_int_equal(open_text(&r, "{}"), STATUS_OK);
    assert_int_equal(body_refuse(&r, "a.b[3]", "is wrong"), STATUS_BAD_INPUT);
    assert_string_equal(param, "a.b[3]");
    assert_string_equal(err.text, "a.b[3]: is wrong");
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    assert_int_equal(body_refuse(&r, path, "is long"), STATUS_BAD_INPUT);
    assert_int_equal(strlen(param), CHAT_PARAM_SIZE - 1);
    cJSON_Delete(r.body);
}

static void whole_numbers_and_ids_are_told_from_others(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool whole, ids; /* is "a" whole from 0 to 9; is "b" a list of ids */
    } cases[] = {
        {"{\"a\":0,\"b\":[0]}", true, true},
        {"{\"a\":9,\"b\":[7,2147483647]}", true, true},
        {"{\"a\":9.0,\"b\":[2.0]}", true, true},
        {"{\"a\":10,\"b\":[]}", false, false},
        {"{\"a\":-1,\"b\":[-1]}", false, false},
        {"{\"a\":0.5,\"b\":[0.5]}", false, false},
        {"{\"a\":\"1\",\"b\":[\"1\"]}", false, false},
        {"{\"a\":1e999,\"b\":[2147483648]}", false, false},
        {"{\"a\":true,\"b\":{\"c\":1}}", false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        body_reader r;
        if (open_text(&r, cases[i].text) != STATUS_OK) fail_msg("%s", err.text);
        if (body_is_whole(body_find(&r, "a"), 0, 9) != cases[i].whole ||
            body_is_ids(body_find(&r, "b")) != cases[i].ids)
            fail_msg("%s", cases[i].text);
        cJSON_Delete(r.body);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_object_is_refused_and_leaves_nothing),
        cmocka_unit_test(a_null_is_no_field),
        cmocka_unit_test(a_refusal_names_the_path_twice),
        cmocka_unit_test(whole_numbers_and_ids_are_told_from_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
