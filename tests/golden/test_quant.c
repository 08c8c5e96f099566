/* test_quant.c - dequantization against recorded blocks, bit for bit.
 *
 * tests/golden/data/quant.json holds blocks of every quantized type with the
 * values that ggml gives them; the table below holds the blocks of a fixed fill.
 */
#include "common/half.h"
#include "kernels/matmul.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/files.h"

static size_t from_hex(const char *hex, uint8_t *out, size_t cap) {
    size_t n = strlen(hex) / 2;
    assert_true(n <= cap);
    for (size_t i = 0; i < n; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
        out[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return n;
}

static void compare_bits(const char *type, int block, int e, float got, double recorded) {
    float expected = (float)recorded;
    if (float_to_bits(got) == float_to_bits(expected)) return;
    fail_msg("%s block %d value %d: %.9g (%08x), expected %.9g (%08x)", type, block, e,
             (double)got, float_to_bits(got), (double)expected, float_to_bits(expected));
}

static void check_recorded_block(const char *name, quant_type type, int number,
                                 const cJSON *block) {
    uint8_t bytes[4096];
    float values[1024];
    size_t n_bytes =
        from_hex(cJSON_GetObjectItem(block, "hex")->valuestring, bytes, sizeof bytes);
    const cJSON *expected = cJSON_GetObjectItem(block, "values");
    int n = cJSON_GetArraySize(expected);
    assert_true(n > 0 && n <= 1024);
    assert_int_equal(quant_row_bytes(type, (size_t)n), n_bytes);
    dequantize_row(type, bytes, (size_t)n, values);
    int e = 0;
    const cJSON *value;
    cJSON_ArrayForEach(value, expected) {
        compare_bits(name, number, e, values[e], value->valuedouble);
        e++;
    }
}

/* A quantized type: its sizes and all of its blocks.  Returns how many. */
static int check_recorded_type(const cJSON *type, quant_type id) {
    const cJSON *blocks = cJSON_GetObjectItem(type, "blocks");
    if (blocks == NULL) { /* F16 and BF16: one run of values */
        check_recorded_block(type->string, id, 0, type);
        return 1;
    }
    const quant_traits *traits = quant_traits_of((uint32_t)id);
    assert_int_equal(traits->block_values, cJSON_GetObjectItem(type, "block_values")->valueint);
    assert_int_equal(traits->block_bytes, cJSON_GetObjectItem(type, "block_bytes")->valueint);
    int number = 0;
    const cJSON *block;
    cJSON_ArrayForEach(block, blocks) {
        check_recorded_block(type->string, id, number++, block);
    }
    return number;
}

static void every_recorded_block_is_bit_equal(void **state) {
    (void)state;
    cJSON *root = read_json("tests/golden/data/quant.json");
    int n_blocks = 0;
    int n_types = 0;
    const cJSON *type;
    cJSON_ArrayForEach(type, cJSON_GetObjectItem(root, "types")) {
        quant_type id;
        assert_true(quant_type_by_name(type->string, &id));
        assert_int_equal(id, cJSON_GetObjectItem(type, "type_id")->valueint);
        n_blocks += check_recorded_type(type, id);
        n_types++;
    }
    cJSON_Delete(root);
    assert_int_equal(n_types, 15);
    assert_true(n_blocks >= 150);
}

/* Bytes of the block are (37 i + 11) mod 256; then the scale is 0.5 and the
 * minimum 0.25 (MXFP4: exponent 127). */
typedef struct filled_block {
    quant_type type;
    int d_at, dmin_at; /* -1: none */
    double sum;
    struct {
        int index;
        double value;
    } values[16]; /* ends at the first repeated index 0 */
} filled_block;

static const filled_block filled[] = {
    {QUANT_Q4_0, 0, -1, -10.5, {{0, -1.5}, {1, 1}, {15, -4}, {16, -1.5}, {17, -0.5}, {31, 0}}},
    {QUANT_Q8_0,
     0,
     -1,
     -88,
     {{0, 42.5}, {1, 61}, {15, -64}, {16, -45.5}, {17, -27}, {31, -24}}},
    {QUANT_IQ4_NL,
     0,
     -1,
     -128.5,
     {{0, -17.5}, {1, 12.5}, {15, -63.5}, {16, -17.5}, {17, -5}, {31, 0.5}}},
    {QUANT_MXFP4, -1, -1, 12.5, {{0, 0}, {1, 3}, {15, -1.5}, {16, 1.5}, {17, 3}, {31, 3}}},
    {QUANT_Q2_K,
     80,
     82,
     1029.5,
     {{0, 16.5},
      {1, 0},
      {15, 11},
      {16, -0.75},
      {32, 3.75},
      {63, 3.25},
      {64, 5.25},
      {96, 1},
      {127, 21},
      {128, 3.75},
      {160, 11.25},
      {200, 4},
      {255, 2.25}}},
    {QUANT_Q3_K,
     108,
     -1,
     479,
     {{0, 40.5},
      {1, -54},
      {15, -27},
      {16, -48},
      {17, 64},
      {31, 32},
      {32, -11},
      {63, 5},
      {64, 17},
      {96, 25},
      {127, 36},
      {128, 1},
      {160, 13},
      {200, 12.5},
      {255, 21}}},
    {QUANT_Q4_K,
     0,
     2,
     27220,
     {{0, 157.75},
      {1, -12.75},
      {15, 80.25},
      {16, 157.75},
      {31, 80.25},
      {32, 4},
      {63, 20},
      {64, 210.25},
      {96, 96.5},
      {127, 40.5},
      {128, 211.5},
      {160, 262.5},
      {200, 69.25},
      {255, 24.25}}},
    {QUANT_Q5_K,
     0,
     2,
     58108,
     {{0, 405.75},
      {1, -12.75},
      {15, 80.25},
      {16, 405.75},
      {32, 56},
      {63, 40},
      {64, 210.25},
      {96, 166.5},
      {127, -1.5},
      {128, 523.5},
      {160, 82.5},
      {200, 69.25},
      {255, 54.25}}},
    {QUANT_Q6_K,
     208,
     -1,
     2306,
     {{0, -715.5},
      {1, 848},
      {15, -159},
      {16, -216},
      {17, 256},
      {31, -48},
      {32, 115.5},
      {63, -290},
      {64, -1520},
      {96, -435},
      {127, 750},
      {128, -175.5},
      {160, 335.5},
      {200, 544.5},
      {255, -30}}},
    {QUANT_IQ4_XS,
     0,
     -1,
     -5502.5,
     {{0, 32.5},
      {1, -0.5},
      {15, -44.5},
      {16, 32.5},
      {17, 17.5},
      {32, 227.5},
      {63, -87.5},
      {64, 390},
      {96, 130},
      {127, 98},
      {128, -292.5},
      {160, -455},
      {200, 570},
      {255, -8}}},
};

static void fill_block(const filled_block *f, uint8_t *b, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++)
        b[i] = (uint8_t)(37 * i + 11);
    if (f->type == QUANT_MXFP4) b[0] = 127;
    static const uint8_t half[2] = {0x00, 0x38};
    static const uint8_t quarter[2] = {0x00, 0x34};
    if (f->d_at >= 0) memcpy(b + f->d_at, half, 2);
    if (f->dmin_at >= 0) memcpy(b + f->dmin_at, quarter, 2);
}

static void filled_blocks_have_the_computed_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof filled / sizeof filled[0]; i++) {
        const filled_block *f = &filled[i];
        const quant_traits *traits = quant_traits_of((uint32_t)f->type);
        uint8_t bytes[256];
        float values[256];
        fill_block(f, bytes, traits->block_bytes);
        dequantize_row(f->type, bytes, traits->block_values, values);
        for (int k = 0; k < 16 && (k == 0 || f->values[k].index != 0); k++) {
            compare_bits(traits->name, 0, f->values[k].index, values[f->values[k].index],
                         f->values[k].value);
        }
        double sum = 0;
        for (uint32_t e = 0; e < traits->block_values; e++)
            sum += (double)values[e];
        if (sum != f->sum) fail_msg("%s: sum %.9g, expected %.9g", traits->name, sum, f->sum);
    }
}

