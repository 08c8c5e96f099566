/* test_prefix_cache.c - what comes back is what was held, whatever had to go in between. */
#include "tests/unit/prefix_rig.h"

#include <string.h>

static void a_hit_is_at_the_deepest_snapshot_before_the_last_token(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 8 * SLOT);
    assert_int_equal(rig_play(&r, "abcd", "24", false), 0);
    assert_int_equal(rig_play(&r, "abcd", "", false), 2); /* its last token must run */
    assert_int_equal(rig_play(&r, "abcde", "", false), 4);
    assert_int_equal(rig_play(&r, "abcx", "", false), 2);
    assert_int_equal(rig_play(&r, "abx", "", false), 2);
    assert_int_equal(rig_play(&r, "ab", "", false), 0);
    assert_int_equal(rig_play(&r, "xbcd", "", false), 0);
    assert_true(rig_holds(&r, "abcd") && rig_holds(&r, "ab"));
    assert_false(rig_holds(&r, "abc") || rig_holds(&r, "abcde") || rig_holds(&r, "a"));
    prefix_stats s;
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.hit_tokens, (2 + 4 + 2 + 2) * BLOCK);
    assert_true(s.asked_tokens == (4 + 4 + 5 + 4 + 3 + 2 + 4) * BLOCK);
    assert_int_equal(s.hits, 4);
    assert_int_equal(s.n_snapshots, 2);
    assert_int_equal(s.n_in_place, 4);
    rig_close(&r);
}

static void a_tail_of_a_block_is_no_part_of_a_hit(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 8 * SLOT);
    (void)rig_play(&r, "ab", "2", false);
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
    rig_close(&r);
}

static void pages_of_two_texts_with_one_beginning_are_held_once(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 8 * SLOT);
    (void)rig_play(&r, "abcd", "24", false);
    assert_int_equal(rig_play(&r, "abxy", "4", false), 2);
    prefix_stats s;
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_in_place, 6);
    assert_int_equal(s.n_snapshots, 3);
    assert_int_equal(rig_play(&r, "abcde", "", false), 4);
    assert_int_equal(rig_play(&r, "abxyz", "", false), 4);
    rig_close(&r);
}

static void pages_move_to_ram_when_sequences_want_their_place(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 12 * SLOT);
    (void)rig_play(&r, "abcd", "4", false);
    run big;
    assert_true(rig_start(&r, &big, "0123456789ABCDEF", false));
    assert_int_equal(kv_pages_available(r.pages), N_PAGES - 16 - 4);
    prefix_cache_reclaim(r.cache, 6); /* only four can come */
    assert_int_equal(kv_pages_available(r.pages), N_PAGES - 16);
    prefix_stats s;
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_in_place, 0);
    assert_int_equal(s.ram_bytes, 5 * SLOT);
    rig_end(&r, &big);
    assert_int_equal(rig_play(&r, "abcde", "", false), 4); /* and they are right */
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_in_place, 4);
    assert_int_equal(s.ram_bytes, SLOT);
    rig_close(&r);
}

static void a_page_that_a_sequence_uses_is_not_given_back(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 8 * SLOT);
    (void)rig_play(&r, "abcd", "4", false);
    run u;
    assert_true(rig_start(&r, &u, "abcde", false));
    prefix_cache_reclaim(r.cache, N_PAGES);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(r.page[u.pages[i]], hash_of(u.tokens, i + 1));
    assert_true(rig_holds(&r, "abcd"));
    rig_end(&r, &u);
    rig_close(&r);
}

static void the_snapshot_unused_for_longest_goes_first(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 3 * SLOT);
    (void)rig_play(&r, "ab", "2", false);
    (void)rig_play(&r, "cd", "2", false);
    (void)rig_play(&r, "ef", "2", false);
    assert_int_equal(rig_play(&r, "abx", "", false), 2); /* used: the youngest now */
    (void)rig_play(&r, "gh", "2", false);
    assert_false(rig_holds(&r, "cd"));
    assert_true(rig_holds(&r, "ab") && rig_holds(&r, "ef") && rig_holds(&r, "gh"));
    prefix_stats s;
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_in_place, 6); /* its pages went with it */
    rig_close(&r);
}

static void background_work_never_takes_an_interactive_chat_s_place(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 2 * SLOT);
    (void)rig_play(&r, "ab", "2", false);
    (void)rig_play(&r, "cd", "2", true);
    (void)rig_play(&r, "ef", "2", true); /* in the place of its like */
    assert_true(rig_holds(&r, "ab") && rig_holds(&r, "ef"));
    assert_false(rig_holds(&r, "cd"));
    (void)rig_play(&r, "abx", "", false);
    (void)rig_play(&r, "efx", "", true);
    (void)rig_play(&r, "gh", "2", false); /* younger than either, but background goes first */
    assert_true(rig_holds(&r, "ab") && rig_holds(&r, "gh"));
    assert_false(rig_holds(&r, "ef"));
    (void)rig_play(&r, "ij", "2", true);
    assert_false(rig_holds(&r, "ij"));
    assert_true(rig_holds(&r, "ab") && rig_holds(&r, "gh"));
    rig_close(&r);
}

static void what_an_interactive_chat_uses_is_no_background_work_s_any_more(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 2 * SLOT);
    (void)rig_play(&r, "ab", "2", true);
    (void)rig_play(&r, "abx", "", false);
    (void)rig_play(&r, "cd", "2", true);
    (void)rig_play(&r, "ef", "2", true);
    assert_true(rig_holds(&r, "ab") && rig_holds(&r, "ef"));
    rig_close(&r);
}

