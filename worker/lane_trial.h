/* lane_trial.h - whether decoding steps are quicker with the CPU lane or without, by trying both.
 *
 * lane_rates.h says what the lane's part of a layer takes on the CPU and on the bus; of what else it
 * costs it knows nothing: an answer that comes late because a core was taken away for a moment keeps
 * the whole step waiting, and how often that happens is a matter of the machine and of who else uses
 * it.  So steps go one way for a while, then some go the other, and the quicker way stays: a
 * comparison that finds the same doubles the time to the next, one that finds another begins anew.
 * Numbers of rows are apart, as far as a power of two.
 *
 * Plain data.  Thread: engine.
 */
#ifndef SILICEO_WORKER_LANE_TRIAL_H
#define SILICEO_WORKER_LANE_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

enum { LANE_TRIAL_CLASSES = 8 }; /* 1, 2, 3 to 4, .. rows; the last has all above */

typedef struct lane_trial_class {
    bool without;       /* the way that is taken */
    bool tries;         /* some steps go the other way */
    uint32_t n_steps;   /* of this stretch so far */
    uint32_t n_stretch; /* steps until the next trial */
    double own_ns;      /* a step of the way that is taken, of late */
    double tried_ns;    /* of the steps that try the other */
} lane_trial_class;

typedef struct lane_trial {
    lane_trial_class classes[LANE_TRIAL_CLASSES];
} lane_trial;

void lane_trial_init(lane_trial *t);
/* Whether the next step of n_rows, which could use the lane, is to. */
bool lane_trial_uses(const lane_trial *t, uint32_t n_rows);
/* That step took so long.  Returns whether another way is taken from now on. */
bool lane_trial_add(lane_trial *t, uint32_t n_rows, uint64_t took_ns);

#endif
