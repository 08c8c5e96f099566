/* test_gguf.c - well-formed files read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/gguf_image.h"
#include <string.h>

static void check_key_values(const gguf_file *file) {
    gguf_string text;
    uint64_t natural;
    int64_t whole;
    bool on;
    double real;
    assert_true(gguf_read_string(gguf_find_key(file, "general.architecture"), &text));
    assert_int_equal(text.length, 6);
    assert_memory_equal(text.bytes, "qwen35", 6);
    assert_true(gguf_read_u64(gguf_find_key(file, "general.alignment"), &natural));
    assert_int_equal(natural, 32);
    assert_true(gguf_read_f64(gguf_find_key(file, "general.alignment"), &real));
    assert_true(real == 32.0);
    assert_true(gguf_read_bool(gguf_find_key(file, "a.bool"), &on) && on);
    assert_false(gguf_read_u64(gguf_find_key(file, "a.bool"), &natural));
    assert_false(gguf_read_u64(gguf_find_key(file, "a.list"), &natural));
    assert_false(gguf_read_u64(gguf_find_key(file, "general.architecture"), &natural));
    assert_false(gguf_read_string(gguf_find_key(file, "twin1"), &text));
    assert_true(gguf_read_i64(gguf_find_key(file, "twin2"), &whole));
    assert_int_equal(whole, 8);
    assert_null(gguf_find_key(file, "twin"));
    assert_null(gguf_find_key(file, ""));
    assert_false(gguf_read_u64(NULL, &natural));
}

static void check_items(const gguf_file *file) {
    int64_t whole;
    double real;
    gguf_string text;
    gguf_cursor cursor = {0};
    const gguf_key *list = gguf_find_key(file, "a.list");
    const gguf_key *words = gguf_find_key(file, "a.words");
    assert_true(gguf_item_i64(list, 0, &whole));
    assert_int_equal(whole, -5);
    assert_true(gguf_item_f64(list, 1, &real));
    assert_true(real == 7.0);
    assert_false(gguf_item_i64(list, 2, &whole));
    assert_false(gguf_item_i64(words, 0, &whole));
    assert_true(gguf_item_i64(gguf_find_key(file, "a.bools"), 1, &whole));
    assert_int_equal(whole, 0);
    assert_true(gguf_next_string(words, &cursor, &text));
    assert_memory_equal(text.bytes, "one", 3);
    assert_true(gguf_next_string(words, &cursor, &text));
    assert_int_equal(text.length, 0);
    assert_false(gguf_next_string(words, &cursor, &text));
    assert_false(gguf_next_string(list, &cursor, &text));
}

static void versions_2_and_3_read_the_same(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        image m = image_build(version);
        gguf_file *file = NULL;
        error err = {STATUS_OK, ""};
        if (open_bytes(&file, m.bytes, m.length, &err) != STATUS_OK) fail_msg("%s", err.text);
        assert_int_equal(gguf_version(file), version);
        assert_int_equal(gguf_n_keys(file), 8);
        assert_int_equal(gguf_n_tensors(file), 2);
        assert_int_equal(gguf_n_shards(file), 1);
        assert_int_equal(gguf_data_start(file, 0), m.at[AT_DATA]);
        check_key_values(file);
        check_items(file);
        const gguf_tensor *t = gguf_find_tensor(file, "t1");
        assert_non_null(t);
        assert_ptr_equal(t, gguf_tensor_at(file, 1));
        assert_int_equal(t->n_bytes, 32);
        assert_int_equal(t->file_offset, m.at[AT_DATA] + 96);
        assert_int_equal(t->ne[0], 4);
        assert_int_equal(t->ne[3], 1);
        assert_int_equal(gguf_find_tensor(file, "t0")->n_bytes, 68);
        assert_null(gguf_find_tensor(file, "t2"));
        gguf_close(file);
    }
}

/* 192 bytes: version 3, one tensor of {4, 2} float32 holding 0..7, two keys. */
static void the_worked_example_reads_as_described(void **state) {
    (void)state;
    image m = {.length = 0};
    image_put(&m, "GGUF\x03\x00\x00\x00", 8);
    image_put_u64(&m, 1);
    image_put_u64(&m, 2);
    image_put_key(&m, "general.architecture", GGUF_STRING);
    image_put_text(&m, "qwen35");
    image_put_key(&m, "general.alignment", GGUF_U32);
    image_put_u32(&m, 32);
    assert_int_equal(m.length, 103);
    image_put_text(&m, "t");
    image_put_u32(&m, 2);
    image_put_u64(&m, 4);
    image_put_u64(&m, 2);
    image_put_u32(&m, QUANT_F32);
    image_put_u64(&m, 0);
    assert_int_equal(m.length, 144);
    m.length = 160;
    for (int i = 0; i < 8; i++) {
        float value = (float)i;
        image_put(&m, &value, sizeof value);
    }
    gguf_file *file = NULL;
    error err = {STATUS_OK, ""};
    assert_int_equal(open_bytes(&file, m.bytes, m.length, &err), STATUS_OK);
    assert_int_equal(gguf_data_start(file, 0), 160);
    float values[8];
    memcpy(values, gguf_find_tensor(file, "t")->data, sizeof values);
    assert_true(values[0] == 0.0f && values[7] == 7.0f);
    gguf_close(file);
}

