/* fuzz_api_params.c - bodies of the other endpoints: the first byte says which of them reads the
 * rest.  Refused with a text, or bodies for workers that are JSON and within their bounds. */
#include "coordinator/answer.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_body(const char *body) {
    cJSON *root = NULL;
    if (body == NULL || json_parse(&root, body, strlen(body), "body", NULL) != STATUS_OK ||
        !cJSON_IsObject(root))
        abort();
    cJSON_Delete(root);
}

static void check_answer(const answer_style *style, chat_params *p) {
    const answer_params params = {"0123456789abcdef01234567", 1, p};
    const token_stream_facts facts = {.node = "n"};
    const wire_done done = {.hit_rate = -1};
    const wire_tokens tokens = {.text = wire_text("x", 1), .finish = WIRE_FINISH_STOP};
    json_text out = {0};
    void *answer = style->open(&params);
    if (answer == NULL) return;
    if (style->add(answer, &tokens, &out, NULL) == STATUS_OK && p->n_choices == 1 &&
        p->n_more == 0) {
        style->finish(answer, &done, &facts, &out);
        if (!p->stream && !out.failed) check_body(out.bytes);
    }
    style->release(answer);
    json_text_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const answer_style *const styles[] = {
        &answer_completion, &answer_messages,   &answer_count,      &answer_responses,
        &answer_tokenize,   &answer_detokenize, &answer_embeddings, &answer_rerank};
    chat_params p;
    error err = {0};
    char param[CHAT_PARAM_SIZE];
    if (size == 0) return 0;
    const answer_style *style = styles[data[0] % (sizeof styles / sizeof styles[0])];
    status rc = style->read(&p, (const char *)data + 1, size - 1, param, &err);
    if (memchr(param, '\0', sizeof param) == NULL) abort();
    if (rc != STATUS_OK) {
        if (err.text[0] == '\0') abort();
        return 0;
    }
    if (p.n_choices < 1 || p.n_choices * (1 + p.n_more) > WIRE_MAX_CHOICES) abort();
    check_body(p.body);
    for (size_t i = 0; i < p.n_more; i++)
        check_body(p.more[i]);
    check_answer(style, &p);
    chat_params_release(&p);
    return 0;
}
