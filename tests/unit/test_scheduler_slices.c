/* test_scheduler_slices.c - pieces of prompts that are cut by layers beside running streams. */
#include "tests/unit/scheduler_bench.h"

#include "worker/step_cost.h"

/* A card that brings most experts in for the least piece: 150 ms for a piece and 0.02 a token. */
static const bench_shape card = {.n_pages = 400,
                                 .n_sequences = 3,
                                 .chunk_tokens = 512,
                                 .max_waiting = 8,
                                 .max_step_ms = 100,
                                 .n_layers = 40,
                                 .piece_ms = 150,
                                 .row_ms = 0.02};

/* A stream that decodes, after a prompt that ran alone. */
static sequence *begin_stream(bench *b, const bench_shape *shape, uint32_t n_output) {
    bench_open(b, shape);
    sequence *stream = bench_submit(b, 300, n_output, 0);
    while (stream->n_run < 310)
        (void)bench_step(b);
    return stream;
}

/* Steps until a slice has run that was not its piece's last. */
static void cut_a_piece(bench *b, const sequence *who) {
    for (int i = 0; i < 20 && who->cut.n_done == 0; i++)
        (void)bench_step(b);
    assert_true(who->cut.n_done > 0);
}

static void a_piece_too_long_for_the_bound_is_cut_by_layers(void **state) {
    (void)state;
    bench b;
    sequence *stream = begin_stream(&b, &card, 500);
    sequence *prompt = bench_submit(&b, 1536, 5, 0);
    uint32_t n_steps = 0;
    while (prompt->n_run < 1536) {
        uint32_t n_decoded = stream->n_run, n_rows = 0;
        assert_int_equal(bench_step_of(&b, &n_rows), 2);
        assert_int_equal(n_rows, 0); /* all of it by layers */
        assert_int_equal(stream->n_run, n_decoded + 1);
        assert_int_equal(b.n_slice_tokens, 512);
        assert_true(b.step_ms < 100);
        assert_true(b.n_slice_layers >= 6 && b.n_slice_layers <= 14);
        n_steps++;
    }
    assert_int_equal(n_steps, 11); /* twice 4, and 3 when it is known what a piece takes */
    bench_run_to_the_end(&b, 600);
    bench_close(&b);
}

static void a_piece_within_the_bound_shares_the_step_of_the_streams(void **state) {
    (void)state;
    bench b;
    bench_shape shape = card;
    shape.max_step_ms = 400;
    (void)begin_stream(&b, &shape, 500);
    sequence *prompt = bench_submit(&b, 1536, 5, 0);
    uint32_t n_rows = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(bench_step_of(&b, &n_rows), 2);
        assert_int_equal(n_rows, 512);
        assert_false(sequence_is_cut(prompt));
    }
    bench_run_to_the_end(&b, 600);
    bench_close(&b);
}

/* A layer of 512 tokens takes 128 ms: the piece is shorter. */
static void a_piece_is_shorter_where_a_layer_of_it_breaks_the_bound(void **state) {
    (void)state;
    bench b;
    bench_shape shape = card;
    shape.n_layers = 4;
    shape.piece_ms = 0;
    shape.row_ms = 1;
    (void)begin_stream(&b, &shape, 500);
    sequence *prompt = bench_submit(&b, 1024, 5, 0);
    while (prompt->n_run < 1024) {
        assert_int_equal(bench_step(&b), 2);
        assert_true(b.step_ms <= 100);
        assert_true(prompt->n_run == 1024 || b.n_slice_tokens >= 128);
    }
    bench_run_to_the_end(&b, 600);
    bench_close(&b);
}

static void of_an_unknown_cost_little_is_tried_first(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &card);
    sequence *stream = bench_add(&b, 1, 500, 0);
    assert_true(scheduler_submit(b.scheduler, stream));
    sequence *prompt = bench_add(&b, 1024, 5, 0);
    b.piece_ms = b.row_ms = 0; /* the stream's own prompt tells nothing */
    (void)bench_step(&b);
    b.piece_ms = card.piece_ms, b.row_ms = card.row_ms;
    assert_true(scheduler_submit(b.scheduler, prompt));
    (void)bench_step(&b);
    assert_int_equal(b.n_slice_tokens, 64);
    assert_int_equal(b.n_slice_layers, 5);
    while (prompt->n_run < 1024) {
        (void)bench_step(&b);
        assert_true(b.step_ms <= 100);
    }
    bench_run_to_the_end(&b, 600);
    bench_close(&b);
}

