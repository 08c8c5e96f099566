/* test_budget.c - an answer always comes, and what it may cost is kept to the token.
 *
 * A real engine on the demo model, which deliberates about a paradox without end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "worker/budget.h"
#include <stdio.h>

/* Of the demo vocabulary: </think>, "\n", "\n\n". */
enum { GRACE = 64, CLOSE = 2157, NEWLINE = 198, BLANK_LINE = 492 };

static engine_run shared;

static int open_shared(void **state) {
    (void)state;
    engine_params params = run_params();
    params.n_context = 2048;
    params.budgets = (budget_settings){.thinking_tokens = -1,
                                       .loop_reasoning = 128,
                                       .loop_answer = 512,
                                       .loop_code = 1024,
                                       .grace_tokens = GRACE};
    run_open(&shared, &params);
    return 0;
}

static int close_shared(void **state) {
    (void)state;
    run_close(&shared);
    return 0;
}

#define MESSAGE(question) "{\"messages\":[{\"role\":\"user\",\"content\":\"" question "\"}]"
#define THINK             ",\"chat_template_kwargs\":{\"enable_thinking\":true}"
#define PARADOX           MESSAGE("This sentence is false. Is it true?") ",\"temperature\":0" THINK
#define COUNT             MESSAGE("Count from 1 to 60.") ",\"temperature\":0"
#define CODE              MESSAGE("Write a Python function that adds two numbers.") ",\"temperature\":0"
#define PLAIN             ",\"chat_template_kwargs\":{\"enable_thinking\":false}"

static const run_answer *ask(const char *fields) {
    static char body[1024];
    (void)snprintf(body, sizeof body, PARADOX ",%s}", fields);
    const run_answer *a = run_one(&shared, WIRE_CHAT, body);
    assert_true(a->done);
    return a;
}

static void assert_whole(const run_answer *a) {
    assert_string_equal(a->choices[0].content,
                        "There is no consistent answer: each answer leads to its opposite.");
}

static void deliberation_ends_at_its_budget_to_the_token(void **state) {
    (void)state;
    static const uint64_t budgets[] = {1, 2, 3, 7, 64, 300};
    size_t n = sizeof budgets / sizeof budgets[0];
#ifdef SILICEO_DEBUG /* sanitizers see the same paths sooner */
    n--;
#endif
    for (size_t i = 0; i < n; i++) {
        char fields[64];
        (void)snprintf(fields, sizeof fields, "\"max_thinking_tokens\":%d", (int)budgets[i]);
        const run_answer *a = ask(fields);
        assert_int_equal(a->usage.reasoning_tokens, budgets[i]);
        assert_int_equal(a->choices[0].ids[budgets[i] - 1], CLOSE);
        if (budgets[i] > 1) assert_int_equal(a->choices[0].ids[budgets[i] - 2], NEWLINE);
        assert_int_equal(a->choices[0].ids[budgets[i]], BLANK_LINE);
        assert_true(a->choices[0].flags & WIRE_FLAG_THINKING_CUT);
        assert_int_equal(a->choices[0].finish, WIRE_FINISH_STOP);
        assert_whole(a);
    }
#ifndef SILICEO_DEBUG
    const run_answer *silent = ask("\"seed\":1"); /* says nothing: the default */
    assert_int_equal(silent->usage.reasoning_tokens, 1024);
    assert_whole(silent);
#endif
    const run_answer *a = ask("\"max_thinking_tokens\":0");
    assert_int_equal(a->usage.reasoning_tokens, 0);
    assert_false(a->choices[0].flags & WIRE_FLAG_THINKING_CUT);
    assert_whole(a);
}

static void penalties_and_sampling_do_not_keep_it_open(void **state) {
    (void)state;
    static const char *const ways[] = {
        "\"temperature\":1.2,\"seed\":3", "\"repetition_penalty\":1.3",
        "\"logit_bias\":{\"2157\":-100}", "\"presence_penalty\":2,\"frequency_penalty\":2",
        "\"logprobs\":true"};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char fields[160];
        (void)snprintf(fields, sizeof fields, "\"max_thinking_tokens\":20,%s", ways[i]);
        const run_answer *a = ask(fields);
        assert_true(a->usage.reasoning_tokens <= 20);
        assert_true(a->choices[0].n_content > 0);
    }
}

static void half_of_a_small_total_is_held_back_for_the_answer(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 60; n++) {
        char fields[64];
        (void)snprintf(fields, sizeof fields, "\"max_tokens\":%d", (int)n);
        const run_answer *a = ask(fields);
        assert_int_equal(a->usage.reasoning_tokens, n < 4 ? 0 : n - n / 2);
        assert_true(a->usage.completion_tokens <= n + GRACE);
        assert_whole(a);
    }
}

