/* router.h - the experts of each row and their weights: kernels/router.h, a warp a row.
 *
 * routed  ids that are told in place of the chosen ones, [n_rows][n_used]; NULL: none are.  The
 *         weights stay those of the row's own choice.
 * Limits  at most ROUTER_MAX_EXPERTS experts, n_used at most ROUTER_MAX_CHOSEN.
 */
#ifndef SILICEO_KERNELS_CUDA_ROUTER_H
#define SILICEO_KERNELS_CUDA_ROUTER_H

#include "kernels/cuda/launch.h"
#include "kernels/router.h"

enum { ROUTER_MAX_EXPERTS = 512, ROUTER_MAX_CHOSEN = 32 };

typedef struct router_cuda_args {
    router_args base;
    const int32_t *routed;
} router_cuda_args;
KERNEL_ARGS_SIZE(router_cuda_args, 48);

static inline cuda_shape router_shape(uint32_t n_rows) {
    return cuda_shape_of(n_rows, 1, 32);
}

#endif
