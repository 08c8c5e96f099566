/* matmul_step_avx512.c - four weight rows against up to four activation rows in the order of a
 * decoding step on the GPU (ACT_STEP_32, ACT_STEP_16 of kernels/matmul.h), in AVX-512 VNNI.
 *
 * vpdpbusd leaves sums of four products; the four rows of a vector are summed inside 128-bit
 * lanes by a transposition, so that a result vector holds pieces of 16 columns of four rows.  The
 * pieces are put in the order in which the contract sums: a vector has the same piece of four
 * neighbouring units, lane 4 * unit + row.  Eight accumulators are the 32 partial sums of four
 * rows, and nothing is summed across lanes before the end.
 * Oracle  kernels/cpu/matmul.c; bits compared in tests/kernels/test_matmul.c.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/rows_avx512.h"

enum { VECTORS = STEP_SUMS / 4 };

typedef struct step_sums {
    __m512 acc[VECTORS];
} step_sums;

INLINE void begin_rows(const matmul_rows *a, const int n_tokens, act16_row x[], step_sums s[]) {
    for (int t = 0; t < n_tokens; t++) {
        x[t] = act16_row_at(a->acts[t], a->n_cols, 16, 0);
        UNROLL
        for (int i = 0; i < VECTORS; i++)
            s[t].acc[i] = _mm512_setzero_ps();
    }
}

/* The tree over the partial sums, of which the first n vectors are not all zeros. */
INLINE void store_sums(step_sums *s, size_t n, float *out) {
    __m512 *acc = s->acc;
    if (n > VECTORS) n = VECTORS;
    for (size_t width = VECTORS / 2; width > 0; width /= 2) {
        for (size_t i = 0; i < width && i + width < n; i++)
            acc[i] = _mm512_add_ps(acc[i], acc[i + width]);
        if (n > width) n = width;
    }
    __m256 x = _mm256_add_ps(_mm512_castps512_ps256(acc[0]), _mm512_extractf32x8_ps(acc[0], 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

/* Lanes 0 and 2, or 1 and 3, of two vectors. */
INLINE __m512i even_lanes(__m512i a, __m512i b) {
    return _mm512_shuffle_i64x2(a, b, _MM_SHUFFLE(2, 0, 2, 0));
}
INLINE __m512i odd_lanes(__m512i a, __m512i b) {
    return _mm512_shuffle_i64x2(a, b, _MM_SHUFFLE(3, 1, 3, 1));
}
INLINE __m512 even_floats(__m512 a, __m512 b) {
    return _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(2, 0, 2, 0));
}
INLINE __m512 odd_floats(__m512 a, __m512 b) {
    return _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(3, 1, 3, 1));
}

/* The pieces of 64 columns of four rows, those with an offset brought back to their values. */
INLINE __m512i dots_of(const int offset, const __m512i v[4], __m512i q) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i dots[4], start = zero;
    if (offset != 0) {
        const __m512i all = _mm512_set1_epi8((char)offset);
        start = _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, all, q));
    }
    UNROLL
    for (int r = 0; r < 4; r++)
        dots[r] = _mm512_dpbusd_epi32(start, v[r], q);
    return sum_quarters(dots);
}

/* acc = fma(product, scale * s, acc) */
INLINE __m512 add_product(__m512i product, __m512 scale, __m512 s, __m512 acc) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(product), _mm512_mul_ps(scale, s), acc);
}

/* ---- wide units: Q4_K, Q5_K, Q6_K, four of them a block ---- */

/* A block of four rows: vector k of row r, and the factors of the four pieces. */
typedef struct wide_block {
    __m512i v[4][4];
    __m512 scale[4], min[4];
} wide_block;

/* Factors of sub-blocks 0 .. 3 and 4 .. 7: pieces 0 and 1 have the even ones. */
INLINE void spread_k4(__m512 low, __m512 high, __m512 out[4]) {
    out[0] = out[1] = even_floats(low, high);
    out[2] = out[3] = odd_floats(low, high);
}

INLINE void take_wide_factors(const quant_type type, const uint8_t *const b[4], wide_block *w) {
    __m512i no_mins;
    const __m512i bytes = transpose_bytes(scales_256(type, b, &no_mins));
    __m128 d4, dmin4;
    factors_256(type, b, &d4, &dmin4);
    const __m512 d = _mm512_broadcast_f32x4(d4);
    if (is_k4(type)) {
        const __m512 dmin = _mm512_broadcast_f32x4(_mm_xor_ps(dmin4, _mm_set1_ps(-0.0f)));
        spread_k4(factors_of(false, bytes, 0, d), factors_of(false, bytes, 1, d), w->scale);
        spread_k4(factors_of(false, bytes, 2, dmin), factors_of(false, bytes, 3, dmin), w->min);
        return;
    }
    for (int i = 0; i < 2; i++) {
        const __m512 low = factors_of(true, bytes, i, d),
                     high = factors_of(true, bytes, 2 + i, d);
        w->scale[2 * i] = even_floats(low, high);
        w->scale[2 * i + 1] = odd_floats(low, high);
    }
    for (int p = 0; p < 4; p++)
        w->min[p] = _mm512_mul_ps(w->scale[p], _mm512_set1_ps(-32.0f));
}

