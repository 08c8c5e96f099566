/* json_pattern.h - a regular expression of a schema as the inside of a JSON string.
 *
 * The common part of ECMA-262's syntax: literals, . [] [^] \d \w \s and their negations,
 * groups, | and the quantifiers ? * + {m} {m,} {m,n}; ^ only at the very beginning and $ only
 * at the very end.  A pattern without them may stand anywhere in the string, as JSON Schema
 * says.  Refused by name: looking around, back references, \b, \p, characters beyond ASCII
 * in a class.  Negated classes hold what is printable; those with an escape in them, ASCII.
 */
#ifndef SILICEO_WORKER_TEXT_JSON_PATTERN_H
#define SILICEO_WORKER_TEXT_JSON_PATTERN_H

#include "worker/text/json_grammar.h"

enum { JSON_PATTERN_MAX_BYTES = 1024 };

/* A string, quotes and all, that the pattern fits, then next.  The error says what of the
 * pattern is not supported. */
status json_pattern_compile(json_grammar *g, const char *pattern, uint32_t next, uint32_t *out,
                            error *err);

#endif
