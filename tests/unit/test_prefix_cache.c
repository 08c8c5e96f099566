/* test_prefix_cache.c - what comes back is what was held, whatever had to go in between.
 *
 * The double of the model writes into a page and a state a hash of the tokens they stand for,
 * so a wrong page or state shows.  Pages without an owner are overwritten after every step.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/memory/prefix_cache.h"
#include "worker/memory/prefix_file.h"
#include "worker/memory/ram_slots.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_PAGES = 24, N_STATES = 4, MAX_BLOCKS = 16, BLOCK = PREFIX_BLOCK_TOKENS };
enum { SLOT = RAM_SLOT_ALIGN }; /* what a page or state takes in RAM here */

typedef struct rig {
    kv_pages *pages;
    prefix_cache *cache;
    uint64_t page[N_PAGES];
    uint64_t state[N_STATES];
} rig;

static void page_save(void *context, uint32_t page, void *bytes) {
    memcpy(bytes, &((rig *)context)->page[page], 8);
}

static void page_load(void *context, uint32_t page, const void *bytes) {
    memcpy(&((rig *)context)->page[page], bytes, 8);
}

static void state_save(void *context, uint32_t state, void *bytes) {
    memcpy(bytes, &((rig *)context)->state[state], 8);
}

static void state_load(void *context, uint32_t state, const void *bytes) {
    memcpy(&((rig *)context)->state[state], bytes, 8);
}

static void state_copy(void *context, uint32_t to, uint32_t from) {
    rig *r = context;
    r->state[to] = r->state[from];
}

static uint32_t n_spare; /* states that caches opened from now on may keep snapshots in */

