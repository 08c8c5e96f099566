/* test_api_params.c - what the other endpoints' bodies become: chat requests and prompts. */
#include "coordinator/answer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static chat_params read_ok(const answer_style *style, const char *body) {
    chat_params p;
    error err = {0};
    char param[CHAT_PARAM_SIZE];
    status rc = style->read(&p, body, strlen(body), param, &err);
    if (rc != STATUS_OK) print_error("%s\n", err.text);
    assert_int_equal(rc, STATUS_OK);
    return p;
}

/* The body is this JSON, whatever the order of its members. */
static void assert_body(const char *body, const char *expected) {
    cJSON *a = cJSON_Parse(body), *b = cJSON_Parse(expected);
    assert_non_null(a);
    assert_non_null(b);
    if (!cJSON_Compare(a, b, true)) {
        print_error("%s\n  where this was expected:\n%s\n", body, expected);
        fail();
    }
    cJSON_Delete(a);
    cJSON_Delete(b);
}

static void assert_refused(const answer_style *style, const char *body, const char *field) {
    chat_params p;
    error err = {0};
    char param[CHAT_PARAM_SIZE];
    assert_int_equal(style->read(&p, body, strlen(body), param, &err), STATUS_BAD_INPUT);
    assert_string_equal(param, field);
    if (field[0] != '\0') assert_non_null(strstr(err.text, field));
}

static void a_prompt_becomes_one_body_with_openais_default_limit(void **state) {
    (void)state;
    chat_params p = read_ok(&answer_completion,
                            "{\"model\":\"m\",\"prompt\":\"ab\",\"top_k\":3,\"user\":\"u\"}");
    assert_body(p.body, "{\"model\":\"m\",\"prompt\":\"ab\",\"top_k\":3,\"max_tokens\":16}");
    assert_int_equal(p.n_more, 0);
    assert_int_equal(p.max_tokens, 16);
    assert_int_equal(p.prompt_bytes, 2);
    chat_params_release(&p);
}

static void each_prompt_of_a_batch_has_its_body_and_its_echo(void **state) {
    (void)state;
    chat_params p = read_ok(
        &answer_completion,
        "{\"model\":\"m\",\"prompt\":[\"a\",\"b\"],\"n\":2,\"echo\":true,\"max_tokens\":5}");
    assert_int_equal(p.n_more, 1);
    assert_int_equal(p.n_choices, 2);
    assert_body(p.body, "{\"model\":\"m\",\"prompt\":\"a\",\"n\":2,\"max_tokens\":5}");
    assert_body(p.more[0], "{\"model\":\"m\",\"prompt\":\"b\",\"n\":2,\"max_tokens\":5}");
    const cJSON *echo = cJSON_GetObjectItem(p.told, "echo");
    assert_string_equal(cJSON_GetArrayItem(echo, 1)->valuestring, "b");
    chat_params_release(&p);
    p = read_ok(&answer_completion, "{\"model\":\"m\",\"prompt\":[[1,2],[3]]}");
    assert_body(p.more[0], "{\"model\":\"m\",\"prompt\":[3],\"max_tokens\":16}");
    chat_params_release(&p);
}

static void what_completions_cannot_do_is_refused_by_name(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\"prompt\":\"a\",\"suffix\":\"b\"", "suffix"},
        {"\"prompt\":\"a\",\"n\":2,\"best_of\":3", "best_of"},
        {"\"prompt\":[1],\"echo\":true", "echo"},
        {"\"prompt\":\"a\",\"echo\":true,\"logprobs\":0", "echo"},
        {"\"prompt\":\"a\",\"logprobs\":21", "logprobs"},
        {"\"prompt\":\"a\",\"n\":0", "n"},
        {"\"prompt\":\"a\",\"stop\":[\"\"]", "stop"},
        {"\"prompt\":\"a\",\"seed\":1.5", "seed"},
        {"\"prompt\":\"a\",\"frequency_penalty\":3", "frequency_penalty"},
        {"\"prompt\":\"a\",\"stream\":1", "stream"},
        {"\"prompt\":[\"a\",[1]],\"n\":100", "prompt"},
        {"\"prompt\":[\"a\",1]", "prompt[1]"},
        {"\"prompt\":[]", "prompt"},
        {"\"messages\":[]", "prompt"},
    };
    char body[200];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(body, sizeof body, "{\"model\":\"m\",%s}", cases[i][0]);
        assert_refused(&answer_completion, body, cases[i][1]);
    }
    assert_refused(&answer_completion, "{\"prompt\":\"a\"}", "model");
    assert_refused(&answer_completion, "[]", "");
}

