/* Tests of worker/text/tool_call: what is text, what is a call, and of which types. */
#include "worker/text/tool_call.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{"
    "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"
    "\"days\":{\"type\":\"integer\"},\"ratio\":{\"type\":\"number\"},"
    "\"flag\":{\"type\":\"boolean\"},\"nothing\":{\"type\":[\"string\",\"null\"]},"
    "\"list\":{\"type\":\"array\"},\"opts\":{\"type\":\"object\"},"
    "\"unit\":{\"enum\":[\"C\",\"F\"]},\"maybe\":{\"anyOf\":[{\"type\":\"integer\"},"
    "{\"type\":\"null\"}]},\"place\":{\"$ref\":\"#/$defs/place\"},\"free\":{}},"
    "\"$defs\":{\"place\":{\"type\":\"object\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

/* Everything that came, one call after the other: text|name(arguments)|text ... A call that is
 * not complete ends with an ellipsis. */
typedef struct heard {
    json_text all;
    bool in_call;
    uint32_t n_calls;
    bool cut, over;
} heard;

static void hear(heard *h, const tool_call *t) {
    for (size_t i = 0; i < t->n_pieces; i++) {
        const tool_piece *p = &t->pieces[i];
        if (p->kind != TOOL_ARGUMENTS && h->in_call) {
            json_text_add(&h->all, ")|", 2);
            h->in_call = false;
        }
        assert_true(p->length > 0 && p->at + p->length <= t->out.length);
        json_text_add(&h->all, t->out.bytes + p->at, p->length);
        if (p->kind == TOOL_BEGIN) {
            json_text_add(&h->all, "(", 1);
            h->in_call = true;
        }
    }
}

static heard run(const char *text, size_t length, size_t cut_at, size_t every, bool single,
                 bool natural) {
    heard h = {0};
    cJSON *tools = cJSON_Parse(tools_json);
    assert_non_null(tools);
    tool_call t;
    tool_call_init(&t, tools, single);
    json_text_add(&h.all, "", 0);
    for (size_t at = 0; at < length;) {
        size_t n = every > 0 ? every : at == 0 && cut_at > 0 ? cut_at : length - at;
        if (n > length - at) n = length - at;
        tool_call_clear(&t);
        tool_call_push(&t, text + at, n);
        hear(&h, &t);
        at += n;
    }
    tool_call_clear(&t);
    tool_call_finish(&t, natural);
    hear(&h, &t);
    if (h.in_call) json_text_add(&h.all, t.open ? "..." : ")", t.open ? 3 : 1);
    h.n_calls = t.n_calls;
    h.cut = t.cut;
    h.over = t.over;
    assert_false(t.failed);
    tool_call_release(&t);
    cJSON_Delete(tools);
    return h;
}

static bool is_inside_character(char c) {
    return ((unsigned char)c & 0xC0) == 0x80;
}

/* Whole, cut in two at every byte, and byte by byte: the same.  Characters stay whole. */
static void check_as(const char *text, const char *expected, bool single, bool natural) {
    size_t length = strlen(text);
    bool all_ascii = true;
    for (size_t i = 0; i < length; i++)
        all_ascii &= (unsigned char)text[i] < 0x80;
    for (size_t cut_at = 0; cut_at <= length; cut_at++) {
        if (cut_at < length && is_inside_character(text[cut_at])) continue;
        if (cut_at == length && !all_ascii) continue;
        heard h = cut_at < length ? run(text, length, cut_at, 0, single, natural)
                                  : run(text, length, 0, 1, single, natural);
        if (strcmp(h.all.bytes, expected) != 0) {
            fail_msg("cut at %zu of\n%s\nexpected\n%s\ngot\n%s", cut_at, text, expected,
                     h.all.bytes);
        }
        json_text_release(&h.all);
    }
}

static void check(const char *text, const char *expected) {
    check_as(text, expected, false, true);
}

#define CALL(body)           "<tool_call>\n<function=get_weather>\n" body "</function>\n</tool_call>"
#define ARGUMENT(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

static void text_without_calls_is_left_alone(void **state) {
    (void)state;
    check("", "");
    check("Hello, world.\n\n  a < b <c> </tool_call> <function=x> \n\n",
          "Hello, world.\n\n  a < b <c> </tool_call> <function=x> \n\n");
    check("Write <tool_call> to call.", "Write <tool_call> to call.");
    check("say \n <tool_call>\n  well", "say \n <tool_call>\n  well");
    check("<tool_call>\n<function=", "<tool_call>\n<function=");
    check("<tool_call>\n<function=a<b>", "<tool_call>\n<function=a<b>");
    check("see <function=now> there", "see <function=now> there");
    check("<function=unknown>\n", "<function=unknown>\n");
    check("a <tool_ca", "a <tool_ca");
}

