/* llama_start.h - what the programs that measure llama.cpp share: a model and context on the CPU,
 * the clock, the largest logit.  Built by peer.sh; no part of the product or of its tests.
 */
#ifndef SILICEO_TESTS_BENCHMARK_PEER_LLAMA_START_H
#define SILICEO_TESTS_BENCHMARK_PEER_LLAMA_START_H

#include "ggml-backend.h"
#include "llama.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double now_s(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void quiet(enum ggml_log_level level, const char *text, void *context) {
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR) (void)fputs(text, stderr);
}

static inline llama_token best_of(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

/* The next of the pseudo-random ids; *word begins at 1. */
static inline llama_token next_id(unsigned long long *word, int n_vocab) {
    *word = *word * 6364136223846793005ULL + 1442695040888963407ULL;
    return (llama_token)((*word >> 33) % (unsigned)n_vocab);
}

/* A context of so many tokens and sequences that takes n_batch at once; NULL: it failed. */
static inline struct llama_context *start(const char *libraries, const char *path, int threads,
                                          int n_ctx, int n_batch, int n_sequences) {
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(libraries);
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(path, mp);
    if (model == NULL) return NULL;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = (uint32_t)n_ctx;
    cp.n_batch = (uint32_t)n_batch;
    cp.n_ubatch = 512;
    cp.n_seq_max = (uint32_t)n_sequences;
    cp.n_threads = threads;
    cp.n_threads_batch = threads;
    return llama_init_from_model(model, cp);
}

static inline int n_vocab_of(const struct llama_context *ctx) {
    return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
}

/* ctx and its model; accepts NULL. */
static inline void finish(struct llama_context *ctx) {
    if (ctx == NULL) return;
    const struct llama_model *model = llama_get_model(ctx);
    llama_free(ctx);
    llama_model_free((struct llama_model *)(uintptr_t)model);
}

#endif
