/* test_coordinator_link.c - link and engine threads against a real ROUTER and a double engine. */
#include "worker/coordinator_link.h"

#include "common/clock.h"
#include "common/log.h"
#include "tests/unit/engine_double.h"
#include "tests/unit/router.h"
#include "worker/engine_loop.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

enum { GRACE_MS = 400, SEQUENCES = 4, QUEUE = 2 };

/* A worker without its main: what command_serve holds. */
typedef struct node {
    exchange exchange; /* first: its rings stand on cache lines of their own */
    mesh_security security;
    const char *addresses[2];
    link_params link_params;
    loop_model model;
    engine_loop_params loop_params;
    coordinator_link *link;
    engine_loop *loop;
} node;

static uint64_t grace_ms;

static status prepare(void *context, engine_params *out, error *err) {
    (void)context, (void)err;
    out->model_path = "models/double.gguf";
    out->n_sequences = SEQUENCES;
    return STATUS_OK;
}

static const link_times times = {.heartbeat_ms = 1000,
                                 .heartbeat_timeout_ms = 5000,
                                 .reconnect_ms = 100,
                                 .reconnect_max_ms = 2000,
                                 .connect_ms = 5000,
                                 .hello_ms = 2000,
                                 .refused_ms = 30000,
                                 .idle_ms = 10000,
                                 .cut_ms = 2000,
                                 .tell_ms = 1000,
                                 .linger_ms = 1000};

static void node_start(node *n, const char *first, const char *second) {
    memset(n, 0, sizeof *n);
    n->addresses[0] = first;
    n->addresses[1] = second;
    n->link_params = (link_params){.node = "node-a",
                                   .build = "b1",
                                   .profile = "home",
                                   .coordinators = n->addresses,
                                   .n_coordinators = second == NULL ? 1 : 2,
                                   .security = &n->security,
                                   .max_sequences = SEQUENCES,
                                   .queue = QUEUE,
                                   .times = times,
                                   .grace_ms = grace_ms,
                                   .drain_limit_ms = 10000};
    n->model = (loop_model){.prepare = prepare};
    n->loop_params = (engine_loop_params){.models = &n->model, .n_models = 1, .measure_ms = 10};
    error err;
    assert_int_equal(exchange_init(&n->exchange, 2 * (SEQUENCES + QUEUE), &err), STATUS_OK);
    if (coordinator_link_start(&n->link, &n->link_params, &n->exchange, &err) != STATUS_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(engine_loop_start(&n->loop, &n->loop_params, &n->exchange, &err),
                     STATUS_OK);
}

static void node_wish_to_stop(node *n) {
    assert_true(ring_push(&n->exchange.wishes, n));
}

/* Both threads end by themselves; a thread that does not hangs the test. */
static void node_join(node *n) {
    coordinator_link_join(&n->link);
    engine_loop_join(&n->loop);
    exchange_release(&n->exchange);
}

static void node_stop(node *n) {
    n->link_params.drain_limit_ms = 0;
    node_wish_to_stop(n);
    node_join(n);
}

static void wait_until(const atomic_int *value, int wanted) {
    uint64_t until_ms = clock_monotonic_ms() + 5000;
    while (atomic_load(value) != wanted) {
        if (clock_monotonic_ms() > until_ms)
            fail_msg("stays %d, not %d", atomic_load(value), wanted);
        const struct timespec pause = {.tv_nsec = 1000000};
        (void)nanosleep(&pause, NULL);
    }
}

static bool says(wire_bytes text, const char *word) {
    return text.length > 0 && memmem(text.bytes, text.length, word, strlen(word)) != NULL;
}

/* Of the test that runs; a failed one leaves them to end_test(). */
static router r, a, b;
static node n;
static char address[128];

static int begin_test(void **state) {
    (void)state;
    engine_double_reset();
    grace_ms = GRACE_MS;
    return 0;
}

static int end_test(void **state) {
    (void)state;
    atomic_store(&double_engine.step_waits, false);
    atomic_store(&double_engine.load_waits, false);
    if (n.link != NULL) node_stop(&n);
    router_close(&r);
    router_close(&a);
    router_close(&b);
    return 0;
}

/* ---- greeting ---- */

static void says_loading_before_and_ready_after_the_model_is_loaded(void **state) {
    (void)state;
    atomic_store(&double_engine.load_waits, true);
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
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
    node_start(&n, address, NULL);
    wait_until(&double_engine.n_running, 0);
    router_open(&r, address);
    router_until_ready(&r, 1);
    router_submit(&r, 1, 1, "1");
    (void)router_expect(&r, WIRE_DONE);
}

static void measures_the_way_by_acks_and_greets_again_without_them(void **state) {
    (void)state;
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
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
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
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
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
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
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
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
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
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
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
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

/* ---- the peer misbehaves or goes ---- */

static void rubbish_from_a_peer_is_answered_and_harms_nothing(void **state) {
    (void)state;
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
    router_send_bytes(&r, "\x93\x02\x11\x01", 4); /* another version */
    const wire_error *e = &router_expect(&r, WIRE_ERROR)->error;
    assert_int_equal(e->request, 0);
    assert_true(says(e->text, "version 2"));
    assert_true(says(e->text, "version 1"));
    srand(1);
    for (int i = 0; i < 200; i++) {
        char bytes[64];
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (char)rand();
        router_send_bytes(&r, bytes, (size_t)rand() % sizeof bytes);
    }
    router_send_bytes(&r, "", 0);
    const wire_message wrong_way = {.type = WIRE_BYE, .bye = {.instance = 1}};
    router_send(&r, &wrong_way);
    router_submit(&r, 0, 1, "1"); /* no number */
    router_cancel(&r, 99, 1);     /* nobody's */
    router_submit(&r, 3, 1, "3");
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.number, 3);
}

static void a_coordinator_that_starts_anew_ends_its_old_requests(void **state) {
    (void)state;
    router_open(&r, NULL);
    memcpy(address, r.address, sizeof address);
    node_start(&n, address, NULL);
    router_until_ready(&r, 1);
    router_submit(&r, 1, 9, "hold");
    wait_until(&double_engine.n_running, 1);
    router_close(&r);
    router_open(&r, address);
    router_until_ready(&r, 2);
    wait_until(&double_engine.n_cancelled, 1);
    router_submit(&r, 1, 1, "2"); /* the same number with an older epoch is a new request */
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.epoch, 1);
}

