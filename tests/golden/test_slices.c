/* test_slices.c - answers do not depend on whether a prompt's pieces are cut by layers, and a request
 * that goes between two slices leaves nothing.
 *
 * With a bound of a millisecond beside a running stream a slice is a layer.  Answers of every kind,
 * with few slots, guesses of every kind and remembered beginnings, are those of an engine that cuts
 * nothing, each alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/engine_run.h"
#include "tests/files.h"
#include "worker/engine_parts.h" /* whose deadline has passed */
#include <stdio.h>
#include <unistd.h>

#ifdef SILICEO_DEBUG /* sanitizers see most of the same paths sooner */
enum { IS_SHORT = 1 };
#else
enum { IS_SHORT = 0 };
#endif
enum { N_BODIES = 6, STREAM = 0, LONG = 1, N_VOCAB = 500 /* ids that every model here has */ };

typedef struct asked {
    wire_kind kind;
    char *body;
} asked;

static asked bodies[N_BODIES];
static run_answer
    *alone; /* [N_BODIES] the demo model's answers, uncut; vectors of last tokens */

/* "[ids]", those of one text; the same texts begin alike. */
static void add_ids(json_text *out, uint64_t text, int n) {
    for (int i = 0; i < n; i++) {
        text = text * 6364136223846793005u + 1442695040888963407u;
        json_text_format(out, "%s%d", i > 0 ? "," : "[", (int)((text >> 33) % N_VOCAB));
    }
    json_text_format(out, "]");
}

static void add_body(asked *out, wire_kind kind, uint64_t text, int n, const char *more) {
    json_text body = {0};
    json_text_format(&body, kind == WIRE_EMBED ? "{\"input\":[" : "{\"prompt\":");
    add_ids(&body, text, n);
    if (kind == WIRE_EMBED) {
        json_text_format(&body, ",");
        add_ids(&body, text + 1, n / 3);
    }
    json_text_format(&body, "%s}", kind == WIRE_EMBED ? "]" : more);
    assert_false(body.failed);
    *out = (asked){kind, body.bytes};
}

static void submit(engine_run *run, uint64_t id, const asked *what, uint32_t priority) {
    const wire_submit wire = {.request = id,
                              .kind = what->kind,
                              .priority = priority,
                              .body = wire_text(what->body, strlen(what->body))};
    run_submit_wire(run, &wire);
}

static uint64_t n_slices(const engine_run *run) {
    engine_stats stats;
    engine_read_stats(run->e, &stats);
    return stats.model.slices;
}

static void assert_same(const run_answer *a, const run_answer *b, const char *what, int i) {
    assert_true(a->done && b->done);
    for (int c = 0; c < RUN_MAX_CHOICES; c++) {
        const run_choice *x = &a->choices[c], *y = &b->choices[c];
        if (x->n_ids != y->n_ids || memcmp(x->ids, y->ids, x->n_ids * sizeof *x->ids) != 0)
            fail_msg("%s, request %d, choice %d: other ids", what, i, c);
        if (strcmp(x->logprobs, y->logprobs) != 0)
            fail_msg("%s, request %d: %s, not %s", what, i, x->logprobs, y->logprobs);
    }
    if (strcmp(a->result, b->result) != 0) fail_msg("%s, request %d: other vectors", what, i);
}

/* What each gives alone, uncut; the caller frees. */
static run_answer *answer_alone(const engine_params *params) {
    engine_params plain = *params;
    engine_run run = {0};
    run_answer *out = calloc(N_BODIES, sizeof *out);
    assert_non_null(out);
    plain.max_step_ms = 0;
    plain.speculate = SPECULATE_OFF;
    plain.prefix_ram_mib = 0;
    plain.n_slots = -1;
    plain.poison = false;
    run_open(&run, &plain);
    for (int i = 0; i < N_BODIES; i++)
        out[i] = *run_one(&run, bodies[i].kind, bodies[i].body);
    assert_int_equal(n_slices(&run), 0);
    run_close(&run);
    return out;
}

static engine_params cutting_params(void) {
    engine_params params = run_params();
    params.chunk_tokens = 256;
    params.max_step_ms = 1;
    params.poison = true;
    return params;
}

