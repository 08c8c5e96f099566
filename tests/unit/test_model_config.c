/* test_model_config.c - metadata of a model: what is read, what is refused and why,
 * and which tensors must be there. */
#include "worker/model/config.h"
#include "worker/model/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/files.h"

static char folder[256];
static char path[512];

/* A metadata key to write: one number, a text, or an array of numbers. */
typedef struct key {
    const char *name;
    gguf_kind kind;
    uint32_t n_items;
    double value;
    const char *text;
    int32_t items[8];
} key;

#define U32(name, value)                                                                       \
    {                                                                                          \
        name, GGUF_U32, 0, value, NULL, {                                                      \
            0                                                                                  \
        }                                                                                      \
    }
#define F32(name, value)                                                                       \
    {                                                                                          \
        name, GGUF_F32, 0, value, NULL, {                                                      \
            0                                                                                  \
        }                                                                                      \
    }
#define BOOL(name, value)                                                                      \
    {                                                                                          \
        name, GGUF_BOOL, 0, value, NULL, {                                                     \
            0                                                                                  \
        }                                                                                      \
    }
#define TEXT(name, text)                                                                       \
    {                                                                                          \
        name, GGUF_STRING, 0, 0, text, {                                                       \
            0                                                                                  \
        }                                                                                      \
    }

static const key good_keys[] = {
    TEXT("general.architecture", "qwen35moe"),
    TEXT("general.name", "unit test"),
    U32("qwen35moe.block_count", 4),
    U32("qwen35moe.context_length", 4096),
    U32("qwen35moe.embedding_length", 64),
    U32("qwen35moe.attention.head_count", 4),
    U32("qwen35moe.attention.head_count_kv", 2),
    U32("qwen35moe.attention.key_length", 256),
    U32("qwen35moe.attention.value_length", 256),
    F32("qwen35moe.attention.layer_norm_rms_epsilon", 1e-6),
    U32("qwen35moe.rope.dimension_count", 64),
    F32("qwen35moe.rope.freq_base", 1e7),
    {"qwen35moe.rope.dimension_sections", GGUF_ARRAY, 4, 0, NULL, {11, 11, 10, 0}},
    U32("qwen35moe.full_attention_interval", 2),
    U32("qwen35moe.ssm.conv_kernel", 4),
    U32("qwen35moe.ssm.state_size", 128),
    U32("qwen35moe.ssm.group_count", 2),
    U32("qwen35moe.ssm.time_step_rank", 4),
    U32("qwen35moe.ssm.inner_size", 512),
    U32("qwen35moe.expert_count", 8),
    U32("qwen35moe.expert_used_count", 2),
    U32("qwen35moe.expert_feed_forward_length", 32),
    U32("qwen35moe.expert_shared_feed_forward_length", 32),
};
enum { N_GOOD = sizeof good_keys / sizeof good_keys[0] };

static void put(FILE *f, const void *bytes, size_t n) {
    assert_int_equal(fwrite(bytes, 1, n, f), n);
}

static void put_u32(FILE *f, uint32_t value) {
    put(f, &value, sizeof value);
}

static void put_u64(FILE *f, uint64_t value) {
    put(f, &value, sizeof value);
}

static void put_text(FILE *f, const char *text) {
    put_u64(f, strlen(text));
    put(f, text, strlen(text));
}

static void put_key(FILE *f, const key *k) {
    float real = (float)k->value;
    unsigned char flag = k->value != 0;
    put_text(f, k->name);
    put_u32(f, (uint32_t)k->kind);
    if (k->kind == GGUF_STRING)
        put_text(f, k->text);
    else if (k->kind == GGUF_F32)
        put(f, &real, sizeof real);
    else if (k->kind == GGUF_BOOL)
        put(f, &flag, 1);
    else if (k->kind == GGUF_U32)
        put_u32(f, (uint32_t)k->value);
    else {
        put_u32(f, GGUF_I32);
        put_u64(f, k->n_items);
        put(f, k->items, k->n_items * sizeof k->items[0]);
    }
}

