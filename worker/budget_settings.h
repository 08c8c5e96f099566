/* budget_settings.h - the settings behind budget.h: what an engine allows its choices.
 *
 * Plain data, filled once at start.
 */
#ifndef SILICEO_WORKER_BUDGET_SETTINGS_H
#define SILICEO_WORKER_BUDGET_SETTINGS_H

#include <stdint.h>

enum { BUDGET_DEFAULT_THINKING = 1024 };

/* All zero: no limit but those of requests, no circle broken, no grace. */
typedef struct budget_settings {
    /* A bound on every deliberation; 0: none; -1: none either, but BUDGET_DEFAULT_THINKING
     * for a request that is silent about it. */
    int64_t thinking_tokens;
    uint32_t loop_reasoning; /* tokens of a circle that is broken, see loop_guard.h; 0: none */
    uint32_t loop_answer;
    uint32_t loop_code; /* in a fenced block of an answer */
    uint32_t grace_tokens;
} budget_settings;

#endif