static void a_short_break_of_the_connection_loses_nothing(void **state) {
    (void)state;
    router_open(&r, NULL);
    memcpy(address, r.address, sizeof address);
    grace_ms = 60000;
    node_start(&n, address, NULL);
    router_until_ready(&r, 1);
    router_submit(&r, 1, 1, "hold");
    wait_until(&double_engine.n_running, 1);
    atomic_store(&double_engine.step_waits, true);
    router_submit(&r, 2, 1, "20");
    while (router_expect(&r, WIRE_BEAT)->beat.number < 5)
        continue;
    router_close(&r);
    router_open(&r, address); /* the same process again, as after a broken path */
    (void)router_expect(&r, WIRE_HELLO);
    atomic_store(&double_engine.step_waits,
                 false); /* tokens come while it has not said WELCOME */
    wait_until(&double_engine.n_submitted, 2);
    router_expect_none(&r, WIRE_TOKENS, 100);
    const wire_message welcome = {.type = WIRE_WELCOME,
                                  .welcome = {.instance = 1, .beat_interval_ms = 50}};
    router_send(&r, &welcome);
    for (uint64_t i = 0; i < 20; i++) {
        assert_int_equal(router_expect(&r, WIRE_TOKENS)->tokens.number, i);
    }
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.request, 2);
    assert_int_equal(atomic_load(&double_engine.n_cancelled), 0);
}

static void requests_of_a_coordinator_that_stays_away_are_cancelled(void **state) {
    (void)state;
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
    router_submit(&r, 1, 1, "hold");
    router_submit(&r, 2, 1, "hold");
    wait_until(&double_engine.n_running, 2);
    router_close(&r);
    wait_until(&double_engine.n_cancelled, 2);
    wait_until(&double_engine.n_running, 0);
}

