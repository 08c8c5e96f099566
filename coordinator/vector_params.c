#include "coordinator/vector_params.h"

#include "common/json.h"
#include "coordinator/chat_build.h"
#include <stdio.h>
#include <string.h>

enum {
    MOST_DIMENSIONS = 1 << 20,
    INPUT_FRAME_BYTES = 64, /* an input costs a part of a step, however short it is */
    RERANK_FRAME_BYTES = 400
};

typedef struct reader {
    cJSON *root;
    cJSON *to; /* the worker's body */
    chat_params *out;
    size_t n_frame; /* bytes around each document */
    char *param;    /* [CHAT_PARAM_SIZE] */
    error *err;
} reader;

static status refuse(const reader *r, const char *name, const char *what) {
    (void)snprintf(r->param, CHAT_PARAM_SIZE, "%s", name);
    return error_set(r->err, STATUS_BAD_INPUT, "%s: %s", name, what);
}

static status refuse_item(const reader *r, const char *list, size_t index, const char *what) {
    char name[48];
    (void)snprintf(name, sizeof name, "%s[%zu]", list, index);
    return refuse(r, name, what);
}

static status no_memory(const reader *r) {
    return error_set(r->err, STATUS_NO_MEMORY, "no memory for the request");
}

/* Hand a field on as it is: its tree moves. */
static status pass(const reader *r, const char *name) {
    cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(r->root, name);
    if (item == NULL || cJSON_AddItemToObject(r->to, name, item)) return STATUS_OK;
    cJSON_Delete(item);
    return no_memory(r);
}

/* The same as a list of one. */
static status pass_in_list(const reader *r, const char *name) {
    cJSON *list = cJSON_AddArrayToObject(r->to, name);
    cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(r->root, name);
    if (list != NULL && cJSON_AddItemToArray(list, item)) return STATUS_OK;
    cJSON_Delete(item);
    return no_memory(r);
}

static status read_whole_number(const reader *r, const char *name, double most) {
    const cJSON *item = chat_build_find(r->root, name);
    char what[80];
    if (item == NULL) return STATUS_OK;
    (void)snprintf(what, sizeof what, "is not a whole number from 1 to %.0f", most);
    return chat_build_is_whole(item, 1, most) ? pass(r, name) : refuse(r, name, what);
}

static status read_model_and_priority(const reader *r) {
    const cJSON *model = chat_build_find(r->root, "model"),
                *priority = chat_build_find(r->root, "priority");
    const char *word = cJSON_GetStringValue(priority);
    if (!cJSON_IsString(model) || model->valuestring[0] == '\0' ||
        strlen(model->valuestring) > WIRE_MAX_NAME)
        return refuse(r, "model", "is missing, empty or longer than 128 bytes");
    (void)snprintf(r->out->model, sizeof r->out->model, "%s", model->valuestring);
    r->out->priority = -1;
    if (priority == NULL) return STATUS_OK;
    if (word == NULL || (strcmp(word, "background") != 0 && strcmp(word, "interactive") != 0))
        return refuse(r, "priority", "is neither interactive nor background");
    r->out->priority = strcmp(word, "background") == 0;
    return STATUS_OK;
}

/* --- embeddings --- */

/* Both have something in them; numbers are checked one by one. */
static bool is_text(const cJSON *item) {
    return cJSON_IsString(item) && item->valuestring[0] != '\0';
}

static size_t bytes_of(const cJSON *input) {
    return INPUT_FRAME_BYTES + (cJSON_IsString(input) ? strlen(input->valuestring)
                                                      : 4 * (size_t)cJSON_GetArraySize(input));
}

static status read_inputs(const reader *r, const cJSON *list) {
    size_t n = 0;
    for (const cJSON *item = list->child; item != NULL; item = item->next, n++) {
        if (n == VECTOR_MAX_INPUTS) return refuse(r, "input", "has more than 2048 inputs");
        if (cJSON_IsString(item) && item->valuestring[0] == '\0')
            return refuse_item(r, "input", n, "is empty");
        if (!is_text(item) && !chat_build_is_ids(item))
            return refuse_item(r, "input", n, "is neither a text nor a list of token ids");
        r->out->prompt_bytes += bytes_of(item);
    }
    return pass(r, "input");
}

static status read_input(const reader *r) {
    const cJSON *input = chat_build_find(r->root, "input");
    if (input == NULL) return refuse(r, "input", "is missing");
    if (cJSON_IsString(input) && input->valuestring[0] == '\0')
        return refuse(r, "input", "is empty");
    if (is_text(input) || chat_build_is_ids(input)) {
        r->out->prompt_bytes = bytes_of(input);
        return pass_in_list(r, "input");
    }
    if (!cJSON_IsArray(input))
        return refuse(r, "input", "is not a text, a list of texts or a list of token ids");
    if (input->child == NULL) return refuse(r, "input", "is an empty list");
    return read_inputs(r, input);
}

