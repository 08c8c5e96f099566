/* test_job.c - a body is understood or refused with the field at fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/job.h"
#include <stdio.h>
#include <string.h>

enum { V = 1000 };

static const sampler_params DEFAULTS = {
    .temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1};

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static job parse(wire_kind kind, const char *body) {
    job j;
    error err = {0};
    char param[CHAT_PARAM_SIZE];
    status rc = job_parse(&j, kind, body, strlen(body), V, &DEFAULTS, param, &err);
    if (rc != STATUS_OK) fail_msg("%s: %s (%s)", body, err.text, param);
    assert_string_equal(param, "");
    return j;
}

static void assert_refused(wire_kind kind, const char *body, const char *want_param) {
    job j;
    error err = {0};
    char param[CHAT_PARAM_SIZE];
    status rc = job_parse(&j, kind, body, strlen(body), V, &DEFAULTS, param, &err);
    if (rc != STATUS_BAD_INPUT) fail_msg("%s was not refused", body);
    if (strcmp(param, want_param) != 0) {
        fail_msg("%s: param is '%s', not '%s'", body, param, want_param);
    }
    if (want_param[0] != '\0' && strstr(err.text, want_param) == NULL) {
        fail_msg("%s: '%s' does not name the field", body, err.text);
    }
    assert_null(j.body); /* nothing is left to release */
    assert_null(j.biases);
}

static void a_silent_request_gets_the_defaults(void **state) {
    (void)state;
    job j = parse(WIRE_CHAT, "{" MESSAGES "}");
    assert_float_equal(j.sampling.temperature, 0.6, 1e-6);
    assert_float_equal(j.sampling.top_p, 0.95, 1e-6);
    assert_int_equal(j.sampling.top_k, 20);
    assert_int_equal(j.n_choices, 1);
    assert_int_equal(j.max_tokens, 0);
    assert_false(j.has_seed);
    assert_false(j.logprobs);
    assert_null(j.prompt);
    job_release(&j);
    j = parse(WIRE_CHAT, "{" MESSAGES ",\"temperature\":null,\"stop\":null,\"unknown\":[1]}");
    assert_float_equal(j.sampling.temperature, 0.6, 1e-6);
    job_release(&j);
}

static void every_field_is_read(void **state) {
    (void)state;
    job j =
        parse(WIRE_CHAT,
              "{" MESSAGES ",\"temperature\":0.25,\"top_p\":0.5,\"top_k\":-1,\"min_p\":0.125,"
              "\"repetition_penalty\":1.5,\"presence_penalty\":-2,\"frequency_penalty\":2,"
              "\"seed\":-9223372036854775808,\"n\":3,\"max_tokens\":9,"
              "\"max_completion_tokens\":7,\"stop\":[\"a\",\"bc\"],\"logprobs\":true,"
              "\"top_logprobs\":5,\"logit_bias\":{\"7\":-100,\"999\":0.5},"
              "\"ignore_eos\":true,\"response_format\":{\"type\":\"text\"}}");
    assert_float_equal(j.sampling.temperature, 0.25, 0);
    assert_float_equal(j.sampling.top_p, 0.5, 0);
    assert_float_equal(j.sampling.min_p, 0.125, 0);
    assert_int_equal(j.sampling.top_k, 0);
    assert_float_equal(j.sampling.repetition_penalty, 1.5, 0);
    assert_float_equal(j.sampling.presence_penalty, -2, 0);
    assert_float_equal(j.sampling.frequency_penalty, 2, 0);
    assert_true(j.has_seed && j.sampling.seed == (uint64_t)1 << 63);
    assert_int_equal(j.n_choices, 3);
    assert_int_equal(j.max_tokens, 7);
    assert_int_equal(j.n_stops, 2);
    assert_memory_equal(j.stops[1].bytes, "bc", 2);
    assert_true(j.logprobs && j.ignore_end);
    assert_int_equal(j.n_top_logprobs, 5);
    assert_int_equal(j.sampling.n_biases, 2);
    assert_int_equal(j.sampling.biases[1].id, 999);
    assert_float_equal(j.sampling.biases[1].bias, 0.5, 0);
    job_release(&j);
    job_release(&j); /* a released one may be released again */
}

