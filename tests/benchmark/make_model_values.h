/* make_model_values.h - the values of a random tensor, any part of it alone.
 *
 * No state beyond the prepared tensor, which is only read: any number of threads.
 */
#ifndef SILICEO_TESTS_BENCHMARK_MAKE_MODEL_VALUES_H
#define SILICEO_TESTS_BENCHMARK_MAKE_MODEL_VALUES_H

#include "tests/benchmark/make_model_layout.h"

/* What the blocks of a tensor need besides the tensor itself. */
typedef struct made_source {
    const made_tensor *tensor;
    uint64_t key;     /* of the words of this tensor */
    int64_t skew;     /* of router rows */
    float scale;      /* s: sqrt(3 v) */
    uint16_t d[8];    /* scales a block may have, as halves */
    uint16_t m[8];    /* minima, likewise, with their sign */
    int mxfp4_offset; /* added to the exponent */
} made_source;

void made_source_init(made_source *out, const made_tensor *t, uint64_t number, uint64_t seed,
                      int64_t skew);

/* The bytes of n_blocks blocks (a float value is a block of one) from first_block
 * on; first_block is a multiple of 8. */
void made_source_write(const made_source *s, uint64_t first_block, size_t n_blocks, void *out);

#endif
