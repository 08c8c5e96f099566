/* test_scheduler.c - pages and states are never shared or lost, and everyone comes to an end.
 *
 * A model is not needed: a step adds the piece's length to n_run and, where a row of
 * logits was wanted, a token.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/model/model.h"
#include "worker/scheduler.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_STATES = 8, MAX_SEQUENCES = 64 };

typedef struct bench {
    kv_pages *pages;
    scheduler *scheduler;
    uint32_t n_states;
    uint32_t chunk_tokens;
    sequence sequences[MAX_SEQUENCES];
    uint32_t limits[MAX_SEQUENCES]; /* tokens at which a sequence ends */
    uint32_t n;
    uint32_t n_over;
} bench;

static void open_bench(bench *b, uint32_t n_pages, uint32_t n_states, uint32_t chunk_tokens,
                       uint32_t max_waiting) {
    error err = {0};
    memset(b, 0, sizeof *b);
    b->n_states = n_states;
    b->chunk_tokens = chunk_tokens;
    assert_int_equal(kv_pages_new(&b->pages, n_pages, &err), STATUS_OK);
    assert_int_equal(
        scheduler_new(&b->scheduler, b->pages, n_states, chunk_tokens, max_waiting, &err),
        STATUS_OK);
}

static void close_bench(bench *b) {
    for (uint32_t i = 0; i < b->n; i++) {
        scheduler_remove(b->scheduler, &b->sequences[i]);
        sequence_release(&b->sequences[i]);
    }
    assert_int_equal(kv_pages_available(b->pages), kv_pages_total(b->pages));
    assert_int_equal(scheduler_n_free_states(b->scheduler), b->n_states);
    scheduler_free(b->scheduler);
    kv_pages_free(b->pages);
}

static sequence *add(bench *b, uint32_t n_prompt, uint32_t n_output, uint32_t priority) {
    int32_t prompt[4096] = {0};
    error err = {0};
    sequence *who = &b->sequences[b->n];
    assert_true(n_prompt <= 4096 && b->n < MAX_SEQUENCES);
    assert_int_equal(sequence_init(who, prompt, n_prompt, n_prompt + n_output, &err),
                     STATUS_OK);
    who->priority = priority;
    b->limits[b->n++] = n_prompt + n_output;
    return who;
}

static sequence *submit(bench *b, uint32_t n_prompt, uint32_t n_output, uint32_t priority) {
    sequence *who = add(b, n_prompt, n_output, priority);
    assert_true(scheduler_submit(b->scheduler, who));
    return who;
}

/* No page and no state has two holders, everything held is counted, and who runs has
 * pages for what it has run. */
static void assert_invariants(const bench *b) {
    bool page_taken[4096] = {false}, state_taken[MAX_STATES] = {false};
    uint32_t n_held = 0, n_running = 0, n_waiting = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        const sequence *who = &b->sequences[i];
        n_waiting += who->phase == SEQUENCE_WAITING;
        if (who->phase != SEQUENCE_RUNNING) {
            assert_int_equal(who->n_pages, 0);
            continue;
        }
        n_running++;
        assert_true(who->state < b->n_states && !state_taken[who->state]);
        state_taken[who->state] = true;
        assert_true(who->n_pages * MODEL_PAGE_TOKENS >= who->n_run);
        for (uint32_t j = 0; j < who->n_pages; j++) {
            assert_false(page_taken[who->pages[j]]);
            page_taken[who->pages[j]] = true;
            assert_int_equal(kv_pages_owners(b->pages, who->pages[j]), 1);
        }
        n_held += who->n_pages;
    }
    assert_int_equal(kv_pages_total(b->pages) - kv_pages_available(b->pages), n_held);
    assert_int_equal(scheduler_n_running(b->scheduler), n_running);
    assert_int_equal(scheduler_n_waiting(b->scheduler), n_waiting);
    assert_int_equal(scheduler_n_free_states(b->scheduler), b->n_states - n_running);
}

