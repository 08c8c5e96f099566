/* test_prefix_engine.c - an engine that remembers prompts answers as one that does not.
 *
 * It gets the same conversations, turn by turn (prefix_pair.h), and what was skipped is what the cache
 * can have held, in place, in RAM or on disk.
 */
#include "tests/unit/prefix_pair.h"

#include "tests/files.h"
#include <stdio.h>

#ifdef SILICEO_DEBUG
enum { N_TALKS = 1, N_CANCELS = 3, N_ROUNDS = 1 };
enum { MIB_OF_ONE = 1, MIB_OF_THREE = 1 }; /* snapshots in so much RAM; one, or a few */
#else
enum { N_TALKS = 3, N_CANCELS = 6, N_ROUNDS = 2 };
enum { MIB_OF_ONE = 2, MIB_OF_THREE = 5 };
#endif

static void open_cached(engine_run *r, uint32_t n_context, uint32_t n_sequences,
                        int64_t ram_mib) {
    engine_params params = pair_params();
    params.n_context = n_context;
    params.n_sequences = n_sequences;
    params.prefix_ram_mib = ram_mib;
    params.prefix_states = n_sequences / 2; /* in place, in RAM, or both */
    params.poison = true;
    run_open(r, &params);
}

static bool holds(const engine_run *r, size_t message) {
    const wire_done *d = &r->answers[0].usage;
    for (size_t i = 0; i < d->n_boundaries; i++) {
        if (d->boundaries[i] == 1000 + message) return true;
    }
    return false;
}

static void every_next_turn_goes_on_from_the_last_one(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 4, 64);
    uint64_t skipped = 0, all = 0;
    for (int i = 0; i < N_TALKS; i++) {
        uint64_t before = 0;
        int n_messages = cJSON_GetArraySize(pair_chats[i]);
        for (int n = 2; n <= n_messages && n <= 8; n += 2) {
            const pair_ask a = {.chat = pair_chats[i], .n_messages = n, .system = PAIR_SYSTEM};
            uint64_t cached = pair_both(&r, &a);
            /* As far as the header before the last answer, and the system for a stranger. */
            assert_true(cached >= before);
            if (i > 0 || n > 2) assert_true(cached >= BLOCK);
            assert_true(holds(&r, (size_t)n - 1)); /* what the user said last */
            assert_true(holds(&r, 0));
            before = (r.answers[0].usage.prompt_tokens - 4) / BLOCK * BLOCK;
            skipped += cached;
            all += r.answers[0].usage.prompt_tokens;
        }
    }
    assert_true(2 * skipped > all);
    engine_stats stats;
    engine_read_stats(r.e, &stats);
    assert_int_equal(stats.prefixes.hit_tokens, skipped);
    run_close(&r);
}

static void what_was_said_again_is_skipped_but_for_its_end(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 4, 64);
    const pair_ask a = {.chat = pair_chats[0], .n_messages = 2, .system = PAIR_SYSTEM};
    assert_int_equal(pair_both(&r, &a), 0);
    uint64_t cached = pair_both(&r, &a);
    assert_true(cached + BLOCK + 4 >= r.answers[0].usage.prompt_tokens);
    run_close(&r);
}

static void other_beginnings_are_other_texts(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 4, 64);
    pair_ask a = {.chat = pair_chats[1], .n_messages = 4, .system = PAIR_SYSTEM};
    assert_int_equal(pair_both(&r, &a), 0);
    uint64_t again = pair_both(&r, &a);
    pair_ask edited = a; /* an earlier turn, edited: what is before it is held */
    edited.first = "Good evening, I am Greta and I look for a book.";
    uint64_t shared = pair_both(&r, &edited);
    assert_true(shared >= BLOCK && shared < again);
    pair_ask switched = a;
    switched.system = "You are somebody else entirely. You speak of nothing but the weather.";
    assert_int_equal(pair_both(&r, &switched), 0);
    assert_int_equal(pair_both(&r, &a), again); /* and all of them stand */
    run_close(&r);
}

static void thinking_or_not_goes_on_from_the_same_place(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 4, 64);
    pair_ask a = {.chat = pair_chats[2], .n_messages = 4, .system = PAIR_SYSTEM};
    assert_int_equal(pair_both(&r, &a), 0);
    a.more = ",\"chat_template_kwargs\":{\"enable_thinking\":false}";
    assert_true(pair_both(&r, &a) >= BLOCK);
    a.more = ",\"max_thinking_tokens\":3";
    assert_true(pair_both(&r, &a) >= BLOCK);
    a.more = ",\"n\":3";
    assert_true(pair_both(&r, &a) >= BLOCK);
    run_close(&r);
}