static void a_call_has_its_name_and_arguments(void **state) {
    (void)state;
    check(CALL(ARGUMENT("city", "Paris")), "get_weather({\"city\":\"Paris\"})");
    check("Let me see.\n\n" CALL(ARGUMENT("city", "Paris")) "\n",
          "Let me see.get_weather({\"city\":\"Paris\"})");
    check("<tool_call>\n<function=now>\n</function>\n</tool_call>", "now({})");
    check("<tool_call><function=now></function></tool_call>", "now({})");
    check("<tool_call>\n<function=other>\n<parameter=x>\n1\n</parameter>\n</function>\n</"
          "tool_call>",
          "other({\"x\":1})");
}

static void several_calls_come_in_order(void **state) {
    (void)state;
    check(CALL(ARGUMENT("city", "Rome")) "\n" CALL(ARGUMENT("city", "Oslo")),
          "get_weather({\"city\":\"Rome\"})|get_weather({\"city\":\"Oslo\"})");
    check(CALL("") "\n\nand then\n" CALL(""), "get_weather({})|and thenget_weather({})");
    check("<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>",
          "now({})|now({})");
}

static void values_are_of_the_types_of_the_schema(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"city", "12", "\"12\""},
        {"city", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
        {"city", "true", "\"true\""},
        {"city", " two words ", "\" two words \""},
        {"city", "", "\"\""},
        {"city", "a \"b\" \\ \t", "\"a \\\"b\\\" \\\\ \\t\""},
        {"days", "3", "3"},
        {"days", " 3 ", "3"},
        {"days", "3.0", "3"},
        {"days", "3.5", "\"3.5\""},
        {"days", "-12345678901234567890", "-12345678901234567890"},
        {"days", "three", "\"three\""},
        {"ratio", "0.25", "0.25"},
        {"ratio", "1e3", "1e3"},
        {"ratio", "01", "\"01\""},
        {"flag", "True", "true"},
        {"flag", "false", "false"},
        {"flag", "yes", "\"yes\""},
        {"nothing", "None", "null"},
        {"nothing", "null", "null"},
        {"nothing", "some", "\"some\""},
        {"nothing", "7", "\"7\""},
        {"list", "[1, \"two\", {\"a\": null}]", "[1,\"two\",{\"a\":null}]"},
        {"list", "[1, 2", "\"[1, 2\""},
        {"opts", "{\"a\": [1, true]}", "{\"a\":[1,true]}"},
        {"opts", "[1]", "\"[1]\""},
        {"unit", "C", "\"C\""},
        {"maybe", "5", "5"},
        {"maybe", "None", "null"},
        {"place", "{\"x\": 1.50}", "{\"x\":1.50}"},
        {"free", "5", "5"},
        {"free", "{\"a\": 1}", "{\"a\":1}"},
        {"free", "words", "\"words\""},
        {"unheard", "False", "false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[400], expected[400];
        (void)snprintf(text, sizeof text, CALL(ARGUMENT("%s", "%s")), cases[i][0], cases[i][1]);
        (void)snprintf(expected, sizeof expected, "get_weather({\"%s\":%s})", cases[i][0],
                       cases[i][2]);
        check(text, expected);
    }
}

static void values_may_have_lines_and_tags(void **state) {
    (void)state;
    check(CALL(ARGUMENT("city", "one\ntwo\n\nthree\n")),
          "get_weather({\"city\":\"one\\ntwo\\n\\nthree\\n\"})");
    check(CALL(ARGUMENT("city", "<b>x</b> </parameter> y")),
          "get_weather({\"city\":\"<b>x</b> </parameter> y\"})");
    check(CALL(ARGUMENT("city", "</function> and </tool_call> in text")),
          "get_weather({\"city\":\"</function> and </tool_call> in text\"})");
    check(CALL(ARGUMENT("city", "x\n<parameter=none>\ny")),
          "get_weather({\"city\":\"x\\n<parameter=none>\\ny\"})");
    check(CALL("<parameter=city>Paris</parameter>"), "get_weather({\"city\":\"Paris\"})");
    check(CALL(ARGUMENT("city", "\xc3\xa9")), "get_weather({\"city\":\"\xc3\xa9\"})");
}

