/* cuda_case.h - what the cases of cuda_cases.h are made of: buffers with a copy on either side,
 * random weights, quantized activations, float64 products and errors.
 *
 * Header-only, with one case at a time in a file: begin(), buffers, launches, end().
 */
#ifndef SILICEO_TESTS_KERNELS_CUDA_CASE_H
#define SILICEO_TESTS_KERNELS_CUDA_CASE_H

#include "kernels/cpu/act_layout.h"
#include "kernels/cuda/act.h"
#include "kernels/cuda/matvec.h"
#include "kernels/matmul.h"
#include "tests/kernels/block_case.h"
#include "tests/kernels/cuda_cases.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- buffers with a copy on either side ---- */

typedef struct buffer {
    void *host;
    void *device;
    size_t bytes;
} buffer;

enum { MAX_BUFFERS = 64, CASE_SEED = 20261129 };
static buffer buffers[MAX_BUFFERS];
static size_t n_buffers;
static const kernel_device *gpu;

static inline void begin(const kernel_device *device) {
    gpu = device;
    n_buffers = 0;
    case_rng = CASE_SEED;
}

/* The first n buffers stay. */
static inline void end_after(size_t n) {
    while (n_buffers > n) {
        free(buffers[--n_buffers].host);
        gpu->free(buffers[n_buffers].device);
    }
}

static inline void end(void) {
    end_after(0);
}

static inline buffer *make(size_t bytes) {
    if (n_buffers == MAX_BUFFERS) abort();
    buffer *b = &buffers[n_buffers++];
    b->bytes = bytes;
    b->host = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (b->host == NULL) abort();
    b->device = gpu->alloc(bytes);
    memset(b->host, 0xff, bytes);
    return b;
}

static inline void put(buffer *b) {
    gpu->write(b->device, b->host, b->bytes);
}

static inline float *get(buffer *b) {
    gpu->read(b->host, b->device, b->bytes);
    return b->host;
}

static inline float uniform(float low, float high) {
    return low + (high - low) * (float)(case_random() >> 8) * 0x1p-24f;
}

static inline buffer *floats(size_t n, float low, float high) {
    buffer *b = make(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        ((float *)b->host)[i] = uniform(low, high);
    put(b);
    return b;
}

static inline buffer *copy_of(const void *from, size_t bytes) {
    buffer *b = make(bytes);
    memcpy(b->host, from, bytes);
    put(b);
    return b;
}

#define LAUNCH(kernel, shape, args)                                                            \
    gpu->launch(CUDA_KERNEL_##kernel, (shape), &(args), sizeof(args))

/* The kernel that the host chooses for these arguments alone: matmul, experts_up, experts_down. */
#define LAUNCH_CHOSEN(what, args)                                                              \
    do {                                                                                       \
        cuda_shape shape_of_choice;                                                            \
        const cuda_kernel choice = what##_choose(&(args), &shape_of_choice);                   \
        gpu->launch(choice, shape_of_choice, &(args), sizeof(args));                           \
    } while (0)

/* ---- errors ---- */

static inline double worse(double a, double b) {
    return !(a <= b) && a == a ? a : a != a ? HUGE_VAL : b;
}

static inline double relative_l2(const float *a, const double *b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite((double)a[i])) return HUGE_VAL;
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}

static inline double relative_l2_f(const float *a, const float *b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite((double)a[i])) return HUGE_VAL;
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}
/* ---- weights and activations ---- */

/* Random valid blocks of a type. */
static inline void fill_blocks(uint32_t type, void *blocks, size_t bytes) {
    const size_t each = quant_traits_of(type)->block_bytes;
    for (size_t i = 0; i < bytes; i += each)
        case_fill_block((quant_type)type, (uint8_t *)blocks + i, each);
}

static inline buffer *weights(uint32_t type, size_t n_rows, size_t n_cols) {
    buffer *b = make(n_rows * quant_row_bytes((quant_type)type, n_cols));
    fill_blocks(type, b->host, b->bytes);
    put(b);
    return b;
}

/* The bytes of n blocks of Q6_K in the order of CUDA_Q6_K_SPLIT. */
static inline void split_q6_k(const uint8_t *from, size_t n, uint8_t *to) {
    for (size_t i = 0; i < n; i++) {
        memcpy(to + i * 208, from + i * 210, 208);
        memcpy(to + n * 208 + i * 2, from + i * 210 + 208, 2);
    }
}

/* Activation rows quantized by the device, and what they stand for. */
typedef struct activations {
    buffer *x;   /* float32 */
    buffer *act; /* quantized */
    double *value;
    size_t n_cols, stride;
} activations;

static inline void dequantize_acts(const uint8_t *act, size_t stride, size_t n_rows,
                                   size_t n_cols, double *out) {
    for (size_t r = 0; r < n_rows; r++) {
        const int8_t *q = (const int8_t *)act + r * stride;
        for (size_t i = 0; i < n_cols; i++) {
            float scale;
            memcpy(&scale, act + r * stride + n_cols + i / 16 * 8, 4);
            out[r * n_cols + i] = (double)scale * q[i];
        }
    }
}

