/* test_scheduler.c - pages and states are never mixed up or lost, and everyone comes to an end:
 * who is admitted when, pieces of prompts, what a cache knows of them, guesses, bounds of time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/scheduler_bench.h"
#include "worker/step_cost.h"
#include <stdlib.h>
#include <string.h>

static void a_long_prompt_runs_in_pieces_at_multiples_of_the_chunk(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){
                       .n_pages = 20, .n_sequences = 1, .chunk_tokens = 128, .max_waiting = 4});
    sequence *who = bench_submit(&b, 300, 2, 0);
    const uint32_t after[] = {128, 256, 300, 301, 302};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(bench_step(&b), 1);
        if (i < 4) assert_int_equal(who->n_run, after[i]);
    }
    assert_int_equal(b.n_over, 1);
    bench_close(&b);
}

static void prompts_share_a_step_and_decodes_go_on_beside_them(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){
                       .n_pages = 64, .n_sequences = 4, .chunk_tokens = 256, .max_waiting = 8});
    sequence *first = bench_submit(&b, 40, 50, 0);
    assert_int_equal(bench_step(&b), 1);
    sequence *second = bench_submit(&b, 150, 5, 0), *third = bench_submit(&b, 500, 5, 0);
    assert_int_equal(bench_step(&b), 3);
    assert_int_equal(first->n_run, 41);
    assert_int_equal(second->n_run, 150);
    assert_int_equal(third->n_run, 64); /* of the 106 left, whole chunks */
    bench_run_to_the_end(&b, 200);
    bench_close(&b);
}

static void interactive_comes_before_background(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){
                       .n_pages = 64, .n_sequences = 1, .chunk_tokens = 64, .max_waiting = 8});
    sequence *running = bench_submit(&b, 10, 3, 0);
    (void)bench_step(&b);
    sequence *late = bench_submit(&b, 10, 3, 1), *soon = bench_submit(&b, 10, 3, 0);
    assert_int_equal(running->phase, SEQUENCE_RUNNING);
    while (running->phase == SEQUENCE_RUNNING)
        (void)bench_step(&b);
    (void)bench_step(&b);
    assert_int_equal(soon->phase, SEQUENCE_RUNNING);
    assert_int_equal(late->phase, SEQUENCE_WAITING);
    bench_run_to_the_end(&b, 50);
    bench_close(&b);
}

static void the_queue_is_bounded(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){
                       .n_pages = 8, .n_sequences = 1, .chunk_tokens = 64, .max_waiting = 2});
    (void)bench_submit(&b, 10, 3, 0);
    (void)bench_submit(&b, 10, 3, 0);
    assert_true(scheduler_has_room(b.scheduler, 0));
    assert_false(scheduler_has_room(b.scheduler, 1));
    sequence *third = bench_add(&b, 10, 3, 0);
    assert_false(scheduler_submit(b.scheduler, third));
    assert_int_equal(third->phase, SEQUENCE_IDLE);
    (void)bench_step(&b);
    assert_true(scheduler_submit(b.scheduler, third));
    bench_run_to_the_end(&b, 50);
    bench_close(&b);
}

static void removing_at_any_point_frees_at_once(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){
                       .n_pages = 16, .n_sequences = 2, .chunk_tokens = 64, .max_waiting = 8});
    sequence *waiting = NULL;
    for (int i = 0; i < 3; i++)
        waiting = bench_submit(&b, 130, 20, 0);
    (void)bench_step(&b);
    scheduler_remove(b.scheduler, &b.sequences[0]); /* in the middle of its prompt */
    bench_assert_invariants(&b);
    scheduler_remove(b.scheduler, waiting);
    bench_assert_invariants(&b);
    scheduler_remove(b.scheduler, waiting); /* a second time changes nothing */
    for (int i = 0; i < 6; i++)
        (void)bench_step(&b);
    scheduler_remove(b.scheduler, &b.sequences[1]); /* while it decodes */
    assert_int_equal(kv_pages_available(b.pages), 16);
    assert_int_equal(bench_step(&b), 0);
    bench_close(&b);
}

