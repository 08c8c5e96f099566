/* test_gguf_lies.c - every lie of a file is refused by field and value.
 *
 * A case patches one field and says what the error must contain.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/gguf_image.h"
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void expect_refused(const char *what, const image *m, const char *field,
                           const char *value) {
    gguf_file *file = NULL;
    error err = {STATUS_OK, ""};
    status rc = open_bytes(&file, m->bytes, m->length, &err);
    gguf_close(file);
    if (rc != STATUS_BAD_INPUT) fail_msg("%s: status %s", what, status_name(rc));
    if (strstr(err.text, "m.gguf") == NULL || strstr(err.text, field) == NULL ||
        strstr(err.text, value) == NULL) {
        fail_msg("%s: '%s' lacks '%s' or '%s'", what, err.text, field, value);
    }
}

typedef struct lie {
    const char *what;
    mark where;
    uint64_t value;
    size_t n_bytes; /* of value that are written there */
    const char *field, *shown;
} lie;

static const lie lies[] = {
    {"other magic", AT_MAGIC, 'X', 1, "magic", "58 47 55 46"},
    {"version 0", AT_VERSION, 0, 4, "version", "is 0"},
    {"version 1", AT_VERSION, 1, 4, "version", "is 1"},
    {"version 4", AT_VERSION, 4, 4, "version", "is 4"},
    {"big-endian", AT_VERSION, 0x03000000, 4, "version", "endian"},
    {"tensor count huge", AT_N_TENSORS, UINT64_MAX, 8, "tensor_count", "18446744073709551615"},
    {"tensor count beyond the file", AT_N_TENSORS, 1000, 8, "tensor_count", "1000"},
    {"one tensor too many", AT_N_TENSORS, 3, 8, "tensor 2", "name"},
    {"key count huge", AT_N_KEYS, UINT64_MAX / 2, 8, "kv_count", "9223372036854775807"},
    {"key count beyond the file", AT_N_KEYS, 900, 8, "kv_count", "900"},
    {"one key too many", AT_N_KEYS, 9, 8, "tensor 0: name", "is more than 63"},
    {"key length huge", AT_KEY_LENGTH, UINT64_MAX, 8, "key 0", "18446744073709551615"},
    {"key length beyond the file", AT_KEY_LENGTH, 5000, 8, "key 0: name", "5000"},
    {"key empty", AT_KEY_LENGTH, 0, 8, "key 0", "empty"},
    {"value kind unknown", AT_KEY_KIND, 13, 4, "key general.architecture: value type", "13"},
    {"text length huge", AT_TEXT_LENGTH, UINT64_MAX - 7, 8, "key general.architecture: value",
     "18446744073709551608"},
    {"text beyond the file", AT_TEXT_LENGTH, 4000, 8, "key general.architecture: value",
     "4000"},
    {"alignment 0", AT_ALIGN, 0, 4, "key general.alignment", "0 is not"},
    {"alignment 4", AT_ALIGN, 4, 4, "key general.alignment", "4 is not"},
    {"alignment 48", AT_ALIGN, 48, 4, "key general.alignment", "48 is not"},
    {"alignment 2^31", AT_ALIGN, (uint64_t)1 << 31, 4, "key general.alignment", "2147483648"},
    {"alignment a float", AT_ALIGN_KIND, GGUF_F32, 4, "key general.alignment", "f32"},
    {"alignment negative", AT_ALIGN_KIND, (uint64_t)0xFFFFFF00 << 32 | GGUF_I32, 8,
     "key general.alignment", "i32"},
    {"bool 2", AT_BOOL, 2, 1, "key a.bool", "bool is 2"},
    {"bool 255 in an array", AT_BOOLS, 0x00FF01, 3, "key a.bools: value 1", "bool is 255"},
    {"array of arrays", AT_LIST_KIND, GGUF_ARRAY, 4, "key a.list", "array of arrays"},
    {"array of unknown kind", AT_LIST_KIND, 99, 4, "key a.list: array item type", "99"},
    {"array count overflows", AT_LIST_COUNT, (uint64_t)1 << 62, 8, "key a.list: array count",
     "4611686018427387904"},
    {"array count beyond the file", AT_LIST_COUNT, 100000, 8, "key a.list", "100000"},
    {"string count beyond the file", AT_WORDS_COUNT, 100000, 8, "key a.words: array count",
     "100000"},
    {"string item beyond the file", AT_WORD_LENGTH, 4000, 8, "key a.words: array item", "4000"},
    {"key twice", AT_SECOND, 0x31, 0, "key twin1", "twice"},
    {"tensor name too long", AT_T0_LENGTH, 64, 8, "tensor 0: name", "64 is more than 63"},
    {"tensor name empty", AT_T0_LENGTH, 0, 8, "tensor 0: name", "empty"},
    {"tensor name with a zero byte", AT_T0_NAME, 0, 1, "tensor 0: name '?0'", "zero byte"},
    {"tensor twice", AT_T1_NAME, 0x3074, 2, "tensor t0", "twice"},
    {"5 dimensions", AT_T0_DIMS, 5, 4, "tensor t0: n_dims", "5"},
    {"dimension 0", AT_T0_NE1, 0, 8, "tensor t0: ne[1]", "is 0"},
    {"dimension negative", AT_T0_NE1, UINT64_MAX, 8, "tensor t0: ne[1]",
     "18446744073709551615"},
    {"dimensions overflow", AT_T0_NE1, (uint64_t)1 << 60, 8, "tensor t0: ne[1]",
     "1152921504606846976"},
    {"no whole block", AT_T0_NE0, 33, 8, "tensor t0: ne[0]", "33"},
    {"size overflows", AT_T1_NE1, (uint64_t)1 << 60, 8, "tensor t1", "4611686018427387904"},
    {"type unknown", AT_T1_TYPE, 4, 4, "tensor t1: type", "4 is not known"},
    {"type far away", AT_T1_TYPE, UINT32_MAX, 4, "tensor t1: type", "4294967295"},
    {"offset not aligned", AT_T1_OFFSET, 97, 8, "tensor t1: offset", "97"},
    {"offset past the end", AT_T1_OFFSET, 128, 8, "tensor t1: offset 128", "needs"},
    {"offset overflows", AT_T1_OFFSET, UINT64_MAX - 31, 8, "tensor t1: offset",
     "18446744073709551584"},
    {"tensors overlap", AT_T1_OFFSET, 64, 8, "tensor t1: offset 64", "overlaps tensor t0"},
    {"same offset", AT_T1_OFFSET, 0, 8, "offset 0", "overlaps"},
    {"size past the end", AT_T1_NE1, 3, 8, "tensor t1", "needs"},
};

