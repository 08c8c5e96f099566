/* test_embeddings.c - vectors are the golden hidden states after the final norm, and no bit of
 * them or of a relevance depends on who else is served.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/engine_run.h"
#include "tests/files.h"
#include <math.h>
#include <stdio.h>

enum { MAX_EMBD = 512, N_INPUTS = 7 };

/* --- the golden hidden states --- */

typedef struct golden {
    cJSON *root;
    size_t n_tokens, n_prompt, n_embd;
    char *prompt, *all; /* ids as JSON */
    float *states;      /* of all layers; the last are those after the final norm */
    const float *rows;
} golden;

static void open_golden(golden *g, const engine *e) {
    const model_config *c = engine_model_config(e);
    size_t n = 0;
    char *text = read_file("tests/golden/data/demo.json", &n);
    g->root = cJSON_Parse(text);
    free(text);
    cJSON *entry = cJSON_GetArrayItem(g->root, 0);
    assert_string_equal(cJSON_GetObjectItem(entry, "name")->valuestring, "rose");
    cJSON *ids = cJSON_GetObjectItem(entry, "prompt_ids");
    cJSON *answer = cJSON_GetObjectItem(entry, "greedy_ids");
    g->n_prompt = (size_t)cJSON_GetArraySize(ids);
    g->prompt = cJSON_PrintUnformatted(ids);
    while (answer->child != NULL)
        assert_true(cJSON_AddItemToArray(ids, cJSON_DetachItemFromArray(answer, 0)));
    g->n_tokens = (size_t)cJSON_GetArraySize(ids);
    g->all = cJSON_PrintUnformatted(ids);
    g->n_embd = c->n_embd;
    g->states = (float *)(void *)read_file("tests/golden/data/demo-rose.hidden.f32", &n);
    assert_int_equal(n, (c->n_layers + 1) * g->n_tokens * g->n_embd * sizeof(float));
    g->rows = g->states + c->n_layers * g->n_tokens * g->n_embd;
}

static void close_golden(golden *g) {
    cJSON_free(g->prompt);
    cJSON_free(g->all);
    free(g->states);
    cJSON_Delete(g->root);
}

/* Item `index` of an answer's list. */
static const cJSON *item_of(const cJSON *list, int index) {
    const cJSON *item = cJSON_GetArrayItem(list, index);
    assert_non_null(item);
    assert_int_equal(cJSON_GetObjectItem(item, "index")->valueint, index);
    return cJSON_GetObjectItem(item, "embedding");
}

static size_t read_vector(const cJSON *list, int index, double *out) {
    const cJSON *numbers = item_of(list, index);
    size_t n = 0;
    assert_true(cJSON_IsArray(numbers));
    for (const cJSON *x = numbers->child; x != NULL; x = x->next) {
        assert_true(n < MAX_EMBD);
        out[n++] = x->valuedouble;
    }
    return n;
}