#define USER "{\"role\":\"user\",\"content\":\"q\"}"

static void anthropics_blocks_become_a_chats_messages(void **state) {
    (void)state;
    chat_params p = read_ok(
        &answer_messages,
        "{\"model\":\"m\",\"max_tokens\":9,\"system\":\"s\",\"stop_sequences\":[\"z\"],"
        "\"messages\":["
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
        "\"text\":\"b\"}]},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},"
        "{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"f\","
        "\"input\":{\"k\":1}}]},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i\","
        "\"content\":\"r\"},{\"type\":\"text\",\"text\":\"q\"}]}],"
        "\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":"
        "\"object\"}}]}");
    assert_body(
        p.body,
        "{\"model\":\"m\",\"max_tokens\":9,\"stop\":[\"z\"],\"messages\":["
        "{\"role\":\"system\",\"content\":\"s\"},"
        "{\"role\":\"user\",\"content\":[{\"text\":\"a\"},{\"text\":\"b\"}]},"
        "{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"t\",\"tool_calls\":["
        "{\"id\":\"i\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"k\":"
        "1}}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"i\",\"content\":\"r\"}," USER "],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
        "\"parameters\":{\"type\":\"object\"}}}],"
        "\"chat_template_kwargs\":{\"enable_thinking\":false}}");
    assert_string_equal(cJSON_GetArrayItem(p.told, 0)->valuestring, "z");
    chat_params_release(&p);
}

static void anthropics_thinking_is_on_only_when_asked_for(void **state) {
    (void)state;
    chat_params p =
        read_ok(&answer_messages, "{\"model\":\"m\",\"max_tokens\":9,\"messages\":[" USER "],"
                                  "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":7}}");
    assert_body(p.body, "{\"model\":\"m\",\"max_tokens\":9,\"messages\":[" USER "],"
                        "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":7},"
                        "\"chat_template_kwargs\":{\"enable_thinking\":true}}");
    chat_params_release(&p);
}

static void what_anthropics_messages_cannot_be_is_refused_by_name(void **state) {
    (void)state;
    assert_refused(&answer_messages, "{\"model\":\"m\",\"messages\":[" USER "]}", "max_tokens");
    static const char *const cases[][2] = {
        {"\"messages\":[]", "messages"},
        {"\"messages\":[{\"role\":\"x\",\"content\":\"\"}]", "messages[0].role"},
        {"\"messages\":[" USER ",{\"role\":\"assistant\"}]", "messages[1].content"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]",
         "messages[0].content[0]"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]",
         "messages[0].content[0]"},
        {"\"messages\":[" USER "],\"system\":7", "system"},
        {"\"messages\":[" USER "],\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"}]",
         "tools[0]"},
        {"\"messages\":[" USER "],\"tool_choice\":{\"type\":\"tool\"}", "tool_choice"},
        {"\"messages\":[" USER "],\"stop_sequences\":\"z\"", "stop_sequences"},
        {"\"messages\":[" USER "],\"top_k\":\"z\"", "top_k"},
    };
    char body[300];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(body, sizeof body, "{\"model\":\"m\",\"max_tokens\":9,%s}", cases[i][0]);
        assert_refused(&answer_messages, body, cases[i][1]);
    }
}

static void counting_needs_no_limit(void **state) {
    (void)state;
    chat_params p = read_ok(&answer_count, "{\"model\":\"m\",\"messages\":[" USER "]}");
    assert_body(p.body, "{\"model\":\"m\",\"messages\":[" USER "],"
                        "\"chat_template_kwargs\":{\"enable_thinking\":false}}");
    chat_params_release(&p);
}

