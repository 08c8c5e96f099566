/* test_answers.c - what the answers of other APIs look like, with calls, cuts and restarts. */
#include "coordinator/answer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const token_stream_facts facts = {.node = "amber", .attempts = 1};
static const wire_done done = {.prompt_tokens = 10,
                               .cached_tokens = 4,
                               .completion_tokens = 6,
                               .reasoning_tokens = 2,
                               .hit_rate = -1};

typedef struct run {
    const answer_style *style;
    void *answer;
    json_text out;
} run;

static run open_run(const answer_style *style, const char *body) {
    chat_params p;
    error err = {0};
    char param[CHAT_PARAM_SIZE];
    assert_int_equal(style->read(&p, body, strlen(body), param, &err), STATUS_OK);
    const answer_params params = {"abc", 7, &p};
    run r = {.style = style, .answer = style->open(&params)};
    assert_non_null(r.answer);
    chat_params_release(&p);
    return r;
}

static void close_run(run *r) {
    r->style->release(r->answer);
    json_text_release(&r->out);
}

static void give(run *r, wire_tokens tokens) {
    error err = {0};
    assert_int_equal(r->style->add(r->answer, &tokens, &r->out, &err), STATUS_OK);
}

static wire_tokens piece(wire_channel channel, const char *text, wire_finish finish) {
    return (wire_tokens){
        .channel = channel, .text = wire_text(text, strlen(text)), .finish = finish};
}

static wire_tokens call(uint64_t number, const char *name, const char *arguments) {
    return (wire_tokens){.channel = WIRE_TOOL_CALL,
                         .call = number,
                         .call_name = wire_text(name, strlen(name)),
                         .text = wire_text(arguments, strlen(arguments))};
}

/* The reply, which the caller deletes. */
static cJSON *finish_whole(run *r) {
    r->style->finish(r->answer, &done, &facts, &r->out);
    assert_false(r->out.failed);
    cJSON *reply = cJSON_Parse(r->out.bytes);
    assert_non_null(reply);
    return reply;
}

static const char *path(const cJSON *root, const char *list, int index, const char *name) {
    const cJSON *item = cJSON_GetArrayItem(cJSON_GetObjectItem(root, list), index);
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(item, name));
    return text == NULL ? "(none)" : text;
}

static size_t count(const json_text *out, const char *words) {
    size_t n = 0;
    for (const char *at = out->bytes; (at = strstr(at, words)) != NULL; at++)
        n++;
    return n;
}

#define MESSAGE   "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]"
#define MESSAGES  "{\"model\":\"m\",\"max_tokens\":9,\"stop_sequences\":[\"y\",\"z\"]," MESSAGE
#define RESPONSES "{\"model\":\"m\",\"input\":\"q\""

static void give_calls(run *r) {
    give(r, piece(WIRE_REASONING, "hm", WIRE_FINISH_NONE));
    give(r, piece(WIRE_CONTENT, "so", WIRE_FINISH_NONE));
    give(r, call(0, "f", "{\"a\":"));
    give(r, call(0, "", "1}"));
    give(r, call(1, "g", "{}"));
    give(r, piece(WIRE_TOOL_CALL, "", WIRE_FINISH_TOOL_CALLS));
}

static void anthropic_tells_calls_as_blocks(void **state) {
    (void)state;
    run r = open_run(&answer_messages, MESSAGES "}");
    give_calls(&r);
    cJSON *reply = finish_whole(&r);
    assert_string_equal(path(reply, "content", 0, "thinking"), "hm");
    assert_string_equal(path(reply, "content", 1, "text"), "so");
    assert_string_equal(path(reply, "content", 2, "name"), "f");
    assert_string_equal(path(reply, "content", 3, "type"), "tool_use");
    const cJSON *input = cJSON_GetObjectItem(
        cJSON_GetArrayItem(cJSON_GetObjectItem(reply, "content"), 2), "input");
    assert_int_equal(cJSON_GetObjectItem(input, "a")->valueint, 1);
    assert_string_equal(cJSON_GetObjectItem(reply, "stop_reason")->valuestring, "tool_use");
    const cJSON *usage = cJSON_GetObjectItem(reply, "usage");
    assert_int_equal(cJSON_GetObjectItem(usage, "input_tokens")->valueint, 6);
    assert_int_equal(cJSON_GetObjectItem(usage, "cache_read_input_tokens")->valueint, 4);
    cJSON_Delete(reply);
    close_run(&r);
}

