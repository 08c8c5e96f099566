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
#include "worker/memory/ram_slots.h"
#include <stdlib.h>
#include <string.h>

enum { N_PAGES = 24, N_STATES = 2, MAX_BLOCKS = 16, BLOCK = PREFIX_BLOCK_TOKENS };
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

static void open_cache(rig *r, uint64_t ram_bytes) {
    memset(r, 0, sizeof *r);
    error err = {0};
    assert_int_equal(kv_pages_new(&r->pages, N_PAGES, &err), STATUS_OK);
    const prefix_params params = {
        .memory = {r, 8, 8, page_save, page_load, state_save, state_load},
        .pages = r->pages,
        .ram_bytes = ram_bytes,
        .identity = "a model"};
    assert_int_equal(prefix_cache_open(&r->cache, &params, &err), STATUS_OK);
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
        for (int step = 0; step < 4000; step++) {
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
        assert_true(n_skipped > 1000);
        close_cache(&r);
    }
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
        cmocka_unit_test(what_is_cleared_is_gone),
        cmocka_unit_test(a_budget_below_a_snapshot_is_refused),
        cmocka_unit_test(nothing_wrong_comes_back_over_a_random_run),
        cmocka_unit_test(slots_come_back_and_give_their_pages_to_the_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
