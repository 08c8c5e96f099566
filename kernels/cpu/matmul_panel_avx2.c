/* matmul_panel_avx2.c - 32 unpacked weight rows against up to four activation rows.
 *
 * A tile is 16 rows of one block as bytes, four columns of a row side by side, so that a
 * 32-byte vector holds the same four columns of eight rows: lanes are rows, and nothing is
 * summed across lanes.  vpmaddubsw leaves two sums of a row in 16 bits, where as many
 * steps are added as fit (a step of Q4_K is at most 15 * 127 * 2); vpmaddwd then applies the
 * group scale and adds the two.  Weights of types with a sign go as |w| times q with w's
 * sign.  Offsets and minima come from the sums of the activations, two groups at a time.
 * Two vectors of rows by four tokens fill the sixteen registers.
 * Cost    unpacking 32 rows takes as long as multiplying them with four or five tokens.
 * Oracle  kernels/cpu/matmul.c; bits compared in tests/kernels/test_matmul.c.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/panel_avx2.h"

typedef struct tile_256 {
    uint8_t q[64][64];     /* [column / 4][4 * row + column % 4] */
    int32_t scale[16][16]; /* twice, in 16 bits each */
    int32_t bias[8][16];   /* -offset * scale of two groups, 16 bits each */
    int32_t min[8][16];    /* minima of two groups, 16 bits each */
    float d[16];
    float dmin[16];
} tile_256;

typedef struct tile_32 {
    uint8_t q[8][64];
    float d[16];
    float m[16]; /* the negated m of Q4_1 and Q5_1 */
} tile_32;

_Static_assert(sizeof(tile_256) <= 256 * MATMUL_TILE_BYTES_PER_COL, "scratch");
_Static_assert(sizeof(tile_32) <= 32 * MATMUL_TILE_BYTES_PER_COL, "scratch");

/* ---- unpacking ---- */

/* Two 32-bit lanes that fit 16 bits: the first in the lower half. */
INLINE __m256i pack_pair(__m256i first, __m256i second) {
    return _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xaa);
}

INLINE void store_scales(quant_type type, int16_t words[16][16], tile_256 *tile) {
    const size_t n_groups = (size_t)(256 / group_of(type));
    const __m256i offset = _mm256_set1_epi16((short)-offset_of(type));
    for (size_t row = 0; row < 16; row += 8) {
        for (size_t g = 0; g < n_groups; g += 8) {
            __m256i x[8];
            transpose_words(words, row, g, x);
            UNROLL
            for (size_t k = 0; k < 8; k++)
                store_256(tile->scale[g + k] + row, pack_pair(x[k], x[k]));
            if (offset_of(type) == 0) continue;
            UNROLL
            for (size_t k = 0; k < 8; k += 2) {
                store_256(tile->bias[(g + k) / 2] + row,
                          _mm256_mullo_epi16(pack_pair(x[k], x[k + 1]), offset));
            }
        }
    }
}

INLINE void store_mins(quant_type type, int16_t words[16][16], tile_256 *tile) {
    const size_t n_groups = (size_t)(256 / group_of(type));
    for (size_t row = 0; row < 16; row += 8) {
        for (size_t g = 0; g < n_groups; g += 8) {
            __m256i x[8];
            transpose_words(words, row, g, x);
            UNROLL
            for (size_t k = 0; k < 8; k += 2)
                store_256(tile->min[(g + k) / 2] + row, pack_pair(x[k], x[k + 1]));
        }
    }
}

INLINE void unpack_scales(quant_type type, const uint8_t *const b[16], tile_256 *tile) {
    _Alignas(32) int16_t scales[16][16], mins[16][16];
    const size_t at = factor_at(type);
    for (size_t r = 0; r < 16; r++) {
        __m256i row_mins;
        store_256(scales[r], scales_256(type, b[r], &row_mins));
        if (has_min(type)) store_256(mins[r], row_mins);
    }
    for (size_t r = 0; r < 16; r += 4) {
        _mm_store_ps(tile->d + r, factors_of_rows(b + r, at));
        if (has_min(type)) _mm_store_ps(tile->dmin + r, factors_of_rows(b + r, at + 2));
    }
    store_scales(type, scales, tile);
    if (has_min(type)) store_mins(type, mins, tile);
}

INLINE void unpack_panel_256(matmul_panel *p, const quant_type type) {
    const size_t n_blocks = p->n_cols / 256, at = p->first_col / 256 * bytes_of(type);
    tile_256 *tiles = p->tiles;
    for (size_t half = 0; half < 2; half++) {
        for (size_t i = 0; i < n_blocks; i++) {
            const uint8_t *b[16];
            for (size_t r = 0; r < 16; r++)
                b[r] = p->rows[16 * half + r] + at + i * bytes_of(type);
            unpack_values(type, b, tiles->q, sizeof tiles->q / 8);
            unpack_scales(type, b, tiles);
            tiles++;
        }
    }
}

