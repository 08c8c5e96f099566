#include "coordinator/responses_params.h"

#include "coordinator/chat_build.h"
#include <stdio.h>
#include <string.h>

static const char *text_of(const cJSON *object, const char *name) {
    return cJSON_GetStringValue(body_field(object, name));
}

static bool is_of_type(const cJSON *item, const char *type) {
    const char *word = text_of(item, "type");
    return word != NULL && strcmp(word, type) == 0;
}

/* A text, or a list of parts that are text. */
static status add_content(chat_build *b, cJSON *message, const char *path,
                          const cJSON *content) {
    char below[CHAT_PARAM_SIZE], what[120];
    size_t i = 0;
    if (cJSON_IsString(content)) {
        chat_build_add_text(b, message, content->valuestring);
        return STATUS_OK;
    }
    if (!cJSON_IsArray(content))
        return body_refuse(&b->in, path, "is neither a text nor a list of parts");
    for (const cJSON *part = content->child; part != NULL; part = part->next) {
        (void)snprintf(below, sizeof below, "%.100s[%zu]", path, i++);
        const char *type = text_of(part, "type");
        const char *text = text_of(part, is_of_type(part, "refusal") ? "refusal" : "text");
        if (!is_of_type(part, "input_text") && !is_of_type(part, "output_text") &&
            !is_of_type(part, "text") && !is_of_type(part, "refusal")) {
            (void)snprintf(what, sizeof what, "'%.40s' parts cannot be read here, only text",
                           type == NULL ? "untyped" : type);
            return body_refuse(&b->in, below, what);
        }
        if (text == NULL) return body_refuse(&b->in, below, "has no text");
        chat_build_add_text(b, message, text);
    }
    return STATUS_OK;
}

/* ------------------------------------------------------------ items */

static status add_message(chat_build *b, cJSON **open, const char *path, const cJSON *item) {
    char below[CHAT_PARAM_SIZE];
    const char *role = text_of(item, "role");
    (void)snprintf(below, sizeof below, "%.100s.role", path);
    if (role == NULL || strstr("|user|assistant|system|developer|", role) == NULL ||
        strchr(role, '|') != NULL || role[0] == '\0')
        return body_refuse(&b->in, below, "is no role: user, assistant, system or developer");
    cJSON *message = NULL;
    bool assistant = strcmp(role, "assistant") == 0;
    message = assistant && *open != NULL ? *open : chat_build_message(b, role);
    *open = assistant ? message : NULL;
    (void)snprintf(below, sizeof below, "%.100s.content", path);
    return add_content(b, message, below, body_field(item, "content"));
}

/* The deliberation of the assistant's message that comes next. */
static status add_reasoning(chat_build *b, cJSON **open, const cJSON *item) {
    const cJSON *content = body_field(item, "content");
    *open = NULL;
    for (const cJSON *part = content == NULL ? NULL : content->child; part != NULL;
         part = part->next) {
        if (text_of(part, "text") != NULL) chat_build_add_reasoning(b, text_of(part, "text"));
    }
    if (b->reasoning.length == 0) return STATUS_OK;
    *open = chat_build_message(b, "assistant");
    chat_build_put_reasoning(b, *open);
    return STATUS_OK;
}

static status add_call(chat_build *b, cJSON **open, const char *path, const cJSON *item) {
    const cJSON *arguments = body_field(item, "arguments");
    if (text_of(item, "call_id") == NULL || text_of(item, "name") == NULL)
        return body_refuse(&b->in, path, "has no call_id or no name");
    if (arguments != NULL && !cJSON_IsString(arguments))
        return body_refuse(&b->in, path, "has arguments that are no JSON in a text");
    if (*open == NULL) *open = chat_build_message(b, "assistant");
    chat_build_call(b, *open, text_of(item, "call_id"), text_of(item, "name"), arguments);
    return STATUS_OK;
}

static status add_output(chat_build *b, cJSON **open, const char *path, const cJSON *item) {
    char below[CHAT_PARAM_SIZE];
    if (text_of(item, "call_id") == NULL) return body_refuse(&b->in, path, "has no call_id");
    *open = NULL;
    cJSON *message = chat_build_message(b, "tool");
    chat_build_put_text(b, message, "tool_call_id", text_of(item, "call_id"));
    (void)snprintf(below, sizeof below, "%.100s.output", path);
    return add_content(b, message, below, body_field(item, "output"));
}

