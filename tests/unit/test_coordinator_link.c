/* test_coordinator_link.c - link and engine threads against a real ROUTER and a double engine. */
#include "tests/unit/link_node.h"

#include "common/clock.h"
#include "common/log.h"
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* ---- greeting ---- */

static void says_loading_before_and_ready_after_the_model_is_loaded(void **state) {
    (void)state;
    atomic_store(&double_engine.load_waits, true);
    router_open(&r, NULL);
    node_start(r.address, NULL);
    const wire_message *m = router_expect(&r, WIRE_HELLO);
    assert_true(says(m->hello.node, "node-a"));
    assert_int_equal(m->hello.n_models, 0);
    assert_int_equal(m->hello.credit, 0);
    assert_int_not_equal(m->hello.instance, 0);
    const wire_message welcome = {.type = WIRE_WELCOME,
                                  .welcome = {.instance = 1, .beat_interval_ms = 50}};
    router_send(&r, &welcome);
    do {
        m = router_expect(&r, WIRE_BEAT);
        assert_int_equal(m->beat.state, WIRE_LOADING);
    } while (m->beat.loading_permille != 420);
    assert_true(says(m->beat.reason, "weights"));
    atomic_store(&double_engine.load_waits, false);
    m = router_expect(&r, WIRE_HELLO);
    assert_int_equal(m->hello.n_models, 1);
    assert_true(says(m->hello.models[0].name, "A-Double"));
    assert_true(m->hello.prior_decode_tok_per_s == 50.0);
    assert_int_equal(m->hello.experts_total, 32);
    do {
        m = router_expect(&r, WIRE_BEAT);
    } while (m->beat.state != WIRE_READY || m->beat.free_sequences != SEQUENCES);
    assert_int_equal(m->beat.credit, SEQUENCES + QUEUE);
    assert_int_equal(m->beat.ram_used_mib, 5);
}

static void may_start_before_the_coordinator(void **state) {
    (void)state;
    router_open(&r, NULL);
    memcpy(address, r.address, sizeof address);
    router_close(&r);
    node_start(address, NULL);
    wait_until(&double_engine.n_running, 0);
    router_open(&r, address);
    router_until_ready(&r, 1);
    router_submit(&r, 1, 1, "1");
    (void)router_expect(&r, WIRE_DONE);
}

static void measures_the_way_by_acks_and_greets_again_without_them(void **state) {
    (void)state;
    start_ready();
    do {
        const wire_message ack = {.type = WIRE_ACK, .ack = {r.got.beat.number}};
        router_send(&r, &ack);
    } while (router_expect(&r, WIRE_BEAT)->beat.rtt_us == 0);
    assert_in_range(r.got.beat.rtt_us, 1, 1000000);
    (void)router_expect(&r, WIRE_HELLO); /* beats stay without ACK from here */
}

/* ---- requests ---- */

static void numbers_tokens_without_gaps_and_ends_with_done(void **state) {
    (void)state;
    start_ready();
    router_submit(&r, 42, 3, "5");
    for (uint64_t i = 0; i < 5; i++) {
        const wire_tokens *t = &router_expect(&r, WIRE_TOKENS)->tokens;
        assert_int_equal(t->request, 42);
        assert_int_equal(t->epoch, 3);
        assert_int_equal(t->number, i);
        assert_int_equal(t->ids[0], i);
        assert_true(says(t->text, "t"));
        assert_int_equal(t->finish, i == 4 ? WIRE_FINISH_LENGTH : WIRE_FINISH_NONE);
    }
    const wire_done *done = &router_expect(&r, WIRE_DONE)->done;
    assert_int_equal(done->request, 42);
    assert_int_equal(done->epoch, 3);
    assert_int_equal(done->number, 5);
    assert_int_equal(done->completion_tokens, 5);
}

static void a_cancel_before_the_first_token_ends_the_request(void **state) {
    (void)state;
    start_ready();
    router_submit(&r, 8, 1, "hold");
    router_submit(&r, 9, 1, "hold");
    wait_until(&double_engine.n_running, 2);
    uint64_t start_ms = clock_monotonic_ms();
    router_cancel(&r, 8, 1);
    const wire_error *e = &router_expect(&r, WIRE_ERROR)->error;
    assert_int_equal(e->request, 8);
    assert_int_equal(e->http_status, 499);
    assert_in_range(clock_monotonic_ms() - start_ms, 0, 200);
    assert_int_equal(atomic_load(&double_engine.n_running), 1); /* the other goes on */
}

