/* test_router.c - placement by expected completion, and the rates it stands on. */
#include "coordinator/router.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CAP = 128 };

typedef struct fleet {
    rates speed[4];
    double finish[4][CAP];
    router_node nodes[4];
    size_t n;
} fleet;

static void add_node(fleet *f, double prefill, double decode, uint32_t places) {
    size_t i = f->n++;
    rates_init(&f->speed[i]);
    rates_set_prior(&f->speed[i], prefill, decode);
    f->nodes[i] = (router_node){
        .speed = &f->speed[i], .places = places, .finish_s = f->finish[i], .cap_finish = CAP};
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b) + 1);
}

static int place(fleet *f, const router_job *job, router_cost *cost) {
    int best = router_choose(f->nodes, f->n, NULL, job, cost);
    if (best >= 0) router_reserve(&f->nodes[best], cost->total_s);
    return best;
}

static void the_cost_has_wait_prompt_answer_and_way(void **state) {
    (void)state;
    fleet f = {0};
    add_node(&f, 100, 10, 1);
    f.nodes[0].round_trip_s = 0.25;
    const router_job job = {200, 0, 50};
    router_cost cost = router_estimate(&f.nodes[0], &job);
    assert_true(near(cost.prefill_s, 2) && near(cost.decode_s, 5) && near(cost.wait_s, 0));
    assert_true(near(cost.total_s, 7.25));
    router_reserve(&f.nodes[0], 3);
    assert_true(near(router_estimate(&f.nodes[0], &job).wait_s, 3));
}

static void a_full_node_is_waited_for_until_the_right_place_is_free(void **state) {
    (void)state;
    fleet f = {0};
    add_node(&f, 1000, 10, 2);
    const double ends[] = {5, 1, 9};
    for (size_t i = 0; i < 3; i++)
        router_reserve(&f.nodes[0], ends[i]);
    assert_true(near(f.finish[0][0], 1) && near(f.finish[0][1], 5) && near(f.finish[0][2], 9));
    /* Two places, three requests: two must end before a fourth begins. */
    const router_job job = {0, 0, 10};
    assert_true(near(router_estimate(&f.nodes[0], &job).wait_s, 5));
}

static void an_idle_slow_node_does_not_win_a_single_request(void **state) {
    (void)state;
    fleet f = {0};
    add_node(&f, 100, 10, 1);
    add_node(&f, 300, 30, 1);
    router_cost cost;
    const router_job job = {100, 0, 100};
    for (int i = 0; i < 10; i++) {
        f.nodes[1].n_finish = 0;
        assert_int_equal(place(&f, &job, &cost), 1);
    }
    /* Nor when the fast one is busy but still done first. */
    f.nodes[1].n_finish = 0;
    router_reserve(&f.nodes[1], 1.0);
    assert_int_equal(router_choose(f.nodes, f.n, NULL, &job, &cost), 1);
    f.nodes[1].n_finish = 0;
    router_reserve(&f.nodes[1], 60.0);
    assert_int_equal(router_choose(f.nodes, f.n, NULL, &job, &cost), 0);
}

static void a_burst_is_split_near_the_optimum(void **state) {
    (void)state;
    fleet f = {0};
    add_node(&f, 1e6, 10, 1);
    add_node(&f, 1e6, 30, 1);
    const router_job job = {1, 0, 30};
    int count[2] = {0};
    double last = 0;
    for (int i = 0; i < 40; i++) {
        router_cost cost;
        count[place(&f, &job, &cost)]++;
        if (cost.total_s > last) last = cost.total_s;
    }
    assert_int_equal(count[0], 10);
    assert_int_equal(count[1], 30);
    assert_true(last <= 30.0 * 1.1);
}

