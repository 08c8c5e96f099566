/* test_conv1d.c - the convolution and its state, in all tiers and for any split. */
#include "kernels/conv1d.h"
#include "tests/kernels/ops_case.h"

static void gives_the_values_of_the_specification(void **state) {
    (void)state;
    const float weight[4] = {0.1f, -0.2f, 0.3f, 0.5f}, x[5] = {1, 2, 3, 4, 5};
    const double expected[5] = {0.3112297, 1.0215855, 1.6527939, 2.4202401, 3.1826151};
    const batch_run run = {.n_rows = 5};
    OPS_EACH_TIER {
        float inputs[3] = {0}, y[5];
        const conv1d_args args = {.batch = {.runs = &run, .n_runs = 1},
                                  .x = x,
                                  .weight = weight,
                                  .state = inputs,
                                  .y = y,
                                  .x_stride = 1,
                                  .y_stride = 1,
                                  .n_channels = 1,
                                  .n_taps = 4};
        conv1d_channels(tier, &args, 0, 1);
        ops_assert_close(y, expected, 5, 1e-6, 0);
        assert_true(inputs[0] == 3.0f && inputs[1] == 4.0f && inputs[2] == 5.0f);
    }
}

/* Two sequences of one batch, cut into pieces of `piece` rows, with n_taps taps. */
static void convolve(cpu_tier tier, const float *x, const float *weight, float *states,
                     float *y, size_t n_channels, uint32_t n_taps, uint32_t n_rows,
                     uint32_t piece) {
    for (uint32_t at = 0; at < n_rows; at += piece) {
        const uint32_t n = n_rows - at < piece ? n_rows - at : piece;
        const batch_run runs[2] = {{.first_row = at, .n_rows = n, .state = 1},
                                   {.first_row = n_rows + at, .n_rows = n, .state = 0}};
        const conv1d_args args = {.batch = {.runs = runs, .n_runs = 2},
                                  .x = x,
                                  .weight = weight,
                                  .state = states,
                                  .y = y,
                                  .x_stride = n_channels,
                                  .y_stride = n_channels,
                                  .state_stride = (n_taps - 1) * n_channels + 1,
                                  .n_channels = (uint32_t)n_channels,
                                  .n_taps = n_taps};
        const size_t middle = n_channels / 32 * 16;
        conv1d_channels(tier, &args, 0, middle);
        conv1d_channels(tier, &args, middle, n_channels);
    }
}

static void check(size_t n_channels, uint32_t n_taps, uint32_t n_rows) {
    uint64_t seed = 17 + n_channels * n_taps;
    const size_t n = 2 * n_rows * n_channels, n_state = 2 * ((n_taps - 1) * n_channels + 1);
    float *x = ops_random_floats(&seed, n, -2.0f, 2.0f);
    float *file = ops_random_floats(&seed, n_channels * n_taps, -1.0f, 1.0f);
    float *start = ops_random_floats(&seed, n_state, -2.0f, 2.0f);
    float *weight = ops_floats(n_channels * n_taps);
    float *whole = ops_floats(n), *whole_state = ops_copy(start, n_state);
    conv1d_transpose(file, (uint32_t)n_channels, n_taps, weight);
    convolve(CPU_SCALAR, x, weight, whole_state, whole, n_channels, n_taps, n_rows, n_rows);
    /* The first sequence against double precision, input by input. */
    const float *before = start + n_state / 2;
    for (size_t t = 0; t < n_rows; t++)
        for (size_t c = 0; c < n_channels; c++) {
            double sum = 0;
            for (size_t i = 0; i < n_taps; i++) {
                const size_t at = t + i; /* in state ++ inputs */
                const float input = at < n_taps - 1 ? before[at * n_channels + c]
                                                    : x[(at - (n_taps - 1)) * n_channels + c];
                sum += (double)input * (double)file[c * n_taps + i];
            }
            const double expected = sum / (1 + exp(-sum));
            ops_assert_close(&whole[t * n_channels + c], &expected, 1, 2e-6, 0);
        }
    OPS_EACH_TIER {
        const uint32_t pieces[] = {1, 2, 7, n_rows};
        for (size_t p = 0; p < 4; p++) {
            float *y = ops_copy(x, n), *states = ops_copy(start, n_state); /* in place */
            convolve(tier, y, weight, states, y, n_channels, n_taps, n_rows, pieces[p]);
            ops_assert_same(y, whole, n);
            ops_assert_same(states, whole_state, n_state);
            free(y);
            free(states);
        }
    }
    free(x);
    free(file);
    free(start);
    free(weight);
    free(whole);
    free(whole_state);
}

