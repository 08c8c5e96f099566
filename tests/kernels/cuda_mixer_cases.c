/* cuda_mixer_cases.c - convolution, delta net and attention; cuda_cases.h. */
#include "kernels/cuda/mixers.h"
#include "kernels/rope.h"
#include "tests/kernels/cuda_case.h"

static const batch_run two_runs[2] = {{0, 45, 21, 1, 0, 0}, {45, 3, 62, 0, 2, 0}};

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

double case_conv1d(const kernel_device *device) {
    static const batch_run short_run[1] = {{0, 2, 9, 1, 0, 0}};
    double most = 0;
    for (int i = 0; i < 4; i++) {
        begin(device);
        most =
            worse(i < 2 ? conv_case(two_runs, 2, i % 2) : conv_case(short_run, 1, i % 2), most);
        end();
    }
    return most;
}

enum { KEY_HEADS = 2, HEADS = 4, DELTA_TAPS = 4 };

/* Inputs of a delta net, its oracle's results, and what the device makes of them. */
typedef struct delta_inputs {
    batch_view view, host;
    uint32_t dim, inner, conv;
    size_t one, n; /* floats of a state's matrices; of the output */
    delta_net_args device, oracle;
    buffer *qkv, *state, *expected_state, *out, *expected, *act;
} delta_inputs;

/* more: floats behind a state's matrices. */
static delta_inputs delta_make(uint32_t dim, uint32_t grouped, size_t more) {
    const uint32_t no_pages[1] = {0};
    delta_inputs d = {.dim = dim, .inner = HEADS * dim, .conv = (2 * KEY_HEADS + HEADS) * dim};
    d.host = batch_of(two_runs, 2, no_pages, 1, &d.view);
    const uint32_t n_rows = d.view.n_rows;
    d.one = (size_t)HEADS * dim * dim;
    d.n = (size_t)n_rows * d.inner;
    d.qkv = floats((size_t)n_rows * d.conv, -1, 1);
    const buffer *z = floats(d.n, -2, 2), *alpha = floats(n_rows * HEADS, -1, 1);
    const buffer *beta = floats(n_rows * HEADS, -2, 2), *a = floats(HEADS, -1.5f, -0.1f);
    const buffer *dt = floats(HEADS, -1, 1), *norm = floats(dim, 0.5f, 1.5f);
    d.state = floats(2 * (d.one + more), -0.1f, 0.1f);
    d.out = make(d.n * 4);
    d.act = make(n_rows * cuda_act_row_bytes(d.inner));
    d.expected = make(d.n * 4);
    d.expected_state = copy_of(d.state->host, d.state->bytes);
    d.device = (delta_net_args){.batch = d.view,
                                .qkv = d.qkv->device,
                                .z = z->device,
                                .alpha = alpha->device,
                                .beta = beta->device,
                                .a = a->device,
                                .dt = dt->device,
                                .norm = norm->device,
                                .state = d.state->device,
                                .out = d.out->device,
                                .qkv_stride = d.conv,
                                .z_stride = d.inner,
                                .alpha_stride = HEADS,
                                .beta_stride = HEADS,
                                .out_stride = d.inner,
                                .state_stride = d.one + more,
                                .n_key_heads = KEY_HEADS,
                                .n_value_heads = HEADS,
                                .dim = dim,
                                .grouped = grouped,
                                .eps = 1e-6f};
    d.oracle = d.device;
    d.oracle.batch = d.host;
    d.oracle.qkv = d.qkv->host;
    d.oracle.z = z->host;
    d.oracle.alpha = alpha->host;
    d.oracle.beta = beta->host;
    d.oracle.a = a->host;
    d.oracle.dt = dt->host;
    d.oracle.norm = norm->host;
    d.oracle.state = d.expected_state->host;
    d.oracle.out = d.expected->host;
    return d;
}

static double delta_compare(const delta_inputs *d) {
    const uint32_t n_rows = d->view.n_rows;
    buffer *scratch = make(delta_net_scratch_bytes(d->dim));
    delta_net_items(CPU_SCALAR, &d->oracle, 0, delta_net_n_items(&d->oracle), scratch->host);
    double most = worse(
        relative_l2_f(get(d->out), d->expected->host, d->n),
        relative_l2_f(get(d->state), d->expected_state->host, d->state->bytes / sizeof(float)));
    double *value = doubles_of(d->expected->host, d->n);
    dequantize_acts((const void *)get(d->act), cuda_act_row_bytes(d->inner), n_rows, d->inner,
                    value);
    if (!(relative_l2(d->expected->host, value, d->n) < 0.01)) most = worse(1, most);
    return most;
}

static double delta_chunks_case(uint32_t dim, uint32_t grouped) {
    const delta_inputs d = delta_make(dim, grouped, 0);
    const delta_net_cuda_args args = {
        .base = d.device,
        .act = d.act->device,
        .act_stride = cuda_act_row_bytes(d.inner),
        .workspace = make(delta_net_workspace_bytes(d.view.n_rows, 2, HEADS))->device,
        .raw = make(d.n * 4)->device};
    LAUNCH(delta_net_scores, delta_net_scores_shape(&args), args);
    LAUNCH(delta_net_chunks, delta_net_chunks_shape(&args), args);
    LAUNCH(delta_net_norm, delta_net_norm_shape(&args), args);
    return delta_compare(&d);
}