static status read_format(const reader *r) {
    const cJSON *format = chat_build_find(r->root, "encoding_format");
    const char *word = cJSON_GetStringValue(format);
    if (format == NULL) return STATUS_OK;
    if (word == NULL || (strcmp(word, "float") != 0 && strcmp(word, "base64") != 0))
        return refuse(r, "encoding_format", "is neither float nor base64");
    return pass(r, "encoding_format");
}

static status read_embeddings(reader *r) {
    status rc = read_input(r);
    if (rc == STATUS_OK) rc = read_format(r);
    return rc == STATUS_OK ? read_whole_number(r, "dimensions", MOST_DIMENSIONS) : rc;
}

/* --- rerank --- */

static status read_text(reader *r, const char *name, bool needed) {
    const cJSON *text = chat_build_find(r->root, name);
    if (text == NULL && !needed) return STATUS_OK;
    if (text == NULL) return refuse(r, name, "is missing");
    if (!is_text(text)) return refuse(r, name, "is not a text, or an empty one");
    r->n_frame += strlen(text->valuestring);
    return pass(r, name);
}

/* Takes item. */
static status add_document(const reader *r, cJSON *texts, size_t index, cJSON *item) {
    cJSON *text = item;
    status rc = STATUS_OK;
    if (cJSON_IsObject(item)) {
        text = cJSON_DetachItemFromObjectCaseSensitive(item, "text");
        cJSON_Delete(item);
    }
    if (!cJSON_IsString(text)) {
        rc = refuse_item(r, "documents", index, "is neither a text nor an object with a text");
    } else {
        r->out->prompt_bytes += r->n_frame + strlen(text->valuestring);
        if (cJSON_AddItemToArray(texts, text)) return STATUS_OK;
        rc = no_memory(r);
    }
    cJSON_Delete(text);
    return rc;
}

static status read_documents(const reader *r) {
    cJSON *list = cJSON_GetObjectItemCaseSensitive(r->root, "documents");
    cJSON *texts = cJSON_AddArrayToObject(r->to, "documents");
    if (list == NULL || cJSON_IsNull(list)) return refuse(r, "documents", "is missing");
    if (!cJSON_IsArray(list)) return refuse(r, "documents", "is not a list");
    if (list->child == NULL) return refuse(r, "documents", "is an empty list");
    if (texts == NULL) return no_memory(r);
    for (size_t n = 0; list->child != NULL; n++) {
        if (n == VECTOR_MAX_INPUTS)
            return refuse(r, "documents", "has more than 2048 documents");
        status rc = add_document(r, texts, n, cJSON_DetachItemFromArray(list, 0));
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

static status read_rerank(reader *r) {
    const cJSON *back = chat_build_find(r->root, "return_documents");
    r->n_frame = RERANK_FRAME_BYTES;
    status rc = read_text(r, "query", true);
    if (rc == STATUS_OK) rc = read_text(r, "instruction", false);
    if (rc == STATUS_OK) rc = read_documents(r);
    if (rc == STATUS_OK) rc = read_whole_number(r, "top_n", INT32_MAX);
    if (rc != STATUS_OK || back == NULL) return rc;
    if (!cJSON_IsBool(back)) return refuse(r, "return_documents", "is not true or false");
    return pass(r, "return_documents");
}

/* --- both --- */

static status read_body(chat_params *out, const char *body, size_t length,
                        char param[CHAT_PARAM_SIZE], error *err, status (*read)(reader *r)) {
    reader r = {.out = out, .param = param, .err = err};
    memset(out, 0, sizeof *out);
    param[0] = '\0';
    status rc = json_parse(&r.root, body, length, "request body", err);
    if (rc != STATUS_OK) return rc;
    out->n_choices = 1;
    r.to = cJSON_CreateObject();
    if (r.to == NULL)
        rc = no_memory(&r);
    else if (!cJSON_IsObject(r.root))
        rc = error_set(err, STATUS_BAD_INPUT, "request body: is not a JSON object");
    if (rc == STATUS_OK) rc = read_model_and_priority(&r);
    if (rc == STATUS_OK) rc = read(&r);
    if (rc != STATUS_OK) goto done;
    out->body = json_print(r.to);
    if (out->body == NULL)
        rc = no_memory(&r);
    else
        out->n_body = strlen(out->body);
done:
    cJSON_Delete(r.to);
    cJSON_Delete(r.root);
    if (rc != STATUS_OK) chat_params_release(out);
    return rc;
}

status vector_params_read_embeddings(chat_params *out, const char *body, size_t length,
                                     char param[CHAT_PARAM_SIZE], error *err) {
    return read_body(out, body, length, param, err, read_embeddings);
}

status vector_params_read_rerank(chat_params *out, const char *body, size_t length,
                                 char param[CHAT_PARAM_SIZE], error *err) {
    return read_body(out, body, length, param, err, read_rerank);
}
