#include "worker/embedding_job.h"

#include "common/body_reader.h"
#include <stdio.h>
#include <string.h>

/* What the model's makers ask where a request says nothing. */
static const char default_instruction[] =
    "Given a web search query, retrieve relevant passages that answer the query";

static status read_whole_number(const body_reader *r, const char *name, double most,
                                double *out) {
    const cJSON *item = body_find(r, name);
    char what[80];
    if (item == NULL) return STATUS_OK;
    if (!body_is_whole(item, 1, most)) {
        (void)snprintf(what, sizeof what, "must be an integer from 1 to %.0f", most);
        return body_refuse(r, name, what);
    }
    *out = item->valuedouble;
    return STATUS_OK;
}

static status read_text(const body_reader *r, const char *name, const char **out) {
    const cJSON *item = body_find(r, name);
    if (item == NULL && *out != NULL) return STATUS_OK;
    if (item == NULL) return body_refuse(r, name, "is missing");
    if (!cJSON_IsString(item)) return body_refuse(r, name, "must be a string");
    *out = item->valuestring;
    return STATUS_OK;
}

void embedding_job_input_name(const embedding_job *j, size_t index, char out[CHAT_PARAM_SIZE]) {
    if (j->kind == WIRE_EMBED && j->n_inputs == 1)
        (void)snprintf(out, CHAT_PARAM_SIZE, "input");
    else
        (void)snprintf(out, CHAT_PARAM_SIZE, "%s[%zu]",
                       j->kind == WIRE_EMBED ? "input" : "documents", index);
}

static bool are_ids(const cJSON *list, uint32_t n_vocab) {
    if (!cJSON_IsArray(list)) return false;
    for (const cJSON *id = list->child; id != NULL; id = id->next) {
        if (!body_is_whole(id, 0, n_vocab - 1.0)) return false;
    }
    return true;
}

static status read_inputs(embedding_job *j, const body_reader *r, const char *name,
                          uint32_t n_vocab) {
    const cJSON *list = body_find(r, name);
    char item_name[CHAT_PARAM_SIZE];
    if (list == NULL) return body_refuse(r, name, "is missing");
    if (!cJSON_IsArray(list) || list->child == NULL)
        return body_refuse(r, name, "must be a list with something in it");
    j->inputs = list;
    for (const cJSON *item = list->child; item != NULL; item = item->next)
        j->n_inputs++;
    if (j->n_inputs > EMBEDDING_MAX_INPUTS)
        return body_refuse(r, name, "has more than 2048 items");
    size_t i = 0;
    for (const cJSON *item = list->child; item != NULL; item = item->next, i++) {
        if (cJSON_IsString(item) || (j->kind == WIRE_EMBED && are_ids(item, n_vocab))) continue;
        embedding_job_input_name(j, i, item_name);
        return body_refuse(r, item_name,
                           j->kind == WIRE_RERANK
                               ? "must be a string"
                               : "must be a string or a list of ids of tokens "
                                 "of this model");
    }
    return STATUS_OK;
}

/* --- embeddings --- */

/* Of one vector in the answer at most: 16 characters a number as %.9g, or four for three
 * bytes; and what stands around it. */
static uint64_t answer_bytes(const embedding_job *j) {
    return 80 + (j->base64 ? 6 * (uint64_t)j->n_dimensions : 16 * (uint64_t)j->n_dimensions);
}

static status check_answer(const embedding_job *j, const body_reader *r) {
    uint64_t most = answer_bytes(j) * j->n_inputs;
    char what[160];
    if (most <= WIRE_MAX_BODY) return STATUS_OK;
    (void)snprintf(what, sizeof what,
                   "asks for %zu vectors of %u numbers, %llu bytes at most; an answer has room "
                   "for %d: %ssend fewer",
                   j->n_inputs, j->n_dimensions, (unsigned long long)most, WIRE_MAX_BODY,
                   j->base64 ? "" : "ask for base64 or ");
    return body_refuse(r, "input", what);
}

static status read_embed(embedding_job *j, const body_reader *r, uint32_t n_vocab,
                         uint32_t n_embd) {
    const char *format = "float";
    double dimensions = n_embd;
    status rc = read_inputs(j, r, "input", n_vocab);
    if (rc == STATUS_OK) rc = read_whole_number(r, "dimensions", n_embd, &dimensions);
    if (rc == STATUS_OK) rc = read_text(r, "encoding_format", &format);
    if (rc != STATUS_OK) return rc;
    j->n_dimensions = (uint32_t)dimensions;
    j->base64 = strcmp(format, "base64") == 0;
    if (!j->base64 && strcmp(format, "float") != 0)
        return body_refuse(r, "encoding_format", "must be float or base64");
    return check_answer(j, r);
}

/* --- rerank --- */

static status read_rerank(embedding_job *j, const body_reader *r) {
    double top = 0;
    const cJSON *back = body_find(r, "return_documents");
    j->instruction = default_instruction;
    status rc = read_text(r, "query", &j->query);
    if (rc == STATUS_OK) rc = read_text(r, "instruction", &j->instruction);
    if (rc == STATUS_OK) rc = read_inputs(j, r, "documents", 0);
    if (rc == STATUS_OK) rc = read_whole_number(r, "top_n", INT32_MAX, &top);
    if (rc != STATUS_OK) return rc;
    if (back != NULL && !cJSON_IsBool(back))
        return body_refuse(r, "return_documents", "must be true or false");
    j->returns_documents = cJSON_IsTrue(back);
    j->n_top = top > 0 && top < (double)j->n_inputs ? (size_t)top : j->n_inputs;
    return STATUS_OK;
}

status embedding_job_parse(embedding_job *out, wire_kind kind, const char *body, size_t length,
                           uint32_t n_vocab, uint32_t n_embd, char param[CHAT_PARAM_SIZE],
                           error *err) {
    CHECK(kind == WIRE_EMBED || kind == WIRE_RERANK);
    memset(out, 0, sizeof *out);
    out->kind = kind;
    body_reader r;
    status rc = body_open(&r, body, length, param, err);
    if (rc != STATUS_OK) return rc;
    out->body = r.body;
    rc = kind == WIRE_EMBED ? read_embed(out, &r, n_vocab, n_embd) : read_rerank(out, &r);
    if (rc != STATUS_OK) embedding_job_release(out);
    return rc;
}

void embedding_job_release(embedding_job *j) {
    cJSON_Delete(j->body);
    memset(j, 0, sizeof *j);
}
