/* history.h - the last five minutes of the whole fleet, a sample a second, for the dashboard.
 *
 * Plain data, zeroed to begin with; `io` thread.
 */
#ifndef SILICEO_COORDINATOR_HISTORY_H
#define SILICEO_COORDINATOR_HISTORY_H

#include "common/json.h"
#include <stddef.h>
#include <stdint.h>

enum { HISTORY_SAMPLES = 300, HISTORY_STEP_MS = 1000 };

typedef struct history {
    float tokens_per_s[HISTORY_SAMPLES]; /* rings; next is the oldest once they are full */
    size_t n_samples, next;
    uint64_t sampled_ms; /* 0: never */
    double tokens;       /* the total at that time */
} history;

/* Call it often: it takes a sample when one is due.  n_tokens is the total since the start. */
void history_tick(history *h, uint64_t now_ms, double n_tokens);
/* {"step_s":1,"samples":300,"tokens_per_s":[oldest ... newest]} */
void history_print(const history *h, json_text *out);

#endif
