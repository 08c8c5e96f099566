/* test_generation.c - the same ids give the same text, wherever they are cut.
 *
 * Ids come from the demo vocabulary's own tokenizer, so texts are split as a model
 * would write them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/generation.h"
#include <string.h>

static gguf_file *file;
static tokenizer *vocab;

static int open_vocab(void **state) {
    (void)state;
    error err = {0};
    return gguf_open(&file, "deploy/models/demo.gguf", &err) == STATUS_OK &&
                   tokenizer_open(&vocab, file, false, &err) == STATUS_OK
               ? 0
               : -1;
}

static int close_vocab(void **state) {
    (void)state;
    tokenizer_close(vocab);
    gguf_close(file);
    return 0;
}

typedef struct shown {
    json_text reasoning, content;
    uint64_t n_tokens, n_reasoning;
    bool stopped;
} shown;

static void add_shown(shown *s, const generation *g) {
    size_t bad = 0;
    assert_true(json_utf8_valid(g->reasoning.bytes, g->reasoning.length, &bad));
    assert_true(json_utf8_valid(g->content.bytes, g->content.length, &bad));
    json_text_add(&s->reasoning, g->reasoning.bytes, g->reasoning.length);
    json_text_add(&s->content, g->content.bytes, g->content.length);
}

/* Generate `text` token by token up to the first stop. */
static shown generate(const char *text, bool splits, bool inside, const char *stop) {
    shown s = {0};
    error err = {0};
    token_list ids = {0};
    generation g;
    const stop_string stops[1] = {{stop, stop != NULL ? strlen(stop) : 0}};
    assert_int_equal(
        tokenizer_encode(vocab, text, strlen(text), TOKENIZER_ADDED_ALL, &ids, &err),
        STATUS_OK);
    assert_int_equal(generation_init(&g, vocab, splits, inside, stops, stop != NULL, &err),
                     STATUS_OK);
    for (size_t i = 0; i < ids.length && !g.stopped; i++) {
        generation_push(&g, ids.ids[i]);
        if (i + 1 == ids.length || g.stopped) generation_finish(&g, false);
        add_shown(&s, &g);
    }
    assert_false(g.failed);
    s.n_tokens = g.n_tokens;
    s.n_reasoning = g.n_reasoning;
    s.stopped = g.stopped;
    generation_release(&g);
    generation_release(&g); /* a released one may be released again */
    token_list_release(&ids);
    return s;
}

static void release(shown *s) {
    json_text_release(&s->reasoning);
    json_text_release(&s->content);
}

static void assert_text(const json_text *text, const char *want) {
    assert_string_equal(text->bytes != NULL ? text->bytes : "", want);
}

static void reasoning_and_answer_go_their_ways(void **state) {
    (void)state;
    shown s = generate("I wonder.\n</think>\n\nIt is so.<|im_end|>", true, true, NULL);
    assert_text(&s.reasoning, "I wonder.");
    assert_text(&s.content, "It is so.");
    assert_true(s.n_reasoning > 0 && s.n_reasoning < s.n_tokens);
    release(&s);
}

static void a_raw_stream_is_content_with_its_tags(void **state) {
    (void)state;
    shown s = generate("a</think>b", false, false, NULL);
    assert_text(&s.content, "a</think>b");
    assert_text(&s.reasoning, "");
    assert_int_equal(s.n_reasoning, 0);
    release(&s);
}

static void unfinished_reasoning_is_reasoning(void **state) {
    (void)state;
    shown s = generate("still thinking </thi", true, true, NULL);
    assert_text(&s.reasoning, "still thinking </thi");
    assert_text(&s.content, "");
    assert_int_equal(s.n_reasoning, s.n_tokens);
    release(&s);
}