static void items_of_a_response_become_a_chats_messages(void **state) {
    (void)state;
    chat_params p = read_ok(
        &answer_responses,
        "{\"model\":\"m\",\"instructions\":\"i\",\"max_output_tokens\":9,\"input\":["
        "{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\","
        "\"text\":\"u\"}]},"
        "{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"r\"}]},"
        "{\"role\":\"assistant\",\"content\":\"x\"},"
        "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{"
        "\\\"k\\\":1}\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"o\"}," USER "],"
        "\"reasoning\":{\"effort\":\"low\"}}");
    assert_body(
        p.body,
        "{\"model\":\"m\",\"max_completion_tokens\":9,\"reasoning_effort\":\"low\","
        "\"messages\":["
        "{\"role\":\"system\",\"content\":\"i\"},{\"role\":\"user\",\"content\":\"u\"},"
        "{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"r\",\"tool_calls\":["
        "{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"k\":"
        "1}}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"o\"}," USER "]}");
    assert_string_equal(cJSON_GetObjectItem(p.told, "instructions")->valuestring, "i");
    chat_params_release(&p);
}

static void what_would_have_to_be_stored_is_refused_by_name(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\"previous_response_id\":\"r\"", "previous_response_id"},
        {"\"conversation\":{\"id\":\"c\"}", "conversation"},
        {"\"prompt\":{\"id\":\"p\"}", "prompt"},
        {"\"background\":true", "background"},
        {"\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]", "input[0]"},
        {"\"input\":[" USER ",{\"type\":\"function_call\"}]", "input[1]"},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"file_search\"}]", "tools[0]"},
        {"\"input\":\"a\",\"text\":{\"format\":{\"type\":\"xml\"}}", "text.format"},
        {"\"input\":\"a\",\"instructions\":7", "instructions"},
        {"\"input\":7", "input"},
    };
    char body[300];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(body, sizeof body, "{\"model\":\"m\",%s}", cases[i][0]);
        assert_refused(&answer_responses, body, cases[i][1]);
    }
}

/* Joining them one by one would take the square of the time: minutes, not a moment. */
static void a_hundred_thousand_blocks_take_linear_time(void **state) {
    (void)state;
    json_text body = {0};
    json_text_format(&body, "{\"model\":\"m\",\"max_tokens\":1,\"messages\":[" USER
                            ",{\"role\":\"assistant\",\"content\":[");
    for (int i = 0; i < 80000; i++)
        json_text_format(&body, "%s{\"type\":\"%s\",\"%s\":\"0123456789\"}", i > 0 ? "," : "",
                         i % 2 ? "thinking" : "text", i % 2 ? "thinking" : "text");
    json_text_format(&body, "]}," USER "]}");
    chat_params p = read_ok(&answer_messages, body.bytes);
    assert_true(p.prompt_bytes > 800000);
    chat_params_release(&p);
    json_text_release(&body);
}

static void inputs_of_vectors_are_a_list_whatever_they_came_as(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\"input\":\"ab\"", "{\"input\":[\"ab\"]}"},
        {"\"input\":[1,2]", "{\"input\":[[1,2]]}"},
        {"\"input\":[\"a\",[3]],\"user\":\"u\"", "{\"input\":[\"a\",[3]]}"},
        {"\"input\":[[1],[2]],\"dimensions\":8,\"encoding_format\":\"base64\"",
         "{\"input\":[[1],[2]],\"dimensions\":8,\"encoding_format\":\"base64\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[200];
        (void)snprintf(body, sizeof body, "{\"model\":\"m\",%s}", cases[i][0]);
        chat_params p = read_ok(&answer_embeddings, body);
        assert_string_equal(p.model, "m");
        assert_body(p.body, cases[i][1]);
        assert_false(p.stream);
        chat_params_release(&p);
    }
    chat_params p =
        read_ok(&answer_embeddings, "{\"model\":\"m\",\"input\":[\"abc\",[1,2]],\"priority\":"
                                    "\"background\"}");
    assert_int_equal(p.prompt_bytes, 3 + 8 + 2 * 64);
    assert_int_equal(p.priority, 1);
    chat_params_release(&p);
}

