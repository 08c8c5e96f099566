/* test_chunks.c - what a step may depend on: how tokens are cut into chunks, who else
 * is in the batch, where experts lie and how many threads compute must not show.
 *
 * One generated model with every kind of layer and mixed types; 600 tokens.
 */
#include "model_run.h"

enum { N_TOKENS = 600, N_OTHERS = 8, N_STEPS = 24, N_PAGES = 16 };

static char folder[256];
static char path[512];
static int32_t tokens[N_TOKENS + N_OTHERS];

static const char params[] =
    "{\"arch\":\"qwen35moe\",\"layers\":4,\"interval\":2,\"hidden\":256,\"heads\":2,"
    "\"kv_heads\":1,\"experts\":16,\"topk\":2,\"ff_exp\":256,\"ff_shexp\":256,\"k_heads\":1,"
    "\"v_heads\":2,\"vocab\":384,\"type\":\"Q4_K_M\",\"seed\":77}";

static int set_up(void **state) {
    (void)state;
    if (!make_temporary(folder, sizeof folder)) return -1;
    (void)snprintf(path, sizeof path, "%s/model.gguf", folder);
    if (!generate_model(params, path)) return -1;
    uint32_t word = 1;
    for (size_t i = 0; i < N_TOKENS + N_OTHERS; i++) {
        word = word * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((word >> 8) % 384);
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    (void)unlink(path);
    (void)rmdir(folder);
    return 0;
}

/* Logits of all tokens of a fresh model, in chunks. */
static float *logits_in_chunks(const model_params *p, size_t n, size_t chunk) {
    run r;
    run_open(&r, path, p);
    float *logits = new_logits(&r, n);
    run_tokens(&r, 0, 0, tokens, n, chunk, logits);
    run_close(&r);
    return logits;
}

static const size_t chunk_sizes[] = {1, 7, 64};
enum { N_SIZES = sizeof chunk_sizes / sizeof chunk_sizes[0], N_VOCAB = 384 };

static void float_logits_do_not_depend_on_the_chunks(void **state) {
    (void)state;
    const model_params p = run_params(ACTIVATIONS_F32);
    float *whole = logits_in_chunks(&p, N_TOKENS, 512);
    for (size_t i = 0; i < N_SIZES; i++) {
        float *cut = logits_in_chunks(&p, N_TOKENS, chunk_sizes[i]);
        double d = max_difference(cut, whole, (size_t)N_TOKENS * N_VOCAB);
        if (!(d <= 1e-4)) fail_msg("chunks of %zu: logits differ by %g", chunk_sizes[i], d);
        free(cut);
    }
    free(whole);
}

/* Texts that the trained model knows, so that its choices are as clear as in use: in
 * a random model half of the tokens stand at a near-tie that any rounding turns. */
static int32_t *demo_texts(size_t n) {
    int32_t *ids = calloc(n, sizeof *ids);
    assert_non_null(ids);
    cJSON *root = read_json(GOLDEN_FOLDER "demo.json");
    static const char *const parts[] = {"prompt_ids", "greedy_ids"};
    for (size_t at = 0, i = 0; at < n; i++) {
        const cJSON *entry = cJSON_GetArrayItem(root, (int)(i / 2) % cJSON_GetArraySize(root));
        size_t length = 0;
        int32_t *part = read_ints(entry, parts[i % 2], &length);
        for (size_t j = 0; j < length && at < n; j++)
            ids[at++] = part[j];
        free(part);
    }
    cJSON_Delete(root);
    return ids;
}

static void integer_logits_hardly_depend_on_the_chunks(void **state) {
    (void)state;
    const model_params p = run_params(ACTIVATIONS_INT8);
    int32_t *ids = demo_texts(N_TOKENS);
    float *whole = NULL;
    const size_t sizes[] = {512, 1, 7, 64};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        run r;
        run_open(&r, "deploy/models/demo.gguf", &p);
        float *logits = new_logits(&r, N_TOKENS);
        run_tokens(&r, 0, 0, ids, N_TOKENS, sizes[i], logits);
        if (whole == NULL) whole = logits;
        double kl = mean_divergence(whole, logits, N_TOKENS, r.config->n_vocab);
        print_message("chunks of %zu: mean divergence %.3g\n", sizes[i], kl);
        if (!(kl <= 1e-3)) fail_msg("chunks of %zu: mean divergence %g", sizes[i], kl);
        if (logits != whole) free(logits);
        run_close(&r);
    }
    free(whole);
    free(ids);
}

