#include "worker/embedding.h"

#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status no_memory(request_fault *f) {
    return error_set(&f->err, STATUS_NO_MEMORY, "embedding: no memory");
}

/* --- making --- */

/* Encoding a text that cannot fit would keep everyone waiting for nothing. */
static status check_lengths(const embedding *v, const request_context *c, request_fault *f) {
    size_t i = 0;
    for (const cJSON *item = v->job.inputs->child; item != NULL; item = item->next, i++) {
        size_t least = cJSON_IsString(item) ? strlen(item->valuestring) / c->max_token_bytes
                                            : (size_t)cJSON_GetArraySize(item);
        if (least <= c->n_context) continue;
        embedding_job_input_name(&v->job, i, f->param);
        f->http_status = 400;
        f->code = "context_length_exceeded";
        return error_set(&f->err, STATUS_BAD_INPUT,
                         "this model's maximum context length is %u tokens, %s has at least "
                         "%zu",
                         c->n_context, f->param, least);
    }
    return STATUS_OK;
}

status embedding_make(request *r, const wire_submit *submit, request_fault *fault) {
    const request_context *c = r->context;
    embedding *v = calloc(1, sizeof *v);
    if (v == NULL) return no_memory(fault);
    status rc =
        embedding_job_parse(&v->job, submit->kind, submit->body.bytes, submit->body.length,
                            c->n_vocab, c->n_embd, fault->param, &fault->err);
    if (rc != STATUS_OK) goto fail;
    rc = check_lengths(v, c, fault);
    if (rc != STATUS_OK) goto fail;
    v->inputs = calloc(v->job.n_inputs, sizeof *v->inputs);
    if (v->inputs == NULL) {
        rc = no_memory(fault);
        goto fail;
    }
    v->next = v->job.inputs->child;
    r->n_open = (uint32_t)v->job.n_inputs;
    r->vectors = v;
    return STATUS_OK;
fail:
    embedding_free(v);
    return rc;
}

static void release_input(embedding_input *i) {
    sequence_release(&i->timeline);
    free(i->sum);
    i->sum = NULL;
}

void embedding_free(embedding *v) {
    if (v == NULL) return;
    for (size_t i = 0; v->inputs != NULL && i < v->n_begun; i++) {
        release_input(&v->inputs[i]);
        json_text_release(&v->inputs[i].vector);
    }
    free(v->inputs);
    embedding_job_release(&v->job);
    free(v);
}

/* --- the prompt of an input --- */

static bool add_message(cJSON *list, const char *role, const char *text) {
    cJSON *message = cJSON_CreateObject();
    bool made = cJSON_AddStringToObject(message, "role", role) != NULL &&
                cJSON_AddStringToObject(message, "content", text) != NULL;
    if (made && cJSON_AddItemToArray(list, message)) return true;
    cJSON_Delete(message);
    return false;
}

/* A chat without deliberation whose answer can only begin with yes or no; the caller frees. */
static cJSON *ranking_chat(const embedding_job *j, const char *document) {
    static const char system[] =
        "Judge whether the Document meets the requirements based on the Query and the "
        "Instruct provided. Note that the answer can only be \"yes\" or \"no\".";
    json_text text = {0};
    json_text_format(&text, "<Instruct>: %s\n<Query>: %s\n<Document>: %s", j->instruction,
                     j->query, document);
    cJSON *chat = cJSON_CreateObject();
    cJSON *messages = cJSON_AddArrayToObject(chat, "messages");
    cJSON *switches = cJSON_AddObjectToObject(chat, "chat_template_kwargs");
    bool made = !text.failed && messages != NULL &&
                cJSON_AddFalseToObject(switches, "enable_thinking") != NULL &&
                add_message(messages, "system", system) &&
                add_message(messages, "user", text.bytes);
    json_text_release(&text);
    if (made) return chat;
    cJSON_Delete(chat);
    return NULL;
}

