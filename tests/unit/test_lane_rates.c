/* test_lane_rates.c - what the CPU lane learns, and the shares that follow. */
#include "worker/lane_rates.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static lane_rates rates_of(double ship_ns) {
    lane_rates r;
    lane_rates_init(&r, 16, ship_ns, 0.004);
    return r;
}

static void assert_near(double a, double b, double relative) {
    if (!(fabs(a - b) <= relative * fabs(b))) fail_msg("%g is not near %g", a, b);
}

/* Layers of a line with noise: both its parts are found, by each kind for itself. */
static void the_cost_of_an_expert_is_learnt_by_its_rows(void **state) {
    (void)state;
    lane_rates r = rates_of(36e3);
    double other = lane_rates_cost_ns(&r, LANE_STEPS, 1);
    for (size_t i = 0; i < 200; i++) {
        size_t n = 20 + i * 7 % 100, rows = n * (1 + i % 13);
        double ns = 15e3 * (double)n + 2e3 * (double)(rows - n);
        lane_rates_add(&r, LANE_PROMPTS, n, rows, ns * (1 + 0.05 * ((double)(i % 3) - 1)));
    }
    assert_near(lane_rates_cost_ns(&r, LANE_PROMPTS, 1), 15e3, 0.1);
    assert_near(lane_rates_cost_ns(&r, LANE_PROMPTS, 16), 45e3, 0.1);
    assert_true(lane_rates_cost_ns(&r, LANE_STEPS, 1) == other);
}

/* Steps of few experts and of many: what the threads take to meet is not an expert's. */
static void what_a_layer_of_a_step_takes_once_is_learnt(void **state) {
    (void)state;
    lane_rates r = rates_of(36e3);
    for (size_t i = 0; i < 100; i++) {
        size_t n = 1 + i % 8;
        lane_rates_add(&r, LANE_STEPS, n, n, 60e3 + (double)n * 21e3);
    }
    assert_near(lane_rates_cost_ns(&r, LANE_STEPS, 1), 21e3, 0.1);
    assert_near(r.lines[LANE_STEPS].more_ns, 60e3, 0.1);
}

/* A machine that stood still for a moment must not keep the lane out for good. */
static void what_is_not_measured_again_is_forgotten(void **state) {
    (void)state;
    lane_rates r = rates_of(36e3);
    double first = lane_rates_cost_ns(&r, LANE_STEPS, 1);
    lane_rates_add(&r, LANE_STEPS, 1, 1, 1e9);
    lane_rates_add(&r, LANE_STEPS, 1, 1, 0);
    for (size_t i = 0; i < 200; i++)
        lane_rates_add(&r, LANE_STEPS, 0, 0, 0);
    assert_near(lane_rates_cost_ns(&r, LANE_STEPS, 1), first, 0.01);
}

static void both_ends_come_at_the_same_time(void **state) {
    (void)state;
    enum { N = 200 };
    uint32_t rows[N];
    lane_rates r = rates_of(36e3);
    for (uint32_t i = 0; i < N; i++)
        rows[i] = 1 + i / 4;
    for (size_t i = 0; i < 50; i++)
        lane_rates_add(&r, LANE_PROMPTS, 100, 1000, 100 * 20e3 + 900 * 1e3);
    size_t less = 0;
    for (int us = 0; us <= 1000; us += 500) { /* of records that are under way already */
        const double busy = us * 1e3;
        size_t k = lane_rates_split(&r, LANE_PROMPTS, rows, N, N, N, busy);
        double cpu = 0, bus = busy + (double)(N - k) * r.ship_ns;
        for (size_t i = 0; i < k; i++)
            cpu += lane_rates_cost_ns(&r, LANE_PROMPTS, rows[i]);
        assert_true(k > less && k < N);
        assert_near(cpu + (double)(N - k) * r.enqueue_ns, bus, 0.03);
        less = k;
    }
}

static void limits_of_the_split_are_kept(void **state) {
    (void)state;
    uint32_t rows[64];
    lane_rates r = rates_of(36e3);
    for (uint32_t i = 0; i < 64; i++)
        rows[i] = 1;
    assert_int_equal(lane_rates_split(&r, LANE_STEPS, rows, 64, 5, 64, 0), 5);
    assert_int_equal(lane_rates_split(&r, LANE_STEPS, rows, 64, 64, 10, 0), 54);
    assert_int_equal(lane_rates_split(&r, LANE_STEPS, rows, 0, 64, 10, 0), 0);
    lane_rates fast = rates_of(10);
    assert_int_equal(lane_rates_split(&fast, LANE_STEPS, rows, 64, 64, 64, 0), 0);
}

