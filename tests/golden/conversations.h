/* conversations.h - conversations of the corpus as token ids, for the golden tests.
 *
 * A conversation of data/conversations.jsonl becomes what a chat request of its messages would
 * be, and the golden answer behind it.  Needs model_run.h before it.
 */
#ifndef SILICEO_TESTS_GOLDEN_CONVERSATIONS_H
#define SILICEO_TESTS_GOLDEN_CONVERSATIONS_H

#include "common/json.h"
#include "worker/text/chat_template.h"
#include "worker/text/tokenizer.h"

static inline void conversation_fail(status rc, const error *err) {
    if (rc != STATUS_OK) fail_msg("%s", err->text);
}

/* Ids of the conversation's prompt and, when asked for, of the answer behind it; the caller
 * releases them.  Its thinking is left out, so that an answer follows at once. */
static inline void conversation_encode(const tokenizer *vocab, const cJSON *conversation,
                                       bool with_answer, token_list *ids) {
    error err = {0};
    prompt p = {0};
    cJSON *request = cJSON_Duplicate(conversation, true);
    cJSON *options = cJSON_AddObjectToObject(request, "chat_template_kwargs");
    const char *answer = cJSON_GetStringValue(cJSON_GetObjectItem(conversation, "answer"));
    assert_non_null(cJSON_AddBoolToObject(options, "enable_thinking", false));
    conversation_fail(chat_template_render(request, CHAT_THINK, &p, &err), &err);
    conversation_fail(tokenizer_encode_prompt(vocab, &p, TOKENIZER_ADDED_NONE, ids, &err),
                      &err);
    if (with_answer) {
        conversation_fail(
            tokenizer_encode(vocab, answer, strlen(answer), TOKENIZER_ADDED_NONE, ids, &err),
            &err);
    }
    prompt_release(&p);
    cJSON_Delete(request);
}

/* The next line of the text at *at as JSON, or NULL at the end. */
static inline cJSON *conversation_next(const char **at) {
    if (**at == '\0') return NULL;
    const char *end = strchr(*at, '\n');
    size_t n = end != NULL ? (size_t)(end - *at) : strlen(*at);
    cJSON *line = cJSON_ParseWithLength(*at, n);
    assert_non_null(line);
    *at += end != NULL ? n + 1 : n;
    return line;
}

#endif
