/* test_prefix_ahead.c - an engine that runs an answer ahead as the next turn's beginning answers that
 * turn as one that remembers nothing (prefix_pair.h), and skips the answer where it was sent back.
 */
#include "tests/unit/prefix_pair.h"

#include <stdio.h>

#ifdef SILICEO_DEBUG
enum { N_TURNS = 3, N_WAYS = 1, N_COMINGS = 3, N_STOPS = 1 };
#else
enum { N_TURNS = 8, N_WAYS = 3, N_COMINGS = 4, N_STOPS = 3 };
#endif
/* At most, of a prompt behind the last answer: what the user says, headers. */
enum { TAIL = 48 };

#define SILENT ",\"chat_template_kwargs\":{\"enable_thinking\":false}"

/* A chat in the making: what was said, and how it is asked for more. */
typedef struct talk {
    cJSON *messages;
    const char *more;
} talk;

static void say(talk *t, const char *role, const char *content) {
    cJSON *m = cJSON_CreateObject();
    cJSON_AddStringToObject(m, "role", role);
    cJSON_AddStringToObject(m, "content", content);
    cJSON_AddItemToArray(t->messages, m);
}

/* What t->more says of the temperature counts. */
static char *write_talk(const talk *t) {
    char *messages = cJSON_PrintUnformatted(t->messages);
    size_t cap = strlen(messages) + strlen(t->more) + 64;
    char *body = malloc(cap);
    assert_non_null(body);
    (void)snprintf(body, cap, "{\"messages\":%s%s,\"temperature\":0}", messages, t->more);
    free(messages);
    return body;
}

static void drop_from(talk *t, int n) {
    while (cJSON_GetArraySize(t->messages) > n)
        cJSON_DeleteItemFromArray(t->messages, n);
}

/* Both engines answer alike, and the chat has the answer; the tokens that r skipped. */
static uint64_t answer(engine_run *r, talk *t) {
    char *body = write_talk(t);
    const run_answer *expected = pair_expect(body), *a = run_one(r, WIRE_CHAT, body);
    pair_assert_same(expected, a);
    say(t, "assistant", a->choices[0].content);
    free(body);
    return a->usage.cached_tokens;
}

static void open_ahead(engine_run *r, bool ahead) {
    engine_params params = pair_params();
    params.n_sequences = 2;
    params.chunk_tokens = 64;
    params.prefix_ram_mib = 64;
    params.prefix_ahead = ahead;
    params.poison = true;
    run_open(r, &params);
}

static const char *const questions[] = {
    "Count from 1 to 20.", "What is my name?", "Repeat exactly: red mirror clock",
    "Count from 1 to 30.", "What is 17 + 5?",  "Write a Python function that adds two numbers.",
    "Count from 1 to 15.", "Thank you."};
_Static_assert(N_TURNS <= sizeof questions / sizeof questions[0], "a question for each turn");

/* Returns all that was skipped. */
static uint64_t eight_turns(const char *more, bool ahead) {
    engine_run r;
    uint64_t skipped = 0;
    talk t = {cJSON_CreateArray(), more};
    open_ahead(&r, ahead);
    for (int i = 0; i < N_TURNS; i++) {
        say(&t, "user", questions[i]);
        uint64_t cached = answer(&r, &t);
        uint64_t n_prompt = r.answers[0].usage.prompt_tokens;
        if (ahead && n_prompt > TAIL) assert_true(cached >= (n_prompt - TAIL) / BLOCK * BLOCK);
        skipped += cached;
    }
    engine_stats stats;
    engine_read_stats(r.e, &stats);
    assert_int_equal(stats.prefixes.lookups, N_TURNS); /* and none of those that ran ahead */
    assert_int_equal(stats.prefixes.hit_tokens, skipped);
    cJSON_Delete(t.messages);
    run_close(&r);
    return skipped;
}

static void the_next_turn_skips_the_answer_too(void **state) {
    (void)state;
    static const char *const ways[] = {
        ",\"max_tokens\":120", /* its deliberation is not in the next prompt */
        (",\"max_tokens\":120" SILENT), ",\"max_tokens\":40" /* cut, and ended whole */};
    uint64_t without = eight_turns(ways[0], false);
    for (int i = 0; i < N_WAYS; i++) {
        uint64_t with = eight_turns(ways[i], true);
        assert_true(i > 0 || with > without);
    }
}

static void another_answer_than_the_one_given_goes_on_from_before_it(void **state) {
    (void)state;
    engine_run r;
    talk t = {cJSON_CreateArray(), ",\"max_tokens\":200"};
    open_ahead(&r, true);
    say(&t, "system", PAIR_SYSTEM);
    say(&t, "user", "Count from 1 to 40.");
    assert_int_equal(answer(&r, &t), 0);
    uint64_t first = r.answers[0].usage.prompt_tokens / BLOCK * BLOCK;
    cJSON_ReplaceItemInObject(cJSON_GetArrayItem(t.messages, 2), "content",
                              cJSON_CreateString("No, I would rather not do that."));
    say(&t, "user", "Why not?");
    uint64_t cached = answer(&r, &t);
    assert_true(cached >= BLOCK && cached <= first);
    cJSON_Delete(t.messages);
    run_close(&r);
}