static int set_up(void **state) {
    (void)state;
    /* Probabilities tell also what changes no token. */
    static const char greedy[] =
        ",\"temperature\":0,\"max_tokens\":12,\"ignore_eos\":true,\"logprobs\":3",
                      many[] = ",\"temperature\":0,\"max_tokens\":120,\"ignore_eos\":true",
                      drawn[] = ",\"temperature\":0.8,\"seed\":7,\"n\":3,\"max_tokens\":10",
                      told[] = ",\"temperature\":0,\"max_tokens\":6,\"logprobs\":3";
    add_body(&bodies[STREAM], WIRE_COMPLETION, 1, 70, many);
    add_body(&bodies[LONG], WIRE_COMPLETION, 2, 450, greedy);
    add_body(&bodies[2], WIRE_EMBED, 3, 200, "");
    add_body(&bodies[3], WIRE_COMPLETION, 4, 270, drawn);
    add_body(&bodies[4], WIRE_COMPLETION, 2, 420, told); /* it begins as the long one */
    add_body(&bodies[5], WIRE_COMPLETION, 5, 65, greedy);
    engine_params params = cutting_params();
    alone = answer_alone(&params);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    free(alone);
    for (int i = 0; i < N_BODIES; i++)
        free(bodies[i].body);
    return 0;
}

static void assert_cuts_change_nothing(const engine_params *params, const run_answer *expected,
                                       const char *what) {
    engine_run run = {0};
    run_open(&run, params);
    for (int i = 0; i < N_BODIES; i++) {
        submit(&run, (uint64_t)i, &bodies[i], 0);
        run_steps(&run, 3);
    }
    run_all(&run);
    assert_true(n_slices(&run) > 20);
    for (int i = 0; i < N_BODIES; i++)
        assert_same(&run.answers[i], &expected[i], what, i);
    run_close(&run);
}

static void pieces_cut_by_layers_change_no_answer(void **state) {
    (void)state;
    engine_params params = cutting_params();
    params.n_slots = 64; /* of 256 */
    params.speculate = SPECULATE_LOOKUP;
    params.prefix_ram_mib = 32;
    params.prefix_every_tokens = 64;
    assert_cuts_change_nothing(&params, alone, "few slots, look-up, beginnings");
    params = cutting_params();
    params.speculate = SPECULATE_DRAFT;
    params.draft_path = "deploy/models/draft.gguf";
    params.pooling = POOLING_MEAN;
    run_answer *means = answer_alone(&params);
    assert_cuts_change_nothing(&params, means, "a draft, means");
    free(means);
}

/* Its block wants the rows of whole prompts, which come with the last slice. */
static void nor_where_the_models_own_block_guesses(void **state) {
    (void)state;
    char folder[256], path[512];
    assert_true(make_temporary(folder, sizeof folder));
    (void)snprintf(path, sizeof path, "%s/model.gguf", folder);
    assert_true(generate_model(
        "{\"arch\":\"qwen35moe\",\"hidden\":64,\"mtp\":true,\"seed\":18}", path));
    engine_params params = cutting_params();
    params.model_path = path;
    params.speculate = SPECULATE_MTP;
    params.draft_tokens = 2;
    params.fixed_depth = true;
    run_answer *expected = answer_alone(&params);
    assert_cuts_change_nothing(&params, expected, "mtp");
    free(expected);
    (void)unlink(path);
    (void)rmdir(folder);
}

/* Of one piece, so many slices but for the last. */
static void run_into_a_piece(engine_run *run, uint64_t id) {
    uint64_t before = n_slices(run);
    for (int i = 0; i < 20 && n_slices(run) < before + 3; i++)
        run_steps(run, 1);
    assert_int_equal(n_slices(run), before + 3);
    assert_int_equal(run->answers[id].n_messages, 0);
}

/* Cancelled, or gone with the engine: its states and pages are NaN at once, and the same
 * prompt, which others have begun to remember, runs from its beginning. */