static void one_that_does_not_read_loses_its_requests_and_is_told(void **state) {
    (void)state;
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
    router_submit(&r, 1, 1, "10000000");
    wait_until(&double_engine.n_cancelled, 1); /* every queue on the way is full before that */
    uint64_t number = 0;
    while (router_next(&r, 2000) && r.got.type != WIRE_ERROR) {
        if (r.got.type == WIRE_TOKENS) assert_int_equal(r.got.tokens.number, number++);
    }
    assert_int_equal(r.got.type, WIRE_ERROR);
    assert_true(says(r.got.error.code, "coordinator_slow"));
    assert_true(r.got.error.retryable);
    router_submit(&r, 2, 1, "2"); /* and it is served again */
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.request, 2);
}

static void one_that_asks_for_a_hello_gets_it_soon(void **state) {
    (void)state;
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
    const wire_message refusal = {.type = WIRE_ERROR,
                                  .error = {.http_status = 409,
                                            .text = wire_text("say HELLO first", 15),
                                            .retryable = true}};
    router_send(&r, &refusal);
    router_until_ready(&r, 1);
    router_submit(&r, 1, 1, "1");
    (void)router_expect(&r, WIRE_DONE);
}

static void a_coordinator_that_refuses_gets_no_beats(void **state) {
    (void)state;
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    (void)router_expect(&r, WIRE_HELLO);
    const wire_message refusal = {
        .type = WIRE_ERROR,
        .error = {.http_status = 403, .text = wire_text("who are you", 11)}};
    router_send(&r, &refusal);
    while (router_next(&r, 1500))
        continue; /* what was on its way */
    assert_false(router_next(&r, 1200));
}

/* ---- the engine is busy or fails ---- */

static void beats_go_on_while_the_engine_is_in_a_long_step(void **state) {
    (void)state;
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
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
    node_start(&n, r.address, NULL);
    router_welcome(&r, 1);
    atomic_store(&double_engine.load_waits, false);
    while (router_expect(&r, WIRE_BEAT)->beat.state != WIRE_FAILED)
        continue;
    assert_true(says(r.got.beat.reason, "tensor 'x' is missing"));
    assert_int_equal(next_notice(), NOTICE_FAILED);
    (void)router_expect(&r, WIRE_BYE);
    assert_int_equal(next_notice(), NOTICE_FINISHED);
    node_join(&n);
}

static void a_failed_device_ends_every_request_and_the_worker(void **state) {
    (void)state;
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
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
    node_join(&n);
}

/* ---- drain ---- */

static void a_drained_worker_finishes_takes_nothing_and_can_resume(void **state) {
    (void)state;
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
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
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
    atomic_store(&double_engine.step_waits, true);
    router_submit(&r, 1, 1, "3");
    while (router_expect(&r, WIRE_BEAT)->beat.engine_age_ms < 300)
        continue;
    node_wish_to_stop(&n);
    while (router_expect(&r, WIRE_BEAT)->beat.state != WIRE_DRAINING)
        continue;
    atomic_store(&double_engine.step_waits, false);
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.number, 3);
    (void)router_expect(&r, WIRE_BYE);
    node_join(&n);
}

static void what_outlasts_the_drain_limit_is_cut_and_retryable(void **state) {
    (void)state;
    router_open(&r, NULL);
    node_start(&n, r.address, NULL);
    router_until_ready(&r, 1);
    router_submit(&r, 1, 1, "hold");
    wait_until(&double_engine.n_running, 1);
    n.link_params.drain_limit_ms = 50;
    node_wish_to_stop(&n);
    const wire_error *e = &router_expect(&r, WIRE_ERROR)->error;
    assert_int_equal(e->http_status, 503);
    assert_true(e->retryable);
    assert_true(says(e->code, "draining"));
    (void)router_expect(&r, WIRE_BYE);
    node_join(&n);
}

/* ---- several coordinators, keys ---- */

