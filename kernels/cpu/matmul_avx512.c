/* matmul_avx512.c - four weight rows against up to four activation rows, in AVX-512 VNNI.
 *
 * vpdpbusd gives sums of four products, which fit 16 bits (at most 63 * 127 * 4), so
 * that vpdpwssd applies the group scale, placed in the low half of each 32-bit lane,
 * without a widening multiply; IQ4_XS values are larger and take vpmulld.  The
 * accumulators of the four rows are then summed across by a transposition, so that one
 * conversion and one fused multiply-add serve four rows a block.
 * Oracle  kernels/cpu/matmul.c; bits compared in tests/kernels/test_matmul.c.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/rows_avx512.h"

/* Lane r of the result is the sum over all lanes of x[r]. */
INLINE __m128i sum_rows(const __m512i x[4]) {
    __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    __m512i c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    __m256i d = _mm256_add_epi32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

/* Lane r of the result is the sum of the 128-bit lane r of x. */
INLINE __m128i sum_lanes(__m512i x) {
    x = _mm512_add_epi32(x, _mm512_shuffle_epi32(x, _MM_PERM_BADC));
    x = _mm512_add_epi32(x, _mm512_shuffle_epi32(x, _MM_PERM_CDAB));
    return _mm512_castsi512_si128(_mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12), x));
}

/* ---- blocks of 256 ---- */

/* Index vectors of 32-bit lanes: four neighbouring lanes for each scale of 16 values. */
INLINE __m512i lanes_of_16(int k) {
    return _mm512_set_epi32(4 * k + 3, 4 * k + 3, 4 * k + 3, 4 * k + 3, 4 * k + 2, 4 * k + 2,
                            4 * k + 2, 4 * k + 2, 4 * k + 1, 4 * k + 1, 4 * k + 1, 4 * k + 1,
                            4 * k, 4 * k, 4 * k, 4 * k);
}

INLINE __m512i lanes_of_32(int low, int high) {
    return _mm512_set_epi32(high, high, high, high, high, high, high, high, low, low, low, low,
                            low, low, low, low);
}

/* One row's scale bytes to the lanes of its four vectors: in the low 16 bits, or signed
 * 32 bits for IQ4_XS. */
INLINE void spread_scales(quant_type type, const uint8_t *bytes, __m512i s[4]) {
    if (is_k4(type) || type == QUANT_Q2_K) {
        __m512i x = _mm512_broadcast_i32x4(load_128(bytes));
        for (int k = 0; k < 4; k++) {
            __m512i index = is_k4(type) ? lanes_of_32(low_group(type, k), high_group(type, k))
                                        : lanes_of_16(k);
            s[k] = _mm512_shuffle_epi8(
                x, _mm512_or_si512(index, _mm512_set1_epi32((int)0x80808000u)));
        }
        return;
    }
    __m512i x = _mm512_cvtepi8_epi32(load_128(bytes));
    bool in_16 = type != QUANT_IQ4_XS;
    if (in_16) x = _mm512_and_si512(x, _mm512_set1_epi32(0xffff));
    for (int k = 0; k < 4; k++)
        s[k] =
            _mm512_permutexvar_epi32(in_16 ? lanes_of_16(k) : lanes_of_32(2 * k, 2 * k + 1), x);
}

/* Sum over the block of scale * (byte - offset) * q, in 16 lanes; start[] holds
 * -offset times the sums of four q. */
INLINE __m512i scaled_dot(quant_type type, const __m512i v[4], const __m512i s[4],
                          const __m512i q[4], const __m512i start[4]) {
    __m512i c = _mm512_setzero_si512();
    for (int k = 0; k < 4; k++) {
        __m512i dot = _mm512_dpbusd_epi32(start[k], v[k], q[k]);
        if (type == QUANT_IQ4_XS) {
            c = _mm512_add_epi32(c, _mm512_mullo_epi32(dot, s[k]));
        } else {
            c = _mm512_dpwssd_epi32(c, dot, s[k]);
        }
    }
    return c;
}