static void open_with(rig *r, uint64_t ram_bytes, const char *folder, uint64_t disk_bytes) {
    memset(r, 0, sizeof *r);
    error err = {0};
    assert_int_equal(kv_pages_new(&r->pages, N_PAGES, &err), STATUS_OK);
    const prefix_params params = {
        .memory = {r, 8, 8, page_save, page_load, state_save, state_load, state_copy},
        .pages = r->pages,
        .first_state = 2,
        .n_states = n_spare,
        .ram_bytes = ram_bytes,
        .disk_dir = folder,
        .disk_bytes = disk_bytes,
        .identity = "a model"};
    if (prefix_cache_open(&r->cache, &params, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void open_cache(rig *r, uint64_t ram_bytes) {
    open_with(r, ram_bytes, NULL, 0);
}

static void close_cache(rig *r) {
    prefix_cache_close(r->cache);
    assert_int_equal(kv_pages_available(r->pages), N_PAGES);
    kv_pages_free(r->pages);
}

/* A text of blocks: block i is the word words[i], many times. */
static void write_text(int32_t *tokens, const char *words) {
    for (size_t i = 0; words[i] != '\0'; i++) {
        for (size_t j = 0; j < BLOCK; j++)
            tokens[i * BLOCK + j] = words[i];
    }
}

static uint64_t hash_of(const int32_t *tokens, size_t n_blocks) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n_blocks * BLOCK; i++)
        h = (h ^ (uint64_t)tokens[i]) * 1099511628211u;
    return h;
}

static void poison(rig *r) {
    for (uint32_t i = 0; i < N_PAGES; i++) {
        if (kv_pages_owners(r->pages, i) == 0) r->page[i] = 0xdead;
    }
}

typedef struct run {
    int32_t tokens[MAX_BLOCKS * BLOCK];
    uint32_t n_blocks;
    uint32_t pages[MAX_BLOCKS];
    uint32_t n_skipped; /* blocks */
} run;

/* What a sequence does: go on from what is held, run the rest. */
static bool start(rig *r, run *u, const char *words, bool background) {
    u->n_blocks = (uint32_t)strlen(words);
    write_text(u->tokens, words);
    u->n_skipped =
        prefix_cache_begin(r->cache, u->tokens, u->n_blocks * BLOCK, background, 0, u->pages) /
        BLOCK;
    prefix_cache_count(r->cache, u->n_blocks * BLOCK, u->n_skipped * BLOCK);
    assert_true(u->n_skipped < u->n_blocks);
    for (uint32_t i = 0; i < u->n_skipped; i++)
        assert_int_equal(r->page[u->pages[i]], hash_of(u->tokens, i + 1));
    if (u->n_skipped > 0) assert_int_equal(r->state[0], hash_of(u->tokens, u->n_skipped));
    uint32_t n_new = u->n_blocks - u->n_skipped, n_free = kv_pages_available(r->pages);
    if (n_free < n_new) prefix_cache_reclaim(r->cache, n_new - n_free);
    for (uint32_t i = u->n_skipped; i < u->n_blocks; i++) {
        if (!kv_pages_take(r->pages, &u->pages[i])) {
            u->n_blocks = i;
            return false;
        }
        r->page[u->pages[i]] = hash_of(u->tokens, i + 1);
    }
    return true;
}

static bool keep(rig *r, run *u, uint32_t n_blocks, bool background) {
    r->state[0] = hash_of(u->tokens, n_blocks);
    return prefix_cache_keep(r->cache, u->tokens, n_blocks * BLOCK, background, 0, u->pages);
}

static void end(rig *r, run *u) {
    for (uint32_t i = 0; i < u->n_blocks; i++)
        kv_pages_release(r->pages, u->pages[i]);
    poison(r);
}

/* Run a text and hold it at each of the depths; how many blocks were skipped. */
static uint32_t play(rig *r, const char *words, const char *depths, bool background) {
    run u;
    assert_true(start(r, &u, words, background));
    for (; *depths != '\0'; depths++)
        (void)keep(r, &u, (uint32_t)(*depths - '0'), background);
    end(r, &u);
    return u.n_skipped;
}

static bool is_held(rig *r, const char *words) {
    int32_t tokens[MAX_BLOCKS * BLOCK];
    write_text(tokens, words);
    const prefix_end whole = {(uint32_t)strlen(words) * BLOCK, 1};
    uint64_t name = 0;
    return prefix_cache_list_held(r->cache, tokens, &whole, 1, &name) == 1;
}

static void a_hit_is_at_the_deepest_snapshot_before_the_last_token(void **state) {
    (void)state;
    rig r;
    open_cache(&r, 8 * SLOT);
    assert_int_equal(play(&r, "abcd", "24", false), 0);
    assert_int_equal(play(&r, "abcd", "", false), 2); /* its last token must run */
    assert_int_equal(play(&r, "abcde", "", false), 4);
    assert_int_equal(play(&r, "abcx", "", false), 2);
    assert_int_equal(play(&r, "abx", "", false), 2);
    assert_int_equal(play(&r, "ab", "", false), 0);
    assert_int_equal(play(&r, "xbcd", "", false), 0);
    assert_true(is_held(&r, "abcd") && is_held(&r, "ab"));
    assert_false(is_held(&r, "abc") || is_held(&r, "abcde") || is_held(&r, "a"));
    prefix_stats s;
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.hit_tokens, (2 + 4 + 2 + 2) * BLOCK);
    assert_true(s.asked_tokens == (4 + 4 + 5 + 4 + 3 + 2 + 4) * BLOCK);
    assert_int_equal(s.hits, 4);
    assert_int_equal(s.n_snapshots, 2);
    assert_int_equal(s.n_in_place, 4);
    close_cache(&r);
}

static void a_tail_of_a_block_is_no_part_of_a_hit(void **state) {
    (void)state;
    rig r;
    open_cache(&r, 8 * SLOT);
    (void)play(&r, "ab", "2", false);
    int32_t tokens[3 * BLOCK];
    write_text(tokens, "abc");
    uint32_t pages[3];
    assert_int_equal(prefix_cache_find(r.cache, tokens, 2 * BLOCK).n_tokens, 0);
    assert_int_equal(prefix_cache_find(r.cache, tokens, 2 * BLOCK + 1).n_tokens, 2 * BLOCK);
    assert_int_equal(prefix_cache_find(r.cache, tokens, 2 * BLOCK + 1).n_in_place, 2);
    assert_int_equal(prefix_cache_begin(r.cache, tokens, 2 * BLOCK + 1, false, 1, pages),
                     2 * BLOCK);
    assert_int_equal(r.state[1], hash_of(tokens, 2));
    kv_pages_release(r.pages, pages[0]);
    kv_pages_release(r.pages, pages[1]);
    tokens[BLOCK + 17] ^= 1; /* one token of the second block */
    assert_int_equal(prefix_cache_find(r.cache, tokens, 3 * BLOCK).n_tokens, 0);
    close_cache(&r);
}

