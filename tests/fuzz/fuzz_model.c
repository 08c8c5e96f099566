/* fuzz_model.c - any bytes as a model: metadata that lies must be refused, and what is
 * believed must run without a fault.
 *
 * The corpus holds whole tiny models, so that a change of one key or shape reaches
 * the checks behind the container's.
 */
#include "common/gguf.h"
#include "common/log.h"
#include "worker/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_TOKENS = 3 };

static void run(model *m) {
    static const int32_t tokens[N_TOKENS] = {0, 0, 0};
    static const uint32_t pages[] = {0};
    const model_segment s = {
        .tokens = tokens, .n_tokens = N_TOKENS, .pages = pages, .n_outputs = 1};
    error err = {STATUS_OK, ""};
    float *logits = calloc(model_configuration(m)->n_vocab, sizeof *logits);
    if (logits == NULL) return;
    model_state_clear(m, 0);
    if (model_step(m, &s, 1, logits, &err) != STATUS_OK) abort();
    free(logits);
}

static void open_and_run(const gguf_file *file, size_t size) {
    model_params p = {.backend = BACKEND_CPU,
                      .n_threads = 1,
                      .kv = KV_F16,
                      .n_pages = 1,
                      .n_states = 1,
                      .max_rows = N_TOKENS,
                      .max_outputs = 1};
    /* Both paths, and slots where there are experts: the size picks. */
    p.activations = size % 2 == 0 ? ACTIVATIONS_INT8 : ACTIVATIONS_F32;
    p.n_slots = size % 3 == 0 ? 8 : 0;
    error err = {STATUS_OK, ""};
    model *m = NULL;
    status rc = model_open(&m, file, &p, &err);
    if ((rc == STATUS_OK) != (m != NULL)) abort();
    if (rc != STATUS_OK && (err.code != rc || err.text[0] == '\0')) abort();
    if (m != NULL) run(m);
    model_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gguf_file *file = NULL;
    error err = {STATUS_OK, ""};
    log_set_level(LOG_ERROR);
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0) abort();
    if (write(fd, data, size) != (ssize_t)size) abort();
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (gguf_open(&file, path, &err) == STATUS_OK) open_and_run(file, size);
    gguf_close(file);
    (void)close(fd);
    return 0;
}