/* A short prompt fits the bound, and what is left of the piece's rows would do for a deep one if that
 * were at the short one's depth. */
static void a_deep_prompt_does_not_ride_behind_a_short_one(void **state) {
    (void)state;
    bench b;
    bench_shape shape = card;
    shape.piece_ms = 0;
    shape.row_ms = 0.1;
    shape.deep_ms = 0.001;
    (void)begin_stream(&b, &shape, 900);
    sequence *deep = bench_submit(&b, 4000, 5, 1);
    double most_ms = 0;
    while (deep->n_run < 2048 || sequence_is_cut(deep))
        (void)bench_step(&b);
    const sequence *short_one = bench_submit(&b, 100, 5, 0);
    while (short_one->n_run < 100) {
        (void)bench_step(&b);
        if (b.step_ms > most_ms) most_ms = b.step_ms;
    }
    assert_true(most_ms <= 100);
    assert_true(deep->n_run < 4000);
    bench_run_to_the_end(&b, 2000);
    bench_close(&b);
}

static void without_streams_nothing_is_cut_and_what_was_ends_at_once(void **state) {
    (void)state;
    bench b;
    bench_shape shape = card;
    sequence *stream = begin_stream(&b, &shape, 40);
    sequence *prompt = bench_submit(&b, 1536, 50, 0);
    cut_a_piece(&b, prompt);
    uint32_t n_done = prompt->cut.n_done;
    b.limits[0] = stream->n_tokens;
    scheduler_remove(b.scheduler, stream);
    b.n_over++;
    assert_int_equal(bench_step(&b), 1);
    assert_int_equal(b.n_slice_layers, 40 - n_done);
    assert_int_equal(prompt->n_run, 512);
    assert_int_equal(bench_step(&b), 1);
    assert_int_equal(b.n_slice_layers, 0);
    assert_int_equal(prompt->n_run, 1024);
    (void)bench_submit(&b, 100, 50, 0); /* who comes while nobody decodes cuts nothing */
    bench_run_to_the_end(&b, 200);
    bench_close(&b);
}

/* Another background prompt waits, and an interactive one runs as if neither were there; then the piece
 * goes on where it was. */
static void a_cut_piece_of_the_background_waits_for_interactive_prompts_alone(void **state) {
    (void)state;
    uint32_t n_steps[2] = {0};
    for (int beside = 0; beside < 2; beside++) {
        bench b;
        bench_shape shape = card;
        shape.n_sequences = 5;
        const sequence *stream = begin_stream(&b, &shape, 500), *background = NULL,
                       *other = NULL;
        if (beside) {
            background = bench_submit(&b, 600, 5, 1);
            other = bench_submit(&b, 700, 5, 1);
            cut_a_piece(&b, background);
        } else {
            for (int i = 0; i < 3; i++)
                (void)bench_step(&b);
        }
        uint32_t n_done = beside ? background->cut.n_done : 0;
        const sequence *user = bench_submit(&b, 1300, 5, 0), *next = bench_submit(&b, 80, 5, 0);
        while (user->n_run < 1300 || next->n_run < 80) {
            uint32_t n_decoded = stream->n_run;
            (void)bench_step(&b);
            assert_int_equal(stream->n_run, n_decoded + 1);
            assert_true(b.step_ms < 100);
            assert_true(next->n_run == 0 || user->n_run >= 1300);
            n_steps[beside]++;
            if (!beside) continue;
            assert_int_equal(background->n_run + other->n_run, 0);
            assert_int_equal(background->cut.n_done, n_done);
        }
        if (beside) {
            (void)bench_step(&b);
            assert_ptr_equal(b.sliced, background);
            assert_true(background->cut.n_done > n_done);
        }
        bench_run_to_the_end(&b, 600);
        bench_close(&b);
    }
    /* What is known of a piece's cost when the first one comes differs by one. */
    assert_true(n_steps[1] <= n_steps[0]);
}