static void every_integer_width_reads_by_value(void **state) {
    (void)state;
    static const struct {
        uint64_t bits;
        int64_t value;
        gguf_kind kind;
        bool natural;
    } cases[] = {
        {0xFF, 255, GGUF_U8, true},
        {0xFF, -1, GGUF_I8, false},
        {0xFFFF, 65535, GGUF_U16, true},
        {0x8000, -32768, GGUF_I16, false},
        {0xFFFFFFFF, 4294967295, GGUF_U32, true},
        {0xFFFFFFFE, -2, GGUF_I32, false},
        {INT64_MAX, INT64_MAX, GGUF_U64, true},
        {UINT64_MAX, -1, GGUF_I64, false},
        {5, 5, GGUF_I64, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_key key = {.kind = cases[i].kind, .payload = &cases[i].bits};
        uint64_t natural = 0;
        int64_t whole = 0;
        assert_true(gguf_read_i64(&key, &whole));
        assert_int_equal(whole, cases[i].value);
        assert_int_equal(gguf_read_u64(&key, &natural), cases[i].natural);
        if (cases[i].natural) assert_int_equal(natural, cases[i].value);
    }
    uint64_t large = (uint64_t)1 << 63;
    gguf_key key = {.kind = GGUF_U64, .payload = &large};
    int64_t whole;
    uint64_t natural;
    assert_false(gguf_read_i64(&key, &whole));
    assert_true(gguf_read_u64(&key, &natural) && natural == large);
}

static void the_hash_sees_every_part(void **state) {
    (void)state;
    static const mark parts[] = {AT_BOOL, AT_FIRST, AT_DATA};
    image m = image_build(3);
    char first[33];
    char other[33];
    gguf_file *file = NULL;
    error err;
    assert_int_equal(open_bytes(&file, m.bytes, m.length, &err), STATUS_OK);
    gguf_hash(file, first);
    gguf_close(file);
    assert_int_equal(strlen(first), 32);
    for (size_t i = 0; i < 3; i++) {
        image changed = m;
        changed.bytes[changed.at[parts[i]]] ^= 1;
        assert_int_equal(open_bytes(&file, changed.bytes, changed.length, &err), STATUS_OK);
        gguf_hash(file, other);
        gguf_close(file);
        assert_string_not_equal(first, other);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_2_and_3_read_the_same),
        cmocka_unit_test(the_worked_example_reads_as_described),
        cmocka_unit_test(every_integer_width_reads_by_value),
        cmocka_unit_test(the_hash_sees_every_part),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