static void documents_are_texts_whatever_they_came_as(void **state) {
    (void)state;
    chat_params p = read_ok(&answer_rerank,
                            "{\"model\":\"m\",\"query\":\"q\",\"top_n\":2,\"documents\":[\"a\","
                            "{\"text\":\"b\",\"id\":7},\"\"],\"return_documents\":false}");
    assert_body(p.body, "{\"query\":\"q\",\"top_n\":2,\"documents\":[\"a\",\"b\",\"\"],"
                        "\"return_documents\":false}");
    size_t n = p.prompt_bytes;
    chat_params_release(&p);
    p = read_ok(&answer_rerank,
                "{\"model\":\"m\",\"query\":\"q and more\",\"documents\":[\"a\","
                "\"b\",\"\"]}");
    assert_int_equal(p.prompt_bytes,
                     n + 3 * strlen(" and more")); /* the query is in each prompt */
    chat_params_release(&p);
}

static void what_vectors_cannot_be_made_of_is_refused_by_name(void **state) {
    (void)state;
    static const char *const embeddings[][2] = {
        {"\"a\":1", "input"},
        {"\"input\":\"\"", "input"},
        {"\"input\":[]", "input"},
        {"\"input\":7", "input"},
        {"\"input\":[\"a\",\"\"]", "input[1]"},
        {"\"input\":[\"a\",[]]", "input[1]"},
        {"\"input\":[1,\"a\"]", "input[0]"},
        {"\"input\":[[1],[-2]]", "input[1]"},
        {"\"input\":\"a\",\"encoding_format\":\"hex\"", "encoding_format"},
        {"\"input\":\"a\",\"dimensions\":0", "dimensions"},
        {"\"input\":\"a\",\"dimensions\":\"8\"", "dimensions"},
        {"\"input\":\"a\",\"priority\":\"now\"", "priority"},
    };
    static const char *const rerank[][2] = {
        {"\"documents\":[\"a\"]", "query"},
        {"\"query\":\"\",\"documents\":[\"a\"]", "query"},
        {"\"query\":\"q\"", "documents"},
        {"\"query\":\"q\",\"documents\":\"a\"", "documents"},
        {"\"query\":\"q\",\"documents\":[]", "documents"},
        {"\"query\":\"q\",\"documents\":[\"a\",{\"title\":\"b\"}]", "documents[1]"},
        {"\"query\":\"q\",\"documents\":[3]", "documents[0]"},
        {"\"query\":\"q\",\"documents\":[\"a\"],\"top_n\":0", "top_n"},
        {"\"query\":\"q\",\"documents\":[\"a\"],\"return_documents\":\"yes\"",
         "return_documents"},
        {"\"query\":\"q\",\"documents\":[\"a\"],\"instruction\":5", "instruction"},
    };
    char body[200];
    for (size_t i = 0; i < sizeof embeddings / sizeof embeddings[0]; i++) {
        (void)snprintf(body, sizeof body, "{\"model\":\"m\",%s}", embeddings[i][0]);
        assert_refused(&answer_embeddings, body, embeddings[i][1]);
    }
    for (size_t i = 0; i < sizeof rerank / sizeof rerank[0]; i++) {
        (void)snprintf(body, sizeof body, "{\"model\":\"m\",%s}", rerank[i][0]);
        assert_refused(&answer_rerank, body, rerank[i][1]);
    }
    assert_refused(&answer_rerank, "{\"query\":\"q\",\"documents\":[\"a\"]}", "model");
    assert_refused(&answer_embeddings, "[]", "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_becomes_one_body_with_openais_default_limit),
        cmocka_unit_test(each_prompt_of_a_batch_has_its_body_and_its_echo),
        cmocka_unit_test(what_completions_cannot_do_is_refused_by_name),
        cmocka_unit_test(anthropics_blocks_become_a_chats_messages),
        cmocka_unit_test(anthropics_thinking_is_on_only_when_asked_for),
        cmocka_unit_test(what_anthropics_messages_cannot_be_is_refused_by_name),
        cmocka_unit_test(counting_needs_no_limit),
        cmocka_unit_test(items_of_a_response_become_a_chats_messages),
        cmocka_unit_test(what_would_have_to_be_stored_is_refused_by_name),
        cmocka_unit_test(a_hundred_thousand_blocks_take_linear_time),
        cmocka_unit_test(inputs_of_vectors_are_a_list_whatever_they_came_as),
        cmocka_unit_test(documents_are_texts_whatever_they_came_as),
        cmocka_unit_test(what_vectors_cannot_be_made_of_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
