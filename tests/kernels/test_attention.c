/* test_attention.c - preparing rows, KV pages and attention, in all tiers and batches. */
#include "kernels/attention.h"
#include "kernels/attention_prepare.h"
#include "kernels/rope.h"
#include "tests/kernels/ops_case.h"

enum { MAX_PAGES = 8 };

/* One sequence of n tokens; pages lie in a shuffled order and hold NaN where not written. */
typedef struct sequence_case {
    uint32_t n_heads, n_kv_heads, dim, n_rot, n, type;
    float *qg, *k, *v, *q_norm, *k_norm, *rope;
    uint32_t pages[MAX_PAGES];
    double *expected; /* [n][n_heads * dim] */
} sequence_case;

static size_t query_width(const sequence_case *c) {
    return (size_t)c->n_heads * 2 * c->dim;
}
static size_t out_width(const sequence_case *c) {
    return (size_t)c->n_heads * c->dim;
}
static size_t kv_width(const sequence_case *c) {
    return (size_t)c->n_kv_heads * c->dim;
}

/* rotate(rmsnorm(x)) in double precision with the float32 cosines and sines. */
static void prepare64(const sequence_case *c, const float *x, const float *weight, size_t t,
                      double *y) {
    const size_t pairs = c->n_rot / 2;
    const float *rope = c->rope + t * c->n_rot;
    double squares = 0;
    for (size_t i = 0; i < c->dim; i++)
        squares += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < c->dim; i++)
        y[i] = (double)x[i] / sqrt(squares / c->dim + 1e-6) * (double)weight[i];
    for (size_t i = 0; i < pairs; i++) {
        const double a = y[i], b = y[pairs + i];
        y[i] = a * (double)rope[i] - b * (double)rope[pairs + i];
        y[pairs + i] = b * (double)rope[i] + a * (double)rope[pairs + i];
    }
}

/* Softmax over all positions at once, the plain definition. */
static void attend64(sequence_case *c, size_t t, size_t head) {
    const size_t dim = c->dim, kv_head = head / (c->n_heads / c->n_kv_heads);
    const float *row = c->qg + t * query_width(c) + head * 2 * dim;
    double *out = c->expected + t * out_width(c) + head * dim;
    double q[256] = {0}, k[256] = {0}, sum = 0, *scores = calloc(c->n, sizeof(double));
    assert_non_null(scores);
    prepare64(c, row, c->q_norm, t, q);
    for (size_t p = 0; p <= t; p++) {
        prepare64(c, c->k + p * kv_width(c) + kv_head * dim, c->k_norm, p, k);
        for (size_t i = 0; i < dim; i++)
            scores[p] += q[i] * k[i] / sqrt((double)dim);
        scores[p] = exp(scores[p]);
        sum += scores[p];
    }
    for (size_t i = 0; i < dim; i++) {
        for (size_t p = 0; p <= t; p++)
            out[i] += scores[p] / sum * (double)c->v[p * kv_width(c) + kv_head * dim + i];
        out[i] /= 1 + exp(-(double)row[dim + i]);
    }
    free(scores);
}

static sequence_case case_new(uint32_t n_heads, uint32_t n_kv_heads, uint32_t dim,
                              uint32_t n_rot, uint32_t n, uint32_t type) {
    sequence_case c = {.n_heads = n_heads,
                       .n_kv_heads = n_kv_heads,
                       .dim = dim,
                       .n_rot = n_rot,
                       .n = n,
                       .type = type,
                       .pages = {5, 2, 7, 0, 3, 6, 1, 4}};
    uint64_t seed = 31 + n;
    float inv_freq[128];
    c.qg = ops_random_floats(&seed, n * query_width(&c), -2.0f, 2.0f);
    c.k = ops_random_floats(&seed, n * kv_width(&c), -2.0f, 2.0f);
    c.v = ops_random_floats(&seed, n * kv_width(&c), -2.0f, 2.0f);
    c.q_norm = ops_random_floats(&seed, dim, 0.5f, 2.0f);
    c.k_norm = ops_random_floats(&seed, dim, 0.5f, 2.0f);
    c.rope = ops_floats((size_t)n * n_rot + 1);
    rope_inverse_frequencies(inv_freq, n_rot, 1e7f);
    for (uint32_t t = 0; t < n; t++)
        rope_row(c.rope + t * n_rot, t, inv_freq, n_rot);
    c.expected = calloc(n * out_width(&c), sizeof(double));
    assert_non_null(c.expected);
    for (size_t t = 0; t < n; t++)
        for (size_t head = 0; head < n_heads; head++)
            attend64(&c, t, head);
    return c;
}