INLINE void unpack_tile_32(quant_type type, const uint8_t *const b[16], tile_32 *tile) {
    unpack_values_32(type, b, tile->q);
    for (size_t r = 0; r < 16; r += 4) {
        _mm_store_ps(tile->d + r,
                     type == QUANT_MXFP4 ? factors_mxfp4(b + r) : factors_of_rows(b + r, 0));
        if (!has_min(type)) continue;
        _mm_store_ps(tile->m + r, _mm_xor_ps(factors_of_rows(b + r, 2), _mm_set1_ps(-0.0f)));
    }
}

INLINE void unpack_panel_32(matmul_panel *p, const quant_type type) {
    const size_t n_blocks = p->n_cols / 32, at = p->first_col / 32 * bytes_of(type);
    tile_32 *tiles = p->tiles;
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

/* Sum over pairs of groups of pair * sums of q, added to total. */
INLINE void multiply_sums(const int32_t (*pairs)[16], const int n_pairs,
                          const int16_t *const sums[], const int n_tokens,
                          __m256i total[2][MATMUL_TOKENS]) {
    for (int i = 0; i < n_pairs; i++) {
        __m256i x0 = load_256(pairs[i]), x1 = load_256(pairs[i] + 8);
        UNROLL
        for (int t = 0; t < n_tokens; t++) {
            __m256i y = broadcast_32(sums[t] + 2 * i);
            total[0][t] = _mm256_add_epi32(total[0][t], _mm256_madd_epi16(x0, y));
            total[1][t] = _mm256_add_epi32(total[1][t], _mm256_madd_epi16(x1, y));
        }
    }
}

/* sums[lane] = fma(c, factor * scale, sums[lane]) for 16 rows */
INLINE void add_scaled(float *sums, __m256i c0, __m256i c1, const float *factor, float scale) {
    __m256 x = _mm256_set1_ps(scale);
    __m256 f0 = _mm256_mul_ps(_mm256_load_ps(factor), x);
    __m256 f1 = _mm256_mul_ps(_mm256_load_ps(factor + 8), x);
    _mm256_store_ps(sums, _mm256_fmadd_ps(_mm256_cvtepi32_ps(c0), f0, _mm256_load_ps(sums)));
    _mm256_store_ps(sums + 8,
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(c1), f1, _mm256_load_ps(sums + 8)));
}

INLINE void clear(const int n_tokens, __m256i c[2][MATMUL_TOKENS]) {
    UNROLL
    for (int t = 0; t < n_tokens; t++)
        c[0][t] = c[1][t] = _mm256_setzero_si256();
}

/* sums[t].acc + row are the accumulators of the tile's 16 rows. */
INLINE void multiply_block_256(const quant_type type, const int n_tokens, const tile_256 *w,
                               const act_block *const x[], matmul_sums *sums, size_t row) {
    const int group = group_of(type), n_groups = 256 / group;
    const int8_t *q[MATMUL_TOKENS];
    const int16_t *q_sums[MATMUL_TOKENS];
    __m256i total[2][MATMUL_TOKENS];
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        q[t] = x[t]->q;
        q_sums[t] = group == 32 ? x[t]->sums32 : x[t]->sums16;
    }
    clear(n_tokens, total);
    if (offset_of(type) != 0) multiply_sums(w->bias, n_groups / 2, q_sums, n_tokens, total);
    for (int g = 0; g < n_groups; g++) {
        multiply_group(type, w->q + g * (group / 4), group / 4, load_256(w->scale[g]),
                       load_256(w->scale[g] + 8), q, (size_t)g * (size_t)group, n_tokens,
                       total);
    }
    UNROLL
    for (int t = 0; t < n_tokens; t++)
        add_scaled(sums[t].acc + row, total[0][t], total[1][t], w->d, x[t]->scale);
    if (!has_min(type)) return;
    clear(n_tokens, total);
    multiply_sums(w->min, n_groups / 2, q_sums, n_tokens, total);
    UNROLL
    for (int t = 0; t < n_tokens; t++)
        add_scaled(sums[t].min + row, total[0][t], total[1][t], w->dmin, x[t]->scale);
}

INLINE void multiply_256(matmul_panel *p, const quant_type type, const int n_tokens) {
    const size_t n_blocks = p->n_cols / 256;
    const tile_256 *tile = p->tiles;
    for (size_t half = 0; half < 2; half++) {
        const act_block *x[MATMUL_TOKENS];
        for (int t = 0; t < n_tokens; t++)
            x[t] = (const act_block *)(const void *)p->acts[t] + p->first_col / 256;
        for (size_t i = 0; i < n_blocks; i++) {
            multiply_block_256(type, n_tokens, tile++, x, p->sums, 16 * half);
            UNROLL
            for (int t = 0; t < n_tokens; t++)
                x[t]++;
        }
    }
}

