/* json_schema.c - reads a schema from its leaves and builds the grammar from its end. */
#include "worker/text/json_schema.h"

#include "worker/text/json_schema_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENUM = 1000, MAX_VALUES = 10000 };

/* --- places and refusals --- */

static void write_place(const schema_place *p, char *out, size_t size) {
    size_t length = 0;
    if (p->up != NULL) {
        write_place(p->up, out, size);
        length = strlen(out);
    }
    (void)snprintf(out + length, size - length, "%s%s", p->up != NULL ? "." : "", p->name);
}

status schema_refuse(schema_reader *r, const schema_place *at, const char *keyword,
                     const char *what) {
    const schema_place place = {at, keyword};
    write_place(keyword != NULL ? &place : at, r->param, CHAT_PARAM_SIZE);
    return error_set(r->err, STATUS_BAD_INPUT, "%s %s", r->param, what);
}

const cJSON *schema_get(const cJSON *schema, const char *keyword) {
    return cJSON_GetObjectItemCaseSensitive(schema, keyword);
}

bool schema_requires(const cJSON *schema, const char *name) {
    const cJSON *list = schema_get(schema, "required");
    for (const cJSON *item = cJSON_IsArray(list) ? list->child : NULL; item != NULL;
         item = item->next) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0) return true;
    }
    return false;
}

/* --- keywords that are not supported --- */

static const char *const refused[] = {"not",
                                      "if",
                                      "then",
                                      "else",
                                      "patternProperties",
                                      "dependentSchemas",
                                      "dependentRequired",
                                      "dependencies",
                                      "contains",
                                      "minContains",
                                      "maxContains",
                                      "additionalItems",
                                      "unevaluatedProperties",
                                      "unevaluatedItems",
                                      "$dynamicRef",
                                      "$recursiveRef"};

/* What says more than the keyword that decides alone. */
static const char *const constraints[] = {"$ref",
                                          "const",
                                          "enum",
                                          "anyOf",
                                          "oneOf",
                                          "allOf",
                                          "type",
                                          "properties",
                                          "required",
                                          "additionalProperties",
                                          "minProperties",
                                          "maxProperties",
                                          "items",
                                          "prefixItems",
                                          "propertyNames",
                                          "minItems",
                                          "maxItems",
                                          "minLength",
                                          "maxLength",
                                          "pattern",
                                          "format",
                                          "minimum",
                                          "maximum",
                                          "exclusiveMinimum",
                                          "exclusiveMaximum",
                                          "multipleOf",
                                          "uniqueItems"};

/* Names are strings: that may be said. */
static status check_names(schema_reader *r, const cJSON *schema, const schema_place *at) {
    const cJSON *names = schema_get(schema, "propertyNames");
    if (names == NULL || cJSON_IsTrue(names)) return STATUS_OK;
    const char *type = cJSON_GetStringValue(schema_get(names, "type"));
    bool says_more = names->child != NULL && names->child->next != NULL;
    if (cJSON_IsObject(names) && !says_more &&
        (names->child == NULL || (type != NULL && strcmp(type, "string") == 0)))
        return STATUS_OK;
    return schema_refuse(r, at, "propertyNames",
                         "of another schema than string is not supported");
}

static status check_keywords(schema_reader *r, const cJSON *schema, const schema_place *at) {
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (schema_get(schema, refused[i]) != NULL)
            return schema_refuse(r, at, refused[i], "is not supported");
    }
    status rc = check_names(r, schema, at);
    if (rc != STATUS_OK) return rc;
    const cJSON *id = schema_get(schema, "$id");
    if (id != NULL && at->up != NULL)
        return schema_refuse(r, at, "$id", "is supported at the root alone");
    return STATUS_OK;
}

/* A keyword that stands alone; `but` may stand beside it. */
static status check_alone(schema_reader *r, const cJSON *schema, const schema_place *at,
                          const char *keyword, const char *but) {
    for (size_t i = 0; i < sizeof constraints / sizeof constraints[0]; i++) {
        const char *other = constraints[i];
        if (strcmp(other, keyword) == 0 || (but != NULL && strcmp(other, but) == 0)) continue;
        if (schema_get(schema, other) == NULL) continue;
        char what[64];
        (void)snprintf(what, sizeof what, "beside %s is not supported", keyword);
        return schema_refuse(r, at, other, what);
    }
    return STATUS_OK;
}

