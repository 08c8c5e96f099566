/* Tests of worker/text/chat_template beside the golden chats: which template, trust, bounds. */
#include "worker/text/chat_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static status render_text(const char *json, chat_style style, prompt *p, error *err) {
    cJSON *request = NULL;
    if (json_parse(&request, json, strlen(json), "test", err) != STATUS_OK) {
        fail_msg("%s", err->text);
    }
    status rc = chat_template_render(request, style, p, err);
    cJSON_Delete(request);
    return rc;
}

static void render(const char *json, prompt *p) {
    error err = {0};
    if (render_text(json, CHAT_THINK, p, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void assert_refused(const char *json, const char *problem) {
    prompt p = {0};
    error err = {0};
    assert_int_equal(render_text(json, CHAT_THINK, &p, &err), STATUS_BAD_INPUT);
    assert_string_equal(err.text, problem);
    prompt_release(&p);
}

/* Is every byte of `words`, where it stands in the prompt, of this trust? */
static void assert_trust(const prompt *p, const char *words, bool trusted) {
    const char *found = strstr(p->text.bytes, words);
    assert_non_null(found);
    size_t from = (size_t)(found - p->text.bytes), to = from + strlen(words), s = 0;
    while (p->spans[s].end <= from)
        s++;
    assert_true(p->spans[s].end >= to);
    assert_int_equal(p->spans[s].trusted, trusted);
}

static void template_trusts_its_own_words_only(void **state) {
    (void)state;
    prompt p = {0};
    render("{\"messages\":[{\"role\":\"system\",\"content\":\"SYS<|im_end|>\"},"
           "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"USER\"},"
           "{\"type\":\"image\"}]},"
           "{\"role\":\"assistant\",\"content\":\"<think>WHY</think>ANSWER\",\"tool_calls\":"
           "[{\"function\":{\"name\":\"NAME\",\"arguments\":{\"KEY\":\"VALUE\",\"O\":[1]}}}]},"
           "{\"role\":\"tool\",\"content\":\"RESULT\"}],"
           "\"tools\":[{\"type\":\"TOOL\"}]}",
           &p);
    static const char *const outside[] = {
        "SYS<|im_end|>", "USER",  "WHY", "ANSWER", "NAME",
        "KEY",           "VALUE", "[1]", "RESULT", "{\"type\": \"TOOL\"}"};
    static const char *const own[] = {
        "<|im_start|>system\n# Tools",
        "<|vision_start|><|image_pad|><|vision_end|><|im_end|>",
        "<|im_start|>assistant\n<think>\n",
        "\n</think>\n\n",
        "<tool_call>\n<function=",
        "</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n"};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        assert_trust(&p, outside[i], false);
    }
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        assert_trust(&p, own[i], true);
    assert_int_equal(p.spans[p.n_spans - 1].end, p.text.length);
    prompt_release(&p);
}

static void template_bounds_stand_after_messages_and_headers(void **state) {
    (void)state;
    static const char *const texts[] = {
        "<|im_start|>system\nS<|im_end|>\n", "<|im_start|>user\nU<|im_end|>\n",
        "<|im_start|>assistant\n",           "A<|im_end|>\n",
        "<|im_start|>user\nV<|im_end|>\n",   "<|im_start|>assistant\n",
    };
    prompt p = {0};
    render("{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"
           "{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\",\"content\":\"A\"},"
           "{\"role\":\"user\",\"content\":\"V\"}]}",
           &p);
    assert_int_equal(p.n_bounds, sizeof texts / sizeof texts[0]);
    size_t at = 0;
    for (size_t i = 0; i < p.n_bounds; i++) {
        assert_memory_equal(p.text.bytes + at, texts[i], strlen(texts[i]));
        at += strlen(texts[i]);
        assert_int_equal(p.bounds[i].at, at);
        bool header = i == 2 || i == 5;
        assert_int_equal(p.bounds[i].kind,
                         header ? PROMPT_BOUND_ASSISTANT : PROMPT_BOUND_MESSAGE);
    }
    assert_string_equal(p.text.bytes + at, "<think>\n");
    assert_true(p.opens_thinking);
    prompt_release(&p);
}

/* White space after the header makes one word of the two: no border there. */
static void template_sets_no_bound_inside_a_word(void **state) {
    (void)state;
    prompt p = {0};
    render("{\"messages\":[{\"role\":\"user\",\"content\":\"U\"},"
           "{\"role\":\"assistant\",\"content\":\"x</think> \\nA\"},"
           "{\"role\":\"user\",\"content\":\"V\"}],\"add_generation_prompt\":false}",
           &p);
    assert_non_null(strstr(p.text.bytes, "<|im_start|>assistant\n \nA<|im_end|>\n"));
    assert_int_equal(p.n_bounds, 3);
    assert_false(p.opens_thinking);
    prompt_release(&p);
}

static void template_style_decides_what_absent_thinking_means(void **state) {
    (void)state;
    static const struct {
        const char *kwargs, *end;
        chat_style style;
        bool opens;
    } cases[] = {
        {"{}", "<think>\n", CHAT_THINK, true},
        {"{\"enable_thinking\":false}", "<think>\n\n</think>\n\n", CHAT_THINK, false},
        {"{\"enable_thinking\":null}", "<think>\n", CHAT_THINK, true},
        {"{}", "<think>\n\n</think>\n\n", CHAT_NOTHINK, false},
        {"{\"enable_thinking\":true}", "<think>\n", CHAT_NOTHINK, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_text json = {0};
        prompt p = {0};
        error err = {0};
        json_text_format(&json,
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],"
                         "\"chat_template_kwargs\":%s}",
                         cases[i].kwargs);
        assert_int_equal(render_text(json.bytes, cases[i].style, &p, &err), STATUS_OK);
        const char *header = "<|im_start|>assistant\n";
        assert_string_equal(strstr(p.text.bytes, header) + strlen(header), cases[i].end);
        assert_int_equal(p.opens_thinking, cases[i].opens);
        prompt_release(&p);
        json_text_release(&json);
    }
}

static void template_names_the_place_of_a_mistake(void **state) {
    (void)state;
    assert_refused("{}", "messages: No messages provided.");
    assert_refused("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"x\"}]}",
                   "messages[1]: Unexpected message role.");
    assert_refused(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
        "\"tool_calls\":[{\"name\":\"f\"},{\"name\":\"g\",\"arguments\":\"{}\"}]}]}",
        "messages[1].tool_calls[1]: Can only get item pairs from a mapping.");
    assert_refused("{\"messages\":[3]}", "messages: No user query found in messages.");
    assert_refused("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},null]}",
                   "messages[1]: Unexpected message role.");
}

static void template_recognises_only_official_ones(void **state) {
    (void)state;
    char warning[CHAT_WARNING_SIZE];
    assert_int_equal(chat_template_recognise("", 0, warning), CHAT_THINK);
    assert_non_null(strstr(warning, "missing"));
    const char *other = "{% if enable_thinking is defined and enable_thinking is true %}";
    assert_int_equal(chat_template_recognise(other, strlen(other), warning), CHAT_NOTHINK);
    assert_non_null(strstr(warning, "is no official Qwen3.5 template"));
    other = "{% if enable_thinking is false %}";
    assert_int_equal(chat_template_recognise(other, strlen(other), warning), CHAT_THINK);
    /* SHA-256 of "abc" begins so; the name in the warning is that of the text. */
    (void)chat_template_recognise("abc", 3, warning);
    assert_non_null(strstr(warning, "ba7816bf8f01cfea..."));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(template_trusts_its_own_words_only),
        cmocka_unit_test(template_bounds_stand_after_messages_and_headers),
        cmocka_unit_test(template_sets_no_bound_inside_a_word),
        cmocka_unit_test(template_style_decides_what_absent_thinking_means),
        cmocka_unit_test(template_names_the_place_of_a_mistake),
        cmocka_unit_test(template_recognises_only_official_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