INLINE void load_q(quant_type type, const act_block *a, __m512i q[4], __m512i start[4]) {
    const __m512i zero = _mm512_setzero_si512();
    for (int k = 0; k < 4; k++) {
        q[k] = load_halves(a->q + 32 * low_group(type, k), a->q + 32 * high_group(type, k));
        start[k] = zero;
        if (offset_of(type) != 0) {
            __m512i offset = _mm512_set1_epi8((char)offset_of(type));
            start[k] = _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, offset, q[k]));
        }
    }
}

/* Sum over the block of min * q for four rows. */
INLINE __m128i min_sums(quant_type type, __m512i scales, __m512i mins, const act_block *a) {
    const __m512i zero = _mm512_setzero_si512();
    if (is_k4(type)) {
        return sum_lanes(_mm512_madd_epi16(_mm512_unpackhi_epi8(scales, zero),
                                           _mm512_broadcast_i32x4(load_128(a->sums32))));
    }
    __m512i low = _mm512_madd_epi16(_mm512_unpacklo_epi8(mins, zero),
                                    _mm512_broadcast_i32x4(load_128(a->sums16)));
    return sum_lanes(_mm512_dpwssd_epi32(low, _mm512_unpackhi_epi8(mins, zero),
                                         _mm512_broadcast_i32x4(load_128(a->sums16 + 8))));
}

INLINE void rows_256(matmul_rows *a, const quant_type type, const int n_tokens) {
    const size_t block_bytes = bytes_of(type);
    __m128 acc[MATMUL_TOKENS], acc_min[MATMUL_TOKENS];
    const uint8_t *b[4] = {a->rows[0], a->rows[1], a->rows[2], a->rows[3]};
    for (int t = 0; t < n_tokens; t++)
        acc[t] = acc_min[t] = _mm_setzero_ps();
    for (size_t i = 0; i < a->n_cols / 256; i++) {
        __m512i q[MATMUL_TOKENS][4], start[MATMUL_TOKENS][4], c[MATMUL_TOKENS][4];
        _Alignas(64) uint8_t scale_bytes[4][16];
        __m512i mins = _mm512_setzero_si512();
        __m512i scales = scales_256(type, b, &mins);
        _mm512_store_si512(scale_bytes, scales);
        for (int t = 0; t < n_tokens; t++)
            load_q(type, (const act_block *)(const void *)a->acts[t] + i, q[t], start[t]);
        for (int r = 0; r < 4; r++) {
            __m512i v[4], s[4];
            unpack_256(type, b[r], v);
            spread_scales(type, scale_bytes[r], s);
            for (int t = 0; t < n_tokens; t++)
                c[t][r] = scaled_dot(type, v, s, q[t], start[t]);
        }
        __m128 d, dmin;
        factors_256(type, b, &d, &dmin);
        for (int t = 0; t < n_tokens; t++) {
            const act_block *x = (const act_block *)(const void *)a->acts[t] + i;
            __m128 dx = _mm_set1_ps(x->scale);
            acc[t] = _mm_fmadd_ps(_mm_cvtepi32_ps(sum_rows(c[t])), _mm_mul_ps(d, dx), acc[t]);
            if (has_min(type)) {
                acc_min[t] = _mm_fmadd_ps(_mm_cvtepi32_ps(min_sums(type, scales, mins, x)),
                                          _mm_mul_ps(dmin, dx), acc_min[t]);
            }
        }
        for (int r = 0; r < 4; r++)
            b[r] += block_bytes;
    }
    for (int t = 0; t < n_tokens; t++)
        _mm_storeu_ps(a->out[t], _mm_sub_ps(acc[t], acc_min[t]));
}

/* ---- blocks of 32 ---- */

/* Lane 4 * block + row: the sums over the 8 lanes of each block; x[k][r] holds blocks
 * 2k and 2k + 1 of row r. */