/* --- references --- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* One part of a JSON pointer in a URI: %XX, then ~1 and ~0.  False: too long. */
static bool read_part(const char **at, char *out, size_t size) {
    size_t n = 0;
    for (; **at != '\0' && **at != '/'; (*at)++) {
        char c = **at;
        if (n + 1 >= size) return false;
        if (c == '%' && hex_digit((*at)[1]) >= 0 && hex_digit((*at)[2]) >= 0) {
            c = (char)(hex_digit((*at)[1]) * 16 + hex_digit((*at)[2]));
            *at += 2;
        } else if (c == '~' && ((*at)[1] == '0' || (*at)[1] == '1')) {
            c = (*at)[1] == '0' ? '~' : '/';
            (*at)++;
        }
        out[n++] = c;
    }
    out[n] = '\0';
    return true;
}

const cJSON *schema_resolve(const schema_reader *r, const cJSON *ref) {
    char part[256];
    if (!cJSON_IsString(ref) || ref->valuestring[0] != '#') return NULL;
    const cJSON *target = r->root;
    const char *at = ref->valuestring + 1;
    while (*at == '/' && target != NULL) {
        at++;
        if (!read_part(&at, part, sizeof part)) return NULL;
        if (cJSON_IsArray(target)) {
            char *end = NULL;
            long index = strtol(part, &end, 10);
            bool ok = end != part && *end == '\0' && index >= 0 && index < INT32_MAX;
            target = ok ? cJSON_GetArrayItem(target, (int)index) : NULL;
        } else {
            target = schema_get(target, part);
        }
    }
    return *at == '\0' ? target : NULL;
}

/* The rule of a schema that is entered by calls; it is built later. */
static uint32_t rule_of(schema_reader *r, const cJSON *schema, const schema_place *at) {
    for (uint32_t i = 0; i < r->n_pending; i++) {
        if (r->pending[i].schema == schema) return r->pending[i].rule;
    }
    if (r->n_pending == SCHEMA_MAX_RULES) {
        r->grammar->fault = STATUS_BAD_INPUT;
        return 0;
    }
    schema_pending *p = &r->pending[r->n_pending++];
    *p = (schema_pending){.schema = schema, .rule = json_grammar_rule(r->grammar)};
    write_place(at, p->name, sizeof p->name);
    return p->rule;
}

static status build_ref(schema_reader *r, const cJSON *schema, const schema_place *at,
                        uint32_t next, uint32_t *out) {
    status rc = check_alone(r, schema, at, "$ref", NULL);
    if (rc != STATUS_OK) return rc;
    const cJSON *ref = schema_get(schema, "$ref"), *target = schema_resolve(r, ref);
    if (target == NULL)
        return schema_refuse(r, at, "$ref", "does not lead to a part of this schema");
    const schema_place place = {NULL, ref->valuestring};
    *out = json_grammar_call(r->grammar, rule_of(r, target, &place), next);
    return STATUS_OK;
}

/* --- values written out --- */

static status build_constant(schema_reader *r, const cJSON *value, uint32_t next,
                             uint32_t *out) {
    char *text = json_print(value);
    if (text == NULL) return error_set(r->err, STATUS_NO_MEMORY, "no memory for a schema");
    *out = json_grammar_literal(r->grammar, text, strlen(text), next);
    free(text);
    return STATUS_OK;
}

static status build_enum(schema_reader *r, const cJSON *schema, const schema_place *at,
                         uint32_t next, uint32_t *out) {
    const cJSON *list = schema_get(schema, "enum");
    uint32_t kinds = SCHEMA_ANY, n = 0, entry = UINT32_MAX;
    status rc = check_alone(r, schema, at, "enum", "type");
    if (rc == STATUS_OK) rc = schema_types(r, schema, at, &kinds);
    if (rc != STATUS_OK) return rc;
    if (!cJSON_IsArray(list)) return schema_refuse(r, at, "enum", "must be an array");
    for (const cJSON *item = list->child; item != NULL; item = item->next) {
        uint32_t way = next;
        if (++n > MAX_ENUM) return schema_refuse(r, at, "enum", "has more than 1000 values");
        if ((schema_kind_of(item) & kinds) == 0) continue;
        rc = build_constant(r, item, next, &way);
        if (rc != STATUS_OK) return rc;
        entry = entry == UINT32_MAX ? way : json_grammar_either(r->grammar, entry, way);
    }
    if (entry == UINT32_MAX) return schema_refuse(r, at, "enum", "has no value of this type");
    *out = entry;
    return STATUS_OK;
}

