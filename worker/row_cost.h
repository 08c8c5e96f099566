/* row_cost.h - what a decoding step of so many rows takes, as steps tell.
 *
 * Two things are learnt apart.  How rows cost beside each other, a table in units of a step of
 * one row: tried out at the start, the least of some rounds, since then corrected by steps with
 * guesses.  And how long the unit takes now, by steps without guesses: a machine that gets busy
 * or quiet slows all steps alike, also those of numbers of rows that were not run since.  The
 * fewer steps without guesses there are between those with, the more each of them says: what
 * guesses bring is judged by them, and a unit that is too long makes every guess seem to pay.
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
    uint32_t n_plain;    /* steps that unit_ns rests on */
    uint32_t n_guessing; /* steps with guesses, up to those that the table is a mean of */
    uint32_t n_since;    /* steps with guesses since the last of them */
    uint32_t n_after;    /* steps without guesses since the last with */
    double first_ns;     /* tried out: of one row */
    bool is_tried;
    bool recent[ROW_COST_MAX + 1]; /* seen with guesses since unit_ns was; its time is known */
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
