/* answer.h - an API's way to be asked and to write an answer.
 *
 * The life of a reply (api_chat.c) is the same whatever endpoint it came by; a style has
 * what differs: how the body is read into what the workers understand, and the bytes of
 * the reply.  An answer is a style's own state for one reply.  In streaming mode add() and
 * finish() append complete events to the given text, otherwise finish() writes the whole
 * reply.  Knows neither HTTP nor the mesh; one thread.
 */
#ifndef SILICEO_COORDINATOR_ANSWER_H
#define SILICEO_COORDINATOR_ANSWER_H

#include "coordinator/chat_params.h"
#include "coordinator/field_names.h"
#include "coordinator/token_stream.h"

typedef struct answer_params {
    const char *id; /* 24 hex digits, without the prefix that the API gives ids */
    uint64_t created_s;
    chat_params *request; /* an answer may take `told` out of it */
} answer_params;

/* A failure as the reply tells it; param and code may be NULL. */
typedef struct answer_failure {
    unsigned http_status;
    const char *code, *param, *message;
} answer_failure;

typedef struct answer_style {
    wire_kind kind;
    const field_name *names; /* what workers' errors call otherwise; NULL: nothing */
    /* As chat_params_read(). */
    status (*read)(chat_params *out, const char *body, size_t length,
                   char param[CHAT_PARAM_SIZE], error *err);
    /* NULL without memory. */
    void *(*open)(const answer_params *p);
    void (*release)(void *answer);
    /* Choices from first on begin again, or go on (resumes) on another node. */
    void (*restart)(void *answer, size_t first, size_t n, bool resumes);
    /* STATUS_BAD_INPUT: a choice or channel that was not asked for. */
    status (*add)(void *answer, const wire_tokens *tokens, json_text *out, error *err);
    void (*finish)(void *answer, const wire_done *done, const token_stream_facts *facts,
                   json_text *out);
    /* As token_stream_thinking(); NULL where the answers have no deliberation. */
    const char *(*thinking)(const void *answer, const wire_done *done);
    /* After a stream began: an event that says so, and nothing that looks like success. */
    void (*break_off)(void *answer, const answer_failure *failure, json_text *out);
    /* What every client ignores. */
    void (*keepalive)(void *answer, json_text *out);
} answer_style;

extern const answer_style answer_chat, answer_completion, answer_messages, answer_responses;
extern const answer_style answer_count, answer_tokenize, answer_detokenize;
extern const answer_style answer_embeddings, answer_rerank;

/* OpenAI's error event and comment, for the styles that have no other. */
void answer_fail_openai(void *answer, const answer_failure *failure, json_text *out);
void answer_comment(void *answer, json_text *out);

/* Of styles whose answer comes whole, in DONE, and is one piece of memory: there is nothing to
 * forget, and tokens are STATUS_BAD_INPUT. */
void answer_restart_whole(void *answer, size_t first, size_t n, bool resumes);
status answer_add_nothing(void *answer, const wire_tokens *tokens, json_text *out, error *err);
#define ANSWER_WHOLE                                                                           \
    .release = free, .restart = answer_restart_whole, .add = answer_add_nothing,               \
    .break_off = answer_fail_openai, .keepalive = answer_comment

/* STATUS_BAD_INPUT where the logprobs of tokens are no JSON array or the choice is not one
 * of n. */
status answer_check_tokens(const wire_tokens *tokens, size_t n, error *err);

#endif
