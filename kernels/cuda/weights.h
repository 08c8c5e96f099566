/* weights.h - types of weights that only the CUDA kernels know.
 *
 * A type is a quant_type, read as it stands in the file, or CUDA_Q6_K_SPLIT: the same bytes
 * as Q6_K in another order, so that loads of 16 bytes are aligned.  Of a matrix of n blocks
 * first come n times 208 bytes (ql 128, qh 64, scales 16), then n halves d.  It is
 * 16-byte aligned.  row_bytes of a split matrix is
 * n_cols / 256 * 208, and `split_d` bytes lead from the first block to the plane of d.
 *
 * Alignment of raw matrices: Q4_K and Q5_K 16 bytes, every other type 2 (Q6_K, Q8_0) or 1
 * (MXFP4: 1) beyond the allocation's own; F32 16.
 */
#ifndef SILICEO_KERNELS_CUDA_WEIGHTS_H
#define SILICEO_KERNELS_CUDA_WEIGHTS_H

#include "common/quant_type.h"
#include "kernels/cuda/launch.h"

enum { CUDA_Q6_K_SPLIT = 64 };

#endif
