/* matmul_step_avx2.c - four weight rows against up to four activation rows in the order of a
 * decoding step on the GPU (ACT_STEP_32, ACT_STEP_16 of kernels/matmul.h), in AVX2.
 *
 * Sums of four products of four rows are summed inside 128-bit lanes by a transposition, so that
 * a result vector holds two pieces of 16 columns of four rows.  The pieces are put in the order in
 * which the contract sums: a vector has the same piece of two neighbouring units, lane 4 * unit +
 * row.  Sixteen accumulators are the 32 partial sums of four rows, and nothing is summed across
 * lanes before the end.
 * Oracle  kernels/cpu/matmul.c; bits compared in tests/kernels/test_matmul.c.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/rows_avx2.h"

enum { VECTORS = STEP_SUMS / 2 };

typedef struct step_sums {
    __m256 acc[VECTORS];
} step_sums;

INLINE void begin_rows(const matmul_rows *a, const int n_tokens, act16_row x[], step_sums s[]) {
    for (int t = 0; t < n_tokens; t++) {
        x[t] = act16_row_at(a->acts[t], a->n_cols, 16, 0);
        UNROLL
        for (int i = 0; i < VECTORS; i++)
            s[t].acc[i] = _mm256_setzero_ps();
    }
}

/* The tree over the partial sums, of which the first n vectors are not all zeros. */
INLINE void store_sums(step_sums *s, size_t n, float *out) {
    __m256 *acc = s->acc;
    if (n > VECTORS) n = VECTORS;
    for (size_t width = VECTORS / 2; width > 0; width /= 2) {
        for (size_t i = 0; i < width && i + width < n; i++)
            acc[i] = _mm256_add_ps(acc[i], acc[i + width]);
        if (n > width) n = width;
    }
    _mm_storeu_ps(out,
                  _mm_add_ps(_mm256_castps256_ps128(acc[0]), _mm256_extractf128_ps(acc[0], 1)));
}

INLINE __m256i low_lanes(__m256i a, __m256i b) {
    return _mm256_permute2x128_si256(a, b, 0x20);
}
INLINE __m256i high_lanes(__m256i a, __m256i b) {
    return _mm256_permute2x128_si256(a, b, 0x31);
}
INLINE __m256 low_floats(__m256 a, __m256 b) {
    return _mm256_permute2f128_ps(a, b, 0x20);
}
INLINE __m256 high_floats(__m256 a, __m256 b) {
    return _mm256_permute2f128_ps(a, b, 0x31);
}

/* acc = fma(product, scale * s, acc) */
INLINE __m256 add_product(__m256i product, __m256 scale, __m256 s, __m256 acc) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(product), _mm256_mul_ps(scale, s), acc);
}

/* ---- wide units: Q4_K, Q5_K, Q6_K, two of them at a time ---- */

/* 128 columns of four rows: vector j of row r, and the factors of the four pieces. */
typedef struct wide_block {
    __m256i v[4][4];
    __m256 scale[4], min[4];
} wide_block;

/* Of the factors of a block those of its half n. */
INLINE void take_wide_factors(const quant_type type, const __m256 scale[8], const __m256 min[8],
                              const int n, wide_block *w) {
    if (is_k4(type)) { /* pieces 0 and 1 have the even sub-blocks */
        const __m256 *s = scale + 2 * n, *m = min + 2 * n;
        w->scale[0] = w->scale[1] = low_floats(s[0], s[1]);
        w->scale[2] = w->scale[3] = high_floats(s[0], s[1]);
        w->min[0] = w->min[1] = low_floats(m[0], m[1]);
        w->min[2] = w->min[3] = high_floats(m[0], m[1]);
        return;
    }
    const __m256 *s = scale + 4 * n;
    for (int i = 0; i < 2; i++) {
        w->scale[2 * i] = low_floats(s[2 * i], s[2 * i + 1]);
        w->scale[2 * i + 1] = high_floats(s[2 * i], s[2 * i + 1]);
    }
    for (int p = 0; p < 4; p++)
        w->min[p] = _mm256_mul_ps(w->scale[p], _mm256_set1_ps(-32.0f));
}

