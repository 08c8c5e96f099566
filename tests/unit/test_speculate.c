/* test_speculate.c - which guesses get rows: depths by what rows cost and what came true, and
 * an end where that loses; and what look-up finds.
 *
 * Drafters and steps are doubles: a sequence's next token is a function of its position, a
 * guess is right or wrong as a test says, and a step takes what a test says.
 */
#include "worker/speculate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CAP = 4096, DEPTH = 8, MAX_SEQUENCES = 8 };

typedef struct double_drafter {
    drafter base;
    bool (*is_right)(uint32_t position);
    uint32_t n_asked;
} double_drafter;

/* What comes at a position, whoever asks. */
static int32_t token_at(uint32_t position) {
    return (int32_t)(position * 2654435761u >> 20);
}

static status double_guess(drafter *d, drafter_ask *asks, size_t n, error *err) {
    double_drafter *own = (double_drafter *)d;
    (void)err;
    for (size_t i = 0; i < n; i++) {
        drafter_ask *ask = &asks[i];
        own->n_asked++;
        for (; ask->n_guesses < ask->depth; ask->n_guesses++) {
            uint32_t position = ask->n_tokens + ask->n_guesses;
            ask->guesses[ask->n_guesses] =
                token_at(position) + (own->is_right(position) ? 0 : 1);
        }
        ask->match = 20;
        ask->n_read = ask->n_guesses;
    }
    return STATUS_OK;
}

static void double_close(drafter *d) {
    free(d);
}

static const drafter_ops double_ops = {double_close, double_guess, NULL};

typedef struct world {
    speculate *s;
    double_drafter *drafter;
    sequence sequences[MAX_SEQUENCES];
    uint32_t n;
    uint32_t n_last; /* guesses of the last step */
    double slope;    /* of a row, in the first row's cost */
    double slow;     /* times what a first row takes where nothing else is said */
    bool beside;     /* prompts run in the same steps: what these take tells nothing of rows */
    double spent;    /* first rows' costs */
    uint64_t n_rows, n_steps;
} world;

static double cost_of(const world *w, uint32_t n_rows) {
    return 1 + w->slope * (n_rows - 1);
}

static void world_open_to(world *w, drafter_kind kind, bool (*is_right)(uint32_t), uint32_t n,
                          double slope, uint32_t depth, uint32_t step_guesses) {
    memset(w, 0, sizeof *w);
    w->drafter = calloc(1, sizeof *w->drafter);
    assert_non_null(w->drafter);
    *w->drafter = (double_drafter){.base = {&double_ops}, .is_right = is_right};
    drafter *kinds[DRAFTER_KINDS] = {0};
    kinds[kind] = &w->drafter->base;
    error err = {0};
    const speculate_params params = {.n_places = MAX_SEQUENCES,
                                     .depth = {depth, depth, depth},
                                     .step_guesses = step_guesses};
    assert_int_equal(speculate_new(&w->s, kinds, &params, &err), STATUS_OK);
    w->n = n;
    w->slope = slope;
    w->slow = 1;
    for (uint32_t i = 0; i < n; i++) {
        sequence *q = &w->sequences[i];
        q->tokens = calloc(CAP, sizeof *q->tokens);
        assert_non_null(q->tokens);
        q->cap_tokens = CAP;
        q->n_prompt = q->n_tokens = 10;
        q->n_run = 9;
        for (uint32_t t = 0; t < 10; t++)
            q->tokens[t] = token_at(t);
        q->phase = SEQUENCE_RUNNING;
        q->group = i;
        q->arrival = i;
    }
    for (uint32_t rows = 1; rows <= n + step_guesses; rows++)
        speculate_try_step(w->s, rows, (uint64_t)(cost_of(w, rows) * 1e6));
}

static void world_open(world *w, drafter_kind kind, bool (*is_right)(uint32_t), uint32_t n,
                       double slope) {
    world_open_to(w, kind, is_right, n, slope, DEPTH, n * DEPTH);
}

static void world_close(world *w) {
    for (uint32_t i = 0; i < w->n; i++)
        free(w->sequences[i].tokens);
    speculate_free(w->s);
}

