/* test_cuda_lane.c - the CPU lane inside decoding steps that are one graph: no bit tells who computed
 * an expert, and a lane that does not answer fails its step and no other.
 *
 * Without a GPU: SILICEO_LIBCUDA is the double of cuda_double.c, on whose bus a record takes as long
 * as SILICEO_DOUBLE_ELAPSED_MS says.  With SILICEO_TEST_BACKEND=cuda the machine's own.
 */
#include "tests/golden/model_run.h"

#include "tests/golden/cuda_double.h"

/* A prompt, from which the bus is known; then steps of one sequence, and of two together. */
enum { PROMPT = 6, STEPS = 4, COMPANY = 2, ROWS = STEPS * (1 + COMPANY) };
static const int32_t ids[PROMPT] = {1, 2, 3, 17, 200, 45};

/* Two layers, one of each mixer; a row uses half of all experts, and slots hold about as many. */
static const char small_params[] =
    "{\"arch\":\"qwen35moe\",\"layers\":2,\"interval\":2,\"hidden\":256,\"heads\":2,"
    "\"kv_heads\":1,\"experts\":16,\"topk\":8,\"ff_exp\":256,\"ff_shexp\":256,\"k_heads\":1,"
    "\"v_heads\":2,\"vocab\":384,\"type\":\"Q4_K_M\",\"seed\":78}";

static char folder[256], model_path[300];

static bool on_a_card(void) {
    return getenv("SILICEO_TEST_BACKEND") != NULL;
}

static model_params params_of(cpu_lane lane, bool graphs) {
    return (model_params){.backend = BACKEND_CUDA,
                          .n_threads = 2,
                          .kv = KV_F16,
                          .activations = ACTIVATIONS_INT8,
                          .n_pages = 2 * COMPANY,
                          .n_states = COMPANY,
                          .max_rows = PROMPT,
                          .max_outputs = PROMPT,
                          .n_slots = 20,
                          .pin_experts = true,
                          .lane = lane,
                          .no_graphs = !graphs,
                          .inserts_per_layer = 4};
}

static void open_slow(run *r, const model_params *p) {
    assert_int_equal(setenv("SILICEO_DOUBLE_ELAPSED_MS", "10000", 1), 0);
    run_open(r, model_path, p);
    float *logits = new_logits(r, PROMPT);
    run_tokens(r, 0, 0, ids, PROMPT, PROMPT, logits);
    free(logits);
    for (uint32_t s = 0; s < COMPANY; s++)
        model_state_clear(r->m, s);
}

static void close_slow(run *r) {
    run_close(r);
    assert_int_equal(unsetenv("SILICEO_DOUBLE_ELAPSED_MS"), 0);
}

/* Logits of all rows; the caller frees.  on_lane: experts that the lane computed of one row's steps,
 * and of two rows'. */
static float *run_steps(const model_params *p, size_t *n_bytes, uint64_t on_lane[2]) {
    run r;
    open_slow(&r, p);
    const size_t n = r.config->n_vocab;
    float *logits = new_logits(&r, ROWS), *out = logits;
    *n_bytes = ROWS * n * sizeof *logits;
    uint64_t before = 0;
    for (uint32_t part = 0; part < 2; part++) {
        const uint32_t n_together = part == 0 ? 1 : COMPANY;
        model_stats stats = {0};
        model_read_stats(r.m, &stats);
        before = stats.lane_experts;
        for (uint32_t s = 0; s < COMPANY; s++)
            model_state_clear(r.m, s);
        for (uint32_t at = 0; at < STEPS; at++) {
            model_segment s[COMPANY];
            for (uint32_t i = 0; i < n_together; i++)
                s[i] = run_segment(&r, i, at, &ids[(i + at) % PROMPT], 1);
            run_step(&r, s, n_together, out);
            out += n_together * n;
        }
        model_read_stats(r.m, &stats);
        on_lane[part] = stats.lane_experts - before;
    }
    close_slow(&r);
    return logits;
}

