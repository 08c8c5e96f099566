/* args.h - what the argument structs of all kernels have in common.
 *
 * An argument struct is plain data of fixed size, the same for kernels/cpu/X.c and
 * kernels/cuda/X.cu; pointers are host or device pointers of 8 bytes.  KERNEL_ARGS_SIZE pins
 * the size, so that a compiler which lays a struct out otherwise refuses it.
 *
 * A step's rows are cut into runs: the consecutive rows of one sequence.
 *
 * A run is a piece, which may be computed in whatever form suits its length and whose state
 * is replaced by the one after its last row; or it is verified row by row (first_kept is not
 * 0): each row has the bits that it has as a run of its own, row t starts from the state
 * after row t - 1, and that after row t is written to the place of its own that the list
 * names.  The state before the run is only read then, unless the list names it.
 */
#ifndef SILICEO_KERNELS_ARGS_H
#define SILICEO_KERNELS_ARGS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define KERNEL_ARGS_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#else
#define KERNEL_ARGS_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#endif

/* The rows of one sequence in a step. */
typedef struct batch_run {
    uint32_t first_row;
    uint32_t n_rows;
    uint32_t position;   /* of first_row in its sequence */
    uint32_t state;      /* index of the recurrent state before first_row */
    uint32_t first_page; /* index in batch_view.pages of the sequence's page list */
    uint32_t first_kept; /* 0: a piece; else index in batch_view.pages of its list of states,
                            [n_rows]: the index of the state after each row */
} batch_run;
KERNEL_ARGS_SIZE(batch_run, 24);

typedef struct batch_view {
    const batch_run *runs;   /* [n_runs], in the order of their rows */
    const uint32_t *row_run; /* [n_rows]: the run of each row */
    const uint32_t *pages;   /* the lists of all runs one after another: of each the page
                                ids, then the states to keep; so no list of states is at 0 */
    uint32_t n_rows;
    uint32_t n_runs;
} batch_view;
KERNEL_ARGS_SIZE(batch_view, 32);

/* Where the state after row t of a run goes. */
#define BATCH_STATE_AFTER(view, run, t)                                                        \
    ((run)->first_kept == 0 ? (run)->state : (view)->pages[(run)->first_kept + (t)])

#endif