/* One step of all: what was guessed right is taken, and one token more. */
static void step(world *w) {
    sequence *all[MAX_SEQUENCES];
    error err = {0};
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < w->n; i++)
        all[i] = &w->sequences[i];
    assert_int_equal(speculate_guess(w->s, all, w->n, &err), STATUS_OK);
    for (uint32_t i = 0; i < w->n; i++) {
        sequence *q = all[i];
        uint32_t n_true = 0;
        n_rows += 1 + q->n_drafted;
        while (n_true < q->n_drafted && q->tokens[q->n_tokens] == token_at(q->n_tokens)) {
            q->n_tokens++;
            n_true++;
        }
        assert_true(q->n_tokens < CAP);
        q->tokens[q->n_tokens] = token_at(q->n_tokens);
        q->n_tokens++;
        speculate_take(w->s, q, q->n_drafted, n_true);
        q->n_drafted = 0;
    }
    w->n_last = n_rows - w->n;
    w->spent += cost_of(w, n_rows);
    w->n_rows += n_rows;
    w->n_steps++;
    if (w->beside) return;
    speculate_note_step(w->s, n_rows, (uint64_t)(cost_of(w, n_rows) * w->slow * 1e6));
}

/* Tokens of the first sequence. */
static void run_until(world *w, uint32_t n_tokens) {
    while (w->sequences[0].n_tokens < n_tokens)
        step(w);
}

/* How much faster than without guesses, for the tokens that all have now. */
static double speed_up(const world *w) {
    double tokens = 0;
    for (uint32_t i = 0; i < w->n; i++)
        tokens += w->sequences[i].n_tokens - w->sequences[i].n_prompt;
    return tokens * cost_of(w, w->n) / w->n / w->spent;
}

static uint64_t drafted(const world *w) {
    speculate_stats stats;
    speculate_read_stats(w->s, &stats);
    uint64_t n = 0;
    for (int k = 0; k < DRAFTER_KINDS; k++)
        n += stats.drafted[k];
    return n;
}

static bool always(uint32_t position) {
    (void)position;
    return true;
}

static bool never(uint32_t position) {
    (void)position;
    return false;
}

static bool half(uint32_t position) {
    return position * 40503u >> 7 & 1;
}

static bool most(uint32_t position) {
    return position % 16 != 0;
}

static bool until_500(uint32_t position) {
    return position < 500;
}

static bool from_1000(uint32_t position) {
    return position >= 1000;
}

static void what_always_comes_true_gets_all_rows(void **state) {
    (void)state;
    world w;
    world_open(&w, DRAFTER_LOOKUP, always, 1, 0.1);
    run_until(&w, 1000);
    assert_true(speed_up(&w) > 0.95 * (1 + DEPTH) / (1 + 0.1 * DEPTH));
    world_close(&w);
}

static void what_never_comes_true_ends_within_64_tokens(void **state) {
    (void)state;
    const double slopes[] = {0.05, 0.2, 0.4, 0.7, 1};
    for (size_t i = 0; i < sizeof slopes / sizeof slopes[0]; i++) {
        for (int kind = 0; kind < DRAFTER_KINDS; kind++) {
            world w;
            world_open(&w, (drafter_kind)kind, never, 1, slopes[i]);
            run_until(&w, 10 + 64);
            uint64_t n_before = drafted(&w);
            run_until(&w, 10 + 120);
            uint64_t n_more = drafted(&w) - n_before;
            if (n_more > 2) fail_msg("slope %g: %d more", slopes[i], (int)n_more);
            run_until(&w, 10 + 256);
            if (speed_up(&w) < 0.97) fail_msg("slope %g: %.3f", slopes[i], speed_up(&w));
            world_close(&w);
        }
    }
}

static void rows_that_cost_a_step_each_get_no_guess(void **state) {
    (void)state;
    world w;
    world_open(&w, DRAFTER_LOOKUP, always, 1, 1);
    run_until(&w, 500);
    assert_int_equal(drafted(&w), 0);
    world_close(&w);
}

static void the_depth_follows_what_comes_true_and_what_it_costs(void **state) {
    (void)state;
    world cheap, dear;
    world_open(&cheap, DRAFTER_LOOKUP, half, 1, 0.05);
    run_until(&cheap, 2000);
    world_open(&dear, DRAFTER_LOOKUP, half, 1, 0.45);
    run_until(&dear, 2000);
    assert_true(drafted(&cheap) > 2 * drafted(&dear));
    assert_true(speed_up(&cheap) > 1.4);
    assert_true(speed_up(&dear) > 0.97);
    world_close(&cheap);
    world_close(&dear);
}