static inline activations acts(size_t n_rows, size_t n_cols) {
    activations a = {.x = floats(n_rows * n_cols, -2, 2), .n_cols = n_cols};
    a.stride = cuda_act_row_bytes((uint32_t)n_cols);
    a.act = make(n_rows * a.stride);
    const quantize_args args = {a.x->device, a.act->device,    n_cols,
                                a.stride,    (uint32_t)n_cols, (uint32_t)n_rows};
    LAUNCH(quantize, quantize_shape(&args), args);
    buffer *value = make(n_rows * n_cols * sizeof(double));
    a.value = value->host;
    dequantize_acts((const void *)get(a.act), a.stride, n_rows, n_cols, a.value);
    return a;
}

/* Whether a row of the device is what the CPU makes of x in a format of the same scales, on every
 * tier: values, scales and scaled sums bit for bit, where a NaN is a NaN. */
static inline bool same_as_cpu(act_format format, const float *x, const uint8_t *row,
                               size_t n_cols) {
    uint8_t *mine = aligned_alloc(64, act_row_bytes(format, n_cols));
    if (mine == NULL) abort();
    bool same = true;
    for (cpu_tier tier = CPU_SCALAR; tier <= cpu_tier_best(); tier++) {
        act_quantize_row(tier, format, x, n_cols, mine);
        same = same && memcmp(mine, row, n_cols) == 0;
        for (size_t g = 0; g < n_cols / 16; g++) {
            float factor[2];
            memcpy(factor, row + n_cols + g * sizeof factor, sizeof factor);
            const float scale = act16_scales(mine, n_cols)[g];
            const float scaled = act16_scaled(mine, n_cols)[g];
            same = same && (isnan(scale) ? isnan(factor[0]) && isnan(factor[1])
                                         : scale == factor[0] && scaled == factor[1]);
        }
    }
    free(mine);
    return same;
}

static inline double *doubles_of(const float *x, size_t n) {
    buffer *b = make(n * sizeof(double));
    for (size_t i = 0; i < n; i++)
        ((double *)b->host)[i] = (double)x[i];
    return b->host;
}

/* W x in float64, W dequantized by the oracle; out[token][row]. */
static inline void product(uint32_t type, const void *w, size_t n_rows, size_t n_cols,
                           const double *x, size_t n_tokens, double *out) {
    const size_t row_bytes = quant_row_bytes((quant_type)type, n_cols);
    float *row = malloc(n_cols * sizeof *row);
    if (row == NULL) abort();
    for (size_t r = 0; r < n_rows; r++) {
        dequantize_row((quant_type)type, (const uint8_t *)w + r * row_bytes, n_cols, row);
        for (size_t t = 0; t < n_tokens; t++) {
            double sum = 0;
            for (size_t i = 0; i < n_cols; i++)
                sum += (double)row[i] * x[t * n_cols + i];
            out[t * n_rows + r] = sum;
        }
    }
    free(row);
}

static const uint32_t types[] = {QUANT_Q4_K,  QUANT_Q5_K, QUANT_Q6_K,   QUANT_Q8_0,
                                 QUANT_Q4_0,  QUANT_Q4_1, QUANT_Q5_0,   QUANT_Q5_1,
                                 QUANT_Q2_K,  QUANT_Q3_K, QUANT_IQ4_NL, QUANT_IQ4_XS,
                                 QUANT_MXFP4, QUANT_F32,  QUANT_F16,    QUANT_BF16};
enum { N_TYPES = sizeof types / sizeof types[0] };

static inline bool is_quantized(uint32_t type) {
    return !matvec_is_float(type);
}

/* ---- the cases ---- */

/* cuda_row_cases.c */
double case_quantize(const kernel_device *device);
double case_quantize_extremes(const kernel_device *device);
double case_embed(const kernel_device *device);
double case_rmsnorm(const kernel_device *device);
double case_swiglu(const kernel_device *device);
double case_argmax(const kernel_device *device);
/* cuda_matrix_cases.c */
double case_matvec(const kernel_device *device);
double case_matvec_f32(const kernel_device *device);
double case_matvec_company(const kernel_device *device);
double case_split(const kernel_device *device);
double case_matvec_norm(const kernel_device *device);
double case_router_logits(const kernel_device *device);
double case_matmul(const kernel_device *device);
double case_matmul_f32(const kernel_device *device);
double case_matmul_gated(const kernel_device *device);
/* cuda_expert_cases.c */
double case_experts(const kernel_device *device);
double case_experts_coming(const kernel_device *device);
double case_experts_lane(const kernel_device *device);
double case_experts_grouped(const kernel_device *device);
double case_combine(const kernel_device *device);
double case_router(const kernel_device *device);
/* cuda_fetch_cases.c */
double case_experts_fetch(const kernel_device *device);
double case_router_fetch(const kernel_device *device);
double case_router_lane(const kernel_device *device);
double case_lane_outputs(const kernel_device *device);
/* cuda_mixer_cases.c */
double case_conv1d(const kernel_device *device);
double case_delta_step(const kernel_device *device);
double case_delta_chunks(const kernel_device *device);
double case_attention_step(const kernel_device *device);
double case_attention_tile(const kernel_device *device);
double case_attention_step_f16(const kernel_device *device);
double case_attention_step_q8(const kernel_device *device);
double case_attention_step_q4(const kernel_device *device);
double case_attention_half(const kernel_device *device);
double case_attention_q8(const kernel_device *device);
double case_attention_q4(const kernel_device *device);

#endif
