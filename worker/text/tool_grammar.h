/* tool_grammar.h - what a call of one of the tools looks like, as a grammar of bytes.
 *
 *     \n<function=get_weather>\n          behind <tool_call>, which is a token of its own
 *     <parameter=city>\nParis\n</parameter>\n
 *     </function>\n
 *
 * The name is one of the tools', all required parameters come, in the order of the schema, and
 * a value that is no text fits its schema as far as json_schema knows it, else is any JSON.  A
 * text may be anything without a closing tag of its own; of an enum, one of its strings.  A tool
 * that names no parameters may get any.  No state; any thread.  The grammar keeps nothing of the
 * tools' tree.
 */
#ifndef SILICEO_WORKER_TEXT_TOOL_GRAMMAR_H
#define SILICEO_WORKER_TEXT_TOOL_GRAMMAR_H

#include "common/error.h"
#include "common/json.h"
#include "worker/text/json_grammar.h"

/* tools: a request's checked array.  only: the name of the one that may be called, or NULL.
 * STATUS_BAD_INPUT: they are too large to be followed.  The caller frees. */
status tool_grammar_compile(json_grammar **out, const cJSON *tools, const char *only,
                            error *err);

#endif
