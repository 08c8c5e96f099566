#include "worker/lane_rates.h"

#include <math.h>

/* An expert's first row reads its weights, two megabytes, at what a core has of the memory's
 * bandwidth; a row more is arithmetic on what is in the cache. */
static const double FIRST_NS = 400e3, MORE_NS = 64e3;
/* A decoding step's layer, before and after its experts; not of all threads together. */
static const double STEP_LAYER_NS = 40e3;
/* A layer's weight in the sums after the next one, and that of the first estimates beside them:
 * as much as a quarter of a layer. */
static const double DECAY = 0.96, FIRST_GUESS = 0.25;
/* No estimate falls below this part of the first one. */
static const double LEAST = 0.02;
/* A measurement's weight in a running mean. */
static const double NEWEST = 0.1;
/* What a look costs a layer: the GPU waits for the host, its next launches for their turn, and of
 * what comes by itself a part would have come while other experts are computed. */
static const double LOOK_NS = 60e3;
/* The second way is begun below this share of the first one's time, and left above that. */
static const double BEGIN_SHARE = 0.85, LEAVE_SHARE = 0.95;
/* Inside a recorded step words, rows and outputs cross the bus, which nobody sees on the clock. */
static const double CROSSING_NS = 8e3;
/* The CPU takes its share of a recorded step's layer below this part of what the bus needs: what it
 * takes comes into slots later, and over the same bus. */
static const double PAYING_SHARE = 0.9;
/* Misses of a layer from which on all threads stay awake for them. */
static const double LEAST_MISSES = 0.5;
/* The host's calls for a record, before any is measured. */
static const double ENQUEUE_NS = 2e3;

void lane_rates_init(lane_rates *r, uint32_t n_threads, double ship_ns, double output_share) {
    *r = (lane_rates){.begin_first_ns = FIRST_NS / n_threads,
                      .begin_more_ns = {STEP_LAYER_NS, MORE_NS / n_threads},
                      .alone_ns = ship_ns,
                      .ship_ns = ship_ns,
                      .output_ns = ship_ns * output_share,
                      .enqueue_ns = ENQUEUE_NS};
    for (int i = 0; i < LANE_KINDS; i++) {
        r->lines[i].first_ns = r->begin_first_ns;
        r->lines[i].more_ns = r->begin_more_ns[i];
    }
}

double lane_rates_cost_ns(const lane_rates *r, lane_kind kind, uint32_t n_rows) {
    const lane_line *l = &r->lines[kind];
    return l->first_ns + (kind == LANE_STEPS || n_rows == 0 ? 0 : l->more_ns * (n_rows - 1));
}

/* What a layer takes once, whatever its experts. */
static double layer_ns(const lane_rates *r, lane_kind kind) {
    return kind == LANE_STEPS ? r->lines[kind].more_ns : 0;
}

/* u and v, the estimates by the first ones, that make u x + v y = 1 hold best. */
static void fit(const lane_rates *r, lane_kind kind, lane_line *l) {
    double xx = l->ff + FIRST_GUESS, yy = l->mm + FIRST_GUESS;
    double x = l->f + FIRST_GUESS, y = l->m + FIRST_GUESS;
    double d = xx * yy - l->fm * l->fm; /* positive: the guesses are apart */
    double u = (x * yy - y * l->fm) / d, v = (xx * y - l->fm * x) / d;
    if (v < LEAST) { /* then the other alone */
        v = LEAST;
        u = (x - v * l->fm) / xx;
    } else if (u < LEAST) {
        u = LEAST;
        v = (y - u * l->fm) / yy;
    }
    l->first_ns = r->begin_first_ns * fmax(u, LEAST);
    l->more_ns = r->begin_more_ns[kind] * fmax(v, LEAST);
}

void lane_rates_add(lane_rates *r, lane_kind kind, size_t n_experts, size_t n_rows, double ns) {
    lane_line *l = &r->lines[kind];
    double x = 0, y = 0; /* nothing is added */
    if (n_experts > 0 && ns > 0) {
        x = r->begin_first_ns * (double)n_experts / ns;
        double times = kind == LANE_STEPS ? 1 : (double)(n_rows - n_experts);
        y = r->begin_more_ns[kind] * times / ns;
    }
    l->ff = l->ff * DECAY + x * x;
    l->fm = l->fm * DECAY + x * y;
    l->mm = l->mm * DECAY + y * y;
    l->f = l->f * DECAY + x;
    l->m = l->m * DECAY + y;
    fit(r, kind, l);
}

