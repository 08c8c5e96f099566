/* test_gguf.c - well-formed files read back; every lie is refused by field and value.
 *
 * A small file is built with marks where its fields stand; a case patches one
 * field and says what the error must contain.
 */
#include "common/gguf.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

typedef enum mark {
    AT_MAGIC,
    AT_VERSION,
    AT_N_TENSORS,
    AT_N_KEYS,
    AT_KEY_LENGTH,
    AT_KEY_NAME,
    AT_KEY_KIND,
    AT_TEXT_LENGTH,
    AT_ALIGN_KIND,
    AT_ALIGN,
    AT_BOOL,
    AT_BOOLS,
    AT_LIST_KIND,
    AT_LIST_COUNT,
    AT_WORDS_COUNT,
    AT_WORD_LENGTH,
    AT_FIRST,
    AT_SECOND,
    AT_T0_LENGTH,
    AT_T0_NAME,
    AT_T0_DIMS,
    AT_T0_NE0,
    AT_T0_NE1,
    AT_T0_TYPE,
    AT_T0_OFFSET,
    AT_T1_NAME,
    AT_T1_NE1,
    AT_T1_TYPE,
    AT_T1_OFFSET,
    AT_DATA,
    N_MARKS
} mark;

typedef struct image {
    uint8_t bytes[4096];
    size_t length;
    size_t at[N_MARKS];
} image;

static void put(image *m, const void *bytes, size_t n) {
    assert_true(m->length + n <= sizeof m->bytes);
    memcpy(m->bytes + m->length, bytes, n);
    m->length += n;
}

static void put_u32(image *m, uint32_t value) {
    put(m, &value, sizeof value);
}

static void put_u64(image *m, uint64_t value) {
    put(m, &value, sizeof value);
}

static void put_text(image *m, const char *text) {
    put_u64(m, strlen(text));
    put(m, text, strlen(text));
}

static void put_key(image *m, const char *name, gguf_kind kind) {
    put_text(m, name);
    put_u32(m, (uint32_t)kind);
}

static void put_mark(image *m, mark where) {
    m->at[where] = m->length;
}

static void put_array(image *m, const char *name, gguf_kind item_kind, uint64_t n) {
    put_key(m, name, GGUF_ARRAY);
    put_u32(m, (uint32_t)item_kind);
    put_u64(m, n);
}

static void build_keys(image *m) {
    put_mark(m, AT_KEY_LENGTH);
    put_u64(m, 20);
    put_mark(m, AT_KEY_NAME);
    put(m, "general.architecture", 20);
    put_mark(m, AT_KEY_KIND);
    put_u32(m, GGUF_STRING);
    put_mark(m, AT_TEXT_LENGTH);
    put_text(m, "qwen35");
    put_text(m, "general.alignment");
    put_mark(m, AT_ALIGN_KIND);
    put_u32(m, GGUF_U32);
    put_mark(m, AT_ALIGN);
    put_u32(m, 32);
    put_key(m, "a.bool", GGUF_BOOL);
    put_mark(m, AT_BOOL);
    put(m, "\x01", 1);
    put_array(m, "a.bools", GGUF_BOOL, 3);
    put_mark(m, AT_BOOLS);
    put(m, "\x01\x00\x01", 3);
    put_text(m, "a.list");
    put_u32(m, GGUF_ARRAY);
    put_mark(m, AT_LIST_KIND);
    put_u32(m, GGUF_I32);
    put_mark(m, AT_LIST_COUNT);
    put_u64(m, 2);
    put_u32(m, (uint32_t)-5);
    put_u32(m, 7);
    put_text(m, "a.words");
    put_u32(m, GGUF_ARRAY);
    put_u32(m, GGUF_STRING);
    put_mark(m, AT_WORDS_COUNT);
    put_u64(m, 2);
    put_mark(m, AT_WORD_LENGTH);
    put_text(m, "one");
    put_text(m, "");
    put_key(m, "twin1", GGUF_U8);
    m->at[AT_FIRST] = m->length - 4 - 5;
    put(m, "\x07", 1);
    put_key(m, "twin2", GGUF_U8);
    m->at[AT_SECOND] = m->length - 4 - 5;
    put(m, "\x08", 1);
}

