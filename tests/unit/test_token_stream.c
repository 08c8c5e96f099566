/* test_token_stream.c - the bytes that clients parse. */
#include "coordinator/token_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static token_stream open_stream(bool streaming, bool usage, size_t n) {
    token_stream ts;
    token_stream_params params = {.id = "id-1",
                                  .model = "m\"x",
                                  .created_s = 7,
                                  .n_choices = n,
                                  .streaming = streaming,
                                  .include_usage = usage};
    assert_int_equal(token_stream_init(&ts, &params, NULL), STATUS_OK);
    return ts;
}

static wire_tokens piece(uint64_t choice, wire_channel channel, const char *text,
                         wire_finish finish) {
    return (wire_tokens){.choice = choice,
                         .channel = channel,
                         .finish = finish,
                         .text = wire_text(text, strlen(text))};
}

static void add(token_stream *ts, json_text *out, wire_tokens t) {
    error err = {0};
    assert_int_equal(token_stream_add(ts, &t, out, &err), STATUS_OK);
}

static const wire_done done = {.prompt_tokens = 10,
                               .cached_tokens = 4,
                               .completion_tokens = 6,
                               .reasoning_tokens = 2,
                               .prefill_ms = 3,
                               .decode_ms = 12,
                               .hit_rate = 0.5,
                               .misses_per_token = 1.5};
static const token_stream_facts facts = {.node = "amber", .attempts = 1};

/* The events of a stream as a list of trees; checks the framing on the way. */
static cJSON *events_of(const json_text *out, bool *ends_well) {
    cJSON *list = cJSON_CreateArray();
    const char *at = out->bytes;
    *ends_well = false;
    while (*at != '\0') {
        assert_false(*ends_well);
        assert_memory_equal(at, "data: ", 6);
        const char *end = strstr(at, "\n\n");
        assert_non_null(end);
        assert_true(memchr(at, '\n', (size_t)(end - at)) == NULL);
        if (strncmp(at + 6, "[DONE]", 6) == 0) {
            *ends_well = true;
        } else {
            cJSON *event = cJSON_ParseWithLength(at + 6, (size_t)(end - at - 6));
            assert_non_null(event);
            (void)cJSON_AddItemToArray(list, event);
        }
        at = end + 2;
    }
    return list;
}

static const cJSON *dig(const cJSON *tree, const char *a, const char *b) {
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(tree, a);
    return b == NULL ? x : cJSON_GetObjectItemCaseSensitive(x, b);
}

static const cJSON *choice_of(const cJSON *event) {
    return cJSON_GetArrayItem(dig(event, "choices", NULL), 0);
}

static void a_stream_has_role_reasoning_content_end_usage_and_done(void **state) {
    (void)state;
    for (int usage = 0; usage <= 1; usage++) {
        token_stream ts = open_stream(true, usage, 1);
        json_text out = {0};
        add(&ts, &out, piece(0, WIRE_REASONING, "hm\n\"", WIRE_FINISH_NONE));
        add(&ts, &out,
            piece(0, WIRE_CONTENT, "", WIRE_FINISH_NONE)); /* half a character so far */
        add(&ts, &out, piece(0, WIRE_CONTENT, "é", WIRE_FINISH_STOP));
        token_stream_finish(&ts, &done, &facts, &out);
        bool ends_well;
        cJSON *events = events_of(&out, &ends_well);
        assert_true(ends_well);
        assert_int_equal(cJSON_GetArraySize(events), usage ? 5 : 4);
        const cJSON *e = events->child;
        assert_string_equal(dig(choice_of(e), "delta", "role")->valuestring, "assistant");
        assert_string_equal(dig(e, "model", NULL)->valuestring, "m\"x");
        e = e->next;
        assert_string_equal(dig(choice_of(e), "delta", "reasoning_content")->valuestring,
                            "hm\n\"");
        assert_true(cJSON_IsNull(dig(choice_of(e), "finish_reason", NULL)));
        e = e->next;
        assert_string_equal(dig(choice_of(e), "delta", "content")->valuestring, "é");
        e = e->next;
        assert_string_equal(dig(choice_of(e), "finish_reason", NULL)->valuestring, "stop");
        assert_int_equal(dig(e, "timings", "predicted_per_second")->valueint, 500);
        assert_int_equal(dig(e, "timings", "prompt_n")->valueint, 6);
        assert_string_equal(dig(e, "siliceo", "node")->valuestring, "amber");
        assert_null(dig(e, "usage", NULL));
        if (usage) {
            e = e->next;
            assert_int_equal(cJSON_GetArraySize(dig(e, "choices", NULL)), 0);
            assert_int_equal(dig(e, "usage", "total_tokens")->valueint, 16);
        }
        cJSON_Delete(events);
        json_text_release(&out);
        token_stream_release(&ts);
    }
}

