/* matmul_panel_avx512.c - 32 unpacked weight rows against up to six activation rows.
 *
 * A tile is 16 rows of one block as unsigned bytes, four columns of a row side by side,
 * so that a 64-byte vector holds the same four columns of 16 rows: lanes are rows.  One
 * broadcast of four activations multiplies with it, and nothing is summed across lanes.
 * Group sums are scaled and added in 32-bit integers; offsets of the unsigned bytes and
 * minima come from the sums of the activations, two groups at a time (vpdpwssd).  The
 * float accumulators live in memory and are touched once a block.
 * Cost    unpacking 32 rows takes as long as multiplying them with 6 or 7 tokens.
 * Oracle  kernels/cpu/matmul.c; bits compared in tests/kernels/test_matmul.c.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/panel_avx512.h"

typedef struct tile_256 {
    uint8_t q[64][64]; /* [column / 4][4 * row + column % 4] */
    int32_t scale[16][16];
    int32_t bias[8][16]; /* -offset * scale of two groups, 16 bits each */
    int32_t min[8][16];  /* minima of two groups, 16 bits each */
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

/* Two 32-bit lanes that fit 16 bits: the first in the lower half. */
INLINE __m512i pack_pair(__m512i first, __m512i second) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, first, _mm512_slli_epi32(second, 16));
}

/* ---- unpacking ---- */

INLINE void store_scales(quant_type type, uint8_t bytes[16][16], tile_256 *tile) {
    const __m512i offset = _mm512_set1_epi32(-offset_of(type));
    const int n_groups = 256 / group_of(type);
    __m512i x[16];
    transpose_bytes(offset_of(type) != 0, bytes, x);
    for (int g = 0; g < n_groups; g++)
        _mm512_store_si512(tile->scale[g], x[g]);
    for (int g = 0; g < n_groups && offset_of(type) != 0; g += 2) {
        _mm512_store_si512(tile->bias[g / 2], pack_pair(_mm512_mullo_epi32(x[g], offset),
                                                        _mm512_mullo_epi32(x[g + 1], offset)));
    }
    for (int g = 8; g < 16 && is_k4(type); g += 2)
        _mm512_store_si512(tile->min[g / 2 - 4], pack_pair(x[g], x[g + 1]));
}

