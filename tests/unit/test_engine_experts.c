/* test_engine_experts.c - what an engine knows of its experts before its first request: a list of
 * those used most outlives a restart, and a warm-up leaves no trace.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine_shared.h"
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLOTS = 64 };

static engine_params slot_params(void) {
    engine_params p = run_params();
    p.n_slots = SLOTS;
    p.n_context = 512;
    p.n_sequences = 1;
    return p;
}

typedef struct folder {
    char path[64], file[128];
} folder;

static folder make_folder(void) {
    folder f;
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(f.path, sizeof f.path, "%.32s/experts-XXXXXX", tmp != NULL ? tmp : "/tmp");
    assert_non_null(mkdtemp(f.path));
    return f;
}

static void remove_folder(const folder *f) {
    assert_int_equal(unlink(f->file), 0);
    assert_int_equal(rmdir(f->path), 0);
}

static model_stats stats_of(const engine_run *r) {
    engine_stats stats;
    engine_read_stats(r->e, &stats);
    return stats.model;
}

static void assert_same_answer(const run_answer *a, const int32_t *ids, size_t n) {
    assert_true(a->done);
    assert_int_equal(a->choices[0].n_ids, n);
    assert_memory_equal(a->choices[0].ids, ids, n * sizeof *ids);
}

static void a_warm_up_leaves_no_trace(void **state) {
    (void)state;
    static const int64_t limits_ms[] = {0, 60000};
    int32_t ids[RUN_IDS];
    size_t n_ids = 0;
    model_stats after[2];
    for (int i = 0; i < 2; i++) {
        engine_run r;
        engine_params p = slot_params();
        p.warm_up_ms = limits_ms[i];
        p.prefix_ram_mib = 16;
        run_open(&r, &p);
        model_stats fresh = stats_of(&r);
        assert_int_equal(fresh.tokens + fresh.steps + fresh.launches, 0);
        assert_int_equal(fresh.expert_lookups + fresh.expert_hits + fresh.expert_inserts, 0);
        assert_int_equal(fresh.expert_bytes_moved, 0);
        engine_stats all;
        engine_read_stats(r.e, &all);
        assert_int_equal(all.prefixes.n_snapshots + all.prefixes.asked_tokens, 0);
        assert_int_equal(all.kv_pages_free, all.kv_pages_total);
        assert_true(all.prefill_tok_per_s == 0 && all.decode_tok_per_s == 0);
        const run_answer *a = run_one(&r, WIRE_CHAT, ROSE "}");
        assert_true(a->done);
        assert_int_equal(a->usage.cached_tokens, 0);
        after[i] = stats_of(&r);
        if (i == 0) {
            n_ids = a->choices[0].n_ids;
            memcpy(ids, a->choices[0].ids, n_ids * sizeof *ids);
        } else {
            assert_same_answer(a, ids, n_ids);
        }
        run_close(&r);
    }
    assert_true(after[0].expert_inserts > 0);
    assert_int_equal(after[0].expert_lookups, after[1].expert_lookups);
    assert_int_equal(after[0].expert_hits, after[1].expert_hits);
    assert_int_equal(after[0].expert_inserts, after[1].expert_inserts);
    assert_int_equal(after[0].expert_bytes_moved, after[1].expert_bytes_moved);
    assert_int_equal(after[0].tokens, after[1].tokens);
    assert_int_equal(after[0].steps, after[1].steps);
}

static bool is_there(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

/* Runs one question on an engine with the folder; returns the figures before it, and the hits of it. */
static model_stats ask_with(const folder *f, const engine_params *params, double *hit_rate) {
    engine_run r;
    engine_params p = *params;
    p.experts_dir = f->path;
    run_open(&r, &p);
    model_stats fresh = stats_of(&r);
    assert_true(run_one(&r, WIRE_CHAT, ROSE "}")->done);
    model_stats now = stats_of(&r);
    *hit_rate = (double)now.expert_hits / (double)now.expert_lookups;
    run_close(&r);
    return fresh;
}