static void who_goes_between_two_slices_leaves_nothing(void **state) {
    (void)state;
    engine_params params = cutting_params();
    params.prefix_ram_mib = 32;
    params.prefix_every_tokens = 128;
    engine_run run = {0};
    run_open(&run, &params);
    submit(&run, STREAM, &bodies[STREAM], 0);
    run_steps(&run, 3);
    submit(&run, 10, &bodies[LONG], 0);
    run_into_a_piece(&run, 10);
    assert_true(engine_cancel(run.e, 10, 0));
    submit(&run, LONG, &bodies[LONG], 0);
    run_all(&run);
    assert_true(run.answers[10].failed);
    assert_same(&run.answers[STREAM], &alone[STREAM], "the stream", STREAM);
    assert_same(&run.answers[LONG], &alone[LONG], "after a cancelled one", LONG);
    run_forget(&run);
    submit(&run, STREAM, &bodies[STREAM], 0);
    run_steps(&run, 3);
    submit(&run, 12, &bodies[3], 0);
    run_into_a_piece(&run, 12);
    engine_close(run.e);
    assert_true(run.answers[STREAM].failed && run.answers[12].failed);
    free(run.answers);
}

/* Steps until it has a token. */
static uint32_t steps_to_first_token(engine_run *run, uint64_t id) {
    uint32_t n = 0;
    for (; run->answers[id].n_messages == 0 && n < 200; n++)
        run_steps(run, 1);
    return n;
}

/* How many they are behind a running stream.  beside: a piece of the background is cut. */
static uint32_t wait_of_who_comes(const engine_params *params, int i, bool beside) {
    engine_run run = {0};
    run_open(&run, params);
    submit(&run, STREAM, &bodies[STREAM], 0);
    run_steps(&run, 3);
    if (beside) {
        submit(&run, LONG, &bodies[LONG], 1);
        run_into_a_piece(&run, LONG);
    }
    submit(&run, (uint64_t)i, &bodies[i], 0);
    uint32_t n = steps_to_first_token(&run, (uint64_t)i);
    if (beside) assert_int_equal(run.answers[LONG].n_messages, 0);
    run_all(&run);
    assert_same(&run.answers[STREAM], &alone[STREAM], "the stream", STREAM);
    if (beside) assert_same(&run.answers[LONG], &alone[LONG], "who waited", LONG);
    assert_same(&run.answers[i], &alone[i], "who came", i);
    run_close(&run);
    return n;
}

/* Be there a place for it or does it have to take the background's: as many steps as if that were not
 * there, a layer each. */
static void who_comes_does_not_wait_for_a_cut_piece_of_the_background(void **state) {
    (void)state;
    for (uint32_t n_sequences = 2; n_sequences <= (IS_SHORT ? 2 : 3); n_sequences++) {
        engine_params params = cutting_params();
        int i = n_sequences == 2 ? 5 : 4; /* of one piece, or of several */
        params.n_sequences = n_sequences;
        params.park_mib = 64;
        uint32_t n = wait_of_who_comes(&params, i, false);
        uint32_t beside = wait_of_who_comes(&params, i, true);
        print_message("%u places: first token of %d after %u steps, beside a piece %u\n",
                      n_sequences, i, n, beside);
        assert_true(n >= 8); /* its own */
        assert_true(beside <= n);
    }
}

/* Background between two layers, when its place is wanted: it goes on between the same, or where
 * nothing can be kept, all runs again. */
static void who_gives_way_between_two_layers_answers_the_same(void **state) {
    (void)state;
    for (int64_t park_mib = 0; park_mib <= 64; park_mib += 64) {
        engine_params params = cutting_params();
        params.n_sequences = 2;
        params.park_mib = park_mib;
        engine_run run = {0};
        engine_stats stats;
        run_open(&run, &params);
        submit(&run, STREAM, &bodies[STREAM], 0);
        run_steps(&run, 3);
        submit(&run, LONG, &bodies[LONG], 1);
        run_into_a_piece(&run, LONG);
        submit(&run, 5, &bodies[5], 0);
        run_all(&run);
        engine_read_stats(run.e, &stats);
        assert_int_equal(stats.parked, park_mib > 0);
        assert_int_equal(stats.restored, park_mib > 0);
        assert_int_equal(stats.not_parked, park_mib == 0);
        assert_same(&run.answers[STREAM], &alone[STREAM], "the stream", STREAM);
        assert_same(&run.answers[LONG], &alone[LONG], "displaced", LONG);
        assert_same(&run.answers[5], &alone[5], "who came", 5);
        run_close(&run);
    }
}

