/* router.h - where a request would be finished first.
 *
 * Pure functions over a snapshot: the caller describes each node that may serve
 * and the router gives each one's expected completion,
 *
 *     the longer of wait and loading of the model + uncached prompt / prefill rate + output / decode rate at the occupancy
 *          + round trip + what a relayed path costs,
 *
 * with the request itself counted.  The wait of a full node is the time until a
 * place is free, so an idle slow node wins only when it really finishes first.
 * Placing several requests in turn, each reserved before the next is placed, is
 * list scheduling: the last ones of a burst do not end up on the slow node.
 */
#ifndef SILICEO_COORDINATOR_ROUTER_H
#define SILICEO_COORDINATOR_ROUTER_H

#include "coordinator/rates.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct router_node {
    const rates *speed;
    uint32_t places;  /* requests it serves at once */
    double *finish_s; /* expected remaining seconds of what it has, ascending */
    size_t n_finish;
    size_t cap_finish;
    double round_trip_s;
    double path_s;      /* for a path that is not direct */
    double load_s;      /* until the model of the request being placed is loaded */
    double held_tokens; /* of the prompt of the request being placed, confirmed */
} router_node;

typedef struct router_job {
    double prompt_tokens;
    double held_tokens; /* for the record: what counts is the node's */
    double output_tokens;
} router_job;

typedef struct router_cost {
    double wait_s;
    double prefill_s;
    double decode_s;
    double round_trip_s;
    double path_s;
    double load_s;
    double total_s;
    double prefill_tok_per_s, decode_tok_per_s; /* the rates it stands on */
    uint32_t occupancy;
} router_cost;

router_cost router_estimate(const router_node *node, const router_job *job);

/* The node with the least total; -1 when there is none with a place at all.
 * may[i] false leaves node i out; NULL: all may. */
int router_choose(const router_node *nodes, size_t n_nodes, const bool *may,
                  const router_job *job, router_cost *cost);

/* Take the place: keeps finish_s ascending.  A full array forgets the earliest. */
void router_reserve(router_node *node, double finish_s);

#endif