/* An engine that runs ahead, when it has answered the first question and no step more; returns
 * what was asked, which is the caller's. */
static char *answer_alone(engine_run *r, talk *t, const char *question) {
    open_ahead(r, true);
    say(t, "user", question);
    char *body = write_talk(t);
    run_submit(r, 1, WIRE_CHAT, body);
    while (!r->answers[1].done)
        run_steps(r, 1);
    return body;
}

/* Somebody comes at each step of it: who comes is served, and it goes on afterwards. */
static void it_gives_way_to_whoever_comes(void **state) {
    (void)state;
    const pair_ask other = {.chat = pair_chats[1], .n_messages = 2};
    uint64_t before = 0;
    for (int n_steps = 0; n_steps < N_COMINGS; n_steps++) {
        engine_run r;
        engine_stats stats;
        talk t = {cJSON_CreateArray(), (",\"max_tokens\":140" SILENT)};
        char *body = answer_alone(&r, &t, "Count from 1 to 60.");
        run_steps(&r, n_steps);
        engine_read_stats(r.e, &stats);
        assert_int_equal(stats.running + stats.waiting, 0);
        assert_int_equal(stats.free_sequences, 2);
        say(&t, "assistant", r.answers[1].choices[0].content);
        (void)pair_both(&r, &other);
        say(&t, "user", "Thank you.");
        uint64_t cached = answer(&r, &t);
        assert_true(cached >= 2 * BLOCK && (n_steps == 0 || cached == before));
        before = cached;
        free(body);
        cJSON_Delete(t.messages);
        run_close(&r);
    }
}

/* The only value that a tool takes: a token for each digit, so that a call is long. */
#define RECIPE                                                                                 \
    "3.1415926535897932384626433832795028841971693993751058209749445923078164062862089986280"
#define COOKS                                                                                  \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"cook\",\"parameters\":{"      \
    "\"type\":"                                                                                \
    "\"object\",\"properties\":{\"what\":{\"type\":\"string\",\"enum\":[\"" RECIPE             \
    "\"]}},\"required\":[\"what\"]}}}]"
#define MUST_COOK COOKS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false"

static void what_has_no_next_turn_is_not_run_ahead(void **state) {
    (void)state;
    static const char *const ways[] = {
        ",\"max_tokens\":40" SILENT MUST_COOK,        /* cut within its call */
        ",\"max_tokens\":40,\"stop\":[\"1\"]" SILENT, /* nothing is left of it */
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        engine_run r;
        engine_stats before, after;
        talk t = {cJSON_CreateArray(), ways[i]};
        char *body = answer_alone(&r, &t, "Count from 1 to 40.");
        engine_read_stats(r.e, &before);
        run_all(&r);
        engine_read_stats(r.e, &after);
        assert_int_equal(before.model.tokens, after.model.tokens);
        free(body);
        cJSON_Delete(t.messages);
        run_close(&r);
    }
}

/* What r skips of the next turn; at the least all before what was said last. */
static void next_turn_skips_the_answer(engine_run *r, talk *t) {
    uint64_t cached = answer(r, t), n_prompt = r->answers[0].usage.prompt_tokens;
    assert_true(cached >= (n_prompt - TAIL) / BLOCK * BLOCK);
}

static void an_answer_up_to_a_stop_string_runs_ahead(void **state) {
    (void)state;
    /* Of the first, all but its last token is held back for long. */
    static const char *const stops[] = {
        "20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42", "50", " 50"};
    for (size_t i = 0; i < N_STOPS; i++) {
        engine_run r;
        char more[256];
        (void)snprintf(more, sizeof more, ",\"max_tokens\":200,\"stop\":[\"%s\"]" SILENT,
                       stops[i]);
        talk t = {cJSON_CreateArray(), more};
        open_ahead(&r, true);
        say(&t, "user", "Count from 1 to 60.");
        (void)answer(&r, &t);
        assert_non_null(strstr(r.answers[0].choices[0].content, i == 0 ? "19" : "49"));
        assert_null(strstr(r.answers[0].choices[0].content, stops[i]));
        uint64_t n_before = r.answers[0].usage.prompt_tokens;
        say(&t, "user", "Thank you.");
        next_turn_skips_the_answer(&r, &t);
        assert_true(r.answers[0].usage.cached_tokens > n_before);
        cJSON_Delete(t.messages);
        run_close(&r);
    }
}

