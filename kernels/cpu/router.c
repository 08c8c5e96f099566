/* router.c - kernels/router.h.
 *
 * One version for all tiers: a few hundred comparisons, most of which fail against the
 * smallest chosen logit.
 */
#include "kernels/router.h"
#include "kernels/cpu/scalar_math.h"

/* The chosen ones so far, largest first. */
typedef struct ranking {
    float logits[ROUTER_MAX_USED];
    int32_t experts[ROUTER_MAX_USED];
    uint32_t n;
} ranking;

/* Put an expert that comes after all earlier ones in its place: behind its equals. */
static void ranking_insert(ranking *r, uint32_t cap, float logit, int32_t expert) {
    uint32_t at = r->n < cap ? r->n++ : cap - 1;
    for (; at > 0 && logit > r->logits[at - 1]; at--) {
        r->logits[at] = r->logits[at - 1];
        r->experts[at] = r->experts[at - 1];
    }
    r->logits[at] = logit;
    r->experts[at] = expert;
}

static void route(const router_args *args, const float *logits, int32_t *experts,
                  float *weights) {
    const uint32_t n_used = args->n_used;
    ranking best = {.n = 0};
    float poison = 0.0f; /* becomes NaN when there is one */
    for (uint32_t e = 0; e < args->n_experts; e++) {
        float logit = logits[e];
        if (logit != logit) {
            poison = logit;
            logit = -INFINITY;
        }
        if (best.n < n_used || logit > best.logits[n_used - 1])
            ranking_insert(&best, n_used, logit, (int32_t)e);
    }
    float sum = 0.0f;
    for (uint32_t j = 0; j < n_used; j++) {
        experts[j] = best.experts[j];
        weights[j] = math_exp(best.logits[j] - best.logits[0]);
        sum += weights[j];
    }
    for (uint32_t j = 0; j < n_used; j++)
        weights[j] = weights[j] / sum + poison;
}

void router_rows(cpu_tier tier, const router_args *args, size_t first, size_t end) {
    (void)tier;
    for (size_t row = first; row < end; row++)
        route(args, args->logits + row * args->logits_stride,
              args->experts + row * args->n_used, args->weights + row * args->n_used);
}
