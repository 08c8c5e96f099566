/* quant_type.h - the tensor types of GGUF that this project computes with.
 *
 * Numbers are ggml's type ids as they stand in the file.  Sizes are those of one
 * block; a row is ne0 / block_values blocks.  Constants only; any thread.
 * Source: spec of the GGUF container, table of quantized types.
 */
#ifndef SILICEO_COMMON_QUANT_TYPE_H
#define SILICEO_COMMON_QUANT_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum quant_type {
    QUANT_F32 = 0,
    QUANT_F16 = 1,
    QUANT_Q4_0 = 2,
    QUANT_Q4_1 = 3,
    QUANT_Q5_0 = 6,
    QUANT_Q5_1 = 7,
    QUANT_Q8_0 = 8,
    QUANT_Q2_K = 10,
    QUANT_Q3_K = 11,
    QUANT_Q4_K = 12,
    QUANT_Q5_K = 13,
    QUANT_Q6_K = 14,
    QUANT_IQ4_NL = 20,
    QUANT_IQ4_XS = 23,
    QUANT_BF16 = 30,
    QUANT_MXFP4 = 39,
    QUANT_LIMIT = 40 /* one past the largest id */
} quant_type;

typedef struct quant_traits {
    const char *name;      /* "Q4_K"; NULL when this build does not know the id */
    uint32_t block_values; /* weights a block */
    uint32_t block_bytes;
} quant_traits;

/* Traits of a type id from a file; name is NULL for an id this build cannot use. */
const quant_traits *quant_traits_of(uint32_t type_id);

/* Bytes of a row of n_cols weights; n_cols must be a multiple of block_values. */
static inline size_t quant_row_bytes(quant_type type, size_t n_cols) {
    const quant_traits *t = quant_traits_of((uint32_t)type);
    return n_cols / t->block_values * t->block_bytes;
}

/* "Q4_K" to its id; false for an unknown name. */
bool quant_type_by_name(const char *name, quant_type *out);

#endif
