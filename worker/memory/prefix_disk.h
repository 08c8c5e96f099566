/* prefix_disk.h - a folder of pages and snapshots, and the thread that writes and reads them.
 *
 * Files lie in FOLDER/IDENTITY/ (see prefix_file.h), which one process at a time owns.  A file
 * is written beside its place and then renamed, so that it is there whole or not at all; one
 * that cannot be read back as what it should be is removed.  What a folder has is found when it
 * is opened.
 *
 * A job goes to the thread and comes back; everything but its bytes is then its owner's again.
 * Removing happens at once.  Thread: engine, and one of its own.
 */
#ifndef SILICEO_WORKER_MEMORY_PREFIX_DISK_H
#define SILICEO_WORKER_MEMORY_PREFIX_DISK_H

#include "common/error.h"
#include "worker/memory/prefix_file.h"

typedef struct prefix_disk prefix_disk;

typedef struct prefix_job {
    struct prefix_job *next;
    bool writes;
    prefix_file file;             /* hash of its bytes: filled when written */
    void *bytes;                  /* of file.n_bytes; the job's own where it writes */
    uint32_t block, serial, slot; /* its owner's */
    bool failed;
} prefix_job;

typedef struct prefix_disk_params {
    const char *folder; /* must outlive the disk */
    const char *identity;
    size_t page_bytes, state_bytes;
} prefix_disk_params;

/* What a file found in the folder says, and when it was written, ns. */
typedef struct prefix_disk_entry {
    prefix_file file;
    uint64_t written_ns;
} prefix_disk_entry;

/* entries: the files that are there, parents before children, pages before snapshots; for
 * free(). */
status prefix_disk_open(prefix_disk **out, const prefix_disk_params *params,
                        prefix_disk_entry **entries, size_t *n_entries, error *err);
/* Finishes what is to be written; accepts NULL. */
void prefix_disk_close(prefix_disk *d);

/* A job with room for its bytes to write, or with none to read into; NULL: no memory. */
prefix_job *prefix_job_new(const prefix_file *file, bool writes);
void prefix_job_free(prefix_job *j); /* accepts NULL */

void prefix_disk_push(prefix_disk *d, prefix_job *j);
prefix_job *prefix_disk_take_done(prefix_disk *d); /* NULL: none */
/* Until a job is done, at most so long. */
void prefix_disk_wait(prefix_disk *d, uint32_t timeout_ms);
uint64_t prefix_disk_queued_bytes(prefix_disk *d); /* to write */
void prefix_disk_remove(prefix_disk *d, prefix_key key, prefix_part part);

#endif
