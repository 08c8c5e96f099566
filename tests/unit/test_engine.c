/* test_engine.c - a real engine on the demo model, from submit to done.
 *
 * All on one engine where the test does not need another, so that what one test leaves
 * behind is seen by the next.  The allocator is watched while tokens are decoded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/engine_run.h"
#include <stdatomic.h>
#include <stdio.h>

/* --- the allocator, watched --- */

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

static atomic_bool watching;
static atomic_uint n_allocations;
static atomic_uint failing; /* number of the allocation that gets nothing; 0: none */

#ifndef SANITIZED
/* glibc's own entry points; the definitions below take the place of its public ones in
 * this program, for all its threads. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

/* Counts one while it is being watched; false when this one shall fail. */
static bool may_allocate(void) {
    if (!atomic_load(&watching)) return true;
    return atomic_fetch_add(&n_allocations, 1) + 1 != atomic_load(&failing);
}

void *malloc(size_t n) {
    return may_allocate() ? __libc_malloc(n) : NULL;
}

void *calloc(size_t n, size_t size) {
    return may_allocate() ? __libc_calloc(n, size) : NULL;
}

void *realloc(void *p, size_t n) {
    return may_allocate() ? __libc_realloc(p, n) : NULL;
}
#endif

/* --- the engine that most tests share --- */

static engine_run shared;

static int open_shared(void **state) {
    (void)state;
    engine_params params = run_params();
    run_open(&shared, &params);
    return 0;
}

static int close_shared(void **state) {
    (void)state;
    run_close(&shared);
    return 0;
}

#define MESSAGE(question) "{\"messages\":[{\"role\":\"user\",\"content\":\"" question "\"}]"
#define ASK(question)     MESSAGE(question) ",\"temperature\":0"
#define FOX               MESSAGE("Tell me a story about a fox and a lamp.")
#define ROSE              ASK("Who wrote The Name of the Rose?")
#define PRODUCT           ASK("What is 17 × 23?")
#define NAPOLEON          ASK("In what year was Napoleon born?")
#define STORY             ASK("Tell me a story about a fox and a lamp.")
#define COUNT             ASK("Count from 1 to 40.")

static void the_three_questions_are_answered_right(void **state) {
    (void)state;
    const struct {
        const char *body, *words;
    } cases[] = {{ROSE "}", "Umberto Eco"}, {PRODUCT "}", "391"}, {NAPOLEON "}", "1769"}};
    for (size_t i = 0; i < 3; i++) {
        const run_answer *a = run_one(&shared, WIRE_CHAT, cases[i].body);
        assert_true(a->done);
        const run_choice *c = &a->choices[0];
        if (strstr(c->content, cases[i].words) == NULL) fail_msg("%s", c->content);
        assert_true(c->n_reasoning > 0);
        assert_null(strstr(c->content, "think>"));
        assert_null(strstr(c->content, "<|im_end|>"));
        assert_int_equal(c->finish, WIRE_FINISH_STOP);
        assert_int_equal(a->usage.completion_tokens, c->n_ids);
        assert_true(a->usage.reasoning_tokens > 0);
        assert_true(a->usage.reasoning_tokens < a->usage.completion_tokens);
        assert_true(a->usage.prompt_tokens > 10);
        assert_true(a->usage.prefill_ms > 0 && a->usage.decode_ms > 0);
        assert_true(a->usage.hit_rate < 0); /* no slots */
    }
}

static void without_thinking_everything_is_content(void **state) {
    (void)state;
    const run_answer *a = run_one(
        &shared, WIRE_CHAT, ROSE ",\"chat_template_kwargs\":{\"enable_thinking\":false}}");
    assert_int_equal(a->choices[0].n_reasoning, 0);
    assert_int_equal(a->usage.reasoning_tokens, 0);
    assert_non_null(strstr(a->choices[0].content, "Umberto Eco"));
}

static void a_raw_completion_has_no_template_and_one_channel(void **state) {
    (void)state;
    const run_answer *a =
        run_one(&shared, WIRE_COMPLETION,
                "{\"temperature\":0,\"prompt\":\"<|im_start|>user\\nWho wrote The Name of the "
                "Rose?<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\"}");
    assert_int_equal(a->usage.prompt_tokens, 18); /* the golden prompt: tags are tokens */
    assert_int_equal(a->choices[0].n_reasoning, 0);
    assert_non_null(strstr(a->choices[0].content, "</think>"));
    assert_non_null(strstr(a->choices[0].content, "Umberto Eco."));
}

