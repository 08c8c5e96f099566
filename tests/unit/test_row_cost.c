/* test_row_cost.c - what rows cost beside each other, and how fast the machine is now. */
#include "worker/row_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void assert_near(double value, double expected, double share) {
    if (value < expected * (1 - share) || value > expected * (1 + share))
        fail_msg("%g is not %g", value, expected);
}

static void nothing_is_known_before_some_steps(void **state) {
    (void)state;
    row_cost c;
    row_cost_init(&c);
    for (int i = 0; i < 3; i++) {
        assert_false(row_cost_is_known(&c));
        row_cost_note(&c, 4, 400, true);
    }
    assert_true(row_cost_is_known(&c));
    assert_near(row_cost_ns(&c, 4), 400, 0.001);
    assert_true(row_cost_ns(&c, 8) > 400 && row_cost_ns(&c, 8) <= 800);
}

static void what_was_not_tried_lies_between(void **state) {
    (void)state;
    row_cost c;
    row_cost_init(&c);
    for (int round = 0; round < 3; round++) {
        uint64_t held_up = round == 1 ? 0 : 700; /* the least of all rounds counts */
        row_cost_try(&c, 1, 1000 + held_up);
        row_cost_try(&c, 5, 2000 + held_up);
        row_cost_try(&c, 9, 4000 + held_up);
    }
    assert_true(row_cost_is_known(&c));
    assert_near(row_cost_ns(&c, 1), 1000, 0.001);
    assert_near(row_cost_ns(&c, 3), 1500, 0.001);
    assert_near(row_cost_ns(&c, 7), 3000, 0.001);
    assert_near(row_cost_ns(&c, 17), 7000, 0.001);
    assert_true(row_cost_ns(&c, ROW_COST_MAX + 9) == row_cost_ns(&c, ROW_COST_MAX));
}

/* Fewer rows never cost more, nor rows together more than alone. */
static void costs_are_possible_ones(void **state) {
    (void)state;
    row_cost c;
    row_cost_init(&c);
    row_cost_try(&c, 1, 1000);
    row_cost_try(&c, 4, 9000);
    row_cost_try(&c, 6, 500);
    for (uint32_t r = 2; r <= ROW_COST_MAX; r++) {
        assert_true(row_cost_ns(&c, r) >= row_cost_ns(&c, r - 1));
        assert_true(row_cost_ns(&c, r) <= 1000.0 * r + 1);
    }
}

static void a_busy_machine_slows_all_rows_alike(void **state) {
    (void)state;
    row_cost c;
    row_cost_init(&c);
    row_cost_try(&c, 1, 1000);
    row_cost_try(&c, 9, 3000);
    for (int i = 0; i < 60; i++)
        row_cost_note(&c, 1, 1900, true);
    assert_near(row_cost_ns(&c, 1), 1900, 0.02);
    assert_near(row_cost_ns(&c, 9), 5700, 0.02);
    for (int i = 0; i < 60; i++)
        row_cost_note(&c, 1, 800, true);
    assert_near(row_cost_ns(&c, 9), 2400, 0.02);
}

/* Between many steps with guesses a few without must do to see that the machine got quick. */
static void what_was_seen_long_ago_counts_less(void **state) {
    (void)state;
    row_cost c;
    row_cost_init(&c);
    row_cost_try(&c, 1, 1000);
    row_cost_try(&c, 2, 1300);
    for (int i = 0; i < 60; i++)
        row_cost_note(&c, 1, 1000, true);
    for (int i = 0; i < 60; i++)
        row_cost_note(&c, 2, 1000, false);
    row_cost_note(&c, 1, 600, true);
    row_cost_note(&c, 1, 600, true);
    assert_in_range((unsigned long)row_cost_ns(&c, 1), 600, 750);
    for (int i = 0; i < 4; i++)
        row_cost_note(&c, 2, 1000, false);
    row_cost_note(&c, 1, 1200, true);
    assert_in_range((unsigned long)row_cost_ns(&c, 1), 650, 950);
}

static void steps_with_guesses_correct_what_was_tried(void **state) {
    (void)state;
    row_cost c;
    row_cost_init(&c);
    row_cost_try(&c, 1, 1000);
    row_cost_try(&c, 9, 3000);
    for (int i = 0; i < 40; i++)
        row_cost_note(&c, 9, 4500, false);
    assert_near(row_cost_ns(&c, 9), 4500, 0.02);
    assert_near(row_cost_ns(&c, 1), 1000, 0.001);
}

/* Two sequences with guesses had as many rows as now eight have without: what these take is told by
 * themselves at once, and one row is not thought the slower the more it is seen. */
static void steps_of_many_sequences_tell_what_as_many_rows_take(void **state) {
    (void)state;
    row_cost c;
    row_cost_init(&c);
    row_cost_try(&c, 1, 1000);
    row_cost_try(&c, 8, 2000);
    row_cost_note(&c, 8, 2000, false);
    for (int i = 0; i < 40; i++) {
        row_cost_note(&c, 8, 3600, true);
        assert_true(row_cost_ns(&c, 1) <= 1810);
    }
    assert_near(row_cost_ns(&c, 8), 3600, 0.05);
}

/* Where a clock is coarse. */
static void steps_that_took_no_time_say_nothing(void **state) {
    (void)state;
    for (int tried = 0; tried < 2; tried++) {
        row_cost c;
        row_cost_init(&c);
        if (tried) row_cost_try(&c, 1, 1000);
        row_cost_try(&c, 5, 2000);
        row_cost_note(&c, 1, 1000, true);
        row_cost_note(&c, 2, 1300, false);
        for (int i = 0; i < 40; i++) {
            row_cost_note(&c, 2, i % 8 < 4 ? 1300 : 0, false);
            if (i % 5 == 0) row_cost_note(&c, 1, 0, true);
        }
        for (uint32_t r = 1; r <= ROW_COST_MAX; r++)
            assert_true(row_cost_ns(&c, r) >= 900 && row_cost_ns(&c, r) <= 1100.0 * r);
    }
}

static void a_step_that_was_held_up_says_little(void **state) {
    (void)state;
    row_cost c;
    row_cost_init(&c);
    row_cost_try(&c, 1, 1000);
    row_cost_try(&c, 9, 3000);
    row_cost_note(&c, 1, 1000000, true);
    row_cost_note(&c, 9, 1000000, false);
    assert_true(row_cost_ns(&c, 1) < 1400);
    assert_true(row_cost_ns(&c, 9) < 5500);
    row_cost_note(&c, 0, 1000, true);
    row_cost_note(&c, ROW_COST_MAX + 1, 1, true);
    assert_true(row_cost_ns(&c, 1) >= 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known_before_some_steps),
        cmocka_unit_test(what_was_not_tried_lies_between),
        cmocka_unit_test(costs_are_possible_ones),
        cmocka_unit_test(a_busy_machine_slows_all_rows_alike),
        cmocka_unit_test(what_was_seen_long_ago_counts_less),
        cmocka_unit_test(steps_with_guesses_correct_what_was_tried),
        cmocka_unit_test(steps_of_many_sequences_tell_what_as_many_rows_take),
        cmocka_unit_test(steps_that_took_no_time_say_nothing),
        cmocka_unit_test(a_step_that_was_held_up_says_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
