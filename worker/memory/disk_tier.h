/* disk_tier.h - reads from the model's files by threads of its own, past the page cache.
 *
 * Each loader thread opens every shard for itself with O_DIRECT and reads into an aligned
 * buffer of its own; what was read is handed to the job's `take` on that thread, which copies
 * it to where it belongs.  Where the file system refuses O_DIRECT, that is logged once, and
 * files are read plainly and their pages given back to the kernel (POSIX_FADV_DONTNEED).
 *
 * Jobs run in the order of their submission, as many at a time as there are loaders.  A job
 * that cannot be read ends like any other, with its error: the tier keeps the first.
 *
 * Thread: submit and wait from one thread; `take` runs on a loader.
 */
#ifndef SILICEO_WORKER_MEMORY_DISK_TIER_H
#define SILICEO_WORKER_MEMORY_DISK_TIER_H

#include "common/error.h"
#include "common/gguf.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DISK_LOADERS = 8, DISK_MOST_LOADERS = 64, DISK_ALIGN = 4096 };

typedef struct disk_tier disk_tier;

/* One range of a file.  The caller's memory, untouched by it until the job is over. */
typedef struct disk_job {
    uint64_t offset; /* in the shard's file */
    size_t n_bytes;  /* at most the tier's max_bytes */
    /* What was read, on a loader thread; may refuse it.  Not called after a failed read. */
    status (*take)(const struct disk_job *job, const unsigned char *bytes, error *err);
    void *context;
    unsigned char *out; /* the caller's */
    atomic_uint *left;  /* one less when the job is over; disk_tier_wait() waits for 0 */
    struct disk_job *next;
    uint32_t shard;
    uint32_t detail; /* the caller's */
    bool failed;     /* set before the job is over */
} disk_job;

typedef struct disk_counts {
    uint64_t n_bytes; /* read, whole aligned blocks */
    uint64_t n_reads;
    bool direct; /* with O_DIRECT */
} disk_counts;

/* file outlives the tier and names the shards; max_bytes: of the largest job. */
status disk_tier_open(disk_tier **out, const gguf_file *file, uint32_t n_loaders,
                      size_t max_bytes, error *err);
void disk_tier_close(disk_tier *t); /* waits for what was submitted; accepts NULL */

void disk_tier_submit(disk_tier *t, disk_job *jobs, size_t n);
/* Wait until *left, which jobs count down, is 0. */
void disk_tier_wait(disk_tier *t, const atomic_uint *left);
/* Read a range of any length to `out`, in pieces by all loaders, and wait. */
status disk_tier_read(disk_tier *t, uint32_t shard, uint64_t offset, size_t n_bytes, void *out,
                      error *err);

/* STATUS_OK, or the first failure. */
status disk_tier_failure(disk_tier *t, error *err);
void disk_tier_count(disk_tier *t, disk_counts *out);

#endif
