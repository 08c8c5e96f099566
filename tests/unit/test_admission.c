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

static void serve(admission *q, char *order) {
    for (request *r = admission_first(q); r != NULL; r = admission_first(q)) {
        size_t n = strlen(order);
        order[n] = r->tenant->name[0];
        order[n + 1] = '\0';
        admission_take(q, r);
        check(q);
    }
}

static void keys_take_turns_however_many_wait(void **state) {
    (void)state;
    admission q = {.max_waiting = 100};
    tenant a = {.name = "a"}, b = {.name = "b"}, c = {.name = "c"};
    request r[12];
    memset(r, 0, sizeof r);
    for (size_t i = 0; i < 8; i++)
        r[i].tenant = &a;
    for (size_t i = 8; i < 11; i++)
        r[i].tenant = &b;
    r[11].tenant = &c;
    for (size_t i = 0; i < 12; i++) {
        assert_true(admission_add(&q, &r[i]));
        check(&q);
    }
    assert_int_equal(a.n_waiting, 8);
    char order[16] = "";
    serve(&q, order);
    assert_string_equal(order, "abcababaaaaa");
    assert_int_equal(a.n_waiting + b.n_waiting + c.n_waiting, 0);
}

static void one_that_comes_late_is_next_but_has_saved_up_nothing(void **state) {
    (void)state;
    admission q = {.max_waiting = 100};
    tenant a = {.name = "a"}, b = {.name = "b"};
    request r[9];
    memset(r, 0, sizeof r);
    for (size_t i = 0; i < 6; i++) {
        r[i].tenant = &a;
        assert_true(admission_add(&q, &r[i]));
    }
    for (int i = 0; i < 3; i++)
        admission_take(&q, admission_first(&q));
    for (size_t i = 6; i < 9; i++) {
        r[i].tenant = &b;
        assert_true(admission_add(&q, &r[i]));
    }
    char order[16] = "";
    serve(&q, order);
    assert_string_equal(order, "bababa");
}

static void what_was_given_up_moves_its_key_s_others_up(void **state) {
    (void)state;
    admission q = {.max_waiting = 100};
    tenant a = {.name = "a"}, b = {.name = "b"};
    request r[12];
    memset(r, 0, sizeof r);
    for (size_t i = 0; i < 12; i++) {
        r[i].tenant = i < 8 ? &a : &b;
        assert_true(admission_add(&q, &r[i]));
    }
    for (size_t i = 0; i < 6; i++) {
        admission_remove(&q, &r[i]);
        check(&q);
    }
    char order[16] = "";
    serve(&q, order);
    assert_string_equal(order, "babab"
                               "b");
    /* The last that is given up leaves no gap for the next either. */
    request more[3] = {{.tenant = &a}, {.tenant = &a}, {.tenant = &b}};
    assert_true(admission_add(&q, &more[0]));
    admission_remove(&q, &more[0]);
    assert_true(admission_add(&q, &more[1]));
    assert_true(admission_add(&q, &more[2]));
    assert_int_equal(more[1].turn, more[2].turn);
}

static void a_key_s_own_bounds_hold(void **state) {
    (void)state;
    admission q = {.max_waiting = 100};
    tenant a = {.name = "a", .limits = {.waiting = 2, .concurrent = 1}};
    request r[4];
    memset(r, 0, sizeof r);
    for (size_t i = 0; i < 4; i++)
        r[i].tenant = &a;
    assert_true(admission_add(&q, &r[0]));
    assert_true(admission_add(&q, &r[1]));
    assert_false(admission_add(&q, &r[2]));
    assert_true(admission_may_run(&r[0]));
    a.n_running = 1;
    assert_false(admission_may_run(&r[0]));
    admission_take(&q, &r[0]);
    assert_true(admission_add(&q, &r[2]));
    admission_squeeze(&q, &r[3]);
    assert_int_equal(a.n_waiting, 3);
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
        cmocka_unit_test(keys_take_turns_however_many_wait),
        cmocka_unit_test(one_that_comes_late_is_next_but_has_saved_up_nothing),
        cmocka_unit_test(what_was_given_up_moves_its_key_s_others_up),
        cmocka_unit_test(a_key_s_own_bounds_hold),
        cmocka_unit_test(retry_after_is_whole_seconds_within_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
