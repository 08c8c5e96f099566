/* test_expert_cache.c - the bookkeeping never lies, and hits as often as LRU would.
 *
 * The replay follows the synthetic trace of the golden routing law: for each
 * layer a stack of experts, each pick at a depth drawn from the recorded weights
 * and moved to the front, positions that the token already holds redrawn.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/memory/expert_cache.h"
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_next(uint64_t *x) {
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return *x >> 33;
}

static expert_cache *new_cache(uint32_t n_layers, uint32_t n_experts, uint32_t n_used,
                               uint32_t n_slots, uint32_t cap) {
    expert_cache *cache = NULL;
    error err = {0};
    status rc = expert_cache_new(&cache, n_layers, n_experts, n_used, n_slots, cap, &err);
    if (rc != STATUS_OK) fail_msg("%s", err.text);
    return cache;
}

/* No slot has two experts, none is out of range, and the counts add up. */
static void assert_consistent(const expert_cache *cache, uint32_t n_layers,
                              uint32_t n_experts) {
    uint32_t n_slots = expert_cache_n_slots(cache);
    bool *taken = calloc(n_slots, sizeof *taken);
    assert_non_null(taken);
    for (uint32_t l = 0; l < n_layers; l++) {
        for (uint32_t e = 0; e < n_experts; e++) {
            int32_t at = expert_cache_find(cache, l, e);
            if (at == EXPERT_MISS) continue;
            assert_true(at >= 0 && (uint32_t)at < n_slots);
            assert_false(taken[at]);
            taken[at] = true;
        }
    }
    free(taken);
    uint64_t lookups = 0, hits = 0, inserts = 0;
    expert_cache_counts(cache, &lookups, &hits, &inserts);
    assert_true(hits + inserts <= lookups);
}

static void fewer_slots_than_one_token_uses_are_refused_with_the_reason(void **state) {
    (void)state;
    expert_cache *cache = NULL;
    error err = {0};
    assert_int_equal(expert_cache_new(&cache, 8, 32, 4, 31, 4, &err), STATUS_BAD_INPUT);
    assert_null(cache);
    assert_non_null(strstr(err.text, "31"));
    assert_non_null(strstr(err.text, "32"));
    assert_int_equal(expert_cache_new(&cache, 8, 32, 4, 257, 4, &err), STATUS_BAD_INPUT);
    assert_int_equal(expert_cache_new(&cache, 8, 4, 8, 64, 4, &err), STATUS_BAD_INPUT);
    assert_int_equal(expert_cache_new(&cache, 0, 32, 4, 8, 4, &err), STATUS_BAD_INPUT);
    assert_int_equal(expert_cache_new(&cache, 8, 32, 4, 32, 4, &err), STATUS_OK);
    expert_cache_free(cache);
    expert_cache_free(NULL);
}

static void a_miss_is_found_only_after_its_commit(void **state) {
    (void)state;
    expert_cache *cache = new_cache(2, 8, 2, 4, 2);
    int32_t experts[2] = {3, 5}, slots[2];
    expert_insert inserts[2];
    expert_cache_layer(cache, 1, experts, 2, NULL, slots);
    assert_int_equal(slots[0], EXPERT_MISS);
    assert_int_equal(slots[1], EXPERT_MISS);
    assert_int_equal(expert_cache_plan_inserts(cache, inserts, 2), 2);
    assert_int_equal(expert_cache_find(cache, 1, 3), EXPERT_MISS);
    expert_cache_commit(cache, &inserts[0]);
    expert_cache_abandon(cache, &inserts[1]);
    assert_int_equal(expert_cache_find(cache, 1, 3), inserts[0].slot);
    assert_int_equal(expert_cache_find(cache, 1, 5), EXPERT_MISS);
    assert_int_equal(expert_cache_find(cache, 0, 3), EXPERT_MISS);
    expert_cache_free(cache);
}