static void the_answers_budget_counts_the_answer_alone(void **state) {
    (void)state;
    engine_params params = run_params();
    engine_run strict; /* no grace */
    run_open(&strict, &params);
    for (int n = 1; n <= 9; n += 4) {
        char body[400];
        (void)snprintf(body, sizeof body,
                       PARADOX ",\"max_thinking_tokens\":30,\"max_answer_tokens\":%d}", n);
        const run_answer *a = run_one(&strict, WIRE_CHAT, body);
        assert_int_equal(a->usage.reasoning_tokens, 30);
        /* The newlines behind the tag are no answer. */
        assert_int_equal(a->usage.completion_tokens, 30 + 1 + n);
        assert_int_equal(a->choices[0].finish, WIRE_FINISH_LENGTH);
        assert_true(a->choices[0].n_content > 0);
    }
    run_close(&strict);
}

static void a_cut_answer_goes_on_to_the_end_of_its_sentence(void **state) {
    (void)state;
    const run_answer *a = ask("\"max_thinking_tokens\":10,\"max_answer_tokens\":3");
    assert_whole(a);
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_LENGTH);
    assert_true(a->choices[0].flags & WIRE_FLAG_GRACE);
    /* Numbers have no sentence: the grace is used up. */
    a = run_one(&shared, WIRE_CHAT, COUNT PLAIN ",\"max_tokens\":5}");
    assert_int_equal(a->usage.completion_tokens, 5 + GRACE);
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_LENGTH);
    /* A raw completion is cut where it was asked to. */
    a = run_one(&shared, WIRE_COMPLETION,
                "{\"prompt\":\"The cat\",\"temperature\":0,\"max_tokens\":5}");
    assert_int_equal(a->usage.completion_tokens, 5);
}

static void an_open_code_block_is_closed(void **state) {
    (void)state;
    const run_answer *a = run_one(&shared, WIRE_CHAT, CODE PLAIN "}");
    char whole[RUN_TEXT];
    (void)snprintf(whole, sizeof whole, "%s", a->choices[0].content);
    assert_non_null(strstr(whole, "```python\n"));
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_STOP);
    a = run_one(&shared, WIRE_CHAT, CODE PLAIN ",\"max_answer_tokens\":12}");
    const char *text = a->choices[0].content;
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_LENGTH);
    assert_string_equal(text + strlen(text) - 4, "\n```");
    assert_true(strlen(text) < strlen(whole));
    /* A client's own stop string leaves it as it is. */
    a = run_one(&shared, WIRE_CHAT, CODE PLAIN ",\"stop\":\"return\"}");
    text = a->choices[0].content;
    assert_non_null(strstr(text, "```python\n"));
    assert_string_not_equal(text + strlen(text) - 3, "```");
}

static void circles_are_broken(void **state) {
    (void)state;
    /* One token wins again and again: 77 while it deliberates, and when it answers. */
    const run_answer *a = ask("\"logit_bias\":{\"77\":100}");
    assert_true(a->choices[0].flags & WIRE_FLAG_THINKING_CUT);
    assert_int_equal(a->usage.reasoning_tokens, 128 + 2);
    assert_int_equal(a->usage.completion_tokens, 130 + 1 + 512);
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_LENGTH);
    assert_true(a->choices[0].n_content > 0);
}

static void a_deliberation_that_just_stops_gets_its_answer(void **state) {
    (void)state;
    /* 2151 is <|im_end|>, and this request makes it the most probable of all. */
    const run_answer *a = ask("\"logit_bias\":{\"2151\":100}");
    assert_int_equal(a->choices[0].ids[0], CLOSE);
    assert_int_equal(a->usage.reasoning_tokens, 1);
    assert_false(a->choices[0].flags & WIRE_FLAG_THINKING_CUT);
    assert_true(a->choices[0].n_content > 0);
}

static void what_is_cut_must_answer_before_it_ends_or_thinks_again(void **state) {
    (void)state;
    /* 2156 is <think>, which may open a deliberation anew before the answer has begun. */
    const run_answer *a =
        ask("\"max_thinking_tokens\":5,\"logit_bias\":{\"2151\":100,\"2156\":100}");
    assert_true(a->usage.reasoning_tokens <= 5);
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_STOP);
    assert_true(a->choices[0].n_content > 0);
    assert_int_not_equal(strncmp(a->choices[0].content, "<think>", 7), 0);
}

