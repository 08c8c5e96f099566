/* test_engine_limits.c - what a real engine refuses, and what ends a request early. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/unit/engine_shared.h"
#include <stdio.h>

static void a_cancelled_request_ends_at_once_and_harms_nobody(void **state) {
    (void)state;
    run_forget(&shared);
    run_submit(&shared, 1, WIRE_CHAT, STORY ",\"ignore_eos\":true}");
    run_submit(&shared, 2, WIRE_CHAT, ROSE "}");
    run_submit(&shared, 3, WIRE_CHAT, STORY "}");
    assert_true(engine_cancel(shared.e, 3, 0)); /* before its first token */
    assert_true(shared.answers[3].failed);
    run_steps(&shared, 8);
    assert_true(shared.answers[1].choices[0].n_ids > 0);
    assert_true(engine_cancel(shared.e, 1, 0));
    assert_true(shared.answers[1].failed);
    assert_int_equal(shared.answers[1].http_status, 499);
    assert_false(engine_cancel(shared.e, 1, 0));
    assert_false(engine_cancel(shared.e, 2, 7)); /* another epoch */
    run_all(&shared);
    assert_non_null(strstr(shared.answers[2].choices[0].content, "Umberto Eco"));
}

static void a_wrong_body_is_an_error_with_its_field(void **state) {
    (void)state;
    static const struct {
        wire_kind kind;
        const char *body, *param;
    } cases[] = {
        {WIRE_CHAT, "{", ""},
        {WIRE_CHAT, "{}", "messages"},
        {WIRE_CHAT, ROSE ",\"top_p\":7}", "top_p"},
        {WIRE_CHAT, ROSE ",\"n\":\"two\"}", "n"},
        {WIRE_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "messages[0].content[0]"},
        {WIRE_COMPLETION, "{\"prompt\":\"\"}", "prompt"},
        {WIRE_COMPLETION, "{\"prompt\":[4096]}", "prompt[0]"},
        {WIRE_EMBED, "{\"input\":\"x\"}", "input"},
        {WIRE_EMBED, "{\"input\":[\"x\",[4096]]}", "input[1]"},
        {WIRE_RERANK, "{\"query\":\"x\",\"documents\":[7]}", "documents[0]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const run_answer *a = run_one(&shared, cases[i].kind, cases[i].body);
        assert_true(a->failed);
        assert_int_equal(a->http_status, 400);
        assert_false(a->retryable);
        assert_string_equal(a->param, cases[i].param);
        assert_true(strlen(a->error) > 0);
    }
}

/* A chat whose one message repeats "word " n times. */
static char *long_chat(int n, const char *rest) {
    json_text body = {0};
    json_text_format(&body,
                     "{\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < n; i++)
        json_text_format(&body, "word ");
    json_text_format(&body, "\"}]%s}", rest);
    assert_false(body.failed);
    return body.bytes;
}

static void a_prompt_beyond_the_context_is_refused_with_both_numbers(void **state) {
    (void)state;
    const int lengths[] = {1500, 200000};
    for (int i = 0; i < 2; i++) {
        char *body = long_chat(lengths[i], "");
        const run_answer *a = run_one(&shared, WIRE_CHAT, body);
        assert_true(a->failed);
        assert_int_equal(a->http_status, 400);
        assert_string_equal(a->code, "context_length_exceeded");
        assert_string_equal(a->param, "messages");
        assert_non_null(strstr(a->error, "1024"));
        int n_tokens = 0;
        const char *has = strstr(a->error, "messages has ");
        assert_non_null(has);
        assert_int_equal(sscanf(has, "messages has at least %d", &n_tokens) == 1 ||
                             sscanf(has, "messages has %d", &n_tokens) == 1,
                         1);
        assert_true(n_tokens > 1024);
        free(body);
    }
}

/* A completion's prompt is text or ids; neither is cut. */
static void a_completion_beyond_the_context_is_refused_with_both_numbers(void **state) {
    (void)state;
    json_text text = {0}, ids = {0};
    for (int i = 0; i < 1500; i++) {
        json_text_format(&text, "%s", i == 0 ? "{\"prompt\":\"word" : " word");
        json_text_format(&ids, "%s", i == 0 ? "{\"prompt\":[7" : ",7");
    }
    json_text_format(&text, "\"}");
    json_text_format(&ids, "]}");
    const json_text *const cases[] = {&text, &ids};
    const char *const lengths[] = {"prompt has ", "prompt has 1500;"};
    for (int i = 0; i < 2; i++) {
        assert_false(cases[i]->failed);
        const run_answer *a = run_one(&shared, WIRE_COMPLETION, cases[i]->bytes);
        assert_true(a->failed);
        assert_int_equal(a->http_status, 400);
        assert_string_equal(a->code, "context_length_exceeded");
        assert_string_equal(a->param, "prompt");
        assert_non_null(strstr(a->error, lengths[i]));
        assert_non_null(strstr(a->error, "1024"));
    }
    json_text_release(&text);
    json_text_release(&ids);
}

static void generation_ends_by_length_at_its_limit_or_the_contexts(void **state) {
    (void)state;
    const run_answer *a = run_one(&shared, WIRE_CHAT, STORY ",\"max_tokens\":5}");
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_LENGTH);
    assert_int_equal(a->choices[0].n_ids, 5);
    char *body = long_chat(900, ",\"ignore_eos\":true,\"max_tokens\":100000");
    a = run_one(&shared, WIRE_CHAT, body);
    free(body);
    assert_true(a->done);
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_LENGTH);
    assert_int_equal(a->usage.prompt_tokens + a->usage.completion_tokens, 1024);
}

