/* cuda_expert_cases.c - the router, routed experts and what prefill needs around them; cuda_cases.h. */
#include "kernels/cuda/experts.h"
#include "kernels/cuda/router.h"
#include "kernels/rmsnorm.h"
#include "tests/kernels/cuda_case.h"

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
        fill_blocks(type, at, s.down_at);
        fill_blocks(down_type, at + s.down_at, s.record[e]->bytes - s.down_at);
        put(s.record[e]);
        ((uint64_t *)s.table->host)[e] = (uint64_t)(uintptr_t)s.record[e]->device;
    }
    put(s.table);
    return s;
}

/* On the device alone; the host keeps what product() reads. */
static void split_down(const expert_set *s) {
    for (uint32_t e = 0; e < s->n; e++) {
        const size_t bytes = s->record[e]->bytes - s->down_at;
        const uint8_t *from = (const uint8_t *)s->record[e]->host + s->down_at;
        uint8_t *split = malloc(bytes);
        if (split == NULL) abort();
        split_q6_k(from, bytes / 210, split);
        gpu->write((uint8_t *)s->record[e]->device + s->down_at, split, bytes);
        free(split);
    }
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

/* The shared expert is record n - 1; expert 1 is missing when `missing`; with split the device's
 * Q6_K lies split. */
static double experts_case(uint32_t type, uint32_t down_type, uint32_t n_ff, bool quantized,
                           bool missing, bool split) {
    enum { N = 4, USED = 2, ROWS = 2, E = 768, PAIRS = ROWS * USED };
    const uint32_t device_type = split ? (uint32_t)CUDA_Q6_K_SPLIT : down_type;
    const int32_t experts[PAIRS] = {2, 0, 1, 2};
    const float weight[PAIRS] = {0.75f, 0.25f, 0.625f, 0.375f}, gate[ROWS] = {0.5f, -1.25f};
    expert_set s = expert_records(N, E, n_ff, type, down_type);
    const void *shared = s.record[N - 1]->device;
    if (split) split_down(&s);
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
    const size_t down_file = quant_row_bytes((quant_type)down_type, n_ff);
    const size_t down_bytes = split ? down_file / 210 * 208 : down_file;
    const uint64_t split_d = E * down_bytes;
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
                                             down_bytes, down_bytes, split_d, split_d,
                                             device_type, device_type},
                                    .n_rows = ROWS,
                                    .n_used = USED,
                                    .n_embd = E,
                                    .n_ff = n_ff,
                                    .n_ff_shared = n_ff};
    LAUNCH_CHOSEN(experts_up, up);
    LAUNCH_CHOSEN(experts_down, down);
    get(h);
    get(h_act);
    const double *value =
        quantized && is_quantized(type) ? x.value : doubles_of(x.x->host, ROWS * E);
    double most = 0, *expected = doubles_of(out->host, ROWS * E);
    for (int p = 0; p < PAIRS + ROWS; p++) {
        const int row = p < PAIRS ? p / USED : p - PAIRS, e = p < PAIRS ? experts[p] : N - 1;
        double hidden[512] = {0}, y[E];
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
        if (quantized && !same_as_cpu(ACT_STEP_16, mine,
                                      (uint8_t *)h_act->host + (size_t)p * act_stride, n_ff))
            most = 1;
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

double case_experts(const kernel_device *device) {
    static const struct {
        uint32_t type, down, n_ff;
        bool quantized, missing, split;
    } cases[] = {{QUANT_Q4_K, QUANT_Q4_K, 512, true, false, false},
                 {QUANT_Q4_K, QUANT_Q6_K, 512, true, true, true},
                 {QUANT_Q4_K, QUANT_Q6_K, 256, true, true, false},
                 {QUANT_Q4_K, QUANT_Q5_K, 256, true, true, false},
                 {QUANT_Q5_K, QUANT_Q5_K, 256, true, false, false},
                 {QUANT_Q8_0, QUANT_Q8_0, 96, true, true, false},
                 {QUANT_IQ4_XS, QUANT_Q5_K, 256, true, false, false},
                 {QUANT_F32, QUANT_F32, 96, false, true, false},
                 {QUANT_Q4_K, QUANT_Q6_K, 256, false, false, false},
                 {QUANT_F16, QUANT_F16, 96, true, false, false}};
    double most = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(device);
        const double off = experts_case(cases[i].type, cases[i].down, cases[i].n_ff,
                                        cases[i].quantized, cases[i].missing, cases[i].split);
        if (off > 1e-5) printf("  case %zu: %g\n", i, off);
        most = worse(off, most);
        end();
    }
    return most;
}

