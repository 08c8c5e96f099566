#include "worker/text/tool_grammar.h"

#include "worker/text/json_schema_parts.h"
#include "worker/text/tool_schema.h"
#include <stdlib.h>
#include <string.h>

static const char value_close[] = "</parameter>";

enum { MAX_KEY = 128 };

typedef struct builder {
    json_grammar *grammar;
    uint32_t unit, less; /* rules: a piece of a text, a '<' */
    uint32_t letter;     /* rule: of a name */
} builder;

static uint32_t words(builder *b, const char *text, uint32_t next) {
    return json_grammar_literal(b->grammar, text, strlen(text), next);
}

/* --- texts --- */

/* A character of a text, but for two. */
static uint32_t character(builder *b, char but, char nor, uint32_t next) {
    json_bytes set = {{0}};
    for (unsigned c = '\t'; c <= '~'; c++) {
        if (c >= ' ' || c == '\t' || c == '\n' || c == '\r')
            json_bytes_add(&set, (unsigned char)c, (unsigned char)c);
    }
    const unsigned char out[] = {(unsigned char)but, (unsigned char)nor};
    for (size_t i = 0; i < sizeof out; i++)
        set.bits[out[i] >> 6] &= ~((uint64_t)1 << (out[i] & 63));
    return json_grammar_either(b->grammar, json_grammar_class(b->grammar, &set, next),
                               json_grammar_beyond_ascii(b->grammar, false, next));
}

/* A piece is a character, or as much of the closing tag as does not become one. */
static void make_rules(builder *b) {
    json_grammar *g = b->grammar;
    b->less = json_grammar_rule(g);
    json_grammar_enter(g, b->less, words(b, "<", JSON_RETURN));
    uint32_t entry = character(b, '<', '<', JSON_RETURN), tag = UINT32_MAX;
    for (size_t n = sizeof value_close - 2; n >= 1; n--) {
        uint32_t other = character(b, value_close[n], '<', JSON_RETURN);
        tag = tag == UINT32_MAX ? other : json_grammar_either(g, tag, other);
        if (n > 1) tag = json_grammar_literal(g, &value_close[n - 1], 1, tag);
    }
    entry =
        json_grammar_either(g, entry, json_grammar_repeat(g, b->less, 1, JSON_UNBOUNDED, tag));
    b->unit = json_grammar_rule(g);
    json_grammar_enter(g, b->unit, entry);
    json_bytes name = {{0}};
    json_bytes_add(&name, '0', '9');
    json_bytes_add(&name, 'A', 'Z');
    json_bytes_add(&name, 'a', 'z');
    json_bytes_add(&name, '_', '_');
    b->letter = json_grammar_rule(g);
    json_grammar_enter(g, b->letter, json_grammar_class(g, &name, JSON_RETURN));
}

static uint32_t free_text(builder *b, uint32_t next) {
    return json_grammar_repeat(b->grammar, b->unit, 0, JSON_UNBOUNDED, next);
}

static bool is_writable(const char *text) {
    return strlen(text) > 0 && strlen(text) <= MAX_KEY && strpbrk(text, "<>\n\r\"'") == NULL &&
           text[0] != ' ' && text[strlen(text) - 1] != ' ';
}

/* One of the strings of an enum; UINT32_MAX: there is none, or one that is no line. */
static uint32_t one_of(builder *b, const cJSON *list, uint32_t next) {
    uint32_t entry = UINT32_MAX;
    if (!cJSON_IsArray(list)) return entry;
    for (const cJSON *item = list->child; item != NULL; item = item->next) {
        if (!cJSON_IsString(item) || !is_writable(item->valuestring)) return UINT32_MAX;
        uint32_t way = words(b, item->valuestring, next);
        entry = entry == UINT32_MAX ? way : json_grammar_either(b->grammar, entry, way);
    }
    return entry;
}

/* --- parameters --- */

/* reader NULL: the schemas are not followed. */
static status build_value(builder *b, schema_reader *reader, const cJSON *parameters,
                          const cJSON *property, uint32_t next, uint32_t *out) {
    unsigned types = tool_schema_types(parameters, property->string, strlen(property->string));
    if ((types & TOOL_STRING) != 0) {
        *out =
            types == TOOL_STRING ? one_of(b, schema_get(property, "enum"), next) : UINT32_MAX;
        if (*out == UINT32_MAX) *out = free_text(b, next);
        return STATUS_OK;
    }
    if (reader == NULL) {
        *out = json_grammar_call(b->grammar, json_grammar_any(b->grammar), next);
        return STATUS_OK;
    }
    const schema_place place = {NULL, property->string};
    return schema_build(reader, property, &place, next, out);
}

static uint32_t any_parameters(builder *b, uint32_t end) {
    json_grammar *g = b->grammar;
    uint32_t rule = json_grammar_rule(g);
    uint32_t value = free_text(b, words(b, "\n</parameter>\n", JSON_RETURN));
    uint32_t key = json_grammar_repeat(g, b->letter, 1, MAX_KEY, words(b, ">\n", value));
    json_grammar_enter(g, rule, words(b, "<parameter=", key));
    return json_grammar_repeat(g, rule, 0, JSON_UNBOUNDED, end);
}

