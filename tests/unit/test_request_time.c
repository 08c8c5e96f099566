/* test_request_time.c - limits of time: each request ends once, on whatever list it stands. */
#include "common/log.h"
#include "coordinator/api.h"
#include "coordinator/coordinator.h"
#include "coordinator/request_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SECOND_MS = 1000 };

/* A coordinator without HTTP whose clock the test sets; long ago, as this process's goes. */
typedef struct rig {
    coordinator c;
    config settings;
    options options;
    uint64_t now_ms;
    unsigned errors, restarts;
    request_failure failure;
} rig;

static void on_state(void *context, node *n, node_state before) {
    (void)before;
    rig *g = context;
    if (n->state == NODE_DOWN) request_node_lost(&g->c, n, false, n->reason);
}

static void on_error(void *context, const request *r, const request_failure *failure) {
    (void)r;
    rig *g = context;
    g->errors++;
    g->failure = *failure;
}

static void on_restart(void *context, bool resumes) {
    (void)resumes;
    ((rig *)context)->restarts++;
}

static int open_rig(void **state) {
    rig *g = calloc(1, sizeof *g);
    error err = {0};
    if (g == NULL || options_init(&g->settings, &g->options, &err) != STATUS_OK ||
        auth_open(&g->c.auth, "", NULL, &err) != STATUS_OK)
        return -1;
    worker_link_params params = {
        .address = "tcp://127.0.0.1:0", .curve_secret_file = "", .curve_allow_file = ""};
    if (worker_link_open(&g->c.link, &params, &err) != STATUS_OK) return -1;
    g->c.options = &g->options;
    g->c.queue.max_waiting = 10;
    g->c.nodes.context = g;
    g->c.nodes.on_state = on_state;
    g->c.nodes.limits = (node_limits){.suspect_ms = 3 * SECOND_MS,
                                      .down_ms = 15 * SECOND_MS,
                                      .forget_ms = UINT64_MAX,
                                      .engine_stall_ms = UINT64_MAX,
                                      .breaker_ms = 10 * SECOND_MS,
                                      .breaker_failures = 3};
    api_metrics_open(&g->c);
    g->now_ms = 10;
    *state = g;
    return 0;
}

static int close_rig(void **state) {
    rig *g = *state;
    request_fail_all(&g->c, "the end");
    worker_link_close(g->c.link);
    node_table_release(&g->c.nodes);
    auth_close(&g->c.auth);
    metrics_release(&g->c.metrics);
    config_release(&g->settings);
    free(g);
    return 0;
}

static wire_bytes text(const char *s) {
    return wire_text(s, strlen(s));
}

static node *join(rig *g, const char *name) {
    wire_model model = {.name = text("m"), .hash = text("h"), .context_tokens = 8192};
    wire_hello hello = {.node = text(name),
                        .instance = (uint64_t)name[0],
                        .max_sequences = 4,
                        .credit = 4,
                        .prior_prefill_tok_per_s = 1e6,
                        .prior_decode_tok_per_s = 100,
                        .models = &model,
                        .n_models = 1};
    wire_beat beat = {.instance = hello.instance, .state = WIRE_READY, .credit = 4};
    error err = {0};
    node *n = NULL;
    assert_int_equal(STATUS_OK, node_table_hello(&g->c.nodes, name, strlen(name), -1, &hello,
                                                 g->now_ms, &n, &err));
    node_table_beat(&g->c.nodes, n, &beat, g->now_ms);
    assert_int_equal(NODE_READY, n->state);
    return n;
}

/* One that waits; with a node, one that was sent there. */
static request *begin(rig *g, node *n) {
    request_sink sink = {.context = g, .on_error = on_error, .on_restart = on_restart};
    request *r = request_new(&sink, g->c.auth.open);
    assert_non_null(r);
    (void)snprintf(r->model, sizeof r->model, "m");
    r->id = ++g->c.last_request;
    r->received_ns = r->queued_ns = g->now_ms * 1000000u;
    r->state = REQUEST_QUEUED;
    r->replayable = true;
    r->hash_next = g->c.buckets[r->id];
    g->c.buckets[r->id] = r;
    assert_true(admission_add(&g->c.queue, r));
    if (n != NULL) request_attach(&g->c, r, n, g->now_ms * 1000000u);
    return r;
}

static void tick_at(rig *g, uint64_t now_ms) {
    g->now_ms = now_ms;
    node_table_tick(&g->c.nodes, now_ms);
    request_tick(&g->c, now_ms * 1000000u);
}

static void heard(rig *g, node *n) {
    node_table_heard(&g->c.nodes, n, -1, g->now_ms);
}

static size_t n_queued(const rig *g) {
    size_t n = 0;
    for (request *r = admission_first(&g->c.queue); r != NULL && n < 100;
         r = admission_next(&g->c.queue, r))
        n++;
    return n;
}

