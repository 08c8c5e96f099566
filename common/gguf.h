/* gguf.h - read-only view of a GGUF model, one file or all shards of a split one.
 *
 * The files are mapped once, MAP_PRIVATE, and nothing is copied: names, strings
 * and tensor data point into the mapping and live until gguf_close().  After
 * gguf_open() nothing changes, so any thread may read without a lock.  The
 * files must not shrink while they are open: reading a mapped page that the
 * file no longer has is a SIGBUS, which nothing here catches.
 *
 * Every count, length and offset is checked against the file before it is
 * believed (the list is in gguf.c); a file that lies is STATUS_BAD_INPUT with
 * the key or tensor, the field and the value in the text.
 */
#ifndef SILICEO_COMMON_GGUF_H
#define SILICEO_COMMON_GGUF_H

#include "common/error.h"
#include "common/quant_type.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gguf_file gguf_file;

/* Text of the file: not terminated, may hold any byte. */
typedef struct gguf_string {
    const char *bytes;
    size_t length;
} gguf_string;

/* A text of the file made fit for a message: cut, and '?' for what is not
 * printable ASCII. */
typedef struct gguf_label {
    char text[72];
} gguf_label;
gguf_label gguf_label_of(gguf_string name);

typedef enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
} gguf_kind;

/* One metadata key.  For an array, kind is GGUF_ARRAY and item_kind and
 * n_items tell the rest. */
typedef struct gguf_key {
    gguf_string name;
    gguf_kind kind;
    gguf_kind item_kind;
    uint64_t n_items;
    const void *payload; /* unaligned bytes in the mapping: use the accessors */
} gguf_key;

typedef struct gguf_tensor {
    gguf_string name;
    uint32_t type_id; /* ggml's id; quant_traits_of() knows whether we can use it */
    uint32_t n_dims;
    uint64_t ne[4];  /* ggml order: ne[0] is contiguous; missing ones are 1 */
    uint64_t offset; /* as written: relative to the data of its shard */
    uint64_t n_bytes;
    uint64_t file_offset; /* absolute, within its shard's file */
    uint32_t shard;
    const void *data; /* in the mapping */
} gguf_tensor;

/* Map path (for a split model: its first shard; the others are found by name)
 * and check it.  On failure *out is NULL. */
status gguf_open(gguf_file **out, const char *path, error *err);
void gguf_close(gguf_file *file); /* accepts NULL and a half-built file */

uint32_t gguf_version(const gguf_file *file);
uint32_t gguf_alignment(const gguf_file *file);
uint32_t gguf_n_shards(const gguf_file *file);
const char *gguf_shard_path(const gguf_file *file, uint32_t shard);
uint64_t gguf_file_bytes(const gguf_file *file, uint32_t shard);
/* The shard whose mapping holds `at` and its offset in that file; false: none does. */
bool gguf_locate(const gguf_file *file, const void *at, uint32_t *shard, uint64_t *offset);
/* Forget what was read through the mappings: their resident pages, and those pages of the page
 * cache that nobody else has mapped.  They are read again when touched. */
void gguf_give_back(const gguf_file *file);
/* The share of the files' pages that is in memory now, 0..1; negative: not known. */
double gguf_resident_share(const gguf_file *file);
/* First byte of tensor data of a shard, from the start of its file. */
uint64_t gguf_data_start(const gguf_file *file, uint32_t shard);

/* Keys of the first shard and tensors of all shards, in file order. */
size_t gguf_n_keys(const gguf_file *file);
const gguf_key *gguf_key_at(const gguf_file *file, size_t index);
size_t gguf_n_tensors(const gguf_file *file);
const gguf_tensor *gguf_tensor_at(const gguf_file *file, size_t index);

/* NULL when absent.  name is a C string. */
const gguf_key *gguf_find_key(const gguf_file *file, const char *name);
const gguf_tensor *gguf_find_tensor(const gguf_file *file, const char *name);

/* Values of a key of the right class: any integer width reads as an integer
 * (negative ones only through _i64).  False when the class is another or the
 * value does not fit. */
bool gguf_read_u64(const gguf_key *key, uint64_t *out);
bool gguf_read_i64(const gguf_key *key, int64_t *out);
bool gguf_read_f64(const gguf_key *key, double *out);
bool gguf_read_bool(const gguf_key *key, bool *out);
bool gguf_read_string(const gguf_key *key, gguf_string *out);

/* "u32", "string" and the like. */
const char *gguf_kind_name(gguf_kind kind);
/* Bytes of one value of a kind with a fixed size; 0 for strings and arrays. */
size_t gguf_kind_bytes(gguf_kind kind);
/* Name and block size of a tensor type, also of those that this build cannot
 * compute with; name is NULL only for an id that gguf_open() refuses. */
const quant_traits *gguf_type_traits(uint32_t type_id);

/* Items of an array key.  Fixed-size items are direct (a bool reads as the
 * integer 0 or 1); strings need a walk, so read them in order with a cursor that
 * starts as {0}. */
bool gguf_item_i64(const gguf_key *key, uint64_t index, int64_t *out);
bool gguf_item_f64(const gguf_key *key, uint64_t index, double *out);
typedef struct gguf_cursor {
    uint64_t index;
    size_t at;
} gguf_cursor;
bool gguf_next_string(const gguf_key *key, gguf_cursor *cursor, gguf_string *out);

/* Read the whole tensor and name the first block whose scale or minimum (or value,
 * of float types) is NaN or infinite.  gguf_open() does not do this. */
status gguf_check_values(const gguf_tensor *tensor, error *err);
/* The same of n_blocks of a tensor, wherever they lie: the first such block, or n_blocks. */
uint64_t gguf_find_bad_block(uint32_t type_id, const void *blocks, uint64_t n_blocks);

/* xxh3-128, 32 hex digits and a terminator: over header, metadata, tensor infos
 * and the first and last 64 KiB of each tensor, so that 20 GiB are not read. */
void gguf_hash(const gguf_file *file, char hex[33]);

#endif