/* Where missing records come while the rest is computed: the same bits as when all were there. */
static double coming_case(uint32_t down_type, uint32_t n_ff, uint32_t n_ff_shared) {
    enum { N = 4, USED = 2, ROWS = 2, E = 768, PAIRS = ROWS * USED };
    const int32_t experts[PAIRS] = {2, 0, 1, 2}; /* 2 and 0 are missing */
    const float weight[PAIRS] = {0.75f, 0.25f, 0.625f, 0.375f}, gate[ROWS] = {0.5f, -1.25f};
    const size_t h_stride = n_ff > n_ff_shared ? n_ff : n_ff_shared;
    const size_t act_stride = cuda_act_row_bytes((uint32_t)h_stride);
    const size_t row_bytes = quant_row_bytes(QUANT_Q4_K, E);
    const size_t down_row = quant_row_bytes((quant_type)down_type, n_ff);
    const size_t shared_row = quant_row_bytes((quant_type)down_type, n_ff_shared);
    expert_set s = expert_records(N, E, n_ff, QUANT_Q4_K, down_type);
    expert_set own = expert_records(1, E, n_ff_shared, QUANT_Q4_K, down_type);
    const uint8_t *shared = own.record[0]->device;
    const size_t record = s.record[0]->bytes, slot = (record + 255) / 256 * 256;
    buffer *source = make(N * slot), *slots = make(N * slot);
    for (size_t e = 0; e < N; e++)
        memcpy((uint8_t *)source->host + e * slot, s.record[e]->host, record);
    memcpy((uint8_t *)slots->host + slot, s.record[1]->host, record);
    put(source), put(slots);
    const uint64_t at = (uint64_t)(uintptr_t)slots->device;
    const uint64_t missing2 = (at + 2 * slot) | EXPERT_COMING, missing0 = at | EXPERT_COMING;
    const uint64_t places[PAIRS] = {missing2, missing0, at + slot, missing2};
    const expert_turn turns[PAIRS] = {
        {missing2, 0, 2}, {missing0, 1, 0}, {at + slot, 2, 1}, {0, 3, 2}};
    activations x = acts(ROWS, E);
    experts_up_args up = {
        .records = s.table->device,
        .experts = copy_of(experts, sizeof experts)->device,
        .act = x.act->device,
        .act_stride = x.stride,
        .h_stride = h_stride,
        .h_act_stride = act_stride,
        .gate = {shared, 0, row_bytes, row_bytes, 0, 0, QUANT_Q4_K, QUANT_Q4_K},
        .up = {shared + own.up_at, s.up_at, row_bytes, row_bytes, 0, 0, QUANT_Q4_K, QUANT_Q4_K},
        .n_rows = ROWS,
        .n_used = USED,
        .n_cols = E,
        .n_ff = n_ff,
        .n_ff_shared = n_ff_shared};
    experts_down_args down = {.records = s.table->device,
                              .experts = up.experts,
                              .weights = copy_of(weight, sizeof weight)->device,
                              .shared_gate = copy_of(gate, sizeof gate)->device,
                              .h_stride = h_stride,
                              .h_act_stride = act_stride,
                              .x_stride = E,
                              .down = {shared + own.down_at, s.down_at, down_row, shared_row, 0,
                                       0, down_type, down_type},
                              .n_rows = ROWS,
                              .n_used = USED,
                              .n_embd = E,
                              .n_ff = n_ff,
                              .n_ff_shared = n_ff_shared};
    buffer *h[2], *out[2];
    for (int coming = 0; coming < 2; coming++) {
        h[coming] = make((PAIRS + ROWS) * act_stride);
        out[coming] = make(ROWS * E * 4);
        memset(h[coming]->host, 0, h[coming]->bytes);
        memset(out[coming]->host, 0, out[coming]->bytes);
        put(h[coming]), put(out[coming]);
        up.h_act = h[coming]->device;
        down.h_act = up.h_act;
        down.x = out[coming]->device;
        if (coming) {
            up.places = down.places = copy_of(places, sizeof places)->device;
            up.turns = copy_of(turns, sizeof turns)->device;
            up.source = source->device;
            up.slot_bytes = slot;
            up.down_offset = s.down_at;
            up.down_bytes = record - s.down_at;
        }
        LAUNCH_CHOSEN(experts_up, up);
        LAUNCH_CHOSEN(experts_down, down);
    }
    const uint8_t *held = (const void *)get(slots), *is = source->host;
    const bool came =
        memcmp(held, is, record) == 0 && memcmp(held + 2 * slot, is + 2 * slot, record) == 0;
    const bool same = memcmp(get(h[0]), get(h[1]), h[0]->bytes) == 0 &&
                      memcmp(get(out[0]), get(out[1]), out[0]->bytes) == 0;
    return came && same ? 0 : 1;
}