/* The convolution's inputs lie behind the matrices, as the backend has them. */
static double delta_step_case(uint32_t dim, uint32_t grouped) {
    const uint32_t conv = (2 * KEY_HEADS + HEADS) * dim;
    const size_t more = (DELTA_TAPS - 1) * (size_t)conv;
    delta_inputs d = delta_make(dim, grouped, more);
    const buffer *taps = floats((size_t)DELTA_TAPS * conv, -1, 1);
    const uint32_t none[2 * KEY_HEADS] = {0};
    buffer *turns = copy_of(none, sizeof none), *convolved = make(d.qkv->bytes);
    const delta_step_args args = {.base = d.device,
                                  .taps = taps->device,
                                  .conv_state = (float *)d.state->device + d.one,
                                  .turns = turns->device,
                                  .act = d.act->device,
                                  .act_stride = cuda_act_row_bytes(d.inner),
                                  .n_taps = DELTA_TAPS};
    LAUNCH(delta_net_step, delta_step_shape(&args), args);
    const conv1d_args before = {d.host,
                                d.qkv->host,
                                taps->host,
                                (float *)d.expected_state->host + d.one,
                                convolved->host,
                                conv,
                                conv,
                                d.one + more,
                                conv,
                                DELTA_TAPS};
    conv1d_channels(CPU_SCALAR, &before, 0, conv);
    d.oracle.qkv = convolved->host;
    get(turns);
    return memcmp(turns->host, none, sizeof none) != 0 ? 1 : delta_compare(&d);
}

double case_delta_step(const kernel_device *device) {
    double most = 0;
    for (int i = 0; i < 4; i++) {
        static const uint32_t dims[] = {128, 64, 32, 96};
        begin(device);
        most = worse(delta_step_case(dims[i], (uint32_t)i % 2), most);
        end();
    }
    return most;
}

double case_delta_chunks(const kernel_device *device) {
    double most = 0;
    for (int i = 0; i < 3; i++) {
        static const uint32_t dims[] = {128, 64, 32};
        begin(device);
        most = worse(delta_chunks_case(dims[i], (uint32_t)i % 2), most);
        end();
    }
    return most;
}

/* How attention is computed. */
typedef enum attention_way { WAY_STEP, WAY_TILE, WAY_HALF } attention_way;

/* Runs of one row: two splits, a new page, part of a tile, and the first position. */
static const batch_run four_steps[4] = {
    {0, 1, 65, 1, 0, 0}, {1, 1, 64, 0, 2, 0}, {2, 1, 37, 0, 4, 0}, {3, 1, 0, 0, 5, 0}};

static double attention_case(uint32_t dim, uint32_t n_heads, uint32_t n_kv_heads, uint32_t type,
                             attention_way way) {
    enum { PAGES = 6, ROT = 32 };
    const uint32_t pages[PAGES] = {3, 1, 0, 2, 5, 4};
    batch_view view;
    const batch_view host = batch_of(way == WAY_STEP ? four_steps : two_runs,
                                     way == WAY_STEP ? 4 : 2, pages, PAGES, &view);
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
                                           .rope = way == WAY_STEP ? rope->device : NULL,
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
    attention_prepare_rows(CPU_SCALAR, &oracle, 0, n_rows);
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
    double most = 0;
    if (way == WAY_STEP) {
        const attention_step_args step = {prepare, work->device, n_splits,
                                          1.0f / sqrtf((float)dim)};
        cuda_shape shape;
        const cuda_kernel kernel = attention_step_choose(&step, &shape);
        gpu->launch(kernel, shape, &step, sizeof step);
        LAUNCH(attention_combine, attention_combine_shape(&args), args);
    } else {
        LAUNCH(attention_prepare, attention_prepare_shape(&prepare), prepare);
        buffer *prepared = make(q->bytes);
        gpu->read(prepared->host, q->device, q->bytes);
        most = relative_l2_f(prepared->host, q->host, n_rows * qg);
    }
    if (way == WAY_TILE) {
        LAUNCH(attention_tile, attention_tile_shape(&args), args);
    } else if (way == WAY_HALF) {
        LAUNCH(attention_half, attention_half_shape(&args), args);
    }
    /* What the next step will read. */
    buffer *stored = make(kv->bytes);
    gpu->read(stored->host, kv->device, kv->bytes);
    kv_view pages_stored = pages_host;
    pages_stored.base = stored->host;
    for (uint32_t p = 0; p < PAGES; p++)
        for (uint32_t part = 0; part < 2 * n_kv_heads; part++)
            for (uint32_t slot = 0; slot < KV_PAGE_TOKENS; slot++) {
                float a[256] = {0}, b[256] = {0};
                kv_row_read(type, kv_key_block(&pages_host, p, part), dim, slot, a);
                kv_row_read(type, kv_key_block(&pages_stored, p, part), dim, slot, b);
                if (relative_l2_f(b, a, dim) > (type == KV_F32 ? 1e-6 : 1e-2))
                    most = worse(1, most);
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

double case_attention_step(const kernel_device *device) {
    return attention_cases(device, WAY_STEP, KV_F32);
}
double case_attention_tile(const kernel_device *device) {
    return attention_cases(device, WAY_TILE, KV_F32);
}
double case_attention_step_f16(const kernel_device *device) {
    return attention_cases(device, WAY_STEP, KV_F16);
}
double case_attention_step_q8(const kernel_device *device) {
    return attention_cases(device, WAY_STEP, KV_Q8);
}
double case_attention_step_q4(const kernel_device *device) {
    return attention_cases(device, WAY_STEP, KV_Q4);
}
double case_attention_half(const kernel_device *device) {
    return attention_cases(device, WAY_HALF, KV_F16);
}
double case_attention_q8(const kernel_device *device) {
    return attention_cases(device, WAY_HALF, KV_Q8);
}
double case_attention_q4(const kernel_device *device) {
    return attention_cases(device, WAY_HALF, KV_Q4);
}
