/* test_prefix_engine.c - an engine that remembers prompts answers as one that does not.
 *
 * Two engines on the demo model get the same conversations, turn by turn: their ids must be
 * equal whatever was skipped, and what was skipped is what the cache can have held.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/engine_run.h"
#include "tests/files.h"
#include "worker/model/model.h"
#include <stdio.h>

enum { N_CHATS = 6, N_ANSWERS = 64, BLOCK = MODEL_CHUNK_TOKENS };
#ifdef SILICEO_DEBUG /* sanitizers see the same paths sooner, and in a small dense model */
#define MODEL "deploy/models/draft.gguf"
enum { N_TALKS = 1, N_CANCELS = 3, N_ROUNDS = 1, N_WAYS = 1, N_COMINGS = 3, N_STOPS = 1 };
enum { MIB_OF_ONE = 1, MIB_OF_THREE = 1 }; /* snapshots in so much RAM; one, or a few */
#else
#define MODEL "deploy/models/demo.gguf"
enum { N_TALKS = 3, N_CANCELS = 6, N_ROUNDS = 2, N_WAYS = 3, N_COMINGS = 4, N_STOPS = 3 };
enum { MIB_OF_ONE = 2, MIB_OF_THREE = 5 };
#endif

static engine_run plain;
static cJSON *chats[N_CHATS]; /* of the corpus, the longest of its first ones */
static struct {
    char *body;
    run_answer answer;
} answers[N_ANSWERS]; /* of the plain engine */

/* On a machine with a GPU, SILICEO_TEST_BACKEND=cuda runs all of it there. */
static engine_params params_of_model(void) {
    engine_params params = run_params();
    params.model_path = MODEL;
    if (getenv("SILICEO_TEST_BACKEND") != NULL) params.backend = BACKEND_CUDA;
    return params;
}

static int open_all(void **state) {
    (void)state;
    engine_params params = params_of_model();
    run_open(&plain, &params);
    FILE *f = fopen("tests/golden/data/conversations.jsonl", "r");
    char *line = NULL;
    size_t cap = 0, n = 0;
    assert_non_null(f);
    while (n < N_CHATS && getline(&line, &cap, f) > 0) {
        cJSON *chat = cJSON_Parse(line);
        cJSON *messages = cJSON_DetachItemFromObject(chat, "messages");
        cJSON_Delete(chat);
        if (cJSON_GetArraySize(messages) >= 6) {
            chats[n++] = messages;
        } else {
            cJSON_Delete(messages);
        }
    }
    assert_int_equal(n, N_CHATS);
    free(line);
    (void)fclose(f);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int i = 0; i < N_CHATS; i++)
        cJSON_Delete(chats[i]);
    for (int i = 0; i < N_ANSWERS; i++)
        free(answers[i].body);
    run_close(&plain);
    return 0;
}

/* --- requests --- */

typedef struct ask {
    const cJSON *chat;
    int n_messages;     /* the first so many */
    const char *system; /* before them; NULL: none but theirs */
    const char *first;  /* instead of what the first user said */
    const char *more;   /* fields of the request: `,"n":2` */
    bool background;
} ask;

static const char LONG_SYSTEM[] =
    "You are the assistant of a small library at the harbour. The library opens at nine and "
    "closes at six, on Sundays at one. Readers may take five books for three weeks. Maps and "
    "newspapers stay in the house. The garden has a table with two chairs under the old tree. "
    "Answer in one sentence, name the shelf where a book stands, and never promise what the "
    "library does not have. The red shelf holds stories, the blue shelf holds history, the "
    "green shelf holds plants and animals, and the white shelf holds everything about numbers.";

