/* test_ring.c - the ring between two threads. */
#include "common/ring.h"
#include "common/thread.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0);
}

static void gives_items_in_order_until_empty(void **state) {
    (void)state;
    ring r;
    int items[4];
    assert_int_equal(ring_init(&r, 4, NULL), STATUS_OK);
    assert_null(ring_pop(&r));
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 3; i++)
            assert_true(ring_push(&r, &items[i]));
        for (int i = 0; i < 3; i++)
            assert_ptr_equal(ring_pop(&r), &items[i]);
        assert_null(ring_pop(&r));
    }
    ring_release(&r);
}

static void refuses_an_item_when_full(void **state) {
    (void)state;
    ring r;
    int item;
    assert_int_equal(ring_init(&r, 3, NULL), STATUS_OK); /* rounded up to 4 */
    for (int i = 0; i < 4; i++)
        assert_true(ring_push(&r, &item));
    assert_false(ring_push(&r, &item));
    assert_non_null(ring_pop(&r));
    assert_true(ring_push(&r, &item));
    ring_release(&r);
}

static void event_is_readable_after_a_push_or_a_wake(void **state) {
    (void)state;
    ring r;
    int item;
    assert_int_equal(ring_init(&r, 2, NULL), STATUS_OK);
    assert_int_equal(readable(r.event_fd), 0);
    assert_true(ring_push(&r, &item));
    assert_int_equal(readable(r.event_fd), 1);
    ring_clear_event(&r);
    assert_int_equal(readable(r.event_fd), 0);
    ring_wake(&r);
    assert_int_equal(readable(r.event_fd), 1);
    ring_clear_event(&r);
    ring_clear_event(&r); /* never blocks */
    ring_release(&r);
    ring_release(&r);
}

static void refuses_a_size_out_of_range(void **state) {
    (void)state;
    ring r;
    error err;
    assert_int_equal(ring_init(&r, 0, &err), STATUS_BAD_INPUT);
    ring_release(&r);
    assert_int_equal(ring_init(&r, SIZE_MAX, &err), STATUS_BAD_INPUT);
    ring_release(&r);
}

enum { N_ITEMS = 200000 };

static void push_all(void *argument) {
    ring *r = argument;
    thread_ready();
    for (uintptr_t i = 1; i <= N_ITEMS;) {
        if (ring_push(r, (void *)i)) i++;
    }
}

static void loses_nothing_between_two_threads(void **state) {
    (void)state;
    ring r;
    thread pusher;
    assert_int_equal(ring_init(&r, 64, NULL), STATUS_OK);
    assert_int_equal(thread_start(&pusher, "pusher", push_all, &r, NULL), STATUS_OK);
    uintptr_t expected = 1;
    while (expected <= N_ITEMS) {
        struct pollfd p = {.fd = r.event_fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 10000), 1); /* a lost wake-up would end here */
        ring_clear_event(&r);
        for (void *item; (item = ring_pop(&r)) != NULL; expected++) {
            assert_int_equal((uintptr_t)item, expected);
        }
    }
    thread_join(&pusher);
    ring_release(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_items_in_order_until_empty),
        cmocka_unit_test(refuses_an_item_when_full),
        cmocka_unit_test(event_is_readable_after_a_push_or_a_wake),
        cmocka_unit_test(refuses_a_size_out_of_range),
        cmocka_unit_test(loses_nothing_between_two_threads),
    };
    return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
