/* test_mtp.c - the MTP block gives the recorded logits and drafts; as a drafter it guesses the
 * same however its rows come, and with it on no token is another.
 */
#include "mtp_golden.h"

static model_params float_params(void) {
    model_params p = run_params(ACTIVATIONS_F32);
    p.backend = BACKEND_CPU;
    return p;
}

static void the_block_gives_the_recorded_logits(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        const golden *g = &models[i];
        const model_params p = float_params();
        gguf_file *file = NULL;
        model *block = NULL;
        error err = {0};
        float *rows = rows_of(g, &p);
        assert_int_equal(gguf_open(&file, g->path, &err), STATUS_OK);
        if (model_open_block(&block, file, NULL, &p, &err) != STATUS_OK)
            fail_msg("%s", err.text);
        const uint32_t n_vocab = model_configuration(block)->n_vocab;
        float *logits = calloc((size_t)N_PAIRS * n_vocab, sizeof *logits);
        float *expected = read_floats(g->logits, g->n_positions * n_vocab);
        const uint32_t pages[] = {3, 1};
        assert_non_null(logits);
        const model_segment s = {.tokens = g->ids + 1,
                                 .n_tokens = N_PAIRS,
                                 .n_outputs = N_PAIRS,
                                 .pages = pages,
                                 .before = rows};
        if (model_step(block, &s, 1, logits, &err) != STATUS_OK) fail_msg("%s", err.text);
        for (size_t k = 0; k < N_PAIRS; k++)
            assert_int_equal(first_choice(logits + k * n_vocab, n_vocab), g->argmax[k]);
        for (size_t k = 0; k < g->n_positions; k++) {
            double d = max_difference(logits + (size_t)g->positions[k] * n_vocab,
                                      expected + k * n_vocab, n_vocab);
            if (!(d <= 1e-4)) fail_msg("%s: position %d: %g", g->path, g->positions[k], d);
        }
        free(expected);
        free(logits);
        free(rows);
        model_close(block);
        gguf_close(file);
    }
}

/* The pieces that a prompt and its answer may come in. */
static void drafts_are_those_recorded_however_rows_come(void **state) {
    (void)state;
    const uint32_t pieces[] = {95, 64, 31, 5, 1};
    for (int i = 0; i < 2; i++) {
        const golden *g = &models[i];
        const model_params p = float_params();
        float *rows = rows_of(g, &p);
        const size_t row = i == 0 || i == 1 ? 64 : 0;
        gguf_file *file = NULL;
        error err = {0};
        assert_int_equal(gguf_open(&file, g->path, &err), STATUS_OK);
        for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++) {
            drafter *d = open_drafter(file, NULL, BACKEND_CPU, 5);
            int32_t guesses[4];
            for (uint32_t at = 0; at < N_PAIRS; at += pieces[k]) {
                uint32_t n = N_PAIRS - at < pieces[k] ? N_PAIRS - at : pieces[k];
                see(d, g, rows, row, at, n);
                if (pieces[k] > 5) continue;
                assert_int_equal(guess(d, g, at + n + 1, 3, guesses), 3); /* in between */
                assert_int_equal(guesses[0], g->argmax[at + n - 1]);
            }
            if (pieces[k] > 5) assert_int_equal(guess(d, g, N_IDS, 3, guesses), 3);
            assert_memory_equal(guesses, g->drafts, 3 * sizeof *guesses);
            d->ops->close(d);
        }
        gguf_close(file);
        free(rows);
    }
}

static void what_it_has_not_seen_it_does_not_guess(void **state) {
    (void)state;
    const golden *g = &models[0];
    const model_params p = float_params();
    float *rows = rows_of(g, &p);
    gguf_file *file = NULL;
    error err = {0};
    int32_t guesses[2];
    assert_int_equal(gguf_open(&file, g->path, &err), STATUS_OK);
    drafter *d = open_drafter(file, NULL, BACKEND_CPU, 3);
    assert_int_equal(guess(d, g, 10, 2, guesses), 0);
    see(d, g, rows, 64, 0, 10);
    assert_int_equal(guess(d, g, 13, 2, guesses), 0); /* two rows are missing */
    see(d, g, rows, 64, 40, 8);                       /* begins anew */
    assert_int_equal(guess(d, g, 49, 2, guesses), 2);
    d->ops->close(d);
    gguf_close(file);
    free(rows);
}

static void a_file_without_a_block_is_refused(void **state) {
    (void)state;
    gguf_file *file = NULL;
    model *block = NULL;
    error err = {0};
    const model_params p = float_params();
    assert_int_equal(gguf_open(&file, "deploy/models/demo.gguf", &err), STATUS_OK);
    assert_int_equal(model_open_block(&block, file, NULL, &p, &err), STATUS_BAD_INPUT);
    assert_null(block);
    assert_non_null(strstr(err.text, "MTP"));
    gguf_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_block_gives_the_recorded_logits),
        cmocka_unit_test(drafts_are_those_recorded_however_rows_come),
        cmocka_unit_test(what_it_has_not_seen_it_does_not_guess),
        cmocka_unit_test(a_file_without_a_block_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