static void pages_of_two_texts_with_one_beginning_are_held_once(void **state) {
    (void)state;
    rig r;
    open_cache(&r, 8 * SLOT);
    (void)play(&r, "abcd", "24", false);
    assert_int_equal(play(&r, "abxy", "4", false), 2);
    prefix_stats s;
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_in_place, 6);
    assert_int_equal(s.n_snapshots, 3);
    assert_int_equal(play(&r, "abcde", "", false), 4);
    assert_int_equal(play(&r, "abxyz", "", false), 4);
    close_cache(&r);
}

static void pages_move_to_ram_when_sequences_want_their_place(void **state) {
    (void)state;
    rig r;
    open_cache(&r, 12 * SLOT);
    (void)play(&r, "abcd", "4", false);
    run big;
    assert_true(start(&r, &big, "0123456789ABCDEF", false));
    assert_int_equal(kv_pages_available(r.pages), N_PAGES - 16 - 4);
    prefix_cache_reclaim(r.cache, 6); /* only four can come */
    assert_int_equal(kv_pages_available(r.pages), N_PAGES - 16);
    prefix_stats s;
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_in_place, 0);
    assert_int_equal(s.ram_bytes, 5 * SLOT);
    end(&r, &big);
    assert_int_equal(play(&r, "abcde", "", false), 4); /* and they are right */
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_in_place, 4);
    assert_int_equal(s.ram_bytes, SLOT);
    close_cache(&r);
}

static void a_page_that_a_sequence_uses_is_not_given_back(void **state) {
    (void)state;
    rig r;
    open_cache(&r, 8 * SLOT);
    (void)play(&r, "abcd", "4", false);
    run u;
    assert_true(start(&r, &u, "abcde", false));
    prefix_cache_reclaim(r.cache, N_PAGES);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(r.page[u.pages[i]], hash_of(u.tokens, i + 1));
    assert_true(is_held(&r, "abcd"));
    end(&r, &u);
    close_cache(&r);
}

static void the_snapshot_unused_for_longest_goes_first(void **state) {
    (void)state;
    rig r;
    open_cache(&r, 3 * SLOT);
    (void)play(&r, "ab", "2", false);
    (void)play(&r, "cd", "2", false);
    (void)play(&r, "ef", "2", false);
    assert_int_equal(play(&r, "abx", "", false), 2); /* used: the youngest now */
    (void)play(&r, "gh", "2", false);
    assert_false(is_held(&r, "cd"));
    assert_true(is_held(&r, "ab") && is_held(&r, "ef") && is_held(&r, "gh"));
    prefix_stats s;
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_in_place, 6); /* its pages went with it */
    close_cache(&r);
}

static void background_work_never_takes_an_interactive_chat_s_place(void **state) {
    (void)state;
    rig r;
    open_cache(&r, 2 * SLOT);
    (void)play(&r, "ab", "2", false);
    (void)play(&r, "cd", "2", true);
    (void)play(&r, "ef", "2", true); /* in the place of its like */
    assert_true(is_held(&r, "ab") && is_held(&r, "ef"));
    assert_false(is_held(&r, "cd"));
    (void)play(&r, "abx", "", false);
    (void)play(&r, "efx", "", true);
    (void)play(&r, "gh", "2", false); /* younger than either, but background goes first */
    assert_true(is_held(&r, "ab") && is_held(&r, "gh"));
    assert_false(is_held(&r, "ef"));
    (void)play(&r, "ij", "2", true);
    assert_false(is_held(&r, "ij"));
    assert_true(is_held(&r, "ab") && is_held(&r, "gh"));
    close_cache(&r);
}

static void what_an_interactive_chat_uses_is_no_background_work_s_any_more(void **state) {
    (void)state;
    rig r;
    open_cache(&r, 2 * SLOT);
    (void)play(&r, "ab", "2", true);
    (void)play(&r, "abx", "", false);
    (void)play(&r, "cd", "2", true);
    (void)play(&r, "ef", "2", true);
    assert_true(is_held(&r, "ab") && is_held(&r, "ef"));
    close_cache(&r);
}

