/* disk_tier.c - a queue of ranges and the threads that read them. */
#include "worker/memory/disk_tier.h"

#include "common/log.h"
#include "common/thread.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READS_AT_ONCE = 32 }; /* pieces of one disk_tier_read() in the queue */

typedef struct loader {
    thread thread;
    disk_tier *tier;
    int *fds;              /* [n_shards], -1: not open */
    unsigned char *buffer; /* [buffer_bytes], aligned */
} loader;

struct disk_tier {
    const gguf_file *file;
    size_t max_bytes;
    size_t buffer_bytes;
    bool direct;
    loader *loaders;
    uint32_t n_loaders;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t work;
    pthread_cond_t done;
    disk_job *first, **last;
    bool stop;
    error failure;
    disk_counts counts;
};

/* --- a loader --- */

static status read_range(const loader *l, const disk_job *j, uint64_t from, size_t n,
                         error *err) {
    const char *path = gguf_shard_path(l->tier->file, j->shard);
    size_t needed = (size_t)(j->offset - from) + j->n_bytes, got = 0;
    while (got < needed) {
        ssize_t now =
            pread(l->fds[j->shard], l->buffer + got, n - got, (off_t)(from + (uint64_t)got));
        if (now < 0 && errno == EINTR) continue;
        if (now < 0) {
            return error_set_errno(err, STATUS_IO, errno, "%s: reading %zu bytes at %llu", path,
                                   n, (unsigned long long)from);
        }
        got += (size_t)now;
        bool ends = now == 0 || (l->tier->direct && got % DISK_ALIGN != 0);
        if (got < needed && ends) {
            return error_set(err, STATUS_IO,
                             "%s: the file ends at byte %llu, before a tensor does at %llu",
                             path, (unsigned long long)(from + got),
                             (unsigned long long)(j->offset + j->n_bytes));
        }
    }
    return STATUS_OK;
}

static status run_job(const loader *l, const disk_job *j, size_t *n_read, error *err) {
    uint64_t from = j->offset / DISK_ALIGN * DISK_ALIGN;
    uint64_t end = (j->offset + j->n_bytes + DISK_ALIGN - 1) / DISK_ALIGN * DISK_ALIGN;
    *n_read = (size_t)(end - from);
    status rc = read_range(l, j, from, *n_read, err);
    if (rc != STATUS_OK) return rc;
    if (!l->tier->direct) {
        (void)posix_fadvise(l->fds[j->shard], (off_t)from, (off_t)*n_read, POSIX_FADV_DONTNEED);
    }
    return j->take(j, l->buffer + (j->offset - from), err);
}

static disk_job *next_job(disk_tier *t) {
    while (t->first == NULL && !t->stop)
        (void)pthread_cond_wait(&t->work, &t->lock);
    disk_job *j = t->first;
    if (j == NULL) return NULL;
    t->first = j->next;
    if (t->first == NULL) t->last = &t->first;
    return j;
}

static void loader_body(void *argument) {
    const loader *l = argument;
    disk_tier *t = l->tier;
    thread_ready();
    (void)pthread_mutex_lock(&t->lock);
    for (disk_job *j; (j = next_job(t)) != NULL;) {
        (void)pthread_mutex_unlock(&t->lock);
        error err = {0};
        size_t n_read = 0;
        status rc = run_job(l, j, &n_read, &err);
        (void)pthread_mutex_lock(&t->lock);
        t->counts.n_bytes += n_read;
        t->counts.n_reads++;
        j->failed = rc != STATUS_OK;
        if (j->failed && t->failure.code == STATUS_OK) t->failure = err;
        /* From here on the job is its owner's again. */
        if (atomic_fetch_sub_explicit(j->left, 1, memory_order_acq_rel) == 1)
            (void)pthread_cond_broadcast(&t->done);
    }
    (void)pthread_mutex_unlock(&t->lock);
}

/* --- life --- */

/* Whether the file system reads past the page cache: some refuse to open, some to read. */
static bool reads_directly(const char *path) {
    void *block = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0) return false;
    bool went = posix_memalign(&block, DISK_ALIGN, DISK_ALIGN) == 0 &&
                pread(fd, block, DISK_ALIGN, 0) > 0;
    free(block);
    (void)close(fd);
    return went;
}

static status open_loader(disk_tier *t, loader *l, error *err) {
    uint32_t n_shards = gguf_n_shards(t->file);
    void *buffer = NULL;
    l->tier = t;
    l->fds = malloc(n_shards * sizeof *l->fds);
    if (l->fds == NULL || posix_memalign(&buffer, DISK_ALIGN, t->buffer_bytes) != 0) {
        free(l->fds);
        l->fds = NULL;
        return error_set(err, STATUS_NO_MEMORY, "disk tier: no memory for a loader");
    }
    l->buffer = buffer;
    for (uint32_t i = 0; i < n_shards; i++)
        l->fds[i] = -1;
    for (uint32_t i = 0; i < n_shards; i++) {
        const char *path = gguf_shard_path(t->file, i);
        l->fds[i] = open(path, O_RDONLY | O_CLOEXEC | (t->direct ? O_DIRECT : 0));
        if (l->fds[i] < 0) return error_set_errno(err, STATUS_IO, errno, "%s", path);
    }
    return thread_start(&l->thread, "loader", loader_body, l, err);
}

