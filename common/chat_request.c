#include "common/chat_request.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOOL_NAME = 128 };

/* Where the check stands: the path is written only when something is wrong. */
typedef struct check {
    char *param;
    error *err;
    size_t message, part, call;
} check;

static const char *const roles[] = {"system", "user", "assistant", "tool"};

static cJSON *get(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static bool is_absent(const cJSON *item) {
    return item == NULL || cJSON_IsNull(item);
}

static const char *kind_of(const cJSON *item) {
    if (item == NULL) return "missing";
    if (cJSON_IsNull(item)) return "null";
    if (cJSON_IsBool(item)) return "a boolean";
    if (cJSON_IsNumber(item)) return "a number";
    if (cJSON_IsString(item)) return "a string";
    return cJSON_IsArray(item) ? "an array" : "an object";
}

/* Write the path of the field and "path: problem". */
static status fail_at(check *c, const char *problem, const char *path_format, ...)
    __attribute__((format(printf, 3, 4)));
static status fail_at(check *c, const char *problem, const char *path_format, ...) {
    va_list args;
    va_start(args, path_format);
    (void)vsnprintf(c->param, CHAT_PARAM_SIZE, path_format, args);
    va_end(args);
    return error_set(c->err, STATUS_BAD_INPUT, "%s: %s", c->param, problem);
}

static status fail_kind(check *c, const cJSON *item, const char *wanted, const char *path) {
    char problem[96];
    (void)snprintf(problem, sizeof problem, "is %s, %s is expected", kind_of(item), wanted);
    return fail_at(c, problem, "%s", path);
}

static status no_memory(check *c) {
    return error_set(c->err, STATUS_NO_MEMORY, "no memory for a chat request");
}

/* Set object[key], whether it was there or not.  Takes the item, also when it fails. */
static status put(check *c, cJSON *object, const char *key, cJSON *item) {
    if (item == NULL) return no_memory(c);
    cJSON_bool done = get(object, key) != NULL
                          ? cJSON_ReplaceItemInObjectCaseSensitive(object, key, item)
                          : cJSON_AddItemToObject(object, key, item);
    if (done) return STATUS_OK;
    cJSON_Delete(item);
    return no_memory(c);
}

static status check_role(check *c, cJSON *message) {
    const cJSON *role = get(message, "role");
    const char *word = cJSON_GetStringValue(role);
    char path[CHAT_PARAM_SIZE], problem[160];
    if (word == NULL) {
        (void)snprintf(path, sizeof path, "messages[%zu].role", c->message);
        return fail_kind(c, role, "a string", path);
    }
    if (strcmp(word, "developer") == 0) {
        return put(c, message, "role", cJSON_CreateString("system"));
    }
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(word, roles[i]) == 0) return STATUS_OK;
    }
    (void)snprintf(problem, sizeof problem,
                   "'%.40s' is no role; system, developer, user, assistant and tool are", word);
    return fail_at(c, problem, "messages[%zu].role", c->message);
}

/* Only text can be read.  The other kinds are refused by their own name. */
static status check_part(check *c, const cJSON *part) {
    char path[CHAT_PARAM_SIZE], problem[160];
    (void)snprintf(path, sizeof path, "messages[%zu].content[%zu]", c->message, c->part);
    if (!cJSON_IsObject(part)) return fail_kind(c, part, "an object", path);
    const cJSON *type = get(part, "type");
    const char *word = type == NULL ? "text" : cJSON_GetStringValue(type);
    if (word == NULL) {
        return fail_at(c, "is not a string", "messages[%zu].content[%zu].type", c->message,
                       c->part);
    }
    if (strcmp(word, "text") != 0) {
        (void)snprintf(problem, sizeof problem,
                       "'%.40s' is no kind of content that this model reads; only text is",
                       word);
        return fail_at(c, problem, "messages[%zu].content[%zu]", c->message, c->part);
    }
    static const char *const others[] = {"image", "image_url", "video", "input_audio"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (get(part, others[i]) == NULL) continue;
        (void)snprintf(problem, sizeof problem, "has %s; only text is read", others[i]);
        return fail_at(c, problem, "messages[%zu].content[%zu]", c->message, c->part);
    }
    if (cJSON_IsString(get(part, "text"))) return STATUS_OK;
    (void)snprintf(path, sizeof path, "messages[%zu].content[%zu].text", c->message, c->part);
    return fail_kind(c, get(part, "text"), "a string", path);
}

