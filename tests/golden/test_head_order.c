/* test_head_order.c - a file as Ollama's converter writes it: value heads grouped by key
 * head instead of tiled, said by a key, and `ssm_dt` without its suffix.
 *
 * A generated model is rewritten in place: heads are put in the other order in every
 * tensor that has them, and its metadata says so.  The logits must not change.
 */
#include "model_run.h"

enum { HK = 2, R = 3, HV = HK * R, DIM = 128, HIDDEN = 64, TAPS = 4, N_TOKENS = 80 };

static const char params[] =
    "{\"layers\":2,\"interval\":2,\"hidden\":64,\"ff_exp\":32,\"ff_shexp\":32,\"k_heads\":2,"
    "\"v_heads\":6,\"seed\":5}";

static char folder[256], tiled_path[300], grouped_path[300];

/* Replace n_old bytes at `at` by n_new others; what follows moves. */
static void splice(unsigned char *bytes, size_t size, size_t at, size_t n_old, const void *with,
                   size_t n_new) {
    memmove(bytes + at + n_new, bytes + at + n_old,
            size - at - (n_old > n_new ? n_old : n_new));
    memcpy(bytes + at, with, n_new);
}

static size_t offset_of(const unsigned char *bytes, size_t size, const char *text) {
    const unsigned char *at = memmem(bytes, size, text, strlen(text));
    assert_non_null(at);
    return (size_t)(at - bytes);
}

static void set_length(unsigned char *bytes, size_t at, uint64_t length) {
    memcpy(bytes + at - sizeof length, &length, sizeof length);
}

/* The key v_head_reordered = false takes the place of general.type, and ssm_dt loses
 * its suffix; the name of the model gives and takes the bytes, so that no offset moves. */
static void rewrite_metadata(unsigned char *bytes, size_t size) {
    static const char key[] = "qwen35moe.ssm.v_head_reordered";
    unsigned char entry[64] = {sizeof key - 1};
    size_t n = 8;
    memcpy(entry + n, key, sizeof key - 1);
    n += sizeof key - 1;
    const uint32_t kind = GGUF_BOOL;
    memcpy(entry + n, &kind, sizeof kind);
    n += sizeof kind;
    entry[n++] = 0; /* false */

    static const char type[] = "general.type", name[] = "random qwen35moe 5";
    size_t n_type = 8 + strlen(type) + 4 + 8 + strlen("model");
    size_t grown = n - n_type - strlen(".bias"); /* what the name must shrink by */
    size_t at = offset_of(bytes, size, "ssm_dt.bias");
    splice(bytes, size, at, strlen("ssm_dt.bias"), "ssm_dt", strlen("ssm_dt"));
    set_length(bytes, at - strlen("blk.0."), strlen("blk.0.ssm_dt"));
    at = offset_of(bytes, size, name);
    splice(bytes, size, at, strlen(name), name, strlen(name) - grown);
    set_length(bytes, at, strlen(name) - grown);
    splice(bytes, size, offset_of(bytes, size, type) - 8, n_type, entry, n);
}

/* Blocks of n floats, one a value head, from the tiled to the grouped order. */
static void regroup(float *heads, size_t n) {
    float *old = malloc(HV * n * sizeof *old);
    assert_non_null(old);
    memcpy(old, heads, HV * n * sizeof *old);
    for (size_t h = 0; h < HV; h++) {
        size_t tiled = h % R * HK + h / R;
        memcpy(heads + h * n, old + tiled * n, n * sizeof *old);
    }
    free(old);
}

static void regroup_tensor(const gguf_tensor *t, unsigned char *bytes) {
    float *values = (float *)(void *)(bytes + t->file_offset);
    char name[64];
    (void)snprintf(name, sizeof name, "%.*s", (int)t->name.length, t->name.bytes);
    const size_t v_from = 2 * (size_t)HK * DIM; /* rows of q and k come first */
    if (strcmp(name, "blk.0.attn_qkv.weight") == 0)
        regroup(values + v_from * HIDDEN, DIM * HIDDEN);
    if (strcmp(name, "blk.0.ssm_conv1d.weight") == 0)
        regroup(values + v_from * TAPS, DIM * TAPS);
    if (strcmp(name, "blk.0.attn_gate.weight") == 0) regroup(values, (size_t)DIM * HIDDEN);
    if (strcmp(name, "blk.0.ssm_alpha.weight") == 0) regroup(values, HIDDEN);
    if (strcmp(name, "blk.0.ssm_beta.weight") == 0) regroup(values, HIDDEN);
    if (strcmp(name, "blk.0.ssm_a") == 0) regroup(values, 1);
    if (strcmp(name, "blk.0.ssm_dt.bias") == 0) regroup(values, 1);
    if (strcmp(name, "blk.0.ssm_out.weight") == 0) {
        for (size_t row = 0; row < HIDDEN; row++)
            regroup(values + row * HV * DIM, DIM);
    }
}

static void write_grouped(void) {
    size_t size = 0;
    unsigned char *bytes = (unsigned char *)read_file(tiled_path, &size);
    gguf_file *file = NULL;
    error err = {0};
    if (gguf_open(&file, tiled_path, &err) != STATUS_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < gguf_n_tensors(file); i++) {
        regroup_tensor(gguf_tensor_at(file, i), bytes);
    }
    size_t n_header = (size_t)gguf_data_start(file, 0);
    gguf_close(file);
    rewrite_metadata(bytes, n_header);
    FILE *f = fopen(grouped_path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    free(bytes);
}

static float *logits_of(const char *path, bool grouped, bool *flag_seen) {
    int32_t tokens[N_TOKENS];
    for (int32_t i = 0; i < N_TOKENS; i++)
        tokens[i] = i * 37 % 512;
    run r;
    const model_params p = run_params(ACTIVATIONS_F32);
    run_open(&r, path, &p);
    *flag_seen = r.config->v_heads_grouped == grouped;
    float *logits = new_logits(&r, N_TOKENS);
    run_tokens(&r, 0, 0, tokens, N_TOKENS, 70, logits);
    run_close(&r);
    return logits;
}

static void grouped_value_heads_compute_the_same(void **state) {
    (void)state;
    bool flags[2];
    assert_true(generate_model(params, tiled_path));
    write_grouped();
    float *tiled = logits_of(tiled_path, false, &flags[0]);
    float *grouped = logits_of(grouped_path, true, &flags[1]);
    assert_true(flags[0] && flags[1]);
    double d = max_difference(tiled, grouped, (size_t)N_TOKENS * 512);
    if (!(d <= 1e-4)) fail_msg("logits differ by %g", d);
    free(grouped);
    free(tiled);
}

static int set_up(void **state) {
    (void)state;
    if (!make_temporary(folder, sizeof folder)) return -1;
    (void)snprintf(tiled_path, sizeof tiled_path, "%s/tiled.gguf", folder);
    (void)snprintf(grouped_path, sizeof grouped_path, "%s/grouped.gguf", folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    (void)unlink(tiled_path);
    (void)unlink(grouped_path);
    (void)rmdir(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_value_heads_compute_the_same),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
