/* test_verify_rows.c - rows verified in one step have the bits of steps of their own, and a
 * sequence goes on from any of them.
 *
 * One generated model with every kind of layer and mixed types.
 */
#include "model_run.h"

enum { N_PROMPT = 50, N_ROWS = 40, N_STATES = 2 + N_ROWS, N_VOCAB = 384, LONGEST = 100 };

static char folder[256];
static char path[512];
static int32_t tokens[LONGEST];
static float *expected;      /* [N_ROWS][N_VOCAB], of tokens that were run one by one */
static unsigned char *after; /* [N_ROWS] states */
static size_t state_bytes;

static const char params[] =
    "{\"arch\":\"qwen35moe\",\"layers\":4,\"interval\":2,\"hidden\":256,\"heads\":2,"
    "\"kv_heads\":1,\"experts\":16,\"topk\":2,\"ff_exp\":256,\"ff_shexp\":256,\"k_heads\":1,"
    "\"v_heads\":2,\"vocab\":384,\"type\":\"Q4_K_M\",\"seed\":78}";

static model_params params_of_run(void) {
    model_params p = run_params(ACTIVATIONS_INT8);
    p.n_states = N_STATES;
    p.n_remembered = 2 * N_ROWS;
    p.n_pages = N_STATES * 3;
    return p;
}

static void step_alone(void) {
    const model_params p = params_of_run();
    run r;
    run_open(&r, path, &p);
    state_bytes = (size_t)model_config_state_bytes(r.config);
    expected = new_logits(&r, N_ROWS);
    after = calloc(N_ROWS, state_bytes);
    float *logits = new_logits(&r, N_PROMPT);
    assert_non_null(after);
    run_tokens(&r, 0, 0, tokens, N_PROMPT, N_PROMPT, logits);
    for (size_t t = 0; t < N_ROWS; t++) {
        run_tokens(&r, 0, N_PROMPT + (uint32_t)t, tokens + N_PROMPT + t, 1, 1,
                   expected + t * N_VOCAB);
        model_state_save(r.m, 0, after + t * state_bytes);
    }
    free(logits);
    run_close(&r);
}

static int set_up(void **state) {
    (void)state;
    if (!make_temporary(folder, sizeof folder)) return -1;
    (void)snprintf(path, sizeof path, "%s/model.gguf", folder);
    if (!generate_model(params, path)) return -1;
    uint32_t word = 7;
    for (size_t i = 0; i < LONGEST; i++) {
        word = word * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((word >> 8) % N_VOCAB);
    }
    step_alone();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    free(expected);
    free(after);
    (void)unlink(path);
    (void)rmdir(folder);
    return 0;
}

/* A model whose sequence 0 has its prompt; every other state is NaN. */
static void open_at_prompt(run *r, uint32_t n_threads) {
    model_params p = params_of_run();
    p.n_threads = n_threads;
    run_open(r, path, &p);
    unsigned char *poison = malloc(state_bytes);
    float *logits = new_logits(r, N_PROMPT);
    assert_non_null(poison);
    memset(poison, 0xFF, state_bytes);
    for (uint32_t s = 1; s < N_STATES; s++)
        model_state_load(r->m, s, poison);
    run_tokens(r, 0, 0, tokens, N_PROMPT, N_PROMPT, logits);
    free(logits);
    free(poison);
}

static void assert_state(const run *r, uint32_t state, const void *bytes) {
    unsigned char *now = malloc(state_bytes);
    assert_non_null(now);
    model_state_save(r->m, state, now);
    assert_memory_equal(now, bytes, state_bytes);
    free(now);
}

/* Rows at, at + 1, ... of sequence 0 from `from`; `wrong`: that row and those after it are
 * other tokens than in `expected`. */
static void verify(run *r, uint32_t from, const uint32_t *states_after, uint32_t at, uint32_t n,
                   uint32_t wrong, float *logits) {
    int32_t ids[N_ROWS];
    for (uint32_t t = 0; t < n; t++)
        ids[t] = (tokens[N_PROMPT + at + t] + (t >= wrong ? 1 : 0)) % N_VOCAB;
    model_segment s = run_segment(r, 0, N_PROMPT + at, ids, n);
    s.state = from;
    s.states_after = states_after;
    run_step(r, &s, 1, logits);
}

static void rows_in_threads(uint32_t n_threads, uint32_t depth) {
    run r;
    uint32_t from = 0, states_after[N_ROWS];
    open_at_prompt(&r, n_threads);
    float *logits = new_logits(&r, N_ROWS);
    for (uint32_t at = 0; at < N_ROWS; at += depth) {
        uint32_t n = N_ROWS - at < depth ? N_ROWS - at : depth;
        for (uint32_t t = 0; t < n; t++)
            states_after[t] = 1 + at + t;
        verify(&r, from, states_after, at, n, n, logits);
        assert_memory_equal(logits, expected + at * N_VOCAB,
                            (size_t)n * N_VOCAB * sizeof(float));
        for (uint32_t t = 0; t < n; t++)
            assert_state(&r, states_after[t], after + (at + t) * state_bytes);
        from = states_after[n - 1];
    }
    free(logits);
    run_close(&r);
}