static void a_submit_above_the_credit_is_busy_and_harms_no_other(void **state) {
    (void)state;
    start_ready();
    for (uint64_t i = 1; i <= SEQUENCES + QUEUE + 2; i++)
        router_submit(&r, i, 1, "hold");
    for (uint64_t i = 0; i < 2; i++) {
        const wire_error *e = &router_expect(&r, WIRE_ERROR)->error;
        assert_int_equal(e->request, SEQUENCES + QUEUE + 1 + i);
        assert_int_equal(e->http_status, 503);
        assert_true(e->retryable);
        assert_true(says(e->code, "busy"));
    }
    wait_until(&double_engine.n_running, SEQUENCES + QUEUE);
    router_cancel(&r, 1, 1);
    assert_int_equal(router_expect(&r, WIRE_ERROR)->error.http_status, 499);
    router_submit(&r, 100, 1, "1"); /* the place is free again */
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.request, 100);
}

static void a_full_queue_of_the_engine_is_busy_too(void **state) {
    (void)state;
    start_ready();
    atomic_store(&double_engine.queue_is_full, true);
    router_submit(&r, 5, 1, "1");
    const wire_error *e = &router_expect(&r, WIRE_ERROR)->error;
    assert_int_equal(e->request, 5);
    assert_int_equal(e->http_status, 503);
    assert_true(e->retryable);
    assert_true(says(e->code, "busy"));
}

static void a_newer_epoch_replaces_an_older_and_stale_ones_are_dropped(void **state) {
    (void)state;
    start_ready();
    router_submit(&r, 7, 5, "hold");
    wait_until(&double_engine.n_running, 1);
    router_submit(&r, 7, 4, "1"); /* stale */
    router_submit(&r, 7, 5, "1"); /* the same again */
    router_cancel(&r, 7, 4);      /* meant for an older one */
    router_submit(&r, 9, 1, "1"); /* when it is over, the cancel has been seen */
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.request, 9);
    assert_int_equal(atomic_load(&double_engine.n_cancelled), 0);
    router_submit(&r, 7, 6, "2"); /* replaces */
    const wire_message *m;
    do {
        m = router_expect(&r, WIRE_TOKENS);
        assert_int_equal(m->tokens.epoch, 6);
    } while (m->tokens.finish == WIRE_FINISH_NONE);
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.epoch, 6);
    wait_until(&double_engine.n_cancelled, 1);
    router_submit(&r, 7, 6, "1"); /* ended, and still known */
    router_submit(&r, 8, 1, "1");
    do {
        m = router_expect(&r, WIRE_DONE);
    } while (m->done.request != 8);
    assert_int_equal(atomic_load(&double_engine.n_submitted), 4);
}

/* ---- the engine is busy or fails ---- */

static void beats_go_on_while_the_engine_is_in_a_long_step(void **state) {
    (void)state;
    start_ready();
    atomic_store(&double_engine.step_waits, true);
    router_submit(&r, 1, 1, "1");
    uint64_t first = router_expect(&r, WIRE_BEAT)->beat.number;
    while (router_expect(&r, WIRE_BEAT)->beat.engine_age_ms < 500) {
        assert_int_equal(r.got.beat.state, WIRE_READY);
    }
    assert_true(r.got.beat.number >= first + 5);
    atomic_store(&double_engine.step_waits, false);
    (void)router_expect(&r, WIRE_DONE);
    while (router_expect(&r, WIRE_BEAT)->beat.engine_age_ms > 400)
        continue;
}

static notice_kind next_notice(void) {
    struct pollfd p = {.fd = n.exchange.notices.event_fd, .events = POLLIN};
    notice *got = NULL;
    while ((got = ring_pop(&n.exchange.notices)) == NULL) {
        assert_int_equal(poll(&p, 1, 5000), 1);
        ring_clear_event(&n.exchange.notices);
    }
    notice_kind kind = got->kind;
    free(got);
    return kind;
}

static void a_model_that_does_not_load_is_told_with_the_reason(void **state) {
    (void)state;
    atomic_store(&double_engine.load_waits, true);
    atomic_store(&double_engine.load_fails, true);
    router_open(&r, NULL);
    node_start(r.address, NULL);
    router_welcome(&r, 1);
    atomic_store(&double_engine.load_waits, false);
    while (router_expect(&r, WIRE_BEAT)->beat.state != WIRE_FAILED)
        continue;
    assert_true(says(r.got.beat.reason, "tensor 'x' is missing"));
    assert_int_equal(next_notice(), NOTICE_FAILED);
    (void)router_expect(&r, WIRE_BYE);
    assert_int_equal(next_notice(), NOTICE_FINISHED);
    node_join();
}

