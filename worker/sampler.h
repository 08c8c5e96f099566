/* sampler.h - from a row of logits to one token.
 *
 * Order: masked ids and logit_bias, penalties, top-k, top-p, min-p, temperature, draw.
 * That is llama.cpp's order, so temperature does not change who is in the nucleus.
 * Repetition looks at prompt and output, presence and frequency at the output alone (as
 * OpenAI defines them).
 * Temperature 0 takes the largest logit, among equals the lowest id, and draws nothing.
 *
 * The same seed gives the same tokens in any company and after a resume: draw number i of
 * a seed is a pure function of (seed, i) (Philox 4x32-10, Salmon et al., SC'11).
 *
 * A sampler belongs to one sequence; the scratch is shared by all of an engine.  Neither
 * allocates after its constructor.  Thread: engine.
 */
#ifndef SILICEO_WORKER_SAMPLER_H
#define SILICEO_WORKER_SAMPLER_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SAMPLER_MAX_TOP = 20, SAMPLER_MAX_BIASES = 1024 };

typedef struct sampler_bias {
    int32_t id;
    float bias;
} sampler_bias;

typedef struct sampler_params {
    float temperature;        /* 0: greedy */
    uint32_t top_k;           /* 0: all */
    float top_p;              /* 1: all */
    float min_p;              /* 0: all; relative to the most probable */
    float repetition_penalty; /* 1: none */
    float presence_penalty;   /* 0: none */
    float frequency_penalty;  /* 0: none */
    uint64_t seed;
    const sampler_bias *biases; /* copied by sampler_new() */
    size_t n_biases;
} sampler_params;

typedef struct sampler sampler;
typedef struct sampler_scratch sampler_scratch;

/* Room for one pick over n_vocab logits. */
status sampler_scratch_new(sampler_scratch **out, uint32_t n_vocab, error *err);
void sampler_scratch_free(sampler_scratch *scratch);

/* cap_distinct: the most different ids, prompt and output, that it will ever be shown. */
status sampler_new(sampler **out, const sampler_params *params, uint32_t cap_distinct,
                   error *err);
void sampler_free(sampler *s);

/* Tell what the sequence holds: penalties count it. */
void sampler_see_prompt(sampler *s, const int32_t *ids, size_t n);
void sampler_see_output(sampler *s, int32_t id);

/* Choose; logits are changed.  The ids in masked are never taken.  -1 when no logit is a
 * number above minus infinity.  The caller then reports the id by sampler_see_output(). */
int32_t sampler_pick(sampler *s, sampler_scratch *scratch, float *logits, uint32_t n_vocab,
                     const int32_t *masked, size_t n_masked);

/* Whether it takes the largest logit as the model gives them, of all ids not masked. */
bool sampler_is_plain(const sampler *s);

/* Draws made so far; setting it continues a stream that another node began. */
uint64_t sampler_counter(const sampler *s);
void sampler_set_counter(sampler *s, uint64_t counter);

/* Number i of a seed's stream, uniform in [0, 1). */
double sampler_uniform(uint64_t seed, uint64_t i);

/* Natural logarithms of probabilities from the full softmax of logits as the model gave
 * them (a copy made before the pick): of `id`, and the n_top (<= SAMPLER_MAX_TOP) largest,
 * best first. */
typedef struct sampler_logprob {
    int32_t id;
    float logprob;
} sampler_logprob;
void sampler_logprobs(sampler_scratch *scratch, const float *logits, uint32_t n_vocab,
                      int32_t id, float *logprob, sampler_logprob *top, size_t n_top);

#endif