static void the_most_wanted_misses_come_first_and_no_more_than_the_cap(void **state) {
    (void)state;
    expert_cache *cache = new_cache(1, 8, 2, 8, 2);
    int32_t experts[4] = {0, 1, 2, 3}, slots[4];
    uint32_t counts[4] = {1, 9, 2, 9};
    expert_insert inserts[4];
    expert_cache_layer(cache, 0, experts, 4, counts, slots);
    assert_int_equal(expert_cache_plan_inserts(cache, inserts, 4), 2);
    assert_int_equal(inserts[0].expert, 1);
    assert_int_equal(inserts[1].expert, 3);
    assert_int_equal(expert_cache_plan_inserts(cache, inserts + 2, 2), 0);
    expert_cache_commit(cache, &inserts[0]);
    expert_cache_commit(cache, &inserts[1]);
    expert_cache_free(cache);
}

static void a_slot_in_use_by_the_layer_is_never_the_victim(void **state) {
    (void)state;
    expert_cache *cache = new_cache(1, 8, 2, 2, 8);
    int32_t first[2] = {0, 1}, slots[4];
    expert_insert inserts[4];
    expert_cache_layer(cache, 0, first, 2, NULL, slots);
    assert_int_equal(expert_cache_plan_inserts(cache, inserts, 4), 2);
    expert_cache_commit(cache, &inserts[0]);
    expert_cache_commit(cache, &inserts[1]);
    int32_t second[4] = {0, 1, 2, 3};
    expert_cache_layer(cache, 0, second, 4, NULL, slots);
    assert_true(slots[0] >= 0 && slots[1] >= 0);
    assert_int_equal(expert_cache_plan_inserts(cache, inserts, 4), 0);
    int32_t third[2] = {1, 2};
    expert_cache_layer(cache, 0, third, 2, NULL, slots);
    assert_int_equal(expert_cache_plan_inserts(cache, inserts, 4), 1);
    assert_int_equal(inserts[0].slot, expert_cache_find(cache, 0, 1) == 0 ? 1 : 0);
    assert_int_equal(expert_cache_find(cache, 0, 0), EXPERT_MISS);
    expert_cache_abandon(cache, &inserts[0]);
    expert_cache_free(cache);
}

static void an_expert_often_used_outlives_one_used_once(void **state) {
    (void)state;
    expert_cache *cache = new_cache(1, 16, 1, 2, 1);
    int32_t slot = 0;
    expert_insert insert;
    for (int i = 0; i < 12; i++) {
        int32_t often = 7;
        expert_cache_layer(cache, 0, &often, 1, NULL, &slot);
        if (expert_cache_plan_inserts(cache, &insert, 1) == 1)
            expert_cache_commit(cache, &insert);
    }
    for (int32_t once = 0; once < 3; once++) {
        expert_cache_layer(cache, 0, &once, 1, NULL, &slot);
        assert_int_equal(slot, EXPERT_MISS);
        assert_int_equal(expert_cache_plan_inserts(cache, &insert, 1), 1);
        expert_cache_commit(cache, &insert);
    }
    assert_true(expert_cache_find(cache, 0, 7) >= 0);
    expert_cache_free(cache);
}

static bool among(const int32_t *list, size_t n, uint32_t slot) {
    for (size_t i = 0; i < n; i++) {
        if (list[i] == (int32_t)slot) return true;
    }
    return false;
}

