/* cuda_cases.c - the cases of cuda_cases.h.
 *
 * Integer products are compared with float64 sums over the dequantized weights and the device's
 * own quantized activations; the rest with the plain C kernels in kernels/cpu.
 */
#include "tests/kernels/cuda_cases.h"

#include "common/half.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/mixers.h"
#include "kernels/cuda/rows.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "kernels/vector_math.h"
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

enum { MAX_BUFFERS = 64 };
static buffer buffers[MAX_BUFFERS];
static size_t n_buffers;
static const kernel_device *gpu;
static uint64_t seed;

static void begin(const kernel_device *device) {
    gpu = device;
    n_buffers = 0;
    seed = 88172645463325252u;
}

static void end(void) {
    for (size_t i = 0; i < n_buffers; i++) {
        free(buffers[i].host);
        gpu->free(buffers[i].device);
    }
    n_buffers = 0;
}

static buffer *make(size_t bytes) {
    if (n_buffers == MAX_BUFFERS) abort();
    buffer *b = &buffers[n_buffers++];
    b->bytes = bytes;
    b->host = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (b->host == NULL) abort();
    b->device = gpu->alloc(bytes);
    memset(b->host, 0xff, bytes);
    return b;
}

static void put(buffer *b) {
    gpu->write(b->device, b->host, b->bytes);
}

static float *get(buffer *b) {
    gpu->read(b->host, b->device, b->bytes);
    return b->host;
}

static uint64_t random_bits(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed >> 11;
}

static float uniform(float low, float high) {
    return low + (high - low) * (float)(random_bits() % (1u << 24)) * 0x1p-24f;
}

static buffer *floats(size_t n, float low, float high) {
    buffer *b = make(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        ((float *)b->host)[i] = uniform(low, high);
    put(b);
    return b;
}

static buffer *copy_of(const void *from, size_t bytes) {
    buffer *b = make(bytes);
    memcpy(b->host, from, bytes);
    put(b);
    return b;
}

#define LAUNCH(kernel, shape, args)                                                            \
    gpu->launch(CUDA_KERNEL_##kernel, (shape), &(args), sizeof(args))

/* ---- errors ---- */

static double worse(double a, double b) {
    return !(a <= b) && a == a ? a : a != a ? HUGE_VAL : b;
}

static double relative_l2(const float *a, const double *b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite((double)a[i])) return HUGE_VAL;
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}

static double relative_l2_f(const float *a, const float *b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite((double)a[i])) return HUGE_VAL;
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}

/* ---- weights and activations ---- */

static void put_half(uint8_t *at, float value) {
    const uint16_t h = half_from_float(value);
    memcpy(at, &h, 2);
}

static void fill_block(uint32_t type, uint8_t *b) {
    const float d = uniform(0.002f, 0.01f), value = uniform(-1, 1);
    const uint32_t bits = float_to_bits(value);
    switch (type) {
    case QUANT_F32:
        memcpy(b, &value, 4);
        break;
    case QUANT_F16:
        put_half(b, value);
        break;
    case QUANT_BF16:
        b[0] = (uint8_t)(bits >> 16);
        b[1] = (uint8_t)(bits >> 24);
        break;
    case QUANT_MXFP4:
        b[0] = (uint8_t)(118 + b[0] % 6);
        break;
    case QUANT_Q2_K:
        put_half(b + 80, d);
        put_half(b + 82, 1.5f * d);
        break;
    case QUANT_Q3_K:
        put_half(b + 108, d);
        break;
    case QUANT_Q6_K:
        put_half(b + 208, d);
        break;
    case QUANT_Q4_1:
    case QUANT_Q5_1:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
        put_half(b + 2, 7 * d);
        put_half(b, d);
        break;
    default:
        put_half(b, d);
    }
}

void cuda_case_fill(uint32_t type, void *blocks, size_t bytes) {
    uint8_t *b = blocks;
    if (seed == 0) seed = 88172645463325252u;
    const quant_traits *traits = quant_traits_of(type);
    for (size_t i = 0; i < bytes; i++)
        b[i] = (uint8_t)random_bits();
    for (size_t i = 0; i < bytes; i += traits->block_bytes)
        fill_block(type, b + i);
}

static buffer *weights(uint32_t type, size_t n_rows, size_t n_cols) {
    buffer *b = make(n_rows * quant_row_bytes((quant_type)type, n_cols));
    cuda_case_fill(type, b->host, b->bytes);
    put(b);
    return b;
}

/* Activation rows quantized by the device, and what they stand for. */
typedef struct activations {
    buffer *x;   /* float32 */
    buffer *act; /* quantized */
    double *value;
    size_t n_cols, stride;
} activations;

static void dequantize_acts(const uint8_t *act, size_t stride, size_t n_rows, size_t n_cols,
                            double *out) {
    for (size_t r = 0; r < n_rows; r++) {
        const int8_t *q = (const int8_t *)act + r * stride;
        for (size_t i = 0; i < n_cols; i++) {
            float scale;
            memcpy(&scale, act + r * stride + n_cols + i / 16 * 8, 4);
            out[r * n_cols + i] = (double)scale * q[i];
        }
    }
}