static void a_deadline_ends_a_request_wherever_it_is(void **state) {
    (void)state;
    run_forget(&shared);
    for (uint64_t i = 0; i < 6; i++) { /* four run, two wait */
        wire_submit submit = {.request = i,
                              .kind = WIRE_CHAT,
                              .body = wire_text(STORY ",\"ignore_eos\":true}",
                                                strlen(STORY ",\"ignore_eos\":true}")),
                              .deadline_ms = 60};
        run_submit_wire(&shared, &submit);
    }
    run_submit(&shared, 6, WIRE_CHAT, ROSE "}");
    run_all(&shared);
    for (int i = 0; i < 6; i++) {
        assert_true(shared.answers[i].failed);
        assert_int_equal(shared.answers[i].http_status, 504);
    }
    assert_true(shared.answers[6].done);
}

static void a_second_request_of_the_same_name_is_not_taken(void **state) {
    (void)state;
    error err = {0};
    wire_submit submit = {
        .request = 0, .kind = WIRE_CHAT, .body = wire_text(ROSE "}", strlen(ROSE "}"))};
    run_forget(&shared);
    run_submit_wire(&shared, &submit);
    assert_int_equal(engine_submit(shared.e, &submit, &err), STATUS_BAD_INPUT);
    run_all(&shared);
    assert_true(shared.answers[0].done);
}

static void a_full_queue_takes_nothing_and_calls_nobody(void **state) {
    (void)state;
    error err = {0};
    run_forget(&shared);
    const char *many = STORY ",\"n\":128,\"max_tokens\":2}";
    wire_submit submit = {.kind = WIRE_CHAT, .body = wire_text(many, strlen(many))};
    status rc = STATUS_OK;
    uint64_t n = 0;
    for (; n < 8 && rc == STATUS_OK; n++) {
        submit.request = n;
        rc = engine_submit(shared.e, &submit, &err);
    }
    assert_int_equal(rc, STATUS_UNAVAILABLE);
    assert_int_equal(n, 3);
    assert_false(shared.answers[2].failed);
    for (uint64_t i = 0; i < 2; i++)
        assert_true(engine_cancel(shared.e, i, 0));
    run_all(&shared);
}

static void closing_ends_everyone(void **state) {
    (void)state;
    engine_params params = run_params();
    engine_run run = {0};
    params.n_sequences = 1;
    run_open(&run, &params);
    run_submit(&run, 0, WIRE_CHAT, STORY "}");
    run_submit(&run, 1, WIRE_CHAT, STORY "}");
    run_steps(&run, 3);
    engine_close(run.e);
    for (int i = 0; i < 2; i++) {
        assert_true(run.answers[i].failed);
        assert_int_equal(run.answers[i].http_status, 503);
        assert_true(run.answers[i].retryable);
    }
    free(run.answers);
    engine_close(NULL);
}

static void what_cannot_be_opened_says_why(void **state) {
    (void)state;
    const engine_sink sink = {NULL, run_tokens, run_done, run_error};
    error err = {0};
    engine *e = NULL;
    engine_params params = run_params();
    params.model_path = "/nowhere/model.gguf";
    assert_int_not_equal(engine_open(&e, &params, &sink, &err), STATUS_OK);
    assert_non_null(strstr(err.text, "/nowhere/model.gguf"));
    params = run_params();
    params.n_slots = 8;
    assert_int_equal(engine_open(&e, &params, &sink, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "slots = 8"));
    params = run_params();
    params.ram_mib = 8;
    assert_int_equal(engine_open(&e, &params, &sink, &err), STATUS_NO_MEMORY);
    assert_null(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cancelled_request_ends_at_once_and_harms_nobody),
        cmocka_unit_test(a_wrong_body_is_an_error_with_its_field),
        cmocka_unit_test(a_prompt_beyond_the_context_is_refused_with_both_numbers),
        cmocka_unit_test(a_completion_beyond_the_context_is_refused_with_both_numbers),
        cmocka_unit_test(generation_ends_by_length_at_its_limit_or_the_contexts),
        cmocka_unit_test(a_deadline_ends_a_request_wherever_it_is),
        cmocka_unit_test(a_second_request_of_the_same_name_is_not_taken),
        cmocka_unit_test(a_full_queue_takes_nothing_and_calls_nobody),
        cmocka_unit_test(closing_ends_everyone),
        cmocka_unit_test(what_cannot_be_opened_says_why),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
