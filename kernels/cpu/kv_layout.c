/* kv_layout.c - reading and writing one row of a KV block, plain C; see kernels/kv_layout.h. */
#include "kernels/kv_layout.h"
#include "common/half.h"
#include <math.h>
#include <stdbool.h>

static void write_q8(unsigned char *block, uint32_t head_dim, uint32_t slot, const float *row) {
    int8_t *values = (int8_t *)block + (size_t)slot * head_dim;
    unsigned char *scales =
        block + (size_t)KV_PAGE_TOKENS * head_dim + (size_t)slot * (head_dim / KV_GROUP) * 2;
    for (uint32_t g = 0; g < head_dim / KV_GROUP; g++, row += KV_GROUP, values += KV_GROUP) {
        float largest = 0.0f, poison = 0.0f;
        for (int i = 0; i < KV_GROUP; i++) {
            if (fabsf(row[i]) > largest) largest = fabsf(row[i]);
            if (row[i] != row[i]) poison = row[i];
        }
        const uint16_t half = half_from_float(largest / 127.0f + poison);
        const float scale = half_to_float(half);
        const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        for (int i = 0; i < KV_GROUP; i++) {
            float q = row[i] * inverse;
            q = q < 127.0f ? q : 127.0f; /* also for NaN, which the scale keeps */
            values[i] = (int8_t)rintf(q > -127.0f ? q : -127.0f);
        }
        memcpy(scales + 2 * (size_t)g, &half, 2);
    }
}

static void read_q8(const unsigned char *block, uint32_t head_dim, uint32_t slot, float *row) {
    const int8_t *values = (const int8_t *)block + (size_t)slot * head_dim;
    const unsigned char *scales =
        block + (size_t)KV_PAGE_TOKENS * head_dim + (size_t)slot * (head_dim / KV_GROUP) * 2;
    for (uint32_t i = 0; i < head_dim; i++) {
        uint16_t half;
        memcpy(&half, scales + 2 * (size_t)(i / KV_GROUP), 2);
        row[i] = half_to_float(half) * (float)values[i];
    }
}

static void write_q4(unsigned char *block, uint32_t head_dim, uint32_t slot, const float *row) {
    unsigned char *pairs = block + (size_t)slot * head_dim / 2;
    unsigned char *scales = block + (size_t)KV_PAGE_TOKENS * head_dim / 2 +
                            (size_t)slot * (head_dim / KV_GROUP) * 4;
    for (uint32_t g = 0; g < head_dim / KV_GROUP; g++, row += KV_GROUP, scales += 4) {
        float low = INFINITY, high = -INFINITY;
        bool poison = false;
        for (int i = 0; i < KV_GROUP; i++) {
            if (row[i] < low) low = row[i];
            if (row[i] > high) high = row[i];
            poison = poison || row[i] != row[i];
        }
        if (poison) low = NAN;
        const uint16_t halves[2] = {half_from_float((high - low) / 15.0f),
                                    half_from_float(low + 0.0f)}; /* no -0 */
        const float scale = half_to_float(halves[0]), minimum = half_to_float(halves[1]);
        const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        for (int i = 0; i < KV_GROUP; i += 2) {
            unsigned q[2];
            for (int k = 0; k < 2; k++) {
                float x = (row[i + k] - minimum) * inverse;
                x = x < 15.0f ? x : 15.0f; /* also for NaN, which the minimum keeps */
                q[k] = (unsigned)rintf(x > 0.0f ? x : 0.0f);
            }
            *pairs++ = (unsigned char)(q[0] | q[1] << 4);
        }
        memcpy(scales, halves, 4);
    }
}

static void read_q4(const unsigned char *block, uint32_t head_dim, uint32_t slot, float *row) {
    const unsigned char *pairs = block + (size_t)slot * head_dim / 2;
    const unsigned char *scales = block + (size_t)KV_PAGE_TOKENS * head_dim / 2 +
                                  (size_t)slot * (head_dim / KV_GROUP) * 4;
    for (uint32_t i = 0; i < head_dim; i++) {
        uint16_t halves[2];
        memcpy(halves, scales + 4 * (size_t)(i / KV_GROUP), 4);
        const unsigned q = pairs[i / 2] >> (i % 2 * 4) & 15u;
        row[i] = fmaf(half_to_float(halves[0]), (float)q, half_to_float(halves[1]));
    }
}

void kv_row_write(uint32_t type, unsigned char *block, uint32_t head_dim, uint32_t slot,
                  const float *row) {
    if (type == KV_F32) {
        memcpy(block + (size_t)slot * head_dim * 4, row, (size_t)head_dim * 4);
    } else if (type == KV_F16) {
        for (uint32_t i = 0; i < head_dim; i++) {
            const uint16_t half = half_from_float(row[i]);
            memcpy(block + ((size_t)slot * head_dim + i) * 2, &half, 2);
        }
    } else if (type == KV_Q8) {
        write_q8(block, head_dim, slot, row);
    } else if (type == KV_Q4) {
        write_q4(block, head_dim, slot, row);
    }
}

void kv_row_read(uint32_t type, const unsigned char *block, uint32_t head_dim, uint32_t slot,
                 float *row) {
    if (type == KV_F32) {
        memcpy(row, block + (size_t)slot * head_dim * 4, (size_t)head_dim * 4);
    } else if (type == KV_F16) {
        for (uint32_t i = 0; i < head_dim; i++) {
            uint16_t half;
            memcpy(&half, block + ((size_t)slot * head_dim + i) * 2, 2);
            row[i] = half_to_float(half);
        }
    } else if (type == KV_Q8) {
        read_q8(block, head_dim, slot, row);
    } else if (type == KV_Q4) {
        read_q4(block, head_dim, slot, row);
    }
}
