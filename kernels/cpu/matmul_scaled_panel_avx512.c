/* matmul_scaled_panel_avx512.c - 32 unpacked weight rows against up to six activation rows
 * with a scale for each 16 or 32 columns.
 *
 * Tiles are those of matmul_panel_avx512.c, of 32 columns for every type, with the factors of
 * each 16 columns as floats: scales times the block's factor, made once for all tokens.
 * Cost    unpacking 32 rows takes as long as multiplying them with 6 or 7 tokens.
 * Oracle  kernels/cpu/matmul.c; bits compared in tests/kernels/test_matmul.c.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/panel_avx512.h"
#include "kernels/cpu/scaled_tile.h"

/* ---- unpacking ---- */

/* 16 bytes of 16 rows to floats, lane = row, times the row's factor. */
INLINE void factors_of_bytes(bool is_signed, uint8_t bytes[16][16], __m512 d, __m512 out[16]) {
    __m512i x[16];
    transpose_bytes(is_signed, bytes, x);
    for (int g = 0; g < 16; g++)
        out[g] = _mm512_mul_ps(_mm512_cvtepi32_ps(x[g]), d);
}

INLINE void unpack_factors(quant_type type, const uint8_t *const b[16], scaled_tile tiles[8]) {
    _Alignas(64) uint8_t bytes[16][16], min_bytes[16][16];
    _Alignas(64) float d[16], dmin[16];
    for (int r = 0; r < 16; r += 4) {
        __m512i mins = _mm512_setzero_si512();
        __m128 d4, dmin4;
        _mm512_store_si512(bytes[r], scales_256(type, b + r, &mins));
        _mm512_store_si512(min_bytes[r], mins);
        factors_256(type, b + r, &d4, &dmin4);
        _mm_store_ps(d + r, d4);
        _mm_store_ps(dmin + r, _mm_xor_ps(dmin4, _mm_set1_ps(-0.0f)));
    }
    const bool of_32 = group_of(type) == 32;
    __m512 x[16], y[16];
    factors_of_bytes(offset_of(type) != 0, bytes, _mm512_load_ps(d), x);
    if (is_k4(type)) factors_of_bytes(false, bytes, _mm512_load_ps(dmin), y);
    if (type == QUANT_Q2_K) factors_of_bytes(false, min_bytes, _mm512_load_ps(dmin), y);
    for (int g = 0; g < 16; g++) {
        _mm512_store_ps(tiles[g / 2].scale[g % 2], x[of_32 ? g / 2 : g]);
        if (!has_min(type)) continue;
        _mm512_store_ps(tiles[g / 2].min[g % 2], y[of_32 ? 8 + g / 2 : g]);
    }
}

INLINE void unpack_panel_256(matmul_panel *p, const quant_type type) {
    const size_t n_blocks = p->n_cols / 256, at = p->first_col / 256 * bytes_of(type);
    scaled_tile *tiles = p->tiles;
    for (size_t half = 0; half < 2; half++) {
        for (size_t i = 0; i < n_blocks; i++) {
            const uint8_t *b[16];
            for (size_t r = 0; r < 16; r++)
                b[r] = p->rows[16 * half + r] + at + i * bytes_of(type);
            unpack_values(type, b, tiles->q, sizeof *tiles);
            unpack_factors(type, b, tiles);
            tiles += 8;
        }
    }
}

/* One or two blocks of 16 rows; a missing second one is not stored. */
INLINE void unpack_two_tiles(quant_type type, const uint8_t *const b[16], size_t n_blocks,
                             scaled_tile *tiles) {
    const size_t second = n_blocks > 1 ? bytes_of(type) : 0;
    __m512i x[16];
    for (int r = 0; r < 16; r++)
        x[r] = unpack_two(type, b[r], b[r] + second);
    transpose(x);
    for (size_t j = 0; j < n_blocks; j++) {
        scaled_tile *tile = &tiles[j];
        for (int k = 0; k < 8; k++)
            _mm512_store_si512(tile->q[k], x[8 * j + (size_t)k]);
        for (int r = 0; r < 16; r++) {
            const uint8_t *block = b[r] + j * second;
            tile->scale[0][r] = tile->scale[1][r] = factor_32(type, block);
            if (has_min(type)) tile->min[0][r] = tile->min[1][r] = _cvtsh_ss(load16(block + 2));
        }
    }
}

INLINE void unpack_panel_32(matmul_panel *p, const quant_type type) {
    const size_t n_blocks = p->n_cols / 32, at = p->first_col / 32 * bytes_of(type);
    scaled_tile *tiles = p->tiles;
    for (size_t half = 0; half < 2; half++) {
        for (size_t i = 0; i < n_blocks; i += 2) {
            const uint8_t *b[16];
            for (size_t r = 0; r < 16; r++)
                b[r] = p->rows[16 * half + r] + at + i * bytes_of(type);
            unpack_two_tiles(type, b, n_blocks - i < 2 ? 1 : 2, tiles + half * n_blocks + i);
        }
    }
}

/* ---- multiplying ---- */

/* The integer sums of a group of two tiles; without minima unsigned weights stand offset too
 * high. */
