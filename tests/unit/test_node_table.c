/* test_node_table.c - the states of nodes, from facts and time. */
#include "coordinator/node_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct rig {
    node_table t;
    uint64_t now;
    int lost;
    int changes;
} rig;

static void on_lost(void *context, node *n, const char *why) {
    (void)n;
    assert_true(strlen(why) > 0);
    ((rig *)context)->lost++;
}

static void on_state(void *context, node *n, node_state before) {
    assert_true(n->state != before);
    ((rig *)context)->changes++;
}

static rig make_rig(void) {
    rig r = {.now = 1000000};
    r.t.limits = (node_limits){.suspect_ms = 3000,
                               .down_ms = 15000,
                               .forget_ms = 86400000,
                               .engine_stall_ms = 60000,
                               .breaker_ms = 10000,
                               .breaker_failures = 3};
    return r;
}

static status hello(rig *r, const char *name, const char *identity, uint64_t instance, int fd,
                    node **n) {
    r->t.context = r;
    r->t.on_lost = on_lost;
    r->t.on_state = on_state;
    static const char model[] = "m";
    wire_model m = {
        .name = wire_text(model, 1), .hash = wire_text("h", 1), .context_tokens = 100};
    wire_hello h = {.node = wire_text(name, strlen(name)),
                    .instance = instance,
                    .models = &m,
                    .n_models = 1,
                    .credit = 4,
                    .max_sequences = 2,
                    .prior_decode_tok_per_s = 10};
    error err = {0};
    return node_table_hello(&r->t, identity, strlen(identity), fd, &h, r->now, n, &err);
}

static void beat(rig *r, node *n, wire_worker_state state) {
    wire_beat b = {
        .instance = n->instance, .state = state, .credit = 4, .loading_permille = 421};
    node_table_heard(&r->t, n, n->fd, r->now);
    node_table_beat(&r->t, n, &b, r->now);
}

static node *ready_node(rig *r) {
    node *n = NULL;
    assert_int_equal(hello(r, "amber", "id1", 1, 7, &n), STATUS_OK);
    assert_int_equal(n->state, NODE_CONNECTING);
    beat(r, n, WIRE_READY);
    assert_int_equal(n->state, NODE_READY);
    return n;
}

static void tick(rig *r, uint64_t ms) {
    r->now += ms;
    node_table_tick(&r->t, r->now);
}

static void silence_is_suspect_then_down_and_a_beat_brings_it_back(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r);
    tick(&r, 2999);
    assert_int_equal(n->state, NODE_READY);
    tick(&r, 1);
    assert_int_equal(n->state, NODE_SUSPECT);
    assert_non_null(strstr(n->reason, "no beat for 3 s"));
    tick(&r, 12000);
    assert_int_equal(n->state, NODE_DOWN);
    beat(&r, n, WIRE_READY);
    assert_int_equal(n->state, NODE_READY);
    assert_int_equal(r.lost, 0);
    node_table_release(&r.t);
}

static void the_end_of_its_connection_is_suspect_at_once(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r);
    node_table_disconnected(&r.t, 8, r.now);
    assert_int_equal(n->state, NODE_READY);
    node_table_disconnected(&r.t, 7, r.now);
    assert_int_equal(n->state, NODE_SUSPECT);
    node_table_heard(&r.t, n, 9, r.now);
    assert_int_equal(n->state, NODE_READY);
    node_table_release(&r.t);
}

static void what_the_worker_says_counts(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r);
    beat(&r, n, WIRE_LOADING);
    assert_int_equal(n->state, NODE_LOADING);
    assert_non_null(strstr(n->reason, "42 %"));
    tick(&r, 2000);
    beat(&r, n, WIRE_LOADING); /* 90 s of loading with beats is not down */
    assert_int_equal(n->state, NODE_LOADING);
    beat(&r, n, WIRE_DRAINING);
    assert_int_equal(n->state, NODE_DRAINING);
    beat(&r, n, WIRE_FAILED);
    assert_int_equal(n->state, NODE_DOWN);
    node_table_release(&r.t);
}

static void a_stalled_engine_is_suspect_only_with_work(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r);
    wire_beat b = {.instance = 1, .state = WIRE_READY, .credit = 4, .engine_age_ms = 70000};
    node_table_beat(&r.t, n, &b, r.now);
    assert_int_equal(n->state, NODE_READY);
    b.running = 1;
    node_table_beat(&r.t, n, &b, r.now);
    assert_int_equal(n->state, NODE_SUSPECT);
    node_table_release(&r.t);
}

