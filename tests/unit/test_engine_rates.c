/* test_engine_rates.c - figures of the last seconds, not of all time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/engine_rates.h"

static const uint64_t MS = 1000000;

static engine_stats read_at(const engine_rates *r, uint64_t ms) {
    engine_stats stats = {0};
    engine_rates_read(r, ms * MS, &stats);
    return stats;
}

static void add(engine_rates *r, uint64_t ended_ms, uint64_t took_ms, uint32_t n_prompt,
                uint32_t n_decoded, uint64_t lookups, uint64_t hits) {
    const engine_rates_step step = {.ended_ns = ended_ms * MS,
                                    .took_ns = took_ms * MS,
                                    .n_prompt = n_prompt,
                                    .n_decoded = n_decoded,
                                    .expert_lookups = lookups,
                                    .expert_hits = hits};
    engine_rates_add(r, &step);
}

static void nothing_done_is_nothing_to_tell(void **state) {
    (void)state;
    engine_rates r = {0};
    engine_stats stats = read_at(&r, 1000);
    assert_float_equal(stats.decode_tok_per_s, 0, 0);
    assert_float_equal(stats.prefill_tok_per_s, 0, 0);
    assert_float_equal(stats.hit_rate, -1, 0);
    assert_float_equal(stats.misses_per_token, 0, 0);
}

static void rates_are_tokens_by_time_in_steps_not_by_the_clock(void **state) {
    (void)state;
    engine_rates r = {0};
    add(&r, 1000, 100, 200, 0, 80, 40);
    add(&r, 3000, 10, 0, 4, 10, 5); /* idle for nearly two seconds in between */
    add(&r, 3010, 10, 0, 4, 10, 5);
    engine_stats stats = read_at(&r, 3500);
    assert_float_equal(stats.prefill_tok_per_s, 2000, 1e-6);
    assert_float_equal(stats.decode_tok_per_s, 400, 1e-6);
    assert_float_equal(stats.hit_rate, 0.5, 1e-9);
    assert_float_equal(stats.misses_per_token, 50.0 / 208, 1e-9);
}

static void a_mixed_step_does_not_slow_the_figure_of_decoding(void **state) {
    (void)state;
    engine_rates r = {0};
    add(&r, 1000, 10, 0, 4, 0, 0);
    add(&r, 1500, 500, 96, 4, 0, 0);
    engine_stats stats = read_at(&r, 1500);
    assert_float_equal(stats.decode_tok_per_s, 400, 1e-6);
    assert_float_equal(stats.prefill_tok_per_s, 200, 1e-6);
}

/* 600 tokens in three slices of 100 ms, a step of decoding between. */
static void a_slice_is_time_of_a_prompt_whose_tokens_count_with_the_last(void **state) {
    (void)state;
    engine_rates r = {0};
    for (uint64_t i = 0; i < 3; i++) {
        const engine_rates_step slice = {.ended_ns = (1000 + 110 * i) * MS,
                                         .took_ns = 100 * MS,
                                         .n_prompt = i == 2 ? 600 : 0,
                                         .is_slice = i < 2};
        engine_rates_add(&r, &slice);
        add(&r, 1010 + 110 * i, 10, 0, 4, 0, 0);
    }
    engine_stats stats = read_at(&r, 1500);
    assert_float_equal(stats.prefill_tok_per_s, 2000, 1e-6);
    assert_float_equal(stats.decode_tok_per_s, 400, 1e-6);
}

static void what_is_old_is_forgotten(void **state) {
    (void)state;
    engine_rates r = {0};
    add(&r, 1000, 100, 0, 1, 0, 0); /* slow once */
    for (uint64_t t = 7000; t < 20000; t += 100)
        add(&r, t, 10, 0, 1, 0, 0);
    assert_float_equal(read_at(&r, 20000).decode_tok_per_s, 100, 1e-6);
    assert_true(read_at(&r, 20000 + RATES_KEEP_MS - 1000).decode_tok_per_s > 0);
    assert_float_equal(read_at(&r, 20000 + RATES_KEEP_MS + 1000).decode_tok_per_s, 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_done_is_nothing_to_tell),
        cmocka_unit_test(rates_are_tokens_by_time_in_steps_not_by_the_clock),
        cmocka_unit_test(a_mixed_step_does_not_slow_the_figure_of_decoding),
        cmocka_unit_test(a_slice_is_time_of_a_prompt_whose_tokens_count_with_the_last),
        cmocka_unit_test(what_is_old_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