static char *write_body(const ask *a) {
    cJSON *root = cJSON_CreateObject(), *messages = cJSON_AddArrayToObject(root, "messages");
    if (a->system != NULL) {
        cJSON *m = cJSON_CreateObject();
        cJSON_AddStringToObject(m, "role", "system");
        cJSON_AddStringToObject(m, "content", a->system);
        cJSON_AddItemToArray(messages, m);
    }
    const char *first = a->first;
    for (int i = 0; i < a->n_messages; i++) {
        cJSON *m = cJSON_Duplicate(cJSON_GetArrayItem(a->chat, i), true);
        const char *role = cJSON_GetStringValue(cJSON_GetObjectItem(m, "role"));
        if (a->system != NULL && strcmp(role, "system") == 0) {
            cJSON_Delete(m);
            continue;
        }
        if (first != NULL && strcmp(role, "user") == 0) {
            cJSON_ReplaceItemInObject(m, "content", cJSON_CreateString(first));
            first = NULL;
        }
        cJSON_AddItemToArray(messages, m);
    }
    char *text = cJSON_PrintUnformatted(root);
    size_t n = strlen(text), more = a->more != NULL ? strlen(a->more) : 0;
    char *body = malloc(n + more + 64);
    assert_non_null(body);
    (void)sprintf(body, "%.*s,\"temperature\":0,\"max_tokens\":12%s}", (int)n - 1, text,
                  a->more != NULL ? a->more : "");
    free(text);
    cJSON_Delete(root);
    return body;
}

/* What the plain engine answers, which it computes once. */
static const run_answer *answer_of_plain(const char *body) {
    int i = 0;
    while (i < N_ANSWERS - 1 && answers[i].body != NULL && strcmp(answers[i].body, body) != 0)
        i++;
    if (answers[i].body != NULL && strcmp(answers[i].body, body) == 0)
        return &answers[i].answer;
    free(answers[i].body);
    answers[i].body = strdup(body);
    answers[i].answer = *run_one(&plain, WIRE_CHAT, body);
    assert_int_equal(answers[i].answer.usage.cached_tokens, 0);
    return &answers[i].answer;
}

static uint64_t names[RUN_MAX_HELD];

/* Submit it as request 0, with a name for each message's end. */
static void submit(engine_run *r, const ask *a, const wire_resume *resume) {
    char *body = write_body(a);
    wire_submit s = {.kind = WIRE_CHAT,
                     .body = wire_text(body, strlen(body)),
                     .priority = a->background,
                     .boundaries = names,
                     .n_boundaries = (size_t)a->n_messages};
    cJSON *first = cJSON_GetArrayItem(a->chat, 0);
    bool adds = a->system != NULL &&
                strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(first, "role")), "system") != 0;
    s.n_boundaries += adds ? 1 : 0;
    for (size_t i = 0; i < RUN_MAX_HELD; i++)
        names[i] = 1000 + i;
    if (resume != NULL) s.resume = *resume;
    run_forget(r);
    run_submit_wire(r, &s);
    free(body);
}

static void assert_same(const run_answer *a, const run_answer *b) {
    assert_true(a->done && b->done);
    assert_int_equal(a->usage.prompt_tokens, b->usage.prompt_tokens);
    for (int i = 0; i < RUN_MAX_CHOICES; i++) {
        assert_int_equal(a->choices[i].n_ids, b->choices[i].n_ids);
        assert_memory_equal(a->choices[i].ids, b->choices[i].ids,
                            a->choices[i].n_ids * sizeof(int32_t));
        assert_string_equal(a->choices[i].content, b->choices[i].content);
    }
}

/* Both engines answer alike; the tokens that the one skipped. */
static uint64_t both(engine_run *r, const ask *a) {
    char *body = write_body(a);
    const run_answer *expected = answer_of_plain(body);
    submit(r, a, NULL);
    run_all(r);
    assert_same(expected, &r->answers[0]);
    free(body);
    uint64_t cached = r->answers[0].usage.cached_tokens;
    assert_int_equal(cached % BLOCK, 0);
    assert_true(cached < r->answers[0].usage.prompt_tokens);
    return cached;
}

static void open_cached(engine_run *r, uint32_t n_context, uint32_t n_sequences,
                        int64_t ram_mib) {
    engine_params params = params_of_model();
    params.n_context = n_context;
    params.n_sequences = n_sequences;
    params.prefix_ram_mib = ram_mib;
    params.prefix_states = n_sequences / 2; /* in place, in RAM, or both */
    params.poison = true;
    run_open(r, &params);
}

static bool holds(const engine_run *r, size_t message) {
    const wire_done *d = &r->answers[0].usage;
    for (size_t i = 0; i < d->n_boundaries; i++) {
        if (d->boundaries[i] == 1000 + message) return true;
    }
    return false;
}

/* --- tests --- */