static void two_coordinators_share_the_credit_and_an_idle_one_lends(void **state) {
    (void)state;
    router_open(&a, NULL);
    router_open(&b, NULL);
    node_start(&n, a.address, b.address);
    router_until_ready(&a, 1);
    router_until_ready(&b, 2);
    while (router_expect(&a, WIRE_BEAT)->beat.credit != 3)
        continue;
    while (router_expect(&b, WIRE_BEAT)->beat.credit != 3)
        continue;
    router_submit(&a, 1, 1, "hold");
    while (router_expect(&a, WIRE_BEAT)->beat.credit != 5)
        continue;
    while (router_expect(&b, WIRE_BEAT)->beat.credit != 1)
        continue;
    router_submit(&b, 1, 1, "hold"); /* the same number means another request there */
    while (router_expect(&b, WIRE_BEAT)->beat.credit != 3)
        continue;
    wait_until(&double_engine.n_running, 2);
    router_cancel(&b, 1, 1);
    assert_int_equal(router_expect(&b, WIRE_ERROR)->error.request, 1);
    assert_int_equal(atomic_load(&double_engine.n_running), 1);
    router_close(&b);
    while (router_expect(&a, WIRE_BEAT)->beat.credit != 6)
        continue;
}

static void write_key(char *path, const char *key, mode_t mode) {
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *out = fdopen(fd, "w");
    assert_non_null(out);
    (void)fprintf(out, "# public key: x\n%s\n", key);
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(fclose(out), 0);
}

static void speaks_curve_with_a_server_whose_key_it_knows(void **state) {
    (void)state;
    char server_public[41], server_secret[41], own_public[41], own_secret[41];
    char path[] = "/tmp/siliceo-key-XXXXXX";
    assert_int_equal(zmq_curve_keypair(server_public, server_secret), 0);
    assert_int_equal(zmq_curve_keypair(own_public, own_secret), 0);
    write_key(path, own_secret, 0600);
    router_open_curve(&r, server_secret);
    static mesh_security keys;
    error err;
    assert_int_equal(mesh_security_init(&keys, path, server_public, false, &err), STATUS_OK);
    assert_string_equal(keys.public_key, own_public);
    node_start(&n, r.address, NULL); /* plain text: the handshake fails */
    assert_false(router_next(&r, 300));
    node_stop(&n);

    memset(&n, 0, sizeof n);
    const char *const only[] = {r.address};
    n.link_params = (link_params){.node = "node-a",
                                  .build = "b",
                                  .profile = "p",
                                  .coordinators = only,
                                  .n_coordinators = 1,
                                  .security = &keys,
                                  .times = times,
                                  .max_sequences = 1};
    n.model = (loop_model){.prepare = prepare};
    n.loop_params = (engine_loop_params){.models = &n.model, .n_models = 1};
    assert_int_equal(exchange_init(&n.exchange, 2, &err), STATUS_OK);
    assert_int_equal(coordinator_link_start(&n.link, &n.link_params, &n.exchange, &err),
                     STATUS_OK);
    assert_int_equal(engine_loop_start(&n.loop, &n.loop_params, &n.exchange, &err), STATUS_OK);
    router_until_ready(&r, 1);
    node_stop(&n);
    router_close(&r);
    assert_int_equal(remove(path), 0);
}

static void keys_are_checked_before_anything_connects(void **state) {
    (void)state;
    mesh_security s;
    error err;
    char public_key[41], secret[41];
    assert_int_equal(zmq_curve_keypair(public_key, secret), 0);
    char open_path[] = "/tmp/siliceo-key-XXXXXX", bad_path[] = "/tmp/siliceo-key-XXXXXX";
    write_key(open_path, secret, 0644);
    write_key(bad_path, "short", 0600);
    assert_int_equal(mesh_security_init(&s, NULL, public_key, false, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "curve.secret_key_file"));
    assert_int_equal(mesh_security_init(&s, open_path, public_key, false, &err),
                     STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "644"));
    assert_int_equal(mesh_security_init(&s, bad_path, public_key, false, &err),
                     STATUS_BAD_INPUT);
    assert_int_equal(mesh_security_init(&s, "/nowhere", public_key, false, &err), STATUS_IO);
    assert_int_equal(mesh_security_init(&s, open_path, "abc", false, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "curve.server_key"));
    assert_int_equal(remove(open_path), 0);
    assert_int_equal(remove(bad_path), 0);
}

