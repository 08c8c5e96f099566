/* test_cuda_backend.c - the CUDA backend computes what the CPU computes, wherever experts lie.
 *
 * Without a GPU: SILICEO_LIBCUDA is the double of cuda_double.c.  With SILICEO_TEST_BACKEND=cuda
 * in the environment the machine's own driver is asked instead.
 */
#include "tests/golden/model_run.h"

#include "kernels/vector_math.h"
#include "tests/golden/cuda_double.h"
#include "worker/backend.h"

enum { N_IDS = 6 };
static const int32_t ids[N_IDS] = {1, 2, 3, 17, 200, 45};

static model_params params_of(backend_kind kind, activation_type activations, uint32_t n_slots,
                              uint32_t inserts) {
    return (model_params){.backend = kind,
                          .n_threads = 1,
                          .kv = activations == ACTIVATIONS_F32 ? KV_F32 : KV_F16,
                          .activations = activations,
                          .n_pages = 2,
                          .n_states = 1,
                          .max_rows = N_IDS,
                          .max_outputs = N_IDS,
                          .n_slots = n_slots,
                          .inserts_per_layer = inserts};
}

/* A model of two layers, one of each mixer, whose rows use half of all experts. */
static const char small_params[] =
    "{\"arch\":\"qwen35moe\",\"layers\":2,\"interval\":2,\"hidden\":256,\"heads\":2,"
    "\"kv_heads\":1,\"experts\":16,\"topk\":8,\"ff_exp\":256,\"ff_shexp\":256,\"k_heads\":1,"
    "\"v_heads\":2,\"vocab\":384,\"type\":\"Q4_K_M\",\"seed\":78}";

static char folder[256], small_path[300];

static bool on_a_card(void) {
    return getenv("SILICEO_TEST_BACKEND") != NULL;
}

/* What slots are tested on: the demo model on a card; a small one where every thread of a kernel
 * is a fiber, whose few slots are about as scarce. */
static const char *slots_path(void) {
    return on_a_card() ? "deploy/models/demo.gguf" : small_path;
}
static uint32_t few_slots(void) {
    return on_a_card() ? 32 : 20;
}

/* Logits of all ids, in steps of `chunk`; the caller frees. */
static float *logits_in_steps(const char *path, const model_params *p, size_t chunk,
                              size_t *n_vocab) {
    run r;
    run_open(&r, path, p);
    *n_vocab = r.config->n_vocab;
    float *logits = calloc(N_IDS * *n_vocab, sizeof *logits);
    assert_non_null(logits);
    for (size_t at = 0; at < N_IDS; at += chunk) {
        uint32_t now = (uint32_t)(N_IDS - at < chunk ? N_IDS - at : chunk);
        run_tokens(&r, 0, (uint32_t)at, ids + at, now, now, logits + at * *n_vocab);
    }
    run_close(&r);
    return logits;
}

static float most_apart(const float *a, const float *b, size_t n) {
    float most = 0;
    for (size_t i = 0; i < n; i++) {
        float d = fabsf(a[i] - b[i]);
        if (!(d <= most)) most = d;
    }
    return most;
}

/* Rounding of other orders of summation through eight layers, of a prompt over two pages and of its
 * first ids in steps; 2.7e-5 was seen. */
static void float_logits_are_those_of_the_cpu(void **state) {
    (void)state;
    enum { PROMPT = 75, STEPS = 8 };
    static const float allowed = 3.9e-5f;
    int32_t prompt[PROMPT];
    for (int32_t i = 0; i < PROMPT; i++)
        prompt[i] = 5 + i;
    float *logits[2] = {NULL, NULL};
    size_t n_vocab = 0;
    for (int i = 0; i < 2; i++) {
        model_params p = params_of(i ? BACKEND_CUDA : BACKEND_CPU, ACTIVATIONS_F32, 0, 4);
        p.max_rows = p.max_outputs = PROMPT;
        run r;
        run_open(&r, "deploy/models/demo.gguf", &p);
        n_vocab = r.config->n_vocab;
        logits[i] = new_logits(&r, PROMPT);
        run_tokens(&r, 0, 0, prompt, PROMPT, PROMPT, logits[i]);
        run_close(&r);
    }
    float d = most_apart(logits[0], logits[1], PROMPT * n_vocab);
    if (!(d <= allowed)) fail_msg("a prompt: logits differ by %g", (double)d);
    const model_params steps = params_of(BACKEND_CUDA, ACTIVATIONS_F32, 0, 4);
    run r;
    run_open(&r, "deploy/models/demo.gguf", &steps);
    run_tokens(&r, 0, 0, prompt, STEPS, 1, logits[1]);
    run_close(&r);
    d = most_apart(logits[0], logits[1], STEPS * n_vocab);
    if (!(d <= allowed)) fail_msg("steps: logits differ by %g", (double)d);
    free(logits[0]);
    free(logits[1]);
}

