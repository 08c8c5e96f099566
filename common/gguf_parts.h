/* gguf_parts.h - what gguf.c, gguf_parse.c and gguf_values.c share.  Private to them.
 *
 * A shard is one mapped file.  Its keys and the file's tensors are arrays made
 * while parsing; a name index is the order of an array sorted by name, which
 * finds duplicates and serves look-ups without depending on a hash of names
 * that a stranger chose.
 */
#ifndef SILICEO_COMMON_GGUF_PARTS_H
#define SILICEO_COMMON_GGUF_PARTS_H

#include "common/gguf.h"

typedef struct gguf_shard {
    char *path;
    const uint8_t *map; /* NULL until mapped */
    uint64_t n_bytes;
    uint32_t version;
    uint32_t alignment;
    uint64_t infos_end;  /* first byte after the tensor infos */
    uint64_t data_start; /* infos_end padded to the alignment */
    gguf_key *keys;
    size_t n_keys;
    uint32_t *keys_by_name;
    size_t first_tensor; /* in the file's tensors */
    size_t n_tensors;
} gguf_shard;

struct gguf_file {
    gguf_shard *shards;
    uint32_t n_shards;
    gguf_tensor *tensors;
    size_t n_tensors;
    uint32_t *tensors_by_name;
};

/* Parse the mapped bytes of shard number `index`, append its tensors to the
 * file's and check all of it.  What was allocated stays in shard and file. */
status gguf_parse_shard(gguf_file *file, uint32_t index, error *err);

/* Sort 0..n-1 by name; the new array is *out.  On a duplicate *twice is the
 * index of one of the two and the value STATUS_BAD_INPUT. */
status gguf_sort_names(uint32_t **out, const void *items, size_t n, size_t stride,
                       size_t *twice, error *err);
/* items must begin with their name (gguf_key and gguf_tensor do). */
const void *gguf_search_name(const uint32_t *order, const void *items, size_t n, size_t stride,
                             const char *name);

#endif