static void characters_come_whole_and_a_cut_one_is_replaced(void **state) {
    (void)state;
    shown s = generate("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", false, false, NULL);
    assert_text(&s.content, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
    release(&s);
    s = generate("a\xf0\x9f\x98", false, false, NULL);
    assert_text(&s.content, "a\xef\xbf\xbd");
    release(&s);
    s = generate("\xe2\x82</think>x", true, true, NULL); /* cut by the end of the reasoning */
    assert_text(&s.reasoning, "\xef\xbf\xbd");
    assert_text(&s.content, "x");
    release(&s);
}

static void stop_strings_apply_to_the_answer_alone(void **state) {
    (void)state;
    shown s = generate("one END two</think>three END four", true, true, "END");
    assert_text(&s.reasoning, "one END two");
    assert_text(&s.content, "three ");
    assert_true(s.stopped);
    release(&s);
    s = generate("almost EN", false, false, "END");
    assert_text(&s.content, "almost EN"); /* held back until the end */
    assert_false(s.stopped);
    release(&s);
}

static void control_tokens_are_not_shown_but_counted(void **state) {
    (void)state;
    shown s = generate("<|im_start|>x<|im_end|>", false, false, NULL);
    assert_text(&s.content, "x");
    assert_int_equal(s.n_tokens, 3);
    release(&s);
}

/* Push the text's tokens; what came of calls is in *calls as name(arguments). */
static void divide(generation *g, const char *text, bool cut, json_text *content,
                   json_text *calls) {
    token_list ids = {0};
    error err = {0};
    assert_int_equal(
        tokenizer_encode(vocab, text, strlen(text), TOKENIZER_ADDED_ALL, &ids, &err),
        STATUS_OK);
    for (size_t i = 0; i < ids.length && !g->stopped; i++) {
        generation_push(g, ids.ids[i]);
        if (i + 1 == ids.length || g->stopped) generation_finish(g, cut);
        json_text_add(content, g->content.bytes, g->content.length);
        for (size_t k = 0; k < g->calls.n_pieces; k++) {
            const tool_piece *p = &g->calls.pieces[k];
            if (p->kind == TOOL_TEXT) continue;
            json_text_add(calls, g->calls.out.bytes + p->at, p->length);
            if (p->kind == TOOL_BEGIN) json_text_add(calls, "(", 1);
        }
        assert_int_equal(g->calls.open, g->channel == WIRE_TOOL_CALL && !g->stopped);
    }
    token_list_release(&ids);
}

static const char one_call[] =
    "why\n</think>\n\nLet me "
    "see.\n\n<tool_call>\n<function=f>\n<parameter=a>\nb\n</parameter>\n"
    "</function>\n</tool_call>";

static void calls_are_divided_from_text(void **state) {
    (void)state;
    for (int single = 0; single <= 1; single++) {
        cJSON *tools = cJSON_Parse("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]");
        generation g;
        error err = {0};
        json_text content = {0}, calls = {0};
        assert_int_equal(generation_init(&g, vocab, true, true, NULL, 0, &err), STATUS_OK);
        generation_divide(&g, tools, single);
        divide(&g, one_call, false, &content, &calls);
        assert_text(&content, "Let me see.");
        assert_text(&calls, "f({\"a\":\"b\"}");
        assert_int_equal(g.calls.n_calls, 1);
        assert_false(g.calls.cut);
        assert_int_equal(g.stopped, single);
        generation_release(&g);
        json_text_release(&content);
        json_text_release(&calls);
        cJSON_Delete(tools);
    }
}

static void a_stop_string_in_a_call_leaves_it_incomplete(void **state) {
    (void)state;
    cJSON *tools = cJSON_Parse("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]");
    const stop_string stop = {"</param", 7};
    generation g;
    error err = {0};
    assert_int_equal(generation_init(&g, vocab, true, true, &stop, 1, &err), STATUS_OK);
    generation_divide(&g, tools, false);
    token_list ids = {0};
    assert_int_equal(
        tokenizer_encode(vocab, one_call, strlen(one_call), TOKENIZER_ADDED_ALL, &ids, &err),
        STATUS_OK);
    for (size_t i = 0; i < ids.length && !g.stopped; i++)
        generation_push(&g, ids.ids[i]);
    generation_finish(&g, false);
    assert_true(g.stopped && g.calls.cut && g.calls.open);
    assert_int_equal(g.calls.n_calls, 0);
    generation_release(&g);
    token_list_release(&ids);
    cJSON_Delete(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_and_answer_go_their_ways),
        cmocka_unit_test(a_raw_stream_is_content_with_its_tags),
        cmocka_unit_test(unfinished_reasoning_is_reasoning),
        cmocka_unit_test(characters_come_whole_and_a_cut_one_is_replaced),
        cmocka_unit_test(stop_strings_apply_to_the_answer_alone),
        cmocka_unit_test(control_tokens_are_not_shown_but_counted),
        cmocka_unit_test(calls_are_divided_from_text),
        cmocka_unit_test(a_stop_string_in_a_call_leaves_it_incomplete),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