/* Somebody comes while the second one runs. */
static void any_of_several_answers_may_be_gone_on_with(void **state) {
    (void)state;
    const pair_ask other = {.chat = pair_chats[1], .n_messages = 2};
    engine_run r;
    talk t = {cJSON_CreateArray(),
              ",\"max_tokens\":100,\"temperature\":1,\"seed\":7,\"n\":3" SILENT};
    char *body = answer_alone(&r, &t, "Tell me a story about a fox.");
    run_answer all = r.answers[1];
    free(body);
    run_steps(&r, 5);
    (void)pair_both(&r, &other);
    for (int i = 0; i < 3; i++) {
        assert_true(i == 0 || strcmp(all.choices[i].content, all.choices[0].content) != 0);
        say(&t, "assistant", all.choices[i].content);
        say(&t, "user", "Thank you.");
        next_turn_skips_the_answer(&r, &t);
        drop_from(&t, 1);
    }
    cJSON_Delete(t.messages);
    run_close(&r);
}

/* The answer, with its call, as a client sends it back; reasoning NULL: without. */
static void say_call(talk *t, const char *reasoning, const char *arguments) {
    say(t, "assistant", "");
    cJSON *m = cJSON_GetArrayItem(t->messages, cJSON_GetArraySize(t->messages) - 1);
    if (reasoning != NULL) cJSON_AddStringToObject(m, "reasoning_content", reasoning);
    cJSON *call = cJSON_CreateObject(), *function = cJSON_AddObjectToObject(call, "function");
    cJSON_AddStringToObject(call, "id", "call_1");
    cJSON_AddStringToObject(call, "type", "function");
    cJSON_AddStringToObject(function, "name", "cook");
    cJSON_AddStringToObject(function, "arguments", arguments);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(m, "tool_calls"), call);
}

/* With its deliberation or without, as clients do; then the answer to its result, and a turn
 * that leaves out what was deliberated. */
static void calls_of_tools_run_ahead(void **state) {
    (void)state;
    engine_run r;
    talk t = {cJSON_CreateArray(), ",\"max_tokens\":160,\"max_thinking_tokens\":24" MUST_COOK};
    char *body = answer_alone(&r, &t, "What is the weather in Madrid?");
    run_all(&r);
    run_choice first = r.answers[1].choices[0];
    uint64_t n_before = r.answers[1].usage.prompt_tokens;
    free(body);
    assert_int_equal(first.finish, WIRE_FINISH_TOOL_CALLS);
    assert_string_equal(first.content, "{\"what\":\"" RECIPE "\"}");
    assert_true(first.n_reasoning > 0);
    t.more = ",\"max_tokens\":40,\"max_thinking_tokens\":24" COOKS;
    for (int without = 0; without < 2; without++) {
        say_call(&t, without ? NULL : first.reasoning, first.content);
        say(&t, "tool", "It is done.");
        next_turn_skips_the_answer(&r, &t);
        assert_true(r.answers[0].usage.cached_tokens > n_before);
        if (without == 0) drop_from(&t, 1);
    }
    say(&t, "user", "Thank you.");
    next_turn_skips_the_answer(&r, &t);
    cJSON_Delete(t.messages);
    run_close(&r);
}

/* A client that changes the call, and one that gives up. */
static void another_call_than_the_one_made_is_another_text(void **state) {
    (void)state;
    engine_run r;
    talk t = {cJSON_CreateArray(), ",\"max_tokens\":160" SILENT MUST_COOK};
    char *body = answer_alone(&r, &t, "What is the weather in Madrid?");
    uint64_t n_before = r.answers[1].usage.prompt_tokens / BLOCK * BLOCK;
    free(body);
    run_all(&r);
    t.more = ",\"max_tokens\":12" SILENT COOKS;
    for (int way = 0; way < 2; way++) {
        say_call(&t, NULL, "{\"what\":\"three cups of sugar\"}");
        say(&t, way == 0 ? "tool" : "user", "It is done.");
        uint64_t cached = answer(&r, &t);
        assert_true(cached >= BLOCK && cached <= n_before);
        drop_from(&t, 1);
    }
    cJSON_Delete(t.messages);
    run_close(&r);
}

static void closing_leaves_nothing_of_what_runs_ahead(void **state) {
    (void)state;
    for (int n_steps = 0; n_steps < 3; n_steps++) {
        engine_run r;
        talk t = {cJSON_CreateArray(), (",\"max_tokens\":100" SILENT)};
        char *body = answer_alone(&r, &t, "Count from 1 to 40.");
        run_steps(&r, n_steps);
        free(body);
        cJSON_Delete(t.messages);
        run_close(&r);
        assert_null(r.answers);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_turn_skips_the_answer_too),
        cmocka_unit_test(another_answer_than_the_one_given_goes_on_from_before_it),
        cmocka_unit_test(it_gives_way_to_whoever_comes),
        cmocka_unit_test(what_has_no_next_turn_is_not_run_ahead),
        cmocka_unit_test(an_answer_up_to_a_stop_string_runs_ahead),
        cmocka_unit_test(any_of_several_answers_may_be_gone_on_with),
        cmocka_unit_test(calls_of_tools_run_ahead),
        cmocka_unit_test(another_call_than_the_one_made_is_another_text),
        cmocka_unit_test(closing_leaves_nothing_of_what_runs_ahead),
    };
    return cmocka_run_group_tests(tests, pair_open, pair_close);
}