/* State and pages of sequence 0 after its tokens; the caller frees. */
static unsigned char *bytes_after(run *r, size_t *n) {
    size_t state_bytes = (size_t)model_config_state_bytes(r->config);
    size_t page_bytes = model_page_bytes(r->m);
    *n = state_bytes + r->pages_a_sequence * page_bytes;
    unsigned char *bytes = calloc(*n, 1);
    assert_non_null(bytes);
    model_state_save(r->m, 0, bytes);
    for (uint32_t i = 0; i < r->pages_a_sequence; i++) {
        model_page_save(r->m, r->pages[i], bytes + state_bytes + i * page_bytes);
    }
    return bytes;
}

static void run_and_keep(const model_params *p, size_t chunk, float **logits,
                         unsigned char **bytes, size_t *n_bytes) {
    run r;
    run_open(&r, path, p);
    *logits = new_logits(&r, N_TOKENS);
    run_tokens(&r, 0, 0, tokens, N_TOKENS, chunk, *logits);
    *bytes = bytes_after(&r, n_bytes);
    run_close(&r);
}

/* Pieces that start at multiples of MODEL_CHUNK_TOKENS, and 2 threads: the same bits. */
static void aligned_pieces_and_threads_keep_every_bit(void **state) {
    (void)state;
    model_params p = run_params(ACTIVATIONS_INT8);
    float *logits[2];
    unsigned char *bytes[2];
    size_t n_bytes[2];
    run_and_keep(&p, 512, &logits[0], &bytes[0], &n_bytes[0]);
    p.n_threads = 2;
    run_and_keep(&p, MODEL_CHUNK_TOKENS, &logits[1], &bytes[1], &n_bytes[1]);
    assert_memory_equal(logits[0], logits[1], (size_t)N_TOKENS * N_VOCAB * sizeof(float));
    assert_int_equal(n_bytes[0], n_bytes[1]);
    assert_memory_equal(bytes[0], bytes[1], n_bytes[0]);
    for (size_t i = 0; i < 2; i++) {
        free(bytes[i]);
        free(logits[i]);
    }
}

static void slots_change_no_bit(void **state) {
    (void)state;
    enum { N = 200, N_PROMPT = 128 };
    const uint32_t slots[] = {0, 8, 16, 64}; /* none, one token's working set, 1/4, all */
    float *expected = NULL;
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        model_params p = run_params(ACTIVATIONS_INT8);
        p.n_slots = slots[i];
        p.inserts_per_layer = 2;
        run r;
        run_open(&r, path, &p);
        float *logits = new_logits(&r, N);
        run_tokens(&r, 0, 0, tokens, N_PROMPT, N_PROMPT, logits);
        run_tokens(&r, 0, N_PROMPT, tokens + N_PROMPT, N - N_PROMPT, 1,
                   logits + (size_t)N_PROMPT * N_VOCAB);
        model_stats stats;
        model_read_stats(r.m, &stats);
        assert_int_equal(stats.tokens, N);
        assert_true(stats.expert_lookups > 0);
        assert_true((stats.expert_hits > 0) == (slots[i] > 0));
        assert_true((stats.expert_bytes_moved > 0) == (slots[i] > 0));
        /* A prompt on a GPU may fill a layer's share of the slots in one step. */
        assert_true(p.backend == BACKEND_CUDA ||
                    stats.expert_inserts <= 2 * r.config->n_layers * stats.steps);
        if (expected == NULL)
            expected = logits;
        else
            assert_memory_equal(logits, expected, (size_t)N * N_VOCAB * sizeof(float));
        if (logits != expected) free(logits);
        run_close(&r);
    }
    free(expected);
}

/* What a sequence's two pieces and another's steps between their slices gave. */
typedef struct sliced {
    float *logits, *hidden, *other;
    unsigned char *bytes;
    size_t n_bytes;
} sliced;

enum { N_FIRST = 192, N_SECOND = 44, N_SLICED = N_FIRST + N_SECOND, N_BETWEEN = 6 };

