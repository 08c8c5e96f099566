/* test_engine.c - a real engine on the demo model, from submit to done: what it answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/unit/engine_shared.h"
#include <stdio.h>

static void the_three_questions_are_answered_right(void **state) {
    (void)state;
    const struct {
        const char *body, *words;
    } cases[] = {{ROSE "}", "Umberto Eco"}, {PRODUCT "}", "391"}, {NAPOLEON "}", "1769"}};
    for (size_t i = 0; i < 3; i++) {
        const run_answer *a = run_one(&shared, WIRE_CHAT, cases[i].body);
        assert_true(a->done);
        const run_choice *c = &a->choices[0];
        if (strstr(c->content, cases[i].words) == NULL) fail_msg("%s", c->content);
        assert_true(c->n_reasoning > 0);
        assert_null(strstr(c->content, "think>"));
        assert_null(strstr(c->content, "<|im_end|>"));
        assert_int_equal(c->finish, WIRE_FINISH_STOP);
        assert_int_equal(a->usage.completion_tokens, c->n_ids);
        assert_true(a->usage.reasoning_tokens > 0);
        assert_true(a->usage.reasoning_tokens < a->usage.completion_tokens);
        assert_true(a->usage.prompt_tokens > 10);
        assert_true(a->usage.prefill_ms > 0 && a->usage.decode_ms > 0);
        assert_true(a->usage.hit_rate < 0); /* no slots */
    }
}

static void without_thinking_everything_is_content(void **state) {
    (void)state;
    const run_answer *a = run_one(
        &shared, WIRE_CHAT, ROSE ",\"chat_template_kwargs\":{\"enable_thinking\":false}}");
    assert_int_equal(a->choices[0].n_reasoning, 0);
    assert_int_equal(a->usage.reasoning_tokens, 0);
    assert_non_null(strstr(a->choices[0].content, "Umberto Eco"));
}

static void a_raw_completion_has_no_template_and_one_channel(void **state) {
    (void)state;
    const run_answer *a =
        run_one(&shared, WIRE_COMPLETION,
                "{\"temperature\":0,\"prompt\":\"<|im_start|>user\\nWho wrote The Name of the "
                "Rose?<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\"}");
    assert_int_equal(a->usage.prompt_tokens, 18); /* the golden prompt: tags are tokens */
    assert_int_equal(a->choices[0].n_reasoning, 0);
    assert_non_null(strstr(a->choices[0].content, "</think>"));
    assert_non_null(strstr(a->choices[0].content, "Umberto Eco."));
}

static void what_a_user_writes_cannot_spell_control_tokens(void **state) {
    (void)state;
    uint64_t plain =
        run_one(&shared, WIRE_CHAT, ASK("hi") ",\"max_tokens\":1}")->usage.prompt_tokens;
    uint64_t tag = run_one(&shared, WIRE_CHAT, ASK("hi<|im_end|>") ",\"max_tokens\":1}")
                       ->usage.prompt_tokens;
    assert_true(tag > plain + 1);
}

static void many_at_once_answer_as_each_alone(void **state) {
    (void)state;
    static const char *const bodies[] = {ROSE "}", PRODUCT "}", NAPOLEON "}",
                                         STORY ",\"max_tokens\":60}",
                                         COUNT ",\"max_tokens\":70}"};
    enum { N = 5, TIMES = 3 };
    char(*alone)[RUN_TEXT] = calloc(N, sizeof *alone);
    assert_non_null(alone);
    for (int i = 0; i < N; i++) {
        const run_answer *a = run_one(&shared, WIRE_CHAT, bodies[i]);
        (void)snprintf(alone[i], RUN_TEXT, "%s", a->choices[0].content);
    }
    run_forget(&shared);
    for (uint64_t i = 0; i < N * TIMES; i++) {
        run_submit(&shared, i, WIRE_CHAT, bodies[i % N]);
        run_steps(&shared, 3);
    }
    engine_stats stats;
    engine_read_stats(shared.e, &stats);
    assert_int_equal(stats.running, 4);
    assert_true(stats.waiting > 0);
    run_all(&shared);
    for (int i = 0; i < N * TIMES; i++) {
        assert_true(shared.answers[i].done);
        assert_string_equal(shared.answers[i].choices[0].content, alone[i % N]);
    }
    free(alone);
}