static int64_t thinking_of(const char *fields, bool *has_switch) {
    char body[512];
    (void)snprintf(body, sizeof body, "{" MESSAGES "%s}", fields);
    job j = parse(WIRE_CHAT, body);
    int64_t n = j.max_thinking_tokens;
    const cJSON *kwargs = cJSON_GetObjectItem(j.body, "chat_template_kwargs");
    *has_switch = cJSON_IsFalse(cJSON_GetObjectItem(kwargs, "enable_thinking"));
    job_release(&j);
    return n;
}

static void of_several_thinking_budgets_the_smallest_counts(void **state) {
    (void)state;
    static const struct {
        const char *fields;
        int64_t want;
        bool off;
    } cases[] = {
        {"", -1, false},
        {",\"max_thinking_tokens\":300", 300, false},
        {",\"reasoning_effort\":\"minimal\"", 64, false},
        {",\"reasoning_effort\":\"low\"", 256, false},
        {",\"reasoning_effort\":\"medium\"", 1024, false},
        {",\"reasoning_effort\":\"high\"", 4096, false},
        {",\"reasoning_effort\":\"none\"", 0, true},
        {",\"reasoning_effort\":\"low\",\"max_thinking_tokens\":300", 256, false},
        {",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":100},"
         "\"max_thinking_tokens\":300",
         100, false},
        {",\"thinking\":{\"type\":\"disabled\",\"budget_tokens\":100}", 0, true},
        {",\"max_thinking_tokens\":0,\"chat_template_kwargs\":{\"enable_thinking\":true}", 0,
         true},
        {",\"max_tokens\":3", 0, true}, /* no thought fits */
        {",\"max_tokens\":4", -1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool off = false;
        int64_t n = thinking_of(cases[i].fields, &off);
        if (n != cases[i].want || off != cases[i].off)
            fail_msg("%s: %lld, off %d", cases[i].fields, (long long)n, off);
    }
}

static void integers_may_be_written_as_reals(void **state) {
    (void)state;
    job j = parse(WIRE_CHAT, "{" MESSAGES ",\"max_tokens\":1e2,\"seed\":5.0}");
    assert_int_equal(j.max_tokens, 100);
    assert_int_equal(j.sampling.seed, 5);
    job_release(&j);
}

static void a_completion_takes_text_or_ids(void **state) {
    (void)state;
    job j = parse(WIRE_COMPLETION, "{\"prompt\":\"once\",\"logprobs\":2,\"best_of\":1}");
    assert_string_equal(j.prompt->valuestring, "once");
    assert_true(j.logprobs);
    assert_int_equal(j.n_top_logprobs, 2);
    job_release(&j);
    j = parse(WIRE_COMPLETION, "{\"prompt\":[1,2,999]}");
    assert_int_equal(cJSON_GetArraySize(j.prompt), 3);
    job_release(&j);
    j = parse(WIRE_TOKENIZE, "{\"content\":\"x\"}");
    assert_string_equal(j.prompt->valuestring, "x");
    job_release(&j);
    j = parse(WIRE_COUNT, "{\"prompt\":\"x\"}");
    assert_non_null(j.prompt);
    job_release(&j);
}