/* The good keys with one replaced or added (edit) or left out (without), and tensors
 * of one value a row. */
static void write_gguf(const key *edit, const char *without, const char *const *tensors,
                       size_t n_tensors) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    bool replaces = false;
    for (size_t i = 0; i < N_GOOD; i++) {
        if (edit != NULL && strcmp(edit->name, good_keys[i].name) == 0) replaces = true;
    }
    put(f, "GGUF", 4);
    put_u32(f, 3);
    put_u64(f, n_tensors);
    put_u64(f, (uint64_t)N_GOOD + (edit != NULL && !replaces) - (without != NULL));
    for (size_t i = 0; i < N_GOOD; i++) {
        const char *name = good_keys[i].name;
        if (without != NULL && strcmp(name, without) == 0) continue;
        put_key(f, edit != NULL && strcmp(name, edit->name) == 0 ? edit : &good_keys[i]);
    }
    if (edit != NULL && !replaces) put_key(f, edit);
    for (size_t i = 0; i < n_tensors; i++) {
        put_text(f, tensors[i]);
        put_u32(f, 2);
        put_u64(f, 1);
        put_u64(f, 8);
        put_u32(f, QUANT_F32);
        put_u64(f, i * 32);
    }
    while (ftell(f) % 32 != 0)
        put(f, "", 1);
    for (size_t i = 0; i < n_tensors * 32; i++)
        put(f, "", 1);
    assert_int_equal(fclose(f), 0);
}

static const char *const few_tensors[] = {"token_embd.weight", "blk.0.attn_norm.weight"};

static status read_back(model_config *c, error *err) {
    gguf_file *file = NULL;
    if (gguf_open(&file, path, err) != STATUS_OK) fail_msg("%s", err->text);
    status rc = model_config_read(c, file, err);
    gguf_close(file);
    return rc;
}