void lane_rates_shipped(lane_rates *r, size_t n, double ns, bool alone) {
    if (n == 0 || !(ns > 0)) return;
    double by = r->ship_ns > 0 ? r->output_ns / r->ship_ns : 0;
    r->ship_ns += NEWEST * (ns / (double)n - r->ship_ns);
    r->output_ns = by * r->ship_ns;
    if (alone) r->alone_ns += NEWEST * (ns / (double)n - r->alone_ns);
}

void lane_rates_enqueued(lane_rates *r, size_t n, double ns) {
    if (n > 0) r->enqueue_ns += NEWEST * (ns / (double)n - r->enqueue_ns);
}

size_t lane_rates_split(const lane_rates *r, lane_kind kind, const uint32_t *rows, size_t n,
                        size_t most_cpu, size_t most_bus, double busy_ns) {
    double cpu_ns = layer_ns(r, kind), out_ns = 0, best_ns = HUGE_VAL;
    size_t best = 0;
    for (size_t k = 0; k <= n && k <= most_cpu; k++) {
        if (k > 0) {
            cpu_ns += lane_rates_cost_ns(r, kind, rows[k - 1]);
            out_ns += r->output_ns * rows[k - 1];
        }
        double left = (double)(n - k);
        double cpu = k > 0 ? cpu_ns + left * r->enqueue_ns : 0;
        double bus = busy_ns + left * r->ship_ns;
        double later = fmax(cpu, bus) + out_ns;
        bool fits = n - k <= most_bus;
        if (later < best_ns || n - best > most_bus) {
            best_ns = later;
            best = k;
        }
        if (fits && cpu > bus) break; /* longer and longer from here on */
    }
    return best;
}

/* More and more of the n as long as the later of both ends earlier. */
static size_t share_of(const lane_rates *r, size_t n, size_t k) {
    const double each = lane_rates_cost_ns(r, LANE_STEPS, 1);
    const double once = layer_ns(r, LANE_STEPS) + CROSSING_NS;
    const double alone = r->ship_ns * (double)n;
    double later = alone;
    if (k > 0) later = fmax(once + each * (double)k, r->ship_ns * (double)(n - k));
    for (; k < n; k++) {
        double next = fmax(once + each * (double)(k + 1), r->ship_ns * (double)(n - k - 1));
        if (!(next < later)) break;
        later = next;
    }
    return later < PAYING_SHARE * alone ? k : 0;
}

void lane_rates_shares(const lane_rates *r, size_t n, uint8_t *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)share_of(r, i + 1, i > 0 ? out[i - 1] : 0);
}

bool lane_rates_is_worth(const lane_rates *r, uint32_t n_rows) {
    return r->n_rows > 0 && r->misses * n_rows >= LEAST_MISSES * r->n_rows;
}

void lane_rates_step(lane_rates *r, uint32_t n_rows, double misses) {
    if (r->n_rows == 0) {
        r->misses = misses;
    } else {
        r->misses *= (double)n_rows / r->n_rows; /* another company: in proportion, at first */
        r->misses += NEWEST * (misses - r->misses);
    }
    r->n_rows = n_rows;
}

/* The later of both, of n experts with a row each. */
static double split_ns(const lane_rates *r, size_t n) {
    double each = lane_rates_cost_ns(r, LANE_STEPS, 1) + r->output_ns, best = HUGE_VAL;
    for (size_t k = 0; k <= n; k++) {
        double cpu = k > 0 ? layer_ns(r, LANE_STEPS) + each * (double)k : 0,
               bus = r->ship_ns * (double)(n - k);
        best = fmin(best, fmax(cpu, bus));
    }
    return best;
}

bool lane_rates_gathers(lane_rates *r, uint32_t n_rows) {
    if (r->n_rows == 0) return r->gathers = false;
    double n = r->misses * n_rows / r->n_rows, whole = floor(n);
    double below = split_ns(r, (size_t)whole), above = split_ns(r, (size_t)whole + 1);
    double split = LOOK_NS + below + (n - whole) * (above - below);
    double share = r->gathers ? LEAVE_SHARE : BEGIN_SHARE;
    return r->gathers = split < share * n * r->alone_ns;
}
