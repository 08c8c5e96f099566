/* json_schema_parts.h - what the files that compile a schema share; nobody else's. */
#ifndef SILICEO_WORKER_TEXT_JSON_SCHEMA_PARTS_H
#define SILICEO_WORKER_TEXT_JSON_SCHEMA_PARTS_H

#include "worker/text/json_schema.h"

enum { SCHEMA_MAX_RULES = 4096 };

/* Sets of types.  "number" is both of the last. */
enum {
    SCHEMA_NULL = 1,
    SCHEMA_BOOLEAN = 2,
    SCHEMA_STRING = 4,
    SCHEMA_ARRAY = 8,
    SCHEMA_OBJECT = 16,
    SCHEMA_INTEGER = 32,
    SCHEMA_FRACTION = 64,
    SCHEMA_ANY = 127
};

/* Where in the schema: a chain on the stack. */
typedef struct schema_place {
    const struct schema_place *up;
    const char *name;
} schema_place;

typedef struct schema_pending {
    const cJSON *schema;
    uint32_t rule;
    char name[CHAT_PARAM_SIZE];
} schema_pending;

typedef struct schema_reader {
    json_grammar *grammar;
    const cJSON *root;
    schema_pending *pending; /* [SCHEMA_MAX_RULES] */
    uint32_t n_pending;
    char *param; /* [CHAT_PARAM_SIZE] */
    error *err;
} schema_reader;

/* keyword NULL: the place itself is at fault. */
status schema_refuse(schema_reader *r, const schema_place *at, const char *keyword,
                     const char *what);
const cJSON *schema_get(const cJSON *schema, const char *keyword);
/* Whether `required` lists the name. */
bool schema_requires(const cJSON *schema, const char *name);
/* The part of the schema that a $ref names, or NULL. */
const cJSON *schema_resolve(const schema_reader *r, const cJSON *ref);
status schema_build(schema_reader *r, const cJSON *schema, const schema_place *at,
                    uint32_t next, uint32_t *out);
/* The rules that schema_build() has called and that are not built yet. */
status json_schema_build_pending(schema_reader *r);

/* json_schema_values.c */

uint32_t schema_kind_of(const cJSON *value);
/* The types a schema allows: by `type`, else by its keywords, else all. */
status schema_types(schema_reader *r, const cJSON *schema, const schema_place *at,
                    uint32_t *out);
/* A count keyword, if it is there; more than JSON_GRAMMAR_MAX_COUNT is as good as no bound. */
status schema_count(schema_reader *r, const cJSON *schema, const schema_place *at,
                    const char *keyword, uint32_t *out);
/* Whether no value can be valid by two of these schemas; false where that is not seen. */
bool schema_branches_differ(const schema_reader *r, const cJSON *list);
status schema_build_string(schema_reader *r, const cJSON *schema, const schema_place *at,
                           uint32_t next, uint32_t *out);
status schema_build_number(schema_reader *r, const cJSON *schema, const schema_place *at,
                           bool integer, uint32_t next, uint32_t *out);

#endif
