/* cuda_lane_cases.c - a decoding step's experts on the GPU and on the CPU: the same bits; cuda_cases.h. */
#include "kernels/cuda/experts.h"
#include "kernels/swiglu.h"
#include "tests/kernels/cuda_case.h"

enum { N = 3, USED = 2, ROWS = 2, PAIRS = ROWS * USED };
static const int32_t experts[PAIRS] = {2, 0, 1, 2};
static const float weight[PAIRS] = {0.75f, 0.25f, 0.625f, 0.375f};

/* A matrix of each expert: in a record at `at`, in the file's form. */
typedef struct part {
    quant_type type;
    size_t at, n_rows, n_cols;
} part;

typedef struct lane_model {
    part gate, up, down;
    size_t n_embd, n_ff, bytes; /* of a record */
    buffer *record[N];
} lane_model;

static size_t part_bytes(const part *p) {
    return p->n_rows * quant_row_bytes(p->type, p->n_cols);
}

/* Q6_K lies split on the device. */
static void split_part(const part *p, const uint8_t *record, uint8_t *out) {
    memcpy(out + p->at, record + p->at, part_bytes(p));
    if (p->type != QUANT_Q6_K) return;
    const size_t n = part_bytes(p) / 210;
    for (size_t i = 0; i < n; i++) {
        memcpy(out + p->at + i * 208, record + p->at + i * 210, 208);
        memcpy(out + p->at + n * 208 + i * 2, record + p->at + i * 210 + 208, 2);
    }
}

static lane_model make_model(quant_type type, quant_type down_type, size_t n_embd,
                             size_t n_ff) {
    lane_model m = {.n_embd = n_embd, .n_ff = n_ff};
    m.gate = (part){type, 0, n_ff, n_embd};
    m.up = (part){type, part_bytes(&m.gate), n_ff, n_embd};
    m.down = (part){down_type, m.up.at + part_bytes(&m.up), n_embd, n_ff};
    m.bytes = m.down.at + part_bytes(&m.down);
    uint8_t *split = malloc(m.bytes);
    if (split == NULL) abort();
    for (int e = 0; e < N; e++) {
        m.record[e] = make(m.bytes);
        uint8_t *at = m.record[e]->host;
        fill_blocks(type, at, m.down.at);
        fill_blocks(down_type, at + m.down.at, m.bytes - m.down.at);
        split_part(&m.gate, at, split);
        split_part(&m.up, at, split);
        split_part(&m.down, at, split);
        gpu->write(m.record[e]->device, split, m.bytes);
    }
    free(split);
    return m;
}

static expert_matrix matrix_of(const part *p) {
    const bool split = p->type == QUANT_Q6_K;
    const size_t row = split ? p->n_cols / 256 * 208 : quant_row_bytes(p->type, p->n_cols);
    return (expert_matrix){.offset = p->at,
                           .row_bytes = row,
                           .split_d = split ? p->n_rows * row : 0,
                           .type = split ? (uint32_t)CUDA_Q6_K_SPLIT : (uint32_t)p->type};
}

/* One row against an expert's matrix, as the lane does it. */
static void multiply(cpu_tier tier, const part *p, const uint8_t *record, act_format format,
                     const float *x, float *out) {
    void *act = aligned_alloc(64, act_row_bytes(format, p->n_cols));
    void *scratch = aligned_alloc(64, matmul_scratch_bytes(p->n_cols));
    if (act == NULL || scratch == NULL) abort();
    act_quantize_row(tier, format, x, p->n_cols, act);
    const matmul_job job = {.type = p->type,
                            .format = format,
                            .weights = record + p->at,
                            .row_bytes = quant_row_bytes(p->type, p->n_cols),
                            .n_rows = p->n_rows,
                            .n_cols = p->n_cols,
                            .acts = act,
                            .n_tokens = 1,
                            .out = out};
    matmul_chunk(tier, &job, 0, 1, scratch);
    free(act);
    free(scratch);
}

/* What a tier makes of all pairs: h [PAIRS][n_ff], and out [ROWS][n_embd] is added to. */
static void run_on_cpu(cpu_tier tier, const lane_model *m, const float *x, float *h,
                       float *out) {
    float *up = calloc(m->n_ff + m->n_embd, sizeof *up);
    if (up == NULL) abort();
    float *y = up + m->n_ff;
    for (size_t p = 0; p < PAIRS; p++) {
        const uint8_t *record = m->record[experts[p]]->host;
        const float *row = x + p / USED * m->n_embd;
        float *gate = h + p * m->n_ff, *sum = out + p / USED * m->n_embd;
        multiply(tier, &m->gate, record, ACT_STEP_32, row, gate);
        multiply(tier, &m->up, record, ACT_STEP_32, row, up);
        const swiglu_args args = {
            .gate = gate, .up = up, .out = gate, .n_cols = (uint32_t)m->n_ff};
        swiglu_rows(tier, &args, 0, 1);
        multiply(tier, &m->down, record, ACT_STEP_16, gate, y);
        for (size_t i = 0; i < m->n_embd; i++)
            sum[i] = fmaf(weight[p], y[i], sum[i]);
    }
    free(up);
}

