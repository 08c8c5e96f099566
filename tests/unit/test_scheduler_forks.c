/* test_scheduler_forks.c - choices of one prompt run it once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/scheduler_bench.h"

/* Choices of one prompt: n_run of the model's prompt rows are counted. */
static void choices_of_a_prompt_run_it_once(void **state) {
    (void)state;
    const struct {
        uint32_t n_sequences, n_park, n_prompt, n_prompt_rows;
    } cases[] = {{4, 0, 130, 130},
                 {4, 0, 128, 128},
                 {1, 4, 130, 130},
                 {2, 4, 60, 60},
                 {2, 0, 60, 60 + 60 + 60}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench b;
        bench_open(&b, &(bench_shape){.n_pages = 40,
                                      .n_sequences = cases[i].n_sequences,
                                      .chunk_tokens = 64,
                                      .max_waiting = 8,
                                      .n_park = cases[i].n_park});
        sequence *leader = bench_add_text(&b, 1, cases[i].n_prompt, 10, 0);
        assert_true(scheduler_submit(b.scheduler, leader));
        for (int j = 0; j < 3; j++) {
            sequence *who = bench_add_text(&b, 1, cases[i].n_prompt, 10, 0);
            who->leader = leader;
            assert_true(scheduler_submit(b.scheduler, who));
        }
        uint32_t n_prompt_rows = 0, rows = 0;
        while (bench_step_of(&b, &rows) > 0)
            n_prompt_rows += rows;
        assert_int_equal(b.n_over, 4);
        assert_int_equal(n_prompt_rows, cases[i].n_prompt_rows);
        bench_close(&b);
    }
}

static void who_waits_for_a_leader_that_goes_runs_its_prompt(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){
                       .n_pages = 40, .n_sequences = 4, .chunk_tokens = 64, .max_waiting = 8});
    sequence *leader = bench_add_text(&b, 1, 200, 10, 0),
             *who = bench_add_text(&b, 1, 200, 10, 0);
    who->leader = leader;
    assert_true(scheduler_submit(b.scheduler, leader));
    assert_true(scheduler_submit(b.scheduler, who));
    assert_int_equal(bench_step(&b), 1);
    scheduler_remove(b.scheduler, leader);
    b.n_over++;
    b.limits[0] = leader->n_tokens;
    bench_run_to_the_end(&b, 100);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_of_a_prompt_run_it_once),
        cmocka_unit_test(who_waits_for_a_leader_that_goes_runs_its_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