static void several_choices_each_have_one_role_and_one_end(void **state) {
    (void)state;
    token_stream ts = open_stream(true, false, 2);
    json_text out = {0};
    add(&ts, &out, piece(1, WIRE_CONTENT, "b", WIRE_FINISH_LENGTH));
    add(&ts, &out, piece(0, WIRE_CONTENT, "a", WIRE_FINISH_NONE));
    add(&ts, &out, piece(0, WIRE_CONTENT, "", WIRE_FINISH_STOP));
    token_stream_finish(&ts, &done, &facts, &out);
    bool ends_well;
    cJSON *events = events_of(&out, &ends_well);
    int roles[2] = {0}, ends[2] = {0};
    for (const cJSON *e = events->child; e != NULL; e = e->next) {
        const cJSON *c = choice_of(e);
        int i = dig(c, "index", NULL)->valueint;
        roles[i] += dig(c, "delta", "role") != NULL;
        ends[i] += cJSON_IsString(dig(c, "finish_reason", NULL));
    }
    assert_true(ends_well && roles[0] == 1 && roles[1] == 1 && ends[0] == 1 && ends[1] == 1);
    cJSON_Delete(events);
    json_text_release(&out);
    token_stream_release(&ts);
}

static void a_whole_reply_holds_all_parts(void **state) {
    (void)state;
    token_stream ts = open_stream(false, false, 1);
    json_text out = {0};
    add(&ts, &out, piece(0, WIRE_CONTENT, "lost", WIRE_FINISH_STOP));
    token_stream_restart(&ts);
    add(&ts, &out, piece(0, WIRE_REASONING, "why", WIRE_FINISH_NONE));
    wire_tokens t = piece(0, WIRE_CONTENT, "a", WIRE_FINISH_NONE);
    t.logprobs = wire_text("[{\"token\":\"a\"}]", 15);
    add(&ts, &out, t);
    t.finish = WIRE_FINISH_LENGTH;
    add(&ts, &out, t);
    assert_int_equal(out.length, 0);
    token_stream_finish(&ts, &done, &facts, &out);
    cJSON *reply = cJSON_Parse(out.bytes);
    const cJSON *c = choice_of(reply);
    assert_string_equal(dig(reply, "object", NULL)->valuestring, "chat.completion");
    assert_string_equal(dig(c, "message", "content")->valuestring, "aa");
    assert_string_equal(dig(c, "message", "reasoning_content")->valuestring, "why");
    assert_string_equal(dig(c, "finish_reason", NULL)->valuestring, "length");
    assert_int_equal(cJSON_GetArraySize(dig(c, "logprobs", "content")), 2);
    assert_int_equal(dig(reply, "usage", "completion_tokens")->valueint, 6);
    cJSON_Delete(reply);
    json_text_release(&out);
    token_stream_release(&ts);
}

static wire_tokens call_piece(uint64_t call, const char *name, const char *arguments) {
    wire_tokens t = piece(0, WIRE_TOOL_CALL, arguments, WIRE_FINISH_NONE);
    t.call = call;
    t.call_name = wire_text(name, strlen(name));
    return t;
}

static void add_two_calls(token_stream *ts, json_text *out, bool cut) {
    add(ts, out, call_piece(0, "f", ""));
    add(ts, out, call_piece(0, "", "{\"a\":"));
    add(ts, out, call_piece(0, "", "1}"));
    add(ts, out, call_piece(1, "g", "{"));
    wire_tokens end =
        piece(0, WIRE_CONTENT, "", cut ? WIRE_FINISH_LENGTH : WIRE_FINISH_TOOL_CALLS);
    if (!cut) add(ts, out, call_piece(1, "", "}"));
    end.call = cut ? 1 : 2;
    end.flags = cut ? WIRE_FLAG_CALL_CUT : 0;
    add(ts, out, end);
    token_stream_finish(ts, &done, &facts, out);
}

