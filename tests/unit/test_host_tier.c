/* test_host_tier.c - records of the demo model read from disk, kept and given up. */
#include "common/gguf.h"
#include "worker/memory/host_tier.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/files.h"

typedef struct fixture {
    gguf_file *file;
    model_config config;
    model_weights weights;
    host_tier *tier;
} fixture;

static void open_model_file(fixture *f, const char *path) {
    error err = {0};
    if (gguf_open(&f->file, path, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(model_config_read(&f->config, f->file, &err), STATUS_OK);
    assert_int_equal(model_weights_map(&f->weights, &f->config, f->file, &err), STATUS_OK);
}

static size_t record_bytes(const fixture *f) {
    size_t most = 0;
    for (uint32_t i = 0; i < f->weights.n_layers; i++) {
        size_t n = layer_expert_bytes(&f->weights.layers[i]);
        most = n > most ? n : most;
    }
    return most;
}

static void open_tier(fixture *f, const char *path, uint32_t n_records) {
    memset(f, 0, sizeof *f);
    open_model_file(f, path);
    const host_tier_params params = {.weights = &f->weights,
                                     .n_experts = f->config.n_experts,
                                     .n_records = n_records,
                                     .slot_bytes = record_bytes(f),
                                     .n_loaders = 3};
    error err = {0};
    if (host_tier_new(&f->tier, &params, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void close_all(fixture *f) {
    host_tier_free(f->tier);
    model_weights_release(&f->weights);
    gguf_close(f->file);
}

/* The record is what the file has: gate, up and down one after another. */
static void assert_is_in_file(const fixture *f, uint32_t layer, uint32_t expert,
                              const unsigned char *record) {
    const layer_weights *l = &f->weights.layers[layer];
    const weight_experts *parts[] = {&l->exp_gate, &l->exp_up, &l->exp_down};
    assert_non_null(record);
    for (size_t i = 0; i < 3; i++) {
        size_t n = parts[i]->first.row_bytes * parts[i]->first.n_rows;
        const unsigned char *data = parts[i]->first.data;
        assert_memory_equal(record, data + expert * parts[i]->expert_bytes, n);
        record += n;
    }
}

static uint64_t misses(const fixture *f) {
    host_tier_counts counts;
    host_tier_count(f->tier, &counts);
    return counts.misses;
}

static void use(fixture *f, uint32_t layer, uint32_t expert) {
    assert_is_in_file(f, layer, expert, host_tier_fetch(f->tier, layer, expert));
    host_tier_release(f->tier, layer, expert);
}

static const char demo[] = "deploy/models/demo.gguf";

static void every_record_is_what_the_file_has(void **state) {
    (void)state;
    fixture f;
    open_tier(&f, demo, 5);
    for (uint32_t layer = 0; layer < f.config.n_layers; layer++) {
        for (uint32_t e = 0; e < f.config.n_experts; e++)
            use(&f, layer, e);
    }
    uint32_t n_all = f.config.n_layers * f.config.n_experts;
    assert_int_equal(misses(&f), n_all);
    host_tier_counts counts;
    host_tier_count(f.tier, &counts);
    assert_true(counts.disk_bytes >= (uint64_t)n_all * 3 * DISK_ALIGN);
    close_all(&f);
}

static void add_up(void *context, uint64_t n_bytes) {
    uint64_t *so_far = context;
    assert_true(n_bytes > *so_far);
    *so_far = n_bytes;
}

static void with_room_for_all_a_fill_reads_each_once(void **state) {
    (void)state;
    fixture f;
    open_tier(&f, demo, UINT32_MAX);
    assert_true(host_tier_has_all(f.tier));
    error err = {0};
    uint64_t n_bytes = 0, expected = 0;
    assert_int_equal(host_tier_fill(f.tier, add_up, &n_bytes, &err), STATUS_OK);
    for (uint32_t layer = 0; layer < f.config.n_layers; layer++) {
        expected += layer_expert_bytes(&f.weights.layers[layer]) * f.config.n_experts;
        for (uint32_t e = 0; e < f.config.n_experts; e++)
            use(&f, layer, e);
    }
    assert_int_equal(n_bytes, expected);
    assert_int_equal(misses(&f), 0);
    close_all(&f);
}

static void the_least_recently_used_record_makes_room(void **state) {
    (void)state;
    fixture f;
    open_tier(&f, demo, 4);
    for (uint32_t e = 0; e < 4; e++)
        use(&f, 1, e);
    use(&f, 1, 0);
    use(&f, 1, 7); /* in the place of 1 */
    assert_int_equal(misses(&f), 5);
    use(&f, 1, 0);
    use(&f, 1, 2);
    assert_int_equal(misses(&f), 5);
    assert_false(host_tier_has(f.tier, 1, 1));
    close_all(&f);
}

static void what_is_held_stays_and_too_much_is_refused(void **state) {
    (void)state;
    fixture f;
    open_tier(&f, demo, 4);
    const unsigned char *held[4];
    error err = {0};
    for (uint32_t e = 0; e < 4; e++)
        held[e] = host_tier_fetch(f.tier, 0, e);
    assert_null(host_tier_fetch(f.tier, 0, 4));
    assert_int_equal(host_tier_failure(f.tier, &err), STATUS_NO_MEMORY);
    assert_non_null(strstr(err.text, "4 records"));
    for (uint32_t e = 0; e < 4; e++)
        assert_is_in_file(&f, 0, e, held[e]);
    host_tier_release(f.tier, 0, 2);
    use(&f, 0, 4); /* in the place of 2 */
    assert_false(host_tier_has(f.tier, 0, 2));
    close_all(&f);
}

/* A list longer than the arena is read piece by piece, each record once. */
static void a_long_list_of_prefetches_reads_each_record_once(void **state) {
    (void)state;
    fixture f;
    open_tier(&f, demo, 8);
    int32_t list[32];
    for (int32_t e = 0; e < 32; e++)
        list[e] = 31 - e;
    host_tier_prefetch(f.tier, 2, list, 32);
    assert_int_equal(misses(&f), 4); /* half of the arena */
    for (int32_t i = 0; i < 32; i++)
        use(&f, 2, (uint32_t)list[i]);
    assert_int_equal(misses(&f), 32);
    host_tier_prefetch(f.tier, 3, list, 32); /* nobody comes for these */
    host_tier_prefetch(f.tier, 4, list, 2);
    for (uint32_t e = 0; e < 32; e++)
        use(&f, 5, e);
    close_all(&f);
}

static void a_demoted_record_goes_first_and_a_received_one_is_kept(void **state) {
    (void)state;
    fixture f;
    open_tier(&f, demo, 4);
    for (uint32_t e = 0; e < 4; e++)
        use(&f, 0, e);
    host_tier_demote(f.tier, 0, 3);
    unsigned char *place = host_tier_receive(f.tier, 6, 9);
    assert_non_null(place);
    assert_false(host_tier_has(f.tier, 0, 3));
    memset(place, 7, record_bytes(&f));
    host_tier_release(f.tier, 6, 9);
    const unsigned char *again = host_tier_fetch(f.tier, 6, 9);
    assert_ptr_equal(again, place);
    assert_int_equal(again[record_bytes(&f) - 1], 7);
    host_tier_release(f.tier, 6, 9);
    assert_null(host_tier_receive(f.tier, 0, 1)); /* is here */
    assert_int_equal(misses(&f), 4);
    close_all(&f);
}

/* A copy of the demo model in a folder of its own. */
static void copy_demo(char path[256]) {
    char folder[200];
    assert_true(make_temporary(folder, sizeof folder));
    (void)snprintf(path, 256, "%s/m.gguf", folder);
    char command[512];
    (void)snprintf(command, sizeof command, "cp %s %s", demo, path);
    assert_int_equal(system(command), 0);
}

static void remove_copy(char path[256]) {
    (void)unlink(path);
    *strrchr(path, '/') = '\0';
    (void)rmdir(path);
}

static void write_at(const char *path, uint64_t offset, const void *bytes, size_t n) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void a_scale_that_is_no_number_is_named(void **state) {
    (void)state;
    char path[256];
    fixture f;
    copy_demo(path);
    open_tier(&f, path, 8);
    const weight_experts *up = &f.weights.layers[3].exp_up;
    uint32_t shard = 0;
    uint64_t offset = 0;
    assert_true(gguf_locate(
        f.file, (const unsigned char *)up->first.data + 5 * up->expert_bytes, &shard, &offset));
    assert_int_equal(up->first.type, QUANT_Q4_K);
    write_at(path, offset, "\x00\x7e", 2); /* the scale of its first block */
    assert_null(host_tier_fetch(f.tier, 3, 5));
    error err = {0};
    assert_int_equal(host_tier_failure(f.tier, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "blk.3.ffn_up_exps.weight: expert 5, block 0 of Q4_K"));
    use(&f, 3, 4); /* the others are there as before */
    close_all(&f);
    remove_copy(path);
}

static void a_file_that_shrinks_is_named_with_its_length(void **state) {
    (void)state;
    char path[256];
    fixture f;
    copy_demo(path);
    open_tier(&f, path, 8);
    uint64_t length = gguf_file_bytes(f.file, 0);
    assert_int_equal(truncate(path, (off_t)(length / 2)), 0);
    uint32_t last = f.config.n_layers - 1, at_end = f.config.n_experts - 1;
    assert_null(host_tier_fetch(f.tier, last, at_end));
    error err = {0};
    assert_int_equal(host_tier_failure(f.tier, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "the file ends"));
    assert_non_null(strstr(err.text, path));
    close_all(&f);
    remove_copy(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_record_is_what_the_file_has),
        cmocka_unit_test(with_room_for_all_a_fill_reads_each_once),
        cmocka_unit_test(the_least_recently_used_record_makes_room),
        cmocka_unit_test(what_is_held_stays_and_too_much_is_refused),
        cmocka_unit_test(a_long_list_of_prefetches_reads_each_record_once),
        cmocka_unit_test(a_demoted_record_goes_first_and_a_received_one_is_kept),
        cmocka_unit_test(a_scale_that_is_no_number_is_named),
        cmocka_unit_test(a_file_that_shrinks_is_named_with_its_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
