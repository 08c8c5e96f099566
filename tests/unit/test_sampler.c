/* test_sampler.c - the sampler takes each token as often as the formula says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/sampler.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = 40, N_DRAWS = 40000 };

static const sampler_params PLAIN = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

static void fill_logits(float *logits, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        logits[i] = 2.5f * sinf(1.7f * (float)i) + 0.03f * (float)i;
}

static sampler *new_sampler(const sampler_params *params) {
    sampler *s = NULL;
    error err = {0};
    assert_int_equal(sampler_new(&s, params, 64, &err), STATUS_OK);
    return s;
}

static sampler_scratch *new_scratch(uint32_t n) {
    sampler_scratch *scratch = NULL;
    error err = {0};
    assert_int_equal(sampler_scratch_new(&scratch, n, &err), STATUS_OK);
    return scratch;
}

static int32_t pick_once(const sampler_params *params, const float *logits, uint32_t n) {
    float copy[V];
    memcpy(copy, logits, n * sizeof *copy);
    sampler *s = new_sampler(params);
    sampler_scratch *scratch = new_scratch(n);
    int32_t id = sampler_pick(s, scratch, copy, n, NULL, 0);
    sampler_free(s);
    sampler_scratch_free(scratch);
    return id;
}

static void count_picks(const sampler_params *params, const float *logits, uint32_t *counts) {
    sampler *s = new_sampler(params);
    sampler_scratch *scratch = new_scratch(V);
    memset(counts, 0, V * sizeof *counts);
    for (int i = 0; i < N_DRAWS; i++) {
        float copy[V];
        memcpy(copy, logits, sizeof copy);
        int32_t id = sampler_pick(s, scratch, copy, V, NULL, 0);
        assert_in_range(id, 0, V - 1);
        counts[id]++;
    }
    assert_int_equal(sampler_counter(s), N_DRAWS);
    sampler_free(s);
    sampler_scratch_free(scratch);
}

/* --- an independent computation of what each id's probability is: sort, cut, softmax --- */

static const float *sort_key;
static int by_logit(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    if (sort_key[x] != sort_key[y]) return sort_key[x] > sort_key[y] ? -1 : 1;
    return x - y;
}

static void exact_probabilities(const sampler_params *params, const float *logits, double *p) {
    int order[V];
    for (int i = 0; i < V; i++)
        order[i] = i;
    sort_key = logits;
    qsort(order, V, sizeof *order, by_logit);
    int n = params->top_k > 0 && params->top_k < V ? (int)params->top_k : V;
    double total = 0, sum = 0;
    for (int i = 0; i < n; i++)
        total += exp((double)logits[order[i]]);
    int kept = 0;
    while (kept < n && (kept == 0 || sum < (double)params->top_p * total))
        sum += exp((double)logits[order[kept++]]);
    double best = exp((double)logits[order[0]]);
    while (kept > 1 && exp((double)logits[order[kept - 1]]) < (double)params->min_p * best)
        kept--;
    memset(p, 0, V * sizeof *p);
    total = 0;
    for (int i = 0; i < kept; i++)
        total += exp((double)logits[order[i]] / (double)params->temperature);
    for (int i = 0; i < kept; i++)
        p[order[i]] = exp((double)logits[order[i]] / (double)params->temperature) / total;
}

/* Chi-square of counts against p; ids that must not come are checked apart.  The bound is
 * the mean plus five standard deviations of the distribution, and the seed is fixed. */
static void assert_distribution(const sampler_params *params) {
    float logits[V];
    double p[V];
    uint32_t counts[V];
    fill_logits(logits, V);
    exact_probabilities(params, logits, p);
    count_picks(params, logits, counts);
    double chi = 0, rare_p = 0, rare_n = 0;
    int n_cells = 0;
    for (int i = 0; i < V; i++) {
        if (p[i] == 0) assert_int_equal(counts[i], 0);
        if (p[i] * N_DRAWS < 8) { /* too rare for a cell of its own */
            rare_p += p[i];
            rare_n += counts[i];
            continue;
        }
        double want = p[i] * N_DRAWS, off = (double)counts[i] - want;
        chi += off * off / want;
        n_cells++;
    }
    if (rare_p * N_DRAWS >= 8) {
        double off = rare_n - rare_p * N_DRAWS;
        chi += off * off / (rare_p * N_DRAWS);
        n_cells++;
    }
    double degrees = n_cells > 1 ? n_cells - 1 : 1;
    if (chi > degrees + 5 * sqrt(2 * degrees)) {
        fail_msg("chi-square %.1f with %.0f degrees of freedom", chi, degrees);
    }
}