static void missing_and_doubled_tags_are_forgiven(void **state) {
    (void)state;
    static const char open[] = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis";
    static const char *const ends[] = {
        "",
        "\n</parameter>",
        "\n</parameter>\n",
        "\n</parameter>\n</function>",
        "\n</parameter>\n</tool_call>",
        "\n</function>\n</tool_call>",
        "\n</function>",
        "\n</tool_call>",
        "\n</parameter>\n</parameter>\n</function>\n</tool_call>",
        "\n</parameter>\n</function>\n</function>\n</tool_call>",
        "\n</parameter>\n</function>\n</tool_call>\n</tool_call>\n"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        char text[300];
        (void)snprintf(text, sizeof text, "%s%s", open, ends[i]);
        check(text, "get_weather({\"city\":\"Paris\"})");
    }
    check("<tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>", "now({})");
    check("Well.\n<function=now>\n</function>\n</tool_call>", "Well.now({})");
    check("<function=now>\n</function>", "now({})");
    check("<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n<parameter=days>\n2\n"
          "</parameter>\n</function>\n</tool_call>",
          "get_weather({\"city\":\"Rome\",\"days\":2})");
    check(
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n2\n</parameter>\n<tool_call>\n"
        "<function=now>\n</function>\n</tool_call>",
        "get_weather({\"days\":2})|now({})");
    check("<tool_call>\n<function=\"now\">\n</function>\n</tool_call>", "now({})");
    check(CALL(ARGUMENT("days", "1") ARGUMENT("days", "2")), "get_weather({\"days\":1})");
}

static void calls_as_json_are_calls(void **state) {
    (void)state;
    check("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a } b\", "
          "\"days\": \"2\"}}\n</tool_call>",
          "get_weather({\"city\":\"a } b\",\"days\":2})");
    check(
        "<tool_call>{\"name\":\"now\"}</tool_call>\n<tool_call>{\"name\":\"now\",\"arguments\":"
        "{}}</tool_call>",
        "now({})|now({})");
    check(
        "<tool_call>{\"name\":\"get_weather\",\"arguments\":\"{\\\"days\\\":1}\"}</tool_call>",
        "get_weather({\"days\":1})");
    check("<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"list\":[1</tool_call>",
          "get_weather({\"list\":[1]})");
    check("<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"days\":1}",
          "get_weather({\"days\":1})");
    check("<tool_call>{\"name\": 5}</tool_call>", "<tool_call>{\"name\": 5}</tool_call>");
    check("<tool_call>{name: x}</tool_call> y", "<tool_call>{name: x}</tool_call> y");
    check("<tool_call>\n<function=get_weather>\n{\"days\": 1}\n</function>\n</tool_call>",
          "get_weather({\"days\":1})");
}

static void a_call_that_a_limit_cuts_is_open_and_never_parses(void **state) {
    (void)state;
    static const char text[] = CALL(ARGUMENT("city", "Paris") ARGUMENT("days", "2"));
    static const char whole[] = "get_weather({\"city\":\"Paris\",\"days\":2})";
    size_t complete = (size_t)(strstr(text, "</function>") - text) + strlen("</function>");
    for (size_t n = 1; n < sizeof text; n++) {
        heard h = run(text, n, 0, 0, false, false);
        if (n >= complete) {
            assert_false(h.cut);
            assert_string_equal(h.all.bytes, whole);
        } else if (n >= strlen("<tool_call>")) {
            assert_true(h.cut);
            assert_int_equal(h.n_calls, 0);
            const char *arguments = strchr(h.all.bytes, '(');
            cJSON *parsed = NULL;
            if (arguments != NULL && json_parse(&parsed, arguments + 1, strlen(arguments) - 4,
                                                "arguments", NULL) == STATUS_OK) {
                fail_msg("%s parses", h.all.bytes);
            }
        }
        json_text_release(&h.all);
    }
    check_as("<tool_call>{\"name\":\"now\",\"arg", "", false, false);
    check_as("Text <tool_", "Text <tool_", false, false);
}

static void the_model_that_stops_in_a_tag_leaves_its_call_open(void **state) {
    (void)state;
    check("<tool_call>\n<function=get_weather>\n<parameter=ci", "get_weather(...");
    check("<tool_call>\n<function=get_weather>\n{\"days\": }", "get_weather(...");
}

