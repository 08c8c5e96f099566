/* test_speculation.c - guesses change no token: the same requests with every kind of guesses
 * and depth, alone and in company, greedy and drawn, give the ids, texts and numbers of none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/engine_run.h"
#include "tests/files.h"
#include <stdio.h>
#include <unistd.h>

enum { MAX_BODIES = 24, N_CONVERSATIONS = 6, LINE = 1 << 16 };

static char *bodies[MAX_BODIES];
static wire_kind kinds[MAX_BODIES];
static int n_bodies;
static run_answer *plain; /* [MAX_BODIES] what no guesses give */

static void add_body(wire_kind kind, const char *text) {
    assert_true(n_bodies < MAX_BODIES);
    kinds[n_bodies] = kind;
    bodies[n_bodies] = strdup(text);
    assert_non_null(bodies[n_bodies++]);
}

/* A conversation up to its last answer, greedy. */
static void add_conversation(const char *line) {
    cJSON *item = cJSON_Parse(line), *body = cJSON_CreateObject();
    assert_non_null(item);
    cJSON_AddItemToObject(body, "messages", cJSON_DetachItemFromObject(item, "messages"));
    cJSON *tools = cJSON_DetachItemFromObject(item, "tools");
    if (cJSON_GetArraySize(tools) > 0) {
        cJSON_AddItemToObject(body, "tools", tools);
    } else {
        cJSON_Delete(tools);
    }
    cJSON_AddNumberToObject(body, "temperature", 0);
    cJSON_AddNumberToObject(body, "max_tokens", 80);
    char *text = cJSON_PrintUnformatted(body);
    add_body(WIRE_CHAT, text);
    cJSON_free(text);
    cJSON_Delete(body);
    cJSON_Delete(item);
}

static void add_conversations(void) {
    static char line[LINE];
    FILE *f = fopen("tests/golden/data/conversations.jsonl", "rb");
    assert_non_null(f);
    for (int i = 0; fgets(line, sizeof line, f) != NULL; i++)
        if (i % 34 == 7) add_conversation(line);
    (void)fclose(f);
    assert_int_equal(n_bodies, N_CONVERSATIONS);
}

#define ASK(text) "{\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}],"
#define COUNT     ASK("Count from 1 to 30.")
/* What look-up finds whole, in steps of tens of rows. */
#define AGAIN                                                                                  \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Count from 1 to 30.\"},"                  \
    "{\"role\":\"assistant\",\"content\":\"1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 "   \
    "20 21 22 23 24 25 26 27 28 29 30\"},"                                                     \
    "{\"role\":\"user\",\"content\":\"Count from 1 to 30.\"}],"                                \
    "\"chat_template_kwargs\":{\"enable_thinking\":false},"

/* Everything that has a say in a token. */
static void add_others(void) {
    add_body(WIRE_CHAT, COUNT "\"temperature\":0.9,\"seed\":5,\"max_tokens\":60}");
    add_body(
        WIRE_CHAT,
        ASK("Tell me a story about a fox and a lamp.") "\"temperature\":1.3,\"seed\":11,\"top_"
                                                       "p\":0.9,\"max_tokens\":60,\"n\":3}");
    add_body(WIRE_CHAT, COUNT "\"temperature\":0,\"logprobs\":true,\"top_logprobs\":2,"
                              "\"max_tokens\":40}");
    add_body(WIRE_CHAT, COUNT "\"temperature\":0,\"stop\":[\"17 1\"],\"max_tokens\":80}");
    add_body(WIRE_CHAT, COUNT "\"temperature\":0.4,\"seed\":3,\"repetition_penalty\":1.1,"
                              "\"frequency_penalty\":0.3,\"presence_penalty\":0.2,"
                              "\"max_tokens\":60}");
    add_body(WIRE_CHAT, ASK("What is 17 × 23?") "\"temperature\":0,\"max_thinking_tokens\":9,"
                                                "\"max_tokens\":50}");
    add_body(
        WIRE_CHAT,
        ASK("Give me a JSON object with name Ada and age 29.") "\"temperature\":0.7,\"seed\":2,"
                                                               "\"max_tokens\":60,\"response_"
                                                               "format\":{\"type\":"
                                                               "\"json_schema\",\"json_"
                                                               "schema\":{\"name\":\"p\","
                                                               "\"schema\":{\"type\":"
                                                               "\"object\","
                                                               "\"properties\":{\"name\":{"
                                                               "\"type\":\"string\"},\"age\":{"
                                                               "\"type\":\"integer\"}},"
                                                               "\"required\":[\"name\",\"age\"]"
                                                               ",\"additionalProperties\":"
                                                               "false}}}}");
    add_body(WIRE_CHAT, COUNT "\"temperature\":0,\"max_tokens\":7}");
    add_body(WIRE_CHAT, AGAIN "\"temperature\":0,\"max_tokens\":100}");
    add_body(WIRE_CHAT, AGAIN "\"temperature\":0.3,\"seed\":4,\"frequency_penalty\":0.05,"
                              "\"stop\":[\"24 2\"],\"max_tokens\":100}");
    add_body(WIRE_COMPLETION, "{\"prompt\":\"1 2 3 4 1 2 3 4 1 2 3 4\",\"temperature\":0,"
                              "\"max_tokens\":50,\"ignore_eos\":true}");
    add_body(WIRE_COMPLETION, "{\"prompt\":\"a b a b a b a b\",\"temperature\":1.5,\"seed\":9,"
                              "\"max_tokens\":50,\"ignore_eos\":true}");
}