/* A value for each 16 columns of a block, to [wide unit][piece]. */
INLINE __m512 load_wide(const quant_type type, const float *p) {
    const __m512i of_q6 =
        _mm512_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const __m512 x = _mm512_loadu_ps(p);
    return is_k4(type) ? x : _mm512_permutexvar_ps(of_q6, x);
}

/* Of [wide unit][piece] one piece, in four neighbouring lanes each. */
INLINE __m512 spread_piece(__m512 x, const int piece) {
    switch (piece) {
    case 0:
        return _mm512_permute_ps(x, 0x00);
    case 1:
        return _mm512_permute_ps(x, 0x55);
    case 2:
        return _mm512_permute_ps(x, 0xaa);
    default:
        return _mm512_permute_ps(x, 0xff);
    }
}

INLINE __m512 add_wide(const quant_type type, const wide_block *w, const act16_row *x,
                       size_t col, __m512 acc) {
    const size_t second = is_k4(type) ? 64 : 32, next = is_k4(type) ? 32 : 64;
    const int8_t *q = x->q + col;
    __m512i s[4], p[4];
    UNROLL
    for (size_t k = 0; k < 4; k++) {
        const int8_t *at = q + k / 2 * 128 + k % 2 * next;
        s[k] = dots_of(0, w->v[k], load_halves(at, at + second));
    }
    p[0] = even_lanes(s[0], s[2]);
    p[1] = odd_lanes(s[0], s[2]);
    p[2] = even_lanes(s[1], s[3]);
    p[3] = odd_lanes(s[1], s[3]);
    const __m512 scales = load_wide(type, x->scales + col / 16);
    const __m512 scaled = load_wide(type, x->scaled + col / 16);
    UNROLL
    for (int i = 0; i < 4; i++) {
        acc = add_product(p[i], w->scale[i], spread_piece(scales, i), acc);
        acc = _mm512_fmadd_ps(spread_piece(scaled, i), w->min[i], acc);
    }
    return acc;
}

INLINE void wide_rows(matmul_rows *a, const quant_type type, const int n_tokens) {
    const uint8_t *b[4] = {a->rows[0], a->rows[1], a->rows[2], a->rows[3]};
    act16_row x[MATMUL_TOKENS];
    step_sums sums[MATMUL_TOKENS];
    begin_rows(a, n_tokens, x, sums);
    for (size_t i = 0; i < a->n_cols / 256; i++) {
        wide_block w;
        take_wide_factors(type, b, &w);
        UNROLL
        for (int r = 0; r < 4; r++) {
            __m512i v[4];
            unpack_256(type, b[r], v);
            UNROLL
            for (int k = 0; k < 4; k++)
                w.v[k][r] = v[k];
            b[r] += bytes_of(type);
        }
        for (int t = 0; t < n_tokens; t++) {
            __m512 *acc = &sums[t].acc[i % VECTORS];
            *acc = add_wide(type, &w, &x[t], 256 * i, *acc);
        }
    }
    for (int t = 0; t < n_tokens; t++)
        store_sums(&sums[t], a->n_cols / 256, a->out[t]);
}

/* ---- units of 32 columns: all other types, four of them at a time ---- */

/* 128 columns of four rows: vector k of row r, and the factors of the units' halves. */
typedef struct unit_block {
    __m512i v[2][4];
    __m512 scale[2], min[2];
} unit_block;

/* n units (4 unless tail) from column col on; at[]: where the columns of each stand. */
INLINE __m512 add_units(const quant_type type, const bool tail, size_t n, const unit_block *w,
                        const act16_row *x, size_t col, const size_t at[4], __m512 acc) {
    const __mmask16 live = tail ? (__mmask16)((1u << 4 * n) - 1) : (__mmask16)0xffff;
    const int8_t *q = x->q + col;
    const __m512i a = dots_of(offset_of(type), w->v[0], load_halves(q + at[0], q + at[1]));
    const __m512i b = dots_of(offset_of(type), w->v[1], load_halves(q + at[2], q + at[3]));
    const __m512i products[2] = {even_lanes(a, b), odd_lanes(a, b)};
    __m512 sum = acc;
    UNROLL
    for (size_t h = 0; h < 2; h++) {
        const __m512 s = spread_pairs(x->scales + col / 16, (int)h, tail, n);
        sum = add_product(products[h], w->scale[h], s, sum);
    }
    if (has_min(type)) {
        UNROLL
        for (size_t h = 0; h < 2; h++) {
            const __m512 scaled = spread_pairs(x->scaled + col / 16, (int)h, tail, n);
            sum = _mm512_fmadd_ps(scaled, w->min[h], sum);
        }
    }
    return tail ? _mm512_mask_mov_ps(acc, live, sum) : sum;
}

