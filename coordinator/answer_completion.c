/* answer_completion.c - the style of POST /v1/completions: bare text, streamed or whole. */
#include "coordinator/answer.h"

#include "coordinator/completion_params.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADD_LITERAL(out, literal) json_text_add((out), (literal), sizeof(literal) - 1)

/* Log probabilities in columns, each the inside of a list. */
typedef struct columns {
    json_text tokens, logprobs, tops, offsets;
} columns;

typedef struct text_choice {
    json_text text;  /* gathered, not streaming only */
    columns told;    /* gathered, or of the event that is being made */
    uint64_t offset; /* characters so far, the echo included */
    wire_finish finish;
    bool begun;
} text_choice;

typedef struct completion {
    bool streaming, include_usage;
    json_text head;
    cJSON *told; /* may have "echo" */
    uint32_t n_per_prompt;
    text_choice *choices;
    size_t n_choices;
    size_t last_choice; /* whose end waits for the figures */
} completion;

static void columns_release(columns *c) {
    json_text_release(&c->tokens);
    json_text_release(&c->logprobs);
    json_text_release(&c->tops);
    json_text_release(&c->offsets);
}

static void columns_clear(columns *c) {
    json_text_clear(&c->tokens);
    json_text_clear(&c->logprobs);
    json_text_clear(&c->tops);
    json_text_clear(&c->offsets);
}

static void release_completion(void *answer) {
    completion *a = answer;
    if (a == NULL) return;
    for (size_t i = 0; a->choices != NULL && i < a->n_choices; i++) {
        json_text_release(&a->choices[i].text);
        columns_release(&a->choices[i].told);
    }
    free(a->choices);
    json_text_release(&a->head);
    cJSON_Delete(a->told);
    free(a);
}

static void *open_completion(const answer_params *p) {
    completion *a = calloc(1, sizeof *a);
    if (a == NULL) return NULL;
    json_text_format(&a->head,
                     "{\"id\":\"cmpl-%s\",\"object\":\"text_completion\",\"created\":%llu,"
                     "\"model\":",
                     p->id, (unsigned long long)p->created_s);
    json_text_string(&a->head, p->request->model, strlen(p->request->model));
    a->streaming = p->request->stream;
    a->include_usage = p->request->include_usage;
    a->n_per_prompt = p->request->n_choices;
    a->n_choices = a->n_per_prompt * (1 + p->request->n_more);
    a->choices = calloc(a->n_choices, sizeof *a->choices);
    if (a->choices == NULL || a->head.failed) {
        release_completion(a);
        return NULL;
    }
    a->told = p->request->told;
    p->request->told = NULL;
    return a;
}

/* Of a choice; NULL: none was asked for. */
static const char *echo_of(const completion *a, size_t choice) {
    const cJSON *texts = cJSON_GetObjectItemCaseSensitive(a->told, "echo");
    const cJSON *text = cJSON_GetArrayItem(texts, (int)(choice / a->n_per_prompt));
    return cJSON_GetStringValue(text);
}

static void restart_completion(void *answer, size_t first, size_t n, bool resumes) {
    completion *a = answer;
    for (size_t i = first; i < first + n && i < a->n_choices; i++) {
        text_choice *c = &a->choices[i];
        c->finish = WIRE_FINISH_NONE;
        if (resumes) continue;
        json_text_clear(&c->text);
        columns_clear(&c->told);
        c->offset = 0;
    }
}

/* ------------------------------------------------------------ log probabilities */

static uint64_t characters(const char *text) {
    uint64_t n = 0;
    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void add_number(json_text *out, const cJSON *number) {
    json_text_format(out, "%.6g", cJSON_IsNumber(number) ? number->valuedouble : -9999.0);
}

static void add_tops(json_text *out, const cJSON *tops) {
    ADD_LITERAL(out, "{");
    for (const cJSON *top = tops == NULL ? NULL : tops->child; top != NULL; top = top->next) {
        const char *token =
            cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(top, "token"));
        if (token == NULL) continue;
        if (top != tops->child) ADD_LITERAL(out, ",");
        json_text_string(out, token, strlen(token));
        ADD_LITERAL(out, ":");
        add_number(out, cJSON_GetObjectItemCaseSensitive(top, "logprob"));
    }
    ADD_LITERAL(out, "}");
}

