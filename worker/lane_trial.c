#include "worker/lane_trial.h"

#include <string.h>

static const double MOST_OUTLIER =
    8; /* times the mean; what was held up longer counts as that */
static const double QUICKER_SHARE = 0.97; /* of the own way's time: then the other is taken */

enum {
    SKIPPED = 2,  /* steps of a stretch that find slots and caches as the other way left them */
    TRIED = 16,   /* that count */
    MEAN_OF = 32, /* of the own way */
    LEAST_STRETCH = 64,
    MOST_STRETCH = 1024
};

static uint32_t class_of(uint32_t n_rows) {
    uint32_t i = 0;
    while (i + 1 < LANE_TRIAL_CLASSES && n_rows > 1u << i)
        i++;
    return i;
}

void lane_trial_init(lane_trial *t) {
    memset(t, 0, sizeof *t);
    for (int i = 0; i < LANE_TRIAL_CLASSES; i++)
        t->classes[i].n_stretch = LEAST_STRETCH;
}

bool lane_trial_uses(const lane_trial *t, uint32_t n_rows) {
    const lane_trial_class *c = &t->classes[class_of(n_rows)];
    return c->without == c->tries;
}

/* The mean of the first few, then one that forgets. */
static void add_to_mean(double *mean, uint32_t n, double ns) {
    if (n > 1 && ns > MOST_OUTLIER * *mean) ns = MOST_OUTLIER * *mean;
    *mean += (ns - *mean) / (n < MEAN_OF ? n : MEAN_OF);
}

static bool end_trial(lane_trial_class *c) {
    bool other = c->tried_ns < QUICKER_SHARE * c->own_ns;
    c->tries = false;
    c->n_steps = 0;
    if (other) {
        c->without = !c->without;
        c->own_ns = c->tried_ns;
        c->n_stretch = LEAST_STRETCH;
    } else if (c->n_stretch < MOST_STRETCH) {
        c->n_stretch *= 2;
    }
    return other;
}

bool lane_trial_add(lane_trial *t, uint32_t n_rows, uint64_t took_ns) {
    lane_trial_class *c = &t->classes[class_of(n_rows)];
    c->n_steps++;
    if (c->n_steps <= SKIPPED) return false;
    add_to_mean(c->tries ? &c->tried_ns : &c->own_ns, c->n_steps - SKIPPED, (double)took_ns);
    if (c->tries) return c->n_steps >= SKIPPED + TRIED && end_trial(c);
    if (c->n_steps >= c->n_stretch) {
        c->tries = true;
        c->n_steps = 0;
        c->tried_ns = 0;
    }
    return false;
}
