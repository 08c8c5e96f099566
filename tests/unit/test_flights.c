/* test_flights.c - the table of requests and the split of credit. */
#include "worker/flights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void finds_a_flight_by_key_and_by_request(void **state) {
    (void)state;
    flights f;
    assert_int_equal(flights_init(&f, 3, NULL), STATUS_OK);
    flight *a = flights_add(&f, 0, 7, 1), *b = flights_add(&f, 1, 7, 1);
    assert_non_null(a);
    assert_non_null(b);
    assert_int_not_equal(a->key, b->key);
    assert_ptr_equal(flights_by_key(&f, b->key), b);
    assert_null(flights_by_key(&f, 0));
    assert_ptr_equal(flights_by_request(&f, 1, 7), b);
    assert_null(flights_by_request(&f, 2, 7));
    assert_int_equal(flights_of_peer(&f, 0), 1);
    flights_release(&f);
}

static void has_no_more_places_than_it_was_given(void **state) {
    (void)state;
    flights f;
    assert_int_equal(flights_init(&f, 2, NULL), STATUS_OK);
    flight *a = flights_add(&f, 0, 1, 1);
    assert_non_null(flights_add(&f, 0, 2, 1));
    assert_null(flights_add(&f, 0, 3, 1));
    flights_end(&f, a);
    assert_int_equal(f.n_used, 1);
    assert_non_null(flights_add(&f, 0, 3, 1));
    flights_release(&f);
}

static void knows_stale_epochs_of_running_and_ended_requests(void **state) {
    (void)state;
    flights f;
    assert_int_equal(flights_init(&f, 2, NULL), STATUS_OK);
    flight *a = flights_add(&f, 0, 7, 5);
    assert_true(flights_is_stale(&f, 0, 7, 5));
    assert_true(flights_is_stale(&f, 0, 7, 4));
    assert_false(flights_is_stale(&f, 0, 7, 6));
    assert_false(flights_is_stale(&f, 1, 7, 5));
    flights_end(&f, a);
    assert_true(flights_is_stale(&f, 0, 7, 5));
    assert_false(flights_is_stale(&f, 0, 7, 6));
    flights_forget(&f, 0);
    assert_false(flights_is_stale(&f, 0, 7, 5));
    flights_release(&f);
}

typedef struct split_case {
    uint64_t total;
    credit_share shares[3];
    uint64_t grants[3];
} split_case;

static void splits_credit_and_lends_what_is_idle(void **state) {
    (void)state;
    const split_case cases[] = {
        {6, {{true, false, 0}, {false, false, 0}, {false, false, 0}}, {6, 0, 0}},
        {6, {{true, true, 0}, {true, true, 0}, {false, true, 0}}, {3, 3, 0}},
        {7, {{true, true, 0}, {true, true, 0}, {true, true, 0}}, {3, 2, 2}},
        {6, {{true, false, 0}, {true, true, 0}, {false, false, 0}}, {5, 1, 0}},
        {6, {{true, false, 0}, {true, false, 0}, {true, true, 0}}, {3, 2, 1}},
        {1, {{true, true, 0}, {true, true, 0}, {true, false, 0}}, {1, 1, 1}},
        {0, {{true, true, 0}, {true, false, 0}, {false, false, 0}}, {0, 0, 0}},
        {6, {{false, true, 0}, {false, false, 0}, {false, false, 0}}, {0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        split_case c = cases[i];
        credit_split(c.total, c.shares, 3);
        for (size_t k = 0; k < 3; k++) {
            if (c.shares[k].grant != c.grants[k]) {
                fail_msg("case %zu share %zu: %d", i, k, (int)c.shares[k].grant);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_a_flight_by_key_and_by_request),
        cmocka_unit_test(has_no_more_places_than_it_was_given),
        cmocka_unit_test(knows_stale_epochs_of_running_and_ended_requests),
        cmocka_unit_test(splits_credit_and_lends_what_is_idle),
    };
    return cmocka_run_group_tests_name("flights", tests, NULL, NULL);
}
