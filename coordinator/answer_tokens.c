/* answer_tokens.c - the styles of POST /tokenize and /detokenize.
 *
 * Both take what llama.cpp's server takes (content, with_pieces, parse_special; tokens) and
 * what vLLM's does (model, prompt or messages, return_token_strs; tokens), and answer with
 * the fields of both.  Without `model` it is the one that the nodes have.  The worker
 * checks the rest and writes the answer, see worker's result.
 */
#include "coordinator/answer.h"

#include "common/body_reader.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const forwarded[] = {
    "prompt",      "content",           "messages",      "tools",  "chat_template_kwargs",
    "with_pieces", "return_token_strs", "parse_special", "tokens", NULL,
};
static const char *const switches[] = {
    "with_pieces", "return_token_strs",  "parse_special",
    "add_special", "add_special_tokens", NULL,
};

static status check(chat_params *p, const body_reader *r) {
    const cJSON *model = body_find(r, "model");
    if (model != NULL) {
        if (!cJSON_IsString(model) || strlen(model->valuestring) > WIRE_MAX_NAME)
            return body_refuse(r, "model", "is not a name of up to 128 bytes");
        (void)snprintf(p->model, sizeof p->model, "%s", model->valuestring);
    }
    for (const char *const *name = switches; *name != NULL; name++) {
        const cJSON *value = body_find(r, *name);
        if (value != NULL && !cJSON_IsBool(value))
            return body_refuse(r, *name, "is not true or false");
    }
    return STATUS_OK;
}

/* Only what has a meaning travels, each field once. */
static char *body_of(const body_reader *r) {
    cJSON *body = cJSON_CreateObject();
    for (const char *const *name = forwarded; *name != NULL; name++) {
        const cJSON *value = body_find(r, *name);
        if (value == NULL) continue;
        cJSON *copy = cJSON_Duplicate(value, true);
        if (cJSON_AddItemToObject(body, *name, copy)) continue;
        cJSON_Delete(copy);
        cJSON_Delete(body);
        return NULL;
    }
    char *text = body == NULL ? NULL : json_print(body);
    cJSON_Delete(body);
    return text;
}

static status read_tokens(chat_params *out, const char *body, size_t length,
                          char param[CHAT_PARAM_SIZE], error *err) {
    body_reader r;
    memset(out, 0, sizeof *out);
    status rc = body_open(&r, body, length, param, err);
    if (rc == STATUS_OK) rc = check(out, &r);
    if (rc == STATUS_OK) {
        out->priority = -1;
        out->n_choices = 1;
        out->prompt_bytes = length;
        out->body = body_of(&r);
        if (out->body == NULL)
            rc = body_no_memory(&r);
        else
            out->n_body = strlen(out->body);
    }
    cJSON_Delete(r.body);
    return rc;
}

/* The answer comes whole and by itself: there is nothing to keep. */
static void *open_tokens(const answer_params *p) {
    (void)p;
    return malloc(1);
}

void answer_restart_whole(void *answer, size_t first, size_t n, bool resumes) {
    (void)answer;
    (void)first;
    (void)n;
    (void)resumes;
}

status answer_add_nothing(void *answer, const wire_tokens *tokens, json_text *out, error *err) {
    (void)answer;
    (void)tokens;
    (void)out;
    return error_set(err, STATUS_BAD_INPUT, "tokens: none were asked for");
}

static void finish_tokens(void *answer, const wire_done *done, const token_stream_facts *facts,
                          json_text *out) {
    (void)answer;
    (void)facts;
    json_text_add(out, done->result.bytes, done->result.length);
    if (done->result.length == 0) out->failed = true;
}

const answer_style answer_tokenize = {
    .kind = WIRE_TOKENIZE,
    .read = read_tokens,
    .open = open_tokens,
    .finish = finish_tokens,
    ANSWER_WHOLE,
};

const answer_style answer_detokenize = {
    .kind = WIRE_DETOKENIZE,
    .read = read_tokens,
    .open = open_tokens,
    .finish = finish_tokens,
    ANSWER_WHOLE,
};