static void a_restart_replaces_a_dead_process_but_not_a_live_one(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r), *other = NULL;
    for (int i = 0; i < 3; i++)
        assert_int_equal(hello(&r, "amber", "id2", 2, 8, &other), STATUS_UNAVAILABLE);
    assert_int_equal(hello(&r, "amber", "id2", 2, 8, &other), STATUS_BAD_INPUT);
    assert_int_equal(r.lost, 0);
    node_table_disconnected(&r.t, 7, r.now);
    assert_int_equal(hello(&r, "amber", "id2", 2, 8, &other), STATUS_OK);
    assert_ptr_equal(other, n);
    assert_int_equal(r.lost, 1);
    assert_int_equal(n->state, NODE_CONNECTING);
    wire_beat stale = {.instance = 1, .state = WIRE_READY, .credit = 9};
    node_table_beat(&r.t, n, &stale, r.now);
    assert_int_equal(n->state, NODE_CONNECTING);
    assert_null(node_table_by_identity(&r.t, "id1", 3));
    assert_ptr_equal(node_table_by_identity(&r.t, "id2", 3), n);
    assert_int_equal(r.t.n_nodes, 1);
    node_table_release(&r.t);
}

static void what_was_learned_outlives_a_restart_with_the_same_file(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r);
    for (int i = 0; i < 50; i++)
        rates_learn_decode(&n->models[0].speed, 1, 64, 64.0 / 99);
    node_table_disconnected(&r.t, 7, r.now);
    assert_int_equal(hello(&r, "amber", "id2", 2, 8, &n), STATUS_OK);
    assert_true(rates_decode(&n->models[0].speed, 1) > 90);
    node_table_release(&r.t);
}

static void the_breaker_opens_on_failures_and_lets_one_probe_through(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r);
    node_table_failure(&r.t, n, false, r.now);
    node_table_failure(&r.t, n, false, r.now);
    node_table_success(&r.t, n, r.now);
    for (int i = 0; i < 2; i++)
        node_table_failure(&r.t, n, false, r.now);
    assert_int_equal(n->state, NODE_READY);
    node_table_failure(&r.t, n, false, r.now);
    assert_int_equal(n->state, NODE_QUARANTINED);
    for (int i = 0; i < 10; i++) {
        tick(&r, 1000);
        beat(&r, n, WIRE_READY);
    }
    assert_int_equal(n->state, NODE_READY);
    tick(&r, 0);
    assert_int_equal(node_places(n), 1);
    node_table_failure(&r.t, n, false, r.now); /* the probe failed: at once */
    assert_int_equal(n->state, NODE_QUARANTINED);
    node_table_success(&r.t, n, r.now);
    assert_int_equal(n->state, NODE_READY);
    assert_int_equal(node_places(n), 2);
    node_table_failure(&r.t, n, true, r.now); /* a time-out is enough */
    assert_int_equal(n->state, NODE_QUARANTINED);
    node_table_release(&r.t);
}

static void a_second_link_of_a_process_is_refused_while_the_first_lives(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r), *other = NULL;
    assert_int_equal(hello(&r, "amber", "id2", 1, 8, &other), STATUS_BAD_INPUT);
    assert_null(node_table_by_identity(&r.t, "id2", 3));
    assert_ptr_equal(node_table_by_identity(&r.t, "id1", 3), n);
    assert_int_equal(hello(&r, "amber", "id1", 1, 7, &other), STATUS_OK); /* it says it again */
    assert_int_equal(r.lost, 0);
    node_table_disconnected(&r.t, 7, r.now);
    assert_int_equal(hello(&r, "amber", "id2", 1, 8, &other), STATUS_OK);
    assert_int_equal(r.lost, 1); /* what the dead link carried will not end by itself */
    assert_null(node_table_by_identity(&r.t, "id1", 3));
    tick(&r, 3000);
    assert_int_equal(hello(&r, "amber", "id3", 1, 9, &other),
                     STATUS_OK); /* the first is silent */
    assert_int_equal(r.lost, 2);
    node_table_release(&r.t);
}

