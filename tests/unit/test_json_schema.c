/* Tests of worker/text/json_schema, json_pattern and json_automaton: what a schema lets
 * through, what is refused, and the shortest way to the end. */
#include "worker/text/json_automaton.h"
#include "worker/text/json_schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_grammar *compile(const char *schema, char param[CHAT_PARAM_SIZE], error *err) {
    cJSON *tree = NULL;
    json_grammar *g = NULL;
    if (json_parse(&tree, schema, strlen(schema), "schema", err) != STATUS_OK)
        fail_msg("%s: %s", schema, err->text);
    param[0] = '\0';
    (void)json_schema_compile(&g, tree, "schema", param, err);
    cJSON_Delete(tree);
    return g;
}

typedef struct fit {
    json_grammar *grammar;
    json_automaton *automaton;
    uint32_t state;
} fit;

static fit open_fit(const char *schema) {
    char param[CHAT_PARAM_SIZE];
    error err = {0};
    fit f = {.grammar = compile(schema, param, &err)};
    if (f.grammar == NULL) fail_msg("%s: %s", schema, err.text);
    if (json_automaton_new(&f.automaton, f.grammar, &err) != STATUS_OK)
        fail_msg("%s: %s", schema, err.text);
    f.state = json_automaton_start(f.automaton);
    return f;
}

static void close_fit(fit *f) {
    json_automaton_free(f->automaton);
    json_grammar_free(f->grammar);
}

static void push(fit *f, const char *text) {
    for (; *text != '\0'; text++)
        f->state = json_automaton_step(f->automaton, f->state, (unsigned char)*text);
}

/* The text, closed on the shortest way; the caller frees. */
static char *closed(const char *schema, const char *text, uint32_t *n_bytes) {
    fit f = open_fit(schema);
    json_text out = {0};
    push(&f, text);
    json_text_add(&out, text, strlen(text));
    *n_bytes = json_automaton_close_bytes(f.automaton, f.state);
    for (uint32_t left = *n_bytes; left > 0; left--) {
        char byte = (char)json_automaton_close_byte(f.automaton, f.state);
        json_text_add(&out, &byte, 1);
        f.state = json_automaton_step(f.automaton, f.state, (unsigned char)byte);
        assert_int_equal(json_automaton_close_bytes(f.automaton, f.state), left - 1);
    }
    assert_true(json_automaton_is_complete(f.automaton, f.state));
    close_fit(&f);
    return out.bytes;
}

/* --- what fits -------------------------------------------------------------- */

typedef struct fit_case {
    const char *schema, *text;
    bool fits;
} fit_case;

#define PERSON                                                                                 \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,"      \
    "\"maxLength\":3},\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},"           \
    "\"on\":{\"type\":\"boolean\"}},\"required\":[\"age\"]}"
#define TUPLE                                                                                  \
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"boolean\"},{"     \
    "\"type\":"                                                                                \
    "\"null\"}],\"items\":false,\"minItems\":2}"
#define TREE                                                                                   \
    "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"c\":{"    \
    "\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"c\"]}}}"