static void what_a_user_writes_cannot_spell_control_tokens(void **state) {
    (void)state;
    uint64_t plain =
        run_one(&shared, WIRE_CHAT, ASK("hi") ",\"max_tokens\":1}")->usage.prompt_tokens;
    uint64_t tag = run_one(&shared, WIRE_CHAT, ASK("hi<|im_end|>") ",\"max_tokens\":1}")
                       ->usage.prompt_tokens;
    assert_true(tag > plain + 1);
}

static void many_at_once_answer_as_each_alone(void **state) {
    (void)state;
    static const char *const bodies[] = {ROSE "}", PRODUCT "}", NAPOLEON "}",
                                         STORY ",\"max_tokens\":60}",
                                         COUNT ",\"max_tokens\":70}"};
    enum { N = 5, TIMES = 3 };
    char(*alone)[RUN_TEXT] = calloc(N, sizeof *alone);
    assert_non_null(alone);
    for (int i = 0; i < N; i++) {
        const run_answer *a = run_one(&shared, WIRE_CHAT, bodies[i]);
        (void)snprintf(alone[i], RUN_TEXT, "%s", a->choices[0].content);
    }
    run_forget(&shared);
    for (uint64_t i = 0; i < N * TIMES; i++) {
        run_submit(&shared, i, WIRE_CHAT, bodies[i % N]);
        run_steps(&shared, 3);
    }
    engine_stats stats;
    engine_read_stats(shared.e, &stats);
    assert_int_equal(stats.running, 4);
    assert_true(stats.waiting > 0);
    run_all(&shared);
    for (int i = 0; i < N * TIMES; i++) {
        assert_true(shared.answers[i].done);
        assert_string_equal(shared.answers[i].choices[0].content, alone[i % N]);
    }
    free(alone);
}

static void a_cancelled_request_ends_at_once_and_harms_nobody(void **state) {
    (void)state;
    run_forget(&shared);
    run_submit(&shared, 1, WIRE_CHAT, STORY ",\"ignore_eos\":true}");
    run_submit(&shared, 2, WIRE_CHAT, ROSE "}");
    run_submit(&shared, 3, WIRE_CHAT, STORY "}");
    assert_true(engine_cancel(shared.e, 3, 0)); /* before its first token */
    assert_true(shared.answers[3].failed);
    run_steps(&shared, 8);
    assert_true(shared.answers[1].choices[0].n_ids > 0);
    assert_true(engine_cancel(shared.e, 1, 0));
    assert_true(shared.answers[1].failed);
    assert_int_equal(shared.answers[1].http_status, 499);
    assert_false(engine_cancel(shared.e, 1, 0));
    assert_false(engine_cancel(shared.e, 2, 7)); /* another epoch */
    run_all(&shared);
    assert_non_null(strstr(shared.answers[2].choices[0].content, "Umberto Eco"));
}