static void any_taps_channels_and_split_give_the_same_bits(void **state) {
    (void)state;
    check(64, 4, 13);
    check(40, 4, 2);
    check(1, 2, 5);
    check(35, 3, 9);
    check(33, 8, 20);
}

/* The state after each row of a run that keeps them is that after a run up to there. */
static void verified_rows_keep_the_state_after_each(void **state) {
    (void)state;
    enum { N = 9, CHANNELS = 35, TAPS = 4, SIZE = (TAPS - 1) * CHANNELS };
    uint64_t seed = 5;
    float *x = ops_random_floats(&seed, N * CHANNELS, -2.0f, 2.0f);
    float *weight = ops_random_floats(&seed, TAPS * CHANNELS, -1.0f, 1.0f);
    float *start = ops_random_floats(&seed, SIZE, -2.0f, 2.0f);
    OPS_EACH_TIER {
        float *states = ops_floats((1 + N) * SIZE), *y = ops_floats(N * CHANNELS);
        float *alone = ops_floats(N * CHANNELS), *last = ops_copy(start, SIZE);
        uint32_t list[1 + N];
        for (uint32_t t = 0; t <= N; t++)
            list[t] = t; /* list[0] stands for the pages */
        memcpy(states, start, SIZE * sizeof(float));
        batch_run run = {.n_rows = N, .first_kept = 1};
        conv1d_args args = {.batch = {.runs = &run, .pages = list, .n_runs = 1},
                            .x = x,
                            .weight = weight,
                            .state = states,
                            .y = y,
                            .x_stride = CHANNELS,
                            .y_stride = CHANNELS,
                            .state_stride = SIZE,
                            .n_channels = CHANNELS,
                            .n_taps = TAPS};
        conv1d_channels(tier, &args, 0, CHANNELS);
        ops_assert_same(states, start, SIZE);
        args.state = last;
        args.y = alone;
        for (uint32_t t = 0; t < N; t++) {
            run = (batch_run){.first_row = t, .n_rows = 1};
            conv1d_channels(tier, &args, 0, CHANNELS);
            ops_assert_same(states + (1 + t) * SIZE, last, SIZE);
        }
        ops_assert_same(y, alone, N * CHANNELS);
        free(states);
        free(y);
        free(alone);
        free(last);
    }
    free(x);
    free(weight);
    free(start);
}

static void nan_leaves_the_state_after_its_taps(void **state) {
    (void)state;
    const batch_run run = {.n_rows = 6};
    const float weight[4 * 16] = {1.0f};
    OPS_EACH_TIER {
        float x[6 * 16] = {0}, y[6 * 16], inputs[3 * 16] = {0};
        x[0] = NAN;
        const conv1d_args args = {.batch = {.runs = &run, .n_runs = 1},
                                  .x = x,
                                  .weight = weight,
                                  .state = inputs,
                                  .y = y,
                                  .x_stride = 16,
                                  .y_stride = 16,
                                  .n_channels = 16,
                                  .n_taps = 4};
        conv1d_channels(tier, &args, 0, 16);
        for (size_t t = 0; t < 6; t++) {
            assert_int_equal(isnan(y[t * 16]) != 0, t < 4);
            assert_false(isnan(y[t * 16 + 1]));
        }
        assert_false(isnan(inputs[0]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_values_of_the_specification),
        cmocka_unit_test(any_taps_channels_and_split_give_the_same_bits),
        cmocka_unit_test(verified_rows_keep_the_state_after_each),
        cmocka_unit_test(nan_leaves_the_state_after_its_taps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
