/* matmul_avx2.c - four weight rows against up to four activation rows, in AVX2.
 *
 * vpmaddubsw multiplies unsigned weights with signed activations; a sum of two products
 * fits 16 bits (63 * 127 * 2 at most).  Weights with a sign go as |w| times q with w's
 * sign, which fits too (128 * 127 * 2) because q is never -128.  vpmaddwd applies the
 * group scale.  The four rows are summed across by a transposition, so that one
 * conversion and one fused multiply-add serve four rows a block.
 * Oracle  kernels/cpu/matmul.c; bits compared in tests/kernels/test_matmul.c.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/unpack_avx2.h"

#include <math.h>

/* Lane r of the result is the sum over all lanes of x[r]. */
INLINE __m128i sum_rows(const __m256i x[4]) {
    __m256i a =
        _mm256_add_epi32(_mm256_unpacklo_epi32(x[0], x[1]), _mm256_unpackhi_epi32(x[0], x[1]));
    __m256i b =
        _mm256_add_epi32(_mm256_unpacklo_epi32(x[2], x[3]), _mm256_unpackhi_epi32(x[2], x[3]));
    __m256i c = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    return _mm_add_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
}

/* ---- blocks of 256 ---- */

/* One row of a block against each token: the sums with scales, and with minima. */
INLINE void row_256(const quant_type type, const uint8_t *b, const act_block *const x[],
                    const int n_tokens, const int r, __m256i c[][4], __m256i m[][4]) {
    __m256i mins, scales = scales_256(type, b, &mins);
    for (int t = 0; t < n_tokens; t++)
        c[t][r] = _mm256_setzero_si256();
    for (int j = 0; j < 8; j++) {
        __m256i w = unpack_group(type, b, j), s = spread_scale(type, scales, j);
        for (int t = 0; t < n_tokens; t++) {
            __m256i pairs = multiply_pairs(type, w, load_256(x[t]->q + 32 * j));
            c[t][r] = _mm256_add_epi32(c[t][r], _mm256_madd_epi16(pairs, s));
        }
    }
    for (int t = 0; t < n_tokens; t++) {
        if (offset_of(type) != 0) {
            __m256i sums = _mm256_madd_epi16(scales, load_256(x[t]->sums16));
            c[t][r] =
                _mm256_sub_epi32(c[t][r], _mm256_slli_epi32(sums, type == QUANT_Q6_K ? 5 : 2));
        }
        if (is_k4(type)) {
            m[t][r] = _mm256_zextsi128_si256(
                _mm_madd_epi16(_mm256_castsi256_si128(mins), load_128(x[t]->sums32)));
        } else if (has_min(type)) {
            m[t][r] = _mm256_madd_epi16(mins, load_256(x[t]->sums16));
        }
    }
}

INLINE void rows_256(matmul_rows *a, const quant_type type, const int n_tokens) {
    __m128 acc[MATMUL_TOKENS], acc_min[MATMUL_TOKENS];
    const act_block *x[MATMUL_TOKENS];
    const uint8_t *b[4] = {a->rows[0], a->rows[1], a->rows[2], a->rows[3]};
    for (int t = 0; t < n_tokens; t++) {
        acc[t] = acc_min[t] = _mm_setzero_ps();
        x[t] = (const void *)a->acts[t];
    }
    for (size_t i = 0; i < a->n_cols / 256; i++) {
        __m256i c[MATMUL_TOKENS][4], m[MATMUL_TOKENS][4];
        for (int r = 0; r < 4; r++)
            row_256(type, b[r], x, n_tokens, r, c, m);
        __m128 d = factors_of_rows(b, factor_at(type)), dmin = _mm_setzero_ps();
        if (has_min(type)) dmin = factors_of_rows(b, factor_at(type) + 2);
        for (int t = 0; t < n_tokens; t++) {
            __m128 dx = _mm_set1_ps(x[t]->scale);
            acc[t] = _mm_fmadd_ps(_mm_cvtepi32_ps(sum_rows(c[t])), _mm_mul_ps(d, dx), acc[t]);
            if (has_min(type)) {
                acc_min[t] = _mm_fmadd_ps(_mm_cvtepi32_ps(sum_rows(m[t])), _mm_mul_ps(dmin, dx),
                                          acc_min[t]);
            }
            x[t]++;
        }
        for (int r = 0; r < 4; r++)
            b[r] += bytes_of(type);
    }
    for (int t = 0; t < n_tokens; t++)
        _mm_storeu_ps(a->out[t], _mm_sub_ps(acc[t], acc_min[t]));
}

/* ---- blocks of 32 ---- */