static void a_wrong_body_is_an_error_with_its_field(void **state) {
    (void)state;
    static const struct {
        wire_kind kind;
        const char *body, *param;
    } cases[] = {
        {WIRE_CHAT, "{", ""},
        {WIRE_CHAT, "{}", "messages"},
        {WIRE_CHAT, ROSE ",\"top_p\":7}", "top_p"},
        {WIRE_CHAT, ROSE ",\"n\":\"two\"}", "n"},
        {WIRE_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "messages[0].content[0]"},
        {WIRE_COMPLETION, "{\"prompt\":\"\"}", "prompt"},
        {WIRE_COMPLETION, "{\"prompt\":[4096]}", "prompt[0]"},
        {WIRE_EMBED, "{\"input\":\"x\"}", "input"},
        {WIRE_EMBED, "{\"input\":[\"x\",[4096]]}", "input[1]"},
        {WIRE_RERANK, "{\"query\":\"x\",\"documents\":[7]}", "documents[0]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const run_answer *a = run_one(&shared, cases[i].kind, cases[i].body);
        assert_true(a->failed);
        assert_int_equal(a->http_status, 400);
        assert_false(a->retryable);
        assert_string_equal(a->param, cases[i].param);
        assert_true(strlen(a->error) > 0);
    }
}

/* A chat whose one message repeats "word " n times. */
static char *long_chat(int n, const char *rest) {
    json_text body = {0};
    json_text_format(&body,
                     "{\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < n; i++)
        json_text_format(&body, "word ");
    json_text_format(&body, "\"}]%s}", rest);
    assert_false(body.failed);
    return body.bytes;
}

static void a_prompt_beyond_the_context_is_refused_with_both_numbers(void **state) {
    (void)state;
    const int lengths[] = {1500, 200000};
    for (int i = 0; i < 2; i++) {
        char *body = long_chat(lengths[i], "");
        const run_answer *a = run_one(&shared, WIRE_CHAT, body);
        assert_true(a->failed);
        assert_int_equal(a->http_status, 400);
        assert_string_equal(a->code, "context_length_exceeded");
        assert_string_equal(a->param, "messages");
        assert_non_null(strstr(a->error, "1024"));
        int n_tokens = 0;
        const char *has = strstr(a->error, "messages has ");
        assert_non_null(has);
        assert_int_equal(sscanf(has, "messages has at least %d", &n_tokens) == 1 ||
                             sscanf(has, "messages has %d", &n_tokens) == 1,
                         1);
        assert_true(n_tokens > 1024);
        free(body);
    }
}

/* A completion's prompt is text or ids; neither is cut. */
static void a_completion_beyond_the_context_is_refused_with_both_numbers(void **state) {
    (void)state;
    json_text text = {0}, ids = {0};
    for (int i = 0; i < 1500; i++) {
        json_text_format(&text, "%s", i == 0 ? "{\"prompt\":\"word" : " word");
        json_text_format(&ids, "%s", i == 0 ? "{\"prompt\":[7" : ",7");
    }
    json_text_format(&text, "\"}");
    json_text_format(&ids, "]}");
    const json_text *const cases[] = {&text, &ids};
    const char *const lengths[] = {"prompt has ", "prompt has 1500;"};
    for (int i = 0; i < 2; i++) {
        assert_false(cases[i]->failed);
        const run_answer *a = run_one(&shared, WIRE_COMPLETION, cases[i]->bytes);
        assert_true(a->failed);
        assert_int_equal(a->http_status, 400);
        assert_string_equal(a->code, "context_length_exceeded");
        assert_string_equal(a->param, "prompt");
        assert_non_null(strstr(a->error, lengths[i]));
        assert_non_null(strstr(a->error, "1024"));
    }
    json_text_release(&text);
    json_text_release(&ids);
}

static void generation_ends_by_length_at_its_limit_or_the_contexts(void **state) {
    (void)state;
    const run_answer *a = run_one(&shared, WIRE_CHAT, STORY ",\"max_tokens\":5}");
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_LENGTH);
    assert_int_equal(a->choices[0].n_ids, 5);
    char *body = long_chat(900, ",\"ignore_eos\":true,\"max_tokens\":100000");
    a = run_one(&shared, WIRE_CHAT, body);
    free(body);
    assert_true(a->done);
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_LENGTH);
    assert_int_equal(a->usage.prompt_tokens + a->usage.completion_tokens, 1024);
}

static void a_deadline_ends_a_request_wherever_it_is(void **state) {
    (void)state;
    run_forget(&shared);
    for (uint64_t i = 0; i < 6; i++) { /* four run, two wait */
        wire_submit submit = {.request = i,
                              .kind = WIRE_CHAT,
                              .body = wire_text(STORY ",\"ignore_eos\":true}",
                                                strlen(STORY ",\"ignore_eos\":true}")),
                              .deadline_ms = 60};
        run_submit_wire(&shared, &submit);
    }
    run_submit(&shared, 6, WIRE_CHAT, ROSE "}");
    run_all(&shared);
    for (int i = 0; i < 6; i++) {
        assert_true(shared.answers[i].failed);
        assert_int_equal(shared.answers[i].http_status, 504);
    }
    assert_true(shared.answers[6].done);
}