/* A shared expert of another type, whose weight is 0, stands beside them where it is said. */
static void add_shared(bool shared, uint32_t n_embd, uint32_t n_ff, experts_up_args *up,
                       experts_down_args *down) {
    const quant_type type = QUANT_Q8_0;
    static const float nothing[ROWS] = {-200, -200}; /* a sigmoid of 0 */
    if (!shared) return;
    expert_matrix *const parts[] = {&up->gate, &up->up, &down->down};
    for (size_t i = 0; i < 3; i++) {
        const size_t rows = i < 2 ? n_ff : n_embd, cols = i < 2 ? n_embd : n_ff;
        parts[i]->shared = weights(type, rows, cols)->device;
        parts[i]->shared_type = type;
        parts[i]->shared_row_bytes = quant_row_bytes(type, cols);
    }
    up->n_ff_shared = down->n_ff_shared = n_ff;
    down->shared_gate = copy_of(nothing, sizeof nothing)->device;
}

static double lane_case(quant_type type, quant_type down_type, uint32_t n_embd, uint32_t n_ff,
                        bool shared) {
    const lane_model m = make_model(type, down_type, n_embd, n_ff);
    uint64_t places[N];
    for (int e = 0; e < N; e++)
        places[e] = (uint64_t)(uintptr_t)m.record[e]->device;
    const activations x = acts(ROWS, n_embd);
    const size_t act_stride = cuda_act_row_bytes(n_ff);
    buffer *h = make((PAIRS + ROWS) * n_ff * 4), *h_act = make((PAIRS + ROWS) * act_stride);
    buffer *out = floats(ROWS * n_embd, -1, 1);
    float *residual = malloc(out->bytes), *mine = malloc(h->bytes + out->bytes);
    if (residual == NULL || mine == NULL) abort();
    memcpy(residual, out->host, out->bytes);
    experts_up_args up = {.records = copy_of(places, sizeof places)->device,
                          .experts = copy_of(experts, sizeof experts)->device,
                          .act = x.act->device,
                          .h = h->device,
                          .h_act = h_act->device,
                          .act_stride = x.stride,
                          .h_stride = n_ff,
                          .h_act_stride = act_stride,
                          .gate = matrix_of(&m.gate),
                          .up = matrix_of(&m.up),
                          .n_rows = ROWS,
                          .n_used = USED,
                          .n_cols = n_embd,
                          .n_ff = n_ff};
    experts_down_args down = {.records = up.records,
                              .experts = up.experts,
                              .weights = copy_of(weight, sizeof weight)->device,
                              .h = h->device,
                              .h_act = h_act->device,
                              .x = out->device,
                              .h_stride = n_ff,
                              .h_act_stride = act_stride,
                              .x_stride = n_embd,
                              .down = matrix_of(&m.down),
                              .n_rows = ROWS,
                              .n_used = USED,
                              .n_embd = n_embd,
                              .n_ff = n_ff};
    add_shared(shared, n_embd, n_ff, &up, &down);
    cuda_shape shape;
    cuda_kernel kernel = experts_up_choose(&up, &shape);
    gpu->launch(kernel, shape, &up, sizeof up);
    kernel = experts_down_choose(&down, &shape);
    gpu->launch(kernel, shape, &down, sizeof down);
    get(h);
    get(out);
    bool same = true;
    for (cpu_tier tier = CPU_SCALAR; tier <= cpu_tier_best(); tier++) {
        float *sums = mine + PAIRS * n_ff;
        memcpy(sums, residual, out->bytes);
        run_on_cpu(tier, &m, x.x->host, mine, sums);
        same = same && memcmp(mine, h->host, PAIRS * n_ff * sizeof *mine) == 0 &&
               memcmp(sums, out->host, out->bytes) == 0;
    }
    free(residual);
    free(mine);
    return same ? 0 : 1;
}

/* Rows of up to, and of more than, 32 partial sums, all kernels of both halves. */
double case_experts_lane(const kernel_device *device) {
    static const struct {
        quant_type type, down;
        uint32_t n_embd, n_ff;
        bool shared;
    } cases[] = {{QUANT_Q4_K, QUANT_Q4_K, 768, 512, false},
                 {QUANT_Q4_K, QUANT_Q6_K, 2048, 256, false},
                 {QUANT_Q5_K, QUANT_Q5_K, 2304, 256, false},
                 {QUANT_Q6_K, QUANT_Q4_K, 768, 256, true},
                 {QUANT_Q4_K, QUANT_Q6_K, 256, 512, true},
                 {QUANT_Q5_K, QUANT_Q5_K, 256, 2304, true},
                 {QUANT_Q8_0, QUANT_Q8_0, 1056, 96, false},
                 {QUANT_Q2_K, QUANT_Q3_K, 1280, 256, false},
                 {QUANT_IQ4_XS, QUANT_IQ4_XS, 256, 256, true},
                 {QUANT_Q4_1, QUANT_Q5_1, 96, 160, false},
                 {QUANT_Q4_0, QUANT_Q5_0, 96, 32, false},
                 {QUANT_IQ4_NL, QUANT_MXFP4, 96, 64, false}};
    double most = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(device);
        const double off = lane_case(cases[i].type, cases[i].down, cases[i].n_embd,
                                     cases[i].n_ff, cases[i].shared);
        if (off > 0) printf("  case %zu: other bits\n", i);
        most = worse(off, most);
        end();
    }
    return most;
}
