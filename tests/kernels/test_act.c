/* test_act.c - quantized activation rows: values, sums, odd input, and the same bytes in all tiers. */
#include "kernels/cpu/act_layout.h"
#include "kernels/matmul.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h> /* needs the headers above */

static uint32_t rng = 12345;

static float random_float(void) {
    rng = rng * 1664525u + 1013904223u;
    return ((float)(rng >> 8) / 8388608.0f - 1.0f) * (rng % 97 == 0 ? 12.0f : 1.0f);
}

static void *new_row(act_format format, size_t n_cols) {
    void *row = aligned_alloc(64, act_row_bytes(format, n_cols));
    assert_non_null(row);
    memset(row, 0xa5, act_row_bytes(format, n_cols));
    return row;
}

static void values_are_rounded_to_the_nearest_step(void **state) {
    (void)state;
    float x[512];
    for (int i = 0; i < 512; i++)
        x[i] = random_float() * (i < 256 ? 1.0f : 1e-6f);
    act_block *a = new_row(ACT_Q8_256, 512);
    act_quantize_row(CPU_SCALAR, ACT_Q8_256, x, 512, a);
    for (int i = 0; i < 512; i++) {
        const act_block *b = &a[i / 256];
        assert_in_range(b->q[i % 256] + 127, 0, 254);
        float off = fabsf(x[i] - b->scale * (float)b->q[i % 256]);
        assert_true(off <= b->scale * 0.50001f);
    }
    free(a);
}

static void sums_are_those_of_the_values(void **state) {
    (void)state;
    float x[256];
    for (int i = 0; i < 256; i++)
        x[i] = random_float() + 0.5f;
    act_block *a = new_row(ACT_Q8_256, 256);
    act_quantize_row(CPU_SCALAR, ACT_Q8_256, x, 256, a);
    uint8_t *row32 = new_row(ACT_Q8_32, 256);
    act_quantize_row(CPU_SCALAR, ACT_Q8_32, x, 256, row32);
    for (int g = 0; g < 16; g++) {
        int sum = 0;
        for (int e = 0; e < 16; e++)
            sum += a->q[16 * g + e];
        assert_int_equal(a->sums16[g], sum);
    }
    for (int g = 0; g < 8; g++) {
        assert_int_equal(a->sums32[g], a->sums16[2 * g] + a->sums16[2 * g + 1]);
        int sum = 0;
        for (int e = 0; e < 32; e++)
            sum += act32_q(row32)[32 * g + e];
        assert_int_equal(act32_sums(row32, 256)[g], sum);
    }
    free(a);
    free(row32);
}

/* Worked example of the GGUF notes: the reference's quantized values of the first 32. */
static void worked_example_of_the_format_is_met(void **state) {
    (void)state;
    static const int8_t want[32] = {-95, -51, -6,  38,  83,  -127, -25, 19,  64,  -89, -44,
                                    0,   44,  89,  -64, -19, 25,   70,  -83, -38, 6,   51,
                                    95,  -57, -13, 32,  76,  -76,  -32, 13,  57,  -95};
    float x[32];
    for (int i = 0; i < 32; i++)
        x[i] = (float)((7 * i) % 31 - 15) / 8.0f;
    x[5] = -2.5f;
    uint8_t *row = new_row(ACT_Q8_32, 32);
    act_quantize_row(CPU_SCALAR, ACT_Q8_32, x, 32, row);
    assert_memory_equal(act32_q(row), want, 32);
    assert_true(act32_scales(row, 32)[0] == 2.5f / 127.0f);
    free(row);
}

static void zeros_and_subnormals_give_scale_zero(void **state) {
    (void)state;
    float x[256];
    for (int i = 0; i < 256; i++)
        x[i] = i % 2 ? 0.0f : -1e-40f;
    act_block *a = new_row(ACT_Q8_256, 256);
    for (cpu_tier tier = CPU_SCALAR; tier <= cpu_tier_best(); tier++) {
        act_quantize_row(tier, ACT_Q8_256, x, 256, a);
        assert_true(a->scale == 0.0f);
        for (int i = 0; i < 256; i++)
            assert_int_equal(a->q[i], 0);
    }
    free(a);
}

