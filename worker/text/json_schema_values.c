/* json_schema_values.c - types, strings and numbers of a schema, and which branches differ. */
#include "worker/text/json_schema_parts.h"

#include "worker/text/json_pattern.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_DEPTH = 32,
    MAX_BRANCHES = 32,
    MAX_LOOKS = 1000,
    MAX_PAIRS = 4096,
    MAX_DECIMALS = 6,
    MORE_DECIMALS = 4
};
static const double MAX_INTEGER = 9007199254740991.0, MAX_FRACTION = 1e9;

/* --- types --- */

uint32_t schema_kind_of(const cJSON *value) {
    if (cJSON_IsNull(value)) return SCHEMA_NULL;
    if (cJSON_IsBool(value)) return SCHEMA_BOOLEAN;
    if (cJSON_IsString(value)) return SCHEMA_STRING;
    if (cJSON_IsArray(value)) return SCHEMA_ARRAY;
    if (cJSON_IsObject(value)) return SCHEMA_OBJECT;
    return value->valuedouble == floor(value->valuedouble) ? SCHEMA_INTEGER : SCHEMA_FRACTION;
}

static uint32_t kind_named(const cJSON *name) {
    static const struct {
        const char *name;
        uint32_t kind;
    } names[] = {{"null", SCHEMA_NULL},
                 {"boolean", SCHEMA_BOOLEAN},
                 {"string", SCHEMA_STRING},
                 {"array", SCHEMA_ARRAY},
                 {"object", SCHEMA_OBJECT},
                 {"integer", SCHEMA_INTEGER},
                 {"number", SCHEMA_INTEGER | SCHEMA_FRACTION}};
    for (size_t i = 0; cJSON_IsString(name) && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name->valuestring, names[i].name) == 0) return names[i].kind;
    }
    return 0;
}

/* What the keywords of a schema without a type are about. */
static uint32_t kind_meant(const cJSON *schema) {
    static const struct {
        const char *keyword;
        uint32_t kind;
    } hints[] = {{"properties", SCHEMA_OBJECT},
                 {"required", SCHEMA_OBJECT},
                 {"additionalProperties", SCHEMA_OBJECT},
                 {"minProperties", SCHEMA_OBJECT},
                 {"maxProperties", SCHEMA_OBJECT},
                 {"items", SCHEMA_ARRAY},
                 {"prefixItems", SCHEMA_ARRAY},
                 {"propertyNames", SCHEMA_OBJECT},
                 {"minItems", SCHEMA_ARRAY},
                 {"maxItems", SCHEMA_ARRAY},
                 {"uniqueItems", SCHEMA_ARRAY},
                 {"pattern", SCHEMA_STRING},
                 {"format", SCHEMA_STRING},
                 {"minLength", SCHEMA_STRING},
                 {"maxLength", SCHEMA_STRING},
                 {"minimum", SCHEMA_INTEGER | SCHEMA_FRACTION},
                 {"maximum", SCHEMA_INTEGER | SCHEMA_FRACTION},
                 {"exclusiveMinimum", SCHEMA_INTEGER | SCHEMA_FRACTION},
                 {"exclusiveMaximum", SCHEMA_INTEGER | SCHEMA_FRACTION},
                 {"multipleOf", SCHEMA_INTEGER | SCHEMA_FRACTION}};
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        if (schema_get(schema, hints[i].keyword) != NULL) return hints[i].kind;
    }
    return SCHEMA_ANY;
}

static uint32_t read_kinds(const cJSON *schema) {
    const cJSON *type = schema_get(schema, "type");
    if (type == NULL) return kind_meant(schema);
    if (!cJSON_IsArray(type)) return kind_named(type);
    uint32_t kinds = 0;
    for (const cJSON *item = type->child; item != NULL; item = item->next) {
        if (kind_named(item) == 0) return 0;
        kinds |= kind_named(item);
    }
    return kinds;
}

status schema_types(schema_reader *r, const cJSON *schema, const schema_place *at,
                    uint32_t *out) {
    *out = read_kinds(schema);
    if (*out != 0) return STATUS_OK;
    return schema_refuse(r, at, "type", "is not a type of JSON Schema");
}

status schema_count(schema_reader *r, const cJSON *schema, const schema_place *at,
                    const char *keyword, uint32_t *out) {
    const cJSON *item = schema_get(schema, keyword);
    if (item == NULL) return STATUS_OK;
    double value = item->valuedouble;
    if (!cJSON_IsNumber(item) || !(value >= 0) || value != floor(value))
        return schema_refuse(r, at, keyword, "must be a whole number that is not negative");
    bool is_min = strncmp(keyword, "min", 3) == 0;
    if (value > JSON_GRAMMAR_MAX_COUNT) {
        if (is_min) return schema_refuse(r, at, keyword, "is more than any answer holds");
        return STATUS_OK;
    }
    *out = (uint32_t)value;
    return STATUS_OK;
}

