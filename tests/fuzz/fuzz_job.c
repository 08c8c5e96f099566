/* fuzz_job.c - any body: refused with a text, or parameters within their ranges. */
#include "worker/job.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const job *j) {
    if (j->n_choices < 1 || j->n_choices > WIRE_MAX_CHOICES) abort();
    if (j->n_stops > STOP_MATCH_MAX_STRINGS || j->sampling.n_biases > SAMPLER_MAX_BIASES)
        abort();
    if (!(j->sampling.temperature >= 0 && j->sampling.temperature <= 2)) abort();
    if (j->n_top_logprobs > SAMPLER_MAX_TOP) abort();
    for (size_t i = 0; i < j->sampling.n_biases; i++) {
        if (j->biases[i].id < 0 || j->biases[i].id >= 100) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const wire_kind kinds[] = {WIRE_CHAT, WIRE_COMPLETION, WIRE_COUNT, WIRE_TOKENIZE};
    const sampler_params defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        job j;
        error err = {0};
        char param[CHAT_PARAM_SIZE];
        status rc =
            job_parse(&j, kinds[i], (const char *)data, size, 100, &defaults, param, &err);
        if (rc == STATUS_OK) {
            check(&j);
            job_release(&j);
        } else if (err.text[0] == '\0' || memchr(param, '\0', sizeof param) == NULL) {
            abort();
        }
    }
    return 0;
}
