/* prefix_disk.c - two lists of jobs under one lock, and a folder that is locked by flock(). */
#include "worker/memory/prefix_disk.h"

#include "common/log.h"
#include "common/thread.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ENTRIES = 1 << 17 };

struct prefix_disk {
    prefix_disk_params params;
    prefix_key identity;
    int folder; /* -1: not open */
    int lock_file;
    thread thread;
    bool has_lock; /* the mutex and conditions are there */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    prefix_job *first, **last;
    prefix_job *first_done, **last_done;
    uint64_t queued_bytes;
    bool stop;
    bool complained; /* the thread's: of a file that could not be written */
};

/* --- jobs --- */

prefix_job *prefix_job_new(const prefix_file *file, bool writes) {
    size_t room = writes ? (size_t)file->n_bytes : 0;
    prefix_job *j = malloc(sizeof *j + room);
    if (j == NULL) return NULL;
    *j = (prefix_job){.writes = writes, .file = *file};
    if (writes) j->bytes = j + 1;
    return j;
}

void prefix_job_free(prefix_job *j) {
    free(j);
}

static bool write_all(int fd, const void *bytes, size_t n) {
    const char *at = bytes;
    while (n > 0) {
        ssize_t now = write(fd, at, n);
        if (now < 0 && errno == EINTR) continue;
        if (now <= 0) return false;
        at += now;
        n -= (size_t)now;
    }
    return true;
}

static bool read_all(int fd, void *bytes, size_t n) {
    char *at = bytes;
    while (n > 0) {
        ssize_t now = read(fd, at, n);
        if (now < 0 && errno == EINTR) continue;
        if (now <= 0) return false;
        at += now;
        n -= (size_t)now;
    }
    return true;
}