static void streamed_calls_have_their_name_once_and_then_arguments(void **state) {
    (void)state;
    for (int cut = 0; cut <= 1; cut++) {
        token_stream ts = open_stream(true, false, 1);
        json_text out = {0};
        add_two_calls(&ts, &out, cut);
        bool ends_well;
        cJSON *events = events_of(&out, &ends_well);
        char seen[200] = "";
        const cJSON *last = NULL;
        for (const cJSON *e = events->child; e != NULL; e = e->next) {
            const cJSON *call = cJSON_GetArrayItem(dig(choice_of(e), "delta", "tool_calls"), 0);
            last = choice_of(e);
            if (call == NULL) continue;
            const cJSON *name = dig(call, "function", "name");
            assert_int_equal(name != NULL, dig(call, "id", NULL) != NULL);
            assert_int_equal(name != NULL, dig(call, "type", NULL) != NULL);
            size_t n = strlen(seen);
            (void)snprintf(seen + n, sizeof seen - n, "%d:%s(%s ",
                           dig(call, "index", NULL)->valueint,
                           name != NULL ? name->valuestring : "",
                           dig(call, "function", "arguments")->valuestring);
        }
        assert_true(ends_well);
        assert_string_equal(seen, cut ? "0:f( 0:({\"a\": 0:(1} 1:g({ "
                                      : "0:f( 0:({\"a\": 0:(1} 1:g({ 1:(} ");
        assert_string_equal(dig(last, "finish_reason", NULL)->valuestring,
                            cut ? "length" : "tool_calls");
        assert_int_equal(dig(last, "error", NULL) != NULL, cut);
        if (cut) {
            assert_string_equal(dig(last, "error", "code")->valuestring, "tool_call_cut");
            assert_int_equal(dig(last, "error", "index")->valueint, 1);
        }
        cJSON_Delete(events);
        json_text_release(&out);
        token_stream_release(&ts);
    }
}

static void a_whole_reply_has_complete_calls_alone(void **state) {
    (void)state;
    for (int cut = 0; cut <= 1; cut++) {
        token_stream ts = open_stream(false, false, 1);
        json_text out = {0};
        add(&ts, &out, call_piece(0, "lost", "{"));
        token_stream_restart(&ts);
        add_two_calls(&ts, &out, cut);
        cJSON *reply = cJSON_Parse(out.bytes);
        const cJSON *c = choice_of(reply), *calls = dig(c, "message", "tool_calls");
        assert_true(cJSON_IsNull(dig(c, "message", "content")));
        assert_int_equal(cJSON_GetArraySize(calls), cut ? 1 : 2);
        const cJSON *first = cJSON_GetArrayItem(calls, 0);
        assert_string_equal(dig(first, "function", "name")->valuestring, "f");
        assert_string_equal(dig(first, "function", "arguments")->valuestring, "{\"a\":1}");
        assert_string_equal(dig(first, "type", NULL)->valuestring, "function");
        assert_string_equal(dig(c, "finish_reason", NULL)->valuestring,
                            cut ? "length" : "tool_calls");
        assert_int_equal(dig(c, "error", NULL) != NULL, cut);
        cJSON_Delete(reply);
        json_text_release(&out);
        token_stream_release(&ts);
    }
}

static void tokens_that_make_no_sense_are_refused(void **state) {
    (void)state;
    token_stream ts = open_stream(true, false, 1);
    json_text out = {0};
    error err = {0};
    wire_tokens other = piece(1, WIRE_CONTENT, "x", WIRE_FINISH_NONE);
    assert_int_equal(token_stream_add(&ts, &other, &out, &err), STATUS_BAD_INPUT);
    wire_tokens tool = piece(0, WIRE_TOOL_CALL, "x", WIRE_FINISH_NONE);
    assert_int_equal(token_stream_add(&ts, &tool, &out, &err), STATUS_BAD_INPUT);
    wire_tokens skipping = call_piece(1, "f", "");
    assert_int_equal(token_stream_add(&ts, &skipping, &out, &err), STATUS_BAD_INPUT);
    wire_tokens odd = piece(0, WIRE_CONTENT, "x", WIRE_FINISH_NONE);
    odd.logprobs = wire_text("{", 1);
    assert_int_equal(token_stream_add(&ts, &odd, &out, &err), STATUS_BAD_INPUT);
    add(&ts, &out, piece(0, WIRE_CONTENT, "x", WIRE_FINISH_STOP));
    wire_tokens late = piece(0, WIRE_CONTENT, "y", WIRE_FINISH_NONE);
    assert_int_equal(token_stream_add(&ts, &late, &out, &err), STATUS_BAD_INPUT);
    assert_null(strstr(out.bytes, "\"y\""));
    json_text_release(&out);
    token_stream_release(&ts);
}

