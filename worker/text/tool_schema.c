#include "worker/text/tool_schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NESTING = 8 }; /* of anyOf and $ref: a schema may lead round in circles */

static const cJSON *get(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static bool equals(const char *word, const char *text, size_t length) {
    return word != NULL && strlen(word) == length && memcmp(word, text, length) == 0;
}

static const cJSON *find_key(const cJSON *object, const char *key, size_t n_key) {
    const cJSON *item = cJSON_IsObject(object) ? object->child : NULL;
    while (item != NULL && !equals(item->string, key, n_key))
        item = item->next;
    return item;
}

bool tool_schema_find(const cJSON *tools, const char *name, size_t n_name,
                      const cJSON **parameters) {
    *parameters = NULL;
    for (const cJSON *tool = tools != NULL ? tools->child : NULL; tool != NULL;
         tool = tool->next) {
        const cJSON *function = get(tool, "function");
        if (function == NULL) function = tool;
        if (!equals(cJSON_GetStringValue(get(function, "name")), name, n_name)) continue;
        *parameters = get(function, "parameters");
        return true;
    }
    return false;
}

bool tool_schema_has(const cJSON *parameters, const char *key, size_t n_key) {
    return find_key(get(parameters, "properties"), key, n_key) != NULL;
}

/* --- types --- */

static unsigned type_named(const char *name) {
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {{"string", TOOL_STRING},   {"integer", TOOL_INTEGER}, {"number", TOOL_NUMBER},
                 {"boolean", TOOL_BOOLEAN}, {"null", TOOL_NULL},       {"object", TOOL_OBJECT},
                 {"array", TOOL_ARRAY}};
    for (size_t i = 0; name != NULL && i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, name) == 0) return types[i].type;
    }
    return 0;
}

static unsigned type_of(const cJSON *value) {
    if (cJSON_IsString(value)) return TOOL_STRING;
    if (cJSON_IsBool(value)) return TOOL_BOOLEAN;
    if (cJSON_IsNull(value)) return TOOL_NULL;
    if (cJSON_IsObject(value)) return TOOL_OBJECT;
    if (cJSON_IsArray(value)) return TOOL_ARRAY;
    double v = value->valuedouble;
    return v < floor(v) || v > floor(v) ? TOOL_NUMBER : TOOL_NUMBER | TOOL_INTEGER;
}

/* "#/$defs/city" from the root of the parameters; NULL: it leads nowhere here. */
static const cJSON *follow(const cJSON *root, const char *path) {
    if (path == NULL || path[0] != '#') return NULL;
    const cJSON *at = root;
    for (path++; at != NULL && *path == '/';) {
        size_t n = strcspn(++path, "/");
        at = find_key(at, path, n);
        path += n;
    }
    return at;
}

static unsigned types_of(const cJSON *root, const cJSON *schema, int nesting);

static unsigned types_of_all(const cJSON *root, const cJSON *list, int nesting) {
    unsigned types = 0;
    for (const cJSON *item = list->child; item != NULL; item = item->next)
        types |= types_of(root, item, nesting + 1);
    return types;
}

static unsigned types_of(const cJSON *root, const cJSON *schema, int nesting) {
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    if (!cJSON_IsObject(schema) || nesting > MAX_NESTING) return TOOL_ANY;
    const cJSON *type = get(schema, "type"), *values = get(schema, "enum");
    const cJSON *value = get(schema, "const");
    unsigned types = type_named(cJSON_GetStringValue(type));
    if (cJSON_IsArray(type)) {
        for (const cJSON *item = type->child; item != NULL; item = item->next)
            types |= type_named(cJSON_GetStringValue(item));
    }
    if (types != 0) return types;
    if (value != NULL) return type_of(value);
    for (const cJSON *item = cJSON_IsArray(values) ? values->child : NULL; item != NULL;
         item = item->next) {
        types |= type_of(item);
    }
    for (size_t i = 0; types == 0 && i < sizeof lists / sizeof lists[0]; i++) {
        const cJSON *list = get(schema, lists[i]);
        if (cJSON_IsArray(list)) types = types_of_all(root, list, nesting);
    }
    if (types != 0) return types;
    const char *path = cJSON_GetStringValue(get(schema, "$ref"));
    return path != NULL ? types_of(root, follow(root, path), nesting + 1) : TOOL_ANY;
}