static void a_piece_ends_where_someone_wants_to_look(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){.n_pages = 20,
                                  .n_sequences = 1,
                                  .chunk_tokens = 256,
                                  .max_waiting = 4,
                                  .has_cache = true});
    sequence *who = bench_add(&b, 500, 1, 0);
    assert_true(sequence_add_stop(who, 320));
    assert_true(sequence_add_stop(who, 64));
    assert_true(sequence_add_stop(who, 320)); /* it is there already */
    assert_false(sequence_add_stop(who, 0));
    assert_false(sequence_add_stop(who, 100));
    assert_false(sequence_add_stop(who, 512)); /* behind the prompt */
    assert_int_equal(who->n_stops, 2);
    assert_true(scheduler_submit(b.scheduler, who));
    const uint32_t after[] = {64, 320, 500};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(bench_step(&b), 1);
        assert_int_equal(who->n_run, after[i]);
    }
    assert_int_equal(b.n_stopped, 2);
    bench_run_to_the_end(&b, 5);
    bench_close(&b);
}

static void stops_are_bounded_and_ascend(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){
                       .n_pages = 1, .n_sequences = 1, .chunk_tokens = 64, .max_waiting = 1});
    sequence *who = bench_add(&b, 4096, 0, 0);
    uint32_t n_taken = 0;
    for (uint32_t i = 64; i > 0; i--)
        n_taken += sequence_add_stop(who, 64 * (i * 37 % 64 + 1));
    assert_int_equal(n_taken, SEQUENCE_MAX_STOPS);
    for (uint32_t i = 0; i < SEQUENCE_MAX_STOPS; i++)
        assert_int_equal(who->stops[i], 64 * (i + 1));
    bench_close(&b);
}

static void a_prompt_that_the_cache_knows_begins_behind_it(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){.n_pages = 12,
                                  .n_sequences = 2,
                                  .chunk_tokens = 256,
                                  .max_waiting = 4,
                                  .has_cache = true});
    sequence *first = bench_add_text(&b, 3, 300, 4, 0);
    assert_true(sequence_add_stop(first, 256));
    assert_true(scheduler_submit(b.scheduler, first));
    (void)bench_step(&b);
    (void)bench_step(&b);
    sequence *second = bench_add_text(&b, 3, 400, 4, 0);
    assert_true(scheduler_submit(b.scheduler, second));
    (void)bench_step(&b);
    assert_int_equal(b.n_begun, 1);
    assert_int_equal(second->n_run, 400); /* 7 pages, with 5 of the first: 4 are shared */
    bench_run_to_the_end(&b, 20);
    assert_int_equal(kv_pages_available(b.pages), 8);
    sequence *third = bench_submit(&b, 700, 4, 0); /* the cache has to give way */
    bench_run_to_the_end(&b, 20);
    assert_int_equal(third->n_preempted, 0);
    assert_int_equal(b.entries[0].n_tokens, 0);
    bench_close(&b);
}

/* What it would begin from made room for it, so that there is too little room after all. */
static void nobody_begins_in_the_room_of_its_own_beginning(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){.n_pages = 12,
                                  .n_sequences = 2,
                                  .chunk_tokens = 512,
                                  .max_waiting = 4,
                                  .has_cache = true});
    b.moves_out = true;
    sequence *first = bench_add_text(&b, 3, 300, 1, 0);
    assert_true(sequence_add_stop(first, 256)); /* 4 pages */
    assert_true(scheduler_submit(b.scheduler, first));
    bench_run_to_the_end(&b, 20);
    sequence *other = bench_submit(&b, 350, 30, 0); /* 6 pages */
    (void)bench_step(&b);
    sequence *second = bench_add_text(&b, 3, 400, 4, 0); /* 7 pages */
    assert_true(scheduler_submit(b.scheduler, second));
    while (other->phase == SEQUENCE_RUNNING) {
        (void)bench_step(&b);
        if (other->phase == SEQUENCE_RUNNING) assert_int_equal(b.n_begun, 0);
    }
    bench_run_to_the_end(&b, 20);
    assert_int_equal(b.n_begun, 1);
    bench_close(&b);
}

static void a_sequence_whose_rows_are_all_wanted_runs_from_its_beginning(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){.n_pages = 16,
                                  .n_sequences = 2,
                                  .chunk_tokens = 256,
                                  .max_waiting = 4,
                                  .has_cache = true});
    sequence *first = bench_add_text(&b, 3, 300, 4, 0);
    assert_true(sequence_add_stop(first, 256));
    assert_true(scheduler_submit(b.scheduler, first));
    (void)bench_step(&b);
    (void)bench_step(&b);
    sequence *second = bench_add_text(&b, 3, 400, 4, 0);
    second->runs_whole = true;
    assert_true(scheduler_submit(b.scheduler, second));
    (void)bench_step(&b);
    assert_int_equal(b.n_begun, 0);
    assert_int_equal(second->n_run, 256);
    bench_run_to_the_end(&b, 20);
    bench_close(&b);
}

