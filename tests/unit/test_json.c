/* Tests of common/json: what is refused and where, and that numbers and order survive. */
#include "common/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static cJSON *parse(const char *text) {
    cJSON *tree = NULL;
    error err = {0};
    if (json_parse(&tree, text, strlen(text), "test", &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return tree;
}

static void assert_prints(const char *text, const char *compact, const char *python) {
    cJSON *tree = parse(text);
    char *printed = json_print(tree);
    assert_string_equal(printed, compact);
    free(printed);
    printed = json_print_python(tree);
    assert_string_equal(printed, python);
    free(printed);
    cJSON_Delete(tree);
}

static void json_keeps_numbers_and_order(void **state) {
    (void)state;
    assert_prints("{\"b\":1,\"a\":[2.0,1e3,-0,12345678901234567890]}",
                  "{\"b\":1,\"a\":[2.0,1e3,-0,12345678901234567890]}",
                  "{\"b\": 1, \"a\": [2.0, 1000.0, 0, 12345678901234567890]}");
    assert_prints(" [ ] \r\n", "[]", "[]");
    assert_prints("{\"x\":{}}", "{\"x\":{}}", "{\"x\": {}}");
    assert_prints("[true,false,null]", "[true,false,null]", "[true, false, null]");
}

static void json_numbers_have_their_text_and_value(void **state) {
    (void)state;
    cJSON *tree = parse("[-1.50e2]");
    assert_true(cJSON_IsNumber(tree->child));
    assert_string_equal(tree->child->valuestring, "-1.50e2");
    assert_true(tree->child->valuedouble == -150.0);
    assert_int_equal(tree->child->valueint, -150);
    cJSON_Delete(tree);
}

static void json_python_floats_are_as_repr(void **state) {
    (void)state;
    static const struct {
        const char *text, *python;
    } cases[] = {
        {"0.1", "0.1"},
        {"1.0", "1.0"},
        {"-0.0", "-0.0"},
        {"1e15", "1000000000000000.0"},
        {"1e16", "1e+16"},
        {"123456789.125", "123456789.125"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"1.5e300", "1.5e+300"},
        {"1e999", "inf"},
        {"-1E999", "-inf"},
        {"5e-324", "5e-324"},
        {"100.0", "100.0"},
        {"3.14", "3.14"},
        {"0.30000000000000004", "0.30000000000000004"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *tree = parse(cases[i].text);
        char *text = json_number_python(tree);
        assert_string_equal(text, cases[i].python);
        free(text);
        cJSON_Delete(tree);
    }
}

static void json_prints_strings_with_few_escapes(void **state) {
    (void)state;
    assert_prints("\"a\\u00e9\\/\\n\\u000b\\\"\\\\\\ud83d\\ude00<&>\\u007f\"",
                  "\"a\xC3\xA9/\\n\\u000b\\\"\\\\\xF0\x9F\x98\x80<&>\x7F\"",
                  "\"a\xC3\xA9/\\n\\u000b\\\"\\\\\xF0\x9F\x98\x80<&>\x7F\"");
}

static void json_prints_numbers_that_code_made(void **state) {
    (void)state;
    cJSON *tree = cJSON_CreateArray();
    cJSON_AddItemToArray(tree, cJSON_CreateNumber(3));
    cJSON_AddItemToArray(tree, cJSON_CreateNumber(0.1));
    cJSON_AddItemToArray(tree, cJSON_CreateNumber(1e300 * 1e10));
    char *text = json_print(tree);
    assert_string_equal(text, "[3,0.1,null]");
    free(text);
    cJSON_Delete(tree);
}

static void json_refuses_and_says_where(void **state) {
    (void)state;
    static const struct {
        const char *text, *problem;
    } cases[] = {
        {"", "test: empty, JSON expected at byte 0"},
        {"{\"a\":01}", "test: not a JSON number at byte 5"},
        {"[1,-]", "test: not a JSON number at byte 3"},
        {"[1.]", "test: not a JSON number at byte 1"},
        {"[1e]", "test: not a JSON number at byte 1"},
        {"[NaN]", "test: not valid JSON at byte 1"},
        {"[10,20,x]", "test: not valid JSON at byte 7"},
        {"[1] 2", "test: not valid JSON at byte 4"},
        {"\"a\\u0000b\"", "test: U+0000 in a string at byte 2"},
        {"\"a\nb\"", "test: a raw control character in a string at byte 2"},
        {"[\x01]", "test: a control character at byte 1"},
        {"\"\xC3\"", "test: not UTF-8 at byte 1"},
        {"\"\xED\xA0\x80\"", "test: not UTF-8 at byte 1"},
        {"\"\xFF"
         "1\"",
         "test: not UTF-8 at byte 1"},
        {"\"abc", "test: a string without an end at byte 0"},
        {"\"abc\\", "test: a string without an end at byte 0"},
        {"{1:2}", "test: not valid JSON: a key that is no string at byte 1"},
        {" \n", "test: empty, JSON expected at byte 0"},
        {"[1,]", "test: not valid JSON at byte 3"},
        {"[,1]", "test: not valid JSON at byte 1"},
        {"[1 2]", "test: not valid JSON at byte 3"},
        {"[1", "test: JSON without an end at byte 2"},
        {"[1}", "test: not valid JSON at byte 2"},
        {"]", "test: not valid JSON at byte 0"},
        {"{\"a\":1,}", "test: not valid JSON at byte 7"},
        {"{\"a\" 1}", "test: not valid JSON at byte 5"},
        {"{\"a\":}", "test: not valid JSON at byte 5"},
        {"{\"a\"}", "test: not valid JSON at byte 4"},
        {"{\"a\":1:2}", "test: not valid JSON at byte 6"},
        {"[tru]", "test: not valid JSON at byte 1"},
        {"[truefalse]", "test: not valid JSON at byte 5"},
        {"\"\\x\"", "test: not an escape of JSON at byte 1"},
        {"\"\\u12g4\"", "test: not an escape of JSON at byte 1"},
        {"\"\\u12", "test: not an escape of JSON at byte 1"},
        {"\"\\ud83d\\u0041\"", "test: half of a surrogate pair at byte 1"},
        {"\"\\ude00\"", "test: half of a surrogate pair at byte 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *tree = (cJSON *)1;
        error err = {0};
        assert_int_equal(json_parse(&tree, cases[i].text, strlen(cases[i].text), "test", &err),
                         STATUS_BAD_INPUT);
        assert_null(tree);
        assert_string_equal(err.text, cases[i].problem);
    }
}

static void json_refuses_a_lone_surrogate_escape(void **state) {
    (void)state;
    cJSON *tree = NULL;
    error err = {0};
    const char *text = "\"\\ud800\"";
    assert_int_equal(json_parse(&tree, text, strlen(text), "t", &err), STATUS_BAD_INPUT);
}

static int n_allocations, failing_allocation;

static void *failing_malloc(size_t size) {
    return ++n_allocations == failing_allocation ? NULL : malloc(size);
}

/* cJSON says only that there is no tree. */
static void json_without_memory_is_not_a_fault_of_the_text(void **state) {
    (void)state;
    static const char text[] =
        "\xEF\xBB\xBF{\"a\":[1,\"b\",{\"c\":null}],\"d\":\"\\ud83d\\ude00\"}";
    cJSON_Hooks hooks = {failing_malloc, free};
    cJSON_InitHooks(&hooks);
    status rc = STATUS_NO_MEMORY;
    for (failing_allocation = 1; rc == STATUS_NO_MEMORY; failing_allocation++) {
        cJSON *tree = NULL;
        error err = {0};
        n_allocations = 0;
        rc = json_parse(&tree, text, sizeof text - 1, "t", &err);
        if (rc == STATUS_NO_MEMORY) assert_string_equal(err.text, "t: no memory");
        cJSON_Delete(tree);
    }
    cJSON_InitHooks(NULL);
    assert_int_equal(rc, STATUS_OK);
    assert_true(failing_allocation > 8);
}

static void json_bounds_the_depth(void **state) {
    (void)state;
    char text[2 * (JSON_MAX_DEPTH + 1)];
    cJSON *tree = NULL;
    error err = {0};
    size_t n = JSON_MAX_DEPTH;
    memset(text, '[', n);
    memset(text + n, ']', n);
    assert_int_equal(json_parse(&tree, text, 2 * n, "t", &err), STATUS_OK);
    cJSON_Delete(tree);
    n++;
    memset(text, '[', n);
    memset(text + n, ']', n);
    assert_int_equal(json_parse(&tree, text, 2 * n, "t", &err), STATUS_BAD_INPUT);
    assert_string_equal(err.text, "t: nested deeper than 64 at byte 64");
}

static void json_bounds_the_values(void **state) {
    (void)state;
    size_t length = 2 * (size_t)JSON_MAX_VALUES + 1;
    char *text = malloc(length);
    assert_non_null(text);
    text[0] = '[';
    for (size_t i = 1; i + 1 < length; i++)
        text[i] = i % 2 == 1 ? '1' : ',';
    text[length - 1] = ']'; /* the list and as many values in it: one too many */
    cJSON *tree = NULL;
    error err = {0};
    assert_int_equal(json_parse(&tree, text, length, "t", &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "t: more than 300000 values at byte"));
    text[length - 3] = ']';
    assert_int_equal(json_parse(&tree, text, length - 2, "t", &err), STATUS_OK);
    cJSON_Delete(tree);
    free(text);
}

static void json_text_replaces_bytes_that_are_not_utf8(void **state) {
    (void)state;
    json_text text = {0};
    json_text_string(&text, "a\xFF\xE2\x82", 4);
    assert_string_equal(text.bytes, "\"a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
    json_text_clear(&text);
    json_text_format(&text, "%d-%s", 7, "x");
    assert_string_equal(text.bytes, "7-x");
    json_text_release(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_keeps_numbers_and_order),
        cmocka_unit_test(json_numbers_have_their_text_and_value),
        cmocka_unit_test(json_python_floats_are_as_repr),
        cmocka_unit_test(json_prints_strings_with_few_escapes),
        cmocka_unit_test(json_prints_numbers_that_code_made),
        cmocka_unit_test(json_refuses_and_says_where),
        cmocka_unit_test(json_refuses_a_lone_surrogate_escape),
        cmocka_unit_test(json_without_memory_is_not_a_fault_of_the_text),
        cmocka_unit_test(json_bounds_the_depth),
        cmocka_unit_test(json_bounds_the_values),
        cmocka_unit_test(json_text_replaces_bytes_that_are_not_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