/* A device takes the victims in their order, apart from slots that the layer uses. */
static void a_placed_expert_takes_the_place_of_the_victim(void **state) {
    (void)state;
    enum { LAYERS = 2, EXPERTS = 16, USED = 4, SLOTS = 11, STEPS = 500 };
    expert_cache *cache = new_cache(LAYERS, EXPERTS, USED, SLOTS, USED);
    uint64_t random = 5;
    for (int step = 0; step < STEPS; step++) {
        uint32_t layer = (uint32_t)step % LAYERS, victims[SLOTS];
        int32_t first = (int32_t)(random_next(&random) % (EXPERTS - USED)), slots[USED];
        int32_t experts[USED] = {first, first + 1, first + 2, first + 3};
        assert_int_equal(expert_cache_victims(cache, victims, SLOTS), SLOTS);
        expert_cache_layer(cache, layer, experts, USED, NULL, slots);
        for (size_t i = 0, next = 0; i < USED; i++) {
            if (slots[i] != EXPERT_MISS) continue;
            while (among(slots, USED, victims[next]))
                next++;
            uint32_t at = victims[next++], former = expert_cache_owner(cache, at);
            expert_cache_place(cache, (uint32_t)experts[i], at);
            assert_int_equal(expert_cache_find(cache, layer, (uint32_t)experts[i]), at);
            assert_int_equal(expert_cache_owner(cache, at),
                             layer * EXPERTS + (uint32_t)experts[i]);
            if (former == UINT32_MAX) continue;
            assert_int_equal(expert_cache_find(cache, former / EXPERTS, former % EXPERTS),
                             EXPERT_MISS);
        }
        assert_consistent(cache, LAYERS, EXPERTS);
    }
    expert_cache_free(cache);
}

static void a_cache_is_filled_by_turns_of_the_layers(void **state) {
    (void)state;
    expert_cache *cache = new_cache(3, 8, 2, 11, 2);
    assert_int_equal(expert_cache_fill(cache, false), 0);
    const uint32_t n_held[3] = {4, 4, 3}, first[3] = {0, 4, 8};
    for (uint32_t layer = 0; layer < 3; layer++) {
        for (uint32_t e = 0; e < 8; e++) {
            int32_t expected = e < n_held[layer] ? (int32_t)(first[layer] + e) : EXPERT_MISS;
            assert_int_equal(expert_cache_find(cache, layer, e), expected);
        }
    }
    uint32_t victims[11];
    assert_int_equal(expert_cache_victims(cache, victims, 11), 11);
    assert_int_equal(victims[0], 0);
    assert_consistent(cache, 3, 8);
    expert_cache_free(cache);
}

static void a_cache_is_filled_with_what_was_used_most(void **state) {
    (void)state;
    expert_cache *cache = new_cache(3, 8, 2, 7, 2);
    uint32_t *uses = expert_cache_uses(cache);
    uses[0 * 8 + 7] = 2;
    uses[1 * 8 + 3] = 9;
    uses[1 * 8 + 5] = 1;
    uses[2 * 8 + 6] = 1000000;
    assert_int_equal(expert_cache_fill(cache, false), 4);
    const uint32_t owners[7] = {0, 7, 8, 8 + 3, 8 + 5, 16, 16 + 6};
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(expert_cache_owner(cache, i), owners[i]);
    uint32_t victims[3]; /* those without uses go first */
    assert_int_equal(expert_cache_victims(cache, victims, 3), 3);
    assert_int_equal(victims[0], 0);
    assert_int_equal(victims[1], 2);
    assert_int_equal(victims[2], 5);
    assert_consistent(cache, 3, 8);
    assert_int_equal(expert_cache_fill(cache, true), 4);
    const uint32_t used[4] = {7, 8 + 3, 8 + 5, 16 + 6};
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(expert_cache_owner(cache, i), i < 4 ? used[i] : UINT32_MAX);
    assert_int_equal(expert_cache_victims(cache, victims, 3), 3);
    for (uint32_t i = 0; i < 3; i++) /* the free ones */
        assert_int_equal(victims[i], 4 + i);
    assert_consistent(cache, 3, 8);
    expert_cache_free(cache);
}