static void every_next_turn_goes_on_from_the_last_one(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 4, 64);
    uint64_t skipped = 0, all = 0;
    for (int i = 0; i < N_TALKS; i++) {
        uint64_t before = 0;
        int n_messages = cJSON_GetArraySize(chats[i]);
        for (int n = 2; n <= n_messages && n <= 8; n += 2) {
            const ask a = {.chat = chats[i], .n_messages = n, .system = LONG_SYSTEM};
            uint64_t cached = both(&r, &a);
            /* As far as the header before the last answer, and the system for a stranger. */
            assert_true(cached >= before);
            if (i > 0 || n > 2) assert_true(cached >= BLOCK);
            assert_true(holds(&r, (size_t)n - 1)); /* what the user said last */
            assert_true(holds(&r, 0));
            before = (r.answers[0].usage.prompt_tokens - 4) / BLOCK * BLOCK;
            skipped += cached;
            all += r.answers[0].usage.prompt_tokens;
        }
    }
    assert_true(2 * skipped > all);
    engine_stats stats;
    engine_read_stats(r.e, &stats);
    assert_int_equal(stats.prefixes.hit_tokens, skipped);
    run_close(&r);
}

static void what_was_said_again_is_skipped_but_for_its_end(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 4, 64);
    const ask a = {.chat = chats[0], .n_messages = 2, .system = LONG_SYSTEM};
    assert_int_equal(both(&r, &a), 0);
    uint64_t cached = both(&r, &a);
    assert_true(cached + BLOCK + 4 >= r.answers[0].usage.prompt_tokens);
    run_close(&r);
}

static void other_beginnings_are_other_texts(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 4, 64);
    ask a = {.chat = chats[1], .n_messages = 4, .system = LONG_SYSTEM};
    assert_int_equal(both(&r, &a), 0);
    uint64_t again = both(&r, &a);
    ask edited = a; /* an earlier turn, edited: what is before it is held */
    edited.first = "Good evening, I am Greta and I look for a book.";
    uint64_t shared = both(&r, &edited);
    assert_true(shared >= BLOCK && shared < again);
    ask switched = a;
    switched.system = "You are somebody else entirely. You speak of nothing but the weather.";
    assert_int_equal(both(&r, &switched), 0);
    assert_int_equal(both(&r, &a), again); /* and all of them stand */
    run_close(&r);
}

static void thinking_or_not_goes_on_from_the_same_place(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 4, 64);
    ask a = {.chat = chats[2], .n_messages = 4, .system = LONG_SYSTEM};
    assert_int_equal(both(&r, &a), 0);
    a.more = ",\"chat_template_kwargs\":{\"enable_thinking\":false}";
    assert_true(both(&r, &a) >= BLOCK);
    a.more = ",\"max_thinking_tokens\":3";
    assert_true(both(&r, &a) >= BLOCK);
    a.more = ",\"n\":3";
    assert_true(both(&r, &a) >= BLOCK);
    run_close(&r);
}

/* head, n times the words, tail; for free(). */
static char *repeated(const char *head, int n, const char *words, const char *tail) {
    size_t cap = strlen(head) + (size_t)n * strlen(words) + strlen(tail) + 1, at = 0;
    char *text = malloc(cap);
    assert_non_null(text);
    at += (size_t)snprintf(text, cap, "%s", head);
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, cap - at, "%s", words);
    (void)snprintf(text + at, cap - at, "%s", tail);
    return text;
}

static void pages_come_back_from_ram(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 512, 1, 64); /* 8 pages in all */
    ask a = {.chat = chats[0], .n_messages = 2, .system = LONG_SYSTEM};
    ask b = {.chat = chats[3], .n_messages = 4};
    assert_int_equal(both(&r, &a), 0);
    uint64_t again = both(&r, &a);
    char *words = repeated("", 150, "red lamp ", "");
    b.first = words;
    assert_int_equal(both(&r, &b), 0); /* takes nearly every page */
    engine_stats stats;
    engine_read_stats(r.e, &stats);
    assert_true(stats.prefixes.n_blocks > stats.prefixes.n_in_place);
    assert_int_equal(both(&r, &a), again);
    free(words);
    run_close(&r);
}

