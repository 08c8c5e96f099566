/* make_model_params.h - the parameters of a random model, read from JSON and checked.
 *
 * make_model.md lists the fields with their defaults and the presets.  Plain
 * data; one thread.
 */
#ifndef SILICEO_TESTS_BENCHMARK_MAKE_MODEL_PARAMS_H
#define SILICEO_TESTS_BENCHMARK_MAKE_MODEL_PARAMS_H

#include "common/error.h"
#include "common/quant_type.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct made_params {
    bool moe; /* qwen35moe; else qwen35 */
    int64_t layers, interval, hidden, heads, kv_heads, head_dim, rope;
    int64_t experts, topk, ff_exp, ff_shexp, ff;
    int64_t k_heads, v_heads, state, conv;
    int64_t vocab, ctx, router_skew, align, seed;
    bool tied, fused, mtp;
    bool q4_k_m; /* type is Q4_K_M, a rule for each tensor, and `type` says nothing */
    quant_type type;
    bool has_expert_type, has_expert_down_type;
    quant_type expert_type, expert_down_type;
} made_params;

/* Read the text of one JSON object.  An unknown field, a wrong type or an
 * impossible value is STATUS_BAD_INPUT with the field's name and its value. */
status made_params_read(made_params *out, const char *json, error *err);

#endif
