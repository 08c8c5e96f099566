/* make_model_values.c - splitmix64 words to floats and to blocks of every type.
 *
 * Doubles and floats are rounded once an operation, in the order written here.
 */
#include "tests/benchmark/make_model_values.h"

#include "common/half.h"

#include <math.h>
#include <string.h>

/* ---- words ---- */

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t word(const made_source *s, uint64_t i) {
    return mix(s->key + (i + 1) * 0x9E3779B97F4A7C15u);
}

/* In [-1, 1): the top 24 bits as an offset, exact in float. */
static float unit(uint64_t w) {
    return (float)((int64_t)(w >> 40) - (1 << 23)) * 0x1p-23f;
}

/* ---- how a quantized type hides its scale in random bytes ---- */

typedef struct block_rule {
    int divisor; /* N; 0: not one of these types */
    int d_at;
    int m_at;                    /* 0: no minimum */
    int or_from, or_to, or_bits; /* bytes that get these bits */
    float m_times;               /* minimum, of the scale */
    bool m_negative;
    bool d_sign; /* bit 3 of the byte at d_at becomes the sign */
} block_rule;

static const block_rule rules[QUANT_LIMIT] = {
    [QUANT_Q8_0] = {.divisor = 866, .d_sign = true},
    [QUANT_Q4_0] = {.divisor = 54, .d_sign = true},
    [QUANT_Q4_1] = {.divisor = 54, .m_at = 2, .m_times = 7.5f, .m_negative = true},
    [QUANT_Q5_0] = {.divisor = 108, .d_sign = true},
    [QUANT_Q5_1] = {.divisor = 108, .m_at = 2, .m_times = 15.5f, .m_negative = true},
    [QUANT_Q2_K] = {.divisor = 164,
                    .d_at = 80,
                    .m_at = 82,
                    .m_times = 1.5f,
                    .or_from = 0,
                    .or_to = 16,
                    .or_bits = 0x88},
    [QUANT_Q3_K] = {.divisor = 508, .d_at = 108, .d_sign = true},
    [QUANT_Q4_K] = {.divisor = 2850,
                    .m_at = 2,
                    .m_times = 7.5f,
                    .or_from = 4,
                    .or_to = 12,
                    .or_bits = 0xA0},
    [QUANT_Q5_K] = {.divisor = 5740,
                    .m_at = 2,
                    .m_times = 15.5f,
                    .or_from = 4,
                    .or_to = 12,
                    .or_bits = 0xA0},
    [QUANT_Q6_K] = {.divisor = 16000, .d_at = 208, .d_sign = true},
    [QUANT_IQ4_NL] = {.divisor = 791, .d_sign = true},
    [QUANT_IQ4_XS] = {.divisor = 14600, .d_sign = true},
};

void made_source_init(made_source *out, const made_tensor *t, uint64_t number, uint64_t seed,
                      int64_t skew) {
    memset(out, 0, sizeof *out);
    double variance = (double)t->num / (double)t->ne[0];
    double deviation = sqrt(variance);
    out->tensor = t;
    out->key = mix((seed << 32) + number + 1);
    out->skew = skew;
    out->scale = (float)sqrt(3.0 * variance);
    if (t->type == QUANT_MXFP4) {
        int exponent = 0;
        (void)frexp(deviation, &exponent);
        out->mxfp4_offset = 124 + exponent;
    }
    const block_rule *rule = &rules[t->type];
    if (rule->divisor == 0) return;
    float base = (float)(deviation / rule->divisor);
    for (int k = 0; k < 8; k++) {
        float d = base * (float)(8 + k);
        out->d[k] = half_from_float(d);
        out->m[k] =
            (uint16_t)(half_from_float(d * rule->m_times) | (rule->m_negative ? 0x8000 : 0));
    }
}

static void store_u16(uint8_t *at, unsigned value) {
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static void shape_block(const made_source *s, uint8_t *b) {
    const block_rule *rule = &rules[s->tensor->type];
    if (s->tensor->type == QUANT_MXFP4) {
        b[0] = (uint8_t)(s->mxfp4_offset + (b[0] & 1));
        return;
    }
    unsigned f = b[rule->d_at];
    store_u16(b + rule->d_at, s->d[f & 7] | (rule->d_sign && (f & 8) ? 0x8000u : 0u));
    if (rule->m_at > 0) store_u16(b + rule->m_at, s->m[f & 7]);
    for (int i = rule->or_from; i < rule->or_to; i++)
        b[i] |= (uint8_t)rule->or_bits;
    for (int i = 2; i < 34 && s->tensor->type == QUANT_Q8_0; i++) {
        if (b[i] == 0x80) b[i] = 0x81;
    }
}

static void write_blocks(const made_source *s, uint64_t first_block, size_t n_blocks,
                         uint8_t *out) {
    size_t block_bytes = quant_traits_of((uint32_t)s->tensor->type)->block_bytes;
    size_t n_bytes = n_blocks * block_bytes;
    uint64_t first_word = first_block * block_bytes / 8;
    for (size_t at = 0; at < n_bytes; at += 8) {
        uint64_t w = word(s, first_word + at / 8);
        memcpy(out + at, &w, n_bytes - at < 8 ? n_bytes - at : 8);
    }
    for (size_t i = 0; i < n_blocks; i++)
        shape_block(s, out + i * block_bytes);
}

/* ---- floats ---- */

/* How much longer than the others a row of the router is. */
static float row_gain(const made_source *s, uint64_t row) {
    int64_t b = (int64_t)(word(s, s->tensor->n_values + row) >> 56);
    return (float)(16 + (s->skew * b * b >> 12)) / 16.0f;
}

static float value_at(const made_source *s, uint64_t i) {
    uint64_t w = word(s, i);
    switch (s->tensor->rule) {
    case MADE_MATRIX:
        return unit(w) * s->scale;
    case MADE_ROUTER:
        return unit(w) * (s->scale * row_gain(s, i / s->tensor->ne[0]));
    case MADE_NORM:
        return 1.0f + unit(w) * 0.25f;
    case MADE_WIDE_NORM:
        return 2.0f + unit(w) * 0.5f;
    case MADE_DT:
        return unit(w) * 4.0f - 2.0f;
    case MADE_A:
        break;
    }
    uint32_t exponent = 125u + (uint32_t)(w >> 62);
    return float_from_bits(0x80000000u + (exponent << 23) + ((uint32_t)(w >> 32) & 0x7FFFFFu));
}

static void write_floats(const made_source *s, uint64_t first, size_t n, void *out) {
    uint8_t *to = out;
    for (size_t i = 0; i < n; i++) {
        float value = value_at(s, first + i);
        if (s->tensor->type == QUANT_F32) {
            memcpy(to + 4 * i, &value, sizeof value);
        } else {
            bool brain = s->tensor->type == QUANT_BF16;
            uint16_t half = brain ? bf16_from_float(value) : half_from_float(value);
            memcpy(to + 2 * i, &half, sizeof half);
        }
    }
}

void made_source_write(const made_source *s, uint64_t first_block, size_t n_blocks, void *out) {
    if (quant_traits_of((uint32_t)s->tensor->type)->block_values == 1) {
        write_floats(s, first_block, n_blocks, out);
    } else {
        write_blocks(s, first_block, n_blocks, out);
    }
}