static void every_key_is_read(void **state) {
    (void)state;
    model_config c;
    error err = {0};
    write_gguf(NULL, NULL, few_tensors, 2);
    if (read_back(&c, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_true(c.moe && c.tied_head && !c.v_heads_grouped);
    assert_string_equal(c.arch, "qwen35moe");
    assert_string_equal(c.name, "unit test");
    assert_int_equal(c.n_layers, 4);
    assert_int_equal(c.n_linear_layers, 2);
    assert_int_equal(c.n_full_layers, 2);
    assert_true(c.is_linear[0] && !c.is_linear[1] && c.is_linear[2] && !c.is_linear[3]);
    assert_int_equal(c.kind_index[2], 1);
    assert_int_equal(c.n_vocab, 8);
    assert_int_equal(c.conv_dim, 2 * 2 * 128 + 4 * 128);
    assert_int_equal(c.inner_dim, 512);
    /* 4 heads of 128 x 128 and 3 inputs of 1024 channels, 2 layers */
    assert_int_equal(model_config_state_bytes(&c), (4 * 128 * 128 + 3 * 1024) * 2 * 4);
}

static void wrong_keys_are_refused_by_name_and_value(void **state) {
    (void)state;
    static const struct {
        key edit;
        const char *words[2];
    } cases[] = {
        {TEXT("general.architecture", "qwen3moe"), {"general.architecture", "qwen3moe"}},
        {U32("qwen35moe.block_count", 0), {"block_count", "is 0"}},
        {U32("qwen35moe.block_count", 100000), {"block_count", "100000"}},
        {TEXT("qwen35moe.block_count", "four"), {"block_count", "integer"}},
        {U32("qwen35moe.nextn_predict_layers", 4), {"nextn_predict_layers", "is 4"}},
        {U32("qwen35moe.context_length", 0), {"context_length", "is 0"}},
        {U32("qwen35moe.embedding_length", 1u << 20), {"embedding_length", "1048576"}},
        {U32("qwen35moe.attention.head_count", 0), {"head_count", "is 0"}},
        {U32("qwen35moe.attention.head_count", 5), {"head_count 5", "head_count_kv 2"}},
        {U32("qwen35moe.attention.key_length", 4096), {"key_length", "4096"}},
        {U32("qwen35moe.attention.value_length", 128), {"value_length", "128"}},
        {F32("qwen35moe.attention.layer_norm_rms_epsilon", -1), {"epsilon", "-1"}},
        {TEXT("qwen35moe.rope.freq_base", "x"), {"rope.freq_base", "number"}},
        {U32("qwen35moe.rope.dimension_count", 257), {"rope.dimension_count", "257"}},
        {U32("qwen35moe.rope.dimension_count", 63), {"rope.dimension_count", "63"}},
        {{"qwen35moe.rope.dimension_sections", GGUF_ARRAY, 4, 0, NULL, {11, 11, 11, 0}},
         {"dimension_sections", "32"}},
        {TEXT("qwen35moe.rope.scaling.type", "yarn"), {"rope.scaling.type", "yarn"}},
        {U32("qwen35moe.full_attention_interval", 0), {"full_attention_interval", "is 0"}},
        {{"qwen35moe.attention.recurrent_layers", GGUF_ARRAY, 2, 0, NULL, {1, 0}},
         {"recurrent_layers", "4 entries"}},
        {{"qwen35moe.attention.recurrent_layers", GGUF_ARRAY, 4, 0, NULL, {1, 0, 2, 0}},
         {"recurrent_layers", "entry 2"}},
        {U32("qwen35moe.ssm.conv_kernel", 1), {"ssm.conv_kernel", "is 1"}},
        {U32("qwen35moe.ssm.conv_kernel", 100), {"ssm.conv_kernel", "100"}},
        {U32("qwen35moe.ssm.state_size", 120), {"ssm.inner_size", "512"}},
        {U32("qwen35moe.ssm.group_count", 3), {"ssm.group_count 3", "time_step_rank 4"}},
        {U32("qwen35moe.ssm.inner_size", 1024), {"ssm.inner_size", "1024"}},
        {U32("qwen35moe.ssm.v_head_reordered", 1), {"v_head_reordered", "bool"}},
        {U32("qwen35moe.expert_count", 0), {"expert_count", "is 0"}},
        {U32("qwen35moe.expert_used_count", 9), {"expert_used_count", "is 9"}},
        {U32("qwen35moe.expert_feed_forward_length", 0), {"expert_feed_forward", "is 0"}},
        {U32("qwen35moe.expert_gating_func", 2), {"expert_gating_func", "is 2"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model_config c;
        error err = {0};
        write_gguf(&cases[i].edit, NULL, few_tensors, 2);
        if (read_back(&c, &err) != STATUS_BAD_INPUT ||
            strstr(err.text, cases[i].words[0]) == NULL ||
            strstr(err.text, cases[i].words[1]) == NULL) {
            fail_msg("case %zu, %s: '%s'", i, cases[i].edit.name, err.text);
        }
    }
}

static void missing_keys_are_refused_by_name(void **state) {
    (void)state;
    /* Keys that have a default, or only inform. */
    static const char *const optional[] = {
        "general.name",
        "qwen35moe.attention.layer_norm_rms_epsilon",
        "qwen35moe.rope.freq_base",
        "qwen35moe.rope.dimension_sections",
        "qwen35moe.full_attention_interval",
    };
    for (size_t i = 0; i < N_GOOD; i++) {
        bool may_miss = false;
        for (size_t j = 0; j < sizeof optional / sizeof optional[0]; j++) {
            may_miss = may_miss || strcmp(optional[j], good_keys[i].name) == 0;
        }
        model_config c;
        error err = {0};
        write_gguf(NULL, good_keys[i].name, few_tensors, 2);
        status rc = read_back(&c, &err);
        if (may_miss) {
            if (rc != STATUS_OK) fail_msg("without %s: %s", good_keys[i].name, err.text);
        } else if (rc != STATUS_BAD_INPUT || strstr(err.text, good_keys[i].name) == NULL) {
            fail_msg("without %s: '%s'", good_keys[i].name, err.text);
        }
    }
}

static void an_explicit_map_of_layers_overrides_the_interval(void **state) {
    (void)state;
    const key map = {
        "qwen35moe.attention.recurrent_layers", GGUF_ARRAY, 4, 0, NULL, {0, 1, 1, 1}};
    model_config c;
    error err = {0};
    write_gguf(&map, NULL, few_tensors, 2);
    assert_int_equal(read_back(&c, &err), STATUS_OK);
    assert_true(!c.is_linear[0] && c.is_linear[1] && c.is_linear[2] && c.is_linear[3]);
    assert_int_equal(c.n_linear_layers, 3);
}

static void keys_of_other_converters_are_understood(void **state) {
    (void)state;
    const key heads = {
        "qwen35moe.attention.head_count_kv", GGUF_ARRAY, 4, 0, NULL, {0, 2, 0, 2}};
    const key uneven = {
        "qwen35moe.attention.head_count_kv", GGUF_ARRAY, 4, 0, NULL, {0, 2, 0, 4}};
    const key grouped = BOOL("qwen35moe.ssm.v_head_reordered", 0);
    const key tiled = BOOL("qwen35moe.ssm.v_head_reordered", 1);
    model_config c;
    error err = {0};
    write_gguf(&heads, NULL, few_tensors, 2);
    assert_int_equal(read_back(&c, &err), STATUS_OK);
    assert_int_equal(c.n_kv_heads, 2);
    write_gguf(&uneven, NULL, few_tensors, 2);
    assert_int_equal(read_back(&c, &err), STATUS_BAD_INPUT);
    write_gguf(&grouped, NULL, few_tensors, 2);
    assert_int_equal(read_back(&c, &err), STATUS_OK);
    assert_true(c.v_heads_grouped);
    write_gguf(&tiled, NULL, few_tensors, 2);
    assert_int_equal(read_back(&c, &err), STATUS_OK);
    assert_false(c.v_heads_grouped);
}

static void mtp_blocks_are_told_from_their_tensors(void **state) {
    (void)state;
    const key nextn = U32("qwen35moe.nextn_predict_layers", 1);
    static const char *const with[] = {"token_embd.weight", "blk.0.attn_norm.weight",
                                       "output.weight", "blk.3.nextn.eh_proj.weight"};
    static const char *const alone[] = {"token_embd.weight", "blk.3.attn_norm.weight",
                                        "blk.3.nextn.eh_proj.weight"};
    model_config c;
    error err = {0};
    write_gguf(&nextn, NULL, with, 4);
    assert_int_equal(read_back(&c, &err), STATUS_OK);
    assert_int_equal(c.n_layers, 3);
    assert_int_equal(c.n_mtp_layers, 1);
    assert_false(c.tied_head);
    write_gguf(&nextn, NULL, with, 3); /* the metadata lies */
    assert_int_equal(read_back(&c, &err), STATUS_OK);
    assert_int_equal(c.n_layers, 3);
    assert_int_equal(c.n_mtp_layers, 0);
    write_gguf(&nextn, NULL, alone, 3);
    assert_int_equal(read_back(&c, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "stand-alone MTP"));
}

/* Weights: a generated model with names changed in place. */

/* Replace the only place where `from` stands in the file by as many bytes of `to`. */
static void patch(const char *from, const char *to, size_t n) {
    size_t size = 0;
    char *bytes = read_file(path, &size);
    const char *at = memmem(bytes, size, from, n);
    assert_non_null(at);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at - bytes, SEEK_SET), 0);
    put(f, to, n);
    free(bytes);
    assert_int_equal(fclose(f), 0);
}

static const char moe_params[] = "{\"layers\":2,\"hidden\":64,\"ff_exp\":32,\"ff_shexp\":32}";
static const char dense_params[] = "{\"arch\":\"qwen35\",\"layers\":2,\"hidden\":64,\"ff\":96}";

static status map_weights(error *err) {
    gguf_file *file = NULL;
    model_config c;
    model_weights w = {0};
    if (gguf_open(&file, path, err) != STATUS_OK) fail_msg("%s", err->text);
    status rc = model_config_read(&c, file, err);
    if (rc == STATUS_OK) rc = model_weights_map(&w, &c, file, err);
    model_weights_release(&w);
    gguf_close(file);
    return rc;
}

static void every_tensor_is_required(void **state) {
    (void)state;
    static const char *const moe[] = {
        "output_norm.weight",
        "blk.0.post_attention_norm.weight",
        "blk.0.attn_qkv.weight",
        "blk.0.attn_gate.weight",
        "blk.0.ssm_conv1d.weight",
        "blk.0.ssm_dt.bias",
        "blk.0.ssm_alpha.weight",
        "blk.0.ssm_beta.weight",
        "blk.0.ssm_norm.weight",
        "blk.0.ssm_out.weight",
        "blk.1.attn_q.weight",
        "blk.1.attn_k.weight",
        "blk.1.attn_v.weight",
        "blk.1.attn_output.weight",
        "blk.1.attn_q_norm.weight",
        "blk.1.attn_k_norm.weight",
        "blk.1.ffn_gate_inp.weight",
        "blk.1.ffn_gate_exps.weight",
        "blk.1.ffn_up_exps.weight",
        "blk.1.ffn_down_exps.weight",
        "blk.1.ffn_gate_inp_shexp.weight",
        "blk.1.ffn_gate_shexp.weight",
        "blk.1.ffn_up_shexp.weight",
        "blk.1.ffn_down_shexp.weight",
    };
    static const char *const dense[] = {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight",
                                        "blk.1.ffn_down.weight"};
    error err = {0};
    assert_true(generate_model(moe_params, path));
    if (map_weights(&err) != STATUS_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof moe / sizeof moe[0] + 3; i++) {
        bool is_moe = i < sizeof moe / sizeof moe[0];
        const char *name = is_moe ? moe[i] : dense[i - sizeof moe / sizeof moe[0]];
        char other[96];
        (void)snprintf(other, sizeof other, "%s", name);
        other[strlen(other) - 1] = '_';
        assert_true(generate_model(is_moe ? moe_params : dense_params, path));
        patch(name, other, strlen(name));
        if (map_weights(&err) != STATUS_BAD_INPUT || strstr(err.text, name) == NULL) {
            fail_msg("without %s: '%s'", name, err.text);
        }
    }
}

static void a_tensor_of_another_shape_is_refused(void **state) {
    (void)state;
    error err = {0};
    assert_true(generate_model(moe_params, path));
    /* the two names are equally long and the tensors are not */
    patch("blk.1.ffn_gate_exps.weight", "blk.1.ffn_gate_shexp.weigh", 26);
    assert_int_equal(map_weights(&err), STATUS_BAD_INPUT);
    assert_true(generate_model(moe_params, path));
    patch("blk.1.attn_k.weight", "blk.1.attn_x.weight", 19);
    patch("blk.1.attn_q.weight", "blk.1.attn_k.weight", 19);
    patch("blk.1.attn_x.weight", "blk.1.attn_q.weight", 19);
    assert_int_equal(map_weights(&err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "blk.1.attn_q.weight"));
    assert_non_null(strstr(err.text, "{64, 256, 1, 1}"));
    assert_non_null(strstr(err.text, "{64, 1024, 1, 1}"));
}

static int set_up(void **state) {
    (void)state;
    if (!make_temporary(folder, sizeof folder)) return -1;
    (void)snprintf(path, sizeof path, "%s/model.gguf", folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    (void)unlink(path);
    (void)rmdir(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_is_read),
        cmocka_unit_test(wrong_keys_are_refused_by_name_and_value),
        cmocka_unit_test(missing_keys_are_refused_by_name),
        cmocka_unit_test(an_explicit_map_of_layers_overrides_the_interval),
        cmocka_unit_test(keys_of_other_converters_are_understood),
        cmocka_unit_test(mtp_blocks_are_told_from_their_tensors),
        cmocka_unit_test(every_tensor_is_required),
        cmocka_unit_test(a_tensor_of_another_shape_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