/* --- branches --- */

static const cJSON *follow(const schema_reader *r, const cJSON *schema) {
    for (int depth = 0; depth < MAX_DEPTH; depth++) {
        const cJSON *ref = schema_get(schema, "$ref");
        const cJSON *all = schema_get(schema, "allOf");
        if (ref == NULL && !cJSON_IsArray(all)) return schema;
        schema = ref != NULL ? schema_resolve(r, ref) : all->child;
        if (schema == NULL) return NULL;
    }
    return NULL;
}

/* n_looks: schemas that may still be looked into; what is left unseen may be anything. */
static uint32_t possible_kinds(const schema_reader *r, const cJSON *schema, int *n_looks) {
    schema = follow(r, schema);
    if (!cJSON_IsObject(schema) || --*n_looks < 0) return SCHEMA_ANY;
    const cJSON *value = schema_get(schema, "const"), *list = schema_get(schema, "enum");
    if (value != NULL) return schema_kind_of(value);
    bool values = cJSON_IsArray(list);
    if (!values) list = schema_get(schema, "anyOf");
    if (list == NULL) list = schema_get(schema, "oneOf");
    if (!cJSON_IsArray(list)) {
        return schema_get(schema, "type") != NULL ? read_kinds(schema) : (uint32_t)SCHEMA_ANY;
    }
    uint32_t kinds = 0;
    for (const cJSON *item = list->child; item != NULL && kinds != SCHEMA_ANY;
         item = item->next)
        kinds |= values ? schema_kind_of(item) : possible_kinds(r, item, n_looks);
    return kinds;
}

static bool has_value(const cJSON *schema, const cJSON *value) {
    const cJSON *one = schema_get(schema, "const"), *list = schema_get(schema, "enum");
    if (one != NULL) return cJSON_Compare(one, value, true);
    for (const cJSON *item = list->child; item != NULL; item = item->next) {
        if (cJSON_Compare(item, value, true)) return true;
    }
    return false;
}

/* Both list their values, and none is in both. */
static bool values_differ(const cJSON *a, const cJSON *b) {
    const cJSON *one = schema_get(a, "const"), *list = schema_get(a, "enum");
    bool lists_b = schema_get(b, "const") != NULL || cJSON_IsArray(schema_get(b, "enum"));
    if (!lists_b || (one == NULL && !cJSON_IsArray(list))) return false;
    if (one != NULL) return !has_value(b, one);
    if ((int64_t)cJSON_GetArraySize(list) * cJSON_GetArraySize(schema_get(b, "enum")) >
        MAX_PAIRS)
        return false;
    for (const cJSON *item = list->child; item != NULL; item = item->next) {
        if (has_value(b, item)) return false;
    }
    return true;
}

/* Objects that a required property tells apart. */
static bool tags_differ(const schema_reader *r, const cJSON *a, const cJSON *b) {
    const cJSON *properties = schema_get(a, "properties");
    for (const cJSON *p = properties == NULL ? NULL : properties->child; p != NULL;
         p = p->next) {
        const cJSON *q = schema_get(schema_get(b, "properties"), p->string);
        if (q == NULL || !schema_requires(a, p->string) || !schema_requires(b, p->string))
            continue;
        const cJSON *one = follow(r, p), *other = follow(r, q);
        if (one != NULL && other != NULL && values_differ(one, other)) return true;
    }
    return false;
}

static bool pair_differs(const schema_reader *r, const cJSON *a, const cJSON *b) {
    int looks_a = MAX_LOOKS, looks_b = MAX_LOOKS;
    uint32_t one = possible_kinds(r, a, &looks_a), other = possible_kinds(r, b, &looks_b);
    uint32_t shared = one & other;
    if (shared == 0) return true;
    a = follow(r, a);
    b = follow(r, b);
    if (!cJSON_IsObject(a) || !cJSON_IsObject(b)) return false;
    return values_differ(a, b) || (shared == SCHEMA_OBJECT && tags_differ(r, a, b));
}

bool schema_branches_differ(const schema_reader *r, const cJSON *list) {
    if (cJSON_GetArraySize(list) > MAX_BRANCHES) return false;
    for (const cJSON *a = list->child; a != NULL; a = a->next) {
        for (const cJSON *b = a->next; b != NULL; b = b->next) {
            if (!pair_differs(r, a, b)) return false;
        }
    }
    return true;
}