static void rows_have_the_bits_of_steps_of_their_own(void **state) {
    (void)state;
    const uint32_t depths[] = {1, 2, 3, 5, 9, N_ROWS};
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++)
        rows_in_threads(1, depths[i]);
    rows_in_threads(2, 9);
}

/* Of six rows the first `right` are; it goes on from the last of those. */
static void a_sequence_goes_on_from_any_row(void **state) {
    (void)state;
    enum { N = 6 };
    run r;
    uint32_t from = 0, at = 0;
    open_at_prompt(&r, 1);
    float *logits = new_logits(&r, N);
    for (uint32_t right = 1; at + N <= N_ROWS; right = right % N + 1) {
        uint32_t states_after[N];
        for (uint32_t t = 0; t < N; t++)
            states_after[t] = (from + 1 + t) % (N + 1);
        verify(&r, from, states_after, at, N, right, logits);
        assert_memory_equal(logits, expected + at * N_VOCAB,
                            (size_t)right * N_VOCAB * sizeof(float));
        from = states_after[right - 1];
        assert_state(&r, from, after + (at + right - 1) * state_bytes);
        at += right;
    }
    free(logits);
    run_close(&r);
}

/* CUDA keeps a state a row, and remembers none. */
static void skip_on_a_card(void) {
    if (getenv("SILICEO_TEST_BACKEND") != NULL) skip();
}

/* Rows at, at + 1, ... of sequence 0 from `from`, remembered; the last one's state goes to `to`. */
static void verify_remembered(run *r, uint32_t from, const uint32_t *to, uint32_t at,
                              uint32_t n, float *logits) {
    model_segment s = run_segment(r, 0, N_PROMPT + at, tokens + N_PROMPT + at, n);
    s.state = from;
    s.states_after = to;
    s.remembered = true;
    run_step(r, &s, 1, logits);
}

static void replay_in_threads(uint32_t n_threads, uint32_t depth) {
    run r;
    open_at_prompt(&r, n_threads);
    unsigned char *before = malloc(state_bytes);
    float *logits = new_logits(&r, N_ROWS);
    assert_non_null(before);
    uint32_t from = 0, to = 1;
    for (uint32_t at = 0, right = 1; at + depth <= N_ROWS;
         at += right, right = right % depth + 1) {
        model_state_save(r.m, from, before);
        verify_remembered(&r, from, &to, at, depth, logits);
        assert_memory_equal(logits, expected + at * N_VOCAB,
                            (size_t)depth * N_VOCAB * sizeof(float));
        assert_state(&r, from, before);
        assert_state(&r, to, after + (at + depth - 1) * state_bytes);
        model_replay(r.m, 0, right);
        assert_state(&r, from, after + (at + right - 1) * state_bytes);
        if (right < depth) continue;
        from = to;
        to = 1 - to;
    }
    free(logits);
    free(before);
    run_close(&r);
}

static void remembered_rows_can_be_replayed_to_any(void **state) {
    (void)state;
    skip_on_a_card();
    const uint32_t depths[] = {1, 2, 3, 6, 17, 33, N_ROWS};
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++)
        replay_in_threads(1, depths[i]);
    replay_in_threads(2, 9);
}

/* Two remembered runs, a prompt and a run with a state a row. */
static void remembered_runs_do_not_mix(void **state) {
    (void)state;
    skip_on_a_card();
    enum { N = 35 };
    run r;
    const uint32_t mine = 10, theirs = 11, rows[2] = {12, 13};
    open_at_prompt(&r, 1);
    float *logits = new_logits(&r, 70 + 2 * N + 2);
    for (uint32_t s = 1; s <= 3; s++)
        model_state_clear(r.m, s);
    model_segment batch[] = {run_segment(&r, 3, 0, tokens + 9, N),
                             run_segment(&r, 1, 0, tokens, 70),
                             run_segment(&r, 2, 0, tokens + 5, 2),
                             run_segment(&r, 0, N_PROMPT, tokens + N_PROMPT, N)};
    batch[0].states_after = &theirs;
    batch[0].remembered = true;
    batch[2].states_after = rows;
    batch[3].states_after = &mine;
    batch[3].remembered = true;
    run_step(&r, batch, 4, logits);
    assert_memory_equal(logits + (N + 72) * N_VOCAB, expected, N * N_VOCAB * sizeof(float));
    assert_state(&r, mine, after + (N - 1) * state_bytes);
    model_replay(r.m, 0, 3);
    model_replay(r.m, 3, 20);
    assert_state(&r, 0, after + 19 * state_bytes);
    free(logits);
    run_close(&r);
}