static void what_turns_bad_ends_and_what_turns_good_is_found_again(void **state) {
    (void)state;
    world w;
    world_open(&w, DRAFTER_MODEL, until_500, 1, 0.3);
    run_until(&w, 500);
    double before = speed_up(&w);
    uint64_t n = drafted(&w);
    run_until(&w, 1500);
    assert_true(before > 1.5);
    assert_true(drafted(&w) - n < 120);
    world_close(&w);
    world_open(&w, DRAFTER_MODEL, from_1000, 1, 0.3);
    run_until(&w, 1000);
    assert_true(speed_up(&w) > 0.97);
    n = drafted(&w);
    run_until(&w, 3500);
    assert_true(drafted(&w) - n > 500);
    world_close(&w);
}

/* The more sequences, the fewer rows are left that are cheap. */
static void a_full_batch_gets_fewer_guesses_each(void **state) {
    (void)state;
    world one, many;
    world_open(&one, DRAFTER_LOOKUP, half, 1, 0.2);
    run_until(&one, 1000);
    world_open(&many, DRAFTER_LOOKUP, half, MAX_SEQUENCES, 0.2);
    run_until(&many, 1000);
    assert_true(drafted(&many) / MAX_SEQUENCES < drafted(&one));
    assert_true(speed_up(&many) > 0.97);
    world_close(&one);
    world_close(&many);
}

static void nobody_gets_guesses_beyond_its_end(void **state) {
    (void)state;
    world w;
    world_open(&w, DRAFTER_LOOKUP, always, 1, 0.05);
    speculate_fix_depth(w.s, DEPTH);
    sequence *q = &w.sequences[0];
    error err = {0};
    for (uint32_t left = 1; left <= DEPTH + 2; left++) {
        q->cap_tokens = q->n_tokens + left;
        assert_int_equal(speculate_guess(w.s, &q, 1, &err), STATUS_OK);
        assert_int_equal(q->n_drafted, left - 1 < DEPTH ? left - 1 : DEPTH);
    }
    world_close(&w);
}

/* While all comes true the rows of a step grow by a factor, up to the limit. */
static void what_is_copied_gets_more_rows_step_by_step(void **state) {
    (void)state;
    world w;
    uint32_t before = 0, n_steps = 0;
    world_open_to(&w, DRAFTER_LOOKUP, always, 1, 0.25, SPECULATE_MAX_DEPTH,
                  SPECULATE_MAX_DEPTH);
    step(&w);
    assert_in_range(w.n_last, 4, 12);
    for (; w.n_last < SPECULATE_MAX_DEPTH; n_steps++) {
        before = w.n_last;
        step(&w);
        if (n_steps < 2) assert_true(w.n_last >= before + before / 2);
        assert_true(n_steps < 6);
    }
    run_until(&w, 2000);
    assert_true(speed_up(&w) > 3.2);
    world_close(&w);
}

static bool until_80_of_100(uint32_t position) {
    return position % 100 < 80;
}

/* However deep it may go, a step that is all wrong costs no more than was left to lose. */
static void one_wrong_step_costs_what_was_left_to_lose(void **state) {
    (void)state;
    bool (*const rights[])(uint32_t) = {never, half, until_500, from_1000, until_80_of_100};
    const double slopes[] = {0.1, 0.3, 0.6};
    for (size_t i = 0; i < sizeof rights / sizeof rights[0]; i++) {
        for (size_t j = 0; j < sizeof slopes / sizeof slopes[0]; j++) {
            world w;
            world_open_to(&w, DRAFTER_LOOKUP, rights[i], 1, slopes[j], SPECULATE_MAX_DEPTH,
                          SPECULATE_MAX_DEPTH);
            double lost = 0;
            while (w.sequences[0].n_tokens < 1500) {
                step(&w);
                double n = w.sequences[0].n_tokens - w.sequences[0].n_prompt;
                if (w.spent - n > lost) lost = w.spent - n;
                if (w.spent - n > 4 + 0.012 * n)
                    fail_msg("%d, slope %g: %.1f lost of %.0f", (int)i, slopes[j], w.spent - n,
                             n);
            }
            assert_true(lost < 25);
            world_close(&w);
        }
    }
}