static void assert_piece(const bench *b, const scheduler_piece *piece) {
    const sequence *who = piece->who;
    uint32_t end = who->n_run + piece->n_tokens;
    assert_int_equal(who->phase, SEQUENCE_RUNNING);
    assert_true(piece->n_tokens > 0 && end <= who->n_tokens);
    assert_true(who->n_pages * MODEL_PAGE_TOKENS >= end);
    assert_int_equal(piece->wants_logits, end == who->n_tokens);
    if (who->n_run < who->n_prompt) {
        assert_int_equal(who->n_run % MODEL_CHUNK_TOKENS, 0);
        assert_true(end == who->n_prompt || end % MODEL_CHUNK_TOKENS == 0);
        assert_true(piece->n_tokens <= b->chunk_tokens);
    } else {
        assert_int_equal(piece->n_tokens, 1);
    }
}

/* One step, checked before and after.  Returns the number of pieces. */
static size_t step(bench *b) {
    scheduler_piece pieces[MAX_STATES];
    size_t n = scheduler_plan(b->scheduler, pieces);
    assert_true(n <= b->n_states);
    assert_invariants(b);
    uint32_t n_prompt_tokens = 0;
    for (size_t i = 0; i < n; i++) {
        assert_piece(b, &pieces[i]);
        for (size_t j = 0; j < i; j++)
            assert_ptr_not_equal(pieces[i].who, pieces[j].who);
        if (pieces[i].who->n_run < pieces[i].who->n_prompt)
            n_prompt_tokens += pieces[i].n_tokens;
    }
    assert_true(n_prompt_tokens <= b->chunk_tokens);
    for (size_t i = 0; i < n; i++) {
        sequence *who = pieces[i].who;
        who->n_run += pieces[i].n_tokens;
        if (!pieces[i].wants_logits) continue;
        if (!sequence_append(who, 7)) {
            scheduler_remove(b->scheduler, who);
            b->n_over++;
        }
    }
    assert_invariants(b);
    return n;
}

static void run_to_the_end(bench *b, uint32_t max_steps) {
    for (uint32_t i = 0; i < max_steps; i++) {
        if (step(b) == 0) break;
    }
    assert_int_equal(b->n_over, b->n);
    for (uint32_t i = 0; i < b->n; i++)
        assert_int_equal(b->sequences[i].n_tokens, b->limits[i]);
}

static void a_long_prompt_runs_in_pieces_at_multiples_of_the_chunk(void **state) {
    (void)state;
    bench b;
    open_bench(&b, 20, 1, 128, 4);
    sequence *who = submit(&b, 300, 2, 0);
    const uint32_t after[] = {128, 256, 300, 301, 302};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(step(&b), 1);
        if (i < 4) assert_int_equal(who->n_run, after[i]);
    }
    assert_int_equal(b.n_over, 1);
    close_bench(&b);
}

static void prompts_share_a_step_and_decodes_go_on_beside_them(void **state) {
    (void)state;
    bench b;
    open_bench(&b, 64, 4, 256, 8);
    sequence *first = submit(&b, 40, 50, 0);
    assert_int_equal(step(&b), 1);
    sequence *second = submit(&b, 150, 5, 0), *third = submit(&b, 500, 5, 0);
    assert_int_equal(step(&b), 3);
    assert_int_equal(first->n_run, 41);
    assert_int_equal(second->n_run, 150);
    assert_int_equal(third->n_run, 64); /* of the 106 left, whole chunks */
    run_to_the_end(&b, 200);
    close_bench(&b);
}

static void interactive_comes_before_background(void **state) {
    (void)state;
    bench b;
    open_bench(&b, 64, 1, 64, 8);
    sequence *running = submit(&b, 10, 3, 0);
    (void)step(&b);
    sequence *late = submit(&b, 10, 3, 1), *soon = submit(&b, 10, 3, 0);
    assert_int_equal(running->phase, SEQUENCE_RUNNING);
    while (running->phase == SEQUENCE_RUNNING)
        (void)step(&b);
    (void)step(&b);
    assert_int_equal(soon->phase, SEQUENCE_RUNNING);
    assert_int_equal(late->phase, SEQUENCE_WAITING);
    run_to_the_end(&b, 50);
    close_bench(&b);
}