static void build_tensors(image *m) {
    put_mark(m, AT_T0_LENGTH);
    put_u64(m, 2);
    put_mark(m, AT_T0_NAME);
    put(m, "t0", 2);
    put_mark(m, AT_T0_DIMS);
    put_u32(m, 2);
    put_mark(m, AT_T0_NE0);
    put_u64(m, 32);
    put_mark(m, AT_T0_NE1);
    put_u64(m, 2);
    put_mark(m, AT_T0_TYPE);
    put_u32(m, QUANT_Q8_0);
    put_mark(m, AT_T0_OFFSET);
    put_u64(m, 0);
    put_u64(m, 2);
    put_mark(m, AT_T1_NAME);
    put(m, "t1", 2);
    put_u32(m, 2);
    put_u64(m, 4);
    put_mark(m, AT_T1_NE1);
    put_u64(m, 2);
    put_mark(m, AT_T1_TYPE);
    put_u32(m, QUANT_F32);
    put_mark(m, AT_T1_OFFSET);
    put_u64(m, 96);
}

static image build(uint32_t version) {
    image m = {.length = 0};
    put_mark(&m, AT_MAGIC);
    put(&m, "GGUF", 4);
    put_mark(&m, AT_VERSION);
    put_u32(&m, version);
    put_mark(&m, AT_N_TENSORS);
    put_u64(&m, 2);
    put_mark(&m, AT_N_KEYS);
    put_u64(&m, 8);
    build_keys(&m);
    build_tensors(&m);
    while (m.length % 32 != 0)
        put(&m, "", 1);
    put_mark(&m, AT_DATA);
    m.length += 96 + 32;
    return m;
}

/* ---- files ---- */

static char folder[128];

static int make_folder(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%s/siliceo-gguf-XXXXXX",
                   base != NULL && strlen(base) < 64 ? base : "/tmp");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static void path_of(char path[256], const char *name) {
    (void)snprintf(path, 256, "%s/%s", folder, name);
}

