/* router.cuh - a row's largest logits and their softmax, by one warp; kernels/cuda/router.h.
 *
 * Lane l holds the logits of the experts l, l + 32, ... as ordered keys; each round takes the
 * largest that is left, and round j's expert stays with lane j.
 */
#ifndef SILICEO_KERNELS_CUDA_ROUTER_CUH
#define SILICEO_KERNELS_CUDA_ROUTER_CUH

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
 * Returns the id of lane < n_used: its choice, or what it was told instead. */
template <uint32_t HELD>
DEVICE int32_t router_row(const router_args &a, uint32_t row, bool is_told, int32_t told) {
    const float *logits = a.logits + row * a.logits_stride;
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
    const int32_t id = is_told ? told : (int32_t)chosen;
    if (lane < a.n_used) {
        a.experts[row * a.n_used + lane] = id;
        a.weights[row * a.n_used + lane] = share / sum + poison;
    }
    return id;
}

/* A row by the warp that asks.  told: router_told() from before the wait. */
DEVICE int32_t router_choose(const router_cuda_args &c, uint32_t row, int32_t told) {
    if (c.base.n_experts <= ROUTER_MAX_EXPERTS / 2)
        return router_row<ROUTER_MAX_EXPERTS / 2 / WARP>(c.base, row, c.routed != 0, told);
    return router_row<ROUTER_MAX_EXPERTS / WARP>(c.base, row, c.routed != 0, told);
}

/* What the lane is told of the row; it was there before the step began. */
DEVICE int32_t router_told(const router_cuda_args &c, uint32_t row) {
    const uint32_t lane = lane_index();
    if (c.routed == 0 || lane >= c.base.n_used) return 0;
    return __ldcg(c.routed + row * c.base.n_used + lane);
}

#endif
