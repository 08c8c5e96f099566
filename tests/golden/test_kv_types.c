/* test_kv_types.c - what smaller KV pages cost: KL divergence from half floats, and recall.
 *
 * With float activations, so that the pages alone differ.  The prompts with their answers are
 * those of demo.json and 50 conversations of the corpus, every position counted.
 */
#include "tests/golden/model_run.h"

#include "tests/golden/conversations.h"

enum { N_CONVERSATIONS = 50, MAX_TEXTS = 64, N_VOCAB = 4096, MAX_TOKENS = 1024 };

static token_list texts[MAX_TEXTS];
static size_t n_texts;

static void add_ids(token_list *t, const int32_t *ids, size_t n) {
    error err = {0};
    for (size_t i = 0; i < n; i++)
        conversation_fail(token_list_add(t, ids[i], &err), &err);
}

static void add_recorded(void) {
    cJSON *list = read_json(GOLDEN_FOLDER "demo.json");
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, list) {
        token_list *t = &texts[n_texts++];
        const char *const parts[] = {"prompt_ids", "greedy_ids"};
        for (int i = 0; i < 2; i++) {
            size_t n = 0;
            int32_t *ids = read_ints(item, parts[i], &n);
            add_ids(t, ids, n);
            free(ids);
        }
    }
    cJSON_Delete(list);
}

static void add_conversations(const tokenizer *vocab) {
    size_t n_bytes = 0;
    char *lines = read_file(GOLDEN_FOLDER "conversations.jsonl", &n_bytes);
    const char *at = lines;
    for (int i = 0; i < N_CONVERSATIONS; i++) {
        cJSON *one = conversation_next(&at);
        conversation_encode(vocab, one, true, &texts[n_texts++]);
        cJSON_Delete(one);
    }
    free(lines);
}

static int read_texts(void **state) {
    (void)state;
    error err = {0};
    gguf_file *file = NULL;
    tokenizer *vocab = NULL;
    if (gguf_open(&file, "deploy/models/demo.gguf", &err) != STATUS_OK ||
        tokenizer_open(&vocab, file, false, &err) != STATUS_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    add_recorded();
    add_conversations(vocab);
    tokenizer_close(vocab);
    gguf_close(file);
    return 0;
}

static int free_texts(void **state) {
    (void)state;
    for (size_t i = 0; i < n_texts; i++)
        token_list_release(&texts[i]);
    return 0;
}

/* Mean over all positions of all texts of the divergence from half floats. */
typedef struct cost {
    kv_type type;
    const char *name;
    double most;
    run with;
    double sum, worst; /* of a text */
} cost;

static void run_text(run *r, const token_list *text, float *logits) {
    model_state_clear(r->m, 0);
    run_tokens(r, 0, 0, text->ids, text->length, 256, logits);
}

static void add_cost(cost *c, const token_list *text, const float *exact, float *near) {
    run_text(&c->with, text, near);
    double kl = mean_divergence(exact, near, text->length, N_VOCAB);
    c->sum += kl * (double)text->length;
    if (!(kl <= c->worst)) c->worst = kl;
}

static void smaller_pages_stay_near_half_floats(void **state) {
    (void)state;
    cost costs[] = {{.type = KV_Q8, .name = "q8", .most = 1e-3},
                    {.type = KV_Q4, .name = "q4", .most = 1e-2}};
    enum { N_COSTS = sizeof costs / sizeof costs[0] };
    model_params p = run_params(ACTIVATIONS_F32);
    run halves;
    p.kv = KV_F16;
    run_open(&halves, "deploy/models/demo.gguf", &p);
    for (int i = 0; i < N_COSTS; i++) {
        p.kv = costs[i].type;
        run_open(&costs[i].with, "deploy/models/demo.gguf", &p);
    }
    float *exact = new_logits(&halves, MAX_TOKENS), *near = new_logits(&halves, MAX_TOKENS);
    size_t n = 0;
    for (size_t t = 0; t < n_texts; t++) {
        assert_true(texts[t].length <= MAX_TOKENS);
        run_text(&halves, &texts[t], exact);
        for (int i = 0; i < N_COSTS; i++)
            add_cost(&costs[i], &texts[t], exact, near);
        n += texts[t].length;
    }
    free(near);
    free(exact);
    run_close(&halves);
    for (int i = 0; i < N_COSTS; i++) {
        double mean = costs[i].sum / (double)n;
        run_close(&costs[i].with);
        print_message("KV %s: mean divergence %.3g over %zu positions, worst text %.3g\n",
                      costs[i].name, mean, n, costs[i].worst);
        assert_true(mean > 0 && mean <= costs[i].most);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smaller_pages_stay_near_half_floats),
    };
    return cmocka_run_group_tests(tests, read_texts, free_texts);
}
