/* llama_peer.c - prefill and decode rates of llama.cpp on the CPU, for comparison only.
 *
 *     llama_peer LIBRARY_FOLDER MODEL PROMPT_TOKENS DECODE_TOKENS THREADS REPEATS
 *
 * Built by peer.sh against the headers and libraries of npm's packages; no part
 * of the product or of its tests.  Prints one JSON object: the best of REPEATS.
 * The prompt is pseudo-random ids (the same as `siliceo-worker bench` uses is not
 * needed: rates of these models depend on ids only through expert routing).
 */
#include "ggml-backend.h"
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_s(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void quiet(enum ggml_log_level level, const char *text, void *context) {
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR) (void)fputs(text, stderr);
}

static llama_token best_of(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

/* One pass: *prefill and *decode in tokens a second. */
static int measure(struct llama_context *ctx, int n_vocab, int n_prompt, int n_decode,
                   double *prefill, double *decode) {
    llama_memory_clear(llama_get_memory(ctx), true);
    llama_token *ids = malloc((size_t)n_prompt * sizeof *ids);
    if (ids == NULL) return 1;
    unsigned long long word = 1;
    for (int i = 0; i < n_prompt; i++) {
        word = word * 6364136223846793005ULL + 1442695040888963407ULL;
        ids[i] = (llama_token)((word >> 33) % (unsigned)n_vocab);
    }
    double start = now_s();
    if (llama_decode(ctx, llama_batch_get_one(ids, n_prompt)) != 0) return 1;
    llama_token next = best_of(llama_get_logits_ith(ctx, -1), n_vocab);
    *prefill = n_prompt / (now_s() - start);
    start = now_s();
    for (int i = 0; i < n_decode; i++) {
        if (llama_decode(ctx, llama_batch_get_one(&next, 1)) != 0) return 1;
        next = best_of(llama_get_logits_ith(ctx, -1), n_vocab);
    }
    *decode = n_decode / (now_s() - start);
    free(ids);
    return 0;
}

int main(int argc, char *argv[]) {
    if (argc != 7) {
        (void)fprintf(stderr,
                      "usage: llama_peer LIBRARIES MODEL PROMPT DECODE THREADS REPEATS\n");
        return 2;
    }
    int n_prompt = atoi(argv[3]), n_decode = atoi(argv[4]), threads = atoi(argv[5]);
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(argv[1]);
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(argv[2], mp);
    if (model == NULL) return 1;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = (uint32_t)(n_prompt + n_decode + 64);
    cp.n_batch = (uint32_t)n_prompt;
    cp.n_ubatch = 512;
    cp.n_threads = threads;
    cp.n_threads_batch = threads;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    if (ctx == NULL) return 1;
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    double best_prefill = 0, best_decode = 0;
    for (int i = 0; i < atoi(argv[6]); i++) {
        double prefill = 0, decode = 0;
        if (measure(ctx, n_vocab, n_prompt, n_decode, &prefill, &decode) != 0) return 1;
        if (prefill > best_prefill) best_prefill = prefill;
        if (decode > best_decode) best_decode = decode;
    }
    (void)printf("{\"prefill_tok_per_s\": %.2f, \"decode_tok_per_s\": %.2f}\n", best_prefill,
                 best_decode);
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