unsigned tool_schema_types(const cJSON *parameters, const char *key, size_t n_key) {
    return types_of(parameters, find_key(get(parameters, "properties"), key, n_key), 0);
}

/* --- values --- */

static void add_word(json_text *out, const char *word) {
    json_text_add(out, word, strlen(word));
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The literals of JSON and of Python, which the chat template writes. */
static bool add_literal(json_text *out, unsigned types, const char *text, size_t n) {
    if ((types & TOOL_NULL) != 0 && (equals("null", text, n) || equals("None", text, n))) {
        add_word(out, "null");
        return true;
    }
    if ((types & TOOL_BOOLEAN) == 0) return false;
    bool yes = equals("true", text, n) || equals("True", text, n);
    if (!yes && !equals("false", text, n) && !equals("False", text, n)) return false;
    add_word(out, yes ? "true" : "false");
    return true;
}

/* 5.0 for an integer is 5; beyond 2^53 a double no longer says which integer it is. */
static bool add_number(json_text *out, unsigned types, const cJSON *number) {
    const char *text = number->valuestring;
    double v = number->valuedouble;
    if (text == NULL || !isfinite(v)) return false;
    if ((types & TOOL_NUMBER) != 0 || strpbrk(text, ".eE") == NULL) {
        add_word(out, text);
        return (types & (TOOL_NUMBER | TOOL_INTEGER)) != 0;
    }
    if ((types & TOOL_INTEGER) == 0 || fabs(v) > 9007199254740992.0 || v < floor(v) ||
        v > floor(v)) {
        return false;
    }
    json_text_format(out, "%.0f", v);
    return true;
}

static bool add_json(json_text *out, const cJSON *value) {
    char *text = json_print(value);
    if (text == NULL) {
        out->failed = true;
        return false;
    }
    add_word(out, text);
    free(text);
    return true;
}

static bool add_parsed(json_text *out, unsigned types, const char *text, size_t n) {
    bool may_number = (types & (TOOL_NUMBER | TOOL_INTEGER)) != 0 &&
                      (text[0] == '-' || (text[0] >= '0' && text[0] <= '9'));
    bool may_nest = ((types & TOOL_OBJECT) != 0 && text[0] == '{') ||
                    ((types & TOOL_ARRAY) != 0 && text[0] == '[');
    cJSON *value = NULL;
    bool added = false;
    if (!may_number && !may_nest) return false;
    if (json_parse(&value, text, n, "argument", NULL) != STATUS_OK) return false;
    added = may_number ? add_number(out, types, value) : add_json(out, value);
    cJSON_Delete(value);
    return added;
}

void tool_schema_value(json_text *out, unsigned types, const char *text, size_t length) {
    size_t from = 0, to = length;
    while (from < to && is_blank(text[from]))
        from++;
    while (to > from && is_blank(text[to - 1]))
        to--;
    if (to > from && add_literal(out, types, text + from, to - from)) return;
    if (to > from && add_parsed(out, types, text + from, to - from)) return;
    json_text_string(out, text, length);
}

void tool_schema_object(json_text *out, const cJSON *parameters, const cJSON *arguments) {
    add_word(out, "{");
    for (const cJSON *item = arguments->child; item != NULL; item = item->next) {
        if (item != arguments->child) add_word(out, ",");
        json_text_string(out, item->string, strlen(item->string));
        add_word(out, ":");
        unsigned types = tool_schema_types(parameters, item->string, strlen(item->string));
        if (cJSON_IsString(item) && (types & TOOL_STRING) == 0) {
            tool_schema_value(out, types, item->valuestring, strlen(item->valuestring));
        } else {
            (void)add_json(out, item);
        }
    }
    add_word(out, "}");
}
