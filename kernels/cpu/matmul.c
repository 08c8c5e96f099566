/* matmul.c - rows of every weight type against activations, in plain C: the oracle.
 *
 * Follows the order of sums in kernels/matmul.h as it is written.  A block of
 * weights is taken apart into small integers, one scale and one minimum for each 16
 * (or 32) of them, and the two factors of the block; the integer sums are exact.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/block_bits.h"
#include "kernels/cpu/matmul_impl.h"

#include <math.h>
#include <string.h>

/* y = scale * group_scale * value - min_scale * group_min, in 16 values a group. */
typedef struct plain_block {
    float scale;
    float min_scale;
    int16_t value[256];
    int16_t group_scale[16];
    int16_t group_min[16];
} plain_block;

static void no_groups(plain_block *p) {
    memset(p->group_min, 0, sizeof p->group_min);
    p->min_scale = 0;
    for (int g = 0; g < 16; g++)
        p->group_scale[g] = 1;
}

/* ---- blocks of 32 ---- */

static void take_q8_0(const uint8_t *b, plain_block *p) {
    p->scale = load_half(b);
    for (int e = 0; e < 32; e++)
        p->value[e] = (int8_t)b[2 + e];
}

static void take_q4_0(const uint8_t *b, plain_block *p) {
    p->scale = load_half(b);
    for (int e = 0; e < 32; e++)
        p->value[e] = (int16_t)(nibble_of_32(b + 2, e) - 8);
}

/* d * v + m is written with the minimum -m. */
static void take_min_32(const uint8_t *b, plain_block *p) {
    p->scale = load_half(b);
    p->min_scale = -load_half(b + 2);
    p->group_min[0] = p->group_min[1] = 1;
}

static void take_q4_1(const uint8_t *b, plain_block *p) {
    take_min_32(b, p);
    for (int e = 0; e < 32; e++)
        p->value[e] = (int16_t)nibble_of_32(b + 4, e);
}

static int fifth_bit(uint32_t high, int e) {
    return (int)(high >> e & 1u) << 4;
}

static void take_q5_0(const uint8_t *b, plain_block *p) {
    p->scale = load_half(b);
    uint32_t high = load_u32(b + 2);
    for (int e = 0; e < 32; e++)
        p->value[e] = (int16_t)((nibble_of_32(b + 6, e) | fifth_bit(high, e)) - 16);
}

static void take_q5_1(const uint8_t *b, plain_block *p) {
    take_min_32(b, p);
    uint32_t high = load_u32(b + 4);
    for (int e = 0; e < 32; e++)
        p->value[e] = (int16_t)(nibble_of_32(b + 8, e) | fifth_bit(high, e));
}

static void take_iq4_nl(const uint8_t *b, plain_block *p) {
    p->scale = load_half(b);
    for (int e = 0; e < 32; e++)
        p->value[e] = iq4_levels[nibble_of_32(b + 2, e)];
}

static void take_mxfp4(const uint8_t *b, plain_block *p) {
    p->scale = mxfp4_scale(b[0]);
    for (int e = 0; e < 32; e++)
        p->value[e] = mxfp4_levels[nibble_of_32(b + 1, e)];
}

/* ---- blocks of 256 ---- */

static void take_q2_k(const uint8_t *b, plain_block *p) {
    p->scale = load_half(b + 80);
    p->min_scale = load_half(b + 82);
    for (int e = 0; e < 256; e++)
        p->value[e] = (int16_t)pair_of_256(b + 16, e);
    for (int g = 0; g < 16; g++) {
        p->group_scale[g] = b[g] & 15;
        p->group_min[g] = b[g] >> 4;
    }
}

static void take_q3_k(const uint8_t *b, plain_block *p) {
    p->scale = load_half(b + 108);
    for (int e = 0; e < 256; e++) {
        int high = b[e % 32] >> (e / 32) & 1;
        p->value[e] = (int16_t)(pair_of_256(b + 32, e) - (high ? 0 : 4));
    }
    for (int g = 0; g < 16; g++)
        p->group_scale[g] = (int16_t)q3_k_scale(b + 96, g);
}

static void take_k4(const uint8_t *b, plain_block *p) {
    p->scale = load_half(b);
    p->min_scale = load_half(b + 2);
    for (int g = 0; g < 16; g++) {
        int scale, min;
        k4_scale_min(b + 4, g / 2, &scale, &min);
        p->group_scale[g] = (int16_t)scale;
        p->group_min[g] = (int16_t)min;
    }
}

static void take_q4_k(const uint8_t *b, plain_block *p) {
    take_k4(b, p);
    for (int e = 0; e < 256; e++)
        p->value[e] = (int16_t)nibble_of_256(b + 16, e);
}

