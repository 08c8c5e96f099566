/* make_model_layout.h - which keys and tensors a random model has, and where.
 *
 * The layout is made from the parameters alone: the bytes of the file up to the
 * tensor data, and for each tensor its shape, type, place and the rule that
 * gives its values.  make_model.md is the contract.  One thread makes it, then
 * it is only read.
 */
#ifndef SILICEO_TESTS_BENCHMARK_MAKE_MODEL_LAYOUT_H
#define SILICEO_TESTS_BENCHMARK_MAKE_MODEL_LAYOUT_H

#include "tests/benchmark/make_model_params.h"
#include <stddef.h>

typedef enum made_rule {
    MADE_MATRIX,    /* x * s */
    MADE_ROUTER,    /* x * (s * g), g by row */
    MADE_NORM,      /* 1 + x / 4 */
    MADE_WIDE_NORM, /* 2 + x / 2 */
    MADE_DT,        /* 4 x - 2 */
    MADE_A          /* -4 < a <= -1/4 */
} made_rule;

typedef struct made_tensor {
    char name[64];
    uint32_t n_dims;
    uint64_t ne[3];
    quant_type type;
    made_rule rule;
    uint64_t num; /* the variance of the values is num / ne[0] */
    uint64_t n_values;
    uint64_t n_bytes;
    uint64_t offset; /* from the start of the tensor data */
} made_tensor;

typedef struct made_layout {
    uint8_t *head; /* header, keys, tensor infos, zeros up to the data */
    size_t head_bytes;
    size_t cap_head;
    made_tensor *tensors;
    size_t n_tensors;
    size_t cap_tensors;
    uint64_t data_bytes; /* a multiple of the alignment */
    bool failed;         /* memory ran out or a size overflowed */
} made_layout;

/* On failure out is empty. */
status made_layout_init(made_layout *out, const made_params *p, error *err);
void made_layout_release(made_layout *layout);

#endif