/* Pages of every smaller type, written by a prompt and by steps, are read as the CPU reads them:
 * products of halves and a value that rounds the other way, no more. */
static void small_pages_are_read_as_the_cpu_reads_them(void **state) {
    (void)state;
    const kv_type types[] = {KV_F16, KV_Q8, KV_Q4};
    for (int t = 0; t < 3; t++) {
        float *logits[2] = {NULL, NULL};
        size_t n = 0;
        for (int i = 0; i < 2; i++) {
            model_params p = params_of(i ? BACKEND_CUDA : BACKEND_CPU, ACTIVATIONS_F32, 0, 4);
            p.kv = types[t];
            run r;
            run_open(&r, "deploy/models/demo.gguf", &p);
            n = r.config->n_vocab;
            logits[i] = new_logits(&r, N_IDS);
            run_tokens(&r, 0, 0, ids, 4, 4, logits[i]);
            run_tokens(&r, 0, 4, ids + 4, N_IDS - 4, 1, logits[i] + 4 * n);
            run_close(&r);
        }
        double kl = mean_divergence(logits[0], logits[1], N_IDS, n);
        print_message("KV type %d: mean divergence %.3g between the backends\n", types[t], kl);
        assert_true(kl < 1e-5);
        free(logits[0]);
        free(logits[1]);
    }
}

/* Decoding is recorded at the second step and replayed from the third on; slots make waves of a
 * prompt and misses of a step, which the host ships or, where all records are pinned, the GPU
 * fetches; no place of an expert changes a bit. */
static void slots_change_no_bit(void **state) {
    (void)state;
    for (size_t chunk = 1; chunk <= N_IDS; chunk += N_IDS - 1) {
        size_t n_vocab = 0;
        const model_params all = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, 0, 4);
        float *expected = logits_in_steps(slots_path(), &all, chunk, &n_vocab);
        for (uint32_t i = 0; i < 4; i++) {
            model_params few =
                params_of(BACKEND_CUDA, ACTIVATIONS_INT8, few_slots(), i % 2 == 0 ? 1 : 4);
            few.pin_experts = i >= 2;
            float *got = logits_in_steps(slots_path(), &few, chunk, &n_vocab);
            assert_memory_equal(expected, got, N_IDS * n_vocab * sizeof *got);
            free(got);
        }
        free(expected);
    }
}

/* A prompt in slices of a layer, with another's decoding step between, while it may be kept elsewhere:
 * what came ahead for the next layer is of no use any more, for that step has had the staging. */
static void slices_and_steps_between_them_change_no_bit(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, i == 0 ? 0 : few_slots(), 1);
        p.n_states = 2;
        p.n_pages = 4;
        p.pin_experts = i == 2;
        float *logits[2];
        size_t n = 0;
        for (uint32_t cut = 0; cut < 2; cut++) {
            run r;
            run_open(&r, slots_path(), &p);
            n = r.config->n_vocab;
            logits[cut] = new_logits(&r, 2 * N_IDS + 2);
            float *to = logits[cut], *step = to + N_IDS * n;
            run_tokens(&r, 1, 0, ids, N_IDS - 2, N_IDS - 2, to + (N_IDS + 1) * n);
            model_segment prompt = run_segment(&r, 0, 0, ids, N_IDS);
            model_segment other = run_segment(&r, 1, N_IDS - 2, ids + N_IDS - 2, 1);
            if (cut > 0)
                run_slices(&r, &prompt, (r.config->n_layers + 1) / 2, i == 1, &other, step, to);
            else
                run_step(&r, &prompt, 1, to);
            if (cut == 0) run_step(&r, &other, 1, step);
            run_tokens(&r, 0, N_IDS, ids, 1, 1, to + (2 * N_IDS + 1) * n); /* its state */
            run_close(&r);
        }
        assert_memory_equal(logits[0], logits[1], (2 * N_IDS + 2) * n * sizeof(float));
        free(logits[0]);
        free(logits[1]);
    }
}