/* From the chat's form, a list of tokens. */
static status add_columns(text_choice *c, const wire_bytes *logprobs, error *err) {
    cJSON *list = NULL;
    status rc = json_parse(&list, logprobs->bytes, logprobs->length, "tokens.logprobs", err);
    if (rc != STATUS_OK) return rc;
    for (const cJSON *item = list->child; item != NULL; item = item->next) {
        const char *token =
            cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "token"));
        if (token == NULL) token = "";
        const char *comma = c->told.tokens.length > 0 ? "," : "";
        json_text_format(&c->told.tokens, "%s", comma);
        json_text_format(&c->told.logprobs, "%s", comma);
        json_text_format(&c->told.tops, "%s", comma);
        json_text_format(&c->told.offsets, "%s%llu", comma, (unsigned long long)c->offset);
        json_text_string(&c->told.tokens, token, strlen(token));
        add_number(&c->told.logprobs, cJSON_GetObjectItemCaseSensitive(item, "logprob"));
        add_tops(&c->told.tops, cJSON_GetObjectItemCaseSensitive(item, "top_logprobs"));
        c->offset += characters(token);
    }
    cJSON_Delete(list);
    return STATUS_OK;
}

static void add_logprobs(const columns *c, json_text *out) {
    if (c->tokens.length == 0) {
        ADD_LITERAL(out, "\"logprobs\":null,");
        return;
    }
    if (c->tokens.failed || c->logprobs.failed || c->tops.failed || c->offsets.failed)
        out->failed = true;
    json_text_format(out, "\"logprobs\":{\"tokens\":[");
    json_text_add(out, c->tokens.bytes, c->tokens.length);
    ADD_LITERAL(out, "],\"token_logprobs\":[");
    json_text_add(out, c->logprobs.bytes, c->logprobs.length);
    ADD_LITERAL(out, "],\"top_logprobs\":[");
    json_text_add(out, c->tops.bytes, c->tops.length);
    ADD_LITERAL(out, "],\"text_offset\":[");
    json_text_add(out, c->offsets.bytes, c->offsets.length);
    ADD_LITERAL(out, "]},");
}

/* ------------------------------------------------------------ streaming */

static void begin_event(const completion *a, size_t choice, const char *text, size_t length,
                        json_text *out) {
    ADD_LITERAL(out, "data: ");
    json_text_add(out, a->head.bytes, a->head.length);
    json_text_format(out, ",\"choices\":[{\"index\":%zu,\"text\":", choice);
    json_text_string(out, text, length);
    ADD_LITERAL(out, ",");
}

static void add_end(const completion *a, size_t choice, json_text *out) {
    begin_event(a, choice, "", 0, out);
    json_text_format(out, "\"logprobs\":null,\"finish_reason\":\"%s\"}]",
                     token_stream_finish_name(a->choices[choice].finish));
}

static bool all_finished(const completion *a) {
    for (size_t i = 0; i < a->n_choices; i++) {
        if (a->choices[i].finish == WIRE_FINISH_NONE) return false;
    }
    return true;
}

