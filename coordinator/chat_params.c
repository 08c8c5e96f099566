#include "coordinator/chat_params.h"

#include "common/body_reader.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum field_kind {
    FIELD_STRING,
    FIELD_NUMBER,
    FIELD_INTEGER,
    FIELD_BOOL,
    FIELD_OBJECT,
    FIELD_ARRAY,
    FIELD_STOP,
    FIELD_SEED,
    FIELD_ANY
} field_kind;

typedef struct field {
    const char *name;
    const char *choices; /* of a string: |a|b| */
    double min, max;
    field_kind kind;
    bool forwarded; /* the worker gets it */
} field;

static const field fields[] = {
    {"model", NULL, 0, 0, FIELD_STRING, true},
    {"messages", NULL, 0, 0, FIELD_ARRAY, true},
    {"tools", NULL, 0, 0, FIELD_ARRAY, true},
    {"tool_choice", NULL, 0, 0, FIELD_ANY, true},
    {"parallel_tool_calls", NULL, 0, 0, FIELD_BOOL, true},
    {"chat_template_kwargs", NULL, 0, 0, FIELD_OBJECT, true},
    {"max_tokens", NULL, 1, 16777216, FIELD_INTEGER, true},
    {"max_completion_tokens", NULL, 1, 16777216, FIELD_INTEGER, true},
    {"temperature", NULL, 0, 2, FIELD_NUMBER, true},
    {"top_p", NULL, 0, 1, FIELD_NUMBER, true},
    {"top_k", NULL, -1, 16777216, FIELD_INTEGER, true},
    {"min_p", NULL, 0, 1, FIELD_NUMBER, true},
    {"presence_penalty", NULL, -2, 2, FIELD_NUMBER, true},
    {"frequency_penalty", NULL, -2, 2, FIELD_NUMBER, true},
    {"repetition_penalty", NULL, 0.01, 10, FIELD_NUMBER, true},
    {"seed", NULL, 0, 0, FIELD_SEED, true},
    {"stop", NULL, 0, 0, FIELD_STOP, true},
    {"n", NULL, 1, WIRE_MAX_CHOICES, FIELD_INTEGER, true},
    {"logprobs", NULL, 0, 0, FIELD_BOOL, true},
    {"top_logprobs", NULL, 0, 20, FIELD_INTEGER, true},
    {"logit_bias", NULL, 0, 0, FIELD_OBJECT, true},
    {"max_thinking_tokens", NULL, 0, INT32_MAX, FIELD_INTEGER, true},
    {"max_answer_tokens", NULL, 1, INT32_MAX, FIELD_INTEGER, true},
    {"thinking", NULL, 0, 0, FIELD_OBJECT, true},
    {"reasoning_effort", "|none|minimal|low|medium|high|xhigh|", 0, 0, FIELD_STRING, true},
    {"enable_thinking", NULL, 0, 0, FIELD_BOOL, false},
    {"priority", NULL, 0, 0, FIELD_ANY, false},
    {"stream", NULL, 0, 0, FIELD_BOOL, false},
    {"stream_options", NULL, 0, 0, FIELD_OBJECT, false},
    {"response_format", NULL, 0, 0, FIELD_OBJECT, true},
};
enum { N_FIELDS = sizeof fields / sizeof fields[0], MAX_STOPS = 16, MAX_STOP_BYTES = 1024 };

/* A value for an error text, cut short. */
static void describe(const cJSON *value, char out[80]) {
    char *text = json_print(value);
    size_t n = text == NULL ? 0 : strlen(text);
    size_t cut = n > 60 ? 60 : n;
    while (cut < n && cut > 0 && ((unsigned char)text[cut] & 0xc0) == 0x80)
        cut--;
    (void)snprintf(out, 80, "%.*s%s", (int)cut, text == NULL ? "?" : text,
                   cut < n ? "..." : "");
    free(text);
}

static status wrong(char param[CHAT_PARAM_SIZE], const char *name, const cJSON *value,
                    const char *expected, error *err) {
    char text[80];
    describe(value, text);
    (void)snprintf(param, CHAT_PARAM_SIZE, "%s", name);
    return error_set(err, STATUS_BAD_INPUT, "%s: %s is not %s", name, text, expected);
}

