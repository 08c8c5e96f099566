/* test_cuda_draft.c - guesses on the CUDA backend change no token, wherever the draft computes.
 *
 * The driver is the double of cuda_double.c or, with SILICEO_TEST_BACKEND=cuda, the machine's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "tests/golden/cuda_double.h"

static const char body[] =
    "{\"prompt\":\"one two three\",\"max_tokens\":8,\"temperature\":0,\"ignore_eos\":true}";

static engine_params params_of(speculate_wish wish, int32_t draft_gpu_layers) {
    engine_params p = run_params();
    p.model_path = p.draft_path = "deploy/models/draft.gguf";
    p.backend = BACKEND_CUDA;
    p.vram_mib = 900;
    p.n_context = 128;
    p.n_sequences = 1;
    p.chunk_tokens = 32;
    p.speculate = wish;
    p.draft_tokens = 2;
    p.fixed_depth = true;
    p.draft_gpu_layers = draft_gpu_layers;
    return p;
}

/* The ids of the answer, and how many guesses there were. */
static size_t answer(const engine_params *p, int32_t ids[16], uint64_t *n_guesses) {
    engine_run r;
    run_open(&r, p);
    const run_answer *a = run_one(&r, WIRE_COMPLETION, body);
    assert_true(a->done);
    size_t n = a->choices[0].n_ids;
    assert_true(n > 0 && n <= 16);
    memcpy(ids, a->choices[0].ids, n * sizeof *ids);
    engine_stats stats;
    engine_read_stats(r.e, &stats);
    *n_guesses = 0;
    for (size_t k = 0; k < sizeof stats.guesses.drafted / sizeof stats.guesses.drafted[0]; k++)
        *n_guesses += stats.guesses.drafted[k];
    run_close(&r);
    return n;
}

static void guesses_change_no_token(void **state) {
    (void)state;
    int32_t plain[16], ids[16];
    uint64_t n_guesses = 0;
    engine_params p = params_of(SPECULATE_OFF, 0);
    size_t n = answer(&p, plain, &n_guesses);
    assert_int_equal(n_guesses, 0);
    for (int32_t layers = -1; layers <= 0; layers++) {
        p = params_of(SPECULATE_DRAFT, layers);
        assert_int_equal(answer(&p, ids, &n_guesses), n);
        assert_memory_equal(ids, plain, n * sizeof *ids);
        assert_true(n_guesses > 0);
    }
}

static void a_draft_is_on_the_gpu_as_a_whole_or_not_at_all(void **state) {
    (void)state;
    engine *e = NULL;
    error err = {0};
    const engine_params p = params_of(SPECULATE_DRAFT, 2);
    const engine_sink sink = {NULL, NULL, NULL, NULL};
    assert_int_equal(engine_open(&e, &p, &sink, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "draft_gpu_layers = 2: the draft's 4 layers"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_change_no_token),
        cmocka_unit_test(a_draft_is_on_the_gpu_as_a_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, choose_driver, NULL);
}