/* Rows were tried out as cheap, and are not: what steps take is charged, so that little is lost
 * until that is learnt. */
static void rows_dearer_than_they_seemed_lose_little(void **state) {
    (void)state;
    world w;
    world_open_to(&w, DRAFTER_LOOKUP, half, 1, 0.2, SPECULATE_MAX_DEPTH, SPECULATE_MAX_DEPTH);
    w.slope = 0.9;
    run_until(&w, 10 + 512);
    if (speed_up(&w) < 0.965) fail_msg("%.3f", speed_up(&w));
    world_close(&w);
}

/* A machine was tried out while it was busy or its caches were cold, and all steps have guesses: by
 * a step without that seems to take longer than it does all of them would seem to pay. */
static void a_machine_that_gets_quicker_ends_what_does_not_pay(void **state) {
    (void)state;
    bool (*const rights[])(uint32_t) = {half, most, always};
    const double slows[] = {0.4, 0.6, 0.8, 1.3};
    for (size_t i = 0; i < sizeof rights / sizeof rights[0]; i++) {
        for (size_t j = 0; j < sizeof slows / sizeof slows[0]; j++) {
            world w;
            world_open(&w, DRAFTER_MODEL, rights[i], 1, 0.3);
            w.slope = 0.97;
            w.slow = slows[j];
            run_until(&w, 10 + 256);
            if (speed_up(&w) < 0.935)
                fail_msg("%d, tried out %g: %.3f", (int)i, 1 / slows[j], speed_up(&w));
            world_close(&w);
        }
    }
}

/* A check needs steps of which the time is known.  Beside a long prompt there is none, and one that had
 * begun before must not keep everyone waiting for its end. */
static void beside_prompts_guesses_go_on(void **state) {
    (void)state;
    for (uint32_t n_before = 0; n_before < 40; n_before++) {
        world w;
        uint32_t n_plain = 0;
        world_open(&w, DRAFTER_LOOKUP, always, 1, 0.1);
        for (uint32_t i = 0; i < n_before; i++)
            step(&w);
        w.beside = true;
        for (uint32_t i = 0; i < 200; i++) {
            step(&w);
            n_plain += w.n_last == 0;
        }
        if (n_plain > 3) fail_msg("after %u steps %u without guesses", n_before, n_plain);
        world_close(&w);
    }
}

/* Rows of a step have a limit for all; whoever is likelier gets them. */
static void all_together_get_no_more_than_a_step_takes(void **state) {
    (void)state;
    const bool fixed[] = {false, true};
    for (size_t i = 0; i < 2; i++) {
        world w;
        world_open_to(&w, DRAFTER_LOOKUP, always, MAX_SEQUENCES, 0.02, 40, 50);
        if (fixed[i]) speculate_fix_depth(w.s, 40);
        for (int n = 0; n < 30; n++) {
            step(&w);
            assert_true(w.n_last <= 50);
        }
        assert_true(w.n_last == 50 || w.n_last == 0); /* now and then a step is plain */
        world_close(&w);
    }
}

/* --- look-up --- */

static uint32_t look_up(drafter *d, uint64_t key, const int32_t *tokens, uint32_t n,
                        int32_t *guesses, uint32_t depth, uint32_t *match) {
    error err = {0};
    drafter_ask ask = {
        .key = key, .tokens = tokens, .n_tokens = n, .depth = depth, .guesses = guesses};
    assert_int_equal(d->ops->guess(d, &ask, 1, &err), STATUS_OK);
    if (match != NULL) *match = ask.match;
    return ask.n_guesses;
}

static drafter *open_lookup(void) {
    drafter *d = NULL;
    error err = {0};
    assert_int_equal(drafter_lookup_open(&d, 2, 64, &err), STATUS_OK);
    return d;
}

