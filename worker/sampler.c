#include "worker/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    float logit; /* and while drawing, its weight */
    int32_t id;
} candidate;

struct sampler_scratch {
    uint32_t n_vocab;
    candidate *candidates; /* [n_vocab] */
};

/* How often an id was seen; entries are dense so that penalties walk them in order. */
typedef struct seen_id {
    int32_t id;
    uint32_t n_output;
} seen_id;

struct sampler {
    sampler_params params;
    sampler_bias *biases;
    uint64_t counter;
    bool counts; /* a penalty is on */
    seen_id *seen;
    uint32_t n_seen, cap_seen;
    uint32_t *index; /* open addressing: entry + 1, 0 is empty */
    uint32_t index_mask;
};

status sampler_scratch_new(sampler_scratch **out, uint32_t n_vocab, error *err) {
    *out = NULL;
    sampler_scratch *s = calloc(1, sizeof *s);
    if (s != NULL) s->candidates = calloc(n_vocab, sizeof *s->candidates);
    if (s == NULL || s->candidates == NULL) {
        sampler_scratch_free(s);
        return error_set(err, STATUS_NO_MEMORY, "sampler: no memory for %u candidates",
                         n_vocab);
    }
    s->n_vocab = n_vocab;
    *out = s;
    return STATUS_OK;
}

void sampler_scratch_free(sampler_scratch *scratch) {
    if (scratch == NULL) return;
    free(scratch->candidates);
    free(scratch);
}

static bool make_counts(sampler *s, uint32_t cap_distinct) {
    uint32_t size = 16;
    while (size / 2 < cap_distinct)
        size *= 2;
    s->seen = calloc((size_t)cap_distinct + 1, sizeof *s->seen);
    s->index = calloc(size, sizeof *s->index);
    s->index_mask = size - 1;
    s->cap_seen = cap_distinct;
    return s->seen != NULL && s->index != NULL;
}

status sampler_new(sampler **out, const sampler_params *params, uint32_t cap_distinct,
                   error *err) {
    *out = NULL;
    sampler *s = calloc(1, sizeof *s);
    if (s == NULL) goto no_memory;
    s->params = *params;
    s->params.biases = NULL;
    if (params->n_biases > 0) {
        s->biases = malloc(params->n_biases * sizeof *s->biases);
        if (s->biases == NULL) goto no_memory;
        memcpy(s->biases, params->biases, params->n_biases * sizeof *s->biases);
        s->params.biases = s->biases;
    }
    s->counts = params->repetition_penalty != 1.0f || params->presence_penalty != 0.0f ||
                params->frequency_penalty != 0.0f;
    if (s->counts && !make_counts(s, cap_distinct)) goto no_memory;
    *out = s;
    return STATUS_OK;
no_memory:
    sampler_free(s);
    return error_set(err, STATUS_NO_MEMORY, "sampler: no memory to count %u ids", cap_distinct);
}

void sampler_free(sampler *s) {
    if (s == NULL) return;
    free(s->index);
    free(s->seen);
    free(s->biases);
    free(s);
}

/* --- what was seen --- */

static seen_id *see(sampler *s, int32_t id) {
    uint32_t at = ((uint32_t)id * 2654435769u) & s->index_mask;
    for (; s->index[at] != 0; at = (at + 1) & s->index_mask) {
        seen_id *entry = &s->seen[s->index[at] - 1];
        if (entry->id == id) return entry;
    }
    if (s->n_seen == s->cap_seen) return NULL; /* more than promised: not counted */
    s->seen[s->n_seen] = (seen_id){.id = id};
    s->index[at] = ++s->n_seen;
    return &s->seen[s->n_seen - 1];
}

void sampler_see_prompt(sampler *s, const int32_t *ids, size_t n) {
    for (size_t i = 0; s->counts && i < n; i++)
        (void)see(s, ids[i]);
}

void sampler_see_output(sampler *s, int32_t id) {
    seen_id *entry = s->counts ? see(s, id) : NULL;
    if (entry != NULL) entry->n_output++;
}

/* --- changes to the logits --- */

static void mask_and_bias(const sampler *s, float *logits, uint32_t n_vocab,
                          const int32_t *masked, size_t n_masked) {
    for (size_t i = 0; i < s->params.n_biases; i++) {
        int32_t id = s->biases[i].id;
        if (id >= 0 && (uint32_t)id < n_vocab) logits[id] += s->biases[i].bias;
    }
    for (size_t i = 0; i < n_masked; i++)
        logits[masked[i]] = -INFINITY;
}