/* n_each: layers of a slice; 0: the pieces are not cut. */
static sliced run_sliced(const model_params *p, uint32_t n_each) {
    run r;
    run_open(&r, path, p);
    size_t n_embd = r.config->n_embd;
    sliced out = {.logits = new_logits(&r, N_SLICED),
                  .hidden = calloc(N_SLICED * n_embd, sizeof(float)),
                  .other = new_logits(&r, 2 * N_BETWEEN)};
    assert_non_null(out.hidden);
    for (uint32_t at = 0, n = N_FIRST; at < N_SLICED; at += n, n = N_SECOND) {
        uint32_t from = at > 0 ? N_BETWEEN : 0, n_taken = 0;
        model_segment s = run_segment(&r, 0, at, tokens + at, n);
        s.n_hidden = n;
        s.hidden = out.hidden + at * n_embd;
        float *logits = out.logits + (size_t)at * N_VOCAB;
        model_segment other = run_segment(&r, 1, from, tokens + from, 1);
        float *next = out.other + (size_t)from * N_VOCAB;
        if (n_each == 0)
            run_step(&r, &s, 1, logits);
        else
            run_slices(&r, &s, n_each, n_each % 2 == 0, &other, next, logits);
        n_taken = other.position - from;
        run_tokens(&r, 1, other.position, other.tokens, N_BETWEEN - n_taken, 1,
                   next + (size_t)n_taken * N_VOCAB);
    }
    model_stats stats;
    model_read_stats(r.m, &stats);
    assert_int_equal(stats.tokens, N_SLICED + 2 * N_BETWEEN);
    assert_int_equal(stats.steps, 2 + 2 * N_BETWEEN);
    out.bytes = bytes_after(&r, &out.n_bytes);
    run_close(&r);
    return out;
}

static void release_sliced(sliced *s) {
    free(s->bytes);
    free(s->other);
    free(s->hidden);
    free(s->logits);
}

/* A piece that runs some layers at a time, while others decode in between and what it has may be kept
 * elsewhere: logits, rows, state and pages are those of a whole one, and the others' logits, too,
 * wherever experts lie. */
static void slices_and_steps_between_them_change_no_bit(void **state) {
    (void)state;
    const uint32_t slots[] = {0, 8, 64};
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        model_params p = run_params(ACTIVATIONS_INT8);
        p.n_states = 2;
        p.n_slots = slots[i];
        p.inserts_per_layer = 2;
        p.poison = p.backend == BACKEND_CPU;
        sliced whole = run_sliced(&p, 0);
        for (uint32_t n_each = 1; n_each <= 4; n_each++) {
            sliced cut = run_sliced(&p, n_each);
            assert_memory_equal(cut.logits, whole.logits, N_SLICED * N_VOCAB * sizeof(float));
            assert_memory_equal(cut.hidden, whole.hidden, N_SLICED * 256 * sizeof(float));
            assert_memory_equal(cut.other, whole.other,
                                2 * N_BETWEEN * N_VOCAB * sizeof(float));
            assert_int_equal(cut.n_bytes, whole.n_bytes);
            assert_memory_equal(cut.bytes, whole.bytes, whole.n_bytes);
            release_sliced(&cut);
        }
        release_sliced(&whole);
    }
}

