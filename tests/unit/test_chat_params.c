/* test_chat_params.c - what of a chat request is refused, ignored, normalised and forwarded. */
#include "coordinator/chat_params.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define M "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]"

static status read_text(chat_params *p, const char *text, char param[CHAT_PARAM_SIZE],
                        error *err) {
    return chat_params_read(p, text, strlen(text), param, err);
}

static void each_wrong_field_is_named_with_its_value(void **state) {
    (void)state;
    static const struct {
        const char *text, *param, *word;
    } cases[] = {
        {"{", "", "request body"},
        {"[]", "", "not a JSON object"},
        {"{}", "model", "missing"},
        {"{\"model\":\"m\"}", "messages", "missing"},
        {"{\"model\":\"m\",\"messages\":[]}", "messages", "empty"},
        {"{\"model\":\"\",\"messages\":[1]}", "model", "missing"},
        {"{" M ",\"max_tokens\":0}", "max_tokens", "0"},
        {"{" M ",\"max_completion_tokens\":-7}", "max_completion_tokens", "-7"},
        {"{" M ",\"max_tokens\":2.5}", "max_tokens", "2.5"},
        {"{" M ",\"max_tokens\":1e400}", "max_tokens", "1e400"},
        {"{" M ",\"temperature\":2.01}", "temperature", "2.01"},
        {"{" M ",\"temperature\":true}", "temperature", "true"},
        {"{" M ",\"top_k\":-2}", "top_k", "-2"},
        {"{" M ",\"seed\":1e17}", "seed", "1e17"},
        {"{" M ",\"seed\":9223372036854775808}", "seed", "9223372036854775808"},
        {"{" M ",\"seed\":\"1\"}", "seed", "at most 64 bits"},
        {"{" M ",\"n\":129}", "n", "129"},
        {"{" M ",\"stop\":[1]}", "stop", "[1]"},
        {"{" M ",\"stop\":\"\"}", "stop", "\"\""},
        {"{" M ",\"logprobs\":1}", "logprobs", "1"},
        {"{" M ",\"top_logprobs\":3}", "top_logprobs", "3"},
        {"{" M ",\"top_logprobs\":21,\"logprobs\":true}", "top_logprobs", "21"},
        {"{" M ",\"logit_bias\":{\"x\":1}}", "logit_bias", "logit_bias.x"},
        {"{" M ",\"logit_bias\":{\"3\":101}}", "logit_bias.3", "101"},
        {"{" M ",\"reasoning_effort\":\"huge\"}", "reasoning_effort", "huge"},
        {"{" M ",\"reasoning_effort\":\"max\"}", "reasoning_effort",
         "one of none minimal low medium high xhigh"},
        {"{" M ",\"reasoning_effort\":\"low|high\"}", "reasoning_effort", "low|high"},
        {"{" M ",\"stream_options\":[]}", "stream_options", "[]"},
        {"{" M ",\"tool_choice\":\"required\"}", "tool_choice", "required"},
        {"{" M ",\"tool_choice\":\"often\"}", "tool_choice", "none, auto, required"},
        {"{" M ",\"tool_choice\":{\"type\":\"function\"}}", "tool_choice",
         "none, auto, required"},
        {"{" M ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}}",
         "tool_choice", "possible with these tools"},
        {"{" M ",\"parallel_tool_calls\":1}", "parallel_tool_calls", "1"},
        {"{" M ",\"response_format\":{\"type\":\"xml\"}}", "response_format.type", "xml"},
        {"{" M ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}",
         "response_format.json_schema.schema", "schema"},
        {"{" M ",\"chat_template_kwargs\":{\"enable_thinking\":\"no\"}}",
         "chat_template_kwargs.enable_thinking", "no"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        chat_params p;
        char param[CHAT_PARAM_SIZE];
        error err = {0};
        status rc = read_text(&p, cases[i].text, param, &err);
        if (rc != STATUS_BAD_INPUT || strcmp(param, cases[i].param) != 0 ||
            strstr(err.text, cases[i].word) == NULL) {
            fail_msg("%s: %d param '%s' text '%s'", cases[i].text, (int)rc, param, err.text);
        }
        assert_null(p.body);
    }
}

static void known_fields_reach_the_worker_and_others_do_not(void **state) {
    (void)state;
    chat_params p;
    char param[CHAT_PARAM_SIZE];
    error err = {0};
    assert_int_equal(
        read_text(
            &p,
            "{" M ",\"user\":\"u\",\"store\":[{}],\"temperature\":0.70,\"stream\":true,"
            "\"stream_options\":{\"include_usage\":true},\"max_tokens\":9,\"n\":2,"
            "\"seed\":12345678901,\"top_p\":null,\"response_format\":{\"type\":\"text\"}}",
            param, &err),
        STATUS_OK);
    assert_true(p.stream && p.include_usage);
    assert_int_equal(p.n_choices, 2);
    assert_int_equal(p.max_tokens, 9);
    assert_int_equal(p.prompt_bytes, strlen("userhello"));
    assert_non_null(strstr(p.body, "\"temperature\":0.70"));
    assert_non_null(strstr(p.body, "\"seed\":12345678901"));
    assert_non_null(strstr(p.body, "response_format"));
    static const char *const absent[] = {"user\":\"u", "store", "stream", "top_p"};
    for (size_t i = 0; i < 4; i++)
        assert_null(strstr(p.body, absent[i]));
    chat_params_release(&p);
}