static void take_q5_k(const uint8_t *b, plain_block *p) {
    take_k4(b, p);
    for (int e = 0; e < 256; e++) {
        int high = b[16 + e % 32] >> (e / 32) & 1;
        p->value[e] = (int16_t)(nibble_of_256(b + 48, e) | high << 4);
    }
}

static void take_q6_k(const uint8_t *b, plain_block *p) {
    p->scale = load_half(b + 208);
    for (int e = 0; e < 256; e++)
        p->value[e] = (int16_t)(q6_k_value(b, e) - 32);
    for (int g = 0; g < 16; g++)
        p->group_scale[g] = (int8_t)b[192 + g];
}

static void take_iq4_xs(const uint8_t *b, plain_block *p) {
    p->scale = load_half(b);
    for (int e = 0; e < 256; e++)
        p->value[e] = iq4_levels[nibble_of_32(b + 8 + e / 32 * 16, e % 32)];
    for (int g = 0; g < 16; g++)
        p->group_scale[g] = (int16_t)iq4_xs_scale(b, g / 2);
}

typedef void (*taker)(const uint8_t *b, plain_block *p);

static const taker takers[QUANT_LIMIT] = {
    [QUANT_Q4_0] = take_q4_0,   [QUANT_Q4_1] = take_q4_1,     [QUANT_Q5_0] = take_q5_0,
    [QUANT_Q5_1] = take_q5_1,   [QUANT_Q8_0] = take_q8_0,     [QUANT_Q2_K] = take_q2_k,
    [QUANT_Q3_K] = take_q3_k,   [QUANT_Q4_K] = take_q4_k,     [QUANT_Q5_K] = take_q5_k,
    [QUANT_Q6_K] = take_q6_k,   [QUANT_IQ4_NL] = take_iq4_nl, [QUANT_IQ4_XS] = take_iq4_xs,
    [QUANT_MXFP4] = take_mxfp4,
};

/* ---- sums ---- */

/* The exact sums of one block: with the scales, and with the minima. */
static void block_sums(const plain_block *p, const int8_t *q, int n, int32_t *sum,
                       int32_t *min_sum) {
    *sum = *min_sum = 0;
    for (int g = 0; g < n / 16; g++) {
        int32_t dot = 0, q_sum = 0;
        for (int e = 16 * g; e < 16 * g + 16; e++) {
            dot += p->value[e] * q[e];
            q_sum += q[e];
        }
        *sum += p->group_scale[g] * dot;
        *min_sum += p->group_min[g] * q_sum;
    }
}

static float dot_quantized(quant_type type, const uint8_t *row, const uint8_t *act,
                           size_t n_cols) {
    const quant_traits *traits = quant_traits_of((uint32_t)type);
    const bool of_256 = traits->block_values == 256;
    float acc = 0, acc_min = 0;
    for (size_t i = 0; i < n_cols / traits->block_values; i++) {
        plain_block p;
        int32_t sum, min_sum;
        no_groups(&p);
        takers[type](row + i * traits->block_bytes, &p);
        const act_block *a = (const void *)act;
        float act_scale = of_256 ? a[i].scale : act32_scales(act, n_cols)[i];
        block_sums(&p, of_256 ? a[i].q : act32_q(act) + 32 * i, of_256 ? 256 : 32, &sum,
                   &min_sum);
        acc = fmaf((float)sum, p.scale * act_scale, acc);
        acc_min = fmaf((float)min_sum, p.min_scale * act_scale, acc_min);
    }
    return acc - acc_min;
}

static bool has_min(quant_type type) {
    return type == QUANT_Q4_1 || type == QUANT_Q5_1 || type == QUANT_Q2_K ||
           type == QUANT_Q4_K || type == QUANT_Q5_K;
}

static int32_t sum_products(const int16_t *w, const int8_t *q, size_t n) {
    int32_t sum = 0;
    for (size_t e = 0; e < n; e++)
        sum += w[e] * q[e];
    return sum;
}

/* 16 or 32 columns at a time, which have a scale of their own in the activations. */
static float dot_scaled(const matmul_rows *a, const uint8_t *row, const uint8_t *act) {
    const quant_traits *traits = quant_traits_of((uint32_t)a->type);
    const size_t group = matmul_group_of(a->type);
    const float *scaled =
        group == 32 ? act16_scaled_pairs(act, a->n_cols) : act16_scaled(act, a->n_cols);
    float sum = 0;
    plain_block p = {0};
    for (size_t col = 0; col < a->n_cols; col += group) {
        const size_t at = col % traits->block_values, of_16 = at / 16;
        if (at == 0) {
            no_groups(&p);
            takers[a->type](row + col / traits->block_values * traits->block_bytes, &p);
        }
        const int32_t products = sum_products(p.value + at, act32_q(act) + col, group);
        const float scale = p.scale * (float)p.group_scale[of_16];
        sum = fmaf((float)products, scale * act16_scales(act, a->n_cols)[col / 16], sum);
        if (has_min(a->type))
            sum = fmaf(scaled[col / group], -(p.min_scale * (float)p.group_min[of_16]), sum);
    }
    return sum;
}