double case_experts_coming(const kernel_device *device) {
    static const uint32_t cases[][3] = {
        {QUANT_Q4_K, 512, 512}, {QUANT_Q5_K, 256, 512}, {QUANT_Q8_0, 512, 256}};
    double most = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(device);
        most = worse(coming_case(cases[i][0], cases[i][1], cases[i][2]), most);
        end();
    }
    return most;
}

/* The sorted lists and the grouped product against each pair's own. */
double case_experts_grouped(const kernel_device *device) {
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
    LAUNCH_CHOSEN(matmul, args);
    for (int p = 0; p < PAIRS; p++)
        if (experts[p] != 4)
            product(QUANT_Q4_K, w[experts[p]]->host, F, E, x.value + p / USED * E, 1,
                    expected + p * F);
    const double most = relative_l2(get(out), expected, PAIRS * F);
    end();
    return most;
}

double case_combine(const kernel_device *device) {
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

/* The norm in float64, with the bits of float32 that the products then take. */
static double logits_case(uint32_t n_cols, uint32_t type, bool quantized) {
    enum { EXPERTS = 37, TOKENS = 3 };
    buffer *x = floats(TOKENS * n_cols, -2, 2), *norm = floats(n_cols, 0.5f, 1.5f);
    buffer *w[2] = {weights(type, EXPERTS, n_cols), weights(type, 1, n_cols)};
    buffer *y = make(TOKENS * n_cols * 4), *act = make(TOKENS * cuda_act_row_bytes(n_cols));
    buffer *out[2] = {make(TOKENS * EXPERTS * 4), make(TOKENS * 4)};
    router_logits_args args = {.x = x->device,
                               .norm = norm->device,
                               .y = y->device,
                               .act = quantized ? act->device : NULL,
                               .x_stride = n_cols,
                               .y_stride = n_cols,
                               .act_stride = cuda_act_row_bytes(n_cols),
                               .n_cols = n_cols,
                               .n_tokens = TOKENS,
                               .n_segments = 2,
                               .eps = 1e-6f};
    buffer *ey = make(y->bytes);
    const rmsnorm_args oracle = {.x = x->host,
                                 .weight = norm->host,
                                 .y = ey->host,
                                 .x_stride = n_cols,
                                 .y_stride = n_cols,
                                 .dim = n_cols,
                                 .eps = 1e-6f};
    rmsnorm_rows(CPU_SCALAR, &oracle, 0, TOKENS);
    double *value = doubles_of(ey->host, TOKENS * n_cols), *expected[2];
    for (int s = 0; s < 2; s++) {
        const uint32_t n_rows = s ? 1 : EXPERTS;
        args.segments[s] =
            (matvec_segment){.weights = w[s]->device,
                             .out = out[s]->device,
                             .row_bytes = quant_row_bytes((quant_type)type, n_cols),
                             .out_stride = n_rows,
                             .type = type,
                             .n_rows = n_rows};
        expected[s] = doubles_of(get(out[s]), TOKENS * n_rows);
        product(type, w[s]->host, n_rows, n_cols, value, TOKENS, expected[s]);
    }
    LAUNCH(router_logits, router_logits_shape(&args), args);
    double most = relative_l2_f(get(y), ey->host, TOKENS * n_cols);
    most = worse(relative_l2(get(out[0]), expected[0], TOKENS * EXPERTS), most);
    most = worse(relative_l2(get(out[1]), expected[1], TOKENS), most);
    if (quantized) {
        dequantize_acts((const void *)get(act), args.act_stride, TOKENS, n_cols, value);
        if (!(relative_l2(y->host, value, TOKENS * n_cols) < 0.01)) return 1;
    }
    return most;
}

double case_router_logits(const kernel_device *device) {
    begin(device);
    double most = worse(logits_case(96, QUANT_F32, true), logits_case(2592, QUANT_F32, true));
    end();
    begin(device);
    most = worse(most, logits_case(2048, QUANT_F16, true));
    most = worse(most, logits_case(52, QUANT_F32, false));
    end();
    return most;
}

/* n experts in rows of ties, infinities and NaN; a trace's ids stand in for the last row's. */
static double router_case(uint32_t n) {
    enum { ROWS = 4, USED = 8 };
    buffer *l = floats(ROWS * n, -4, 4), *experts = make(ROWS * USED * 4);
    buffer *w = make(ROWS * USED * 4), *ids = make(ROWS * USED * 4), *expected = make(w->bytes);
    buffer *routed = make(ROWS * USED * 4);
    float *v = l->host;
    v[3] = v[100] = v[64] = v[36] = 9; /* equals */
    for (uint32_t i = 0; i < n; i++)
        v[n + i] = i == 7 ? 1.0f : -INFINITY; /* most of the chosen are equal */
    put(l);
    for (int32_t i = 0; i < ROWS * USED; i++)
        ((int32_t *)routed->host)[i] = i;
    put(routed);
    buffer *records = make(n * 8), *places = make(ROWS * USED * 8);
    for (uint64_t i = 0; i < n; i++)
        ((uint64_t *)records->host)[i] = 256 * i;
    put(records);
    router_cuda_args args = {.base = {l->device, experts->device, w->device, n, n, USED}};
    const router_args oracle = {l->host, ids->host, expected->host, n, n, USED};
    LAUNCH(router, router_shape(ROWS), args);
    router_rows(CPU_SCALAR, &oracle, 0, ROWS);
    double most = relative_l2_f(get(w), expected->host, ROWS * USED);
    get(experts);
    if (memcmp(experts->host, ids->host, ids->bytes) != 0) most = 1;
    args.routed = routed->device;
    args.records = records->device;
    args.places = places->device;
    LAUNCH(router, router_shape(ROWS), args);
    get(places);
    const uint64_t *place = (const uint64_t *)places->host;
    for (int i = 0; i < ROWS * USED; i++)
        if (place[i] != 256 * (uint64_t)i) most = 1;
    most = worse(most, relative_l2_f(get(w), expected->host, ROWS * USED));
    get(experts);
    if (memcmp(experts->host, routed->host, routed->bytes) != 0) most = 1;
    return most;
}

double case_router(const kernel_device *device) {
    begin(device);
    double most = worse(router_case(131), router_case(256));
    most = worse(most, router_case(511));
    end();
    return most;
}
