/* decisions.h - the last routing decisions, to be explained on request.
 *
 * A ring of fixed size, taken once: who was placed where, and for each node that has the
 * model the terms of its expected completion, or why it was left out.  Of many nodes the
 * best are kept.  `io` thread.
 */
#ifndef SILICEO_COORDINATOR_DECISIONS_H
#define SILICEO_COORDINATOR_DECISIONS_H

#include "common/json.h"
#include "coordinator/request.h"
#include "coordinator/router.h"
#include <stdint.h>

enum { DECISION_NODES = 16, DECISION_NAME_SIZE = 64 };

typedef struct decision_node {
    char name[DECISION_NAME_SIZE];
    const char *left_out; /* static text: why it was no candidate; NULL: it was one */
    router_job job;
    router_cost cost;
    uint32_t in_flight, places;
} decision_node;

typedef struct decision {
    char request_id[72];
    char model[WIRE_MAX_NAME + 1];
    char chosen[DECISION_NAME_SIZE];
    uint64_t wall_ms;
    uint32_t attempt;
    double waited_s;
    size_t n_nodes;
    size_t n_more;                       /* that found no room in nodes */
    decision_node nodes[DECISION_NODES]; /* candidates by total, then those left out */
} decision;

typedef struct decisions {
    decision *ring;
    size_t size;
    size_t next;
} decisions;

/* Without memory, or with size 0, none are kept. */
void decisions_init(decisions *d, size_t size);
void decisions_release(decisions *d);

/* The next place, emptied; NULL where none are kept. */
decision *decisions_begin(decisions *d, const request *r, const char *chosen, uint64_t now_ns);
void decision_add(decision *d, const decision_node *n);
/* All decisions of a request as a JSON array, oldest first; false: none is kept. */
bool decisions_print(const decisions *d, const char *request_id, json_text *out);

#endif