static void open_with(engine_run *r, speculate_wish wish, uint32_t depth, bool fixed,
                      uint32_t n_sequences) {
    engine_params params = run_params();
    params.n_sequences = n_sequences;
    params.speculate = wish;
    params.draft_path = "deploy/models/draft.gguf";
    params.draft_tokens = depth;
    params.fixed_depth = fixed;
    run_open(r, &params);
}

static void submit_all_bodies(engine_run *r) {
    run_forget(r);
    for (int i = 0; i < n_bodies; i++)
        run_submit(r, (uint64_t)i, kinds[i], bodies[i]);
    run_all(r);
}

static int set_up(void **state) {
    (void)state;
    add_conversations();
    add_others();
    engine_run r = {0};
    open_with(&r, SPECULATE_OFF, 0, false, 4);
    submit_all_bodies(&r);
    plain = calloc(MAX_BODIES, sizeof *plain);
    assert_non_null(plain);
    memcpy(plain, r.answers, (size_t)n_bodies * sizeof *plain);
    run_close(&r);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < n_bodies; i++)
        free(bodies[i]);
    free(plain);
    return 0;
}

static void assert_same_choice(const run_choice *a, const run_choice *b, const char *what,
                               int i) {
    if (a->n_ids != b->n_ids || memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids) != 0)
        fail_msg("%s, request %d: '%s%s', not '%s%s'", what, i, a->reasoning, a->content,
                 b->reasoning, b->content);
    assert_string_equal(a->reasoning, b->reasoning);
    assert_string_equal(a->content, b->content);
    assert_string_equal(a->logprobs, b->logprobs);
    assert_int_equal(a->finish, b->finish);
    assert_true(a->flags == b->flags);
}

static void assert_same(const engine_run *r, const char *what) {
    for (int i = 0; i < n_bodies; i++) {
        const run_answer *a = &r->answers[i], *b = &plain[i];
        assert_true(a->done && b->done);
        for (int c = 0; c < RUN_MAX_CHOICES; c++)
            assert_same_choice(&a->choices[c], &b->choices[c], what, i);
        assert_int_equal(a->usage.completion_tokens, b->usage.completion_tokens);
        assert_int_equal(a->usage.reasoning_tokens, b->usage.reasoning_tokens);
    }
}

static void check(speculate_wish wish, uint32_t depth, bool fixed, uint32_t n_sequences) {
    engine_run r = {0};
    engine_stats stats;
    char what[64];
    (void)snprintf(what, sizeof what, "kind %d, %s %u, %u at once", (int)wish,
                   fixed ? "always" : "up to", depth, n_sequences);
    open_with(&r, wish, depth, fixed, n_sequences);
    submit_all_bodies(&r);
    assert_same(&r, what);
    engine_read_stats(r.e, &stats);
    uint64_t drafted = 0, accepted = 0;
    for (int k = 0; k < DRAFTER_KINDS; k++) {
        drafted += stats.guesses.drafted[k];
        accepted += stats.guesses.accepted[k];
    }
    assert_true(!fixed || (drafted > 80 && accepted > 15 && accepted < drafted));
    print_message("%s: %d of %d guesses came true\n", what, (int)accepted, (int)drafted);
    run_close(&r);
}

static void look_up_changes_no_token(void **state) {
    (void)state;
    check(SPECULATE_LOOKUP, 2, true, 1);
    check(SPECULATE_LOOKUP, 8, true, 4);
    check(SPECULATE_LOOKUP, 40, true, 2);
}

