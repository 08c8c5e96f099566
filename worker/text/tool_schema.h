/* tool_schema.h - what a request's tools say of a call's arguments, and texts made to fit it.
 *
 * A model writes every argument as text.  The JSON schema of the parameter says what
 * it is: its types, those of its enum, const, anyOf, oneOf and allOf, and where a local $ref
 * leads.  A text that is nothing of what is allowed stays a string, so that
 * the client sees what was written.  No state; any thread.
 */
#ifndef SILICEO_WORKER_TEXT_TOOL_SCHEMA_H
#define SILICEO_WORKER_TEXT_TOOL_SCHEMA_H

#include "common/json.h"
#include <stdbool.h>
#include <stddef.h>

enum {
    TOOL_STRING = 1,
    TOOL_INTEGER = 2,
    TOOL_NUMBER = 4,
    TOOL_BOOLEAN = 8,
    TOOL_NULL = 16,
    TOOL_OBJECT = 32,
    TOOL_ARRAY = 64,
    TOOL_ANY = 127
};

/* Is there a tool of this name?  tools is the request's array, or NULL.  *parameters gets
 * its schema, NULL where it has none. */
bool tool_schema_find(const cJSON *tools, const char *name, size_t n_name,
                      const cJSON **parameters);
/* Does the schema name this parameter? */
bool tool_schema_has(const cJSON *parameters, const char *key, size_t n_key);
/* The allowed types of a parameter; TOOL_ANY where nothing is said. */
unsigned tool_schema_types(const cJSON *parameters, const char *key, size_t n_key);

/* Append the text as JSON of one of the types; a string where it is none of them. */
void tool_schema_value(json_text *out, unsigned types, const char *text, size_t length);
/* Append arguments that came as JSON, with strings made to fit where no string is allowed. */
void tool_schema_object(json_text *out, const cJSON *parameters, const cJSON *arguments);

#endif