static void uses_are_rows_and_weigh_half_after_a_million_tokens(void **state) {
    (void)state;
    expert_cache *cache = new_cache(1, 8, 2, 4, 2);
    int32_t experts[2] = {2, 5}, slots[2];
    const uint32_t counts[2] = {3, 4};
    expert_cache_layer(cache, 0, experts, 2, counts, slots);
    expert_cache_layer(cache, 0, experts, 1, NULL, slots);
    expert_cache_add_uses(cache, 0, 5, 10);
    const uint32_t *uses = expert_cache_uses(cache);
    assert_int_equal(uses[2], 4);
    assert_int_equal(uses[5], 14);
    expert_cache_add_uses(cache, 0, 7, 2 * (1 << 20) - 18 - 1);
    assert_int_equal(uses[5], 14);
    expert_cache_add_uses(cache, 0, 7, 1);
    assert_int_equal(uses[2], 2);
    assert_int_equal(uses[5], 7);
    assert_int_equal(uses[7], (1 << 20) - 9);
    expert_cache_free(cache);
}

static void a_kept_cache_finds_and_changes_nothing(void **state) {
    (void)state;
    expert_cache *cache = new_cache(2, 8, 2, 4, 2);
    int32_t experts[2] = {0, 5}, slots[2];
    uint32_t late[2] = {1, 1}, victims[4];
    expert_insert inserts[2];
    uint64_t lookups = 9, hits = 9, n_inserts = 9;
    (void)expert_cache_fill(cache, false);
    expert_cache_keep(cache, true);
    expert_cache_layer(cache, 0, experts, 2, NULL, slots);
    assert_int_equal(slots[0], 0);
    assert_int_equal(slots[1], EXPERT_MISS);
    assert_int_equal(expert_cache_plan_inserts(cache, inserts, 2), 0);
    expert_cache_prompt(cache, 1, experts, 2, late, slots);
    expert_cache_add_uses(cache, 1, 5, 7);
    assert_int_equal(expert_cache_plan_inserts(cache, inserts, 2), 0);
    assert_int_equal(expert_cache_victims(cache, victims, 4), 0);
    expert_cache_counts(cache, &lookups, &hits, &n_inserts);
    assert_int_equal(lookups + hits + n_inserts, 0);
    for (int i = 0; i < 16; i++)
        assert_int_equal(expert_cache_uses(cache)[i], 0);
    expert_cache_keep(cache, false);
    expert_cache_layer(cache, 0, experts, 2, NULL, slots);
    assert_int_equal(expert_cache_plan_inserts(cache, inserts, 2), 1);
    expert_cache_commit(cache, &inserts[0]);
    expert_cache_counts(cache, &lookups, &hits, &n_inserts);
    assert_int_equal(lookups, 2);
    assert_int_equal(hits, 1);
    assert_int_equal(n_inserts, 1);
    expert_cache_free(cache);
}

static void a_prompts_layer_takes_the_slots_of_the_one_before(void **state) {
    (void)state;
    expert_cache *cache = new_cache(3, 8, 2, 6, 4);
    expert_insert inserts[8];
    int32_t experts[4] = {0, 1, 4, 5}, slots[4];
    const uint32_t late[4] = {2, 0, 1, 0};
    (void)expert_cache_fill(cache, false); /* experts 0 and 1 of each layer */
    expert_cache_prompt(cache, 0, experts, 4, late, slots);
    assert_int_equal(slots[0], 0);
    assert_int_equal(slots[1], 1);
    assert_int_equal(expert_cache_plan_inserts(cache, inserts, 4), 1); /* 4 alone is late */
    assert_int_equal(inserts[0].expert, 4);
    assert_int_equal(inserts[0].former, 2 * 8 + 0); /* the last layer gives */
    expert_cache_commit(cache, &inserts[0]);
    expert_cache_prompt(cache, 1, experts, 4, late, slots);
    assert_int_equal(slots[0], 2); /* nothing of it was taken by layer 0 */
    assert_int_equal(slots[1], 3);
    assert_int_equal(expert_cache_plan_inserts(cache, inserts, 4), 1);
    assert_int_equal(inserts[0].former, 0 * 8 + 1); /* 0 and 4 were used late */
    expert_cache_abandon(cache, &inserts[0]);
    assert_consistent(cache, 3, 8);
    expert_cache_free(cache);
}