static status encode_document(const request *r, const char *document, token_list *ids,
                              request_fault *f) {
    const request_context *c = r->context;
    prompt p = {0};
    cJSON *chat = ranking_chat(&r->vectors->job, document);
    if (chat == NULL) return no_memory(f);
    status rc = chat_template_render(chat, c->style, &p, &f->err);
    /* What clients wrote is text: it cannot spell control tokens. */
    if (rc == STATUS_OK)
        rc = tokenizer_encode_prompt(c->vocab, &p, TOKENIZER_ADDED_NONE, ids, &f->err);
    prompt_release(&p);
    cJSON_Delete(chat);
    return rc;
}

static status encode(const request *r, const cJSON *item, token_list *ids, request_fault *f) {
    const request_context *c = r->context;
    if (r->vectors->job.kind == WIRE_RERANK)
        return encode_document(r, item->valuestring, ids, f);
    if (cJSON_IsString(item)) {
        status rc = tokenizer_encode(c->vocab, item->valuestring, strlen(item->valuestring),
                                     TOKENIZER_ADDED_NONE, ids, &f->err);
        if (rc != STATUS_OK || c->text_end < 0) return rc;
        return token_list_add(ids, c->text_end, &f->err);
    }
    for (const cJSON *id = item->child; id != NULL; id = id->next) {
        status rc = token_list_add(ids, (int32_t)id->valuedouble, &f->err);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

static status check_length(const request *r, size_t index, size_t n, request_fault *f) {
    const request_context *c = r->context;
    if (n > 0 && n <= c->n_context) return STATUS_OK;
    embedding_job_input_name(&r->vectors->job, index, f->param);
    f->http_status = 400;
    f->code = n == 0 ? "invalid_value" : "context_length_exceeded";
    if (n == 0) return error_set(&f->err, STATUS_BAD_INPUT, "%s has no tokens", f->param);
    return error_set(&f->err, STATUS_BAD_INPUT,
                     "this model's maximum context length is %u tokens, %s has %zu",
                     c->n_context, f->param, n);
}

/* The tokens that all prompts of a ranking begin with: a prompt without a document tells. */
static status find_common(request *r, const token_list *ids, request_fault *f) {
    token_list bare = {0};
    size_t n = 0;
    status rc = encode_document(r, "", &bare, f);
    while (n < bare.length && n < ids->length && bare.ids[n] == ids->ids[n])
        n++;
    r->vectors->n_common = (uint32_t)n / MODEL_CHUNK_TOKENS * MODEL_CHUNK_TOKENS;
    token_list_release(&bare);
    return rc;
}

bool embedding_may_begin(const embedding *v, size_t n_places) {
    if (v->next == NULL) return false;
    if (v->n_common > 0 && v->n_over == 0) n_places = 1; /* the first runs it for all */
    return v->n_begun - v->n_over < n_places;
}

static bool takes_means(const request *r) {
    return r->vectors->job.kind == WIRE_EMBED && r->context->pooling == POOLING_MEAN;
}

status embedding_begin(request *r, sequence **out, request_fault *fault) {
    embedding *v = r->vectors;
    embedding_input *input = &v->inputs[v->n_begun];
    token_list ids = {0};
    memset(fault, 0, sizeof *fault);
    status rc = encode(r, v->next, &ids, fault);
    if (rc == STATUS_OK) rc = check_length(r, v->n_begun, ids.length, fault);
    if (rc == STATUS_OK) {
        uint32_t n = (uint32_t)ids.length;
        rc = sequence_init(&input->timeline, ids.ids, n, n, &fault->err);
    }
    bool ranks = v->job.kind == WIRE_RERANK && r->context->prefix.on;
    if (rc == STATUS_OK && ranks && v->n_begun == 0) rc = find_common(r, &ids, fault);
    if (rc == STATUS_OK) (void)sequence_add_stop(&input->timeline, v->n_common);
    if (rc == STATUS_OK && takes_means(r)) {
        input->sum = calloc(r->context->n_embd, sizeof *input->sum);
        if (input->sum == NULL) rc = no_memory(fault);
    }
    if (rc != STATUS_OK) {
        release_input(input);
        goto done;
    }
    input->timeline.owner = r;
    input->timeline.choice = (uint32_t)v->n_begun;
    input->timeline.priority = r->priority;
    input->timeline.runs_whole = takes_means(r);
    r->n_prompt += (uint32_t)ids.length;
    v->next = v->next->next;
    v->n_begun++;
    *out = &input->timeline;
done:
    token_list_release(&ids);
    return rc == STATUS_OK ? rc : request_fault_from(fault, rc);
}

/* --- what the model says --- */

uint32_t embedding_wants_rows(const request *r, uint32_t n_tokens, bool is_last) {
    if (r->vectors->job.kind != WIRE_EMBED) return 0;
    return takes_means(r) ? n_tokens : is_last;
}

bool embedding_wants_logits(const request *r, bool is_last) {
    return is_last && r->vectors->job.kind == WIRE_RERANK;
}

static status no_number(request_fault *f) {
    *f = (request_fault){.http_status = 500, .code = "model_error", .retryable = true};
    return error_set(&f->err, STATUS_DEVICE, "the model gave no number for an input");
}

/* The first n numbers, of length 1 together. */
static bool normalise(double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    double length = sqrt(sum);
    if (!isfinite(length) || !(length > 0)) return false;
    for (size_t i = 0; i < n; i++)
        x[i] /= length;
    return true;
}

static void write_floats(json_text *out, const double *x, size_t n) {
    char text[32];
    for (size_t i = 0; i < n; i++) {
        int length =
            snprintf(text, sizeof text, "%c%.9g", i > 0 ? ',' : '[', (double)(float)x[i]);
        json_text_add(out, text, (size_t)length);
    }
    json_text_add(out, "]", 1);
}

static void write_base64(json_text *out, const double *x, size_t n) {
    size_t n_text = sodium_base64_ENCODED_LEN(n * 4, sodium_base64_VARIANT_ORIGINAL);
    unsigned char *bytes = malloc(n * 4);
    char *text = malloc(n_text);
    if (bytes == NULL || text == NULL) {
        out->failed = true;
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        float value = (float)x[i];
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        for (size_t k = 0; k < 4; k++)
            bytes[4 * i + k] = (unsigned char)(bits >> (8 * k));
    }
    (void)sodium_bin2base64(text, n_text, bytes, n * 4, sodium_base64_VARIANT_ORIGINAL);
    json_text_add(out, "\"", 1);
    json_text_add(out, text, n_text - 1);
    json_text_add(out, "\"", 1);
done:
    free(text);
    free(bytes);
}

static status write_vector(const request *r, embedding_input *input, double *x,
                           request_fault *f) {
    const embedding_job *j = &r->vectors->job;
    if (!normalise(x, j->n_dimensions)) return no_number(f);
    if (j->base64)
        write_base64(&input->vector, x, j->n_dimensions);
    else
        write_floats(&input->vector, x, j->n_dimensions);
    if (!input->vector.failed) return STATUS_OK;
    return request_fault_from(f, no_memory(f));
}

/* A mean's divisor falls out with its length. */
static void add_rows(embedding_input *input, const float *rows, uint32_t n, uint32_t n_embd) {
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n_embd; k++)
            input->sum[k] += (double)rows[(size_t)i * n_embd + k];
    }
}

