/* bench_users.h - `siliceo-worker bench --users N`: many at once, and one more beside them.
 *
 * N requests of P pseudo-random ids and D tokens each, greedy, never ending early, through the
 * whole engine.  Decoding is counted from the last prompt's end, less the first skip tokens of
 * each, until the first of them is over: all N are in every step.  With `beside` tokens the N
 * then decode once more, and while they do a prompt of so many is submitted: the gaps between
 * tokens of the N while it runs are what its company costs them.
 *
 * experts_per_layer_step is the union of the experts that a layer needs for the tokens of a
 * step, from the traces where they choose, else as the backend counts them.  Where traces
 * choose nothing is guessed ahead: they know the experts of a text, not those of guesses.
 */
#ifndef SILICEO_WORKER_BENCH_USERS_H
#define SILICEO_WORKER_BENCH_USERS_H

#include "worker/engine.h"
#include "worker/vram_watch.h"
#include <stdbool.h>

typedef struct bench_users {
    engine_params engine;
    uint32_t n_users;
    uint32_t n_prompt;
    uint32_t n_decode;
    uint32_t n_skip;
    uint32_t n_beside; /* 0: nobody comes */
    const char
        *routing; /* path of a trace; {} in it is the number of the user, from 1.  Or NULL */
    bool json;
    const vram_watch *watch; /* whose peak is told; NULL: none is */
} bench_users;

/* Measure, and print the figures. */
status bench_users_run(const bench_users *b, error *err);

#endif