/* Prompts of rows whose experts are as unlike as the law of `next` makes them. */
static double prompt_hits(expert_cache *cache, uint64_t *random) {
    enum { P_LAYERS = 10, P_EXPERTS = 64, ROWS = 128, LATE = 16, PICKS = 4 };
    uint64_t n_hits = 0, n = 0;
    for (uint32_t layer = 0; layer < P_LAYERS; layer++) {
        uint32_t rows[P_EXPERTS] = {0}, late_rows[P_EXPERTS] = {0}, late[P_EXPERTS];
        int32_t experts[P_EXPERTS], slots[P_EXPERTS];
        expert_insert inserts[P_EXPERTS];
        size_t n_active = 0;
        for (int i = 0; i < ROWS * PICKS; i++) {
            uint64_t a = random_next(random) % P_EXPERTS, b = random_next(random) % P_EXPERTS;
            uint64_t e = ((a < b ? a : b) * 5 + layer) % P_EXPERTS; /* low ones are liked */
            rows[e]++;
            late_rows[e] += i >= (ROWS - LATE) * PICKS;
        }
        for (int32_t e = 0; e < P_EXPERTS; e++) {
            if (rows[e] == 0) continue;
            late[n_active] = late_rows[e];
            experts[n_active++] = e;
        }
        expert_cache_prompt(cache, layer, experts, n_active, late, slots);
        for (size_t i = 0; i < n_active; i++) {
            n_hits += slots[i] != EXPERT_MISS;
            expert_cache_add_uses(cache, layer, (uint32_t)experts[i],
                                  rows[experts[i]] - late[i]);
        }
        n += n_active;
        size_t n_inserts = expert_cache_plan_inserts(cache, inserts, n_active);
        for (size_t i = 0; i < n_inserts; i++)
            expert_cache_commit(cache, &inserts[i]);
    }
    return (double)n_hits / (double)n;
}

/* A quarter of the experts have slots; a clock alone would find hardly any of them again. */
static void prompts_find_what_the_slots_can_hold(void **state) {
    (void)state;
    enum { SLOTS = 160 };
    uint64_t random = 7;
    expert_cache *cache = new_cache(10, 64, 4, SLOTS, 16);
    (void)expert_cache_fill(cache, false);
    for (int i = 0; i < 6; i++)
        assert_true(prompt_hits(cache, &random) > 0.22);
    expert_cache *again = new_cache(10, 64, 4, SLOTS, 16);
    memcpy(expert_cache_uses(again), expert_cache_uses(cache), 640 * sizeof(uint32_t));
    assert_int_equal(expert_cache_fill(again, true), SLOTS);
    double hits = prompt_hits(again, &random);
    print_message("filled with what was used: %.3f of 0.25 to 0.30\n", hits);
    assert_true(hits > 0.25);
    assert_consistent(again, 10, 64);
    expert_cache_free(again);
    expert_cache_free(cache);
}

/* Without pins in the way a look ahead sees what the clock does. */
static void the_first_victim_is_the_slot_of_the_next_insert(void **state) {
    (void)state;
    expert_cache *cache = new_cache(1, 64, 1, 5, 1);
    uint64_t random = 3;
    for (int step = 0; step < 300; step++) {
        int32_t expert = (int32_t)(random_next(&random) % 9), slot = 0;
        uint32_t victim = 0;
        expert_insert insert;
        expert_cache_layer(cache, 0, &expert, 1, NULL, &slot);
        assert_int_equal(expert_cache_victims(cache, &victim, 1), 1);
        if (expert_cache_plan_inserts(cache, &insert, 1) == 0) continue;
        assert_int_equal(insert.slot, victim);
        expert_cache_commit(cache, &insert);
    }
    expert_cache_free(cache);
}

