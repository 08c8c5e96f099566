/* test_cuda_launches.c - every launch that models of the known shapes need is one that Turing takes.
 *
 * The launcher asks the driver double (tests/golden/cuda_double.c), which judges a launch without
 * running it: a kernel's own shared memory, as the compiler reports it, and what the launch adds
 * must be what was asked for and 64 KB at most; grids and blocks have their limits.  Shapes
 * come from the functions that the backend calls, for 1 to 16 rows, verified guesses among them,
 * and for prompts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cuda/experts.h"
#include "kernels/cuda/experts_fetch.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/mixers.h"
#include "kernels/cuda/router.h"
#include "kernels/cuda/rows.h"
#include "tests/golden/cuda_double.h"
#include "worker/backend_cuda.h"
#include <string.h>

/* The presets of make_model, and the published sizes between and above them. */
typedef struct model_shape {
    const char *name;
    uint32_t n_embd, n_heads, n_kv_heads, n_value_heads, n_ff, n_experts;
} model_shape;

enum { HEAD_DIM = 256, STATE_DIM = 128, N_KEY_HEADS = 16, N_VOCAB = 248320, N_USED = 8 };
enum { EXPERT_FF = 512 };

static const model_shape models[] = {
    {"35b-a3b", 2048, 16, 2, 32, 0, 256}, {"9b", 4096, 16, 4, 32, 12288, 0},
    {"4b", 2560, 16, 4, 32, 9216, 0},     {"0.8b", 1024, 8, 2, 16, 3584, 0},
    {"2b", 2048, 8, 2, 16, 6144, 0},      {"27b", 5120, 24, 4, 48, 17408, 0},
};
enum { N_MODELS = sizeof models / sizeof models[0] };

static const struct { uint32_t n_sms, major; } cards[] = {{36, 7}, {82, 8}, {132, 9}};
enum { N_CARDS = sizeof cards / sizeof cards[0] };

static const uint32_t row_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,   10,   11,
                                      12, 13, 14, 15, 16, 17, 33, 80, 512, 2048, 4096};
enum { N_COUNTS = sizeof row_counts / sizeof row_counts[0], FEW_COUNTS = 19 };

static backend_cuda card;
static bool launched[CUDA_KERNEL_COUNT];

static int open_card(void **state) {
    error err = {0};
    if (choose_driver(state) != 0 || setenv("SILICEO_DOUBLE_JUDGES", "1", 1) != 0) return -1;
    if (cuda_driver_open(&card.driver, &err) != STATUS_OK ||
        cuda_card_read(card.driver, 0, &card.card, &err) != STATUS_OK ||
        CUDA_CALL(card.driver, &err, cuDevicePrimaryCtxRetain, &card.context,
                  card.card.device) != STATUS_OK ||
        CUDA_CALL(card.driver, &err, cuCtxSetCurrent, card.context) != STATUS_OK ||
        cuda_load_kernels(&card, &err) != STATUS_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    return 0;
}

static int close_card(void **state) {
    (void)state;
    (void)card.driver->cuModuleUnload(card.module);
    (void)card.driver->cuDevicePrimaryCtxRelease(card.card.device);
    cuda_driver_close(card.driver);
    return unsetenv("SILICEO_DOUBLE_JUDGES");
}

static void check(const model_shape *m, uint32_t n_rows, cuda_kernel kernel, cuda_shape shape,
                  const void *args) {
    cuda_launch(&card, kernel, shape, args);
    launched[kernel] = true;
    if (card.failed == STATUS_OK) return;
    card.failed = STATUS_OK;
    fail_msg("%s, %u rows: %s", m->name, n_rows, card.failure.text);
}

/* A matrix of n_cols columns against rows in each of the forms that the backend has. */
static void check_matvec(const model_shape *m, uint32_t n_rows, uint32_t n_cols) {
    static const uint32_t types[] = {QUANT_Q4_K, CUDA_Q6_K_SPLIT, QUANT_F32, QUANT_Q5_0};
    static const float norm = 1;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        for (int form = 0; form < 3; form++) { /* quantized, normed on the way, floats */
            if (form == 1 && (n_cols > MATVEC_MAX_NORM || n_cols != m->n_embd)) continue;
            if (form == 1 && matvec_is_float(types[t])) continue;
            matvec_args a = {.x = &norm,
                             .act = form == 0 && !matvec_is_float(types[t]) ? &norm : NULL,
                             .norm = form == 1 ? &norm : NULL,
                             .n_cols = n_cols,
                             .n_tokens = n_rows,
                             .n_segments = 1,
                             .segments = {{.type = types[t], .n_rows = N_VOCAB}}};
            for (size_t i = 0; i < N_CARDS; i++) {
                cuda_shape shape;
                cuda_kernel kernel = matvec_choose(&a, cards[i].n_sms, cards[i].major, &shape);
                check(m, n_rows, kernel, shape, &a);
            }
        }
    }
}