/* What is left of an interactive piece runs at once, and not the background's with it. */
static void without_streams_the_interactive_piece_ends_first(void **state) {
    (void)state;
    bench b;
    bench_shape shape = card;
    shape.n_sequences = 4;
    sequence *stream = begin_stream(&b, &shape, 40);
    sequence *background = bench_submit(&b, 600, 5, 1);
    (void)bench_submit(&b, 300, 5, 1); /* which does not overtake it */
    cut_a_piece(&b, background);
    sequence *user = bench_submit(&b, 600, 5, 0);
    cut_a_piece(&b, user);
    uint32_t n_done = user->cut.n_done, n_waits = background->cut.n_done;
    b.limits[0] = stream->n_tokens;
    scheduler_remove(b.scheduler, stream);
    b.n_over++;
    assert_int_equal(bench_step(&b), 1);
    assert_ptr_equal(b.sliced, user);
    assert_int_equal(b.n_slice_layers, 40 - n_done);
    assert_int_equal(bench_step(&b), 1); /* the rest of the prompt, in one piece */
    assert_int_equal(user->n_run, 600);
    assert_int_equal(background->cut.n_done, n_waits);
    (void)bench_step(&b);
    assert_ptr_equal(b.sliced, background);
    bench_run_to_the_end(&b, 200);
    bench_close(&b);
}

/* Whichever of two that are cut goes, the other goes on. */
static void of_two_that_are_cut_either_may_be_removed(void **state) {
    (void)state;
    for (int goes = 0; goes < 2; goes++) {
        bench b;
        (void)begin_stream(&b, &card, 500);
        sequence *background = bench_submit(&b, 600, 5, 1);
        cut_a_piece(&b, background);
        sequence *user = bench_submit(&b, 600, 5, 0);
        cut_a_piece(&b, user);
        sequence *gone = goes == 0 ? background : user, *stays = goes == 0 ? user : background;
        uint32_t n_done = stays->cut.n_done;
        b.limits[gone - b.sequences] = gone->n_tokens;
        scheduler_remove(b.scheduler, gone);
        b.n_over++;
        assert_false(sequence_is_cut(gone));
        assert_int_equal(stays->cut.n_done, n_done);
        bench_assert_invariants(&b);
        (void)bench_step(&b);
        assert_ptr_equal(b.sliced, stays);
        bench_run_to_the_end(&b, 600);
        bench_close(&b);
    }
}

static void one_that_is_removed_between_slices_frees_all_at_once(void **state) {
    (void)state;
    bench b;
    (void)begin_stream(&b, &card, 500);
    sequence *prompt = bench_submit(&b, 1000, 5, 0), *next = bench_submit(&b, 700, 5, 0);
    cut_a_piece(&b, prompt);
    uint32_t n_free = scheduler_n_free(b.scheduler);
    b.limits[1] = prompt->n_tokens;
    scheduler_remove(b.scheduler, prompt);
    b.n_over++;
    assert_false(sequence_is_cut(prompt));
    assert_int_equal(prompt->n_pages, 0);
    assert_int_equal(scheduler_n_free(b.scheduler), n_free + 1);
    bench_assert_invariants(&b);
    (void)bench_step(&b);
    assert_true(sequence_is_cut(next));
    bench_run_to_the_end(&b, 600);
    bench_close(&b);
}

/* Two places: the background's is wanted while its piece is cut.  It goes on between the same two
 * layers, or where nothing can be kept from its beginning. */
static void background_gives_way_between_two_layers(void **state) {
    (void)state;
    for (uint32_t n_park = 0; n_park < 2; n_park++) {
        bench b;
        bench_shape shape = card;
        shape.n_sequences = 2;
        shape.n_park = n_park;
        (void)begin_stream(&b, &shape, 500);
        sequence *background = bench_submit(&b, 1000, 5, 1);
        cut_a_piece(&b, background);
        uint32_t n_done = background->cut.n_done;
        sequence *user = bench_submit(&b, 600, 5, 0);
        (void)bench_step(&b);
        assert_ptr_equal(b.sliced, user);
        assert_int_equal(background->phase, SEQUENCE_WAITING);
        assert_int_equal(background->cut.n_done, n_park > 0 ? n_done : 0);
        assert_int_equal(background->parked != NULL, n_park);
        while (user->phase != SEQUENCE_IDLE)
            (void)bench_step(&b);
        (void)bench_step(&b);
        assert_ptr_equal(b.sliced, background);
        assert_true(n_park == 0 || background->cut.n_done > n_done);
        bench_run_to_the_end(&b, 600);
        assert_int_equal(b.n_restored, n_park);
        bench_close(&b);
    }
}

