#include "coordinator/messages_params.h"

#include "coordinator/chat_build.h"
#include <stdio.h>
#include <string.h>

static const char *text_of(const cJSON *object, const char *name) {
    return cJSON_GetStringValue(body_field(object, name));
}

static bool is_of_type(const cJSON *block, const char *type) {
    const char *word = text_of(block, "type");
    return word != NULL && strcmp(word, type) == 0;
}

static status refuse_block(const chat_build *b, const char *path, const cJSON *block) {
    char what[160];
    (void)snprintf(what, sizeof what, "'%.40s' blocks cannot be read here, only text",
                   text_of(block, "type") == NULL ? "untyped" : text_of(block, "type"));
    return body_refuse(&b->in, path, what);
}

/* A string, or text blocks, into field of message. */
static status add_content(chat_build *b, cJSON *message, const char *path,
                          const cJSON *content) {
    char below[CHAT_PARAM_SIZE];
    size_t i = 0;
    if (content == NULL) return STATUS_OK;
    if (cJSON_IsString(content)) {
        chat_build_add_text(b, message, content->valuestring);
        return STATUS_OK;
    }
    if (!cJSON_IsArray(content))
        return body_refuse(&b->in, path, "is neither a text nor a list of blocks");
    for (const cJSON *block = content->child; block != NULL; block = block->next, i++) {
        (void)snprintf(below, sizeof below, "%.100s[%zu]", path, i);
        if (!is_of_type(block, "text")) return refuse_block(b, below, block);
        if (text_of(block, "text") == NULL) return body_refuse(&b->in, below, "has no text");
        chat_build_add_text(b, message, text_of(block, "text"));
    }
    return STATUS_OK;
}

/* ------------------------------------------------------------ messages */

static status add_result(chat_build *b, const char *path, const cJSON *block) {
    const char *id = text_of(block, "tool_use_id");
    char below[CHAT_PARAM_SIZE];
    if (id == NULL) return body_refuse(&b->in, path, "has no tool_use_id");
    cJSON *message = chat_build_message(b, "tool");
    chat_build_put_text(b, message, "tool_call_id", id);
    (void)snprintf(below, sizeof below, "%.100s.content", path);
    return add_content(b, message, below, body_field(block, "content"));
}

/* Blocks of a user: results are messages of their own, text between them another. */
static status add_user_block(chat_build *b, cJSON **open, const char *path,
                             const cJSON *block) {
    if (is_of_type(block, "tool_result")) {
        *open = NULL;
        return add_result(b, path, block);
    }
    if (!is_of_type(block, "text")) return refuse_block(b, path, block);
    if (text_of(block, "text") == NULL) return body_refuse(&b->in, path, "has no text");
    if (*open == NULL) *open = chat_build_message(b, "user");
    chat_build_add_text(b, *open, text_of(block, "text"));
    return STATUS_OK;
}

static status add_assistant_block(chat_build *b, cJSON **open, const char *path,
                                  const cJSON *block) {
    if (*open == NULL) *open = chat_build_message(b, "assistant");
    if (is_of_type(block, "redacted_thinking")) return STATUS_OK; /* another model's */
    if (is_of_type(block, "text") || is_of_type(block, "thinking")) {
        bool thinks = is_of_type(block, "thinking");
        const char *text = text_of(block, thinks ? "thinking" : "text");
        if (text == NULL) return body_refuse(&b->in, path, "has no text");
        if (thinks)
            chat_build_add_reasoning(b, text);
        else
            chat_build_add_text(b, *open, text);
        return STATUS_OK;
    }
    if (!is_of_type(block, "tool_use")) return refuse_block(b, path, block);
    const cJSON *input = body_field(block, "input");
    if (text_of(block, "name") == NULL || text_of(block, "id") == NULL)
        return body_refuse(&b->in, path, "has no id or no name");
    if (input != NULL && !cJSON_IsObject(input))
        return body_refuse(&b->in, path, "has an input that is no object");
    chat_build_call(b, *open, text_of(block, "id"), text_of(block, "name"), input);
    return STATUS_OK;
}

