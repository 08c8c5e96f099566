/* cuda_matrix_cases.c - products with matrices of every type; cuda_cases.h. */
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/rows.h"
#include "tests/kernels/cuda_case.h"

static void launch_matvec(const matvec_args *args, uint32_t n_sms, uint32_t major) {
    cuda_shape shape;
    const cuda_kernel kernel = matvec_choose(args, n_sms, major, &shape);
    gpu->launch(kernel, shape, args, sizeof *args);
}

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
    launch_matvec(&args, 2, 7);
    return worse(relative_l2(get(out[0]), expected[0], n_tokens * A),
                 relative_l2(get(out[1]), expected[1], n_tokens * B));
}

double case_matvec(const kernel_device *device) {
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

double case_matvec_f32(const kernel_device *device) {
    double most = 0;
    for (size_t i = 0; i < N_TYPES; i++) {
        begin(device);
        most = worse(matvec_case(types[i], 512, 2, true), most);
        end();
    }
    return most;
}

/* A token's bits do not depend on how many others there are. */
double case_matvec_company(const kernel_device *device) {
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
        launch_matvec(&args, 1 + tokens, 9);
        get(out);
        if (tokens == 1) memcpy(first->host, out->host, first->bytes);
        if (memcmp(first->host, out->host, first->bytes) != 0) wrong++;
    }
    end();
    return wrong;
}

/* Rows of x normed and quantized by the block are those of rmsnorm: values of x that are multiples
 * of 1/4 make the sum of their squares exact in any order. */
static double norm_inside(uint32_t type, uint32_t n_cols, uint32_t n_tokens) {
    enum { ROWS = 30 };
    buffer *w = weights(type, ROWS, n_cols), *norm = floats(n_cols, 0.5f, 1.5f);
    buffer *x = floats(n_tokens * n_cols, -8, 8),
           *act = make(n_tokens * cuda_act_row_bytes(n_cols));
    buffer *out[2] = {make(n_tokens * ROWS * 4), make(n_tokens * ROWS * 4)};
    float *v = x->host;
    for (size_t i = 0; i < (size_t)n_tokens * n_cols; i++)
        v[i] = rintf(v[i]) / 4;
    put(x);
    const norm_args normed = {.x = x->device,
                              .weight = norm->device,
                              .act = act->device,
                              .x_stride = n_cols,
                              .act_stride = cuda_act_row_bytes(n_cols),
                              .dim = n_cols,
                              .eps = 1e-6f};
    LAUNCH(rmsnorm, rmsnorm_shape(&normed, n_tokens), normed);
    for (int inside = 0; inside < 2; inside++) {
        matvec_args args = {.x = x->device,
                            .act = inside ? NULL : act->device,
                            .norm = inside ? norm->device : NULL,
                            .x_stride = n_cols,
                            .act_stride = normed.act_stride,
                            .n_cols = n_cols,
                            .n_tokens = n_tokens,
                            .n_segments = 1,
                            .eps = 1e-6f};
        args.segments[0] =
            (matvec_segment){.weights = w->device,
                             .out = out[inside]->device,
                             .row_bytes = quant_row_bytes((quant_type)type, n_cols),
                             .out_stride = ROWS,
                             .type = type,
                             .n_rows = ROWS};
        launch_matvec(&args, 2, 7);
        get(out[inside]);
    }
    return memcmp(out[0]->host, out[1]->host, out[0]->bytes) != 0;
}

double case_matvec_norm(const kernel_device *device) {
    static const uint32_t some[] = {QUANT_Q4_K, QUANT_Q5_K, QUANT_Q8_0, QUANT_IQ4_XS};
    double wrong = 0;
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        for (uint32_t tokens = 1; tokens < 4; tokens += 2) {
            begin(device);
            wrong += norm_inside(some[i], 256, tokens);
            wrong += norm_inside(some[i], 2304, tokens);
            end();
        }
    }
    begin(device);
    wrong += norm_inside(QUANT_Q8_0, 96, 9);
    end();
    return wrong;
}

