/* test_models_golden.c - generated models of every geometry and type against a float64
 * reference (tests/golden/data/models.json).
 *
 * Each model is written by make_model into a temporary folder, run and removed.
 * With float activations and KV the figures of the reference must come out; with
 * 8-bit activations the distribution must stay near that of our float path, which
 * is judged over all models together (llama.cpp: mean divergence 0.003 with 8 bits).
 */
#include "model_run.h"

enum { N_IDS = 96, N_GREEDY = 32, N_LAST = 4, MAX_MODELS = 64 };

static char folder[256];
static double kl_sum, n_kl, n_clear, n_clear_equal;

static void make_model(const cJSON *entry, char path[512]) {
    (void)snprintf(path, 512, "%s/model.gguf", folder);
    char *params = cJSON_PrintUnformatted(cJSON_GetObjectItem(entry, "params"));
    assert_non_null(params);
    assert_true(generate_model(params, path));
    cJSON_free(params);
}

/* What the taps saw of the first run: hidden rows of the last positions, experts. */
typedef struct sight {
    uint32_t n_layers, n_embd, n_used;
    float *hidden;  /* [n_layers + 2][N_LAST][n_embd] */
    float *experts; /* [n_layers][N_IDS][n_used] */
} sight;

static void look(void *context, const char *what, uint32_t layer, const float *rows,
                 size_t n_rows, size_t row_length) {
    sight *s = context;
    assert_int_equal(n_rows, N_IDS);
    if (strcmp(what, "experts") == 0) {
        memcpy(s->experts + (size_t)layer * N_IDS * s->n_used, rows,
               n_rows * row_length * sizeof *rows);
        return;
    }
    size_t entry = strcmp(what, "embed") == 0   ? 0
                   : strcmp(what, "layer") == 0 ? layer + 1
                                                : s->n_layers + 1;
    memcpy(s->hidden + entry * N_LAST * row_length, rows + (n_rows - N_LAST) * row_length,
           N_LAST * row_length * sizeof *rows);
}

static void check_hidden(const cJSON *entry, const sight *s) {
    const cJSON *file = cJSON_GetObjectItem(entry, "hidden");
    if (file == NULL) return;
    size_t n = (size_t)(s->n_layers + 2) * N_LAST * s->n_embd;
    float *expected = read_floats(file->valuestring, n);
    double d = max_difference(s->hidden, expected, n);
    if (!(d <= 1e-4)) fail_msg("hidden states differ by %g", d);
    free(expected);
}

static void check_experts(const cJSON *entry, const sight *s) {
    const cJSON *layers = cJSON_GetObjectItem(entry, "experts");
    const cJSON *layer = NULL;
    cJSON_ArrayForEach(layer, layers) {
        const float *seen =
            s->experts + (size_t)strtoul(layer->string, NULL, 10) * N_IDS * s->n_used;
        const cJSON *row = NULL, *expert = NULL;
        cJSON_ArrayForEach(row, layer) {
            cJSON_ArrayForEach(expert, row) {
                assert_int_equal((int)*seen, (int)expert->valuedouble);
                seen++;
            }
        }
    }
}

static void check_logits(const cJSON *entry, const float *logits, size_t n_vocab) {
    size_t n_positions = 0, n_argmax = 0;
    int32_t *positions = read_ints(entry, "positions", &n_positions);
    int32_t *argmax = read_ints(entry, "argmax", &n_argmax);
    float *expected =
        read_floats(cJSON_GetObjectItem(entry, "logits")->valuestring, n_positions * n_vocab);
    for (size_t i = 0; i < n_positions; i++) {
        double d = max_difference(logits + (size_t)positions[i] * n_vocab,
                                  expected + i * n_vocab, n_vocab);
        if (!(d <= 1e-4)) fail_msg("logits of position %d differ by %g", positions[i], d);
    }
    assert_int_equal(n_argmax, N_IDS);
    for (size_t i = 0; i < n_argmax; i++) {
        assert_int_equal(first_choice(logits + i * n_vocab, n_vocab), argmax[i]);
    }
    free(expected);
    free(argmax);
    free(positions);
}

static void check_greedy(const cJSON *entry, run *r, const float *last_logits) {
    size_t n = 0;
    int32_t *expected = read_ints(entry, "greedy_ids", &n), ids[N_GREEDY];
    assert_int_equal(n, N_GREEDY);
    float *logits = new_logits(r, 1);
    memcpy(logits, last_logits, r->config->n_vocab * sizeof *logits);
    run_greedy(r, N_IDS, N_GREEDY, logits, ids);
    assert_memory_equal(ids, expected, sizeof ids);
    free(logits);
    free(expected);
}