static void plain_text_goes_only_to_this_machine_unless_allowed(void **state) {
    (void)state;
    mesh_security s;
    error err;
    assert_int_equal(mesh_security_init(&s, "", "", false, &err), STATUS_OK);
    const char *const here[] = {"tcp://127.0.0.1:1", "tcp://127.8.9.1:1", "tcp://[::1]:1",
                                "tcp://localhost:1", "ipc:///run/x"};
    const char *const away[] = {"tcp://192.168.1.2:5690", "tcp://127.0.0.1.example.org:1",
                                "tcp://host:1", "tcp://[fe80::1]:1"};
    for (size_t i = 0; i < sizeof here / sizeof here[0]; i++) {
        assert_int_equal(mesh_security_check(&s, here[i], &err), STATUS_OK);
    }
    for (size_t i = 0; i < sizeof away / sizeof away[0]; i++) {
        assert_int_equal(mesh_security_check(&s, away[i], &err), STATUS_BAD_INPUT);
        assert_non_null(strstr(err.text, "mesh.allow_plain"));
    }
    s.allow_plain = true;
    assert_int_equal(mesh_security_check(&s, away[0], &err), STATUS_OK);
    assert_int_equal(mesh_security_check(&s, "pgm://127.0.0.1:1", &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "is no tcp://HOST:PORT"));
}

static void a_wrong_address_is_an_error_at_the_start(void **state) {
    (void)state;
    const mesh_security security = {.allow_plain = true};
    const char *const bad[] = {"tcp://127.0.0.1", "nonsense", "tcp://127.0.0.1:65536",
                               "tcp://:80", "tcp://127.0.0.1:80x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        exchange x;
        coordinator_link *l = NULL;
        error err;
        const link_params p = {.node = "n",
                               .build = "b",
                               .profile = "p",
                               .coordinators = &bad[i],
                               .n_coordinators = 1,
                               .security = &security,
                               .times = times,
                               .max_sequences = 1};
        assert_int_equal(exchange_init(&x, 2, &err), STATUS_OK);
        assert_int_equal(coordinator_link_start(&l, &p, &x, &err), STATUS_BAD_INPUT);
        assert_non_null(strstr(err.text, bad[i]));
        coordinator_link_join(&l);
        exchange_release(&x);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin_test, end_test)

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
        TEST(rubbish_from_a_peer_is_answered_and_harms_nothing),
        TEST(a_coordinator_that_starts_anew_ends_its_old_requests),
        TEST(a_short_break_of_the_connection_loses_nothing),
        TEST(requests_of_a_coordinator_that_stays_away_are_cancelled),
        TEST(one_that_does_not_read_loses_its_requests_and_is_told),
        TEST(one_that_asks_for_a_hello_gets_it_soon),
        TEST(a_coordinator_that_refuses_gets_no_beats),
        TEST(beats_go_on_while_the_engine_is_in_a_long_step),
        TEST(a_model_that_does_not_load_is_told_with_the_reason),
        TEST(a_failed_device_ends_every_request_and_the_worker),
        TEST(a_drained_worker_finishes_takes_nothing_and_can_resume),
        TEST(a_stopping_worker_lets_requests_finish_and_says_bye),
        TEST(what_outlasts_the_drain_limit_is_cut_and_retryable),
        TEST(two_coordinators_share_the_credit_and_an_idle_one_lends),
        TEST(speaks_curve_with_a_server_whose_key_it_knows),
        TEST(keys_are_checked_before_anything_connects),
        TEST(plain_text_goes_only_to_this_machine_unless_allowed),
        TEST(a_wrong_address_is_an_error_at_the_start),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("coordinator link", tests, NULL, NULL);
}