static void slots_begin_with_what_was_used_before_the_restart(void **state) {
    (void)state;
    folder f = make_folder();
    engine_params p = slot_params();
    double first = 0, again = 0, other = 0;
    engine_run r;
    run_open(&r, &p);
    (void)snprintf(f.file, sizeof f.file, "%s/%s.experts", f.path, engine_file_hash(r.e));
    run_close(&r);
    assert_int_equal(ask_with(&f, &p, &first).slots_by_use, 0);
    assert_true(is_there(f.file));
    model_stats fresh = ask_with(&f, &p, &again);
    assert_int_equal(fresh.slots_by_use, SLOTS);
    assert_int_equal(fresh.slots_filled, SLOTS);
    print_message("hit rate of a first question: %.3f, after a restart %.3f\n", first, again);
    assert_true(again > first);
    /* A file that lies is not believed, and the next one takes its place. */
    assert_int_equal(truncate(f.file, 99), 0);
    assert_int_equal(ask_with(&f, &p, &other).slots_by_use, 0);
    assert_true(other == first);
    assert_int_equal(ask_with(&f, &p, &other).slots_by_use, SLOTS);
    p.ram_mib = 600; /* RAM above the disk */
    assert_int_equal(ask_with(&f, &p, &other).slots_by_use, SLOTS);
    p.n_slots = 0; /* nothing to fill, and nothing counted: the list stays */
    engine_params none = p;
    none.experts_dir = f.path;
    run_open(&r, &none);
    assert_int_equal(stats_of(&r).slots_by_use, 0);
    run_close(&r);
    assert_true(is_there(f.file));
    remove_folder(&f);
}

static void a_list_is_written_now_and_then_and_only_when_there_is_news(void **state) {
    (void)state;
    folder f = make_folder();
    engine_params p = slot_params();
    p.experts_dir = f.path;
    p.experts_save_ms = 1000;
    engine_run r;
    run_open(&r, &p);
    (void)snprintf(f.file, sizeof f.file, "%s/%s.experts", f.path, engine_file_hash(r.e));
    double prefill = 0, decode = 0;
    error err = {0};
    assert_int_equal(engine_measure(r.e, 20, &prefill, &decode, &err), STATUS_OK);
    engine_tend_experts(r.e, 4000);
    engine_tend_experts(r.e, 5000);
    assert_false(is_there(f.file)); /* a measurement is no text */
    assert_true(run_one(&r, WIRE_CHAT, PRODUCT "}")->done);
    engine_tend_experts(r.e, 5999);
    assert_false(is_there(f.file));
    engine_tend_experts(r.e, 6000);
    assert_true(is_there(f.file));
    assert_int_equal(unlink(f.file), 0);
    engine_tend_experts(r.e, 8000);
    assert_false(is_there(f.file)); /* nothing ran since */
    assert_true(run_one(&r, WIRE_CHAT, PRODUCT "}")->done);
    engine_tend_experts(r.e, 8500);
    assert_false(is_there(f.file));
    run_close(&r); /* the end writes it */
    assert_true(is_there(f.file));
    remove_folder(&f);
}

/* What slots hold by use is worth more than what a measurement's ids would put there. */
static void a_measurement_leaves_filled_slots_alone(void **state) {
    (void)state;
    folder f = make_folder();
    engine_params p = slot_params();
    double first = 0, hit_rate[2] = {0, 1};
    engine_run r;
    error err = {0};
    for (int i = 0; i < 2; i++) {
        double prefill = 0, decode = 0;
        assert_int_equal(ask_with(&f, &p, &first).slots_by_use, 0);
        engine_params again = p;
        again.experts_dir = f.path;
        run_open(&r, &again);
        (void)snprintf(f.file, sizeof f.file, "%s/%s.experts", f.path, engine_file_hash(r.e));
        if (i == 1) {
            assert_int_equal(engine_measure(r.e, 50, &prefill, &decode, &err), STATUS_OK);
            assert_true(prefill > 0 && decode > 0);
            assert_int_equal(stats_of(&r).tokens, 0);
            assert_int_equal(stats_of(&r).expert_lookups, 0);
        }
        assert_true(run_one(&r, WIRE_CHAT, ROSE "}")->done);
        model_stats now = stats_of(&r);
        hit_rate[i] = (double)now.expert_hits / (double)now.expert_lookups;
        run_close(&r);
        if (i == 0) assert_int_equal(unlink(f.file), 0);
    }
    assert_true(hit_rate[0] == hit_rate[1]);
    assert_true(hit_rate[0] > first);
    remove_folder(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_warm_up_leaves_no_trace),
        cmocka_unit_test(slots_begin_with_what_was_used_before_the_restart),
        cmocka_unit_test(a_list_is_written_now_and_then_and_only_when_there_is_news),
        cmocka_unit_test(a_measurement_leaves_filled_slots_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