/* Split Q6_K gives what raw Q6_K gives, whatever the company. */
double case_split(const kernel_device *device) {
    begin(device);
    enum { ROWS = 24, COLS = 512, BLOCKS = ROWS * 2, TOKENS = 3 };
    buffer *w = weights(QUANT_Q6_K, ROWS, COLS), *split = make(w->bytes);
    split_q6_k(w->host, BLOCKS, split->host);
    put(split);
    activations x = acts(TOKENS, COLS);
    buffer *out[3] = {make(ROWS * 4), make(ROWS * 4), make(ROWS * TOKENS * 4)};
    for (int s = 0; s < 3; s++) {
        matvec_args args = {.act = x.act->device,
                            .act_stride = x.stride,
                            .n_cols = COLS,
                            .n_tokens = s == 2 ? TOKENS : 1,
                            .n_segments = 1};
        args.segments[0] =
            (matvec_segment){.weights = s ? split->device : w->device,
                             .out = out[s]->device,
                             .row_bytes = COLS / 256 * (s ? 208 : 210),
                             .out_stride = ROWS,
                             .split_d = (uint64_t)BLOCKS * 208,
                             .type = s ? (uint32_t)CUDA_Q6_K_SPLIT : (uint32_t)QUANT_Q6_K,
                             .n_rows = ROWS};
        launch_matvec(&args, 2, 7);
        get(out[s]);
    }
    const double off = relative_l2_f(out[1]->host, out[0]->host, ROWS);
    const bool same = memcmp(out[1]->host, out[2]->host, ROWS * 4) == 0;
    end();
    return same ? off : 1;
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
    LAUNCH_CHOSEN(matmul, args);
    return relative_l2(get(out), expected, n_tokens * n_rows);
}

double case_matmul(const kernel_device *device) {
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

double case_matmul_f32(const kernel_device *device) {
    double most = 0;
    for (size_t i = 0; i < N_TYPES; i += 3) {
        begin(device);
        most = worse(matmul_case(types[i], 70, 256, 67, true), most);
        end();
    }
    return most;
}

/* Gate and up in one launch of two matrices, then SwiGLU; and all of it in one. */
static double gated_case(uint32_t type) {
    enum { ROWS = 96, COLS = 512, TOKENS = 41 };
    const size_t row = quant_row_bytes((quant_type)type, COLS),
                 stride = cuda_act_row_bytes(ROWS);
    buffer *w = weights(type, 2 * ROWS, COLS);
    activations x = acts(TOKENS, COLS);
    buffer *gate = make(TOKENS * ROWS * 4), *up = make(TOKENS * ROWS * 4);
    buffer *expected = make(TOKENS * stride), *out = make(TOKENS * stride);
    matmul_args args = {.weights = w->device,
                        .act = x.act->device,
                        .out = gate->device,
                        .row_bytes = row,
                        .act_stride = x.stride,
                        .out_stride = ROWS,
                        .type = type,
                        .n_rows = ROWS,
                        .n_cols = COLS,
                        .n_tokens = TOKENS,
                        .n_more = 1};
    args.more[0] = (matmul_matrix){.weights = (const uint8_t *)w->device + ROWS * row,
                                   .out = up->device,
                                   .row_bytes = row,
                                   .out_stride = ROWS,
                                   .type = type,
                                   .n_rows = ROWS};
    LAUNCH_CHOSEN(matmul, args);
    const swiglu_q8_args swiglu = {
        gate->device, up->device, NULL, expected->device, ROWS, ROWS, 0, stride, ROWS, TOKENS};
    LAUNCH(swiglu, swiglu_shape(&swiglu), swiglu);
    args.n_more = 0;
    args.gated_act = out->device;
    args.gated_stride = stride;
    args.up_offset = ROWS * row;
    LAUNCH_CHOSEN(matmul, args);
    get(expected);
    get(out);
    return memcmp(expected->host, out->host, out->bytes) != 0;
}

double case_matmul_gated(const kernel_device *device) {
    double wrong = 0;
    for (size_t i = 0; i < N_TYPES; i++) {
        if (!is_quantized(types[i])) continue;
        begin(device);
        wrong = worse(gated_case(types[i]), wrong);
        end();
    }
    return wrong;
}
