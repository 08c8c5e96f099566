/* test_pool.c - every chunk once, writes visible, and no collapse beside a busy neighbour. */
#include "common/clock.h"
#include "kernels/cpu/pool.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h> /* needs the headers above */

#define MAX_CHUNKS 3000

typedef struct count_context {
    uint32_t runs[MAX_CHUNKS]; /* plain: the pool must order the accesses */
    _Atomic uint32_t worker_runs[8];
} count_context;

static void count_chunk(void *context, size_t chunk, uint32_t worker) {
    count_context *c = context;
    c->runs[chunk]++;
    atomic_fetch_add(&c->worker_runs[worker], 1);
}

static pool *new_pool(uint32_t n_threads) {
    error err = {0};
    pool *p = NULL;
    status rc = pool_new(&p, n_threads, &err);
    if (rc != STATUS_OK) fail_msg("%s", err.text);
    return p;
}

static void every_chunk_runs_once_for_any_thread_count(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 5, 64, MAX_CHUNKS};
    for (uint32_t n_threads = 1; n_threads <= 5; n_threads++) {
        pool *p = new_pool(n_threads);
        assert_int_equal(pool_n_threads(p), n_threads);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            static count_context c;
            memset(&c, 0, sizeof c);
            for (uint32_t round = 1; round <= 20; round++) {
                pool_run(p, sizes[s], count_chunk, &c);
                for (size_t i = 0; i < MAX_CHUNKS; i++)
                    assert_int_equal(c.runs[i], i < sizes[s] ? round : 0);
            }
        }
        pool_free(p);
    }
}

static void worker_index_stays_below_thread_count(void **state) {
    (void)state;
    static count_context c;
    memset(&c, 0, sizeof c);
    pool *p = new_pool(3);
    for (int i = 0; i < 50; i++)
        pool_run(p, 100, count_chunk, &c);
    pool_free(p);
    uint32_t total = 0;
    for (uint32_t i = 0; i < 8; i++) {
        if (i >= 3) assert_int_equal(c.worker_runs[i], 0);
        total += c.worker_runs[i];
    }
    assert_int_equal(total, 5000);
}

static void single_chunk_runs_on_the_caller(void **state) {
    (void)state;
    static count_context c;
    memset(&c, 0, sizeof c);
    pool *p = new_pool(2);
    for (int i = 0; i < 100; i++)
        pool_run(p, 1, count_chunk, &c);
    pool_free(p);
    assert_int_equal(c.worker_runs[0], 100);
}

/* Longer than any spin budget, so that workers that are not held are asleep or about to be. */
static void outlast_spins(void) {
    const uint64_t until_ns = clock_monotonic_ns() + 300000;
    while (clock_monotonic_ns() < until_ns)
        (void)sched_yield();
}

static void workers_wake_after_they_slept(void **state) {
    (void)state;
    static count_context c;
    memset(&c, 0, sizeof c);
    pool *p = new_pool(4);
    for (uint32_t i = 1; i <= 50; i++) {
        outlast_spins();
        pool_run(p, 64, count_chunk, &c);
        for (size_t k = 0; k < 64; k++)
            assert_int_equal(c.runs[k], i);
    }
    pool_free(p);
}

/* Held or let go, asleep or awake, before the first operation and between any two. */
static void a_held_pool_runs_every_chunk_and_ends(void **state) {
    (void)state;
    static count_context c;
    pool *p = new_pool(3);
    memset(&c, 0, sizeof c);
    pool_hold(p, true);
    pool_hold(p, true);
    for (uint32_t round = 1; round <= 40; round++) {
        pool_run(p, 64, count_chunk, &c);
        for (size_t i = 0; i < 64; i++)
            assert_int_equal(c.runs[i], round);
        pool_hold(p, round % 4 != 0);
        if (round % 8 == 0) outlast_spins();
    }
    pool_hold(p, true);
    pool_free(p);
}

static void thread_counts_out_of_range_are_refused(void **state) {
    (void)state;
    error err = {0};
    pool *p = NULL;
    assert_int_equal(pool_new(&p, 0, &err), STATUS_BAD_INPUT);
    assert_null(p);
    assert_int_equal(pool_new(&p, 1000000, &err), STATUS_BAD_INPUT);
    assert_null(p);
    assert_non_null(strstr(err.text, "1000000"));
    pool_free(NULL);
}

static void usable_cores_are_at_least_one_and_obey_affinity(void **state) {
    (void)state;
    uint32_t before = pool_usable_cores();
    assert_true(before >= 1);
    cpu_set_t old, one;
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &old)) {
            CPU_SET(i, &one);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    uint32_t pinned = pool_usable_cores();
    assert_int_equal(sched_setaffinity(0, sizeof old, &old), 0);
    assert_int_equal(pinned, 1);
}

/* About 20 us of work in chunks of 2 us. */
static void spin_chunk(void *context, size_t chunk, uint32_t worker) {
    (void)context;
    (void)chunk;
    (void)worker;
    uint64_t until_ns = clock_monotonic_ns() + 2000;
    while (clock_monotonic_ns() < until_ns) {
    }
}

/* A child process that keeps the core of the last allowed CPU busy. */
static pid_t start_busy_neighbour(void) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    cpu_set_t allowed, one;
    (void)sched_getaffinity(0, sizeof allowed, &allowed);
    CPU_ZERO(&one);
    for (int i = CPU_SETSIZE - 1; i >= 0; i--) {
        if (CPU_ISSET(i, &allowed)) {
            CPU_SET(i, &one);
            break;
        }
    }
    (void)sched_setaffinity(0, sizeof one, &one);
    (void)alarm(60); /* ends even if the parent dies */
    for (volatile unsigned i = 0;; i++) {
    }
}

/* A spinning barrier takes 6 ms a round here: the time slice of the neighbour.  The
 * bound guards against that collapse, not against slowness. */
static void busy_neighbour_does_not_collapse_it(void **state) {
    (void)state;
    pool *p = new_pool(2);
    pid_t neighbour = start_busy_neighbour();
    assert_true(neighbour > 0);
    const uint32_t n_rounds = 1000;
    uint64_t start_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < n_rounds; i++)
        pool_run(p, 10, spin_chunk, NULL);
    uint64_t mean_us = (clock_monotonic_ns() - start_ns) / n_rounds / 1000;
    (void)kill(neighbour, SIGKILL);
    (void)waitpid(neighbour, NULL, 0);
    pool_free(p);
    print_message("mean of a 20 us operation beside a busy neighbour: %u us\n",
                  (unsigned)mean_us);
    assert_true(mean_us < 2000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_chunk_runs_once_for_any_thread_count),
        cmocka_unit_test(worker_index_stays_below_thread_count),
        cmocka_unit_test(single_chunk_runs_on_the_caller),
        cmocka_unit_test(workers_wake_after_they_slept),
        cmocka_unit_test(a_held_pool_runs_every_chunk_and_ends),
        cmocka_unit_test(thread_counts_out_of_range_are_refused),
        cmocka_unit_test(usable_cores_are_at_least_one_and_obey_affinity),
        cmocka_unit_test(busy_neighbour_does_not_collapse_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