static void one_that_is_removed_while_half_a_piece_is_parked_leaves_nothing(void **state) {
    (void)state;
    bench b;
    bench_shape shape = card;
    shape.n_sequences = 2;
    shape.n_park = 1;
    (void)begin_stream(&b, &shape, 500);
    sequence *background = bench_submit(&b, 1000, 5, 1);
    cut_a_piece(&b, background);
    (void)bench_submit(&b, 50, 5, 0);
    (void)bench_step(&b);
    assert_non_null(background->parked);
    b.limits[1] = background->n_tokens;
    scheduler_remove(b.scheduler, background);
    b.n_over++;
    assert_false(sequence_is_cut(background));
    assert_int_equal(b.n_parked, 0);
    sequence *next = bench_submit(&b, 1000, 5, 1);
    bench_run_to_the_end(&b, 600);
    assert_int_equal(next->n_preempted, 0);
    bench_close(&b);
}

/* A stream grows into the pages of a prompt whose second piece is cut. */
static void a_cut_piece_whose_pages_are_wanted_goes_on_or_runs_again(void **state) {
    (void)state;
    for (uint32_t n_park = 0; n_park < 2; n_park++) {
        bench b;
        bench_shape shape = card;
        shape.n_pages = 25; /* 5, one to grow, and 19 */
        shape.n_park = n_park;
        shape.piece_ms = 3000; /* a layer a slice */
        sequence *stream = begin_stream(&b, &shape, 200);
        sequence *prompt = bench_submit(&b, 1200, 5, 1);
        while (stream->n_run < 384) {
            (void)bench_step(&b);
            assert_int_equal(b.n_slice_layers, 1);
        }
        uint32_t n_run = prompt->n_run, n_done = prompt->cut.n_done;
        assert_true(n_run > 0 && n_done > 0);
        (void)bench_step(&b);
        assert_int_equal(prompt->n_preempted, 1);
        assert_int_equal(prompt->parked != NULL, n_park);
        assert_int_equal(prompt->n_run, n_park > 0 ? n_run : 0);
        assert_int_equal(prompt->cut.n_done, n_park > 0 ? n_done : 0);
        bench_run_to_the_end(&b, 2000);
        assert_int_equal(b.n_restored, n_park);
        bench_close(&b);
    }
}

/* They come while others run, and most give way between two layers of a piece at some time. */
static void a_crowd_that_comes_and_goes_between_layers_ends(void **state) {
    (void)state;
    uint64_t random = 815;
    uint32_t n_halves = 0;
    for (uint32_t round = 0; round < 12; round++) {
        bench b;
        bench_shape shape = card;
        shape.n_pages = 26 + 10 * (round % 3);
        shape.n_sequences = 2 + round % 3;
        shape.n_park = round % 4;
        shape.max_waiting = MAX_SEQUENCES;
        shape.has_cache = round % 2 > 0;
        bench_open(&b, &shape);
        for (int steps = 0; steps < 20000; steps++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint32_t dice = (uint32_t)(random >> 40);
            bool is_cut = b.sliced != NULL && b.sliced->priority > 0;
            if (b.n < 40 && dice % (is_cut ? 6 : 24) == 0) {
                sequence *who = bench_add(&b, 1 + dice / 64 % 1000, 1 + dice / 128 % 60,
                                          !is_cut && dice / 32 % 4 > 0);
                (void)sequence_add_stop(who, 320);
                assert_true(scheduler_submit(b.scheduler, who));
                if (b.n < 40 &&
                    dice / 256 % 2 == 0) { /* and where it cannot share, by itself */
                    sequence *fork = bench_add_text(&b, (int32_t)b.n - 1, who->n_prompt,
                                                    1 + dice / 512 % 60, who->priority);
                    fork->leader = who;
                    assert_true(scheduler_submit(b.scheduler, fork));
                }
            } else if (b.n > 0 && dice % 97 == 1) {
                bench_cancel(&b, &b.sequences[dice / 128 % b.n]);
            }
            if (bench_step(&b) == 0 && b.n == 40) break;
        }
        assert_int_equal(b.n_over, b.n);
        n_halves += b.n_halves_restored;
        bench_close(&b);
    }
    assert_true(n_halves > 20);
}

