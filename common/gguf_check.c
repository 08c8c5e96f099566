/* gguf_check.c - looks for scales and floats that are no finite numbers.
 *
 * A corrupt file can be well-formed and still poison every result: one NaN scale
 * makes a row NaN.  This reads the whole tensor, which opening a file does not.
 */
#include "common/gguf.h"
#include "common/half.h"

#include <inttypes.h>
#include <string.h>

/* Where a block keeps its scale and its minimum; -1: it has none. */
typedef struct scale_places {
    int first, second;
} scale_places;

static scale_places places_of(quant_type type) {
    switch (type) {
    case QUANT_Q4_1:
    case QUANT_Q5_1:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
        return (scale_places){0, 2};
    case QUANT_Q2_K:
        return (scale_places){80, 82};
    case QUANT_Q3_K:
        return (scale_places){108, -1};
    case QUANT_Q6_K:
        return (scale_places){208, -1};
    case QUANT_F16:
    case QUANT_BF16:
    case QUANT_Q4_0:
    case QUANT_Q5_0:
    case QUANT_Q8_0:
    case QUANT_IQ4_NL:
    case QUANT_IQ4_XS:
        return (scale_places){0, -1};
    case QUANT_F32:
    case QUANT_MXFP4:
    case QUANT_LIMIT:
        break;
    }
    return (scale_places){-1, -1};
}

static bool half_is_finite(quant_type type, const uint8_t *at) {
    uint16_t mask = type == QUANT_BF16 ? 0x7F80 : 0x7C00;
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return (bits & mask) != mask;
}

static bool block_is_finite(quant_type type, scale_places places, const uint8_t *block) {
    if (type == QUANT_MXFP4) return block[0] != 255;
    if (type == QUANT_F32) {
        uint32_t bits;
        memcpy(&bits, block, sizeof bits);
        return (bits & 0x7F800000u) != 0x7F800000u;
    }
    return (places.first < 0 || half_is_finite(type, block + places.first)) &&
           (places.second < 0 || half_is_finite(type, block + places.second));
}

uint64_t gguf_find_bad_block(uint32_t type_id, const void *blocks, uint64_t n_blocks) {
    const quant_traits *traits = quant_traits_of(type_id);
    if (traits->name == NULL) return n_blocks; /* nothing here can compute with it */
    quant_type type = (quant_type)type_id;
    scale_places places = places_of(type);
    const uint8_t *block = blocks;
    for (uint64_t i = 0; i < n_blocks; i++, block += traits->block_bytes) {
        if (!block_is_finite(type, places, block)) return i;
    }
    return n_blocks;
}

status gguf_check_values(const gguf_tensor *tensor, error *err) {
    const quant_traits *traits = quant_traits_of(tensor->type_id);
    if (traits->name == NULL) return STATUS_OK;
    uint64_t n_blocks = tensor->n_bytes / traits->block_bytes;
    uint64_t i = gguf_find_bad_block(tensor->type_id, tensor->data, n_blocks);
    if (i == n_blocks) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT,
                     "tensor %s: block %" PRIu64 " of %s, at byte %" PRIu64
                     " of the file: the scale is not a finite number",
                     gguf_label_of(tensor->name).text, i, traits->name,
                     tensor->file_offset + i * traits->block_bytes);
}
