/* test_lane_trial.c - decoding steps go the way that is quicker, with the CPU lane or without. */
#include "worker/lane_trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

typedef struct world {
    lane_trial t;
    double with_us, without_us;
    uint32_t random;
    uint32_t n_with, n_changes;
} world;

static world world_of(double with_us, double without_us) {
    world w = {.with_us = with_us, .without_us = without_us, .random = 1};
    lane_trial_init(&w.t);
    return w;
}

/* Steps of n_rows; what they miss makes them a fifth longer or shorter. */
static void run(world *w, uint32_t n_rows, uint32_t n_steps) {
    w->n_with = 0;
    for (uint32_t i = 0; i < n_steps; i++) {
        bool uses = lane_trial_uses(&w->t, n_rows);
        w->random = w->random * 1664525u + 1013904223u;
        double noise = 0.8 + 0.4 * (w->random >> 8) / (1 << 24);
        double us = (uses ? w->with_us : w->without_us) * noise;
        w->n_with += uses;
        w->n_changes += lane_trial_add(&w->t, n_rows, (uint64_t)(us * 1000));
    }
}

static void what_is_quicker_stays(void **state) {
    (void)state;
    world w = world_of(3300, 3800);
    run(&w, 1, 600);
    assert_true(w.n_with > 600 - 4 * 18);
    assert_int_equal(w.n_changes, 0);
    run(&w, 1, 4000);
    assert_true(w.n_with > 4000 - 5 * 18);
}

static void what_is_slower_ends_after_its_first_trial(void **state) {
    (void)state;
    world w = world_of(4800, 3800);
    assert_true(lane_trial_uses(&w.t, 1));
    run(&w, 1, 64 + 18);
    assert_false(lane_trial_uses(&w.t, 1));
    run(&w, 1, 4000);
    assert_true(w.n_with < 7 * 18);
    assert_int_equal(w.n_changes, 1);
}

static void a_machine_that_changes_is_found_out(void **state) {
    (void)state;
    world w = world_of(3300, 3800);
    run(&w, 1, 3000);
    w.with_us = 5000;
    run(&w, 1, 1024 + 18 + 64);
    assert_false(lane_trial_uses(&w.t, 1));
    w.with_us = 3300;
    run(&w, 1, 2 * 1024);
    run(&w, 1, 600);
    assert_true(w.n_with > 500);
}

/* One step that took a second says no more than one that was held up. */
static void a_step_that_was_held_up_decides_little(void **state) {
    (void)state;
    world w = world_of(3300, 3800);
    run(&w, 1, 40);
    (void)lane_trial_add(&w.t, 1, 1000000000);
    run(&w, 1, 600);
    assert_true(w.n_with > 400);
    assert_true(lane_trial_uses(&w.t, 1));
}

static void numbers_of_rows_are_apart(void **state) {
    (void)state;
    world w = world_of(3300, 3800);
    run(&w, 1, 450); /* not in the midst of a trial */
    w.with_us = 9000;
    run(&w, 8, 500);
    assert_true(lane_trial_uses(&w.t, 1));
    assert_true(lane_trial_uses(&w.t, 2));
    assert_false(lane_trial_uses(&w.t, 5));
    assert_false(lane_trial_uses(&w.t, 8));
    assert_true(lane_trial_uses(&w.t, 9));
    assert_true(lane_trial_uses(&w.t, 100000));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_quicker_stays),
        cmocka_unit_test(what_is_slower_ends_after_its_first_trial),
        cmocka_unit_test(a_machine_that_changes_is_found_out),
        cmocka_unit_test(a_step_that_was_held_up_decides_little),
        cmocka_unit_test(numbers_of_rows_are_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