static status add_message(chat_build *b, size_t index, const cJSON *message) {
    char path[CHAT_PARAM_SIZE];
    const char *role = text_of(message, "role");
    const cJSON *content = body_field(message, "content");
    (void)snprintf(path, sizeof path, "messages[%zu].role", index);
    bool user = role != NULL && strcmp(role, "user") == 0;
    bool system = role != NULL && strcmp(role, "system") == 0;
    if (!user && !system && (role == NULL || strcmp(role, "assistant") != 0))
        return body_refuse(&b->in, path, "is neither user nor assistant");
    (void)snprintf(path, sizeof path, "messages[%zu].content", index);
    if (content == NULL) return body_refuse(&b->in, path, "is missing");
    if (cJSON_IsString(content) || system)
        return add_content(b, chat_build_message(b, role), path, content);
    if (!cJSON_IsArray(content))
        return body_refuse(&b->in, path, "is neither a text nor a list of blocks");
    cJSON *open = NULL;
    status rc = STATUS_OK;
    size_t i = 0;
    for (const cJSON *block = content->child; block != NULL && rc == STATUS_OK;
         block = block->next) {
        (void)snprintf(path, sizeof path, "messages[%zu].content[%zu]", index, i++);
        rc = user ? add_user_block(b, &open, path, block)
                  : add_assistant_block(b, &open, path, block);
    }
    chat_build_put_reasoning(b, open);
    return rc;
}

/* A conversation that the server should keep: what is sent would be a part of it. */
static status refuse_thread(const chat_build *b) {
    if (body_find(&b->in, "thread") == NULL) return STATUS_OK;
    return body_refuse(&b->in, "thread",
                       "is not supported: nothing is stored here, send the whole "
                       "conversation as messages");
}

static status add_messages(chat_build *b) {
    const cJSON *messages = body_find(&b->in, "messages");
    const cJSON *system = body_find(&b->in, "system");
    size_t i = 0;
    status rc = STATUS_OK;
    if (messages == NULL) return body_refuse(&b->in, "messages", "is missing");
    if (!cJSON_IsArray(messages) || messages->child == NULL)
        return body_refuse(&b->in, "messages", "is not a list of messages");
    if (system != NULL) rc = add_content(b, chat_build_message(b, "system"), "system", system);
    for (const cJSON *m = messages->child; m != NULL && rc == STATUS_OK; m = m->next)
        rc = add_message(b, i++, m);
    return rc;
}

/* ------------------------------------------------------------ the rest */

static status add_tools(chat_build *b) {
    const cJSON *tools = body_find(&b->in, "tools");
    char path[40];
    size_t i = 0;
    if (tools == NULL) return STATUS_OK;
    if (!cJSON_IsArray(tools)) return body_refuse(&b->in, "tools", "is not a list");
    cJSON *list = cJSON_AddArrayToObject(b->root, "tools");
    for (const cJSON *tool = tools->child; tool != NULL; tool = tool->next) {
        (void)snprintf(path, sizeof path, "tools[%zu]", i++);
        const char *type = text_of(tool, "type");
        if (type != NULL && strcmp(type, "custom") != 0)
            return body_refuse(&b->in, path, "is a tool of the server's, and there are none");
        if (text_of(tool, "name") == NULL) return body_refuse(&b->in, path, "has no name");
        if (!cJSON_IsObject(body_field(tool, "input_schema")))
            return body_refuse(&b->in, path, "has no input_schema");
        chat_build_tool(b, list, tool, "input_schema");
    }
    return STATUS_OK;
}

static status add_tool_choice(chat_build *b) {
    const cJSON *choice = body_find(&b->in, "tool_choice");
    if (choice == NULL) return STATUS_OK;
    if (cJSON_IsTrue(body_field(choice, "disable_parallel_tool_use")))
        chat_build_put(b, b->root, "parallel_tool_calls", cJSON_CreateBool(false));
    if (is_of_type(choice, "auto") || is_of_type(choice, "none")) {
        chat_build_put_text(b, b->root, "tool_choice", text_of(choice, "type"));
    } else if (is_of_type(choice, "any")) {
        chat_build_put_text(b, b->root, "tool_choice", "required");
    } else if (is_of_type(choice, "tool") && text_of(choice, "name") != NULL) {
        cJSON *named = cJSON_CreateObject(), *function = cJSON_CreateObject();
        chat_build_put_text(b, named, "type", "function");
        chat_build_put_text(b, function, "name", text_of(choice, "name"));
        chat_build_put(b, named, "function", function);
        chat_build_put(b, b->root, "tool_choice", named);
    } else {
        return body_refuse(&b->in, "tool_choice",
                           "is not auto, any, none, or tool with a name");
    }
    return STATUS_OK;
}