static void names_of_what_is_gone_are_told_once(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 2 * SLOT);
    int32_t tokens[4 * BLOCK];
    write_text(tokens, "abcd");
    /* One ends in the middle of a block: it is held by what is before it. */
    const prefix_end ends[] = {{9, 5}, {2 * BLOCK, 6}, {2 * BLOCK + 9, 7}, {4 * BLOCK, 8}};
    uint64_t names[4];
    assert_int_equal(prefix_cache_list_held(r.cache, tokens, ends, 4, names), 0);
    (void)rig_play(&r, "abcd", "2", false);
    assert_int_equal(prefix_cache_list_held(r.cache, tokens, ends, 4, names), 2);
    assert_true(names[0] == 6 && names[1] == 7);
    (void)rig_play(&r, "abcd", "4", false);
    assert_int_equal(prefix_cache_list_held(r.cache, tokens, ends, 4, names), 3);
    assert_int_equal(prefix_cache_list_held(r.cache, tokens, ends, 4, names), 3);
    assert_int_equal(prefix_cache_take_lost(r.cache, names, 4), 0);
    (void)rig_play(&r, "xy", "2", false); /* in the place of "ab" */
    assert_int_equal(prefix_cache_take_lost(r.cache, names, 1), 1);
    uint64_t first = names[0];
    assert_int_equal(prefix_cache_take_lost(r.cache, names, 4), 1);
    assert_int_equal(first + names[0], 6 + 7);
    assert_int_equal(prefix_cache_take_lost(r.cache, names, 4), 0);
    rig_close(&r);
}

static int spare_two(void **state) {
    (void)state;
    rig_n_spare = 2;
    return 0;
}

static int spare_none(void **state) {
    (void)state;
    rig_n_spare = 0;
    return 0;
}

static void the_newest_snapshots_lie_in_states_of_the_model(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 2 * SLOT);
    (void)rig_play(&r, "ab", "2", false);
    (void)rig_play(&r, "cd", "2", false);
    prefix_stats s;
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_snapshots, 2);
    assert_int_equal(s.ram_bytes, 0);
    (void)rig_play(&r, "ef", "2", false); /* "ab" moves to RAM */
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.n_snapshots, 3);
    assert_int_equal(s.ram_bytes, SLOT);
    assert_int_equal(rig_play(&r, "abx", "", false), 2); /* rig_play() looks at the state */
    assert_int_equal(rig_play(&r, "efx", "", false), 2);
    (void)rig_play(&r, "gh", "2", true); /* no room among background's own: to RAM */
    prefix_cache_read_stats(r.cache, &s);
    assert_int_equal(s.ram_bytes, 2 * SLOT);
    (void)rig_play(&r, "ij", "2", false); /* "cd" to RAM, in the place of "gh" */
    assert_false(rig_holds(&r, "gh"));
    assert_true(rig_holds(&r, "ab") && rig_holds(&r, "cd") && rig_holds(&r, "ef"));
    (void)rig_play(&r, "kl", "2", false);
    assert_false(rig_holds(&r, "cd"));
    rig_close(&r);
}

static void what_is_cleared_is_gone(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 8 * SLOT);
    (void)rig_play(&r, "abcd", "24", false);
    (void)rig_play(&r, "abxy", "4", true);
    prefix_cache_clear(r.cache);
    assert_int_equal(kv_pages_available(r.pages), N_PAGES);
    assert_int_equal(rig_play(&r, "abcd", "", false), 0);
    rig_close(&r);
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
        rig_open(&r, budget * SLOT);
        uint32_t x = 2463534242u + budget, n_skipped = 0;
        for (int step = 0; step < 1500; step++) {
            char words[MAX_BLOCKS + 1] = {0};
            x ^= x << 13, x ^= x >> 17, x ^= x << 5;
            uint32_t n = 2 + x % (MAX_BLOCKS - 2), bits = x >> 8;
            for (uint32_t i = 0; i < n; i++)
                words[i] = (char)('a' + (i % 3 == 2 ? (bits >> i & 1) : 0));
            run u;
            bool background = (bits & 3) == 0;
            bool whole = rig_start(&r, &u, words, background);
            n_skipped += u.n_skipped;
            for (uint32_t d = u.n_skipped + 1; whole && d <= n; d += 1 + (bits >> d) % 3)
                (void)rig_keep(&r, &u, d, background);
            rig_end(&r, &u);
            if (bits % 31 == 0) prefix_cache_reclaim(r.cache, bits % N_PAGES);
            rig_poison(&r);
            prefix_stats s;
            prefix_cache_read_stats(r.cache, &s);
            assert_true(s.ram_bytes <= budget * SLOT);
            assert_int_equal(s.n_in_place, N_PAGES - kv_pages_available(r.pages));
        }
        assert_true(n_skipped > 400);
        rig_close(&r);
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
        cmocka_unit_test_setup_teardown(the_newest_snapshots_lie_in_states_of_the_model,
                                        spare_two, spare_none),
        cmocka_unit_test(what_is_cleared_is_gone),
        cmocka_unit_test_setup_teardown(what_is_cleared_is_gone, spare_two, spare_none),
        cmocka_unit_test(a_budget_below_a_snapshot_is_refused),
        cmocka_unit_test(nothing_wrong_comes_back_over_a_random_run),
        cmocka_unit_test_setup_teardown(nothing_wrong_comes_back_over_a_random_run, spare_two,
                                        spare_none),
        cmocka_unit_test(slots_come_back_and_give_their_pages_to_the_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
