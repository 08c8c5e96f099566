/* test_rmsnorm.c - RMS norm, alone and after adding a delta, in all tiers. */
#include "kernels/rmsnorm.h"
#include "tests/kernels/ops_case.h"

static void gives_the_values_of_the_specification(void **state) {
    (void)state;
    float x[4] = {1, -2, 3, 0.5f}, y[4];
    const float weight[4] = {1, 1, 1, 1};
    const double expected[4] = {0.5298129, -1.0596257, 1.5894386, 0.2649064};
    const rmsnorm_args args = {.x = x, .weight = weight, .y = y, .dim = 4, .eps = 1e-6f};
    OPS_EACH_TIER {
        rmsnorm_rows(tier, &args, 0, 1);
        ops_assert_close(y, expected, 4, 1e-7, 0);
    }
}

/* Any width, rows with gaps, with and without delta: near double precision, tiers equal. */
static void check(size_t dim, size_t n_rows, int with_delta) {
    uint64_t seed = 11 + dim;
    const size_t stride = dim + 3, n = n_rows * stride;
    float *x = ops_random_floats(&seed, n, -4.0f, 4.0f);
    float *delta = ops_random_floats(&seed, n, -1.0f, 1.0f);
    float *weight = ops_random_floats(&seed, dim, 0.5f, 1.5f);
    float *first_x = NULL, *first_y = NULL;
    OPS_EACH_TIER {
        float *in = ops_copy(x, n), *y = ops_floats(n);
        const rmsnorm_args args = {.x = in,
                                   .delta = with_delta ? delta : NULL,
                                   .weight = weight,
                                   .y = y,
                                   .x_stride = stride,
                                   .delta_stride = stride,
                                   .y_stride = stride,
                                   .dim = (uint32_t)dim,
                                   .eps = 1e-6f};
        rmsnorm_rows(tier, &args, 0, n_rows);
        for (size_t row = 0; row < n_rows; row++) {
            double sum = 0;
            for (size_t i = 0; i < dim; i++)
                sum += (double)in[row * stride + i] * (double)in[row * stride + i];
            const double scale = 1 / sqrt(sum / (double)dim + 1e-6);
            for (size_t i = 0; i < dim; i++) {
                const size_t at = row * stride + i;
                const float added = x[at] + (with_delta ? delta[at] : 0.0f);
                const double expected = (double)in[at] * scale * (double)weight[i];
                assert_true(in[at] == added);
                ops_assert_close(&y[at], &expected, 1, 0, 4e-7);
            }
            assert_true(y[row * stride + dim] == 0.0f); /* the gap is not written */
        }
        if (tier == CPU_SCALAR) {
            first_x = in;
            first_y = y;
            continue;
        }
        ops_assert_same(in, first_x, n);
        ops_assert_same(y, first_y, n);
        free(in);
        free(y);
    }
    free(first_x);
    free(first_y);
    free(x);
    free(delta);
    free(weight);
}

static void any_width_is_near_double_precision_and_equal_in_all_tiers(void **state) {
    (void)state;
    const size_t dims[] = {1, 5, 15, 16, 17, 64, 250, 256, 2048, 2049};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        check(dims[i], 1, 0);
        check(dims[i], 3, 1);
    }
}

static void zeros_give_zeros_and_nan_stays_in_its_row(void **state) {
    (void)state;
    OPS_EACH_TIER {
        float x[3 * 20] = {0}, y[3 * 20], weight[20];
        for (size_t i = 0; i < 20; i++) {
            weight[i] = 1.0f;
            x[40 + i] = 1e-40f; /* subnormal */
        }
        x[20 + 7] = NAN;
        const rmsnorm_args args = {.x = x,
                                   .weight = weight,
                                   .y = y,
                                   .x_stride = 20,
                                   .y_stride = 20,
                                   .dim = 20,
                                   .eps = 1e-6f};
        rmsnorm_rows(tier, &args, 0, 3);
        for (size_t i = 0; i < 20; i++) {
            assert_true(y[i] == 0.0f);
            assert_true(isnan(y[20 + i]));
            assert_true(isfinite(y[40 + i]));
        }
    }
}

static void output_may_replace_the_input(void **state) {
    (void)state;
    uint64_t seed = 5;
    float *x = ops_random_floats(&seed, 100, -1.0f, 1.0f), *y = ops_floats(100);
    float *weight = ops_random_floats(&seed, 100, -1.0f, 1.0f);
    OPS_EACH_TIER {
        float *in = ops_copy(x, 100);
        rmsnorm_args args = {.x = in, .weight = weight, .y = y, .dim = 100, .eps = 1e-6f};
        rmsnorm_rows(tier, &args, 0, 1);
        args.y = in;
        rmsnorm_rows(tier, &args, 0, 1);
        ops_assert_same(in, y, 100);
        free(in);
    }
    free(x);
    free(y);
    free(weight);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_values_of_the_specification),
        cmocka_unit_test(any_width_is_near_double_precision_and_equal_in_all_tiers),
        cmocka_unit_test(zeros_give_zeros_and_nan_stays_in_its_row),
        cmocka_unit_test(output_may_replace_the_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