/* The process was stopped between the judgement of the nodes and that of the requests: by its
 * clock the node is long silent, by the tick's it is there. */
static void a_request_whose_node_is_blamed_is_handed_on_once(void **state) {
    rig *g = *state;
    node *slow = join(g, "slow"), *other = join(g, "other");
    (void)begin(g, slow);
    (void)begin(g, slow);
    g->now_ms += (uint64_t)(g->options.limit_first_token_s * SECOND_MS) + 5 * SECOND_MS;
    heard(g, slow);
    heard(g, other);
    tick_at(g, g->now_ms);
    assert_int_equal(NODE_QUARANTINED, slow->state);
    assert_int_equal(2, g->restarts);
    assert_int_equal(0, g->errors);
    assert_int_equal(2, n_queued(g));
    assert_int_equal(2, g->c.queue.n_waiting);
    assert_int_equal(0, slow->in_flight);
}

static void a_last_node_that_is_blamed_ends_each_request_once(void **state) {
    rig *g = *state;
    node *only = join(g, "only");
    (void)begin(g, only);
    (void)begin(g, only);
    g->now_ms += (uint64_t)(g->options.limit_first_token_s * SECOND_MS) + 5 * SECOND_MS;
    heard(g, only);
    tick_at(g, g->now_ms);
    assert_int_equal(2, g->errors);
    assert_string_equal("first_token_timeout", g->failure.code);
    assert_int_equal(0, only->in_flight);
    assert_int_equal(0, g->c.n_running);
}

/* A prompt of about 10 s, as a chat's and as many inputs of vectors. */
static void inputs_of_vectors_have_longer_than_a_first_token(void **state) {
    rig *g = *state;
    node *n = join(g, "only");
    request *chat = begin(g, n), *vectors = begin(g, n);
    chat->prompt_bytes = vectors->prompt_bytes = 4e7;
    vectors->kind = WIRE_EMBED;
    g->now_ms += (uint64_t)(g->options.limit_first_token_s * SECOND_MS) + 100 * SECOND_MS;
    heard(g, n);
    tick_at(g, g->now_ms);
    assert_int_equal(1, g->errors); /* the chat's */
    assert_int_equal(1, n->in_flight);
    g->now_ms += 400 * SECOND_MS;
    heard(g, n);
    tick_at(g, g->now_ms);
    assert_int_equal(2, g->errors);
    assert_string_equal("first_token_timeout", g->failure.code);
}

static void one_that_waits_ends_at_the_limit_of_its_whole_life(void **state) {
    rig *g = *state;
    node *n = join(g, "busy");
    g->options.limit_total_s = 20;
    request *r = begin(g, NULL);
    assert_true(request_oldest_s(&g->c, (g->now_ms + SECOND_MS) * 1000000u) == 1);
    for (int i = 0; i < 19; i++) {
        g->now_ms += SECOND_MS;
        heard(g, n);
        r->queued_ns = g->now_ms * 1000000u; /* it has come back from a node that was lost */
        tick_at(g, g->now_ms);
    }
    assert_int_equal(0, g->errors);
    tick_at(g, g->now_ms + 2 * SECOND_MS);
    assert_int_equal(1, g->errors);
    assert_int_equal(504, g->failure.http_status);
    assert_string_equal("total_timeout", g->failure.code);
    assert_int_equal(0, n_queued(g));
    assert_true(request_oldest_s(&g->c, g->now_ms * 1000000u) == 0);
}

static void one_that_stands_on_no_list_ends_too(void **state) {
    rig *g = *state;
    (void)join(g, "idle");
    request *r = begin(g, NULL);
    admission_take(&g->c.queue, r);
    heard(g, g->c.nodes.first);
    g->options.queue_max_wait_s = 2;
    tick_at(g, g->now_ms + 1900);
    assert_int_equal(0, g->errors);
    tick_at(g, g->now_ms + 200);
    assert_int_equal(1, g->errors);
    assert_string_equal("queue_timeout", g->failure.code);
}

int main(void) {
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_request_whose_node_is_blamed_is_handed_on_once,
                                        open_rig, close_rig),
        cmocka_unit_test_setup_teardown(a_last_node_that_is_blamed_ends_each_request_once,
                                        open_rig, close_rig),
        cmocka_unit_test_setup_teardown(inputs_of_vectors_have_longer_than_a_first_token,
                                        open_rig, close_rig),
        cmocka_unit_test_setup_teardown(one_that_waits_ends_at_the_limit_of_its_whole_life,
                                        open_rig, close_rig),
        cmocka_unit_test_setup_teardown(one_that_stands_on_no_list_ends_too, open_rig,
                                        close_rig),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