static const fit_case fits[] = {
    {PERSON, "{\"age\":0}", true},
    {PERSON, "\n\n{ \"name\" : \"ab\"}", false}, /* no space before a colon */
    {PERSON, "{\"name\": \"ab\",\n  \"age\": 150\n}", true},
    {PERSON, "{\"age\":150,\"name\":\"ab\"}", false}, /* the schema's order */
    {PERSON, "{\"age\":150,\"on\":true}", true},
    {PERSON, "{\"age\":151}", false},
    {PERSON, "{\"age\":-1}", false},
    {PERSON, "{\"age\":01}", false},
    {PERSON, "{\"age\":1.5}", false},
    {PERSON, "{\"name\":\"\",\"age\":1}", false},
    {PERSON, "{\"name\":\"abcd\",\"age\":1}", false},
    {PERSON, "{\"name\":\"\xC3\xA4\xE6\x97\xA5\xF0\x9F\x98\x80\",\"age\":1}", true},
    {PERSON, "{\"name\":\"\\n\\\"\\u00e4\",\"age\":1}", true},
    {PERSON, "{\"name\":\"\\ud83d\",\"age\":1}", false},  /* half of a pair */
    {PERSON, "{\"name\":\"\xC0\xAF\",\"age\":1}", false}, /* no UTF-8 */
    {PERSON, "{\"name\":\"\n\",\"age\":1}", false},
    {PERSON, "{\"age\":1,}", false},
    {PERSON, "{\"age\":1}}", false},
    {PERSON, "{}", false},
    {PERSON, "[]", false},
    {TREE, "{\"c\":[{\"c\":[]},{\"c\":[{\"c\":[]}]}]}", true},
    {TREE, "{\"c\":[{}]}", false},
    {"{}", "[1e5,-0.5,{\"a\":null},\"x\"]", true},
    {"{}", "nul", false},
    {"{\"type\":[\"null\",\"string\"]}", "null", true},
    {"{\"type\":[\"null\",\"string\"]}", "\"\"", true},
    {"{\"type\":[\"null\",\"string\"]}", "0", false},
    {"{\"enum\":[\"a\\\"b\",1.50,[1,{}],null]}", "\"a\\\"b\"", true},
    {"{\"enum\":[\"a\\\"b\",1.50,[1,{}],null]}", "1.50", true},
    {"{\"enum\":[\"a\\\"b\",1.50,[1,{}],null]}", "[1,{}]", true},
    {"{\"enum\":[\"a\\\"b\",1.50,[1,{}],null]}", "\"a\"", false},
    {"{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":2,\"maxItems\":3}", "[1]",
     false},
    {"{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":2,\"maxItems\":3}", "[1,1]",
     true},
    {"{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":2,\"maxItems\":3}", "[1, 1,1 ]",
     true},
    {"{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":2,\"maxItems\":3}", "[1,1,1,1]",
     false},
    {"{\"type\":\"array\",\"maxItems\":0}", "[]", true},
    {"{\"type\":\"array\",\"maxItems\":0}", "[1]", false},
    {"{\"additionalProperties\":{\"type\":\"null\"},\"maxProperties\":2}",
     "{\"a\":null,\"b\":null}", true},
    {"{\"additionalProperties\":{\"type\":\"null\"},\"maxProperties\":1}",
     "{\"a\":null,\"b\":null}", false},
    {"{\"additionalProperties\":{\"type\":\"null\"}}", "{\"a\":1}", false},
    {"{\"type\":\"string\",\"pattern\":\"^[A-C]{2}-\\\\d+$\"}", "\"AB-17\"", true},
    {"{\"type\":\"string\",\"pattern\":\"^[A-C]{2}-\\\\d+$\"}", "\"AB-\"", false},
    {"{\"type\":\"string\",\"pattern\":\"^[A-C]{2}-\\\\d+$\"}", "\"xAB-1\"", false},
    {"{\"type\":\"string\",\"pattern\":\"b|c\"}", "\"abba\"", true},
    {"{\"type\":\"string\",\"pattern\":\"b|c\"}", "\"aa\"", false},
    {"{\"type\":\"string\",\"pattern\":\"^(a*)*\\\"$\"}", "\"aa\\\"\"", true},
    {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-28\"", true},
    {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-13-01\"", false},
    {"{\"type\":\"string\",\"format\":\"date\",\"pattern\":\"^2.$\"}", "\"21\"", true},
    {"{\"type\":\"string\",\"format\":\"anything\",\"pattern\":\"^2.$\"}", "\"31\"", false},
    {"{\"propertyNames\":{\"type\":\"string\"},\"maxProperties\":1}", "{\"a\":1}", true},
    {TUPLE, "[1]", false},
    {TUPLE, "[1,true]", true},
    {TUPLE, "[ 1, true, null ]", true},
    {TUPLE, "[true,1]", false},
    {TUPLE, "[1,true,null,1]", false},
    {"{\"prefixItems\":[{\"type\":\"null\"}]}", "[]", true},
    {"{\"prefixItems\":[{\"type\":\"null\"}],\"maxItems\":0}", "[null]", false},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "0", false},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "0.00", false},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "0.012", true},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "1", true},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "1.01", false},
    {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":-0.5}", "-0.75", true},
    {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":-0.5}", "-0.4", false},
    {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":-0.5}", "0.75", false},
    {"{\"type\":\"integer\",\"minimum\":95,\"maximum\":1005}", "94", false},
    {"{\"type\":\"integer\",\"minimum\":95,\"maximum\":1005}", "95", true},
    {"{\"type\":\"integer\",\"minimum\":95,\"maximum\":1005}", "1005", true},
    {"{\"type\":\"integer\",\"minimum\":95,\"maximum\":1005}", "1006", false},
    {"{\"type\":\"integer\",\"maximum\":9007199254740991}", "9007199254740991", true},
    {"{\"type\":\"integer\",\"maximum\":9007199254740991}", "9007199254740992", false},
    {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "null", true},
    {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "null", true},
};