static void the_same_seed_gives_the_same_text_in_any_company(void **state) {
    (void)state;
#define WARM FOX ",\"temperature\":2,\"max_tokens\":40,\"ignore_eos\":true,\"seed\":"
    static run_choice first;
    first = run_one(&shared, WIRE_CHAT, WARM "5}")->choices[0];
    run_forget(&shared);
    run_submit(&shared, 0, WIRE_CHAT, WARM "6}");
    run_submit(&shared, 1, WIRE_CHAT, STORY "}");
    run_steps(&shared, 4);
    run_submit(&shared, 2, WIRE_CHAT, WARM "5}");
    run_submit(&shared, 3, WIRE_CHAT, WARM "5,\"n\":2}");
    run_all(&shared);
    const struct {
        int request, choice;
        bool same;
    } cases[] = {{2, 0, true}, {0, 0, false}, {3, 0, true}, {3, 1, false}};
    for (size_t i = 0; i < 4; i++) {
        const run_choice *c = &shared.answers[cases[i].request].choices[cases[i].choice];
        assert_int_equal(c->n_ids, 40);
        if ((memcmp(first.ids, c->ids, 40 * sizeof *c->ids) == 0) != cases[i].same) {
            fail_msg("case %zu: '%s' and '%s'", i, first.reasoning, c->reasoning);
        }
        if (cases[i].same) assert_string_equal(first.content, c->content);
    }
}

static void each_choice_has_its_finish_and_usage_adds_them_up(void **state) {
    (void)state;
    const run_answer *a = run_one(&shared, WIRE_CHAT, STORY ",\"n\":3,\"max_tokens\":12}");
    assert_true(a->done);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a->choices[i].finish, WIRE_FINISH_LENGTH);
        assert_int_equal(a->choices[i].n_ids, 12);
        assert_string_equal(a->choices[i].reasoning, a->choices[0].reasoning); /* greedy */
    }
    assert_int_equal(a->usage.completion_tokens, 36);
}

static void a_stop_string_ends_the_content_and_is_not_shown(void **state) {
    (void)state;
    const run_answer *a =
        run_one(&shared, WIRE_CHAT, ROSE ",\"stop\":[\"nobody\",\"by Umb\"]}");
    assert_int_equal(a->choices[0].finish, WIRE_FINISH_STOP);
    assert_string_equal(a->choices[0].content, "The Name of the Rose was written ");
    /* It stands in the reasoning too, where it does not count. */
    a = run_one(&shared, WIRE_CHAT, ROSE ",\"stop\":\"The user asks\"}");
    assert_non_null(strstr(a->choices[0].content, "Umberto Eco"));
    /* What was held back for a stop string that did not come is shown. */
    a = run_one(&shared, WIRE_CHAT, ROSE ",\"stop\":\"Eco.!\"}");
    assert_string_equal(a->choices[0].content,
                        "The Name of the Rose was written by Umberto Eco.");
}

/* The whole stream, and the same one broken after n ids and gone on with elsewhere. */
static void assert_resumes(const char *body, size_t n, bool draws) {
    static run_answer whole;
    whole = *run_one(&shared, WIRE_CHAT, body);
    assert_true(whole.choices[0].n_ids > n);
    run_forget(&shared);
    wire_submit submit = {
        .request = 0,
        .epoch = 1,
        .kind = WIRE_CHAT,
        .body = wire_text(body, strlen(body)),
        .resume = {.ids = whole.choices[0].ids, .n_ids = n, .sampler_counter = draws ? n : 0}};
    run_submit_wire(&shared, &submit);
    run_all(&shared);
    const run_answer *rest = &shared.answers[0];
    const run_choice *a = &whole.choices[0], *b = &rest->choices[0];
    assert_true(rest->done);
    assert_int_equal(b->n_ids, a->n_ids - n);
    assert_memory_equal(b->ids, a->ids + n, b->n_ids * sizeof *b->ids);
    assert_int_equal(b->finish, a->finish);
    assert_int_equal(rest->usage.completion_tokens, whole.usage.completion_tokens);
    assert_int_equal(rest->usage.reasoning_tokens, whole.usage.reasoning_tokens);
    assert_true(b->n_content <= a->n_content);
    assert_string_equal(b->content, a->content + (a->n_content - b->n_content));
    assert_string_equal(b->reasoning, a->reasoning + (a->n_reasoning - b->n_reasoning));
}

static void a_broken_stream_goes_on_as_if_unbroken(void **state) {
    (void)state;
    const size_t cuts[] = {1, 7, 18, 24, 30};
    for (size_t i = 0; i < 5; i++)
        assert_resumes(ROSE "}", cuts[i], false);
    assert_resumes(STORY ",\"max_tokens\":40}", 33, false);
    assert_resumes(FOX ",\"temperature\":1.3,\"seed\":9,\"max_tokens\":30,\"ignore_eos\":true}",
                   13, true);
}

