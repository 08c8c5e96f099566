/* embed.c - kernels/embed.h, by way of the dequantizers of kernels/matmul.h. */
#include "kernels/embed.h"
#include "kernels/matmul.h"

void embed_rows(cpu_tier tier, const embed_args *args, size_t first, size_t end) {
    const unsigned char *table = args->table;
    for (size_t row = first; row < end; row++)
        dequantize_row_fast(tier, (quant_type)args->type,
                            table + (size_t)args->tokens[row] * args->row_bytes, args->dim,
                            args->out + row * args->out_stride);
}
