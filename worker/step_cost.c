#include "worker/step_cost.h"

/* A step counts half as much after so many more of its kind. */
enum { HALF_LIFE_STEPS = 8, SMALLEST_CLASS = 256 };
static const double DECAY = 0.917; /* 2^(-1 / HALF_LIFE_STEPS) */

/* Steps vary: what is expected may take this much of the bound. */
static const double SHARE_OF_BOUND = 0.8;

static uint32_t class_of(uint32_t depth) {
    uint32_t class = 0;
    for (uint32_t end = SMALLEST_CLASS; depth >= end && class + 1 < STEP_COST_CLASSES; end *= 2)
        class ++;
    return class;
}

static void add_to_line(step_cost_line *l, double x, double y) {
    l->n = l->n * DECAY + 1;
    l->x = l->x * DECAY + x;
    l->y = l->y * DECAY + y;
    l->xx = l->xx * DECAY + x * x;
    l->xy = l->xy * DECAY + x * y;
}

void step_cost_add(step_cost *c, const step_cost_step *step) {
    if (step->n_prompt == 0) {
        /* A longer step counts at once, a shorter one by and by: the bound is for the slow. */
        double weight = step->took_ms > c->base_ms ? 0.5 : 1 - DECAY;
        c->base_ms += c->base_ms == 0 ? step->took_ms : weight * (step->took_ms - c->base_ms);
        return;
    }
    double added = step->took_ms - (step->n_decoded > 0 ? c->base_ms : 0);
    add_to_line(&c->lines[class_of(step->depth)], step->n_prompt, added > 0 ? added : 0);
}

static double on_line(const step_cost_line *l, double x) {
    double spread = l->n * l->xx - l->x * l->x;
    if (spread > 1e-6 * l->n * l->xx) {
        double slope = (l->n * l->xy - l->x * l->y) / spread;
        double fixed = (l->y - slope * l->x) / l->n;
        if (slope > 0 && fixed >= 0) return fixed + slope * x;
    }
    return l->y / l->x * x; /* steps of one size: in proportion */
}

double step_cost_expect_ms(const step_cost *c, uint32_t depth, uint32_t n_rows) {
    for (uint32_t i = class_of(depth) + 1; i > 0; i--) {
        const step_cost_line *l = &c->lines[i - 1];
        if (l->n > 0) return on_line(l, n_rows);
    }
    return 0;
}

uint32_t step_cost_rows(const step_cost *c, uint32_t depth, double bound_ms, uint32_t multiple,
                        uint32_t most) {
    uint32_t n = multiple;
    double room = bound_ms * SHARE_OF_BOUND - c->base_ms;
    while (n + multiple <= most) {
        double cost = step_cost_expect_ms(c, depth, n + multiple);
        if (cost == 0 || cost > room) break; /* of what nothing is known, the least is tried */
        n += multiple;
    }
    return n;
}