INLINE void rows_32(matmul_rows *a, const quant_type type, const int n_tokens) {
    __m128 acc[MATMUL_TOKENS], acc_min[MATMUL_TOKENS];
    const int8_t *q[MATMUL_TOKENS];
    const float *scales[MATMUL_TOKENS];
    const int32_t *q_sums[MATMUL_TOKENS];
    const uint8_t *b[4] = {a->rows[0], a->rows[1], a->rows[2], a->rows[3]};
    for (int t = 0; t < n_tokens; t++) {
        acc[t] = acc_min[t] = _mm_setzero_ps();
        q[t] = act32_q(a->acts[t]);
        scales[t] = act32_scales(a->acts[t], a->n_cols);
        q_sums[t] = act32_sums(a->acts[t], a->n_cols);
    }
    for (size_t i = 0; i < a->n_cols / 32; i++) {
        __m256i w[4];
        for (int r = 0; r < 4; r++)
            w[r] = unpack_32(type, b[r]);
        __m128 d = type == QUANT_MXFP4 ? factors_mxfp4(b) : factors_of_rows(b, 0);
        __m128 m = _mm_setzero_ps();
        if (has_min(type)) m = _mm_xor_ps(factors_of_rows(b, 2), _mm_set1_ps(-0.0f));
        for (int t = 0; t < n_tokens; t++) {
            __m256i c[4], x = load_256(q[t] + 32 * i);
            for (int r = 0; r < 4; r++)
                c[r] = _mm256_madd_epi16(multiply_pairs(type, w[r], x), _mm256_set1_epi16(1));
            __m128i sum =
                _mm_sub_epi32(sum_rows(c), _mm_set1_epi32(offset_of(type) * q_sums[t][i]));
            __m128 dx = _mm_set1_ps(scales[t][i]);
            acc[t] = _mm_fmadd_ps(_mm_cvtepi32_ps(sum), _mm_mul_ps(d, dx), acc[t]);
            if (has_min(type)) {
                __m128 q_sum = _mm_set1_ps((float)q_sums[t][i]);
                acc_min[t] = _mm_fmadd_ps(q_sum, _mm_mul_ps(m, dx), acc_min[t]);
            }
        }
        for (int r = 0; r < 4; r++)
            b[r] += bytes_of(type);
    }
    for (int t = 0; t < n_tokens; t++)
        _mm_storeu_ps(a->out[t], _mm_sub_ps(acc[t], acc_min[t]));
}

/* ---- float weights ---- */

INLINE __m256 load_weights(quant_type type, const uint8_t *row, size_t i) {
    switch ((unsigned)type) {
    case QUANT_F16:
        return _mm256_cvtph_ps(load_128(row + 2 * i));
    case QUANT_BF16:
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(row + 2 * i)), 16));
    default:
        return _mm256_castsi256_ps(load_256(row + 4 * i));
    }
}

INLINE float load_weight(quant_type type, const uint8_t *row, size_t i) {
    if (type == QUANT_F16) return _cvtsh_ss(load16(row + 2 * i));
    uint32_t bits =
        type == QUANT_BF16 ? (uint32_t)load16(row + 2 * i) << 16 : load32(row + 4 * i);
    float w;
    memcpy(&w, &bits, sizeof w);
    return w;
}

/* The columns after the last 16, one lane each. */
INLINE void add_rest(quant_type type, const uint8_t *row, const float *x, size_t i, size_t n,
                     __m256 acc[2]) {
    float lane[16];
    _mm256_storeu_ps(lane, acc[0]);
    _mm256_storeu_ps(lane + 8, acc[1]);
    for (size_t k = i; k < n; k++)
        lane[k - i] = fmaf(load_weight(type, row, k), x[k], lane[k - i]);
    acc[0] = _mm256_loadu_ps(lane);
    acc[1] = _mm256_loadu_ps(lane + 8);
}

/* The tree of the contract for four rows: i with i + 8, + 4, + 2, + 1. */
INLINE __m128 sum_floats(__m256 x[4][2]) {
    __m128 y[4];
    for (int r = 0; r < 4; r++) {
        __m256 h = _mm256_add_ps(x[r][0], x[r][1]);
        y[r] = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    }
    __m128 a = _mm_add_ps(_mm_unpacklo_ps(y[0], y[1]), _mm_unpackhi_ps(y[0], y[1]));
    __m128 b = _mm_add_ps(_mm_unpacklo_ps(y[2], y[3]), _mm_unpackhi_ps(y[2], y[3]));
    return _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
}

/* One token after the other: the eight accumulators of four rows and the weights leave
 * no registers for a second one. */
INLINE void rows_float(matmul_rows *a, const quant_type type, const int n_tokens) {
    for (int t = 0; t < n_tokens; t++) {
        const float *x = (const void *)a->acts[t];
        __m256 acc[4][2];
        for (int r = 0; r < 4; r++)
            acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        size_t i = 0;
        for (; i + 16 <= a->n_cols; i += 16) {
            __m256 x0 = _mm256_loadu_ps(x + i), x1 = _mm256_loadu_ps(x + i + 8);
            for (int r = 0; r < 4; r++) {
                acc[r][0] = _mm256_fmadd_ps(load_weights(type, a->rows[r], i), x0, acc[r][0]);
                acc[r][1] =
                    _mm256_fmadd_ps(load_weights(type, a->rows[r], i + 8), x1, acc[r][1]);
            }
        }
        for (int r = 0; r < 4 && i < a->n_cols; r++)
            add_rest(type, a->rows[r], x, i, a->n_cols, acc[r]);
        _mm_storeu_ps(a->out[t], sum_floats(acc));
    }
}

/* ---- one function for each type and number of tokens ---- */

#include "kernels/cpu/rows_by_tokens.h"

static matmul_rows_kernel rows_kernel(act_format format, quant_type type, size_t n_tokens) {
    if (format == ACT_Q8_16_PAIRS) return matmul_scaled_avx2(type, n_tokens);
    if (matmul_is_step(format)) return matmul_step_avx2(type, n_tokens);
    return kernels[type][n_tokens - 1];
}

const matmul_tier matmul_tier_avx2 = {
    .rows_kernel = rows_kernel,
    .panel_tokens = 6,
    .call_tokens = MATMUL_TOKENS,
    .panel_unpack = matmul_panel_unpack_avx2,
    .panel_multiply = matmul_panel_multiply_avx2,
};
