/* cuda_cases.c - the list of cuda_cases.h.
 *
 * Integer products are compared with float64 sums over the dequantized weights and the device's
 * own quantized activations; the rest with the plain C kernels in kernels/cpu.
 */
#include "tests/kernels/cuda_case.h"

void cuda_case_fill(uint32_t type, void *blocks, size_t bytes) {
    fill_blocks(type, blocks, bytes);
}

/* Float kernels 1e-6 (NMSE 1e-6 is 1e-3 in relative L2); integer products 1e-5, the rest of
 * which is the order of the float32 sums; the recurrence accumulates over 45 tokens; keys that
 * differ in the last bit may round to another half or int8. */
const cuda_case cuda_cases[] = {
    {"quantize", case_quantize, 1e-6},
    {"quantize, zeros, NaN and infinity", case_quantize_extremes, 0},
    {"embed", case_embed, 0},
    {"rmsnorm", case_rmsnorm, 1e-6},
    {"swiglu", case_swiglu, 1e-6},
    {"argmax", case_argmax, 0},
    {"matvec, every type", case_matvec, 1e-5},
    {"matvec, float32 activations", case_matvec_f32, 1e-5},
    {"matvec, company changes no bits", case_matvec_company, 0},
    {"matvec, split Q6_K", case_split, 1e-5},
    {"matvec, norm inside", case_matvec_norm, 0},
    {"matmul, every type", case_matmul, 1e-5},
    {"matmul, float32 activations", case_matmul_f32, 1e-5},
    {"matmul, gated in one launch or three", case_matmul_gated, 0},
    {"experts", case_experts, 1e-5},
    {"experts, missing ones coming", case_experts_coming, 0},
    {"experts, a step on the CPU lane", case_experts_lane, 0},
    {"experts_fetch", case_experts_fetch, 0},
    {"router_fetch", case_router_fetch, 0},
    {"router_fetch, some on the CPU lane", case_router_lane, 0},
    {"outputs of the CPU lane", case_lane_outputs, 0},
    {"experts, grouped", case_experts_grouped, 1e-5},
    {"moe_combine", case_combine, 1e-6},
    {"router logits", case_router_logits, 1e-6},
    {"router", case_router, 1e-6},
    {"conv1d", case_conv1d, 1e-6},
    {"delta_net, steps", case_delta_step, 1e-5},
    {"delta_net, chunks", case_delta_chunks, 1e-5},
    {"attention, steps, f32", case_attention_step, 1e-5},
    {"attention, tiles, f32", case_attention_tile, 1e-5},
    {"attention, steps, f16", case_attention_step_f16, 1e-4},
    {"attention, steps, q8", case_attention_step_q8, 1e-3},
    {"attention, steps, q4", case_attention_step_q4, 1e-3},
    {"attention, halves, f16", case_attention_half, 1e-3},
    {"attention, halves, q8", case_attention_q8, 2e-3},
    {"attention, halves, q4", case_attention_q4, 2e-3},
};
const size_t n_cuda_cases = sizeof cuda_cases / sizeof cuda_cases[0];
