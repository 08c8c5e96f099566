/* test_vector_math.c - exp and its kin against double precision, in all tiers. */
#include "kernels/vector_math.h"
#include "tests/kernels/ops_case.h"
#include <float.h>

enum { N = 4099 };

typedef void (*map)(cpu_tier tier, const float *x, float *y, size_t n);

static double sigmoid64(double x) {
    return 1 / (1 + exp(-x));
}
static double silu64(double x) {
    return x / (1 + exp(-x));
}
static double softplus64(double x) {
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

/* The rounding of the argument of exp costs up to |x| 2^-24 of relative error where -x is
 * exact; the bounds are some units in the last place. */
static void check(map f, double (*reference)(double), float low, float high, double relative) {
    uint64_t seed = 7;
    float *x = ops_random_floats(&seed, N, low, high), *y = ops_floats(N),
          *first = ops_floats(N);
    double *expected = malloc(N * sizeof(double));
    assert_non_null(expected);
    for (size_t i = 0; i < N; i++)
        expected[i] = reference((double)x[i]);
    f(CPU_SCALAR, x, first, N);
    OPS_EACH_TIER {
        f(tier, x, y, N);
        ops_assert_close(y, expected, N, (double)FLT_MIN, relative);
        ops_assert_same(y, first, N);
    }
    free(x);
    free(y);
    free(first);
    free(expected);
}

static void functions_are_right_to_a_few_units_in_the_last_place(void **state) {
    (void)state;
    check(vector_exp, exp, -87.0f, 88.7f, 1e-7);
    check(vector_exp, exp, -1.0f, 1.0f, 1e-7);
    check(vector_sigmoid, sigmoid64, -80.0f, 30.0f, 3e-7);
    check(vector_silu, silu64, -80.0f, 30.0f, 3e-7);
    check(vector_softplus, softplus64, -80.0f, 80.0f, 4e-7);
    check(vector_softplus, softplus64, -2.0f, 2.0f, 4e-7);
}

static void functions_give_the_values_of_the_specification(void **state) {
    (void)state;
    const float x[3] = {0.7f, -1.5f, 0.7f};
    OPS_EACH_TIER {
        float y[3];
        vector_silu(tier, x, y, 2);
        assert_true(fabs((double)y[0] - 0.467731441) < 1e-7);
        assert_true(fabs((double)y[1] + 0.273638286) < 1e-7);
        vector_sigmoid(tier, x, y, 1);
        assert_true(fabs((double)y[0] - 0.668187772) < 1e-7);
    }
}

static void exp_runs_through_subnormals_to_zero_and_to_infinity(void **state) {
    (void)state;
    const float x[] = {-INFINITY, -1e30f,   -104.0f, -103.9f, -100.0f, -90.0f,
                       -87.4f,    -0.0f,    0.0f,    88.72f,  88.8f,   89.5f,
                       1e30f,     INFINITY, NAN,     1e-42f,  -1e-42f};
    enum { COUNT = sizeof(x) / sizeof(x[0]) };
    float y[COUNT], first[COUNT];
    vector_exp(CPU_SCALAR, x, first, COUNT);
    OPS_EACH_TIER {
        vector_exp(tier, x, y, COUNT);
        ops_assert_same(y, first, COUNT);
        assert_true(y[0] == 0.0f && y[1] == 0.0f && y[2] == 0.0f);
        for (size_t i = 3; i < 7; i++) /* subnormal: exact to half a step */
            assert_true(fabs((double)y[i] - exp((double)x[i])) <=
                        0.75 * 0x1p-149 + 1e-7 * exp((double)x[i]));
        assert_true(y[7] == 1.0f && y[8] == 1.0f && y[15] == 1.0f && y[16] == 1.0f);
        assert_true(isfinite(y[9]));
        assert_true(isinf(y[10]) && isinf(y[11]) && isinf(y[12]) && isinf(y[13]));
        assert_true(isnan(y[14]));
    }
}

static void extreme_arguments_saturate_and_nan_stays(void **state) {
    (void)state;
    const float x[] = {-1e30f, -200.0f, 200.0f, 1e30f, NAN};
    OPS_EACH_TIER {
        float y[5];
        vector_sigmoid(tier, x, y, 5);
        assert_true(y[0] == 0.0f && y[1] == 0.0f && y[2] == 1.0f && y[3] == 1.0f &&
                    isnan(y[4]));
        vector_silu(tier, x, y, 5);
        assert_true(y[0] == 0.0f && y[1] == 0.0f && y[2] == 200.0f && y[3] == 1e30f &&
                    isnan(y[4]));
        vector_softplus(tier, x, y, 5);
        assert_true(y[0] == 0.0f && y[1] == 0.0f && y[2] == 200.0f && y[3] == 1e30f &&
                    isnan(y[4]));
    }
}

static void argmax_takes_the_first_of_equals_and_never_nan(void **state) {
    (void)state;
    uint64_t seed = 3;
    OPS_EACH_TIER {
        for (size_t n = 0; n < 70; n++) {
            float *x = ops_random_floats(&seed, n + 1, -1.0f, 1.0f);
            for (size_t i = 0; i + 1 < n; i += 3)
                x[i] = i % 2 ? NAN : 0.75f;
            assert_int_equal(vector_argmax(tier, x, n), vector_argmax(CPU_SCALAR, x, n));
            for (size_t i = 0; i < n; i++)
                x[i] = NAN;
            assert_int_equal(vector_argmax(tier, x, n), n);
            if (n > 0) {
                x[n - 1] = -INFINITY;
                assert_int_equal(vector_argmax(tier, x, n), n - 1);
            }
            free(x);
        }
    }
    const float tie[] = {1.0f, 3.0f, 3.0f, 2.0f};
    assert_int_equal(vector_argmax(CPU_SCALAR, tie, 4), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_right_to_a_few_units_in_the_last_place),
        cmocka_unit_test(functions_give_the_values_of_the_specification),
        cmocka_unit_test(exp_runs_through_subnormals_to_zero_and_to_infinity),
        cmocka_unit_test(extreme_arguments_saturate_and_nan_stays),
        cmocka_unit_test(argmax_takes_the_first_of_equals_and_never_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
