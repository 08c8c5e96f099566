/* test_cuda_draft.c - guesses on the CUDA backend change no token, wherever the draft computes: on
 * the GPU, on the CPU, or its first layers on the one and its last on the other.
 *
 * The driver is the double of cuda_double.c or, with SILICEO_TEST_BACKEND=cuda, the machine's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "tests/files.h"
#include "tests/golden/cuda_double.h"
#include <unistd.h>

static const char body[] =
    "{\"prompt\":\"one two three\",\"max_tokens\":5,\"temperature\":0,\"ignore_eos\":true}";

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

/* The ids of the answer, and how many guesses there were; of a draft that is the model itself most
 * come true. */
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
    uint64_t n_true = 0;
    *n_guesses = 0;
    for (size_t k = 0; k < sizeof stats.guesses.drafted / sizeof stats.guesses.drafted[0];
         k++) {
        *n_guesses += stats.guesses.drafted[k];
        n_true += stats.guesses.accepted[k];
    }
    bool itself = p->draft_path != NULL;
    if (itself && 2 * n_true < *n_guesses) fail_msg("%d of %d", (int)n_true, (int)*n_guesses);
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
    static const int32_t layers[] = {-1, 0, 2}; /* all, none, the last two */
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        p = params_of(SPECULATE_DRAFT, layers[i]);
        assert_int_equal(answer(&p, ids, &n_guesses), n);
        assert_memory_equal(ids, plain, n * sizeof *ids);
        assert_true(n_guesses > 0);
    }
}

static void the_models_own_block_changes_no_token(void **state) {
    (void)state;
    char folder[256], path[300];
    int32_t plain[16], ids[16];
    uint64_t n_guesses = 0;
    assert_true(make_temporary(folder, sizeof folder));
    (void)snprintf(path, sizeof path, "%s/model.gguf", folder);
    assert_true(generate_model(
        "{\"arch\":\"qwen35\",\"hidden\":64,\"ff\":192,\"mtp\":true,\"seed\":19}", path));
    engine_params p = params_of(SPECULATE_OFF, 0);
    p.model_path = path;
    p.draft_path = NULL;
    size_t n = answer(&p, plain, &n_guesses);
    p.speculate = SPECULATE_MTP;
    for (int32_t layers = -1; layers <= 0; layers++) { /* the block on the GPU, on the CPU */
        p.draft_gpu_layers = layers;
        assert_int_equal(answer(&p, ids, &n_guesses), n);
        assert_memory_equal(ids, plain, n * sizeof *ids);
        assert_true(n_guesses > 0);
    }
    p.model_path = "deploy/models/draft.gguf";
    engine *e = NULL;
    error err = {0};
    const engine_sink sink = {NULL, NULL, NULL, NULL};
    assert_int_equal(engine_open(&e, &p, &sink, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "the file has no MTP block"));
    (void)unlink(path);
    (void)rmdir(folder);
}

/* MiB of the plan's line of a draft at a place. */
static double draft_mib(const char *plan, const char *place, const char *note) {
    char line[256];
    for (const char *at = plan; (at = strstr(at, "draft model")) != NULL; at++) {
        (void)snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (strstr(line, place) == NULL) continue;
        if (strstr(line, note) == NULL) fail_msg("%s: no '%s'", line, note);
        return atof(line + strlen("draft model"));
    }
    return 0;
}

static void the_plan_shows_both_parts_of_a_draft(void **state) {
    (void)state;
    engine_run r;
    engine_params p = params_of(SPECULATE_DRAFT, -1);
    run_open(&r, &p);
    double whole = draft_mib(engine_plan_text(r.e), " vram ", "last 4 of 4 layers");
    assert_true(draft_mib(engine_plan_text(r.e), " ram ", "") == 0);
    run_close(&r);
    p = params_of(SPECULATE_DRAFT, 1);
    run_open(&r, &p);
    double part = draft_mib(engine_plan_text(r.e), " vram ", "last 1 of 4 layers");
    assert_true(part > 0 && part < whole);
    assert_true(draft_mib(engine_plan_text(r.e), " ram ", "first 3 of 4 layers") > 0);
    run_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_change_no_token),
        cmocka_unit_test(the_models_own_block_changes_no_token),
        cmocka_unit_test(the_plan_shows_both_parts_of_a_draft),
    };
    return cmocka_run_group_tests(tests, choose_driver, NULL);
}
