/* test_parts.c - layers of a model on two devices give what they give on one.
 *
 * With both parts on the CPU the bits are the same, since a part hands its rows over whole;
 * tests/golden/test_cuda_draft.c has the second part on the CUDA backend.
 */
#include "tests/golden/model_run.h"

#define DRAFT "deploy/models/draft.gguf" /* three layers of the delta net, one of attention */
enum { PROMPT = 70, STEPS = 4, N_IDS = PROMPT + STEPS };

static model_params params_of(uint32_t n_cpu_layers) {
    model_params p = run_params(ACTIVATIONS_INT8);
    p.backend = BACKEND_CPU;
    p.n_cpu_layers = n_cpu_layers;
    p.n_states = 2;
    p.max_rows = p.max_outputs = PROMPT;
    return p;
}

/* A prompt and steps behind it; the last two run again from the state and page before them. */
static float *logits_of(uint32_t n_cpu_layers, size_t *n_vocab) {
    const model_params p = params_of(n_cpu_layers);
    int32_t ids[N_IDS];
    for (int32_t i = 0; i < N_IDS; i++)
        ids[i] = 5 + i;
    run r;
    run_open(&r, DRAFT, &p);
    *n_vocab = r.config->n_vocab;
    float *logits = calloc(N_IDS * *n_vocab, sizeof *logits);
    unsigned char *state = malloc(model_config_state_bytes(r.config));
    unsigned char *page = malloc(model_page_bytes(r.m));
    assert_non_null(logits);
    assert_non_null(state);
    assert_non_null(page);
    run_tokens(&r, 0, 0, ids, PROMPT, PROMPT, logits);
    for (uint32_t at = PROMPT; at < N_IDS; at++) {
        if (at == N_IDS - 2) {
            model_state_save(r.m, 0, state);
            model_page_save(r.m, r.pages[1], page);
        }
        run_tokens(&r, 0, at, ids + at, 1, 1, logits + at * *n_vocab);
    }
    model_state_clear(r.m, 0);
    model_state_load(r.m, 1, state);
    model_state_copy(r.m, 0, 1);
    model_page_load(r.m, r.pages[2], page);
    model_page_copy(r.m, r.pages[1], r.pages[2]);
    for (uint32_t at = N_IDS - 2; at < N_IDS; at++) {
        float *again = calloc(*n_vocab, sizeof *again);
        assert_non_null(again);
        run_tokens(&r, 0, at, ids + at, 1, 1, again);
        assert_memory_equal(again, logits + at * *n_vocab, *n_vocab * sizeof *again);
        free(again);
    }
    free(page);
    free(state);
    run_close(&r);
    return logits;
}

static void parts_give_the_bits_of_the_whole(void **state) {
    (void)state;
    size_t n_vocab = 0;
    float *whole = logits_of(0, &n_vocab);
    for (uint32_t n_cpu = 1; n_cpu < 4; n_cpu++) {
        float *parts = logits_of(n_cpu, &n_vocab);
        assert_memory_equal(parts, whole, N_IDS * n_vocab * sizeof *parts);
        free(parts);
    }
    free(whole);
}

static void layers_that_cannot_compute_apart_are_refused(void **state) {
    (void)state;
    static const char *const paths[] = {DRAFT, "deploy/models/demo.gguf"};
    for (int i = 0; i < 2; i++) {
        gguf_file *file = NULL;
        model *m = NULL;
        error err = {0};
        const model_params p =
            params_of(i == 0 ? 4 : 1); /* all of them, and those of experts */
        assert_int_equal(gguf_open(&file, paths[i], &err), STATUS_OK);
        assert_int_equal(model_open(&m, file, &p, &err), STATUS_BAD_INPUT);
        assert_null(m);
        assert_non_null(strstr(err.text, "cannot compute apart"));
        gguf_close(file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_give_the_bits_of_the_whole),
        cmocka_unit_test(layers_that_cannot_compute_apart_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
