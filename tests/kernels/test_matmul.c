/* test_matmul.c - the matrix kernels: the same bits for every tier, batch and cut, and the right ones. */
#include "kernels/cpu/act_layout.h"
#include "kernels/matmul.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h> /* needs the headers above */

#include "tests/kernels/matmul_case.h"

static const size_t token_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 63, 64};
#define N_TOKEN_COUNTS (sizeof token_counts / sizeof token_counts[0])

static float *new_floats(size_t n) {
    float *f = malloc((n + 1) * sizeof *f);
    assert_non_null(f);
    memset(f, 0xff, (n + 1) * sizeof *f); /* NaN where nothing is written */
    return f;
}

static void run_job(cpu_tier tier, const matmul_job *job, size_t n_chunks, void *scratch) {
    for (size_t chunk = 0; chunk < n_chunks; chunk++)
        matmul_chunk(tier, job, n_chunks - 1 - chunk, n_chunks, scratch);
}

/* The oracle, one token at a time. */
static float *reference_of(const matmul_case *c) {
    float *want = new_floats(c->n_tokens * c->n_rows);
    for (size_t t = 0; t < c->n_tokens; t++) {
        matmul_job job = case_job(c, 1, want + t * c->n_rows);
        job.acts = c->acts + t * c->act_stride;
        run_job(CPU_SCALAR, &job, 1, c->scratch);
    }
    return want;
}

static void expect_bits(const matmul_case *c, const char *what, cpu_tier tier, size_t n_tokens,
                        const float *got, const float *want) {
    for (size_t i = 0; i < n_tokens * c->n_rows; i++) {
        if (memcmp(&got[i], &want[i], 4) == 0) continue;
        fail_msg("%s %s, tier %s, format %d: %zu rows, %zu cols, token %zu of %zu, row %zu: "
                 "%.9g instead of %.9g",
                 what, quant_traits_of((uint32_t)c->type)->name, cpu_tier_name(tier), c->format,
                 c->n_rows, c->n_cols, i / c->n_rows, n_tokens, i % c->n_rows, (double)got[i],
                 (double)want[i]);
    }
}

static void expect_same_bits_everywhere(const matmul_case *c) {
    float *want = reference_of(c);
    for (cpu_tier tier = CPU_SCALAR; tier <= cpu_tier_best(); tier++) {
        for (size_t k = 0; k < N_TOKEN_COUNTS; k++) {
            size_t n = token_counts[k];
            if (n > c->n_tokens) continue;
            /* The oracle takes long: two of its batches are enough. */
            if (tier == CPU_SCALAR && n != 5 && n != 2) continue;
            float *got = new_floats(n * c->n_rows);
            matmul_job job = case_job(c, n, got);
            run_job(tier, &job, 1, c->scratch);
            expect_bits(c, "one chunk", tier, n, got, want);
            memset(got, 0xff, n * c->n_rows * sizeof *got);
            run_job(tier, &job, 3, c->scratch);
            expect_bits(c, "three chunks", tier, n, got, want);
            free(got);
        }
    }
    free(want);
}

static size_t block_of(quant_type type) {
    return quant_traits_of((uint32_t)type)->block_values;
}

static void check_sizes(quant_type type, act_format format) {
    static const size_t rows[] = {1, 3, 5, 16, 17, 33, 97};
    static const size_t cols_256[] = {256, 512, 1280, 0};
    static const size_t cols_32[] = {32, 64, 96, 128, 160, 544, 1056, 0};
    static const size_t cols_1[] = {1, 7, 16, 100, 256, 0};
    size_t block = block_of(type);
    const size_t *cols = block == 256 ? cols_256 : block == 32 ? cols_32 : cols_1;
    for (size_t i = 0; cols[i] != 0; i++) {
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            matmul_case c;
            case_make(&c, type, format, rows[r], cols[i], rows[r] == 33 ? 64 : 8);
            expect_same_bits_everywhere(&c);
            case_release(&c);
        }
    }
}

static void integer_path_gives_the_oracles_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TYPES; i++)
        check_sizes(all_types[i], act_format_of(all_types[i]));
}

static const act_format scaled[] = {ACT_STEP_16, ACT_STEP_32, ACT_Q8_16_PAIRS};
enum { N_SCALED = sizeof scaled / sizeof scaled[0] };

static void scales_of_16_columns_give_the_oracles_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TYPES; i++) {
        for (size_t f = 0; f < N_SCALED && block_of(all_types[i]) > 1; f++)
            check_sizes(all_types[i], scaled[f]);
    }
}

static void float_path_gives_the_oracles_bits_for_quantized_types(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TYPES; i++) {
        if (block_of(all_types[i]) == 1) continue;
        matmul_case c;
        case_make(&c, all_types[i], ACT_F32, 33, 256, 8);
        expect_same_bits_everywhere(&c);
        case_release(&c);
    }
}