static void check_matmul(const model_shape *m, uint32_t n_rows, uint32_t n_cols) {
    static const float row = 1;
    for (int quantized = 0; quantized < 2; quantized++) {
        const matmul_args a = {.act = quantized ? &row : NULL,
                               .x = &row,
                               .type = quantized ? QUANT_Q4_K : QUANT_F32,
                               .n_rows = N_VOCAB,
                               .n_cols = n_cols,
                               .n_tokens = n_rows};
        cuda_shape shape;
        cuda_kernel kernel = matmul_choose(&a, &shape);
        check(m, n_rows, kernel, shape, &a);
    }
}

static void matrices_of_every_width_are_taken_at_any_number_of_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        const model_shape *m = &models[i];
        const uint32_t widths[] = {m->n_embd, m->n_heads * HEAD_DIM,
                                   m->n_value_heads * STATE_DIM,
                                   m->n_ff > 0 ? m->n_ff : EXPERT_FF};
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
            for (size_t n = 0; n < FEW_COUNTS; n++)
                check_matvec(m, row_counts[n], widths[w]);
            for (size_t n = 0; n < N_COUNTS; n++)
                check_matmul(m, row_counts[n], widths[w]);
        }
    }
}

static void rows_alone_are_taken(void **state) {
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        const model_shape *m = &models[i];
        for (size_t n = 0; n < N_COUNTS; n++) {
            uint32_t rows = row_counts[n];
            const embed_args embed = {.dim = m->n_embd};
            check(m, rows, CUDA_KERNEL_embed, embed_shape(&embed, rows), &embed);
            const norm_args norm = {.dim = m->n_embd};
            check(m, rows, CUDA_KERNEL_rmsnorm, rmsnorm_shape(&norm, rows), &norm);
            const quantize_args quantize = {.n_cols = m->n_embd, .n_rows = rows};
            check(m, rows, CUDA_KERNEL_quantize, quantize_shape(&quantize), &quantize);
            const swiglu_q8_args swiglu = {.n_cols = m->n_ff > 0 ? m->n_ff : EXPERT_FF,
                                           .n_rows = rows};
            check(m, rows, CUDA_KERNEL_swiglu, swiglu_shape(&swiglu), &swiglu);
            const argmax_args argmax = {.n = N_VOCAB, .n_rows = rows};
            check(m, rows, CUDA_KERNEL_argmax, argmax_shape(&argmax), &argmax);
        }
    }
}

