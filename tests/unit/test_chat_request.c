/* Tests of common/chat_request: what is mapped, and which field is named when it is wrong. */
#include "common/chat_request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static cJSON *parse(const char *text) {
    cJSON *tree = NULL;
    error err = {0};
    if (json_parse(&tree, text, strlen(text), "test", &err) != STATUS_OK) {
        fail_msg("%s", err.text);
    }
    return tree;
}

static void chat_request_maps_dialects(void **state) {
    (void)state;
    static const struct {
        const char *before, *after;
    } cases[] = {
        {"{\"role\":\"developer\",\"content\":\"x\"}",
         "{\"content\":\"x\",\"role\":\"system\"}"},
        {"{\"role\":\"user\",\"content\":null}", "{\"role\":\"user\",\"content\":\"\"}"},
        {"{\"role\":\"user\"}", "{\"role\":\"user\",\"content\":\"\"}"},
        {"{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"r\"}",
         "{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"r\","
         "\"reasoning_content\":\"r\"}"},
        {"{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\",\"function\":"
         "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1.0}\"}}]}",
         "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\",\"function\":"
         "{\"name\":\"f\",\"arguments\":{\"a\":1.0}}}]}"},
        {"{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"name\":\"f\","
         "\"arguments\":\" \"},{\"name\":\"g\"}]}",
         "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"name\":\"f\","
         "\"arguments\":{}},{\"name\":\"g\",\"arguments\":{}}]}"},
        {"{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}],\"name\":"
         "\"Bob\"}",
         "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}],\"name\":"
         "\"Bob\"}"},
        {"{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":null}",
         "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":null}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_text text = {0};
        json_text_format(&text, "{\"messages\":[%s]}", cases[i].before);
        cJSON *request = parse(text.bytes), *expected = parse(cases[i].after);
        char param[CHAT_PARAM_SIZE];
        error err = {0};
        if (chat_normalise(request, param, &err) != STATUS_OK) fail_msg("%s", err.text);
        const cJSON *own = cJSON_GetObjectItemCaseSensitive(request, "messages")->child;
        if (!cJSON_Compare(own, expected, true)) fail_msg("case %zu: %s", i, json_print(own));
        cJSON_Delete(request);
        cJSON_Delete(expected);
        json_text_release(&text);
    }
}

#define USER "{\"role\":\"user\",\"content\":\"Hi\"}"

static void chat_request_names_the_field_at_fault(void **state) {
    (void)state;
    static const struct {
        const char *request, *param, *problem;
    } cases[] = {
        {"[]", "", "the request is an array, an object is expected"},
        {"{}", "messages", "messages: is missing, an array is expected"},
        {"{\"messages\":[]}", "messages", "messages: is empty"},
        {"{\"messages\":[" USER ",7]}", "messages[1]",
         "messages[1]: is a number, an object is expected"},
        {"{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role",
         "messages[0].role: is missing, a string is expected"},
        {"{\"messages\":[{\"role\":\"robot\"}]}", "messages[0].role",
         "messages[0].role: 'robot' is no role; system, developer, user, assistant and tool "
         "are"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content",
         "messages[0].content: is a number, a string or an array of parts is expected"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
         "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:,\"}}]}]}",
         "messages[0].content[1]",
         "messages[0].content[1]: 'image_url' is no kind of content that this model reads; "
         "only "
         "text is"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]}",
         "messages[0].content[0]",
         "messages[0].content[0]: 'input_audio' is no kind of content that this model reads; "
         "only text is"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"image\":\"x\"}]}]}",
         "messages[0].content[0]", "messages[0].content[0]: has image; only text is read"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
         "messages[0].content[0].text",
         "messages[0].content[0].text: is missing, a string is expected"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[\"x\"]}]}", "messages[0].content[0]",
         "messages[0].content[0]: is a string, an object is expected"},
        {"{\"messages\":[" USER ",{\"role\":\"assistant\",\"tool_calls\":{}}]}",
         "messages[1].tool_calls",
         "messages[1].tool_calls: is an object, an array is expected"},
        {"{\"messages\":[" USER
         ",{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}",
         "messages[1].tool_calls[0].function.name",
         "messages[1].tool_calls[0].function.name: is missing, a string is expected"},
        {"{\"messages\":[" USER
         ",{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
         "\"f\",\"arguments\":\"[1]\"}}]}]}",
         "messages[1].tool_calls[0].function.arguments",
         "messages[1].tool_calls[0].function.arguments: is no JSON object in a string: an "
         "array"},
        {"{\"messages\":[" USER
         ",{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
         "\"f\",\"arguments\":\"{\\\"a\\\":\"}}]}]}",
         "messages[1].tool_calls[0].function.arguments",
         "messages[1].tool_calls[0].function.arguments: is no JSON object in a string: the "
         "string: JSON without an end at byte 5"},
        {"{\"messages\":[" USER ",{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\","
         "\"arguments\":[]}]}]}",
         "messages[1].tool_calls[0].arguments",
         "messages[1].tool_calls[0].arguments: is an array, a JSON object in a string is "
         "expected"},
        {"{\"messages\":[" USER ",{\"role\":\"assistant\",\"reasoning_content\":[]}]}",
         "messages[1].reasoning_content",
         "messages[1].reasoning_content: is an array, a string is expected"},
        {"{\"messages\":[" USER "],\"tools\":{}}", "tools",
         "tools: is an object, an array is expected"},
        {"{\"messages\":[" USER "],\"tools\":[{\"type\":\"function\"}]}", "tools[0].function",
         "tools[0].function: is missing, an object is expected"},
        {"{\"messages\":[" USER "],\"tools\":[{\"function\":{\"name\":\"\"}}]}",
         "tools[0].function.name",
         "tools[0].function.name: must have 1 to 128 bytes without blanks, quotes, < and >"},
        {"{\"messages\":[" USER "],\"tools\":[{\"function\":{\"name\":\"a>\\nb\"}}]}",
         "tools[0].function.name",
         "tools[0].function.name: must have 1 to 128 bytes without blanks, quotes, < and >"},
        {"{\"messages\":[" USER "],\"tools\":[{\"function\":{\"name\":1}}]}",
         "tools[0].function.name", "tools[0].function.name: is a number, a string is expected"},
        {"{\"messages\":[" USER "],\"chat_template_kwargs\":[]}", "chat_template_kwargs",
         "chat_template_kwargs: is an array, an object is expected"},
        {"{\"messages\":[" USER "],\"chat_template_kwargs\":{\"enable_thinking\":\"no\"}}",
         "chat_template_kwargs.enable_thinking",
         "chat_template_kwargs.enable_thinking: is a string, a boolean is expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *request = parse(cases[i].request);
        char param[CHAT_PARAM_SIZE];
        error err = {0};
        assert_int_equal(chat_normalise(request, param, &err), STATUS_BAD_INPUT);
        assert_string_equal(err.text, cases[i].problem);
        assert_string_equal(param, cases[i].param);
        cJSON_Delete(request);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_request_maps_dialects),
        cmocka_unit_test(chat_request_names_the_field_at_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
