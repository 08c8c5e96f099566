/* test_replay.c - the record of an answer, and the decisions and words about a request. */
#include "coordinator/aliases.h"
#include "coordinator/client_deadline.h"
#include "coordinator/decisions.h"
#include "coordinator/replay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void give(replay *p, wire_channel channel, uint64_t choice, uint64_t flags, int32_t id) {
    const wire_tokens tokens = {.choice = choice,
                                .channel = channel,
                                .ids = &id,
                                .n_ids = 1,
                                .flags = flags,
                                .draws = (uint64_t)id};
    replay_add(p, &tokens);
}

static void a_record_has_ids_budgets_and_draws(void **state) {
    (void)state;
    replay p = {0};
    wire_resume resume;
    for (int32_t i = 1; i <= 100; i++)
        give(&p, i <= 30 ? WIRE_REASONING : WIRE_CONTENT, 0, 0, i);
    assert_null(replay_obstacle(&p));
    replay_fill(&p, &resume);
    assert_int_equal(resume.n_ids, 100);
    assert_int_equal(resume.ids[99], 100);
    assert_int_equal(resume.reasoning_spent, 30);
    assert_int_equal(resume.answer_spent, 70);
    assert_int_equal(resume.sampler_counter, 100);
    assert_int_equal(resume.channel, WIRE_CONTENT);
    replay_clear(&p);
    assert_int_equal(p.n_ids, 0);
    replay_release(&p);
}

static void a_message_without_ids_ends_a_cut_token(void **state) {
    (void)state;
    replay p = {0};
    give(&p, WIRE_REASONING, 0, WIRE_FLAG_MORE, 5);
    assert_non_null(strstr(replay_obstacle(&p), "half"));
    const wire_tokens rest = {.channel = WIRE_CONTENT, .draws = 5};
    replay_add(&p, &rest);
    assert_null(replay_obstacle(&p));
    assert_int_equal(p.n_ids, 1);
    replay_release(&p);
}

static void several_choices_are_an_obstacle_and_open_calls_are_none(void **state) {
    (void)state;
    replay p = {0};
    give(&p, WIRE_TOOL_CALL, 0, 0, 5);
    assert_null(replay_obstacle(&p));
    give(&p, WIRE_CONTENT, 0, 0, 6);
    assert_null(replay_obstacle(&p));
    give(&p, WIRE_CONTENT, 1, 0, 6);
    assert_non_null(strstr(replay_obstacle(&p), "choices"));
    replay_release(&p);
}

static void decisions_are_kept_bounded_and_sorted(void **state) {
    (void)state;
    decisions d;
    request r = {.queued_ns = 1};
    decisions_init(&d, 2);
    for (int i = 0; i < 3; i++) {
        (void)snprintf(r.request_id, sizeof r.request_id, "r%d", i);
        decision *at = decisions_begin(&d, &r, "n7", 1000000001);
        assert_non_null(at);
        for (int k = 0; k < 40; k++) {
            decision_node n = {.cost.total_s = k * 7 % 40};
            n.left_out = k % 5 == 0 ? "drained" : NULL;
            (void)snprintf(n.name, sizeof n.name, "n%d", k);
            decision_add(at, &n);
        }
        assert_int_equal(at->n_nodes, DECISION_NODES);
        assert_int_equal(at->n_more, 40 - DECISION_NODES);
        for (size_t k = 1; k < at->n_nodes; k++)
            assert_true(at->nodes[k - 1].cost.total_s <= at->nodes[k].cost.total_s);
    }
    json_text out = {0};
    assert_false(decisions_print(&d, "r0", &out)); /* overwritten */
    json_text_clear(&out);
    assert_true(decisions_print(&d, "r2", &out));
    cJSON *parsed = NULL;
    error err = {0};
    assert_int_equal(json_parse(&parsed, out.bytes, out.length, "decisions", &err), STATUS_OK);
    assert_int_equal(cJSON_GetArraySize(parsed), 1);
    cJSON_Delete(parsed);
    json_text_release(&out);
    decisions_release(&d);
    decisions_init(&d, 0);
    assert_null(decisions_begin(&d, &r, "n", 1));
    decisions_release(&d);
}

static void aliases_are_checked_and_resolved(void **state) {
    (void)state;
    char name[WIRE_MAX_NAME + 1] = "gpt-4o";
    error err = {0};
    assert_int_equal(aliases_check("", &err), STATUS_OK);
    assert_int_equal(aliases_check("gpt-4o=qwen\nfast=qwen=x", &err), STATUS_OK);
    static const char *const bad[] = {"gpt-4o", "=x", "x=", "a=b\nc"};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(aliases_check(bad[i], &err), STATUS_BAD_INPUT);
    assert_true(aliases_resolve("gpt-4o=qwen\nqwen=other", name));
    assert_string_equal(name, "qwen"); /* they do not chain */
    assert_false(aliases_resolve("gpt-4o=qwen", name));
    assert_false(aliases_resolve("", name));
    (void)snprintf(name, sizeof name, "fast");
    assert_true(aliases_resolve("gpt-4o=qwen\nfast=a=b", name));
    assert_string_equal(name, "a=b");
}

static void a_deadline_is_a_sane_number_of_milliseconds(void **state) {
    (void)state;
    client_deadline d;
    error err = {0};
    assert_int_equal(client_deadline_read(&d, NULL, NULL, false, &err), STATUS_OK);
    assert_int_equal(d.answer_ms, 0);
    assert_int_equal(client_deadline_read(&d, "2500", "600", false, &err), STATUS_OK);
    assert_int_equal(d.answer_ms, 2500);
    assert_int_equal(client_deadline_read(&d, "2500", "1.5", false, &err), STATUS_OK);
    assert_int_equal(d.answer_ms, 1500);
    assert_int_equal(client_deadline_read(&d, NULL, "600", true, &err), STATUS_OK);
    assert_int_equal(d.answer_ms, 0); /* a stream is kept alive instead */
    assert_int_equal(d.quiet_ms, 600000);
    static const char *const bad[] = {"", "0", "-1", "1e3", "abc", "99999999999999", "1.2.3"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(client_deadline_read(&d, bad[i], NULL, false, &err), STATUS_BAD_INPUT);
        assert_int_equal(client_deadline_read(&d, NULL, bad[i], false, &err), STATUS_OK);
        assert_true(d.answer_ms == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_has_ids_budgets_and_draws),
        cmocka_unit_test(a_message_without_ids_ends_a_cut_token),
        cmocka_unit_test(several_choices_are_an_obstacle_and_open_calls_are_none),
        cmocka_unit_test(decisions_are_kept_bounded_and_sorted),
        cmocka_unit_test(aliases_are_checked_and_resolved),
        cmocka_unit_test(a_deadline_is_a_sane_number_of_milliseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