static void a_cancelled_request_leaves_what_is_true(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 2, 64);
    const ask a = {.chat = chats[4], .n_messages = 6, .system = LONG_SYSTEM};
    for (int n_steps = 0; n_steps < N_CANCELS; n_steps++) {
        submit(&r, &a, NULL);
        run_steps(&r, n_steps);
        assert_true(engine_cancel(r.e, 0, 0));
        run_all(&r);
    }
    assert_true(both(&r, &a) >= BLOCK);
    run_close(&r);
}

static void a_resumed_answer_skips_its_prompt(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 2, 64);
    const ask a = {.chat = chats[5], .n_messages = 4, .system = LONG_SYSTEM};
    uint64_t first = both(&r, &a);
    assert_int_equal(first, 0);
    const run_choice whole = r.answers[0].choices[0];
    const wire_resume resume = {.ids = whole.ids, .n_ids = 5};
    submit(&r, &a, &resume);
    run_all(&r);
    const run_choice *rest = &r.answers[0].choices[0];
    assert_true(r.answers[0].usage.cached_tokens >= BLOCK);
    assert_int_equal(rest->n_ids, whole.n_ids - 5);
    assert_memory_equal(rest->ids, whole.ids + 5, rest->n_ids * sizeof(int32_t));
    run_close(&r);
}

static void background_work_does_not_evict_a_chat(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 2, MIB_OF_THREE);
    ask a = {.chat = chats[0], .n_messages = 2, .system = LONG_SYSTEM};
    assert_int_equal(both(&r, &a), 0);
    uint64_t again = both(&r, &a);
    for (int i = 1; i < 5; i++) {
        const ask title = {
            .chat = chats[i], .n_messages = 4, .system = LONG_SYSTEM + i, .background = true};
        (void)both(&r, &title);
    }
    assert_int_equal(both(&r, &a), again);
    for (int i = 1; i < 5; i++) {
        const ask other = {.chat = chats[i], .n_messages = 4, .system = LONG_SYSTEM + i};
        (void)both(&r, &other);
    }
    assert_int_equal(both(&r, &a), 0); /* other chats do */
    run_close(&r);
}

static void company_and_hardly_any_room_change_nothing(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 512, 3, MIB_OF_ONE); /* pages for little more than one text */
    char *bodies[N_CHATS];
    run_forget(&plain);
    for (uint64_t i = 0; i < N_CHATS; i++) {
        const ask a = {.chat = chats[i], .n_messages = 4, .more = ",\"n\":2"};
        bodies[i] = write_body(&a);
        run_submit(&plain, i, WIRE_CHAT, bodies[i]);
        run_all(&plain);
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        run_forget(&r);
        for (uint64_t i = 0; i < N_CHATS; i++) {
            run_submit(&r, i, WIRE_CHAT, bodies[(i + (uint64_t)round) % N_CHATS]);
            run_steps(&r, 2);
        }
        run_all(&r);
        for (uint64_t i = 0; i < N_CHATS; i++)
            assert_same(&plain.answers[(i + (uint64_t)round) % N_CHATS], &r.answers[i]);
    }
    for (int i = 0; i < N_CHATS; i++)
        free(bodies[i]);
    run_close(&r);
}

static void a_raw_prompt_goes_on_from_its_whole_blocks(void **state) {
    (void)state;
    static const char head[] = "{\"temperature\":0,\"max_tokens\":8,\"prompt\":\"";
    engine_run r;
    open_cached(&r, 1024, 2, 64);
    char *body = repeated(head, 100, "one two ", "\"}");
    char *longer = repeated(head, 100, "one two ", "three four\"}");
    const run_answer *a = run_one(&r, WIRE_COMPLETION, body);
    uint64_t n_tokens = a->usage.prompt_tokens;
    assert_int_equal(a->usage.cached_tokens, 0);
    a = run_one(&r, WIRE_COMPLETION, body);
    assert_int_equal(a->usage.cached_tokens, (n_tokens - 1) / BLOCK * BLOCK);
    (void)run_one(&plain, WIRE_COMPLETION, body);
    assert_same(&plain.answers[0], a);
    a = run_one(&r, WIRE_COMPLETION, longer);
    assert_int_equal(a->usage.cached_tokens, n_tokens / BLOCK * BLOCK);
    (void)run_one(&plain, WIRE_COMPLETION, longer);
    assert_same(&plain.answers[0], a);
    free(longer);
    free(body);
    run_close(&r);
}