static status build_const(schema_reader *r, const cJSON *schema, const schema_place *at,
                          uint32_t next, uint32_t *out) {
    const cJSON *value = schema_get(schema, "const");
    uint32_t kinds = SCHEMA_ANY;
    status rc = check_alone(r, schema, at, "const", "type");
    if (rc == STATUS_OK) rc = schema_types(r, schema, at, &kinds);
    if (rc != STATUS_OK) return rc;
    if ((schema_kind_of(value) & kinds) == 0)
        return schema_refuse(r, at, "const", "is not of this type");
    return build_constant(r, value, next, out);
}

/* --- alternatives --- */

static status build_branches(schema_reader *r, const cJSON *schema, const schema_place *at,
                             const char *keyword, uint32_t next, uint32_t *out) {
    const cJSON *list = schema_get(schema, keyword);
    status rc = check_alone(r, schema, at, keyword, NULL);
    if (rc != STATUS_OK) return rc;
    if (!cJSON_IsArray(list) || list->child == NULL)
        return schema_refuse(r, at, keyword, "must be an array of schemas");
    if (strcmp(keyword, "allOf") == 0 && list->child->next != NULL)
        return schema_refuse(r, at, keyword, "of more than one schema is not supported");
    if (strcmp(keyword, "oneOf") == 0 && !schema_branches_differ(r, list)) {
        return schema_refuse(r, at, keyword,
                             "has branches that may both be valid: only branches of different "
                             "types or with a different constant in a required property are "
                             "supported");
    }
    uint32_t entry = UINT32_MAX, n = 0;
    for (const cJSON *item = list->child; item != NULL; item = item->next, n++) {
        char name[48];
        (void)snprintf(name, sizeof name, "%s[%u]", keyword, n);
        const schema_place place = {at, name};
        uint32_t way = next;
        rc = schema_build(r, item, &place, next, &way);
        if (rc != STATUS_OK) return rc;
        entry = entry == UINT32_MAX ? way : json_grammar_either(r->grammar, entry, way);
    }
    *out = entry;
    return STATUS_OK;
}

/* --- arrays and objects --- */

/* A rule of any value, or of the schema under keyword; false: the schema is false. */
static status rule_under(schema_reader *r, const cJSON *item, const schema_place *at,
                         const char *keyword, uint32_t *rule, bool *none) {
    *none = cJSON_IsFalse(item);
    if (item == NULL || cJSON_IsTrue(item)) {
        *rule = json_grammar_any(r->grammar);
    } else if (cJSON_IsObject(item)) {
        const schema_place place = {at, keyword};
        *rule = rule_of(r, item, &place);
    } else if (!*none) {
        return schema_refuse(r, at, keyword, "must be a schema");
    }
    return STATUS_OK;
}

/* Items with a schema each, and none behind them.  From the last to the first: `rest` is what
 * may come before the item that was built last, its comma with it. */
static status build_tuple(schema_reader *r, const cJSON *schema, const schema_place *at,
                          uint32_t min, uint32_t max, uint32_t next, uint32_t *out) {
    json_grammar *g = r->grammar;
    const cJSON *list = schema_get(schema, "prefixItems");
    if (!cJSON_IsArray(list) || list->child == NULL)
        return schema_refuse(r, at, "prefixItems", "must be an array of schemas");
    uint32_t n = (uint32_t)cJSON_GetArraySize(list);
    if (min > n)
        return schema_refuse(r, at, "minItems", "of more than prefixItems is not supported");
    if (min > max) return schema_refuse(r, at, "minItems", "is more than there may be");
    uint32_t end = json_grammar_literal(g, "]", 1, next), first = end;
    uint32_t rest = json_grammar_space(g, end), closed = rest, i = n;
    for (const cJSON *item = list->child->prev; i-- > 0; item = item->prev) {
        if (i >= max) continue;
        char name[48];
        (void)snprintf(name, sizeof name, "prefixItems[%u]", i);
        const schema_place place = {at, name};
        uint32_t entry = JSON_RETURN;
        status rc = schema_build(r, item, &place, rest, &entry);
        if (rc != STATUS_OK) return rc;
        uint32_t comma = json_grammar_literal(g, ",", 1, json_grammar_space(g, entry));
        rest = json_grammar_space(g, comma);
        if (i >= min) rest = json_grammar_either(g, rest, closed);
        first = i >= min ? json_grammar_either(g, entry, end) : entry;
    }
    *out = json_grammar_literal(g, "[", 1, json_grammar_space(g, first));
    return STATUS_OK;
}

