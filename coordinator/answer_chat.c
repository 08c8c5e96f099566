/* answer_chat.c - the style of POST /v1/chat/completions. */
#include "coordinator/answer.h"

#include "coordinator/http_server.h"
#include <stdio.h>
#include <stdlib.h>

status answer_check_tokens(const wire_tokens *tokens, size_t n, error *err) {
    if (tokens->choice >= n) {
        return error_set(err, STATUS_BAD_INPUT, "tokens.choice: %llu of %zu",
                         (unsigned long long)tokens->choice, n);
    }
    const wire_bytes *logprobs = &tokens->logprobs;
    if (logprobs->length > 0 && (logprobs->length < 2 || logprobs->bytes[0] != '[' ||
                                 logprobs->bytes[logprobs->length - 1] != ']')) {
        return error_set(err, STATUS_BAD_INPUT, "tokens.logprobs: is no JSON array");
    }
    return STATUS_OK;
}

static void *open_chat(const answer_params *p) {
    char id[64];
    (void)snprintf(id, sizeof id, "chatcmpl-%.40s", p->id);
    const token_stream_params params = {.id = id,
                                        .model = p->request->model,
                                        .created_s = p->created_s,
                                        .n_choices = p->request->n_choices,
                                        .streaming = p->request->stream,
                                        .include_usage = p->request->include_usage};
    token_stream *ts = malloc(sizeof *ts);
    if (ts == NULL) return NULL;
    if (token_stream_init(ts, &params, NULL) == STATUS_OK) return ts;
    free(ts);
    return NULL;
}

static void release_chat(void *answer) {
    token_stream_release(answer);
    free(answer);
}

static void restart_chat(void *answer, size_t first, size_t n, bool resumes) {
    (void)first; /* a chat has one prompt, so it is all of them */
    (void)n;
    if (resumes)
        token_stream_resume(answer);
    else
        token_stream_restart(answer);
}

static status add_chat(void *answer, const wire_tokens *tokens, json_text *out, error *err) {
    return token_stream_add(answer, tokens, out, err);
}

static void finish_chat(void *answer, const wire_done *done, const token_stream_facts *facts,
                        json_text *out) {
    token_stream_finish(answer, done, facts, out);
}

static const char *thinking_of(const void *answer, const wire_done *done) {
    return token_stream_thinking(answer, done);
}

void answer_fail_openai(void *answer, const answer_failure *f, json_text *out) {
    (void)answer;
    json_text body = {0};
    http_error_body(&body, f->http_status, f->code, f->param, f->message);
    if (body.failed)
        out->failed = true;
    else
        token_stream_fail(body.bytes, out);
    json_text_release(&body);
}

void answer_comment(void *answer, json_text *out) {
    (void)answer;
    token_stream_keepalive(out);
}

const answer_style answer_chat = {
    .kind = WIRE_CHAT,
    .read = chat_params_read,
    .open = open_chat,
    .release = release_chat,
    .restart = restart_chat,
    .add = add_chat,
    .finish = finish_chat,
    .thinking = thinking_of,
    .break_off = answer_fail_openai,
    .keepalive = answer_comment,
};
