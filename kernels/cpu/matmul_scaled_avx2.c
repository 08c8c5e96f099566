/* matmul_scaled_avx2.c - four weight rows against up to four activation rows with a scale for
 * each 16 or 32 columns, in AVX2.
 *
 * A step is 64 columns.  Sums of four products of four rows are summed inside 128-bit lanes by
 * a transposition, so that a result vector holds two groups of four rows, lane 4 * group + row.
 * Factors of weights and activations are put in the same order, and the groups are added one
 * after the other.
 * Oracle  kernels/cpu/matmul.c; bits compared in tests/kernels/test_matmul.c.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/rows_avx2.h"

/* 64 columns of four rows: the two pieces of 32 of row r, and the factors of each result
 * vector: one for groups of 32 columns, two for groups of 16. */
typedef struct weight_step {
    __m256i v[2][4];
    __m256 scale[2], min[2];
} weight_step;

/* Columns of a group. */
INLINE size_t group_in(const quant_type type) {
    return matmul_group_of(type);
}

/* Factors of two groups of 32 columns to one or two result vectors. */
INLINE void spread_factors(const size_t group, __m256 x, __m256 out[2]) {
    out[0] = group == 32 ? x : _mm256_permute2f128_ps(x, x, 0x00);
    out[1] = group == 32 ? x : _mm256_permute2f128_ps(x, x, 0x11);
}

/* ---- activations ---- */

INLINE __m128 half_of(__m256 x, int i) {
    return i == 0 ? _mm256_castps256_ps128(x) : _mm256_extractf128_ps(x, 1);
}

/* One or two groups from `first` on, to the sums of four rows. */
INLINE __m128 add_groups(const quant_type type, const bool both, __m256i sums, __m256 scale,
                         __m256 min, const act16_row *x, size_t first, __m128 acc) {
    const size_t next = both ? 1 : 0, step = group_in(type) / 16;
    const float *s = x->scales + step * first;
    __m256 products = _mm256_cvtepi32_ps(sums), scaled = _mm256_setzero_ps();
    __m256 factor = _mm256_mul_ps(scale, two_floats(s[0], s[step * next]));
    if (has_min(type)) scaled = two_floats(x->scaled[first], x->scaled[first + next]);
    for (int i = 0; i < 1 + (both ? 1 : 0); i++) {
        acc = _mm_fmadd_ps(half_of(products, i), half_of(factor, i), acc);
        if (has_min(type)) acc = _mm_fmadd_ps(half_of(scaled, i), half_of(min, i), acc);
    }
    return acc;
}

/* A step from column col on, of which the second piece may not be there, against one token. */
INLINE __m128 add_step(const quant_type type, const bool both, const weight_step *w,
                       const act16_row *x, size_t col, __m128 acc) {
    const int offset = offset_of(type);
    __m256i low = dots_of(type, offset, w->v[0], load_256(x->q + col));
    __m256i high = both ? dots_of(type, offset, w->v[1], load_256(x->q + col + 32))
                        : _mm256_setzero_si256();
    if (group_in(type) == 32) {
        __m256i sums = _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                                        _mm256_permute2x128_si256(low, high, 0x31));
        return add_groups(type, both, sums, w->scale[0], w->min[0], x, col / 32, acc);
    }
    acc = add_groups(type, true, low, w->scale[0], w->min[0], x, col / 16, acc);
    if (!both) return acc;
    return add_groups(type, true, high, w->scale[1], w->min[1], x, col / 16 + 2, acc);
}

/* ---- blocks of 256 ---- */

/* The factors of a block's steps. */
typedef struct block_factors {
    __m256 scale[4][2], min[4][2];
} block_factors;

INLINE void spread_block(const quant_type type, const __m256 x[8], __m256 out[4][2]) {
    UNROLL
    for (int s = 0; s < 4; s++) {
        if (group_of(type) == 32) {
            spread_factors(group_in(type), x[s], out[s]);
            continue;
        }
        out[s][0] = x[2 * s];
        out[s][1] = x[2 * s + 1];
    }
}

INLINE void take_factors(const quant_type type, const uint8_t *const b[4], block_factors *f) {
    __m256 scale[8], min[8];
    factors_of_block(type, b, scale, min);
    spread_block(type, scale, f->scale);
    if (has_min(type)) spread_block(type, min, f->min);
}

INLINE void rows_256(matmul_rows *a, const quant_type type, const int n_tokens) {
    const uint8_t *b[4] = {a->rows[0], a->rows[1], a->rows[2], a->rows[3]};
    act16_row x[MATMUL_TOKENS];
    __m128 acc[MATMUL_TOKENS];
    for (int t = 0; t < n_tokens; t++) {
        x[t] = act16_row_at(a->acts[t], a->n_cols, group_in(type), 0);
        acc[t] = _mm_setzero_ps();
    }
    for (size_t col = 0; col < a->n_cols; col += 256) {
        block_factors f;
        take_factors(type, b, &f);
        UNROLL
        for (int s = 0; s < 4; s++) {
            weight_step w;
            UNROLL
            for (int i = 0; i < 2; i++) {
                w.scale[i] = f.scale[s][i];
                w.min[i] = has_min(type) ? f.min[s][i] : _mm256_setzero_ps();
                for (int r = 0; r < 4; r++)
                    w.v[i][r] = unpack_group(type, b[r], 2 * s + i);
            }
            for (int t = 0; t < n_tokens; t++)
                acc[t] = add_step(type, true, &w, &x[t], col + 64 * (size_t)s, acc[t]);
        }
        for (int r = 0; r < 4; r++)
            b[r] += bytes_of(type);
    }
    for (int t = 0; t < n_tokens; t++)
        _mm_storeu_ps(a->out[t], acc[t]);
}

/* ---- blocks of 32 ---- */

/* One or two blocks of four rows. */
INLINE void take_blocks_32(const quant_type type, const bool both, const uint8_t *const b[4],
                           weight_step *w) {
    __m256 d, m;
    blocks_32(type, both, b, w->v, &d, &m);
    spread_factors(group_in(type), d, w->scale);
    spread_factors(group_in(type), m, w->min);
}

INLINE void step_32(const matmul_rows *a, const quant_type type, const int n_tokens, size_t col,
                    const bool both, const act16_row x[], __m128 acc[]) {
    const uint8_t *b[4];
    weight_step w;
    for (int r = 0; r < 4; r++)
        b[r] = a->rows[r] + col / 32 * bytes_of(type);
    take_blocks_32(type, both, b, &w);
    for (int t = 0; t < n_tokens; t++)
        acc[t] = add_step(type, both, &w, &x[t], col, acc[t]);
}

INLINE void rows_32(matmul_rows *a, const quant_type type, const int n_tokens) {
    act16_row x[MATMUL_TOKENS];
    __m128 acc[MATMUL_TOKENS];
    for (int t = 0; t < n_tokens; t++) {
        x[t] = act16_row_at(a->acts[t], a->n_cols, group_in(type), 0);
        acc[t] = _mm_setzero_ps();
    }
    size_t col = 0;
    for (; col + 64 <= a->n_cols; col += 64)
        step_32(a, type, n_tokens, col, true, x, acc);
    if (col < a->n_cols) step_32(a, type, n_tokens, col, false, x, acc);
    for (int t = 0; t < n_tokens; t++)
        _mm_storeu_ps(a->out[t], acc[t]);
}

/* ---- one function for each type, for one token and for more ---- */

#include "kernels/cpu/rows_types.h"

matmul_rows_kernel matmul_scaled_avx2(quant_type type, size_t n_tokens) {
    return kernels[type][n_tokens > 1];
}
