/* test_tiers.c - no bit depends on whether an expert comes from the mapping, RAM or the disk.
 *
 * The CUDA backend runs on the double of cuda_double.c, or with SILICEO_TEST_BACKEND=cuda on
 * the machine's own driver.
 */
#include "tests/golden/model_run.h"

#include "tests/golden/cuda_double.h"
#include "worker/backend.h"

enum { N_IDS = 6, LEAST_RECORDS = 48 }; /* a layer's 32 experts, and 16 on their way */
static const int32_t ids[N_IDS] = {1, 2, 3, 17, 200, 45};
static const char demo[] = "deploy/models/demo.gguf";

static model_params params_of(backend_kind kind, uint32_t n_slots, uint32_t host_records) {
    return (model_params){.backend = kind,
                          .n_threads = 1,
                          .kv = KV_F16,
                          .activations = ACTIVATIONS_INT8,
                          .n_pages = 2,
                          .n_states = 1,
                          .max_rows = N_IDS,
                          .max_outputs = N_IDS,
                          .n_slots = n_slots,
                          .inserts_per_layer = 4,
                          .host_records = host_records,
                          .n_loaders = 2};
}

/* Logits of all ids, in steps of `chunk`; the caller frees. */
static float *logits_in_steps(const model_params *p, size_t chunk, size_t *n_vocab,
                              model_stats *stats) {
    run r;
    run_open(&r, demo, p);
    if (p->lane == CPU_LANE_ALL) model_forget_experts(r.m); /* no slot: the lane does all */
    *n_vocab = r.config->n_vocab;
    float *logits = calloc(N_IDS * *n_vocab, sizeof *logits);
    assert_non_null(logits);
    for (size_t at = 0; at < N_IDS; at += chunk) {
        uint32_t now = (uint32_t)(N_IDS - at < chunk ? N_IDS - at : chunk);
        run_tokens(&r, 0, (uint32_t)at, ids + at, now, now, logits + at * *n_vocab);
    }
    model_read_stats(r.m, stats);
    run_close(&r);
    return logits;
}

static void assert_same_bits(const model_params *a, const model_params *b, model_stats *stats) {
    for (size_t chunk = 1; chunk <= N_IDS; chunk += N_IDS - 1) {
        size_t n_vocab = 0;
        model_stats other;
        float *expected = logits_in_steps(a, chunk, &n_vocab, &other);
        float *got = logits_in_steps(b, chunk, &n_vocab, stats);
        assert_memory_equal(expected, got, N_IDS * n_vocab * sizeof *got);
        free(got);
        free(expected);
    }
}

static void the_disk_changes_no_bit_of_the_cpu(void **state) {
    (void)state;
    const model_params mapped = params_of(BACKEND_CPU, 0, 0);
    for (uint32_t n_slots = 0; n_slots <= 64; n_slots += 64) {
        model_stats stats;
        const model_params tiers = params_of(BACKEND_CPU, n_slots, LEAST_RECORDS);
        assert_same_bits(&mapped, &tiers, &stats);
        assert_true(stats.disk_misses > 0);
        assert_true(stats.disk_bytes > stats.disk_misses * 3 * 4096);
    }
}

static void the_disk_changes_no_bit_of_a_gpu(void **state) {
    (void)state;
    const model_params resident = params_of(BACKEND_CUDA, 0, 0);
    const uint32_t records[] = {LEAST_RECORDS, 256};
    for (size_t i = 0; i < 2; i++) {
        model_stats stats;
        const model_params tiers = params_of(BACKEND_CUDA, 32, records[i]);
        assert_same_bits(&resident, &tiers, &stats);
        assert_true((stats.disk_misses > 0) == (records[i] < 256));
        assert_true(stats.disk_bytes > 0);
    }
}

/* The lane computes what lies in RAM as the device wants it, or what is mapped: the same. */
static void the_cpu_lane_reads_records_of_the_tier(void **state) {
    (void)state;
    model_stats stats;
    model_params mapped = params_of(BACKEND_CUDA, 32, 256);
    model_params tiers = params_of(BACKEND_CUDA, 32, LEAST_RECORDS);
    mapped.lane = tiers.lane = CPU_LANE_ALL;
    mapped.pin_experts = true;
    size_t n_vocab = 0;
    float *expected = logits_in_steps(&mapped, 1, &n_vocab, &stats);
    float *got = logits_in_steps(&tiers, 1, &n_vocab, &stats);
    assert_memory_equal(expected, got, N_IDS * n_vocab * sizeof *got);
    assert_true(stats.disk_misses > 0);
    free(got);
    free(expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_disk_changes_no_bit_of_the_cpu),
        cmocka_unit_test(the_disk_changes_no_bit_of_a_gpu),
        cmocka_unit_test(the_cpu_lane_reads_records_of_the_tier),
    };
    return cmocka_run_group_tests(tests, choose_driver, NULL);
}
