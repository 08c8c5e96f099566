/* rates.h - how fast a node is with a model: learned, by occupancy, from a prior.
 *
 * Prefill is one rate.  Decode is a rate a sequence for each class of
 * occupancy (sequences decoding at once), because batching neither scales
 * perfectly nor not at all.  A class without samples is filled from the nearest
 * that has some, by a curve that assumes each further sequence costs 30 %.
 * Plain data; `io` thread.
 */
#ifndef SILICEO_COORDINATOR_RATES_H
#define SILICEO_COORDINATOR_RATES_H

#include <stdint.h>

enum { RATES_CLASSES = 9 };

typedef struct rates {
    double prefill_tok_per_s; /* 0: nothing known */
    double prefill_weight;    /* tokens seen, saturating: how far samples outweigh the prior */
    double decode_tok_per_s[RATES_CLASSES]; /* a sequence; 0: no sample */
    double prior_decode_tok_per_s;          /* a sequence alone */
    double bytes_per_token;                 /* of prompts */
} rates;

void rates_init(rates *r);
/* The worker's own measurement; used until samples say otherwise. */
void rates_set_prior(rates *r, double prefill_tok_per_s, double decode_tok_per_s);

void rates_learn_prefill(rates *r, double tokens, double seconds);
void rates_learn_decode(rates *r, uint32_t occupancy, double tokens, double seconds);
void rates_learn_prompt(rates *r, double prompt_bytes, double prompt_tokens);

double rates_prefill(const rates *r);
/* Tokens a second of each of `occupancy` sequences. */
double rates_decode(const rates *r, uint32_t occupancy);

#endif
