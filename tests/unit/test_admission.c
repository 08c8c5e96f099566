/* test_admission.c - the queue: its bound, its order, and what it says to the refused. */
#include "coordinator/admission.h"
#include "coordinator/request.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The invariant after each step: as many linked as counted, forwards and backwards. */
static void check(const admission *q) {
    size_t n = 0;
    const request *last = NULL;
    for (const request *r = admission_first(q); r != NULL; r = admission_next(q, r)) {
        assert_true(r->queued);
        if (r->queue_previous != NULL) assert_ptr_equal(r->queue_previous, last);
        last = r;
        n++;
    }
    assert_int_equal(n, q->n_waiting);
}

static void first_come_first_served_within_a_priority(void **state) {
    (void)state;
    admission q = {.max_waiting = 10};
    request r[4] = {{.id = 1, .priority = 1}, {.id = 2}, {.id = 3, .priority = 1}, {.id = 4}};
    for (size_t i = 0; i < 4; i++) {
        assert_true(admission_add(&q, &r[i]));
        check(&q);
    }
    const uint64_t order[] = {2, 4, 1, 3};
    for (size_t i = 0; i < 4; i++) {
        request *first = admission_first(&q);
        assert_int_equal(first->id, order[i]);
        admission_remove(&q, first);
        check(&q);
    }
    assert_null(admission_first(&q));
}

static void a_full_queue_refuses_but_takes_back(void **state) {
    (void)state;
    admission q = {.max_waiting = 2};
    request r[4] = {{.id = 1}, {.id = 2}, {.id = 3}, {.id = 4}};
    assert_true(admission_add(&q, &r[0]));
    assert_true(admission_add(&q, &r[1]));
    assert_false(admission_add(&q, &r[2]));
    assert_false(r[2].queued);
    check(&q);
    admission_put_back(&q, &r[3]);
    check(&q);
    assert_int_equal(admission_first(&q)->id, 4);
    assert_int_equal(q.n_waiting, 3);
}

static void removal_works_anywhere_and_twice(void **state) {
    (void)state;
    admission q = {.max_waiting = 10};
    request r[5] = {0};
    for (size_t i = 0; i < 5; i++) {
        r[i].id = i;
        assert_true(admission_add(&q, &r[i]));
    }
    const size_t order[] = {2, 0, 4, 4, 1, 3};
    for (size_t i = 0; i < 6; i++) {
        admission_remove(&q, &r[order[i]]);
        check(&q);
    }
    assert_int_equal(q.n_waiting, 0);
    assert_true(admission_add(&q, &r[3]));
    check(&q);
}

static void retry_after_is_whole_seconds_within_reason(void **state) {
    (void)state;
    assert_int_equal(admission_retry_after_s(0), 1);
    assert_int_equal(admission_retry_after_s(-5), 1);
    assert_int_equal(admission_retry_after_s((double)NAN), 1);
    assert_int_equal(admission_retry_after_s(3.2), 4);
    assert_int_equal(admission_retry_after_s(1e9), 120);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_come_first_served_within_a_priority),
        cmocka_unit_test(a_full_queue_refuses_but_takes_back),
        cmocka_unit_test(removal_works_anywhere_and_twice),
        cmocka_unit_test(retry_after_is_whole_seconds_within_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
