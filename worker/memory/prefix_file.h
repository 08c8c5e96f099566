/* prefix_file.h - how a page or a snapshot of a prompt's beginning lies on disk.
 *
 * A file is a header of PREFIX_FILE_HEADER bytes and the bytes of one part of one block.  The
 * header has the block's tokens, its key, that above it and the identity (see prefix_index.h),
 * and hashes of itself and of what follows.  A file that is not exactly what its reader wants is
 * refused; so is one of a machine with another order of bytes, whose magic reads otherwise.
 * Pure functions; any thread.
 */
#ifndef SILICEO_WORKER_MEMORY_PREFIX_FILE_H
#define SILICEO_WORKER_MEMORY_PREFIX_FILE_H

#include "common/error.h"
#include "worker/memory/prefix_index.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PREFIX_FILE_HEADER = 512, PREFIX_FILE_NAME = 48 };

typedef enum prefix_part { PREFIX_PAGE = 1, PREFIX_STATE = 2 } prefix_part;

typedef struct prefix_file {
    prefix_part part;
    bool background; /* whose it was */
    prefix_key identity, key, parent;
    uint32_t depth;
    int32_t tokens[PREFIX_BLOCK_TOKENS];
    uint64_t n_bytes; /* behind the header */
    uint64_t bytes_hash;
} prefix_file;

prefix_key prefix_file_identity(const char *text);
uint64_t prefix_file_hash(const void *bytes, size_t n);

void prefix_file_write(const prefix_file *file, unsigned char out[PREFIX_FILE_HEADER]);
/* n: of bytes that there are.  STATUS_BAD_INPUT says what is wrong. */
status prefix_file_read(prefix_file *out, const unsigned char *bytes, size_t n, error *err);

/* "KEY.page" and "KEY.state", 32 hex digits each. */
void prefix_file_name(prefix_key key, prefix_part part, char out[PREFIX_FILE_NAME]);
bool prefix_file_parse_name(const char *name, prefix_key *key, prefix_part *part);

#endif