static void wrong_fields_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *fields, *param;
    } cases[] = {
        {"\"temperature\":-0.1", "temperature"},
        {"\"temperature\":2.5", "temperature"},
        {"\"temperature\":1e999", "temperature"},
        {"\"temperature\":\"0\"", "temperature"},
        {"\"top_p\":1.01", "top_p"},
        {"\"min_p\":-1", "min_p"},
        {"\"top_k\":-2", "top_k"},
        {"\"top_k\":1.5", "top_k"},
        {"\"top_k\":99999999999", "top_k"},
        {"\"repetition_penalty\":0", "repetition_penalty"},
        {"\"presence_penalty\":3", "presence_penalty"},
        {"\"frequency_penalty\":-3", "frequency_penalty"},
        {"\"seed\":1.5", "seed"},
        {"\"seed\":9223372036854775808", "seed"},
        {"\"n\":0", "n"},
        {"\"n\":129", "n"},
        {"\"n\":true", "n"},
        {"\"max_tokens\":0", "max_tokens"},
        {"\"max_tokens\":-5", "max_tokens"},
        {"\"max_tokens\":99999999999999999999", "max_tokens"},
        {"\"max_completion_tokens\":\"many\"", "max_completion_tokens"},
        {"\"stop\":5", "stop"},
        {"\"stop\":\"\"", "stop"},
        {"\"stop\":[\"a\",7]", "stop[1]"},
        {"\"stop\":[\"a\",\"\"]", "stop[1]"},
        {"\"logprobs\":1", "logprobs"},
        {"\"top_logprobs\":2", "top_logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
        {"\"logit_bias\":[]", "logit_bias"},
        {"\"logit_bias\":{\"1000\":1}", "logit_bias.1000"},
        {"\"logit_bias\":{\"x\":1}", "logit_bias.x"},
        {"\"logit_bias\":{\"1\":101}", "logit_bias.1"},
        {"\"logit_bias\":{\"1\":1,\"2\":\"3\"}", "logit_bias.2"},
        {"\"ignore_eos\":1", "ignore_eos"},
        {"\"response_format\":{\"type\":\"xml\"}", "response_format.type"},
        {"\"response_format\":{\"type\":\"json_schema\"}",
         "response_format.json_schema.schema"},
        {"\"response_format\":7", "response_format.type"},
        {"\"max_thinking_tokens\":-1", "max_thinking_tokens"},
        {"\"max_answer_tokens\":0", "max_answer_tokens"},
        {"\"thinking\":\"much\"", "thinking"},
        {"\"thinking\":{\"type\":7}", "thinking.type"},
        {"\"thinking\":{\"type\":\"maybe\"}", "thinking.type"},
        {"\"thinking\":{\"budget_tokens\":2147483648}", "thinking.budget_tokens"},
        {"\"reasoning_effort\":\"extreme\"", "reasoning_effort"},
        {"\"reasoning_effort\":3", "reasoning_effort"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[512];
        (void)snprintf(body, sizeof body, "{" MESSAGES ",%s}", cases[i].fields);
        assert_refused(WIRE_CHAT, body, cases[i].param);
    }
}

static void a_list_of_too_many_is_refused(void **state) {
    (void)state;
    json_text body = {0};
    json_text_format(&body, "{" MESSAGES ",\"stop\":[\"0\"");
    for (int i = 1; i <= STOP_MATCH_MAX_STRINGS; i++)
        json_text_format(&body, ",\"%d\"", i);
    json_text_format(&body, "]}");
    assert_refused(WIRE_CHAT, body.bytes, "stop");
    json_text_clear(&body);
    json_text_format(&body, "{" MESSAGES ",\"logit_bias\":{\"0\":1");
    for (int i = 1; i <= SAMPLER_MAX_BIASES; i++)
        json_text_format(&body, ",\"%d\":1", i);
    json_text_format(&body, "}}");
    assert_refused(WIRE_CHAT, body.bytes, "logit_bias");
    json_text_release(&body);
}

static void a_forced_tool_is_named_where_it_is_certain(void **state) {
    (void)state;
#define F "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"
#define G "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}"
    static const struct {
        const char *more, *forced;
        bool single;
    } cases[] = {
        {"\"tools\":[" F "]", NULL, false},
        {"\"tools\":[" F "],\"tool_choice\":\"auto\",\"parallel_tool_calls\":false", NULL,
         true},
        {"\"tools\":[" F "],\"tool_choice\":\"required\"", "f", false},
        {"\"tools\":[" F "," G "],\"tool_choice\":\"required\"", "", false},
        {"\"tools\":[" F "," G "],\"tool_choice\":" G, "g", true},
    };
    const sampler_params defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[600], param[CHAT_PARAM_SIZE];
        job j;
        error err = {0};
        (void)snprintf(body, sizeof body,
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],%s}",
                       cases[i].more);
        if (job_parse(&j, WIRE_CHAT, body, strlen(body), 100, &defaults, param, &err) !=
            STATUS_OK) {
            fail_msg("%s: %s", body, err.text);
        }
        assert_non_null(j.tools);
        assert_int_equal(j.forced_tool == NULL, cases[i].forced == NULL);
        if (cases[i].forced != NULL) assert_string_equal(j.forced_tool, cases[i].forced);
        assert_int_equal(j.single_call, cases[i].single);
        job_release(&j);
    }
    assert_refused(WIRE_CHAT,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[" F
                   "],\"tool_choice\":" G "}",
                   "tool_choice");
    assert_refused(
        WIRE_CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":\"required\"}",
        "tool_choice");
}

