/* engine_loop.h - the thread `engine`: loads the model, measures it, then steps for ever.
 *
 * It owns the engine; everything comes by the exchange's orders and goes by its
 * reports.  Between two steps it looks at the orders, so a cancel waits for one
 * step at most.  An idle loop sleeps and still comes round four times a second,
 * which is what engine_round_ms tells.
 */
#ifndef SILICEO_WORKER_ENGINE_LOOP_H
#define SILICEO_WORKER_ENGINE_LOOP_H

#include "common/error.h"
#include "worker/exchange.h"

typedef struct engine_loop_params {
    /* Fill what engine_open() takes, on the engine thread; may read the file.  The
     * loop adds progress. */
    status (*prepare)(void *context, engine_params *out, error *err);
    void *prepare_context;
    const char *model_name; /* NULL or empty: the file's general.name, or its file name */
    uint32_t measure_ms;    /* for the prior rates; 0: do not measure */
} engine_loop_params;

typedef struct engine_loop engine_loop;

/* Start the thread; params and x must outlive it.  Loading has only begun. */
status engine_loop_start(engine_loop **out, const engine_loop_params *params, exchange *x,
                         error *err);
/* Wait for the end, which ORDER_STOP brings, and free. */
void engine_loop_join(engine_loop **loop);

#endif
