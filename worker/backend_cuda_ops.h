/* backend_cuda_ops.h - what the files of the ops share, private to them:
 * backend_cuda_rows.c (rows and norms), backend_cuda_projections.c, backend_cuda_router.c,
 * backend_cuda_mixers.c, backend_cuda_reads.c.
 *
 * Thread: the engine thread.
 */
#ifndef SILICEO_WORKER_BACKEND_CUDA_OPS_H
#define SILICEO_WORKER_BACKEND_CUDA_OPS_H

#include "kernels/cuda/matvec.h"
#include "worker/backend_cuda.h"

/* Row `row` of a buffer on the device, n_cols floats a row. */
float *cuda_buffer_row(const backend_cuda *b, backend_buffer buffer, size_t row, size_t n_cols);
/* An input gets rows of n_cols, in these forms. */
void cuda_begin_input(backend_cuda *b, backend_input in, uint32_t n_cols, input_forms forms);
/* Its rows, from a row on, and the same quantized (NULL: they are not). */
float *cuda_input_rows(const backend_cuda *b, backend_input in, size_t row);
void *cuda_input_acts(const backend_cuda *b, backend_input in, size_t row);
/* INPUT_HIDDEN of a span, by the norm that cuda_norm() has noted. */
void cuda_norm_span(backend_cuda *b, const cuda_span *s);

/* No matrix of the list is quantized. */
bool cuda_all_float(const cuda_product *list, size_t n);
matvec_segment cuda_segment_of(const cuda_product *p);

#endif
