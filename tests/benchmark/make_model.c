/* make_model.c - writes random Qwen3.5 models, byte for byte by the parameters.
 *
 *   make_model --params JSON --out FILE [--threads N] [--values yes|no]
 *
 * make_model.md says what the bytes are.  The layout comes first, so every chunk
 * of the file has a known place; threads take chunks by an atomic counter and
 * write them with pwrite().  The file has a temporary name until it is whole; a
 * failure (a full disk too) and SIGINT or SIGTERM remove it.  Without values the tensors are a
 * hole that takes no room: for what reads no more than the header.
 *
 * Threads: main, and N - 1 that run write_chunks() beside it.
 */
#include "tests/benchmark/make_model_layout.h"
#include "tests/benchmark/make_model_values.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20, CHUNK_SLACK = 4096, MAX_THREADS = 256 };

typedef struct job {
    int fd;
    const made_layout *layout;
    made_source *sources;
    uint64_t *first_chunk; /* of each tensor, and the number of all after the last */
    _Atomic uint64_t next_chunk;
    _Atomic int failure; /* errno of the first failed write */
} job;

/* Blocks in a chunk: a multiple of 8, so that chunks start on whole words. */
static uint64_t chunk_blocks(const made_tensor *t) {
    uint64_t block_bytes = quant_traits_of((uint32_t)t->type)->block_bytes;
    return CHUNK_BYTES / (8 * block_bytes) * 8;
}

static uint64_t tensor_blocks(const made_tensor *t) {
    return t->n_values / quant_traits_of((uint32_t)t->type)->block_values;
}

static int write_all(int fd, const uint8_t *bytes, size_t n, uint64_t offset) {
    while (n > 0) {
        ssize_t written = pwrite(fd, bytes, n, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno;
        bytes += written;
        n -= (size_t)written;
        offset += (uint64_t)written;
    }
    return 0;
}

/* The tensor that a chunk belongs to. */
static size_t find_tensor(const job *j, uint64_t chunk) {
    size_t low = 0;
    size_t high = j->layout->n_tensors;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (j->first_chunk[middle] <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int write_chunk(job *j, uint64_t chunk, uint8_t *buffer) {
    size_t i = find_tensor(j, chunk);
    const made_tensor *t = &j->layout->tensors[i];
    uint64_t block_bytes = quant_traits_of((uint32_t)t->type)->block_bytes;
    uint64_t first = (chunk - j->first_chunk[i]) * chunk_blocks(t);
    uint64_t n = tensor_blocks(t) - first;
    if (n > chunk_blocks(t)) n = chunk_blocks(t);
    made_source_write(&j->sources[i], first, (size_t)n, buffer);
    uint64_t at = j->layout->head_bytes + t->offset + first * block_bytes;
    return write_all(j->fd, buffer, (size_t)(n * block_bytes), at);
}

static void *write_chunks(void *argument) {
    job *j = argument;
    uint64_t n_chunks = j->first_chunk[j->layout->n_tensors];
    uint8_t *buffer = malloc(CHUNK_BYTES + CHUNK_SLACK);
    int failure = buffer == NULL ? ENOMEM : 0;
    while (failure == 0 && atomic_load(&j->failure) == 0) {
        uint64_t chunk = atomic_fetch_add(&j->next_chunk, 1);
        if (chunk >= n_chunks) break;
        failure = write_chunk(j, chunk, buffer);
    }
    int none = 0;
    if (failure != 0) (void)atomic_compare_exchange_strong(&j->failure, &none, failure);
    free(buffer);
    return NULL;
}

static status plan_job(job *j, const made_params *p, error *err) {
    const made_layout *l = j->layout;
    j->sources = calloc(l->n_tensors, sizeof *j->sources);
    j->first_chunk = calloc(l->n_tensors + 1, sizeof *j->first_chunk);
    if (j->sources == NULL || j->first_chunk == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "no memory for %zu tensors", l->n_tensors);
    }
    for (size_t i = 0; i < l->n_tensors; i++) {
        const made_tensor *t = &l->tensors[i];
        made_source_init(&j->sources[i], t, i, (uint64_t)p->seed, p->router_skew);
        uint64_t n_chunks = (tensor_blocks(t) + chunk_blocks(t) - 1) / chunk_blocks(t);
        j->first_chunk[i + 1] = j->first_chunk[i] + n_chunks;
    }
    return STATUS_OK;
}

/* A thread that does not start leaves its chunks to the others. */
static void run_threads(job *j, int n_threads) {
    pthread_t threads[MAX_THREADS];
    int n_started = 0;
    while (n_started < n_threads - 1 &&
           pthread_create(&threads[n_started], NULL, write_chunks, j) == 0) {
        n_started++;
    }
    (void)write_chunks(j);
    for (int i = 0; i < n_started; i++)
        (void)pthread_join(threads[i], NULL);
}

/* n_threads 0: the tensors' values are left out. */
static status write_model(int fd, const char *path, const made_params *p, const made_layout *l,
                          int n_threads, error *err) {
    uint64_t n_bytes = l->head_bytes + l->data_bytes;
    /* Reserving the room finds a full disk now; where a file system cannot, go on. */
    int failure = n_threads == 0 || fallocate(fd, 0, 0, (off_t)n_bytes) == 0 ? 0 : errno;
    if (failure == EOPNOTSUPP || failure == ENOSYS) failure = 0;
    if (failure == 0 && ftruncate(fd, (off_t)n_bytes) != 0) failure = errno;
    if (failure == 0) failure = write_all(fd, l->head, l->head_bytes, 0);
    if (failure != 0) {
        return error_set_errno(err, STATUS_IO, failure, "%s: cannot write %" PRIu64 " bytes",
                               path, n_bytes);
    }
    if (n_threads == 0) return STATUS_OK;
    job j = {.fd = fd, .layout = l};
    status rc = plan_job(&j, p, err);
    if (rc == STATUS_OK) {
        run_threads(&j, n_threads);
        failure = atomic_load(&j.failure);
        if (failure != 0) {
            rc = error_set_errno(err, STATUS_IO, failure, "%s: cannot write", path);
        }
    }
    free(j.sources);
    free(j.first_chunk);
    return rc;
}

/* ---- the file under its temporary name ---- */

static char temporary_path[4096];

static void remove_and_exit(int number) {
    (void)unlink(temporary_path);
    _exit(128 + number);
}

static status check_target(const char *path, error *err) {
    struct stat info;
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode)) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT, "--out %s: exists and is not a regular file", path);
}

