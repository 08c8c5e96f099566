/* test_gguf_shards.c - models split over several files, and their lies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/gguf_image.h"
#include <stdio.h>
#include <string.h>

typedef struct shard_spec {
    int64_t no, count, tensors; /* -1: the key is absent */
    gguf_kind kind;             /* of split.no and split.count */
    uint32_t version;
    int n_tensors;
    const char *first_name; /* tensor names count up from it */
} shard_spec;

static void put_split_key(image *m, const char *name, gguf_kind kind, int64_t value) {
    image_put_key(m, name, kind);
    image_put(m, &value, gguf_kind_bytes(kind));
}

static void write_shard(const char *name, const shard_spec *s) {
    image m = {.length = 0};
    image_put(&m, "GGUF", 4);
    image_put_u32(&m, s->version);
    image_put_u64(&m, (uint64_t)s->n_tensors);
    image_put_u64(&m, (s->no >= 0) + (s->count >= 0) + (s->tensors >= 0));
    if (s->no >= 0) put_split_key(&m, "split.no", s->kind, s->no);
    if (s->count >= 0) put_split_key(&m, "split.count", s->kind, s->count);
    if (s->tensors >= 0) put_split_key(&m, "split.tensors.count", GGUF_I32, s->tensors);
    for (int i = 0; i < s->n_tensors; i++) {
        char tensor[8];
        (void)snprintf(tensor, sizeof tensor, "%c", s->first_name[0] + i);
        image_put_text(&m, tensor);
        image_put_u32(&m, 1);
        image_put_u64(&m, 8);
        image_put_u32(&m, QUANT_F32);
        image_put_u64(&m, (uint64_t)i * 32);
    }
    while (m.length % 32 != 0)
        image_put(&m, "", 1);
    for (int i = 0; i < s->n_tensors * 32; i++)
        image_put(&m, s->first_name, 1);
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
        cmocka_unit_test(a_split_model_opens_through_its_first_shard),
        cmocka_unit_test(split_lies_are_refused),
        cmocka_unit_test(a_missing_shard_is_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