/* At 36 us a record against 25, a look and the threads' meeting: few misses are left to the GPU,
 * many are not, and between the two it stays as it was. */
static void steps_with_many_misses_are_split_and_stay_so(void **state) {
    (void)state;
    lane_rates r = rates_of(36e3);
    assert_false(lane_rates_gathers(&r, 1)); /* nothing is known */
    bool was = false;
    int turns = 0;
    for (int i = 0; i < 400; i++) {
        double misses = i < 200 ? i * 0.05 : (400 - i) * 0.05;
        for (int k = 0; k < 30; k++)
            lane_rates_step(&r, 4, misses);
        bool now = lane_rates_gathers(&r, 4);
        turns += now != was;
        was = now;
        if (misses < 2) assert_false(now);
        if (misses > 6) assert_true(now);
    }
    assert_int_equal(turns, 2);
    for (int k = 0; k < 50; k++)
        lane_rates_step(&r, 4, 3.0);
    assert_true(lane_rates_gathers(&r, 16)); /* in proportion */
    assert_false(lane_rates_gathers(&r, 1));
}

/* One sequence with few misses: at 164 us a record (PCIe 3) the CPU pays from 1.2 a layer on, at
 * 36 us not at two. */
static void a_slow_bus_makes_one_sequence_split(void **state) {
    (void)state;
    static const struct {
        double ship_ns, misses;
        bool gathers;
    } cases[] = {{164e3, 1.4, true}, {164e3, 0.3, false}, {36e3, 1.4, false}, {36e3, 2, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lane_rates r = rates_of(cases[i].ship_ns);
        for (int k = 0; k < 50; k++) { /* 45 us an expert, and 50 a layer */
            lane_rates_add(&r, LANE_STEPS, 1 + (size_t)k % 3, 1 + (size_t)k % 3,
                           50e3 + 45e3 * (1 + k % 3));
            lane_rates_step(&r, 1, cases[i].misses);
        }
        if (lane_rates_gathers(&r, 1) != cases[i].gathers)
            fail_msg("%g ns, %g misses", cases[i].ship_ns, cases[i].misses);
    }
}

/* The later of both ends is as early as can be, and a gain that hardly shows is left alone. */
static void the_share_of_a_recorded_step_ends_as_early_as_can_be(void **state) {
    (void)state;
    enum { N = 128 };
    uint8_t shares[N];
    lane_rates r = rates_of(36e3);
    for (size_t i = 0; i < 200; i++)
        lane_rates_add(&r, LANE_STEPS, 1 + i % 8, 1 + i % 8, 20e3 + (double)(1 + i % 8) * 22e3);
    lane_rates_shares(&r, N, shares);
    assert_int_equal(shares[0], 0); /* 50 us and more beside 36 */
    assert_int_equal(shares[1], 1);
    const double each = lane_rates_cost_ns(&r, LANE_STEPS, 1);
    for (size_t n = 1; n < N; n++) {
        const double cpu = 28e3 + shares[n] * each, bus = (double)(n + 1 - shares[n]) * 36e3;
        assert_true(shares[n] >= shares[n - 1] && shares[n] <= n);
        assert_true(fmax(cpu, bus) <= fmax(cpu + each, bus - 36e3) + 2e3);
        assert_true(fmax(cpu, bus) <= fmax(cpu - each, bus + 36e3) + 2e3);
    }
}

static void threads_stay_awake_where_enough_is_missing(void **state) {
    (void)state;
    lane_rates r = rates_of(36e3);
    assert_false(lane_rates_is_worth(&r, 1)); /* nothing is known */
    lane_rates_step(&r, 1, 0.4);
    assert_false(lane_rates_is_worth(&r, 1));
    assert_true(lane_rates_is_worth(&r, 2));
    lane_rates_step(&r, 1, 2.4);
    assert_true(lane_rates_is_worth(&r, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cost_of_an_expert_is_learnt_by_its_rows),
        cmocka_unit_test(what_a_layer_of_a_step_takes_once_is_learnt),
        cmocka_unit_test(what_is_not_measured_again_is_forgotten),
        cmocka_unit_test(both_ends_come_at_the_same_time),
        cmocka_unit_test(limits_of_the_split_are_kept),
        cmocka_unit_test(steps_with_many_misses_are_split_and_stay_so),
        cmocka_unit_test(a_slow_bus_makes_one_sequence_split),
        cmocka_unit_test(the_share_of_a_recorded_step_ends_as_early_as_can_be),
        cmocka_unit_test(threads_stay_awake_where_enough_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