static void schemas_let_through_what_is_valid_and_nothing_else(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof fits / sizeof fits[0]; i++) {
        fit f = open_fit(fits[i].schema);
        push(&f, fits[i].text);
        bool whole = json_automaton_is_complete(f.automaton, f.state);
        if (whole != fits[i].fits) fail_msg("%s with %s", fits[i].schema, fits[i].text);
        close_fit(&f);
    }
}

/* --- the shortest way --------------------------------------------------------- */

static void shortest_way_closes_what_is_open_from_any_state(void **state) {
    static const struct {
        const char *schema, *text, *whole;
    } cases[] = {
        {PERSON, "", "{\"age\":0}"},
        {PERSON, "{\"name\":\"", "{\"name\":\"a\",\"age\":0}"},
        {PERSON, "{\"age\":15", "{\"age\":15}"},
        {PERSON, "{\"age\":15,", "{\"age\":15,\"on\":true}"},
        {TREE, "{\"c\":[{\"c\":[{", "{\"c\":[{\"c\":[{\"c\":[]}]}]}"},
        {"{}", "[[{\"a", "[[{\"a\":1}]]"},
        {"{}", "\"\\u00", "\"\\u00aa\""},
        {"{\"type\":\"string\",\"minLength\":5}", "\"x", "\"xaaaa\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t n = 0;
        char *text = closed(cases[i].schema, cases[i].text, &n);
        assert_string_equal(text, cases[i].whole);
        assert_int_equal(n, strlen(cases[i].whole) - strlen(cases[i].text));
        free(text);
    }
}

static void shortest_way_holds_when_memory_is_renewed(void **state) {
    (void)state;
    fit f = open_fit("{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":5000}}");
    size_t n_renewed = 0;
    push(&f, "[\"");
    for (int i = 0; i < 5000; i++) {
        push(&f, "a");
        n_renewed += json_automaton_tidy(f.automaton, &f.state);
    }
    assert_true(n_renewed > 0);
    assert_int_equal(json_automaton_step(f.automaton, f.state, 'a'), JSON_DEAD);
    assert_int_equal(json_automaton_close_bytes(f.automaton, f.state), 2);
    close_fit(&f);
}

/* What the sets of allowed tokens are kept by. */
static void states_far_from_the_bounds_of_a_string_are_alike(void **state) {
    enum { REACH = 16 };
    (void)state;
    fit f = open_fit("{\"type\":\"string\",\"minLength\":50,\"maxLength\":200}");
    uint64_t at[203];
    for (size_t i = 0; i <= 201; i++) { /* at[i]: behind the quote and i - 1 characters */
        at[i] = json_automaton_likeness(f.automaton, f.state, REACH);
        push(&f, i == 0 ? "\"" : i <= 200 ? "a" : "\"");
    }
    at[202] = json_automaton_likeness(f.automaton, f.state, REACH);
    assert_true(at[2] == at[20] && at[60] == at[160]);
    assert_true(at[20] != at[60] && at[20] != at[45] && at[45] != at[46] && at[160] != at[195]);
    assert_true(at[195] != at[196] && at[202] != at[201] && at[0] != at[1]);
    close_fit(&f);
}

