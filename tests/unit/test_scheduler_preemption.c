/* test_scheduler_preemption.c - who gives up a place goes on where it was, or runs again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/scheduler_bench.h"

static void without_pages_the_youngest_waits_again_and_all_end(void **state) {
    (void)state;
    bench b;
    bench_open(
        &b, &(bench_shape){.n_pages = 9,
                           .n_sequences = 4,
                           .chunk_tokens = 64,
                           .max_waiting = 16}); /* one sequence of 500 tokens takes 8 pages */
    sequence *first = bench_submit(&b, 60, 440, 0);
    for (int i = 0; i < 3; i++)
        (void)bench_submit(&b, 60, 440, 0);
    for (int i = 0; i < 6; i++)
        (void)bench_step(&b);
    assert_true(scheduler_n_running(b.scheduler) > 1);
    bench_run_to_the_end(&b, 20000);
    uint32_t n_preempted = 0;
    for (uint32_t i = 0; i < b.n; i++)
        n_preempted += b.sequences[i].n_preempted;
    assert_true(n_preempted > 0);
    assert_int_equal(first->n_preempted, 0);
    bench_close(&b);
}

static void a_sequence_of_all_pages_runs_alone(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){
                       .n_pages = 4, .n_sequences = 4, .chunk_tokens = 64, .max_waiting = 16});
    (void)bench_submit(&b, 200, 56, 0); /* 256 tokens: all four pages */
    (void)bench_submit(&b, 20, 20, 0);
    bench_run_to_the_end(&b, 500);
    bench_close(&b);
}

static void background_gives_way_and_goes_on_where_it_was(void **state) {
    (void)state;
    for (uint32_t n_park = 0; n_park < 2; n_park++) {
        bench b;
        bench_open(&b, &(bench_shape){.n_pages = 40,
                                      .n_sequences = 2,
                                      .chunk_tokens = 64,
                                      .max_waiting = 8,
                                      .n_park = n_park});
        sequence *old = bench_submit(&b, 200, 30, 1), *young = bench_submit(&b, 100, 30, 1);
        for (int i = 0; i < 12; i++)
            (void)bench_step(&b);
        uint32_t n_run = young->n_run;
        assert_true(n_run > 100);
        sequence *user = bench_submit(&b, 50, 5, 0);
        (void)bench_step(&b);
        assert_int_equal(user->n_run, 50);
        assert_int_equal(old->phase, SEQUENCE_RUNNING);
        assert_int_equal(young->phase, SEQUENCE_WAITING);
        assert_int_equal(young->n_run, n_park > 0 ? n_run : 0);
        bench_run_to_the_end(&b, 200);
        assert_int_equal(young->n_preempted, 1);
        assert_int_equal(b.n_restored, n_park);
        bench_close(&b);
    }
}

static void background_never_displaces_and_interactive_never_its_like(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){.n_pages = 10,
                                  .n_sequences = 1,
                                  .chunk_tokens = 64,
                                  .max_waiting = 8,
                                  .n_park = 4});
    sequence *user = bench_submit(&b, 50, 20, 0);
    (void)bench_step(&b);
    sequence *second = bench_submit(&b, 50, 5, 0), *background = bench_submit(&b, 50, 5, 1);
    (void)bench_step(&b);
    assert_int_equal(user->n_preempted, 0);
    assert_int_equal(second->phase, SEQUENCE_WAITING);
    assert_int_equal(background->phase, SEQUENCE_WAITING);
    bench_run_to_the_end(&b, 100);
    bench_close(&b);
}

static void nobody_is_displaced_for_one_that_does_not_fit_then(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){.n_pages = 10,
                                  .n_sequences = 4,
                                  .chunk_tokens = 512,
                                  .max_waiting = 8,
                                  .n_park = 4});
    sequence *user = bench_submit(&b, 250, 20, 0), *background = bench_submit(&b, 100, 20, 1);
    (void)bench_step(&b);
    sequence *large = bench_submit(&b, 400, 20, 0); /* 7 pages, and 5 are the user's */
    (void)bench_step(&b);
    assert_int_equal(background->n_preempted, 0);
    assert_int_equal(large->phase, SEQUENCE_WAITING);
    bench_run_to_the_end(&b, 100);
    assert_int_equal(user->n_preempted, 0);
    bench_close(&b);
}

static void removing_one_that_is_parked_frees_its_place(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){.n_pages = 10,
                                  .n_sequences = 1,
                                  .chunk_tokens = 64,
                                  .max_waiting = 8,
                                  .n_park = 4});
    sequence *background = bench_submit(&b, 50, 20, 1);
    (void)bench_step(&b);
    (void)bench_submit(&b, 50, 5, 0);
    (void)bench_step(&b);
    assert_int_equal(b.n_parked, 1);
    scheduler_remove(b.scheduler, background);
    assert_int_equal(b.n_parked, 0);
    b.n_over++;
    b.limits[0] = background->n_tokens;
    bench_run_to_the_end(&b, 100);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_pages_the_youngest_waits_again_and_all_end),
        cmocka_unit_test(a_sequence_of_all_pages_runs_alone),
        cmocka_unit_test(background_gives_way_and_goes_on_where_it_was),
        cmocka_unit_test(background_never_displaces_and_interactive_never_its_like),
        cmocka_unit_test(nobody_is_displaced_for_one_that_does_not_fit_then),
        cmocka_unit_test(removing_one_that_is_parked_frees_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