static bool write_beside(const prefix_disk *d, prefix_job *j) {
    unsigned char header[PREFIX_FILE_HEADER];
    char name[PREFIX_FILE_NAME], beside[PREFIX_FILE_NAME + 8];
    j->file.bytes_hash = prefix_file_hash(j->bytes, (size_t)j->file.n_bytes);
    prefix_file_write(&j->file, header);
    prefix_file_name(j->file.key, j->file.part, name);
    (void)snprintf(beside, sizeof beside, "%s.new", name);
    int fd = openat(d->folder, beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    bool whole = write_all(fd, header, sizeof header) &&
                 write_all(fd, j->bytes, (size_t)j->file.n_bytes);
    whole = close(fd) == 0 && whole;
    if (whole && renameat(d->folder, beside, d->folder, name) == 0) return true;
    int cause = errno;
    (void)unlinkat(d->folder, beside, 0);
    errno = cause;
    return false;
}

static bool write_file(prefix_disk *d, prefix_job *j) {
    if (write_beside(d, j)) {
        d->complained = false;
        return true;
    }
    if (!d->complained)
        log_warn("prefix-not-written", "folder=%s error=%d", d->params.folder, errno);
    d->complained = true;
    return false;
}

static bool is_wanted(const prefix_file *got, const prefix_file *wanted) {
    return got->part == wanted->part && got->depth == wanted->depth &&
           memcmp(&got->identity, &wanted->identity, sizeof got->identity) == 0 &&
           memcmp(&got->key, &wanted->key, sizeof got->key) == 0 &&
           memcmp(&got->parent, &wanted->parent, sizeof got->parent) == 0 &&
           memcmp(got->tokens, wanted->tokens, sizeof got->tokens) == 0 &&
           got->n_bytes == wanted->n_bytes;
}

static bool read_file(const prefix_disk *d, prefix_job *j) {
    unsigned char header[PREFIX_FILE_HEADER];
    char name[PREFIX_FILE_NAME], more;
    prefix_file got;
    error err = {0};
    prefix_file_name(j->file.key, j->file.part, name);
    int fd = openat(d->folder, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool good = read_all(fd, header, sizeof header) &&
                prefix_file_read(&got, header, sizeof header, &err) == STATUS_OK &&
                is_wanted(&got, &j->file) && read_all(fd, j->bytes, (size_t)got.n_bytes) &&
                read(fd, &more, 1) == 0 &&
                prefix_file_hash(j->bytes, (size_t)got.n_bytes) == got.bytes_hash;
    (void)close(fd);
    if (good) return true;
    log_warn("prefix-file-refused", "file=%s", name);
    (void)unlinkat(d->folder, name, 0);
    return false;
}

static void disk_body(void *argument) {
    prefix_disk *d = argument;
    thread_ready();
    (void)pthread_mutex_lock(&d->lock);
    for (;;) {
        while (d->first == NULL && !d->stop)
            (void)pthread_cond_wait(&d->work, &d->lock);
        prefix_job *j = d->first;
        if (j == NULL) break;
        d->first = j->next;
        if (d->first == NULL) d->last = &d->first;
        (void)pthread_mutex_unlock(&d->lock);
        j->failed = !(j->writes ? write_file(d, j) : read_file(d, j));
        (void)pthread_mutex_lock(&d->lock);
        if (j->writes) d->queued_bytes -= j->file.n_bytes;
        j->next = NULL;
        *d->last_done = j;
        d->last_done = &j->next;
        (void)pthread_cond_signal(&d->done);
    }
    (void)pthread_mutex_unlock(&d->lock);
}

void prefix_disk_push(prefix_disk *d, prefix_job *j) {
    (void)pthread_mutex_lock(&d->lock);
    if (j->writes) {
        j->next = NULL;
        *d->last = j;
        d->last = &j->next;
        d->queued_bytes += j->file.n_bytes;
    } else { /* somebody waits for it */
        if (d->first == NULL) d->last = &j->next;
        j->next = d->first;
        d->first = j;
    }
    (void)pthread_cond_signal(&d->work);
    (void)pthread_mutex_unlock(&d->lock);
}

prefix_job *prefix_disk_take_done(prefix_disk *d) {
    (void)pthread_mutex_lock(&d->lock);
    prefix_job *j = d->first_done;
    if (j != NULL) {
        d->first_done = j->next;
        if (d->first_done == NULL) d->last_done = &d->first_done;
    }
    (void)pthread_mutex_unlock(&d->lock);
    return j;
}

void prefix_disk_wait(prefix_disk *d, uint32_t timeout_ms) {
    struct timespec end;
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
    (void)pthread_mutex_lock(&d->lock);
    int rc = 0;
    while (d->first_done == NULL && rc == 0)
        rc = pthread_cond_timedwait(&d->done, &d->lock, &end);
    (void)pthread_mutex_unlock(&d->lock);
}

uint64_t prefix_disk_queued_bytes(prefix_disk *d) {
    (void)pthread_mutex_lock(&d->lock);
    uint64_t n = d->queued_bytes;
    (void)pthread_mutex_unlock(&d->lock);
    return n;
}

void prefix_disk_remove(prefix_disk *d, prefix_key key, prefix_part part) {
    char name[PREFIX_FILE_NAME];
    prefix_file_name(key, part, name);
    (void)unlinkat(d->folder, name, 0);
}

/* --- what is there --- */

/* False: it is no file of this folder's model, or damaged. */
static bool read_entry(const prefix_disk *d, const char *name, prefix_disk_entry *e) {
    unsigned char header[PREFIX_FILE_HEADER];
    prefix_key key;
    prefix_part part;
    struct stat s;
    error err = {0};
    if (!prefix_file_parse_name(name, &key, &part)) return false;
    int fd = openat(d->folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    bool good = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) &&
                read_all(fd, header, sizeof header) &&
                prefix_file_read(&e->file, header, sizeof header, &err) == STATUS_OK;
    (void)close(fd);
    if (!good) return false;
    const prefix_file *f = &e->file;
    size_t wanted = part == PREFIX_PAGE ? d->params.page_bytes : d->params.state_bytes;
    e->written_ns = (uint64_t)s.st_mtim.tv_sec * 1000000000u + (uint64_t)s.st_mtim.tv_nsec;
    return f->part == part && memcmp(&f->key, &key, sizeof key) == 0 &&
           memcmp(&f->identity, &d->identity, sizeof f->identity) == 0 &&
           f->n_bytes == wanted && (uint64_t)s.st_size == PREFIX_FILE_HEADER + f->n_bytes;
}

static int parents_first(const void *a, const void *b) {
    const prefix_file *x = &((const prefix_disk_entry *)a)->file;
    const prefix_file *y = &((const prefix_disk_entry *)b)->file;
    if (x->part != y->part) return x->part < y->part ? -1 : 1;
    return x->depth < y->depth ? -1 : x->depth > y->depth;
}

static status scan(const prefix_disk *d, prefix_disk_entry **entries, size_t *n, error *err) {
    size_t cap = 0, n_removed = 0;
    int copy = dup(d->folder);
    DIR *folder = copy < 0 ? NULL : fdopendir(copy);
    if (folder == NULL) {
        if (copy >= 0) (void)close(copy);
        return error_set_errno(err, STATUS_IO, errno, "prefix.disk_dir = %s", d->params.folder);
    }
    for (const struct dirent *item; (item = readdir(folder)) != NULL && *n < MAX_ENTRIES;) {
        if (item->d_name[0] == '.' || strcmp(item->d_name, "lock") == 0) continue;
        if (*n == cap) {
            cap = cap == 0 ? 64 : 2 * cap;
            prefix_disk_entry *grown = realloc(*entries, cap * sizeof *grown);
            if (grown == NULL) {
                (void)closedir(folder);
                return error_set(err, STATUS_NO_MEMORY, "prefix.disk_dir: no memory");
            }
            *entries = grown;
        }
        if (read_entry(d, item->d_name, &(*entries)[*n])) {
            ++*n;
        } else if (unlinkat(d->folder, item->d_name, 0) == 0) {
            n_removed++;
        }
    }
    (void)closedir(folder);
    if (n_removed > 0) log_warn("prefix-files-removed", "files=%zu", n_removed);
    if (*n > 0) qsort(*entries, *n, sizeof **entries, parents_first);
    return STATUS_OK;
}

/* --- life --- */

static status open_folder(prefix_disk *d, error *err) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%016" PRIx64, d->params.folder, d->identity.high);
    if (n < 0 || (size_t)n >= sizeof path)
        return error_set(err, STATUS_BAD_INPUT, "prefix.disk_dir: the path is too long");
    (void)mkdir(d->params.folder, 0700);
    (void)mkdir(path, 0700);
    d->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->folder < 0) return error_set_errno(err, STATUS_IO, errno, "%s", path);
    d->lock_file = openat(d->folder, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (d->lock_file < 0) return error_set_errno(err, STATUS_IO, errno, "%s/lock", path);
    if (flock(d->lock_file, LOCK_EX | LOCK_NB) != 0)
        return error_set(err, STATUS_UNAVAILABLE, "%s is another process's", path);
    return STATUS_OK;
}

static status start_thread(prefix_disk *d, error *err) {
    pthread_condattr_t steady;
    if (pthread_condattr_init(&steady) != 0)
        return error_set(err, STATUS_NO_MEMORY, "prefix.disk_dir: no memory");
    (void)pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_cond_init(&d->work, NULL);
    (void)pthread_cond_init(&d->done, &steady);
    (void)pthread_condattr_destroy(&steady);
    d->has_lock = true;
    return thread_start(&d->thread, "prefix", disk_body, d, err);
}

status prefix_disk_open(prefix_disk **out, const prefix_disk_params *params,
                        prefix_disk_entry **entries, size_t *n_entries, error *err) {
    *out = NULL;
    *entries = NULL;
    *n_entries = 0;
    prefix_disk *d = calloc(1, sizeof *d);
    if (d == NULL) return error_set(err, STATUS_NO_MEMORY, "prefix.disk_dir: no memory");
    d->params = *params;
    d->identity = prefix_file_identity(params->identity);
    d->folder = d->lock_file = -1;
    d->last = &d->first;
    d->last_done = &d->first_done;
    status rc = open_folder(d, err);
    if (rc == STATUS_OK) rc = scan(d, entries, n_entries, err);
    if (rc == STATUS_OK) rc = start_thread(d, err);
    if (rc != STATUS_OK) {
        free(*entries);
        *entries = NULL;
        prefix_disk_close(d);
        return rc;
    }
    *out = d;
    return STATUS_OK;
}

void prefix_disk_close(prefix_disk *d) {
    if (d == NULL) return;
    if (d->has_lock) {
        (void)pthread_mutex_lock(&d->lock);
        d->stop = true;
        (void)pthread_cond_signal(&d->work);
        (void)pthread_mutex_unlock(&d->lock);
        thread_join(&d->thread);
        for (prefix_job *j; (j = prefix_disk_take_done(d)) != NULL;)
            prefix_job_free(j);
        (void)pthread_cond_destroy(&d->done);
        (void)pthread_cond_destroy(&d->work);
        (void)pthread_mutex_destroy(&d->lock);
    }
    if (d->lock_file >= 0) (void)close(d->lock_file);
    if (d->folder >= 0) (void)close(d->folder);
    free(d);
}
