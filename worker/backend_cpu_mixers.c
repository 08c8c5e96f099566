/* backend_cpu_mixers.c - what mixes tokens: delta net with its states, attention with
 * its pages. */
#include "worker/backend_cpu.h"

#include "kernels/attention.h"
#include "kernels/attention_prepare.h"
#include "kernels/conv1d.h"
#include "kernels/delta_net.h"
#include <math.h>

/* Delta net. */

static void conv_range(const backend_cpu *b, const void *args, size_t first, size_t end,
                       uint32_t worker) {
    (void)worker;
    conv1d_channels(b->tier, args, first, end);
}

static void delta_range(const backend_cpu *b, const void *args, size_t first, size_t end,
                        uint32_t worker) {
    delta_net_items(b->tier, args, first, end, cpu_scratch(b, worker));
}

/* A layer's part of a state: delta-net matrices, then convolution inputs. */
static float *layer_state(const backend_cpu *b, uint32_t ordinal) {
    size_t floats = b->state_bytes / sizeof(float) / b->config->n_linear_layers;
    return (float *)(void *)b->states + ordinal * floats;
}

static void run_conv(backend_cpu *b, uint32_t ordinal, const cpu_delta_rows *rows) {
    const model_config *c = b->config;
    size_t matrices = (size_t)c->n_value_heads * c->state_dim * c->state_dim;
    const conv1d_args args = {.batch = rows->batch,
                              .x = rows->u,
                              .weight = b->conv + (size_t)ordinal * c->conv_taps * c->conv_dim,
                              .state = layer_state(b, ordinal) + matrices,
                              .y = b->buffer[BUFFER_U],
                              .x_stride = rows->u_stride,
                              .y_stride = c->conv_dim,
                              .state_stride = b->state_bytes / sizeof(float),
                              .n_channels = c->conv_dim,
                              .n_taps = c->conv_taps};
    cpu_run_range(b, c->conv_dim, 64, 0.5 * args.batch.n_rows, conv_range, &args);
}

void cpu_mix_delta(backend_cpu *b, const layer_weights *layer, uint32_t ordinal,
                   const cpu_delta_rows *rows) {
    const model_config *c = b->config;
    cpu_input *out = &b->input[INPUT_MIXED];
    cpu_input_begin(out, c->inner_dim);
    run_conv(b, ordinal, rows);
    const delta_net_args args = {.batch = rows->batch,
                                 .qkv = b->buffer[BUFFER_U],
                                 .z = b->buffer[BUFFER_Z],
                                 .alpha = rows->alpha,
                                 .beta = rows->beta,
                                 .a = layer->decay.place,
                                 .dt = layer->dt_bias.place,
                                 .norm = layer->ssm_norm.place,
                                 .state = layer_state(b, ordinal),
                                 .out = cpu_input_row(out, 0),
                                 .qkv_stride = c->conv_dim,
                                 .z_stride = c->inner_dim,
                                 .alpha_stride = rows->alpha_stride,
                                 .beta_stride = rows->beta_stride,
                                 .out_stride = cpu_input_floats(out),
                                 .state_stride = b->state_bytes / sizeof(float),
                                 .n_key_heads = c->n_key_heads,
                                 .n_value_heads = c->n_value_heads,
                                 .dim = c->state_dim,
                                 .grouped = c->v_heads_grouped,
                                 .eps = c->norm_eps};
    double rows_a_run = (double)args.batch.n_rows / args.batch.n_runs;
    cpu_run_range(b, delta_net_n_items(&args), 1,
                  rows_a_run * c->state_dim * c->state_dim * 0.1, delta_range, &args);
}