/* What came ahead for a layer in a step that failed there is of no use to a slice that begins with that
 * layer: steps between have had the staging. */
static void what_a_failed_step_left_is_not_used(void **state) {
    (void)state;
    if (on_a_card()) skip(); /* nothing fails there when it is told to */
    model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, few_slots(), 1);
    p.n_states = 2;
    p.n_pages = 4;
    p.pin_experts = true;
    run r;
    error err = {0};
    run_open(&r, slots_path(), &p);
    size_t n = r.config->n_vocab;
    float *expected = new_logits(&r, N_IDS), *got = new_logits(&r, N_IDS);
    float *rows = calloc((size_t)N_IDS * r.config->n_embd, sizeof *rows);
    assert_non_null(rows);
    run_tokens(&r, 0, 0, ids, N_IDS, N_IDS, expected);
    run_tokens(&r, 1, 0, ids, 2, 2, got);
    model_state_clear(r.m, 0);
    const model_segment prompt = run_segment(&r, 0, 0, ids, N_IDS);
    const model_slice first = {0, 1, rows}, second = {1, 2, rows};
    assert_int_equal(model_step_slice(r.m, &prompt, &first, got, &err), STATUS_OK);
    assert_int_equal(setenv("SILICEO_DOUBLE_REFUSES", "cuMemcpyDtoHAsync:2", 1), 0);
    const model_segment fails = run_segment(&r, 1, 2, ids, N_IDS);
    assert_int_not_equal(model_step(r.m, &fails, 1, got, &err), STATUS_OK);
    assert_int_equal(unsetenv("SILICEO_DOUBLE_REFUSES"), 0);
    for (int i = 0; i < 3; i++)
        run_tokens(&r, 1, 2 + i, ids + i, 1, 1, got);
    assert_int_equal(model_step_slice(r.m, &prompt, &second, got, &err), STATUS_OK);
    assert_memory_equal(got, expected, N_IDS * n * sizeof *got);
    free(rows);
    free(got);
    free(expected);
    run_close(&r);
}

/* Forgotten slots hold NaN until they are filled again, by waves, the host or the GPU. */
static void forgotten_slots_are_never_read(void **state) {
    (void)state;
    for (int pinned = 0; pinned < 2; pinned++) {
        model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, few_slots(), 4);
        p.pin_experts = pinned == 1;
        run r;
        run_open(&r, slots_path(), &p);
        size_t n = r.config->n_vocab;
        float *before = calloc(2 * N_IDS * n, sizeof *before), *after = before + N_IDS * n;
        assert_non_null(before);
        for (int round = 0; round < 2; round++) {
            float *out = round == 0 ? before : after;
            model_state_clear(r.m, 0);
            run_tokens(&r, 0, 0, ids, 3, 3, out);
            model_forget_experts(r.m);
            for (uint32_t at = 3; at < N_IDS; at++)
                run_tokens(&r, 0, at, ids + at, 1, 1, out + at * n);
            model_forget_experts(r.m);
        }
        assert_memory_equal(before, after, N_IDS * n * sizeof *before);
        for (size_t i = 0; i < N_IDS * n; i++)
            assert_true(isfinite((double)before[i]));
        free(before);
        run_close(&r);
    }
}

static void states_and_pages_are_copied_on_the_card(void **state) {
    (void)state;
    model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, 256, 4);
    p.n_states = 2;
    run r;
    run_open(&r, "deploy/models/demo.gguf", &p);
    size_t n_state = (size_t)model_config_state_bytes(r.config), n_page = model_page_bytes(r.m);
    size_t n = n_state > n_page ? n_state : n_page;
    unsigned char *bytes = malloc(2 * n), *copy = bytes + n;
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 8);
    model_page_load(r.m, 0, bytes);
    model_page_copy(r.m, 1, 0);
    model_page_save(r.m, 1, copy);
    assert_memory_equal(copy, bytes, n_page);
    model_state_load(r.m, 0, bytes);
    model_state_copy(r.m, 1, 0);
    model_state_save(r.m, 1, copy);
    assert_memory_equal(copy, bytes, n_state);
    free(bytes);
    run_close(&r);
}

