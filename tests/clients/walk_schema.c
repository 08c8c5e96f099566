/* walk_schema.c - writes random documents that a schema's grammar allows, token by token.
 *
 *     walk_schema MODEL < requests > answers
 *
 * A line in: {"schema": ..., "seed": 7, "budget": 100} (schema null: any object).  A line out:
 * {"text": "...", "tokens": 12, "least": 5, "whole": true, "mask_us": 80, "test_us": 9} (CPU time
 * of all masks and of all single tests), {"least": N} where the budget is below the
 * shortest document, or {"error": "...", "param": "..."}.  Each token is drawn among those
 * that the mask leaves, and each time some tokens are asked for by themselves: one that does
 * not fit and is left by the mask aborts the program, one that fits and is not left (a very
 * ambiguous schema is walked in part) is counted as "narrower".
 */
#include "common/gguf.h"
#include "common/json.h"
#include "worker/text/answer_format.h"
#include "worker/text/json_schema.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct walker {
    tokenizer *vocab;
    token_trie *trie;
    float *logits;
    uint32_t n_vocab;
    uint64_t seed;
    uint32_t n_narrower;     /* tokens that a mask left out though they fit */
    double mask_us, test_us; /* CPU time of what an engine would do for each token */
} walker;

static double now_us(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static uint32_t draw(walker *w) {
    w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->seed >> 33);
}

/* One of what the mask leaves; -1: nothing. */
static int32_t pick(walker *w, answer_format *f, uint32_t n_left) {
    uint32_t n = 0;
    memset(w->logits, 0, w->n_vocab * sizeof *w->logits);
    double begun_us = now_us();
    answer_format_mask(f, w->logits, w->n_vocab, n_left);
    w->mask_us += now_us() - begun_us;
    for (uint32_t i = 0; i < w->n_vocab; i++)
        n += w->logits[i] == 0;
    for (int i = 0; i < 8; i++) {
        uint32_t id = draw(w) % w->n_vocab;
        bool allowed = answer_format_allows(f, (int32_t)id, n_left);
        if (!allowed && w->logits[id] == 0) abort();
        w->n_narrower += allowed && w->logits[id] != 0;
    }
    uint32_t at = n > 0 ? draw(w) % n : 0;
    for (uint32_t i = 0; i < w->n_vocab; i++) {
        if (w->logits[i] == 0 && at-- == 0) return (int32_t)i;
    }
    return -1;
}

static void walk(walker *w, answer_format *f, uint32_t budget, json_text *out) {
    json_text text = {0};
    uint32_t n = 0, least = answer_format_least(f);
    json_text_add(&text, "", 0);
    if (budget < least) {
        json_text_format(out, "{\"least\":%u}\n", least);
        return;
    }
    answer_format_begin(f, budget);
    w->mask_us = w->test_us = 0;
    w->n_narrower = 0;
    for (; n < budget; n++) {
        /* Uniform draws would hardly ever end. */
        if (answer_format_is_whole(f) && draw(w) % 3 == 0) break;
        int32_t id = pick(w, f, budget - n);
        if (id < 0 || tokenizer_is_end(w->vocab, id)) break;
        size_t length = 0;
        const char *bytes = tokenizer_bytes(w->vocab, id, &length);
        json_text_add(&text, bytes, length);
        double begun_us = now_us();
        if (!answer_format_allows(f, id, budget - n) || !answer_format_push(f, id)) abort();
        w->test_us += now_us() - begun_us;
    }
    json_text_format(out, "{\"text\":");
    json_text_string(out, text.bytes, text.length);
    json_text_format(out, ",\"tokens\":%u,\"least\":%u,\"whole\":%s,", n, least,
                     answer_format_is_whole(f) ? "true" : "false");
    json_text_format(out, "\"narrower\":%u,\"mask_us\":%.1f,\"test_us\":%.1f}\n", w->n_narrower,
                     w->mask_us, w->test_us);
    json_text_release(&text);
}

static void answer(walker *w, const cJSON *request, json_text *out) {
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(request, "schema");
    const cJSON *seed = cJSON_GetObjectItemCaseSensitive(request, "seed");
    const cJSON *budget = cJSON_GetObjectItemCaseSensitive(request, "budget");
    char param[CHAT_PARAM_SIZE] = "";
    error err = {0};
    json_grammar *g = NULL;
    answer_format *f = NULL;
    status rc =
        json_schema_compile(&g, cJSON_IsNull(schema) ? NULL : schema, "schema", param, &err);
    if (rc == STATUS_OK) rc = answer_format_new(&f, g, w->trie, w->vocab, &err);
    if (rc == STATUS_OK) {
        w->seed = cJSON_IsNumber(seed) ? (uint64_t)seed->valuedouble : 1;
        walk(w, f, cJSON_IsNumber(budget) ? (uint32_t)budget->valuedouble : 100, out);
    } else {
        json_text_format(out, "{\"error\":");
        json_text_string(out, err.text, strlen(err.text));
        json_text_format(out, ",\"param\":");
        json_text_string(out, param, strlen(param));
        json_text_format(out, "}\n");
    }
    answer_format_free(f);
    json_grammar_free(g);
}

static status open_vocabulary(walker *w, const char *path, error *err) {
    gguf_file *file = NULL;
    status rc = gguf_open(&file, path, err);
    if (rc == STATUS_OK) rc = tokenizer_open(&w->vocab, file, false, err);
    gguf_close(file);
    if (rc != STATUS_OK) return rc;
    w->n_vocab = (uint32_t)tokenizer_n_tokens(w->vocab);
    w->logits = calloc(w->n_vocab, sizeof *w->logits);
    if (w->logits == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory");
    return token_trie_new(&w->trie, w->vocab, w->n_vocab, err);
}

int main(int argc, char *argv[]) {
    walker w = {0};
    error err = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = 0;
    json_text out = {0};
    if (argc != 2 || open_vocabulary(&w, argv[1], &err) != STATUS_OK) {
        (void)fprintf(stderr, "walk_schema MODEL: %s\n", err.text);
        return 2;
    }
    while ((n = getline(&line, &cap, stdin)) > 0) {
        cJSON *request = NULL;
        json_text_clear(&out);
        if (json_parse(&request, line, (size_t)n, "request", &err) != STATUS_OK)
            json_text_format(&out, "{\"error\":\"%s\",\"param\":\"\"}\n", err.text);
        else
            answer(&w, request, &out);
        (void)fwrite(out.bytes, 1, out.length, stdout);
        (void)fflush(stdout);
        cJSON_Delete(request);
    }
    json_text_release(&out);
    free(line);
    free(w.logits);
    token_trie_free(w.trie);
    tokenizer_close(w.vocab);
    return 0;
}