static void a_document_goes_on_where_another_node_left_it(void **state) {
    static const char body[] = ROSE
        ",\"max_tokens\":44,\"temperature\":0,\"response_format\":{\"type\":\"json_schema\","
        "\"json_schema\":{\"schema\":{\"type\":\"array\",\"items\":{\"type\":\"string\","
        "\"maxLength\":9},\"minItems\":3}}}}";
    (void)state;
    const size_t cuts[] = {1, 12, 20, 23, 28};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
        assert_resumes(body, cuts[i], false);
    const run_answer *a = run_one(&shared, WIRE_CHAT, body);
    cJSON *value = NULL;
    error err = {0};
    assert_int_equal(
        json_parse(&value, a->choices[0].content, a->choices[0].n_content, "answer", &err),
        STATUS_OK);
    assert_in_range(cJSON_GetArraySize(value), 3, 40);
    cJSON_Delete(value);
}

static void a_stream_that_was_over_only_needs_its_end(void **state) {
    (void)state;
    static run_answer whole;
    whole = *run_one(&shared, WIRE_CHAT, ROSE "}");
    run_forget(&shared);
    wire_submit submit = {
        .request = 0,
        .kind = WIRE_CHAT,
        .body = wire_text(ROSE "}", strlen(ROSE "}")),
        .resume = {.ids = whole.choices[0].ids, .n_ids = whole.choices[0].n_ids}};
    run_submit_wire(&shared, &submit);
    assert_true(shared.answers[0].done);
    assert_int_equal(shared.answers[0].choices[0].finish, WIRE_FINISH_STOP);
    assert_int_equal(shared.answers[0].choices[0].n_ids, 0);
    const int32_t strange[] = {5, -3};
    submit.request = 1;
    submit.resume = (wire_resume){.ids = strange, .n_ids = 2};
    run_submit_wire(&shared, &submit);
    assert_true(shared.answers[1].failed);
    assert_int_equal(shared.answers[1].http_status, 400);
}

static void counting_and_tokenizing_answer_at_once(void **state) {
    (void)state;
    const run_answer *a = run_one(&shared, WIRE_COUNT, ROSE "}");
    assert_true(a->done);
    assert_string_equal(a->result, "{\"tokens\":18}");
    a = run_one(&shared, WIRE_TOKENIZE, "{\"prompt\":\"<think>\\n\"}");
    assert_non_null(strstr(a->result, "{\"tokens\":[2156,198],\"count\":2,\"max_model_len\":"));
}

static void log_probabilities_are_those_of_the_tokens(void **state) {
    (void)state;
    const run_answer *a = run_one(
        &shared, WIRE_CHAT, ROSE ",\"logprobs\":true,\"top_logprobs\":3,\"max_tokens\":1}");
    cJSON *items = cJSON_Parse(a->choices[0].logprobs);
    assert_non_null(items);
    assert_int_equal(cJSON_GetArraySize(items), 1);
    const cJSON *top = cJSON_GetObjectItem(items->child, "top_logprobs");
    assert_int_equal(cJSON_GetArraySize(top), 3);
    assert_string_equal(cJSON_GetObjectItem(items->child, "token")->valuestring,
                        a->choices[0].content); /* the text of the only token */
    double logprob = cJSON_GetObjectItem(items->child, "logprob")->valuedouble;
    assert_true(logprob <= 0 && logprob > -1);
    assert_float_equal(cJSON_GetObjectItem(top->child, "logprob")->valuedouble, logprob, 1e-9);
    cJSON_Delete(items);
    a = run_one(&shared, WIRE_CHAT, ROSE ",\"max_tokens\":3}");
    assert_int_equal(a->choices[0].n_logprobs, 0);
}

static void a_bias_forbids_and_forces_tokens(void **state) {
    (void)state;
    const run_answer *a = run_one(&shared, WIRE_CHAT,
                                  ROSE ",\"logit_bias\":{\"77\":100},\"max_tokens\":4,"
                                       "\"chat_template_kwargs\":{\"enable_thinking\":false}}");
    for (int i = 0; i < 4; i++)
        assert_int_equal(a->choices[0].ids[i], 77);
}

