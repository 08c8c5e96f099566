/* experts_fetch.h - experts of decoding rows that have no slot are brought from host memory by
 * the GPU itself, so that a token is one graph and nothing waits for the host.
 *
 * The plan       Every chosen expert is looked up.  A missing one is to be read from its record in
 *                pinned host memory, over the bus, into the next slot of `victims` that this step
 *                has not used (when none is left, that this layer does not use), and the slot's
 *                former expert is no longer found.  At most most_inserts of a layer take slots;
 *                the others are read into the staging records, for this layer alone, and what
 *                has no place there takes slots all the same.  places[pair] becomes the address
 *                of every pair's record.
 * router_fetch   The router of all rows (router.h) and the plan in one launch.  Nothing is read
 *                yet: missing records are marked EXPERT_COMING, and experts_up_coming brings
 *                them while it computes what is there (experts.h).
 * The CPU lane   Of router_fetch's missing experts the host computes some (lane.h): of n so many as
 *                step.on_lane says, another first one every time.  They are not read, and the
 *                first takes a slot all the same, in fills of 16 layers, if a victim is left that
 *                this step has not used.  The host brings its record there while the step goes
 *                on, which uses the slot no more.
 * experts_fetch  The plan and the reading, between the router and an experts_up that cannot.
 * Host           chooses the victims before a step and reads in `told` afterwards what became
 *                of every pair; both follow the same order, so that its own table stays equal.
 * Limits         FETCH_MAX_PAIRS pairs, for router_fetch FETCH_MAX_ROWS rows.  More than n_staging
 *                need so many victims that those of them that this layer uses may stay
 *                (experts_fetch_fits).  slot_bytes is a multiple of 16.
 */
#ifndef SILICEO_KERNELS_CUDA_EXPERTS_FETCH_H
#define SILICEO_KERNELS_CUDA_EXPERTS_FETCH_H

#include "kernels/cuda/experts.h"
#include "kernels/cuda/router.h"
#include <stdbool.h>

enum {
    FETCH_MAX_PAIRS = EXPERTS_COMING_PAIRS,
    FETCH_MAX_ROWS = 8, /* a warp each */
    FETCH_MAX_VICTIMS = 256,
    FETCH_FILLS_OF = 16,
    FETCH_BLOCK = 512,
    FETCH_BLOCKS = 64,
};

/* What became of a pair: a slot that now holds its expert, or one of these. */
enum { FETCH_HIT = -1, FETCH_STAGED = -2, FETCH_REPEATED = -3, FETCH_ON_LANE = -4 };
#define FETCH_NOBODY UINT32_MAX

/* On the lane, and its record comes to a slot meanwhile: the note, and the slot again. */
#define FETCH_FILLS(slot) (FETCH_ON_LANE - 1 - (int32_t)(slot))
/* With a step's number in slot_step: the host brings a record there. */
#define FETCH_FILLING 0x80000000u

/* Of the running step; the host writes all of it before the step. */
typedef struct fetch_step {
    uint32_t number; /* never that of the step before; below FETCH_FILLING */
    uint32_t n_victims;
    uint32_t next;                       /* victim */
    uint32_t done;                       /* blocks of the running launch; 0 between launches */
    uint32_t victims[FETCH_MAX_VICTIMS]; /* slots, the first to go first */
    uint8_t on_lane[FETCH_MAX_PAIRS];    /* of n missing experts the lane's, at n - 1 */
    uint32_t fills;                      /* of FETCH_FILLS_OF layers */
    uint32_t late;                       /* 1: the host was waited for in vain; 0 before */
} fetch_step;
KERNEL_ARGS_SIZE(fetch_step, 24 + 4 * FETCH_MAX_VICTIMS + FETCH_MAX_PAIRS);

typedef struct fetch_note {
    int32_t expert;
    int32_t slot;
} fetch_note;

typedef struct experts_fetch_args {
    const int32_t *experts; /* [n_pairs]; of experts_fetch alone */
    uint64_t *places;       /* [n_pairs] */
    expert_turn *turns;     /* [n_pairs], of router_fetch alone; NULL: read at once */
    int32_t *slot_of;       /* [n_layers][n_experts], negative: in none */
    uint32_t *slot_owner;   /* [n_slots] layer * n_experts + expert, or FETCH_NOBODY */
    uint32_t *slot_step;    /* [n_slots] number of the step that used it last */
    fetch_step *step;
    fetch_note *notes; /* [n_layers][n_pairs], device memory */
    fetch_note
        *told; /* the same in host memory, written when it is not NULL: by the last layer */
    const unsigned char *source; /* [n_experts] records of the layer, host memory */
    unsigned char *slots;
    unsigned char *staging; /* [n_staging] records */
    uint64_t slot_bytes;
    uint64_t record_bytes; /* what a record of this layer has */
    uint32_t layer;
    uint32_t n_experts;
    uint32_t n_pairs;
    uint32_t most_inserts;
    uint32_t n_staging;
    uint32_t n_hidden; /* floats of all rows */
    /* Of router_fetch alone, with turns; a box of NULL: no lane. */
    lane_box *box;
    const float *hidden;    /* rows of the layer's input */
    float *lane_rows;       /* the same in host memory */
    fetch_note *lane_notes; /* [n_pairs], the layer's notes in host memory */
} experts_fetch_args;
KERNEL_ARGS_SIZE(experts_fetch_args, 168);

/* The router chooses among fetch.n_experts for fetch.n_pairs; its own records are NULL. */
typedef struct router_fetch_args {
    router_cuda_args router;
    experts_fetch_args fetch;
} router_fetch_args;
KERNEL_ARGS_SIZE(router_fetch_args, 232);

/* Whether so many pairs of any layer find a place: what is there stays, at most n_staging of what
 * is missing are staged, and the rest takes the place of victims. */
static inline bool experts_fetch_fits(uint32_t n_pairs, uint32_t n_staging,
                                      uint32_t n_victims) {
    return n_pairs <= FETCH_MAX_PAIRS && n_pairs <= n_staging + n_victims;
}

static inline cuda_shape experts_fetch_shape(void) {
    return cuda_shape_of(FETCH_BLOCKS, 1, FETCH_BLOCK);
}

static inline cuda_shape router_fetch_shape(uint32_t n_rows) {
    return cuda_shape_of(1, 1, 32 * (n_rows + 1));
}

#endif
