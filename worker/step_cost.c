#include "worker/step_cost.h"

/* A step counts half as much after so many more of its kind. */
enum { HALF_LIFE_STEPS = 8, SMALLEST_CLASS = 256 };
static const double DECAY = 0.917; /* 2^(-1 / HALF_LIFE_STEPS) */

/* Steps vary: what is expected may take this much of the bound. */
static const double SHARE_OF_BOUND = 0.8;
/* And this much of it is left to prompts in any case. */
static const double LEAST_SHARE = 0.125;

/* Slices of a piece of which nothing is known. */
enum { UNKNOWN_SLICES = 8 };

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

/* --- pieces that are cut by layers --- */

static double room_ms(const step_cost *c, double bound_ms) {
    double room = bound_ms * SHARE_OF_BOUND - c->base_ms, least = bound_ms * LEAST_SHARE;
    return room > least ? room : least;
}

static double layer_ms(const step_cost *c, uint32_t depth, uint32_t n_rows, uint32_t n_layers) {
    double even = step_cost_expect_ms(c, depth, n_rows) / n_layers;
    return c->unevenness > 1 ? even * c->unevenness : even;
}

bool step_cost_fits(const step_cost *c, uint32_t depth, uint32_t n_rows, double bound_ms) {
    double cost = step_cost_expect_ms(c, depth, n_rows);
    return cost > 0 && cost <= bound_ms * SHARE_OF_BOUND - c->base_ms;
}

uint32_t step_cost_cut_rows(const step_cost *c, uint32_t depth, uint32_t n_layers,
                            double bound_ms, uint32_t multiple, uint32_t most) {
    uint32_t n = multiple;
    while (n + multiple <= most) {
        double cost = layer_ms(c, depth, n + multiple, n_layers);
        if (cost == 0 || cost > room_ms(c, bound_ms)) break;
        n += multiple;
    }
    return n;
}

uint32_t step_cost_layers(const step_cost *c, const step_cost_piece *p, double bound_ms) {
    uint32_t left = p->n_layers - p->n_done, most = (p->n_layers - 1) / UNKNOWN_SLICES + 1;
    double each = p->n_done > 0 ? p->slowest_ms : layer_ms(c, p->depth, p->n_rows, p->n_layers);
    if (each > 0) {
        double n = room_ms(c, bound_ms) / each;
        most = n >= left ? left : (uint32_t)n;
    }
    if (most == 0) most = 1;
    uint32_t n_slices = (left + most - 1) / most;
    return n_slices > 1 ? (left + n_slices - 1) / n_slices : left;
}

void step_cost_add_slice(step_cost *c, step_cost_piece *p, uint32_t n_layers, double took_ms) {
    double each = took_ms / n_layers;
    p->n_done += n_layers;
    p->took_ms += took_ms;
    if (each > p->slowest_ms) p->slowest_ms = each;
    if (p->n_done < p->n_layers || p->took_ms <= 0) return;
    const step_cost_step whole = {
        .n_prompt = p->n_rows, .depth = p->depth, .took_ms = p->took_ms};
    step_cost_add(c, &whole);
    double uneven = p->slowest_ms * p->n_layers / p->took_ms;
    double weight = uneven > c->unevenness ? 0.5 : 1 - DECAY;
    c->unevenness += c->unevenness == 0 ? uneven : weight * (uneven - c->unevenness);
}