static status check_number(const field *f, const cJSON *value, char param[CHAT_PARAM_SIZE],
                           error *err) {
    char expected[120];
    double v = value->valuedouble;
    bool whole = f->kind == FIELD_INTEGER;
    (void)snprintf(expected, sizeof expected, "%s from %.10g to %.10g",
                   whole ? "a whole number" : "a number", f->min, f->max);
    if (!cJSON_IsNumber(value) || !isfinite(v) || v < f->min || v > f->max ||
        (whole && (v < floor(v) || v > floor(v)))) {
        return wrong(param, f->name, value, expected, err);
    }
    return STATUS_OK;
}

static status check_choice(const field *f, const cJSON *value, char param[CHAT_PARAM_SIZE],
                           error *err) {
    if (!cJSON_IsString(value)) return wrong(param, f->name, value, "a string", err);
    if (f->choices == NULL) return STATUS_OK;
    char bounded[64];
    (void)snprintf(bounded, sizeof bounded, "|%.50s|", value->valuestring);
    if (strstr(f->choices, bounded) != NULL && strchr(value->valuestring, '|') == NULL)
        return STATUS_OK;
    char expected[120];
    (void)snprintf(expected, sizeof expected, "one of %.100s", f->choices + 1);
    expected[strlen(expected) - 1] = '\0';
    for (char *bar = expected; (bar = strchr(bar, '|')) != NULL;)
        *bar = ' ';
    return wrong(param, f->name, value, expected, err);
}

/* Any 64-bit integer; its text is what the worker gets, so no double rounds it. */
static status check_seed(const field *f, const cJSON *value, char param[CHAT_PARAM_SIZE],
                         error *err) {
    bool ok = cJSON_IsNumber(value);
    if (ok && strpbrk(value->valuestring, ".eE") == NULL) {
        errno = 0;
        (void)strtoll(value->valuestring, NULL, 10);
        ok = errno == 0;
    } else if (ok) {
        double v = value->valuedouble;
        ok = fabs(v) <= 9007199254740992.0 && !(v < floor(v) || v > floor(v));
    }
    return ok ? STATUS_OK
              : wrong(param, f->name, value, "a whole number of at most 64 bits", err);
}

static status check_stop(const field *f, const cJSON *value, char param[CHAT_PARAM_SIZE],
                         error *err) {
    static const char expected[] =
        "a string or a list of up to 16 strings, none empty or over 1024 bytes";
    if (!cJSON_IsString(value) && !cJSON_IsArray(value))
        return wrong(param, f->name, value, expected, err);
    const cJSON *first = cJSON_IsArray(value) ? value->child : value;
    int n = 0;
    for (const cJSON *s = first; s != NULL; s = cJSON_IsArray(value) ? s->next : NULL) {
        if (!cJSON_IsString(s) || s->valuestring[0] == '\0' ||
            strlen(s->valuestring) > MAX_STOP_BYTES || ++n > MAX_STOPS) {
            return wrong(param, f->name, value, expected, err);
        }
    }
    return STATUS_OK;
}

static status check_field(const field *f, const cJSON *value, char param[CHAT_PARAM_SIZE],
                          error *err) {
    bool ok = true;
    const char *expected = "";
    switch (f->kind) {
    case FIELD_STRING:
        return check_choice(f, value, param, err);
    case FIELD_NUMBER:
    case FIELD_INTEGER:
        return check_number(f, value, param, err);
    case FIELD_STOP:
        return check_stop(f, value, param, err);
    case FIELD_SEED:
        return check_seed(f, value, param, err);
    case FIELD_BOOL:
        ok = cJSON_IsBool(value), expected = "true or false";
        break;
    case FIELD_OBJECT:
        ok = cJSON_IsObject(value), expected = "an object";
        break;
    case FIELD_ARRAY:
        ok = cJSON_IsArray(value), expected = "a list";
        break;
    case FIELD_ANY:
        break;
    }
    return ok ? STATUS_OK : wrong(param, f->name, value, expected, err);
}

