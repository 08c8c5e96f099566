/* test_expert_list.c - a list is what was written, or it is refused by name, and never used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/files.h"
#include "worker/memory/expert_list.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_LAYERS = 3, N_EXPERTS = 5, N = N_LAYERS * N_EXPERTS };
enum { BYTES = EXPERT_LIST_HEADER + N * 4, IDENTITY_AT = 24 };

static const expert_list list = {"0123456789abcdef0123456789abcdef", N_LAYERS, N_EXPERTS};

static void make_uses(uint32_t *uses) {
    for (uint32_t i = 0; i < N; i++)
        uses[i] = i * i * 1000;
}

static void make_file(unsigned char *bytes) {
    uint32_t uses[N];
    make_uses(uses);
    assert_int_equal(expert_list_bytes(&list), BYTES);
    expert_list_write(&list, uses, bytes);
}

/* It is refused with this word, and nothing is taken from it. */
static void assert_refused(const expert_list *wanted, const unsigned char *bytes, size_t n,
                           const char *word) {
    uint32_t uses[N];
    error err = {0};
    memset(uses, 0x5a, sizeof uses);
    assert_int_equal(expert_list_read(wanted, bytes, n, uses, &err), STATUS_BAD_INPUT);
    if (strstr(err.text, word) == NULL) fail_msg("%s is not in: %s", word, err.text);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(uses[i], 0x5a5a5a5au);
}

static void what_was_written_is_read(void **state) {
    (void)state;
    unsigned char bytes[BYTES];
    uint32_t uses[N] = {0}, wanted[N];
    error err = {0};
    make_file(bytes);
    make_uses(wanted);
    assert_int_equal(expert_list_read(&list, bytes, sizeof bytes, uses, &err), STATUS_OK);
    assert_memory_equal(uses, wanted, sizeof uses);
}

static void every_byte_counts(void **state) {
    (void)state;
    unsigned char bytes[BYTES];
    make_file(bytes);
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] ^= 0x40;
        assert_refused(&list, bytes, BYTES, "");
        bytes[i] ^= 0x40;
    }
    assert_refused(&list, bytes, 0, "header: 0 bytes");
    assert_refused(&list, bytes, EXPERT_LIST_HEADER - 1, "header: 71 bytes");
    assert_refused(&list, bytes, BYTES - 1, "file: 131 bytes of 132");
    bytes[0] ^= 1;
    assert_refused(&list, bytes, BYTES, "magic");
    bytes[0] ^= 1;
    bytes[8] = 9;
    assert_refused(&list, bytes, BYTES, "version = 9");
    bytes[8] = 1;
    bytes[IDENTITY_AT] = 'x';
    assert_refused(&list, bytes, BYTES, "the header's hash");
    bytes[IDENTITY_AT] = '0';
    bytes[BYTES - 1] ^= 1;
    assert_refused(&list, bytes, BYTES, "the table's hash");
}

static void a_longer_file_is_refused(void **state) {
    (void)state;
    unsigned char bytes[BYTES + 1] = {0};
    make_file(bytes);
    assert_refused(&list, bytes, BYTES + 1, "file: 133 bytes of 132");
}

static void the_list_of_another_model_is_refused(void **state) {
    (void)state;
    unsigned char bytes[BYTES];
    make_file(bytes);
    const expert_list other = {"0123456789abcdef0123456789abcdee", N_LAYERS, N_EXPERTS};
    const expert_list turned = {list.identity, N_EXPERTS, N_LAYERS};
    const expert_list shorter = {"0123", N_LAYERS, N_EXPERTS};
    assert_refused(&other, bytes, BYTES, "identity = 0123456789abcdef0123456789abcdef");
    assert_refused(&shorter, bytes, BYTES, "identity");
    assert_refused(&turned, bytes, BYTES, "layers = 3, experts = 5, the model has 5 and 3");
}

static void more_rows_than_are_ever_counted_are_refused(void **state) {
    (void)state;
    unsigned char bytes[BYTES];
    uint32_t uses[N] = {0};
    uses[7] = EXPERT_LIST_ROWS + 1;
    expert_list_write(&list, uses, bytes);
    assert_refused(&list, bytes, BYTES, "rows of layer 1, expert 2 = 16777217");
}