static status add_item(chat_build *b, cJSON **open, size_t index, const cJSON *item) {
    char path[CHAT_PARAM_SIZE], what[120];
    (void)snprintf(path, sizeof path, "input[%zu]", index);
    if (!cJSON_IsObject(item)) return body_refuse(&b->in, path, "is no item");
    const char *type = text_of(item, "type");
    if (type == NULL || strcmp(type, "message") == 0) return add_message(b, open, path, item);
    if (strcmp(type, "reasoning") == 0) return add_reasoning(b, open, item);
    if (strcmp(type, "function_call") == 0) return add_call(b, open, path, item);
    if (strcmp(type, "function_call_output") == 0) return add_output(b, open, path, item);
    (void)snprintf(what, sizeof what, "'%.40s' items are not known here", type);
    return body_refuse(&b->in, path, what);
}

static status add_input(chat_build *b) {
    const cJSON *input = body_find(&b->in, "input");
    const cJSON *instructions = body_find(&b->in, "instructions");
    if (instructions != NULL) {
        if (!cJSON_IsString(instructions))
            return body_refuse(&b->in, "instructions", "is not a text");
        chat_build_add_text(b, chat_build_message(b, "system"), instructions->valuestring);
    }
    if (input == NULL) return body_refuse(&b->in, "input", "is missing");
    if (cJSON_IsString(input)) {
        chat_build_add_text(b, chat_build_message(b, "user"), input->valuestring);
        return STATUS_OK;
    }
    if (!cJSON_IsArray(input) || input->child == NULL)
        return body_refuse(&b->in, "input", "is neither a text nor a list of items");
    cJSON *open = NULL;
    status rc = STATUS_OK;
    size_t i = 0;
    for (const cJSON *item = input->child; item != NULL && rc == STATUS_OK; item = item->next)
        rc = add_item(b, &open, i++, item);
    return rc;
}

/* ------------------------------------------------------------ the rest */

static status add_tools(chat_build *b) {
    const cJSON *tools = body_find(&b->in, "tools");
    char path[40];
    size_t i = 0;
    if (tools == NULL || (cJSON_IsArray(tools) && tools->child == NULL)) return STATUS_OK;
    if (!cJSON_IsArray(tools)) return body_refuse(&b->in, "tools", "is not a list");
    cJSON *list = cJSON_AddArrayToObject(b->root, "tools");
    for (const cJSON *tool = tools->child; tool != NULL; tool = tool->next) {
        (void)snprintf(path, sizeof path, "tools[%zu]", i++);
        if (!is_of_type(tool, "function"))
            return body_refuse(&b->in, path, "is no function, and there are no other tools");
        if (text_of(tool, "name") == NULL) return body_refuse(&b->in, path, "has no name");
        chat_build_tool(b, list, tool, "parameters");
    }
    return STATUS_OK;
}

static status add_tool_choice(chat_build *b) {
    const cJSON *choice = body_find(&b->in, "tool_choice");
    chat_build_copy(b, "parallel_tool_calls", "parallel_tool_calls");
    if (choice == NULL || body_find(&b->in, "tools") == NULL) return STATUS_OK;
    if (!cJSON_IsObject(choice)) {
        chat_build_copy(b, "tool_choice", "tool_choice");
        return STATUS_OK;
    }
    if (!is_of_type(choice, "function") || text_of(choice, "name") == NULL)
        return body_refuse(&b->in, "tool_choice", "is no function with a name");
    cJSON *named = cJSON_CreateObject(), *function = cJSON_CreateObject();
    chat_build_put_text(b, named, "type", "function");
    chat_build_put_text(b, function, "name", text_of(choice, "name"));
    chat_build_put(b, named, "function", function);
    chat_build_put(b, b->root, "tool_choice", named);
    return STATUS_OK;
}

static status add_format(chat_build *b) {
    static const char *const parts[] = {"name", "description", "schema", "strict"};
    const cJSON *format = body_field(body_find(&b->in, "text"), "format");
    if (format == NULL || is_of_type(format, "text")) return STATUS_OK;
    bool schema = is_of_type(format, "json_schema");
    if (!schema && !is_of_type(format, "json_object"))
        return body_refuse(&b->in, "text.format", "is not text, json_object or json_schema");
    cJSON *out = cJSON_CreateObject();
    chat_build_put_text(b, out, "type", text_of(format, "type"));
    cJSON *named = schema && out != NULL ? cJSON_AddObjectToObject(out, "json_schema") : NULL;
    for (size_t i = 0; schema && i < sizeof parts / sizeof parts[0]; i++) {
        const cJSON *value = body_field(format, parts[i]);
        if (value != NULL) chat_build_put(b, named, parts[i], cJSON_Duplicate(value, true));
    }
    chat_build_put(b, b->root, "response_format", out);
    return STATUS_OK;
}