INLINE __m512i sum_blocks(__m512i x[2][4]) {
    __m512i c[2];
    for (int k = 0; k < 2; k++) {
        __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(x[k][0], x[k][1]),
                                     _mm512_unpackhi_epi32(x[k][0], x[k][1]));
        __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(x[k][2], x[k][3]),
                                     _mm512_unpackhi_epi32(x[k][2], x[k][3]));
        c[k] = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    return _mm512_add_epi32(_mm512_shuffle_i32x4(c[0], c[1], _MM_SHUFFLE(2, 0, 2, 0)),
                            _mm512_shuffle_i32x4(c[0], c[1], _MM_SHUFFLE(3, 1, 3, 1)));
}

typedef struct sums_32 {
    __m128 acc, acc_min;
} sums_32;

/* n_blocks (1..4, 4 unless tail) blocks from column 32 * i on.  In the tail the last
 * block stands in for those that are not there, and their results are dropped. */
INLINE void step_32(const matmul_rows *a, const quant_type type, const int n_tokens, size_t i,
                    const bool tail, size_t n_blocks, sums_32 sums[MATMUL_TOKENS]) {
    const size_t block_bytes = bytes_of(type);
    size_t index[4], at[4];
    const uint8_t *b[4];
    for (size_t j = 0; j < 4; j++) {
        index[j] = tail && j >= n_blocks ? n_blocks - 1 : j;
        at[j] = index[j] * block_bytes;
        b[j] = a->rows[j] + i * block_bytes;
    }
    __m512 d, m = _mm512_setzero_ps();
    if (type == QUANT_MXFP4) {
        d = factors_mxfp4(b, at);
    } else if (type == QUANT_Q8_0 && !tail) {
        d = factors_q8_0(b);
    } else {
        d = factors_32(b, at, 0);
    }
    if (has_min(type)) m = _mm512_sub_ps(_mm512_set1_ps(-0.0f), factors_32(b, at, 2));
    __m512i v[2][4];
    for (int r = 0; r < 4; r++) {
        v[0][r] = unpack_two(type, b[r] + at[0], b[r] + at[1]);
        v[1][r] = unpack_two(type, b[r] + at[2], b[r] + at[3]);
    }
    for (int t = 0; t < n_tokens; t++) {
        const int8_t *q = act32_q(a->acts[t]) + 32 * i;
        const float *scales = act32_scales(a->acts[t], a->n_cols) + i;
        const int32_t *q_sums = act32_sums(a->acts[t], a->n_cols) + i;
        __m512i dots[2][4];
        for (int k = 0; k < 2; k++) {
            __m512i x = load_halves(q + 32 * index[2 * k], q + 32 * index[2 * k + 1]);
            for (int r = 0; r < 4; r++)
                dots[k][r] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), v[k][r], x);
        }
        __mmask8 live = (__mmask8)((1u << n_blocks) - 1);
        __m512 dx = _mm512_castsi512_ps(spread_four(
            _mm_castps_si128(tail ? _mm_maskz_loadu_ps(live, scales) : _mm_loadu_ps(scales))));
        __m512i q_sum =
            spread_four(tail ? _mm_maskz_loadu_epi32(live, q_sums) : load_128(q_sums));
        __m512i sum = sum_blocks(dots);
        if (offset_of(type) != 0) {
            sum = _mm512_sub_epi32(
                sum, _mm512_mullo_epi32(q_sum, _mm512_set1_epi32(offset_of(type))));
        }
        __m512 f = _mm512_cvtepi32_ps(sum), g = _mm512_cvtepi32_ps(q_sum);
        __m512 df = _mm512_mul_ps(d, dx), mf = _mm512_mul_ps(m, dx);
        for (int j = 0; j < 4; j++) {
            if (tail && (size_t)j >= n_blocks) break;
            sums[t].acc = _mm_fmadd_ps(lane_of(f, j), lane_of(df, j), sums[t].acc);
            if (has_min(type)) {
                sums[t].acc_min = _mm_fmadd_ps(lane_of(g, j), lane_of(mf, j), sums[t].acc_min);
            }
        }
    }
}