/* 16 columns of a row from col on, taken apart: what a step multiplies them with. */
typedef struct step_piece {
    float products, min; /* the latter to be added */
    float scale, scaled;
} step_piece;

static step_piece piece_of(const matmul_rows *a, const uint8_t *row, const uint8_t *act,
                           size_t col) {
    const quant_traits *traits = quant_traits_of((uint32_t)a->type);
    const size_t at = col % traits->block_values, of_16 = at / 16, g = col / 16;
    const int8_t *q = act32_q(act) + col;
    plain_block p = {0};
    no_groups(&p);
    takers[a->type](row + col / traits->block_values * traits->block_bytes, &p);
    int32_t products = sum_products(p.value + at, q, 16);
    const float scale = p.scale * (float)p.group_scale[of_16];
    float min = p.min_scale * (float)p.group_min[of_16];
    if (a->type == QUANT_Q6_K) { /* values stand 32 too high, and that is the minimum */
        for (int e = 0; e < 16; e++)
            products += 32 * q[e];
        min = 32.0f * scale;
    }
    return (step_piece){.products = (float)products,
                        .min = -min,
                        .scale = scale * act16_scales(act, a->n_cols)[g],
                        .scaled = act16_scaled(act, a->n_cols)[g]};
}

static float tree_of_32(float sums[STEP_SUMS]) {
    for (int width = STEP_SUMS / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++)
            sums[i] += sums[i + width];
    }
    return sums[0];
}

static float dot_step(const matmul_rows *a, const uint8_t *row, const uint8_t *act) {
    const bool wide = matmul_is_wide(a->type);
    const size_t unit = wide ? STEP_WIDE : STEP_UNIT, n_pieces = unit / STEP_PIECE;
    const bool mins = wide || has_min(a->type);
    float sums[STEP_SUMS] = {0};
    for (size_t u = 0; u < a->n_cols / unit; u++) {
        float *sum = &sums[u % STEP_SUMS];
        step_piece p[4];
        for (size_t i = 0; i < n_pieces; i++) {
            p[i] = piece_of(a, row, act,
                            wide ? matmul_piece_col(a->type, u, i)
                                 : u * STEP_UNIT + i * STEP_PIECE);
            *sum = fmaf(p[i].scale, p[i].products, *sum);
            if (wide) *sum = fmaf(p[i].min, p[i].scaled, *sum);
        }
        for (size_t i = 0; mins && !wide && i < n_pieces; i++)
            *sum = fmaf(p[i].min, p[i].scaled, *sum);
    }
    return tree_of_32(sums);
}

static float float_weight(quant_type type, const uint8_t *row, size_t i) {
    float w;
    switch ((unsigned)type) {
    case QUANT_F16:
        return load_half(row + 2 * i);
    case QUANT_BF16:
        return bf16_to_float(load_u16(row + 2 * i));
    default:
        memcpy(&w, row + 4 * i, 4);
        return w;
    }
}

static float dot_float(quant_type type, const uint8_t *row, const float *x, size_t n_cols) {
    float lane[16] = {0};
    for (size_t i = 0; i < n_cols; i++)
        lane[i % 16] = fmaf(float_weight(type, row, i), x[i], lane[i % 16]);
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    }
    return lane[0];
}

static void rows_plain(matmul_rows *a) {
    bool quantized = takers[a->type] != NULL;
    for (size_t t = 0; t < a->n_tokens; t++) {
        for (int r = 0; r < MATMUL_ROWS; r++) {
            const uint8_t *row = a->rows[r], *act = a->acts[t];
            if (a->format == ACT_Q8_16_PAIRS)
                a->out[t][r] = dot_scaled(a, row, act);
            else if (matmul_is_step(a->format))
                a->out[t][r] = dot_step(a, row, act);
            else
                a->out[t][r] = quantized
                                   ? dot_quantized(a->type, row, act, a->n_cols)
                                   : dot_float(a->type, row, (const void *)act, a->n_cols);
        }
    }
}

static matmul_rows_kernel rows_kernel(act_format format, quant_type type, size_t n_tokens) {
    (void)format;
    (void)type;
    (void)n_tokens;
    return rows_plain;
}

const matmul_tier matmul_tier_scalar = {
    .rows_kernel = rows_kernel,
    .panel_tokens = SIZE_MAX,
};