static void float_types_have_the_given_values(void **state) {
    (void)state;
    static const uint16_t halves[] = {0x3C00, 0x0001, 0x0400, 0x7BFF, 0xC000, 0x3555};
    static const float half_values[] = {1, 0x1p-24f, 0x1p-14f, 65504, -2, 0.333251953125f};
    static const uint16_t brains[] = {0x3F80, 0xC049, 0x0080};
    static const float brain_values[] = {1, -3.140625f, 0x1p-126f};
    float out[6];
    dequantize_row(QUANT_F16, halves, 6, out);
    assert_memory_equal(out, half_values, sizeof half_values);
    dequantize_row(QUANT_BF16, brains, 3, out);
    assert_memory_equal(out, brain_values, sizeof brain_values);
    dequantize_row(QUANT_F32, half_values, 6, out);
    assert_memory_equal(out, half_values, sizeof half_values);
}

static void every_half_survives_the_way_through_float(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        if ((h & 0x7C00) == 0x7C00 && (h & 0x3FF) != 0) {
            assert_int_equal(half_from_float(half_to_float((uint16_t)h)) & 0x7E00, 0x7E00);
        } else {
            assert_int_equal(half_from_float(half_to_float((uint16_t)h)), h);
        }
        if ((h & 0x7F80) == 0x7F80 && (h & 0x7F) != 0) continue;
        assert_int_equal(bf16_from_float(bf16_to_float((uint16_t)h)), h);
    }
}

/* Between two neighbours the middle goes to the even one, and one unit of
 * float32 to either side of it to the nearer one: normal and subnormal alike. */
static void halves_round_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7BFF; h++) {
        float low = half_to_float((uint16_t)h);
        float high = half_to_float((uint16_t)(h + 1));
        float middle = low + (high - low) * 0.5f; /* exact */
        uint32_t bits = float_to_bits(middle);
        assert_int_equal(half_from_float(middle), h + (h & 1));
        assert_int_equal(half_from_float(float_from_bits(bits - 1)), h);
        assert_int_equal(half_from_float(float_from_bits(bits + 1)), h + 1);
        assert_int_equal(half_from_float(-middle), 0x8000 | (h + (h & 1)));
    }
    assert_int_equal(half_from_float(65519.0f), 0x7BFF);
    assert_int_equal(half_from_float(65520.0f), 0x7C00);
    assert_int_equal(half_from_float(3e38f), 0x7C00);
    assert_int_equal(half_from_float(0x1p-26f), 0);
    assert_int_equal(bf16_from_float(float_from_bits(0x3F808000)), 0x3F80);
    assert_int_equal(bf16_from_float(float_from_bits(0x3F818000)), 0x3F82);
    assert_int_equal(bf16_from_float(float_from_bits(0x3F808001)), 0x3F81);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_recorded_block_is_bit_equal),
        cmocka_unit_test(filled_blocks_have_the_computed_values),
        cmocka_unit_test(float_types_have_the_given_values),
        cmocka_unit_test(every_half_survives_the_way_through_float),
        cmocka_unit_test(halves_round_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