static void look_up_takes_the_longest_agreement_then_the_nearest(void **state) {
    (void)state;
    drafter *d = open_lookup();
    int32_t guesses[3];
    uint32_t match = 0;
    /* 1 2 3 came before 9, 2 3 later before 8 and 7: three tokens agree with the first. */
    const int32_t longest[] = {1, 2, 3, 9, 5, 2, 3, 8, 5, 2, 3, 7, 6, 1, 2, 3};
    assert_int_equal(look_up(d, 1, longest, 16, guesses, 3, &match), 3);
    assert_int_equal(match, 3);
    assert_int_equal(guesses[0], 9);
    assert_int_equal(guesses[1], 5);
    const int32_t nearest[] = {4, 2, 3, 8, 5, 2, 3, 7, 6, 2, 3};
    assert_int_equal(look_up(d, 2, nearest, 11, guesses, 1, &match), 1);
    assert_int_equal(match, 2);
    assert_int_equal(guesses[0], 7);
    d->ops->close(d);
}

static void look_up_goes_on_with_what_it_guessed_itself(void **state) {
    (void)state;
    drafter *d = open_lookup();
    int32_t guesses[7];
    const int32_t tokens[] = {1, 2, 3, 1, 2, 3};
    const int32_t expected[] = {1, 2, 3, 1, 2, 3, 1};
    assert_int_equal(look_up(d, 1, tokens, 6, guesses, 7, NULL), 7);
    assert_memory_equal(guesses, expected, sizeof expected);
    d->ops->close(d);
}

static void look_up_knows_nothing_of_another_sequence(void **state) {
    (void)state;
    drafter *d = open_lookup();
    int32_t guesses[2];
    const int32_t first[] = {1, 2, 3, 1, 2}, second[] = {5, 6, 7, 8, 1, 2}, two[] = {1, 2};
    assert_int_equal(look_up(d, 1, first, 5, guesses, 2, NULL), 2);
    assert_int_equal(look_up(d, 2, second, 6, guesses, 2, NULL), 0);
    assert_int_equal(look_up(d, 3, two, 2, guesses, 2, NULL), 0);
    assert_int_equal(look_up(d, 3, two, 1, guesses, 2, NULL), 0);
    d->ops->close(d);
}

/* Token by token, as it is asked in use: the same as a search through all. */
static void look_up_finds_what_a_search_finds(void **state) {
    (void)state;
    drafter *d = open_lookup();
    int32_t tokens[64], guesses[1];
    uint32_t word = 3;
    for (int i = 0; i < 64; i++) {
        word = word * 1664525u + 1013904223u;
        tokens[i] = (int32_t)(word >> 28 & 3);
    }
    for (uint32_t n = 1; n <= 64; n++) {
        uint32_t best = 0, longest = 1, match = 0;
        for (uint32_t at = n - 1; at >= 2 && n > 2; at--) {
            uint32_t length = 0;
            while (length < at && tokens[at - 1 - length] == tokens[n - 1 - length])
                length++;
            if (length > longest) longest = length, best = at;
        }
        uint32_t found = look_up(d, 9, tokens, n, guesses, 1, &match);
        assert_int_equal(found, best > 0 ? 1 : 0);
        if (best == 0) continue;
        assert_int_equal(match, longest);
        assert_int_equal(guesses[0], tokens[best]);
    }
    d->ops->close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_always_comes_true_gets_all_rows),
        cmocka_unit_test(what_never_comes_true_ends_within_64_tokens),
        cmocka_unit_test(rows_that_cost_a_step_each_get_no_guess),
        cmocka_unit_test(the_depth_follows_what_comes_true_and_what_it_costs),
        cmocka_unit_test(what_turns_bad_ends_and_what_turns_good_is_found_again),
        cmocka_unit_test(a_full_batch_gets_fewer_guesses_each),
        cmocka_unit_test(nobody_gets_guesses_beyond_its_end),
        cmocka_unit_test(what_is_copied_gets_more_rows_step_by_step),
        cmocka_unit_test(one_wrong_step_costs_what_was_left_to_lose),
        cmocka_unit_test(rows_dearer_than_they_seemed_lose_little),
        cmocka_unit_test(a_machine_that_gets_quicker_ends_what_does_not_pay),
        cmocka_unit_test(beside_prompts_guesses_go_on),
        cmocka_unit_test(all_together_get_no_more_than_a_step_takes),
        cmocka_unit_test(look_up_takes_the_longest_agreement_then_the_nearest),
        cmocka_unit_test(look_up_goes_on_with_what_it_guessed_itself),
        cmocka_unit_test(look_up_knows_nothing_of_another_sequence),
        cmocka_unit_test(look_up_finds_what_a_search_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