/* --- what is run while nobody wants anything --- */

enum {
    TAIL = 48
}; /* at most, of a prompt behind the last answer: what the user says, headers */

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
    const run_answer *expected = answer_of_plain(body), *a = run_one(r, WIRE_CHAT, body);
    assert_same(expected, a);
    say(t, "assistant", a->choices[0].content);
    free(body);
    return a->usage.cached_tokens;
}

static void open_ahead(engine_run *r, bool ahead) {
    engine_params params = params_of_model();
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
#ifdef SILICEO_DEBUG
enum { N_TURNS = 3 };
#else
enum { N_TURNS = sizeof questions / sizeof questions[0] };
#endif

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
    say(&t, "system", LONG_SYSTEM);
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
    const ask other = {.chat = chats[1], .n_messages = 2};
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
        (void)both(&r, &other);
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
    const ask other = {.chat = chats[1], .n_messages = 2};
    engine_run r;
    talk t = {cJSON_CreateArray(),
              ",\"max_tokens\":100,\"temperature\":1,\"seed\":7,\"n\":3" SILENT};
    char *body = answer_alone(&r, &t, "Tell me a story about a fox.");
    run_answer all = r.answers[1];
    free(body);
    run_steps(&r, 5);
    (void)both(&r, &other);
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

/* The process ends in between; RAM holds one chat alone, so that the others come from disk. */
static void a_chat_goes_on_from_disk_after_a_restart(void **state) {
    (void)state;
    char folder[200], command[256];
    assert_true(make_temporary(folder, sizeof folder));
    engine_params params = params_of_model();
    params.n_sequences = 2;
    params.prefix_ram_mib = 4;
    params.prefix_disk_mib = 64;
    params.prefix_disk_dir = folder;
    uint64_t skipped[3];
    for (int life = 0; life < 2; life++) {
        engine_run r;
        run_open(&r, &params);
        for (int i = 0; i < 3; i++) {
            const ask a = {.chat = chats[i], .n_messages = 4, .system = LONG_SYSTEM + i};
            uint64_t cached = both(&r, &a);
            if (life == 0) assert_int_equal(cached, 0);
            if (life == 0) skipped[i] = both(&r, &a);
            if (life == 1) assert_int_equal(cached, skipped[i]);
            assert_true(skipped[i] >= BLOCK);
        }
        run_close(&r);
    }
    params.kv = KV_F32; /* other bits: nothing of that is its own */
    engine_run other;
    run_open(&other, &params);
    engine_stats stats;
    engine_read_stats(other.e, &stats);
    assert_int_equal(stats.prefixes.disk_bytes, 0);
    /* One that waits for the disk can be cancelled. */
    run_close(&other);
    params.kv = KV_F16;
    run_open(&other, &params);
    const ask a = {.chat = chats[1], .n_messages = 4, .system = LONG_SYSTEM + 1};
    submit(&other, &a, NULL);
    engine_read_stats(other.e, &stats);
    assert_int_equal(stats.waiting, 1);
    assert_true(engine_cancel(other.e, 0, 0));
    run_all(&other);
    assert_int_equal(both(&other, &a), skipped[1]);
    run_close(&other);
    (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_next_turn_goes_on_from_the_last_one),
        cmocka_unit_test(what_was_said_again_is_skipped_but_for_its_end),
        cmocka_unit_test(other_beginnings_are_other_texts),
        cmocka_unit_test(thinking_or_not_goes_on_from_the_same_place),
        cmocka_unit_test(pages_come_back_from_ram),
        cmocka_unit_test(a_cancelled_request_leaves_what_is_true),
        cmocka_unit_test(a_resumed_answer_skips_its_prompt),
        cmocka_unit_test(background_work_does_not_evict_a_chat),
        cmocka_unit_test(company_and_hardly_any_room_change_nothing),
        cmocka_unit_test(a_raw_prompt_goes_on_from_its_whole_blocks),
        cmocka_unit_test(a_chat_goes_on_from_disk_after_a_restart),
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
    return cmocka_run_group_tests(tests, open_all, close_all);
}
