/* json_schema.h - a JSON Schema as a grammar whose every document is valid by it.
 *
 * Supported: type (a name or a list), properties, required, additionalProperties,
 * minProperties and maxProperties of maps, propertyNames that says string, items, prefixItems,
 * minItems, maxItems, enum, const, anyOf,
 * oneOf whose branches exclude each other, allOf of one, $ref within the schema (recursive,
 * too), minLength, maxLength, pattern (see json_pattern.h; a format beside it is a note), the
 * formats date, time, date-time, email, uuid, ipv4 and uri, minimum, maximum, exclusiveMinimum and exclusiveMaximum,
 * true and {}.  Annotations are ignored; a keyword that would change what is valid and is
 * not of these is refused by its path.
 *
 * The grammar gives a part of what is valid: properties come in the order of the
 * schema, those that it does not name are not written where it names any, nor items behind
 * prefixItems, numbers have up
 * to 15 digits, and a schema without a type that has keywords of one type gives that type.
 * No state; any thread.  The grammar keeps nothing of the schema's tree.
 */
#ifndef SILICEO_WORKER_TEXT_JSON_SCHEMA_H
#define SILICEO_WORKER_TEXT_JSON_SCHEMA_H

#include "common/chat_request.h"
#include "common/error.h"
#include "common/json.h"
#include "worker/text/json_grammar.h"

/* name: of the schema in the request; on STATUS_BAD_INPUT param is the path at fault.  A
 * schema of NULL is any object.  The caller frees. */
status json_schema_compile(json_grammar **out, const cJSON *schema, const char *name,
                           char param[CHAT_PARAM_SIZE], error *err);

#endif
