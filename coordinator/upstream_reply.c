#include "coordinator/upstream_reply.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cJSON *get(const cJSON *root, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(root, name);
}

static bool is_text(const cJSON *value) {
    return cJSON_IsString(value) && value->valuestring[0] != '\0';
}

status upstream_reply_init(upstream_reply *r, size_t n_choices, void *context,
                           void (*on_piece)(void *context, const upstream_piece *piece),
                           error *err) {
    memset(r, 0, sizeof *r);
    r->choices = calloc(n_choices, sizeof *r->choices);
    if (r->choices == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for a reply");
    r->n_choices = n_choices;
    r->context = context;
    r->on_piece = on_piece;
    return STATUS_OK;
}

void upstream_reply_release(upstream_reply *r) {
    for (size_t i = 0; i < r->n_choices; i++) {
        upstream_choice *c = &r->choices[i];
        for (size_t k = 0; c->tools != NULL && k < UPSTREAM_MAX_TOOLS; k++) {
            json_text_release(&c->tools[k].name);
            json_text_release(&c->tools[k].arguments);
        }
        free(c->tools);
    }
    free(r->choices);
    memset(r, 0, sizeof *r);
}

bool upstream_reply_is_whole(const upstream_reply *r) {
    for (size_t i = 0; i < r->n_choices; i++) {
        if (!r->choices[i].over) return false;
    }
    return true;
}

/* ------------------------------------------------------------ pieces */

static void give(const upstream_reply *r, uint64_t choice, wire_channel channel,
                 const char *text, size_t length) {
    upstream_piece piece = {
        .choice = choice, .channel = channel, .text = text, .length = length};
    r->on_piece(r->context, &piece);
}

static status add_tool(upstream_choice *c, const cJSON *call, error *err) {
    const cJSON *index = get(call, "index"), *function = get(call, "function");
    double at = cJSON_IsNumber(index) ? index->valuedouble : 0;
    if (!(at >= 0 && at < UPSTREAM_MAX_TOOLS) || at > floor(at)) {
        return error_set(err, STATUS_BAD_INPUT, "tool_calls.index: is not from 0 to %d",
                         UPSTREAM_MAX_TOOLS - 1);
    }
    if (c->tools == NULL) c->tools = calloc(UPSTREAM_MAX_TOOLS, sizeof *c->tools);
    if (c->tools == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for a tool call");
    upstream_tool *tool = &c->tools[(size_t)at];
    if ((size_t)at >= c->n_tools) c->n_tools = (size_t)at + 1;
    const cJSON *name = get(function, "name"), *arguments = get(function, "arguments");
    if (is_text(name)) json_text_add(&tool->name, name->valuestring, strlen(name->valuestring));
    if (is_text(arguments))
        json_text_add(&tool->arguments, arguments->valuestring, strlen(arguments->valuestring));
    if (tool->name.length + tool->arguments.length > WIRE_MAX_TOKENS_TEXT / 2)
        return error_set(err, STATUS_BAD_INPUT, "tool_calls: one is over its bound");
    return STATUS_OK;
}

static bool is_object(const json_text *text) {
    cJSON *value = NULL;
    if (text->failed ||
        json_parse(&value, text->bytes, text->length, "arguments", NULL) != STATUS_OK)
        return false;
    bool is = cJSON_IsObject(value);
    cJSON_Delete(value);
    return is;
}

/* The complete calls, and how many they are. */
static uint64_t give_tools(const upstream_reply *r, uint64_t choice) {
    const upstream_choice *c = &r->choices[choice];
    uint64_t n_calls = 0;
    for (size_t i = 0; i < c->n_tools; i++) {
        const upstream_tool *tool = &c->tools[i];
        bool empty = tool->arguments.length == 0;
        if (tool->name.length == 0 || tool->name.length > WIRE_MAX_NAME ||
            (!empty && !is_object(&tool->arguments))) {
            continue;
        }
        upstream_piece piece = {.choice = choice,
                                .channel = WIRE_TOOL_CALL,
                                .text = empty ? "{}" : tool->arguments.bytes,
                                .length = empty ? 2 : tool->arguments.length,
                                .call = n_calls++,
                                .call_name = tool->name.bytes};
        r->on_piece(r->context, &piece);
    }
    return n_calls;
}

static void give_text(const upstream_reply *r, uint64_t choice, wire_channel channel,
                      const cJSON *value) {
    if (!is_text(value)) return;
    const char *text = value->valuestring;
    size_t length = strlen(text);
    while (length > 0) { /* whole characters within the mesh's bound */
        size_t n = length > WIRE_MAX_TOKENS_TEXT ? WIRE_MAX_TOKENS_TEXT : length;
        while (n < length && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--;
        give(r, choice, channel, text, n);
        text += n;
        length -= n;
    }
}

static wire_finish finish_of(const cJSON *reason) {
    if (!is_text(reason)) return WIRE_FINISH_NONE;
    if (strcmp(reason->valuestring, "length") == 0) return WIRE_FINISH_LENGTH;
    if (strcmp(reason->valuestring, "tool_calls") == 0) return WIRE_FINISH_TOOL_CALLS;
    return WIRE_FINISH_STOP;
}

static status take_choice(upstream_reply *r, const cJSON *item, error *err) {
    const cJSON *index = get(item, "index"), *delta = get(item, "delta");
    double at = cJSON_IsNumber(index) ? index->valuedouble : 0;
    if (!(at >= 0 && at < (double)r->n_choices) || at > floor(at))
        return error_set(err, STATUS_BAD_INPUT, "choices.index: was not asked for");
    uint64_t choice = (uint64_t)at;
    upstream_choice *c = &r->choices[choice];
    if (c->over) return STATUS_OK; /* some servers repeat the last chunk */
    const cJSON *reasoning = get(delta, "reasoning_content");
    give_text(r, choice, WIRE_REASONING,
              is_text(reasoning) ? reasoning : get(delta, "reasoning"));
    give_text(r, choice, WIRE_CONTENT, get(delta, "content"));
    give_text(r, choice, WIRE_CONTENT, get(item, "text")); /* of a text completion */
    const cJSON *calls = get(delta, "tool_calls");
    for (const cJSON *call = cJSON_IsArray(calls) ? calls->child : NULL; call != NULL;
         call = call->next) {
        status rc = add_tool(c, call, err);
        if (rc != STATUS_OK) return rc;
    }
    c->finish = finish_of(get(item, "finish_reason"));
    if (c->finish == WIRE_FINISH_NONE) return STATUS_OK;
    uint64_t n_calls = give_tools(r, choice);
    upstream_piece last = {.choice = choice,
                           .channel = WIRE_CONTENT,
                           .finish = c->finish,
                           .call = n_calls,
                           .call_cut = n_calls < c->n_tools};
    c->over = true;
    r->on_piece(r->context, &last);
    return STATUS_OK;
}

static uint64_t count_of(const cJSON *object, const char *name) {
    const cJSON *value = get(object, name);
    return cJSON_IsNumber(value) && value->valuedouble >= 0 && value->valuedouble < 1e12
               ? (uint64_t)value->valuedouble
               : 0;
}

static void take_usage(upstream_reply *r, const cJSON *usage) {
    if (!cJSON_IsObject(usage)) return;
    r->has_usage = true;
    r->prompt_tokens = count_of(usage, "prompt_tokens");
    r->completion_tokens = count_of(usage, "completion_tokens");
    r->cached_tokens = count_of(get(usage, "prompt_tokens_details"), "cached_tokens");
    r->reasoning_tokens = count_of(get(usage, "completion_tokens_details"), "reasoning_tokens");
    if (r->cached_tokens > r->prompt_tokens) r->cached_tokens = r->prompt_tokens;
}

static void take_error(upstream_reply *r, const cJSON *failure) {
    const cJSON *code = get(failure, "code"), *message = get(failure, "message");
    double number = cJSON_IsNumber(code) ? code->valuedouble : 502;
    r->error_status = number >= 400 && number < 600 ? (unsigned)number : 502;
    (void)snprintf(r->error_text, sizeof r->error_text, "%s",
                   is_text(message)          ? message->valuestring
                   : cJSON_IsString(failure) ? failure->valuestring
                                             : "the server says only that it failed");
}

status upstream_reply_event(upstream_reply *r, const char *data, size_t n, error *err) {
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        r->done = true;
        return STATUS_OK;
    }
    cJSON *root = NULL;
    status rc = json_parse(&root, data, n, "chunk", err);
    if (rc != STATUS_OK) return rc;
    const cJSON *failure = get(root, "error"), *choices = get(root, "choices");
    if (cJSON_IsObject(failure) || is_text(failure)) take_error(r, failure);
    const cJSON *item = cJSON_IsArray(choices) ? choices->child : NULL;
    for (; item != NULL && rc == STATUS_OK; item = item->next)
        rc = take_choice(r, item, err);
    take_usage(r, get(root, "usage"));
    cJSON_Delete(root);
    return rc;
}

/* ------------------------------------------------------------ requests */

/* Our normal form has arguments as an object; others want its text. */
static bool arguments_as_text(cJSON *message) {
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    for (cJSON *call = cJSON_IsArray(calls) ? calls->child : NULL; call != NULL;
         call = call->next) {
        cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function");
        const cJSON *arguments = get(function, "arguments");
        if (!cJSON_IsObject(arguments)) continue;
        char *text = json_print(arguments);
        cJSON *string = text == NULL ? NULL : cJSON_CreateString(text);
        free(text);
        if (string == NULL ||
            !cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", string)) {
            cJSON_Delete(string);
            return false;
        }
    }
    return true;
}

static bool put(cJSON *root, const char *name, cJSON *value) {
    cJSON_DeleteItemFromObjectCaseSensitive(root, name);
    if (value != NULL && cJSON_AddItemToObject(root, name, value)) return true;
    cJSON_Delete(value);
    return false;
}

status upstream_request_body(char **out, size_t *n_choices, const char *body, size_t n,
                             const char *model, error *err) {
    cJSON *root = NULL;
    *out = NULL;
    status rc = json_parse(&root, body, n, "request body", err);
    if (rc != STATUS_OK) return rc;
    const cJSON *messages = get(root, "messages"), *choices = get(root, "n");
    *n_choices = cJSON_IsNumber(choices) && choices->valuedouble >= 1 &&
                         choices->valuedouble <= WIRE_MAX_CHOICES
                     ? (size_t)choices->valuedouble
                     : 1;
    bool ok = cJSON_IsObject(root);
    for (cJSON *m = cJSON_IsArray(messages) ? messages->child : NULL; ok && m != NULL;
         m = m->next)
        ok = arguments_as_text(m);
    cJSON *usage = cJSON_CreateObject();
    ok = ok && usage != NULL && cJSON_AddTrueToObject(usage, "include_usage") != NULL;
    ok = ok && put(root, "model", cJSON_CreateString(model));
    ok = ok && put(root, "stream", cJSON_CreateTrue());
    if (ok)
        ok = put(root, "stream_options", usage);
    else
        cJSON_Delete(usage);
    if (ok) *out = json_print(root);
    cJSON_Delete(root);
    return *out != NULL ? STATUS_OK
                        : error_set(err, STATUS_NO_MEMORY, "no memory for a request");
}

void upstream_error_text(char *out, size_t cap, const char *body, size_t n) {
    cJSON *root = NULL;
    if (n > 0 && json_parse(&root, body, n, "error", NULL) == STATUS_OK) {
        const cJSON *failure = get(root, "error"), *message = get(failure, "message");
        if (!is_text(message)) message = is_text(failure) ? failure : get(root, "message");
        (void)snprintf(out, cap, "%s",
                       is_text(message) ? message->valuestring : "no reason given");
    } else {
        (void)snprintf(out, cap, "no reason given");
    }
    cJSON_Delete(root);
}

/* ------------------------------------------------------------ models */

static uint64_t context_of(const cJSON *model) {
    uint64_t n = count_of(model, "max_model_len"); /* vLLM */
    const cJSON *meta = get(model, "meta");
    if (n == 0) n = count_of(meta, "context_tokens"); /* another coordinator */
    return n > 0 ? n : count_of(meta, "n_ctx");
}

status upstream_read_models(upstream_model out[UPSTREAM_MAX_MODELS], size_t *n_models,
                            const char *body, size_t n, error *err) {
    cJSON *root = NULL;
    *n_models = 0;
    status rc = json_parse(&root, body, n, "models", err);
    if (rc != STATUS_OK) return rc;
    const cJSON *data = get(root, "data");
    if (!cJSON_IsArray(data))
        rc = error_set(err, STATUS_BAD_INPUT, "models: data: is not a list");
    for (const cJSON *m = rc == STATUS_OK ? data->child : NULL; m != NULL; m = m->next) {
        const cJSON *id = get(m, "id");
        if (!is_text(id) || strlen(id->valuestring) > WIRE_MAX_NAME) continue;
        if (*n_models == UPSTREAM_MAX_MODELS) break;
        upstream_model *model = &out[(*n_models)++];
        (void)snprintf(model->name, sizeof model->name, "%s", id->valuestring);
        model->context_tokens = context_of(m);
        const cJSON *owner = get(m, "owned_by");
        model->is_coordinators = is_text(owner) && strcmp(owner->valuestring, "siliceo") == 0;
    }
    cJSON_Delete(root);
    return rc;
}