static void guesses_get_pages_while_there_are_some(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){.n_pages = 4,
                                  .n_sequences = 2,
                                  .chunk_tokens = 64,
                                  .max_waiting = 4,
                                  .n_states_each = 5});
    sequence *who = bench_submit(&b, 63, 193, 0);
    (void)bench_step(&b);
    for (uint32_t n = who->n_tokens; who->phase == SEQUENCE_RUNNING; n++) {
        uint32_t room = who->cap_tokens - who->n_tokens;
        who->n_drafted = room < 4 ? room : 4;
        for (uint32_t i = 0; i < who->n_drafted; i++)
            who->tokens[who->n_tokens + i] = 99;
        assert_int_equal(bench_step(&b), 1);
        if (who->phase == SEQUENCE_RUNNING) assert_int_equal(who->n_tokens, n + 1);
    }
    bench_run_to_the_end(&b, 1);
    sequence *long_one = bench_submit(&b, 128, 20, 0), *other = bench_submit(&b, 60, 10, 0);
    (void)bench_step(&b);
    while (other->n_run < 61)
        (void)bench_step(&b);
    assert_int_equal(kv_pages_available(b.pages), 0);
    other->n_drafted = 4; /* they would need a page, and nobody gives up one for them */
    (void)bench_step(&b);
    assert_int_equal(other->n_run, 62);
    assert_int_equal(long_one->n_preempted + other->n_preempted, 0);
    bench_run_to_the_end(&b, 50);
    bench_close(&b);
}

/* Steps whose time is known: 5 ms, 1 ms more for each row of prompt. */
static void prompts_beside_streams_keep_the_bound(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){.n_pages = 400,
                                  .n_sequences = 3,
                                  .chunk_tokens = 512,
                                  .max_waiting = 8,
                                  .max_step_ms = 250,
                                  .row_ms = 1});
    (void)bench_submit(&b, 40, 200, 0);
    uint32_t n_rows = 0, n_most = 0, n_steps = 0;
    for (int i = 0; i < 5; i++)
        (void)bench_step_of(&b, &n_rows);
    sequence *large = bench_submit(&b, 3000, 5, 0);
    for (; large->n_run < 3000; n_steps++) {
        assert_int_equal(bench_step_of(&b, &n_rows), 2);
        assert_true(n_rows <= 245);
        assert_true(n_rows > 0);
        if (n_rows > n_most) n_most = n_rows;
    }
    assert_int_equal(n_most, 192);
    assert_true(n_steps < 20);
    bench_run_to_the_end(&b, 300);
    sequence *alone = bench_submit(&b, 1000, 5, 0);
    (void)bench_step(&b);
    assert_int_equal(alone->n_run, 512); /* nobody waits */
    bench_run_to_the_end(&b, 300);
    bench_close(&b);
}

static void a_bound_that_one_chunk_breaks_still_lets_prompts_go_on(void **state) {
    (void)state;
    bench b;
    bench_open(&b, &(bench_shape){.n_pages = 400,
                                  .n_sequences = 3,
                                  .chunk_tokens = 512,
                                  .max_waiting = 8,
                                  .max_step_ms = 10,
                                  .row_ms = 1});
    (void)bench_submit(&b, 40, 200, 0);
    (void)bench_step(&b);
    sequence *large = bench_submit(&b, 640, 5, 0);
    uint32_t n_rows = 0;
    while (large->n_run < 640) {
        (void)bench_step_of(&b, &n_rows);
        assert_int_equal(n_rows, 64);
    }
    bench_run_to_the_end(&b, 300);
    bench_close(&b);
}

