/* router.h - which experts a token takes, and with what weights.
 *
 * Shapes  logits [rows][n_experts]; experts, weights [rows][n_used], largest weight first.
 * Does    the n_used largest logits, lower index first among equals; weights are the softmax
 *         over the chosen ones (which equals softmax over all, then renormalised):
 *         exp(l - l_max), divided by their sum in rank order.  A NaN among the logits of a row
 *         makes its weights NaN; the chosen experts are distinct and valid all the same.
 * Limits  1 <= n_used <= n_experts, n_used <= ROUTER_MAX_USED.
 * Oracle  kernels/cpu/router.c; all tiers give the same bits.
 */
#ifndef SILICEO_KERNELS_ROUTER_H
#define SILICEO_KERNELS_ROUTER_H

#include "kernels/args.h"

enum { ROUTER_MAX_USED = 64 };

typedef struct router_args {
    const float *logits;
    int32_t *experts;
    float *weights;
    uint64_t logits_stride; /* floats from row to row; experts and weights are dense */
    uint32_t n_experts;
    uint32_t n_used;
} router_args;
KERNEL_ARGS_SIZE(router_args, 40);

#ifndef __CUDACC__
#include "kernels/cpu/tier.h"

/* Rows first .. end - 1. */
void router_rows(cpu_tier tier, const router_args *args, size_t first, size_t end);
#endif

#endif
