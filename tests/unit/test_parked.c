/* test_parked.c - what a sequence held comes back byte for byte, and the store keeps its bound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/memory/parked.h"
#include <stdlib.h>
#include <string.h>

static gguf_file *file;
static model *m;

static int open_demo(void **state) {
    (void)state;
    error err = {0};
    const model_params p = {.backend = BACKEND_CPU,
                            .n_threads = 1,
                            .kv = KV_F16,
                            .n_pages = 4,
                            .n_states = 2,
                            .max_rows = 128,
                            .max_outputs = 1,
                            .inserts_per_layer = 4};
    if (gguf_open(&file, "deploy/models/demo.gguf", &err) != STATUS_OK) return -1;
    return model_open(&m, file, &p, &err) == STATUS_OK ? 0 : -1;
}

static int close_demo(void **state) {
    (void)state;
    model_close(m);
    gguf_close(file);
    return 0;
}

static unsigned char *new_bytes(size_t n) {
    unsigned char *bytes = malloc(n);
    assert_non_null(bytes);
    return bytes;
}

static size_t state_bytes(void) {
    return model_config_state_bytes(model_configuration(m));
}

/* A state or a page of one value everywhere. */
static void fill_state(uint32_t state, int value) {
    unsigned char *bytes = new_bytes(state_bytes());
    memset(bytes, value, state_bytes());
    model_state_load(m, state, bytes);
    free(bytes);
}

static void fill_page(uint32_t page, int value) {
    unsigned char *bytes = new_bytes(model_page_bytes(m));
    memset(bytes, value, model_page_bytes(m));
    model_page_load(m, page, bytes);
    free(bytes);
}

static void assert_filled(const unsigned char *bytes, size_t n, int value) {
    for (size_t i = 0; i < n; i++)
        assert_int_equal(bytes[i], value);
}

static void assert_state(uint32_t state, int value) {
    unsigned char *bytes = new_bytes(state_bytes());
    model_state_save(m, state, bytes);
    assert_filled(bytes, state_bytes(), value);
    free(bytes);
}

static void assert_page(uint32_t page, int value) {
    unsigned char *bytes = new_bytes(model_page_bytes(m));
    model_page_save(m, page, bytes);
    assert_filled(bytes, model_page_bytes(m), value);
    free(bytes);
}

static parked_store *new_store(uint64_t budget_bytes) {
    parked_store *s = NULL;
    error err = {0};
    assert_int_equal(parked_store_new(&s, m, budget_bytes, &err), STATUS_OK);
    return s;
}

static void what_was_kept_comes_back_elsewhere(void **state) {
    (void)state;
    parked_store *s = new_store(UINT64_MAX / 2);
    float rows[2][3] = {{1.5F, -2, 3}, {0}};
    const uint32_t from[] = {2, 0}, to[] = {3, 1};
    const parked_place before = {0, 2, from, rows[0], 3}, after = {1, 2, to, rows[1], 3};
    fill_state(0, 17);
    fill_page(2, 18);
    fill_page(0, 19);
    parked *kept = parked_store_keep(s, &before);
    assert_non_null(kept);
    assert_int_equal(parked_store_count(s).used_bytes, parked_store_bytes(s, &before));
    for (uint32_t i = 0; i < 4; i++)
        fill_page(i, 0x7f);
    fill_state(0, 1);
    fill_state(1, 2);
    rows[0][1] = 9;
    parked_store_restore(s, kept, &after);
    assert_true(rows[1][0] == 1.5F && rows[1][1] == -2 && rows[1][2] == 3);
    assert_state(1, 17);
    assert_state(0, 1);
    assert_page(3, 18);
    assert_page(1, 19);
    assert_page(2, 0x7f);
    parked_counts counts = parked_store_count(s);
    assert_int_equal(counts.kept, 1);
    assert_int_equal(counts.restored, 1);
    assert_int_equal(counts.used_bytes, 0);
    parked_store_free(s);
}

static void the_bound_holds_and_what_is_forgotten_makes_room(void **state) {
    (void)state;
    uint64_t one = state_bytes() + model_page_bytes(m);
    parked_store *s = new_store(2 * one);
    const uint32_t pages[] = {0, 1};
    float row = 0;
    const parked_place small = {0, 1, pages, NULL, 0}, other = {1, 1, pages + 1, NULL, 0},
                       empty = {0, 0, pages, NULL, 0}, large = {0, 2, pages, NULL, 0},
                       with_row = {0, 1, pages, &row, 1};
    assert_int_equal(parked_store_bytes(s, &small), one);
    assert_int_equal(parked_store_bytes(s, &with_row), one + sizeof(float));
    parked *first = parked_store_keep(s, &small), *second = parked_store_keep(s, &other);
    assert_non_null(first);
    assert_non_null(second);
    assert_null(parked_store_keep(s, &empty));
    assert_int_equal(parked_store_count(s).used_bytes, 2 * one);
    parked_store_forget(s, first);
    assert_null(parked_store_keep(s, &large));
    assert_null(parked_store_keep(s, &with_row));
    first = parked_store_keep(s, &small);
    assert_non_null(first);
    assert_int_equal(parked_store_count(s).refused, 3);
    parked_store_forget(s, first);
    parked_store_forget(s, second);
    parked_store_free(s);
    parked_store_free(NULL);
}

static void a_store_without_budget_keeps_nothing(void **state) {
    (void)state;
    const parked_place empty = {0};
    parked_store *s = new_store(0);
    assert_null(parked_store_keep(s, &empty));
    parked_store_free(s);
}

static void a_page_is_copied_to_another_alone(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        fill_page(i, 30 + (int)i);
    model_page_copy(m, 3, 1);
    model_page_copy(m, 2, 2);
    assert_page(3, 31);
    for (uint32_t i = 0; i < 3; i++)
        assert_page(i, 30 + (int)i);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_kept_comes_back_elsewhere),
        cmocka_unit_test(the_bound_holds_and_what_is_forgotten_makes_room),
        cmocka_unit_test(a_store_without_budget_keeps_nothing),
        cmocka_unit_test(a_page_is_copied_to_another_alone),
    };
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
