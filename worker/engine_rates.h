/* engine_rates.h - how fast it went lately: sums over a window of a few seconds.
 *
 * Two windows of RATES_WINDOW_MS, the filling one and the one before; a reading takes
 * both, so it never rests on nothing while there is work.  Tokens per second of time spent
 * in steps, not of wall time: an idle engine keeps its last figures until they are old.
 * Thread: engine.
 */
#ifndef SILICEO_WORKER_ENGINE_RATES_H
#define SILICEO_WORKER_ENGINE_RATES_H

#include "worker/engine.h"
#include <stdbool.h>
#include <stdint.h>

enum { RATES_WINDOW_MS = 5000, RATES_KEEP_MS = 60000 };

typedef struct engine_rates_step {
    uint64_t ended_ns;
    uint64_t took_ns;
    uint32_t n_prompt; /* tokens */
    uint32_t n_decoded;
    uint64_t expert_lookups;
    uint64_t expert_hits;
    bool is_slice; /* layers of a piece of a prompt; its tokens count with the last of them */
} engine_rates_step;

typedef struct rates_window {
    uint64_t begun_ns;
    uint64_t ended_ns;
    uint64_t n_prompt, n_decoded;
    uint64_t prompt_ns, decode_ns;
    uint64_t expert_lookups, expert_hits;
} rates_window;

typedef struct engine_rates {
    rates_window now, before;
} engine_rates;

void engine_rates_add(engine_rates *r, const engine_rates_step *step);
/* Fills hit_rate, misses_per_token, prefill_tok_per_s and decode_tok_per_s. */
void engine_rates_read(const engine_rates *r, uint64_t now_ns, engine_stats *out);

#endif