static void names_of_what_is_gone_are_told_once(void **state) {
    (void)state;
    rig r;
    open_cache(&r, 2 * SLOT);
    int32_t tokens[4 * BLOCK];
    write_text(tokens, "abcd");
    /* One ends in the middle of a block: it is held by what is before it. */
    const prefix_end ends[] = {{9, 5}, {2 * BLOCK, 6}, {2 * BLOCK + 9, 7}, {4 * BLOCK, 8}};
    uint64_t names[4];
    assert_int_equal(prefix_cache_list_held(r.cache, tokens, ends, 4, names), 0);
    (void)play(&r, "abcd", "2", false);
    assert_int_equal(prefix_cache_list_held(r.cache, tokens, ends, 4, names), 2);
    assert_true(names[0] == 6 && names[1] == 7);
    (void)play(&r, "abcd", "4", false);
    assert_int_equal(prefix_cache_list_held(r.cache, tokens, ends, 4, names), 3);
    assert_int_equal(prefix_cache_list_held(r.cache, tokens, ends, 4, names), 3);
    assert_int_equal(prefix_cache_take_lost(r.cache, names, 4), 0);
    (void)play(&r, "xy", "2", false); /* in the place of "ab" */
    assert_int_equal(prefix_cache_take_lost(r.cache, names, 1), 1);
    uint64_t first = names[0];
    assert_int_equal(prefix_cache_take_lost(r.cache, names, 4), 1);
    assert_int_equal(first + names[0], 6 + 7);
    assert_int_equal(prefix_cache_take_lost(r.cache, names, 4), 0);
    close_cache(&r);
}

static int spare_two(void **state) {
    (void)state;
    n_spare = 2;
    return 0;
}

static int spare_none(void **state) {
    (void)state;
    n_spare = 0;
    return 0;
}

static void the_newest_snapshots_lie_in_states_of_the_model(void **state) {
    (void)state;
    rig r;
    open_cache(&r, 2 * SLOT);
    (void)play(&r, "ab", "2", false);
    (void)play(&r, "cd", "2", false);
    prefix_stats s;
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_snapshots, 2);
    assert_int_equal(s.ram_bytes, 0);
    (void)play(&r, "ef", "2", false); /* "ab" moves to RAM */
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_snapshots, 3);
    assert_int_equal(s.ram_bytes, SLOT);
    assert_int_equal(play(&r, "abx", "", false), 2); /* play() looks at the state */
    assert_int_equal(play(&r, "efx", "", false), 2);
    (void)play(&r, "gh", "2", true); /* no room among background's own: to RAM */
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.ram_bytes, 2 * SLOT);
    (void)play(&r, "ij", "2", false); /* "cd" to RAM, in the place of "gh" */
    assert_false(is_held(&r, "gh"));
    assert_true(is_held(&r, "ab") && is_held(&r, "cd") && is_held(&r, "ef"));
    (void)play(&r, "kl", "2", false);
    assert_false(is_held(&r, "cd"));
    close_cache(&r);
}

static void what_is_cleared_is_gone(void **state) {
    (void)state;
    rig r;
    open_cache(&r, 8 * SLOT);
    (void)play(&r, "abcd", "24", false);
    (void)play(&r, "abxy", "4", true);
    prefix_cache_clear(r.cache);
    assert_int_equal(kv_pages_available(r.pages), N_PAGES);
    assert_int_equal(play(&r, "abcd", "", false), 0);
    close_cache(&r);
}

static void a_budget_below_a_snapshot_is_refused(void **state) {
    (void)state;
    kv_pages *pages = NULL;
    prefix_cache *cache = NULL;
    error err = {0};
    assert_int_equal(kv_pages_new(&pages, 1, &err), STATUS_OK);
    const prefix_params params = {
        .memory = {.page_bytes = 8, .state_bytes = 8192}, .pages = pages, .ram_bytes = 8191};
    assert_int_equal(prefix_cache_open(&cache, &params, &err), STATUS_BAD_INPUT);
    assert_null(cache);
    kv_pages_free(pages);
}

/* Texts that share beginnings, in every order, with budgets in which hardly anything stays. */
static void nothing_wrong_comes_back_over_a_random_run(void **state) {
    (void)state;
    for (uint32_t budget = 1; budget <= 16; budget += 3) {
        rig r;
        open_cache(&r, budget * SLOT);
        uint32_t x = 2463534242u + budget, n_skipped = 0;
        for (int step = 0; step < 1500; step++) {
            char words[MAX_BLOCKS + 1] = {0};
            x ^= x << 13, x ^= x >> 17, x ^= x << 5;
            uint32_t n = 2 + x % (MAX_BLOCKS - 2), bits = x >> 8;
            for (uint32_t i = 0; i < n; i++)
                words[i] = (char)('a' + (i % 3 == 2 ? (bits >> i & 1) : 0));
            run u;
            bool background = (bits & 3) == 0;
            bool whole = start(&r, &u, words, background);
            n_skipped += u.n_skipped;
            for (uint32_t d = u.n_skipped + 1; whole && d <= n; d += 1 + (bits >> d) % 3)
                (void)keep(&r, &u, d, background);
            end(&r, &u);
            if (bits % 31 == 0) prefix_cache_reclaim(r.cache, bits % N_PAGES);
            poison(&r);
            prefix_stats s;
            prefix_cache_read_stats(r.cache, &s);
            assert_true(s.ram_bytes <= budget * SLOT);
            assert_int_equal(s.n_in_place, N_PAGES - kv_pages_available(r.pages));
        }
        assert_true(n_skipped > 400);
        close_cache(&r);
    }
}

