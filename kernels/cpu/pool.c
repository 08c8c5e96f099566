/* pool.c - chunk counter, adaptive waiting and the limits of the machine.
 *
 * One 64-bit ticket holds how many chunks the operation has and which is next, so
 * that claiming a chunk is one fetch-add and a worker that wakes late can claim
 * nothing that is not there.  The owner waits for chunks, never for
 * workers: where a neighbour holds a worker's core, the owner does the work itself.
 *
 * Ordering.  job is written before the ticket is stored (release) and read only
 * after a claim (acquire) that was granted; the operation cannot end, and job not
 * change, before that chunk is counted in n_done.  Sleeping is Dekker's pattern on
 * sequentially consistent atomics: announce the sleep, look again, wait; the waker
 * changes the word first and looks for sleepers after.
 */
#include "kernels/cpu/pool.h"

#include "common/clock.h"
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A wait that ends within the limit makes the next spin longer, a longer one makes
 * it shorter: spinning pays only where the answer comes soon. */
#define SPIN_LIMIT_NS   80000u
#define SPIN_LEAST_NS   1000u
#define PAUSES_PER_LOOK 4

#define MAX_THREADS 4096u

typedef struct pool_job {
    pool_chunk fn;
    void *context;
} pool_job;

typedef struct pool_worker {
    _Alignas(64) struct pool *pool;
    uint32_t index;
    uint64_t spin_ns; /* this thread's own budget */
    pthread_t handle;
    bool started;
} pool_worker;

struct pool {
    /* Written by the owner once an operation, read by all. */
    _Alignas(64) _Atomic uint32_t epoch; /* futex: workers wait for its change */
    _Atomic uint32_t n_sleeping;
    _Atomic uint64_t ticket; /* n_chunks << 32 | next chunk */
    pool_job job;
    _Atomic bool stop;
    _Atomic bool held;
    /* Written by every worker once an operation. */
    _Alignas(64) _Atomic uint32_t n_done; /* futex: the owner waits for its change */
    _Atomic bool owner_sleeps;
    uint32_t n_threads;
    pool_worker *workers;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t n) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static bool is_held(const pool *p) {
    return atomic_load_explicit(&p->held, memory_order_relaxed);
}

/* Spin until *word leaves value; false when the budget ends first, and nothing is held. */
static bool spin_while(const _Atomic uint32_t *word, uint32_t value, uint64_t start_ns,
                       uint64_t budget_ns, const pool *holder) {
    for (;;) {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
            _mm_pause();
        }
        if (holder != NULL && is_held(holder)) continue;
        if (clock_monotonic_ns() - start_ns >= budget_ns) return false;
    }
}

static void adapt(const pool *p, uint64_t *spin_ns, uint64_t waited_ns) {
    if (is_held(p)) return; /* says nothing of other times */
    if (waited_ns <= SPIN_LIMIT_NS) {
        *spin_ns += *spin_ns / 4;
        if (*spin_ns > SPIN_LIMIT_NS) *spin_ns = SPIN_LIMIT_NS;
    } else {
        *spin_ns /= 2;
        if (*spin_ns < SPIN_LEAST_NS) *spin_ns = SPIN_LEAST_NS;
    }
}

/* Worker: wait for an operation after `seen`; the new epoch. */
static uint32_t wait_for_epoch(pool_worker *w, uint32_t seen) {
    pool *p = w->pool;
    uint32_t now = atomic_load_explicit(&p->epoch, memory_order_acquire);
    if (now != seen) return now;
    uint64_t start_ns = clock_monotonic_ns();
    if (!spin_while(&p->epoch, seen, start_ns, w->spin_ns, p)) {
        atomic_fetch_add(&p->n_sleeping, 1);
        while (atomic_load(&p->epoch) == seen)
            futex_wait(&p->epoch, seen);
        atomic_fetch_sub(&p->n_sleeping, 1);
    }
    adapt(p, &w->spin_ns, clock_monotonic_ns() - start_ns);
    return atomic_load_explicit(&p->epoch, memory_order_acquire);
}

