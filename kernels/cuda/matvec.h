/* matvec.h - matrices against 1 to 8 rows of activations: out = W x, or out += W x.
 *
 * Several matrices on one input are one launch: segments follow one another.
 *
 * Shapes  segment: W [n_rows][n_cols] of `type`, row_bytes apart; out[token * out_stride + row].
 * Inputs  act: quantized rows (act.h), for quantized types; x: float32 rows, for F32, F16 and
 *         BF16 weights.  Either may be NULL where no segment needs it.  act NULL with
 *         quantized types: dequantized weights against x (kernel matvec_f32).
 *         norm: the rows are x / sqrt(mean(x^2) + eps) * norm, made by every block for itself;
 *         quantized types alone, without act (they are quantized like act), n_cols at most
 *         MATVEC_MAX_NORM.
 * Order   A token's result depends neither on the other tokens nor on the grid: every
 *         kernel of the q8 family sums in the same order.
 * Choice  matvec_choose() gives kernel and shape; n_sms is the multiprocessor count and major
 *         the compute capability's.
 */
#ifndef SILICEO_KERNELS_CUDA_MATVEC_H
#define SILICEO_KERNELS_CUDA_MATVEC_H

#include "kernels/cuda/act.h"
#include "kernels/cuda/weights.h"

enum {
    MATVEC_MAX_SEGMENTS = 8,
    MATVEC_MAX_TOKENS = 8,
    MATVEC_BLOCK = 256,
    MATVEC_MAX_NORM = 4096
};

typedef struct matvec_segment {
    const void *weights;
    float *out;
    uint64_t row_bytes;
    uint64_t out_stride; /* floats from token to token */
    uint64_t split_d;    /* CUDA_Q6_K_SPLIT: bytes from weights to the plane of d */
    uint32_t type;
    uint32_t n_rows;
    uint32_t add;
    uint32_t reserved;
} matvec_segment;
KERNEL_ARGS_SIZE(matvec_segment, 56);

typedef struct matvec_args {
    const float *x;
    const void *act;
    const float *norm;   /* weights of the norm; NULL: none */
    uint64_t x_stride;   /* floats */
    uint64_t act_stride; /* bytes */
    uint32_t n_cols;
    uint32_t n_tokens;
    uint32_t n_segments;
    float eps; /* of the norm */
    matvec_segment segments[MATVEC_MAX_SEGMENTS];
} matvec_args;
KERNEL_ARGS_SIZE(matvec_args, 504);

static inline int matvec_is_float(uint32_t type) {
    return type == QUANT_F32 || type == QUANT_F16 || type == QUANT_BF16;
}

static inline int matvec_is_common(uint32_t type) {
    return matvec_is_float(type) || type == QUANT_Q4_K || type == QUANT_Q5_K ||
           type == QUANT_Q6_K || type == CUDA_Q6_K_SPLIT || type == QUANT_Q8_0;
}

/* Shared memory of a row of activations, whose last 512 columns may be part (halves.cuh). */
static inline uint64_t matvec_shared_bytes(uint32_t n_cols) {
    return cuda_act_row_bytes((n_cols + 511) / 512 * 512);
}

/* How many tokens a block takes at once: as many as fit in 48 KB. */
static inline uint32_t matvec_tokens(const matvec_args *a) {
    uint32_t t = MATVEC_MAX_TOKENS;
    const uint64_t row = a->act != NULL || a->norm != NULL ? matvec_shared_bytes(a->n_cols) : 0;
    while (t > 1 && (t / 2 >= a->n_tokens || t * row > 48 * 1024))
        t /= 2;
    return t;
}

/* Blocks of one token's kernel that fit a multiprocessor; Turing would have to spill for three. */
enum { MATVEC_FIT = 3, MATVEC_FIT_TURING = 2 };

static inline cuda_kernel matvec_choose(const matvec_args *a, uint32_t n_sms, uint32_t major,
                                        cuda_shape *out) {
    uint32_t rows = 0, tokens = matvec_tokens(a);
    int common = 1, quantized = 0;
    for (uint32_t i = 0; i < a->n_segments; i++) {
        rows += a->segments[i].n_rows;
        common = common && matvec_is_common(a->segments[i].type);
        quantized = quantized || !matvec_is_float(a->segments[i].type);
    }
    cuda_kernel kernel = tokens == 8   ? CUDA_KERNEL_matvec_8
                         : tokens == 4 ? CUDA_KERNEL_matvec_4
                         : tokens == 2 ? CUDA_KERNEL_matvec_2
                                       : CUDA_KERNEL_matvec_1;
    if (!common) kernel = CUDA_KERNEL_matvec_any;
    if (!quantized) {
        *out = cuda_shape_of(rows < 4 * n_sms ? rows : 4 * n_sms,
                             cuda_ceil_div(a->n_tokens, MATVEC_MAX_TOKENS), MATVEC_BLOCK);
        return CUDA_KERNEL_matvec_float;
    }
    if (quantized && a->act == NULL && a->norm == NULL) kernel = CUDA_KERNEL_matvec_f32;
    if (kernel == CUDA_KERNEL_matvec_any || kernel == CUDA_KERNEL_matvec_f32) tokens = 1;
    /* As many blocks as can be resident (the kernels' launch bounds): one more would wait for
     * a whole walk over the rows. */
    const uint32_t resident =
        tokens > 1 ? 2 : (uint32_t)(major < 8 ? MATVEC_FIT_TURING : MATVEC_FIT);
    const uint32_t blocks = cuda_ceil_div(rows, MATVEC_BLOCK / 32), most = resident * n_sms;
    *out = cuda_shape_of(blocks < most ? blocks : most, cuda_ceil_div(a->n_tokens, tokens),
                         MATVEC_BLOCK);
    if (quantized && kernel != CUDA_KERNEL_matvec_f32)
        out->shared_bytes = (uint32_t)(tokens * matvec_shared_bytes(a->n_cols));
    return kernel;
}

#endif
