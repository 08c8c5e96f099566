/* kv_layout.c - reading and writing one row of a KV block, plain C; see kernels/kv_layout.h. */
#include "kernels/kv_layout.h"
#include "common/half.h"
#include <math.h>

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
    }
}