static void a_draft_changes_no_token(void **state) {
    (void)state;
    check(SPECULATE_DRAFT, 1, true, 1);
    check(SPECULATE_DRAFT, 3, true, 3);
    check(SPECULATE_DRAFT, 8, true, 4);
}

static void both_change_no_token_however_deep(void **state) {
    (void)state;
    check(SPECULATE_AUTO, 4, true, 3);
    check(SPECULATE_AUTO, 0, false, 4);
}

/* Without room for all, background work gives way and comes back in the middle of its guesses. */
static void who_is_preempted_goes_on_with_the_same_tokens(void **state) {
    (void)state;
    engine_run r = {0};
    open_with(&r, SPECULATE_AUTO, 3, true, 2);
    run_forget(&r);
    for (int i = 0; i < 4; i++) {
        wire_submit submit = {.request = (uint64_t)i,
                              .kind = kinds[i],
                              .priority = 1,
                              .body = wire_text(bodies[i], strlen(bodies[i]))};
        run_submit_wire(&r, &submit);
    }
    run_steps(&r, 6);
    for (int i = 4; i < n_bodies; i++) {
        run_submit(&r, (uint64_t)i, kinds[i], bodies[i]);
        run_steps(&r, 3);
    }
    run_all(&r);
    assert_same(&r, "preempted");
    run_close(&r);
}

/* The first half of an answer came from elsewhere. */
static void a_resumed_answer_goes_on_with_the_same_tokens(void **state) {
    (void)state;
    engine_run r = {0};
    open_with(&r, SPECULATE_AUTO, 4, true, 2);
    const int who = N_CONVERSATIONS; /* drawn with a seed */
    const run_choice *all = &plain[who].choices[0];
    wire_submit submit = {.request = 0,
                          .kind = kinds[who],
                          .body = wire_text(bodies[who], strlen(bodies[who])),
                          .resume = {.ids = all->ids,
                                     .n_ids = all->n_ids / 2,
                                     .sampler_counter = all->n_ids / 2}};
    run_forget(&r);
    run_submit_wire(&r, &submit);
    run_all(&r);
    const run_choice *rest = &r.answers[0].choices[0];
    assert_int_equal(rest->n_ids, all->n_ids - all->n_ids / 2);
    assert_memory_equal(rest->ids, all->ids + all->n_ids / 2, rest->n_ids * sizeof *rest->ids);
    run_close(&r);
}

static void assert_refused(const engine_params *params, const char *words) {
    error err = {0};
    engine *e = NULL;
    const engine_sink sink = {0};
    assert_int_not_equal(engine_open(&e, params, &sink, &err), STATUS_OK);
    assert_null(e);
    if (strstr(err.text, words) == NULL) fail_msg("'%s' has no '%s'", err.text, words);
}

/* --- the block of a model that has one --- */

/* Chats, which share prompts, and texts; in pieces, since a step takes a chunk. */
static void run_on(const char *path, speculate_wish wish, uint32_t depth, run_answer *out) {
    engine_run r = {0};
    engine_params params = run_params();
    params.model_path = path;
    params.n_sequences = 3;
    params.chunk_tokens = 64;
    params.speculate = wish;
    params.draft_tokens = depth;
    params.fixed_depth = true;
    run_open(&r, &params);
    submit_all_bodies(&r);
    memcpy(out, r.answers, (size_t)n_bodies * sizeof *out);
    engine_stats stats;
    engine_read_stats(r.e, &stats);
    assert_true(wish == SPECULATE_OFF || stats.guesses.drafted[DRAFTER_MTP] > 200);
    run_close(&r);
}

static void the_models_own_block_changes_no_token(void **state) {
    (void)state;
    static const char *const params[] = {
        "{\"arch\":\"qwen35\",\"hidden\":64,\"ff\":192,\"mtp\":true,\"seed\":19}",
        "{\"arch\":\"qwen35moe\",\"hidden\":64,\"mtp\":true,\"seed\":18}"};
    char folder[256], path[512];
    assert_true(make_temporary(folder, sizeof folder));
    (void)snprintf(path, sizeof path, "%s/model.gguf", folder);
    run_answer *off = calloc(2 * (size_t)n_bodies, sizeof *off), *on = off + n_bodies;
    assert_non_null(off);
    for (size_t m = 0; m < sizeof params / sizeof params[0]; m++) {
        assert_true(generate_model(params[m], path));
        run_on(path, SPECULATE_OFF, 0, off);
        for (uint32_t depth = 1; depth <= 4; depth += 3) {
            run_on(path, SPECULATE_MTP, depth, on);
            for (int i = 0; i < n_bodies; i++)
                for (int c = 0; c < RUN_MAX_CHOICES; c++)
                    assert_same_choice(&on[i].choices[c], &off[i].choices[c], "mtp", i);
        }
        (void)unlink(path);
    }
    engine_params other = run_params(); /* 512 tokens are not the demo model's vocabulary */
    other.speculate = SPECULATE_DRAFT;
    other.draft_path = path;
    assert_true(generate_model(params[0], path));
    assert_refused(&other, "vocabulary has 512 tokens, the model's has 4096");
    (void)unlink(path);
    (void)rmdir(folder);
    free(off);
}

