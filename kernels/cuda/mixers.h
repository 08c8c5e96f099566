/* mixers.h - what mixes tokens: convolution, delta net, attention over KV pages.
 *
 * conv1d             kernels/conv1d.h; batch and state in device memory, in place as there.
 * delta_net_step     kernels/conv1d.h and then kernels/delta_net.h, token by token, for short runs
 *                    and those verified row by row (args.h);
 *                    base.qkv are rows before the convolution; out float32 and/or quantized.
 * delta_net_scores, delta_net_chunks, delta_net_norm
 *                    the same in chunks of DELTA_NET_CHUNK, for runs of many tokens; all three
 *                    with the same arguments, in this order.
 * State layout       that of kernels/delta_net.h and kernels/conv1d.h: a state is moved between
 *                    host and device by plain copies.
 * attention_prepare  kernels/attention_prepare.h; rope rows are the host's (kernels/rope.h), or
 *                    NULL: formed from inv_freq on the device.
 * attention_step_*, attention_combine
 *                    kernels/attention_prepare.h and kernels/attention.h for runs of one row: each
 *                    split of a row's positions by a block, then combined.  The workspace
 *                    holds the partial results.  Runs verified row by row need attention_keep
 *                    first, with the arguments of attention_step_*.
 * attention_tile     the same op for many rows of one run, without workspace, pages of float32.
 * attention_half     attention_tile for pages of the other types; products are of half floats.
 * Pages              kv_layout.h's layout, in device memory.
 * Limits             state dim a multiple of 32 up to 128; head_dim a multiple of 32 up to 256; at
 *                    most 32 query heads a KV head.
 */
#ifndef SILICEO_KERNELS_CUDA_MIXERS_H
#define SILICEO_KERNELS_CUDA_MIXERS_H

#include "kernels/attention.h"
#include "kernels/attention_prepare.h"
#include "kernels/conv1d.h"
#include "kernels/cuda/act.h"
#include "kernels/delta_net.h"

/* Rows that a block of the convolution takes when y is another buffer than x; in place, where
 * the next rows need what lies there, a block takes a whole run. */
enum { CONV1D_PIECE = 32 };

static inline cuda_shape conv1d_shape(const conv1d_args *a) {
    cuda_shape s = cuda_shape_of(cuda_ceil_div(a->n_channels, 128), a->batch.n_runs, 128);
    if (a->y != a->x) s.grid_z = cuda_ceil_div(a->batch.n_rows, CONV1D_PIECE);
    return s;
}

typedef struct delta_net_cuda_args {
    delta_net_args base; /* base.out may be NULL only where act is given and raw is */
    void *act;           /* NULL: float32 alone */
    uint64_t act_stride; /* bytes */
    float *workspace;    /* of the chunked form: delta_net_workspace_bytes() */
    float *raw;          /* [n_rows][n_value_heads][dim]: o before the norm; chunked form */
} delta_net_cuda_args;
KERNEL_ARGS_SIZE(delta_net_cuda_args, 208);

enum { DELTA_NET_SLICE = 32 };

/* Pieces that n_rows rows in n_runs runs are cut into, at most. */
static inline uint32_t delta_net_max_cuts(uint32_t n_rows, uint32_t n_runs) {
    return n_rows / DELTA_NET_CHUNK + 2 * n_runs;
}

/* A piece of a head: two matrices of 32 x 32 and five vectors of 32 floats. */
enum { DELTA_NET_CUT_FLOATS = 2 * 32 * 32 + 5 * 32 };

static inline uint64_t delta_net_workspace_bytes(uint32_t max_rows, uint32_t max_runs,
                                                 uint32_t n_value_heads) {
    return (uint64_t)delta_net_max_cuts(max_rows, max_runs) * n_value_heads *
           DELTA_NET_CUT_FLOATS * 4;
}

typedef struct delta_step_args {
    delta_net_args base; /* base.out may be NULL only where act is given */
    const float *taps;   /* [n_taps][channels] */
    float *conv_state;   /* of state 0; base.state_stride leads to the next */
    uint32_t *turns;     /* [n_runs][n_key_heads], zeros before and after */
    void *act;           /* NULL: float32 alone */
    uint64_t act_stride; /* bytes */
    uint32_t n_taps;
    uint32_t reserved;
} delta_step_args;
KERNEL_ARGS_SIZE(delta_step_args, 224);

enum { DELTA_STEP_BLOCK = 512 };

static inline cuda_shape delta_step_shape(const delta_step_args *a) {
    return cuda_shape_of(a->base.n_value_heads, a->base.batch.n_runs, DELTA_STEP_BLOCK);
}

static inline cuda_shape delta_net_scores_shape(const delta_net_cuda_args *a) {
    return cuda_shape_of(delta_net_max_cuts(a->base.batch.n_rows, a->base.batch.n_runs),
                         a->base.n_value_heads, 256);
}

/* State slice, q and k, d, two matrices and three vectors, whatever the dim. */
enum { DELTA_NET_CHUNK_SHARED = 62848 };

static inline cuda_shape delta_net_chunks_shape(const delta_net_cuda_args *a) {
    cuda_shape s = cuda_shape_of(a->base.n_value_heads * (a->base.dim / DELTA_NET_SLICE),
                                 a->base.batch.n_runs, 256);
    s.shared_bytes = DELTA_NET_CHUNK_SHARED;
    return s;
}

static inline cuda_shape delta_net_norm_shape(const delta_net_cuda_args *a) {
    return cuda_shape_of(a->base.n_value_heads, a->base.batch.n_rows, 32);
}