static void a_link_that_takes_another_name_leaves_the_old_one(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r), *other = NULL;
    assert_int_equal(hello(&r, "basalt", "id1", 1, 7, &other), STATUS_OK);
    assert_int_equal(n->state, NODE_SUSPECT);
    assert_ptr_equal(node_table_by_identity(&r.t, "id1", 3), other);
    node_table_forget(&r.t, n);
    assert_ptr_equal(node_table_by_identity(&r.t, "id1", 3), other);
    node_table_release(&r.t);
}

static void leaving_and_forgetting(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r);
    node_table_bye(&r.t, n, "bye", r.now);
    assert_int_equal(n->state, NODE_DOWN);
    assert_int_equal(r.t.n_nodes, 1);
    tick(&r, 86399999);
    assert_int_equal(r.t.n_nodes, 1);
    tick(&r, 1);
    assert_int_equal(r.t.n_nodes, 0);
    n = ready_node(&r);
    node_table_drain(&r.t, n, true, r.now);
    assert_int_equal(n->state, NODE_DRAINING);
    node_table_drain(&r.t, n, false, r.now);
    assert_int_equal(n->state, NODE_READY);
    node_table_drain(&r.t, n, true, r.now);
    node_table_bye(&r.t, n, "drained", r.now);
    assert_int_equal(r.t.n_nodes, 0);
    node_table_release(&r.t);
}

static void names_are_words_and_sorted(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = NULL;
    static const char *const bad[] = {"", "a b", "a/b", "a\"", "\xc3\xa9"};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(hello(&r, bad[i], "x", 1, 1, &n), STATUS_BAD_INPUT);
    static const char *const names[] = {"c", "a", "b"};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(hello(&r, names[i], names[i], 1, (int)i, &n), STATUS_OK);
    assert_string_equal(r.t.first->name, "a");
    assert_string_equal(r.t.first->next->next->name, "c");
    assert_null(node_table_by_name(&r.t, "d"));
    node_table_forget(&r.t, node_table_by_name(&r.t, "b"));
    assert_string_equal(r.t.first->next->name, "c");
    assert_null(node_table_by_identity(&r.t, "b", 1));
    node_table_release(&r.t);
}

static void process_engine_and_path_are_judged_apart(void **state) {
    (void)state;
    rig r = make_rig();
    r.t.limits.slow_path_ms = 100;
    node *n = ready_node(&r);
    node_verdicts v;
    wire_beat b = {.instance = 1, .state = WIRE_READY, .credit = 4, .running = 1};
    b.rtt_us = 250000;
    b.engine_age_ms = 70000;
    node_table_beat(&r.t, n, &b, r.now);
    node_judge_parts(n, &r.t.limits, r.now, &v);
    assert_string_equal(v.process.word, "ok");
    assert_string_equal(v.engine.word, "stalled");
    assert_string_equal(v.path.word, "slow");
    assert_non_null(strstr(v.path.reason, "250.0 ms"));
    node_judge_parts(n, &r.t.limits, r.now + 4000, &v);
    assert_string_equal(v.path.word, "silent");
    node_table_disconnected(&r.t, 7, r.now);
    node_judge_parts(n, &r.t.limits, r.now, &v);
    assert_string_equal(v.process.word, "gone");
    assert_string_equal(v.path.word, "broken");
    node_table_bye(&r.t, n, "bye", r.now);
    node_judge_parts(n, &r.t.limits, r.now, &v);
    assert_string_equal(v.process.word, "left");
    node_table_release(&r.t);
}

static void the_time_left_to_load_is_told_or_estimated(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r);
    assert_true(node_loading_left_s(n, r.now) < 0);
    wire_beat b = {.instance = 1, .state = WIRE_LOADING, .loading_permille = 10};
    node_table_beat(&r.t, n, &b, r.now);
    assert_true(node_loading_left_s(n, r.now) < 0); /* too early to tell */
    r.now += 10000;
    b.loading_permille = 250;
    node_table_heard(&r.t, n, 7, r.now);
    node_table_beat(&r.t, n, &b, r.now);
    double left_s = node_loading_left_s(n, r.now); /* a quarter took 10 s */
    assert_true(left_s > 29 && left_s < 31);
    b.loading_left_ms = 90000;
    node_table_beat(&r.t, n, &b, r.now);
    assert_non_null(strstr(n->reason, "25 %, about 90 s left"));
    left_s = node_loading_left_s(n, r.now + 1000); /* since the beat */
    assert_true(left_s > 88.9 && left_s < 89.1);
    node_table_release(&r.t);
}