INLINE void unpack_scales(quant_type type, const uint8_t *const b[16], tile_256 *tile) {
    _Alignas(64) uint8_t bytes[16][16], min_bytes[16][16];
    for (int r = 0; r < 16; r += 4) {
        __m512i mins = _mm512_setzero_si512();
        __m128 d, dmin;
        _mm512_store_si512(bytes[r], scales_256(type, b + r, &mins));
        _mm512_store_si512(min_bytes[r], mins);
        factors_256(type, b + r, &d, &dmin);
        _mm_store_ps(tile->d + r, d);
        _mm_store_ps(tile->dmin + r, dmin);
    }
    store_scales(type, bytes, tile);
    if (type != QUANT_Q2_K) return;
    __m512i x[16];
    transpose_bytes(false, min_bytes, x);
    for (int g = 0; g < 16; g += 2)
        _mm512_store_si512(tile->min[g / 2], pack_pair(x[g], x[g + 1]));
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

/* One or two blocks of 16 rows; a missing second one is not stored. */
INLINE void unpack_two_tiles(quant_type type, const uint8_t *const b[16], size_t n_blocks,
                             tile_32 *tiles) {
    const size_t second = n_blocks > 1 ? bytes_of(type) : 0;
    __m512i x[16];
    for (int r = 0; r < 16; r++)
        x[r] = unpack_two(type, b[r], b[r] + second);
    transpose(x);
    for (size_t j = 0; j < n_blocks; j++) {
        for (int k = 0; k < 8; k++)
            _mm512_store_si512(tiles[j].q[k], x[8 * j + (size_t)k]);
        for (int r = 0; r < 16; r++) {
            tiles[j].d[r] = factor_32(type, b[r] + j * second);
            if (has_min(type)) tiles[j].m[r] = -_cvtsh_ss(load16(b[r] + j * second + 2));
        }
    }
}

INLINE void unpack_panel_32(matmul_panel *p, const quant_type type) {
    const size_t n_blocks = p->n_cols / 32, at = p->first_col / 32 * bytes_of(type);
    tile_32 *tiles = p->tiles;
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

/* Sum over pairs of groups of pair * sums of q, added to c. */
INLINE void multiply_pairs(const int32_t (*pairs0)[16], const int32_t (*pairs1)[16],
                           const int n_pairs, const int16_t *const sums[], const int n_tokens,
                           __m512i c[2][MATMUL_PANEL_TOKENS]) {
    for (int i = 0; i < n_pairs; i++) {
        __m512i x0 = _mm512_load_si512(pairs0[i]), x1 = _mm512_load_si512(pairs1[i]);
        UNROLL
        for (int t = 0; t < n_tokens; t++) {
            __m512i y = broadcast_32(sums[t] + 2 * i);
            c[0][t] = _mm512_dpwssd_epi32(c[0][t], x0, y);
            c[1][t] = _mm512_dpwssd_epi32(c[1][t], x1, y);
        }
    }
}

/* sums[lane] = fma(c, factor * scale, sums[lane]) */
INLINE void add_scaled(float *sums, __m512i c, const float *factor, __m512 scale) {
    __m512 f = _mm512_mul_ps(_mm512_load_ps(factor), scale);
    _mm512_store_ps(sums, _mm512_fmadd_ps(_mm512_cvtepi32_ps(c), f, _mm512_load_ps(sums)));
}

INLINE void multiply_block_256(const quant_type type, const int n_tokens, const tile_256 *w0,
                               const tile_256 *w1, const act_block *const x[],
                               matmul_sums *sums) {
    const int group = group_of(type), n_groups = 256 / group;
    const int8_t *q[MATMUL_PANEL_TOKENS];
    const int16_t *q_sums[MATMUL_PANEL_TOKENS];
    __m512i total[2][MATMUL_PANEL_TOKENS];
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        q[t] = x[t]->q;
        q_sums[t] = group == 32 ? x[t]->sums32 : x[t]->sums16;
    }
    clear(n_tokens, total);
    if (offset_of(type) != 0) {
        multiply_pairs(w0->bias, w1->bias, n_groups / 2, q_sums, n_tokens, total);
    }
    for (int g = 0; g < n_groups; g++) {
        __m512i c[2][MATMUL_PANEL_TOKENS];
        clear(n_tokens, c);
        const int first = g * (group / 4);
        UNROLL
        for (int k = first; k < first + group / 4; k++)
            multiply_four(w0->q[k], w1->q[k], q, 4 * (size_t)k, n_tokens, c);
        __m512i s0 = _mm512_load_si512(w0->scale[g]), s1 = _mm512_load_si512(w1->scale[g]);
        UNROLL
        for (int t = 0; t < n_tokens; t++) {
            total[0][t] = _mm512_add_epi32(total[0][t], _mm512_mullo_epi32(c[0][t], s0));
            total[1][t] = _mm512_add_epi32(total[1][t], _mm512_mullo_epi32(c[1][t], s1));
        }
    }
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        __m512 scale = _mm512_set1_ps(x[t]->scale);
        add_scaled(sums[t].acc, total[0][t], w0->d, scale);
        add_scaled(sums[t].acc + 16, total[1][t], w1->d, scale);
    }
    if (!has_min(type)) return;
    clear(n_tokens, total);
    multiply_pairs(w0->min, w1->min, n_groups / 2, q_sums, n_tokens, total);
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        __m512 scale = _mm512_set1_ps(x[t]->scale);
        add_scaled(sums[t].min, total[0][t], w0->dmin, scale);
        add_scaled(sums[t].min + 16, total[1][t], w1->dmin, scale);
    }
}

INLINE void multiply_256(matmul_panel *p, const quant_type type, const int n_tokens) {
    const size_t n_blocks = p->n_cols / 256;
    const tile_256 *tiles = p->tiles;
    const act_block *x[MATMUL_PANEL_TOKENS];
    UNROLL
    for (int t = 0; t < n_tokens; t++)
        x[t] = (const act_block *)(const void *)p->acts[t] + p->first_col / 256;
    for (size_t i = 0; i < n_blocks; i++) {
        multiply_block_256(type, n_tokens, tiles + i, tiles + n_blocks + i, x, p->sums);
        UNROLL
        for (int t = 0; t < n_tokens; t++)
            x[t]++;
    }
}