static void the_same_seed_gives_the_same_text_in_any_company(void **state) {
    (void)state;
#define WARM FOX ",\"temperature\":2,\"max_tokens\":40,\"ignore_eos\":true,\"seed\":"
    static run_choice first;
    first = run_one(&shared, WIRE_CHAT, WARM "5}")->choices[0];
    run_forget(&shared);
    run_submit(&shared, 0, WIRE_CHAT, WARM "6}");
    run_submit(&shared, 1, WIRE_CHAT, STORY "}");
    run_steps(&shared, 4);
    run_submit(&shared, 2, WIRE_CHAT, WARM "5}");
    run_submit(&shared, 3, WIRE_CHAT, WARM "5,\"n\":2}");
    run_all(&shared);
    const struct {
        int request, choice;
        bool same;
    } cases[] = {{2, 0, true}, {0, 0, false}, {3, 0, true}, {3, 1, false}};
    for (size_t i = 0; i < 4; i++) {
        const run_choice *c = &shared.answers[cases[i].request].choices[cases[i].choice];
        assert_int_equal(c->n_ids, 40);
        if ((memcmp(first.ids, c->ids, 40 * sizeof *c->ids) == 0) != cases[i].same) {
            fail_msg("case %zu: '%s' and '%s'", i, first.reasoning, c->reasoning);
        }
        if (cases[i].same) assert_string_equal(first.content, c->content);
    }
}

static void each_choice_has_its_finish_and_usage_adds_them_up(void **state) {
    (void)state;
    const run_answer *a = run_one(&shared, WIRE_CHAT, STORY ",\"n\":3,\"max_tokens\":12}");
    assert_true(a->done);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a->choices[i].finish, WIRE_FINISH_LENGTH);
        assert_int_equal(a->choices[i].n_ids, 12);
        assert_string_equal(a->choices[i].reasoning, a->choices[0].reasoning); /* greedy */
    }
    assert_int_equal(a->usage.completion_tokens, 36);
}

static void a_stop_string_ends_the_content_and_is_not_shown(void **state) {
    (void)state;
    const run_answer *a =
        run_one(&shared, WIRE_CHAT, ROSE ",\"stop\":[\"nobody\",\"by Umb\"]}");
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_STOP);
    assert_string_equal(a->choices[0].content, "The Name of the Rose was written ");
    /* It stands in the reasoning too, where it does not count. */
    a = run_one(&shared, WIRE_CHAT, ROSE ",\"stop\":\"The user asks\"}");
    assert_non_null(strstr(a->choices[0].content, "Umberto Eco"));
    /* What was held back for a stop string that did not come is shown. */
    a = run_one(&shared, WIRE_CHAT, ROSE ",\"stop\":\"Eco.!\"}");
    assert_string_equal(a->choices[0].content,
                        "The Name of the Rose was written by Umberto Eco.");
}

/* The whole stream, and the same one broken after n ids and gone on with elsewhere. */
static void assert_resumes(const char *body, size_t n, bool draws) {
    static run_answer whole;
    whole = *run_one(&shared, WIRE_CHAT, body);
    assert_true(whole.choices[0].n_ids > n);
    run_forget(&shared);
    wire_submit submit = {
        .request = 0,
        .epoch = 1,
        .kind = WIRE_CHAT,
        .body = wire_text(body, strlen(body)),
        .resume = {.ids = whole.choices[0].ids, .n_ids = n, .sampler_counter = draws ? n : 0}};
    run_submit_wire(&shared, &submit);
    run_all(&shared);
    const run_answer *rest = &shared.answers[0];
    const run_choice *a = &whole.choices[0], *b = &rest->choices[0];
    assert_true(rest->done);
    assert_int_equal(b->n_ids, a->n_ids - n);
    assert_memory_equal(b->ids, a->ids + n, b->n_ids * sizeof *b->ids);
    assert_int_equal(b->finish, a->finish);
    assert_int_equal(rest->usage.completion_tokens, whole.usage.completion_tokens);
    assert_int_equal(rest->usage.reasoning_tokens, whole.usage.reasoning_tokens);
    assert_true(b->n_content <= a->n_content);
    assert_string_equal(b->content, a->content + (a->n_content - b->n_content));
    assert_string_equal(b->reasoning, a->reasoning + (a->n_reasoning - b->n_reasoning));
}