static status check_content(check *c, cJSON *message) {
    const cJSON *content = get(message, "content");
    char path[CHAT_PARAM_SIZE];
    if (is_absent(content)) return put(c, message, "content", cJSON_CreateString(""));
    if (cJSON_IsString(content)) return STATUS_OK;
    if (!cJSON_IsArray(content)) {
        (void)snprintf(path, sizeof path, "messages[%zu].content", c->message);
        return fail_kind(c, content, "a string or an array of parts", path);
    }
    c->part = 0;
    for (const cJSON *part = content->child; part != NULL; part = part->next) {
        status rc = check_part(c, part);
        if (rc != STATUS_OK) return rc;
        c->part++;
    }
    return STATUS_OK;
}

/* Clients send back the reasoning under the name they got it by. */
static status check_reasoning(check *c, cJSON *message) {
    const cJSON *own = get(message, "reasoning_content");
    const cJSON *other = get(message, "reasoning");
    char path[CHAT_PARAM_SIZE];
    if (is_absent(own)) {
        if (!cJSON_IsString(other)) return STATUS_OK;
        return put(c, message, "reasoning_content", cJSON_CreateString(other->valuestring));
    }
    if (cJSON_IsString(own)) return STATUS_OK;
    (void)snprintf(path, sizeof path, "messages[%zu].reasoning_content", c->message);
    return fail_kind(c, own, "a string", path);
}

/* Arguments come as JSON in a string; no arguments come as "", null or nothing. */
static status check_arguments(check *c, cJSON *function, const char *path) {
    const cJSON *arguments = get(function, "arguments");
    if (cJSON_IsObject(arguments)) return STATUS_OK;
    if (is_absent(arguments)) return put(c, function, "arguments", cJSON_CreateObject());
    char below[CHAT_PARAM_SIZE], problem[240];
    (void)snprintf(below, sizeof below, "%.100s.arguments", path);
    if (!cJSON_IsString(arguments)) {
        return fail_kind(c, arguments, "a JSON object in a string", below);
    }
    const char *text = arguments->valuestring;
    if (text[strspn(text, " \t\r\n")] == '\0') {
        return put(c, function, "arguments", cJSON_CreateObject());
    }
    cJSON *parsed = NULL;
    error inner = {STATUS_OK, ""};
    status rc = json_parse(&parsed, text, strlen(text), "the string", &inner);
    if (rc == STATUS_NO_MEMORY) return no_memory(c);
    if (rc == STATUS_OK && cJSON_IsObject(parsed)) return put(c, function, "arguments", parsed);
    (void)snprintf(problem, sizeof problem, "is no JSON object in a string: %.160s",
                   rc == STATUS_OK ? kind_of(parsed) : inner.text);
    cJSON_Delete(parsed);
    return fail_at(c, problem, "%s", below);
}

static status check_call(check *c, cJSON *call) {
    char path[CHAT_PARAM_SIZE], below[CHAT_PARAM_SIZE];
    (void)snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu]", c->message, c->call);
    if (!cJSON_IsObject(call)) return fail_kind(c, call, "an object", path);
    cJSON *function = get(call, "function");
    if (function == NULL && get(call, "name") != NULL) {
        function = call; /* the bare form */
    } else {
        (void)snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function", c->message,
                       c->call);
        if (!cJSON_IsObject(function)) return fail_kind(c, function, "an object", path);
    }
    if (!cJSON_IsString(get(function, "name"))) {
        (void)snprintf(below, sizeof below, "%.100s.name", path);
        return fail_kind(c, get(function, "name"), "a string", below);
    }
    return check_arguments(c, function, path);
}