static void check_states(const model_shape *m, uint32_t n_rows, uint32_t n_runs) {
    const batch_view rows = {.n_rows = n_rows, .n_runs = n_runs};
    static float y;
    const delta_net_args base = {.batch = rows,
                                 .n_key_heads = N_KEY_HEADS,
                                 .n_value_heads = m->n_value_heads,
                                 .dim = STATE_DIM};
    const conv1d_args conv = {
        .y = &y, .batch = rows, .n_channels = (2 * N_KEY_HEADS + m->n_value_heads) * STATE_DIM};
    check(m, n_rows, CUDA_KERNEL_conv1d, conv1d_shape(&conv), &conv);
    const delta_step_args step = {.base = base};
    check(m, n_rows, CUDA_KERNEL_delta_net_step, delta_step_shape(&step), &step);
    const delta_net_cuda_args chunks = {.base = base};
    check(m, n_rows, CUDA_KERNEL_delta_net_scores, delta_net_scores_shape(&chunks), &chunks);
    check(m, n_rows, CUDA_KERNEL_delta_net_chunks, delta_net_chunks_shape(&chunks), &chunks);
    check(m, n_rows, CUDA_KERNEL_delta_net_norm, delta_net_norm_shape(&chunks), &chunks);
}

static void check_attention(const model_shape *m, uint32_t n_rows, uint32_t n_runs,
                            size_t card_index) {
    const batch_view rows = {.n_rows = n_rows, .n_runs = n_runs};
    for (uint32_t type = KV_F32; type <= KV_Q4; type++) {
        prepare_args prepare = {.base = {.batch = rows, .n_heads = m->n_heads}};
        attention_cuda_args tiles = {.base = {.batch = rows, .n_heads = m->n_heads}};
        prepare.base.kv.n_kv_heads = tiles.base.kv.n_kv_heads = m->n_kv_heads;
        prepare.base.kv.head_dim = tiles.base.kv.head_dim = HEAD_DIM;
        prepare.base.kv.type = tiles.base.kv.type = type;
        check(m, n_rows, CUDA_KERNEL_attention_prepare, attention_prepare_shape(&prepare),
              &prepare);
        attention_step_args step = {.prepare = prepare};
        step.n_splits = attention_step_splits(&prepare, 262144, cards[card_index].n_sms);
        cuda_shape shape;
        cuda_kernel kernel = attention_step_choose(&step, &shape);
        check(m, n_rows, kernel, shape, &step);
        check(m, n_rows, CUDA_KERNEL_attention_keep, attention_keep_shape(&step), &step);
        check(m, n_rows, CUDA_KERNEL_attention_combine, attention_combine_shape(&tiles),
              &tiles);
        check(m, n_rows, CUDA_KERNEL_attention_tile, attention_tile_shape(&tiles), &tiles);
        check(m, n_rows, CUDA_KERNEL_attention_half, attention_half_shape(&tiles), &tiles);
    }
}

static void mixers_are_taken_alone_and_in_company(void **state) {
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        for (size_t n = 0; n < N_COUNTS; n++) {
            uint32_t rows = row_counts[n];
            check_states(&models[i], rows, 1);
            check_states(&models[i], rows, rows);
            for (size_t c = 0; c < N_CARDS; c++) {
                check_attention(&models[i], rows, 1, c);
                check_attention(&models[i], rows, rows, c);
            }
        }
    }
}