/* Steps of one token that want the largest logit alone. */
static void run_best(const model_params *p, model_best *best, float *logits) {
    run r;
    run_open(&r, "deploy/models/demo.gguf", p);
    error err = {0};
    const uint32_t pages[] = {0, 1};
    size_t n_vocab = r.config->n_vocab;
    model_state_clear(r.m, 0);
    for (uint32_t i = 0; i < N_IDS; i++) {
        const model_segment one = {
            .position = i, .n_tokens = 1, .n_outputs = 1, .tokens = ids + i, .pages = pages};
        assert_int_equal(model_step_best(r.m, &one, 1, (uint32_t)n_vocab, &best[i], &err),
                         STATUS_OK);
        assert_int_equal(model_read_logits(r.m, logits + i * n_vocab, &err), STATUS_OK);
    }
    run_close(&r);
}

static void the_largest_logit_is_found_where_it_is_with_graphs_and_without(void **state) {
    (void)state;
    model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, 0, 4);
    size_t n_vocab = 0;
    float *whole = logits_in_steps("deploy/models/demo.gguf", &p, 1, &n_vocab);
    float *logits = calloc(N_IDS * n_vocab, sizeof *logits);
    assert_non_null(logits);
    for (int i = 0; i < 2; i++) {
        model_best best[N_IDS];
        p.no_graphs = i == 1;
        run_best(&p, best, logits);
        assert_memory_equal(logits, whole, N_IDS * n_vocab * sizeof *logits);
        for (size_t row = 0; row < N_IDS; row++) {
            const float *l = whole + row * n_vocab;
            size_t most = vector_argmax(CPU_SCALAR, l, n_vocab);
            assert_int_equal(best[row].id, most);
            assert_memory_equal(&best[row].logit, &l[most], sizeof(float));
        }
    }
    free(logits);
    free(whole);
}

/* Keeps the rows after the final norm, which the head reads. */
static void keep_final(void *context, const char *what, uint32_t layer, const float *rows,
                       size_t n_rows, size_t row_length) {
    (void)layer;
    float **at = context;
    if (strcmp(what, "final") != 0) return;
    memcpy(*at, rows, n_rows * row_length * sizeof *rows);
    *at += n_rows * row_length;
}

/* Rows after the final norm beside logits, and in steps between those that are recorded: the
 * rows that a look shows, and logits as without them. */
static void hidden_rows_are_those_that_the_head_reads(void **state) {
    (void)state;
    for (uint32_t chunk = 1; chunk <= N_IDS; chunk += N_IDS - 1) {
        const model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, 0, 4);
        run r;
        run_open(&r, "deploy/models/demo.gguf", &p);
        size_t n_embd = r.config->n_embd, n_vocab = r.config->n_vocab;
        float *seen = calloc(2 * N_IDS * n_embd, sizeof *seen), *at = seen;
        float *hidden = seen + N_IDS * n_embd;
        float *logits = new_logits(&r, 2 * N_IDS);
        assert_non_null(seen);
        for (uint32_t watched = 0; watched < 2; watched++) {
            if (watched == 1) model_set_tap(r.m, keep_final, &at);
            model_state_clear(r.m, 0);
            for (uint32_t i = 0; i < N_IDS; i += chunk) {
                model_segment s = run_segment(&r, 0, i, ids + i, chunk);
                s.n_hidden = watched == 0 && i % 2 == 0 ? chunk : 0;
                s.hidden = hidden + i * n_embd;
                run_step(&r, &s, 1, logits + (watched * N_IDS + i) * n_vocab);
            }
        }
        assert_memory_equal(logits, logits + N_IDS * n_vocab, N_IDS * n_vocab * sizeof *logits);
        for (uint32_t i = 0; i < N_IDS; i += 2 * chunk) {
            assert_memory_equal(hidden + i * n_embd, seen + i * n_embd,
                                chunk * n_embd * sizeof *seen);
        }
        free(logits);
        free(seen);
        run_close(&r);
    }
}

/* Of float32 rows the lane sums in the CPU's order. */
static void the_cpu_lane_changes_rounding_of_float_rows_alone(void **state) {
    (void)state;
    for (size_t chunk = 1; chunk <= N_IDS; chunk += N_IDS - 1) {
        size_t n_vocab = 0;
        const model_params cpu = params_of(BACKEND_CPU, ACTIVATIONS_F32, 0, 4);
        float *expected = logits_in_steps(slots_path(), &cpu, N_IDS, &n_vocab);
        model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_F32, few_slots(), 4);
        p.lane = CPU_LANE_ALL;
        p.pin_experts = true;
        float *got = logits_in_steps(slots_path(), &p, chunk, &n_vocab);
        float d = most_apart(expected, got, N_IDS * n_vocab);
        if (!(d <= 1e-4f)) fail_msg("steps of %zu: %g", chunk, (double)d);
        free(got);
        free(expected);
    }
}

