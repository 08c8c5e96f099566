/* fuzz_embedding_job.c - any body for vectors or relevances: refused with a text, or parameters
 * within their ranges whose answer fits the wire. */
#include "worker/embedding_job.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_VOCAB = 100, N_EMBD = 4096 };

static void check_ids(const cJSON *item) {
    for (const cJSON *id = item->child; id != NULL; id = id->next) {
        if (!(id->valuedouble >= 0 && id->valuedouble < N_VOCAB)) abort();
    }
}

static void check(const embedding_job *j) {
    size_t n = 0;
    if (j->n_inputs < 1 || j->n_inputs > EMBEDDING_MAX_INPUTS) abort();
    for (const cJSON *item = j->inputs->child; item != NULL; item = item->next, n++)
        check_ids(item);
    if (n != j->n_inputs) abort();
    if (j->kind == WIRE_RERANK) {
        if (j->query == NULL || j->instruction == NULL || j->n_top < 1 || j->n_top > n) abort();
        return;
    }
    if (j->n_dimensions < 1 || j->n_dimensions > N_EMBD) abort();
    if ((uint64_t)j->n_dimensions * n * 5 > WIRE_MAX_BODY) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const wire_kind kinds[] = {WIRE_EMBED, WIRE_RERANK};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        embedding_job j;
        error err = {0};
        char param[CHAT_PARAM_SIZE];
        status rc = embedding_job_parse(&j, kinds[i], (const char *)data, size, N_VOCAB, N_EMBD,
                                        param, &err);
        if (rc == STATUS_OK) {
            check(&j);
            embedding_job_release(&j);
        } else if (err.text[0] == '\0' || memchr(param, '\0', sizeof param) == NULL) {
            abort();
        }
    }
    return 0;
}
