/* make_model_tokens.h - the vocabulary of random models, small or of full size.
 *
 * 256 byte tokens, the results of ten merges, fillers, and at the end the added
 * tokens: five of them, or, in a vocabulary of 248320, those of Qwen3.5 with its
 * padding.  Constants only; any thread.
 */
#ifndef SILICEO_TESTS_BENCHMARK_MAKE_MODEL_TOKENS_H
#define SILICEO_TESTS_BENCHMARK_MAKE_MODEL_TOKENS_H

#include <stdint.h>

enum { MADE_MERGES = 10 };

/* The two sides of each merge, in rank order. */
extern const char *const made_merges[MADE_MERGES][2];

/* The id of <|endoftext|>; <|im_start|> and <|im_end|> follow. */
int64_t made_first_added(int64_t vocab);
/* The text of a token; the value is its type. */
uint32_t made_token(int64_t vocab, int64_t id, char text[64]);

#endif
