/* test_forecast.c - lengths of answers, held beginnings of prompts, and what follows from them. */
#include "coordinator/lengths.h"
#include "coordinator/prefix_chain.h"
#include "coordinator/prefix_set.h"
#include "coordinator/router.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void the_longer_an_answer_runs_the_more_is_to_come(void **state) {
    (void)state;
    lengths l;
    lengths_init(&l);
    for (int i = 0; i < 400; i++)
        lengths_learn(&l, i % 2 == 0 ? 50 : 1000);
    double at_start = lengths_expect(&l, 0, 0), later = lengths_expect(&l, 100, 0);
    assert_true(fabs(at_start - 525) < 50);
    assert_true(later > 800 && later < 950); /* it is one of the long ones */
    assert_true(lengths_expect(&l, 990, 0) > 0);
    assert_true(lengths_expect(&l, 1e6, 0) > 1000); /* as much again */
}

static void a_limit_bounds_what_is_to_come(void **state) {
    (void)state;
    lengths l;
    lengths_init(&l);
    for (int i = 0; i < 100; i++)
        lengths_learn(&l, 1000);
    assert_true(fabs(lengths_expect(&l, 0, 30) - 30) < 1);
    assert_true(lengths_expect(&l, 29.5, 30) <= 1);
    assert_true(lengths_expect(&l, 2000, 30) >= 1);
    for (int limit = 1; limit < 100000; limit *= 3)
        assert_true(lengths_expect(&l, 0, limit) <= limit + 1);
}

static void a_short_answer_is_one_in_ten(void **state) {
    (void)state;
    lengths l;
    lengths_init(&l);
    assert_true(lengths_short(&l, 0) > 20 && lengths_short(&l, 0) < 100);
    for (int i = 0; i < 500; i++)
        lengths_learn(&l, i % 5 == 0 ? 5 : 1000);
    assert_true(lengths_short(&l, 0) < 7);
    for (int i = 0; i < 3000; i++)
        lengths_learn(&l, 1000);
    assert_true(lengths_short(&l, 0) > 900);
    assert_true(fabs(lengths_short(&l, 30) - 30) < 1e-9);
}

static void absurd_lengths_teach_nothing(void **state) {
    (void)state;
    lengths l, before;
    lengths_init(&l);
    before = l;
    lengths_learn(&l, 0);
    lengths_learn(&l, -5);
    lengths_learn(&l, (double)NAN);
    lengths_learn(&l, (double)INFINITY);
    assert_memory_equal(&l, &before, sizeof l);
    lengths_learn(&l, 1e18);
    assert_true(isfinite(lengths_expect(&l, 0, 0)));
}

static prefix_chain chain_of(const char *text) {
    cJSON *request = NULL;
    prefix_chain chain;
    error err = {0};
    assert_int_equal(json_parse(&request, text, strlen(text), "request", &err), STATUS_OK);
    prefix_chain_init(&chain, request);
    cJSON_Delete(request);
    return chain;
}

/* How many beginnings two requests have in common. */
static size_t common(const char *a, const char *b) {
    prefix_chain x = chain_of(a), y = chain_of(b);
    size_t n = 0;
    while (n < x.n && n < y.n && x.hashes[n] == y.hashes[n])
        n++;
    prefix_chain_release(&x);
    prefix_chain_release(&y);
    return n;
}

#define CHAT(more) "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"}," more "]}"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
static void a_chain_covers_the_whole_beginning(void **state) {
    (void)state;
    assert_int_equal(common(CHAT(USER("a")), CHAT(USER("a") "," USER("b"))), 2);
    assert_int_equal(common(CHAT(USER("a")), CHAT(USER("b"))), 1);
    assert_int_equal(common(CHAT(USER("a") "," USER("x")), CHAT(USER("b") "," USER("x"))), 1);
    /* Tools and the template's settings stand in front of the first message. */
    assert_int_equal(common("{\"messages\":[" USER("a") "],\"tools\":[{\"x\":1}]}",
                            "{\"messages\":[" USER("a") "]}"),
                     0);
    /* What joins to the same bytes is not the same. */
    assert_int_equal(common("{\"messages\":[" USER("ab") "," USER("c") "]}",
                            "{\"messages\":[" USER("a") "," USER("bc") "]}"),
                     0);
    assert_int_equal(common("{}", "{}"), 0);
}