static void float_path_computes_what_the_reference_does(void **state) {
    const cJSON *entry = *state;
    char path[512];
    make_model(entry, path);
    run r;
    model_params p = run_params(ACTIVATIONS_F32);
    run_open(&r, path, &p);
    size_t n = 0;
    int32_t *ids = read_ints(entry, "ids", &n);
    assert_int_equal(n, N_IDS);
    const model_config *c = r.config;
    sight s = {c->n_layers, c->n_embd, c->n_experts_used, NULL, NULL};
    s.hidden = calloc((size_t)(c->n_layers + 2) * N_LAST * c->n_embd, sizeof *s.hidden);
    s.experts =
        calloc((size_t)c->n_layers * N_IDS * (c->n_experts_used + 1), sizeof *s.experts);
    assert_true(s.hidden != NULL && s.experts != NULL);
    float *logits = new_logits(&r, N_IDS);
    model_set_tap(r.m, look, &s);
    run_tokens(&r, 0, 0, ids, N_IDS, N_IDS, logits);
    model_set_tap(r.m, NULL, NULL);
    check_hidden(entry, &s);
    check_experts(entry, &s);
    check_logits(entry, logits, c->n_vocab);
    check_greedy(entry, &r, logits + (size_t)(N_IDS - 1) * c->n_vocab);
    free(logits);
    free(s.experts);
    free(s.hidden);
    free(ids);
    run_close(&r);
    (void)unlink(path);
}

static float *logits_of(const char *path, activation_type activations, const int32_t *ids,
                        size_t *n_vocab) {
    run r;
    model_params p = run_params(activations);
    run_open(&r, path, &p);
    float *logits = new_logits(&r, N_IDS);
    run_tokens(&r, 0, 0, ids, N_IDS, N_IDS, logits);
    *n_vocab = r.config->n_vocab;
    run_close(&r);
    return logits;
}

static void integer_path_stays_near_the_float_path(void **state) {
    const cJSON *entry = *state;
    char path[512];
    make_model(entry, path);
    size_t n = 0, n_argmax = 0, n_positions = 0, n_vocab = 0;
    int32_t *ids = read_ints(entry, "ids", &n);
    int32_t *argmax = read_ints(entry, "argmax", &n_argmax);
    int32_t *clear = read_ints(entry, "clear_positions", &n_positions);
    assert_int_equal(n, N_IDS);
    float *exact = logits_of(path, ACTIVATIONS_F32, ids, &n_vocab);
    float *rounded = logits_of(path, ACTIVATIONS_INT8, ids, &n_vocab);
    double kl = mean_divergence(exact, rounded, N_IDS, n_vocab);
    if (!(kl <= 0.05)) fail_msg("mean divergence is %g", kl);
    kl_sum += kl;
    n_kl++;
    for (size_t i = 0; i < n_positions; i++) {
        n_clear++;
        n_clear_equal +=
            first_choice(rounded + (size_t)clear[i] * n_vocab, n_vocab) == argmax[clear[i]];
    }
    free(rounded);
    free(exact);
    free(clear);
    free(argmax);
    free(ids);
    (void)unlink(path);
}

static void integer_path_is_close_enough_over_all_models(void **state) {
    (void)state;
    print_message(
        "mean divergence %.5f, first choice equal at %.2f %% of %.0f clear positions\n",
        kl_sum / n_kl, 100 * n_clear_equal / n_clear, n_clear);
    assert_true(kl_sum / n_kl <= 8e-3);
    assert_true(n_clear_equal / n_clear >= 0.98);
}

int main(void) {
    if (!make_temporary(folder, sizeof folder)) {
        perror(folder);
        return 1;
    }
    cJSON *root = read_json(GOLDEN_FOLDER "models.json");
    static struct CMUnitTest tests[2 * MAX_MODELS + 1];
    static char names[2 * MAX_MODELS][96];
    size_t n = 0;
    cJSON *entry = NULL;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(root, "models")) {
        const char *name = cJSON_GetObjectItem(entry, "name")->valuestring;
        for (int integer = 0; integer < 2 && n < 2 * MAX_MODELS; integer++, n++) {
            (void)snprintf(names[n], sizeof names[n], "%s: %s", name,
                           integer ? "integer path stays near the float path"
                                   : "float path computes what the reference does");
            tests[n] =
                (struct CMUnitTest){names[n],
                                    integer ? integer_path_stays_near_the_float_path
                                            : float_path_computes_what_the_reference_does,
                                    NULL, NULL, entry};
        }
    }
    tests[n++] =
        (struct CMUnitTest)cmocka_unit_test(integer_path_is_close_enough_over_all_models);
    int failed = _cmocka_run_group_tests("models", tests, n, NULL, NULL);
    cJSON_Delete(root);
    char path[512];
    (void)snprintf(path, sizeof path, "%s/model.gguf", folder);
    (void)unlink(path); /* of a failed test */
    (void)rmdir(folder);
    return failed;
}
