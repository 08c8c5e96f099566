#include "worker/step_cost.h"

#include <stddef.h>

/* A step counts half as much after so many more of its kind. */
enum { HALF_LIFE_STEPS = 8, SMALLEST_CLASS = 256 };
static const double DECAY = 0.917; /* 2^(-1 / HALF_LIFE_STEPS) */

/* Steps vary: what is expected may take this much of the bound. */
static const double SHARE_OF_BOUND = 0.8;
/* And this much of it is left to prompts in any case. */
static const double LEAST_SHARE = 0.125;

/* Slices of a piece of which nothing is known. */
enum { UNKNOWN_SLICES = 8 };
static const double MOST_WORTH = 64;
/* Layers of a piece may be so much slower than those before them. */
static const double MOST_SLOWER = 1.5;

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
    double mean = l->y / l->n, share = l->y / l->x * x;
    double spread = l->n * l->xx - l->x * l->x;
    if (spread <= 1e-6 * l->n * l->xx) return share; /* steps of one size: in proportion */
    double slope = (l->n * l->xy - l->x * l->y) / spread;
    double fixed = (l->y - slope * l->x) / l->n;
    if (slope <= 0) return share > mean ? share : mean; /* it is not the rows that cost */
    return fixed >= 0 ? fixed + slope * x : share;
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

/* Depth grows from piece to piece, and what is expected follows behind. */
static double piece_ms(const step_cost *c, uint32_t depth, uint32_t n_rows) {
    double cost = step_cost_expect_ms(c, depth, n_rows);
    return c->lag > 1 ? cost * (c->lag < MOST_SLOWER ? c->lag : MOST_SLOWER) : cost;
}

/* How many linear layers a full one is worth at a depth. */
static double worth_of_full(const step_cost *c, uint32_t depth) {
    for (uint32_t i = class_of(depth) + 1; i > 0; i--) {
        const step_cost_kinds *k = &c->kinds[i - 1];
        double spread = k->xx * k->yy - k->xy * k->xy;
        if (spread <= 0.01 * k->xx * k->yy) continue; /* slices that are alike tell nothing */
        double linear = k->yy * k->xt - k->xy * k->yt, full = k->xx * k->yt - k->xy * k->xt;
        if (linear > 0 && full > 0)
            return full < MOST_WORTH * linear ? full / linear : MOST_WORTH;
    }
    return 1;
}

/* Layers [from, to) of a piece, in linear ones. */
static double weight_of(const step_cost_piece *p, double full, uint32_t from, uint32_t to) {
    double weight = 0;
    for (uint32_t i = from; i < to; i++)
        weight += p->is_linear == NULL || p->is_linear[i] ? 1 : full;
    return weight;
}

bool step_cost_fits(const step_cost *c, uint32_t depth, uint32_t n_rows, double bound_ms) {
    double cost = step_cost_expect_ms(c, depth, n_rows);
    return cost > 0 && cost <= bound_ms * SHARE_OF_BOUND - c->base_ms;
}

uint32_t step_cost_cut_rows(const step_cost *c, const step_cost_piece *p, double bound_ms,
                            uint32_t multiple, uint32_t most) {
    double full = worth_of_full(c, p->depth), largest = full > 1 ? full : 1;
    double share = largest / weight_of(p, full, 0, p->n_layers);
    uint32_t n = multiple;
    while (n + multiple <= most) {
        double cost = piece_ms(c, p->depth, n + multiple);
        if (cost == 0 || cost * share > room_ms(c, bound_ms)) break;
        n += multiple;
    }
    return n;
}

/* ms of a linear layer of what is left of a piece: what its others took, or more where of what was
 * expected more is left, which the last few would have all of; 0: nothing is known. */
static double linear_ms(const step_cost *c, const step_cost_piece *p, double full) {
    double left_ms = piece_ms(c, p->depth, p->n_rows) - p->took_ms;
    double left = left_ms / weight_of(p, full, p->n_done, p->n_layers);
    if (p->n_done == 0) return left;
    double done = p->took_ms / weight_of(p, full, 0, p->n_done);
    double most = done * MOST_SLOWER;
    return left < done ? done : left < most ? left : most;
}

/* From `at` on, as many as weigh no more than `most`, and no more than are wanted for `enough`; one
 * at the least. */
static uint32_t layers_within(const step_cost_piece *p, double full, uint32_t at, double most,
                              double enough) {
    uint32_t n = 1;
    double weight = weight_of(p, full, at, at + 1);
    for (; at + n < p->n_layers && weight < enough; n++) {
        weight += weight_of(p, full, at + n, at + n + 1);
        if (weight > most) break;
    }
    return n;
}

uint32_t step_cost_layers(const step_cost *c, const step_cost_piece *p, double bound_ms) {
    double full = worth_of_full(c, p->depth), each = linear_ms(c, p, full);
    double left = weight_of(p, full, p->n_done, p->n_layers);
    double most = each > 0 ? room_ms(c, bound_ms) / each : left / UNKNOWN_SLICES;
    uint32_t n_slices = 0;
    for (uint32_t at = p->n_done; at < p->n_layers; n_slices++)
        at += layers_within(p, full, at, most, left);
    return layers_within(p, full, p->n_done, most, n_slices > 0 ? left / n_slices : left);
}

static void add_to_kinds(step_cost *c, const step_cost_piece *p, uint32_t n_layers,
                         double took_ms) {
    step_cost_kinds *k = &c->kinds[class_of(p->depth)];
    double n_full = 0;
    for (uint32_t i = p->n_done; i < p->n_done + n_layers; i++)
        n_full += p->is_linear != NULL && !p->is_linear[i];
    double x = (n_layers - n_full) * p->n_rows, y = n_full * p->n_rows;
    k->xx = k->xx * DECAY + x * x;
    k->xy = k->xy * DECAY + x * y;
    k->yy = k->yy * DECAY + y * y;
    k->xt = k->xt * DECAY + x * took_ms;
    k->yt = k->yt * DECAY + y * took_ms;
}

void step_cost_add_slice(step_cost *c, step_cost_piece *p, uint32_t n_layers, double took_ms) {
    add_to_kinds(c, p, n_layers, took_ms);
    p->n_done += n_layers;
    p->took_ms += took_ms;
    if (p->n_done < p->n_layers) return;
    double expected_ms = step_cost_expect_ms(c, p->depth, p->n_rows);
    c->lag = expected_ms > 0 ? p->took_ms / expected_ms : 0;
    const step_cost_step whole = {
        .n_prompt = p->n_rows, .depth = p->depth, .took_ms = p->took_ms};
    step_cost_add(c, &whole);
}