static void nodes_left_out_and_nodes_without_places_are_not_chosen(void **state) {
    (void)state;
    fleet f = {0};
    add_node(&f, 100, 10, 0);
    add_node(&f, 100, 30, 1);
    add_node(&f, 100, 20, 1);
    const bool may[3] = {true, false, true};
    const router_job job = {10, 0, 10};
    router_cost cost;
    assert_int_equal(router_choose(f.nodes, f.n, may, &job, &cost), 2);
    assert_int_equal(router_choose(f.nodes, 1, NULL, &job, &cost), -1);
    assert_int_equal(router_choose(f.nodes, 0, NULL, &job, &cost), -1);
}

static void a_full_array_of_ends_stays_in_order(void **state) {
    (void)state;
    fleet f = {0};
    add_node(&f, 100, 10, 1);
    for (int i = 0; i < 3 * CAP; i++) {
        router_reserve(&f.nodes[0], (double)((i * 37) % 101));
        for (size_t k = 1; k < f.nodes[0].n_finish; k++) {
            assert_true(f.finish[0][k - 1] <= f.finish[0][k]);
        }
    }
    assert_int_equal(f.nodes[0].n_finish, CAP);
}

static void rates_begin_with_the_prior_and_follow_samples(void **state) {
    (void)state;
    rates r;
    rates_init(&r);
    assert_true(rates_decode(&r, 1) > 0 && rates_prefill(&r) > 0);
    rates_set_prior(&r, 500, 40);
    assert_true(near(rates_decode(&r, 1), 40) && near(rates_prefill(&r), 500));
    assert_true(rates_decode(&r, 4) < 40 && rates_decode(&r, 16) < rates_decode(&r, 4));
    for (int i = 0; i < 60; i++) {
        rates_learn_decode(&r, 1, 64, 64.0 / 20);
        rates_learn_prefill(&r, 512, 512.0 / 100);
    }
    assert_true(fabs(rates_decode(&r, 1) - 20) < 0.5);
    assert_true(fabs(rates_prefill(&r) - 100) < 2);
    /* A later HELLO's prior does not undo what was measured. */
    rates_set_prior(&r, 500, 40);
    assert_true(fabs(rates_decode(&r, 1) - 20) < 0.5 && fabs(rates_prefill(&r) - 100) < 2);
}

static void an_occupancy_without_samples_is_filled_from_the_nearest(void **state) {
    (void)state;
    rates r;
    rates_init(&r);
    rates_set_prior(&r, 100, 1000);
    rates_learn_decode(&r, 4, 1000, 100);
    for (int i = 0; i < 60; i++)
        rates_learn_decode(&r, 4, 1000, 100);
    assert_true(fabs(rates_decode(&r, 4) - 10) < 0.5);
    assert_true(rates_decode(&r, 3) > rates_decode(&r, 4) && rates_decode(&r, 3) < 20);
    assert_true(rates_decode(&r, 6) < rates_decode(&r, 4));
}

static void absurd_samples_change_nothing(void **state) {
    (void)state;
    rates r;
    rates_init(&r);
    rates_set_prior(&r, 100, 10);
    rates_learn_decode(&r, 0, 10, 1);
    rates_learn_decode(&r, 1, 10, 0);
    rates_learn_decode(&r, 1, (double)NAN, 1);
    rates_learn_decode(&r, 1, 10, (double)NAN);
    rates_learn_prefill(&r, 10, -1);
    rates_learn_prompt(&r, 0, 0);
    assert_true(near(rates_decode(&r, 1), 10) && near(rates_prefill(&r), 100));
    assert_true(near(r.bytes_per_token, 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cost_has_wait_prompt_answer_and_way),
        cmocka_unit_test(a_full_node_is_waited_for_until_the_right_place_is_free),
        cmocka_unit_test(an_idle_slow_node_does_not_win_a_single_request),
        cmocka_unit_test(a_burst_is_split_near_the_optimum),
        cmocka_unit_test(nodes_left_out_and_nodes_without_places_are_not_chosen),
        cmocka_unit_test(a_full_array_of_ends_stays_in_order),
        cmocka_unit_test(rates_begin_with_the_prior_and_follow_samples),
        cmocka_unit_test(an_occupancy_without_samples_is_filled_from_the_nearest),
        cmocka_unit_test(absurd_samples_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