static void anthropic_streams_each_block_between_its_start_and_stop(void **state) {
    (void)state;
    run r = open_run(&answer_messages, MESSAGES ",\"stream\":true}");
    give_calls(&r);
    r.style->finish(r.answer, &done, &facts, &r.out);
    assert_int_equal(count(&r.out, "event: message_start\n"), 1);
    assert_int_equal(count(&r.out, "event: content_block_start\n"), 4);
    assert_int_equal(count(&r.out, "event: content_block_stop\n"), 4);
    assert_int_equal(count(&r.out, "\"type\":\"input_json_delta\""), 3);
    assert_int_equal(count(&r.out, "\"type\":\"signature_delta\""), 1);
    assert_int_equal(count(&r.out, "event: message_stop\n"), 1);
    close_run(&r);
}

static void anthropic_names_the_stop_that_came(void **state) {
    (void)state;
    run r = open_run(&answer_messages, MESSAGES "}");
    wire_tokens last = piece(WIRE_CONTENT, "x", WIRE_FINISH_STOP);
    last.flags = 2u << WIRE_FLAG_STOP_SHIFT;
    give(&r, last);
    cJSON *reply = finish_whole(&r);
    assert_string_equal(cJSON_GetObjectItem(reply, "stop_reason")->valuestring,
                        "stop_sequence");
    assert_string_equal(cJSON_GetObjectItem(reply, "stop_sequence")->valuestring, "z");
    cJSON_Delete(reply);
    close_run(&r);
}

static void a_call_that_was_cut_is_not_in_a_whole_reply(void **state) {
    (void)state;
    run r = open_run(&answer_messages, MESSAGES "}");
    give(&r, call(0, "f", "{}"));
    give(&r, call(1, "g", "{\"a"));
    wire_tokens last = piece(WIRE_TOOL_CALL, "", WIRE_FINISH_LENGTH);
    last.flags = WIRE_FLAG_CALL_CUT;
    give(&r, last);
    cJSON *reply = finish_whole(&r);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(reply, "content")), 1);
    assert_string_equal(cJSON_GetObjectItem(reply, "stop_reason")->valuestring, "max_tokens");
    cJSON_Delete(reply);
    close_run(&r);
}

static void what_began_again_is_told_once(void **state) {
    (void)state;
    const answer_style *const styles[] = {&answer_messages, &answer_responses,
                                          &answer_completion};
    const char *const bodies[] = {MESSAGES "}", RESPONSES "}",
                                  "{\"model\":\"m\",\"prompt\":\"q\"}"};
    for (size_t i = 0; i < 3; i++) {
        run r = open_run(styles[i], bodies[i]);
        give(&r, piece(WIRE_CONTENT, "alpha", WIRE_FINISH_NONE));
        r.style->restart(r.answer, 0, 1, false);
        give(&r, piece(WIRE_CONTENT, "omega", WIRE_FINISH_STOP));
        r.style->restart(r.answer, 0, 1, true); /* its end came without DONE */
        give(&r, piece(WIRE_CONTENT, "", WIRE_FINISH_STOP));
        cJSON *reply = finish_whole(&r);
        assert_int_equal(count(&r.out, "alpha"), 0);
        assert_int_equal(count(&r.out, "omega"), 1);
        cJSON_Delete(reply);
        close_run(&r);
    }
}

static void calls_out_of_turn_are_not_believed(void **state) {
    (void)state;
    run r = open_run(&answer_responses, RESPONSES "}");
    error err = {0};
    wire_tokens wrong = call(1, "f", "{}");
    assert_int_equal(r.style->add(r.answer, &wrong, &r.out, &err), STATUS_BAD_INPUT);
    wrong = call(0, "", "{}");
    assert_int_equal(r.style->add(r.answer, &wrong, &r.out, &err), STATUS_BAD_INPUT);
    close_run(&r);
}

