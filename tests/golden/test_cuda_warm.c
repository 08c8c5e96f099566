/* test_cuda_warm.c - a warm-up on the CUDA backend and slots filled by a list change no token, and a
 * warm-up leaves no trace.
 *
 * The driver is the double of cuda_double.c or, with SILICEO_TEST_BACKEND=cuda, the machine's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "tests/golden/cuda_double.h"
#include <stdio.h>
#include <unistd.h>

enum { SLOTS = 64, N_IDS = 4 };

static const char body[] =
    "{\"prompt\":[5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24],\"max_tokens\":4,"
    "\"temperature\":0,\"ignore_eos\":true}";

static char folder[64], file[128];

static engine_params slot_params(void) {
    engine_params p = run_params();
    p.backend = BACKEND_CUDA;
    p.vram_mib = 900;
    p.n_slots = SLOTS;
    p.lane = CPU_LANE_PROMPTS;
    p.n_context = 128;
    p.n_sequences = 1;
    p.chunk_tokens = 64;
    return p;
}

static model_stats stats_of(const engine_run *r) {
    engine_stats stats;
    engine_read_stats(r->e, &stats);
    return stats.model;
}

/* The figures before and after an answer, and its ids. */
typedef struct answer {
    model_stats before, after;
    int32_t ids[N_IDS];
} answer;

static answer ask(const engine_params *p) {
    answer out;
    engine_run r;
    run_open(&r, p);
    out.before = stats_of(&r);
    const run_answer *a = run_one(&r, WIRE_COMPLETION, body);
    assert_true(a->done);
    assert_int_equal(a->choices[0].n_ids, N_IDS);
    memcpy(out.ids, a->choices[0].ids, sizeof out.ids);
    out.after = stats_of(&r);
    (void)snprintf(file, sizeof file, "%s/%s.experts", folder, engine_file_hash(r.e));
    run_close(&r);
    return out;
}

static uint64_t hits_of(const answer *a) {
    return a->after.expert_hits - a->before.expert_hits;
}

static answer plain;

static int ask_plainly(void **state) {
    const engine_params p = slot_params();
    if (choose_driver(state) != 0) return -1;
    plain = ask(&p);
    return 0;
}

static void a_warm_up_leaves_no_trace(void **state) {
    (void)state;
    engine_params p = slot_params();
    p.warm_up_ms = 600000;
    const answer warm = ask(&p);
    assert_memory_equal(warm.ids, plain.ids, sizeof plain.ids);
    const model_stats *b = &warm.before;
    assert_int_equal(b->tokens + b->steps + b->launches + b->lane_experts, 0);
    assert_int_equal(b->expert_lookups + b->expert_hits + b->expert_inserts, 0);
    assert_int_equal(b->slots_filled, SLOTS);
    assert_int_equal(b->slots_by_use, 0);
    assert_int_equal(b->expert_bytes_moved, plain.before.expert_bytes_moved);
    assert_int_equal(warm.after.expert_lookups, plain.after.expert_lookups);
    assert_int_equal(warm.after.tokens, plain.after.tokens);
    assert_int_equal(warm.after.steps, plain.after.steps);
}

static void slots_filled_by_a_list_change_no_token(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%.32s/experts-XXXXXX", tmp != NULL ? tmp : "/tmp");
    assert_non_null(mkdtemp(folder));
    engine_params p = slot_params();
    p.experts_dir = folder;
    const answer first = ask(&p), again = ask(&p);
    assert_int_equal(first.before.slots_by_use, 0);
    assert_int_equal(again.before.slots_by_use, SLOTS);
    assert_memory_equal(first.ids, plain.ids, sizeof plain.ids);
    assert_memory_equal(again.ids, plain.ids, sizeof plain.ids);
    print_message("hits: %d, filled by a list %d of %d\n", (int)hits_of(&first),
                  (int)hits_of(&again), (int)again.after.expert_lookups);
    assert_true(hits_of(&again) > hits_of(&first));
    p.ram_mib = 600; /* RAM above the disk: only what is listed is read */
    p.lane = CPU_LANE_OFF;
    const answer tiers = ask(&p);
    assert_int_equal(tiers.before.slots_filled, SLOTS);
    assert_int_equal(tiers.before.slots_by_use, SLOTS);
    assert_memory_equal(tiers.ids, plain.ids, sizeof plain.ids);
    assert_true(hits_of(&tiers) > hits_of(&first));
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_warm_up_leaves_no_trace),
        cmocka_unit_test(slots_filled_by_a_list_change_no_token),
    };
    return cmocka_run_group_tests(tests, ask_plainly, NULL);
}
