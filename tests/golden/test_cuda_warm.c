/* test_cuda_warm.c - on the CUDA backend a warm-up leaves no trace, and neither it nor slots filled by a
 * list nor graphs that the driver refuses change a token.
 *
 * The driver is the double of cuda_double.c or, with SILICEO_TEST_BACKEND=cuda, the machine's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "tests/files.h"
#include "tests/golden/cuda_double.h"
#include <stdio.h>
#include <unistd.h>

enum { SLOTS = 14, N_IDS = 4, N_RUN = 4, N_VOCAB = 384 };

static const char small_params[] =
    "{\"layers\":3,\"interval\":3,\"experts\":16,\"topk\":4,\"k_heads\":1,\"v_heads\":2,"
    "\"vocab\":384,\"type\":\"Q4_K_M\",\"seed\":78}";

static const char body[] = "{\"prompt\":[5,6,7,8,9,10],\"max_tokens\":4,"
                           "\"temperature\":0,\"ignore_eos\":true}";

static char folder[200], path[220], list[300];

static engine_params slot_params(void) {
    engine_params p = run_params();
    p.model_path = path;
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
    (void)snprintf(list, sizeof list, "%s/%s.experts", folder, engine_file_hash(r.e));
    run_close(&r);
    return out;
}

static uint64_t hits_of(const answer *a) {
    return a->after.expert_hits - a->before.expert_hits;
}

static answer plain;

static int begin(void **state) {
    if (!make_temporary(folder, sizeof folder)) return -1;
    (void)snprintf(path, sizeof path, "%s/model.gguf", folder);
    if (!generate_model(small_params, path) || choose_driver(state) != 0) return -1;
    const engine_params p = slot_params();
    plain = ask(&p);
    return 0;
}

static int end(void **state) {
    (void)state;
    (void)unlink(path);
    return rmdir(folder); /* nothing else was left in it */
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

/* Rows are tried out before anybody asks for guesses; slots stay as they were filled. */
static void what_guesses_would_cost_is_tried_without_a_trace(void **state) {
    (void)state;
    engine_params p = slot_params();
    p.speculate = SPECULATE_LOOKUP;
    p.draft_tokens = 3;
    const answer tried = ask(&p);
    assert_memory_equal(tried.ids, plain.ids, sizeof plain.ids);
    assert_int_equal(tried.before.tokens + tried.before.expert_lookups, 0);
    assert_int_equal(tried.after.expert_lookups, plain.after.expert_lookups);
    assert_int_equal(hits_of(&tried), hits_of(&plain));
}

static void slots_filled_by_a_list_change_no_token(void **state) {
    (void)state;
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
    assert_int_equal(unlink(list), 0);
}

/* What the log gets meanwhile, on stderr. */
typedef struct heard {
    int saved, pipe;
    char text[8192];
} heard;

static void begin_hearing(heard *h) {
    int ends[2];
    (void)fflush(stderr);
    assert_int_equal(pipe(ends), 0);
    h->pipe = ends[0];
    h->saved = dup(STDERR_FILENO);
    assert_true(h->saved >= 0 && dup2(ends[1], STDERR_FILENO) >= 0);
    assert_int_equal(close(ends[1]), 0);
}

static int times_heard(heard *h, const char *word) {
    (void)fflush(stderr);
    assert_true(dup2(h->saved, STDERR_FILENO) >= 0);
    assert_int_equal(close(h->saved), 0);
    ssize_t n = read(h->pipe, h->text, sizeof h->text - 1);
    assert_true(n >= 0);
    h->text[n] = '\0';
    assert_int_equal(close(h->pipe), 0);
    int times = 0;
    for (const char *at = h->text; (at = strstr(at, word)) != NULL; at++)
        times++;
    return times;
}

/* The log says once what was refused, while it warms up, and the worker starts. */
static void a_worker_whose_driver_refuses_graphs_starts_and_answers(void **state) {
    (void)state;
    if (getenv("SILICEO_TEST_BACKEND") != NULL) skip(); /* a card's driver refuses nothing */
    engine_params p = slot_params();
    heard h;
    p.warm_up_ms = 600000;
    assert_int_equal(setenv("SILICEO_DOUBLE_REFUSES", "cuGraphInstantiate:1", 1), 0);
    begin_hearing(&h);
    const answer got = ask(&p);
    assert_int_equal(times_heard(&h, "warn cuda-graphs "), 1);
    assert_non_null(strstr(h.text, "cuGraphInstantiate: CUDA_ERROR_OUT_OF_MEMORY"));
    assert_int_equal(unsetenv("SILICEO_DOUBLE_REFUSES"), 0);
    assert_memory_equal(got.ids, plain.ids, sizeof plain.ids);
    assert_int_equal(got.after.steps, plain.after.steps);
}