static void what_cannot_be_remembered_is_refused(void **state) {
    (void)state;
    skip_on_a_card();
    run r;
    open_at_prompt(&r, 1);
    float *logits = new_logits(&r, 2 * N_ROWS + 1);
    const uint32_t own = 0, a = 5, b = 6;
    error err = {0};
    model_segment s = run_segment(&r, 0, N_PROMPT, tokens, 2);
    s.remembered = true;
    assert_int_equal(model_step(r.m, &s, 1, logits, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "unverified"));
    s.states_after = &own;
    assert_int_equal(model_step(r.m, &s, 1, logits, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "already"));
    model_segment pair[] = {run_segment(&r, 0, N_PROMPT, tokens, N_ROWS),
                            run_segment(&r, 1, 0, tokens, N_ROWS + 1)};
    pair[0].states_after = &a;
    pair[1].states_after = &b;
    pair[0].remembered = pair[1].remembered = true;
    assert_int_equal(model_step(r.m, pair, 2, logits, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "of 40"));
    free(logits);
    run_close(&r);
}

static void the_state_before_stays_unless_it_is_named(void **state) {
    (void)state;
    run r;
    const uint32_t others[] = {3, 4, 5}, itself[] = {3, 0, 5};
    open_at_prompt(&r, 1);
    unsigned char *before = malloc(state_bytes);
    float *logits = new_logits(&r, 3);
    assert_non_null(before);
    model_state_save(r.m, 0, before);
    verify(&r, 0, others, 0, 3, 3, logits);
    assert_state(&r, 0, before);
    verify(&r, 0, itself, 0, 3, 3, logits);
    assert_state(&r, 0, after + state_bytes);
    assert_state(&r, 5, after + 2 * state_bytes);
    assert_memory_equal(logits, expected, 3 * N_VOCAB * sizeof(float));
    free(logits);
    free(before);
    run_close(&r);
}

/* Others in the step: a prompt, a decoding row, another run of rows. */
static void company_changes_no_bit_of_a_verified_row(void **state) {
    (void)state;
    enum { N = 5 };
    run r;
    const uint32_t mine[N] = {10, 11, 12, 13, 14}, theirs[2] = {20, 21};
    open_at_prompt(&r, 1);
    float *logits = new_logits(&r, 70 + 1 + 2 + N);
    for (uint32_t s = 1; s <= 3; s++)
        model_state_clear(r.m, s);
    model_segment batch[] = {run_segment(&r, 1, 0, tokens, 70),
                             run_segment(&r, 2, 0, tokens + 5, 1),
                             run_segment(&r, 0, N_PROMPT, tokens + N_PROMPT, N),
                             run_segment(&r, 3, 0, tokens + 9, 2)};
    batch[2].states_after = mine;
    batch[3].states_after = theirs;
    run_step(&r, batch, 4, logits);
    assert_memory_equal(logits + 71 * N_VOCAB, expected, N * N_VOCAB * sizeof(float));
    assert_state(&r, mine[N - 1], after + (N - 1) * state_bytes);
    free(logits);
    run_close(&r);
}

static void a_state_that_two_would_write_is_refused(void **state) {
    (void)state;
    run r;
    open_at_prompt(&r, 1);
    float *logits = new_logits(&r, 8);
    const uint32_t twice[] = {5, 5}, own_twice[] = {0, 0}, missing[] = {5, N_STATES},
                   good[] = {5, 6};
    const uint32_t *lists[] = {twice, own_twice, missing};
    for (size_t i = 0; i < 3; i++) {
        error err = {0};
        model_segment s = run_segment(&r, 0, N_PROMPT, tokens, 2);
        s.states_after = lists[i];
        assert_int_equal(model_step(r.m, &s, 1, logits, &err), STATUS_BAD_INPUT);
        assert_non_null(strstr(err.text, i == 2 ? "does not exist" : "already"));
    }
    model_segment pair[] = {run_segment(&r, 0, N_PROMPT, tokens, 2),
                            run_segment(&r, 6, 0, tokens, 1)};
    pair[0].states_after = good;
    error err = {0};
    assert_int_equal(model_step(r.m, pair, 2, logits, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "state 6"));
    free(logits);
    run_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_bits_of_steps_of_their_own),
        cmocka_unit_test(a_sequence_goes_on_from_any_row),
        cmocka_unit_test(remembered_rows_can_be_replayed_to_any),
        cmocka_unit_test(remembered_runs_do_not_mix),
        cmocka_unit_test(what_cannot_be_remembered_is_refused),
        cmocka_unit_test(the_state_before_stays_unless_it_is_named),
        cmocka_unit_test(company_changes_no_bit_of_a_verified_row),
        cmocka_unit_test(a_state_that_two_would_write_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
