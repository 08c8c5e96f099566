/* test_cuda_slices.c - on the CUDA backend a prompt of the background that is cut by layers waits for an
 * interactive one between two of them, and no token changes.
 *
 * The driver is the double of cuda_double.c, whose steps take longer than the bound.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/engine_run.h"
#include "tests/files.h"
#include "tests/golden/cuda_double.h"
#include <stdio.h>
#include <unistd.h>

enum { STREAM, BACKGROUND, USER, N_REQUESTS, N_LAYERS = 2, SLOTS = 10 };

static const char small_params[] =
    "{\"layers\":2,\"interval\":2,\"experts\":16,\"topk\":4,\"k_heads\":1,\"v_heads\":2,"
    "\"vocab\":384,\"type\":\"Q4_K_M\",\"seed\":78}";

static const struct {
    int n_prompt, n_output;
} requests[N_REQUESTS] = {{3, 9}, {12, 1}, {7, 1}};

static char folder[200], path[220];
static run_choice alone[N_REQUESTS];

static engine_params small_engine(void) {
    engine_params p = run_params();
    p.model_path = path;
    p.backend = BACKEND_CUDA;
    p.vram_mib = 900;
    p.n_slots = SLOTS;
    p.lane = CPU_LANE_PROMPTS;
    p.n_context = 128;
    p.n_sequences = 3;
    p.chunk_tokens = 64;
    p.park_mib = 8;
    return p;
}

static void submit(engine_run *run, uint64_t id, uint32_t priority) {
    json_text body = {0};
    json_text_format(&body, "{\"prompt\":[");
    for (int i = 0; i < requests[id].n_prompt; i++)
        json_text_format(&body, "%s%d", i > 0 ? "," : "", 3 + (i * 37 + (int)id * 11) % 370);
    json_text_format(&body,
                     "],\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,"
                     "\"logprobs\":2}",
                     requests[id].n_output);
    const wire_submit wire = {.request = id,
                              .kind = WIRE_COMPLETION,
                              .priority = priority,
                              .body = wire_text(body.bytes, body.length)};
    run_submit_wire(run, &wire);
    json_text_release(&body);
}

static uint64_t n_slices(const engine_run *run) {
    engine_stats stats;
    engine_read_stats(run->e, &stats);
    return stats.model.slices;
}

static int begin(void **state) {
    if (!make_temporary(folder, sizeof folder)) return -1;
    (void)snprintf(path, sizeof path, "%s/model.gguf", folder);
    if (!generate_model(small_params, path) || choose_driver(state) != 0) return -1;
    const engine_params p = small_engine();
    engine_run run = {0};
    run_open(&run, &p);
    for (uint64_t id = 0; id < N_REQUESTS; id++) {
        submit(&run, id, 0);
        run_all(&run);
        alone[id] = run.answers[id].choices[0];
    }
    run_close(&run);
    return 0;
}

static int end(void **state) {
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

/* With three places it stays where it is, with two its place is the other's and what it has is kept. */
static void who_waits_between_two_layers_answers_the_same(void **state) {
    (void)state;
    for (uint32_t n_sequences = 2; n_sequences <= 3; n_sequences++) {
        engine_params p = small_engine();
        engine_run run = {0};
        engine_stats stats;
        p.n_sequences = n_sequences;
        p.max_step_ms = 1;
        run_open(&run, &p);
        submit(&run, STREAM, 0);
        run_steps(&run, 1);
        submit(&run, BACKGROUND, 1);
        run_steps(&run, 1);
        assert_int_equal(n_slices(&run), 1);
        submit(&run, USER, 0);
        uint32_t n = 0;
        for (; run.answers[USER].n_messages == 0 && n < 10; n++)
            run_steps(&run, 1);
        assert_true(n <= N_LAYERS);
        assert_int_equal(run.answers[BACKGROUND].n_messages, 0);
        run_all(&run);
        engine_read_stats(run.e, &stats);
        assert_int_equal(stats.restored, n_sequences == 2);
        for (int id = 0; id < N_REQUESTS; id++) {
            const run_choice *c = &run.answers[id].choices[0];
            assert_int_equal(c->n_ids, requests[id].n_output);
            assert_memory_equal(c->ids, alone[id].ids, c->n_ids * sizeof *c->ids);
            assert_string_equal(c->logprobs, alone[id].logprobs);
        }
        run_close(&run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_between_two_layers_answers_the_same),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
