/* test_demo_golden.c - the two small trained models against Hugging Face transformers
 * in float32 on the dequantized weights (tests/golden/data/demo.json and draft.json). */
#include "model_run.h"

typedef struct small_model {
    const char *gguf;
    const char *golden;
} small_model;

static small_model demo = {"deploy/models/demo.gguf", GOLDEN_FOLDER "demo.json"};
static small_model draft = {"deploy/models/draft.gguf", GOLDEN_FOLDER "draft.json"};

/* Prompt and answer in one list; the caller frees. */
static int32_t *all_ids(const cJSON *entry, size_t *n_prompt, size_t *n_answer) {
    int32_t *prompt = read_ints(entry, "prompt_ids", n_prompt);
    int32_t *answer = read_ints(entry, "greedy_ids", n_answer);
    int32_t *ids = calloc(*n_prompt + *n_answer, sizeof *ids);
    assert_non_null(ids);
    memcpy(ids, prompt, *n_prompt * sizeof *ids);
    memcpy(ids + *n_prompt, answer, *n_answer * sizeof *ids);
    free(answer);
    free(prompt);
    return ids;
}

static double deviation(const float *x, size_t n) {
    double mean = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        mean += (double)x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        sum += ((double)x[i] - mean) * ((double)x[i] - mean);
    return sqrt(sum / (double)n);
}

static double rms_difference(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / (double)n);
}

static void check_logits(const cJSON *entry, const float *logits, size_t n_vocab) {
    size_t n = 0;
    int32_t *positions = read_ints(entry, "positions", &n);
    float *expected =
        read_floats(cJSON_GetObjectItem(entry, "logits")->valuestring, n * n_vocab);
    for (size_t i = 0; i < n; i++) {
        const float *got = logits + (size_t)positions[i] * n_vocab;
        const float *want = expected + i * n_vocab;
        double ratio = rms_difference(got, want, n_vocab) / deviation(want, n_vocab);
        if (!(ratio <= 1e-3))
            fail_msg("position %d: rms error is %g of std", positions[i], ratio);
        assert_int_equal(first_choice(got, n_vocab), first_choice(want, n_vocab));
    }
    free(expected);
    free(positions);
}

static void float_path_computes_and_answers_as_the_reference(void **state) {
    const small_model *small = *state;
    cJSON *root = read_json(small->golden);
    run r;
    model_params p = run_params(ACTIVATIONS_F32);
    run_open(&r, small->gguf, &p);
    const cJSON *entry = NULL;
    cJSON_ArrayForEach(entry, root) {
        size_t n_prompt = 0, n_answer = 0;
        int32_t *ids = all_ids(entry, &n_prompt, &n_answer);
        int32_t *answer = calloc(n_answer, sizeof *answer);
        float *logits = new_logits(&r, n_prompt + n_answer);
        assert_non_null(answer);
        model_state_clear(r.m, 0);
        run_tokens(&r, 0, 0, ids, n_prompt + n_answer, 512, logits);
        check_logits(entry, logits, r.config->n_vocab);
        model_state_clear(r.m, 0);
        run_tokens(&r, 0, 0, ids, n_prompt, 512, logits);
        memmove(logits, logits + (n_prompt - 1) * r.config->n_vocab,
                r.config->n_vocab * sizeof *logits);
        run_greedy(&r, (uint32_t)n_prompt, n_answer, logits, answer);
        assert_memory_equal(answer, ids + n_prompt, n_answer * sizeof *answer);
        free(logits);
        free(answer);
        free(ids);
    }
    run_close(&r);
    cJSON_Delete(root);
}

/* Hidden rows of all tokens: embeddings, outputs of all layers but the last, and the
 * rows after the final norm, as transformers gives them. */
typedef struct sight {
    uint32_t n_layers;
    size_t n_rows, row_length;
    float *hidden;
} sight;

static void look(void *context, const char *what, uint32_t layer, const float *rows,
                 size_t n_rows, size_t row_length) {
    sight *s = context;
    size_t at = 0;
    if (strcmp(what, "experts") == 0) return;
    if (strcmp(what, "layer") == 0) at = layer + 1;
    if (strcmp(what, "final") == 0) at = s->n_layers;
    assert_int_equal(n_rows, s->n_rows);
    assert_int_equal(row_length, s->row_length);
    memcpy(s->hidden + at * n_rows * row_length, rows, n_rows * row_length * sizeof *rows);
}

/* The first text of the reference, whose hidden rows it has too. */
typedef struct hidden_text {
    int32_t *ids;    /* [n] prompt and answer */
    float *expected; /* [n_layers + 1][n][n_embd] */
    size_t n, n_embd, n_layers;
} hidden_text;

static hidden_text open_hidden(run *r, const small_model *small, uint32_t max_outputs) {
    hidden_text h;
    cJSON *root = read_json(small->golden);
    const cJSON *entry = cJSON_GetArrayItem(root, 0);
    model_params p = run_params(ACTIVATIONS_F32);
    p.max_outputs = max_outputs;
    run_open(r, small->gguf, &p);
    size_t n_prompt = 0, n_answer = 0;
    h.ids = all_ids(entry, &n_prompt, &n_answer);
    h.n = n_prompt + n_answer;
    h.n_embd = r->config->n_embd;
    h.n_layers = r->config->n_layers;
    h.expected = read_floats(cJSON_GetObjectItem(entry, "hidden")->valuestring,
                             (h.n_layers + 1) * h.n * h.n_embd);
    cJSON_Delete(root);
    return h;
}

static void close_hidden(run *r, hidden_text *h) {
    free(h->expected);
    free(h->ids);
    run_close(r);
}