static void no_bit_tells_who_computed_an_expert_of_a_step(void **state) {
    (void)state;
    size_t n_bytes = 0;
    uint64_t on_lane[2];
    const model_params off = params_of(CPU_LANE_OFF, true);
    float *alone = run_steps(&off, &n_bytes, on_lane);
    assert_int_equal(on_lane[0] + on_lane[1], 0);
    for (int i = 0; i < 3; i++) {
        const model_params p = params_of(i < 2 ? CPU_LANE_ON : CPU_LANE_ALL, i > 0);
        float *got = run_steps(&p, &n_bytes, on_lane);
        assert_memory_equal(alone, got, n_bytes);
        const bool may_idle = on_a_card() && p.lane == CPU_LANE_ON; /* its bus may be fast */
        assert_true(on_lane[0] > 0 || may_idle);
        assert_true(on_lane[1] > 0 || may_idle);
        free(got);
    }
    free(alone);
}

/* Behind the 64th step with the lane some go without, to see which are quicker (lane_trial.h). */
static void some_steps_try_to_do_without_the_lane(void **state) {
    (void)state;
    enum { STRETCH = 64, TRIED = 3 };
    if (on_a_card()) skip(); /* its bus may be fast */
    const model_params p = params_of(CPU_LANE_ON, true);
    run r;
    open_slow(&r, &p);
    float *logits = new_logits(&r, 1);
    uint64_t before = 0, last = 0;
    uint32_t n_without = 0;
    for (uint32_t at = 0; at < STRETCH + 8 + TRIED; at++) {
        model_stats stats = {0};
        run_tokens(&r, 0, at, &ids[at % PROMPT], 1, 1, logits);
        model_read_stats(r.m, &stats);
        if (at < STRETCH)
            before = stats.lane_experts;
        else
            n_without += stats.lane_experts == last;
        last = stats.lane_experts;
    }
    assert_true(before > STRETCH);
    assert_in_range(n_without, TRIED, 8 + TRIED); /* steps that are recorded do not count */
    free(logits);
    close_slow(&r);
}

/* Of plain launches and of a graph, which the second step makes: the next step has the bits of one
 * that nothing happened before. */
static void a_lane_that_does_not_answer_fails_its_step_alone(void **state) {
    (void)state;
    if (on_a_card()) skip();
    for (int graphs = 0; graphs < 2; graphs++) {
        const model_params p = params_of(CPU_LANE_ALL, graphs == 1);
        run r;
        open_slow(&r, &p);
        float *expected = new_logits(&r, 2), *got = expected + r.config->n_vocab;
        for (int i = 0; i < 2; i++) {
            model_state_clear(r.m, 0);
            run_tokens(&r, 0, 0, ids, 1, 1, expected);
        }
        for (int round = 0; round < 2; round++) {
            const model_segment one = run_segment(&r, 0, 0, ids, 1);
            error err = {0};
            model_state_clear(r.m, 0);
            model_forget_experts(r.m);
            assert_int_equal(setenv("SILICEO_DOUBLE_DEAF", "1", 1), 0);
            const status rc = model_step(r.m, &one, 1, got, &err);
            assert_int_equal(unsetenv("SILICEO_DOUBLE_DEAF"), 0);
            assert_int_equal(rc, STATUS_TIMEOUT);
            assert_non_null(strstr(err.text, "CPU lane"));
            model_state_clear(r.m, 0);
            run_tokens(&r, 0, 0, ids, 1, 1, got);
            assert_memory_equal(expected, got, r.config->n_vocab * sizeof *got);
        }
        free(expected);
        close_slow(&r);
    }
}

static int set_up(void **state) {
    if (choose_driver(state) != 0) return -1;
    if (!make_temporary(folder, sizeof folder)) return -1;
    (void)snprintf(model_path, sizeof model_path, "%s/model.gguf", folder);
    return generate_model(small_params, model_path) ? 0 : -1;
}

static int remove_model(void **state) {
    (void)state;
    (void)unlink(model_path);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bit_tells_who_computed_an_expert_of_a_step),
        cmocka_unit_test(some_steps_try_to_do_without_the_lane),
        cmocka_unit_test(a_lane_that_does_not_answer_fails_its_step_alone),
    };
    return cmocka_run_group_tests(tests, set_up, remove_model);
}
