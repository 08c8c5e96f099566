/* pretokenize.h - cuts text into the pieces within which BPE merges.
 *
 * Equal to the regular expressions of the qwen35 and qwen2 pre-tokenizers, as
 * one scanner without backtracking: linear in the text.  Nothing is dropped;
 * the pieces concatenate to the text.  A byte that is no UTF-8 counts as a
 * symbol.  No state; any thread.
 */
#ifndef SILICEO_WORKER_TEXT_PRETOKENIZE_H
#define SILICEO_WORKER_TEXT_PRETOKENIZE_H

#include <stddef.h>

typedef enum pretokenizer {
    PRETOKENIZER_QWEN35, /* marks belong to words */
    PRETOKENIZER_QWEN2   /* marks are symbols */
} pretokenizer;

/* Length in bytes of the first piece of text (length > 0). */
size_t pretokenize_next(pretokenizer kind, const char *text, size_t length);

#endif
