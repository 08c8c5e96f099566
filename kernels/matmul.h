/* matmul.h - y = W x for every weight type: rows of W against rows of activations.
 *
 * Shapes  W [n_rows][n_cols] of `type`, row_bytes apart; activations [n_tokens][n_cols];
 *         out[token * out_stride + row] float32.
 * Formats ACT_F32 multiplies dequantized weights by float32 activations (every type);
 *         ACT_Q8_256 (types with blocks of 256) and ACT_Q8_32 (blocks of 32) are the
 *         integer path.  F32, F16 and BF16 weights always take ACT_F32.
 *         ACT_Q8_16_PAIRS, ACT_STEP_32 and ACT_STEP_16 (every quantized type, columns a multiple
 *         of 32) are the activations of the CUDA kernels (kernels/cuda/act.h) to the last bit:
 *         32 values share a scale, or 16 in ACT_STEP_16, as experts_up leaves them.
 * Order   Fixed by the contract, so that bits depend neither on the number of
 *         tokens nor on the tier nor on the chunking:
 *         Q8_256: the sum of scale * (weight . q) over a block of 256 is an exact
 *           int32; then acc = fmaf((float)isum, d_w * d_x, acc) block after block, and
 *           mins likewise into a second accumulator that is subtracted at the end.
 *         Q8_32: the same per block of 32.
 *         Q8_16_PAIRS: groups of 32 columns, or of 16 where the weights have scales of 16 (Q2_K,
 *           Q3_K, Q6_K): acc = fmaf((float)isum, (d_w * scale) * s, acc), s the activations'
 *           scale, then where the type has minima acc = fmaf(s * sum_of_q, -(dmin * min), acc),
 *           s * sum_of_q of 32 the float sum of the two halves'.  matmul_q8 of kernels/cuda has
 *           the same order, and so the same bits, for Q4_K, Q5_K, Q6_K and Q8_0.
 *         STEP_32, STEP_16: as experts_up and experts_down of kernels/cuda sum, to the bit.  32
 *           partial sums, the lanes of a warp.  Q4_K, Q5_K and Q6_K: wide unit w, 64 columns in
 *           the order of kernels/cuda/wide.cuh, goes to sum w % 32; of each of its four pieces of 16
 *           columns acc = fmaf((d_w * scale) * s, (float)isum, acc), then where the type has minima
 *           acc = fmaf(-(dmin * min), s * sum_of_q, acc); Q6_K's values stand 32 too high, and
 *           that is its minimum, 32 * (d_w * scale).  All other types: unit u, 32 columns, goes to
 *           sum u % 32, first both halves' products, then both halves' minima.  At last a tree: i
 *           with i + 16, + 8, + 4, + 2, + 1.
 *         F32: 16 partial sums, lane i takes columns i, i + 16, ... by fmaf, then a
 *           fixed tree (i with i + 8, + 4, + 2, + 1).
 * Oracle  kernels/cpu/matmul.c (plain C); fast tiers matmul_avx2.c, matmul_avx512.c.
 */
#ifndef SILICEO_KERNELS_MATMUL_H
#define SILICEO_KERNELS_MATMUL_H

#include "common/quant_type.h"
#include "kernels/cpu/tier.h"
#include <stddef.h>
#include <stdint.h>

typedef enum act_format {
    ACT_F32 = 0,
    ACT_Q8_256 = 1,
    ACT_Q8_32 = 2,
    ACT_Q8_16_PAIRS = 3,
    ACT_STEP_32 = 4,
    ACT_STEP_16 = 5,
    ACT_FORMATS /* how many */
} act_format;

/* Format of the integer path for weights of a type (ACT_F32 for float weights). */
act_format act_format_of(quant_type type);
/* Bytes of one activation row, a multiple of 64; n_cols must fit the format. */
size_t act_row_bytes(act_format format, size_t n_cols);
/* Quantize (or copy) one row.  x has n_cols floats; out is 64-byte aligned. */
void act_quantize_row(cpu_tier tier, act_format format, const float *x, size_t n_cols,
                      void *out);

typedef struct matmul_job {
    quant_type type;
    act_format format;
    const void *weights;
    size_t row_bytes;
    size_t n_rows;
    size_t n_cols;
    const void *acts; /* rows made by act_quantize_row, act_stride bytes apart */
    size_t act_stride;
    const int32_t *act_rows; /* which act row token t uses; NULL: t */
    size_t n_tokens;
    float *out;
    size_t out_stride;       /* floats */
    const int32_t *out_rows; /* which out row token t writes; NULL: t */
} matmul_job;

/* In how many chunks a job of this size is best cut for n_threads; >= 1. */
size_t matmul_n_chunks(cpu_tier tier, const matmul_job *job, uint32_t n_threads);
/* Bytes of scratch a worker needs for jobs up to n_cols columns. */
size_t matmul_scratch_bytes(size_t n_cols);
/* Do one chunk.  Chunks of a job write disjoint outputs.  scratch is the calling
 * worker's own, 64-byte aligned. */
void matmul_chunk(cpu_tier tier, const matmul_job *job, size_t chunk, size_t n_chunks,
                  void *scratch);

/* Dequantize n values (whole blocks) to float32; the spec's formulas, bit for bit. */
void dequantize_row(quant_type type, const void *blocks, size_t n, float *out);
/* The same, as fast as the tier can. */
void dequantize_row_fast(cpu_tier tier, quant_type type, const void *blocks, size_t n,
                         float *out);

#endif