/* Factors of the groups of 16 of eight units, four groups a vector, to the halves of four units. */
INLINE void spread_groups(const __m512 x[4], const int s, __m512 out[2]) {
    out[0] = even_floats(x[2 * s], x[2 * s + 1]);
    out[1] = odd_floats(x[2 * s], x[2 * s + 1]);
}

INLINE void take_unit_factors(const quant_type type, const uint8_t *const b[4],
                              unit_block w[2]) {
    __m512i min_bytes = _mm512_setzero_si512();
    const __m512i bytes = transpose_bytes(scales_256(type, b, &min_bytes));
    __m128 d4, dmin4;
    factors_256(type, b, &d4, &dmin4);
    const __m512 d = _mm512_broadcast_f32x4(d4);
    const __m512 dmin = _mm512_broadcast_f32x4(_mm_xor_ps(dmin4, _mm_set1_ps(-0.0f)));
    if (type == QUANT_Q2_K) min_bytes = transpose_bytes(min_bytes);
    __m512 x[4], m[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = factors_of(offset_of(type) != 0, bytes, i, d);
        m[i] = factors_of(false, min_bytes, i, dmin);
    }
    UNROLL
    for (int s = 0; s < 2; s++) {
        if (group_of(type) == 32) {
            w[s].scale[0] = w[s].scale[1] = x[s];
            continue;
        }
        spread_groups(x, s, w[s].scale);
        spread_groups(m, s, w[s].min);
    }
}

INLINE void unit_rows_256(matmul_rows *a, const quant_type type, const int n_tokens) {
    const size_t natural[4] = {0, 32, 64, 96};
    const uint8_t *b[4] = {a->rows[0], a->rows[1], a->rows[2], a->rows[3]};
    act16_row x[MATMUL_TOKENS];
    step_sums sums[MATMUL_TOKENS];
    begin_rows(a, n_tokens, x, sums);
    for (size_t i = 0; i < a->n_cols / 256; i++) {
        unit_block w[2] = {0};
        take_unit_factors(type, b, w);
        UNROLL
        for (int r = 0; r < 4; r++) {
            __m512i v[4];
            unpack_256(type, b[r], v);
            UNROLL
            for (int k = 0; k < 4; k++)
                w[k / 2].v[k % 2][r] = v[k];
            b[r] += bytes_of(type);
        }
        for (int t = 0; t < n_tokens; t++) {
            UNROLL
            for (size_t s = 0; s < 2; s++) {
                __m512 *acc = &sums[t].acc[(2 * i + s) % VECTORS];
                *acc =
                    add_units(type, false, 4, &w[s], &x[t], 256 * i + 128 * s, natural, *acc);
            }
        }
    }
    for (int t = 0; t < n_tokens; t++)
        store_sums(&sums[t], a->n_cols / 128, a->out[t]);
}

INLINE void units_32(const matmul_rows *a, const quant_type type, const int n_tokens, size_t i,
                     const bool tail, size_t n, const act16_row x[], step_sums sums[]) {
    const uint8_t *b[4];
    size_t at[4];
    unit_block w;
    for (int r = 0; r < 4; r++)
        b[r] = a->rows[r] + 4 * i * bytes_of(type);
    blocks_32(type, tail, n, b, at, w.v, &w.scale[0], &w.min[0]);
    w.scale[1] = w.scale[0];
    w.min[1] = w.min[0];
    for (int t = 0; t < n_tokens; t++) {
        __m512 *acc = &sums[t].acc[i % VECTORS];
        *acc = add_units(type, tail, n, &w, &x[t], 128 * i, at, *acc);
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
    const size_t whole = a->n_cols / 128, rest = a->n_cols % 128 / 32;
    act16_row x[MATMUL_TOKENS];
    step_sums sums[MATMUL_TOKENS];
    begin_rows(a, n_tokens, x, sums);
    for (size_t i = 0; i < whole; i++)
        units_32(a, type, n_tokens, i, false, 4, x, sums);
    if (rest > 0) units_32(a, type, n_tokens, whole, true, rest, x, sums);
    for (int t = 0; t < n_tokens; t++)
        store_sums(&sums[t], whole + (rest > 0), a->out[t]);
}

#include "kernels/cpu/rows_types.h"

matmul_rows_kernel matmul_step_avx512(quant_type type, size_t n_tokens) {
    return kernels[type][n_tokens > 1];
}