static void submit_until(engine_run *run, uint64_t id, const asked *what,
                         uint64_t deadline_ms) {
    const wire_submit wire = {.request = id,
                              .kind = what->kind,
                              .priority = 1,
                              .deadline_ms = deadline_ms,
                              .body = wire_text(what->body, strlen(what->body))};
    run_submit_wire(run, &wire);
}

/* Several of the background, the first of them cut; then prompts of one piece and of several, of which
 * one is cancelled between its own layers.  The first is too late or is cancelled while it waits. */
static void come_and_go(const engine_params *params, bool is_late, const char *what) {
    enum { DOOMED = 20, CAME, GONE };
    engine_run run = {0};
    run_open(&run, params);
    submit(&run, STREAM, &bodies[STREAM], 0);
    run_steps(&run, 3);
    submit_until(&run, DOOMED, &bodies[LONG], 3600 * 1000);
    run_into_a_piece(&run, DOOMED);
    submit(&run, 2, &bodies[2], 1);
    submit(&run, 3, &bodies[3], 1);
    submit(&run, LONG, &bodies[LONG], 1);
    submit(&run, CAME, &bodies[4], 0);
    run_steps(&run, 4); /* some layers of it */
    submit(&run, GONE, &bodies[5], 0);
    if (is_late)
        engine_end_late_requests(run.e, UINT64_MAX);
    else
        assert_true(engine_cancel(run.e, DOOMED, 0));
    run_into_a_piece(&run, CAME);
    assert_true(engine_cancel(run.e, GONE, 0));
    run_steps(&run, 30);
    submit(&run, 5, &bodies[5], 0);
    run_all(&run);
    assert_int_equal(run.answers[DOOMED].http_status, is_late ? 504 : 499);
    assert_int_equal(run.answers[GONE].http_status, 499);
    assert_same(&run.answers[CAME], &alone[4], what, 4);
    for (int i = 0; i < N_BODIES; i++) {
        if (i != 4) assert_same(&run.answers[i], &alone[i], what, i);
    }
    run_close(&run);
}

static void whoever_comes_and_goes_between_two_layers_changes_no_answer(void **state) {
    (void)state;
    engine_params params = cutting_params();
    params.park_mib = 64;
    params.n_slots = 64;
    params.speculate = SPECULATE_LOOKUP;
    params.prefix_ram_mib = 32;
    params.prefix_every_tokens = 64;
    params.n_sequences = 2;
    come_and_go(&params, false, "two places");
    if (IS_SHORT) return;
    params.n_sequences = 6;
    come_and_go(&params, true, "six places");
}

/* Few pages, and no room to keep anything: who comes has those of a piece that is cut. */
static void whose_pages_are_wanted_between_two_layers_runs_again(void **state) {
    (void)state;
    engine_params params = cutting_params();
    engine_run run = {0};
    engine_stats stats;
    if (IS_SHORT) skip();
    params.n_context = 640;
    run_open_narrow(&run, &params);
    engine_read_stats(run.e, &stats);
    assert_true(stats.kv_pages_total < 20);
    submit(&run, STREAM, &bodies[STREAM], 0);
    run_steps(&run, 3);
    submit(&run, LONG, &bodies[LONG], 1);
    run_into_a_piece(&run, LONG);
    submit(&run, 4, &bodies[4], 0);
    submit(&run, 3, &bodies[3], 0);
    run_all(&run);
    engine_read_stats(run.e, &stats);
    assert_true(stats.not_parked > 0);
    for (int i = 0; i < N_BODIES; i++) {
        if (i != 2 && i != 5) assert_same(&run.answers[i], &alone[i], "few pages", i);
    }
    run_close(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_cut_by_layers_change_no_answer),
        cmocka_unit_test(nor_where_the_models_own_block_guesses),
        cmocka_unit_test(who_goes_between_two_slices_leaves_nothing),
        cmocka_unit_test(who_comes_does_not_wait_for_a_cut_piece_of_the_background),
        cmocka_unit_test(who_gives_way_between_two_layers_answers_the_same),
        cmocka_unit_test(whoever_comes_and_goes_between_two_layers_changes_no_answer),
        cmocka_unit_test(whose_pages_are_wanted_between_two_layers_runs_again),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