static void case_free(sequence_case *c) {
    float *const parts[] = {c->qg, c->k, c->v, c->q_norm, c->k_norm, c->rope};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        free(parts[i]);
    free(c->expected);
}

/* The layer lies behind `gap` bytes of other layers in each page. */
static kv_view view_new(const sequence_case *c) {
    const size_t gap = 192;
    kv_view view = {.type = c->type,
                    .n_kv_heads = c->n_kv_heads,
                    .head_dim = c->dim,
                    .layer_offset = gap,
                    .page_bytes = 2 * gap + kv_layer_bytes(c->type, c->n_kv_heads, c->dim)};
    view.base = aligned_alloc(64, view.page_bytes * MAX_PAGES);
    assert_non_null(view.base);
    memset(view.base, 0xff, view.page_bytes * MAX_PAGES); /* NaN in every type of value */
    return view;
}

/* Run the sequence in pieces of `piece` rows, `items` work items a call; out gets all rows. */
static void run(const sequence_case *c, cpu_tier tier, uint32_t piece, size_t items,
                kv_view *view, float *out) {
    float *qg = ops_copy(c->qg, c->n * query_width(c));
    uint32_t *row_run = calloc(c->n + 1, sizeof(uint32_t));
    void *scratch = ops_floats(attention_scratch_bytes(c->dim) / sizeof(float));
    assert_non_null(row_run);
    for (uint32_t at = 0; at < c->n; at += piece) {
        const uint32_t n = c->n - at < piece ? c->n - at : piece;
        const batch_run one = {.n_rows = n, .position = at};
        const batch_view batch = {
            .runs = &one, .row_run = row_run, .pages = c->pages, .n_rows = n, .n_runs = 1};
        const attention_prepare_args prepare = {.batch = batch,
                                                .kv = *view,
                                                .qg = qg + at * query_width(c),
                                                .k = c->k + at * kv_width(c),
                                                .v = c->v + at * kv_width(c),
                                                .q_norm = c->q_norm,
                                                .k_norm = c->k_norm,
                                                .rope = c->rope + at * c->n_rot,
                                                .qg_stride = query_width(c),
                                                .k_stride = kv_width(c),
                                                .v_stride = kv_width(c),
                                                .n_heads = c->n_heads,
                                                .n_rot = c->n_rot,
                                                .eps = 1e-6f};
        const attention_args args = {.batch = batch,
                                     .kv = *view,
                                     .qg = qg + at * query_width(c),
                                     .out = out + at * out_width(c),
                                     .qg_stride = query_width(c),
                                     .out_stride = out_width(c),
                                     .n_heads = c->n_heads,
                                     .scale = 1.0f / sqrtf((float)c->dim)};
        const size_t total = attention_n_items(&args);
        attention_prepare_rows(tier, &prepare, 0, n / 2);
        attention_prepare_rows(tier, &prepare, n / 2, n);
        for (size_t first = 0; first < total; first += items)
            attention_items(tier, &args, first, total - first < items ? total : first + items,
                            scratch);
    }
    free(qg);
    free(row_run);
    free(scratch);
}

static void check(uint32_t n_heads, uint32_t n_kv_heads, uint32_t dim, uint32_t n_rot,
                  uint32_t n, uint32_t type, double tolerance) {
    sequence_case c = case_new(n_heads, n_kv_heads, dim, n_rot, n, type);
    const size_t n_out = n * out_width(&c);
    kv_view first_view = view_new(&c);
    float *first = ops_floats(n_out);
    run(&c, CPU_SCALAR, n, SIZE_MAX / 2, &first_view, first);
    assert_true(ops_relative_l2(first, c.expected, n_out) < tolerance);
    OPS_EACH_TIER {
        const struct {
            uint32_t piece;
            size_t items;
        } cuts[] = {{n, SIZE_MAX / 2}, {n, 1}, {n, 5}, {1, 1}, {64, SIZE_MAX / 2}, {7, 3}};
        for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
            if (tier == CPU_SCALAR && i != 5) continue;
            kv_view view = view_new(&c);
            float *out = ops_floats(n_out);
            run(&c, tier, cuts[i].piece, cuts[i].items, &view, out);
            ops_assert_same(out, first, n_out);
            assert_memory_equal(view.base, first_view.base, view.page_bytes * MAX_PAGES);
            free(out);
            free(view.base);
        }
    }
    free(first);
    free(first_view.base);
    case_free(&c);
}

