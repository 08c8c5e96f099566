/* llama_batch.c - rates of llama.cpp for several sequences at once on the CPU, for comparison only.
 *
 *     llama_batch LIBRARY_FOLDER MODEL PROMPT_TOKENS DECODE_TOKENS THREADS USERS
 *
 * Each of USERS sequences has a prompt of pseudo-random ids of its own; then all decode, a
 * token of each in one batch a step, greedy.  Built by peer.sh as llama_peer is.  Prints one
 * JSON object: tokens a second of all users together while they decode.
 */
#include "llama_start.h"

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
        for (int i = 0; i < n_prompt; i++)
            add(&b, next_id(&word, n_vocab), i, u, i + 1 == n_prompt);
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
    int each = (n_prompt + n_decode + 255) / 256 * 256;
    struct llama_context *ctx = start(argv[1], argv[2], threads, n_users * each, 2048, n_users);
    if (ctx == NULL) return 1;
    int n_vocab = n_vocab_of(ctx);
    double rate = measure(ctx, n_vocab, n_prompt, n_decode, n_users);
    finish(ctx);
    if (rate <= 0) return 1;
    (void)printf("{\"total_tok_per_s\": %.2f, \"user_tok_per_s\": %.2f}\n", rate,
                 rate / n_users);
    return 0;
}