/* --- on disk --- */

enum { FILE_BYTES = PREFIX_FILE_HEADER + 8 };

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    n_spare = 0;
    const char *base = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%.40s/prefix-XXXXXX", base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(folder));
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
    return play(r, words, depths, false);
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
    open_with(&r, 4 * SLOT, folder, 1 << 20); /* a snapshot and three pages */
    (void)play(&r, "abc", "3", false);
    settle(&r);
    (void)play(&r, "xyz", "3", false);
    settle(&r);
    prefix_cache_reclaim(r.cache, N_PAGES);
    assert_int_equal(play(&r, "abcd", "", false), 0); /* as long as nobody asks for it */
    assert_int_equal(play_fetched(&r, "abcd", ""), 3);
    assert_int_equal(play_fetched(&r, "xyzd", ""), 3);
    assert_true(is_held(&r, "abc") && is_held(&r, "xyz"));
    close_cache(&r);
}

static void what_is_on_disk_outlives_the_process(void **state) {
    (void)state;
    rig r;
    open_with(&r, 8 * SLOT, folder, 1 << 20);
    (void)play(&r, "abcd", "24", false);
    (void)play(&r, "abxy", "4", false);
    close_cache(&r); /* finishes the writing */
    open_with(&r, 8 * SLOT, folder, 1 << 20);
    assert_true(is_held(&r, "ab") && is_held(&r, "abcd") && is_held(&r, "abxy"));
    assert_int_equal(play_fetched(&r, "abcde", ""), 4);
    assert_int_equal(play_fetched(&r, "abxyz", ""), 4);
    assert_int_equal(play_fetched(&r, "abz", ""), 2);
    close_cache(&r);
}

static void files_stay_within_their_budget_the_oldest_go(void **state) {
    (void)state;
    rig r;
    char names[64][PREFIX_FILE_NAME], path[512];
    open_with(&r, 2 * SLOT, folder, 6 * FILE_BYTES);
    (void)play(&r, "ab", "2", false);
    settle(&r);
    (void)play(&r, "cd", "2", false);
    settle(&r);
    assert_int_equal(list_files(names, 64), 6);
    for (size_t i = 0; i < 6; i++) { /* clocks of file systems are coarse */
        const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
        path_of(names[i], path, sizeof path);
        assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    }
    (void)play(&r, "ef", "2", false);
    settle(&r);
    assert_int_equal(list_files(names, 64), 6);
    assert_true(is_held(&r, "cd") && is_held(&r, "ef"));
    assert_false(is_held(&r, "ab"));
    (void)play(&r, "gh", "2", true); /* background work has nothing of its own to give */
    settle(&r);
    assert_true(is_held(&r, "cd") && is_held(&r, "ef"));
    close_cache(&r);
    open_with(&r, 4 * SLOT, folder, 3 * FILE_BYTES); /* a smaller one from now on */
    assert_int_equal(list_files(names, 64), 3);
    assert_int_equal(play_fetched(&r, "efx", ""), 2);
    close_cache(&r);
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
        open_with(&r, 8 * SLOT, folder, 1 << 20);
        (void)play_fetched(&r, "abc", "13");
        close_cache(&r);
        size_t n = list_files(names, 64);
        assert_int_equal(n, 5);
        size_t which = i % 5;
        damage(names[which], places[i / 4], i % 3 == 2);
        path_of("0123.page", path, sizeof path);
        FILE *foreign = fopen(path, "w");
        assert_non_null(foreign);
        (void)fclose(foreign);
        open_with(&r, 8 * SLOT, folder, 1 << 20);
        (void)play_fetched(&r, "abcd", ""); /* looks at every page and state */
        (void)play_fetched(&r, "ax", "");
        (void)list_files(names, 64);
        close_cache(&r);
        n = list_files(names, 64);
        for (size_t j = 0; j < n; j++)
            assert_string_not_equal(names[j], "0123.page");
    }
}

