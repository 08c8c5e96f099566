/* engine_loop.h - the thread `engine`: loads the models, measures them, then steps for ever.
 *
 * It owns the engines, one a model; everything comes by the exchange's orders and
 * goes by its reports.  Between two steps it looks at the orders, so a cancel waits
 * for one step at most.  An idle loop sleeps and still comes round four times a
 * second, which is what engine_round_ms tells.  Which models are loaded, and how
 * one makes room for another, is model_shelf's part.
 */
#ifndef SILICEO_WORKER_ENGINE_LOOP_H
#define SILICEO_WORKER_ENGINE_LOOP_H

#include "common/error.h"
#include "worker/exchange.h"

/* A model as the settings name it. */
typedef struct loop_model {
    const char *name; /* NULL or empty: the file's general.name, or its file name */
    /* Fill what engine_open() takes; may read the file.  Called before each loading, on
     * the thread that loads.  The loop adds progress. */
    status (*prepare)(void *context, engine_params *out, error *err);
    /* What the file alone tells: name, hash, architecture, context.  On the engine
     * thread, where there are several models; else it may be NULL. */
    status (*describe)(void *context, engine_facts *out, error *err);
    void *context;
} loop_model;

typedef struct engine_loop_params {
    const loop_model *models;
    size_t n_models;      /* 1 to ENGINE_LOOP_MAX_MODELS */
    uint32_t measure_ms;  /* for the prior rates; 0: do not measure */
    uint32_t max_loaded;  /* models that are loaded at once; 0: all */
    uint64_t keep_ms;     /* a model idle for longer is closed; 0: never */
    uint64_t patience_ms; /* so long a request waits until a busy model must make room */
} engine_loop_params;

typedef struct engine_loop engine_loop;

/* Start the thread; params and x must outlive it.  Loading has only begun. */
status engine_loop_start(engine_loop **out, const engine_loop_params *params, exchange *x,
                         error *err);
/* Is a model being loaded?  That cannot be broken off.  Any thread. */
bool engine_loop_loads(const engine_loop *loop);
/* Wait for the end, which ORDER_STOP brings, and free. */
void engine_loop_join(engine_loop **loop);

#endif