static void a_broken_stream_goes_on_as_if_unbroken(void **state) {
    (void)state;
    const size_t cuts[] = {1, 7, 18, 24, 30};
    for (size_t i = 0; i < 5; i++)
        assert_resumes(ROSE "}", cuts[i], false);
    assert_resumes(STORY ",\"max_tokens\":40}", 33, false);
    assert_resumes(FOX ",\"temperature\":1.3,\"seed\":9,\"max_tokens\":30,\"ignore_eos\":true}",
                   13, true);
}

static void a_document_goes_on_where_another_node_left_it(void **state) {
    static const char body[] = ROSE
        ",\"max_tokens\":44,\"temperature\":0,\"response_format\":{\"type\":\"json_schema\","
        "\"json_schema\":{\"schema\":{\"type\":\"array\",\"items\":{\"type\":\"string\","
        "\"maxLength\":9},\"minItems\":3}}}}";
    (void)state;
    const size_t cuts[] = {1, 12, 20, 23, 28};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
        assert_resumes(body, cuts[i], false);
    const run_answer *a = run_one(&shared, WIRE_CHAT, body);
    cJSON *value = NULL;
    error err = {0};
    assert_int_equal(
        json_parse(&value, a->choices[0].content, a->choices[0].n_content, "answer", &err),
        STATUS_OK);
    assert_in_range(cJSON_GetArraySize(value), 3, 40);
    cJSON_Delete(value);
}

static void a_stream_that_was_over_only_needs_its_end(void **state) {
    (void)state;
    static run_answer whole;
    whole = *run_one(&shared, WIRE_CHAT, ROSE "}");
    run_forget(&shared);
    wire_submit submit = {
        .request = 0,
        .kind = WIRE_CHAT,
        .body = wire_text(ROSE "}", strlen(ROSE "}")),
        .resume = {.ids = whole.choices[0].ids, .n_ids = whole.choices[0].n_ids}};
    run_submit_wire(&shared, &submit);
    assert_true(shared.answers[0].done);
    assert_int_equal(shared.answers[0].choices[0].finish, WIRE_FINISH_STOP);
    assert_int_equal(shared.answers[0].choices[0].n_ids, 0);
    const int32_t strange[] = {5, -3};
    submit.request = 1;
    submit.resume = (wire_resume){.ids = strange, .n_ids = 2};
    run_submit_wire(&shared, &submit);
    assert_true(shared.answers[1].failed);
    assert_int_equal(shared.answers[1].http_status, 400);
}

static void counting_and_tokenizing_answer_at_once(void **state) {
    (void)state;
    const run_answer *a = run_one(&shared, WIRE_COUNT, ROSE "}");
    assert_true(a->done);
    assert_string_equal(a->result, "{\"tokens\":18}");
    a = run_one(&shared, WIRE_TOKENIZE, "{\"prompt\":\"<think>\\n\"}");
    assert_non_null(strstr(a->result, "{\"tokens\":[2156,198],\"count\":2,\"max_model_len\":"));
}