static void it_stays_consistent_over_a_long_random_trace(void **state) {
    (void)state;
    enum { LAYERS = 5, EXPERTS = 24, USED = 4, STEPS = 6000 };
    expert_cache *cache = new_cache(LAYERS, EXPERTS, USED, 31, 3);
    uint64_t random = 99;
    for (int step = 0; step < STEPS; step++) {
        uint32_t layer = (uint32_t)step % LAYERS;
        int32_t experts[EXPERTS], slots[EXPERTS];
        uint32_t counts[EXPERTS];
        size_t n = 0;
        uint64_t density = 1 + random_next(&random) % 6;
        for (int32_t e = 0; e < EXPERTS; e++) {
            if (random_next(&random) % 6 >= density) continue;
            counts[n] = 1 + (uint32_t)(random_next(&random) % 9);
            experts[n++] = e;
        }
        expert_cache_layer(cache, layer, experts, n, counts, slots);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(slots[i], expert_cache_find(cache, layer, (uint32_t)experts[i]));
        expert_insert inserts[EXPERTS];
        size_t n_inserts = expert_cache_plan_inserts(cache, inserts, EXPERTS);
        assert_true(n_inserts <= 3);
        for (size_t i = 0; i < n_inserts; i++) {
            if (random_next(&random) % 10 == 0) {
                expert_cache_abandon(cache, &inserts[i]);
            } else {
                expert_cache_commit(cache, &inserts[i]);
                assert_int_equal(expert_cache_find(cache, layer, inserts[i].expert),
                                 inserts[i].slot);
            }
        }
        for (size_t i = 0; i < n; i++) { /* hits were pinned: still where they were */
            if (slots[i] == EXPERT_MISS) continue;
            assert_int_equal(slots[i], expert_cache_find(cache, layer, (uint32_t)experts[i]));
        }
        assert_consistent(cache, LAYERS, EXPERTS);
    }
    expert_cache_free(cache);
}

/* --- replay of the recorded routing law --- */

enum { E = 256, K = 8, LAYERS = 40, TOKENS = 600 };

typedef struct law {
    double draw[E]; /* cumulative */
    double share[64];
    double hit_rate[64];
    int n_rates;
} law;

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long size = ftell(f);
    rewind(f);
    char *text = calloc(1, (size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, f), (size_t)size);
    (void)fclose(f);
    return text;
}

static void read_law(law *out) {
    char *text = read_file("tests/golden/data/routing.json");
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    const cJSON *weight =
        cJSON_GetObjectItem(cJSON_GetObjectItem(root, "draw_256_top8"), "weight");
    assert_int_equal(cJSON_GetArraySize(weight), E);
    double sum = 0;
    int i = 0;
    for (const cJSON *w = weight->child; w != NULL; w = w->next)
        out->draw[i++] = sum += w->valuedouble;
    const cJSON *rates = cJSON_GetObjectItem(root, "hit_rate");
    const cJSON *share = cJSON_GetObjectItem(rates, "share");
    const cJSON *rate = cJSON_GetObjectItem(rates, "law");
    out->n_rates = cJSON_GetArraySize(share);
    for (i = 0; i < out->n_rates; i++) {
        out->share[i] = cJSON_GetArrayItem(share, i)->valuedouble;
        out->hit_rate[i] = cJSON_GetArrayItem(rate, i)->valuedouble;
    }
    cJSON_Delete(root);
    free(text);
}

static double law_hit_rate(const law *l, double share) {
    for (int i = 0; i < l->n_rates; i++) {
        if (l->share[i] > share - 1e-9 && l->share[i] < share + 1e-9) return l->hit_rate[i];
    }
    fail_msg("the law has no share %f", share);
    return 0;
}

static int draw_depth(const law *l, int n_in_front, uint64_t *random) {
    for (;;) {
        double u = (double)random_next(random) / 2147483648.0 * l->draw[E - 1];
        int d = 0;
        while (d < E - 1 && l->draw[d] <= u)
            d++;
        if (d >= n_in_front) return d;
    }
}