static void one_process_at_a_time_has_a_folder(void **state) {
    (void)state;
    rig r;
    open_with(&r, 8 * SLOT, folder, 1 << 20);
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
    close_cache(&r);
}

static void nothing_wrong_comes_back_from_disk_over_a_random_run(void **state) {
    (void)state;
    uint32_t x = 88172645u, n_skipped = 0;
    for (int life = 0; life < 6; life++) {
        rig r;
        n_spare = life % 2 == 0 ? 0 : 2;
        open_with(&r, (uint64_t)(2 + 3 * life) * SLOT, folder,
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
                n_skipped += play(&r, words, "", bits % 2 == 0);
            }
            if (bits % 7 == 0) prefix_cache_reclaim(r.cache, N_PAGES);
            if (bits % 5 == 0) prefix_cache_poll(r.cache, 0);
            poison(&r);
        }
        close_cache(&r);
    }
    assert_true(n_skipped > 300);
    n_spare = 0;
}

static void slots_come_back_and_give_their_pages_to_the_system(void **state) {
    (void)state;
    ram_slots *s = NULL;
    error err = {0};
    assert_int_equal(ram_slots_new(&s, 5000, 3, &err), STATUS_OK);
    assert_int_equal(ram_slots_stride(s), 2 * RAM_SLOT_ALIGN);
    uint32_t slots[3], more;
    for (int i = 0; i < 3; i++) {
        assert_true(ram_slots_take(s, &slots[i]));
        memset(ram_slots_at(s, slots[i]), 7, 5000);
    }
    assert_false(ram_slots_take(s, &more));
    ram_slots_give(s, slots[1]);
    ram_slots_give(s, slots[0]);
    assert_int_equal(ram_slots_in_use(s), 1);
    assert_int_equal(ram_slots_resident_bytes(s), 6 * RAM_SLOT_ALIGN);
    assert_true(ram_slots_take(s, &more)); /* the one that was used last */
    assert_int_equal(more, slots[0]);
    ram_slots_trim(s);
    assert_int_equal(ram_slots_resident_bytes(s), 4 * RAM_SLOT_ALIGN);
    assert_int_equal(*(unsigned char *)ram_slots_at(s, slots[1]), 0);
    assert_int_equal(*(unsigned char *)ram_slots_at(s, slots[2]), 7);
    ram_slots_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_is_at_the_deepest_snapshot_before_the_last_token),
        cmocka_unit_test(a_tail_of_a_block_is_no_part_of_a_hit),
        cmocka_unit_test(pages_of_two_texts_with_one_beginning_are_held_once),
        cmocka_unit_test(pages_move_to_ram_when_sequences_want_their_place),
        cmocka_unit_test(a_page_that_a_sequence_uses_is_not_given_back),
        cmocka_unit_test(the_snapshot_unused_for_longest_goes_first),
        cmocka_unit_test(background_work_never_takes_an_interactive_chat_s_place),
        cmocka_unit_test(what_an_interactive_chat_uses_is_no_background_work_s_any_more),
        cmocka_unit_test(names_of_what_is_gone_are_told_once),
        cmocka_unit_test_setup_teardown(the_newest_snapshots_lie_in_states_of_the_model,
                                        spare_two, spare_none),
        cmocka_unit_test(what_is_cleared_is_gone),
        cmocka_unit_test_setup_teardown(what_is_cleared_is_gone, spare_two, spare_none),
        cmocka_unit_test(a_budget_below_a_snapshot_is_refused),
        cmocka_unit_test(nothing_wrong_comes_back_over_a_random_run),
        cmocka_unit_test_setup_teardown(nothing_wrong_comes_back_over_a_random_run, spare_two,
                                        spare_none),
#define ON_DISK(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
        ON_DISK(what_ram_has_no_room_for_comes_back_from_disk),
        ON_DISK(what_is_on_disk_outlives_the_process),
        ON_DISK(files_stay_within_their_budget_the_oldest_go),
        ON_DISK(damaged_and_foreign_files_are_removed_and_nothing_wrong_comes_back),
        ON_DISK(one_process_at_a_time_has_a_folder),
        ON_DISK(nothing_wrong_comes_back_from_disk_over_a_random_run),
        cmocka_unit_test(slots_come_back_and_give_their_pages_to_the_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
