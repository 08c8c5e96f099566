/* test_engine_loop.c - several models in one loop, over double engines: who loads, waits, yields. */
#include "worker/engine_loop.h"

#include "common/clock.h"
#include "common/log.h"
#include "tests/unit/engine_double.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MODELS = 3, SEQUENCES = 4 };

static exchange x;
static engine_loop *loop;
static loop_model models[MODELS];
static engine_loop_params params;
static report *got; /* what expect() found last */

static status prepare(void *context, engine_params *out, error *err) {
    (void)err;
    out->model_path = context;
    out->n_sequences = SEQUENCES;
    return STATUS_OK;
}

static status describe(void *context, engine_facts *out, error *err) {
    if (strcmp(context, "bad.gguf") == 0)
        return error_set(err, STATUS_BAD_INPUT, "bad.gguf: no GGUF file");
    (void)snprintf(out->model, sizeof out->model, "of %s", (const char *)context);
    out->context_tokens = 2048;
    return STATUS_OK;
}

static int begin_test(void **state) {
    (void)state;
    engine_double_reset();
    static char paths[MODELS][8] = {"a.gguf", "b.gguf", "c.gguf"};
    static const char *const names[MODELS] = {"a", "b", "c"};
    for (int i = 0; i < MODELS; i++)
        models[i] = (loop_model){
            .name = names[i], .prepare = prepare, .describe = describe, .context = paths[i]};
    params = (engine_loop_params){.models = models, .n_models = MODELS, .patience_ms = 20};
    return exchange_init(&x, 32, NULL) == STATUS_OK ? 0 : -1;
}

static void start(void) {
    assert_int_equal(engine_loop_start(&loop, &params, &x, NULL), STATUS_OK);
}

static int end_test(void **state) {
    (void)state;
    static order stop = {.kind = ORDER_STOP};
    atomic_store(&double_engine.load_waits, false);
    atomic_store(&x.link_gone, true);
    (void)ring_push(&x.orders, &stop);
    engine_loop_join(&loop);
    free(got);
    got = NULL;
    exchange_release(&x);
    return 0;
}

/* The next report of that kind; others are passed over. */
static const report *expect(report_kind kind) {
    uint64_t until_ms = clock_monotonic_ms() + 10000;
    for (;;) {
        free(got);
        got = ring_pop(&x.reports);
        if (got != NULL && got->kind == kind) return got;
        if (got != NULL) continue;
        if (clock_monotonic_ms() > until_ms) fail_msg("no report of kind %d", (int)kind);
        struct pollfd p = {.fd = x.reports.event_fd, .events = POLLIN};
        (void)poll(&p, 1, 100);
        ring_clear_event(&x.reports);
    }
}

static void expect_model(report_kind kind, uint32_t which) {
    assert_int_equal(expect(kind)->model, which);
}

/* body as engine_double.h has it. */
static void give(uint64_t request, const char *name, const char *body, uint64_t deadline_ms) {
    order *o = calloc(1, sizeof *o);
    assert_non_null(o);
    o->kind = ORDER_SUBMIT;
    o->request = request;
    o->epoch = 1;
    o->message.type = WIRE_SUBMIT;
    o->message.submit.epoch = 1;
    o->message.submit.model = wire_text(name, strlen(name));
    o->message.submit.body = wire_text(body, strlen(body));
    o->message.submit.deadline_ms = deadline_ms;
    (void)zmq_msg_init(&o->frame);
    assert_true(ring_push(&x.orders, o));
}

static void give_cancel(uint64_t request) {
    order *o = calloc(1, sizeof *o);
    assert_non_null(o);
    *o = (order){.kind = ORDER_CANCEL, .request = request, .epoch = 1};
    assert_true(ring_push(&x.orders, o));
}

static void expect_done(uint64_t request) {
    while (expect(REPORT_MESSAGE)->message.type == WIRE_TOKENS)
        continue;
    if (got->message.type == WIRE_ERROR) {
        fail_msg("%.*s", (int)got->message.error.text.length, got->message.error.text.bytes);
    }
    assert_int_equal(got->message.done.request, request);
}