INLINE void rows_32(matmul_rows *a, const quant_type type, const int n_tokens) {
    sums_32 sums[MATMUL_TOKENS];
    for (int t = 0; t < n_tokens; t++)
        sums[t].acc = sums[t].acc_min = _mm_setzero_ps();
    size_t n_blocks = a->n_cols / 32, i = 0;
    for (; i + 4 <= n_blocks; i += 4)
        step_32(a, type, n_tokens, i, false, 4, sums);
    if (i < n_blocks) step_32(a, type, n_tokens, i, true, n_blocks - i, sums);
    for (int t = 0; t < n_tokens; t++)
        _mm_storeu_ps(a->out[t], _mm_sub_ps(sums[t].acc, sums[t].acc_min));
}

/* ---- float weights ---- */

INLINE __m256i load_halves_16(const uint8_t *p, __mmask16 mask) {
    return mask == 0xffff ? load_256(p) : _mm256_maskz_loadu_epi16(mask, p);
}

/* 16 weights from column i on; those outside the mask are not read. */
INLINE __m512 load_weights(quant_type type, const uint8_t *row, size_t i, __mmask16 mask) {
    __m256i x;
    switch ((unsigned)type) {
    case QUANT_F16:
        return _mm512_cvtph_ps(load_halves_16(row + 2 * i, mask));
    case QUANT_BF16:
        x = load_halves_16(row + 2 * i, mask);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    default:
        return _mm512_maskz_loadu_ps(mask, row + 4 * i);
    }
}

/* The tree of the contract for four rows: i with i + 8, + 4, + 2, + 1. */
INLINE __m128 sum_floats(const __m512 x[4]) {
    __m128 y[4];
    for (int r = 0; r < 4; r++) {
        __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x[r]), _mm512_extractf32x8_ps(x[r], 1));
        y[r] = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    }
    __m128 a = _mm_add_ps(_mm_unpacklo_ps(y[0], y[1]), _mm_unpackhi_ps(y[0], y[1]));
    __m128 b = _mm_add_ps(_mm_unpacklo_ps(y[2], y[3]), _mm_unpackhi_ps(y[2], y[3]));
    return _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
}

INLINE void step_float(const matmul_rows *a, const quant_type type, const int n_tokens,
                       size_t i, __mmask16 mask, __m512 acc[MATMUL_TOKENS][4]) {
    __m512 w[4];
    UNROLL
    for (int r = 0; r < 4; r++)
        w[r] = load_weights(type, a->rows[r], i, mask);
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        __m512 x = _mm512_maskz_loadu_ps(mask, a->acts[t] + 4 * i);
        UNROLL
        for (int r = 0; r < 4; r++)
            acc[t][r] = _mm512_mask3_fmadd_ps(w[r], x, acc[t][r], mask);
    }
}

INLINE void rows_float(matmul_rows *a, const quant_type type, const int n_tokens) {
    __m512 acc[MATMUL_TOKENS][4];
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        UNROLL
        for (int r = 0; r < 4; r++)
            acc[t][r] = _mm512_setzero_ps();
    }
    size_t i = 0;
    for (; i + 16 <= a->n_cols; i += 16)
        step_float(a, type, n_tokens, i, 0xffff, acc);
    if (i < a->n_cols) {
        step_float(a, type, n_tokens, i, (__mmask16)((1u << (a->n_cols - i)) - 1), acc);
    }
    UNROLL
    for (int t = 0; t < n_tokens; t++)
        _mm_storeu_ps(a->out[t], sum_floats(acc[t]));
}

/* ---- one function for each type and number of tokens ---- */

#include "kernels/cpu/rows_by_tokens.h"

static matmul_rows_kernel rows_kernel(act_format format, quant_type type, size_t n_tokens) {
    if (format == ACT_Q8_16_PAIRS) return matmul_scaled_avx512(type, n_tokens);
    if (matmul_is_step(format)) return matmul_step_avx512(type, n_tokens);
    return kernels[type][n_tokens - 1];
}

const matmul_tier matmul_tier_avx512 = {
    .rows_kernel = rows_kernel,
    .panel_tokens = 5,
    .call_tokens = MATMUL_PANEL_TOKENS,
    .panel_unpack = matmul_panel_unpack_avx512,
    .panel_multiply = matmul_panel_multiply_avx512,
};
