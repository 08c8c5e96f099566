/* model_run.h - what the golden tests of models share: files, a model with one
 * or more sequences, and distances between logits.
 *
 * Every sequence s has state s and its own pages, in reverse order so that a
 * test notices when pages are taken for positions.
 */
#ifndef SILICEO_TESTS_GOLDEN_MODEL_RUN_H
#define SILICEO_TESTS_GOLDEN_MODEL_RUN_H

#include "worker/model/model.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/files.h"

#define GOLDEN_FOLDER "tests/golden/data/"

/* float32 values of a file named in the golden folder. */
static inline float *read_floats(const char *name, size_t n) {
    char path[512];
    (void)snprintf(path, sizeof path, GOLDEN_FOLDER "%s", name);
    size_t n_bytes = 0;
    float *values = (float *)(void *)read_file(path, &n_bytes);
    assert_int_equal(n_bytes, n * sizeof(float));
    return values;
}

/* The integers of an array; the caller frees. */
static inline int32_t *read_ints(const cJSON *object, const char *key, size_t *n) {
    const cJSON *array = cJSON_GetObjectItem(object, key);
    assert_true(cJSON_IsArray(array));
    *n = (size_t)cJSON_GetArraySize(array);
    int32_t *values = calloc(*n + 1, sizeof *values);
    assert_non_null(values);
    size_t i = 0;
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, array) values[i++] = (int32_t)item->valuedouble;
    return values;
}

typedef struct run {
    gguf_file *file;
    model *m;
    const model_config *config;
    uint32_t n_sequences;
    uint32_t pages_a_sequence;
    uint32_t *pages; /* [n_sequences][pages_a_sequence] */
} run;

/* SILICEO_TEST_BACKEND=cuda runs the golden models on the GPU. */
static inline model_params run_params(activation_type activations) {
    const char *backend = getenv("SILICEO_TEST_BACKEND");
    bool gpu = backend != NULL && strcmp(backend, "cuda") == 0;
    return (model_params){.backend = gpu ? BACKEND_CUDA : BACKEND_CPU,
                          .n_threads = 1,
                          .kv = activations == ACTIVATIONS_F32 ? KV_F32 : KV_F16,
                          .activations = activations,
                          .n_pages = 16,
                          .n_states = 1,
                          .max_rows = 512,
                          .max_outputs = 512,
                          .inserts_per_layer = 4};
}

static inline void run_open(run *r, const char *path, const model_params *p) {
    error err = {0};
    memset(r, 0, sizeof *r);
    if (gguf_open(&r->file, path, &err) != STATUS_OK) fail_msg("%s", err.text);
    if (model_open(&r->m, r->file, p, &err) != STATUS_OK) fail_msg("%s", err.text);
    r->config = model_configuration(r->m);
    r->n_sequences = p->n_states;
    r->pages_a_sequence = p->n_pages / p->n_states;
    r->pages = calloc(p->n_pages, sizeof *r->pages);
    assert_non_null(r->pages);
    for (uint32_t i = 0; i < p->n_pages; i++)
        r->pages[i] = p->n_pages - 1 - i;
    for (uint32_t s = 0; s < p->n_states; s++)
        model_state_clear(r->m, s);
}

static inline void run_close(run *r) {
    free(r->pages);
    model_close(r->m);
    gguf_close(r->file);
}

static inline model_segment run_segment(const run *r, uint32_t sequence, uint32_t position,
                                        const int32_t *tokens, uint32_t n) {
    return (model_segment){.state = sequence,
                           .position = position,
                           .tokens = tokens,
                           .n_tokens = n,
                           .pages = r->pages + (size_t)sequence * r->pages_a_sequence,
                           .n_outputs = n};
}

static inline void run_step(run *r, const model_segment *segments, size_t n, float *logits) {
    error err = {0};
    if (model_step(r->m, segments, n, logits, &err) != STATUS_OK) fail_msg("%s", err.text);
}

/* Tokens of one sequence in chunks; logits gets [n][n_vocab]. */
static inline void run_tokens(run *r, uint32_t sequence, uint32_t position,
                              const int32_t *tokens, size_t n, size_t chunk, float *logits) {
    for (size_t at = 0; at < n; at += chunk) {
        size_t n_now = n - at < chunk ? n - at : chunk;
        model_segment s =
            run_segment(r, sequence, position + (uint32_t)at, tokens + at, (uint32_t)n_now);
        run_step(r, &s, 1, logits + at * r->config->n_vocab);
    }
}