/* head, n times the words, tail; for free(). */
static char *repeated(const char *head, int n, const char *words, const char *tail) {
    size_t cap = strlen(head) + (size_t)n * strlen(words) + strlen(tail) + 1, at = 0;
    char *text = malloc(cap);
    assert_non_null(text);
    at += (size_t)snprintf(text, cap, "%s", head);
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, cap - at, "%s", words);
    (void)snprintf(text + at, cap - at, "%s", tail);
    return text;
}

static void pages_come_back_from_ram(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 512, 1, 64); /* 8 pages in all */
    pair_ask a = {.chat = pair_chats[0], .n_messages = 2, .system = PAIR_SYSTEM};
    pair_ask b = {.chat = pair_chats[3], .n_messages = 4};
    assert_int_equal(pair_both(&r, &a), 0);
    uint64_t again = pair_both(&r, &a);
    char *words = repeated("", 150, "red lamp ", "");
    b.first = words;
    assert_int_equal(pair_both(&r, &b), 0); /* takes nearly every page */
    engine_stats stats;
    engine_read_stats(r.e, &stats);
    assert_true(stats.prefixes.n_blocks > stats.prefixes.n_in_place);
    assert_int_equal(pair_both(&r, &a), again);
    free(words);
    run_close(&r);
}

static void a_cancelled_request_leaves_what_is_true(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 2, 64);
    const pair_ask a = {.chat = pair_chats[4], .n_messages = 6, .system = PAIR_SYSTEM};
    for (int n_steps = 0; n_steps < N_CANCELS; n_steps++) {
        pair_submit(&r, &a, NULL);
        run_steps(&r, n_steps);
        assert_true(engine_cancel(r.e, 0, 0));
        run_all(&r);
    }
    assert_true(pair_both(&r, &a) >= BLOCK);
    run_close(&r);
}

static void a_resumed_answer_skips_its_prompt(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 2, 64);
    const pair_ask a = {.chat = pair_chats[5], .n_messages = 4, .system = PAIR_SYSTEM};
    uint64_t first = pair_both(&r, &a);
    assert_int_equal(first, 0);
    const run_choice whole = r.answers[0].choices[0];
    const wire_resume resume = {.ids = whole.ids, .n_ids = 5};
    pair_submit(&r, &a, &resume);
    run_all(&r);
    const run_choice *rest = &r.answers[0].choices[0];
    assert_true(r.answers[0].usage.cached_tokens >= BLOCK);
    assert_int_equal(rest->n_ids, whole.n_ids - 5);
    assert_memory_equal(rest->ids, whole.ids + 5, rest->n_ids * sizeof(int32_t));
    run_close(&r);
}

static void background_work_does_not_evict_a_chat(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 1024, 2, MIB_OF_THREE);
    pair_ask a = {.chat = pair_chats[0], .n_messages = 2, .system = PAIR_SYSTEM};
    assert_int_equal(pair_both(&r, &a), 0);
    uint64_t again = pair_both(&r, &a);
    for (int i = 1; i < 5; i++) {
        const pair_ask title = {.chat = pair_chats[i],
                                .n_messages = 4,
                                .system = PAIR_SYSTEM + i,
                                .background = true};
        (void)pair_both(&r, &title);
    }
    assert_int_equal(pair_both(&r, &a), again);
    for (int i = 1; i < 5; i++) {
        const pair_ask other = {
            .chat = pair_chats[i], .n_messages = 4, .system = PAIR_SYSTEM + i};
        (void)pair_both(&r, &other);
    }
    assert_int_equal(pair_both(&r, &a), 0); /* other chats do */
    run_close(&r);
}

static void company_and_hardly_any_room_change_nothing(void **state) {
    (void)state;
    engine_run r;
    open_cached(&r, 512, 3, MIB_OF_ONE); /* pages for little more than one text */
    char *bodies[PAIR_CHATS];
    run_forget(&pair_plain);
    for (uint64_t i = 0; i < PAIR_CHATS; i++) {
        const pair_ask a = {.chat = pair_chats[i], .n_messages = 4, .more = ",\"n\":2"};
        bodies[i] = pair_write_body(&a);
        run_submit(&pair_plain, i, WIRE_CHAT, bodies[i]);
        run_all(&pair_plain);
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        run_forget(&r);
        for (uint64_t i = 0; i < PAIR_CHATS; i++) {
            run_submit(&r, i, WIRE_CHAT, bodies[(i + (uint64_t)round) % PAIR_CHATS]);
            run_steps(&r, 2);
        }
        run_all(&r);
        for (uint64_t i = 0; i < PAIR_CHATS; i++)
            pair_assert_same(&pair_plain.answers[(i + (uint64_t)round) % PAIR_CHATS],
                             &r.answers[i]);
    }
    for (int i = 0; i < PAIR_CHATS; i++)
        free(bodies[i]);
    run_close(&r);
}