static status build_array(schema_reader *r, const cJSON *schema, const schema_place *at,
                          uint32_t next, uint32_t *out) {
    uint32_t min = 0, max = JSON_UNBOUNDED, rule = 0;
    bool none = false;
    status rc = schema_count(r, schema, at, "minItems", &min);
    if (rc == STATUS_OK) rc = schema_count(r, schema, at, "maxItems", &max);
    if (rc == STATUS_OK && schema_get(schema, "prefixItems") != NULL)
        return build_tuple(r, schema, at, min, max, next, out);
    if (rc == STATUS_OK)
        rc = rule_under(r, schema_get(schema, "items"), at, "items", &rule, &none);
    if (rc != STATUS_OK) return rc;
    if (none) max = 0;
    if (min > max) return schema_refuse(r, at, "minItems", "is more than there may be");
    if (cJSON_IsTrue(schema_get(schema, "uniqueItems")) && max > 1) {
        if (min > 1) return schema_refuse(r, at, "uniqueItems", "is not supported");
        max = 1;
    }
    *out = json_grammar_array(r->grammar, rule, min, max, next);
    return STATUS_OK;
}

static status build_map(schema_reader *r, const cJSON *schema, const schema_place *at,
                        uint32_t next, uint32_t *out) {
    uint32_t min = 0, max = JSON_UNBOUNDED, rule = 0;
    bool none = false;
    status rc = schema_count(r, schema, at, "minProperties", &min);
    if (rc == STATUS_OK) rc = schema_count(r, schema, at, "maxProperties", &max);
    if (rc == STATUS_OK)
        rc = rule_under(r, schema_get(schema, "additionalProperties"), at,
                        "additionalProperties", &rule, &none);
    if (rc != STATUS_OK) return rc;
    if (none) max = 0;
    if (min > 1)
        return schema_refuse(r, at, "minProperties", "of more than 1 is not supported");
    if (min > max) return schema_refuse(r, at, "minProperties", "is more than there may be");
    *out = json_grammar_map(r->grammar, rule, min, max, next);
    return STATUS_OK;
}

/* "name" : value */
static status build_property(schema_reader *r, const cJSON *property, const schema_place *at,
                             uint32_t next, uint32_t *out) {
    const schema_place properties = {at, "properties"}, place = {&properties, property->string};
    uint32_t value = next;
    status rc = schema_build(r, property, &place, next, &value);
    if (rc != STATUS_OK) return rc;
    json_text key = {0};
    json_text_string(&key, property->string, strlen(property->string));
    json_text_add(&key, ":", 1);
    if (key.failed) {
        rc = error_set(r->err, STATUS_NO_MEMORY, "no memory for a schema");
    } else {
        *out = json_grammar_literal(r->grammar, key.bytes, key.length,
                                    json_grammar_space(r->grammar, value));
    }
    json_text_release(&key);
    return rc;
}

static status check_object(schema_reader *r, const cJSON *schema, const schema_place *at) {
    const cJSON *properties = schema_get(schema, "properties");
    const cJSON *required = schema_get(schema, "required");
    uint32_t n = 0, n_required = 0, min = 0, max = JSON_UNBOUNDED;
    if (properties != NULL && !cJSON_IsObject(properties))
        return schema_refuse(r, at, "properties", "must be an object");
    if (required != NULL && !cJSON_IsArray(required))
        return schema_refuse(r, at, "required", "must be an array of names");
    for (const cJSON *p = properties == NULL ? NULL : properties->child; p != NULL;
         p = p->next, n++) {
        n_required += schema_requires(schema, p->string);
        if (schema_get(properties, p->string) != p)
            return schema_refuse(r, at, "properties", "names a property twice");
    }
    for (const cJSON *i = required == NULL ? NULL : required->child; i != NULL; i = i->next) {
        if (!cJSON_IsString(i) || schema_get(properties, i->valuestring) == NULL)
            return schema_refuse(r, at, "required", "names what is not in properties");
    }
    if (n == 0) return STATUS_OK; /* a map */
    status rc = schema_count(r, schema, at, "minProperties", &min);
    if (rc == STATUS_OK) rc = schema_count(r, schema, at, "maxProperties", &max);
    if (rc != STATUS_OK) return rc;
    if (min > n_required)
        return schema_refuse(r, at, "minProperties",
                             "of more than are required is not supported");
    if (max < n)
        return schema_refuse(r, at, "maxProperties",
                             "of fewer than are named is not supported");
    return STATUS_OK;
}