/* Claim and run chunks until none is left; how many this thread ran. */
static uint32_t run_chunks(pool *p, uint32_t index) {
    uint32_t n_run = 0;
    for (;;) {
        uint64_t ticket = atomic_fetch_add_explicit(&p->ticket, 1, memory_order_acquire);
        uint32_t chunk = (uint32_t)ticket;
        if (chunk >= ticket >> 32) return n_run;
        p->job.fn(p->job.context, chunk, index);
        n_run++;
    }
}

static void *worker_body(void *argument) {
    pool_worker *w = argument;
    pool *p = w->pool;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_for_epoch(w, seen);
        if (atomic_load(&p->stop)) return NULL;
        uint32_t n_run = run_chunks(p, w->index);
        if (n_run == 0) continue;
        atomic_fetch_add(&p->n_done, n_run);
        if (atomic_load(&p->owner_sleeps)) futex_wake(&p->n_done, 1);
    }
}

/* Owner: wait until n_done reaches n_chunks. */
static void wait_for_done(pool *p, uint32_t n_chunks) {
    uint32_t done = atomic_load_explicit(&p->n_done, memory_order_acquire);
    if (done == n_chunks) return;
    pool_worker *owner = &p->workers[0];
    uint64_t start_ns = clock_monotonic_ns();
    while (done != n_chunks) {
        if (!spin_while(&p->n_done, done, start_ns, owner->spin_ns, NULL)) {
            atomic_store(&p->owner_sleeps, true);
            while (atomic_load(&p->n_done) == done)
                futex_wait(&p->n_done, done);
            atomic_store(&p->owner_sleeps, false);
        }
        done = atomic_load_explicit(&p->n_done, memory_order_acquire);
    }
    adapt(p, &owner->spin_ns, clock_monotonic_ns() - start_ns);
}

static void publish(pool *p, uint32_t n_chunks) {
    atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->ticket, (uint64_t)n_chunks << 32, memory_order_release);
    atomic_fetch_add(&p->epoch, 1);
    uint32_t n_sleeping = atomic_load(&p->n_sleeping);
    if (n_sleeping > 0) futex_wake(&p->epoch, n_chunks - 1);
}

void pool_run(pool *p, size_t n_chunks, pool_chunk fn, void *context) {
    if (p->n_threads == 1 || n_chunks <= 1) {
        for (size_t i = 0; i < n_chunks; i++)
            fn(context, i, 0);
        return;
    }
    /* The ticket overshoots by at most one a thread. */
    CHECK(n_chunks <= UINT32_MAX - MAX_THREADS);
    p->job = (pool_job){fn, context};
    publish(p, (uint32_t)n_chunks);
    uint32_t n_run = run_chunks(p, 0);
    atomic_fetch_add(&p->n_done, n_run);
    wait_for_done(p, (uint32_t)n_chunks);
}

/* An operation without chunks wakes whoever sleeps. */
void pool_hold(pool *p, bool held) {
    atomic_store(&p->held, held);
    if (!held || p->n_threads == 1) return;
    atomic_store_explicit(&p->ticket, 0, memory_order_release);
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->n_sleeping) > 0) futex_wake(&p->epoch, p->n_threads);
}

uint32_t pool_n_threads(const pool *p) {
    return p->n_threads;
}

/* Signals belong to the program's own threads, so workers start with all blocked. */
static status start_worker(pool_worker *w, error *err) {
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&w->handle, NULL, worker_body, w);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        return error_set_errno(err, STATUS_NO_MEMORY, rc, "pool: starting worker %u", w->index);
    }
    w->started = true;
    char name[16];
    (void)snprintf(name, sizeof name, "pool-%u", w->index % 1000u);
    (void)pthread_setname_np(w->handle, name);
    return STATUS_OK;
}