static void nan_and_infinity_show_in_the_scale(void **state) {
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    act_block *a = new_row(ACT_Q8_256, 256);
    uint8_t *row = new_row(ACT_Q8_32, 256);
    for (size_t k = 0; k < 4; k++) {
        for (cpu_tier tier = CPU_SCALAR; tier <= cpu_tier_best(); tier++) {
            float x[256];
            for (int i = 0; i < 256; i++)
                x[i] = 1.0f;
            x[77] = bad[k];
            act_quantize_row(tier, ACT_Q8_256, x, 256, a);
            assert_true(isnan(a->scale));
            assert_int_equal(a->q[0], 0);
            act_quantize_row(tier, ACT_Q8_32, x, 256, row);
            assert_true(isnan(act32_scales(row, 256)[2]));
            assert_false(isnan(act32_scales(row, 256)[1]));
        }
    }
    free(a);
    free(row);
}

static void every_tier_gives_the_same_bytes(void **state) {
    (void)state;
    static const size_t sizes[] = {32, 64, 96, 160, 256, 512, 1024, 2048};
    static float x[2048];
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        size_t n = sizes[s];
        for (int round = 0; round < 50; round++) {
            for (size_t i = 0; i < n; i++)
                x[i] = random_float() * (round % 3 ? 1.0f : 1e-20f);
            if (round == 1) memset(x, 0, n * sizeof x[0]);
            /* Ties: multiples of a half of the step. */
            if (round == 2) {
                for (size_t i = 0; i < n; i++)
                    x[i] = (float)((int)(i % 255) - 127) * 0.5f;
            }
            for (act_format format = ACT_Q8_256; format < ACT_FORMATS; format++) {
                if (format == ACT_Q8_256 && n % 256 != 0) continue;
                uint8_t *want = new_row(format, n), *got = new_row(format, n);
                act_quantize_row(CPU_SCALAR, format, x, n, want);
                for (cpu_tier tier = CPU_AVX2; tier <= cpu_tier_best(); tier++) {
                    act_quantize_row(tier, format, x, n, got);
                    assert_memory_equal(got, want, act_row_bytes(format, n));
                }
                free(want);
                free(got);
            }
        }
    }
}

static void float_rows_are_copied(void **state) {
    (void)state;
    float x[7] = {1, -2, NAN, 4, 5, 6, 7};
    assert_int_equal(act_row_bytes(ACT_F32, 7), 64);
    uint8_t *row = new_row(ACT_F32, 7);
    act_quantize_row(cpu_tier_best(), ACT_F32, x, 7, row);
    assert_memory_equal(row, x, sizeof x);
    free(row);
}

static void format_follows_the_block_of_the_type(void **state) {
    (void)state;
    assert_int_equal(act_format_of(QUANT_Q4_K), ACT_Q8_256);
    assert_int_equal(act_format_of(QUANT_IQ4_XS), ACT_Q8_256);
    assert_int_equal(act_format_of(QUANT_Q8_0), ACT_Q8_32);
    assert_int_equal(act_format_of(QUANT_MXFP4), ACT_Q8_32);
    assert_int_equal(act_format_of(QUANT_F16), ACT_F32);
    for (size_t n = 32; n <= 4096; n += 32)
        assert_int_equal(act_row_bytes(ACT_Q8_32, n) % 64, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_rounded_to_the_nearest_step),
        cmocka_unit_test(sums_are_those_of_the_values),
        cmocka_unit_test(worked_example_of_the_format_is_met),
        cmocka_unit_test(zeros_and_subnormals_give_scale_zero),
        cmocka_unit_test(nan_and_infinity_show_in_the_scale),
        cmocka_unit_test(every_tier_gives_the_same_bytes),
        cmocka_unit_test(float_rows_are_copied),
        cmocka_unit_test(format_follows_the_block_of_the_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
