/* expert_list.h - the file that tells after a restart which experts a model's texts used.
 *
 * FOLDER/IDENTITY.experts is a header of EXPERT_LIST_HEADER bytes and of every expert of every
 * layer the rows that it had (expert_cache.h), uint32.  The header has the model's identity and
 * shape, and hashes of itself and of what follows.  A file that is not exactly that is refused with
 * the field and its value; so is one of a machine with another order of bytes, whose magic reads
 * otherwise.  At most EXPERT_LIST_MOST experts, 4 MiB.
 *
 * It is written beside its place and then renamed, so that it is there whole or not at all; after a
 * loss of power the one before may be there, or one that its hash refuses.
 * No state; any thread.
 */
#ifndef SILICEO_WORKER_MEMORY_EXPERT_LIST_H
#define SILICEO_WORKER_MEMORY_EXPERT_LIST_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows of one expert at most: what an expert_cache counts stays below it. */
enum { EXPERT_LIST_HEADER = 72, EXPERT_LIST_MOST = 1 << 20, EXPERT_LIST_ROWS = 1 << 24 };

typedef struct expert_list {
    const char
        *identity; /* of the model's file, up to 32 characters that a file name may have */
    uint32_t n_layers, n_experts;
} expert_list;

size_t expert_list_bytes(const expert_list *list);
/* uses: [n_layers][n_experts]; out: expert_list_bytes(). */
void expert_list_write(const expert_list *list, const uint32_t *uses, unsigned char *out);
/* STATUS_BAD_INPUT says what is wrong, and uses is as it was. */
status expert_list_read(const expert_list *list, const unsigned char *bytes, size_t n,
                        uint32_t *uses, error *err);

/* From a folder, or into it, which is made where its parent is there.  *found: there is a file of
 * this model; only then uses is filled. */
status expert_list_load(const expert_list *list, const char *folder, uint32_t *uses,
                        bool *found, error *err);
status expert_list_save(const expert_list *list, const char *folder, const uint32_t *uses,
                        error *err);

#endif