status pool_new(pool **out, uint32_t n_threads, error *err) {
    status rc = STATUS_OK;
    *out = NULL;
    if (n_threads == 0 || n_threads > MAX_THREADS) {
        return error_set(err, STATUS_BAD_INPUT, "pool: n_threads=%u is not in 1..%u", n_threads,
                         MAX_THREADS);
    }
    pool *p = aligned_alloc(64, sizeof *p);
    pool_worker *workers = aligned_alloc(64, n_threads * sizeof *workers);
    if (p == NULL || workers == NULL) {
        free(p);
        free(workers);
        return error_set(err, STATUS_NO_MEMORY, "pool: no memory for %u workers", n_threads);
    }
    memset(p, 0, sizeof *p);
    memset(workers, 0, n_threads * sizeof *workers);
    p->n_threads = n_threads;
    p->workers = workers;
    for (uint32_t i = 0; i < n_threads; i++) {
        workers[i].pool = p;
        workers[i].index = i;
        workers[i].spin_ns = SPIN_LIMIT_NS;
    }
    for (uint32_t i = 1; i < n_threads; i++) {
        rc = start_worker(&workers[i], err);
        if (rc != STATUS_OK) goto fail;
    }
    *out = p;
    return STATUS_OK;
fail:
    pool_free(p);
    return rc;
}

void pool_free(pool *p) {
    if (p == NULL) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->epoch, 1);
    futex_wake(&p->epoch, p->n_threads);
    for (uint32_t i = 1; i < p->n_threads; i++) {
        if (p->workers[i].started) (void)pthread_join(p->workers[i].handle, NULL);
    }
    free(p->workers);
    free(p);
}

static uint32_t affinity_cores(void) {
    for (size_t n_cpus = 1024; n_cpus <= 65536; n_cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC(n_cpus);
        if (set == NULL) break;
        size_t bytes = CPU_ALLOC_SIZE(n_cpus);
        int n = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (n > 0) return (uint32_t)n;
    }
    return 1;
}

static bool read_line(const char *path, char *line, size_t size) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    bool ok = fgets(line, (int)size, f) != NULL;
    (void)fclose(f);
    return ok;
}

/* Whole cores that the CPU quota of one cgroup folder allows; UINT32_MAX: no limit. */
static uint32_t folder_quota(const char *folder, bool v2) {
    char path[600], line[64];
    long long quota = -1, period = 0;
    if (v2) {
        (void)snprintf(path, sizeof path, "%s/cpu.max", folder);
        if (!read_line(path, line, sizeof line)) return UINT32_MAX;
        if (sscanf(line, "%lld %lld", &quota, &period) != 2) return UINT32_MAX; /* "max" */
    } else {
        (void)snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if (!read_line(path, line, sizeof line)) return UINT32_MAX;
        quota = strtoll(line, NULL, 10);
        (void)snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (!read_line(path, line, sizeof line)) return UINT32_MAX;
        period = strtoll(line, NULL, 10);
    }
    if (quota <= 0 || period <= 0) return UINT32_MAX;
    return quota < period ? 1 : (uint32_t)(quota / period);
}

/* The tightest quota of a cgroup and the folders above it. */
static uint32_t tree_quota(const char *mount, char *group, bool v2) {
    uint32_t least = UINT32_MAX;
    size_t len = strcspn(group, "\n");
    for (;;) {
        group[len] = '\0';
        char folder[560];
        (void)snprintf(folder, sizeof folder, "%s%s", mount, group);
        uint32_t cores = folder_quota(folder, v2);
        if (cores < least) least = cores;
        if (len == 0) return least;
        do {
            len--;
        } while (len > 0 && group[len] != '/');
    }
}

/* Lines of /proc/self/cgroup are "0::/path" (v2) or "N:cpu,cpuacct:/path" (v1). */
static uint32_t cgroup_cores(void) {
    uint32_t least = UINT32_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (f == NULL) return least;
    char line[512];
    while (fgets(line, sizeof line, f) != NULL) {
        char *names = strchr(line, ':');
        char *group = names != NULL ? strchr(names + 1, ':') : NULL;
        if (group == NULL) continue;
        *group++ = '\0';
        names++;
        uint32_t cores = UINT32_MAX;
        if (names[0] == '\0') {
            cores = tree_quota("/sys/fs/cgroup", group, true);
        } else if (strcmp(names, "cpu") == 0 || strncmp(names, "cpu,", 4) == 0) {
            cores = tree_quota("/sys/fs/cgroup/cpu", group, false);
        }
        if (cores < least) least = cores;
    }
    (void)fclose(f);
    return least;
}

uint32_t pool_usable_cores(void) {
    uint32_t allowed = affinity_cores();
    uint32_t quota = cgroup_cores();
    return quota < allowed ? quota : allowed;
}
