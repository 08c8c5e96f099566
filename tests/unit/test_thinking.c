/* Tests of worker/text/thinking: which text goes to which channel.
 *
 * In the scripts below, "[o]" is the token <think>, "[c]" the token </think>, and
 * '|' divides the other tokens. */
#include "worker/text/thinking.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { OPEN = 100, CLOSE = 101, OTHER = 5 };

typedef struct split {
    thinking t;
    json_text reasoning, content;
} split;

static void push_script(split *s, const char *script) {
    while (*script != '\0') {
        if (strncmp(script, "[o]", 3) == 0) {
            thinking_push(&s->t, OPEN, "<think>", 7, &s->reasoning, &s->content);
            script += 3;
        } else if (strncmp(script, "[c]", 3) == 0) {
            thinking_push(&s->t, CLOSE, "</think>", 8, &s->reasoning, &s->content);
            script += 3;
        } else {
            size_t n = strcspn(script, "|[");
            thinking_push(&s->t, OTHER, script, n, &s->reasoning, &s->content);
            script += n;
            if (*script == '|') script++;
        }
    }
    thinking_finish(&s->t, &s->reasoning);
}

static void check(bool inside, const char *script, const char *reasoning, const char *content) {
    split s = {0};
    thinking_init(&s.t, inside, OPEN, CLOSE);
    json_text_add(&s.reasoning, "", 0);
    json_text_add(&s.content, "", 0);
    push_script(&s, script);
    assert_string_equal(s.reasoning.bytes, reasoning);
    assert_string_equal(s.content.bytes, content);
    json_text_release(&s.reasoning);
    json_text_release(&s.content);
}

static void thinking_starts_inside_and_ends_at_the_tag(void **state) {
    (void)state;
    check(true, "need |weather\n|[c]\n\n|Hello", "need weather", "Hello");
    check(true, "a|\n|\n|b\n\n[c]|\n|\n|x\n\ny\n", "a\n\nb", "x\n\ny\n");
    check(true, "[c]\n\n|Hi", "", "Hi");
    check(true, "\nfirst\n[c]Hi", "first", "Hi");
}

static void thinking_without_an_end_is_all_reasoning(void **state) {
    (void)state;
    check(true, "still |thinking\n", "still thinking", "");
    check(true, "a </thi", "a </thi", "");
}

static void thinking_finds_a_tag_spelled_in_text(void **state) {
    (void)state;
    check(true, "why\n</|think|>\n\nHello", "why", "Hello");
    check(true, "x</think>y", "x", "y");
    check(true, "a <</think>b", "a <", "b");
    check(true, "</</thin</think>b", "</</thin", "b");
    check(true, "1 </ 2\n</|[c]b", "1 </ 2\n</", "b");
}

static void thinking_off_passes_content_through(void **state) {
    (void)state;
    check(false, "\n\nHello|\n", "", "\n\nHello\n");
    check(false, "the tag </think> ends it", "", "the tag </think> ends it");
}

static void thinking_tolerates_tags_of_the_model(void **state) {
    (void)state;
    check(true, "[o]\nwhy[c]\n\nHi", "why", "Hi");
    check(false, "[o]\nwhy\n[c]\n\nHi", "why", "Hi");
    check(false, "[c]\n\nHi", "", "Hi");
    check(true, "why[c][c]\n\nHi", "why", "Hi");
    check(false, "Say [o] and [c]", "", "Say <think> and </think>");
    check(true, "I write [o] now[c]ok", "I write <think> now", "ok");
}

static void thinking_works_without_tags_in_the_vocabulary(void **state) {
    (void)state;
    split s = {0};
    thinking_init(&s.t, true, -1, -1);
    thinking_push(&s.t, -1, "a</think>\n", 10, &s.reasoning, &s.content);
    thinking_push(&s.t, 7, "b", 1, &s.reasoning, &s.content);
    assert_string_equal(s.reasoning.bytes, "a");
    assert_string_equal(s.content.bytes, "b");
    assert_false(s.t.inside);
    json_text_release(&s.reasoning);
    json_text_release(&s.content);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thinking_starts_inside_and_ends_at_the_tag),
        cmocka_unit_test(thinking_without_an_end_is_all_reasoning),
        cmocka_unit_test(thinking_finds_a_tag_spelled_in_text),
        cmocka_unit_test(thinking_off_passes_content_through),
        cmocka_unit_test(thinking_tolerates_tags_of_the_model),
        cmocka_unit_test(thinking_works_without_tags_in_the_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