/* Keys are token ids, values biases; both as clients send them. */
static status check_logit_bias(const cJSON *bias, char param[CHAT_PARAM_SIZE], error *err) {
    for (const cJSON *b = bias == NULL ? NULL : bias->child; b != NULL; b = b->next) {
        size_t digits = strspn(b->string, "0123456789");
        char name[64];
        (void)snprintf(name, sizeof name, "logit_bias.%.40s", b->string);
        if (digits == 0 || digits > 9 || b->string[digits] != '\0') {
            (void)snprintf(param, CHAT_PARAM_SIZE, "logit_bias");
            return error_set(err, STATUS_BAD_INPUT, "%s: the key is not a token id", name);
        }
        if (!cJSON_IsNumber(b) || !(b->valuedouble >= -100 && b->valuedouble <= 100)) {
            return wrong(param, name, b, "a number from -100 to 100", err);
        }
    }
    return STATUS_OK;
}

static const cJSON *get(const cJSON *root, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(root, name);
}

static status check_budget(const cJSON *root, char param[CHAT_PARAM_SIZE], error *err) {
    static const field type = {
        "thinking.type", "|enabled|disabled|adaptive|", 0, 0, FIELD_STRING, true};
    static const field tokens = {
        "thinking.budget_tokens", NULL, 0, INT32_MAX, FIELD_INTEGER, true};
    const cJSON *of_type = get(get(root, "thinking"), "type");
    const cJSON *of_tokens = get(get(root, "thinking"), "budget_tokens");
    if (of_type != NULL) {
        status rc = check_field(&type, of_type, param, err);
        if (rc != STATUS_OK) return rc;
    }
    if (of_tokens == NULL || cJSON_IsNull(of_tokens)) return STATUS_OK;
    return check_field(&tokens, of_tokens, param, err);
}

/* The schema itself is the worker's to read. */
static status check_format(const cJSON *format, char param[CHAT_PARAM_SIZE], error *err) {
    const cJSON *type = get(format, "type"),
                *schema = get(get(format, "json_schema"), "schema");
    if (format == NULL) return STATUS_OK;
    bool named = cJSON_IsString(type) && strcmp(type->valuestring, "json_schema") == 0;
    if (named && !cJSON_IsObject(schema)) {
        (void)snprintf(param, CHAT_PARAM_SIZE, "response_format.json_schema.schema");
        return error_set(err, STATUS_BAD_INPUT, "%s: is not a JSON schema", param);
    }
    if (named || (cJSON_IsString(type) && (strcmp(type->valuestring, "text") == 0 ||
                                           strcmp(type->valuestring, "json_object") == 0))) {
        return STATUS_OK;
    }
    return wrong(param, "response_format.type", type != NULL ? type : format,
                 "one of text json_object json_schema", err);
}

static status check_options(chat_params *p, const cJSON *root, char param[CHAT_PARAM_SIZE],
                            error *err) {
    const cJSON *usage = get(get(root, "stream_options"), "include_usage");
    if (usage != NULL && !cJSON_IsNull(usage) && !cJSON_IsBool(usage)) {
        return wrong(param, "stream_options.include_usage", usage, "true or false", err);
    }
    p->include_usage = cJSON_IsTrue(usage);
    status rc = check_format(get(root, "response_format"), param, err);
    if (rc != STATUS_OK) return rc;
    const cJSON *thinking = get(get(root, "chat_template_kwargs"), "enable_thinking");
    if (thinking != NULL && !cJSON_IsNull(thinking) && !cJSON_IsBool(thinking)) {
        return wrong(param, "chat_template_kwargs.enable_thinking", thinking, "true or false",
                     err);
    }
    rc = check_budget(root, param, err);
    if (rc != STATUS_OK) return rc;
    if (get(root, "top_logprobs") != NULL && get(root, "top_logprobs")->valuedouble > 0 &&
        !cJSON_IsTrue(get(root, "logprobs"))) {
        return wrong(param, "top_logprobs", get(root, "top_logprobs"),
                     "allowed without \"logprobs\": true", err);
    }
    return check_logit_bias(get(root, "logit_bias"), param, err);
}

static bool has_tool(const cJSON *tools, const char *name) {
    for (const cJSON *tool = tools == NULL ? NULL : tools->child; tool != NULL;
         tool = tool->next) {
        const cJSON *own = get(get(tool, "function"), "name");
        if (cJSON_IsString(own) && strcmp(own->valuestring, name) == 0) return true;
    }
    return false;
}