enum { COMPANY = 5, COMPANY_ROWS = N_IDS + 3 * COMPANY };

/* A prompt, then steps of as many sequences as are there, each with tokens of its own; twice.  The
 * caller frees the logits. */
static float *run_company(const model_params *p, size_t *n_vocab, uint64_t *on_cpu) {
    run r;
    run_open(&r, slots_path(), p);
    float *logits = new_logits(&r, COMPANY_ROWS);
    size_t n = *n_vocab = r.config->n_vocab;
    for (int round = 0; round < 2; round++) {
        float *out = logits;
        for (uint32_t s = 0; s < COMPANY; s++)
            model_state_clear(r.m, s);
        run_tokens(&r, 0, 0, ids, N_IDS, N_IDS, out);
        out += N_IDS * n;
        model_state_clear(r.m, 0);
        for (uint32_t at = 0; at < 3; at++) {
            model_segment s[COMPANY];
            for (uint32_t i = 0; i < COMPANY; i++)
                s[i] = run_segment(&r, i, at, &ids[(i + at) % N_IDS], 1);
            run_step(&r, s, COMPANY, out);
            out += COMPANY * n;
        }
        model_stats stats = {0};
        model_read_stats(r.m, &stats);
        on_cpu[round] = stats.lane_experts;
    }
    run_close(&r);
    return logits;
}

/* Of a bus that looks slow the lane takes over: of prompts, and of steps whose pairs are more than
 * there are staging records, looked at once a layer, recorded and replayed.  No bit tells of it. */
static void the_cpu_lane_takes_what_the_bus_is_slow_to_bring(void **state) {
    (void)state;
    size_t n_vocab = 0;
    model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, few_slots(), 4);
    p.n_states = COMPANY;
    p.n_pages = 2 * COMPANY;
    p.pin_experts = true;
    uint64_t on_cpu[2] = {0};
    float *expected = run_company(&p, &n_vocab, on_cpu);
    p.lane = CPU_LANE_ON;
    const char *const bus_ms[] = {"10000", "3"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(setenv("SILICEO_DOUBLE_ELAPSED_MS", bus_ms[i], 1), 0);
        float *got = run_company(&p, &n_vocab, on_cpu);
        assert_int_equal(unsetenv("SILICEO_DOUBLE_ELAPSED_MS"), 0);
        assert_memory_equal(expected, got, COMPANY_ROWS * n_vocab * sizeof *got);
        free(got);
        if (on_a_card() || i > 0) continue;
        assert_true(on_cpu[0] > 0);
        assert_true(on_cpu[1] > on_cpu[0]);
    }
    free(expected);
}

/* All ids twice in steps of `chunk`: logits of the second time, when the rates of the first are
 * known and the slots empty again; returns how many experts the lane computed then. */
static uint64_t logits_of_second(const model_params *p, size_t chunk, float *logits) {
    run r;
    run_open(&r, slots_path(), p);
    uint64_t on_cpu[2] = {0};
    for (int round = 0; round < 2; round++) {
        model_state_clear(r.m, 0);
        if (round > 0) model_forget_experts(r.m);
        for (uint32_t at = 0; at < N_IDS; at += (uint32_t)chunk) {
            run_tokens(&r, 0, at, ids + at, (uint32_t)chunk, (uint32_t)chunk,
                       logits + at * r.config->n_vocab);
        }
        model_stats stats = {0};
        model_read_stats(r.m, &stats);
        on_cpu[round] = stats.lane_experts;
    }
    run_close(&r);
    return on_cpu[1] - on_cpu[0];
}

/* The lane computes from the GPU's 8-bit rows and sums in its order: no bit tells who computed an
 * expert, of a prompt or of a step. */
