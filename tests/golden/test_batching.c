/* test_batching.c - the answer to a conversation is the same however it is batched.
 *
 * Conversations of the corpus, greedy and drawn: alone; all at once, in pieces of every size;
 * those in the background displaced by others, with what they held kept or run again; four
 * choices behind one run of a prompt or each behind its own; with guesses and remembered
 * beginnings besides.  The ids are always the same.
 * SILICEO_CONVERSATIONS says how many are taken.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/engine_run.h"
#include <stdio.h>

#ifdef SILICEO_DEBUG /* sanitizers see the same paths sooner */
enum { DEFAULT_CONVERSATIONS = 8 };
#else
enum { DEFAULT_CONVERSATIONS = 12 };
#endif
enum { MAX_CONVERSATIONS = 200, AT_ONCE = 12, MAX_TOKENS = 32 };

typedef struct conversation {
    char *body; /* without its closing brace */
    int32_t ids[RUN_IDS];
    size_t n_ids;
    uint64_t n_prompt;
} conversation;

static conversation *list;
static int n_list;

static char *make_body(const cJSON *item) {
    json_text body = {0};
    char *messages = cJSON_PrintUnformatted(cJSON_GetObjectItem(item, "messages"));
    json_text_format(&body, "{\"messages\":%s,\"max_tokens\":%d", messages, (int)MAX_TOKENS);
    cJSON_free(messages);
    const cJSON *tools = cJSON_GetObjectItem(item, "tools");
    if (cJSON_IsArray(tools)) {
        char *text = cJSON_PrintUnformatted(tools);
        json_text_format(&body, ",\"tools\":%s", text);
        cJSON_free(text);
    }
    if (cJSON_IsFalse(cJSON_GetObjectItem(item, "thinking")))
        json_text_format(&body, ",\"chat_template_kwargs\":{\"enable_thinking\":false}");
    assert_false(body.failed);
    return body.bytes;
}

/* What is appended to the body of a conversation; the caller frees the result. */
static char *body_with(const conversation *c, const char *more) {
    size_t length = strlen(c->body) + strlen(more) + 1;
    char *body = malloc(length);
    assert_non_null(body);
    (void)snprintf(body, length, "%s%s", c->body, more);
    return body;
}

static void submit(engine_run *run, uint64_t request, const conversation *c, const char *more,
                   uint32_t priority) {
    char *body = body_with(c, more);
    const wire_submit wire = {.request = request,
                              .kind = WIRE_CHAT,
                              .priority = priority,
                              .body = wire_text(body, strlen(body))};
    run_submit_wire(run, &wire);
    free(body);
}

static const char GREEDY[] = ",\"temperature\":0}";

/* The answers that all others are measured by: each alone, in whole chunks. */
static void answer_each_alone(void) {
    engine_params params = run_params();
    engine_run run = {0};
    params.n_sequences = 1;
    params.chunk_tokens = 512;
    run_open(&run, &params);
    for (int i = 0; i < n_list; i++) {
        run_forget(&run);
        submit(&run, 0, &list[i], GREEDY, 0);
        run_all(&run);
        const run_answer *a = &run.answers[0];
        if (!a->done) fail_msg("conversation %d: %s", i, a->error);
        list[i].n_ids = a->choices[0].n_ids;
        list[i].n_prompt = a->usage.prompt_tokens;
        memcpy(list[i].ids, a->choices[0].ids, list[i].n_ids * sizeof(int32_t));
    }
    run_close(&run);
}

static int read_list(void **state) {
    (void)state;
    const char *wish = getenv("SILICEO_CONVERSATIONS");
    int n = wish != NULL ? atoi(wish) : DEFAULT_CONVERSATIONS;
    char *line = NULL;
    size_t cap = 0;
    FILE *f = fopen("tests/golden/data/conversations.jsonl", "rb");
    assert_non_null(f);
    assert_true(n >= 1 && n <= MAX_CONVERSATIONS);
    list = calloc((size_t)n, sizeof *list);
    assert_non_null(list);
    while (n_list < n && getline(&line, &cap, f) > 0) {
        cJSON *item = cJSON_Parse(line);
        list[n_list++].body = make_body(item);
        cJSON_Delete(item);
    }
    free(line);
    (void)fclose(f);
    answer_each_alone();
    return n_list == n ? 0 : -1;
}