/* "none" hides the tools from the model, "auto" shows them; the others force a call. */
static status apply_tool_choice(cJSON *root, char param[CHAT_PARAM_SIZE], error *err) {
    const cJSON *choice = get(root, "tool_choice"), *tools = get(root, "tools");
    const char *word = cJSON_GetStringValue(choice);
    const cJSON *name = get(get(choice, "function"), "name");
    if (choice == NULL) return STATUS_OK;
    if (word != NULL && strcmp(word, "none") == 0) {
        cJSON_DeleteItemFromObjectCaseSensitive(root, "tools");
        cJSON_DeleteItemFromObjectCaseSensitive(root, "tool_choice");
        return STATUS_OK;
    }
    if (word != NULL && strcmp(word, "auto") == 0) return STATUS_OK;
    bool required = word != NULL && strcmp(word, "required") == 0;
    if (!required && !cJSON_IsString(name)) {
        return wrong(
            param, "tool_choice", choice,
            "none, auto, required, or {\"type\":\"function\",\"function\":{\"name\":...}}",
            err);
    }
    if (required ? tools == NULL || tools->child == NULL : !has_tool(tools, name->valuestring))
        return wrong(param, "tool_choice", choice, "possible with these tools", err);
    return STATUS_OK;
}

/* Three ways to say it; the template knows the first.  A null is as good as nothing. */
static status apply_thinking(cJSON *root, error *err) {
    cJSON *kwargs = cJSON_GetObjectItemCaseSensitive(root, "chat_template_kwargs");
    const cJSON *own = get(kwargs, "enable_thinking");
    if (cJSON_IsBool(own)) return STATUS_OK;
    const cJSON *top = get(root, "enable_thinking"), *effort = get(root, "reasoning_effort");
    if (top == NULL && (effort == NULL || strcmp(effort->valuestring, "none") != 0))
        return STATUS_OK;
    if (own != NULL) cJSON_DeleteItemFromObjectCaseSensitive(kwargs, "enable_thinking");
    if (kwargs == NULL) kwargs = cJSON_AddObjectToObject(root, "chat_template_kwargs");
    if (kwargs == NULL ||
        cJSON_AddBoolToObject(kwargs, "enable_thinking", cJSON_IsTrue(top)) == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "no memory for the request");
    }
    return STATUS_OK;
}

/* Bytes of all strings below value: what the prompt is roughly made of. */
static size_t text_bytes(const cJSON *value) {
    size_t n = 0;
    for (const cJSON *item = value == NULL ? NULL : value->child; item != NULL;
         item = item->next) {
        if (cJSON_IsString(item))
            n += strlen(item->valuestring);
        else if (item->child != NULL)
            n += text_bytes(item);
    }
    return n;
}

static status check_all(chat_params *p, const cJSON *root, char param[CHAT_PARAM_SIZE],
                        error *err) {
    for (size_t i = 0; i < N_FIELDS; i++) {
        const cJSON *value = get(root, fields[i].name);
        if (value == NULL) continue;
        status rc = check_field(&fields[i], value, param, err);
        if (rc != STATUS_OK) return rc;
    }
    const cJSON *model = get(root, "model");
    if (model == NULL || model->valuestring[0] == '\0') {
        (void)snprintf(param, CHAT_PARAM_SIZE, "model");
        return error_set(err, STATUS_BAD_INPUT, "model: is missing");
    }
    if (strlen(model->valuestring) > WIRE_MAX_NAME) {
        return wrong(param, "model", model, "a name of up to 128 bytes", err);
    }
    if (get(root, "messages") == NULL || get(root, "messages")->child == NULL) {
        (void)snprintf(param, CHAT_PARAM_SIZE, "messages");
        return error_set(err, STATUS_BAD_INPUT, "messages: %s",
                         get(root, "messages") == NULL ? "is missing" : "is empty");
    }
    return check_options(p, root, param, err);
}

int chat_params_priority(const cJSON *value) {
    if (!cJSON_IsString(value)) return -1;
    if (strcmp(value->valuestring, "background") == 0) return 1;
    return strcmp(value->valuestring, "interactive") == 0 ? 0 : -1;
}

/* The first text of the last message, where a chat client's chores say what they are. */
static void take_task(chat_params *p, const cJSON *messages) {
    const cJSON *last = messages->child;
    while (last != NULL && last->next != NULL)
        last = last->next;
    const cJSON *role = get(last, "role"), *content = get(last, "content");
    if (!cJSON_IsString(role) || strcmp(role->valuestring, "user") != 0) return;
    if (cJSON_IsArray(content)) content = get(content->child, "text");
    if (cJSON_IsString(content))
        (void)snprintf(p->task, sizeof p->task, "%s", content->valuestring);
}

