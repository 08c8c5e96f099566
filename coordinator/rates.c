#include "coordinator/rates.h"

#include <stddef.h>

/* The class of an occupancy: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, more. */
static size_t class_of(uint32_t occupancy) {
    static const uint32_t upper[RATES_CLASSES - 1] = {1, 2, 3, 4, 6, 8, 12, 16};
    for (size_t i = 0; i < RATES_CLASSES - 1; i++) {
        if (occupancy <= upper[i]) return i;
    }
    return RATES_CLASSES - 1;
}

static double middle_of(size_t class_idx) {
    static const double middle[RATES_CLASSES] = {1, 2, 3, 4, 5.5, 7.5, 10.5, 14.5, 24};
    return middle[class_idx];
}

/* Share of the lone rate that each of n sequences keeps, where nothing was measured. */
static double curve(double n) {
    return 1.0 / (1.0 + 0.3 * (n - 1.0));
}

enum { UNKNOWN_PREFILL = 200, UNKNOWN_DECODE = 20 }; /* tok/s where nobody measured anything */

void rates_init(rates *r) {
    *r = (rates){.bytes_per_token = 4.0};
}

void rates_set_prior(rates *r, double prefill_tok_per_s, double decode_tok_per_s) {
    if (prefill_tok_per_s > 0 && r->prefill_weight <= 0)
        r->prefill_tok_per_s = prefill_tok_per_s;
    if (decode_tok_per_s > 0) r->prior_decode_tok_per_s = decode_tok_per_s;
}

static double blend(double old, double sample, double share) {
    return old > 0 ? old + share * (sample - old) : sample;
}

void rates_learn_prefill(rates *r, double tokens, double seconds) {
    if (!(tokens >= 1) || !(seconds > 1e-6)) return;
    /* A prompt of a few tokens says more about overheads than about the rate. */
    double share = 0.3 * (tokens < 256 ? tokens / 256 : 1.0);
    r->prefill_tok_per_s = blend(r->prefill_tok_per_s, tokens / seconds, share);
    r->prefill_weight += tokens;
}

void rates_learn_decode(rates *r, uint32_t occupancy, double tokens, double seconds) {
    if (occupancy == 0 || !(tokens >= 1) || !(seconds > 1e-6)) return;
    size_t i = class_of(occupancy);
    double share = 0.3 * (tokens < 32 ? tokens / 32 : 1.0);
    double before =
        r->decode_tok_per_s[i] > 0 ? r->decode_tok_per_s[i] : rates_decode(r, occupancy);
    r->decode_tok_per_s[i] = blend(before, tokens / seconds, share);
}

void rates_learn_prompt(rates *r, double prompt_bytes, double prompt_tokens) {
    if (!(prompt_bytes >= 1) || !(prompt_tokens >= 1)) return;
    r->bytes_per_token = blend(r->bytes_per_token, prompt_bytes / prompt_tokens, 0.1);
}

double rates_prefill(const rates *r) {
    return r->prefill_tok_per_s > 0 ? r->prefill_tok_per_s : UNKNOWN_PREFILL;
}

double rates_decode(const rates *r, uint32_t occupancy) {
    size_t want = class_of(occupancy == 0 ? 1 : occupancy);
    if (r->decode_tok_per_s[want] > 0) return r->decode_tok_per_s[want];
    for (size_t distance = 1; distance < RATES_CLASSES; distance++) {
        for (int side = -1; side <= 1; side += 2) {
            size_t i = side < 0 ? want - distance : want + distance;
            if (i >= RATES_CLASSES || r->decode_tok_per_s[i] <= 0) continue;
            return r->decode_tok_per_s[i] * curve(middle_of(want)) / curve(middle_of(i));
        }
    }
    double alone = r->prior_decode_tok_per_s > 0 ? r->prior_decode_tok_per_s : UNKNOWN_DECODE;
    return alone * curve(middle_of(want));
}