/* A chat of n words, and of how many tokens. */
static uint64_t long_body(int n, char *out, size_t cap) {
    static char words[2 * 2100 + 1];
    for (int i = 0; i < n; i++)
        memcpy(words + 2 * (size_t)i, "a ", 3);
    (void)snprintf(out, cap,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],"
                   "\"temperature\":0" THINK "}",
                   words);
    const run_answer *a = run_one(&shared, WIRE_COUNT, out);
    return strtoull(strchr(a->result, ':') + 1, NULL, 10);
}

static void at_the_contexts_end_there_is_room_for_an_answer_or_a_refusal(void **state) {
    (void)state;
    static char body[6000];
    unsigned n_answered = 0, n_refused = 0;
    for (int n = 2100; n > 0 && n_answered < 6; n--) {
        uint64_t n_prompt = long_body(n, body, sizeof body);
        if (n_prompt > 2049) continue;
        const run_answer *a = run_one(&shared, WIRE_CHAT, body);
        if (a->failed) {
            assert_string_equal(a->code, "context_length_exceeded");
            n_refused++;
        } else {
            assert_true(a->usage.prompt_tokens + a->usage.completion_tokens <= 2048);
            assert_true(a->choices[0].n_content > 0);
            n_answered++;
        }
        assert_int_equal(a->failed, n_prompt + 4 > 2048);
    }
    assert_true(n_answered > 0 && n_refused > 0);
}

static void company_changes_nothing(void **state) {
    (void)state;
    static const char *const fields[] = {"\"max_thinking_tokens\":9", "\"max_tokens\":33",
                                         "\"max_thinking_tokens\":50,\"max_answer_tokens\":4",
                                         "\"reasoning_effort\":\"minimal\""};
    static run_answer alone[4];
    char bodies[4][400];
    for (size_t i = 0; i < 4; i++)
        alone[i] = *ask(fields[i]);
    run_forget(&shared);
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(bodies[i], sizeof bodies[i], PARADOX ",%s}", fields[i]);
        wire_submit submit = {
            .request = i, .kind = WIRE_CHAT, .body = wire_text(bodies[i], strlen(bodies[i]))};
        run_submit_wire(&shared, &submit);
    }
    run_all(&shared);
    for (size_t i = 0; i < 4; i++) {
        const run_choice *a = &alone[i].choices[0], *b = &shared.answers[i].choices[0];
        assert_int_equal(a->n_ids, b->n_ids);
        assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof *a->ids);
        assert_string_equal(a->content, b->content);
        assert_int_equal(shared.answers[i].usage.reasoning_tokens,
                         alone[i].usage.reasoning_tokens);
    }
}

/* Broken after any number of its tokens, another engine gives the rest. */
static void assert_goes_on(const char *body) {
    static run_answer whole;
    whole = *run_one(&shared, WIRE_CHAT, body);
    const run_choice *a = &whole.choices[0];
    for (size_t n = 1; n <= a->n_ids; n++) {
        run_forget(&shared);
        wire_submit submit = {.request = 0,
                              .epoch = 1,
                              .kind = WIRE_CHAT,
                              .body = wire_text(body, strlen(body)),
                              .resume = {.ids = a->ids, .n_ids = n}};
        run_submit_wire(&shared, &submit);
        run_all(&shared);
        const run_answer *rest = &shared.answers[0];
        const run_choice *b = &rest->choices[0];
        assert_true(rest->done);
        assert_int_equal(b->n_ids, a->n_ids - n);
        assert_memory_equal(b->ids, a->ids + n, b->n_ids * sizeof *b->ids);
        assert_int_equal(b->finish, a->finish);
        assert_int_equal(b->flags, a->flags);
        assert_int_equal(rest->usage.completion_tokens, whole.usage.completion_tokens);
        assert_int_equal(rest->usage.reasoning_tokens, whole.usage.reasoning_tokens);
        assert_string_equal(b->content, a->content + (a->n_content - b->n_content));
    }
}

static void another_node_goes_on_within_the_same_budgets(void **state) {
    (void)state;
    assert_goes_on(PARADOX ",\"max_thinking_tokens\":12,\"max_answer_tokens\":3}");
    assert_goes_on(PARADOX ",\"max_tokens\":24}");
    assert_goes_on(CODE PLAIN ",\"max_answer_tokens\":12}");
}

/* --- what is no circle --- */

static tokenizer *vocab;

