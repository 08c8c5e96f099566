#include "coordinator/lengths.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static const double fade = 0.998;     /* an answer counts for about the next 500 */
static const double prior_weight = 2; /* answers' worth */

static size_t class_of(double tokens) {
    if (!(tokens > 1)) return 0;
    double i = 2 * log2(tokens);
    return i >= LENGTHS_CLASSES - 1 ? LENGTHS_CLASSES - 1 : (size_t)i;
}

/* A bell over the logarithm, its middle at 181 tokens and its mean near 256. */
void lengths_init(lengths *l) {
    double sum = 0;
    memset(l, 0, sizeof *l);
    for (size_t i = 0; i < LENGTHS_CLASSES; i++) {
        double d = ((double)i - 15) / 3;
        l->mean[i] = exp2(((double)i + 0.5) / 2);
        l->weight[i] = exp(-d * d / 2);
        sum += l->weight[i];
    }
    for (size_t i = 0; i < LENGTHS_CLASSES; i++)
        l->weight[i] *= prior_weight / sum;
}

void lengths_learn(lengths *l, double tokens) {
    if (!(tokens >= 1) || !isfinite(tokens)) return;
    for (size_t i = 0; i < LENGTHS_CLASSES; i++)
        l->weight[i] *= fade;
    size_t at = class_of(tokens);
    l->weight[at] += 1;
    l->mean[at] += (tokens - l->mean[at]) / l->weight[at];
}

double lengths_expect(const lengths *l, double given, double limit) {
    double weight = 0, sum = 0;
    for (size_t i = 0; i < LENGTHS_CLASSES; i++) {
        double tokens = limit > 0 && l->mean[i] > limit ? limit : l->mean[i];
        if (l->mean[i] <= given || tokens <= given) continue;
        weight += l->weight[i];
        sum += l->weight[i] * (tokens - given);
    }
    double most = limit > 0 ? limit - given : given;
    if (limit > 0 && most < 1) return 1;
    /* Longer than any that was seen: as much again. */
    if (weight < 1e-3) return most > 1 ? (limit > 0 && most > given ? given + 1 : most) : 1;
    return sum / weight;
}

double lengths_short(const lengths *l, double limit) {
    double weight = 0, below = 0;
    size_t i = 0;
    for (size_t k = 0; k < LENGTHS_CLASSES; k++)
        weight += l->weight[k];
    for (; i < LENGTHS_CLASSES - 1 && below + l->weight[i] < weight * 0.1; i++)
        below += l->weight[i];
    return limit > 0 && limit < l->mean[i] ? limit : l->mean[i];
}