static void wrong_inputs_are_refused_by_name(void **state) {
    (void)state;
    assert_refused(WIRE_CHAT, "", "");
    assert_refused(WIRE_CHAT, "{", "");
    assert_refused(WIRE_CHAT, "[]", "");
    assert_refused(WIRE_CHAT, "{}", "messages");
    assert_refused(WIRE_CHAT, "{\"messages\":7}", "messages");
    assert_refused(WIRE_CHAT, "{\"messages\":[]}", "messages");
    assert_refused(WIRE_COUNT, "{}", "messages");
    assert_refused(WIRE_COMPLETION, "{}", "prompt");
    assert_refused(WIRE_COMPLETION, "{\"prompt\":5}", "prompt");
    assert_refused(WIRE_COMPLETION, "{\"prompt\":[1,1000]}", "prompt[1]");
    assert_refused(WIRE_COMPLETION, "{\"prompt\":[-1]}", "prompt[0]");
    assert_refused(WIRE_COMPLETION, "{\"prompt\":[\"a\",\"b\"]}", "prompt[0]");
    assert_refused(WIRE_COMPLETION, "{\"prompt\":\"x\",\"echo\":true}", "echo");
    assert_refused(WIRE_COMPLETION, "{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix");
    assert_refused(WIRE_COMPLETION, "{\"prompt\":\"x\",\"best_of\":4}", "best_of");
    assert_refused(WIRE_TOKENIZE, "{}", "content");
    assert_refused(WIRE_EMBED, "{\"input\":\"x\"}", "");
}

static void the_files_sampling_keys_are_the_defaults(void **state) {
    (void)state;
    gguf_file *file = NULL;
    error err = {0};
    sampler_params p;
    assert_int_equal(gguf_open(&file, "deploy/models/demo.gguf", &err), STATUS_OK);
    job_default_sampling(&p, file); /* the demo file has none: OpenAI's */
    assert_float_equal(p.temperature, 1, 0);
    assert_float_equal(p.top_p, 1, 0);
    assert_float_equal(p.repetition_penalty, 1, 0);
    assert_int_equal(p.top_k, 0);
    gguf_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silent_request_gets_the_defaults),
        cmocka_unit_test(every_field_is_read),
        cmocka_unit_test(of_several_thinking_budgets_the_smallest_counts),
        cmocka_unit_test(integers_may_be_written_as_reals),
        cmocka_unit_test(a_completion_takes_text_or_ids),
        cmocka_unit_test(wrong_fields_are_refused_by_name),
        cmocka_unit_test(a_list_of_too_many_is_refused),
        cmocka_unit_test(a_forced_tool_is_named_where_it_is_certain),
        cmocka_unit_test(wrong_inputs_are_refused_by_name),
        cmocka_unit_test(the_files_sampling_keys_are_the_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