static void expect_lane(cpu_lane lane, size_t chunk, const float *alone, size_t n_vocab) {
    model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, few_slots(), 4);
    float *got = calloc(N_IDS * n_vocab, sizeof *got);
    assert_non_null(got);
    p.lane = lane;
    p.pin_experts = lane != CPU_LANE_ALL;
    assert_int_equal(setenv("SILICEO_DOUBLE_ELAPSED_MS", "10000", 1), 0);
    const uint64_t on_cpu = logits_of_second(&p, chunk, got);
    assert_int_equal(unsetenv("SILICEO_DOUBLE_ELAPSED_MS"), 0);
    if (chunk == 1 && lane == CPU_LANE_PROMPTS)
        assert_int_equal(on_cpu, 0);
    else
        assert_true(on_cpu > 0 || on_a_card());
    assert_memory_equal(alone, got, N_IDS * n_vocab * sizeof *got);
    free(got);
}

static void the_cpu_lane_changes_no_bit(void **state) {
    (void)state;
    for (size_t chunk = 1; chunk <= N_IDS; chunk += N_IDS - 1) {
        size_t n_vocab = 0;
        const model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, few_slots(), 4);
        float *alone = logits_in_steps(slots_path(), &p, chunk, &n_vocab);
        expect_lane(CPU_LANE_PROMPTS, chunk, alone, n_vocab);
        expect_lane(chunk == 1 ? CPU_LANE_ALL : CPU_LANE_ON, chunk, alone, n_vocab);
        free(alone);
    }
}

enum { VERIFIED = 5, AT = 62, KEPT = 1 };

/* Rows 62 .. 66 of a sequence, over a page's end, from a state of its own; their states go to
 * KEPT and on. */
static void verify_rows(run *r, float *logits) {
    uint32_t states[VERIFIED];
    for (uint32_t i = 0; i < VERIFIED; i++)
        states[i] = KEPT + i;
    model_segment s = run_segment(r, 0, AT, ids, VERIFIED);
    s.states_after = states;
    run_step(r, &s, 1, logits);
}

/* The same rows in steps of their own; the states after them to `after`. */
static void step_rows(run *r, float *logits, unsigned char *after, size_t state_bytes) {
    for (uint32_t i = 0; i < VERIFIED; i++) {
        run_tokens(r, 0, AT + i, ids + i, 1, 1, logits + i * r->config->n_vocab);
        model_state_save(r->m, 0, after + i * state_bytes);
    }
}

/* 40 pairs a layer are more than there are staging records: the GPU fetches the rest into slots, the
 * host gathers four rows at a time.  From the third time on a recording is replayed. */
static void verify_case(const char *path, kv_type kv, uint32_t n_slots, bool pinned) {
    model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, n_slots, 4);
    p.pin_experts = pinned;
    p.kv = kv;
    p.max_rows = AT;
    p.n_states = KEPT + VERIFIED;
    p.n_pages = 2 * p.n_states;
    run r;
    run_open(&r, path, &p);
    size_t n = VERIFIED * (size_t)r.config->n_vocab;
    size_t state_bytes = (size_t)model_config_state_bytes(r.config);
    float *expected = new_logits(&r, 2 * VERIFIED), *got = expected + n;
    unsigned char *after = calloc(VERIFIED + 2, state_bytes);
    unsigned char *before = after + VERIFIED * state_bytes, *now = before + state_bytes;
    assert_non_null(after);
    unsigned char *pages[2];
    int32_t prompt[AT];
    for (int32_t i = 0; i < AT; i++)
        prompt[i] = 5 + i;
    model_segment start = run_segment(&r, 0, 0, prompt, AT);
    start.n_outputs = 1;
    run_step(&r, &start, 1, got);
    model_state_save(r.m, 0, before);
    for (int i = 0; i < 2; i++) { /* as they are before the rows: those find nothing later */
        pages[i] = calloc(1, model_page_bytes(r.m));
        assert_non_null(pages[i]);
        model_page_save(r.m, r.pages[i], pages[i]);
    }
    step_rows(&r, expected, after, state_bytes);
    for (int round = 0; round < 3; round++) {
        model_state_load(r.m, 0, before);
        for (int i = 0; i < 2; i++)
            model_page_load(r.m, r.pages[i], pages[i]);
        memset(now, 0xff, state_bytes);
        for (uint32_t i = 0; i < VERIFIED; i++)
            model_state_load(r.m, KEPT + i, now);
        verify_rows(&r, got);
        assert_memory_equal(expected, got, n * sizeof *got);
        for (size_t i = 0; i < n; i++)
            assert_true(isfinite((double)got[i]));
        for (uint32_t i = 0; i < VERIFIED; i++) {
            model_state_save(r.m, KEPT + i, now);
            assert_memory_equal(after + i * state_bytes, now, state_bytes);
        }
        model_state_save(r.m, 0, now);
        assert_memory_equal(before, now, state_bytes);
    }
    free(pages[0]);
    free(pages[1]);
    free(after);
    free(expected);
    run_close(&r);
}