static void free_json_stops_nesting(void **state) {
    (void)state;
    fit f = open_fit("{}");
    size_t depth = 0;
    for (; depth < 1000 && f.state != JSON_DEAD; depth++)
        push(&f, "[");
    assert_in_range(depth, 20, 200);
    close_fit(&f);
}

/* --- refusals ----------------------------------------------------------------- */

static void unsupported_schemas_are_refused_by_their_path(void **state) {
    static const struct {
        const char *schema, *param;
    } cases[] = {
        {"{\"properties\":{\"a\":{\"items\":{\"not\":{}}}}}", "schema.properties.a.items.not"},
        {"{\"anyOf\":[{},{\"if\":{}}]}", "schema.anyOf[1].if"},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"contains\":{}}}}", "#/$defs/a.contains"},
        {"{\"$ref\":\"#/$defs/b\"}", "schema.$ref"},
        {"{\"$ref\":\"#\"}", "schema"},
        {"{\"enum\":[1],\"minimum\":0}", "schema.minimum"},
        {"{\"type\":\"string\",\"enum\":[1]}", "schema.enum"},
        {"{\"type\":\"float\"}", "schema.type"},
        {"{\"pattern\":\"(?<a>b)\"}", "schema.pattern"},
        {"{\"pattern\":\"(a\"}", "schema.pattern"},
        {"{\"pattern\":\"[\"}", "schema.pattern"},
        {"{\"pattern\":\"a\\\\\"}", "schema.pattern"},
        {"{\"pattern\":\"*\"}", "schema.pattern"},
        {"{\"pattern\":\"a{3,2}\"}", "schema.pattern"},
        {"{\"pattern\":\"^a|b\"}", "schema.pattern"},
        {"{\"pattern\":\"a\",\"maxLength\":3}", "schema.pattern"},
        {"{\"maxLength\":-1}", "schema.maxLength"},
        {"{\"minItems\":1.5}", "schema.minItems"},
        {"{\"type\":\"number\",\"minimum\":1e300}", "schema.minimum"},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":1,\"exclusiveMaximum\":2}",
         "schema.minimum"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "schema.oneOf"},
        {"[]", "schema"},
        {"false", "schema"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char param[CHAT_PARAM_SIZE];
        error err = {0};
        json_grammar *g = compile(cases[i].schema, param, &err);
        if (g != NULL) fail_msg("%s is not refused", cases[i].schema);
        assert_string_equal(param, cases[i].param);
        assert_int_equal(strncmp(err.text, param, strlen(param)), 0);
    }
}

static void schema_larger_than_the_grammar_is_refused(void **state) {
    (void)state;
    json_text text = {0};
    char param[CHAT_PARAM_SIZE];
    error err = {0};
    json_text_format(&text, "{\"properties\":{");
    for (int i = 0; i < 2000; i++)
        json_text_format(&text, "%s\"a property that has number %d\":{}", i > 0 ? "," : "", i);
    json_text_format(&text, "}}");
    json_grammar *g = compile(text.bytes, param, &err);
    assert_null(g);
    assert_int_equal(err.code, STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "too large"));
    json_text_release(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemas_let_through_what_is_valid_and_nothing_else),
        cmocka_unit_test(shortest_way_closes_what_is_open_from_any_state),
        cmocka_unit_test(shortest_way_holds_when_memory_is_renewed),
        cmocka_unit_test(states_far_from_the_bounds_of_a_string_are_alike),
        cmocka_unit_test(free_json_stops_nesting),
        cmocka_unit_test(unsupported_schemas_are_refused_by_their_path),
        cmocka_unit_test(schema_larger_than_the_grammar_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
