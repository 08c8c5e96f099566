/* chat_params.h - reads and checks the body of POST /v1/chat/completions.
 *
 * Every known field is checked for type and range and an error names field and
 * value; unknown fields are ignored, because clients send many.  The result holds
 * what the coordinator itself needs, and a normalised body for the worker.
 * Bytes from outside; no state; any thread.
 */
#ifndef SILICEO_COORDINATOR_CHAT_PARAMS_H
#define SILICEO_COORDINATOR_CHAT_PARAMS_H

#include "common/chat_request.h"
#include "common/error.h"
#include "common/wire.h"
#include "coordinator/prefix_chain.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct chat_params {
    char model[WIRE_MAX_NAME + 1];
    bool stream;
    bool include_usage;
    uint32_t n_choices;
    uint64_t max_tokens; /* 0: none given */
    int priority;        /* 0 interactive, 1 background, -1 not said */
    char task[400];      /* the beginning of the last message, if a user's */
    size_t prompt_bytes; /* of text in messages and tools */
    prefix_chain chain;  /* beginnings of the prompt */
    char *body;          /* JSON for the worker; the caller frees with chat_params_release */
    size_t n_body;
    char **more; /* of a batch: the bodies of its further prompts */
    size_t n_more;
    cJSON *told; /* what the reply repeats of the request, or NULL */
} chat_params;

/* On STATUS_BAD_INPUT param is the field at fault ("" when the body is no JSON object). */
status chat_params_read(chat_params *out, const char *body, size_t length,
                        char param[CHAT_PARAM_SIZE], error *err);
/* The same of a tree, which it changes. */
status chat_params_take(chat_params *out, cJSON *root, char param[CHAT_PARAM_SIZE], error *err);
/* Check the known fields of root with these names (the list ends with NULL) as in a chat. */
status chat_params_check(const cJSON *root, const char *const *names,
                         char param[CHAT_PARAM_SIZE], error *err);
/* Of a field `priority`, as in chat_params.  Other servers take numbers here: what is neither word
 * says nothing. */
int chat_params_priority(const cJSON *value);
void chat_params_release(chat_params *p); /* accepts a zeroed one */

#endif
