/* matmul_scaled_avx512.c - four weight rows against up to four activation rows with a scale
 * for each 16 or 32 columns, in AVX-512 VNNI.
 *
 * A step is 128 columns.  vpdpbusd leaves sums of four products; the four rows of a vector are
 * summed inside 128-bit lanes by a transposition, so that a result vector holds four groups of
 * four rows, lane 4 * group + row.  Factors of weights and activations are put in the same order,
 * and the groups are added one after the other.
 * Oracle  kernels/cpu/matmul.c; bits compared in tests/kernels/test_matmul.c.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/rows_avx512.h"

/* 128 columns of four rows: vector k of row r, and the factors of each result vector: one for
 * groups of 32 columns, two for groups of 16. */
typedef struct weight_step {
    __m512i v[2][4];
    __m512 scale[2], min[2];
} weight_step;

/* Columns of a group. */
INLINE int group_in(const quant_type type) {
    return (int)matmul_group_of(type);
}

/* The sums of a step's groups in the order of the columns; the types of unpack_k4() have the
 * groups of 32 in the order 0 2, 1 3. */
INLINE void sum_groups(const quant_type type, const int group, __m512i x[2][4],
                       __m512i out[2]) {
    __m512i a = sum_quarters(x[0]), b = sum_quarters(x[1]);
    if (group == 16) {
        out[0] = is_k4(type) ? _mm512_shuffle_i64x2(a, b, _MM_SHUFFLE(1, 0, 1, 0)) : a;
        out[1] = is_k4(type) ? _mm512_shuffle_i64x2(a, b, _MM_SHUFFLE(3, 2, 3, 2)) : b;
        return;
    }
    __m512i low = _mm512_shuffle_i64x2(a, b, _MM_SHUFFLE(2, 0, 2, 0));
    __m512i high = _mm512_shuffle_i64x2(a, b, _MM_SHUFFLE(3, 1, 3, 1));
    out[0] = _mm512_add_epi32(low, high);
    if (is_k4(type)) out[0] = _mm512_shuffle_i64x2(out[0], out[0], _MM_SHUFFLE(3, 1, 2, 0));
}

/* Factors of four groups of 32 columns to one or two result vectors. */
INLINE void spread_factors(const int group, __m512 x, __m512 out[2]) {
    if (group == 32) {
        out[0] = x;
        return;
    }
    out[0] = _mm512_shuffle_f32x4(x, x, _MM_SHUFFLE(1, 1, 0, 0));
    out[1] = _mm512_shuffle_f32x4(x, x, _MM_SHUFFLE(3, 3, 2, 2));
}

/* ---- activations ---- */

/* Groups of the step from group `first` on, n of them, to the sums of four rows. */
INLINE __m128 add_groups(const quant_type type, const bool tail, size_t n, __m512i sums,
                         __m512 scale, __m512 min, const act16_row *x, size_t first,
                         __m128 acc) {
    __m512 s = group_in(type) == 32 ? spread_pairs(x->scales + 2 * first, 0, tail, n)
                                    : spread_floats(x->scales + first, tail, n);
    __m512 scaled =
        has_min(type) ? spread_floats(x->scaled + first, tail, n) : _mm512_setzero_ps();
    __m512 products = _mm512_cvtepi32_ps(sums), factor = _mm512_mul_ps(scale, s);
    UNROLL
    for (int i = 0; i < 4; i++) {
        if (tail && (size_t)i >= n) break;
        acc = _mm_fmadd_ps(lane_of(products, i), lane_of(factor, i), acc);
        if (has_min(type)) acc = _mm_fmadd_ps(lane_of(scaled, i), lane_of(min, i), acc);
    }
    return acc;
}

/* A step, of which n (1..4) pieces of 32 columns are there, against one token; at[]: where
 * the columns of the four pieces in the order of the vectors stand. */
INLINE __m128 add_step(const quant_type type, const bool tail, size_t n, const weight_step *w,
                       const act16_row *x, size_t col, const size_t at[4], __m128 acc) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i dots[2][4], sums[2];
    UNROLL
    for (int k = 0; k < 2; k++) {
        __m512i q = load_halves(x->q + col + at[2 * k], x->q + col + at[2 * k + 1]);
        __m512i start = zero;
        if (offset_of(type) != 0) {
            __m512i offset = _mm512_set1_epi8((char)offset_of(type));
            start = _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, offset, q));
        }
        UNROLL
        for (int r = 0; r < 4; r++)
            dots[k][r] = _mm512_dpbusd_epi32(start, w->v[k][r], q);
    }
    sum_groups(type, group_in(type), dots, sums);
    if (group_in(type) == 32) {
        return add_groups(type, tail, n, sums[0], w->scale[0], w->min[0], x, col / 32, acc);
    }
    const size_t low = n < 2 ? n : 2;
    acc = add_groups(type, tail, 2 * low, sums[0], w->scale[0], w->min[0], x, col / 16, acc);
    return add_groups(type, tail, 2 * (n - low), sums[1], w->scale[1], w->min[1], x,
                      col / 16 + 4, acc);
}

/* ---- blocks of 256 ---- */