/* As an answer and as a deliberation, with the usual settings and no other limit. */
static void assert_no_circle(const char *text) {
    static generation g;
    static budget b;
    error err = {0};
    token_list ids = {0};
    for (int inside = 0; inside <= 1; inside++) {
        const budget_params p = {.settings = {-1, 128, 512, 1024, GRACE},
                                 .closing = {-1, CLOSE, -1}};
        token_list_release(&ids);
        assert_int_equal(
            tokenizer_encode(vocab, text, strlen(text), TOKENIZER_ADDED_NONE, &ids, &err),
            STATUS_OK);
        assert_int_equal(generation_init(&g, vocab, true, inside, NULL, 0, &err), STATUS_OK);
        g.repairs = true;
        budget_init(&b, &p, inside);
        for (size_t i = 0; i < ids.length; i++) {
            generation_push(&g, ids.ids[i]);
            if (budget_take(&b, &g, ids.ids[i]) != WIRE_FINISH_NONE || b.thinking_cut)
                fail_msg("a circle at token %zu of: %.200s", i, text);
        }
        generation_release(&g);
    }
    token_list_release(&ids);
}

/* Every answer and every text of the conversations. */
static void assert_none_of_file(const char *path) {
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0, n = 0;
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        cJSON *item = cJSON_Parse(line);
        assert_non_null(item);
        assert_no_circle(cJSON_GetObjectItem(item, "answer")->valuestring);
        const cJSON *messages = cJSON_GetObjectItem(item, "messages");
        for (const cJSON *m = messages->child; m != NULL; m = m->next) {
            const cJSON *content = cJSON_GetObjectItem(m, "content");
            if (cJSON_IsString(content)) assert_no_circle(content->valuestring);
        }
        cJSON_Delete(item);
        n++;
    }
    assert_true(n >= 200);
    free(line);
    (void)fclose(f);
}

static void counting_tables_lists_and_code_are_no_circles(void **state) {
    (void)state;
    error err = {0};
    gguf_file *file = NULL;
    assert_int_equal(gguf_open(&file, "deploy/models/demo.gguf", &err), STATUS_OK);
    assert_int_equal(tokenizer_open(&vocab, file, false, &err), STATUS_OK);
    assert_none_of_file("tests/golden/data/conversations.jsonl");
    static const struct {
        const char *before, *behind;
    } turns[] = {{"", " "},
                 {"| ", " | yes | no | yes |\n"},
                 {"- item ", " of the list\n"},
                 {"    total += values[", "];\n"},
                 {"Step ", ": suppose that it is true; then it is false.\n"},
                 {"{\"id\": ", ", \"name\": \"x\", \"tags\": []},\n"}};
    for (size_t k = 0; k < sizeof turns / sizeof turns[0]; k++) {
        json_text text = {0};
        for (int i = 0; i < 400; i++)
            json_text_format(&text, "%s%d%s", turns[k].before, i, turns[k].behind);
        assert_no_circle(text.bytes);
        json_text_release(&text);
    }
    tokenizer_close(vocab);
    gguf_close(file);
}

static void the_settings_bound_what_requests_ask_for(void **state) {
    (void)state;
    const budget_settings none = {.thinking_tokens = 0}, usual = {.thinking_tokens = -1},
                          small = {.thinking_tokens = 100};
    assert_int_equal(budget_max_reasoning(&usual, -1, 0, 100000), 1024);
    assert_int_equal(budget_max_reasoning(&usual, 4096, 0, 100000), 4096);
    assert_int_equal(budget_max_reasoning(&small, 4096, 0, 100000), 100);
    assert_int_equal(budget_max_reasoning(&small, 64, 0, 100000), 64);
    assert_int_equal(budget_max_reasoning(&none, -1, 0, 100000), 100000 - 512);
    assert_int_equal(budget_max_reasoning(&none, -1, 3000, 100000), 3000 - 512);
    assert_int_equal(budget_max_reasoning(&usual, -1, 1200, 100000), 688);
    assert_int_equal(budget_max_reasoning(&usual, -1, 0, 200), 100); /* the context's end */
    assert_int_equal(budget_max_reasoning(&usual, -1, 1, 1), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deliberation_ends_at_its_budget_to_the_token),
        cmocka_unit_test(penalties_and_sampling_do_not_keep_it_open),
        cmocka_unit_test(half_of_a_small_total_is_held_back_for_the_answer),
        cmocka_unit_test(the_answers_budget_counts_the_answer_alone),
        cmocka_unit_test(a_cut_answer_goes_on_to_the_end_of_its_sentence),
        cmocka_unit_test(an_open_code_block_is_closed),
        cmocka_unit_test(circles_are_broken),
        cmocka_unit_test(a_deliberation_that_just_stops_gets_its_answer),
        cmocka_unit_test(what_is_cut_must_answer_before_it_ends_or_thinks_again),
        cmocka_unit_test(at_the_contexts_end_there_is_room_for_an_answer_or_a_refusal),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(another_node_goes_on_within_the_same_budgets),
        cmocka_unit_test(counting_tables_lists_and_code_are_no_circles),
        cmocka_unit_test(the_settings_bound_what_requests_ask_for),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