static void a_model_that_is_not_loaded_costs_its_loading(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r);
    node_model *m = &n->models[0];
    assert_true(node_model_load_s(n, m, r.now) == 0);
    assert_string_equal(node_model_state_name(m), "loaded");
    wire_beat b = {.instance = 1, .state = WIRE_READY, .credit = 4, .unloaded_models = 1};
    node_table_beat(&r.t, n, &b, r.now);
    assert_int_equal(n->state, NODE_READY);
    assert_string_equal(node_model_state_name(m), "unloaded");
    assert_true(node_model_load_s(n, m, r.now) == 10); /* nothing is known of it */
    b.loading_model = 1;
    node_table_beat(&r.t, n, &b, r.now);
    assert_string_equal(node_model_state_name(m), "loading");
    r.now += 4000;
    b.loading_permille = 500;
    b.loading_left_ms = 3000;
    node_table_heard(&r.t, n, 7, r.now);
    node_table_beat(&r.t, n, &b, r.now);
    double left_s = node_model_load_s(n, m, r.now + 1000);
    assert_true(left_s > 1.99 && left_s < 2.01);
    assert_int_equal(hello(&r, "amber", "id1", 1, 7, &n), STATUS_OK); /* all this outlives it */
    m = &n->models[0];
    assert_string_equal(node_model_state_name(m), "loading");
    b = (wire_beat){.instance = 1, .state = WIRE_READY, .credit = 4};
    node_table_beat(&r.t, n, &b, r.now);
    assert_string_equal(node_model_state_name(m), "loaded");
    assert_int_equal(m->loaded_ms, r.now);
    b.unloaded_models = 1;
    node_table_beat(&r.t, n, &b, r.now);
    assert_true(node_model_load_s(n, m, r.now) == 4); /* what it took */
    node_table_release(&r.t);
}

static void what_a_process_held_is_forgotten_with_it(void **state) {
    (void)state;
    rig r = make_rig();
    node *n = ready_node(&r);
    prefix_set_add(&n->models[0].held, 42);
    assert_int_equal(hello(&r, "amber", "id1", 1, 7, &n), STATUS_OK); /* it says HELLO again */
    assert_true(prefix_set_has(&n->models[0].held, 42));
    node_table_disconnected(&r.t, 7, r.now);
    assert_int_equal(hello(&r, "amber", "id2", 2, 8, &n), STATUS_OK);
    assert_false(prefix_set_has(&n->models[0].held, 42));
    node_table_release(&r.t);
}

static void lengths_of_answers_belong_to_the_model(void **state) {
    (void)state;
    rig r = make_rig();
    node *a = ready_node(&r), *b = NULL;
    assert_int_equal(hello(&r, "basalt", "id2", 2, 8, &b), STATUS_OK);
    assert_ptr_equal(a->models[0].answers, b->models[0].answers);
    node_table_release(&r.t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_is_suspect_then_down_and_a_beat_brings_it_back),
        cmocka_unit_test(the_end_of_its_connection_is_suspect_at_once),
        cmocka_unit_test(what_the_worker_says_counts),
        cmocka_unit_test(a_stalled_engine_is_suspect_only_with_work),
        cmocka_unit_test(a_restart_replaces_a_dead_process_but_not_a_live_one),
        cmocka_unit_test(what_was_learned_outlives_a_restart_with_the_same_file),
        cmocka_unit_test(the_breaker_opens_on_failures_and_lets_one_probe_through),
        cmocka_unit_test(a_second_link_of_a_process_is_refused_while_the_first_lives),
        cmocka_unit_test(a_link_that_takes_another_name_leaves_the_old_one),
        cmocka_unit_test(leaving_and_forgetting),
        cmocka_unit_test(names_are_words_and_sorted),
        cmocka_unit_test(process_engine_and_path_are_judged_apart),
        cmocka_unit_test(a_model_that_is_not_loaded_costs_its_loading),
        cmocka_unit_test(the_time_left_to_load_is_told_or_estimated),
        cmocka_unit_test(what_a_process_held_is_forgotten_with_it),
        cmocka_unit_test(lengths_of_answers_belong_to_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