static void penalize(const sampler *s, float *logits, uint32_t n_vocab) {
    const sampler_params *p = &s->params;
    for (uint32_t i = 0; i < s->n_seen; i++) {
        const seen_id *seen = &s->seen[i];
        if (seen->id < 0 || (uint32_t)seen->id >= n_vocab) continue;
        float *logit = &logits[seen->id];
        *logit = *logit <= 0 ? *logit * p->repetition_penalty : *logit / p->repetition_penalty;
        if (seen->n_output == 0) continue;
        *logit -= p->presence_penalty + (float)seen->n_output * p->frequency_penalty;
    }
}

/* --- choosing --- */

static bool is_better(candidate a, candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* The largest logit, of equals that with the lowest id; {-inf, -1} when there is none.
 * Lanes have no order among them, so the compiler may compare them at once; a NaN never
 * compares larger. */
static candidate largest(const float *logits, uint32_t n_vocab) {
    enum { LANES = 16 };
    float lanes[LANES], max = -INFINITY;
    uint32_t n_whole = n_vocab / LANES * LANES;
    for (uint32_t lane = 0; lane < LANES; lane++)
        lanes[lane] = -INFINITY;
    for (uint32_t i = 0; i < n_whole; i += LANES) {
        for (uint32_t lane = 0; lane < LANES; lane++)
            lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
    }
    for (uint32_t lane = 0; lane < LANES; lane++)
        max = lanes[lane] > max ? lanes[lane] : max;
    for (uint32_t i = n_whole; i < n_vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    for (uint32_t i = 0; i < n_vocab && max > -INFINITY; i++) {
        if (logits[i] == max) return (candidate){max, (int32_t)i};
    }
    return (candidate){-INFINITY, -1};
}

/* Heap with the worst candidate at its root. */
static void sift_down(candidate *heap, size_t n, size_t at) {
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && is_better(heap[child], heap[child + 1])) child++;
        if (!is_better(heap[at], heap[child])) return;
        candidate swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
        at = child;
    }
}

/* The k best (fewer when fewer are finite), best first, in out.  One pass over the
 * vocabulary and a heap of k; qsort() is not used because it may allocate. */
static size_t select_best(const float *logits, uint32_t n_vocab, size_t k, candidate *out) {
    size_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (!(logits[i] > -INFINITY)) continue;
        candidate c = {logits[i], (int32_t)i};
        if (n < k) {
            out[n++] = c;
            if (n == k) {
                for (size_t j = k / 2; j-- > 0;)
                    sift_down(out, k, j);
            }
        } else if (c.logit > out[0].logit) { /* an equal one has the higher id */
            out[0] = c;
            sift_down(out, k, 0);
        }
    }
    if (n < k) {
        for (size_t j = n / 2; j-- > 0;)
            sift_down(out, n, j);
    }
    for (size_t last = n; last-- > 1;) { /* the worst goes to the end */
        candidate swap = out[0];
        out[0] = out[last];
        out[last] = swap;
        sift_down(out, last, 0);
    }
    return n;
}

static double mass_of(const float *logits, uint32_t n_vocab, float max) {
    double sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (logits[i] > -INFINITY) sum += (double)expf(logits[i] - max);
    }
    return sum;
}

/* How many of the n sorted candidates it takes to hold top_p of total; n + 1 when
 * they do not. */
static size_t nucleus_of(const candidate *sorted, size_t n, double top_p, double total) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)expf(sorted[i].logit - sorted[0].logit);
        if (sum >= top_p * total) return i + 1;
    }
    return n + 1;
}

/* top-p without top-k: sort no more than the nucleus needs, in growing steps. */
static size_t select_nucleus(const float *logits, uint32_t n_vocab, double top_p, float max,
                             candidate *out) {
    double total = mass_of(logits, n_vocab, max);
    for (size_t k = 64;; k *= 8) {
        if (k > n_vocab) k = n_vocab;
        size_t n = select_best(logits, n_vocab, k, out);
        size_t n_nucleus = nucleus_of(out, n, top_p, total);
        if (n_nucleus <= n) return n_nucleus;
        if (n < k || k == n_vocab) return n;
    }
}