static void any_shape_and_batch_is_near_double_precision_and_equal_in_all_tiers(void **state) {
    (void)state;
    check(4, 1, 64, 32, 130, KV_F32, 1e-6);
    check(6, 2, 128, 64, 65, KV_F32, 1e-6);
    check(16, 2, 256, 64, 70, KV_F32, 1e-6);
    check(3, 3, 32, 6, 64, KV_F32, 1e-6);
    check(10, 2, 96, 96, 100, KV_F32, 1e-6);
    check(2, 1, 256, 64, 1, KV_F32, 1e-6);
}

static void smaller_pages_cost_their_rounding_only(void **state) {
    (void)state;
    check(16, 2, 256, 64, 70, KV_F16, 1e-3);
    check(6, 2, 64, 16, 150, KV_F16, 1e-3);
    check(16, 2, 256, 64, 70, KV_Q8, 2e-2);
    check(5, 1, 96, 32, 129, KV_Q8, 2e-2);
    check(16, 2, 256, 64, 70, KV_Q4, 0.2);
    check(5, 1, 96, 32, 129, KV_Q4, 0.2);
    check(3, 3, 32, 6, 64, KV_Q4, 0.2);
}

static void more_heads_than_a_tile_holds_work(void **state) {
    (void)state;
    check(70, 1, 32, 16, 66, KV_F16, 1e-3);
}

static void rotation_gives_the_values_of_the_specification(void **state) {
    (void)state;
    float inv_freq[32], rope[64];
    rope_inverse_frequencies(inv_freq, 64, 1e7f);
    const double known[] = {1, 0.60429639, 0.365174127, 0.220673407};
    ops_assert_close(inv_freq, known, 4, 0, 1e-7);
    const double last[] = {2.73841963e-07, 1.6548171e-07};
    ops_assert_close(inv_freq + 30, last, 2, 0, 2e-7);
    rope_row(rope, 3, inv_freq, 64);
    OPS_EACH_TIER {
        float q[512], k[256], v[256] = {0}, ones[256];
        for (size_t i = 0; i < 256; i++)
            ones[i] = k[i] = q[i] = q[256 + i] = 1.0f;
        unsigned char *page = malloc(kv_layer_bytes(KV_F32, 1, 256));
        assert_non_null(page);
        const uint32_t zero = 0;
        const batch_run one = {.n_rows = 1, .position = 3};
        const attention_prepare_args args = {
            .batch = {.runs = &one, .row_run = &zero, .pages = &zero, .n_rows = 1, .n_runs = 1},
            .kv = {.base = page, .type = KV_F32, .n_kv_heads = 1, .head_dim = 256},
            .qg = q,
            .k = k,
            .v = v,
            .q_norm = ones,
            .k_norm = ones,
            .rope = rope,
            .n_heads = 1,
            .n_rot = 64,
            .eps = 0.0f};
        attention_prepare_rows(tier, &args, 0, 1);
        const float got[] = {q[0], q[1], q[2], q[31], q[32], q[33], q[63], q[64], q[255]};
        const double expected[] = {-1.131113, -1.210573, -0.431585, 1, -0.848872,
                                   0.731103,  1,         1,         1};
        ops_assert_close(got, expected, 9, 1e-6, 0);
        float key[256];
        kv_row_read(KV_F32, page, 256, 3, key);
        ops_assert_same(key, q, 256);
        assert_true(q[256] == 1.0f); /* the gate is left alone */
        free(page);
    }
}

static void far_positions_use_the_float32_product(void **state) {
    (void)state;
    float inv_freq[32], rope[64];
    rope_inverse_frequencies(inv_freq, 64, 1e7f);
    rope_row(rope, 200000, inv_freq, 64);
    for (size_t i = 0; i < 32; i++) {
        const double angle = (double)(200000.0f * inv_freq[i]);
        assert_true(fabs((double)rope[i] - cos(angle)) < 6e-8);
        assert_true(fabs((double)rope[32 + i] - sin(angle)) < 6e-8);
    }
}

/* A NaN in a key reaches the rows that see it and no earlier row. */
static void nan_reaches_later_rows_only(void **state) {
    (void)state;
    const uint32_t types[] = {KV_F32, KV_F16, KV_Q8, KV_Q4};
    for (size_t i = 0; i < 4; i++) {
        sequence_case c = case_new(4, 1, 64, 32, 80, types[i]);
        c.v[40 * 64 + 3] = NAN;
        OPS_EACH_TIER {
            kv_view view = view_new(&c);
            float *out = ops_floats(c.n * out_width(&c));
            run(&c, tier, c.n, SIZE_MAX / 2, &view, out);
            for (size_t t = 0; t < c.n; t++)
                assert_int_equal(isnan(out[t * out_width(&c) + 3]) != 0, t >= 40);
            free(out);
            free(view.base);
        }
        case_free(&c);
    }
}

