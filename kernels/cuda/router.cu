/* router.cu - the largest router logits of a row and their softmax; kernels/cuda/router.h.
 *
 * Launch  grid (rows), block of one warp: lane l holds the experts l, l + 32, ... as ordered keys,
 *         and each round takes the largest that is left.
 * Cost    a single row is bound by latency: one load, n_used rounds of two warp reductions.
 * Oracle  kernels/cpu/router.c; compared in tests/kernels/cuda_cases.c.
 */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/router.h"

/* The lane's largest key and the expert it belongs to; equals go to the lower one. */
template <uint32_t HELD>
DEVICE uint32_t lane_best(const uint32_t (&keys)[HELD], uint32_t &expert) {
    uint32_t best[HELD], at[HELD];
#pragma unroll
    for (uint32_t k = 0; k < HELD; k++) {
        best[k] = keys[k];
        at[k] = k * WARP;
    }
#pragma unroll
    for (uint32_t w = 1; w < HELD; w *= 2) {
#pragma unroll
        for (uint32_t k = 0; k < HELD; k += 2 * w) {
            const bool right = best[k + w] > best[k];
            best[k] = right ? best[k + w] : best[k];
            at[k] = right ? at[k + w] : at[k];
        }
    }
    expert = at[0] + lane_index();
    return best[0];
}

/* A NaN counts as minus infinity, whose key is above that of "taken", and poisons the weights.
 * Round j's expert and logit stay with lane j. */
template <uint32_t HELD> DEVICE void router_row(const router_cuda_args &c) {
    const router_args &a = c.base;
    const float *logits = a.logits + blockIdx.x * a.logits_stride;
    const uint32_t lane = lane_index();
    uint32_t keys[HELD], most = 0, chosen = 0;
    float value[HELD], poison = 0, logit = 0;
#pragma unroll
    for (uint32_t k = 0; k < HELD; k++) {
        const uint32_t e = k * WARP + lane;
        value[k] = e < a.n_experts ? __ldcg(logits + e) : 0.0f;
    }
#pragma unroll
    for (uint32_t k = 0; k < HELD; k++) {
        const bool sound = value[k] == value[k];
        if (!sound) poison = value[k];
        keys[k] = k * WARP + lane < a.n_experts ? order_key(sound ? value[k] : -INFINITY) : 0;
    }
    for (uint32_t j = 0; j < a.n_used; j++) {
        uint32_t mine;
        const uint32_t best = lane_best<HELD>(keys, mine);
        most = warp_max_u32(best);
        const uint32_t e = warp_min_u32(best == most ? mine : 0xffffffffu);
#pragma unroll
        for (uint32_t k = 0; k < HELD; k++)
            if (k * WARP + lane == e) keys[k] = 0;
        if (lane == j) {
            chosen = e;
            logit = value_of_key(most);
        }
    }
    const float largest = __shfl_sync(FULL_WARP, logit, 0);
    const float share = lane < a.n_used ? expf(logit - largest) : 0.0f;
    const float sum = lanes_sum(share);
    poison = lanes_sum(poison);
    if (lane >= a.n_used) return;
    const uint64_t at = blockIdx.x * (uint64_t)a.n_used + lane;
    a.experts[at] = c.routed != 0 ? __ldcg(c.routed + at) : (int32_t)chosen;
    a.weights[at] = share / sum + poison;
}

KERNEL(router, router_cuda_args, WARP) {
    launch_begin();
    if (a.base.n_experts <= ROUTER_MAX_EXPERTS / 2)
        router_row<ROUTER_MAX_EXPERTS / 2 / WARP>(a);
    else
        router_row<ROUTER_MAX_EXPERTS / WARP>(a);
}