static activations acts(size_t n_rows, size_t n_cols) {
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

static double *doubles_of(const float *x, size_t n) {
    buffer *b = make(n * sizeof(double));
    for (size_t i = 0; i < n; i++)
        ((double *)b->host)[i] = (double)x[i];
    return b->host;
}

/* W x in float64, W dequantized by the oracle; out[token][row]. */
static void product(uint32_t type, const void *w, size_t n_rows, size_t n_cols, const double *x,
                    size_t n_tokens, double *out) {
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

static bool is_quantized(uint32_t type) {
    return !matvec_is_float(type);
}

/* ---- rows ---- */

static double case_quantize(const kernel_device *device) {
    begin(device);
    enum { ROWS = 3, COLS = 1056 };
    activations a = acts(ROWS, COLS);
    const float *x = a.x->host;
    double most = 0;
    for (size_t g = 0; g < ROWS * COLS; g += 32) {
        float amax = 0;
        for (size_t i = g; i < g + 32; i++)
            amax = fmaxf(amax, fabsf(x[i]));
        for (size_t i = g; i < g + 32; i++) {
            const float q = rintf(x[i] * (127.0f / amax));
            most = worse(fabs(a.value[i] - (double)q * (double)(amax / 127.0f)), most);
        }
    }
    const uint8_t *row = a.act->host;
    for (size_t u = 0; u < COLS / 16; u++) {
        float factor[2];
        int sum = 0;
        memcpy(factor, row + COLS + 8 * u, 8);
        for (size_t i = 16 * u; i < 16 * u + 16; i++)
            sum += (int8_t)row[i];
        most = worse(fabs((double)factor[1] - (double)factor[0] * sum), most);
    }
    end();
    return most;
}

/* Zeros stay zeros; a NaN or an infinity shows in its group alone. */
static double case_quantize_extremes(const kernel_device *device) {
    begin(device);
    enum { COLS = 128 };
    buffer *x = floats(COLS, -1, 1), *act = make(cuda_act_row_bytes(COLS));
    float *v = x->host;
    for (int i = 0; i < 32; i++)
        v[i] = 0;
    v[40] = NAN;
    v[70] = INFINITY;
    put(x);
    const quantize_args args = {x->device, act->device, COLS, act->bytes, COLS, 1};
    LAUNCH(quantize, quantize_shape(&args), args);
    const uint8_t *row = (const void *)get(act);
    double wrong = 0;
    for (size_t g = 0; g < 4; g++) {
        float scale;
        memcpy(&scale, row + COLS + 16 * g, 4);
        const bool right = g == 0 ? scale == 0 : g == 3 ? scale > 0 : isnan((double)scale);
        if (!right || (g < 3 && row[32 * g + 5] != 0)) wrong++;
    }
    end();
    return wrong;
}

static double case_embed(const kernel_device *device) {
    double most = 0;
    for (size_t i = 0; i < N_TYPES; i++) {
        begin(device);
        enum { VOCAB = 7, DIM = 512, ROWS = 3 };
        const int32_t tokens[ROWS] = {6, 0, 3};
        buffer *w = weights(types[i], VOCAB, DIM), *out = make(ROWS * DIM * 4);
        const embed_args args = {
            .table = w->device,
            .tokens = copy_of(tokens, sizeof tokens)->device,
            .out = out->device,
            .row_bytes = quant_row_bytes((quant_type)types[i], DIM),
            .out_stride = DIM,
            .type = types[i],
            .dim = DIM,
        };
        LAUNCH(embed, embed_shape(&args, ROWS), args);
        const float *y = get(out);
        for (int r = 0; r < ROWS; r++) {
            float row[DIM];
            dequantize_row((quant_type)types[i],
                           (const uint8_t *)w->host + (size_t)tokens[r] * args.row_bytes, DIM,
                           row);
            if (memcmp(row, y + r * DIM, sizeof row) != 0) most = worse(i + 1.0, most);
        }
        end();
    }
    return most;
}

static double norm_case(uint32_t dim, bool delta, bool quantized) {
    enum { ROWS = 3 };
    buffer *x = floats(ROWS * dim, -2, 2), *d = floats(ROWS * dim, -1, 1);
    buffer *w = floats(dim, 0.5f, 1.5f), *y = make(ROWS * dim * 4);
    buffer *act = make(ROWS * cuda_act_row_bytes(dim));
    buffer *expected = copy_of(x->host, x->bytes), *ey = make(y->bytes);
    norm_args args = {.x = x->device,
                      .delta = delta ? d->device : NULL,
                      .weight = w->device,
                      .y = y->device,
                      .act = quantized ? act->device : NULL,
                      .x_stride = dim,
                      .delta_stride = dim,
                      .y_stride = dim,
                      .act_stride = cuda_act_row_bytes(dim),
                      .dim = dim,
                      .eps = 1e-6f};
    LAUNCH(rmsnorm, rmsnorm_shape(ROWS), args);
    const rmsnorm_args oracle = {.x = expected->host,
                                 .delta = delta ? d->host : NULL,
                                 .weight = w->host,
                                 .y = ey->host,
                                 .x_stride = dim,
                                 .delta_stride = dim,
                                 .y_stride = dim,
                                 .dim = dim,
                                 .eps = 1e-6f};
    rmsnorm_rows(CPU_SCALAR, &oracle, 0, ROWS);
    double most = relative_l2_f(get(y), ey->host, ROWS * dim);
    most = worse(relative_l2_f(get(x), expected->host, ROWS * dim), most);
    if (quantized) {
        double *value = doubles_of(ey->host, ROWS * dim);
        dequantize_acts((const void *)get(act), args.act_stride, ROWS, dim, value);
        if (!(relative_l2(ey->host, value, ROWS * dim) < 0.01)) return 1;
    }
    return most;
}

static double case_rmsnorm(const kernel_device *device) {
    double most = 0;
    for (int i = 0; i < 4; i++) {
        begin(device);
        most = worse(norm_case(i % 2 ? 2048 : 96, i < 2, true), most);
        end();
    }
    begin(device);
    most = worse(norm_case(50, true, false), most);
    end();
    return most;
}

static double case_swiglu(const kernel_device *device) {
    begin(device);
    enum { ROWS = 3, COLS = 1120 };
    buffer *gate = floats(ROWS * COLS, -4, 4), *up = floats(ROWS * COLS, -1, 1);
    buffer *out = make(ROWS * COLS * 4), *expected = make(out->bytes);
    buffer *act = make(ROWS * cuda_act_row_bytes(COLS));
    const swiglu_q8_args args = {
        gate->device, up->device, out->device, act->device,
        COLS,         COLS,       COLS,        cuda_act_row_bytes(COLS),
        COLS,         ROWS};
    LAUNCH(swiglu, swiglu_shape(&args), args);
    const swiglu_args oracle = {gate->host, up->host, expected->host, COLS,
                                COLS,       COLS,     COLS,           0};
    swiglu_rows(CPU_SCALAR, &oracle, 0, ROWS);
    double most = relative_l2_f(get(out), expected->host, ROWS * COLS);
    double *value = doubles_of(expected->host, ROWS * COLS);
    dequantize_acts((const void *)get(act), args.act_stride, ROWS, COLS, value);
    if (!(relative_l2(expected->host, value, ROWS * COLS) < 0.01)) most = 1;
    end();
    return most;
}

static double case_argmax(const kernel_device *device) {
    begin(device);
    enum { ROWS = 4, N = 5003 };
    buffer *x = floats(ROWS * N, -9, 3), *index = make(ROWS * sizeof(int32_t));
    float *v = x->host;
    v[77] = v[4000] = 5;
    v[N + 3] = NAN;
    for (int i = 0; i < N; i++)
        v[2 * N + i] = NAN;
    put(x);
    const argmax_args args = {x->device, index->device, N, N, ROWS};
    LAUNCH(argmax, argmax_shape(&args), args);
    const int32_t *found = (const void *)get(index);
    double wrong = 0;
    for (int r = 0; r < ROWS; r++) {
        const size_t best = vector_argmax(CPU_SCALAR, v + r * N, N);
        if (found[r] != (best == N ? -1 : (int32_t)best)) wrong++;
    }
    end();
    return wrong;
}

/* ---- matrices ---- */

/* Two segments of a type, one stored and one added, against n_tokens rows. */
static double matvec_case(uint32_t type, uint32_t n_cols, uint32_t n_tokens, bool exact) {
    enum { A = 37, B = 20 };
    buffer *w[2] = {weights(type, A, n_cols), weights(type, B, n_cols)};
    activations x = acts(n_tokens, n_cols);
    buffer *out[2] = {floats(n_tokens * A, -1, 1), floats(n_tokens * B, -1, 1)};
    const bool integers = !exact && is_quantized(type);
    const double *value = integers ? x.value : doubles_of(x.x->host, (size_t)n_tokens * n_cols);
    double *expected[2];
    matvec_args args = {.x = x.x->device,
                        .act = exact ? NULL : x.act->device,
                        .x_stride = n_cols,
                        .act_stride = x.stride,
                        .n_cols = n_cols,
                        .n_tokens = n_tokens,
                        .n_segments = 2};
    for (int s = 0; s < 2; s++) {
        const uint32_t n_rows = s ? B : A;
        args.segments[s] =
            (matvec_segment){.weights = w[s]->device,
                             .out = out[s]->device,
                             .row_bytes = quant_row_bytes((quant_type)type, n_cols),
                             .out_stride = n_rows,
                             .type = type,
                             .n_rows = n_rows,
                             .add = (uint32_t)s};
        expected[s] = doubles_of(out[s]->host, n_tokens * n_rows);
        product(type, w[s]->host, n_rows, n_cols, value, n_tokens, expected[s]);
        for (size_t i = 0; s == 1 && i < n_tokens * n_rows; i++)
            expected[s][i] += (double)((float *)out[s]->host)[i];
    }
    cuda_shape shape;
    const cuda_kernel kernel = matvec_choose(&args, 2, &shape);
    gpu->launch(kernel, shape, &args, sizeof args);
    return worse(relative_l2(get(out[0]), expected[0], n_tokens * A),
                 relative_l2(get(out[1]), expected[1], n_tokens * B));
}

static double case_matvec(const kernel_device *device) {
    double most = 0;
    for (size_t i = 0; i < N_TYPES; i++) {
        const bool large = quant_traits_of(types[i])->block_values == 256;
        const uint32_t cols[] = {large ? 256 : 64, large ? 1280 : 1120};
        for (uint32_t k = 0; k < 2; k++) {
            for (uint32_t tokens = 1; tokens <= 8; tokens += i < 4 ? 2 + k : 6) {
                begin(device);
                const double off = matvec_case(types[i], cols[k], tokens, false);
                if (off > 1e-5)
                    printf("  %s %u columns %u tokens: %g\n", quant_traits_of(types[i])->name,
                           cols[k], tokens, off);
                most = worse(off, most);
                end();
            }
        }
    }
    return most;
}

static double case_matvec_f32(const kernel_device *device) {
    double most = 0;
    for (size_t i = 0; i < N_TYPES; i++) {
        begin(device);
        most = worse(matvec_case(types[i], 512, 2, true), most);
        end();
    }
    return most;
}

/* A token's bits do not depend on how many others there are. */
static double case_matvec_company(const kernel_device *device) {
    begin(device);
    enum { ROWS = 40, COLS = 1280, TOKENS = 8 };
    buffer *w = weights(QUANT_Q4_K, ROWS, COLS), *first = make(ROWS * 4);
    activations x = acts(TOKENS, COLS);
    double wrong = 0;
    for (uint32_t tokens = 1; tokens <= TOKENS; tokens++) {
        buffer *out = make(TOKENS * ROWS * 4);
        matvec_args args = {.act = x.act->device,
                            .act_stride = x.stride,
                            .n_cols = COLS,
                            .n_tokens = tokens,
                            .n_segments = 1};
        args.segments[0] = (matvec_segment){.weights = w->device,
                                            .out = out->device,
                                            .row_bytes = quant_row_bytes(QUANT_Q4_K, COLS),
                                            .out_stride = ROWS,
                                            .type = QUANT_Q4_K,
                                            .n_rows = ROWS};
        cuda_shape shape;
        const cuda_kernel kernel = matvec_choose(&args, 1 + tokens, &shape);
        gpu->launch(kernel, shape, &args, sizeof args);
        get(out);
        if (tokens == 1) memcpy(first->host, out->host, first->bytes);
        if (memcmp(first->host, out->host, first->bytes) != 0) wrong++;
    }
    end();
    return wrong;
}

/* Split Q6_K gives the bits of raw Q6_K. */
static double case_repack(const kernel_device *device) {
    begin(device);
    enum { ROWS = 24, COLS = 512, BLOCKS = ROWS * 2 };
    buffer *w = weights(QUANT_Q6_K, ROWS, COLS), *split = make(w->bytes);
    activations x = acts(1, COLS);
    buffer *out[2] = {make(ROWS * 4), make(ROWS * 4)};
    for (uint64_t first = 0; first < BLOCKS; first += BLOCKS / 2) {
        const repack_args args = {(const uint8_t *)w->device + first * 210, split->device,
                                  BLOCKS / 2, first, BLOCKS};
        LAUNCH(repack_q6_k, repack_shape(&args), args);
    }
    for (int s = 0; s < 2; s++) {
        matvec_args args = {.act = x.act->device,
                            .act_stride = x.stride,
                            .n_cols = COLS,
                            .n_tokens = 1,
                            .n_segments = 1};
        args.segments[0] =
            (matvec_segment){.weights = s ? split->device : w->device,
                             .out = out[s]->device,
                             .row_bytes = COLS / 256 * (s ? 208 : 210),
                             .split_d = BLOCKS * 208,
                             .type = s ? (uint32_t)CUDA_Q6_K_SPLIT : (uint32_t)QUANT_Q6_K,
                             .n_rows = ROWS};
        cuda_shape shape;
        const cuda_kernel kernel = matvec_choose(&args, 2, &shape);
        gpu->launch(kernel, shape, &args, sizeof args);
        get(out[s]);
    }
    const double wrong = memcmp(out[0]->host, out[1]->host, ROWS * 4) != 0;
    end();
    return wrong;
}

static double matmul_case(uint32_t type, uint32_t n_rows, uint32_t n_cols, uint32_t n_tokens,
                          bool exact) {
    buffer *w = weights(type, n_rows, n_cols), *out = floats(n_tokens * n_rows, -1, 1);
    activations x = acts(n_tokens, n_cols);
    const bool integers = !exact && is_quantized(type);
    const double *value = integers ? x.value : doubles_of(x.x->host, (size_t)n_tokens * n_cols);
    double *expected = doubles_of(out->host, n_tokens * n_rows);
    product(type, w->host, n_rows, n_cols, value, n_tokens, expected);
    for (size_t i = 0; i < n_tokens * n_rows; i++)
        expected[i] += (double)((float *)out->host)[i];
    const matmul_args args = {.weights = w->device,
                              .x = x.x->device,
                              .act = exact ? NULL : x.act->device,
                              .out = out->device,
                              .row_bytes = quant_row_bytes((quant_type)type, n_cols),
                              .x_stride = n_cols,
                              .act_stride = x.stride,
                              .out_stride = n_rows,
                              .type = type,
                              .n_rows = n_rows,
                              .n_cols = n_cols,
                              .n_tokens = n_tokens,
                              .add = 1};
    cuda_shape shape;
    const cuda_kernel kernel = matmul_choose(&args, &shape);
    gpu->launch(kernel, shape, &args, sizeof args);
    return relative_l2(get(out), expected, n_tokens * n_rows);
}

static double case_matmul(const kernel_device *device) {
    double most = 0;
    for (size_t i = 0; i < N_TYPES; i++) {
        const bool large = quant_traits_of(types[i])->block_values == 256;
        begin(device);
        double off = matmul_case(types[i], 70, large ? 256 : 96, 67, false);
        if (i == 0) off = worse(matmul_case(types[i], 64, 512, 9, false), off);
        if (off > 1e-5) printf("  %s: %g\n", quant_traits_of(types[i])->name, off);
        most = worse(off, most);
        end();
    }
    return most;
}

static double case_matmul_f32(const kernel_device *device) {
    double most = 0;
    for (size_t i = 0; i < N_TYPES; i += 3) {
        begin(device);
        most = worse(matmul_case(types[i], 70, 256, 67, true), most);
        end();
    }
    return most;
}

/* ---- experts ---- */

typedef struct expert_set {
    buffer *record[8]; /* gate, up, down of an expert */
    buffer *table;     /* device addresses */
    uint32_t n, n_embd, n_ff, type, down_type;
    size_t up_at, down_at;
} expert_set;

static expert_set expert_records(uint32_t n, uint32_t n_embd, uint32_t n_ff, uint32_t type,
                                 uint32_t down_type) {
    expert_set s = {
        .n = n, .n_embd = n_embd, .n_ff = n_ff, .type = type, .down_type = down_type};
    s.up_at = n_ff * quant_row_bytes((quant_type)type, n_embd);
    s.down_at = 2 * s.up_at;
    s.table = make(n * 8);
    for (uint32_t e = 0; e < n; e++) {
        s.record[e] = make(s.down_at + n_embd * quant_row_bytes((quant_type)down_type, n_ff));
        uint8_t *at = s.record[e]->host;
        cuda_case_fill(type, at, s.down_at);
        cuda_case_fill(down_type, at + s.down_at, s.record[e]->bytes - s.down_at);
        put(s.record[e]);
        ((uint64_t *)s.table->host)[e] = (uint64_t)(uintptr_t)s.record[e]->device;
    }
    put(s.table);
    return s;
}

/* silu(gate x) * (up x) of one expert in float64. */
static void hidden_of(const expert_set *s, const void *record, const double *x, double *h) {
    double *gate = calloc(2 * (size_t)s->n_ff, sizeof *gate);
    if (gate == NULL) abort();
    product(s->type, record, 2 * s->n_ff, s->n_embd, x, 1, gate);
    for (uint32_t i = 0; i < s->n_ff; i++)
        h[i] = gate[i] / (1 + exp(-gate[i])) * gate[s->n_ff + i];
    free(gate);
}

/* The shared expert is record n - 1; expert 1 is missing when `missing`. */
static double experts_case(uint32_t type, uint32_t down_type, bool quantized, bool missing) {
    enum { N = 4, USED = 2, ROWS = 2, E = 256, F = 64, PAIRS = ROWS * USED };
    const uint32_t n_ff = down_type == QUANT_Q8_0 || down_type == QUANT_F32 ? 96 : 256;
    const int32_t experts[PAIRS] = {2, 0, 1, 2};
    const float weight[PAIRS] = {0.75f, 0.25f, 0.625f, 0.375f}, gate[ROWS] = {0.5f, -1.25f};
    expert_set s = expert_records(N, E, n_ff, type, down_type);
    const void *shared = s.record[N - 1]->device;
    if (missing) {
        ((uint64_t *)s.table->host)[1] = 0;
        put(s.table);
    }
    activations x = acts(ROWS, E);
    const size_t h_stride = n_ff, act_stride = cuda_act_row_bytes(n_ff);
    buffer *h = make((PAIRS + ROWS) * h_stride * 4), *h_act = make((PAIRS + ROWS) * act_stride);
    buffer *foreign = floats(PAIRS * E, -1, 1), *out = floats(ROWS * E, -1, 1);
    const buffer *chosen = copy_of(experts, sizeof experts);
    const size_t row_bytes = quant_row_bytes((quant_type)type, E);
    const size_t down_bytes = quant_row_bytes((quant_type)down_type, n_ff);
    const experts_up_args up = {.records = s.table->device,
                                .experts = chosen->device,
                                .x = x.x->device,
                                .act = quantized ? x.act->device : NULL,
                                .h = h->device,
                                .h_act = quantized ? h_act->device : NULL,
                                .x_stride = E,
                                .act_stride = x.stride,
                                .h_stride = h_stride,
                                .h_act_stride = act_stride,
                                .gate = {shared, 0, row_bytes, row_bytes, 0, 0, type, type},
                                .up = {(const uint8_t *)shared + s.up_at, s.up_at, row_bytes,
                                       row_bytes, 0, 0, type, type},
                                .n_rows = ROWS,
                                .n_used = USED,
                                .n_cols = E,
                                .n_ff = n_ff,
                                .n_ff_shared = n_ff};
    const experts_down_args down = {.records = s.table->device,
                                    .experts = chosen->device,
                                    .weights = copy_of(weight, sizeof weight)->device,
                                    .shared_gate = copy_of(gate, sizeof gate)->device,
                                    .h = h->device,
                                    .h_act = quantized ? h_act->device : NULL,
                                    .foreign = foreign->device,
                                    .x = out->device,
                                    .h_stride = h_stride,
                                    .h_act_stride = act_stride,
                                    .x_stride = E,
                                    .down = {(const uint8_t *)shared + s.down_at, s.down_at,
                                             down_bytes, down_bytes, 0, 0, down_type,
                                             down_type},
                                    .n_rows = ROWS,
                                    .n_used = USED,
                                    .n_embd = E,
                                    .n_ff = n_ff,
                                    .n_ff_shared = n_ff};
    LAUNCH(experts_up, experts_up_shape(&up), up);
    LAUNCH(experts_down, experts_down_shape(&down), down);
    get(h);
    get(h_act);
    const double *value =
        quantized && is_quantized(type) ? x.value : doubles_of(x.x->host, ROWS * E);
    double most = 0, *expected = doubles_of(out->host, ROWS * E);
    for (int p = 0; p < PAIRS + ROWS; p++) {
        const int row = p < PAIRS ? p / USED : p - PAIRS, e = p < PAIRS ? experts[p] : N - 1;
        double hidden[256], y[E];
        if (p < PAIRS && missing && e == 1) {
            for (int i = 0; i < E; i++)
                expected[row * E + i] +=
                    (double)weight[p] * (double)((float *)foreign->host)[p * E + i];
            continue;
        }
        const uint8_t *record = s.record[e]->host;
        hidden_of(&s, record, value + row * E, hidden);
        most = worse(relative_l2((float *)h->host + (size_t)p * n_ff, hidden, n_ff), most);
        const float *mine = (float *)h->host + (size_t)p * n_ff;
        for (uint32_t i = 0; i < n_ff; i++)
            hidden[i] = (double)mine[i];
        if (quantized && is_quantized(down_type))
            dequantize_acts((uint8_t *)h_act->host + (size_t)p * act_stride, act_stride, 1,
                            n_ff, hidden);
        product(down_type, record + s.down_at, E, n_ff, hidden, 1, y);
        const double factor = p < PAIRS ? (double)weight[p] : 1 / (1 + exp(-(double)gate[row]));
        for (int i = 0; i < E; i++)
            expected[row * E + i] += factor * y[i];
    }
    return worse(relative_l2(get(out), expected, ROWS * E), most);
}

static double case_experts(const kernel_device *device) {
    static const struct {
        uint32_t type, down;
        bool quantized, missing;
    } cases[] = {{QUANT_Q4_K, QUANT_Q4_K, true, false}, {QUANT_Q4_K, QUANT_Q6_K, true, true},
                 {QUANT_Q8_0, QUANT_Q8_0, true, true},  {QUANT_IQ4_XS, QUANT_Q5_K, true, false},
                 {QUANT_F32, QUANT_F32, false, true},   {QUANT_Q4_K, QUANT_Q6_K, false, false},
                 {QUANT_F16, QUANT_F16, true, false}};
    double most = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(device);
        const double off =
            experts_case(cases[i].type, cases[i].down, cases[i].quantized, cases[i].missing);
        if (off > 1e-5) printf("  case %zu: %g\n", i, off);
        most = worse(off, most);
        end();
    }
    return most;
}

/* The sorted lists and the grouped product against each pair's own. */
static double case_experts_grouped(const kernel_device *device) {
    begin(device);
    enum { N = 5, USED = 2, ROWS = 70, E = 256, F = 64, PAIRS = ROWS * USED };
    int32_t experts[PAIRS];
    for (int p = 0; p < PAIRS; p++)
        experts[p] = p % 9 == 0 ? 0 : 2 + p % 3;
    buffer *w[N], *table = make(N * 8);
    for (int e = 0; e < N; e++) {
        w[e] = weights(QUANT_Q4_K, F, E);
        ((uint64_t *)table->host)[e] = e == 4 ? 0 : (uint64_t)(uintptr_t)w[e]->device;
    }
    put(table);
    activations x = acts(ROWS, E);
    buffer *pair_row = make(PAIRS * 4), *pair_out = make(PAIRS * 4), *first = make((N + 1) * 4);
    buffer *tiles = make(matmul_max_tiles(PAIRS, N) * sizeof(matmul_tile)), *n_tiles = make(4);
    buffer *out = floats(PAIRS * F, -1, 1);
    const experts_sort_args sort = {copy_of(experts, sizeof experts)->device,
                                    pair_row->device,
                                    pair_out->device,
                                    first->device,
                                    tiles->device,
                                    n_tiles->device,
                                    PAIRS,
                                    USED,
                                    N,
                                    0};
    LAUNCH(experts_sort, experts_sort_shape(), sort);
    const matmul_args args = {.act = x.act->device,
                              .out = out->device,
                              .records = table->device,
                              .tiles = tiles->device,
                              .n_tiles = n_tiles->device,
                              .in_rows = pair_row->device,
                              .out_rows = pair_out->device,
                              .row_bytes = quant_row_bytes(QUANT_Q4_K, E),
                              .act_stride = x.stride,
                              .out_stride = F,
                              .type = QUANT_Q4_K,
                              .n_rows = F,
                              .n_cols = E,
                              .n_tokens = PAIRS,
                              .n_groups = N};
    double *expected = doubles_of(out->host, PAIRS * F);
    cuda_shape shape;
    const cuda_kernel kernel = matmul_choose(&args, &shape);
    gpu->launch(kernel, shape, &args, sizeof args);
    for (int p = 0; p < PAIRS; p++)
        if (experts[p] != 4)
            product(QUANT_Q4_K, w[experts[p]]->host, F, E, x.value + p / USED * E, 1,
                    expected + p * F);
    const double most = relative_l2(get(out), expected, PAIRS * F);
    end();
    return most;
}

static double case_combine(const kernel_device *device) {
    begin(device);
    enum { ROWS = 3, USED = 2, DIM = 300, PAIRS = ROWS * USED };
    const int32_t experts[PAIRS] = {0, 1, 2, 1, 1, 0};
    const uint64_t records[3] = {256, 0, 256};
    buffer *x = floats(ROWS * DIM, -1, 1), *y = floats(PAIRS * DIM, -1, 1);
    buffer *foreign = floats(PAIRS * DIM, -1, 1), *w = floats(PAIRS, 0, 1);
    buffer *shared = floats(ROWS * DIM, -1, 1), *gate = floats(ROWS, -2, 2);
    buffer *out = make(ROWS * DIM * 4), *expected = make(ROWS * DIM * 4);
    combine_args args = {.base = {x->device, y->device, w->device, shared->device, gate->device,
                                  out->device, DIM, DIM, DIM, 1, DIM, DIM, USED},
                         .records = copy_of(records, sizeof records)->device,
                         .experts = copy_of(experts, sizeof experts)->device,
                         .foreign = foreign->device,
                         .n_rows = ROWS};
    LAUNCH(moe_combine, moe_combine_shape(&args), args);
    for (int p = 0; p < PAIRS; p++)
        if (experts[p] == 1)
            memcpy((float *)y->host + p * DIM, (float *)foreign->host + p * DIM, DIM * 4);
    const moe_combine_args oracle = {
        x->host, y->host, w->host, shared->host, gate->host, expected->host, DIM, DIM,
        DIM,     1,       DIM,     DIM,          USED};
    moe_combine_rows(CPU_SCALAR, &oracle, 0, ROWS);
    const double most = relative_l2_f(get(out), expected->host, ROWS * DIM);
    end();
    return most;
}

static double case_router(const kernel_device *device) {
    begin(device);
    enum { ROWS = 4, N = 131, USED = 8 };
    buffer *l = floats(ROWS * N, -4, 4), *experts = make(ROWS * USED * 4);
    buffer *w = make(ROWS * USED * 4), *ids = make(ROWS * USED * 4), *expected = make(w->bytes);
    float *v = l->host;
    v[3] = v[100] = v[64] = 9; /* equals */
    for (int i = 0; i < N; i++)
        v[N + i] = i == 7 ? 1.0f : -INFINITY; /* most of the chosen are equal */
    put(l);
    const router_args args = {l->device, experts->device, w->device, N, N, USED};
    const router_args oracle = {l->host, ids->host, expected->host, N, N, USED};
    LAUNCH(router, router_shape(ROWS), args);
    router_rows(CPU_SCALAR, &oracle, 0, ROWS);
    get(experts);
    double most = relative_l2_f(get(w), expected->host, ROWS * USED);
    if (memcmp(experts->host, ids->host, ids->bytes) != 0) most = 1;
    end();
    return most;
}

/* ---- mixers ---- */

static const batch_run two_runs[2] = {{0, 45, 21, 1, 0}, {45, 3, 62, 0, 2}};

/* A batch of rows of the two runs; device addresses in *device_view. */
static batch_view batch_of(const batch_run *runs, uint32_t n_runs, const uint32_t *pages,
                           uint32_t n_pages, batch_view *device_view) {
    uint32_t row_run[128] = {0}, n_rows = 0;
    for (uint32_t r = 0; r < n_runs; r++)
        for (uint32_t i = 0; i < runs[r].n_rows; i++)
            row_run[n_rows++] = r;
    const buffer *a = copy_of(runs, n_runs * sizeof *runs), *b = copy_of(row_run, n_rows * 4);
    const buffer *c = copy_of(pages, n_pages * 4);
    *device_view = (batch_view){a->device, b->device, c->device, n_rows, n_runs};
    return (batch_view){a->host, b->host, c->host, n_rows, n_runs};
}

static double conv_case(const batch_run *runs, uint32_t n_runs, bool in_place) {
    enum { CHANNELS = 144, TAPS = 4, STATE = (TAPS - 1) * CHANNELS + 16 };
    const uint32_t no_pages[1] = {0};
    batch_view view;
    const batch_view host = batch_of(runs, n_runs, no_pages, 1, &view);
    const size_t n = (size_t)view.n_rows * CHANNELS;
    buffer *x = floats(n, -1, 1), *w = floats(TAPS * CHANNELS, -1, 1);
    buffer *state = floats(2 * STATE, -1, 1), *y = in_place ? x : make(n * 4);
    buffer *ey = copy_of(x->host, x->bytes), *es = copy_of(state->host, state->bytes);
    const conv1d_args args = {view,     x->device, w->device, state->device, y->device,
                              CHANNELS, CHANNELS,  STATE,     CHANNELS,      TAPS};
    const conv1d_args oracle = {host,     ey->host, w->host, es->host, ey->host,
                                CHANNELS, CHANNELS, STATE,   CHANNELS, TAPS};
    LAUNCH(conv1d, conv1d_shape(&args), args);
    conv1d_channels(CPU_SCALAR, &oracle, 0, CHANNELS);
    return worse(relative_l2_f(get(y), ey->host, n),
                 relative_l2_f(get(state), es->host, 2 * STATE));
}

static double case_conv1d(const kernel_device *device) {
    static const batch_run short_run[1] = {{0, 2, 9, 1, 0}};
    double most = 0;
    for (int i = 0; i < 4; i++) {
        begin(device);
        most =
            worse(i < 2 ? conv_case(two_runs, 2, i % 2) : conv_case(short_run, 1, i % 2), most);
        end();
    }
    return most;
}

/* chunked: 0 token by token, 1 in chunks. */
static double delta_case(uint32_t dim, uint32_t grouped, bool chunked) {
    enum { KEY_HEADS = 2, HEADS = 4 };
    const uint32_t no_pages[1] = {0};
    batch_view view;
    const batch_view host = batch_of(two_runs, 2, no_pages, 1, &view);
    const uint32_t n_rows = view.n_rows, inner = HEADS * dim,
                   conv = (2 * KEY_HEADS + HEADS) * dim;
    const size_t one = (size_t)HEADS * dim * dim, n = (size_t)n_rows * inner;
    buffer *qkv = floats((size_t)n_rows * conv, -1, 1), *z = floats(n, -2, 2);
    buffer *alpha = floats(n_rows * HEADS, -1, 1), *beta = floats(n_rows * HEADS, -2, 2);
    buffer *a = floats(HEADS, -1.5f, -0.1f), *dt = floats(HEADS, -1, 1);
    buffer *norm = floats(dim, 0.5f, 1.5f), *state = floats(2 * one, -0.1f, 0.1f);
    buffer *out = make(n * 4), *act = make(n_rows * cuda_act_row_bytes(inner));
    buffer *expected = make(n * 4), *es = copy_of(state->host, state->bytes);
    buffer *work = make(delta_net_workspace_bytes(n_rows, 2, HEADS)), *raw = make(n * 4);
    const delta_net_cuda_args args = {.base = {.batch = view,
                                               .qkv = qkv->device,
                                               .z = z->device,
                                               .alpha = alpha->device,
                                               .beta = beta->device,
                                               .a = a->device,
                                               .dt = dt->device,
                                               .norm = norm->device,
                                               .state = state->device,
                                               .out = out->device,
                                               .qkv_stride = conv,
                                               .z_stride = inner,
                                               .alpha_stride = HEADS,
                                               .beta_stride = HEADS,
                                               .out_stride = inner,
                                               .state_stride = one,
                                               .n_key_heads = KEY_HEADS,
                                               .n_value_heads = HEADS,
                                               .dim = dim,
                                               .grouped = grouped,
                                               .eps = 1e-6f},
                                      .act = act->device,
                                      .act_stride = cuda_act_row_bytes(inner),
                                      .workspace = work->device,
                                      .raw = raw->device};
    delta_net_args oracle = args.base;
    oracle.batch = host;
    oracle.qkv = qkv->host;
    oracle.z = z->host;
    oracle.alpha = alpha->host;
    oracle.beta = beta->host;
    oracle.a = a->host;
    oracle.dt = dt->host;
    oracle.norm = norm->host;
    oracle.state = es->host;
    oracle.out = expected->host;
    if (chunked) {
        LAUNCH(delta_net_scores, delta_net_scores_shape(&args), args);
        LAUNCH(delta_net_chunks, delta_net_chunks_shape(&args), args);
        LAUNCH(delta_net_norm, delta_net_norm_shape(&args), args);
    } else {
        LAUNCH(delta_net_step, delta_net_step_shape(&args), args);
    }
    buffer *scratch = make(delta_net_scratch_bytes(dim));
    delta_net_items(CPU_SCALAR, &oracle, 0, delta_net_n_items(&oracle), scratch->host);
    double most = worse(relative_l2_f(get(out), expected->host, n),
                        relative_l2_f(get(state), es->host, 2 * one));
    double *value = doubles_of(expected->host, n);
    dequantize_acts((const void *)get(act), args.act_stride, n_rows, inner, value);
    if (!(relative_l2(expected->host, value, n) < 0.01)) most = worse(1, most);
    return most;
}

static double case_delta_step(const kernel_device *device) {
    double most = 0;
    for (int i = 0; i < 4; i++) {
        static const uint32_t dims[] = {128, 64, 32, 96};
        begin(device);
        most = worse(delta_case(dims[i], (uint32_t)i % 2, false), most);
        end();
    }
    return most;
}

static double case_delta_chunks(const kernel_device *device) {
    double most = 0;
    for (int i = 0; i < 3; i++) {
        static const uint32_t dims[] = {128, 64, 32};
        begin(device);
        most = worse(delta_case(dims[i], (uint32_t)i % 2, true), most);
        end();
    }
    return most;
}

/* How attention is computed. */
typedef enum attention_way { WAY_SPLIT, WAY_TILE } attention_way;

static double attention_case(uint32_t dim, uint32_t n_heads, uint32_t n_kv_heads, uint32_t type,
                             attention_way way) {
    enum { PAGES = 4, ROT = 32 };
    const uint32_t pages[PAGES] = {3, 1, 0, 2};
    batch_view view;
    const batch_view host = batch_of(two_runs, 2, pages, PAGES, &view);
    const uint32_t n_rows = view.n_rows;
    const size_t layer = kv_layer_bytes(type, n_kv_heads, dim), qg = 2 * (size_t)n_heads * dim;
    const size_t n = (size_t)n_rows * n_heads * dim;
    buffer *q = floats(n_rows * qg, -2, 2),
           *k = floats((size_t)n_rows * n_kv_heads * dim, -2, 2);
    buffer *v = floats((size_t)n_rows * n_kv_heads * dim, -2, 2);
    buffer *qn = floats(dim, 0.5f, 1.5f), *kn = floats(dim, 0.5f, 1.5f);
    buffer *inv = make(ROT / 2 * 4), *rope = make((size_t)n_rows * ROT * 4);
    buffer *kv = make(PAGES * layer), *out = make(n * 4);
    const size_t act_stride = cuda_act_row_bytes(n_heads * dim);
    buffer *act = make(n_rows * act_stride), *expected = make(n * 4);
    const uint32_t n_splits = 2;
    buffer *work = make(attention_workspace_bytes(n_rows, n_heads, dim, n_splits));
    rope_inverse_frequencies(inv->host, ROT, 10000.0f);
    put(inv);
    for (uint32_t r = 0; r < n_rows; r++) {
        const batch_run *run = &host.runs[host.row_run[r]];
        rope_row((float *)rope->host + r * ROT, run->position + r - run->first_row, inv->host,
                 ROT);
    }
    put(rope);
    /* What earlier steps left in the pages. */
    kv_view pages_host = {kv->host, layer, 0, type, n_kv_heads, dim, 0};
    for (uint32_t p = 0; p < PAGES; p++)
        for (uint32_t part = 0; part < 2 * n_kv_heads; part++)
            for (uint32_t slot = 0; slot < KV_PAGE_TOKENS; slot++) {
                float row[256];
                for (uint32_t i = 0; i < dim; i++)
                    row[i] = uniform(-2, 2);
                kv_row_write(type, kv_key_block(&pages_host, p, part), dim, slot, row);
            }
    put(kv);
    kv_view pages_device = pages_host;
    pages_device.base = kv->device;
    const prepare_args prepare = {.base = {.batch = view,
                                           .kv = pages_device,
                                           .qg = q->device,
                                           .k = k->device,
                                           .v = v->device,
                                           .q_norm = qn->device,
                                           .k_norm = kn->device,
                                           .rope = way == WAY_TILE ? NULL : rope->device,
                                           .qg_stride = qg,
                                           .k_stride = (uint64_t)n_kv_heads * dim,
                                           .v_stride = (uint64_t)n_kv_heads * dim,
                                           .n_heads = n_heads,
                                           .n_rot = ROT,
                                           .eps = 1e-6f},
                                  .inv_freq = inv->device};
    attention_prepare_args oracle = prepare.base;
    oracle.batch = host;
    oracle.kv = pages_host;
    oracle.qg = q->host;
    oracle.k = k->host;
    oracle.v = v->host;
    oracle.q_norm = qn->host;
    oracle.k_norm = kn->host;
    oracle.rope = rope->host;
    LAUNCH(attention_prepare, attention_prepare_shape(&prepare), prepare);
    attention_prepare_rows(CPU_SCALAR, &oracle, 0, n_rows);
    buffer *prepared = make(q->bytes);
    gpu->read(prepared->host, q->device, q->bytes);
    double most = relative_l2_f(prepared->host, q->host, n_rows * qg);
    const attention_cuda_args args = {.base = {.batch = view,
                                               .kv = pages_device,
                                               .qg = q->device,
                                               .out = out->device,
                                               .qg_stride = qg,
                                               .out_stride = (uint64_t)n_heads * dim,
                                               .n_heads = n_heads,
                                               .scale = 1.0f / sqrtf((float)dim)},
                                      .act = act->device,
                                      .act_stride = act_stride,
                                      .workspace = work->device,
                                      .n_splits = n_splits};
    attention_args att = args.base;
    att.batch = host;
    att.kv = pages_host;
    att.qg = q->host;
    att.out = expected->host;
    if (way == WAY_SPLIT) {
        LAUNCH(attention_split, attention_split_shape(&args), args);
        LAUNCH(attention_combine, attention_combine_shape(&args), args);
    } else {
        LAUNCH(attention_tile, attention_tile_shape(&args), args);
    }
    buffer *scratch = make(attention_scratch_bytes(dim));
    attention_items(CPU_SCALAR, &att, 0, attention_n_items(&att), scratch->host);
    most = worse(relative_l2_f(get(out), expected->host, n), most);
    double *value = doubles_of(expected->host, n);
    dequantize_acts((const void *)get(act), act_stride, n_rows, n_heads * dim, value);
    if (!(relative_l2(expected->host, value, n) < 0.01)) most = worse(1, most);
    return most;
}

static double attention_cases(const kernel_device *device, attention_way way, uint32_t type) {
    static const uint32_t shapes[][3] = {{256, 8, 1}, {64, 4, 2}, {96, 2, 2}, {32, 20, 2}};
    double most = 0;
    for (int i = 0; i < 4; i++) {
        begin(device);
        const double off = attention_case(shapes[i][0], shapes[i][1], shapes[i][2], type, way);
        if (off > 1e-4) printf("  head_dim %u: %g\n", shapes[i][0], off);
        most = worse(off, most);
        end();
    }
    return most;
}

static double case_attention_split(const kernel_device *device) {
    return attention_cases(device, WAY_SPLIT, KV_F32);
}
static double case_attention_tile(const kernel_device *device) {
    return attention_cases(device, WAY_TILE, KV_F32);
}
static double case_attention_f16(const kernel_device *device) {
    return attention_cases(device, WAY_SPLIT, KV_F16);
}
static double case_attention_q8(const kernel_device *device) {
    return attention_cases(device, WAY_TILE, KV_Q8);
}

/* Float kernels 1e-6 (NMSE 1e-6 is 1e-3 in relative L2); integer products 1e-5, the rest of
 * which is the order of the float32 sums; the recurrence accumulates over 45 tokens; keys that
 * differ in the last bit may round to another half or int8. */
const cuda_case cuda_cases[] = {
    {"quantize", case_quantize, 1e-6},
    {"quantize, zeros, NaN and infinity", case_quantize_extremes, 0},
    {"embed", case_embed, 0},
    {"rmsnorm", case_rmsnorm, 1e-6},
    {"swiglu", case_swiglu, 1e-6},
    {"argmax", case_argmax, 0},
    {"matvec, every type", case_matvec, 1e-5},
    {"matvec, float32 activations", case_matvec_f32, 1e-5},
    {"matvec, company changes no bits", case_matvec_company, 0},
    {"repack_q6_k", case_repack, 0},
    {"matmul, every type", case_matmul, 1e-5},
    {"matmul, float32 activations", case_matmul_f32, 1e-5},
    {"experts", case_experts, 1e-5},
    {"experts, grouped", case_experts_grouped, 1e-5},
    {"moe_combine", case_combine, 1e-6},
    {"router", case_router, 1e-6},
    {"conv1d", case_conv1d, 1e-6},
    {"delta_net, steps", case_delta_step, 1e-5},
    {"delta_net, chunks", case_delta_chunks, 1e-5},
    {"attention, splits, f32", case_attention_split, 1e-5},
    {"attention, tiles, f32", case_attention_tile, 1e-5},
    {"attention, splits, f16", case_attention_f16, 1e-4},
    {"attention, tiles, q8", case_attention_q8, 1e-3},
};
const size_t n_cuda_cases = sizeof cuda_cases / sizeof cuda_cases[0];