static void write_file(const char *name, const uint8_t *bytes, size_t n) {
    char path[256];
    path_of(path, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void remove_file(const char *name) {
    char path[256];
    path_of(path, name);
    assert_int_equal(unlink(path), 0);
}

static status open_bytes(gguf_file **out, const uint8_t *bytes, size_t n, error *err) {
    char path[256];
    path_of(path, "m.gguf");
    write_file("m.gguf", bytes, n);
    status rc = gguf_open(out, path, err);
    remove_file("m.gguf"); /* what is mapped stays */
    assert_true((*out != NULL) == (rc == STATUS_OK));
    return rc;
}

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

/* ---- what is well formed ---- */

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
        image m = build(version);
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
    put(&m, "GGUF\x03\x00\x00\x00", 8);
    put_u64(&m, 1);
    put_u64(&m, 2);
    put_key(&m, "general.architecture", GGUF_STRING);
    put_text(&m, "qwen35");
    put_key(&m, "general.alignment", GGUF_U32);
    put_u32(&m, 32);
    assert_int_equal(m.length, 103);
    put_text(&m, "t");
    put_u32(&m, 2);
    put_u64(&m, 4);
    put_u64(&m, 2);
    put_u32(&m, QUANT_F32);
    put_u64(&m, 0);
    assert_int_equal(m.length, 144);
    m.length = 160;
    for (int i = 0; i < 8; i++) {
        float value = (float)i;
        put(&m, &value, sizeof value);
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
    image m = build(3);
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

/* ---- lies ---- */

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
        image m = build(3);
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
    image m = build(3);
    memcpy(m.bytes + m.at[AT_T0_NAME], "\x1b\xff", 2);
    patch(&m, AT_T0_DIMS, 9, 4);
    expect_refused("escape", &m, "tensor ??: n_dims", "9");
}

static void truncation_anywhere_is_refused(void **state) {
    (void)state;
    image m = build(3);
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
    image m = build(3);
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
    image m = build(3);
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

/* ---- split models ---- */

typedef struct shard_spec {
    int64_t no, count, tensors; /* -1: the key is absent */
    gguf_kind kind;             /* of split.no and split.count */
    uint32_t version;
    int n_tensors;
    const char *first_name; /* tensor names count up from it */
} shard_spec;

static void put_split_key(image *m, const char *name, gguf_kind kind, int64_t value) {
    put_key(m, name, kind);
    put(m, &value, gguf_kind_bytes(kind));
}

static void write_shard(const char *name, const shard_spec *s) {
    image m = {.length = 0};
    put(&m, "GGUF", 4);
    put_u32(&m, s->version);
    put_u64(&m, (uint64_t)s->n_tensors);
    put_u64(&m, (s->no >= 0) + (s->count >= 0) + (s->tensors >= 0));
    if (s->no >= 0) put_split_key(&m, "split.no", s->kind, s->no);
    if (s->count >= 0) put_split_key(&m, "split.count", s->kind, s->count);
    if (s->tensors >= 0) put_split_key(&m, "split.tensors.count", GGUF_I32, s->tensors);
    for (int i = 0; i < s->n_tensors; i++) {
        char tensor[8];
        (void)snprintf(tensor, sizeof tensor, "%c", s->first_name[0] + i);
        put_text(&m, tensor);
        put_u32(&m, 1);
        put_u64(&m, 8);
        put_u32(&m, QUANT_F32);
        put_u64(&m, (uint64_t)i * 32);
    }
    while (m.length % 32 != 0)
        put(&m, "", 1);
    for (int i = 0; i < s->n_tensors * 32; i++)
        put(&m, s->first_name, 1);
    write_file(name, m.bytes, m.length);
}

static const char *const shard_names[3] = {"s-00001-of-00003.gguf", "s-00002-of-00003.gguf",
                                           "s-00003-of-00003.gguf"};

static void write_shards(shard_spec specs[3]) {
    static const shard_spec good[3] = {{0, 3, 3, GGUF_U16, 3, 0, "a"},
                                       {1, 3, 3, GGUF_U16, 3, 2, "a"},
                                       {2, 3, 3, GGUF_U16, 3, 1, "k"}};
    if (specs[0].first_name == NULL) memcpy(specs, good, sizeof good);
    for (int i = 0; i < 3; i++)
        write_shard(shard_names[i], &specs[i]);
}

static void remove_shards(void) {
    for (int i = 0; i < 3; i++)
        remove_file(shard_names[i]);
}

static void a_split_model_opens_through_its_first_shard(void **state) {
    (void)state;
    for (gguf_kind kind = GGUF_U8; kind <= GGUF_I32; kind++) {
        shard_spec specs[3] = {{0}};
        write_shards(specs);
        for (int i = 0; i < 3; i++) {
            specs[i].kind = kind;
            write_shard(shard_names[i], &specs[i]);
        }
        char path[256];
        path_of(path, shard_names[0]);
        gguf_file *file = NULL;
        error err = {STATUS_OK, ""};
        if (gguf_open(&file, path, &err) != STATUS_OK) fail_msg("%s", err.text);
        remove_shards();
        assert_int_equal(gguf_n_shards(file), 3);
        assert_int_equal(gguf_n_tensors(file), 3);
        assert_int_equal(gguf_find_tensor(file, "b")->shard, 1);
        const gguf_tensor *t = gguf_find_tensor(file, "k");
        assert_int_equal(t->shard, 2);
        assert_int_equal(((const char *)t->data)[31], 'k');
        assert_non_null(strstr(gguf_shard_path(file, 2), shard_names[2]));
        gguf_close(file);
    }
}

typedef struct split_lie {
    const char *what;
    int shard;
    shard_spec spec; /* instead of the good one */
    const char *field, *shown;
} split_lie;

static const split_lie split_lies[] = {
    {"wrong number", 1, {2, 3, 3, GGUF_U16, 3, 2, "a"}, "split.no is 2", "should be 1"},
    {"other count", 2, {2, 4, 3, GGUF_U16, 3, 1, "k"}, "split.count is 4", "should be 3"},
    {"no number", 1, {-1, 3, 3, GGUF_U16, 3, 2, "a"}, "split.no is missing", "should be 1"},
    {"other total",
     0,
     {0, 3, 9, GGUF_U16, 3, 0, "a"},
     "split.tensors.count is 9",
     "should be 3"},
    {"no total", 0, {0, 3, -1, GGUF_U16, 3, 0, "a"}, "split.tensors.count is missing", "3"},
    {"other version", 2, {2, 3, 3, GGUF_U16, 2, 1, "k"}, "version is 2", "3 in the first"},
    {"name twice", 2, {2, 3, 3, GGUF_U16, 3, 1, "b"}, "tensor b", "twice"},
    {"first is not first",
     0,
     {1, 3, 3, GGUF_U16, 3, 0, "a"},
     "split.no is 1",
     "00001-of-00003"},
    {"count unlike the name",
     0,
     {0, 2, 3, GGUF_U16, 3, 0, "a"},
     "split.count is 2",
     "00002.gguf"},
    {"count absurd", 0, {0, 60000, 3, GGUF_U16, 3, 0, "a"}, "split.count is 60000", "1024"},
};

static void split_lies_are_refused(void **state) {
    (void)state;
    char path[256];
    path_of(path, shard_names[0]);
    for (size_t i = 0; i < sizeof split_lies / sizeof split_lies[0]; i++) {
        const split_lie *l = &split_lies[i];
        shard_spec specs[3] = {{0}};
        write_shards(specs);
        write_shard(shard_names[l->shard], &l->spec);
        gguf_file *file = NULL;
        error err = {STATUS_OK, ""};
        status rc = gguf_open(&file, path, &err);
        remove_shards();
        gguf_close(file);
        if (rc != STATUS_BAD_INPUT || strstr(err.text, l->field) == NULL ||
            strstr(err.text, l->shown) == NULL) {
            fail_msg("%s: %s: '%s'", l->what, status_name(rc), err.text);
        }
    }
}

static void a_missing_shard_is_named(void **state) {
    (void)state;
    shard_spec specs[3] = {{0}};
    write_shards(specs);
    remove_file(shard_names[2]);
    char path[256];
    path_of(path, shard_names[0]);
    gguf_file *file = NULL;
    error err = {STATUS_OK, ""};
    assert_int_equal(gguf_open(&file, path, &err), STATUS_IO);
    assert_non_null(strstr(err.text, shard_names[2]));
    write_shard(shard_names[2], &specs[2]);
    remove_shards();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_2_and_3_read_the_same),
        cmocka_unit_test(the_worked_example_reads_as_described),
        cmocka_unit_test(every_integer_width_reads_by_value),
        cmocka_unit_test(the_hash_sees_every_part),
        cmocka_unit_test(every_lie_is_refused_by_field_and_value),
        cmocka_unit_test(names_in_errors_are_printable),
        cmocka_unit_test(truncation_anywhere_is_refused),
        cmocka_unit_test(a_short_file_says_what_it_needs),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(scales_that_are_not_finite_are_named),
        cmocka_unit_test(a_split_model_opens_through_its_first_shard),
        cmocka_unit_test(split_lies_are_refused),
        cmocka_unit_test(a_missing_shard_is_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
