/* Tests of worker/text/tool_grammar: which calls it lets through, and the shortest of them. */
#include "worker/text/json_automaton.h"
#include "worker/text/tool_grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WEATHER                                                                                \
    "{\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","             \
    "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\","           \
    "\"minimum\":1,\"maximum\":7},\"units\":{\"type\":\"string\",\"enum\":[\"metric\","        \
    "\"imperial\"]}},\"required\":[\"city\"]}}}"
#define TIME                                                                                   \
    "{\"function\":{\"name\":\"get_time\",\"parameters\":{\"type\":\"object\","                \
    "\"properties\":{},\"additionalProperties\":false}}}"
#define ANY "{\"function\":{\"name\":\"any\"}}"
#define POINTS                                                                                 \
    "{\"function\":{\"name\":\"plot\",\"parameters\":{\"type\":\"object\",\"properties\":{"    \
    "\"points\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/p\"}}},\"required\":["       \
    "\"points\"],\"$defs\":{\"p\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":"       \
    "\"number\"}},\"required\":[\"x\"]}}}}}"
#define LOOSE                                                                                  \
    "{\"function\":{\"name\":\"loose\",\"parameters\":{\"type\":\"object\",\"properties\":{"   \
    "\"n\":{\"type\":\"integer\",\"not\":{}}},\"required\":[\"n\"]}}}"
#define CITY  "<parameter=city>\n"
#define END   "\n</parameter>\n"
#define CLOSE "</function>\n"

static json_grammar *compile(const char *tools, const char *only) {
    cJSON *tree = NULL;
    json_grammar *g = NULL;
    error err = {0};
    if (json_parse(&tree, tools, strlen(tools), "tools", &err) != STATUS_OK)
        fail_msg("%s: %s", tools, err.text);
    if (tool_grammar_compile(&g, tree, only, &err) != STATUS_OK)
        fail_msg("%s: %s", tools, err.text);
    cJSON_Delete(tree);
    return g;
}

/* Whether the text is a whole call; *read gets the bytes that were read of it. */
static bool fits(const char *tools, const char *only, const char *text, size_t *read) {
    json_grammar *g = compile(tools, only);
    json_automaton *a = NULL;
    error err = {0};
    if (json_automaton_new(&a, g, &err) != STATUS_OK) fail_msg("%s", err.text);
    uint32_t state = json_automaton_start(a);
    for (*read = 0; text[*read] != '\0' && state != JSON_DEAD; (*read)++)
        state = json_automaton_step(a, state, (unsigned char)text[*read]);
    bool whole = state != JSON_DEAD && json_automaton_is_complete(a, state);
    json_automaton_free(a);
    json_grammar_free(g);
    return whole;
}

static void calls_of_the_tools_fit_and_no_others(void **state) {
    (void)state;
    static const struct {
        const char *tools, *only, *text;
        bool fits;
    } cases[] = {
        {"[" WEATHER "]", NULL, "\n<function=get_weather>\n" CITY "Rome" END CLOSE, true},
        {"[" WEATHER "]", NULL, "\n<function=get_weather>\n" CITY "a\nb</p> <</x" END CLOSE,
         true},
        {"[" WEATHER "]", NULL, "\n<function=get_weather>\n" CITY "citt\xc3\xa0" END CLOSE,
         true},
        {"[" WEATHER "]", NULL, "\n<function=get_weather>\n" CITY "\xc3(" END CLOSE, false},
        {"[" WEATHER "]", NULL, "\n<function=get_weather>\n" CLOSE, false},
        {"[" WEATHER "]", NULL, "\n<function=get_rain>\n", false},
        {"[" WEATHER "]", NULL,
         "\n<function=get_weather>\n" CITY "x" END "<parameter=days>\n7" END CLOSE, true},
        {"[" WEATHER "]", NULL,
         "\n<function=get_weather>\n" CITY "x" END "<parameter=days>\n8" END CLOSE, false},
        {"[" WEATHER "]", NULL,
         "\n<function=get_weather>\n" CITY "x" END "<parameter=days>\nseven" END CLOSE, false},
        {"[" WEATHER "]", NULL,
         "\n<function=get_weather>\n" CITY "x" END "<parameter=units>\nmetric" END CLOSE, true},
        {"[" WEATHER "]", NULL,
         "\n<function=get_weather>\n" CITY "x" END "<parameter=units>\nfeet" END CLOSE, false},
        {"[" WEATHER "]", NULL,
         "\n<function=get_weather>\n" CITY "x" END "<parameter=more>\nx" END CLOSE, false},
        {"[" WEATHER "," TIME "]", NULL, "\n<function=get_time>\n" CLOSE, true},
        {"[" WEATHER "," TIME "]", NULL, "\n<function=get_time>\n<parameter=x>\n1" END CLOSE,
         false},
        {"[" WEATHER "," TIME "]", "get_weather", "\n<function=get_time>\n" CLOSE, false},
        {"[" ANY "]", NULL, "\n<function=any>\n" CLOSE, true},
        {"[" ANY "]", NULL, "\n<function=any>\n<parameter=q_1>\nx" END CLOSE, true},
        {"[" POINTS "]", NULL, "\n<function=plot>\n<parameter=points>\n[{\"x\":1}]" END CLOSE,
         true},
        {"[" POINTS "]", NULL, "\n<function=plot>\n<parameter=points>\n[{\"y\":1}]" END CLOSE,
         false},
        {"[" LOOSE "]", NULL, "\n<function=loose>\n<parameter=n>\n[1]" END CLOSE, true},
        {"[" LOOSE "]", NULL, "\n<function=loose>\n<parameter=n>\nwords" END CLOSE, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t read = 0;
        bool whole = fits(cases[i].tools, cases[i].only, cases[i].text, &read);
        if (whole != cases[i].fits)
            fail_msg("%s: %s (%zu bytes read)", cases[i].text, whole ? "fits" : "does not",
                     read);
    }
}

static void a_text_ends_with_the_first_closing_tag(void **state) {
    (void)state;
    size_t read = 0;
    static const char *const texts[] = {"a</parameter>b", "<</parameter>b", "</</parameter>b"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        json_text text = {0};
        json_text_format(&text, "\n<function=get_weather>\n" CITY "%s" END CLOSE, texts[i]);
        assert_false(fits("[" WEATHER "]", NULL, text.bytes, &read));
        assert_true(read < text.length);
        json_text_release(&text);
    }
}

static void a_tool_that_is_not_there_has_no_grammar(void **state) {
    (void)state;
    cJSON *tree = cJSON_Parse("[" TIME "]");
    json_grammar *g = NULL;
    error err = {0};
    assert_int_equal(tool_grammar_compile(&g, tree, "other", &err), STATUS_BAD_INPUT);
    assert_null(g);
    cJSON_Delete(tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_of_the_tools_fit_and_no_others),
        cmocka_unit_test(a_text_ends_with_the_first_closing_tag),
        cmocka_unit_test(a_tool_that_is_not_there_has_no_grammar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