/* The state and pages that a segment's piece has, NaN meanwhile; the caller brings them back. */
static inline unsigned char *run_take_away(const run *r, const model_segment *s) {
    uint32_t n_pages = (s->position + s->n_tokens + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
    size_t n_state = model_config_state_bytes(r->config), n_page = model_page_bytes(r->m);
    unsigned char *kept = malloc(n_state + n_pages * n_page);
    unsigned char *nan = malloc(n_state > n_page ? n_state : n_page);
    assert_non_null(kept);
    assert_non_null(nan);
    memset(nan, 0xFF, n_state > n_page ? n_state : n_page);
    model_state_save(r->m, s->state, kept);
    model_state_load(r->m, s->state, nan);
    for (uint32_t i = 0; i < n_pages; i++) {
        model_page_save(r->m, s->pages[i], kept + n_state + i * n_page);
        model_page_load(r->m, s->pages[i], nan);
    }
    free(nan);
    return kept;
}

static inline void run_bring_back(const run *r, const model_segment *s, unsigned char *kept) {
    uint32_t n_pages = (s->position + s->n_tokens + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
    size_t n_state = model_config_state_bytes(r->config), n_page = model_page_bytes(r->m);
    model_state_load(r->m, s->state, kept);
    for (uint32_t i = 0; i < n_pages; i++)
        model_page_load(r->m, s->pages[i], kept + n_state + i * n_page);
    free(kept);
}

/* A piece in slices of n_each layers.  After each but the last the other sequence takes a step of its
 * next token, whose logits go to the next row of other_logits.  goes: what the piece has is taken away
 * meanwhile. */
static inline void run_slices(run *r, const model_segment *s, uint32_t n_each, bool goes,
                              model_segment *other, float *other_logits, float *logits) {
    error err = {0};
    uint32_t n_layers = r->config->n_layers;
    float *rows = calloc((size_t)s->n_tokens * r->config->n_embd, sizeof *rows);
    assert_non_null(rows);
    for (uint32_t first = 0, end; first < n_layers; first = end) {
        end = n_layers - first < n_each ? n_layers : first + n_each;
        const model_slice slice = {first, end, rows};
        if (model_step_slice(r->m, s, &slice, logits, &err) != STATUS_OK)
            fail_msg("%s", err.text);
        if (end == n_layers) continue;
        unsigned char *kept = goes ? run_take_away(r, s) : NULL;
        run_step(r, other, 1, other_logits);
        if (goes) run_bring_back(r, s, kept);
        other_logits += r->config->n_vocab;
        other->position++;
        other->tokens++;
    }
    free(rows);
}

static inline float *new_logits(const run *r, size_t n) {
    float *logits = calloc(n * r->config->n_vocab, sizeof *logits);
    assert_non_null(logits);
    return logits;
}

static inline int32_t first_choice(const float *logits, size_t n_vocab) {
    size_t best = 0;
    for (size_t i = 1; i < n_vocab; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

/* Continue a sequence that has n_before tokens; ids gets the n chosen tokens, the
 * first of them from `logits`, which is overwritten. */
static inline void run_greedy(run *r, uint32_t n_before, size_t n, float *logits,
                              int32_t *ids) {
    for (size_t i = 0; i < n; i++) {
        ids[i] = first_choice(logits, r->config->n_vocab);
        run_tokens(r, 0, n_before + (uint32_t)i, &ids[i], 1, 1, logits);
    }
}

static inline double max_difference(const float *a, const float *b, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= most)) most = d; /* also when it is no number */
    }
    return most;
}

/* sqrt(sum (a - b)^2 / sum b^2) */
static inline double relative_l2(const float *a, const float *b, size_t n) {
    double error_sum = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        error_sum += d * d;
        sum += (double)b[i] * (double)b[i];
    }
    return sqrt(error_sum / sum);
}

/* Kullback-Leibler divergence of softmax(q) from softmax(p), in nats. */
static inline double divergence(const float *p, const float *q, size_t n) {
    double p_max = -HUGE_VAL, q_max = -HUGE_VAL, p_sum = 0, q_sum = 0, kl = 0;
    for (size_t i = 0; i < n; i++) {
        p_max = fmax(p_max, (double)p[i]);
        q_max = fmax(q_max, (double)q[i]);
    }
    for (size_t i = 0; i < n; i++) {
        p_sum += exp((double)p[i] - p_max);
        q_sum += exp((double)q[i] - q_max);
    }
    for (size_t i = 0; i < n; i++) {
        double log_p = (double)p[i] - p_max - log(p_sum);
        double log_q = (double)q[i] - q_max - log(q_sum);
        kl += exp(log_p) * (log_p - log_q);
    }
    return kl;
}

static inline double mean_divergence(const float *p, const float *q, size_t n, size_t n_vocab) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += divergence(p + i * n_vocab, q + i * n_vocab, n_vocab);
    return sum / (double)n;
}

#endif