/* Anthropic's models think only when asked to. */
static status add_thinking(chat_build *b) {
    const cJSON *thinking = body_find(&b->in, "thinking");
    bool on = is_of_type(thinking, "enabled") || is_of_type(thinking, "adaptive");
    if (thinking != NULL && !on && !is_of_type(thinking, "disabled"))
        return body_refuse(&b->in, "thinking.type", "is not enabled, adaptive or disabled");
    const cJSON *budget = body_field(thinking, "budget_tokens");
    if (budget != NULL && (!cJSON_IsNumber(budget) || budget->valuedouble < 1))
        return body_refuse(&b->in, "thinking.budget_tokens", "is not a number above 0");
    cJSON *switches = cJSON_CreateObject();
    chat_build_put(b, switches, "enable_thinking", cJSON_CreateBool(on));
    chat_build_put(b, b->root, "chat_template_kwargs", switches);
    if (on) chat_build_copy(b, "thinking", "thinking");
    return STATUS_OK;
}

static status add_format(chat_build *b) {
    const cJSON *format = body_field(body_find(&b->in, "output_config"), "format");
    if (format == NULL) return STATUS_OK;
    const cJSON *schema = body_field(format, "schema");
    if (!is_of_type(format, "json_schema") || !cJSON_IsObject(schema))
        return body_refuse(&b->in, "output_config.format", "is not a json_schema with schema");
    cJSON *out = cJSON_CreateObject(), *named = cJSON_CreateObject();
    chat_build_put_text(b, out, "type", "json_schema");
    chat_build_put_text(b, named, "name", "output");
    chat_build_put(b, named, "schema", cJSON_Duplicate(schema, true));
    chat_build_put(b, out, "json_schema", named);
    chat_build_put(b, b->root, "response_format", out);
    return STATUS_OK;
}

static status add_stops(chat_build *b) {
    const cJSON *stops = body_find(&b->in, "stop_sequences");
    if (stops == NULL || (cJSON_IsArray(stops) && stops->child == NULL)) return STATUS_OK;
    size_t n = 0;
    for (const cJSON *s = stops->child; s != NULL; s = s->next, n++) {
        if (!cJSON_IsString(s) || s->valuestring[0] == '\0') n = 1000;
    }
    if (!cJSON_IsArray(stops) || n > 16)
        return body_refuse(&b->in, "stop_sequences", "is not a list of up to 16 texts");
    chat_build_copy(b, "stop_sequences", "stop");
    return STATUS_OK;
}

static status add_limits(chat_build *b) {
    static const char *const same[] = {"temperature", "top_p", "top_k", "stream", "priority"};
    if (body_find(&b->in, "max_tokens") == NULL)
        return body_refuse(&b->in, "max_tokens", "is missing");
    chat_build_copy(b, "max_tokens", "max_tokens");
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        chat_build_copy(b, same[i], same[i]);
    return add_stops(b);
}

static status read(chat_params *out, const char *body, size_t length, bool counts,
                   char param[CHAT_PARAM_SIZE], error *err) {
    chat_build b;
    memset(out, 0, sizeof *out);
    status rc = chat_build_begin(&b, field_names_messages, body, length, param, err);
    if (rc != STATUS_OK) goto done;
    chat_build_copy(&b, "model", "model");
    if ((rc = refuse_thread(&b)) != STATUS_OK) goto done;
    if ((rc = add_messages(&b)) != STATUS_OK) goto done;
    if ((rc = add_tools(&b)) != STATUS_OK) goto done;
    if (!counts && (rc = add_tool_choice(&b)) != STATUS_OK) goto done;
    if ((rc = add_thinking(&b)) != STATUS_OK) goto done;
    if (!counts && (rc = add_format(&b)) != STATUS_OK) goto done;
    if (!counts) rc = add_limits(&b);
done:
    rc = chat_build_end(&b, out, rc);
    const cJSON *stops = body_find(&b.in, "stop_sequences");
    if (rc == STATUS_OK && cJSON_IsArray(stops)) out->told = cJSON_Duplicate(stops, true);
    cJSON_Delete(b.in.body);
    return rc;
}

status messages_params_read(chat_params *out, const char *body, size_t length,
                            char param[CHAT_PARAM_SIZE], error *err) {
    return read(out, body, length, false, param, err);
}

status messages_params_count(chat_params *out, const char *body, size_t length,
                             char param[CHAT_PARAM_SIZE], error *err) {
    return read(out, body, length, true, param, err);
}
