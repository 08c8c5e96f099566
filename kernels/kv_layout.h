/* kv_layout.h - how keys and values lie in a KV page.
 *
 * A page holds 64 positions of one sequence for all full-attention layers.  One layer of a
 * page is its keys, then its values; each is a block a KV head:
 *
 *   KV_F32  float [64 positions][head_dim]
 *   KV_F16  half  [64][head_dim]
 *   KV_Q8   int8  [64][head_dim], then half [64][head_dim / 32]: a scale for 32 values;
 *           scale = half(max |x| / 127), value = scale * q with q rounded to nearest even
 *   KV_Q4   4 bits [64][head_dim], the even value of two in the low bits of their byte, then
 *           half [64][head_dim / 32][2]: scale and minimum of 32 values;
 *           minimum = half(min x), scale = half((max x - min x) / 15),
 *           value = fma(scale, q, minimum), q in 0 .. 15 rounded to nearest even.
 *           The minimum costs 4 bytes of 40 and halves the divergence: single dimensions of
 *           keys lie far from zero.
 *
 * head_dim is a multiple of 32, so every block is a multiple of 64 bytes.  A row that holds a
 * NaN comes back with NaN in it, for every type.  Pure functions; any thread.
 */
#ifndef SILICEO_KERNELS_KV_LAYOUT_H
#define SILICEO_KERNELS_KV_LAYOUT_H

#include "kernels/args.h"

typedef enum kv_type { KV_F32, KV_F16, KV_Q8, KV_Q4 } kv_type;

enum { KV_PAGE_TOKENS = 64, KV_GROUP = 32 };

/* The pages as one layer sees them. */
typedef struct kv_view {
    unsigned char *base;   /* page 0 */
    uint64_t page_bytes;   /* from one page to the next */
    uint64_t layer_offset; /* of this layer in a page */
    uint32_t type;         /* kv_type */
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t reserved;
} kv_view;
KERNEL_ARGS_SIZE(kv_view, 40);

/* Bytes of the keys (or values) of one head in a page; 0 for an unknown type. */
static inline size_t kv_block_bytes(uint32_t type, uint32_t head_dim) {
    const size_t values = (size_t)KV_PAGE_TOKENS * head_dim;
    if (type == KV_F32) return values * 4;
    if (type == KV_F16) return values * 2;
    if (type == KV_Q8) return values + values / KV_GROUP * 2;
    if (type == KV_Q4) return values / 2 + values / KV_GROUP * 4;
    return 0;
}

/* Bytes of one layer of a page. */
static inline size_t kv_layer_bytes(uint32_t type, uint32_t n_kv_heads, uint32_t head_dim) {
    return 2 * (size_t)n_kv_heads * kv_block_bytes(type, head_dim);
}

static inline unsigned char *kv_key_block(const kv_view *view, uint32_t page, uint32_t head) {
    return view->base + page * view->page_bytes + view->layer_offset +
           head * kv_block_bytes(view->type, view->head_dim);
}

static inline unsigned char *kv_value_block(const kv_view *view, uint32_t page, uint32_t head) {
    return kv_key_block(view, page, view->n_kv_heads + head);
}

/* Store or fetch position `slot` (0..63) of a block, head_dim floats. */
void kv_row_write(uint32_t type, unsigned char *block, uint32_t head_dim, uint32_t slot,
                  const float *row);
void kv_row_read(uint32_t type, const unsigned char *block, uint32_t head_dim, uint32_t slot,
                 float *row);

#endif
