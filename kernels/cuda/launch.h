/* launch.h - the shape of a launch, and the list of all CUDA kernels.
 *
 * Plain C, for the host code and for the .cu files.  Each op's header has the argument
 * struct of its kernels, passed by value as the only parameter, and a function that gives
 * the launch shape, so that the host side never repeats a constant of a kernel.
 *
 * Every kernel begins with griddepcontrol.wait and griddepcontrol.launch_dependents on sm_90,
 * so it may be launched with programmatic stream serialization or without.
 * No kernel needs more than 64 KB of shared memory; above 48 KB the launcher raises the
 * function's limit for dynamic shared memory first.
 */
#ifndef SILICEO_KERNELS_CUDA_LAUNCH_H
#define SILICEO_KERNELS_CUDA_LAUNCH_H

#include "kernels/args.h"

/* All kernels of the fatbin, by the names that cuModuleGetFunction takes. */
#define CUDA_KERNELS(X)                                                                        \
    X(embed)                                                                                   \
    X(rmsnorm)                                                                                 \
    X(quantize)                                                                                \
    X(swiglu)                                                                                  \
    X(matvec_1)                                                                                \
    X(matvec_2)                                                                                \
    X(matvec_4)                                                                                \
    X(matvec_8)                                                                                \
    X(matvec_float)                                                                            \
    X(matvec_any)                                                                              \
    X(matvec_f32)                                                                              \
    X(matmul_q8)                                                                               \
    X(matmul_f32)                                                                              \
    X(router_logits)                                                                           \
    X(router)                                                                                  \
    X(router_fetch)                                                                            \
    X(experts_fetch)                                                                           \
    X(experts_sort)                                                                            \
    X(experts_up)                                                                              \
    X(experts_up_coming)                                                                       \
    X(experts_up_any)                                                                          \
    X(experts_down)                                                                            \
    X(experts_down_any)                                                                        \
    X(moe_combine)                                                                             \
    X(conv1d)                                                                                  \
    X(delta_net_step)                                                                          \
    X(delta_net_scores)                                                                        \
    X(delta_net_chunks)                                                                        \
    X(delta_net_norm)                                                                          \
    X(attention_prepare)                                                                       \
    X(attention_step_f16)                                                                      \
    X(attention_step_q8)                                                                       \
    X(attention_step_q4)                                                                       \
    X(attention_step_f32)                                                                      \
    X(attention_keep)                                                                          \
    X(attention_combine)                                                                       \
    X(attention_tile)                                                                          \
    X(attention_half)                                                                          \
    X(argmax)

#define CUDA_KERNEL_ID(name) CUDA_KERNEL_##name,
typedef enum cuda_kernel { CUDA_KERNELS(CUDA_KERNEL_ID) CUDA_KERNEL_COUNT } cuda_kernel;
#undef CUDA_KERNEL_ID

typedef struct cuda_shape {
    uint32_t grid_x, grid_y, grid_z;
    uint32_t block_x;
    uint32_t shared_bytes; /* dynamic */
} cuda_shape;

static inline uint32_t cuda_ceil_div(uint32_t n, uint32_t by) {
    return (n + by - 1) / by;
}

static inline cuda_shape cuda_shape_of(uint32_t grid_x, uint32_t grid_y, uint32_t block_x) {
    cuda_shape s = {grid_x, grid_y, 1, block_x, 0};
    return s;
}

#endif