/* From the last property to the first.  first: nothing has been written yet; later: a
 * comma is due.  Each pair is built once and entered from both. */
static status build_object(schema_reader *r, const cJSON *schema, const schema_place *at,
                           uint32_t next, uint32_t *out) {
    json_grammar *g = r->grammar;
    const cJSON *properties = schema_get(schema, "properties");
    status rc = check_object(r, schema, at);
    if (rc != STATUS_OK) return rc;
    if (properties == NULL || properties->child == NULL)
        return build_map(r, schema, at, next, out);
    uint32_t end = json_grammar_literal(g, "}", 1, next), first = end;
    uint32_t later = json_grammar_space(g, end);
    const cJSON *p = properties->child->prev; /* cJSON: the first knows the last */
    for (;; p = p->prev) {
        uint32_t pair = JSON_RETURN;
        bool optional = !schema_requires(schema, p->string);
        if (cJSON_IsFalse(p) && optional) goto next_property;
        rc = build_property(r, p, at, later, &pair);
        if (rc != STATUS_OK) return rc;
        uint32_t comma = json_grammar_literal(g, ",", 1, json_grammar_space(g, pair));
        /* The space before a comma belongs to what follows the pair before. */
        comma = json_grammar_space(g, comma);
        later = optional ? json_grammar_either(g, comma, later) : comma;
        first = optional ? json_grammar_either(g, pair, first) : pair;
    next_property:
        if (p == properties->child) break;
    }
    *out = json_grammar_literal(g, "{", 1, json_grammar_space(g, first));
    return STATUS_OK;
}

/* --- any schema --- */

static status build_type(schema_reader *r, const cJSON *schema, const schema_place *at,
                         uint32_t kind, uint32_t next, uint32_t *out) {
    json_grammar *g = r->grammar;
    switch (kind) {
    case SCHEMA_NULL:
        *out = json_grammar_literal(g, "null", 4, next);
        return STATUS_OK;
    case SCHEMA_BOOLEAN:
        *out = json_grammar_either(g, json_grammar_literal(g, "true", 4, next),
                                   json_grammar_literal(g, "false", 5, next));
        return STATUS_OK;
    case SCHEMA_STRING:
        return schema_build_string(r, schema, at, next, out);
    case SCHEMA_INTEGER:
    case SCHEMA_FRACTION | SCHEMA_INTEGER:
        return schema_build_number(r, schema, at, kind == SCHEMA_INTEGER, next, out);
    case SCHEMA_ARRAY:
        return build_array(r, schema, at, next, out);
    default:
        return build_object(r, schema, at, next, out);
    }
}

static status build_types(schema_reader *r, const cJSON *schema, const schema_place *at,
                          uint32_t next, uint32_t *out) {
    static const uint32_t kinds[] = {SCHEMA_NULL,   SCHEMA_BOOLEAN,
                                     SCHEMA_STRING, SCHEMA_FRACTION | SCHEMA_INTEGER,
                                     SCHEMA_ARRAY,  SCHEMA_OBJECT};
    uint32_t wanted = 0, entry = UINT32_MAX;
    status rc = schema_types(r, schema, at, &wanted);
    if (rc != STATUS_OK) return rc;
    if (wanted == SCHEMA_ANY) {
        *out = json_grammar_call(r->grammar, json_grammar_any(r->grammar), next);
        return STATUS_OK;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        uint32_t kind = kinds[i] & wanted, way = next;
        if (kind == 0) continue;
        rc = build_type(r, schema, at, kind, next, &way);
        if (rc != STATUS_OK) return rc;
        entry = entry == UINT32_MAX ? way : json_grammar_either(r->grammar, entry, way);
    }
    *out = entry;
    return STATUS_OK;
}

