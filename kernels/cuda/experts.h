/* experts.h - routed experts and the shared one.
 *
 * Decode, two launches:
 *   experts_up    h = silu(gate x) * (up x) of each pair (row, rank), and of the shared expert
 *                 as pair n_rows * n_used + row; float32 (h) or quantized (h_act), where
 *                 every 16 values have a scale of their own.
 *   experts_up_coming  the same, and meanwhile the records that are marked EXPERT_COMING are read
 *                 from host memory into their places, and what the host's CPU lane computes of
 *                 pairs that are marked EXPERT_ON_LANE becomes foreign (lane.h).
 *   experts_down  out = x + sum of weight * (down h) in rank order + sigmoid(gate) * shared
 *                 Launched with programmatic serialization, experts_up must be the launch before
 *                 it: it reads places, records, experts and weights before it waits.
 * Prefill:
 *   experts_sort  pairs by expert: the lists and tiles of matmul.h's grouped form
 *   matmul_q8 twice, swiglu, matmul_q8 with out_rows = pair numbers, then moe_combine.
 *
 * Places  records[e] is the device address of expert e's record of this layer, holding gate,
 *         up and down at the offsets; 0: it is not here.  experts_up then skips the pair, and
 *         experts_down (and moe_combine) take foreign[pair][dim], computed elsewhere.
 *         The table is read when the kernel runs, so a captured graph follows the cache.
 *         places[pair], where it is given, has the same by pair instead, from the router's launch.
 * Order   moe_combine.h; results are the same bits wherever an expert lies, and those of the CPU
 *         lane: kernels/matmul.h, ACT_STEP_32 for gate and up, ACT_STEP_16 for down.  But where
 *         gate and up are of unlike types, wide ones are summed by units.
 */
#ifndef SILICEO_KERNELS_CUDA_EXPERTS_H
#define SILICEO_KERNELS_CUDA_EXPERTS_H

#include "kernels/cuda/act.h"
#include "kernels/cuda/lane.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/weights.h"
#include "kernels/moe_combine.h"
#include "kernels/router.h"

/* Rows of gate and up that a block makes; rows of the output that a block owns, and its threads
 * at most. */
enum {
    EXPERTS_UP_ROWS = 16,
    EXPERTS_UP_BLOCK = 256,
    EXPERTS_UP_COLS = 2048,
    EXPERTS_DOWN_ROWS = 8,
    EXPERTS_DOWN_BLOCK = 288
};

/* One matrix of an expert: in a record, or (of the shared expert) at an address. */
typedef struct expert_matrix {
    const void *shared; /* the shared expert's; NULL: there is none */
    uint64_t offset;    /* in a record */
    uint64_t row_bytes;
    uint64_t shared_row_bytes;
    uint64_t split_d; /* CUDA_Q6_K_SPLIT: bytes from the matrix to its plane of d */
    uint64_t shared_split_d;
    uint32_t type;
    uint32_t shared_type;
} expert_matrix;
KERNEL_ARGS_SIZE(expert_matrix, 56);

/* In an address of places: the record lies there when experts_up_coming is done. */
#define EXPERT_COMING 1ull
/* A turn's place: the host computes the pair, and its place in places is 0. */
#define EXPERT_ON_LANE 2ull

/* One pair's part in experts_up_coming, in the order in which they are begun. */
typedef struct expert_turn {
    uint64_t
        place; /* 0: nothing to do; a missing expert's pairs are all done in its first's turn */
    uint32_t pair;
    uint32_t expert;
} expert_turn;
KERNEL_ARGS_SIZE(expert_turn, 16);

/* The most pairs of experts_up_coming; so many missing records are begun before what is there:
 * enough to fill the bus. */
enum { EXPERTS_COMING_PAIRS = 128, EXPERTS_COMING_FIRST = 4 };

typedef struct experts_up_args {
    const uint64_t *records; /* [n_experts] */
    const uint64_t *places;  /* [pairs], or NULL */
    const int32_t *experts;  /* [n_rows][n_used] */
    const float *x;          /* for float weights, or exactness (act NULL) */
    const void *act;
    float *h;            /* [pairs + n_rows][h_stride]; may be NULL when h_act is given */
    void *h_act;         /* NULL: float32 alone */
    uint64_t x_stride;   /* floats */
    uint64_t act_stride; /* bytes */
    uint64_t h_stride;   /* floats */
    uint64_t h_act_stride;
    expert_matrix gate;
    expert_matrix up;
    uint32_t n_rows;
    uint32_t n_used;
    uint32_t n_cols;      /* n_embd */
    uint32_t n_ff;        /* of a routed expert, a multiple of 32 where h_act is given */
    uint32_t n_ff_shared; /* 0: no shared expert */
    uint32_t layer;       /* of experts_up_coming */
    /* Of experts_up_coming alone, and then not NULL: */
    const expert_turn *turns;    /* [pairs] */
    const unsigned char *source; /* [n_experts] records of the layer, host memory */
    uint64_t slot_bytes;         /* from record to record there */
    uint64_t down_offset;        /* in a record, of what follows gate and up */
    uint64_t down_bytes;
    /* Of turns that are EXPERT_ON_LANE, else NULL: */
    lane_box *box;
    const float *outputs;    /* [pairs][n_cols], host memory */
    float *foreign;          /* the same on the device */
    struct fetch_step *step; /* experts_fetch.h */
    uint64_t limit_ns;       /* of waiting for the host, in a step */
} experts_up_args;
KERNEL_ARGS_SIZE(experts_up_args, 304);