/* --- files --- */

typedef struct folder {
    char base[200], path[220], file[300];
} folder;

static folder make_folder(void) {
    folder f = {"", "", ""};
    assert_true(make_temporary(f.base, sizeof f.base));
    (void)snprintf(f.path, sizeof f.path, "%s/lists", f.base);
    (void)snprintf(f.file, sizeof f.file, "%s/%s.experts", f.path, list.identity);
    return f;
}

static void remove_folder(const folder *f) {
    (void)unlink(f->file);
    (void)rmdir(f->file);                /* where a test puts a folder */
    assert_int_equal(rmdir(f->path), 0); /* nothing else was left in it */
    assert_int_equal(rmdir(f->base), 0);
}

static void a_folder_keeps_the_last_list(void **state) {
    (void)state;
    folder f = make_folder();
    uint32_t uses[N] = {0}, wanted[N];
    error err = {0};
    bool found = true;
    assert_int_equal(expert_list_load(&list, f.path, uses, &found, &err), STATUS_OK);
    assert_false(found);
    make_uses(wanted);
    for (uint32_t i = 0; i < 3; i++) {
        wanted[4] = i;
        assert_int_equal(expert_list_save(&list, f.path, wanted, &err), STATUS_OK);
        assert_int_equal(expert_list_load(&list, f.path, uses, &found, &err), STATUS_OK);
        assert_true(found);
        assert_memory_equal(uses, wanted, sizeof uses);
    }
    struct stat st;
    assert_int_equal(stat(f.file, &st), 0);
    assert_int_equal(st.st_size, BYTES);
    assert_int_equal(st.st_mode & 0777, 0600);
    remove_folder(&f);
}

static void a_damaged_file_is_named_and_not_used(void **state) {
    (void)state;
    folder f = make_folder();
    uint32_t uses[N] = {0};
    error err = {0};
    bool found = true;
    assert_int_equal(expert_list_save(&list, f.path, uses, &err), STATUS_OK);
    assert_int_equal(truncate(f.file, 50), 0);
    assert_int_equal(expert_list_load(&list, f.path, uses, &found, &err), STATUS_BAD_INPUT);
    assert_false(found);
    assert_non_null(strstr(err.text, f.file));
    assert_non_null(strstr(err.text, "header: 50 bytes of 72"));
    assert_int_equal(expert_list_save(&list, f.path, uses, &err), STATUS_OK);
    assert_int_equal(expert_list_load(&list, f.path, uses, &found, &err), STATUS_OK);
    assert_true(found);
    remove_folder(&f);
}

static void what_cannot_be_read_or_written_is_said(void **state) {
    (void)state;
    folder f = make_folder();
    uint32_t uses[N] = {0};
    error err = {0};
    bool found = true;
    assert_int_equal(mkdir(f.path, 0700), 0);
    assert_int_equal(mkdir(f.file, 0700), 0); /* a folder in the file's place */
    assert_int_equal(expert_list_load(&list, f.path, uses, &found, &err), STATUS_IO);
    assert_false(found);
    assert_non_null(strstr(err.text, f.file));
    assert_int_equal(expert_list_save(&list, f.path, uses, &err), STATUS_IO);
    assert_non_null(strstr(err.text, f.file));
    char none[256];
    (void)snprintf(none, sizeof none, "%s/no/folder", f.base);
    assert_int_equal(expert_list_save(&list, none, uses, &err), STATUS_IO);
    assert_non_null(strstr(err.text, none));
    const expert_list vast = {list.identity, 1 << 16, 1 << 16};
    assert_int_equal(expert_list_save(&vast, f.path, uses, &err), STATUS_BAD_INPUT);
    remove_folder(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(every_byte_counts),
        cmocka_unit_test(a_longer_file_is_refused),
        cmocka_unit_test(the_list_of_another_model_is_refused),
        cmocka_unit_test(more_rows_than_are_ever_counted_are_refused),
        cmocka_unit_test(a_folder_keeps_the_last_list),
        cmocka_unit_test(a_damaged_file_is_named_and_not_used),
        cmocka_unit_test(what_cannot_be_read_or_written_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