/* Q6_K's values stay 32 too high. */
INLINE __m256 add_wide(const quant_type type, const wide_block *w, const act16_row *x,
                       size_t col, __m256 acc) {
    const int second = is_k4(type) ? 2 : 1, third = is_k4(type) ? 1 : 2;
    __m256i s[4], p[4];
    UNROLL
    for (size_t j = 0; j < 4; j++)
        s[j] = dots_of(type, 0, w->v[j], load_256(x->q + col + 32 * j));
    p[0] = low_lanes(s[0], s[second]);
    p[1] = high_lanes(s[0], s[second]);
    p[2] = low_lanes(s[third], s[3]);
    p[3] = high_lanes(s[third], s[3]);
    UNROLL
    for (size_t i = 0; i < 4; i++) {
        const size_t a = matmul_piece_col(type, 0, i) / 16 + col / 16;
        const size_t b = matmul_piece_col(type, 1, i) / 16 + col / 16;
        acc = add_product(p[i], w->scale[i], two_floats(x->scales[a], x->scales[b]), acc);
        acc = _mm256_fmadd_ps(two_floats(x->scaled[a], x->scaled[b]), w->min[i], acc);
    }
    return acc;
}

INLINE void wide_rows(matmul_rows *a, const quant_type type, const int n_tokens) {
    const uint8_t *b[4] = {a->rows[0], a->rows[1], a->rows[2], a->rows[3]};
    act16_row x[MATMUL_TOKENS];
    step_sums sums[MATMUL_TOKENS];
    begin_rows(a, n_tokens, x, sums);
    for (size_t i = 0; i < a->n_cols / 256; i++) {
        __m256 scale[8], min[8];
        factors_of_block(type, b, scale, min);
        UNROLL
        for (int n = 0; n < 2; n++) {
            wide_block w;
            take_wide_factors(type, scale, min, n, &w);
            UNROLL
            for (int j = 0; j < 4; j++) {
                UNROLL
                for (int r = 0; r < 4; r++)
                    w.v[j][r] = unpack_group(type, b[r], 4 * n + j);
            }
            for (int t = 0; t < n_tokens; t++) {
                __m256 *acc = &sums[t].acc[(2 * i + (size_t)n) % VECTORS];
                *acc = add_wide(type, &w, &x[t], 256 * i + 128 * (size_t)n, *acc);
            }
        }
        for (int r = 0; r < 4; r++)
            b[r] += bytes_of(type);
    }
    for (int t = 0; t < n_tokens; t++)
        store_sums(&sums[t], a->n_cols / 128, a->out[t]);
}

/* ---- units of 32 columns: all other types, two of them at a time ---- */

/* 64 columns of four rows: vector k of row r, and the factors of the units' halves. */
typedef struct unit_block {
    __m256i v[2][4];
    __m256 scale[2], min[2];
} unit_block;

/* One unit, or both, from column col on. */
INLINE __m256 add_units(const quant_type type, const bool both, const unit_block *w,
                        const act16_row *x, size_t col, __m256 acc) {
    const int offset = offset_of(type);
    const size_t g = col / 16, next = both ? 2 : 0;
    const __m256i a = dots_of(type, offset, w->v[0], load_256(x->q + col));
    const __m256i b = both ? dots_of(type, offset, w->v[1], load_256(x->q + col + 32))
                           : _mm256_setzero_si256();
    const __m256i products[2] = {low_lanes(a, b), high_lanes(a, b)};
    const float *s = x->scales + g, *scaled = x->scaled + g;
    __m256 sum = acc;
    UNROLL
    for (size_t h = 0; h < 2; h++)
        sum = add_product(products[h], w->scale[h], two_floats(s[h], s[h + next]), sum);
    if (has_min(type)) {
        UNROLL
        for (size_t h = 0; h < 2; h++)
            sum = _mm256_fmadd_ps(two_floats(scaled[h], scaled[h + next]), w->min[h], sum);
    }
    return both ? sum : _mm256_blend_ps(acc, sum, 0x0f);
}