static void verified_rows_have_the_bits_of_steps_of_their_own(void **state) {
    (void)state;
    verify_case(small_path, KV_F16, 0, false);
    verify_case(small_path, KV_Q8, 20, true);
    verify_case(small_path, KV_Q4, 20, false);
    verify_case(small_path, KV_F32, 0, false);
}

/* One context for all backends of the process; the end of one leaves the others theirs. */
static void models_share_the_card_in_turn(void **state) {
    (void)state;
    enum { STEPS = 3 };
    const model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, 0, 4);
    float *alone = NULL, *beside = NULL;
    run first, second;
    run_open(&first, "deploy/models/draft.gguf", &p);
    run_open(&second, "deploy/models/draft.gguf", &p);
    alone = new_logits(&first, STEPS);
    beside = new_logits(&second, STEPS);
    for (uint32_t at = 0; at < STEPS; at++) {
        size_t n = at * first.config->n_vocab;
        run_tokens(&first, 0, at, ids + at, 1, 1, alone + n);
        if (at == STEPS - 1) run_close(&first);
        run_tokens(&second, 0, at, ids + at, 1, 1, beside + n);
    }
    assert_memory_equal(alone, beside, STEPS * second.config->n_vocab * sizeof(float));
    model_state_clear(second.m, 0);
    run_tokens(&second, 0, 0, ids, 1, 1, beside);
    assert_memory_equal(alone, beside, second.config->n_vocab * sizeof(float));
    run_close(&second);
    free(alone);
    free(beside);
}

static void a_model_larger_than_the_card_is_refused_with_both_sizes(void **state) {
    (void)state;
    if (on_a_card()) skip();
    model_params p = params_of(BACKEND_CUDA, ACTIVATIONS_INT8, 0, 4);
    p.n_pages = 1 << 17;
    gguf_file *file = NULL;
    model *m = NULL;
    error err = {0};
    assert_int_equal(gguf_open(&file, "deploy/models/demo.gguf", &err), STATUS_OK);
    assert_int_equal(model_open(&m, file, &p, &err), STATUS_NO_MEMORY);
    assert_null(m);
    assert_non_null(strstr(err.text, "MiB of VRAM are needed"));
    assert_non_null(strstr(err.text, "free"));
    gguf_close(file);
}

static int set_up(void **state) {
    if (choose_driver(state) != 0) return -1;
    if (!make_temporary(folder, sizeof folder)) return -1;
    (void)snprintf(small_path, sizeof small_path, "%s/model.gguf", folder);
    return generate_model(small_params, small_path) ? 0 : -1;
}

static int remove_small(void **state) {
    (void)state;
    (void)unlink(small_path);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_logits_are_those_of_the_cpu),
        cmocka_unit_test(small_pages_are_read_as_the_cpu_reads_them),
        cmocka_unit_test(slots_change_no_bit),
        cmocka_unit_test(slices_and_steps_between_them_change_no_bit),
        cmocka_unit_test(what_a_failed_step_left_is_not_used),
        cmocka_unit_test(the_largest_logit_is_found_where_it_is_with_graphs_and_without),
        cmocka_unit_test(forgotten_slots_are_never_read),
        cmocka_unit_test(hidden_rows_are_those_that_the_head_reads),
        cmocka_unit_test(states_and_pages_are_copied_on_the_card),
        cmocka_unit_test(the_cpu_lane_changes_rounding_of_float_rows_alone),
        cmocka_unit_test(the_cpu_lane_takes_what_the_bus_is_slow_to_bring),
        cmocka_unit_test(the_cpu_lane_changes_no_bit),
        cmocka_unit_test(verified_rows_have_the_bits_of_steps_of_their_own),
        cmocka_unit_test(models_share_the_card_in_turn),
        cmocka_unit_test(a_model_larger_than_the_card_is_refused_with_both_sizes),
    };
    return cmocka_run_group_tests(tests, set_up, remove_small);
}