status disk_tier_open(disk_tier **out, const gguf_file *file, uint32_t n_loaders,
                      size_t max_bytes, error *err) {
    *out = NULL;
    disk_tier *t = calloc(1, sizeof *t);
    if (t == NULL) return error_set(err, STATUS_NO_MEMORY, "disk tier: no memory");
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_cond_init(&t->work, NULL);
    (void)pthread_cond_init(&t->done, NULL);
    t->file = file;
    t->last = &t->first;
    t->max_bytes = max_bytes;
    t->buffer_bytes = (max_bytes + 2 * DISK_ALIGN - 1) / DISK_ALIGN * DISK_ALIGN;
    t->direct = true;
    for (uint32_t i = 0; i < gguf_n_shards(file) && t->direct; i++)
        t->direct = reads_directly(gguf_shard_path(file, i));
    t->counts.direct = t->direct;
    if (!t->direct) {
        log_warn("disk-tier",
                 "%s: the file system has no O_DIRECT; pages are read plainly and "
                 "given back",
                 gguf_shard_path(file, 0));
    }
    t->loaders = calloc(n_loaders, sizeof *t->loaders);
    status rc = t->loaders != NULL ? STATUS_OK
                                   : error_set(err, STATUS_NO_MEMORY, "disk tier: no memory");
    while (rc == STATUS_OK && t->n_loaders < n_loaders)
        rc = open_loader(t, &t->loaders[t->n_loaders++], err);
    if (rc != STATUS_OK) {
        disk_tier_close(t);
        return rc;
    }
    *out = t;
    return STATUS_OK;
}

static void close_loader(loader *l) {
    thread_join(&l->thread);
    for (uint32_t i = 0; l->fds != NULL && i < gguf_n_shards(l->tier->file); i++) {
        if (l->fds[i] >= 0) (void)close(l->fds[i]);
    }
    free(l->buffer);
    free(l->fds);
}

void disk_tier_close(disk_tier *t) {
    if (t == NULL) return;
    (void)pthread_mutex_lock(&t->lock);
    t->stop = true;
    (void)pthread_cond_broadcast(&t->work);
    (void)pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < t->n_loaders; i++)
        close_loader(&t->loaders[i]);
    free(t->loaders);
    (void)pthread_cond_destroy(&t->done);
    (void)pthread_cond_destroy(&t->work);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
}

/* --- reading --- */

void disk_tier_submit(disk_tier *t, disk_job *jobs, size_t n) {
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) {
        CHECK(jobs[i].n_bytes <= t->max_bytes);
        jobs[i].failed = false;
        jobs[i].next = i + 1 < n ? &jobs[i + 1] : NULL;
    }
    (void)pthread_mutex_lock(&t->lock);
    *t->last = jobs;
    t->last = &jobs[n - 1].next;
    (void)pthread_cond_broadcast(&t->work);
    (void)pthread_mutex_unlock(&t->lock);
}

void disk_tier_wait(disk_tier *t, const atomic_uint *left) {
    if (atomic_load_explicit(left, memory_order_acquire) == 0) return;
    (void)pthread_mutex_lock(&t->lock);
    while (atomic_load_explicit(left, memory_order_acquire) != 0)
        (void)pthread_cond_wait(&t->done, &t->lock);
    (void)pthread_mutex_unlock(&t->lock);
}

typedef struct piece_target {
    uint64_t offset; /* of the first byte */
    unsigned char *out;
} piece_target;

static status take_piece(const disk_job *j, const unsigned char *bytes, error *err) {
    (void)err;
    const piece_target *to = j->context;
    memcpy(to->out + (j->offset - to->offset), bytes, j->n_bytes);
    return STATUS_OK;
}

status disk_tier_read(disk_tier *t, uint32_t shard, uint64_t offset, size_t n_bytes, void *out,
                      error *err) {
    piece_target target = {offset, out};
    disk_job jobs[READS_AT_ONCE];
    atomic_uint left;
    bool failed = false;
    for (size_t at = 0; at < n_bytes && !failed;) {
        size_t n = 0;
        for (; n < READS_AT_ONCE && at < n_bytes; n++) {
            size_t now = n_bytes - at < t->max_bytes ? n_bytes - at : t->max_bytes;
            jobs[n] = (disk_job){.shard = shard,
                                 .offset = offset + at,
                                 .n_bytes = now,
                                 .take = take_piece,
                                 .context = &target,
                                 .left = &left};
            at += now;
        }
        atomic_init(&left, (unsigned)n);
        disk_tier_submit(t, jobs, n);
        disk_tier_wait(t, &left);
        for (size_t i = 0; i < n; i++)
            failed = failed || jobs[i].failed;
    }
    return failed ? disk_tier_failure(t, err) : STATUS_OK;
}

status disk_tier_failure(disk_tier *t, error *err) {
    (void)pthread_mutex_lock(&t->lock);
    error e = t->failure;
    (void)pthread_mutex_unlock(&t->lock);
    return e.code == STATUS_OK ? STATUS_OK : error_set(err, e.code, "%s", e.text);
}

void disk_tier_count(disk_tier *t, disk_counts *out) {
    (void)pthread_mutex_lock(&t->lock);
    *out = t->counts;
    (void)pthread_mutex_unlock(&t->lock);
}
