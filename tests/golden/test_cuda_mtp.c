/* test_cuda_mtp.c - the MTP block beside the CUDA backend gives the recorded drafts from rows that
 * the GPU sends back, on the CPU and on the GPU; test_cuda_draft.c shows that with it on no token is another.
 *
 * The driver is the double of cuda_double.c or, with SILICEO_TEST_BACKEND=cuda, the machine's own.
 */
#include "mtp_golden.h"

#include "tests/golden/cuda_double.h"

static int choose_and_set_up(void **state) {
    return choose_driver(state) == 0 ? set_up(state) : -1;
}

static void check_drafts(const golden *g, const gguf_file *file, const model *whole,
                         backend_kind backend, const float *rows) {
    drafter *d = open_drafter(file, whole, backend, 5);
    int32_t guesses[4];
    see(d, g, rows, 64, 0, N_PAIRS);
    assert_int_equal(guess(d, g, N_IDS, 3, guesses), 3);
    assert_memory_equal(guesses, g->drafts, 3 * sizeof *guesses);
    d->ops->close(d);
}

static void a_block_gives_the_recorded_drafts_wherever_it_computes(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        const golden *g = &models[i];
        model_params p = run_params(ACTIVATIONS_F32);
        p.backend = BACKEND_CUDA;
        float *rows = rows_of(g, &p);
        run r;
        run_open(&r, g->path, &p);
        check_drafts(g, r.file, NULL, BACKEND_CPU, rows);
        check_drafts(g, r.file, NULL, BACKEND_CUDA, rows); /* with a head of its own */
        check_drafts(g, r.file, r.m, BACKEND_CUDA, rows);
        run_close(&r);
        free(rows);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_gives_the_recorded_drafts_wherever_it_computes),
    };
    return cmocka_run_group_tests(tests, choose_and_set_up, tear_down);
}
