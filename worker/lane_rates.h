/* lane_rates.h - what a missing expert costs on the CPU and on the bus, learnt as it happens, and
 * who takes it.
 *
 * In a prompt an expert of n rows takes first + more * (n - 1) on the CPU, where it runs beside
 * others on all threads; in a decoding step, where rows are one or few, it takes first, and the
 * layer takes more once, for the threads to meet.  Both are fitted by least squares to what layers took, for decoding steps and for
 * prompts by themselves; what is old weighs less, and where nothing is measured the estimates go
 * back to what they were at first.  On the bus a record takes ship_ns, and a row of the CPU's
 * outputs its share of that.
 *
 * Split   of a layer's missing experts, those with the fewest rows first, the CPU gets so many that
 *         the later of both ends earliest.
 * Steps   a step of decoding rows has two ways: the GPU brings in what is missing by itself, and
 *         where it can leaves the CPU its share (lane_rates_shares), with no look of the host; or
 *         the host looks after every router and splits.  Where the GPU leaves the CPU nothing, the
 *         second is taken when the misses that are expected in a layer (a running mean over steps)
 *         make it shorter by a sixth, and left again when it is not shorter by a twentieth.  Whether
 *         the lane pays at all is then seen by trying (lane_trial.h).
 *
 * Plain data.  Thread: engine.
 */
#ifndef SILICEO_WORKER_LANE_RATES_H
#define SILICEO_WORKER_LANE_RATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum lane_kind { LANE_STEPS, LANE_PROMPTS, LANE_KINDS } lane_kind;

/* Decayed sums over layers of the relative parts that first and more have, and the estimates. */
typedef struct lane_line {
    double ff, fm, mm, f, m;
    double first_ns, more_ns;
} lane_line;

typedef struct lane_rates {
    lane_line lines[LANE_KINDS];
    double begin_first_ns, begin_more_ns[LANE_KINDS]; /* the estimates at first */
    double alone_ns;                                  /* a record's journey without the lane */
    double ship_ns;                                   /* the same, of late */
    double output_ns;                                 /* that of a row of outputs */
    double enqueue_ns; /* the host's time to send a record on its way */
    double misses;     /* of a layer, in steps of n_rows */
    uint32_t n_rows;
    bool gathers; /* decoding steps take the second way */
} lane_rates;

/* ship_ns is measured; output_share: a row of outputs by the bytes of a record. */
void lane_rates_init(lane_rates *r, uint32_t n_threads, double ship_ns, double output_share);

/* An expert, without what its layer takes once. */
double lane_rates_cost_ns(const lane_rates *r, lane_kind kind, uint32_t n_rows);

/* A layer took so long: n_experts on the CPU with n_rows in all; none: what is known ages. */
void lane_rates_add(lane_rates *r, lane_kind kind, size_t n_experts, size_t n_rows, double ns);
/* n records were under way for so long together; alone: the CPU had nothing to do beside. */
void lane_rates_shipped(lane_rates *r, size_t n, double ns, bool alone);
/* The host took so long to send n records on their way. */
void lane_rates_enqueued(lane_rates *r, size_t n, double ns);

/* Of n missing experts with rows[i] rows, ascending, how many of the first the CPU takes; never
 * more than most_cpu, and so many that no more than most_bus are left, where both can be.  The bus
 * has other records under way that the layer waits for, too, for busy_ns from now. */
size_t lane_rates_split(const lane_rates *r, lane_kind kind, const uint32_t *rows, size_t n,
                        size_t most_cpu, size_t most_bus, double busy_ns);

/* The same inside a recorded step, where nobody sends records on their way: of 1, 2, .. n missing
 * experts with a row each the CPU's, at 0, 1, ..  None where that hardly pays. */
void lane_rates_shares(const lane_rates *r, size_t n, uint8_t *out);

/* A step of n_rows decoding rows missed so many experts a layer. */
void lane_rates_step(lane_rates *r, uint32_t n_rows, double misses);
/* Whether the next step of n_rows takes the second way. */
bool lane_rates_gathers(lane_rates *r, uint32_t n_rows);
/* Whether a step of n_rows is expected to miss so much that the CPU's threads wait for their part
 * all along. */
bool lane_rates_is_worth(const lane_rates *r, uint32_t n_rows);

#endif