static void a_second_request_of_the_same_name_is_not_taken(void **state) {
    (void)state;
    error err = {0};
    wire_submit submit = {
        .request = 0, .kind = WIRE_CHAT, .body = wire_text(ROSE "}", strlen(ROSE "}"))};
    run_forget(&shared);
    run_submit_wire(&shared, &submit);
    assert_int_equal(engine_submit(shared.e, &submit, &err), STATUS_BAD_INPUT);
    run_all(&shared);
    assert_true(shared.answers[0].done);
}

static void a_full_queue_takes_nothing_and_calls_nobody(void **state) {
    (void)state;
    error err = {0};
    run_forget(&shared);
    const char *many = STORY ",\"n\":128,\"max_tokens\":2}";
    wire_submit submit = {.kind = WIRE_CHAT, .body = wire_text(many, strlen(many))};
    status rc = STATUS_OK;
    uint64_t n = 0;
    for (; n < 8 && rc == STATUS_OK; n++) {
        submit.request = n;
        rc = engine_submit(shared.e, &submit, &err);
    }
    assert_int_equal(rc, STATUS_UNAVAILABLE);
    assert_int_equal(n, 3);
    assert_false(shared.answers[2].failed);
    for (uint64_t i = 0; i < 2; i++)
        assert_true(engine_cancel(shared.e, i, 0));
    run_all(&shared);
}

static void decoding_allocates_nothing(void **state) {
    (void)state;
#ifdef SANITIZED
    skip(); /* the sanitizer owns the allocator */
#endif
    run_forget(&shared);
    const char *rest = ",\"ignore_eos\":true,\"max_tokens\":64}";
    char body[512];
    for (uint64_t i = 0; i < 3; i++) {
        (void)snprintf(body, sizeof body, "%s%s%s", FOX,
                       i == 0   ? ",\"temperature\":0"
                       : i == 1 ? ",\"temperature\":0.8,\"top_p\":0.9,\"presence_penalty\":0.5"
                                : ",\"top_k\":9,\"temperature\":1,\"stop\":[\"zzz\"]",
                       rest);
        run_submit(&shared, i, WIRE_CHAT, body);
    }
    run_steps(&shared, 4); /* prompts are through */
    atomic_store(&n_allocations, 0);
    atomic_store(&watching, true);
    run_steps(&shared, 40);
    atomic_store(&watching, false);
    assert_int_equal(shared.answers[0].choices[0].n_ids, 44);
    assert_int_equal(atomic_load(&n_allocations), 0);
    run_all(&shared);
}

/* Every allocation of a submit fails once; each time the request is shed as a whole. */
static void a_submit_without_memory_is_shed_and_harms_nobody(void **state) {
    (void)state;
#ifdef SANITIZED
    skip();
#endif
    const char *body = STORY ",\"presence_penalty\":1,\"stop\":[\"a b\"],\"n\":2,"
                             "\"logit_bias\":{\"5\":1},\"logprobs\":true}";
    wire_submit submit = {.kind = WIRE_CHAT, .body = wire_text(body, strlen(body))};
    unsigned nth = 0;
    for (bool reached = true; reached; nth++) {
        error err = {0};
        run_forget(&shared);
        atomic_store(&n_allocations, 0);
        atomic_store(&failing, nth + 1);
        atomic_store(&watching, true);
        status rc = engine_submit(shared.e, &submit, &err);
        atomic_store(&watching, false);
        reached = atomic_load(&n_allocations) > nth;
        if (!reached) {
            assert_int_equal(rc, STATUS_OK);
            assert_false(shared.answers[0].failed);
        } else if (rc != STATUS_NO_MEMORY) {
            /* cJSON does not say why it gave no tree, so that is taken for bad JSON. */
            if (strstr(shared.answers[0].error, "not valid JSON") == NULL) {
                fail_msg("allocation %u failed and the status was %d", nth + 1, (int)rc);
            }
        }
    }
    atomic_store(&failing, 0);
    assert_true(nth > 20);
    assert_true(engine_cancel(shared.e, 0, 0));
    run_all(&shared);
    const run_answer *a = run_one(&shared, WIRE_CHAT, ROSE "}");
    assert_non_null(strstr(a->choices[0].content, "Umberto Eco"));
}