static void take_values(chat_params *p, const cJSON *root) {
    p->priority = chat_params_priority(get(root, "priority"));
    take_task(p, get(root, "messages"));
    (void)snprintf(p->model, sizeof p->model, "%s", get(root, "model")->valuestring);
    p->stream = cJSON_IsTrue(get(root, "stream"));
    p->n_choices = get(root, "n") != NULL ? (uint32_t)get(root, "n")->valuedouble : 1;
    const cJSON *limit = get(root, "max_completion_tokens");
    if (limit == NULL) limit = get(root, "max_tokens");
    p->max_tokens = limit != NULL ? (uint64_t)limit->valuedouble : 0;
    p->prompt_bytes = text_bytes(get(root, "messages")) + text_bytes(get(root, "tools"));
}

static void remove_item(cJSON *root, cJSON *item) {
    cJSON_Delete(cJSON_DetachItemViaPointer(root, item));
}

static size_t field_index(const char *name) {
    size_t i = 0;
    while (i < N_FIELDS && strcmp(fields[i].name, name) != 0)
        i++;
    return i;
}

/* Known fields only, each once (the first counts), and none that is null: what
 * is checked below is then what the worker will see. */
static void tidy(cJSON *root) {
    bool seen[N_FIELDS] = {false};
    cJSON *next;
    for (cJSON *item = root->child; item != NULL; item = next) {
        next = item->next;
        size_t i = field_index(item->string);
        if (i == N_FIELDS || seen[i] || cJSON_IsNull(item))
            remove_item(root, item);
        else
            seen[i] = true;
    }
}

static void keep_forwarded(cJSON *root) {
    cJSON *next;
    for (cJSON *item = root->child; item != NULL; item = next) {
        next = item->next;
        if (!fields[field_index(item->string)].forwarded) remove_item(root, item);
    }
}

status chat_params_take(chat_params *out, cJSON *root, char param[CHAT_PARAM_SIZE],
                        error *err) {
    memset(out, 0, sizeof *out);
    param[0] = '\0';
    tidy(root);
    status rc = check_all(out, root, param, err);
    if (rc != STATUS_OK) goto fail;
    if ((rc = apply_tool_choice(root, param, err)) != STATUS_OK) goto fail;
    if ((rc = apply_thinking(root, err)) != STATUS_OK) goto fail;
    take_values(out, root);
    keep_forwarded(root);
    if ((rc = chat_normalise(root, param, err)) != STATUS_OK) goto fail;
    prefix_chain_init(&out->chain, root);
    out->body = json_print(root);
    if (out->body == NULL) {
        rc = error_set(err, STATUS_NO_MEMORY, "no memory for the request");
        goto fail;
    }
    out->n_body = strlen(out->body);
    return STATUS_OK;
fail:
    chat_params_release(out);
    return rc;
}

status chat_params_read(chat_params *out, const char *body, size_t length,
                        char param[CHAT_PARAM_SIZE], error *err) {
    body_reader r;
    memset(out, 0, sizeof *out);
    status rc = body_open(&r, body, length, param, err);
    if (rc == STATUS_OK) rc = chat_params_take(out, r.body, param, err);
    cJSON_Delete(r.body);
    return rc;
}

status chat_params_check(const cJSON *root, const char *const *names,
                         char param[CHAT_PARAM_SIZE], error *err) {
    for (; *names != NULL; names++) {
        const cJSON *value = get(root, *names);
        const field *f = &fields[field_index(*names)];
        status rc = value == NULL || cJSON_IsNull(value) ? STATUS_OK
                                                         : check_field(f, value, param, err);
        if (rc != STATUS_OK) return rc;
    }
    return check_logit_bias(get(root, "logit_bias"), param, err);
}

void chat_params_release(chat_params *p) {
    free(p->body);
    for (size_t i = 0; i < p->n_more; i++)
        free(p->more[i]);
    free(p->more);
    cJSON_Delete(p->told);
    prefix_chain_release(&p->chain);
    memset(p, 0, sizeof *p);
}