static void log_probabilities_are_those_of_the_tokens(void **state) {
    (void)state;
    const run_answer *a = run_one(
        &shared, WIRE_CHAT, ROSE ",\"logprobs\":true,\"top_logprobs\":3,\"max_tokens\":1}");
    cJSON *items = cJSON_Parse(a->choices[0].logprobs);
    assert_non_null(items);
    assert_int_equal(cJSON_GetArraySize(items), 1);
    const cJSON *top = cJSON_GetObjectItem(items->child, "top_logprobs");
    assert_int_equal(cJSON_GetArraySize(top), 3);
    assert_string_equal(cJSON_GetObjectItem(items->child, "token")->valuestring,
                        a->choices[0].content); /* the text of the only token */
    double logprob = cJSON_GetObjectItem(items->child, "logprob")->valuedouble;
    assert_true(logprob <= 0 && logprob > -1);
    assert_float_equal(cJSON_GetObjectItem(top->child, "logprob")->valuedouble, logprob, 1e-9);
    cJSON_Delete(items);
    a = run_one(&shared, WIRE_CHAT, ROSE ",\"max_tokens\":3}");
    assert_int_equal(a->choices[0].n_logprobs, 0);
}

static void a_bias_forbids_and_forces_tokens(void **state) {
    (void)state;
    const run_answer *a = run_one(&shared, WIRE_CHAT,
                                  ROSE ",\"logit_bias\":{\"77\":100},\"max_tokens\":4,"
                                       "\"chat_template_kwargs\":{\"enable_thinking\":false}}");
    for (int i = 0; i < 4; i++)
        assert_int_equal(a->choices[0].ids[i], 77);
}

static void measuring_leaves_the_engine_as_it_was(void **state) {
    (void)state;
    error err = {0};
    double prefill = 0, decode = 0;
    assert_int_equal(engine_measure(shared.e, 100, &prefill, &decode, &err), STATUS_OK);
    assert_true(prefill > 0 && decode > 0);
    const run_answer *a = run_one(&shared, WIRE_CHAT, ROSE "}");
    assert_non_null(strstr(a->choices[0].content, "Umberto Eco"));
    engine_stats stats;
    engine_read_stats(shared.e, &stats);
    assert_true(stats.decode_tok_per_s > 0 && stats.prefill_tok_per_s > 0);
    assert_true(stats.ram_used_bytes > 1 << 20);
    assert_true(stats.hit_rate < 0);
    run_submit(&shared, 1, WIRE_CHAT, ROSE "}");
    assert_int_equal(engine_measure(shared.e, 10, &prefill, &decode, &err), STATUS_UNAVAILABLE);
    run_all(&shared);
}

static void what_it_is_can_be_asked(void **state) {
    (void)state;
    assert_int_equal(engine_context_tokens(shared.e), 1024);
    assert_int_equal(engine_n_slots(shared.e), 0);
    assert_int_equal(strlen(engine_file_hash(shared.e)), 32);
    assert_non_null(strstr(engine_numerics_id(shared.e), "cpu"));
    assert_non_null(strstr(engine_plan_text(shared.e), "KV pages"));
    /* The demo file has no template of its own, which is worth a warning, and no more. */
    assert_non_null(strstr(engine_warning(shared.e, 0), "chat_template"));
    assert_null(engine_warning(shared.e, 1));
    assert_int_equal(engine_model_config(shared.e)->n_experts, 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_three_questions_are_answered_right),
        cmocka_unit_test(without_thinking_everything_is_content),
        cmocka_unit_test(a_raw_completion_has_no_template_and_one_channel),
        cmocka_unit_test(what_a_user_writes_cannot_spell_control_tokens),
        cmocka_unit_test(many_at_once_answer_as_each_alone),
        cmocka_unit_test(the_same_seed_gives_the_same_text_in_any_company),
        cmocka_unit_test(each_choice_has_its_finish_and_usage_adds_them_up),
        cmocka_unit_test(a_stop_string_ends_the_content_and_is_not_shown),
        cmocka_unit_test(a_broken_stream_goes_on_as_if_unbroken),
        cmocka_unit_test(a_document_goes_on_where_another_node_left_it),
        cmocka_unit_test(a_stream_that_was_over_only_needs_its_end),
        cmocka_unit_test(counting_and_tokenizing_answer_at_once),
        cmocka_unit_test(log_probabilities_are_those_of_the_tokens),
        cmocka_unit_test(a_bias_forbids_and_forces_tokens),
        cmocka_unit_test(measuring_leaves_the_engine_as_it_was),
        cmocka_unit_test(what_it_is_can_be_asked),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