typedef struct prepare_args {
    attention_prepare_args base; /* base.rope may be NULL */
    const float *inv_freq;       /* [n_rot / 2], used when base.rope is NULL */
} prepare_args;
KERNEL_ARGS_SIZE(prepare_args, 168);

/* A warp a head: queries, then keys, then values. */
static inline cuda_shape attention_prepare_shape(const prepare_args *a) {
    return cuda_shape_of(a->base.n_heads + 2 * a->base.kv.n_kv_heads, a->base.batch.n_rows, 32);
}

typedef struct attention_cuda_args {
    attention_args base; /* base.out may be NULL where act is given */
    void *act;
    uint64_t act_stride;
    float *workspace;  /* of attention_combine */
    uint32_t n_splits; /* blocks for a row's positions, at least 1; attention_combine */
    uint32_t reserved;
} attention_cuda_args;
KERNEL_ARGS_SIZE(attention_cuda_args, 144);

/* A split has ATTENTION_SPLIT positions, or more where n_splits would not be enough. */
enum { ATTENTION_SPLIT = 32, ATTENTION_MAX_SPLITS = 256, ATTENTION_BLOCK = 256 };

/* Splits that any card may want: what the workspace is made for. */
static inline uint32_t attention_splits(uint32_t max_positions) {
    const uint32_t n = cuda_ceil_div(max_positions, ATTENTION_SPLIT);
    return n < 1 ? 1 : n > ATTENTION_MAX_SPLITS ? (uint32_t)ATTENTION_MAX_SPLITS : n;
}

static inline uint64_t attention_workspace_bytes(uint32_t n_rows, uint32_t n_heads,
                                                 uint32_t head_dim, uint32_t n_splits) {
    return (uint64_t)n_rows * n_heads * n_splits * (head_dim + 4) * 4;
}

typedef struct attention_step_args {
    prepare_args prepare;
    float *workspace;  /* attention_workspace_bytes() */
    uint32_t n_splits; /* as attention_combine has it */
    float scale;       /* 1 / sqrt(head_dim) */
} attention_step_args;
KERNEL_ARGS_SIZE(attention_step_args, 184);

/* Query heads that a block of attention_step takes. */
enum {
    ATTENTION_GROUP = 8,
    ATTENTION_STEP_BLOCK = 128,
    ATTENTION_KEEP_BLOCK = 64,
    ATTENTION_COMBINE_BLOCK = 512
};

static inline uint32_t attention_step_groups(const prepare_args *a) {
    const uint32_t group = a->base.n_heads / a->base.kv.n_kv_heads;
    return a->base.kv.n_kv_heads * cuda_ceil_div(group, ATTENTION_GROUP);
}

/* Two blocks a multiprocessor at most for one row's splits. */
static inline uint32_t attention_step_splits(const prepare_args *a, uint32_t max_positions,
                                             uint32_t n_sms) {
    const uint32_t most = attention_splits(max_positions);
    const uint32_t n = 2 * n_sms / attention_step_groups(a);
    return n < 1 ? 1 : n < most ? n : most;
}

static inline cuda_kernel attention_step_choose(const attention_step_args *a, cuda_shape *s) {
    *s = cuda_shape_of(a->n_splits, attention_step_groups(&a->prepare), ATTENTION_STEP_BLOCK);
    s->grid_z = a->prepare.base.batch.n_rows;
    return a->prepare.base.kv.type == KV_F16  ? CUDA_KERNEL_attention_step_f16
           : a->prepare.base.kv.type == KV_Q8 ? CUDA_KERNEL_attention_step_q8
           : a->prepare.base.kv.type == KV_Q4 ? CUDA_KERNEL_attention_step_q4
                                              : CUDA_KERNEL_attention_step_f32;
}

static inline cuda_shape attention_keep_shape(const attention_step_args *a) {
    return cuda_shape_of(a->prepare.base.kv.n_kv_heads, a->prepare.base.batch.n_rows,
                         ATTENTION_KEEP_BLOCK);
}

static inline cuda_shape attention_combine_shape(const attention_cuda_args *a) {
    return cuda_shape_of(a->base.n_heads * (a->base.kv.head_dim / 32), a->base.batch.n_rows,
                         ATTENTION_COMBINE_BLOCK);
}

/* 32 queries in shared memory, their weights for 32 positions, three vectors, 128 dimensions of 32 keys. */
enum { ATTENTION_TILE_QUERIES = 32, ATTENTION_TILE_SHARED = 54144 };

/* Grid x covers the tiles of all runs: some queries each, rows times the heads of a KV head. */
static inline cuda_shape attention_prompt_shape(const attention_cuda_args *a, uint32_t queries,
                                                uint32_t shared_bytes) {
    const uint32_t group = a->base.n_heads / a->base.kv.n_kv_heads;
    cuda_shape s = cuda_shape_of(cuda_ceil_div(a->base.batch.n_rows, queries / group) +
                                     a->base.batch.n_runs - 1,
                                 a->base.kv.n_kv_heads, ATTENTION_BLOCK);
    s.shared_bytes = shared_bytes;
    return s;
}

static inline cuda_shape attention_tile_shape(const attention_cuda_args *a) {
    return attention_prompt_shape(a, ATTENTION_TILE_QUERIES, ATTENTION_TILE_SHARED);
}

/* 64 queries; 32 keys and values as halves and what two warps tell each other of their scores. */
enum { ATTENTION_HALF_QUERIES = 64, ATTENTION_HALF_SHARED = 50688 };

static inline cuda_shape attention_half_shape(const attention_cuda_args *a) {
    return attention_prompt_shape(a, ATTENTION_HALF_QUERIES, ATTENTION_HALF_SHARED);
}

#endif