static void a_repeated_field_counts_once_and_is_checked(void **state) {
    (void)state;
    chat_params p;
    char param[CHAT_PARAM_SIZE];
    error err = {0};
    if (read_text(&p, "{" M ",\"temperature\":null,\"temperature\":\"x\"}", param, &err) ==
        STATUS_OK) {
        fail_msg("an unchecked second value got through: %s", p.body);
    }
}

static void tool_choice_none_hides_the_tools(void **state) {
    (void)state;
    static const char tools[] =
        ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]";
    for (int none = 0; none <= 1; none++) {
        char text[400];
        (void)snprintf(text, sizeof text, "{" M "%s,\"tool_choice\":\"%s\"}", tools,
                       none ? "none" : "auto");
        chat_params p;
        char param[CHAT_PARAM_SIZE];
        error err = {0};
        assert_int_equal(read_text(&p, text, param, &err), STATUS_OK);
        assert_int_equal(strstr(p.body, "tools") == NULL, none);
        chat_params_release(&p);
    }
}

static void assert_forwards(const char *more, const char *forwarded) {
    chat_params p;
    char param[CHAT_PARAM_SIZE], text[400];
    error err = {0};
    (void)snprintf(text, sizeof text, "{" M ",%s}", more);
    if (read_text(&p, text, param, &err) != STATUS_OK) fail_msg("%s", err.text);
    if (strstr(p.body, forwarded) == NULL) fail_msg("%s: %s", more, p.body);
    chat_params_release(&p);
}

static void assert_refuses(const char *more, const char *field) {
    chat_params p;
    char param[CHAT_PARAM_SIZE], text[400];
    error err = {0};
    (void)snprintf(text, sizeof text, "{" M ",%s}", more);
    assert_int_equal(read_text(&p, text, param, &err), STATUS_BAD_INPUT);
    assert_string_equal(param, field);
}

static void a_forced_call_is_the_worker_s_to_make(void **state) {
    (void)state;
#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
    assert_forwards(TOOLS ",\"tool_choice\":\"required\"", "\"tool_choice\":\"required\"");
    assert_forwards(TOOLS
                    ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}",
                    "\"function\":{\"name\":\"f\"}}");
    assert_forwards(TOOLS ",\"parallel_tool_calls\":false", "\"parallel_tool_calls\":false");
    assert_refuses(TOOLS
                   ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}",
                   "tool_choice");
}

static void thinking_is_switched_in_three_ways(void **state) {
    (void)state;
    static const char off[] = "\"chat_template_kwargs\":{\"enable_thinking\":false}";
    static const char on[] = "\"chat_template_kwargs\":{\"enable_thinking\":true}";
    assert_forwards("\"reasoning_effort\":\"none\"", off);
    assert_forwards("\"enable_thinking\":false", off);
    assert_forwards("\"enable_thinking\":true,\"reasoning_effort\":\"none\"", on);
    assert_forwards(
        "\"enable_thinking\":true,\"chat_template_kwargs\":{\"enable_thinking\":false}", off);
    assert_forwards(
        "\"enable_thinking\":true,\"chat_template_kwargs\":{\"enable_thinking\":null}", on);
}

static void budgets_are_checked_and_reach_the_worker(void **state) {
    (void)state;
    static const char *const fine[] = {
        "\"reasoning_effort\":\"high\"", "\"max_thinking_tokens\":0", "\"max_answer_tokens\":5",
        "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2048}"};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
        assert_forwards(fine[i], fine[i]);
    assert_refuses("\"max_thinking_tokens\":-1", "max_thinking_tokens");
    assert_refuses("\"max_answer_tokens\":0", "max_answer_tokens");
    assert_refuses("\"thinking\":true", "thinking");
    assert_refuses("\"thinking\":{\"type\":\"sometimes\"}", "thinking.type");
    assert_refuses("\"thinking\":{\"budget_tokens\":1.5}", "thinking.budget_tokens");
    assert_refuses("\"reasoning_effort\":\"extreme\"", "reasoning_effort");
}

static void a_seed_of_64_bits_keeps_its_digits(void **state) {
    (void)state;
    assert_forwards("\"seed\":9223372036854775807", "\"seed\":9223372036854775807");
    assert_forwards("\"seed\":-9223372036854775808", "\"seed\":-9223372036854775808");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_wrong_field_is_named_with_its_value),
        cmocka_unit_test(known_fields_reach_the_worker_and_others_do_not),
        cmocka_unit_test(a_repeated_field_counts_once_and_is_checked),
        cmocka_unit_test(tool_choice_none_hides_the_tools),
        cmocka_unit_test(a_forced_call_is_the_worker_s_to_make),
        cmocka_unit_test(thinking_is_switched_in_three_ways),
        cmocka_unit_test(budgets_are_checked_and_reach_the_worker),
        cmocka_unit_test(a_seed_of_64_bits_keeps_its_digits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
