/* engine_double.h - stands in for worker/engine.c in tests of what is around it.
 *
 * A request's body is a count of tokens ("5"): one comes each step, then DONE.
 * Body "hold" gives nothing until it is cancelled.  Several may be open, and one may
 * be opened on one thread and used on another.  Linked before libworker.a, so
 * the real engine is not pulled in.
 */
#ifndef SILICEO_TESTS_ENGINE_DOUBLE_H
#define SILICEO_TESTS_ENGINE_DOUBLE_H

#include <stdatomic.h>
#include <stdbool.h>

typedef struct engine_double {
    atomic_bool load_waits; /* engine_open() does not return while set */
    atomic_bool load_fails;
    atomic_int room; /* engines that fit at once; 0: any number */
    atomic_int n_open;
    atomic_int n_opened;       /* in all */
    atomic_bool step_waits;    /* a step does not return while set */
    atomic_bool device_fails;  /* the next step */
    atomic_bool queue_is_full; /* engine_submit() refuses */
    atomic_int n_running;
    atomic_int n_submitted;
    atomic_int n_cancelled;
} engine_double;

extern engine_double double_engine;
void engine_double_reset(void);

#endif
