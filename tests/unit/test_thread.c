/* test_thread.c - start waits for ready, join waits for the end. */
#include "common/thread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct probe {
    thread self;
    bool was_current;
    bool built;
    bool ended;
    char name[16];
} probe;

static void build_and_end(void *argument) {
    probe *p = argument;
    p->was_current = thread_is_current(&p->self);
    (void)pthread_getname_np(pthread_self(), p->name, sizeof p->name);
    p->built = true;
    thread_ready();
    thread_ready(); /* a second call does nothing */
    p->ended = true;
}

static void end_at_once(void *argument) {
    (void)argument;
}

static void start_returns_when_the_body_is_ready(void **state) {
    (void)state;
    probe p = {0};
    assert_int_equal(
        thread_start(&p.self, "a-name-over-fifteen-bytes", build_and_end, &p, NULL), STATUS_OK);
    assert_true(p.built);
    assert_true(p.was_current);
    assert_false(thread_is_current(&p.self));
    assert_string_equal(p.name, "a-name-over-fif");
    thread_join(&p.self);
    assert_true(p.ended);
    thread_join(&p.self);
}

static void a_body_that_ends_before_it_is_ready_is_a_failure(void **state) {
    (void)state;
    thread t;
    error err;
    assert_int_equal(thread_start(&t, "brief", end_at_once, NULL, &err), STATUS_UNAVAILABLE);
    assert_non_null(strstr(err.text, "brief"));
    thread_join(&t);
}

static void join_accepts_a_zeroed_thread(void **state) {
    (void)state;
    thread t = {0};
    thread_join(&t);
    assert_false(t.started);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_returns_when_the_body_is_ready),
        cmocka_unit_test(a_body_that_ends_before_it_is_ready_is_a_failure),
        cmocka_unit_test(join_accepts_a_zeroed_thread),
    };
    return cmocka_run_group_tests_name("thread", tests, NULL, NULL);
}