static void next_experts(const law *l, int32_t *stack, int32_t *picks, uint64_t *random) {
    for (int j = 0; j < K; j++) {
        int d = draw_depth(l, j, random);
        int32_t e = stack[d];
        memmove(stack + 1, stack, (size_t)d * sizeof *stack);
        stack[0] = picks[j] = e;
    }
}

/* One token through all layers; returns how many of its experts were resident. */
static int run_token(expert_cache *cache, const law *l, int32_t stacks[][E], uint64_t *random) {
    int n_hits = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        int32_t picks[K], slots[K];
        expert_insert inserts[K];
        next_experts(l, stacks[layer], picks, random);
        expert_cache_layer(cache, layer, picks, K, NULL, slots);
        for (int j = 0; j < K; j++)
            n_hits += slots[j] != EXPERT_MISS;
        size_t n = expert_cache_plan_inserts(cache, inserts, K);
        for (size_t i = 0; i < n; i++)
            expert_cache_commit(cache, &inserts[i]);
    }
    return n_hits;
}

static double replay(const law *l, double share) {
    static int32_t stacks[LAYERS][E];
    uint64_t random = 20261129;
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int32_t i = 0; i < E; i++) {
            int32_t j = (int32_t)(random_next(&random) % (uint64_t)(i + 1));
            stacks[layer][i] = stacks[layer][j];
            stacks[layer][j] = i;
        }
    }
    uint32_t n_slots = (uint32_t)(share * E + 0.5) * LAYERS;
    expert_cache *cache = new_cache(LAYERS, E, K, n_slots, K);
    int64_t n_hits = 0;
    for (int t = 0; t < 3 * TOKENS; t++) {
        int hits = run_token(cache, l, stacks, &random);
        if (t >= TOKENS) n_hits += hits; /* the first third warms it up */
    }
    assert_consistent(cache, LAYERS, E);
    expert_cache_free(cache);
    return (double)n_hits / (2.0 * TOKENS * LAYERS * K);
}

static void hits_are_at_most_two_points_below_the_lru_law(void **state) {
    (void)state;
    law l;
    read_law(&l);
    const double shares[3] = {0.10, 0.27, 0.60};
    for (int i = 0; i < 3; i++) {
        double want = law_hit_rate(&l, shares[i]), got = replay(&l, shares[i]);
        print_message("share %.2f: law %.4f, clock-lfu %.4f\n", shares[i], want, got);
        assert_true(got >= want - 0.02);
        assert_true(got <= 1.0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fewer_slots_than_one_token_uses_are_refused_with_the_reason),
        cmocka_unit_test(a_miss_is_found_only_after_its_commit),
        cmocka_unit_test(the_most_wanted_misses_come_first_and_no_more_than_the_cap),
        cmocka_unit_test(a_slot_in_use_by_the_layer_is_never_the_victim),
        cmocka_unit_test(an_expert_often_used_outlives_one_used_once),
        cmocka_unit_test(a_placed_expert_takes_the_place_of_the_victim),
        cmocka_unit_test(a_cache_is_filled_by_turns_of_the_layers),
        cmocka_unit_test(a_cache_is_filled_with_what_was_used_most),
        cmocka_unit_test(uses_are_rows_and_weigh_half_after_a_million_tokens),
        cmocka_unit_test(a_kept_cache_finds_and_changes_nothing),
        cmocka_unit_test(a_prompts_layer_takes_the_slots_of_the_one_before),
        cmocka_unit_test(prompts_find_what_the_slots_can_hold),
        cmocka_unit_test(the_first_victim_is_the_slot_of_the_next_insert),
        cmocka_unit_test(it_stays_consistent_over_a_long_random_trace),
        cmocka_unit_test(hits_are_at_most_two_points_below_the_lru_law),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