static status check_calls(check *c, cJSON *message) {
    const cJSON *calls = get(message, "tool_calls");
    char path[CHAT_PARAM_SIZE];
    if (is_absent(calls)) return STATUS_OK;
    (void)snprintf(path, sizeof path, "messages[%zu].tool_calls", c->message);
    if (!cJSON_IsArray(calls)) return fail_kind(c, calls, "an array", path);
    c->call = 0;
    for (cJSON *call = calls->child; call != NULL; call = call->next) {
        status rc = check_call(c, call);
        if (rc != STATUS_OK) return rc;
        c->call++;
    }
    return STATUS_OK;
}

static status check_message(check *c, cJSON *message) {
    char path[CHAT_PARAM_SIZE];
    (void)snprintf(path, sizeof path, "messages[%zu]", c->message);
    if (!cJSON_IsObject(message)) return fail_kind(c, message, "an object", path);
    status rc = check_role(c, message);
    if (rc == STATUS_OK) rc = check_content(c, message);
    if (rc == STATUS_OK) rc = check_reasoning(c, message);
    if (rc == STATUS_OK) rc = check_calls(c, message);
    return rc;
}

/* What a model can write as the name of a function, and a parser find again. */
static bool is_name(const char *text) {
    size_t n = strlen(text);
    bool plain = n > 0 && n <= MAX_TOOL_NAME;
    for (size_t i = 0; i < n && plain; i++)
        plain = (unsigned char)text[i] > ' ' && strchr("<>\"'\x7f", text[i]) == NULL;
    return plain;
}

static status check_tools(check *c, const cJSON *tools) {
    char path[CHAT_PARAM_SIZE];
    size_t index = 0;
    if (is_absent(tools)) return STATUS_OK;
    if (!cJSON_IsArray(tools)) return fail_kind(c, tools, "an array", "tools");
    for (const cJSON *tool = tools->child; tool != NULL; tool = tool->next, index++) {
        (void)snprintf(path, sizeof path, "tools[%zu]", index);
        if (!cJSON_IsObject(tool)) return fail_kind(c, tool, "an object", path);
        const cJSON *function = get(tool, "function");
        (void)snprintf(path, sizeof path, "tools[%zu].function", index);
        if (!cJSON_IsObject(function)) return fail_kind(c, function, "an object", path);
        (void)snprintf(path, sizeof path, "tools[%zu].function.name", index);
        const cJSON *name = get(function, "name");
        if (!cJSON_IsString(name)) return fail_kind(c, name, "a string", path);
        if (!is_name(name->valuestring)) {
            return fail_at(c, "must have 1 to 128 bytes without blanks, quotes, < and >", "%s",
                           path);
        }
    }
    return STATUS_OK;
}

static status check_switches(check *c, const cJSON *kwargs) {
    static const char *const names[] = {"enable_thinking", "add_vision_id"};
    if (is_absent(kwargs)) return STATUS_OK;
    if (!cJSON_IsObject(kwargs))
        return fail_kind(c, kwargs, "an object", "chat_template_kwargs");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const cJSON *item = get(kwargs, names[i]);
        char path[CHAT_PARAM_SIZE];
        if (is_absent(item) || cJSON_IsBool(item)) continue;
        (void)snprintf(path, sizeof path, "chat_template_kwargs.%s", names[i]);
        return fail_kind(c, item, "a boolean", path);
    }
    return STATUS_OK;
}

status chat_normalise(cJSON *request, char param[CHAT_PARAM_SIZE], error *err) {
    check c = {.param = param, .err = err};
    param[0] = '\0';
    if (!cJSON_IsObject(request)) {
        return error_set(err, STATUS_BAD_INPUT, "the request is %s, an object is expected",
                         kind_of(request));
    }
    const cJSON *messages = get(request, "messages");
    if (!cJSON_IsArray(messages)) return fail_kind(&c, messages, "an array", "messages");
    if (messages->child == NULL) return fail_at(&c, "is empty", "messages");
    for (cJSON *message = messages->child; message != NULL; message = message->next) {
        status rc = check_message(&c, message);
        if (rc != STATUS_OK) return rc;
        c.message++;
    }
    status rc = check_tools(&c, get(request, "tools"));
    if (rc != STATUS_OK) return rc;
    return check_switches(&c, get(request, "chat_template_kwargs"));
}