static void measuring_leaves_the_engine_as_it_was(void **state) {
    (void)state;
    error err = {0};
    double prefill = 0, decode = 0;
    assert_int_equal(engine_measure(shared.e, 100, &prefill, &decode, &err), STATUS_OK);
    assert_true(prefill > 0 && decode > 0);
    const run_answer *a = run_one(&shared, WIRE_CHAT, ROSE "}");
    assert_non_null(strstr(a->choices[0].content, "Umberto Eco"));
    engine_stats stats;
    engine_read_stats(shared.e, &stats);
    assert_true(stats.decode_tok_per_s > 0 && stats.prefill_tok_per_s > 0);
    assert_true(stats.ram_used_bytes > 1 << 20);
    assert_true(stats.hit_rate < 0);
    run_submit(&shared, 1, WIRE_CHAT, ROSE "}");
    assert_int_equal(engine_measure(shared.e, 10, &prefill, &decode, &err), STATUS_UNAVAILABLE);
    run_all(&shared);
}

static void what_it_is_can_be_asked(void **state) {
    (void)state;
    assert_int_equal(engine_context_tokens(shared.e), 1024);
    assert_int_equal(engine_n_slots(shared.e), 0);
    assert_int_equal(strlen(engine_file_hash(shared.e)), 32);
    assert_non_null(strstr(engine_numerics_id(shared.e), "cpu"));
    assert_non_null(strstr(engine_plan_text(shared.e), "KV pages"));
    /* The demo file has no template of its own, which is worth a warning, and no more. */
    assert_non_null(strstr(engine_warning(shared.e, 0), "chat_template"));
    assert_null(engine_warning(shared.e, 1));
    assert_int_equal(engine_model_config(shared.e)->n_experts, 32);
}

/* --- engines of their own --- */

static void slots_are_counted_and_change_no_answer(void **state) {
    (void)state;
    engine_params params = run_params();
    engine_run run = {0};
    params.n_slots = 64;
    run_open(&run, &params);
    assert_int_equal(engine_n_slots(run.e), 64);
    const run_answer *a = run_one(&run, WIRE_CHAT, ROSE "}");
    assert_non_null(strstr(a->choices[0].content, "Umberto Eco"));
    assert_true(a->usage.hit_rate > 0 && a->usage.hit_rate < 1);
    assert_true(a->usage.misses_per_token > 0 && a->usage.misses_per_token <= 8 * 32);
    engine_stats stats;
    engine_read_stats(run.e, &stats);
    assert_true(stats.hit_rate > 0 && stats.hit_rate < 1);
    run_close(&run);
}

/* The smallest memory that the demo model with this context fits in gives a handful of
 * pages, so that four long texts cannot all be held. */
static void open_narrow(engine_run *run, engine_params *params) {
    error err = {0};
    const engine_sink sink = {run, run_tokens, run_done, run_error};
    run->answers = calloc(RUN_MAX_REQUESTS, sizeof *run->answers);
    assert_non_null(run->answers);
    for (params->ram_mib = 16; params->ram_mib < 128; params->ram_mib++) {
        if (engine_open(&run->e, params, &sink, &err) == STATUS_OK) return;
        assert_null(run->e);
    }
    fail_msg("%s", err.text);
}

static void texts_that_outgrow_the_memory_take_turns_and_stay_the_same(void **state) {
    (void)state;
    enum { N = 4 };
    static int32_t alone[N][RUN_IDS];
    engine_params params = run_params();
    engine_run run = {0};
    char body[512];
    params.n_context = 640;
    open_narrow(&run, &params);
    engine_stats stats;
    engine_read_stats(run.e, &stats);
    assert_true(stats.kv_pages_total < 20);
    for (uint64_t i = 0; i < N; i++) {
        (void)snprintf(
            body, sizeof body,
            "%s,\"seed\":%d,\"temperature\":1.2,\"max_tokens\":300,\"ignore_eos\":true}", FOX,
            (int)i);
        run_forget(&run);
        run_submit(&run, 0, WIRE_CHAT, body);
        run_all(&run);
        memcpy(alone[i], run.answers[0].choices[0].ids, sizeof alone[i]);
    }
    run_forget(&run);
    for (uint64_t i = 0; i < N; i++) {
        (void)snprintf(
            body, sizeof body,
            "%s,\"seed\":%d,\"temperature\":1.2,\"max_tokens\":300,\"ignore_eos\":true}", FOX,
            (int)i);
        run_submit(&run, i, WIRE_CHAT, body);
    }
    run_steps(&run, 40);
    engine_read_stats(run.e, &stats);
    uint32_t running = stats.running;
    run_steps(&run, 200);
    engine_read_stats(run.e, &stats);
    assert_true(stats.running < running); /* someone had to wait again */
    run_all(&run);
    for (int i = 0; i < N; i++) {
        assert_int_equal(run.answers[i].choices[0].n_ids, 300);
        assert_memory_equal(run.answers[i].choices[0].ids, alone[i], 300 * sizeof(int32_t));
    }
    run_close(&run);
}