/* Scores hundreds apart: the weights underflow to 0 and nothing overflows. */
static void huge_scores_pick_one_position(void **state) {
    (void)state;
    sequence_case c = case_new(2, 1, 32, 0, 70, KV_F32);
    for (size_t t = 0; t < c.n; t++) {
        for (size_t i = 0; i < 32; i++) {
            c.k[t * 32 + i] = t == 20 ? 1.0f : -1.0f;
            c.qg[t * 128 + i] = c.qg[t * 128 + 64 + i] = 1.0f;
            c.qg[t * 128 + 32 + i] = c.qg[t * 128 + 96 + i] = 100.0f; /* gate: 1 */
        }
    }
    for (size_t i = 0; i < 32; i++)
        c.q_norm[i] = c.k_norm[i] = 50.0f;
    OPS_EACH_TIER {
        kv_view view = view_new(&c);
        float *out = ops_floats(c.n * 64);
        run(&c, tier, c.n, SIZE_MAX / 2, &view, out);
        for (size_t t = 20; t < c.n; t++)
            ops_assert_same(out + t * 64, c.v + 20 * 32, 32);
        free(out);
        free(view.base);
    }
    case_free(&c);
}

static void rows_of_every_type_come_back_as_they_must(void **state) {
    (void)state;
    uint64_t seed = 77;
    float *row = ops_random_floats(&seed, 96, -3.0f, 3.0f), back[96];
    for (size_t i = 32; i < 64; i++)
        row[i] = 0.0f;
    /* Of the values from -3 to 3: exact, a rounded half, half a step of 254 or of 15. */
    const uint32_t types[] = {KV_F32, KV_F16, KV_Q8, KV_Q4};
    const double steps[] = {0, 2e-3, 0.0125, 0.21};
    for (size_t i = 0; i < 4; i++) {
        unsigned char *block = malloc(kv_block_bytes(types[i], 96));
        assert_non_null(block);
        for (uint32_t slot = 0; slot < 64; slot += 21) {
            kv_row_write(types[i], block, 96, slot, row);
            kv_row_read(types[i], block, 96, slot, back);
            for (size_t j = 0; j < 96; j++) {
                const double off = fabs((double)back[j] - (double)row[j]);
                assert_true(off <= (row[j] == 0.0f ? 0 : steps[i]));
            }
        }
        free(block);
    }
    assert_int_equal(kv_block_bytes(KV_Q8, 256), 64 * 256 + 64 * 8 * 2);
    assert_int_equal(kv_block_bytes(KV_Q4, 256), 64 * 128 + 64 * 8 * 4);
    assert_int_equal(kv_block_bytes(KV_Q4 + 1, 256), 0);
    free(row);
}

/* Far from zero and near each other, constant, all zero, of one sign: the minimum takes what the
 * four bits would lose, and a tier writes what the oracle writes. */
static void four_bits_keep_what_lies_off_zero(void **state) {
    (void)state;
    enum { DIM = 32 };
    const float offsets[] = {40.0f, -40.0f, 0.0f, 7.5f}, widths[] = {1.0f, 1.0f, 0.0f, 0.0f};
    for (size_t i = 0; i < 4; i++) {
        uint64_t seed = 5 + i;
        float *row = ops_random_floats(&seed, DIM, 0.0f, widths[i]), back[DIM];
        unsigned char *block = malloc(kv_block_bytes(KV_Q4, DIM));
        assert_non_null(block);
        for (size_t j = 0; j < DIM; j++)
            row[j] += offsets[i];
        kv_row_write(KV_Q4, block, DIM, 9, row);
        kv_row_read(KV_Q4, block, DIM, 9, back);
        for (size_t j = 0; j < DIM; j++)
            assert_true(fabsf(back[j] - row[j]) <= widths[i] * (0.5f / 15 + 0.02f));
        free(block);
        free(row);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_shape_and_batch_is_near_double_precision_and_equal_in_all_tiers),
        cmocka_unit_test(smaller_pages_cost_their_rounding_only),
        cmocka_unit_test(more_heads_than_a_tile_holds_work),
        cmocka_unit_test(rotation_gives_the_values_of_the_specification),
        cmocka_unit_test(far_positions_use_the_float32_product),
        cmocka_unit_test(nan_reaches_later_rows_only),
        cmocka_unit_test(huge_scores_pick_one_position),
        cmocka_unit_test(rows_of_every_type_come_back_as_they_must),
        cmocka_unit_test(four_bits_keep_what_lies_off_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