static void large_matrices_give_the_oracles_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TYPES; i++) {
        matmul_case c;
        case_make(&c, all_types[i], act_format_of(all_types[i]), 512, 2048, 2);
        expect_same_bits_everywhere(&c);
        case_release(&c);
    }
}

/* More columns than are unpacked at once, and more tokens than wait at once. */
static void pieces_of_columns_and_batches_of_tokens_do_not_show(void **state) {
    (void)state;
    static const quant_type types[] = {QUANT_Q4_K, QUANT_Q6_K, QUANT_Q8_0};
    for (size_t i = 0; i < 3 * (1 + N_SCALED); i++) {
        matmul_case c;
        const quant_type type = types[i % 3];
        const act_format format = i < 3 ? act_format_of(type) : scaled[i / 3 - 1];
        size_t n_cols = 4096 + (type == QUANT_Q8_0 ? 96 : 512);
        case_make(&c, type, format, 18, n_cols, i < 3 ? 260 : 130);
        float *want = reference_of(&c);
        for (cpu_tier tier = CPU_AVX2; tier <= cpu_tier_best(); tier++) {
            float *got = new_floats(c.n_tokens * c.n_rows);
            matmul_job job = case_job(&c, c.n_tokens, got);
            run_job(tier, &job, 1, c.scratch);
            expect_bits(&c, "pieces", tier, c.n_tokens, got, want);
            free(got);
        }
        free(want);
        case_release(&c);
    }
}

static void extreme_values_do_not_saturate(void **state) {
    (void)state;
    static const uint8_t fills[] = {0x00, 0xff, 0x80, 0x7f, 0xf0, 0x0f};
    enum { FORMATS = 1 + N_SCALED };
    for (size_t i = 0; i < FORMATS * N_TYPES; i++) {
        const quant_type type = all_types[i / FORMATS];
        const size_t f = i % FORMATS;
        if (block_of(type) == 1) continue;
        matmul_case c;
        case_make(&c, type, f == 0 ? act_format_of(type) : scaled[f - 1], 16, 512, 16);
        /* Activations at both ends of the range, the same sign over whole groups. */
        for (size_t t = 0; t < c.n_tokens; t++) {
            for (size_t k = 0; k < c.n_cols; k++)
                c.x[t * c.n_cols + k] = (k >> t & 1) ? -1.0f : 1.0f;
            act_quantize_row(CPU_SCALAR, c.format, c.x + t * c.n_cols, c.n_cols,
                             c.acts + t * c.act_stride);
        }
        const quant_traits *traits = quant_traits_of((uint32_t)c.type);
        for (size_t k = 0; k < c.n_rows * c.n_cols / traits->block_values; k++) {
            uint8_t *b = c.weights + k * traits->block_bytes;
            uint8_t keep[256];
            memcpy(keep, b, traits->block_bytes);
            memset(b, fills[k % 6], traits->block_bytes);
            /* The scales of case_fill_block stay: they are at the start or the end. */
            size_t at = c.type == QUANT_Q2_K   ? 80
                        : c.type == QUANT_Q3_K ? 108
                        : c.type == QUANT_Q6_K ? 208
                                               : 0;
            size_t n = traits->block_bytes - at < 4 ? traits->block_bytes - at : 4;
            if (c.type == QUANT_MXFP4) n = 1;
            memcpy(b + at, keep + at, n);
        }
        expect_same_bits_everywhere(&c);
        case_release(&c);
    }
}

static void gather_and_scatter_follow_the_row_lists(void **state) {
    (void)state;
    static const int32_t act_rows[7] = {4, 0, 0, 6, 2, 5, 1};
    static const int32_t out_rows[7] = {8, 3, 0, 1, 6, 2, 7};
    for (size_t i = 0; i < N_TYPES; i++) {
        matmul_case c;
        case_make(&c, all_types[i], act_format_of(all_types[i]), 37, 256, 7);
        float *want = reference_of(&c);
        for (cpu_tier tier = CPU_SCALAR; tier <= cpu_tier_best(); tier++) {
            for (size_t n = 2; n <= 7; n += 5) {
                float *got = new_floats(9 * 40);
                matmul_job job = case_job(&c, n, got);
                job.out_stride = 40;
                job.act_rows = act_rows;
                job.out_rows = out_rows;
                run_job(tier, &job, 2, c.scratch);
                for (size_t t = 0; t < n; t++) {
                    expect_bits(&c, "gather", tier, 1, got + 40 * out_rows[t],
                                want + c.n_rows * (size_t)act_rows[t]);
                    for (size_t r = 37; r < 40; r++)
                        assert_true(isnan(got[40 * (size_t)out_rows[t] + r]));
                }
                for (size_t r = 0; r < 40; r++)
                    assert_true(isnan(got[4 * 40 + r]) && isnan(got[5 * 40 + r]));
                free(got);
            }
        }
        free(want);
        case_release(&c);
    }
}

