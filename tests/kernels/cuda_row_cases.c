/* cuda_row_cases.c - embedding, norm, SwiGLU, quantizing and argmax of rows; cuda_cases.h. */
#include "common/half.h"
#include "kernels/cuda/rows.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"
#include "kernels/vector_math.h"
#include "tests/kernels/cuda_case.h"

double case_quantize(const kernel_device *device) {
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
    for (size_t r = 0; r < ROWS; r++) {
        if (!same_as_cpu(ACT_Q8_16_PAIRS, x + r * COLS, row + r * a.stride, COLS)) most = 1;
    }
    end();
    return most;
}

/* Zeros stay zeros; a NaN or an infinity shows in its group alone. */
double case_quantize_extremes(const kernel_device *device) {
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
    if (!same_as_cpu(ACT_Q8_16_PAIRS, x->host, row, COLS)) wrong++;
    end();
    return wrong;
}

double case_embed(const kernel_device *device) {
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

static double norm_case(uint32_t dim, uint32_t rows, bool quantized) {
    buffer *x = floats(rows * dim, -2, 2), *w = floats(dim, 0.5f, 1.5f);
    buffer *y = make(rows * dim * 4), *ey = make(y->bytes);
    buffer *act = make(rows * cuda_act_row_bytes(dim)), *order = make(rows * 4);
    for (uint32_t r = 0; r < rows; r++)
        ((uint32_t *)order->host)[r] = r;
    put(order);
    norm_args args = {.x = x->device,
                      .weight = w->device,
                      .y = y->device,
                      .act = quantized ? act->device : NULL,
                      .rows = rows % 2 == 0 ? order->device : NULL,
                      .x_stride = dim,
                      .y_stride = dim,
                      .act_stride = cuda_act_row_bytes(dim),
                      .dim = dim,
                      .eps = 1e-6f};
    LAUNCH(rmsnorm, rmsnorm_shape(&args, rows), args);
    const rmsnorm_args oracle = {.x = x->host,
                                 .weight = w->host,
                                 .y = ey->host,
                                 .x_stride = dim,
                                 .y_stride = dim,
                                 .dim = dim,
                                 .eps = 1e-6f};
    rmsnorm_rows(CPU_SCALAR, &oracle, 0, rows);
    double most = relative_l2_f(get(y), ey->host, rows * dim);
    if (quantized) {
        double *value = doubles_of(ey->host, rows * dim);
        dequantize_acts((const void *)get(act), args.act_stride, rows, dim, value);
        if (!(relative_l2(ey->host, value, rows * dim) < 0.01)) return 1;
    }
    return most;
}

double case_rmsnorm(const kernel_device *device) {
    static const uint32_t dims[] = {50, 96, 2048, 2592}, rows[] = {3, NORM_FEW_ROWS + 2};
    double most = 0;
    for (int i = 0; i < 8; i++) {
        begin(device);
        most = worse(norm_case(dims[i / 2], rows[i % 2], i >= 2), most);
        end();
    }
    return most;
}

double case_swiglu(const kernel_device *device) {
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

double case_argmax(const kernel_device *device) {
    begin(device);
    enum { ROWS = 4, N = 5003 };
    buffer *x = floats(ROWS * N, -9, 3), *keys = make(ROWS * sizeof(uint64_t));
    memset(keys->host, 0, keys->bytes);
    put(keys);
    float *v = x->host;
    v[77] = v[4000] = 5;
    v[N + 3] = NAN;
    for (int i = 0; i < N; i++)
        v[2 * N + i] = NAN;
    put(x);
    const argmax_args args = {x->device, keys->device, N, N, ROWS};
    LAUNCH(argmax, argmax_shape(&args), args);
    const uint64_t *found = (const void *)get(keys);
    double wrong = 0;
    for (int r = 0; r < ROWS; r++) {
        const size_t best = vector_argmax(CPU_SCALAR, v + r * N, N);
        if (argmax_index(found[r]) != (best == N ? -1 : (int32_t)best)) wrong++;
        if (best != N && argmax_value_bits(found[r]) != float_to_bits(v[r * N + (int)best]))
            wrong++;
    }
    end();
    return wrong;
}
