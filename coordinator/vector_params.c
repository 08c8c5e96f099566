#include "coordinator/vector_params.h"

#include "common/body_reader.h"
#include <stdio.h>
#include <string.h>

enum {
    MOST_DIMENSIONS = 1 << 20,
    INPUT_FRAME_BYTES = 64, /* an input costs a part of a step, however short it is */
    RERANK_FRAME_BYTES = 400
};

typedef struct reader {
    body_reader in;
    cJSON *to; /* the worker's body */
    chat_params *out;
    size_t n_frame; /* bytes around each document */
} reader;

static status refuse_item(const reader *r, const char *list, size_t index, const char *what) {
    char name[48];
    (void)snprintf(name, sizeof name, "%s[%zu]", list, index);
    return body_refuse(&r->in, name, what);
}

/* Hand a field on as it is: its tree moves. */
static status pass(const reader *r, const char *name) {
    cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(r->in.body, name);
    if (item == NULL || cJSON_AddItemToObject(r->to, name, item)) return STATUS_OK;
    cJSON_Delete(item);
    return body_no_memory(&r->in);
}

/* The same as a list of one. */
static status pass_in_list(const reader *r, const char *name) {
    cJSON *list = cJSON_AddArrayToObject(r->to, name);
    cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(r->in.body, name);
    if (list != NULL && cJSON_AddItemToArray(list, item)) return STATUS_OK;
    cJSON_Delete(item);
    return body_no_memory(&r->in);
}

static status read_whole_number(const reader *r, const char *name, double most) {
    const cJSON *item = body_find(&r->in, name);
    char what[80];
    if (item == NULL) return STATUS_OK;
    (void)snprintf(what, sizeof what, "is not a whole number from 1 to %.0f", most);
    return body_is_whole(item, 1, most) ? pass(r, name) : body_refuse(&r->in, name, what);
}

static status read_model_and_priority(const reader *r) {
    const cJSON *model = body_find(&r->in, "model"), *priority = body_find(&r->in, "priority");
    const char *word = cJSON_GetStringValue(priority);
    if (!cJSON_IsString(model) || model->valuestring[0] == '\0' ||
        strlen(model->valuestring) > WIRE_MAX_NAME)
        return body_refuse(&r->in, "model", "is missing, empty or longer than 128 bytes");
    (void)snprintf(r->out->model, sizeof r->out->model, "%s", model->valuestring);
    r->out->priority = -1;
    if (priority == NULL) return STATUS_OK;
    if (word == NULL || (strcmp(word, "background") != 0 && strcmp(word, "interactive") != 0))
        return body_refuse(&r->in, "priority", "is neither interactive nor background");
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
        if (n == VECTOR_MAX_INPUTS)
            return body_refuse(&r->in, "input", "has more than 2048 inputs");
        if (cJSON_IsString(item) && item->valuestring[0] == '\0')
            return refuse_item(r, "input", n, "is empty");
        if (!is_text(item) && !body_is_ids(item))
            return refuse_item(r, "input", n, "is neither a text nor a list of token ids");
        r->out->prompt_bytes += bytes_of(item);
    }
    return pass(r, "input");
}

static status read_input(const reader *r) {
    const cJSON *input = body_find(&r->in, "input");
    if (input == NULL) return body_refuse(&r->in, "input", "is missing");
    if (cJSON_IsString(input) && input->valuestring[0] == '\0')
        return body_refuse(&r->in, "input", "is empty");
    if (is_text(input) || body_is_ids(input)) {
        r->out->prompt_bytes = bytes_of(input);
        return pass_in_list(r, "input");
    }
    if (!cJSON_IsArray(input))
        return body_refuse(&r->in, "input",
                           "is not a text, a list of texts or a list of token ids");
    if (input->child == NULL) return body_refuse(&r->in, "input", "is an empty list");
    return read_inputs(r, input);
}

static status read_format(const reader *r) {
    const cJSON *format = body_find(&r->in, "encoding_format");
    const char *word = cJSON_GetStringValue(format);
    if (format == NULL) return STATUS_OK;
    if (word == NULL || (strcmp(word, "float") != 0 && strcmp(word, "base64") != 0))
        return body_refuse(&r->in, "encoding_format", "is neither float nor base64");
    return pass(r, "encoding_format");
}

static status read_embeddings(reader *r) {
    status rc = read_input(r);
    if (rc == STATUS_OK) rc = read_format(r);
    return rc == STATUS_OK ? read_whole_number(r, "dimensions", MOST_DIMENSIONS) : rc;
}

/* --- rerank --- */

static status read_text(reader *r, const char *name, bool needed) {
    const cJSON *text = body_find(&r->in, name);
    if (text == NULL && !needed) return STATUS_OK;
    if (text == NULL) return body_refuse(&r->in, name, "is missing");
    if (!is_text(text)) return body_refuse(&r->in, name, "is not a text, or an empty one");
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
        rc = body_no_memory(&r->in);
    }
    cJSON_Delete(text);
    return rc;
}

static status read_documents(const reader *r) {
    cJSON *list = cJSON_GetObjectItemCaseSensitive(r->in.body, "documents");
    cJSON *texts = cJSON_AddArrayToObject(r->to, "documents");
    if (list == NULL || cJSON_IsNull(list))
        return body_refuse(&r->in, "documents", "is missing");
    if (!cJSON_IsArray(list)) return body_refuse(&r->in, "documents", "is not a list");
    if (list->child == NULL) return body_refuse(&r->in, "documents", "is an empty list");
    if (texts == NULL) return body_no_memory(&r->in);
    for (size_t n = 0; list->child != NULL; n++) {
        if (n == VECTOR_MAX_INPUTS)
            return body_refuse(&r->in, "documents", "has more than 2048 documents");
        status rc = add_document(r, texts, n, cJSON_DetachItemFromArray(list, 0));
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

static status read_rerank(reader *r) {
    const cJSON *back = body_find(&r->in, "return_documents");
    r->n_frame = RERANK_FRAME_BYTES;
    status rc = read_text(r, "query", true);
    if (rc == STATUS_OK) rc = read_text(r, "instruction", false);
    if (rc == STATUS_OK) rc = read_documents(r);
    if (rc == STATUS_OK) rc = read_whole_number(r, "top_n", INT32_MAX);
    if (rc != STATUS_OK || back == NULL) return rc;
    if (!cJSON_IsBool(back))
        return body_refuse(&r->in, "return_documents", "is not true or false");
    return pass(r, "return_documents");
}

/* --- both --- */

static status read_body(chat_params *out, const char *body, size_t length,
                        char param[CHAT_PARAM_SIZE], error *err, status (*read)(reader *r)) {
    reader r = {.out = out};
    memset(out, 0, sizeof *out);
    status rc = body_open(&r.in, body, length, param, err);
    if (rc != STATUS_OK) return rc;
    out->n_choices = 1;
    r.to = cJSON_CreateObject();
    if (r.to == NULL) rc = body_no_memory(&r.in);
    if (rc == STATUS_OK) rc = read_model_and_priority(&r);
    if (rc == STATUS_OK) rc = read(&r);
    if (rc != STATUS_OK) goto done;
    out->body = json_print(r.to);
    if (out->body == NULL)
        rc = body_no_memory(&r.in);
    else
        out->n_body = strlen(out->body);
done:
    cJSON_Delete(r.to);
    cJSON_Delete(r.in.body);
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