status schema_build(schema_reader *r, const cJSON *schema, const schema_place *at,
                    uint32_t next, uint32_t *out) {
    static const char *const branches[] = {"anyOf", "oneOf", "allOf"};
    if (cJSON_IsTrue(schema)) {
        *out = json_grammar_call(r->grammar, json_grammar_any(r->grammar), next);
        return STATUS_OK;
    }
    if (cJSON_IsFalse(schema)) return schema_refuse(r, at, NULL, "is false: no value is valid");
    if (!cJSON_IsObject(schema)) return schema_refuse(r, at, NULL, "must be a schema");
    status rc = check_keywords(r, schema, at);
    if (rc != STATUS_OK) return rc;
    if (schema_get(schema, "$ref") != NULL) return build_ref(r, schema, at, next, out);
    if (schema_get(schema, "const") != NULL) return build_const(r, schema, at, next, out);
    if (schema_get(schema, "enum") != NULL) return build_enum(r, schema, at, next, out);
    for (size_t i = 0; i < sizeof branches / sizeof branches[0]; i++) {
        if (schema_get(schema, branches[i]) != NULL)
            return build_branches(r, schema, at, branches[i], next, out);
    }
    return build_types(r, schema, at, next, out);
}

/* Rules that were called and not built yet; building one may call others. */
status json_schema_build_pending(schema_reader *r) {
    for (uint32_t i = 0; i < r->n_pending; i++) {
        const schema_place at = {NULL, r->pending[i].name};
        uint32_t entry = JSON_RETURN;
        status rc = schema_build(r, r->pending[i].schema, &at, JSON_RETURN, &entry);
        if (rc != STATUS_OK) return rc;
        json_grammar_enter(r->grammar, r->pending[i].rule, entry);
    }
    return STATUS_OK;
}

/* Values in the tree, as far as limit; its depth is bounded by the parser. */
static size_t count_values(const cJSON *tree, size_t limit) {
    size_t n = 1;
    for (const cJSON *item = tree->child; item != NULL && n < limit; item = item->next)
        n += count_values(item, limit - n);
    return n;
}

status json_schema_compile(json_grammar **out, const cJSON *schema, const char *name,
                           char param[CHAT_PARAM_SIZE], error *err) {
    schema_reader r = {.root = schema, .param = param, .err = err};
    const schema_place root = {NULL, name};
    uint32_t entry = JSON_RETURN;
    error cause = {0};
    *out = NULL;
    status rc = json_grammar_new(&r.grammar, err);
    if (rc != STATUS_OK) return rc;
    r.pending = calloc(SCHEMA_MAX_RULES, sizeof *r.pending);
    if (r.pending == NULL) {
        rc = error_set(err, STATUS_NO_MEMORY, "no memory for a schema");
        goto fail;
    }
    if (schema == NULL) {
        uint32_t any = json_grammar_any(r.grammar);
        entry = json_grammar_map(r.grammar, any, 0, JSON_UNBOUNDED, JSON_RETURN);
    } else {
        if (count_values(schema, MAX_VALUES) >= MAX_VALUES) {
            rc = schema_refuse(&r, &root, NULL, "is too large: it has more than 10000 values");
            goto fail;
        }
        rc = schema_build(&r, schema, &root, JSON_RETURN, &entry);
        if (rc == STATUS_OK) rc = json_schema_build_pending(&r);
        if (rc != STATUS_OK) goto fail;
    }
    /* White space before the document: models begin an answer with a line end or two. */
    entry = json_grammar_space(r.grammar, json_grammar_space(r.grammar, entry));
    json_grammar_enter(r.grammar, 0, entry);
    rc = json_grammar_finish(r.grammar, &cause);
    if (rc == STATUS_BAD_INPUT) {
        rc = schema_refuse(&r, &root, NULL, cause.text);
    } else if (rc != STATUS_OK) {
        rc = error_set(err, rc, "%s", cause.text);
    }
    if (rc != STATUS_OK) goto fail;
    free(r.pending);
    *out = r.grammar;
    return STATUS_OK;
fail:
    free(r.pending);
    json_grammar_free(r.grammar);
    return rc;
}
