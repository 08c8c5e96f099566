/* test_prefix_disk.c - what a cache of prompts wrote to files comes back, or nothing does. */
#include "tests/unit/prefix_rig.h"

#include "tests/files.h"
#include "worker/memory/prefix_file.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES = PREFIX_FILE_HEADER + 8 };

static char folder[200];

static int make_folder(void **state) {
    (void)state;
    rig_n_spare = 0;
    assert_true(make_temporary(folder, sizeof folder));
    return 0;
}

/* Of the one identity there is: the names of its files but for the lock's. */
static size_t list_files(char names[][PREFIX_FILE_NAME], size_t cap) {
    char path[512];
    size_t n = 0;
    DIR *top = opendir(folder);
    assert_non_null(top);
    for (const struct dirent *item; (item = readdir(top)) != NULL;) {
        if (item->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, item->d_name);
        DIR *own = opendir(path);
        assert_non_null(own);
        for (const struct dirent *f; (f = readdir(own)) != NULL;) {
            if (f->d_name[0] == '.' || strcmp(f->d_name, "lock") == 0) continue;
            assert_true(n < cap);
            (void)snprintf(names[n++], PREFIX_FILE_NAME, "%.46s", f->d_name);
        }
        (void)closedir(own);
    }
    (void)closedir(top);
    return n;
}

static void path_of(const char *name, char *path, size_t cap) {
    (void)snprintf(path, cap, "%s/%016" PRIx64 "/%.47s", folder,
                   prefix_file_identity("a model").high, name);
}

static int remove_folder(void **state) {
    (void)state;
    char names[64][PREFIX_FILE_NAME], path[512];
    size_t n = list_files(names, 64);
    for (size_t i = 0; i < n; i++) {
        path_of(names[i], path, sizeof path);
        assert_int_equal(unlink(path), 0);
    }
    path_of("lock", path, sizeof path);
    assert_int_equal(unlink(path), 0);
    path_of("", path, sizeof path);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(folder), 0);
    return 0;
}

/* As a request does it: what is on disk is read first. */
static uint32_t play_fetched(rig *r, const char *words, const char *depths) {
    int32_t tokens[MAX_BLOCKS * BLOCK];
    uint32_t n = (uint32_t)strlen(words) * BLOCK;
    write_text(tokens, words);
    (void)prefix_cache_fetch(r->cache, tokens, n, false);
    while (prefix_cache_is_loading(r->cache, tokens, n))
        prefix_cache_poll(r->cache, 1000);
    return rig_play(r, words, depths, false);
}

/* Until the writer has nothing left to do. */
static void settle(rig *r) {
    prefix_stats s;
    do {
        prefix_cache_poll(r->cache, 1);
        prefix_cache_read_stats(r->cache, &s);
    } while (s.n_writing > 0);
}

static void what_ram_has_no_room_for_comes_back_from_disk(void **state) {
    (void)state;
    rig r;
    rig_open_with(&r, 4 * SLOT, folder, 1 << 20); /* a snapshot and three pages */
    (void)rig_play(&r, "abc", "3", false);
    settle(&r);
    (void)rig_play(&r, "xyz", "3", false);
    settle(&r);
    prefix_cache_reclaim(r.cache, N_PAGES);
    assert_int_equal(rig_play(&r, "abcd", "", false), 0); /* as long as nobody asks for it */
    assert_int_equal(play_fetched(&r, "abcd", ""), 3);
    assert_int_equal(play_fetched(&r, "xyzd", ""), 3);
    assert_true(rig_holds(&r, "abc") && rig_holds(&r, "xyz"));
    rig_close(&r);
}

static void what_is_on_disk_outlives_the_process(void **state) {
    (void)state;
    rig r;
    rig_open_with(&r, 8 * SLOT, folder, 1 << 20);
    (void)rig_play(&r, "abcd", "24", false);
    (void)rig_play(&r, "abxy", "4", false);
    rig_close(&r); /* finishes the writing */
    rig_open_with(&r, 8 * SLOT, folder, 1 << 20);
    assert_true(rig_holds(&r, "ab") && rig_holds(&r, "abcd") && rig_holds(&r, "abxy"));
    assert_int_equal(play_fetched(&r, "abcde", ""), 4);
    assert_int_equal(play_fetched(&r, "abxyz", ""), 4);
    assert_int_equal(play_fetched(&r, "abz", ""), 2);
    rig_close(&r);
}

