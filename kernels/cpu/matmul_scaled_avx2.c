/* matmul_scaled_avx2.c - four weight rows against up to four activation rows with a scale for
 * each 16 or 32 columns, in AVX2.
 *
 * A step is 64 columns.  Sums of four products of four rows are summed inside 128-bit lanes by
 * a transposition, so that a result vector holds two groups of four rows, lane 4 * group + row:
 * two of the four partial sums of the contract.  Factors of weights and activations are put in
 * the same order, and nothing is summed across lanes before the end.
 * Oracle  kernels/cpu/matmul.c; bits compared in tests/kernels/test_matmul.c.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/unpack_avx2.h"

/* 64 columns of four rows: the two pieces of 32 of row r, and the factors of each result
 * vector: one for groups of 32 columns, two for groups of 16. */
typedef struct weight_step {
    __m256i v[2][4];
    __m256 scale[2], min[2];
} weight_step;

/* Columns of a group. */
INLINE size_t group_in(const quant_type type, const bool pairs) {
    return matmul_group_of(type, pairs ? ACT_Q8_16_PAIRS : ACT_Q8_16);
}

INLINE bool of_32(quant_type type) {
    return is_k4(type) || type == QUANT_IQ4_XS;
}

/* Lane 4 * i + r: the sum of the 128-bit lane i of x[r]. */
INLINE __m256i sum_halves(const __m256i x[4]) {
    __m256i a =
        _mm256_add_epi32(_mm256_unpacklo_epi32(x[0], x[1]), _mm256_unpackhi_epi32(x[0], x[1]));
    __m256i b =
        _mm256_add_epi32(_mm256_unpacklo_epi32(x[2], x[3]), _mm256_unpackhi_epi32(x[2], x[3]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* Factors of two groups of 32 columns to one or two result vectors. */
INLINE void spread_factors(const size_t group, __m256 x, __m256 out[2]) {
    out[0] = group == 32 ? x : _mm256_permute2f128_ps(x, x, 0x00);
    out[1] = group == 32 ? x : _mm256_permute2f128_ps(x, x, 0x11);
}

/* ---- activations ---- */

typedef struct act_row {
    const int8_t *q;
    const float *scales;
    const float *scaled; /* of groups of 16 or of 32 */
} act_row;

INLINE act_row act_row_of(const void *row, size_t n_cols, const size_t group) {
    return (act_row){.q = act32_q(row),
                     .scales = act16_scales(row, n_cols),
                     .scaled = group == 32 ? act16_scaled_pairs(row, n_cols)
                                           : act16_scaled(row, n_cols)};
}

INLINE __m128 half_of(__m256 x, int i) {
    return i == 0 ? _mm256_castps256_ps128(x) : _mm256_extractf128_ps(x, 1);
}

INLINE __m256 two_floats(float low, float high) {
    return _mm256_set_m128(_mm_set1_ps(high), _mm_set1_ps(low));
}

/* One or two groups from `first` on, to the sums of four rows: to two of the four parts, or for
 * pairs to one after the other, in the lower lanes. */
INLINE __m256 add_groups(const quant_type type, const bool pairs, const bool both, __m256i sums,
                         __m256 scale, __m256 min, const act_row *x, size_t first, __m256 acc) {
    const size_t next = both ? 1 : 0, step = group_in(type, pairs) / 16;
    const float *s = x->scales + step * first;
    __m256 products = _mm256_cvtepi32_ps(sums), scaled = _mm256_setzero_ps();
    __m256 factor = _mm256_mul_ps(scale, two_floats(s[0], s[step * next]));
    if (has_min(type)) scaled = two_floats(x->scaled[first], x->scaled[first + next]);
    if (!pairs) {
        __m256 sum = _mm256_fmadd_ps(products, factor, acc);
        if (has_min(type)) sum = _mm256_fmadd_ps(scaled, min, sum);
        return both ? sum : _mm256_blend_ps(acc, sum, 0x0f);
    }
    __m128 one = _mm256_castps256_ps128(acc);
    for (int i = 0; i < 1 + (both ? 1 : 0); i++) {
        one = _mm_fmadd_ps(half_of(products, i), half_of(factor, i), one);
        if (has_min(type)) one = _mm_fmadd_ps(half_of(scaled, i), half_of(min, i), one);
    }
    return _mm256_castps128_ps256(one);
}

/* The sums of the groups of 16 in 32 columns of four rows. */
INLINE __m256i dots_of(const quant_type type, const __m256i v[4], __m256i q) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i x[4], high = _mm256_setzero_si256();
    if (offset_of(type) != 0) {
        __m256i offset = _mm256_set1_epi8((char)offset_of(type));
        high = _mm256_madd_epi16(_mm256_maddubs_epi16(offset, q), one);
    }
    UNROLL
    for (int r = 0; r < 4; r++) {
        x[r] = _mm256_madd_epi16(multiply_pairs(type, v[r], q), one);
        if (offset_of(type) != 0) x[r] = _mm256_sub_epi32(x[r], high);
    }
    return sum_halves(x);
}

/* A step from column col on, of which the second piece may not be there, against one token. */
INLINE void add_step(const quant_type type, const bool pairs, const bool both,
                     const weight_step *w, const act_row *x, size_t col, __m256 acc[2]) {
    __m256i low = dots_of(type, w->v[0], load_256(x->q + col));
    __m256i high =
        both ? dots_of(type, w->v[1], load_256(x->q + col + 32)) : _mm256_setzero_si256();
    if (group_in(type, pairs) == 32) {
        __m256i sums = _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                                        _mm256_permute2x128_si256(low, high, 0x31));
        acc[0] =
            add_groups(type, pairs, both, sums, w->scale[0], w->min[0], x, col / 32, acc[0]);
        return;
    }
    __m256 *other = &acc[pairs ? 0 : 1];
    acc[0] = add_groups(type, pairs, true, low, w->scale[0], w->min[0], x, col / 16, acc[0]);
    if (!both) return;
    *other =
        add_groups(type, pairs, true, high, w->scale[1], w->min[1], x, col / 16 + 2, *other);
}

/* (0 + 2) + (1 + 3) for four rows; of pairs there is one sum. */
INLINE void store_sums(float *out, const bool pairs, const __m256 acc[2]) {
    if (pairs) {
        _mm_storeu_ps(out, _mm256_castps256_ps128(acc[0]));
        return;
    }
    __m256 x = _mm256_add_ps(acc[0], acc[1]);
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

/* ---- blocks of 256 ---- */

/* Eight words of four rows to [word][row] floats, two words a vector, times the row's factor. */
INLINE void factors_of(const int16_t *const words[4], size_t at, __m256 d, __m256 out[4]) {
    __m128i r[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        r[i] = load_128(words[i] + at);
    const __m128i a = _mm_unpacklo_epi16(r[0], r[1]), b = _mm_unpacklo_epi16(r[2], r[3]);
    const __m128i c = _mm_unpackhi_epi16(r[0], r[1]), e = _mm_unpackhi_epi16(r[2], r[3]);
    const __m128i x[4] = {_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b),
                          _mm_unpacklo_epi32(c, e), _mm_unpackhi_epi32(c, e)};
    UNROLL
    for (int i = 0; i < 4; i++)
        out[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(x[i])), d);
}

/* The factors of a block's steps. */
typedef struct block_factors {
    __m256 scale[4][2], min[4][2];
} block_factors;

INLINE void spread_block(const quant_type type, const size_t group,
                         const int16_t *const words[4], __m256 d, __m256 out[4][2]) {
    __m256 x[8];
    factors_of(words, 0, d, x);
    if (!of_32(type)) factors_of(words, 8, d, x + 4);
    UNROLL
    for (int s = 0; s < 4; s++) {
        if (of_32(type)) {
            spread_factors(group, x[s], out[s]);
            continue;
        }
        out[s][0] = x[2 * s];
        out[s][1] = x[2 * s + 1];
    }
}

INLINE __m256 both_halves(__m128 x) {
    return _mm256_set_m128(x, x);
}

INLINE void take_factors(const quant_type type, const size_t group, const uint8_t *const b[4],
                         block_factors *f) {
    _Alignas(32) int16_t scales[4][16], mins[4][16];
    for (int r = 0; r < 4; r++) {
        __m256i row_mins;
        _mm256_store_si256((void *)scales[r], scales_256(type, b[r], &row_mins));
        _mm256_store_si256((void *)mins[r], row_mins);
    }
    const int16_t *const words[4] = {scales[0], scales[1], scales[2], scales[3]};
    const int16_t *const min_words[4] = {mins[0], mins[1], mins[2], mins[3]};
    const __m256 d = both_halves(factors_of_rows(b, factor_at(type)));
    spread_block(type, group, words, d, f->scale);
    if (!has_min(type)) return;
    const __m256 dmin = both_halves(factors_of_rows(b, factor_at(type) + 2));
    spread_block(type, group, min_words, _mm256_xor_ps(dmin, _mm256_set1_ps(-0.0f)), f->min);
}

INLINE void scaled_256(matmul_rows *a, const quant_type type, const bool pairs,
                       const int n_tokens) {
    const uint8_t *b[4] = {a->rows[0], a->rows[1], a->rows[2], a->rows[3]};
    act_row x[MATMUL_TOKENS];
    __m256 acc[MATMUL_TOKENS][2];
    for (int t = 0; t < n_tokens; t++) {
        x[t] = act_row_of(a->acts[t], a->n_cols, group_in(type, pairs));
        acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    }
    for (size_t col = 0; col < a->n_cols; col += 256) {
        block_factors f;
        take_factors(type, group_in(type, pairs), b, &f);
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
                add_step(type, pairs, true, &w, &x[t], col + 64 * (size_t)s, acc[t]);
        }
        for (int r = 0; r < 4; r++)
            b[r] += bytes_256(type);
    }
    for (int t = 0; t < n_tokens; t++)
        store_sums(a->out[t], pairs, acc[t]);
}