static status make_file(const char *path, const made_params *p, const made_layout *l,
                        int n_threads, error *err) {
    status rc = check_target(path, err);
    if (rc != STATUS_OK) return rc;
    int n =
        snprintf(temporary_path, sizeof temporary_path, "%s.%ld.part", path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof temporary_path) {
        return error_set(err, STATUS_BAD_INPUT, "--out: the path is too long");
    }
    int fd = open(temporary_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        return error_set_errno(err, STATUS_IO, errno, "--out %s: cannot create",
                               temporary_path);
    }
    (void)signal(SIGINT, remove_and_exit);
    (void)signal(SIGTERM, remove_and_exit);
    rc = write_model(fd, path, p, l, n_threads, err);
    if (close(fd) != 0 && rc == STATUS_OK) {
        rc = error_set_errno(err, STATUS_IO, errno, "%s: cannot close", path);
    }
    if (rc == STATUS_OK && rename(temporary_path, path) != 0) {
        rc = error_set_errno(err, STATUS_IO, errno, "%s: cannot rename to it", path);
    }
    if (rc != STATUS_OK) (void)unlink(temporary_path);
    return rc;
}

/* ---- command line ---- */

typedef struct arguments {
    const char *params;
    const char *out;
    int n_threads;
    bool no_values;
} arguments;

static int usable_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

static status read_threads(const char *text, int *out, error *err) {
    char *end = NULL;
    long n = strtol(text, &end, 10);
    if (end == text || *end != 0 || n < 1 || n > MAX_THREADS) {
        return error_set(err, STATUS_BAD_INPUT, "--threads '%s' is not from 1 to %d", text,
                         MAX_THREADS);
    }
    *out = (int)n;
    return STATUS_OK;
}

static status read_arguments(arguments *a, int argc, char *argv[], error *err) {
    *a = (arguments){.n_threads = usable_cores()};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value == NULL) {
            return error_set(err, STATUS_BAD_INPUT, "%s: unknown or without a value", argv[i]);
        }
        status rc = STATUS_OK;
        if (strcmp(argv[i], "--params") == 0)
            a->params = value;
        else if (strcmp(argv[i], "--out") == 0)
            a->out = value;
        else if (strcmp(argv[i], "--threads") == 0)
            rc = read_threads(value, &a->n_threads, err);
        else if (strcmp(argv[i], "--values") == 0)
            a->no_values = strcmp(value, "no") == 0;
        else
            rc = error_set(err, STATUS_BAD_INPUT, "%s: unknown flag", argv[i]);
        if (rc != STATUS_OK) return rc;
    }
    if (a->params != NULL && a->out != NULL) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT,
                     "usage: make_model --params JSON --out FILE [--threads N] "
                     "[--values yes|no]");
}

int main(int argc, char *argv[]) {
    error err = {STATUS_OK, ""};
    arguments a;
    made_params params;
    made_layout layout;
    if (read_arguments(&a, argc, argv, &err) != STATUS_OK) {
        (void)fprintf(stderr, "make_model: %s\n", err.text);
        return 2;
    }
    status rc = made_params_read(&params, a.params, &err);
    if (rc == STATUS_OK) rc = made_layout_init(&layout, &params, &err);
    if (rc == STATUS_OK) {
        rc = make_file(a.out, &params, &layout, a.no_values ? 0 : a.n_threads, &err);
        if (rc == STATUS_OK) {
            (void)printf("%s: %" PRIu64 " bytes, %zu tensors\n", a.out,
                         layout.head_bytes + layout.data_bytes, layout.n_tensors);
        }
        made_layout_release(&layout);
    }
    if (rc == STATUS_OK) return 0;
    (void)fprintf(stderr, "make_model: %s\n", err.text);
    return 1;
}
