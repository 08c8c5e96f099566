/* host_tier.h - expert records in RAM, between the slots of a GPU and the disk.
 *
 * An arena of n_records records of slot_bytes (gate, up, down, as the backend wants them).
 * With as many records as experts it is filled once by host_tier_fill(), record layer *
 * n_experts + expert at its own place.  With fewer it is a cache over the file: a record that
 * is not here is read by the loader threads of a disk_tier, and the least recently used one
 * makes room.  The arena takes the place of the page cache, nothing is read through a mapping.
 *
 *     host_tier_prefetch(t, layer, missing, n);           reads of all begin, in this order
 *     bytes = host_tier_fetch(t, layer, expert);          waits for one; it stays here ...
 *     host_tier_release(t, layer, expert);                ... until released
 *
 * Exclusive of VRAM: host_tier_demote() says that a record has a slot on the GPU now, and
 * makes it the next to go; host_tier_receive() takes back what a slot gives up.
 *
 * Errors  fetch returns NULL when a read failed (disk, or a scale in the record is NaN or
 *         infinite); host_tier_failure() names tensor and expert.
 * Memory  All by host_tier_new(); mapped anonymously, so that it counts as resident memory
 *         and a backend may register it with its driver.
 * Thread  The engine thread; records are read on the loaders'.
 */
#ifndef SILICEO_WORKER_MEMORY_HOST_TIER_H
#define SILICEO_WORKER_MEMORY_HOST_TIER_H

#include "common/error.h"
#include "worker/memory/disk_tier.h"
#include "worker/model/weights.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fewer records than experts are at least so many. */
enum { HOST_TIER_LEAST = 4 };

typedef struct host_tier host_tier;

/* One matrix of an expert from the file's bytes to the record's; on a loader thread. */
typedef void (*host_tier_place)(const weight_matrix *m, const void *data, unsigned char *out);

typedef struct host_tier_params {
    const model_weights *weights; /* with their file; outlives the tier */
    uint32_t n_experts;           /* a layer */
    uint32_t n_records;
    size_t slot_bytes;
    uint32_t n_loaders;    /* 0: DISK_LOADERS */
    host_tier_place place; /* NULL: as in the file */
    unsigned char *arena;  /* [n_records * slot_bytes], the caller's; NULL: the tier's own */
} host_tier_params;

typedef struct host_tier_counts {
    uint64_t fetches;
    uint64_t misses;     /* records that had to be read from disk */
    uint64_t disk_bytes; /* whole aligned blocks */
    uint64_t wait_ns;    /* the engine waited for reads */
    uint64_t received;   /* records that slots gave back */
    bool direct;         /* read with O_DIRECT */
} host_tier_counts;

/* Told while records are read: bytes so far of all. */
typedef void (*host_tier_progress)(void *context, uint64_t n_bytes);

status host_tier_new(host_tier **out, const host_tier_params *params, error *err);
void host_tier_free(host_tier *t); /* accepts NULL; waits for reads under way */

/* Read every record; n_records is that of all experts. */
status host_tier_fill(host_tier *t, host_tier_progress progress, void *context, error *err);

unsigned char *host_tier_arena(const host_tier *t, size_t *n_bytes);

/* Begin to read those of these experts that are not here; never waits.  What does not fit
 * beside pinned and awaited records is begun as room comes.  Replaces the former list. */
void host_tier_prefetch(host_tier *t, uint32_t layer, const int32_t *experts, size_t n);
/* The record, slot_bytes, read first if need be; pinned once more.  NULL: failed. */
const unsigned char *host_tier_fetch(host_tier *t, uint32_t layer, uint32_t expert);
void host_tier_release(host_tier *t, uint32_t layer, uint32_t expert);

/* The record has a copy elsewhere: first to make room. */
void host_tier_demote(host_tier *t, uint32_t layer, uint32_t expert);
/* A place for a record that somebody else has, pinned until host_tier_release(); the caller
 * fills it before.  NULL: it is here already, or there is no room. */
unsigned char *host_tier_receive(host_tier *t, uint32_t layer, uint32_t expert);

/* The tier's loaders, for what else is read from the file. */
disk_tier *host_tier_disk(const host_tier *t);
bool host_tier_has_all(const host_tier *t); /* there is no disk below */
bool host_tier_has(const host_tier *t, uint32_t layer, uint32_t expert);
status host_tier_failure(host_tier *t, error *err);
void host_tier_count(const host_tier *t, host_tier_counts *out);

#endif