/* What stands between the name's line and the end, from the last to the first. */
static status build_parameters(builder *b, schema_reader *reader, const cJSON *parameters,
                               uint32_t *out) {
    const cJSON *properties = schema_get(parameters, "properties");
    uint32_t rest = words(b, "</function>\n", JSON_RETURN);
    if (!cJSON_IsObject(properties) || properties->child == NULL) {
        bool none = cJSON_IsFalse(schema_get(parameters, "additionalProperties"));
        *out = none ? rest : any_parameters(b, rest);
        return STATUS_OK;
    }
    for (const cJSON *p = properties->child->prev;; p = p->prev) {
        if (is_writable(p->string)) {
            uint32_t entry = JSON_RETURN;
            status rc = build_value(b, reader, parameters, p,
                                    words(b, "\n</parameter>\n", rest), &entry);
            if (rc != STATUS_OK) return rc;
            entry = words(b, "<parameter=", words(b, p->string, words(b, ">\n", entry)));
            rest = schema_requires(parameters, p->string)
                       ? entry
                       : json_grammar_either(b->grammar, entry, rest);
        }
        if (p == properties->child) break;
    }
    *out = rest;
    return STATUS_OK;
}

/* --- tools --- */

static const cJSON *function_of(const cJSON *tool) {
    const cJSON *function = schema_get(tool, "function");
    return function != NULL ? function : tool;
}

static status build_tool(builder *b, schema_reader *reader, const cJSON *tool, uint32_t *out) {
    const cJSON *function = function_of(tool);
    const char *name = cJSON_GetStringValue(schema_get(function, "name"));
    uint32_t rest = JSON_RETURN;
    if (reader != NULL) reader->root = schema_get(function, "parameters");
    status rc = build_parameters(b, reader, schema_get(function, "parameters"), &rest);
    if (rc == STATUS_OK && reader != NULL) rc = json_schema_build_pending(reader);
    *out = words(b, name == NULL ? "" : name, words(b, ">\n", rest));
    return rc;
}

/* A grammar of one tool alone tells whether its schemas can be followed. */
static status try_tool(const cJSON *tool, schema_pending *pending, bool *follows, error *err) {
    char param[CHAT_PARAM_SIZE] = "";
    error cause = {0};
    builder b = {0};
    uint32_t entry = JSON_RETURN;
    schema_reader reader = {.pending = pending, .param = param, .err = &cause};
    status rc = json_grammar_new(&b.grammar, err);
    if (rc != STATUS_OK) return rc;
    reader.grammar = b.grammar;
    make_rules(&b);
    rc = build_tool(&b, &reader, tool, &entry);
    json_grammar_enter(b.grammar, 0, entry);
    if (rc == STATUS_OK) rc = json_grammar_finish(b.grammar, &cause);
    json_grammar_free(b.grammar);
    *follows = rc == STATUS_OK;
    return rc == STATUS_NO_MEMORY ? error_set(err, rc, "no memory for a tool") : STATUS_OK;
}

static status build_tools(builder *b, schema_pending *pending, const cJSON *tools,
                          const char *only, error *err) {
    char param[CHAT_PARAM_SIZE] = "";
    uint32_t entry = UINT32_MAX;
    for (const cJSON *tool = tools->child; tool != NULL; tool = tool->next) {
        const char *name = cJSON_GetStringValue(schema_get(function_of(tool), "name"));
        if (name == NULL || (only != NULL && strcmp(name, only) != 0)) continue;
        bool follows = false;
        uint32_t way = JSON_RETURN;
        status rc = try_tool(tool, pending, &follows, err);
        schema_reader reader = {
            .grammar = b->grammar, .pending = pending, .param = param, .err = err};
        if (rc == STATUS_OK) rc = build_tool(b, follows ? &reader : NULL, tool, &way);
        if (rc != STATUS_OK) return rc;
        entry = entry == UINT32_MAX ? way : json_grammar_either(b->grammar, entry, way);
    }
    if (entry == UINT32_MAX) return error_set(err, STATUS_BAD_INPUT, "there is no such tool");
    json_grammar_enter(b->grammar, 0, words(b, "\n<function=", entry));
    return STATUS_OK;
}

status tool_grammar_compile(json_grammar **out, const cJSON *tools, const char *only,
                            error *err) {
    builder b = {0};
    *out = NULL;
    schema_pending *pending = calloc(SCHEMA_MAX_RULES, sizeof *pending);
    status rc = pending == NULL ? error_set(err, STATUS_NO_MEMORY, "no memory for the tools")
                                : json_grammar_new(&b.grammar, err);
    if (rc != STATUS_OK) goto done;
    make_rules(&b);
    rc = build_tools(&b, pending, tools, only, err);
    if (rc == STATUS_OK) rc = json_grammar_finish(b.grammar, err);
    if (rc != STATUS_OK) goto done;
    *out = b.grammar;
    b.grammar = NULL;
done:
    json_grammar_free(b.grammar);
    free(pending);
    return rc;
}
