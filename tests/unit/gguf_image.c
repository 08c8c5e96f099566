#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/files.h"
#include "tests/unit/gguf_image.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void image_put(image *m, const void *bytes, size_t n) {
    assert_true(m->length + n <= sizeof m->bytes);
    memcpy(m->bytes + m->length, bytes, n);
    m->length += n;
}

void image_put_u32(image *m, uint32_t value) {
    image_put(m, &value, sizeof value);
}

void image_put_u64(image *m, uint64_t value) {
    image_put(m, &value, sizeof value);
}

void image_put_text(image *m, const char *text) {
    image_put_u64(m, strlen(text));
    image_put(m, text, strlen(text));
}

void image_put_key(image *m, const char *name, gguf_kind kind) {
    image_put_text(m, name);
    image_put_u32(m, (uint32_t)kind);
}

static void image_put_mark(image *m, mark where) {
    m->at[where] = m->length;
}

static void image_put_array(image *m, const char *name, gguf_kind item_kind, uint64_t n) {
    image_put_key(m, name, GGUF_ARRAY);
    image_put_u32(m, (uint32_t)item_kind);
    image_put_u64(m, n);
}

static void build_keys(image *m) {
    image_put_mark(m, AT_KEY_LENGTH);
    image_put_u64(m, 20);
    image_put_mark(m, AT_KEY_NAME);
    image_put(m, "general.architecture", 20);
    image_put_mark(m, AT_KEY_KIND);
    image_put_u32(m, GGUF_STRING);
    image_put_mark(m, AT_TEXT_LENGTH);
    image_put_text(m, "qwen35");
    image_put_text(m, "general.alignment");
    image_put_mark(m, AT_ALIGN_KIND);
    image_put_u32(m, GGUF_U32);
    image_put_mark(m, AT_ALIGN);
    image_put_u32(m, 32);
    image_put_key(m, "a.bool", GGUF_BOOL);
    image_put_mark(m, AT_BOOL);
    image_put(m, "\x01", 1);
    image_put_array(m, "a.bools", GGUF_BOOL, 3);
    image_put_mark(m, AT_BOOLS);
    image_put(m, "\x01\x00\x01", 3);
    image_put_text(m, "a.list");
    image_put_u32(m, GGUF_ARRAY);
    image_put_mark(m, AT_LIST_KIND);
    image_put_u32(m, GGUF_I32);
    image_put_mark(m, AT_LIST_COUNT);
    image_put_u64(m, 2);
    image_put_u32(m, (uint32_t)-5);
    image_put_u32(m, 7);
    image_put_text(m, "a.words");
    image_put_u32(m, GGUF_ARRAY);
    image_put_u32(m, GGUF_STRING);
    image_put_mark(m, AT_WORDS_COUNT);
    image_put_u64(m, 2);
    image_put_mark(m, AT_WORD_LENGTH);
    image_put_text(m, "one");
    image_put_text(m, "");
    image_put_key(m, "twin1", GGUF_U8);
    m->at[AT_FIRST] = m->length - 4 - 5;
    image_put(m, "\x07", 1);
    image_put_key(m, "twin2", GGUF_U8);
    m->at[AT_SECOND] = m->length - 4 - 5;
    image_put(m, "\x08", 1);
}

static void build_tensors(image *m) {
    image_put_mark(m, AT_T0_LENGTH);
    image_put_u64(m, 2);
    image_put_mark(m, AT_T0_NAME);
    image_put(m, "t0", 2);
    image_put_mark(m, AT_T0_DIMS);
    image_put_u32(m, 2);
    image_put_mark(m, AT_T0_NE0);
    image_put_u64(m, 32);
    image_put_mark(m, AT_T0_NE1);
    image_put_u64(m, 2);
    image_put_mark(m, AT_T0_TYPE);
    image_put_u32(m, QUANT_Q8_0);
    image_put_mark(m, AT_T0_OFFSET);
    image_put_u64(m, 0);
    image_put_u64(m, 2);
    image_put_mark(m, AT_T1_NAME);
    image_put(m, "t1", 2);
    image_put_u32(m, 2);
    image_put_u64(m, 4);
    image_put_mark(m, AT_T1_NE1);
    image_put_u64(m, 2);
    image_put_mark(m, AT_T1_TYPE);
    image_put_u32(m, QUANT_F32);
    image_put_mark(m, AT_T1_OFFSET);
    image_put_u64(m, 96);
}

image image_build(uint32_t version) {
    image m = {.length = 0};
    image_put_mark(&m, AT_MAGIC);
    image_put(&m, "GGUF", 4);
    image_put_mark(&m, AT_VERSION);
    image_put_u32(&m, version);
    image_put_mark(&m, AT_N_TENSORS);
    image_put_u64(&m, 2);
    image_put_mark(&m, AT_N_KEYS);
    image_put_u64(&m, 8);
    build_keys(&m);
    build_tensors(&m);
    while (m.length % 32 != 0)
        image_put(&m, "", 1);
    image_put_mark(&m, AT_DATA);
    m.length += 96 + 32;
    return m;
}

char folder[128];

int make_folder(void **state) {
    (void)state;
    return make_temporary(folder, sizeof folder) ? 0 : -1;
}

int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

void path_of(char path[256], const char *name) {
    (void)snprintf(path, 256, "%s/%s", folder, name);
}

void write_file(const char *name, const uint8_t *bytes, size_t n) {
    char path[256];
    path_of(path, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void remove_file(const char *name) {
    char path[256];
    path_of(path, name);
    assert_int_equal(unlink(path), 0);
}

status open_bytes(gguf_file **out, const uint8_t *bytes, size_t n, error *err) {
    char path[256];
    path_of(path, "m.gguf");
    write_file("m.gguf", bytes, n);
    status rc = gguf_open(out, path, err);
    remove_file("m.gguf"); /* what is mapped stays */
    assert_true((*out != NULL) == (rc == STATUS_OK));
    return rc;
}