static void no_cache_is_null_and_failure_is_one_event(void **state) {
    (void)state;
    token_stream ts = open_stream(true, false, 1);
    json_text out = {0};
    wire_done without = done;
    without.hit_rate = -1;
    add(&ts, &out, piece(0, WIRE_CONTENT, "x", WIRE_FINISH_STOP));
    token_stream_finish(&ts, &without, &facts, &out);
    assert_non_null(strstr(out.bytes, "\"hit_rate\":null"));
    json_text_clear(&out);
    token_stream_fail("{\"error\":{}}", &out);
    assert_string_equal(out.bytes, "data: {\"error\":{}}\n\n");
    json_text_clear(&out);
    token_stream_keepalive(&out);
    assert_string_equal(out.bytes, ": keepalive\n\n");
    json_text_release(&out);
    token_stream_release(&ts);
}

/* The node was lost between the last token and its DONE: the end comes again elsewhere. */
static void a_cut_deliberation_is_told_at_the_end(void **state) {
    (void)state;
    for (int flags = 0; flags <= 1; flags++) {
        for (int streaming = 0; streaming <= 1; streaming++) {
            token_stream ts = open_stream(streaming == 1, false, 1);
            json_text out = {0};
            wire_tokens t = piece(0, WIRE_REASONING, "hm", WIRE_FINISH_NONE);
            t.flags = flags ? WIRE_FLAG_THINKING_CUT : WIRE_FLAG_GRACE;
            add(&ts, &out, t);
            token_stream_resume(&ts); /* what was cut stays so on another node */
            add(&ts, &out, piece(0, WIRE_CONTENT, "x", WIRE_FINISH_STOP));
            wire_done d = {.reasoning_tokens = 1};
            token_stream_finish(&ts, &d, &facts, &out);
            const char *want = flags ? "\"thinking\":\"cut\"" : "\"thinking\":\"complete\"";
            assert_non_null(strstr(out.bytes, want));
            token_stream_restart(&ts);
            d.reasoning_tokens = 0;
            assert_null(token_stream_thinking(&ts, &d));
            json_text_release(&out);
            token_stream_release(&ts);
        }
    }
}

static void a_resume_may_bring_the_finish_again(void **state) {
    (void)state;
    for (int streaming = 0; streaming < 2; streaming++) {
        token_stream ts = open_stream(streaming == 1, false, 1);
        json_text out = {0};
        add(&ts, &out, piece(0, WIRE_CONTENT, "a", WIRE_FINISH_NONE));
        add(&ts, &out, piece(0, WIRE_CONTENT, "b", WIRE_FINISH_LENGTH));
        token_stream_resume(&ts);
        /* The text that the end brought has been told as well. */
        add(&ts, &out, piece(0, WIRE_CONTENT, "again", WIRE_FINISH_LENGTH));
        assert_true(out.length == 0 || strstr(out.bytes, "again") == NULL);
        token_stream_facts resumed = facts;
        resumed.resumed = "exact";
        token_stream_finish(&ts, &done, &resumed, &out);
        assert_non_null(strstr(out.bytes, "\"resumed\":\"exact\""));
        if (streaming == 0) {
            assert_non_null(strstr(out.bytes, "\"content\":\"ab\""));
        } else {
            bool ends_well = false;
            cJSON *list = events_of(&out, &ends_well);
            assert_true(ends_well);
            cJSON_Delete(list);
            const char *finish = strstr(out.bytes, "\"finish_reason\":\"length\"");
            assert_non_null(finish);
            assert_null(strstr(finish + 1, "\"finish_reason\":\"length\""));
        }
        json_text_release(&out);
        token_stream_release(&ts);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_has_role_reasoning_content_end_usage_and_done),
        cmocka_unit_test(several_choices_each_have_one_role_and_one_end),
        cmocka_unit_test(a_whole_reply_holds_all_parts),
        cmocka_unit_test(streamed_calls_have_their_name_once_and_then_arguments),
        cmocka_unit_test(a_whole_reply_has_complete_calls_alone),
        cmocka_unit_test(tokens_that_make_no_sense_are_refused),
        cmocka_unit_test(no_cache_is_null_and_failure_is_one_event),
        cmocka_unit_test(a_cut_deliberation_is_told_at_the_end),
        cmocka_unit_test(a_resume_may_bring_the_finish_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
