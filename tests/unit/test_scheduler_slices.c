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
    for (int i = 0; i < 20 && !(who->is_cut && b->n_done > 0); i++)
        (void)bench_step(b);
    assert_true(who->is_cut);
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
        assert_false(prompt->is_cut);
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
    while (deep->n_run < 2048 || deep->is_cut)
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
    uint32_t n_done = b.n_done;
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

static void other_prompts_wait_for_the_piece_that_is_cut(void **state) {
    (void)state;
    bench b;
    (void)begin_stream(&b, &card, 500);
    sequence *background = bench_submit(&b, 600, 5, 1);
    cut_a_piece(&b, background);
    sequence *user = bench_submit(&b, 600, 5, 0);
    while (background->is_cut) {
        (void)bench_step(&b);
        assert_int_equal(user->n_run, 0);
        assert_int_equal(user->phase, SEQUENCE_RUNNING);
    }
    assert_int_equal(background->n_run, 512);
    (void)bench_step(&b);
    assert_true(user->is_cut); /* it comes first now */
    bench_run_to_the_end(&b, 600);
    bench_close(&b);
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
    assert_false(prompt->is_cut);
    assert_int_equal(prompt->n_pages, 0);
    assert_int_equal(scheduler_n_free(b.scheduler), n_free + 1);
    bench_assert_invariants(&b);
    (void)bench_step(&b);
    assert_true(next->is_cut);
    bench_run_to_the_end(&b, 600);
    bench_close(&b);
}

/* Two places: the background's is wanted while its piece is cut. */
static void background_ends_its_piece_before_it_gives_way(void **state) {
    (void)state;
    bench b;
    bench_shape shape = card;
    shape.n_sequences = 2;
    shape.n_park = 1;
    (void)begin_stream(&b, &shape, 500);
    sequence *background = bench_submit(&b, 1000, 5, 1);
    cut_a_piece(&b, background);
    sequence *user = bench_submit(&b, 50, 5, 0);
    while (background->is_cut) {
        (void)bench_step(&b);
        assert_int_equal(user->phase, SEQUENCE_WAITING);
        assert_int_equal(background->n_preempted, 0);
    }
    (void)bench_step(&b);
    assert_int_equal(background->phase, SEQUENCE_WAITING);
    assert_int_equal(background->n_run, 512); /* parked: the whole piece, and nothing else */
    assert_non_null(background->parked);
    assert_int_equal(user->phase, SEQUENCE_RUNNING);
    bench_run_to_the_end(&b, 600);
    assert_int_equal(b.n_restored, 1);
    bench_close(&b);
}

/* A stream grows into the pages of a prompt whose second piece is cut: nobody keeps half a piece. */
static void a_cut_piece_whose_pages_are_wanted_runs_again(void **state) {
    (void)state;
    bench b;
    bench_shape shape = card;
    shape.n_pages = 25; /* 5, one to grow, and 19 */
    shape.n_park = 4;
    shape.piece_ms = 3000; /* a layer a slice */
    sequence *stream = begin_stream(&b, &shape, 200);
    sequence *prompt = bench_submit(&b, 1200, 5, 1);
    while (stream->n_run < 384) {
        (void)bench_step(&b);
        assert_int_equal(b.n_slice_layers, 1);
    }
    assert_true(prompt->is_cut);
    assert_true(prompt->n_run > 0);
    (void)bench_step(&b);
    assert_int_equal(prompt->n_preempted, 1);
    assert_false(prompt->is_cut);
    assert_null(prompt->parked);
    assert_int_equal(prompt->n_run, 0);
    bench_run_to_the_end(&b, 2000);
    bench_close(&b);
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
        cmocka_unit_test(other_prompts_wait_for_the_piece_that_is_cut),
        cmocka_unit_test(one_that_is_removed_between_slices_frees_all_at_once),
        cmocka_unit_test(background_ends_its_piece_before_it_gives_way),
        cmocka_unit_test(a_cut_piece_whose_pages_are_wanted_runs_again),
        cmocka_unit_test(slices_are_as_few_and_even_as_the_bound_allows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