static void a_failed_device_ends_every_request_and_the_worker(void **state) {
    (void)state;
    start_ready();
    assert_int_equal(next_notice(), NOTICE_LOADED);
    router_submit(&r, 1, 1, "hold");
    router_submit(&r, 2, 1, "hold");
    wait_until(&double_engine.n_running, 2);
    atomic_store(&double_engine.device_fails, true);
    for (uint64_t i = 1; i <= 2; i++) {
        const wire_error *e = &router_expect(&r, WIRE_ERROR)->error;
        assert_int_equal(e->request, i);
        assert_int_equal(e->http_status, 503);
        assert_true(e->retryable);
        assert_true(says(e->text, "fell off the bus"));
    }
    while (router_expect(&r, WIRE_BEAT)->beat.state != WIRE_FAILED)
        continue;
    assert_int_equal(next_notice(), NOTICE_FAILED);
    (void)router_expect(&r, WIRE_BYE);
    node_join();
}

/* ---- drain ---- */

static void a_drained_worker_finishes_takes_nothing_and_can_resume(void **state) {
    (void)state;
    start_ready();
    router_submit(&r, 1, 1, "hold");
    wait_until(&double_engine.n_running, 1);
    wire_message drain = {.type = WIRE_DRAIN, .drain = {60000, false}};
    router_send(&r, &drain);
    while (router_expect(&r, WIRE_BEAT)->beat.state != WIRE_DRAINING || r.got.beat.credit != 0)
        continue;
    router_submit(&r, 2, 1, "1");
    const wire_error *e = &router_expect(&r, WIRE_ERROR)->error;
    assert_int_equal(e->request, 2);
    assert_true(e->retryable);
    assert_true(says(e->code, "draining"));
    assert_int_equal(atomic_load(&double_engine.n_running), 1);
    drain.drain.resume = true;
    router_send(&r, &drain);
    while (router_expect(&r, WIRE_BEAT)->beat.state != WIRE_READY || r.got.beat.credit == 0)
        continue;
    router_submit(&r, 3, 1, "1");
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.request, 3);
}

static void a_stopping_worker_lets_requests_finish_and_says_bye(void **state) {
    (void)state;
    start_ready();
    atomic_store(&double_engine.step_waits, true);
    router_submit(&r, 1, 1, "3");
    while (router_expect(&r, WIRE_BEAT)->beat.engine_age_ms < 300)
        continue;
    node_wish_to_stop();
    while (router_expect(&r, WIRE_BEAT)->beat.state != WIRE_DRAINING)
        continue;
    atomic_store(&double_engine.step_waits, false);
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.number, 3);
    (void)router_expect(&r, WIRE_BYE);
    node_join();
}

static void what_outlasts_the_drain_limit_is_cut_and_retryable(void **state) {
    (void)state;
    start_ready();
    router_submit(&r, 1, 1, "hold");
    wait_until(&double_engine.n_running, 1);
    n.link_params.drain_limit_ms = 50;
    node_wish_to_stop();
    const wire_error *e = &router_expect(&r, WIRE_ERROR)->error;
    assert_int_equal(e->http_status, 503);
    assert_true(e->retryable);
    assert_true(says(e->code, "draining"));
    (void)router_expect(&r, WIRE_BYE);
    node_join();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(says_loading_before_and_ready_after_the_model_is_loaded),
        TEST(may_start_before_the_coordinator),
        TEST(measures_the_way_by_acks_and_greets_again_without_them),
        TEST(numbers_tokens_without_gaps_and_ends_with_done),
        TEST(a_cancel_before_the_first_token_ends_the_request),
        TEST(a_submit_above_the_credit_is_busy_and_harms_no_other),
        TEST(a_full_queue_of_the_engine_is_busy_too),
        TEST(a_newer_epoch_replaces_an_older_and_stale_ones_are_dropped),
        TEST(beats_go_on_while_the_engine_is_in_a_long_step),
        TEST(a_model_that_does_not_load_is_told_with_the_reason),
        TEST(a_failed_device_ends_every_request_and_the_worker),
        TEST(a_drained_worker_finishes_takes_nothing_and_can_resume),
        TEST(a_stopping_worker_lets_requests_finish_and_says_bye),
        TEST(what_outlasts_the_drain_limit_is_cut_and_retryable),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("coordinator link", tests, NULL, NULL);
}
