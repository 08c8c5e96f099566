#include "coordinator/upstream_vectors.h"

#include "common/json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool upstream_vectors_kind(wire_kind kind) {
    return kind == WIRE_EMBED || kind == WIRE_RERANK;
}

const char *upstream_vectors_path(wire_kind kind) {
    return kind == WIRE_EMBED ? "/embeddings" : "/rerank";
}

static const cJSON *get(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

status upstream_vectors_body(char **out, size_t *n_inputs, wire_kind kind, const char *body,
                             size_t n, const char *model, error *err) {
    cJSON *root = NULL;
    *out = NULL;
    status rc = json_parse(&root, body, n, "request body", err);
    if (rc != STATUS_OK) return rc;
    *n_inputs =
        (size_t)cJSON_GetArraySize(get(root, kind == WIRE_EMBED ? "input" : "documents"));
    cJSON_DeleteItemFromObjectCaseSensitive(root, "model");
    if (cJSON_AddStringToObject(root, "model", model) != NULL) *out = json_print(root);
    cJSON_Delete(root);
    return *out != NULL ? STATUS_OK
                        : error_set(err, STATUS_NO_MEMORY, "no memory for a request");
}

static bool is_vector(const cJSON *value) {
    if (cJSON_IsString(value)) return value->valuestring[0] != '\0';
    if (!cJSON_IsArray(value) || value->child == NULL) return false;
    for (const cJSON *number = value->child; number != NULL; number = number->next) {
        if (!cJSON_IsNumber(number)) return false;
    }
    return true;
}

/* Each item says which input it is of, and has what was asked for. */
static status check_item(const cJSON *item, wire_kind kind, bool *seen, size_t n_inputs,
                         error *err) {
    const cJSON *index = get(item, "index");
    double at = cJSON_IsNumber(index) ? index->valuedouble : -1;
    if (!(at >= 0 && at < (double)n_inputs) || at > floor(at) || seen[(size_t)at])
        return error_set(err, STATUS_BAD_INPUT, "index: was not asked for, or came twice");
    seen[(size_t)at] = true;
    if (kind == WIRE_EMBED && !is_vector(get(item, "embedding")))
        return error_set(err, STATUS_BAD_INPUT, "embedding: is neither numbers nor a text");
    if (kind == WIRE_RERANK && !cJSON_IsNumber(get(item, "relevance_score")))
        return error_set(err, STATUS_BAD_INPUT, "relevance_score: is not a number");
    return STATUS_OK;
}

static status check_list(const cJSON *list, wire_kind kind, size_t n_inputs, error *err) {
    size_t n = (size_t)cJSON_GetArraySize(list);
    /* A rerank may be asked for the best of them alone. */
    if (!cJSON_IsArray(list) || n == 0 || n > n_inputs || (kind == WIRE_EMBED && n < n_inputs))
        return error_set(err, STATUS_BAD_INPUT, "%s: is not a list of what was asked for",
                         kind == WIRE_EMBED ? "data" : "results");
    bool *seen = calloc(n_inputs, sizeof *seen);
    if (seen == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for a reply");
    status rc = STATUS_OK;
    for (const cJSON *item = list->child; item != NULL && rc == STATUS_OK; item = item->next)
        rc = check_item(item, kind, seen, n_inputs, err);
    free(seen);
    return rc;
}

static uint64_t tokens_of(const cJSON *usage) {
    const cJSON *count = get(usage, "prompt_tokens");
    if (!cJSON_IsNumber(count)) count = get(usage, "total_tokens");
    return cJSON_IsNumber(count) && count->valuedouble >= 0 && count->valuedouble < 1e12
               ? (uint64_t)count->valuedouble
               : 0;
}

status upstream_vectors_read(char **out, uint64_t *prompt_tokens, wire_kind kind,
                             size_t n_inputs, const char *body, size_t n, error *err) {
    cJSON *root = NULL;
    *out = NULL;
    status rc = json_parse(&root, body, n, "reply", err);
    if (rc != STATUS_OK) return rc;
    const cJSON *list = get(root, kind == WIRE_EMBED ? "data" : "results");
    rc = check_list(list, kind, n_inputs, err);
    *prompt_tokens = tokens_of(get(root, "usage"));
    if (rc == STATUS_OK && (*out = json_print(list)) == NULL)
        rc = error_set(err, STATUS_NO_MEMORY, "no memory for a reply");
    cJSON_Delete(root);
    return rc;
}