static void the_queue_is_bounded(void **state) {
    (void)state;
    bench b;
    open_bench(&b, 8, 1, 64, 2);
    (void)submit(&b, 10, 3, 0);
    (void)submit(&b, 10, 3, 0);
    assert_true(scheduler_has_room(b.scheduler, 0));
    assert_false(scheduler_has_room(b.scheduler, 1));
    sequence *third = add(&b, 10, 3, 0);
    assert_false(scheduler_submit(b.scheduler, third));
    assert_int_equal(third->phase, SEQUENCE_IDLE);
    (void)step(&b);
    assert_true(scheduler_submit(b.scheduler, third));
    run_to_the_end(&b, 50);
    close_bench(&b);
}

static void without_pages_the_youngest_waits_again_and_all_end(void **state) {
    (void)state;
    bench b;
    open_bench(&b, 9, 4, 64, 16); /* one sequence of 500 tokens takes 8 pages */
    sequence *first = submit(&b, 60, 440, 0);
    for (int i = 0; i < 3; i++)
        (void)submit(&b, 60, 440, 0);
    for (int i = 0; i < 6; i++)
        (void)step(&b);
    assert_true(scheduler_n_running(b.scheduler) > 1);
    run_to_the_end(&b, 20000);
    uint32_t n_preempted = 0;
    for (uint32_t i = 0; i < b.n; i++)
        n_preempted += b.sequences[i].n_preempted;
    assert_true(n_preempted > 0);
    assert_int_equal(first->n_preempted, 0);
    close_bench(&b);
}

static void a_sequence_of_all_pages_runs_alone(void **state) {
    (void)state;
    bench b;
    open_bench(&b, 4, 4, 64, 16);
    (void)submit(&b, 200, 56, 0); /* 256 tokens: all four pages */
    (void)submit(&b, 20, 20, 0);
    run_to_the_end(&b, 500);
    close_bench(&b);
}

static void removing_at_any_point_frees_at_once(void **state) {
    (void)state;
    bench b;
    open_bench(&b, 16, 2, 64, 8);
    sequence *waiting = NULL;
    for (int i = 0; i < 3; i++)
        waiting = submit(&b, 130, 20, 0);
    (void)step(&b);
    scheduler_remove(b.scheduler, &b.sequences[0]); /* in the middle of its prompt */
    assert_invariants(&b);
    scheduler_remove(b.scheduler, waiting);
    assert_invariants(&b);
    scheduler_remove(b.scheduler, waiting); /* a second time changes nothing */
    for (int i = 0; i < 6; i++)
        (void)step(&b);
    scheduler_remove(b.scheduler, &b.sequences[1]); /* while it decodes */
    assert_int_equal(kv_pages_available(b.pages), 16);
    assert_int_equal(step(&b), 0);
    close_bench(&b);
}

static void a_random_crowd_keeps_the_invariants_and_ends(void **state) {
    (void)state;
    uint64_t random = 4711;
    for (int round = 0; round < 12; round++) {
        bench b;
        open_bench(&b, 14, 1 + (uint32_t)round % MAX_STATES, 64u << (round % 3), MAX_SEQUENCES);
        for (int steps = 0; steps < 60000; steps++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint32_t dice = (uint32_t)(random >> 40);
            if (b.n < 40 && dice % 5 == 0) {
                (void)submit(&b, 1 + dice / 7 % 500, dice / 11 % 300, dice / 13 % 2);
            } else if (b.n > 0 && dice % 97 == 1) {
                sequence *who = &b.sequences[dice / 128 % b.n];
                if (who->phase != SEQUENCE_IDLE) b.n_over++;
                b.limits[who - b.sequences] = 0; /* cancelled */
                scheduler_remove(b.scheduler, who);
            }
            if (step(&b) == 0 && b.n == 40) break;
        }
        assert_int_equal(b.n_over, b.n);
        close_bench(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_runs_in_pieces_at_multiples_of_the_chunk),
        cmocka_unit_test(prompts_share_a_step_and_decodes_go_on_beside_them),
        cmocka_unit_test(interactive_comes_before_background),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(without_pages_the_youngest_waits_again_and_all_end),
        cmocka_unit_test(a_sequence_of_all_pages_runs_alone),
        cmocka_unit_test(removing_at_any_point_frees_at_once),
        cmocka_unit_test(a_random_crowd_keeps_the_invariants_and_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