static model *open_small(gguf_file **f, const model_params *p, model_stats *opened) {
    model *m = NULL;
    error err = {0};
    assert_int_equal(gguf_open(f, path, &err), STATUS_OK);
    if (model_open(&m, *f, p, &err) != STATUS_OK) fail_msg("%s", err.text);
    model_read_stats(m, opened);
    model_state_clear(m, 0);
    return m;
}

/* A prompt of all the tokens, or steps of one. */
static void run_ids(const model_params *p, uint32_t n_each, model_stats *opened,
                    float *logits) {
    const int32_t ids[N_RUN] = {5, 6, 7, 8};
    const uint32_t page = 0;
    gguf_file *f = NULL;
    error err = {0};
    model *m = open_small(&f, p, opened);
    for (uint32_t i = 0; i < N_RUN; i += n_each) {
        const model_segment s = {.tokens = ids + i,
                                 .position = i,
                                 .n_tokens = n_each,
                                 .n_outputs = 1,
                                 .pages = &page};
        if (model_step(m, &s, 1, logits + (size_t)i * N_VOCAB, &err) != STATUS_OK)
            fail_msg("%s", err.text);
    }
    model_close(m);
    gguf_close(f);
}

static model_params small_model(void) {
    return (model_params){.backend = BACKEND_CUDA,
                          .n_threads = 1,
                          .kv = KV_F16,
                          .n_pages = 2,
                          .n_states = 1,
                          .max_rows = 64,
                          .max_outputs = 1,
                          .inserts_per_layer = 4};
}

/* Whatever is refused, of the first segment of a step that is recorded or of a later one, or of a step
 * that is replayed: the step and those after it give the same. */
static void a_refused_graph_changes_no_bit(void **state) {
    (void)state;
    static float expected[N_RUN * N_VOCAB], got[N_RUN * N_VOCAB];
    const struct {
        const char *refused;
        bool pins; /* one segment a step, else one more than layers */
    } cases[] = {{"cuStreamBeginCapture:2", false}, {"cuStreamEndCapture:1", false},
                 {"cuGraphInstantiate:3", false},   {"cuGraphLaunch:1", false},
                 {"cuGraphLaunch:6", false},        {"cuGraphInstantiate:1", true},
                 {"cuGraphLaunch:2", true}};
    if (getenv("SILICEO_TEST_BACKEND") != NULL) skip();
    model_params p = small_model();
    model_stats opened;
    p.n_slots = SLOTS;
    p.no_graphs = true;
    run_ids(&p, 1, &opened, expected);
    p.no_graphs = false;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *refused = cases[i].refused;
        heard h;
        p.pin_experts = cases[i].pins;
        assert_int_equal(setenv("SILICEO_DOUBLE_REFUSES", refused, 1), 0);
        begin_hearing(&h);
        run_ids(&p, 1, &opened, got);
        int times = times_heard(&h, "warn cuda-graphs ");
        assert_int_equal(unsetenv("SILICEO_DOUBLE_REFUSES"), 0);
        if (times != 1) fail_msg("%s: said %d times", refused, times);
        if (memcmp(got, expected, sizeof got) != 0) fail_msg("%s: other logits", refused);
    }
}

/* With few records in RAM slots are filled from the disk, and only with what is listed. */
static void above_a_disk_what_is_listed_is_read(void **state) {
    (void)state;
    enum { LAYERS = 3, EXPERTS = 16, RECORDS = EXPERTS + 16 };
    uint32_t uses[LAYERS * EXPERTS] = {0};
    float expected[N_VOCAB], got[N_VOCAB];
    model_params p = small_model();
    model_stats all = {0}, few = {0}, listed = {0};
    run_ids(&p, N_RUN, &all, expected);
    assert_int_equal(all.slots_filled, 0);
    p.n_slots = SLOTS;
    p.host_records = RECORDS;
    run_ids(&p, N_RUN, &few, got);
    assert_int_equal(few.slots_filled + few.disk_misses, 0);
    assert_memory_equal(got, expected, sizeof got);
    uses[0 * EXPERTS + 15] = uses[1 * EXPERTS + 2] = uses[2 * EXPERTS + 3] = 7;
    uses[2 * EXPERTS + 4] = 1;
    p.expert_uses = uses;
    run_ids(&p, N_RUN, &listed, got);
    assert_int_equal(listed.slots_filled, 4);
    assert_int_equal(listed.slots_by_use, 4);
    assert_int_equal(listed.disk_misses, 4);
    assert_memory_equal(got, expected, sizeof got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_warm_up_leaves_no_trace),
        cmocka_unit_test(what_guesses_would_cost_is_tried_without_a_trace),
        cmocka_unit_test(slots_filled_by_a_list_change_no_token),
        cmocka_unit_test(a_worker_whose_driver_refuses_graphs_starts_and_answers),
        cmocka_unit_test(a_refused_graph_changes_no_bit),
        cmocka_unit_test(above_a_disk_what_is_listed_is_read),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