/* What would be answered as if it had been done. */
static status refuse_unsupported(const chat_build *b) {
    static const char *const names[] = {"previous_response_id", "conversation", "prompt"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (body_find(&b->in, names[i]) != NULL)
            return body_refuse(&b->in, names[i],
                               "is not supported: nothing is stored here, send the whole "
                               "conversation as input");
    }
    if (cJSON_IsTrue(body_find(&b->in, "background")))
        return body_refuse(&b->in, "background", "is not supported: nothing is stored here");
    const cJSON *top = body_find(&b->in, "top_logprobs");
    if (top != NULL && (!cJSON_IsNumber(top) || top->valuedouble > 0))
        return body_refuse(&b->in, "top_logprobs",
                           "is not supported here; chat completions have it");
    return STATUS_OK;
}

static status add_limits(chat_build *b) {
    static const char *const same[] = {"model",
                                       "temperature",
                                       "top_p",
                                       "stream",
                                       "priority",
                                       "seed",
                                       "top_k",
                                       "min_p",
                                       "presence_penalty",
                                       "logit_bias",
                                       "frequency_penalty",
                                       "stop",
                                       "thinking",
                                       "max_thinking_tokens",
                                       "max_answer_tokens",
                                       "repetition_penalty",
                                       "chat_template_kwargs"};
    const cJSON *limit = body_find(&b->in, "max_output_tokens");
    const cJSON *effort = body_field(body_find(&b->in, "reasoning"), "effort");
    if (limit != NULL && (!cJSON_IsNumber(limit) || !(limit->valuedouble >= 1)))
        return body_refuse(&b->in, "max_output_tokens", "is not a number above 0");
    chat_build_copy(b, "max_output_tokens", "max_completion_tokens");
    if (effort != NULL)
        chat_build_put(b, b->root, "reasoning_effort", cJSON_Duplicate(effort, true));
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        chat_build_copy(b, same[i], same[i]);
    return STATUS_OK;
}

/* A response repeats these, with what holds where nothing was said. */
static cJSON *repeat(const cJSON *from) {
    static const struct {
        const char *name, *otherwise;
    } fields[] = {{"instructions", "null"},
                  {"max_output_tokens", "null"},
                  {"metadata", "{}"},
                  {"parallel_tool_calls", "true"},
                  {"reasoning", "{\"effort\":null,\"summary\":null}"},
                  {"temperature", "null"},
                  {"text", "{\"format\":{\"type\":\"text\"}}"},
                  {"tool_choice", "\"auto\""},
                  {"tools", "[]"},
                  {"top_p", "null"},
                  {"user", "null"}};
    cJSON *told = cJSON_CreateObject();
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const cJSON *value = body_field(from, fields[i].name);
        cJSON *item =
            value != NULL ? cJSON_Duplicate(value, true) : cJSON_CreateRaw(fields[i].otherwise);
        if (cJSON_AddItemToObject(told, fields[i].name, item)) continue;
        cJSON_Delete(item);
        cJSON_Delete(told);
        return NULL;
    }
    return told;
}

status responses_params_read(chat_params *out, const char *body, size_t length,
                             char param[CHAT_PARAM_SIZE], error *err) {
    chat_build b;
    memset(out, 0, sizeof *out);
    status rc = chat_build_begin(&b, field_names_responses, body, length, param, err);
    if (rc != STATUS_OK) goto done;
    if ((rc = refuse_unsupported(&b)) != STATUS_OK) goto done;
    if ((rc = add_input(&b)) != STATUS_OK) goto done;
    if ((rc = add_tools(&b)) != STATUS_OK) goto done;
    if ((rc = add_tool_choice(&b)) != STATUS_OK) goto done;
    if ((rc = add_format(&b)) != STATUS_OK) goto done;
    rc = add_limits(&b);
done:
    rc = chat_build_end(&b, out, rc);
    if (rc == STATUS_OK) {
        out->told = repeat(b.in.body);
        if (out->told == NULL) {
            chat_params_release(out);
            rc = body_no_memory(&b.in);
        }
    }
    cJSON_Delete(b.in.body);
    return rc;
}
