/* matmul_scaled_panel_avx2.c - 32 unpacked weight rows against up to four activation rows with
 * a scale for each 16 or 32 columns.
 *
 * Tiles are those of matmul_panel_avx2.c, of 32 columns for every type, with the factors of
 * each 16 columns as floats: scales times the block's factor, made once for all tokens.
 * Cost    unpacking 32 rows takes as long as multiplying them with four or five tokens.
 * Oracle  kernels/cpu/matmul.c; bits compared in tests/kernels/test_matmul.c.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/panel_avx2.h"
#include "kernels/cpu/scaled_tile.h"

/* ---- unpacking ---- */

/* Eight words from `first` on, of eight rows, to floats, lane = row, times the row's factor. */
INLINE void factors_of_words(int16_t words[16][16], size_t row, size_t first, const float *d,
                             __m256 out[8]) {
    __m256i x[8];
    transpose_words(words, row, first, x);
    UNROLL
    for (int g = 0; g < 8; g++)
        out[g] = _mm256_mul_ps(_mm256_cvtepi32_ps(x[g]), _mm256_load_ps(d + row));
}

/* The factors of all groups of 16 rows, to scale or min of the tiles. */
INLINE void store_factors(quant_type type, int16_t words[16][16], const float *d,
                          scaled_tile tiles[8], const bool min) {
    const bool of_32 = group_of(type) == 32;
    for (size_t row = 0; row < 16; row += 8) {
        for (size_t first = 0; first < (of_32 ? 8 : 16); first += 8) {
            __m256 x[8];
            factors_of_words(words, row, first, d, x);
            UNROLL
            for (size_t i = 0; i < 8; i++) {
                scaled_tile *tile = &tiles[of_32 ? i : (first + i) / 2];
                float(*to)[16] = min ? tile->min : tile->scale;
                if (of_32) _mm256_store_ps(to[0] + row, x[i]);
                _mm256_store_ps(to[of_32 ? 1 : i % 2] + row, x[i]);
            }
        }
    }
}

INLINE void unpack_factors(quant_type type, const uint8_t *const b[16], scaled_tile tiles[8]) {
    _Alignas(32) int16_t scales[16][16], mins[16][16];
    _Alignas(32) float d[16], dmin[16];
    const size_t at = factor_at(type);
    for (size_t r = 0; r < 16; r++) {
        __m256i row_mins;
        store_256(scales[r], scales_256(type, b[r], &row_mins));
        store_256(mins[r], row_mins);
    }
    for (size_t r = 0; r < 16; r += 4) {
        _mm_store_ps(d + r, factors_of_rows(b + r, at));
        if (!has_min(type)) continue;
        _mm_store_ps(dmin + r, _mm_xor_ps(factors_of_rows(b + r, at + 2), _mm_set1_ps(-0.0f)));
    }
    store_factors(type, scales, d, tiles, false);
    if (has_min(type)) store_factors(type, mins, dmin, tiles, true);
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

INLINE void unpack_tile_32(quant_type type, const uint8_t *const b[16], scaled_tile *tile) {
    unpack_values_32(type, b, tile->q);
    for (size_t r = 0; r < 16; r += 4) {
        __m128 d = type == QUANT_MXFP4 ? factors_mxfp4(b + r) : factors_of_rows(b + r, 0);
        _mm_store_ps(tile->scale[0] + r, d);
        _mm_store_ps(tile->scale[1] + r, d);
        if (!has_min(type)) continue;
        __m128 m = factors_of_rows(b + r, 2);
        _mm_store_ps(tile->min[0] + r, m);
        _mm_store_ps(tile->min[1] + r, m);
    }
}

INLINE void unpack_panel_32(matmul_panel *p, const quant_type type) {
    const size_t n_blocks = p->n_cols / 32, at = p->first_col / 32 * bytes_of(type);
    scaled_tile *tiles = p->tiles;
    for (size_t half = 0; half < 2; half++) {
        for (size_t i = 0; i < n_blocks; i++) {
            const uint8_t *b[16];
            for (size_t r = 0; r < 16; r++)
                b[r] = p->rows[16 * half + r] + at + i * bytes_of(type);
            unpack_tile_32(type, b, tiles++);
        }
    }
}

/* ---- multiplying ---- */

/* acc = fma(scaled, min, fma(c, scale * s, acc)) for eight rows */
INLINE void add_scaled(const bool min_too, float *acc, __m256i c, float s, float scaled,
                       const float *scale, const float *min) {
    __m256 factor = _mm256_mul_ps(_mm256_load_ps(scale), _mm256_set1_ps(s));
    __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(c), factor, _mm256_load_ps(acc));
    if (min_too) sum = _mm256_fmadd_ps(_mm256_set1_ps(scaled), _mm256_load_ps(min), sum);
    _mm256_store_ps(acc, sum);
}