static void costs_are_learnt_as_a_line_for_each_depth(void **state) {
    (void)state;
    step_cost c = {0};
    assert_true(step_cost_expect_ms(&c, 0, 64) == 0);
    assert_int_equal(step_cost_rows(&c, 0, 100, 64, 512), 64); /* nothing is known */
    for (int i = 0; i < 50; i++) {
        step_cost_add(&c, &(step_cost_step){.n_decoded = 2, .took_ms = 8});
        for (uint32_t rows = 64; rows <= 192; rows += 64) {
            double added = 20 + 0.25 * rows;
            step_cost_add(&c, &(step_cost_step){2, rows, 0, 8 + added});
            step_cost_add(&c, &(step_cost_step){2, rows, 5000, 8 + 2 * added});
        }
    }
    assert_true(c.base_ms > 7.9 && c.base_ms < 8.1);
    assert_true(step_cost_expect_ms(&c, 100, 256) > 83 &&
                step_cost_expect_ms(&c, 100, 256) < 85);
    assert_true(step_cost_expect_ms(&c, 3000, 64) < 37);   /* as the nearest below */
    assert_true(step_cost_expect_ms(&c, 100000, 64) > 71); /* as at 5,000 */
    assert_int_equal(step_cost_rows(&c, 0, 100, 64, 512), 192);
    assert_int_equal(step_cost_rows(&c, 5000, 130, 64, 512), 64);
    assert_int_equal(step_cost_rows(&c, 0, 1e9, 64, 512), 512);
    /* What costs the same whatever its rows does so with fewer, too. */
    step_cost even = {0};
    step_cost_add(&even, &(step_cost_step){.n_prompt = 300, .took_ms = 161});
    step_cost_add(&even, &(step_cost_step){.n_prompt = 512, .took_ms = 160});
    assert_true(step_cost_expect_ms(&even, 0, 80) > 159);
    assert_true(step_cost_expect_ms(&even, 0, 2048) > 320); /* more are not known to */
    assert_false(step_cost_fits(&even, 0, 80, 100));
}

static void a_random_crowd_keeps_the_invariants_and_ends(void **state) {
    (void)state;
    uint64_t random = 4711;
    for (uint32_t round = 0; round < 24; round++) {
        bench b;
        bench_open(&b, &(bench_shape){.n_pages = 14,
                                      .n_sequences = 1 + round % 8,
                                      .chunk_tokens = 64u << (round % 3),
                                      .max_waiting = MAX_SEQUENCES,
                                      .n_states_each = 1 + round % 2,
                                      .n_park = round % 5,
                                      .has_cache = round % 3 != 0,
                                      .max_step_ms = 20,
                                      .n_layers = round % 2 * 7, /* pieces are cut, or none */
                                      .piece_ms = 10,
                                      .row_ms = 0.25});
        for (int steps = 0; steps < 60000; steps++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint32_t dice = (uint32_t)(random >> 40);
            if (b.n < 40 && dice % 5 == 0) {
                sequence *who = bench_add_text(&b, (int32_t)(dice / 17 % 4), 1 + dice / 7 % 500,
                                               dice / 11 % 300, dice / 13 % 2);
                for (uint32_t at = 64; at < who->n_prompt; at += 64 * (1 + dice / 19 % 4))
                    (void)sequence_add_stop(who, at);
                assert_true(scheduler_submit(b.scheduler, who));
                if (dice / 23 % 3 == 0 && b.n < 40) {
                    sequence *fork = bench_add_text(&b, (int32_t)(dice / 17 % 4), who->n_prompt,
                                                    dice / 29 % 300, who->priority);
                    fork->leader = who;
                    assert_true(scheduler_submit(b.scheduler, fork));
                }
            } else if (b.n > 0 && dice % 97 == 1) {
                bench_cancel(&b, &b.sequences[dice / 128 % b.n]);
            }
            bench_guess_some(&b, random >> 20);
            if (bench_step(&b) == 0 && b.n == 40) break;
        }
        assert_int_equal(b.n_over, b.n);
        bench_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_runs_in_pieces_at_multiples_of_the_chunk),
        cmocka_unit_test(prompts_share_a_step_and_decodes_go_on_beside_them),
        cmocka_unit_test(interactive_comes_before_background),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(removing_at_any_point_frees_at_once),
        cmocka_unit_test(a_piece_ends_where_someone_wants_to_look),
        cmocka_unit_test(stops_are_bounded_and_ascend),
        cmocka_unit_test(a_prompt_that_the_cache_knows_begins_behind_it),
        cmocka_unit_test(nobody_begins_in_the_room_of_its_own_beginning),
        cmocka_unit_test(a_sequence_whose_rows_are_all_wanted_runs_from_its_beginning),
        cmocka_unit_test(guesses_get_pages_while_there_are_some),
        cmocka_unit_test(prompts_beside_streams_keep_the_bound),
        cmocka_unit_test(a_bound_that_one_chunk_breaks_still_lets_prompts_go_on),
        cmocka_unit_test(costs_are_learnt_as_a_line_for_each_depth),
        cmocka_unit_test(a_random_crowd_keeps_the_invariants_and_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