static void wrong_slices_are_refused_with_the_reason(void **state) {
    (void)state;
    model_params p = run_params(ACTIVATIONS_INT8);
    p.n_states = 4;
    run r;
    run_open(&r, path, &p);
    float *logits = new_logits(&r, 8), *rows = calloc(8 * 256, sizeof *rows);
    assert_non_null(rows);
    const uint32_t after[] = {1, 2};
    model_segment good = run_segment(&r, 0, 0, tokens, 2), kept = good, one = good;
    kept.states_after = after;
    one.n_tokens = one.n_outputs = 1;
    const struct {
        const model_segment *segment;
        uint32_t first, end;
        const char *word;
    } cases[] = {{&good, 2, 2, "layers [2, 2) of 4"},
                 {&good, 0, 5, "layers [0, 5) of 4"},
                 {&one, 0, 2, "1 tokens are not cut"},
                 {&kept, 0, 2, "verified row by row"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error err = {0};
        const model_slice slice = {cases[i].first, cases[i].end, rows};
        assert_int_equal(model_step_slice(r.m, cases[i].segment, &slice, logits, &err),
                         STATUS_BAD_INPUT);
        if (strstr(err.text, cases[i].word) == NULL) fail_msg("case %zu: '%s'", i, err.text);
    }
    error err = {0};
    const model_slice last = {2, 4, rows};
    assert_int_equal(model_step_slice(r.m, &good, &last, NULL, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "no place for logits"));
    free(rows);
    free(logits);
    run_close(&r);
}

static model_params params_of_many(void) {
    model_params p = run_params(ACTIVATIONS_INT8);
    p.n_states = 1 + N_OTHERS;
    p.n_pages = p.n_states * 3;
    return p;
}

/* Sequence 0 decodes while others decode or take whole prompts in the same steps. */
static void a_sequence_among_others_keeps_every_bit(void **state) {
    (void)state;
    enum { N_PROMPT = 100 };
    const model_params p = params_of_many();
    run alone, among;
    run_open(&alone, path, &p);
    run_open(&among, path, &p);
    float *expected = new_logits(&alone, N_PROMPT + N_STEPS);
    float *logits = new_logits(&among, 512);
    run_tokens(&alone, 0, 0, tokens, N_PROMPT, N_PROMPT, expected);
    run_tokens(&alone, 0, N_PROMPT, tokens + N_PROMPT, N_STEPS, 1,
               expected + (size_t)N_PROMPT * N_VOCAB);
    for (uint32_t s = 1; s <= N_OTHERS; s++) {
        if (s != 3) run_tokens(&among, s, 0, tokens + s, 5 * s, 512, logits);
    }
    model_segment batch[1 + N_OTHERS];
    for (uint32_t step = 0; step <= N_STEPS; step++) {
        bool first = step == 0;
        for (uint32_t s = 1; s <= N_OTHERS; s++) { /* the third is in its prompt */
            batch[s - 1] = s == 3 ? run_segment(&among, 3, step * 7, tokens + step, 7)
                                  : run_segment(&among, s, 5 * s + step, tokens + s + step, 1);
            batch[s - 1].n_outputs = s == 3 ? 0 : 1;
        }
        batch[N_OTHERS] = first ? run_segment(&among, 0, 0, tokens, N_PROMPT)
                                : run_segment(&among, 0, N_PROMPT + step - 1,
                                              tokens + N_PROMPT + step - 1, 1);
        run_step(&among, batch, 1 + N_OTHERS, logits);
        size_t n = first ? N_PROMPT : 1, from = first ? 0 : N_PROMPT + step - 1;
        assert_memory_equal(logits + (size_t)(N_OTHERS - 1) * N_VOCAB,
                            expected + from * N_VOCAB, n * N_VOCAB * sizeof(float));
    }
    free(logits);
    free(expected);
    run_close(&among);
    run_close(&alone);
}

static void a_saved_state_continues_as_if_never_left(void **state) {
    (void)state;
    const model_params p = params_of_many();
    run r;
    run_open(&r, path, &p);
    float *first = new_logits(&r, 64), *again = new_logits(&r, 64);
    size_t state_bytes = (size_t)model_config_state_bytes(r.config);
    unsigned char *saved = malloc(state_bytes), *poison = malloc(state_bytes);
    assert_non_null(saved);
    assert_non_null(poison);
    run_tokens(&r, 0, 0, tokens, 50, 50, first);
    model_state_save(r.m, 0, saved);
    run_tokens(&r, 0, 50, tokens + 50, 20, 20, first);
    model_state_load(r.m, 0, saved);
    run_tokens(&r, 0, 50, tokens + 50, 20, 20, again);
    assert_memory_equal(first, again, 20 * N_VOCAB * sizeof(float));

    model_state_load(r.m, 0, saved);
    model_state_copy(r.m, 5, 0); /* state 5, pages of sequence 0 */
    model_segment fork = run_segment(&r, 0, 50, tokens + 50, 20);
    fork.state = 5;
    run_step(&r, &fork, 1, again);
    assert_memory_equal(first, again, 20 * N_VOCAB * sizeof(float));

    memset(poison, 0xFF, state_bytes); /* every value a NaN */
    model_state_load(r.m, 0, poison);
    model_state_clear(r.m, 0);
    run_tokens(&r, 0, 0, tokens, 50, 50, first);
    model_state_save(r.m, 0, poison);
    assert_memory_equal(saved, poison, state_bytes);
    free(poison);
    free(saved);
    free(again);
    free(first);
    run_close(&r);
}

static void a_page_moved_to_another_place_serves_as_well(void **state) {
    (void)state;
    const model_params p = params_of_many();
    run r;
    run_open(&r, path, &p);
    float *first = new_logits(&r, 64), *again = new_logits(&r, 64);
    unsigned char *page = malloc(model_page_bytes(r.m));
    assert_non_null(page);
    size_t state_bytes = (size_t)model_config_state_bytes(r.config);
    unsigned char *saved = malloc(state_bytes);
    assert_non_null(saved);
    run_tokens(&r, 0, 0, tokens, 64, 64, first);
    model_page_save(r.m, r.pages[0], page);
    model_state_save(r.m, 0, saved);
    run_tokens(&r, 0, 64, tokens + 64, 8, 8, first);
    model_page_load(r.m, r.pages[r.pages_a_sequence], page); /* first page of sequence 1 */
    model_state_load(r.m, 1, saved);
    run_tokens(&r, 1, 64, tokens + 64, 8, 8, again);
    assert_memory_equal(first, again, 8 * N_VOCAB * sizeof(float));
    uint32_t copied = r.pages[2 * r.pages_a_sequence]; /* of sequence 2 */
    model_page_copy(r.m, copied, r.pages[0]);
    model_state_load(r.m, 2, saved);
    run_tokens(&r, 2, 64, tokens + 64, 8, 8, again);
    assert_memory_equal(first, again, 8 * N_VOCAB * sizeof(float));
    free(saved);
    free(page);
    free(again);
    free(first);
    run_close(&r);
}

static void smaller_kv_types_stay_near(void **state) {
    (void)state;
    model_params p = run_params(ACTIVATIONS_F32);
    float *exact = logits_in_chunks(&p, 256, 256);
    const struct {
        kv_type type;
        double most;
    } cases[] = {{KV_F16, 1e-5}, {KV_Q8, 8e-3}, {KV_Q4, HUGE_VAL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        p.kv = cases[i].type;
        float *near = logits_in_chunks(&p, 256, 256);
        double kl = mean_divergence(exact, near, 256, N_VOCAB);
        print_message("KV type %d: mean divergence %.3g on a random model\n", p.kv, kl);
        if (!(kl <= cases[i].most && kl > 0)) fail_msg("KV type %d: divergence %g", p.kv, kl);
        free(near);
    }
    free(exact);
}

static void wrong_steps_are_refused_with_the_reason(void **state) {
    (void)state;
    const model_params p = params_of_many();
    run r;
    run_open(&r, path, &p);
    float *logits = new_logits(&r, 8);
    const int32_t strange[] = {384};
    const uint32_t far_pages[] = {99};
    const model_segment good = run_segment(&r, 0, 0, tokens, 1);
    model_segment cases[] = {good, good, good, good, good, good, good};
    cases[0].tokens = strange;
    cases[1].state = p.n_states;
    cases[2].pages = far_pages;
    cases[3].n_tokens = 0;
    cases[4].n_outputs = 2;
    cases[5].position = p.n_pages * MODEL_PAGE_TOKENS;
    cases[6].n_tokens = p.max_rows + 1; /* more tokens than a step takes; see n below */
    const char *words[] = {"384",       "state 9", "page 99",           "0 tokens",
                           "2 outputs", "pages",   "more than 512 rows"};
    int32_t *many = calloc(p.max_rows + 1, sizeof *many);
    assert_non_null(many);
    cases[6].tokens = many;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error err = {0};
        assert_int_equal(model_step(r.m, &cases[i], 1, logits, &err), STATUS_BAD_INPUT);
        if (strstr(err.text, words[i]) == NULL) fail_msg("case %zu: '%s'", i, err.text);
    }
    error err = {0};
    const model_segment twice[] = {good, good};
    assert_int_equal(model_step(r.m, twice, 2, logits, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "another segment"));
    assert_int_equal(model_step(r.m, &good, 1, NULL, &err), STATUS_BAD_INPUT);
    assert_int_equal(model_step(r.m, &good, 1, logits, &err), STATUS_OK);
    free(many);
    free(logits);
    run_close(&r);
}

static void too_few_slots_are_refused(void **state) {
    (void)state;
    gguf_file *file = NULL;
    model *m = NULL;
    error err = {0};
    model_params p = run_params(ACTIVATIONS_INT8);
    p.n_slots = 7; /* 4 layers x 2 experts are 8 */
    assert_int_equal(gguf_open(&file, path, &err), STATUS_OK);
    assert_int_equal(model_open(&m, file, &p, &err), STATUS_BAD_INPUT);
    assert_null(m);
    assert_non_null(strstr(err.text, "7"));
    gguf_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_logits_do_not_depend_on_the_chunks),
        cmocka_unit_test(integer_logits_hardly_depend_on_the_chunks),
        cmocka_unit_test(aligned_pieces_and_threads_keep_every_bit),
        cmocka_unit_test(slots_change_no_bit),
        cmocka_unit_test(slices_and_steps_between_them_change_no_bit),
        cmocka_unit_test(wrong_slices_are_refused_with_the_reason),
        cmocka_unit_test(a_sequence_among_others_keeps_every_bit),
        cmocka_unit_test(a_saved_state_continues_as_if_never_left),
        cmocka_unit_test(a_page_moved_to_another_place_serves_as_well),
        cmocka_unit_test(smaller_kv_types_stay_near),
        cmocka_unit_test(wrong_steps_are_refused_with_the_reason),
        cmocka_unit_test(too_few_slots_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