/* What the kernel should compute, in float64, and the sum of magnitudes for the tolerance. */
static double exact_dot(const float *w, const float *x, size_t n, double *magnitude) {
    double sum = 0;
    *magnitude = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)w[i] * (double)x[i];
        *magnitude += fabs((double)w[i] * (double)x[i]);
    }
    return sum;
}

/* The value that an activation row stands for after quantization. */
static void expand_acts(const matmul_case *c, size_t token, float *x) {
    const uint8_t *row = c->acts + token * c->act_stride;
    for (size_t i = 0; i < c->n_cols; i++) {
        const act_block *b = (const void *)row;
        if (c->format == ACT_Q8_256) {
            const act_block *block = &b[i / 256];
            x[i] = block->scale * (float)block->q[i % 256];
        } else if (c->format == ACT_Q8_32) {
            const size_t group = i / 32;
            x[i] = act32_scales(row, c->n_cols)[group] * (float)act32_q(row)[i];
        } else if (c->format != ACT_F32) {
            x[i] = act16_scales(row, c->n_cols)[i / 16] * (float)act32_q(row)[i];
        } else {
            x[i] = c->x[token * c->n_cols + i];
        }
    }
}

static void results_are_those_of_float64(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TYPES; i++) {
        const act_format formats[] = {ACT_F32, act_format_of(all_types[i]), ACT_STEP_16,
                                      ACT_STEP_32, ACT_Q8_16_PAIRS};
        for (int path = 0; path < (block_of(all_types[i]) == 1 ? 1 : 5); path++) {
            matmul_case c;
            case_make(&c, all_types[i], formats[path], 20, 1024, 3);
            float *got = new_floats(c.n_tokens * c.n_rows);
            float *w = new_floats(c.n_cols), *x = new_floats(c.n_cols);
            matmul_job job = case_job(&c, c.n_tokens, got);
            run_job(cpu_tier_best(), &job, 1, c.scratch);
            for (size_t k = 0; k < c.n_tokens * c.n_rows; k++) {
                size_t token = k / c.n_rows, row = k % c.n_rows;
                dequantize_row(c.type, c.weights + row * job.row_bytes, c.n_cols, w);
                expand_acts(&c, token, x);
                double magnitude, want = exact_dot(w, x, c.n_cols, &magnitude);
                /* The kernel against its own activations: some roundings of float32. */
                assert_true(fabs((double)got[k] - want) <= 2e-6 * magnitude);
            }
            free(got);
            free(w);
            free(x);
            case_release(&c);
        }
    }
}

static void fast_dequantization_gives_the_plain_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TYPES; i++) {
        matmul_case c;
        case_make(&c, all_types[i], ACT_F32, 40, 512, 1);
        size_t n = c.n_rows * c.n_cols;
        float *want = new_floats(n), *got = new_floats(n);
        dequantize_row(c.type, c.weights, n, want);
        for (cpu_tier tier = CPU_SCALAR; tier <= cpu_tier_best(); tier++) {
            memset(got, 0xff, n * sizeof *got);
            dequantize_row_fast(tier, c.type, c.weights, n, got);
            expect_bits(&c, "dequantize", tier, 1, got, want);
            assert_memory_equal(got, want, n * sizeof *got);
        }
        free(want);
        free(got);
        case_release(&c);
    }
}

static void chunk_counts_fit_the_work(void **state) {
    (void)state;
    matmul_case c;
    case_make(&c, QUANT_Q4_K, ACT_Q8_256, 4096, 256, 64);
    matmul_job job = case_job(&c, 1, NULL);
    assert_int_equal(matmul_n_chunks(CPU_AVX512, &job, 1), 1);
    size_t chunks = matmul_n_chunks(CPU_AVX512, &job, 2);
    assert_true(chunks >= 2 && chunks <= 64);
    job.n_rows = 256;
    assert_int_equal(matmul_n_chunks(CPU_AVX512, &job, 2), 1);
    job.n_tokens = 64;
    chunks = matmul_n_chunks(CPU_AVX512, &job, 2);
    assert_true(chunks >= 2 && chunks <= 8);
    case_release(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integer_path_gives_the_oracles_bits),
        cmocka_unit_test(scales_of_16_columns_give_the_oracles_bits),
        cmocka_unit_test(float_path_gives_the_oracles_bits_for_quantized_types),
        cmocka_unit_test(large_matrices_give_the_oracles_bits),
        cmocka_unit_test(pieces_of_columns_and_batches_of_tokens_do_not_show),
        cmocka_unit_test(extreme_values_do_not_saturate),
        cmocka_unit_test(gather_and_scatter_follow_the_row_lists),
        cmocka_unit_test(results_are_those_of_float64),
        cmocka_unit_test(fast_dequantization_gives_the_plain_bits),
        cmocka_unit_test(chunk_counts_fit_the_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