static void check_experts(const model_shape *m, uint32_t n_rows) {
    static float act;
    for (int quantized = 0; quantized < 2; quantized++) {
        experts_up_args up = {.act = quantized ? &act : NULL,
                              .n_rows = n_rows,
                              .n_used = N_USED,
                              .n_cols = m->n_embd,
                              .n_ff = EXPERT_FF,
                              .n_ff_shared = EXPERT_FF};
        experts_down_args down = {.h_act = quantized ? &act : NULL,
                                  .n_rows = n_rows,
                                  .n_used = N_USED,
                                  .n_embd = m->n_embd,
                                  .n_ff = EXPERT_FF,
                                  .n_ff_shared = EXPERT_FF};
        up.gate.type = up.up.type = down.down.type = QUANT_Q4_K;
        up.gate.shared_type = up.up.shared_type = down.down.shared_type = QUANT_Q4_K;
        cuda_shape shape;
        cuda_kernel kernel = experts_up_choose(&up, &shape);
        check(m, n_rows, kernel, shape, &up);
        kernel = experts_down_choose(&down, &shape);
        check(m, n_rows, kernel, shape, &down);
        static const expert_turn turn;
        up.turns = &turn;
        if (!experts_up_is_common(&up) || n_rows > FETCH_MAX_ROWS) continue;
        kernel = experts_up_choose(&up, &shape);
        check(m, n_rows, kernel, shape, &up);
        const router_fetch_args fetch = {.fetch = {.n_pairs = n_rows * N_USED}};
        check(m, n_rows, CUDA_KERNEL_router_fetch, router_fetch_shape(n_rows), &fetch);
    }
    const experts_sort_args sort = {.n_pairs = n_rows * N_USED, .n_experts = m->n_experts};
    check(m, n_rows, CUDA_KERNEL_experts_sort, experts_sort_shape(), &sort);
    const matmul_args grouped = {.act = &act,
                                 .type = QUANT_Q4_K,
                                 .n_rows = EXPERT_FF,
                                 .n_cols = m->n_embd,
                                 .n_tokens = n_rows * N_USED,
                                 .n_groups = m->n_experts};
    cuda_shape shape;
    cuda_kernel kernel = matmul_choose(&grouped, &shape);
    check(m, n_rows, kernel, shape, &grouped);
    const combine_args combine = {.base = {.dim = m->n_embd, .n_used = N_USED},
                                  .n_rows = n_rows};
    check(m, n_rows, CUDA_KERNEL_moe_combine, moe_combine_shape(&combine), &combine);
}

static void experts_are_taken_at_any_number_of_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        const model_shape *m = &models[i];
        for (size_t n = 0; n < N_COUNTS && m->n_experts > 0; n++) {
            uint32_t rows = row_counts[n];
            const router_logits_args logits = {
                .n_cols = m->n_embd,
                .n_tokens = rows,
                .n_segments = 2,
                .segments = {{.n_rows = m->n_experts}, {.n_rows = 1}}};
            check(m, rows, CUDA_KERNEL_router_logits, router_logits_shape(&logits), &logits);
            const router_cuda_args router = {0};
            check(m, rows, CUDA_KERNEL_router, router_shape(rows), &router);
            const experts_fetch_args fetch = {.n_pairs = rows * N_USED};
            check(m, rows, CUDA_KERNEL_experts_fetch, experts_fetch_shape(), &fetch);
            check_experts(m, rows);
        }
    }
}

static void no_kernel_was_left_out(void **state) {
    (void)state;
    for (int i = 0; i < CUDA_KERNEL_COUNT; i++)
        if (!launched[i]) fail_msg("kernel %d of CUDA_KERNELS was not launched", i);
}

static void what_does_not_fit_is_refused_by_name(void **state) {
    (void)state;
    error err = {0};
    cuda_shape shape = cuda_shape_of(1, 1, MATVEC_BLOCK);
    shape.shared_bytes = 64 * 1024;
    assert_int_equal(cuda_check_shape(&card, CUDA_KERNEL_matvec_f32, shape, &err), STATUS_OK);
    shape.shared_bytes += 16;
    assert_int_equal(cuda_check_shape(&card, CUDA_KERNEL_matvec_f32, shape, &err),
                     STATUS_DEVICE);
    assert_non_null(strstr(err.text, "matvec_f32"));
    assert_non_null(strstr(err.text, "65552 bytes"));
    shape = cuda_shape_of(1, 65536, MATVEC_BLOCK);
    assert_int_equal(cuda_check_shape(&card, CUDA_KERNEL_matvec_8, shape, &err), STATUS_DEVICE);
    assert_non_null(strstr(err.text, "1 x 65536 x 1 blocks"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_of_every_width_are_taken_at_any_number_of_rows),
        cmocka_unit_test(rows_alone_are_taken),
        cmocka_unit_test(mixers_are_taken_alone_and_in_company),
        cmocka_unit_test(experts_are_taken_at_any_number_of_rows),
        cmocka_unit_test(no_kernel_was_left_out),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, open_card, close_card);
}