void cpu_delta_net(backend *base, const layer_weights *layer, uint32_t ordinal,
                   input_forms forms) {
    backend_cpu *b = (backend_cpu *)base;
    const model_config *c = b->config;
    const cpu_delta_rows rows = {.batch = b->batch.view,
                                 .u = b->buffer[BUFFER_U],
                                 .alpha = b->buffer[BUFFER_ALPHA],
                                 .beta = b->buffer[BUFFER_BETA],
                                 .u_stride = c->conv_dim,
                                 .alpha_stride = c->n_value_heads,
                                 .beta_stride = c->n_value_heads};
    cpu_remember(b, ordinal); /* the convolution writes over its input */
    cpu_mix_delta(b, layer, ordinal, &rows);
    cpu_input_quantize_rows(b, &b->input[INPUT_MIXED], rows.batch.n_rows, forms);
}

/* Attention. */

static void prepare_range(const backend_cpu *b, const void *args, size_t first, size_t end,
                          uint32_t worker) {
    (void)worker;
    attention_prepare_rows(b->tier, args, first, end);
}

static void attention_range(const backend_cpu *b, const void *args, size_t first, size_t end,
                            uint32_t worker) {
    attention_items(b->tier, args, first, end, cpu_scratch(b, worker));
}

static kv_view layer_pages(const backend_cpu *b, uint32_t ordinal) {
    return (kv_view){.base = b->pages,
                     .page_bytes = b->page_bytes,
                     .layer_offset = ordinal * b->layer_page_bytes,
                     .type = (uint32_t)b->params.kv,
                     .n_kv_heads = b->config->n_kv_heads,
                     .head_dim = b->config->head_dim};
}

static void run_prepare(backend_cpu *b, const layer_weights *layer, kv_view pages) {
    const model_config *c = b->config;
    const attention_prepare_args args = {.batch = b->batch.view,
                                         .kv = pages,
                                         .qg = b->buffer[BUFFER_Q],
                                         .k = b->buffer[BUFFER_K],
                                         .v = b->buffer[BUFFER_V],
                                         .q_norm = layer->q_norm.place,
                                         .k_norm = layer->k_norm.place,
                                         .rope = b->rope,
                                         .qg_stride = b->row[BUFFER_Q],
                                         .k_stride = b->row[BUFFER_K],
                                         .v_stride = b->row[BUFFER_V],
                                         .n_heads = c->n_heads,
                                         .n_rot = c->n_rot,
                                         .eps = c->norm_eps};
    cpu_run_range(b, args.batch.n_rows, 1, (c->n_heads + 2 * c->n_kv_heads) * 100.0,
                  prepare_range, &args);
}

/* The mean length of the batch's timelines, for the cost of an item. */
static double mean_positions(const batch_view *v) {
    double sum = 0;
    for (uint32_t i = 0; i < v->n_runs; i++) {
        sum += v->runs[i].n_rows * (v->runs[i].position + 0.5 * v->runs[i].n_rows);
    }
    return sum / v->n_rows;
}

void cpu_attention(backend *base, const layer_weights *layer, uint32_t ordinal,
                   input_forms forms) {
    backend_cpu *b = (backend_cpu *)base;
    const model_config *c = b->config;
    cpu_input *out = &b->input[INPUT_MIXED];
    cpu_input_begin(out, c->n_heads * c->head_dim);
    kv_view pages = layer_pages(b, ordinal);
    run_prepare(b, layer, pages);
    const attention_args args = {.batch = b->batch.view,
                                 .kv = pages,
                                 .qg = b->buffer[BUFFER_Q],
                                 .out = cpu_input_row(out, 0),
                                 .qg_stride = b->row[BUFFER_Q],
                                 .out_stride = cpu_input_floats(out),
                                 .n_heads = c->n_heads,
                                 .scale = 1.0f / sqrtf((float)c->head_dim)};
    double item_ns =
        mean_positions(&args.batch) * c->head_dim * ((double)c->n_heads / c->n_kv_heads) * 0.03;
    cpu_run_range(b, attention_n_items(&args), 1, item_ns, attention_range, &args);
    cpu_input_quantize_rows(b, out, args.batch.n_rows, forms);
}