/* Everyone at or above a floor, in the order of ids. */
static size_t select_above(const float *logits, uint32_t n_vocab, float floor, candidate *out) {
    size_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (logits[i] > -INFINITY && logits[i] >= floor) {
            out[n++] = (candidate){logits[i], (int32_t)i};
        }
    }
    return n;
}

static size_t select_candidates(const sampler_params *p, const float *logits, uint32_t n_vocab,
                                float max, candidate *out) {
    float floor = p->min_p > 0 ? max + logf(p->min_p) : -INFINITY;
    size_t n = 0;
    if (p->top_k > 0 && p->top_k < n_vocab) {
        n = select_best(logits, n_vocab, p->top_k, out);
        if (p->top_p < 1) {
            double total = 0;
            for (size_t i = 0; i < n; i++)
                total += (double)expf(out[i].logit - max);
            size_t n_nucleus = nucleus_of(out, n, (double)p->top_p, total);
            if (n_nucleus < n) n = n_nucleus;
        }
    } else if (p->top_p < 1) {
        n = select_nucleus(logits, n_vocab, (double)p->top_p, max, out);
    } else {
        return select_above(logits, n_vocab, floor, out);
    }
    while (n > 1 && out[n - 1].logit < floor) /* sorted: the tail falls */
        n--;
    return n;
}

/* Logits become weights in place, so that each exponential is taken once. */
static int32_t draw(candidate *candidates, size_t n, float max, float temperature, double u) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        candidates[i].logit = expf((candidates[i].logit - max) / temperature);
        sum += (double)candidates[i].logit;
    }
    double rest = u * sum;
    for (size_t i = 0; i < n; i++) {
        rest -= (double)candidates[i].logit;
        if (rest < 0) return candidates[i].id;
    }
    return candidates[n - 1].id; /* rounding left a crumb */
}

int32_t sampler_pick(sampler *s, sampler_scratch *scratch, float *logits, uint32_t n_vocab,
                     const int32_t *masked, size_t n_masked) {
    CHECK_HOT(n_vocab <= scratch->n_vocab);
    mask_and_bias(s, logits, n_vocab, masked, n_masked);
    if (s->counts) penalize(s, logits, n_vocab);
    candidate best = largest(logits, n_vocab);
    if (best.id < 0 || isinf(best.logit)) return -1;
    if (s->params.temperature <= 0) return best.id;
    size_t n = select_candidates(&s->params, logits, n_vocab, best.logit, scratch->candidates);
    double u = sampler_uniform(s->params.seed, s->counter++);
    return draw(scratch->candidates, n, best.logit, s->params.temperature, u);
}

bool sampler_is_plain(const sampler *s) {
    return s->params.temperature <= 0 && !s->counts && s->params.n_biases == 0;
}

uint64_t sampler_counter(const sampler *s) {
    return s->counter;
}

void sampler_set_counter(sampler *s, uint64_t counter) {
    s->counter = counter;
}

double sampler_uniform(uint64_t seed, uint64_t i) {
    uint32_t c[4] = {(uint32_t)i, (uint32_t)(i >> 32), 0, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ key[0], (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c[3] ^ key[1], (uint32_t)a};
        memcpy(c, next, sizeof c);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    uint64_t bits = ((uint64_t)c[0] << 32 | c[1]) >> 11;
    return (double)bits / 9007199254740992.0; /* 2^53 */
}

void sampler_logprobs(sampler_scratch *scratch, const float *logits, uint32_t n_vocab,
                      int32_t id, float *logprob, sampler_logprob *top, size_t n_top) {
    CHECK_HOT(n_top <= SAMPLER_MAX_TOP && n_vocab <= scratch->n_vocab);
    candidate best = largest(logits, n_vocab);
    double log_sum = (double)best.logit + log(mass_of(logits, n_vocab, best.logit));
    *logprob = (float)((double)logits[id] - log_sum);
    if (n_top == 0) return;
    size_t n = select_best(logits, n_vocab, n_top, scratch->candidates);
    for (size_t i = 0; i < n_top; i++) {
        const candidate *c = &scratch->candidates[i < n ? i : n - 1];
        top[i] = (sampler_logprob){c->id, (float)((double)c->logit - log_sum)};
    }
}