static int free_list(void **state) {
    (void)state;
    for (int i = 0; i < n_list; i++)
        free(list[i].body);
    free(list);
    return 0;
}

static void assert_answer(const run_answer *a, int i, const char *what) {
    const run_choice *c = &a->choices[0];
    if (!a->done) fail_msg("%s, conversation %d: %s", what, i, a->error);
    if (c->n_ids != list[i].n_ids ||
        memcmp(c->ids, list[i].ids, c->n_ids * sizeof(int32_t)) != 0) {
        fail_msg("%s, conversation %d: '%s' '%s'", what, i, c->reasoning, c->content);
    }
}

static void company_and_chunks_change_no_answer(void **state) {
    (void)state;
    const struct {
        uint32_t chunk, n_sequences, max_step_ms;
    } cases[] = {{64, 3, 0}, {192, 8, 0}, {512, 5, 1}, {512, 12, 20}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        engine_params params = run_params();
        engine_run run = {0};
        char what[64];
        params.chunk_tokens = cases[i].chunk;
        params.n_sequences = cases[i].n_sequences;
        params.max_step_ms = cases[i].max_step_ms;
        (void)snprintf(what, sizeof what, "chunk %u, %u at once", cases[i].chunk,
                       cases[i].n_sequences);
        run_open(&run, &params);
        for (int from = 0; from < n_list; from += AT_ONCE) {
            run_forget(&run);
            for (int j = from; j < n_list && j < from + AT_ONCE; j++) {
                submit(&run, (uint64_t)(j - from), &list[j], GREEDY, 0);
                run_steps(&run, j % 3); /* some come while others run */
            }
            run_all(&run);
            for (int j = from; j < n_list && j < from + AT_ONCE; j++)
                assert_answer(&run.answers[j - from], j, what);
        }
        run_close(&run);
    }
}

/* Every second conversation in the background; the others come while those run. */
static void displace(int64_t park_mib, bool with_all, const char *what) {
    engine_params params = run_params();
    engine_run run = {0};
    engine_stats stats;
    params.n_sequences = 3;
    params.park_mib = park_mib;
    if (with_all) {
        params.speculate = SPECULATE_LOOKUP;
        params.prefix_ram_mib = 48;
        params.prefix_every_tokens = 128;
    }
    /* No bound of time: how many are displaced would depend on the machine. */
    params.max_step_ms = 0;
    run_open(&run, &params);
    for (int from = 0; from < n_list; from += AT_ONCE) {
        int end = from + AT_ONCE < n_list ? from + AT_ONCE : n_list;
        run_forget(&run);
        for (int i = from; i < end; i += 2)
            submit(&run, (uint64_t)(i - from), &list[i], GREEDY, 1);
        for (int i = from + 1; i < end; i += 2) {
            run_steps(&run, 7);
            submit(&run, (uint64_t)(i - from), &list[i], GREEDY, 0);
        }
        run_all(&run);
        for (int i = from; i < end; i++)
            assert_answer(&run.answers[i - from], i, what);
    }
    engine_read_stats(run.e, &stats);
    assert_true((park_mib > 0 ? stats.restored : stats.not_parked) >= 3);
    assert_int_equal(stats.parked, stats.restored);
    if (park_mib == 0) assert_int_equal(stats.parked, 0);
    run_close(&run);
}

static void the_displaced_go_on_with_what_they_held(void **state) {
    (void)state;
    displace(64, false, "displaced and parked");
}

static void the_displaced_run_again_where_nothing_can_be_kept(void **state) {
    (void)state;
    displace(0, false, "displaced and run again");
}

static void guesses_and_remembered_beginnings_change_nothing_of_that(void **state) {
    (void)state;
    displace(64, true, "with all, displaced and parked");
    displace(0, true, "with all, displaced and run again");
}

