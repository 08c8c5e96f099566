/* bench_text.c - what everything between a token and its text costs, in nanoseconds a token.
 *
 *     bench_text [GGUF]
 *
 * Tokens of prose, code and deliberation go through generation.h and budget.h as the engine
 * does it: thinking, stop strings, UTF-8, code blocks, circles, sentences.  One line of JSON a
 * text: the median of the rounds, in CPU time, which neighbours disturb less than the clock.
 */
#include "worker/budget.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 25, REPEATS = 40 };

static const char prose[] =
    "Once there was a quiet fox named Ada who lived near the river. One day Ada found a lamp "
    "under a stone. \"Whose lamp is this?\" asked Ada. A heron named Otto came by and said: it "
    "is mine, I lost it in 1987, e.g. near the mill. They were friends from that day on.\n\n"
    "- first, the river froze;\n- then **everybody** went `home`.\n\n";
static const char code[] =
    "Here it is:\n\n```c\nint add(int a, int b)\n{\n    return a + b;\n}\n"
    "```\n\nIt adds its two arguments, 1 and 2 for example.\n\n";

/* The text again and again, numbered so that it is no circle. */
static status make_ids(const tokenizer *vocab, const char *text, bool thinks, token_list *out,
                       error *err) {
    json_text all = {0};
    for (int i = 0; i < REPEATS; i++)
        json_text_format(&all, "%d. %s", i, text);
    if (!thinks) json_text_format(&all, "The end.");
    status rc = tokenizer_encode(vocab, all.bytes, all.length, TOKENIZER_ADDED_ALL, out, err);
    json_text_release(&all);
    return rc;
}

static uint64_t cpu_ns(void) {
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static status measure(const tokenizer *vocab, const char *name, const char *text, bool thinks,
                      size_t n_stops, error *err) {
    static const stop_string stops[4] = {
        {"\n\nUser:", 7}, {"<|end|>", 7}, {"Observation:", 12}, {"###", 3}};
    const budget_params limits = {.max_reasoning = 100000,
                                  .settings = {-1, 128, 512, 1024, 64},
                                  .closing = {-1, tokenizer_find(vocab, "</think>"), -1}};
    token_list ids = {0};
    double ns[ROUNDS];
    status rc = make_ids(vocab, text, thinks, &ids, err);
    for (int i = 0; i < ROUNDS && rc == STATUS_OK; i++) {
        generation g;
        budget b;
        rc = generation_init(&g, vocab, true, thinks, stops, n_stops, err);
        if (rc != STATUS_OK) break;
        g.repairs = true;
        budget_init(&b, &limits, thinks);
        uint64_t begun = cpu_ns();
        for (size_t k = 0; k < ids.length; k++) {
            generation_push(&g, ids.ids[k]);
            if (budget_take(&b, &g, ids.ids[k]) != WIRE_FINISH_NONE) abort();
        }
        ns[i] = (double)(cpu_ns() - begun) / (double)ids.length;
        generation_release(&g);
    }
    if (rc == STATUS_OK) {
        qsort(ns, ROUNDS, sizeof ns[0], compare);
        (void)printf("{\"text\":\"%s\",\"stops\":%zu,\"tokens\":%zu,\"ns_per_token\":%.0f,"
                     "\"least\":%.0f,\"most\":%.0f}\n",
                     name, n_stops, ids.length, ns[ROUNDS / 2], ns[0], ns[ROUNDS - 1]);
    }
    token_list_release(&ids);
    return rc;
}

int main(int argc, char *argv[]) {
    error err = {0};
    gguf_file *file = NULL;
    tokenizer *vocab = NULL;
    status rc = gguf_open(&file, argc > 1 ? argv[1] : "deploy/models/demo.gguf", &err);
    if (rc == STATUS_OK) rc = tokenizer_open(&vocab, file, false, &err);
    for (size_t n_stops = 0; n_stops <= 4 && rc == STATUS_OK; n_stops += 4) {
        rc = measure(vocab, "prose", prose, false, n_stops, &err);
        if (rc == STATUS_OK) rc = measure(vocab, "code", code, false, n_stops, &err);
        if (rc == STATUS_OK) rc = measure(vocab, "deliberation", prose, true, n_stops, &err);
    }
    if (rc != STATUS_OK) (void)fprintf(stderr, "bench_text: %s\n", err.text);
    tokenizer_close(vocab);
    gguf_close(file);
    return rc == STATUS_OK ? 0 : 1;
}
