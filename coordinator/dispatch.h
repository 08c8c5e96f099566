/* dispatch.h - brings queue, nodes and router together: who is sent where, now.
 *
 * The queue is planned in order against the nodes' expected finishing times, each
 * placed request reserved before the next is planned; those whose best node has
 * a free place are sent, the others keep waiting for theirs.  `io` thread.
 */
#ifndef SILICEO_COORDINATOR_DISPATCH_H
#define SILICEO_COORDINATOR_DISPATCH_H

#include "coordinator/coordinator.h"
#include "coordinator/router.h"

typedef enum dispatch_outlook {
    DISPATCH_POSSIBLE, /* a node serves it or is about to */
    DISPATCH_LOADING,  /* no node serves it now, but one will soon and says when */
    DISPATCH_NO_NODE,  /* the model is known or may be loading, no node that has it is alive */
    DISPATCH_TRIED,    /* all nodes that could have failed with it */
    DISPATCH_UNKNOWN   /* no node has ever had the model */
} dispatch_outlook;

dispatch_outlook dispatch_look(const coordinator *c, const request *r);
/* Seconds until a node that loads may serve it; negative: none loads, or none tells. */
double dispatch_loading_s(const coordinator *c, const request *r);
void dispatch_run(coordinator *c);
/* Seconds until some node that has the model may have a free place; with a tenant, until
 * one of its own requests may have ended. */
double dispatch_expected_wait_s(const coordinator *c, const char *model, const tenant *t);
/* What the request would cost now behind all that waits (idle: if nobody else were there).
 * False: no node could take it. */
bool dispatch_forecast(coordinator *c, const request *r, bool idle, router_cost *cost);

/* Plan the queue at a time and place what has a place by `place` (false: the node cannot be
 * reached now), which must attach it.  dispatch_run() does it with the mesh, now. */
typedef bool (*dispatch_place)(coordinator *c, request *r, node *n, uint64_t now_ns);
void dispatch_plan(coordinator *c, uint64_t now_ns, dispatch_place place);

#endif
