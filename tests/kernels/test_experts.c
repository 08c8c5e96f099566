/* test_experts.c - SwiGLU, the router, the weighted sum of experts, and embedding rows. */
#include "kernels/embed.h"
#include "kernels/matmul.h"
#include "kernels/moe_combine.h"
#include "kernels/router.h"
#include "kernels/swiglu.h"
#include "tests/kernels/ops_case.h"

static void swiglu_of_separate_and_fused_rows_is_right_in_all_tiers(void **state) {
    (void)state;
    const size_t widths[] = {1, 15, 16, 33, 512};
    for (size_t w = 0; w < 5; w++) {
        const size_t n = widths[w];
        uint64_t seed = 41 + n;
        float *fused = ops_random_floats(&seed, 3 * 2 * n, -6.0f, 6.0f),
              *first = ops_floats(3 * n);
        OPS_EACH_TIER {
            float *rows = ops_copy(fused, 3 * 2 * n), *out = ops_floats(3 * n);
            swiglu_args args = {.gate = rows,
                                .up = rows + n,
                                .out = out,
                                .gate_stride = 2 * n,
                                .up_stride = 2 * n,
                                .out_stride = n,
                                .n_cols = (uint32_t)n};
            swiglu_rows(tier, &args, 0, 3);
            if (tier == CPU_SCALAR) memcpy(first, out, 3 * n * sizeof(float));
            ops_assert_same(out, first, 3 * n);
            for (size_t i = 0; i < 3 * n; i++) {
                const double gate = (double)fused[i / n * 2 * n + i % n];
                const double up = (double)fused[i / n * 2 * n + n + i % n];
                const double expected = gate / (1 + exp(-gate)) * up;
                ops_assert_close(&out[i], &expected, 1, 0, 5e-7);
            }
            args.out = rows; /* in place of the gate */
            args.out_stride = 2 * n;
            swiglu_rows(tier, &args, 0, 3);
            ops_assert_same(rows + 4 * n, first + 2 * n, n);
            free(rows);
            free(out);
        }
        free(fused);
        free(first);
    }
}

static void combine(cpu_tier tier, size_t dim, uint32_t n_used, int with_shared) {
    uint64_t seed = 43 + dim;
    const size_t rows = 3;
    float *x = ops_random_floats(&seed, rows * dim, -1.0f, 1.0f);
    float *y = ops_random_floats(&seed, rows * n_used * dim, -1.0f, 1.0f);
    float *weights = ops_random_floats(&seed, rows * n_used, 0.0f, 1.0f);
    float *shared = ops_random_floats(&seed, rows * dim, -1.0f, 1.0f);
    float *gates = ops_random_floats(&seed, rows, -2.0f, 2.0f);
    float *out = ops_floats(rows * dim), *first = ops_floats(rows * dim);
    moe_combine_args args = {.x = x,
                             .y = y,
                             .weights = weights,
                             .shared = with_shared ? shared : NULL,
                             .shared_gate = gates,
                             .out = first,
                             .x_stride = dim,
                             .y_stride = dim,
                             .shared_stride = dim,
                             .shared_gate_stride = 1,
                             .out_stride = dim,
                             .dim = (uint32_t)dim,
                             .n_used = n_used};
    moe_combine_rows(CPU_SCALAR, &args, 0, rows);
    args.out = out;
    moe_combine_rows(tier, &args, 1, rows);
    moe_combine_rows(tier, &args, 0, 1);
    ops_assert_same(out, first, rows * dim);
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < dim; i++) {
            double expected = (double)x[row * dim + i];
            for (size_t j = 0; j < n_used; j++)
                expected +=
                    (double)weights[row * n_used + j] * (double)y[(row * n_used + j) * dim + i];
            if (with_shared)
                expected += (double)shared[row * dim + i] / (1 + exp(-(double)gates[row]));
            ops_assert_close(&out[row * dim + i], &expected, 1, 1e-6, 0);
        }
    args.out = x; /* in place */
    moe_combine_rows(tier, &args, 0, rows);
    ops_assert_same(x, first, rows * dim);
    float *const parts[] = {x, y, weights, shared, gates, out, first};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        free(parts[i]);
}

static void weighted_sum_with_and_without_shared_expert_is_right_in_all_tiers(void **state) {
    (void)state;
    OPS_EACH_TIER {
        combine(tier, 256, 2, 1);
        combine(tier, 2048, 8, 1);
        combine(tier, 37, 1, 0);
        combine(tier, 7, 64, 1);
    }
}

static void router_gives_the_example_of_the_specification(void **state) {
    (void)state;
    const float logits[5] = {1, 2, 0.5f, 2, -1};
    int32_t experts[2];
    float weights[2];
    const router_args args = {.logits = logits,
                              .experts = experts,
                              .weights = weights,
                              .logits_stride = 5,
                              .n_experts = 5,
                              .n_used = 2};
    router_rows(CPU_SCALAR, &args, 0, 1);
    assert_int_equal(experts[0], 1);
    assert_int_equal(experts[1], 3);
    assert_true(weights[0] == 0.5f && weights[1] == 0.5f);
}

