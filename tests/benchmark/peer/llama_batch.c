/* llama_batch.c - rates of llama.cpp for several sequences at once on the CPU, for comparison only.
 *
 *     llama_batch LIBRARY_FOLDER MODEL PROMPT_TOKENS DECODE_TOKENS THREADS USERS
 *
 * Each of USERS sequences has a prompt of pseudo-random ids of its own; then all decode, a
 * token of each in one batch a step, greedy.  Built by peer.sh as llama_peer is.  Prints one
 * JSON object: tokens a second of all users together while they decode.
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

static void add(struct llama_batch *b, llama_token id, int position, int user, bool wants) {
    b->token[b->n_tokens] = id;
    b->pos[b->n_tokens] = position;
    b->n_seq_id[b->n_tokens] = 1;
    b->seq_id[b->n_tokens][0] = user;
    b->logits[b->n_tokens++] = wants;
}

/* Tokens a second of the users' decoding; 0: it failed. */
static double measure(struct llama_context *ctx, int n_vocab, int n_prompt, int n_decode,
                      int n_users) {
    struct llama_batch b = llama_batch_init(n_prompt > n_users ? n_prompt : n_users, 0, 1);
    llama_token *next = malloc((size_t)n_users * sizeof *next);
    unsigned long long word = 1;
    double rate = 0;
    for (int u = 0; next != NULL && u < n_users; u++) {
        b.n_tokens = 0;
        for (int i = 0; i < n_prompt; i++) {
            word = word * 6364136223846793005ULL + 1442695040888963407ULL;
            add(&b, (llama_token)((word >> 33) % (unsigned)n_vocab), i, u, i + 1 == n_prompt);
        }
        if (llama_decode(ctx, b) != 0) goto done;
        next[u] = best_of(llama_get_logits_ith(ctx, -1), n_vocab);
    }
    double start = now_s();
    for (int i = 0; i < n_decode; i++) {
        b.n_tokens = 0;
        for (int u = 0; u < n_users; u++)
            add(&b, next[u], n_prompt + i, u, true);
        if (llama_decode(ctx, b) != 0) goto done;
        for (int u = 0; u < n_users; u++)
            next[u] = best_of(llama_get_logits_ith(ctx, u), n_vocab);
    }
    rate = (double)n_decode * n_users / (now_s() - start);
done:
    free(next);
    llama_batch_free(b);
    return rate;
}

int main(int argc, char *argv[]) {
    if (argc != 7) {
        (void)fprintf(stderr,
                      "usage: llama_batch LIBRARIES MODEL PROMPT DECODE THREADS USERS\n");
        return 2;
    }
    int n_prompt = atoi(argv[3]), n_decode = atoi(argv[4]), threads = atoi(argv[5]);
    int n_users = atoi(argv[6]);
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(argv[1]);
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(argv[2], mp);
    if (model == NULL) return 1;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_seq_max = (uint32_t)n_users;
    cp.n_ctx = (uint32_t)(n_users * ((n_prompt + n_decode + 255) / 256 * 256));
    cp.n_batch = 2048;
    cp.n_ubatch = 512;
    cp.n_threads = threads;
    cp.n_threads_batch = threads;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    if (ctx == NULL) return 1;
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    double rate = measure(ctx, n_vocab, n_prompt, n_decode, n_users);
    llama_free(ctx);
    llama_model_free(model);
    if (rate <= 0) return 1;
    (void)printf("{\"total_tok_per_s\": %.2f, \"user_tok_per_s\": %.2f}\n", rate,
                 rate / n_users);
    return 0;
}