status embedding_take_rows(request *r, const sequence *who, uint32_t position,
                           const float *rows, uint32_t n, bool is_last, request_fault *fault) {
    embedding_input *input = &r->vectors->inputs[who->choice];
    uint32_t n_embd = r->context->n_embd;
    memset(fault, 0, sizeof *fault);
    if (input->sum != NULL) {
        /* One that had to give up its memory begins again. */
        if (position == 0) memset(input->sum, 0, n_embd * sizeof *input->sum);
        add_rows(input, rows, n, n_embd);
        return is_last ? write_vector(r, input, input->sum, fault) : STATUS_OK;
    }
    double *x = calloc(n_embd, sizeof *x);
    if (x == NULL) return request_fault_from(fault, no_memory(fault));
    for (uint32_t k = 0; k < n_embd; k++)
        x[k] = (double)rows[k];
    status rc = write_vector(r, input, x, fault);
    free(x);
    return rc;
}

status embedding_take_logits(request *r, const sequence *who, const float *logits,
                             request_fault *fault) {
    const request_context *c = r->context;
    double yes = (double)logits[c->yes], no = (double)logits[c->no];
    double p = 1 / (1 + exp(no - yes));
    memset(fault, 0, sizeof *fault);
    if (!isfinite(yes) || !isfinite(no)) return no_number(fault);
    r->vectors->inputs[who->choice].relevance = p;
    return STATUS_OK;
}