static void router_takes_the_largest_in_order_and_renormalises(void **state) {
    (void)state;
    uint64_t seed = 47;
    enum { EXPERTS = 256, USED = 8, ROWS = 20 };
    float *logits = ops_random_floats(&seed, ROWS * EXPERTS, -5.0f, 5.0f);
    for (size_t i = 0; i < ROWS * EXPERTS; i += 2)
        logits[i] = floorf(logits[i]); /* many ties */
    int32_t experts[ROWS * USED];
    float weights[ROWS * USED];
    const router_args args = {.logits = logits,
                              .experts = experts,
                              .weights = weights,
                              .logits_stride = EXPERTS,
                              .n_experts = EXPERTS,
                              .n_used = USED};
    OPS_EACH_TIER {
        router_rows(tier, &args, 0, ROWS);
        for (size_t row = 0; row < ROWS; row++) {
            const float *l = logits + row * EXPERTS;
            double all = 0, chosen = 0, probability[EXPERTS];
            for (size_t e = 0; e < EXPERTS; e++)
                all += exp((double)l[e]);
            for (size_t e = 0; e < EXPERTS; e++)
                probability[e] = exp((double)l[e]) / all;
            for (size_t j = 0; j < USED; j++)
                chosen += probability[experts[row * USED + j]];
            for (size_t j = 0; j < USED; j++) {
                const int32_t e = experts[row * USED + j];
                size_t before = 0; /* experts that must stand before e */
                for (int32_t other = 0; other < EXPERTS; other++)
                    before += l[other] > l[e] || (other < e && l[other] == l[e]);
                assert_int_equal(before, j);
                const double expected = probability[e] / chosen;
                ops_assert_close(&weights[row * USED + j], &expected, 1, 0, 1e-6);
            }
        }
    }
    free(logits);
}

static void router_survives_infinities_and_nan(void **state) {
    (void)state;
    float logits[3][4] = {
        {NAN, NAN, NAN, NAN}, {0, NAN, 1, 2}, {-INFINITY, -INFINITY, 0, -INFINITY}};
    int32_t experts[9];
    float weights[9];
    const router_args args = {.logits = logits[0],
                              .experts = experts,
                              .weights = weights,
                              .logits_stride = 4,
                              .n_experts = 4,
                              .n_used = 3};
    router_rows(CPU_SCALAR, &args, 0, 3);
    for (size_t row = 0; row < 3; row++) {
        const int32_t *e = experts + 3 * row;
        assert_true(e[0] != e[1] && e[0] != e[2] && e[1] != e[2]);
        for (size_t j = 0; j < 3; j++)
            assert_in_range(e[j], 0, 3);
    }
    assert_true(isnan(weights[0]) && isnan(weights[3]) && isnan(weights[5]));
    assert_int_equal(experts[6], 2);
    assert_true(weights[6] == 1.0f && weights[7] == 0.0f);
}

static void embedding_rows_are_the_dequantized_rows(void **state) {
    (void)state;
    enum { ROWS = 5, DIM = 64 };
    const size_t row_bytes = quant_row_bytes(QUANT_Q8_0, DIM);
    unsigned char *table = malloc(ROWS * row_bytes);
    assert_non_null(table);
    for (size_t i = 0; i < ROWS * row_bytes; i++)
        table[i] = (unsigned char)(i * 37 % 61); /* halves below 2^-1, all finite */
    const int32_t tokens[3] = {4, 0, 3};
    OPS_EACH_TIER {
        float out[3 * (DIM + 1)] = {0}, expected[DIM];
        const embed_args args = {.table = table,
                                 .tokens = tokens,
                                 .out = out,
                                 .row_bytes = row_bytes,
                                 .out_stride = DIM + 1,
                                 .type = QUANT_Q8_0,
                                 .dim = DIM};
        embed_rows(tier, &args, 0, 3);
        for (size_t row = 0; row < 3; row++) {
            dequantize_row(QUANT_Q8_0, table + (size_t)tokens[row] * row_bytes, DIM, expected);
            ops_assert_same(out + row * (DIM + 1), expected, DIM);
        }
    }
    free(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swiglu_of_separate_and_fused_rows_is_right_in_all_tiers),
        cmocka_unit_test(weighted_sum_with_and_without_shared_expert_is_right_in_all_tiers),
        cmocka_unit_test(router_gives_the_example_of_the_specification),
        cmocka_unit_test(router_takes_the_largest_in_order_and_renormalises),
        cmocka_unit_test(router_survives_infinities_and_nan),
        cmocka_unit_test(embedding_rows_are_the_dequantized_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