/* ---- blocks of 32 ---- */

/* One or two blocks of four rows. */
INLINE void take_blocks_32(const quant_type type, const size_t group, const bool both,
                           const uint8_t *const b[4], weight_step *w) {
    const size_t second = both ? bytes_32(type) : 0;
    const uint8_t *const next[4] = {b[0] + second, b[1] + second, b[2] + second, b[3] + second};
    __m256 m = _mm256_setzero_ps(), d;
    if (type == QUANT_MXFP4)
        d = _mm256_set_m128(factors_mxfp4(next), factors_mxfp4(b));
    else
        d = _mm256_set_m128(factors_of_rows(next, 0), factors_of_rows(b, 0));
    if (has_min(type)) m = _mm256_set_m128(factors_of_rows(next, 2), factors_of_rows(b, 2));
    spread_factors(group, d, w->scale);
    spread_factors(group, m, w->min);
    UNROLL
    for (int r = 0; r < 4; r++) {
        w->v[0][r] = unpack_32(type, b[r]);
        w->v[1][r] = both ? unpack_32(type, next[r]) : _mm256_setzero_si256();
    }
}

INLINE void step_32(const matmul_rows *a, const quant_type type, const bool pairs,
                    const int n_tokens, size_t col, const bool both, const act_row x[],
                    __m256 acc[][2]) {
    const uint8_t *b[4];
    weight_step w;
    for (int r = 0; r < 4; r++)
        b[r] = a->rows[r] + col / 32 * bytes_32(type);
    take_blocks_32(type, group_in(type, pairs), both, b, &w);
    for (int t = 0; t < n_tokens; t++)
        add_step(type, pairs, both, &w, &x[t], col, acc[t]);
}

INLINE void scaled_32(matmul_rows *a, const quant_type type, const bool pairs,
                      const int n_tokens) {
    act_row x[MATMUL_TOKENS];
    __m256 acc[MATMUL_TOKENS][2];
    for (int t = 0; t < n_tokens; t++) {
        x[t] = act_row_of(a->acts[t], a->n_cols, group_in(type, pairs));
        acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    }
    size_t col = 0;
    for (; col + 64 <= a->n_cols; col += 64)
        step_32(a, type, pairs, n_tokens, col, true, x, acc);
    if (col < a->n_cols) step_32(a, type, pairs, n_tokens, col, false, x, acc);
    for (int t = 0; t < n_tokens; t++)
        store_sums(a->out[t], pairs, acc[t]);
}

/* ---- one function for each type and format, for one token and for more ---- */

#include "kernels/cpu/scaled_types.h"

matmul_rows_kernel matmul_scaled_avx2(act_format format, quant_type type, size_t n_tokens) {
    return kernels[type][format == ACT_Q8_16_PAIRS][n_tokens > 1];
}
