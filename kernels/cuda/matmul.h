/* matmul.h - one matrix against many rows of activations, or every expert's against its own.
 *
 * Shapes  W [n_rows][n_cols] of `type`; out[out_row * out_stride + row] = or += W x[in_row].
 * Plain   n_groups 0: weights is the matrix, tokens 0 .. n_tokens - 1 are all rows, in_rows and
 *         out_rows may be NULL.
 * Groups  n_groups > 0: group g has the places group_first[g] .. group_first[g + 1] - 1 of the
 *         lists in_rows and out_rows, and its matrix lies at records[g] + offset; a record 0
 *         leaves the group's outputs as they are.  tiles are made by experts_sort, for tiles of
 *         MATMUL_TILE_TOKENS; n_tokens is the length of the lists.
 * More    plain: up to MATMUL_MORE further matrices of the same n_cols on the same input, each
 *         with an output of its own; all quantized, or none.
 * Gated   matmul_q8 with gated_act: the matrix is a gate, up_offset bytes behind it lies up, of the
 *         same shape and type, n_rows a multiple of 32; quantized rows silu(gate x) * (up x) are
 *         stored instead of out, of place i at gated_act + i * gated_stride.
 * Inputs  matmul_q8: act (quantized types only).  matmul_f32: x (every type).
 * Order   A row's result depends on its own activations alone.
 */
#ifndef SILICEO_KERNELS_CUDA_MATMUL_H
#define SILICEO_KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/act.h"
#include "kernels/cuda/weights.h"

enum {
    MATMUL_TILE_ROWS = 128,
    MATMUL_TILE_TOKENS = 64,
    MATMUL_FLOAT_TILE = 32, /* rows, and tokens, of a block of matmul_f32 */
    MATMUL_BLOCK = 256,
    MATMUL_FLOAT_BLOCK = 128,
    MATMUL_MORE = 3
};

/* A tile of the grouped form: places first .. end - 1 of the lists, all of one group. */
typedef struct matmul_tile {
    uint32_t group;
    uint32_t first;
    uint32_t end;
    uint32_t reserved;
} matmul_tile;
KERNEL_ARGS_SIZE(matmul_tile, 16);

typedef struct matmul_matrix {
    const void *weights;
    float *out;
    uint64_t row_bytes;
    uint64_t split_d;
    uint64_t out_stride;
    uint32_t type;
    uint32_t n_rows;
    uint32_t add;
    uint32_t reserved;
} matmul_matrix;
KERNEL_ARGS_SIZE(matmul_matrix, 56);

typedef struct matmul_args {
    const void *weights;
    const float *x;
    const void *act;
    float *out;
    const uint64_t *records; /* [n_groups], device addresses */
    const matmul_tile *tiles;
    const uint32_t *n_tiles; /* device memory */
    const uint32_t *in_rows;
    const uint32_t *out_rows;
    uint64_t offset; /* of the matrix in a record */
    uint64_t row_bytes;
    uint64_t split_d;    /* CUDA_Q6_K_SPLIT: bytes from the matrix to its plane of d */
    uint64_t x_stride;   /* floats */
    uint64_t act_stride; /* bytes */
    uint64_t out_stride; /* floats */
    uint32_t type;
    uint32_t n_rows;
    uint32_t n_cols;
    uint32_t n_tokens;
    uint32_t n_groups;
    uint32_t add;
    void *gated_act; /* NULL: out */
    uint64_t gated_stride;
    uint64_t up_offset;
    uint32_t n_more;
    uint32_t reserved;
    matmul_matrix more[MATMUL_MORE];
} matmul_args;
KERNEL_ARGS_SIZE(matmul_args, 344);

/* The most tiles that n places in n_groups groups can need. */
static inline uint32_t matmul_max_tiles(uint32_t n_places, uint32_t n_groups) {
    const uint32_t by_places = n_places / MATMUL_TILE_TOKENS + n_groups;
    return by_places < n_places ? by_places : n_places;
}

static inline cuda_kernel matmul_choose(const matmul_args *a, cuda_shape *out) {
    const int is_float = a->type == QUANT_F32 || a->type == QUANT_F16 || a->type == QUANT_BF16;
    const int exact = is_float || a->act == NULL;
    const uint32_t each = exact                  ? (uint32_t)MATMUL_FLOAT_TILE
                          : a->gated_act != NULL ? MATMUL_TILE_ROWS / 2
                                                 : MATMUL_TILE_ROWS;
    const uint32_t tiles = a->n_groups > 0 ? matmul_max_tiles(a->n_tokens, a->n_groups)
                                           : cuda_ceil_div(a->n_tokens, MATMUL_TILE_TOKENS);
    uint32_t n = cuda_ceil_div(a->n_rows, each);
    for (uint32_t i = 0; i < a->n_more; i++)
        n += cuda_ceil_div(a->more[i].n_rows, each);
    *out = cuda_shape_of(n, tiles, exact ? MATMUL_FLOAT_BLOCK : MATMUL_BLOCK);
    if (exact) out->grid_z = MATMUL_TILE_TOKENS / MATMUL_FLOAT_TILE;
    return exact ? CUDA_KERNEL_matmul_f32 : CUDA_KERNEL_matmul_q8;
}

#endif
