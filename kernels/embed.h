/* embed.h - rows of the embedding table as float32.
 *
 * Shapes  table [n_vocab] rows of `type`, row_bytes apart; tokens [rows]; out [rows][dim].
 *         The caller has checked that every token is below n_vocab.
 * Oracle  dequantize_row() of kernels/matmul.h; all tiers give the same bits.
 */
#ifndef SILICEO_KERNELS_EMBED_H
#define SILICEO_KERNELS_EMBED_H

#include "kernels/args.h"

typedef struct embed_args {
    const void *table;
    const int32_t *tokens;
    float *out;
    uint64_t row_bytes;
    uint64_t out_stride; /* floats from row to row */
    uint32_t type;       /* quant_type */
    uint32_t dim;
} embed_args;
KERNEL_ARGS_SIZE(embed_args, 48);

#ifndef __CUDACC__
#include "kernels/cpu/tier.h"

/* Rows first .. end - 1. */
void embed_rows(cpu_tier tier, const embed_args *args, size_t first, size_t end);
#endif

#endif
