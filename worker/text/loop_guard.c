#include "worker/text/loop_guard.h"

#include <string.h>

void loop_guard_init(loop_guard *g, uint32_t least_tokens) {
    memset(g, 0, sizeof *g);
    g->least_tokens = least_tokens;
}

bool loop_guard_push(loop_guard *g, int32_t id) {
    if (g->least_tokens == 0) return false;
    uint32_t now = (uint32_t)(g->n_tokens % LOOP_GUARD_MAX_PERIOD);
    uint64_t known = g->n_tokens < LOOP_GUARD_MAX_PERIOD ? g->n_tokens : LOOP_GUARD_MAX_PERIOD;
    bool circles = false;
    for (uint32_t period = 1; period <= known; period++) {
        uint32_t before = (now + LOOP_GUARD_MAX_PERIOD - period) % LOOP_GUARD_MAX_PERIOD;
        uint32_t equal = g->recent[before] == id ? g->equal[period] + 1 : 0;
        g->equal[period] = equal;
        circles |=
            equal >= (LOOP_GUARD_MIN_TURNS - 1) * period && equal + period >= g->least_tokens;
    }
    g->recent[now] = id;
    g->n_tokens++;
    return circles;
}