INLINE void multiply_group(const bool min, const int group, const scaled_tile *w0,
                           const scaled_tile *w1, size_t i, const int h, const act16_row x[],
                           const int8_t *const q[], int32_t offset, const int n_tokens,
                           __m512i c[2][MATMUL_PANEL_TOKENS]) {
    clear(n_tokens, c);
    UNROLL
    for (int t = 0; t < n_tokens && !min; t++) {
        const int32_t *sums = x[t].sums + 2 * i;
        const int32_t sum = group == 32 ? sums[0] + sums[1] : sums[h];
        c[0][t] = c[1][t] = _mm512_set1_epi32(-offset * sum);
    }
    UNROLL
    for (int k = h * 4; k < h * 4 + group / 4; k++)
        multiply_four(w0->q[k], w1->q[k], q, 32 * i + 4 * (size_t)k, n_tokens, c);
}

/* acc = fma(scaled, min, fma(c, scale * s, acc)) */
INLINE void add_scaled(const bool has_min, float *acc, __m512i c, __m512 s, __m512 scaled,
                       const float *scale, const float *min) {
    __m512 factor = _mm512_mul_ps(_mm512_load_ps(scale), s);
    __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c), factor, _mm512_load_ps(acc));
    if (has_min) sum = _mm512_fmadd_ps(scaled, _mm512_load_ps(min), sum);
    _mm512_store_ps(acc, sum);
}

INLINE void multiply(matmul_panel *p, const bool min, const int group, const int n_tokens) {
    const int32_t offset = offset_of(p->type);
    const size_t n_tiles = p->n_cols / 32;
    const scaled_tile *tiles = p->tiles;
    const int8_t *q[MATMUL_PANEL_TOKENS];
    act16_row x[MATMUL_PANEL_TOKENS];
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        x[t] = act16_row_at(p->acts[t], p->row_cols, group, p->first_col);
        q[t] = x[t].q;
    }
    for (size_t i = 0; i < n_tiles; i++) {
        const scaled_tile *w0 = tiles + i, *w1 = tiles + n_tiles + i;
        UNROLL
        for (int h = 0; h < 32 / group; h++) {
            const size_t g = i * (size_t)(32 / group) + (size_t)h;
            __m512i c[2][MATMUL_PANEL_TOKENS];
            multiply_group(min, group, w0, w1, i, h, x, q, offset, n_tokens, c);
            UNROLL
            for (int t = 0; t < n_tokens; t++) {
                float *acc = p->sums[t].acc;
                const __m512 s = _mm512_set1_ps(x[t].scales[2 * i + (size_t)h]);
                const __m512 scaled =
                    min ? _mm512_set1_ps(x[t].scaled[g]) : _mm512_setzero_ps();
                add_scaled(min, acc, c[0][t], s, scaled, w0->scale[h], w0->min[h]);
                add_scaled(min, acc + 16, c[1][t], s, scaled, w1->scale[h], w1->min[h]);
            }
        }
    }
}

/* ---- one function for each type, and for each group and number of tokens ---- */

#include "kernels/cpu/panel_types.h"

static const panel_kernel unpack[QUANT_LIMIT] = {
    [QUANT_Q4_0] = q4_0_unpack,   [QUANT_Q4_1] = q4_1_unpack, [QUANT_Q5_0] = q5_0_unpack,
    [QUANT_Q5_1] = q5_1_unpack,   [QUANT_Q8_0] = q8_0_unpack, [QUANT_IQ4_NL] = iq4_nl_unpack,
    [QUANT_Q2_K] = q2_k_unpack,   [QUANT_Q3_K] = q3_k_unpack, [QUANT_Q4_K] = q4_k_unpack,
    [QUANT_Q5_K] = q5_k_unpack,   [QUANT_Q6_K] = q6_k_unpack, [QUANT_IQ4_XS] = iq4_xs_unpack,
    [QUANT_MXFP4] = mxfp4_unpack,
};

#define MULTIPLY_BY(name, min, group, n)                                                       \
    static void name##_by_##n(matmul_panel *p) {                                               \
        multiply(p, min, group, n);                                                            \
    }
#define MULTIPLY(name, min, group)                                                             \
    MULTIPLY_BY(name, min, group, 1)                                                           \
    MULTIPLY_BY(name, min, group, 2)                                                           \
    MULTIPLY_BY(name, min, group, 3)                                                           \
    MULTIPLY_BY(name, min, group, 4)                                                           \
    MULTIPLY_BY(name, min, group, 5)                                                           \
    MULTIPLY_BY(name, min, group, 6)

/* Unpacked, types differ in their groups, and in having minima or an offset. */
MULTIPLY(offset_16, false, 16)
MULTIPLY(offset_32, false, 32)
MULTIPLY(min_16, true, 16)
MULTIPLY(min_32, true, 32)

#define ENTRY(name)                                                                            \
    { name##_by_1, name##_by_2, name##_by_3, name##_by_4, name##_by_5, name##_by_6 }

static const panel_kernel multipliers[2][2][MATMUL_PANEL_TOKENS] = {
    {ENTRY(offset_16), ENTRY(offset_32)}, {ENTRY(min_16), ENTRY(min_32)}};

void matmul_scaled_unpack_avx512(matmul_panel *p) {
    unpack[p->type](p);
}

void matmul_scaled_multiply_avx512(matmul_panel *p) {
    const bool of_32 = matmul_group_of(p->type) == 32;
    multipliers[has_min(p->type)][of_32][p->n_tokens - 1](p);
}