static void of_a_long_conversation_the_last_beginnings_are_kept(void **state) {
    (void)state;
    char *text = malloc(64 * 1000);
    assert_non_null(text);
    size_t n = (size_t)sprintf(text, "{\"messages\":[");
    for (int i = 0; i < 1000; i++)
        n += (size_t)sprintf(text + n, "%s{\"role\":\"user\",\"content\":\"%04d\"}",
                             i > 0 ? "," : "", i);
    (void)sprintf(text + n, "]}");
    prefix_chain chain = chain_of(text);
    assert_int_equal(chain.n, PREFIX_CHAIN_MAX);
    assert_true(chain.bytes[chain.n - 1] >= 8000);
    assert_true(chain.bytes[0] < chain.bytes[1]);
    prefix_chain_release(&chain);
    free(text);
}

static void only_what_is_confirmed_is_held(void **state) {
    (void)state;
    prefix_set s = {0};
    const uint64_t hashes[] = {11, 22, 33};
    assert_int_equal(prefix_set_longest(&s, hashes, 3), 0);
    prefix_set_add(&s, 22);
    assert_int_equal(prefix_set_longest(&s, hashes, 3), 2);
    assert_int_equal(prefix_set_longest(&s, hashes, 1), 0);
    prefix_set_remove(&s, 22);
    assert_int_equal(prefix_set_longest(&s, hashes, 3), 0);
    prefix_set_add(&s, 0);
    assert_false(prefix_set_has(&s, 0));
    for (uint64_t i = 1; i <= 2 * PREFIX_SET_MAX; i++)
        prefix_set_add(&s, i);
    assert_int_equal(s.n, PREFIX_SET_MAX);
    assert_true(prefix_set_has(&s, 2 * PREFIX_SET_MAX) && !prefix_set_has(&s, 1));
    prefix_set_release(&s);
}

/* Against a plain list: the same after thousands of additions and removals, of hashes that
 * crowd together. */
static void a_set_is_what_a_list_would_be(void **state) {
    (void)state;
    prefix_set s = {0};
    uint64_t list[PREFIX_SET_MAX] = {0}, x = 88172645463325252u;
    size_t next = 0;
    for (int round = 0; round < 6000; round++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t hash = (x % 3000) * (round % 2 == 0 ? 1 : 2048) + 1;
        size_t at = 0;
        while (at < PREFIX_SET_MAX && list[at] != hash)
            at++;
        assert_int_equal(prefix_set_has(&s, hash), at < PREFIX_SET_MAX);
        if (x % 7 == 0) {
            prefix_set_remove(&s, hash);
            if (at < PREFIX_SET_MAX) list[at] = 0;
        } else {
            prefix_set_add(&s, hash);
            if (at == PREFIX_SET_MAX) {
                list[next] = hash;
                next = (next + 1) % PREFIX_SET_MAX;
            }
        }
    }
    prefix_set_release(&s);
}

static void a_held_prompt_and_a_direct_path_win(void **state) {
    (void)state;
    rates slow, fast;
    rates_init(&slow);
    rates_init(&fast);
    rates_set_prior(&slow, 100, 10);
    rates_set_prior(&fast, 200, 20);
    double ends[2][4];
    router_node nodes[] = {
        {.speed = &slow, .places = 1, .finish_s = ends[0], .cap_finish = 4},
        {.speed = &fast, .places = 1, .finish_s = ends[1], .cap_finish = 4},
    };
    const router_job job = {2000, 0, 20};
    router_cost cost;
    assert_int_equal(router_choose(nodes, 2, NULL, &job, &cost), 1); /* 11 s, not 22 */
    nodes[0].held_tokens = 1900;
    assert_int_equal(router_choose(nodes, 2, NULL, &job, &cost), 0); /* 3 s */
    assert_true(fabs(cost.prefill_s - 1) < 1e-9);
    nodes[0].path_s = 10;
    assert_int_equal(router_choose(nodes, 2, NULL, &job, &cost), 1);
    nodes[1].held_tokens = 1e9; /* more than the prompt has: nothing to prefill, not less */
    (void)router_choose(nodes, 2, NULL, &job, &cost);
    assert_true(cost.prefill_s >= 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longer_an_answer_runs_the_more_is_to_come),
        cmocka_unit_test(a_limit_bounds_what_is_to_come),
        cmocka_unit_test(a_short_answer_is_one_in_ten),
        cmocka_unit_test(absurd_lengths_teach_nothing),
        cmocka_unit_test(a_chain_covers_the_whole_beginning),
        cmocka_unit_test(of_a_long_conversation_the_last_beginnings_are_kept),
        cmocka_unit_test(only_what_is_confirmed_is_held),
        cmocka_unit_test(a_set_is_what_a_list_would_be),
        cmocka_unit_test(a_held_prompt_and_a_direct_path_win),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
