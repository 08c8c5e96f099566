/* delta_net.h - the gated delta rule with its state, and the gated norm after it.
 *
 * Shapes  qkv [n_rows][q: n_key_heads * dim | k: n_key_heads * dim | v: n_value_heads * dim],
 *         after convolution and SiLU; z, out [n_rows][n_value_heads][dim];
 *         alpha, beta [n_rows][n_value_heads]; a, dt [n_value_heads]; norm [dim].
 *         State of a sequence [n_value_heads][dim i of k][dim j of v], float32, j fastest:
 *         both passes of a step then run along rows without horizontal sums.
 * Does    per value head n, with key head n % n_key_heads (grouped: n / (value heads a key head)):
 *         q = l2norm(q) / sqrt(dim), k = l2norm(k), l2norm(x) = x / sqrt(sum x^2 + 1e-6);
 *         b = sigmoid(beta), g = max(a * softplus(alpha + dt), -88); then for each token
 *           S = exp(g) S;  m = S^T k;  d = b (v - m);  S += k d^T;  o = S^T q
 *           out = rmsnorm(o, eps) * norm * silu(z)
 * Forms   Positions are cut at multiples of DELTA_NET_CHUNK.  A cut that lies whole in a run
 *         takes the chunked form (forward substitution on the chunk, see delta_net.c); other
 *         tokens take the step.  So bits do not depend on how a sequence is split into runs
 *         as long as it is split at multiples of DELTA_NET_CHUNK; another split agrees to
 *         rounding.  A run verified row by row (args.h) takes the step for each.
 *         All tiers give the same bits.
 * Work    item = run * n_value_heads + head.
 * Limits  dim a multiple of 16, at most DELTA_NET_MAX_DIM.
 * Source  Gated Delta Networks (Yang et al., 2024), chunked form after its section 3.3.
 * Oracle  kernels/cpu/delta_net.c.
 */
#ifndef SILICEO_KERNELS_DELTA_NET_H
#define SILICEO_KERNELS_DELTA_NET_H

#include "kernels/args.h"

enum { DELTA_NET_CHUNK = 32, DELTA_NET_MAX_DIM = 256 };

typedef struct delta_net_args {
    batch_view batch;
    const float *qkv;
    const float *z;
    const float *alpha;
    const float *beta;
    const float *a;
    const float *dt;
    const float *norm;
    float *state;
    float *out;
    uint64_t qkv_stride; /* floats from row to row */
    uint64_t z_stride;
    uint64_t alpha_stride;
    uint64_t beta_stride;
    uint64_t out_stride;
    uint64_t state_stride; /* floats from state to state */
    uint32_t n_key_heads;
    uint32_t n_value_heads;
    uint32_t dim;
    uint32_t grouped; /* 1: value heads of a key head are neighbours */
    float eps;        /* of the gated norm */
    uint32_t reserved;
} delta_net_args;
KERNEL_ARGS_SIZE(delta_net_args, 176);

#ifndef __CUDACC__
#include "kernels/cpu/tier.h"

static inline size_t delta_net_n_items(const delta_net_args *args) {
    return (size_t)args->batch.n_runs * args->n_value_heads;
}
/* Bytes of scratch a worker needs, a multiple of 64. */
size_t delta_net_scratch_bytes(uint32_t dim);
/* Items first .. end - 1.  scratch is the calling worker's own, 64-byte aligned. */
void delta_net_items(cpu_tier tier, const delta_net_args *args, size_t first, size_t end,
                     void *scratch);
#endif

#endif