static void expect_error(uint64_t request, uint64_t http_status, const char *code) {
    assert_int_equal(expect(REPORT_MESSAGE)->message.type, WIRE_ERROR);
    const wire_error *e = &got->message.error;
    assert_int_equal(e->request, request);
    assert_int_equal(e->http_status, http_status);
    assert_int_equal(e->code.length, strlen(code));
    assert_memory_equal(e->code.bytes, code, strlen(code));
}

/* ---- */

static void all_models_are_told_and_loaded_in_their_order(void **state) {
    (void)state;
    start();
    for (uint32_t i = 0; i < MODELS; i++) {
        expect_model(REPORT_MODEL, i);
        assert_int_equal(got->facts.context_tokens, 2048);
    }
    for (uint32_t i = 0; i < MODELS; i++)
        expect_model(REPORT_LOADED, i);
    assert_string_equal(got->facts.model, "c");
    (void)expect(REPORT_STARTED);
    give(1, "b", "2", 0);
    expect_done(1);
    give(2, "nobody", "2", 0);
    expect_error(2, 404, "model_not_found");
}

static void those_beyond_the_limit_load_when_they_are_asked_for(void **state) {
    (void)state;
    params.max_loaded = 2;
    start();
    expect_model(REPORT_LOADED, 0);
    expect_model(REPORT_LOADED, 1);
    (void)expect(REPORT_STARTED);
    give(1, "a", "1", 0);
    expect_done(1);
    give(2, "c", "3", 0);
    expect_model(REPORT_UNLOADED, 1); /* its last use is longest ago */
    expect_model(REPORT_LOADED, 2);
    expect_done(2);
    assert_int_equal(atomic_load(&double_engine.n_open), 2);
}

static void requests_go_on_while_another_model_loads(void **state) {
    (void)state;
    params.n_models = 2;
    params.keep_ms = 30;
    give(1, "a", "hold", 0); /* so it does not become idle */
    start();
    expect_model(REPORT_UNLOADED, 1);
    atomic_store(&double_engine.load_waits, true);
    give(2, "b", "1", 0);
    expect_model(REPORT_PROGRESS, 1);
    give(3, "a", "2", 0);
    expect_done(3);
    assert_true(engine_loop_loads(loop));
    atomic_store(&double_engine.load_waits, false);
    expect_done(2);
}

static void an_idle_model_is_closed_and_comes_back(void **state) {
    (void)state;
    params.n_models = 1;
    params.keep_ms = 30;
    start();
    expect_model(REPORT_LOADED, 0);
    expect_model(REPORT_UNLOADED, 0);
    give(1, "any name", "2", 0);
    expect_model(REPORT_LOADED, 0);
    expect_done(1);
    assert_int_equal(atomic_load(&double_engine.n_opened), 2);
}

static void a_busy_model_finishes_its_requests_and_then_makes_room(void **state) {
    (void)state;
    params.n_models = 2;
    params.max_loaded = 1;
    start();
    (void)expect(REPORT_STARTED);
    give(1, "a", "hold", 0);
    while (expect(REPORT_STATS)->stats.running != 1)
        continue;
    give(2, "b", "1", 0);
    while (expect(REPORT_STATS)->stats.waiting != 1)
        continue;
    uint64_t until_ms = clock_monotonic_ms() + 2 * params.patience_ms;
    while (clock_monotonic_ms() < until_ms)
        (void)poll(NULL, 0, 1);
    give(3, "a", "1", 0); /* must wait now, else b never comes */
    while (expect(REPORT_STATS)->stats.waiting != 2)
        continue;
    assert_int_equal(atomic_load(&double_engine.n_submitted), 1);
    give_cancel(1);
    expect_error(1, 499, "");
    expect_done(2);
    expect_done(3);
    assert_int_equal(atomic_load(&double_engine.n_open), 1);
}