static void one_that_is_cancelled_while_it_is_parked_leaves_nothing(void **state) {
    (void)state;
    engine_params params = run_params();
    engine_run run = {0};
    engine_stats stats;
    params.n_sequences = 1;
    params.park_mib = 64;
    run_open(&run, &params);
    submit(&run, 0, &list[0], GREEDY, 1);
    run_steps(&run, 12);
    submit(&run, 1, &list[1], GREEDY, 0);
    run_steps(&run, 1);
    engine_read_stats(run.e, &stats);
    assert_int_equal(stats.parked, 1);
    assert_int_equal(stats.waiting, 1);
    assert_true(engine_cancel(run.e, 0, 0));
    assert_int_equal(run.answers[0].http_status, 499);
    run_all(&run);
    assert_answer(&run.answers[1], 1, "beside a cancelled one");
    engine_read_stats(run.e, &stats);
    assert_int_equal(stats.restored, 0);
    run_close(&run); /* which checks that nothing is kept */
}

static uint64_t rows_run(engine_run *run) {
    engine_stats stats;
    engine_read_stats(run->e, &stats);
    return stats.model.tokens;
}

/* Drawn with seeds 5, 6, 7, 8, each alone; the same as four choices of one request.  Log
 * probabilities, to six digits, tell also what changes no token. */
static void choices_are_what_each_would_be_alone(void **state) {
    (void)state;
    enum { N_CHOICES = 4, N = 3 };
    static int32_t alone[N][N_CHOICES][RUN_IDS];
    static size_t n_alone[N][N_CHOICES];
    static char logprobs[N][N_CHOICES][RUN_TEXT];
    const struct {
        uint32_t n_sequences;
        int64_t park_mib;
        bool once; /* the prompt is run */
    } cases[] = {{4, 64, true}, {2, 64, true}, {3, 0, false}};
    engine_run run = {0};
    char more[128];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        engine_params params = run_params();
        params.n_sequences = cases[i].n_sequences;
        params.park_mib = cases[i].park_mib;
        run_open(&run, &params);
        for (int j = 0; j < N && j < n_list; j++) {
            for (int k = 0; i == 0 && k < N_CHOICES; k++) {
                (void)snprintf(more, sizeof more,
                               ",\"temperature\":1.5,\"logprobs\":true,\"seed\":%d}", 5 + k);
                run_forget(&run);
                submit(&run, 0, &list[j], more, 0);
                run_all(&run);
                const run_choice *c = &run.answers[0].choices[0];
                n_alone[j][k] = c->n_ids;
                memcpy(alone[j][k], c->ids, sizeof c->ids);
                memcpy(logprobs[j][k], c->logprobs, RUN_TEXT);
            }
            uint64_t before = rows_run(&run), n_decoded = 0;
            run_forget(&run);
            submit(&run, 0, &list[j],
                   ",\"temperature\":1.5,\"logprobs\":true,\"seed\":5,\"n\":4}", 0);
            run_all(&run);
            for (int k = 0; k < N_CHOICES; k++) {
                const run_choice *c = &run.answers[0].choices[k];
                assert_int_equal(c->n_ids, n_alone[j][k]);
                assert_memory_equal(c->ids, alone[j][k], c->n_ids * sizeof(int32_t));
                assert_string_equal(c->logprobs, logprobs[j][k]);
                n_decoded += c->n_ids - 1; /* the last is not run */
            }
            uint64_t rows = rows_run(&run) - before;
            assert_int_equal(rows == list[j].n_prompt + n_decoded, cases[i].once);
        }
        run_close(&run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(company_and_chunks_change_no_answer),
        cmocka_unit_test(the_displaced_go_on_with_what_they_held),
        cmocka_unit_test(the_displaced_run_again_where_nothing_can_be_kept),
        cmocka_unit_test(guesses_and_remembered_beginnings_change_nothing_of_that),
        cmocka_unit_test(one_that_is_cancelled_while_it_is_parked_leaves_nothing),
        cmocka_unit_test(choices_are_what_each_would_be_alone),
    };
    return cmocka_run_group_tests(tests, read_list, free_list);
}