/* Of the factors of a block those of units 2 s and 2 s + 1. */
INLINE void spread_units(const quant_type type, const __m256 x[8], const int s, __m256 out[2]) {
    out[0] = group_of(type) == 32 ? x[s] : low_floats(x[2 * s], x[2 * s + 1]);
    out[1] = group_of(type) == 32 ? x[s] : high_floats(x[2 * s], x[2 * s + 1]);
}

INLINE void unit_rows_256(matmul_rows *a, const quant_type type, const int n_tokens) {
    const uint8_t *b[4] = {a->rows[0], a->rows[1], a->rows[2], a->rows[3]};
    act16_row x[MATMUL_TOKENS];
    step_sums sums[MATMUL_TOKENS];
    begin_rows(a, n_tokens, x, sums);
    for (size_t i = 0; i < a->n_cols / 256; i++) {
        __m256 scale[8], min[8] = {0};
        factors_of_block(type, b, scale, min);
        UNROLL
        for (int s = 0; s < 4; s++) {
            unit_block w;
            spread_units(type, scale, s, w.scale);
            spread_units(type, min, s, w.min);
            UNROLL
            for (int k = 0; k < 2; k++) {
                UNROLL
                for (int r = 0; r < 4; r++)
                    w.v[k][r] = unpack_group(type, b[r], 2 * s + k);
            }
            for (int t = 0; t < n_tokens; t++) {
                __m256 *acc = &sums[t].acc[(4 * i + (size_t)s) % VECTORS];
                *acc = add_units(type, true, &w, &x[t], 256 * i + 64 * (size_t)s, *acc);
            }
        }
        for (int r = 0; r < 4; r++)
            b[r] += bytes_of(type);
    }
    for (int t = 0; t < n_tokens; t++)
        store_sums(&sums[t], a->n_cols / 64, a->out[t]);
}

INLINE void units_32(const matmul_rows *a, const quant_type type, const int n_tokens, size_t i,
                     const bool both, const act16_row x[], step_sums sums[]) {
    const uint8_t *b[4];
    unit_block w;
    for (int r = 0; r < 4; r++)
        b[r] = a->rows[r] + 2 * i * bytes_of(type);
    blocks_32(type, both, b, w.v, &w.scale[0], &w.min[0]);
    w.scale[1] = w.scale[0];
    w.min[1] = w.min[0];
    for (int t = 0; t < n_tokens; t++) {
        __m256 *acc = &sums[t].acc[i % VECTORS];
        *acc = add_units(type, both, &w, &x[t], 64 * i, *acc);
    }
}

/* ---- one function for each type, for one token and for more ---- */

INLINE void rows_256(matmul_rows *a, const quant_type type, const int n_tokens) {
    if (is_k4(type) || type == QUANT_Q6_K)
        wide_rows(a, type, n_tokens);
    else
        unit_rows_256(a, type, n_tokens);
}

INLINE void rows_32(matmul_rows *a, const quant_type type, const int n_tokens) {
    const size_t whole = a->n_cols / 64, rest = a->n_cols % 64 / 32;
    act16_row x[MATMUL_TOKENS];
    step_sums sums[MATMUL_TOKENS];
    begin_rows(a, n_tokens, x, sums);
    for (size_t i = 0; i < whole; i++)
        units_32(a, type, n_tokens, i, true, x, sums);
    if (rest > 0) units_32(a, type, n_tokens, whole, false, x, sums);
    for (int t = 0; t < n_tokens; t++)
        store_sums(&sums[t], whole + rest, a->out[t]);
}

#include "kernels/cpu/rows_types.h"

matmul_rows_kernel matmul_step_avx2(quant_type type, size_t n_tokens) {
    return kernels[type][n_tokens > 1];
}