static void a_raw_prompt_goes_on_from_its_whole_blocks(void **state) {
    (void)state;
    static const char head[] = "{\"temperature\":0,\"max_tokens\":8,\"prompt\":\"";
    engine_run r;
    open_cached(&r, 1024, 2, 64);
    char *body = repeated(head, 100, "one two ", "\"}");
    char *longer = repeated(head, 100, "one two ", "three four\"}");
    const run_answer *a = run_one(&r, WIRE_COMPLETION, body);
    uint64_t n_tokens = a->usage.prompt_tokens;
    assert_int_equal(a->usage.cached_tokens, 0);
    a = run_one(&r, WIRE_COMPLETION, body);
    assert_int_equal(a->usage.cached_tokens, (n_tokens - 1) / BLOCK * BLOCK);
    (void)run_one(&pair_plain, WIRE_COMPLETION, body);
    pair_assert_same(&pair_plain.answers[0], a);
    a = run_one(&r, WIRE_COMPLETION, longer);
    assert_int_equal(a->usage.cached_tokens, n_tokens / BLOCK * BLOCK);
    (void)run_one(&pair_plain, WIRE_COMPLETION, longer);
    pair_assert_same(&pair_plain.answers[0], a);
    free(longer);
    free(body);
    run_close(&r);
}

/* The process ends in between; RAM holds one chat alone, so that the others come from disk. */
static void a_chat_goes_on_from_disk_after_a_restart(void **state) {
    (void)state;
    char folder[200], command[256];
    assert_true(make_temporary(folder, sizeof folder));
    engine_params params = pair_params();
    params.n_sequences = 2;
    params.prefix_ram_mib = 4;
    params.prefix_disk_mib = 64;
    params.prefix_disk_dir = folder;
    uint64_t skipped[3];
    for (int life = 0; life < 2; life++) {
        engine_run r;
        run_open(&r, &params);
        for (int i = 0; i < 3; i++) {
            const pair_ask a = {
                .chat = pair_chats[i], .n_messages = 4, .system = PAIR_SYSTEM + i};
            uint64_t cached = pair_both(&r, &a);
            if (life == 0) assert_int_equal(cached, 0);
            if (life == 0) skipped[i] = pair_both(&r, &a);
            if (life == 1) assert_int_equal(cached, skipped[i]);
            assert_true(skipped[i] >= BLOCK);
        }
        run_close(&r);
    }
    params.kv = KV_F32; /* other bits: nothing of that is its own */
    engine_run other;
    run_open(&other, &params);
    engine_stats stats;
    engine_read_stats(other.e, &stats);
    assert_int_equal(stats.prefixes.disk_bytes, 0);
    /* One that waits for the disk can be cancelled. */
    run_close(&other);
    params.kv = KV_F16;
    run_open(&other, &params);
    const pair_ask a = {.chat = pair_chats[1], .n_messages = 4, .system = PAIR_SYSTEM + 1};
    pair_submit(&other, &a, NULL);
    engine_read_stats(other.e, &stats);
    assert_int_equal(stats.waiting, 1);
    assert_true(engine_cancel(other.e, 0, 0));
    run_all(&other);
    assert_int_equal(pair_both(&other, &a), skipped[1]);
    run_close(&other);
    (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_next_turn_goes_on_from_the_last_one),
        cmocka_unit_test(what_was_said_again_is_skipped_but_for_its_end),
        cmocka_unit_test(other_beginnings_are_other_texts),
        cmocka_unit_test(thinking_or_not_goes_on_from_the_same_place),
        cmocka_unit_test(pages_come_back_from_ram),
        cmocka_unit_test(a_cancelled_request_leaves_what_is_true),
        cmocka_unit_test(a_resumed_answer_skips_its_prompt),
        cmocka_unit_test(background_work_does_not_evict_a_chat),
        cmocka_unit_test(company_and_hardly_any_room_change_nothing),
        cmocka_unit_test(a_raw_prompt_goes_on_from_its_whole_blocks),
        cmocka_unit_test(a_chat_goes_on_from_disk_after_a_restart),
    };
    return cmocka_run_group_tests(tests, pair_open, pair_close);
}
