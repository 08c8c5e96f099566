/* answer_tokens.c - the styles of POST /tokenize and /detokenize.
 *
 * Both take what llama.cpp's server takes (content, with_pieces, parse_special; tokens) and
 * what vLLM's does (model, prompt or messages, return_token_strs; tokens), and answer with
 * the fields of both.  Without `model` it is the one that the nodes have.  The worker
 * checks the rest and writes the answer, see worker's result.
 */
#include "coordinator/answer.h"

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

static status refuse(char param[CHAT_PARAM_SIZE], const char *name, const char *what,
                     error *err) {
    (void)snprintf(param, CHAT_PARAM_SIZE, "%s", name);
    return error_set(err, STATUS_BAD_INPUT, "%s: %s", name, what);
}

static status check(chat_params *p, const cJSON *root, char param[CHAT_PARAM_SIZE],
                    error *err) {
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    if (!cJSON_IsObject(root))
        return error_set(err, STATUS_BAD_INPUT, "request body: is not a JSON object");
    if (model != NULL && !cJSON_IsNull(model)) {
        if (!cJSON_IsString(model) || strlen(model->valuestring) > WIRE_MAX_NAME)
            return refuse(param, "model", "is not a name of up to 128 bytes", err);
        (void)snprintf(p->model, sizeof p->model, "%s", model->valuestring);
    }
    for (const char *const *name = switches; *name != NULL; name++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(root, *name);
        if (value != NULL && !cJSON_IsNull(value) && !cJSON_IsBool(value))
            return refuse(param, *name, "is not true or false", err);
    }
    return STATUS_OK;
}

/* Only what has a meaning travels, each field once. */
static char *body_of(const cJSON *root) {
    cJSON *body = cJSON_CreateObject();
    for (const char *const *name = forwarded; *name != NULL; name++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(root, *name);
        if (value == NULL || cJSON_IsNull(value)) continue;
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
    memset(out, 0, sizeof *out);
    param[0] = '\0';
    cJSON *root = NULL;
    status rc = json_parse(&root, body, length, "request body", err);
    if (rc == STATUS_OK) rc = check(out, root, param, err);
    if (rc == STATUS_OK) {
        out->priority = -1;
        out->n_choices = 1;
        out->prompt_bytes = length;
        out->body = body_of(root);
        if (out->body == NULL)
            rc = error_set(err, STATUS_NO_MEMORY, "no memory for the request");
        else
            out->n_body = strlen(out->body);
    }
    cJSON_Delete(root);
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
    .release = free,
    .restart = answer_restart_whole,
    .add = answer_add_nothing,
    .finish = finish_tokens,
    .break_off = answer_fail_openai,
    .keepalive = answer_comment,
};

const answer_style answer_detokenize = {
    .kind = WIRE_DETOKENIZE,
    .read = read_tokens,
    .open = open_tokens,
    .release = free,
    .restart = answer_restart_whole,
    .add = answer_add_nothing,
    .finish = finish_tokens,
    .break_off = answer_fail_openai,
    .keepalive = answer_comment,
};