static void patch(image *m, mark where, uint64_t value, size_t n_bytes) {
    memcpy(m->bytes + m->at[where], &value, n_bytes);
}

static void every_lie_is_refused_by_field_and_value(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        image m = image_build(3);
        if (strcmp(lies[i].what, "key twice") == 0)
            m.bytes[m.at[AT_SECOND] + 4] = '1';
        else
            patch(&m, lies[i].where, lies[i].value, lies[i].n_bytes);
        expect_refused(lies[i].what, &m, lies[i].field, lies[i].shown);
    }
}

/* Control characters of a stranger's name never reach the terminal. */
static void names_in_errors_are_printable(void **state) {
    (void)state;
    image m = image_build(3);
    memcpy(m.bytes + m.at[AT_T0_NAME], "\x1b\xff", 2);
    patch(&m, AT_T0_DIMS, 9, 4);
    expect_refused("escape", &m, "tensor ??: n_dims", "9");
}

static void truncation_anywhere_is_refused(void **state) {
    (void)state;
    image m = image_build(3);
    for (size_t n = 0; n < m.length; n++) {
        gguf_file *file = NULL;
        error err = {STATUS_OK, ""};
        status rc = open_bytes(&file, m.bytes, n, &err);
        if (rc != STATUS_BAD_INPUT) fail_msg("%zu bytes: status %s", n, status_name(rc));
        bool says = strstr(err.text, "truncated") != NULL || n < 24;
        if (!says) fail_msg("%zu bytes: '%s'", n, err.text);
    }
}

static void a_short_file_says_what_it_needs(void **state) {
    (void)state;
    image m = image_build(3);
    char needed[64];
    (void)snprintf(needed, sizeof needed, "is %zu bytes, needs %zu", m.length - 1, m.length);
    m.length--;
    expect_refused("one byte short", &m, "tensor t1", needed);
}

static void what_is_no_file_is_refused(void **state) {
    (void)state;
    gguf_file *file = NULL;
    error err = {STATUS_OK, ""};
    assert_int_equal(gguf_open(&file, "/nonexistent/m.gguf", &err), STATUS_IO);
    assert_non_null(strstr(err.text, "/nonexistent/m.gguf"));
    assert_int_equal(gguf_open(&file, folder, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "not a regular file"));
    char path[256];
    path_of(path, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(gguf_open(&file, path, &err), STATUS_BAD_INPUT);
    assert_null(file);
    remove_file("fifo");
    gguf_close(NULL);
}

static void scales_that_are_not_finite_are_named(void **state) {
    (void)state;
    image m = image_build(3);
    for (int bad = 0; bad < 2; bad++) {
        if (bad) memcpy(m.bytes + m.at[AT_DATA] + 34, "\x00\x7c", 2); /* scale of block 1 */
        gguf_file *file = NULL;
        error err = {STATUS_OK, ""};
        assert_int_equal(open_bytes(&file, m.bytes, m.length, &err), STATUS_OK);
        status rc = gguf_check_values(gguf_find_tensor(file, "t0"), &err);
        assert_int_equal(rc, bad ? STATUS_BAD_INPUT : STATUS_OK);
        if (bad) assert_non_null(strstr(err.text, "tensor t0: block 1 of Q8_0"));
        assert_int_equal(gguf_check_values(gguf_find_tensor(file, "t1"), &err), STATUS_OK);
        gguf_close(file);
    }
    static const struct {
        quant_type type;
        size_t at;
    } places[] = {{QUANT_Q4_0, 0},   {QUANT_Q4_1, 2},   {QUANT_Q5_0, 0},   {QUANT_Q5_1, 2},
                  {QUANT_Q2_K, 82},  {QUANT_Q3_K, 108}, {QUANT_Q4_K, 2},   {QUANT_Q5_K, 0},
                  {QUANT_Q6_K, 208}, {QUANT_IQ4_NL, 0}, {QUANT_IQ4_XS, 0}, {QUANT_F16, 0}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        uint8_t block[256] = {0};
        gguf_tensor t = {.name = {"t", 1}, .type_id = (uint32_t)places[i].type, .data = block};
        t.n_bytes = quant_traits_of(t.type_id)->block_bytes;
        error err;
        assert_int_equal(gguf_check_values(&t, &err), STATUS_OK);
        block[places[i].at + 1] = 0xFE; /* NaN */
        assert_int_equal(gguf_check_values(&t, &err), STATUS_BAD_INPUT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_lie_is_refused_by_field_and_value),
        cmocka_unit_test(names_in_errors_are_printable),
        cmocka_unit_test(truncation_anywhere_is_refused),
        cmocka_unit_test(a_short_file_says_what_it_needs),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(scales_that_are_not_finite_are_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