/* Nobody has patience: each that comes lets in who waited for it before it goes. */
static void models_take_turns_without_patience(void **state) {
    (void)state;
    static const char *const names[] = {"a", "b", "c"};
    params.max_loaded = 1;
    params.patience_ms = 0;
    for (uint64_t i = 0; i < 12; i++)
        give(i + 1, names[i % 3], "2", 0);
    start();
    for (int done = 0; done < 12;) {
        const wire_message *m = &expect(REPORT_MESSAGE)->message;
        assert_int_not_equal(m->type, WIRE_ERROR);
        done += m->type == WIRE_DONE;
    }
    assert_true(atomic_load(&double_engine.n_opened) <= 4);
}

static void a_model_that_does_not_fit_waits_until_another_goes(void **state) {
    (void)state;
    params.n_models = 2;
    atomic_store(&double_engine.room, 1);
    start();
    expect_model(REPORT_LOADED, 0);
    expect_model(REPORT_UNLOADED, 1);
    (void)expect(REPORT_STARTED);
    give(1, "b", "1", 0);
    expect_model(REPORT_UNLOADED, 0);
    expect_model(REPORT_LOADED, 1);
    expect_done(1);
}

static void who_waits_can_be_cancelled_and_has_a_deadline(void **state) {
    (void)state;
    params.n_models = 2;
    params.max_loaded = 1;
    start();
    (void)expect(REPORT_STARTED);
    atomic_store(&double_engine.load_waits, true);
    give(1, "b", "1", 0);
    give(2, "b", "1", 30);
    give(3, "b", "1", 60000);
    give_cancel(1);
    expect_error(1, 499, "cancelled");
    expect_error(2, 504, "deadline_exceeded");
    atomic_store(&double_engine.load_waits, false);
    expect_done(3);
}

static void a_later_failure_ends_only_the_requests_of_the_model(void **state) {
    (void)state;
    params.n_models = 2;
    params.max_loaded = 1;
    start();
    (void)expect(REPORT_STARTED);
    atomic_store(&double_engine.load_fails, true);
    give(1, "b", "1", 0);
    expect_error(1, 503, "model_not_loaded");
    atomic_store(&double_engine.load_fails, false);
    give(2, "a", "1", 0);
    expect_done(2);
}

static void a_failure_at_the_start_ends_the_loop(void **state) {
    (void)state;
    atomic_store(&double_engine.load_fails, true);
    start();
    assert_non_null(strstr(expect(REPORT_FAILED)->failed.text, "tensor 'x' is missing"));
    give(1, "a", "1", 0);
    expect_error(1, 503, "engine_failed");
}

static void names_must_differ_and_files_must_be_models(void **state) {
    (void)state;
    models[2].name = "a";
    start();
    assert_non_null(strstr(expect(REPORT_FAILED)->failed.text, "two are named 'a'"));
    assert_int_equal(end_test(NULL), 0);
    assert_int_equal(begin_test(NULL), 0);
    char path[] = "bad.gguf";
    models[1].context = path;
    start();
    assert_string_equal(expect(REPORT_FAILED)->failed.text, "bad.gguf: no GGUF file");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin_test, end_test)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(all_models_are_told_and_loaded_in_their_order),
        TEST(those_beyond_the_limit_load_when_they_are_asked_for),
        TEST(requests_go_on_while_another_model_loads),
        TEST(an_idle_model_is_closed_and_comes_back),
        TEST(a_busy_model_finishes_its_requests_and_then_makes_room),
        TEST(models_take_turns_without_patience),
        TEST(a_model_that_does_not_fit_waits_until_another_goes),
        TEST(who_waits_can_be_cancelled_and_has_a_deadline),
        TEST(a_later_failure_ends_only_the_requests_of_the_model),
        TEST(a_failure_at_the_start_ends_the_loop),
        TEST(names_must_differ_and_files_must_be_models),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("engine loop", tests, NULL, NULL);
}
