/* bpe.h - byte pair encoding of one piece of text.
 *
 * A piece begins as single bytes; the adjacent pair of the lowest rank is merged
 * again and again, the leftmost of equals first.  Short pieces are searched
 * directly, long ones by a heap over a linked list: O(n log n), no recursion.
 * The table does not change after open (any thread); a bpe_scratch is for one
 * thread at a time.
 */
#ifndef SILICEO_WORKER_TEXT_BPE_H
#define SILICEO_WORKER_TEXT_BPE_H

#include "common/error.h"
#include "common/gguf.h"
#include "worker/text/token_list.h"
#include "worker/text/vocabulary.h"
#include <stddef.h>
#include <stdint.h>

typedef struct bpe bpe;

/* Memory for long pieces, kept between calls.  Starts as {0}. */
typedef struct bpe_scratch {
    struct bpe_symbol *symbols;
    size_t cap_symbols;
    uint64_t *heap;
    size_t n_heap, cap_heap;
} bpe_scratch;
void bpe_scratch_release(bpe_scratch *s);

/* Read tokenizer.ggml.merges.  v is borrowed and must live as long. */
status bpe_open(bpe **out, const gguf_file *file, const vocabulary *v, error *err);
void bpe_close(bpe *b); /* accepts NULL and a half-built one */

/* Append the ids of piece.  At most 2^30 bytes. */
status bpe_encode(const bpe *b, bpe_scratch *scratch, const char *piece, size_t length,
                  token_list *out, error *err);

#endif
