/* speculate_stats.h - the kinds of drafters, and what their guesses came to; plain data. */
#ifndef SILICEO_WORKER_SPECULATE_STATS_H
#define SILICEO_WORKER_SPECULATE_STATS_H

#include <stdint.h>

typedef enum drafter_kind {
    DRAFTER_LOOKUP, /* what followed the longest earlier occurrence of the last tokens */
    DRAFTER_MODEL,  /* a smaller model of the same vocabulary, greedy */
    DRAFTER_MTP,    /* the model's own block for the token after the next, greedy */
    DRAFTER_KINDS
} drafter_kind;

typedef struct speculate_stats {
    uint64_t drafted[DRAFTER_KINDS];  /* guesses that had a row */
    uint64_t accepted[DRAFTER_KINDS]; /* that came true */
    uint64_t rows_steps;              /* rows without guesses: one a sequence and step */
    uint64_t draft_ns[DRAFTER_KINDS]; /* spent in guessing */
    uint64_t switched_off;            /* times that a kind lost too much for a sequence */
} speculate_stats;

#endif