static void draws_follow_the_exact_probabilities(void **state) {
    (void)state;
    static const struct {
        float temperature, top_p, min_p;
        uint32_t top_k;
    } cases[] = {
        {1.0f, 1.0f, 0.0f, 0},   {0.5f, 1.0f, 0.0f, 0},   {1.7f, 1.0f, 0.0f, 0},
        {1.0f, 1.0f, 0.0f, 5},   {1.0f, 1.0f, 0.0f, 1},   {1.0f, 0.9f, 0.0f, 0},
        {1.0f, 0.5f, 0.0f, 0},   {1.3f, 0.95f, 0.0f, 20}, {1.0f, 1.0f, 0.1f, 0},
        {1.0f, 0.95f, 0.05f, 0}, {0.7f, 0.8f, 0.2f, 12},  {1.0f, 0.0f, 0.0f, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sampler_params params = PLAIN;
        params.temperature = cases[i].temperature;
        params.top_p = cases[i].top_p;
        params.min_p = cases[i].min_p;
        params.top_k = cases[i].top_k;
        params.seed = 1000 + i;
        print_message("T %.1f top_p %.2f min_p %.2f top_k %u\n", (double)params.temperature,
                      (double)params.top_p, (double)params.min_p, params.top_k);
        assert_distribution(&params);
    }
}

static void greedy_takes_the_lowest_id_among_equals_and_draws_nothing(void **state) {
    (void)state;
    float logits[5] = {1, 7, -3, 7, 2};
    sampler_params params = PLAIN;
    params.temperature = 0;
    sampler *s = new_sampler(&params);
    sampler_scratch *scratch = new_scratch(5);
    assert_int_equal(sampler_pick(s, scratch, logits, 5, NULL, 0), 1);
    assert_int_equal(sampler_counter(s), 0);
    const int32_t masked[1] = {1};
    assert_int_equal(sampler_pick(s, scratch, logits, 5, masked, 1), 3);
    sampler_free(s);
    sampler_scratch_free(scratch);
}

static void the_largest_is_found_at_every_place(void **state) {
    (void)state;
    sampler_params params = PLAIN;
    params.temperature = 0;
    for (uint32_t n = 1; n <= V; n++) {
        for (uint32_t at = 0; at < n; at++) {
            float logits[V];
            for (uint32_t i = 0; i < n; i++)
                logits[i] = i % 3 == 0 ? NAN : -5.0f - (float)i;
            logits[at] = -1;
            assert_int_equal(pick_once(&params, logits, n), at);
        }
    }
}

static void top_k_of_one_is_greedy_at_any_temperature(void **state) {
    (void)state;
    float logits[V];
    fill_logits(logits, V);
    sampler_params greedy = PLAIN, one = PLAIN;
    greedy.temperature = 0;
    one.top_k = 1;
    one.temperature = 50;
    assert_int_equal(pick_once(&one, logits, V), pick_once(&greedy, logits, V));
}

static void biases_add_and_masks_win(void **state) {
    (void)state;
    float logits[4] = {0, 0, 0, 5};
    sampler_params params = PLAIN;
    params.temperature = 0;
    const sampler_bias up[3] = {{1, 100}, {-4, 100}, {99, 100}};
    params.biases = up;
    params.n_biases = 3;
    sampler *s = new_sampler(&params);
    sampler_scratch *scratch = new_scratch(4);
    assert_int_equal(sampler_pick(s, scratch, logits, 4, NULL, 0), 1);
    const int32_t masked[1] = {1};
    assert_int_equal(sampler_pick(s, scratch, logits, 4, masked, 1), 3);
    sampler_free(s);
    sampler_scratch_free(scratch);
}

static void penalties_count_prompt_and_output_as_said(void **state) {
    (void)state;
    sampler_params params = PLAIN;
    params.temperature = 0;
    params.repetition_penalty = 2;
    params.presence_penalty = 0.25f;
    params.frequency_penalty = 0.5f;
    sampler *s = new_sampler(&params);
    sampler_scratch *scratch = new_scratch(5);
    const int32_t prompt[3] = {0, 1, 0};
    sampler_see_prompt(s, prompt, 3);
    sampler_see_output(s, 2);
    sampler_see_output(s, 2);
    sampler_see_output(s, 1);
    float logits[5] = {4, -1, 6, 1, 0};
    (void)sampler_pick(s, scratch, logits, 5, NULL, 0);
    const float want[5] = {2, -2.75f, 1.75f, 1, 0};
    for (int i = 0; i < 5; i++)
        assert_float_equal(logits[i], want[i], 1e-6);
    sampler_free(s);
    sampler_scratch_free(scratch);
}

static void ids_beyond_the_promised_number_are_not_counted(void **state) {
    (void)state;
    sampler_params params = PLAIN;
    params.temperature = 0;
    params.presence_penalty = 1;
    sampler *s = NULL;
    error err = {0};
    assert_int_equal(sampler_new(&s, &params, 2, &err), STATUS_OK);
    sampler_scratch *scratch = new_scratch(8);
    for (int32_t id = 0; id < 8; id++)
        sampler_see_output(s, id);
    float logits[8] = {0};
    (void)sampler_pick(s, scratch, logits, 8, NULL, 0);
    assert_float_equal(logits[0], -1, 0);
    assert_float_equal(logits[7], 0, 0);
    sampler_free(s);
    sampler_scratch_free(scratch);
}

static void the_stream_of_a_seed_is_philox_and_resumes_anywhere(void **state) {
    (void)state;
    /* Philox 4x32-10 of counter 0 and key 0 begins 6627e8d5 e169c58d (Random123, kat_vectors). */
    uint64_t bits = (0x6627e8d5ull << 32 | 0xe169c58dull) >> 11;
    assert_true(sampler_uniform(0, 0) == (double)bits / 9007199254740992.0);
    float logits[V], copy[V];
    fill_logits(logits, V);
    sampler_params params = PLAIN;
    params.seed = 77;
    sampler *a = new_sampler(&params), *b = new_sampler(&params);
    sampler_scratch *scratch = new_scratch(V);
    int32_t ids[20];
    for (int i = 0; i < 20; i++) {
        memcpy(copy, logits, sizeof copy);
        ids[i] = sampler_pick(a, scratch, copy, V, NULL, 0);
    }
    sampler_set_counter(b, 11);
    for (int i = 11; i < 20; i++) {
        memcpy(copy, logits, sizeof copy);
        assert_int_equal(sampler_pick(b, scratch, copy, V, NULL, 0), ids[i]);
    }
    sampler_free(a);
    sampler_free(b);
    sampler_scratch_free(scratch);
}

static void rows_without_a_number_give_no_token(void **state) {
    (void)state;
    float nan_row[3] = {NAN, NAN, NAN}, low_row[2] = {-INFINITY, -INFINITY};
    float inf_row[2] = {0, INFINITY}, mixed[3] = {NAN, 1, NAN};
    assert_int_equal(pick_once(&PLAIN, nan_row, 3), -1);
    assert_int_equal(pick_once(&PLAIN, low_row, 2), -1);
    assert_int_equal(pick_once(&PLAIN, inf_row, 2), -1);
    assert_int_equal(pick_once(&PLAIN, mixed, 3), 1);
}

static void a_large_vocabulary_needs_no_full_sort_and_agrees(void **state) {
    (void)state;
    enum { BIG = 50000 };
    float *logits = malloc(BIG * sizeof *logits), *copy = malloc(BIG * sizeof *copy);
    assert_non_null(logits);
    assert_non_null(copy);
    for (int i = 0; i < BIG; i++) /* nearly flat: the nucleus is most of it */
        logits[i] = 0.001f * (float)((i * 7919) % BIG) / BIG;
    sampler_params params = PLAIN;
    params.top_p = 0.9f;
    sampler *s = new_sampler(&params);
    sampler_scratch *scratch = new_scratch(BIG);
    float floor = 0.001f * 0.0999f; /* a tenth of the ids, the worst, is cut */
    for (int i = 0; i < 200; i++) {
        memcpy(copy, logits, BIG * sizeof *copy);
        int32_t id = sampler_pick(s, scratch, copy, BIG, NULL, 0);
        assert_in_range(id, 0, BIG - 1);
        assert_true(logits[id] >= floor);
    }
    sampler_free(s);
    sampler_scratch_free(scratch);
    free(logits);
    free(copy);
}

static void logprobs_are_those_of_the_full_softmax(void **state) {
    (void)state;
    float logits[V];
    fill_logits(logits, V);
    double total = 0;
    for (int i = 0; i < V; i++)
        total += exp((double)logits[i]);
    sampler_scratch *scratch = new_scratch(V);
    sampler_logprob top[5];
    float logprob = 0;
    sampler_logprobs(scratch, logits, V, 13, &logprob, top, 5);
    assert_float_equal(logprob, log(exp((double)logits[13]) / total), 1e-5);
    for (int i = 0; i < 5; i++) {
        assert_float_equal(top[i].logprob, log(exp((double)logits[top[i].id]) / total), 1e-5);
        if (i > 0) assert_true(top[i].logprob <= top[i - 1].logprob);
    }
    sampler_scratch_free(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_exact_probabilities),
        cmocka_unit_test(greedy_takes_the_lowest_id_among_equals_and_draws_nothing),
        cmocka_unit_test(the_largest_is_found_at_every_place),
        cmocka_unit_test(top_k_of_one_is_greedy_at_any_temperature),
        cmocka_unit_test(biases_add_and_masks_win),
        cmocka_unit_test(penalties_count_prompt_and_output_as_said),
        cmocka_unit_test(ids_beyond_the_promised_number_are_not_counted),
        cmocka_unit_test(the_stream_of_a_seed_is_philox_and_resumes_anywhere),
        cmocka_unit_test(rows_without_a_number_give_no_token),
        cmocka_unit_test(a_large_vocabulary_needs_no_full_sort_and_agrees),
        cmocka_unit_test(logprobs_are_those_of_the_full_softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
