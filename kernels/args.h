/* args.h - what the argument structs of all kernels have in common.
 *
 * An argument struct is plain data of fixed size, the same for kernels/cpu/X.c and
 * kernels/cuda/X.cu; pointers are host or device pointers of 8 bytes.  KERNEL_ARGS_SIZE pins
 * the size, so that a compiler which lays a struct out otherwise refuses it.
 *
 * A step's rows are cut into runs: the consecutive rows of one sequence.
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
    uint32_t state;      /* index of the recurrent state */
    uint32_t first_page; /* index in batch_view.pages of the sequence's page list */
} batch_run;
KERNEL_ARGS_SIZE(batch_run, 20);

typedef struct batch_view {
    const batch_run *runs;   /* [n_runs], in the order of their rows */
    const uint32_t *row_run; /* [n_rows]: the run of each row */
    const uint32_t *pages;   /* page ids, the lists of all runs one after another */
    uint32_t n_rows;
    uint32_t n_runs;
} batch_view;
KERNEL_ARGS_SIZE(batch_view, 32);

#endif
