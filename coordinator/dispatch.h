/* dispatch.h - brings queue, nodes and router together: who is sent where, now.
 *
 * The queue is planned in order against the nodes' expected finishing times, each
 * placed request reserved before the next is planned; those whose best node has
 * a free place are sent, the others keep waiting for theirs.  `io` thread.
 */
#ifndef SILICEO_COORDINATOR_DISPATCH_H
#define SILICEO_COORDINATOR_DISPATCH_H

#include "coordinator/coordinator.h"

typedef enum dispatch_outlook {
    DISPATCH_POSSIBLE, /* a node serves it or is about to */
    DISPATCH_NO_NODE,  /* the model is known or may be loading, no node that has it is alive */
    DISPATCH_TRIED,    /* all nodes that could have failed with it */
    DISPATCH_UNKNOWN   /* no node has ever had the model */
} dispatch_outlook;

dispatch_outlook dispatch_look(const coordinator *c, const request *r);
void dispatch_run(coordinator *c);
/* Seconds until some node that has the model may have a free place; with a tenant, until
 * one of its own requests may have ended. */
double dispatch_expected_wait_s(const coordinator *c, const char *model, const tenant *t);
/* Expected prompt tokens and seconds of prefill of a request on a node. */
double dispatch_prompt_tokens(const request *r, const node_model *m);

#endif
