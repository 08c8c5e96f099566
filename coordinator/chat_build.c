#include "coordinator/chat_build.h"

#include <stdio.h>
#include <string.h>

status chat_build_begin(chat_build *b, const field_name *names, const char *body, size_t length,
                        char param[CHAT_PARAM_SIZE], error *err) {
    *b = (chat_build){.names = names};
    status rc = body_open(&b->in, body, length, param, err);
    if (rc != STATUS_OK) return rc;
    b->root = cJSON_CreateObject();
    b->messages = b->root == NULL ? NULL : cJSON_AddArrayToObject(b->root, "messages");
    b->failed = b->messages == NULL;
    return STATUS_OK;
}

status chat_build_end(chat_build *b, chat_params *out, status rc) {
    if (rc == STATUS_OK && b->failed) rc = body_no_memory(&b->in);
    if (rc == STATUS_OK) {
        rc = chat_params_take(out, b->root, b->in.param, b->in.err);
        if (rc != STATUS_OK)
            field_names_apply(b->names, b->in.param, b->in.err->text, sizeof b->in.err->text);
    }
    cJSON_Delete(b->root);
    json_text_release(&b->reasoning);
    b->root = b->messages = NULL;
    return rc;
}

void chat_build_put(chat_build *b, cJSON *object, const char *name, cJSON *item) {
    if (item != NULL && object != NULL && cJSON_AddItemToObject(object, name, item)) return;
    cJSON_Delete(item);
    b->failed = true;
}

void chat_build_put_text(chat_build *b, cJSON *object, const char *name, const char *text) {
    chat_build_put(b, object, name, cJSON_CreateString(text));
}

void chat_build_copy(chat_build *b, const char *as, const char *name) {
    const cJSON *value = body_find(&b->in, as);
    if (value != NULL) chat_build_put(b, b->root, name, cJSON_Duplicate(value, true));
}

cJSON *chat_build_message(chat_build *b, const char *role) {
    cJSON *message = cJSON_CreateObject();
    chat_build_put_text(b, message, "role", role);
    chat_build_put_text(b, message, "content", "");
    if (message != NULL && cJSON_AddItemToArray(b->messages, message)) return message;
    cJSON_Delete(message);
    b->failed = true;
    return NULL;
}

/* A text alone stays a string; more are a list of parts, because joining many would take
 * the square of their length. */
void chat_build_add_text(chat_build *b, cJSON *message, const char *text) {
    cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content");
    if (content == NULL) {
        b->failed = true;
        return;
    }
    bool was_empty = cJSON_IsString(content) && content->valuestring[0] == '\0';
    cJSON *item = was_empty ? cJSON_CreateString(text) : cJSON_CreateObject();
    if (!was_empty && cJSON_IsString(content)) {
        cJSON *parts = cJSON_CreateArray(), *first = cJSON_CreateObject();
        chat_build_put_text(b, first, "text", content->valuestring);
        (void)cJSON_AddItemToArray(parts, first);
        (void)cJSON_ReplaceItemInObjectCaseSensitive(message, "content", parts);
        content = parts;
    }
    if (was_empty) {
        b->failed |= !cJSON_ReplaceItemInObjectCaseSensitive(message, "content", item);
    } else {
        chat_build_put_text(b, item, "text", text);
        b->failed |= !cJSON_AddItemToArray(content, item);
    }
}

void chat_build_add_reasoning(chat_build *b, const char *text) {
    json_text_add(&b->reasoning, text, strlen(text));
    b->failed |= b->reasoning.failed;
}

void chat_build_put_reasoning(chat_build *b, cJSON *message) {
    if (b->reasoning.length > 0)
        chat_build_put_text(b, message, "reasoning_content", b->reasoning.bytes);
    json_text_clear(&b->reasoning);
}

void chat_build_tool(chat_build *b, cJSON *tools, const cJSON *tool, const char *schema) {
    static const char *const names[][2] = {{"name", "name"}, {"description", "description"}};
    cJSON *out = cJSON_CreateObject();
    cJSON *function = out == NULL ? NULL : cJSON_AddObjectToObject(out, "function");
    chat_build_put_text(b, out, "type", "function");
    for (size_t i = 0; i < 2; i++) {
        const cJSON *value = body_field(tool, names[i][0]);
        if (value != NULL)
            chat_build_put(b, function, names[i][1], cJSON_Duplicate(value, true));
    }
    const cJSON *parameters = body_field(tool, schema);
    if (parameters != NULL)
        chat_build_put(b, function, "parameters", cJSON_Duplicate(parameters, true));
    if (out != NULL && cJSON_AddItemToArray(tools, out)) return;
    cJSON_Delete(out);
    b->failed = true;
}

void chat_build_call(chat_build *b, cJSON *message, const char *id, const char *name,
                     const cJSON *arguments) {
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    if (calls == NULL && message != NULL) calls = cJSON_AddArrayToObject(message, "tool_calls");
    cJSON *call = cJSON_CreateObject();
    chat_build_put_text(b, call, "id", id);
    chat_build_put_text(b, call, "type", "function");
    cJSON *function = call == NULL ? NULL : cJSON_AddObjectToObject(call, "function");
    chat_build_put_text(b, function, "name", name);
    chat_build_put(b, function, "arguments",
                   arguments == NULL ? cJSON_CreateObject() : cJSON_Duplicate(arguments, true));
    if (calls != NULL && call != NULL && cJSON_AddItemToArray(calls, call)) return;
    cJSON_Delete(call);
    b->failed = true;
}
