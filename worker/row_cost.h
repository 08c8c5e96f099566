/* row_cost.h - what a decoding step of so many rows takes, as steps tell.
 *
 * Two things are learnt apart.  How rows cost beside each other, a table in units of a step of
 * one row: tried out at the start, the least of some rounds, since then corrected by steps with
 * guesses.  And how long the unit takes now, by steps without guesses: a machine that gets busy
 * or quiet slows all steps alike, also those of numbers of rows that were not run since.
 *
 * Plain data; thread: engine.
 */
#ifndef SILICEO_WORKER_ROW_COST_H
#define SILICEO_WORKER_ROW_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ROW_COST_MAX = 256 };

typedef struct row_cost {
    double units[ROW_COST_MAX + 1]; /* of a step of so many rows */
    bool seen[ROW_COST_MAX + 1];    /* the others lie on lines between */
    double unit_ns;
    uint32_t n_plain; /* steps that unit_ns rests on */
    double first_ns;  /* tried out: of one row */
} row_cost;

void row_cost_init(row_cost *c);
/* Tried out: a step of n_rows took so long; the least counts.  One row first. */
void row_cost_try(row_cost *c, uint32_t n_rows, uint64_t took_ns);
/* A step of n_rows took so long; plain: none of them was a guess. */
void row_cost_note(row_cost *c, uint32_t n_rows, uint64_t took_ns, bool plain);
/* Whether there is anything to go by. */
bool row_cost_is_known(const row_cost *c);
/* Of a step of n_rows; beyond ROW_COST_MAX that of as many. */
double row_cost_ns(const row_cost *c, size_t n_rows);

#endif