/* --- strings --- */

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^(19|20)\\d\\d-(0[1-9]|1[0-2])-(0[1-9]|1\\d|2[0-8])$"},
    {"time",
     "^([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-](0\\d|1[0-3]):[0-5]\\d)$"},
    {"date-time",
     "^(19|20)\\d\\d-(0[1-9]|1[0-2])-(0[1-9]|1\\d|2[0-8])T([01]\\d|2[0-3]):[0-5]\\d"
     ":[0-5]\\d(\\.\\d{1,6})?(Z|[+-](0\\d|1[0-3]):[0-5]\\d)$"},
    {"email", "^[a-z0-9]+([._+-][a-z0-9]+){0,4}@([a-z0-9]{1,20}\\.){1,4}[a-z]{2,10}$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"},
    {"ipv4",
     "^((25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)$"},
    {"uri", "^https?://[a-z0-9]+([.-][a-z0-9]+){0,6}(/[A-Za-z0-9._~-]*){0,16}$"},
};

/* The pattern of the schema, or of its format; NULL without either.  Beside a pattern the format
 * is the note that JSON Schema takes it for: libraries write both, and mean the same. */
static status find_pattern(schema_reader *r, const cJSON *schema, const schema_place *at,
                           const char **keyword, const char **out) {
    const cJSON *pattern = schema_get(schema, "pattern"),
                *format = schema_get(schema, "format");
    *out = NULL;
    *keyword = pattern != NULL ? "pattern" : "format";
    if (pattern != NULL) {
        if (!cJSON_IsString(pattern))
            return schema_refuse(r, at, "pattern", "must be a string");
        *out = pattern->valuestring;
    }
    if (pattern != NULL || format == NULL) return STATUS_OK;
    for (size_t i = 0; cJSON_IsString(format) && i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(formats[i].name, format->valuestring) == 0) *out = formats[i].pattern;
    }
    if (*out != NULL) return STATUS_OK;
    return schema_refuse(r, at, "format",
                         "is none of date, time, date-time, email, uuid, ipv4 and uri");
}

status schema_build_string(schema_reader *r, const cJSON *schema, const schema_place *at,
                           uint32_t next, uint32_t *out) {
    uint32_t min = 0, max = JSON_UNBOUNDED;
    const char *pattern = NULL, *keyword = NULL;
    error cause = {0};
    status rc = schema_count(r, schema, at, "minLength", &min);
    if (rc == STATUS_OK) rc = schema_count(r, schema, at, "maxLength", &max);
    if (rc == STATUS_OK) rc = find_pattern(r, schema, at, &keyword, &pattern);
    if (rc != STATUS_OK) return rc;
    if (min > max) return schema_refuse(r, at, "minLength", "is more than maxLength");
    if (pattern == NULL) {
        *out = json_grammar_string(r->grammar, min, max, next);
        return STATUS_OK;
    }
    if (min > 0 || max != JSON_UNBOUNDED)
        return schema_refuse(r, at, keyword, "beside minLength or maxLength is not supported");
    rc = json_pattern_compile(r->grammar, pattern, next, out, &cause);
    if (rc != STATUS_BAD_INPUT) return rc;
    return schema_refuse(r, at, keyword, cause.text);
}

/* --- numbers --- */

/* Bounds of a number times a power of ten, both allowed themselves. */
typedef struct bounds {
    double lo, hi;
    bool over_lo, under_hi; /* exclusive */
    bool any;
} bounds;

static status read_bound(schema_reader *r, const cJSON *schema, const schema_place *at,
                         const char *keyword, bool lower, bounds *b) {
    const cJSON *item = schema_get(schema, keyword);
    bool exclusive = keyword[0] == 'e';
    if (item == NULL) return STATUS_OK;
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return schema_refuse(r, at, keyword, "must be a number");
    double value = item->valuedouble;
    b->any = true;
    if (lower && value >= b->lo) {
        b->over_lo = exclusive || (b->over_lo && value == b->lo);
        b->lo = value;
    } else if (!lower && value <= b->hi) {
        b->under_hi = exclusive || (b->under_hi && value == b->hi);
        b->hi = value;
    }
    return STATUS_OK;
}

static status read_bounds(schema_reader *r, const cJSON *schema, const schema_place *at,
                          double most, bounds *b) {
    *b = (bounds){.lo = -most, .hi = most};
    status rc = read_bound(r, schema, at, "minimum", true, b);
    if (rc == STATUS_OK) rc = read_bound(r, schema, at, "exclusiveMinimum", true, b);
    if (rc == STATUS_OK) rc = read_bound(r, schema, at, "maximum", false, b);
    if (rc == STATUS_OK) rc = read_bound(r, schema, at, "exclusiveMaximum", false, b);
    return rc;
}