static void slices_are_as_few_and_even_as_the_bound_allows(void **state) {
    (void)state;
    step_cost c = {0};
    step_cost_piece p = {.n_rows = 512, .n_layers = 40};
    assert_int_equal(step_cost_layers(&c, &p, 100), 5); /* nothing is known */
    assert_false(step_cost_fits(&c, 0, 512, 100));
    step_cost_add(&c, &(step_cost_step){.n_decoded = 2, .took_ms = 20});
    step_cost_add(&c, &(step_cost_step){.n_prompt = 512, .took_ms = 200});
    assert_false(step_cost_fits(&c, 0, 512, 100));
    assert_true(step_cost_fits(&c, 0, 512, 280));
    assert_int_equal(step_cost_cut_rows(&c, &p, 100, 64, 512), 512);
    p.n_layers = 2;
    assert_int_equal(step_cost_cut_rows(&c, &p, 100, 64, 512), 256); /* 60 ms a layer */
    p.n_layers = 40;
    /* 12 layers fit: four slices of ten. */
    assert_int_equal(step_cost_layers(&c, &p, 100), 10);
    /* It takes longer than was thought: 8 ms a layer, so 7 fit. */
    step_cost_add_slice(&c, &p, 10, 80);
    assert_int_equal(step_cost_layers(&c, &p, 100), 6);
    for (; p.n_done < 40; step_cost_add_slice(&c, &p, 6, 48))
        assert_int_equal(step_cost_layers(&c, &p, 100), 6);
    assert_true(step_cost_expect_ms(&c, 0, 512) > 250);
    /* Full layers turn out to take five times as much as others: slices are even in time. */
    static const bool is_linear[] = {true, true, true, false, true, true, true, false};
    step_cost uneven = {.base_ms = 10};
    step_cost_add(&uneven, &(step_cost_step){.n_prompt = 512, .took_ms = 160});
    step_cost_piece q = {.n_rows = 512, .n_layers = 8, .is_linear = is_linear};
    assert_int_equal(step_cost_layers(&uneven, &q, 100), 3);
    step_cost_add_slice(&uneven, &q, 3, 30);
    step_cost_add_slice(&uneven, &q, 1, 50);
    assert_int_equal(step_cost_layers(&uneven, &q, 100), 3); /* 30 ms; with the last 80 */
    step_cost_add_slice(&uneven, &q, 3, 30);
    assert_int_equal(step_cost_layers(&uneven, &q, 100), 1);
    step_cost_add_slice(&uneven, &q, 1, 50);
    q.n_done = 0, q.took_ms = 0;
    assert_int_equal(step_cost_layers(&uneven, &q, 75), 3); /* the fourth would not fit */
    assert_int_equal(step_cost_cut_rows(&uneven, &q, 80, 64, 512), 512);
    assert_int_equal(step_cost_cut_rows(&uneven, &q, 60, 64, 512), 384); /* 38 ms of 50 */
    /* The streams alone take the bound: an eighth of it goes to prompts. */
    for (int i = 0; i < 50; i++)
        step_cost_add(&c, &(step_cost_step){.n_decoded = 2, .took_ms = 120});
    p = (step_cost_piece){.n_rows = 512, .n_layers = 40};
    assert_int_equal(step_cost_layers(&c, &p, 100), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_piece_too_long_for_the_bound_is_cut_by_layers),
        cmocka_unit_test(a_piece_within_the_bound_shares_the_step_of_the_streams),
        cmocka_unit_test(a_piece_is_shorter_where_a_layer_of_it_breaks_the_bound),
        cmocka_unit_test(of_an_unknown_cost_little_is_tried_first),
        cmocka_unit_test(a_deep_prompt_does_not_ride_behind_a_short_one),
        cmocka_unit_test(without_streams_nothing_is_cut_and_what_was_ends_at_once),
        cmocka_unit_test(a_cut_piece_of_the_background_waits_for_interactive_prompts_alone),
        cmocka_unit_test(without_streams_the_interactive_piece_ends_first),
        cmocka_unit_test(of_two_that_are_cut_either_may_be_removed),
        cmocka_unit_test(one_that_is_removed_between_slices_frees_all_at_once),
        cmocka_unit_test(background_gives_way_between_two_layers),
        cmocka_unit_test(one_that_is_removed_while_half_a_piece_is_parked_leaves_nothing),
        cmocka_unit_test(a_cut_piece_whose_pages_are_wanted_goes_on_or_runs_again),
        cmocka_unit_test(a_crowd_that_comes_and_goes_between_layers_ends),
        cmocka_unit_test(slices_are_as_few_and_even_as_the_bound_allows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
