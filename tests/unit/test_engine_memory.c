/* test_engine_memory.c - a real engine where memory is short or must not be asked for.
 *
 * The allocator is watched while tokens are decoded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine_shared.h"
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

static void texts_that_outgrow_the_memory_take_turns_and_stay_the_same(void **state) {
    (void)state;
    enum { N = 4 };
    static int32_t alone[N][RUN_IDS];
    engine_params params = run_params();
    engine_run run = {0};
    char body[512];
    params.n_context = 640;
    run_open_narrow(&run, &params);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_allocates_nothing),
        cmocka_unit_test(a_submit_without_memory_is_shed_and_harms_nobody),
        cmocka_unit_test(slots_are_counted_and_change_no_answer),
        cmocka_unit_test(texts_that_outgrow_the_memory_take_turns_and_stay_the_same),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