INLINE void multiply_32(matmul_panel *p, const quant_type type, const int n_tokens) {
    const int32_t offset = offset_of(p->type); /* unsigned types share a function */
    const size_t n_blocks = p->n_cols / 32, first = p->first_col / 32;
    const tile_32 *w = p->tiles;
    const __m256i one = _mm256_set1_epi16(1);
    const int8_t *q[MATMUL_TOKENS];
    const float *scales[MATMUL_TOKENS];
    const int32_t *q_sums[MATMUL_TOKENS];
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        q[t] = act32_q(p->acts[t]) + p->first_col;
        scales[t] = act32_scales(p->acts[t], p->row_cols) + first;
        q_sums[t] = act32_sums(p->acts[t], p->row_cols) + first;
    }
    for (size_t j = 0; j < 2 * n_blocks; j++, w++) {
        const size_t row = j < n_blocks ? 0 : 16, i = j < n_blocks ? j : j - n_blocks;
        __m256i c[2][MATMUL_TOKENS];
        UNROLL
        for (int t = 0; t < n_tokens; t++)
            c[0][t] = c[1][t] = _mm256_set1_epi32(-offset * q_sums[t][i]);
        multiply_group(type, w->q, 8, one, one, q, 32 * i, n_tokens, c);
        UNROLL
        for (int t = 0; t < n_tokens; t++) {
            add_scaled(p->sums[t].acc + row, c[0][t], c[1][t], w->d, scales[t][i]);
            if (!has_min(type)) continue;
            __m256i q_sum = _mm256_set1_epi32(q_sums[t][i]);
            add_scaled(p->sums[t].min + row, q_sum, q_sum, w->m, scales[t][i]);
        }
    }
}

/* ---- one function for each type and number of tokens ---- */

#include "kernels/cpu/panel_types.h"

#define MULTIPLY_BY(family, name, type, n)                                                     \
    static void name##_by_##n(matmul_panel *p) {                                               \
        multiply_##family(p, type, n);                                                         \
    }
#define MULTIPLY(family, name, type)                                                           \
    MULTIPLY_BY(family, name, type, 1)                                                         \
    MULTIPLY_BY(family, name, type, 2)                                                         \
    MULTIPLY_BY(family, name, type, 3)                                                         \
    MULTIPLY_BY(family, name, type, 4)

/* Unpacked, the types of 32 with a sign are alike, and so are those of 4 and 5 bits. */
MULTIPLY(32, q8_0, QUANT_Q8_0)
MULTIPLY(32, q5_0, QUANT_Q5_0)
MULTIPLY(32, q5_1, QUANT_Q5_1)
MULTIPLY(256, q2_k, QUANT_Q2_K)
MULTIPLY(256, q3_k, QUANT_Q3_K)
MULTIPLY(256, q4_k, QUANT_Q4_K)
MULTIPLY(256, q5_k, QUANT_Q5_K)
MULTIPLY(256, q6_k, QUANT_Q6_K)
MULTIPLY(256, iq4_xs, QUANT_IQ4_XS)

#define ENTRY(name, like)                                                                      \
    {                                                                                          \
        name##_unpack, {                                                                       \
            like##_by_1, like##_by_2, like##_by_3, like##_by_4                                 \
        }                                                                                      \
    }

static const struct {
    panel_kernel unpack;
    panel_kernel multiply[MATMUL_TOKENS];
} kernels[QUANT_LIMIT] = {
    [QUANT_Q4_0] = ENTRY(q4_0, q5_0),       [QUANT_Q4_1] = ENTRY(q4_1, q5_1),
    [QUANT_Q5_0] = ENTRY(q5_0, q5_0),       [QUANT_Q5_1] = ENTRY(q5_1, q5_1),
    [QUANT_Q8_0] = ENTRY(q8_0, q8_0),       [QUANT_IQ4_NL] = ENTRY(iq4_nl, q8_0),
    [QUANT_MXFP4] = ENTRY(mxfp4, q8_0),     [QUANT_Q2_K] = ENTRY(q2_k, q2_k),
    [QUANT_Q3_K] = ENTRY(q3_k, q3_k),       [QUANT_Q4_K] = ENTRY(q4_k, q4_k),
    [QUANT_Q5_K] = ENTRY(q5_k, q5_k),       [QUANT_Q6_K] = ENTRY(q6_k, q6_k),
    [QUANT_IQ4_XS] = ENTRY(iq4_xs, iq4_xs),
};

void matmul_panel_unpack_avx2(matmul_panel *p) {
    if (p->format == ACT_Q8_16_PAIRS)
        matmul_scaled_unpack_avx2(p);
    else
        kernels[p->type].unpack(p);
}

void matmul_panel_multiply_avx2(matmul_panel *p) {
    if (p->format == ACT_Q8_16_PAIRS)
        matmul_scaled_multiply_avx2(p);
    else
        kernels[p->type].multiply[p->n_tokens - 1](p);
}