INLINE void multiply_32(matmul_panel *p, const quant_type type, const int n_tokens) {
    const int32_t offset = offset_of(p->type); /* types without minima share a function */
    const size_t n_blocks = p->n_cols / 32, first = p->first_col / 32;
    const tile_32 *tiles = p->tiles;
    const int8_t *q[MATMUL_PANEL_TOKENS];
    const float *scales[MATMUL_PANEL_TOKENS];
    const int32_t *q_sums[MATMUL_PANEL_TOKENS];
    UNROLL
    for (int t = 0; t < n_tokens; t++) {
        q[t] = act32_q(p->acts[t]) + p->first_col;
        scales[t] = act32_scales(p->acts[t], p->row_cols) + first;
        q_sums[t] = act32_sums(p->acts[t], p->row_cols) + first;
    }
    for (size_t i = 0; i < n_blocks; i++) {
        const tile_32 *w0 = tiles + i, *w1 = tiles + n_blocks + i;
        __m512i c[2][MATMUL_PANEL_TOKENS];
        UNROLL
        for (int t = 0; t < n_tokens; t++)
            c[0][t] = c[1][t] = _mm512_set1_epi32(-offset * q_sums[t][i]);
        UNROLL
        for (size_t k = 0; k < 8; k++)
            multiply_four(w0->q[k], w1->q[k], q, 32 * i + 4 * k, n_tokens, c);
        UNROLL
        for (int t = 0; t < n_tokens; t++) {
            __m512 scale = _mm512_set1_ps(scales[t][i]);
            add_scaled(p->sums[t].acc, c[0][t], w0->d, scale);
            add_scaled(p->sums[t].acc + 16, c[1][t], w1->d, scale);
            if (has_min(type)) {
                __m512i q_sum = _mm512_set1_epi32(q_sums[t][i]);
                add_scaled(p->sums[t].min, q_sum, w0->m, scale);
                add_scaled(p->sums[t].min + 16, q_sum, w1->m, scale);
            }
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
    MULTIPLY_BY(family, name, type, 4)                                                         \
    MULTIPLY_BY(family, name, type, 5)                                                         \
    MULTIPLY_BY(family, name, type, 6)

/* Unpacked, types with the same groups and the same kind of offset are alike. */
MULTIPLY(32, q8_0, QUANT_Q8_0)
MULTIPLY(32, q4_1, QUANT_Q4_1)
MULTIPLY(256, q2_k, QUANT_Q2_K)
MULTIPLY(256, q4_k, QUANT_Q4_K)
MULTIPLY(256, q6_k, QUANT_Q6_K)
MULTIPLY(256, iq4_xs, QUANT_IQ4_XS)

#define ENTRY(name, like)                                                                      \
    {                                                                                          \
        name##_unpack, {                                                                       \
            like##_by_1, like##_by_2, like##_by_3, like##_by_4, like##_by_5, like##_by_6       \
        }                                                                                      \
    }

static const struct {
    panel_kernel unpack;
    panel_kernel multiply[MATMUL_PANEL_TOKENS];
} kernels[QUANT_LIMIT] = {
    [QUANT_Q4_0] = ENTRY(q4_0, q8_0),       [QUANT_Q4_1] = ENTRY(q4_1, q4_1),
    [QUANT_Q5_0] = ENTRY(q5_0, q8_0),       [QUANT_Q5_1] = ENTRY(q5_1, q4_1),
    [QUANT_Q8_0] = ENTRY(q8_0, q8_0),       [QUANT_IQ4_NL] = ENTRY(iq4_nl, q8_0),
    [QUANT_MXFP4] = ENTRY(mxfp4, q8_0),     [QUANT_Q2_K] = ENTRY(q2_k, q2_k),
    [QUANT_Q3_K] = ENTRY(q3_k, q6_k),       [QUANT_Q4_K] = ENTRY(q4_k, q4_k),
    [QUANT_Q5_K] = ENTRY(q5_k, q4_k),       [QUANT_Q6_K] = ENTRY(q6_k, q6_k),
    [QUANT_IQ4_XS] = ENTRY(iq4_xs, iq4_xs),
};

void matmul_panel_unpack_avx512(matmul_panel *p) {
    if (p->format == ACT_Q8_16_PAIRS)
        matmul_scaled_unpack_avx512(p);
    else
        kernels[p->type].unpack(p);
}

void matmul_panel_multiply_avx512(matmul_panel *p) {
    if (p->format == ACT_Q8_16_PAIRS)
        matmul_scaled_multiply_avx512(p);
    else
        kernels[p->type].multiply[p->n_tokens - 1](p);
}