static void hidden_states_are_those_of_the_reference(void **state) {
    run r;
    hidden_text h = open_hidden(&r, *state, 512);
    const size_t n_floats = h.n * h.n_embd;
    float *logits = new_logits(&r, h.n);
    sight s = {(uint32_t)h.n_layers, h.n, h.n_embd,
               calloc((h.n_layers + 1) * n_floats, sizeof(float))};
    assert_non_null(s.hidden);
    model_set_tap(r.m, look, &s);
    run_tokens(&r, 0, 0, h.ids, h.n, 512, logits);
    for (size_t i = 0; i <= h.n_layers; i++) {
        double d = relative_l2(s.hidden + i * n_floats, h.expected + i * n_floats, n_floats);
        if (!(d <= 1e-4)) fail_msg("hidden states %zu: relative difference %g", i, d);
    }
    free(s.hidden);
    free(logits);
    close_hidden(&r, &h);
}

/* Rows after the final norm come without a product with the head, in pieces as at once, and
 * beside rows that give logits. */
static void rows_after_the_final_norm_are_those_of_the_reference(void **state) {
    run r;
    hidden_text h = open_hidden(&r, *state, 1);
    const size_t n_floats = h.n * h.n_embd;
    float *rows = calloc(2 * n_floats, sizeof *rows), *pieces = rows + n_floats;
    float *logits = new_logits(&r, 1);
    assert_non_null(rows);
    model_segment whole = run_segment(&r, 0, 0, h.ids, (uint32_t)h.n);
    whole.n_outputs = 0;
    whole.n_hidden = (uint32_t)h.n;
    whole.hidden = rows;
    run_step(&r, &whole, 1, NULL);
    double d = relative_l2(rows, h.expected + h.n_layers * n_floats, n_floats);
    if (!(d <= 1e-4)) fail_msg("rows: relative difference %g", d);
    model_state_clear(r.m, 0);
    for (size_t at = 0; at < h.n; at += MODEL_CHUNK_TOKENS) {
        uint32_t now =
            (uint32_t)(h.n - at < MODEL_CHUNK_TOKENS ? h.n - at : (size_t)MODEL_CHUNK_TOKENS);
        model_segment piece = run_segment(&r, 0, (uint32_t)at, h.ids + at, now);
        piece.n_outputs = 1;
        piece.n_hidden = now;
        piece.hidden = pieces + at * h.n_embd;
        run_step(&r, &piece, 1, logits);
    }
    assert_memory_equal(rows, pieces, n_floats * sizeof *rows);
    free(logits);
    free(rows);
    close_hidden(&r, &h);
}

static void hidden_rows_without_a_place_or_beyond_the_tokens_are_refused(void **state) {
    const small_model *small = *state;
    run r;
    model_params p = run_params(ACTIVATIONS_F32);
    run_open(&r, small->gguf, &p);
    const int32_t id = 5;
    float row[1] = {0};
    error err = {0};
    model_segment s = run_segment(&r, 0, 0, &id, 1);
    s.n_outputs = 0;
    s.n_hidden = 2;
    s.hidden = row;
    assert_int_equal(model_step(r.m, &s, 1, NULL, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "1 tokens and 2 hidden rows"));
    s.n_hidden = 1;
    s.hidden = NULL;
    assert_int_equal(model_step(r.m, &s, 1, NULL, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "without a place"));
    run_close(&r);
}

/* Given the reference's words so far, does the integer path choose the same next one? */
static void integer_path_chooses_as_the_reference(void **state) {
    const small_model *small = *state;
    cJSON *root = read_json(small->golden);
    run r;
    model_params p = run_params(ACTIVATIONS_INT8);
    run_open(&r, small->gguf, &p);
    double n_equal = 0, n_all = 0;
    const cJSON *entry = NULL;
    cJSON_ArrayForEach(entry, root) {
        size_t n_prompt = 0, n_answer = 0, n_vocab = r.config->n_vocab;
        int32_t *ids = all_ids(entry, &n_prompt, &n_answer);
        float *logits = new_logits(&r, n_prompt + n_answer);
        model_state_clear(r.m, 0);
        run_tokens(&r, 0, 0, ids, n_prompt + n_answer, 512, logits);
        for (size_t i = n_prompt; i < n_prompt + n_answer; i++) {
            n_equal += first_choice(logits + (i - 1) * n_vocab, n_vocab) == ids[i];
        }
        n_all += (double)n_answer;
        free(logits);
        free(ids);
    }
    print_message("%s: first choice equal at %.0f of %.0f positions\n", small->gguf, n_equal,
                  n_all);
    assert_true(n_equal / n_all >= 0.975);
    run_close(&r);
    cJSON_Delete(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(float_path_computes_and_answers_as_the_reference, &demo),
        cmocka_unit_test_prestate(hidden_states_are_those_of_the_reference, &demo),
        cmocka_unit_test_prestate(rows_after_the_final_norm_are_those_of_the_reference, &demo),
        cmocka_unit_test_prestate(hidden_rows_without_a_place_or_beyond_the_tokens_are_refused,
                                  &demo),
        cmocka_unit_test_prestate(integer_path_chooses_as_the_reference, &demo),
        cmocka_unit_test_prestate(float_path_computes_and_answers_as_the_reference, &draft),
        cmocka_unit_test_prestate(hidden_states_are_those_of_the_reference, &draft),
        cmocka_unit_test_prestate(rows_after_the_final_norm_are_those_of_the_reference, &draft),
        cmocka_unit_test_prestate(integer_path_chooses_as_the_reference, &draft),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
