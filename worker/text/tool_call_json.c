/* tool_call_json.c - calls that are written as JSON.  In <tool_call>: an object with a name
 * and arguments (or parameters), themselves an object or a string of JSON.  In <function=...>:
 * the arguments alone. */
#include "worker/text/tool_call_parts.h"

#include "worker/text/tool_schema.h"
#include <string.h>

enum { MAX_DEPTH = 64 }; /* json_parse() refuses more */

void tool_call_json_begin(tool_call *t) {
    t->json_at = t->value.length;
    t->depth = 0;
    t->is_array = 0;
    t->in_string = t->escaped = false;
}

static void take_string_byte(tool_call *t, char c) {
    if (t->escaped)
        t->escaped = false;
    else if (c == '\\')
        t->escaped = true;
    else if (c == '"')
        t->in_string = false;
}

bool tool_call_json_byte(tool_call *t, char c) {
    if (t->in_string) {
        take_string_byte(t, c);
        return false;
    }
    if (c == '"') t->in_string = true;
    if (c == '{' || c == '[') {
        if (t->depth < MAX_DEPTH) {
            uint64_t bit = (uint64_t)1 << t->depth;
            t->is_array = c == '[' ? t->is_array | bit : t->is_array & ~bit;
        }
        t->depth++;
    }
    return (c == '}' || c == ']') && t->depth > 0 && --t->depth == 0;
}

static void close_brackets(tool_call *t) {
    if (t->in_string || t->depth > MAX_DEPTH) return;
    while (t->depth > 0) {
        t->depth--;
        json_text_add(&t->value, (t->is_array >> t->depth & 1) != 0 ? "]" : "}", 1);
    }
}

/* NULL: there are none.  *owned is what the caller deletes, where they came as a string. */
static const cJSON *find_arguments(const cJSON *call, cJSON **owned) {
    const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(call, "arguments");
    if (arguments == NULL) arguments = cJSON_GetObjectItemCaseSensitive(call, "parameters");
    if (cJSON_IsString(arguments)) {
        const char *text = arguments->valuestring;
        if (json_parse(owned, text, strlen(text), "arguments", NULL) == STATUS_OK)
            arguments = *owned;
    }
    return arguments;
}

/* Everything but the last brace. */
static void give_arguments(tool_call *t, const cJSON *arguments) {
    if (arguments == NULL || arguments->child == NULL) return;
    json_text_clear(&t->scratch);
    tool_schema_object(&t->scratch, t->parameters, arguments);
    t->failed |= t->scratch.failed;
    if (t->scratch.failed) return;
    t->n_keys = 1;
    tool_call_arguments(t, t->scratch.bytes, t->scratch.length - 1);
}

static bool give_call(tool_call *t, const cJSON *call) {
    cJSON *owned = NULL;
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(call, "name"));
    const cJSON *arguments = find_arguments(call, &owned);
    bool is_call = name != NULL && name[0] != '\0' && strlen(name) <= TOOL_CALL_MAX_NAME &&
                   (arguments == NULL || cJSON_IsNull(arguments) || cJSON_IsObject(arguments));
    if (is_call) {
        json_text_clear(&t->name);
        json_text_add(&t->name, name, strlen(name));
        tool_call_begin(t);
        give_arguments(t, arguments);
    }
    cJSON_Delete(owned);
    return is_call;
}

bool tool_call_json_end(tool_call *t) {
    cJSON *value = NULL;
    size_t was = t->value.length;
    close_brackets(t);
    if (t->value.failed ||
        json_parse(&value, t->value.bytes + t->json_at, t->value.length - t->json_at, "call",
                   NULL) != STATUS_OK) {
        if (!t->value.failed) t->value.length = was;
        return false;
    }
    bool is_call = false;
    if (!t->open) {
        is_call = give_call(t, value);
    } else if (cJSON_IsObject(value)) {
        give_arguments(t, value);
        is_call = true;
    }
    cJSON_Delete(value);
    if (!is_call) t->value.length = was;
    return is_call;
}