void embedding_end(request *r, sequence *who) {
    embedding *v = r->vectors;
    release_input(&v->inputs[who->choice]);
    v->n_over++;
    r->n_open--;
}

/* --- the answer --- */

static void write_vectors(json_text *out, const embedding *v) {
    for (size_t i = 0; i < v->job.n_inputs; i++) {
        const json_text *vector = &v->inputs[i].vector;
        json_text_format(out, "%c{\"object\":\"embedding\",\"index\":%zu,\"embedding\":",
                         i > 0 ? ',' : '[', i);
        json_text_add(out, vector->bytes, vector->length);
        json_text_add(out, "}", 1);
    }
    json_text_add(out, "]", 1);
}

typedef struct ranked {
    double relevance;
    size_t index;
    const cJSON *document;
} ranked;

static int by_relevance(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->relevance > y->relevance || x->relevance < y->relevance)
        return x->relevance > y->relevance ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static void write_ranked(json_text *out, const embedding *v) {
    ranked *list = calloc(v->job.n_inputs, sizeof *list);
    const cJSON *document = v->job.inputs->child;
    if (list == NULL) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < v->job.n_inputs; i++, document = document->next)
        list[i] = (ranked){v->inputs[i].relevance, i, document};
    qsort(list, v->job.n_inputs, sizeof *list, by_relevance);
    for (size_t i = 0; i < v->job.n_top; i++) {
        const char *text = list[i].document->valuestring;
        json_text_format(out, "%c{\"index\":%zu,\"relevance_score\":%.9g", i > 0 ? ',' : '[',
                         list[i].index, list[i].relevance);
        if (v->job.returns_documents) {
            json_text_format(out, ",\"document\":{\"text\":");
            json_text_string(out, text, strlen(text));
            json_text_add(out, "}", 1);
        }
        json_text_add(out, "}", 1);
    }
    json_text_add(out, "]", 1);
    free(list);
}

status embedding_write(request *r, request_fault *fault) {
    const embedding *v = r->vectors;
    json_text out = {0};
    memset(fault, 0, sizeof *fault);
    if (v->job.kind == WIRE_EMBED)
        write_vectors(&out, v);
    else
        write_ranked(&out, v);
    if (!out.failed && out.length <= WIRE_MAX_BODY) {
        r->result = out.bytes;
        return STATUS_OK;
    }
    status rc = STATUS_NO_MEMORY;
    if (!out.failed) {
        (void)snprintf(fault->param, sizeof fault->param, "return_documents");
        rc = error_set(&fault->err, STATUS_BAD_INPUT,
                       "return_documents asks for %zu bytes of documents, an answer has room "
                       "for %d",
                       out.length, WIRE_MAX_BODY);
    } else {
        rc = no_memory(fault);
    }
    json_text_release(&out);
    return request_fault_from(fault, rc);
}
