/* test_cuda_mtp.c - the MTP block beside the CUDA backend gives the recorded drafts, from rows that
 * the GPU sends back; test_cuda_draft.c shows that with it on no token is another.
 *
 * The driver is the double of cuda_double.c or, with SILICEO_TEST_BACKEND=cuda, the machine's own.
 */
#include "mtp_golden.h"

#include "tests/golden/cuda_double.h"

static int choose_and_set_up(void **state) {
    return choose_driver(state) == 0 ? set_up(state) : -1;
}

static void drafts_behind_rows_of_the_gpu_are_those_recorded(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        const golden *g = &models[i];
        model_params p = run_params(ACTIVATIONS_F32);
        gguf_file *file = NULL;
        error err = {0};
        int32_t guesses[4];
        p.backend = BACKEND_CUDA;
        float *rows = rows_of(g, &p);
        assert_int_equal(gguf_open(&file, g->path, &err), STATUS_OK);
        drafter *d = open_drafter(file, 5);
        see(d, g, rows, 64, 0, N_PAIRS);
        assert_int_equal(guess(d, g, N_IDS, 3, guesses), 3);
        assert_memory_equal(guesses, g->drafts, 3 * sizeof *guesses);
        d->ops->close(d);
        gguf_close(file);
        free(rows);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_behind_rows_of_the_gpu_are_those_recorded),
    };
    return cmocka_run_group_tests(tests, choose_and_set_up, tear_down);
}