static double length_of(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void assert_same_direction(const double *x, const double *y, size_t n) {
    double dot = 0;
    for (size_t i = 0; i < n; i++)
        dot += x[i] * y[i];
    double cosine = dot / length_of(x, n) / length_of(y, n);
    if (!(cosine >= 0.9999)) fail_msg("the cosine is %.7f", cosine);
    assert_true(fabs(length_of(x, n) - 1) < 1e-6);
}

/* The golden row of a token, or the mean of those before and with it. */
static void golden_row(const golden *g, size_t n_tokens, bool mean, double *out) {
    memset(out, 0, g->n_embd * sizeof *out);
    for (size_t t = mean ? 0 : n_tokens - 1; t < n_tokens; t++) {
        for (size_t i = 0; i < g->n_embd; i++)
            out[i] += (double)g->rows[t * g->n_embd + i];
    }
}

static void assert_golden(embedding_pooling pooling) {
    engine_run run = {0};
    engine_params params = run_params();
    params.activations = ACTIVATIONS_F32;
    params.kv = KV_F32;
    params.pooling = pooling;
    run_open(&run, &params);
    golden g;
    open_golden(&g, run.e);
    json_text body = {0};
    json_text_format(&body, "{\"input\":[%s,%s]}", g.all, g.prompt);
    const run_answer *a = run_one(&run, WIRE_EMBED, body.bytes);
    assert_true(a->done);
    assert_int_equal(a->usage.prompt_tokens, g.n_tokens + g.n_prompt);
    assert_int_equal(a->usage.completion_tokens, 0);
    cJSON *list = cJSON_Parse(a->result);
    const size_t lengths[] = {g.n_tokens, g.n_prompt};
    for (int i = 0; i < 2; i++) {
        double got[MAX_EMBD] = {0}, want[MAX_EMBD] = {0};
        assert_int_equal(read_vector(list, i, got), g.n_embd);
        golden_row(&g, lengths[i], pooling == POOLING_MEAN, want);
        assert_same_direction(got, want, g.n_embd);
    }
    cJSON_Delete(list);
    json_text_release(&body);
    close_golden(&g);
    run_close(&run);
}

static void the_last_tokens_vector_is_its_golden_hidden_state(void **state) {
    (void)state;
    assert_golden(POOLING_LAST);
    assert_golden(POOLING_AUTO); /* the file says nothing */
}

static void the_mean_vector_is_the_mean_of_the_golden_hidden_states(void **state) {
    (void)state;
    assert_golden(POOLING_MEAN);
}

static void fewer_dimensions_are_the_first_ones_of_length_one(void **state) {
    (void)state;
    engine_run run = {0};
    engine_params params = run_params();
    run_open(&run, &params);
    double whole[MAX_EMBD] = {0}, part[MAX_EMBD] = {0};
    const run_answer *a = run_one(&run, WIRE_EMBED, "{\"input\":[\"Roses are red\"]}");
    cJSON *list = cJSON_Parse(a->result);
    size_t n = read_vector(list, 0, whole);
    cJSON_Delete(list);
    a = run_one(&run, WIRE_EMBED, "{\"input\":[\"Roses are red\"],\"dimensions\":7}");
    list = cJSON_Parse(a->result);
    assert_int_equal(read_vector(list, 0, part), 7);
    cJSON_Delete(list);
    assert_true(n > 7);
    assert_same_direction(part, whole, 7);
    run_close(&run);
}

/* --- company --- */

/* Texts of one word up to more than a step's tokens. */
static char *input_text(int i) {
    json_text text = {0};
    int n = i == N_INPUTS - 1 ? 70 : 1 + i * i;
    for (int k = 0; k < n; k++)
        json_text_format(&text, "%s%d", k % 3 == 0 ? "rose " : "bread ", k * i);
    return text.bytes;
}

static char *request_of(wire_kind kind, const char *texts) {
    json_text body = {0};
    if (kind == WIRE_EMBED)
        json_text_format(&body, "{\"encoding_format\":\"base64\",\"input\":[%s]}", texts);
    else
        json_text_format(&body, "{\"query\":\"what is a rose?\",\"documents\":[%s]}", texts);
    return body.bytes;
}

/* What the answer says of input i, as text. */
static char *said_of(wire_kind kind, const char *result, int i) {
    cJSON *list = cJSON_Parse(result);
    assert_non_null(list);
    const cJSON *item = NULL;
    char *text = NULL;
    cJSON_ArrayForEach(item, list) {
        if (cJSON_GetObjectItem(item, "index")->valueint != i) continue;
        text = cJSON_PrintUnformatted(
            cJSON_GetObjectItem(item, kind == WIRE_EMBED ? "embedding" : "relevance_score"));
    }
    assert_non_null(text);
    cJSON_Delete(list);
    return text;
}

/* Alone in an engine that remembers no prompts, and in company in one that does. */
static void assert_company_changes_nothing(wire_kind kind, embedding_pooling pooling) {
    static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Who wrote The "
                               "Name of the Rose?\"}],\"temperature\":0,\"max_tokens\":40}";
    engine_run run = {0};
    engine_params params = run_params();
    params.pooling = pooling;
    run_open(&run, &params);
    json_text all = {0};
    char *alone[N_INPUTS], *words = NULL;
    for (int i = 0; i < N_INPUTS; i++) {
        char *text = input_text(i);
        json_text quoted = {0};
        json_text_string(&quoted, text, strlen(text));
        json_text_format(&all, "%s%s", i > 0 ? "," : "", quoted.bytes);
        char *body = request_of(kind, quoted.bytes);
        const run_answer *a = run_one(&run, kind, body);
        if (!a->done) fail_msg("%s", a->error);
        alone[i] = said_of(kind, a->result, 0);
        free(body);
        json_text_release(&quoted);
        free(text);
    }
    words = strdup(run_one(&run, WIRE_CHAT, chat)->choices[0].content);
    run_close(&run);
    params.prefix_ram_mib = 64;
    run_open(&run, &params);
    char *body = request_of(kind, all.bytes);
    run_forget(&run);
    run_submit(&run, 0, WIRE_CHAT, chat);
    run_steps(&run, 3);
    run_submit(&run, 1, kind, body); /* more inputs than there are places */
    run_submit(&run, 2, WIRE_CHAT, chat);
    run_all(&run);
    assert_true(run.answers[1].done);
    uint64_t n_skipped = run.answers[1].usage.cached_tokens;
    assert_int_equal(n_skipped > 0, kind == WIRE_RERANK);
    assert_int_equal(n_skipped % ((N_INPUTS - 1) * MODEL_CHUNK_TOKENS), 0); /* all but one */
    for (int i = 0; i < N_INPUTS; i++) {
        char *said = said_of(kind, run.answers[1].result, i);
        assert_string_equal(said, alone[i]);
        cJSON_free(said);
        cJSON_free(alone[i]);
    }
    assert_string_equal(run.answers[0].choices[0].content, words);
    assert_string_equal(run.answers[2].choices[0].content, words);
    free(words);
    free(body);
    json_text_release(&all);
    run_close(&run);
}

static void company_changes_no_bit_of_a_vector(void **state) {
    (void)state;
    assert_company_changes_nothing(WIRE_EMBED, POOLING_LAST);
    assert_company_changes_nothing(WIRE_EMBED, POOLING_MEAN);
}

static void company_changes_no_bit_of_a_relevance(void **state) {
    (void)state;
    assert_company_changes_nothing(WIRE_RERANK, POOLING_AUTO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_tokens_vector_is_its_golden_hidden_state),
        cmocka_unit_test(the_mean_vector_is_the_mean_of_the_golden_hidden_states),
        cmocka_unit_test(fewer_dimensions_are_the_first_ones_of_length_one),
        cmocka_unit_test(company_changes_no_bit_of_a_vector),
        cmocka_unit_test(company_changes_no_bit_of_a_relevance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