static void one_call_can_be_all_that_is_wanted(void **state) {
    (void)state;
    check_as(CALL(ARGUMENT("days", "1")) "\n" CALL(""), "get_weather({\"days\":1})", true,
             true);
    heard h = run("<function=now>\n</function>\nmore", 30, 0, 0, true, true);
    assert_true(h.over);
    assert_false(h.cut);
    json_text_release(&h.all);
}

static void strings_come_as_they_are_written(void **state) {
    (void)state;
    cJSON *tools = cJSON_Parse(tools_json);
    tool_call t;
    tool_call_init(&t, tools, false);
    static const char *const pushes[][2] = {
        {"<tool_call>\n<function=get_weather>", "get_weather"},
        {"\n<parameter=city>\nPa", "{\"city\":\"Pa"},
        {"ris\nand", "ris\\nand"},
        {"\n</para", ""},
        {"meter>\n<parameter=days>\n1", "\",\"days\":"},
        {"0\n</parameter>\n</function>", "10}"},
        {"\n</tool_call>", ""},
    };
    for (size_t i = 0; i < sizeof pushes / sizeof pushes[0]; i++) {
        tool_call_clear(&t);
        tool_call_push(&t, pushes[i][0], strlen(pushes[i][0]));
        if (i == 5) assert_false(t.open);
        assert_int_equal(t.out.length, strlen(pushes[i][1]));
        if (t.out.length > 0) assert_string_equal(t.out.bytes, pushes[i][1]);
    }
    tool_call_release(&t);
    cJSON_Delete(tools);
}

static void what_is_too_long_is_bounded(void **state) {
    (void)state;
    json_text text = {0};
    static const char open[] = "<tool_call>\n<function=get_weather>\n<parameter=days>\n";
    json_text_add(&text, open, strlen(open));
    for (size_t i = 0; i < TOOL_CALL_MAX_VALUE + 10; i++)
        json_text_add(&text, "1", 1);
    json_text_add(&text, "\n</parameter>\n</function>", 25);
    heard h = run(text.bytes, text.length, 0, 4096, false, true);
    assert_int_equal(h.n_calls, 1);
    assert_memory_equal(h.all.bytes, "get_weather({\"days\":\"111", 24);
    json_text_release(&h.all);
    json_text_clear(&text);
    for (int i = 0; i < TOOL_CALL_MAX_CALLS + 5; i++)
        json_text_add(&text, "<function=now></function>", 25);
    h = run(text.bytes, text.length, 0, 100, false, true);
    assert_int_equal(h.n_calls, TOOL_CALL_MAX_CALLS);
    assert_true(h.over);
    json_text_release(&h.all);
    json_text_clear(&text);
    json_text_add(&text, "<tool_call>", 11);
    for (int i = 0; i < 300; i++)
        json_text_add(&text, " ", 1);
    json_text_add(&text, "<function=now>", 14);
    json_text_add(&text, "", 1);
    check(text.bytes, text.bytes);
    json_text_clear(&text);
    static const char value[] =
        "<tool_call>\n<function=get_weather>\n<parameter=city>\na</parameter>";
    json_text_add(&text, value, strlen(value));
    for (int i = 0; i < 300; i++)
        json_text_add(&text, " ", 1);
    json_text_add(&text, "</function>\n</tool_call>", 24);
    h = run(text.bytes, text.length, 0, 1, false, true);
    assert_memory_equal(h.all.bytes, "get_weather({\"city\":\"a</parameter>   ", 37);
    json_text_release(&h.all);
    json_text_release(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_without_calls_is_left_alone),
        cmocka_unit_test(a_call_has_its_name_and_arguments),
        cmocka_unit_test(several_calls_come_in_order),
        cmocka_unit_test(values_are_of_the_types_of_the_schema),
        cmocka_unit_test(values_may_have_lines_and_tags),
        cmocka_unit_test(missing_and_doubled_tags_are_forgiven),
        cmocka_unit_test(calls_as_json_are_calls),
        cmocka_unit_test(a_call_that_a_limit_cuts_is_open_and_never_parses),
        cmocka_unit_test(the_model_that_stops_in_a_tag_leaves_its_call_open),
        cmocka_unit_test(one_call_can_be_all_that_is_wanted),
        cmocka_unit_test(strings_come_as_they_are_written),
        cmocka_unit_test(what_is_too_long_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