static void a_response_tells_calls_as_items_in_both_forms(void **state) {
    (void)state;
    run r = open_run(&answer_responses, RESPONSES "}");
    give_calls(&r);
    cJSON *reply = finish_whole(&r);
    assert_string_equal(path(reply, "output", 0, "type"), "reasoning");
    assert_string_equal(path(reply, "output", 1, "type"), "message");
    assert_string_equal(path(reply, "output", 2, "arguments"), "{\"a\":1}");
    assert_string_equal(path(reply, "output", 3, "name"), "g");
    assert_string_equal(cJSON_GetObjectItem(reply, "status")->valuestring, "completed");
    cJSON_Delete(reply);
    close_run(&r);
    r = open_run(&answer_responses, RESPONSES ",\"stream\":true}");
    give_calls(&r);
    r.style->finish(r.answer, &done, &facts, &r.out);
    assert_int_equal(count(&r.out, "event: response.output_item.added\n"), 4);
    assert_int_equal(count(&r.out, "event: response.output_item.done\n"), 4);
    assert_int_equal(count(&r.out, "event: response.function_call_arguments.delta\n"), 3);
    assert_int_equal(count(&r.out, "event: response.function_call_arguments.done\n"), 2);
    assert_int_equal(count(&r.out, "event: response.completed\n"), 1);
    close_run(&r);
}

static void a_stream_that_fails_says_so_and_never_that_it_is_whole(void **state) {
    (void)state;
    const answer_style *const styles[] = {&answer_messages, &answer_responses,
                                          &answer_completion};
    const char *const bodies[] = {MESSAGES ",\"stream\":true}", RESPONSES ",\"stream\":true}",
                                  "{\"model\":\"m\",\"prompt\":\"q\",\"stream\":true}"};
    const answer_failure failure = {503, "node_lost", "", "the \"node\" is lost"};
    for (size_t i = 0; i < 3; i++) {
        run r = open_run(styles[i], bodies[i]);
        give(&r, piece(WIRE_CONTENT, "some", WIRE_FINISH_NONE));
        r.style->break_off(r.answer, &failure, &r.out);
        assert_true(count(&r.out, "the \\\"node\\\" is lost") > 0);
        assert_int_equal(count(&r.out, "message_stop"), 0);
        assert_int_equal(count(&r.out, "response.completed"), 0);
        assert_int_equal(count(&r.out, "[DONE]"), 0);
        assert_string_equal(r.out.bytes + r.out.length - 2, "\n\n");
        close_run(&r);
    }
}

static void logprobs_of_completions_come_in_columns(void **state) {
    (void)state;
    run r = open_run(&answer_completion, "{\"model\":\"m\",\"prompt\":\"q\",\"logprobs\":1}");
    static const char first[] = "[{\"token\":\"\303\274\",\"logprob\":-0.5,\"bytes\":[195,188],"
                                "\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-1}]}]";
    static const char second[] = "[{\"token\":\"b\",\"logprob\":-2,\"top_logprobs\":[]}]";
    wire_tokens t = piece(WIRE_CONTENT, "\303\274", WIRE_FINISH_NONE);
    t.logprobs = wire_text(first, sizeof first - 1);
    give(&r, t);
    t = piece(WIRE_CONTENT, "b", WIRE_FINISH_LENGTH);
    t.logprobs = wire_text(second, sizeof second - 1);
    give(&r, t);
    cJSON *reply = finish_whole(&r);
    assert_non_null(
        strstr(r.out.bytes,
               "\"logprobs\":{\"tokens\":[\"\303\274\",\"b\"],\"token_logprobs\":[-0.5,-2],"
               "\"top_logprobs\":[{\"a\":-1},{}],\"text_offset\":[0,1]}"));
    cJSON_Delete(reply);
    close_run(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anthropic_tells_calls_as_blocks),
        cmocka_unit_test(anthropic_streams_each_block_between_its_start_and_stop),
        cmocka_unit_test(anthropic_names_the_stop_that_came),
        cmocka_unit_test(a_call_that_was_cut_is_not_in_a_whole_reply),
        cmocka_unit_test(what_began_again_is_told_once),
        cmocka_unit_test(calls_out_of_turn_are_not_believed),
        cmocka_unit_test(a_response_tells_calls_as_items_in_both_forms),
        cmocka_unit_test(a_stream_that_fails_says_so_and_never_that_it_is_whole),
        cmocka_unit_test(logprobs_of_completions_come_in_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