/* The common case: Q4_K throughout, rows of at most EXPERTS_UP_COLS. */
static inline int experts_up_is_common(const experts_up_args *a) {
    const int routed = a->gate.type == QUANT_Q4_K && a->up.type == QUANT_Q4_K;
    const int shared = a->n_ff_shared == 0 ||
                       (a->gate.shared_type == QUANT_Q4_K && a->up.shared_type == QUANT_Q4_K);
    return a->act != NULL && routed && shared && a->n_cols <= EXPERTS_UP_COLS;
}

/* turns are given in the common case alone. */
static inline cuda_kernel experts_up_choose(const experts_up_args *a, cuda_shape *s) {
    const uint32_t most = a->n_ff > a->n_ff_shared ? a->n_ff : a->n_ff_shared;
    const uint32_t pairs = a->n_rows * (a->n_used + (a->n_ff_shared > 0 ? 1u : 0u));
    *s = cuda_shape_of(cuda_ceil_div(most, EXPERTS_UP_ROWS), pairs, EXPERTS_UP_BLOCK);
    s->shared_bytes = a->act != NULL ? (uint32_t)cuda_act_row_bytes(a->n_cols) : 0;
    if (a->turns != NULL) return CUDA_KERNEL_experts_up_coming;
    return experts_up_is_common(a) ? CUDA_KERNEL_experts_up : CUDA_KERNEL_experts_up_any;
}

typedef struct experts_down_args {
    const uint64_t *records;
    const uint64_t *places; /* [pairs], or NULL */
    const int32_t *experts;
    const float *weights;     /* [n_rows][n_used] */
    const float *shared_gate; /* [n_rows] raw logits */
    const float *h;           /* as experts_up left it */
    const void *h_act;        /* NULL: float32 path */
    const float *foreign;     /* [pairs][n_embd]; read only for records 0 */
    float *x;                 /* residual, [n_rows][x_stride] */
    uint64_t h_stride;
    uint64_t h_act_stride;
    uint64_t x_stride;
    expert_matrix down;
    uint32_t n_rows;
    uint32_t n_used;
    uint32_t n_embd;
    uint32_t n_ff;
    uint32_t n_ff_shared;
    uint32_t reserved;
} experts_down_args;
KERNEL_ARGS_SIZE(experts_down_args, 176);

/* Types that experts_down has. */
static inline int experts_wide(uint32_t type) {
    return type == QUANT_Q4_K || type == QUANT_Q5_K || type == (uint32_t)CUDA_Q6_K_SPLIT;
}

/* A warp an expert; more experts than fit take turns, evenly. */
static inline cuda_kernel experts_down_choose(const experts_down_args *a, cuda_shape *s) {
    const uint32_t terms = a->n_used + (a->n_ff_shared > 0 ? 1u : 0u);
    const uint32_t turns = cuda_ceil_div(32 * terms, EXPERTS_DOWN_BLOCK);
    const int shared = a->n_ff_shared == 0 || experts_wide(a->down.shared_type);
    *s = cuda_shape_of(cuda_ceil_div(a->n_embd, EXPERTS_DOWN_ROWS), a->n_rows,
                       32 * cuda_ceil_div(terms, turns));
    return a->h_act != NULL && experts_wide(a->down.type) && shared
               ? CUDA_KERNEL_experts_down
               : CUDA_KERNEL_experts_down_any;
}

typedef struct experts_sort_args {
    const int32_t *experts; /* [n_pairs], pair = row * n_used + rank */
    uint32_t *pair_row;     /* [n_pairs] row of list place i */
    uint32_t *pair_out;     /* [n_pairs] pair of list place i */
    uint32_t *group_first;  /* [n_experts + 1] */
    matmul_tile *tiles;     /* [matmul_max_tiles(n_pairs, n_experts)] */
    uint32_t *n_tiles;
    uint32_t n_pairs;
    uint32_t n_used;
    uint32_t n_experts; /* at most 1024 */
    uint32_t reserved;
} experts_sort_args;
KERNEL_ARGS_SIZE(experts_sort_args, 64);

static inline cuda_shape experts_sort_shape(void) {
    return cuda_shape_of(1, 1, 1024);
}

/* moe_combine.h with places: for an expert whose record is 0 the foreign output is taken. */
typedef struct combine_args {
    moe_combine_args base;
    const uint64_t *records; /* NULL: every output is in base.y */
    const int32_t *experts;
    const float *foreign; /* [pairs][dim] */
    uint64_t n_rows;
} combine_args;
KERNEL_ARGS_SIZE(combine_args, 128);

static inline cuda_shape moe_combine_shape(const combine_args *a) {
    return cuda_shape_of((uint32_t)a->n_rows, cuda_ceil_div(a->base.dim, 256), 256);
}

#endif