static void files_stay_within_their_budget_the_oldest_go(void **state) {
    (void)state;
    rig r;
    char names[64][PREFIX_FILE_NAME], path[512];
    rig_open_with(&r, 2 * SLOT, folder, 6 * FILE_BYTES);
    (void)rig_play(&r, "ab", "2", false);
    settle(&r);
    (void)rig_play(&r, "cd", "2", false);
    settle(&r);
    assert_int_equal(list_files(names, 64), 6);
    for (size_t i = 0; i < 6; i++) { /* clocks of file systems are coarse */
        const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
        path_of(names[i], path, sizeof path);
        assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    }
    (void)rig_play(&r, "ef", "2", false);
    settle(&r);
    assert_int_equal(list_files(names, 64), 6);
    assert_true(rig_holds(&r, "cd") && rig_holds(&r, "ef"));
    assert_false(rig_holds(&r, "ab"));
    (void)rig_play(&r, "gh", "2", true); /* background work has nothing of its own to give */
    settle(&r);
    assert_true(rig_holds(&r, "cd") && rig_holds(&r, "ef"));
    rig_close(&r);
    rig_open_with(&r, 4 * SLOT, folder, 3 * FILE_BYTES); /* a smaller one from now on */
    assert_int_equal(list_files(names, 64), 3);
    assert_int_equal(play_fetched(&r, "efx", ""), 2);
    rig_close(&r);
}

/* Change one byte of a file, or cut it at `at`. */
static void damage(const char *name, long at, bool cut) {
    char path[512];
    path_of(name, path, sizeof path);
    if (cut) {
        assert_int_equal(truncate(path, at), 0);
        return;
    }
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int byte = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 0x40, f), byte ^ 0x40);
    assert_int_equal(fclose(f), 0);
}

static void damaged_and_foreign_files_are_removed_and_nothing_wrong_comes_back(void **state) {
    (void)state;
    static const long places[] = {
        0, 9, 12, 100, 340, PREFIX_FILE_HEADER - 1, PREFIX_FILE_HEADER + 3};
    char names[64][PREFIX_FILE_NAME], path[512];
    for (size_t i = 0; i < 4 * sizeof places / sizeof places[0]; i++) {
        rig r;
        rig_open_with(&r, 8 * SLOT, folder, 1 << 20);
        (void)play_fetched(&r, "abc", "13");
        rig_close(&r);
        size_t n = list_files(names, 64);
        assert_int_equal(n, 5);
        size_t which = i % 5;
        damage(names[which], places[i / 4], i % 3 == 2);
        path_of("0123.page", path, sizeof path);
        FILE *foreign = fopen(path, "w");
        assert_non_null(foreign);
        (void)fclose(foreign);
        rig_open_with(&r, 8 * SLOT, folder, 1 << 20);
        (void)play_fetched(&r, "abcd", ""); /* looks at every page and state */
        (void)play_fetched(&r, "ax", "");
        (void)list_files(names, 64);
        rig_close(&r);
        n = list_files(names, 64);
        for (size_t j = 0; j < n; j++)
            assert_string_not_equal(names[j], "0123.page");
    }
}

static void one_process_at_a_time_has_a_folder(void **state) {
    (void)state;
    rig r;
    rig_open_with(&r, 8 * SLOT, folder, 1 << 20);
    prefix_cache *other = NULL;
    error err = {0};
    const prefix_params params = {.memory = {.page_bytes = 8, .state_bytes = 8},
                                  .pages = r.pages,
                                  .ram_bytes = SLOT,
                                  .disk_dir = folder,
                                  .disk_bytes = 1 << 20,
                                  .identity = "a model"};
    assert_int_equal(prefix_cache_open(&other, &params, &err), STATUS_UNAVAILABLE);
    assert_null(other);
    rig_close(&r);
}

static void nothing_wrong_comes_back_from_disk_over_a_random_run(void **state) {
    (void)state;
    uint32_t x = 88172645u, n_skipped = 0;
    for (int life = 0; life < 6; life++) {
        rig r;
        rig_n_spare = life % 2 == 0 ? 0 : 2;
        rig_open_with(&r, (uint64_t)(2 + 3 * life) * SLOT, folder,
                      (uint64_t)(8 + 4 * life) * FILE_BYTES);
        for (int step = 0; step < 150; step++) {
            char words[MAX_BLOCKS + 1] = {0}, depths[3] = {0};
            x ^= x << 13, x ^= x >> 17, x ^= x << 5;
            uint32_t n = 2 + x % 7, bits = x >> 8;
            for (uint32_t i = 0; i < n; i++)
                words[i] = (char)('a' + (i % 3 == 2 ? (bits >> i & 1) : 0));
            depths[0] = (char)('1' + bits % n);
            if (bits % 3 != 0) {
                n_skipped += play_fetched(&r, words, depths);
            } else {
                n_skipped += rig_play(&r, words, "", bits % 2 == 0);
            }
            if (bits % 7 == 0) prefix_cache_reclaim(r.cache, N_PAGES);
            if (bits % 5 == 0) prefix_cache_poll(r.cache, 0);
            rig_poison(&r);
        }
        rig_close(&r);
    }
    assert_true(n_skipped > 300);
    rig_n_spare = 0;
}

#define ON_DISK(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_DISK(what_ram_has_no_room_for_comes_back_from_disk),
        ON_DISK(what_is_on_disk_outlives_the_process),
        ON_DISK(files_stay_within_their_budget_the_oldest_go),
        ON_DISK(damaged_and_foreign_files_are_removed_and_nothing_wrong_comes_back),
        ON_DISK(one_process_at_a_time_has_a_folder),
        ON_DISK(nothing_wrong_comes_back_from_disk_over_a_random_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