/* --- distribution --- */

enum { N_DRAWS = 240, N_BINS = 8, VOCAB = 4096 };

/* How often each token was drawn as the third of an answer, from seeds `first` .. */
static void count_draws(engine_run *r, uint64_t first, int counts[VOCAB]) {
    memset(counts, 0, VOCAB * sizeof *counts);
    for (int i = 0; i < N_DRAWS / RUN_MAX_CHOICES; i++) {
        char body[256];
        (void)snprintf(body, sizeof body,
                       "{\"prompt\":\"1 2 1 3 1 2 1 4 1\",\"temperature\":1.4,\"top_k\":12,"
                       "\"seed\":%d,\"n\":%d,\"max_tokens\":3,\"ignore_eos\":true}",
                       (int)first + i * RUN_MAX_CHOICES, RUN_MAX_CHOICES);
        const run_answer *a = run_one(r, WIRE_COMPLETION, body);
        for (int c = 0; c < RUN_MAX_CHOICES; c++)
            counts[a->choices[c].ids[2]]++;
    }
}

/* Two samples of one distribution: chi-square over the most frequent tokens and the rest. */
static void draws_have_the_distribution_of_no_guesses(void **state) {
    (void)state;
    static int off[VOCAB], on[VOCAB];
    engine_run r = {0};
    open_with(&r, SPECULATE_OFF, 0, false, 4);
    count_draws(&r, 1, off);
    run_close(&r);
    open_with(&r, SPECULATE_AUTO, 2, true, 4);
    count_draws(&r, 1000001, on);
    run_close(&r);
    double chi = 0;
    int n_bins = 0, rest_off = N_DRAWS, rest_on = N_DRAWS;
    for (; n_bins < N_BINS - 1; n_bins++) {
        int most = 0;
        for (int i = 1; i < VOCAB; i++)
            if (off[i] + on[i] > off[most] + on[most]) most = i;
        double sum = off[most] + on[most], d = off[most] - on[most];
        if (sum < 10) break;
        chi += d * d / sum;
        rest_off -= off[most], rest_on -= on[most];
        off[most] = on[most] = 0;
    }
    double d = rest_off - rest_on;
    if (rest_off + rest_on > 0) chi += d * d / (rest_off + rest_on);
    print_message("chi-square %.2f over %d tokens and the rest\n", chi, n_bins);
    assert_true(n_bins >= 2);
    assert_true(chi < 24.3); /* 7 degrees of freedom, 0.1 % */
}

/* --- what is refused --- */

static void what_cannot_guess_is_refused_with_the_reason(void **state) {
    (void)state;
    engine_params params = run_params();
    params.speculate = SPECULATE_DRAFT;
    assert_refused(&params, "no draft is named");
    params.draft_path = "deploy/models/missing.gguf";
    assert_refused(&params, "missing.gguf");
    params.draft_path = "deploy/models/draft.gguf";
    params.draft_tokens = 64;
    assert_refused(&params, "draft_tokens = 64");
    params.draft_tokens = 16;
    params.ram_mib = 64;
    assert_refused(&params, "MiB");
    params = run_params();
    params.speculate = SPECULATE_MTP;
    assert_refused(&params, "no MTP block");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(look_up_changes_no_token),
        cmocka_unit_test(a_draft_changes_no_token),
        cmocka_unit_test(both_change_no_token_however_deep),
        cmocka_unit_test(who_is_preempted_goes_on_with_the_same_tokens),
        cmocka_unit_test(a_resumed_answer_goes_on_with_the_same_tokens),
        cmocka_unit_test(the_models_own_block_changes_no_token),
        cmocka_unit_test(draws_have_the_distribution_of_no_guesses),
        cmocka_unit_test(what_cannot_guess_is_refused_with_the_reason),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