/* Group h of a tile (number g of the row) against each token. */
INLINE void multiply_tile(const quant_type type, const int group, const scaled_tile *w,
                          const int h, size_t g, const act16_row x[], const int8_t *const q[],
                          int32_t offset, const int n_tokens, matmul_sums *sums, size_t row) {
    const __m256i one = _mm256_set1_epi16(1);
    const size_t at = g * (size_t)group / 16; /* of the group's first 16 columns */
    __m256i c[2][MATMUL_TOKENS];
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        const int32_t sum = x[t].sums[at] + (group == 32 ? x[t].sums[at + 1] : 0);
        c[0][t] = c[1][t] = is_signed(type) || has_min(type) ? _mm256_setzero_si256()
                                                             : _mm256_set1_epi32(-offset * sum);
    }
    multiply_group(type, w->q + h * 4, group / 4, one, one, q, 16 * at, n_tokens, c);
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        float *acc = sums[t].acc + row;
        const float s = x[t].scales[at], scaled = has_min(type) ? x[t].scaled[g] : 0;
        add_scaled(has_min(type), acc, c[0][t], s, scaled, w->scale[h], w->min[h]);
        add_scaled(has_min(type), acc + 8, c[1][t], s, scaled, w->scale[h] + 8, w->min[h] + 8);
    }
}

INLINE void multiply(matmul_panel *p, const quant_type type, const int group,
                     const int n_tokens) {
    const int32_t offset = offset_of(p->type); /* types alike share a function */
    const size_t n_tiles = p->n_cols / 32;
    const scaled_tile *w = p->tiles;
    const int8_t *q[MATMUL_TOKENS];
    act16_row x[MATMUL_TOKENS];
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        x[t] = act16_row_at(p->acts[t], p->row_cols, group, p->first_col);
        q[t] = x[t].q;
    }
    for (size_t row = 0; row < 32; row += 16) {
        for (size_t i = 0; i < n_tiles; i++, w++) {
            UNROLL
            for (int h = 0; h < 32 / group; h++) {
                const size_t g = i * (size_t)(32 / group) + (size_t)h;
                multiply_tile(type, group, w, h, g, x, q, offset, n_tokens, p->sums, row);
            }
        }
    }
}

/* ---- one function for each type, and for each kind, group and number of tokens ---- */

#include "kernels/cpu/panel_types.h"

#define MULTIPLY_BY(name, type, group, n)                                                      \
    static void name##_##group##_by_##n(matmul_panel *p) {                                     \
        multiply(p, type, group, n);                                                           \
    }
#define MULTIPLY(name, type, group)                                                            \
    MULTIPLY_BY(name, type, group, 1)                                                          \
    MULTIPLY_BY(name, type, group, 2)                                                          \
    MULTIPLY_BY(name, type, group, 3)                                                          \
    MULTIPLY_BY(name, type, group, 4)

/* Unpacked, types differ in a sign, an offset or minima, and in how large values are. */
MULTIPLY(q8_0, QUANT_Q8_0, 16)
MULTIPLY(q8_0, QUANT_Q8_0, 32)
MULTIPLY(q5_0, QUANT_Q5_0, 16)
MULTIPLY(q5_0, QUANT_Q5_0, 32)
MULTIPLY(q5_1, QUANT_Q5_1, 16)
MULTIPLY(q5_1, QUANT_Q5_1, 32)
MULTIPLY(q4_k, QUANT_Q4_K, 16)
MULTIPLY(q4_k, QUANT_Q4_K, 32)
MULTIPLY(q6_k, QUANT_Q6_K, 16)

#define BY(like, group)                                                                        \
    {                                                                                          \
        like##_##group##_by_1, like##_##group##_by_2, like##_##group##_by_3,                   \
            like##_##group##_by_4                                                              \
    }
#define ENTRY(name, like)                                                                      \
    {                                                                                          \
        name##_unpack, {                                                                       \
            BY(like, 16), BY(like, 32)                                                         \
        }                                                                                      \
    }
#define ENTRY_16(name, like)                                                                   \
    {                                                                                          \
        name##_unpack, {                                                                       \
            BY(like, 16)                                                                       \
        }                                                                                      \
    }

static const struct {
    panel_kernel unpack;
    panel_kernel multiply[2][MATMUL_TOKENS]; /* groups of 16, of 32 */
} kernels[QUANT_LIMIT] = {
    [QUANT_Q4_0] = ENTRY(q4_0, q5_0),     [QUANT_Q4_1] = ENTRY(q4_1, q4_k),
    [QUANT_Q5_0] = ENTRY(q5_0, q5_0),     [QUANT_Q5_1] = ENTRY(q5_1, q5_1),
    [QUANT_Q8_0] = ENTRY(q8_0, q8_0),     [QUANT_IQ4_NL] = ENTRY(iq4_nl, q8_0),
    [QUANT_MXFP4] = ENTRY(mxfp4, q8_0),   [QUANT_Q2_K] = ENTRY_16(q2_k, q4_k),
    [QUANT_Q3_K] = ENTRY_16(q3_k, q5_0),  [QUANT_Q4_K] = ENTRY(q4_k, q4_k),
    [QUANT_Q5_K] = ENTRY(q5_k, q5_1),     [QUANT_Q6_K] = ENTRY_16(q6_k, q6_k),
    [QUANT_IQ4_XS] = ENTRY(iq4_xs, q8_0),
};

void matmul_scaled_unpack_avx2(matmul_panel *p) {
    kernels[p->type].unpack(p);
}

void matmul_scaled_multiply_avx2(matmul_panel *p) {
    const bool by_32 = matmul_group_of(p->type) == 32;
    kernels[p->type].multiply[by_32][p->n_tokens - 1](p);
}