static void stream_text(completion *a, const wire_tokens *tokens, json_text *out) {
    text_choice *c = &a->choices[tokens->choice];
    const char *echo = c->begun ? NULL : echo_of(a, tokens->choice);
    c->begun = true;
    if (echo != NULL) {
        begin_event(a, tokens->choice, echo, strlen(echo), out);
        ADD_LITERAL(out, "\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    }
    if (tokens->text.length > 0 || c->told.tokens.length > 0) {
        begin_event(a, tokens->choice, tokens->text.bytes, tokens->text.length, out);
        add_logprobs(&c->told, out);
        ADD_LITERAL(out, "\"finish_reason\":null}]}\n\n");
        columns_clear(&c->told);
    }
    if (tokens->finish == WIRE_FINISH_NONE) return;
    if (all_finished(a)) {
        a->last_choice = tokens->choice;
    } else {
        add_end(a, tokens->choice, out);
        ADD_LITERAL(out, "}\n\n");
    }
}

static status add_completion(void *answer, const wire_tokens *tokens, json_text *out,
                             error *err) {
    completion *a = answer;
    status rc = answer_check_tokens(tokens, a->n_choices, err);
    if (rc != STATUS_OK) return rc;
    text_choice *c = &a->choices[tokens->choice];
    if (tokens->channel != WIRE_CONTENT) {
        return error_set(err, STATUS_BAD_INPUT, "tokens.channel: %d was not asked for",
                         (int)tokens->channel);
    }
    if (c->finish != WIRE_FINISH_NONE) {
        return error_set(err, STATUS_BAD_INPUT, "tokens.choice: %llu goes on after its end",
                         (unsigned long long)tokens->choice);
    }
    if (tokens->logprobs.length > 0) rc = add_columns(c, &tokens->logprobs, err);
    if (rc != STATUS_OK) return rc;
    c->finish = tokens->finish;
    if (a->streaming)
        stream_text(a, tokens, out);
    else if (tokens->text.length > 0)
        json_text_add(&c->text, tokens->text.bytes, tokens->text.length);
    return STATUS_OK;
}

/* ------------------------------------------------------------ the end */

static void finish_stream(const completion *a, const wire_done *done,
                          const token_stream_facts *facts, json_text *out) {
    add_end(a, a->last_choice, out);
    ADD_LITERAL(out, ",");
    token_stream_timings(done, facts, NULL, out);
    ADD_LITERAL(out, "}\n\n");
    if (a->include_usage) {
        ADD_LITERAL(out, "data: ");
        json_text_add(out, a->head.bytes, a->head.length);
        ADD_LITERAL(out, ",\"choices\":[],");
        token_stream_usage(done, out);
        ADD_LITERAL(out, "}\n\n");
    }
    ADD_LITERAL(out, "data: [DONE]\n\n");
}

static void add_choice(const completion *a, size_t index, json_text *out) {
    const text_choice *c = &a->choices[index];
    const char *echo = echo_of(a, index);
    json_text whole = {0};
    if (echo != NULL) json_text_add(&whole, echo, strlen(echo));
    if (c->text.length > 0) json_text_add(&whole, c->text.bytes, c->text.length);
    if (whole.failed || c->text.failed) out->failed = true;
    json_text_format(out, "%s{\"index\":%zu,\"text\":", index > 0 ? "," : "", index);
    json_text_string(out, whole.length > 0 ? whole.bytes : "", whole.length);
    ADD_LITERAL(out, ",");
    add_logprobs(&c->told, out);
    json_text_format(out, "\"finish_reason\":\"%s\"}", token_stream_finish_name(c->finish));
    json_text_release(&whole);
}

static void finish_completion(void *answer, const wire_done *done,
                              const token_stream_facts *facts, json_text *out) {
    const completion *a = answer;
    if (a->streaming) {
        finish_stream(a, done, facts, out);
        return;
    }
    json_text_add(out, a->head.bytes, a->head.length);
    ADD_LITERAL(out, ",\"choices\":[");
    for (size_t i = 0; i < a->n_choices; i++)
        add_choice(a, i, out);
    ADD_LITERAL(out, "],");
    token_stream_usage(done, out);
    ADD_LITERAL(out, ",");
    token_stream_timings(done, facts, NULL, out);
    ADD_LITERAL(out, "}");
}

const answer_style answer_completion = {
    .kind = WIRE_COMPLETION,
    .read = completion_params_read,
    .open = open_completion,
    .release = release_completion,
    .restart = restart_completion,
    .add = add_completion,
    .finish = finish_completion,
    .break_off = answer_fail_openai,
    .keepalive = answer_comment,
};