static void whole_bounds(bounds *b) {
    b->over_lo = b->over_lo && b->lo == ceil(b->lo);
    b->under_hi = b->under_hi && b->hi == floor(b->hi);
    b->lo = ceil(b->lo);
    b->hi = floor(b->hi);
}

/* The decimals that a bound needs, or -1. */
static int decimals_of(double value) {
    double scale = 1;
    for (int n = 0; n <= MAX_DECIMALS; n++, scale *= 10) {
        if (round(value * scale) / scale == value) return n;
    }
    return -1;
}

static uint32_t either(json_grammar *g, uint32_t entry, uint32_t way) {
    return entry == UINT32_MAX ? way : json_grammar_either(g, entry, way);
}

/* Values lo to hi, scaled; negative ones are the mirror of positive ones. */
static uint32_t add_range(json_grammar *g, uint32_t entry, int64_t lo, int64_t hi,
                          uint32_t n_decimals, uint32_t n_more, uint32_t next) {
    if (lo > hi) return entry;
    if (hi >= 0) {
        uint64_t from = lo > 0 ? (uint64_t)lo : 0;
        uint32_t way = json_grammar_range(g, from, (uint64_t)hi, n_decimals, n_more, next);
        entry = either(g, entry, way);
    }
    if (lo < 0) {
        uint64_t from = hi < 0 ? (uint64_t)-hi : 1;
        uint32_t way = json_grammar_range(g, from, (uint64_t)-lo, n_decimals, n_more, next);
        entry = either(g, entry, json_grammar_literal(g, "-", 1, way));
    }
    return entry;
}

static status check_multiple(schema_reader *r, const cJSON *schema, const schema_place *at,
                             bool *integer) {
    const cJSON *multiple = schema_get(schema, "multipleOf");
    if (multiple == NULL) return STATUS_OK;
    if (!cJSON_IsNumber(multiple) || multiple->valuedouble != 1)
        return schema_refuse(r, at, "multipleOf", "of another number than 1 is not supported");
    *integer = true;
    return STATUS_OK;
}

static int64_t floor_divide(int64_t a, int64_t b) {
    return a / b - (a % b < 0);
}

status schema_build_number(schema_reader *r, const cJSON *schema, const schema_place *at,
                           bool integer, uint32_t next, uint32_t *out) {
    bounds b;
    status rc = check_multiple(r, schema, at, &integer);
    if (rc == STATUS_OK)
        rc = read_bounds(r, schema, at, integer ? MAX_INTEGER : MAX_FRACTION, &b);
    if (rc != STATUS_OK) return rc;
    if (!b.any) {
        *out = json_grammar_number(r->grammar, integer, next);
        return STATUS_OK;
    }
    if (integer) whole_bounds(&b);
    int n_lo = decimals_of(b.lo), n_hi = decimals_of(b.hi);
    double most = integer ? MAX_INTEGER : MAX_FRACTION;
    if (n_lo < 0 || n_hi < 0 || fabs(b.lo) > most || fabs(b.hi) > most) {
        return schema_refuse(r, at, n_lo < 0 || fabs(b.lo) > most ? "minimum" : "maximum",
                             integer ? "is out of what a double counts"
                                     : "has more than 6 decimals or is beyond 1e9");
    }
    int n = n_lo > n_hi ? n_lo : n_hi;
    if (!integer && n < 2) n = 2;
    int64_t scale = 1;
    for (int i = 0; i < n; i++)
        scale *= 10;
    int64_t lo = (int64_t)round(b.lo * (double)scale) + b.over_lo;
    int64_t hi = (int64_t)round(b.hi * (double)scale) - b.under_hi;
    uint32_t entry = UINT32_MAX;
    entry = add_range(r->grammar, entry, -floor_divide(-lo, scale), floor_divide(hi, scale), 0,
                      0, next);
    if (!integer) {
        uint32_t n_decimals = (uint32_t)n;
        entry = add_range(r->grammar, entry, lo, hi, n_decimals, 0, next);
        /* More digits go away from zero, up to the bound there. */
        entry = add_range(r->grammar, entry, lo > 0 ? lo : 0, hi - 1, n_decimals, MORE_DECIMALS,
                          next);
        entry = add_range(r->grammar, entry, lo + 1, hi < 0 ? hi : -1, n_decimals,
                          MORE_DECIMALS, next);
    }
    if (entry == UINT32_MAX)
        return schema_refuse(r, at, "minimum", "and maximum leave no number between them");
    *out = entry;
    return STATUS_OK;
}