INLINE void take_factors_256(const quant_type type, const int group, const uint8_t *const b[4],
                             weight_step w[2]) {
    __m512i min_bytes = _mm512_setzero_si512();
    __m512i bytes = transpose_bytes(scales_256(type, b, &min_bytes));
    __m128 d4, dmin4;
    factors_256(type, b, &d4, &dmin4);
    const bool is_signed = offset_of(type) != 0;
    const __m512 d = _mm512_broadcast_f32x4(d4);
    const __m512 dmin = _mm512_broadcast_f32x4(_mm_xor_ps(dmin4, _mm_set1_ps(-0.0f)));
    if (type == QUANT_Q2_K) min_bytes = transpose_bytes(min_bytes);
    UNROLL
    for (int s = 0; s < 2; s++) {
        if (group_of(type) == 32) {
            spread_factors(group, factors_of(is_signed, bytes, s, d), w[s].scale);
            if (is_k4(type))
                spread_factors(group, factors_of(false, bytes, 2 + s, dmin), w[s].min);
            continue;
        }
        UNROLL
        for (int i = 0; i < 2; i++) {
            w[s].scale[i] = factors_of(is_signed, bytes, 2 * s + i, d);
            if (type == QUANT_Q2_K) w[s].min[i] = factors_of(false, min_bytes, 2 * s + i, dmin);
        }
    }
}

INLINE void take_block_256(const quant_type type, const int group, const uint8_t *const b[4],
                           weight_step w[2]) {
    const __m512 zero = _mm512_setzero_ps();
    UNROLL
    for (int s = 0; s < 2; s++)
        w[s].min[0] = w[s].min[1] = w[s].scale[1] = zero;
    take_factors_256(type, group, b, w);
    UNROLL
    for (int r = 0; r < 4; r++) {
        __m512i v[4];
        unpack_256(type, b[r], v);
        UNROLL
        for (int k = 0; k < 4; k++)
            w[k / 2].v[k % 2][r] = v[k];
    }
}

INLINE void rows_256(matmul_rows *a, const quant_type type, const int n_tokens) {
    const size_t natural[4] = {0, 32, 64, 96}, of_k4[4] = {0, 64, 32, 96};
    const size_t *at = is_k4(type) ? of_k4 : natural;
    const uint8_t *b[4] = {a->rows[0], a->rows[1], a->rows[2], a->rows[3]};
    act16_row x[MATMUL_TOKENS];
    __m128 acc[MATMUL_TOKENS];
    for (int t = 0; t < n_tokens; t++) {
        x[t] = act16_row_at(a->acts[t], a->n_cols, group_in(type), 0);
        acc[t] = _mm_setzero_ps();
    }
    for (size_t col = 0; col < a->n_cols; col += 256) {
        weight_step w[2];
        take_block_256(type, group_in(type), b, w);
        for (int t = 0; t < n_tokens; t++) {
            UNROLL
            for (size_t s = 0; s < 2; s++) {
                acc[t] = add_step(type, false, 4, &w[s], &x[t], col + 128 * s, at, acc[t]);
            }
        }
        for (int r = 0; r < 4; r++)
            b[r] += bytes_of(type);
    }
    for (int t = 0; t < n_tokens; t++)
        _mm_storeu_ps(a->out[t], acc[t]);
}

/* ---- blocks of 32 ---- */

/* n (1..4, 4 unless tail) blocks from column col on; the last one stands in for those that
 * are not there. */
INLINE void take_blocks_32(const quant_type type, const bool tail, size_t n,
                           const uint8_t *const b[4], size_t at[4], weight_step *w) {
    __m512 d, m;
    blocks_32(type, tail, n, b, at, w->v, &d, &m);
    spread_factors(group_in(type), d, w->scale);
    spread_factors(group_in(type), m, w->min);
}

INLINE void step_32(const matmul_rows *a, const quant_type type, const int n_tokens, size_t col,
                    const bool tail, size_t n, const act16_row x[], __m128 acc[]) {
    const uint8_t *b[4];
    size_t at[4];
    weight_step w;
    for (int r = 0; r < 4; r++)
        b[r] = a->rows[r] + col / 32 * bytes_of(type);
    take_blocks_32(type, tail, n, b, at, &w);
    for (int t = 0; t < n_tokens; t++)
        acc[t] = add_step(type, tail, n, &w, &x[t], col, at, acc[t]);
}

INLINE void rows_32(matmul_rows *a, const quant_type type, const int n_tokens) {
    act16_row x[MATMUL_TOKENS];
    __m128 acc[MATMUL_TOKENS];
    for (int t = 0; t < n_tokens; t++) {
        x[t] = act16_row_at(a->acts[t], a->n_cols, group_in(type), 0);
        acc[t] = _mm_setzero_ps();
    }
    size_t col = 0;
    for (; col + 128 <= a->n_cols; col += 128)
        step_32(a, type, n_tokens, col, false, 4, x, acc);
    if (col < a->n_cols) step_32(a, type, n_tokens, col, true, (a->n_cols - col) / 32, x, acc);
    for (int t = 0; t < n_tokens; t++)
        _mm_storeu_ps(a->out[t], acc[t]);
}

/* ---- one function for each type, for one token and for more ---- */

#include "kernels/cpu/rows_types.h"

matmul_rows_kernel matmul_scaled_avx512(quant_type type, size_t n_tokens) {
    return kernels[type][n_tokens > 1];
}
