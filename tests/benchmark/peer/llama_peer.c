/* llama_peer.c - prefill and decode rates of llama.cpp on the CPU, for comparison only.
 *
 *     llama_peer LIBRARY_FOLDER MODEL PROMPT_TOKENS DECODE_TOKENS THREADS REPEATS
 *
 * Built by peer.sh against the headers and libraries of npm's packages; no part
 * of the product or of its tests.  Prints one JSON object: the best of REPEATS.
 * The prompt is pseudo-random ids (the same as `siliceo-worker bench` uses is not
 * needed: rates of these models depend on ids only through expert routing).
 */
#include "llama_start.h"

/* One pass: *prefill and *decode in tokens a second. */
static int measure(struct llama_context *ctx, int n_vocab, int n_prompt, int n_decode,
                   double *prefill, double *decode) {
    llama_memory_clear(llama_get_memory(ctx), true);
    llama_token *ids = malloc((size_t)n_prompt * sizeof *ids);
    if (ids == NULL) return 1;
    unsigned long long word = 1;
    for (int i = 0; i < n_prompt; i++)
        ids[i] = next_id(&word, n_vocab);
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
    struct llama_context *ctx =
        start(argv[1], argv[2], threads, n_prompt + n_decode + 64, n_prompt, 1);
    if (ctx == NULL) return 1;
    int n_vocab = n_vocab_of(ctx);
    double best_prefill = 0, best_decode = 0;
    for (int i = 0; i < atoi(argv[6]); i++) {
        double prefill = 0, decode = 0;
        if (measure(ctx, n_vocab, n_prompt, n_decode, &prefill, &decode) != 0) return 1;
        if (prefill > best_prefill) best_prefill = prefill;
        if (decode > best_decode) best_decode = decode;
    }
    (void)printf("{\"prefill_tok_per_s\": %.2f, \"decode_tok_per_s\": %.2f}\n", best_prefill,
                 best_decode);
    finish(ctx);
    return 0;
}
