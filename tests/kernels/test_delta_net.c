/* test_delta_net.c - the gated delta rule: step and chunked form, state, splits, tiers. */
#include "kernels/delta_net.h"
#include "tests/kernels/ops_case.h"

/* A sequence of n tokens for a layer of some shape, and what double precision makes of it. */
typedef struct layer_case {
    uint32_t n_keys, n_values, dim, n;
    int grouped;
    float *qkv, *z, *alpha, *beta, *a, *dt, *norm, *start; /* start: [n_values][dim][dim] */
    double *expected, *expected_state;
} layer_case;

static size_t qkv_width(const layer_case *c) {
    return (size_t)(2 * c->n_keys + c->n_values) * c->dim;
}
static size_t out_width(const layer_case *c) {
    return (size_t)c->n_values * c->dim;
}
static size_t state_size(const layer_case *c) {
    return out_width(c) * c->dim;
}

static void l2norm64(const float *x, size_t n, double scale, double *y) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i] / sqrt(sum + 1e-6) * scale;
}

/* Section by section as the definition reads: decay, read, delta, write, read, norm, gate. */
static void reference_token(layer_case *c, size_t t, size_t head) {
    const size_t dim = c->dim, width = qkv_width(c);
    const size_t key = c->grouped ? head / (c->n_values / c->n_keys) : head % c->n_keys;
    const float *row = c->qkv + t * width, *v = row + (2 * c->n_keys + head) * dim;
    double *s = c->expected_state + head * dim * dim;
    double *o = c->expected + t * out_width(c) + head * dim;
    double q[DELTA_NET_MAX_DIM], k[DELTA_NET_MAX_DIM], squares = 0;
    l2norm64(row + key * dim, dim, 1 / sqrt((double)dim), q);
    l2norm64(row + (c->n_keys + key) * dim, dim, 1, k);
    const double x = (double)c->alpha[t * c->n_values + head] + (double)c->dt[head];
    const double soft = (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
    const double decay = exp((double)c->a[head] * soft);
    const double b = 1 / (1 + exp(-(double)c->beta[t * c->n_values + head]));
    for (size_t i = 0; i < dim * dim; i++)
        s[i] *= decay;
    for (size_t j = 0; j < dim; j++) {
        double m = 0;
        for (size_t i = 0; i < dim; i++)
            m += s[i * dim + j] * k[i];
        const double d = b * ((double)v[j] - m);
        o[j] = 0;
        for (size_t i = 0; i < dim; i++) {
            s[i * dim + j] += k[i] * d;
            o[j] += s[i * dim + j] * q[i];
        }
        squares += o[j] * o[j];
    }
    for (size_t j = 0; j < dim; j++) {
        const double z = (double)c->z[t * out_width(c) + head * dim + j];
        o[j] =
            o[j] / sqrt(squares / (double)dim + 1e-6) * (double)c->norm[j] * z / (1 + exp(-z));
    }
}

static layer_case case_new(uint32_t n_keys, uint32_t n_values, uint32_t dim, uint32_t n,
                           int grouped) {
    layer_case c = {
        .n_keys = n_keys, .n_values = n_values, .dim = dim, .n = n, .grouped = grouped};
    uint64_t seed = 23 + n + dim;
    c.qkv = ops_random_floats(&seed, n * qkv_width(&c), -1.0f, 1.0f);
    c.z = ops_random_floats(&seed, n * out_width(&c), -2.0f, 2.0f);
    c.alpha = ops_random_floats(&seed, (size_t)n * n_values, -3.0f, 3.0f);
    c.beta = ops_random_floats(&seed, (size_t)n * n_values, -3.0f, 3.0f);
    c.a = ops_random_floats(&seed, n_values, -0.5f, -0.01f);
    c.dt = ops_random_floats(&seed, n_values, -2.0f, 1.0f);
    c.norm = ops_random_floats(&seed, dim, 0.5f, 1.5f);
    c.start = ops_random_floats(&seed, state_size(&c), -0.1f, 0.1f);
    c.expected = calloc(n * out_width(&c), sizeof(double));
    c.expected_state = calloc(state_size(&c), sizeof(double));
    assert_true(c.expected && c.expected_state);
    for (size_t i = 0; i < state_size(&c); i++)
        c.expected_state[i] = (double)c.start[i];
    for (size_t t = 0; t < n; t++)
        for (size_t head = 0; head < n_values; head++)
            reference_token(&c, t, head);
    return c;
}

static void case_free(layer_case *c) {
    float *const parts[] = {c->qkv, c->z, c->alpha, c->beta, c->a, c->dt, c->norm, c->start};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        free(parts[i]);
    free(c->expected);
    free(c->expected_state);
}

static void run_batch(const layer_case *c, cpu_tier tier, batch_view batch, float *states,
                      float *out) {
    void *scratch = ops_floats(delta_net_scratch_bytes(c->dim) / sizeof(float));
    const delta_net_args args = {.batch = batch,
                                 .qkv = c->qkv,
                                 .z = c->z,
                                 .alpha = c->alpha,
                                 .beta = c->beta,
                                 .a = c->a,
                                 .dt = c->dt,
                                 .norm = c->norm,
                                 .state = states,
                                 .out = out,
                                 .qkv_stride = qkv_width(c),
                                 .z_stride = out_width(c),
                                 .alpha_stride = c->n_values,
                                 .beta_stride = c->n_values,
                                 .out_stride = out_width(c),
                                 .state_stride = state_size(c),
                                 .n_key_heads = c->n_keys,
                                 .n_value_heads = c->n_values,
                                 .dim = c->dim,
                                 .grouped = (uint32_t)c->grouped,
                                 .eps = 1e-6f};
    delta_net_items(tier, &args, 0, delta_net_n_items(&args), scratch);
    free(scratch);
}

/* Run the sequence from `position` on in pieces; state gets the end, out the rows. */
static void run(const layer_case *c, cpu_tier tier, uint32_t position, uint32_t piece,
                float *state, float *out) {
    for (uint32_t at = 0; at < c->n; at += piece) {
        const uint32_t n = c->n - at < piece ? c->n - at : piece;
        const batch_run piece_run = {.first_row = at, .n_rows = n, .position = position + at};
        run_batch(c, tier, (batch_view){.runs = &piece_run, .n_rows = c->n, .n_runs = 1}, state,
                  out);
    }
}

/* All tiers, whole and in pieces, near double precision; equal bits where promised. */
static void check(uint32_t n_keys, uint32_t n_values, uint32_t dim, uint32_t n, int grouped) {
    layer_case c = case_new(n_keys, n_values, dim, n, grouped);
    const size_t n_out = n * out_width(&c), n_state = state_size(&c);
    float *whole = ops_floats(n_out), *whole_state = ops_copy(c.start, n_state);
    run(&c, CPU_SCALAR, 0, n, whole_state, whole);
    OPS_EACH_TIER {
        const uint32_t pieces[] = {n, 64, 32, 1, 7};
        for (size_t p = 0; p < 5; p++) {
            float *out = ops_floats(n_out), *state = ops_copy(c.start, n_state);
            run(&c, tier, 0, pieces[p], state, out);
            assert_true(ops_relative_l2(out, c.expected, n_out) < 3e-6);
            assert_true(ops_relative_l2(state, c.expected_state, n_state) < 1e-6);
            if (pieces[p] % DELTA_NET_CHUNK == 0 || pieces[p] == n) {
                ops_assert_same(out, whole, n_out);
                ops_assert_same(state, whole_state, n_state);
            }
            free(out);
            free(state);
        }
    }
    free(whole);
    free(whole_state);
    case_free(&c);
}

static void
every_length_and_split_is_near_double_precision_and_equal_in_all_tiers(void **state) {
    (void)state;
    check(1, 1, 128, 1, 0);
    check(2, 4, 64, 31, 0);
    check(2, 6, 32, 32, 0);
    check(1, 2, 48, 33, 0);
    check(2, 4, 128, 130, 0);
    check(2, 4, 16, 70, 1);
}

static void value_heads_take_key_heads_by_remainder_or_by_group(void **state) {
    (void)state;
    layer_case c = case_new(2, 4, 16, 3, 0);
    float *tiled = ops_floats(3 * out_width(&c)), *grouped = ops_floats(3 * out_width(&c));
    float *s = ops_copy(c.start, state_size(&c));
    run(&c, CPU_SCALAR, 0, 3, s, tiled);
    memcpy(s, c.start, state_size(&c) * sizeof(float));
    c.grouped = 1;
    run(&c, CPU_SCALAR, 0, 3, s, grouped);
    for (size_t head = 0; head < 4; head++) /* 0,1,0,1 against 0,0,1,1 */
        assert_int_equal(ops_same(tiled[head * 16], grouped[head * 16]),
                         head == 0 || head == 3);
    free(tiled);
    free(grouped);
    free(s);
    case_free(&c);
}

static void a_run_that_starts_inside_a_chunk_agrees_with_double_precision(void **state) {
    (void)state;
    layer_case c = case_new(1, 2, 32, 100, 0);
    OPS_EACH_TIER {
        float *out = ops_floats(c.n * out_width(&c)), *s = ops_copy(c.start, state_size(&c));
        run(&c, tier, 13, c.n, s, out);
        assert_true(ops_relative_l2(out, c.expected, c.n * out_width(&c)) < 3e-6);
        free(out);
        free(s);
    }
    case_free(&c);
}

/* The recurrence table of the specification, two-dimensional, embedded in 16 dimensions:
 * the vectors there are normalised, so that l2norm changes them by 5e-7 only. */
static void gives_the_recurrence_of_the_specification(void **state) {
    (void)state;
    const float k[3][2] = {{1, 0}, {0.6f, 0.8f}, {0, 1}},
                q[3][2] = {{0.6f, 0.8f}, {1, 0}, {0.8f, -0.6f}};
    const float v[3][2] = {{1, 2}, {3, -1}, {0.5f, 0.5f}};
    const double g[3] = {-0.1, -0.5, -0.2}, beta[3] = {0.5, 0.25, 0.9};
    const double after[3][4] = {{0.5, 1.0, 0, 0},
                                {0.7259715, 0.4019429, 0.5636082, -0.2727837},
                                {0.5943752, 0.3290830, 0.4961443, 0.4276664}};
    OPS_EACH_TIER {
        float s[256] = {0};
        void *scratch = ops_floats(delta_net_scratch_bytes(16) / sizeof(float));
        for (size_t t = 0; t < 3; t++) {
            float qkv[48] = {0}, z[16] = {0}, out[16], norm[16] = {0};
            memcpy(qkv, q[t], 8);
            memcpy(qkv + 16, k[t], 8);
            memcpy(qkv + 32, v[t], 8);
            const float a = -1.0f, dt = 0.0f;
            const float alpha = (float)log(expm1(-g[t])),
                        b = (float)log(beta[t] / (1 - beta[t]));
            const batch_run one = {.n_rows = 1, .position = (uint32_t)t};
            const delta_net_args args = {.batch = {.runs = &one, .n_rows = 1, .n_runs = 1},
                                         .qkv = qkv,
                                         .z = z,
                                         .alpha = &alpha,
                                         .beta = &b,
                                         .a = &a,
                                         .dt = &dt,
                                         .norm = norm,
                                         .state = s,
                                         .out = out,
                                         .n_key_heads = 1,
                                         .n_value_heads = 1,
                                         .dim = 16,
                                         .eps = 1e-6f};
            delta_net_items(tier, &args, 0, 1, scratch);
            const float got[4] = {s[0], s[1], s[16], s[17]};
            ops_assert_close(got, after[t], 4, 2e-6, 0);
        }
        free(scratch);
    }
}

static void huge_decay_zero_keys_and_long_runs_stay_finite(void **state) {
    (void)state;
    layer_case c = case_new(1, 1, 32, 96, 0);
    for (size_t t = 0; t < c.n; t++) {
        c.alpha[t] = t % 3 == 0 ? 3e38f : 50.0f; /* g would be -inf without the clamp */
        if (t % 5 == 0) memset(c.qkv + t * 96, 0, 96 * sizeof(float));
    }
    c.a[0] = -1e30f;
    float *first = NULL, *first_state = NULL;
    OPS_EACH_TIER {
        float *out = ops_floats(c.n * 32), *s = ops_copy(c.start, state_size(&c));
        run(&c, tier, 0, c.n, s, out);
        for (size_t i = 0; i < c.n * 32; i++)
            assert_true(isfinite(out[i]));
        if (!first) {
            first = out;
            first_state = s;
            continue;
        }
        ops_assert_same(out, first, c.n * 32);
        ops_assert_same(s, first_state, state_size(&c));
        free(out);
        free(s);
    }
    free(first);
    free(first_state);
    case_free(&c);
}

static void nan_stays_in_its_sequence_and_head(void **state) {
    (void)state;
    layer_case c = case_new(1, 2, 32, 40, 0);
    c.qkv[10 * qkv_width(&c) + 2 * 32 + 5] = NAN; /* v of token 10, head 0 */
    OPS_EACH_TIER {
        float *out = ops_floats(c.n * 64), *s = ops_copy(c.start, state_size(&c));
        run(&c, tier, 0, c.n, s, out);
        assert_true(isnan(out[39 * 64]));
        for (size_t i = 0; i < 32; i++) {
            assert_true(isfinite(out[39 * 64 + 32 + i]));
            assert_true(isfinite(out[9 * 64 + i])); /* an earlier token of the same chunk */
        }
        free(out);
        free(s);
    }
    case_free(&c);
}

/* One run over two cuts, whose rows keep their states: as runs of one row each. */
static void verified_rows_have_the_bits_of_rows_alone(void **state) {
    (void)state;
    enum { N = 40 };
    layer_case c = case_new(2, 4, 32, N, 0);
    const size_t width = out_width(&c), size = state_size(&c);
    OPS_EACH_TIER {
        float *out = ops_floats(2 * N * width), *states = ops_floats((1 + N) * size);
        float *alone = out + N * width, *last = ops_copy(c.start, size);
        uint32_t list[1 + N];
        for (uint32_t t = 0; t <= N; t++)
            list[t] = t; /* list[0] stands for the pages */
        const batch_run rows = {.n_rows = N, .position = 25, .first_kept = 1};
        memcpy(states, c.start, size * sizeof(float));
        run_batch(&c, tier,
                  (batch_view){.runs = &rows, .pages = list, .n_rows = N, .n_runs = 1}, states,
                  out);
        assert_memory_equal(states, c.start, size * sizeof(float));
        for (uint32_t t = 0; t < N; t++) {
            const batch_run one = {.first_row = t, .n_rows = 1, .position = 25 + t};
            run_batch(&c, tier, (batch_view){.runs = &one, .n_rows = N, .n_runs = 1}, last,
                      alone);
            ops_assert_same(states + (1 + t) * size, last, size);
        }
        ops_assert_same(out, alone, N * width);
        free(out);
        free(states);
        free(last);
    }
    case_free(&c);
}

/* Two sequences in one step, rows interleaved in the batch as runs, against each alone. */
static void sequences_of_a_batch_do_not_see_each_other(void **state) {
    (void)state;
    layer_case c = case_new(2, 4, 32, 80, 0);
    const size_t width = out_width(&c), size = state_size(&c);
    const batch_run runs[2] = {{.first_row = 0, .n_rows = 33, .position = 64, .state = 1},
                               {.first_row = 33, .n_rows = 47, .position = 5, .state = 0}};
    OPS_EACH_TIER {
        float *out = ops_floats(2 * c.n * width), *states = ops_floats(4 * size);
        void *scratch = ops_floats(delta_net_scratch_bytes(c.dim) / sizeof(float));
        delta_net_args args = {.batch = {.runs = runs, .n_rows = c.n, .n_runs = 2},
                               .qkv = c.qkv,
                               .z = c.z,
                               .alpha = c.alpha,
                               .beta = c.beta,
                               .a = c.a,
                               .dt = c.dt,
                               .norm = c.norm,
                               .state = states,
                               .out = out,
                               .qkv_stride = qkv_width(&c),
                               .z_stride = width,
                               .alpha_stride = c.n_values,
                               .beta_stride = c.n_values,
                               .out_stride = width,
                               .state_stride = size,
                               .n_key_heads = c.n_keys,
                               .n_value_heads = c.n_values,
                               .dim = c.dim,
                               .eps = 1e-6f};
        delta_net_items(tier, &args, 0, delta_net_n_items(&args), scratch);
        for (size_t r = 0; r < 2; r++) {
            args.batch = (batch_view){.runs = &runs[r], .n_rows = c.n, .n_runs = 1};
            args.out = out + c.n * width;
            args.state = states + 2 * size;
            delta_net_items(tier, &args, 0, delta_net_n_items(&args), scratch);
        }
        ops_assert_same(out, out + c.n * width, c.n * width);
        ops_assert_same(states, states + 2 * size, 2 * size);
        free(out);
        free(states);
        free(scratch);
    }
    case_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            every_length_and_split_is_near_double_precision_and_equal_in_all_tiers),
        cmocka_unit_test(value_heads_take_key_heads_by_remainder_or_by_group),
        cmocka_unit_test(a_run_that_starts_inside_a_chunk_agrees_with_double_precision),
        cmocka_unit_test(gives_the_recurrence_of_the_specification),
        cmocka_unit_test(huge_decay_zero_keys_and_long_runs_stay_finite),
        cmocka_unit_test(nan_stays_in_its_sequence_and_head),
        cmocka_unit_test(verified_rows_have_the_bits_of_rows_alone),
        cmocka_unit_test(sequences_of_a_batch_do_not_see_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
