/* model_shelf.h - the models of a worker: which are loaded, which loads, which makes room.
 *
 * An engine is opened on a thread of its own, `load`, one at a time, so that the
 * others go on meanwhile; from then on it belongs to the engine thread.  At the
 * start models are loaded in the order of the settings, up to max_loaded; later when
 * a request asks for one, which waits here.  A model is closed when it has been
 * idle for keep_ms, or when another needs its place: the one whose last use is
 * longest ago, idle ones first.  A busy one takes no new requests after patience_ms
 * and goes when its last is over, so that nobody waits for ever and nothing is cut.
 *
 * At the start a model that does not load ends the worker, unless it is only for want
 * of memory and another one is there.  Later its requests end with 503, and it is
 * tried again no sooner than SHELF_RETRY_MS after.
 *
 * Thread: everything on `engine`, the load thread's own body apart.
 */
#ifndef SILICEO_WORKER_MODEL_SHELF_H
#define SILICEO_WORKER_MODEL_SHELF_H

#include "common/thread.h"
#include "worker/engine_loop.h"

enum { SHELF_NONE = -1, SHELF_RETRY_MS = 5000 };

typedef struct shelf_model {
    engine *e; /* NULL: not loaded */
    engine_facts facts;
    bool at_start;    /* still to be loaded before the worker is ready */
    bool busy;        /* requests run or wait in it */
    bool fresh;       /* just loaded: those that waited for it go in, whoever waits elsewhere */
    bool no_room;     /* it did not fit beside those that are loaded */
    uint64_t used_ms; /* when a request was last in it */
    uint64_t used_turn; /* the same as an order */
    uint64_t retry_ms;  /* not tried before, after a failure */
    order *held, *last_held;
} shelf_model;

typedef struct model_shelf {
    ring news; /* reports of the load thread; first: it stands on cache lines of its own */
    const engine_loop_params *params;
    exchange *x;
    engine_sink sink;
    shelf_model models[ENGINE_LOOP_MAX_MODELS];
    size_t n;
    bool started;
    uint64_t turn;

    int loading; /* number of the model, or SHELF_NONE */
    atomic_bool loads;
    thread loader;
    engine *opened;
    engine_facts opened_facts;
    status opened_rc;
    error why;
    uint32_t told_permille;
} model_shelf;

/* Describe the models; nothing is loaded yet.  On failure release it all the same. */
status shelf_init(model_shelf *s, const engine_loop_params *params, exchange *x,
                  const engine_sink *sink, error *err);
/* Wait for what loads, end what waits, close everything.  Accepts a half-built one. */
void shelf_release(model_shelf *s);

/* The model of that name; the only one there is has every name.  SHELF_NONE: unknown. */
int shelf_find(const model_shelf *s, wire_bytes name);
/* May requests go to it now?  Else they are to be held. */
bool shelf_is_open(const model_shelf *s, int which);
/* A request has gone to it. */
void shelf_use(model_shelf *s, int which, uint64_t now_ms);
/* Keep a submit until its model is loaded. */
void shelf_hold(model_shelf *s, int which, order *o, uint64_t now_ms);
/* Take a held submit back, for a cancel; NULL: it is not here. */
order *shelf_take_held(model_shelf *s, uint64_t request, uint64_t epoch);
/* The next held submit of an open model, the oldest first; NULL: none. */
order *shelf_next_ready(model_shelf *s, int which);
/* The next held submit that can have no answer, with the reason as an ERROR's fields. */
typedef struct shelf_refusal {
    uint64_t http_status;
    const char *code;
    bool retryable;
    char text[sizeof((error *)0)->text];
} shelf_refusal;
order *shelf_next_refused(model_shelf *s, uint64_t now_ms, shelf_refusal *why);
uint32_t shelf_n_held(const model_shelf *s);

/* Pass on what the load thread tells, start the next loading, close what is too long idle
 * or in the way.  A failure is the worker's end. */
status shelf_tend(model_shelf *s, uint64_t now_ms, error *err);

#endif