static void closing_ends_everyone(void **state) {
    (void)state;
    engine_params params = run_params();
    engine_run run = {0};
    params.n_sequences = 1;
    run_open(&run, &params);
    run_submit(&run, 0, WIRE_CHAT, STORY "}");
    run_submit(&run, 1, WIRE_CHAT, STORY "}");
    run_steps(&run, 3);
    engine_close(run.e);
    for (int i = 0; i < 2; i++) {
        assert_true(run.answers[i].failed);
        assert_int_equal(run.answers[i].http_status, 503);
        assert_true(run.answers[i].retryable);
    }
    free(run.answers);
    engine_close(NULL);
}

static void what_cannot_be_opened_says_why(void **state) {
    (void)state;
    const engine_sink sink = {NULL, run_tokens, run_done, run_error};
    error err = {0};
    engine *e = NULL;
    engine_params params = run_params();
    params.model_path = "/nowhere/model.gguf";
    assert_int_not_equal(engine_open(&e, &params, &sink, &err), STATUS_OK);
    assert_non_null(strstr(err.text, "/nowhere/model.gguf"));
    params = run_params();
    params.n_slots = 8;
    assert_int_equal(engine_open(&e, &params, &sink, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "slots = 8"));
    params = run_params();
    params.ram_mib = 8;
    assert_int_equal(engine_open(&e, &params, &sink, &err), STATUS_NO_MEMORY);
    assert_null(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_three_questions_are_answered_right),
        cmocka_unit_test(without_thinking_everything_is_content),
        cmocka_unit_test(a_raw_completion_has_no_template_and_one_channel),
        cmocka_unit_test(what_a_user_writes_cannot_spell_control_tokens),
        cmocka_unit_test(many_at_once_answer_as_each_alone),
        cmocka_unit_test(a_cancelled_request_ends_at_once_and_harms_nobody),
        cmocka_unit_test(a_wrong_body_is_an_error_with_its_field),
        cmocka_unit_test(a_prompt_beyond_the_context_is_refused_with_both_numbers),
        cmocka_unit_test(a_completion_beyond_the_context_is_refused_with_both_numbers),
        cmocka_unit_test(generation_ends_by_length_at_its_limit_or_the_contexts),
        cmocka_unit_test(a_deadline_ends_a_request_wherever_it_is),
        cmocka_unit_test(the_same_seed_gives_the_same_text_in_any_company),
        cmocka_unit_test(each_choice_has_its_finish_and_usage_adds_them_up),
        cmocka_unit_test(a_stop_string_ends_the_content_and_is_not_shown),
        cmocka_unit_test(a_broken_stream_goes_on_as_if_unbroken),
        cmocka_unit_test(a_document_goes_on_where_another_node_left_it),
        cmocka_unit_test(a_stream_that_was_over_only_needs_its_end),
        cmocka_unit_test(counting_and_tokenizing_answer_at_once),
        cmocka_unit_test(log_probabilities_are_those_of_the_tokens),
        cmocka_unit_test(a_bias_forbids_and_forces_tokens),
        cmocka_unit_test(a_second_request_of_the_same_name_is_not_taken),
        cmocka_unit_test(a_full_queue_takes_nothing_and_calls_nobody),
        cmocka_unit_test(decoding_allocates_nothing),
        cmocka_unit_test(a_submit_without_memory_is_shed_and_harms_nobody),
        cmocka_unit_test(measuring_leaves_the_engine_as_it_was),
        cmocka_unit_test(what_it_is_can_be_asked),
        cmocka_unit_test(slots_are_counted_and_change_no_answer),
        cmocka_unit_test(texts_that_outgrow_the_memory_take_turns_and_stay_the_same),
        cmocka_unit_test(closing_ends_everyone),
        cmocka_unit_test(what_cannot_be_opened_says_why),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
