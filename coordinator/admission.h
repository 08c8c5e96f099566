/* admission.h - the bounded queue of requests that wait for a node.
 *
 * Two priorities, first come first served within each; interactive before
 * background.  A request that comes back from a lost node goes to the front,
 * because it has waited before, and does so even when the queue is full.
 * The links are inside the requests, so nothing here allocates.  `io` thread.
 */
#ifndef SILICEO_COORDINATOR_ADMISSION_H
#define SILICEO_COORDINATOR_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>

struct request;

enum { ADMISSION_PRIORITIES = 2 };

typedef struct admission {
    struct request *head[ADMISSION_PRIORITIES];
    struct request *tail[ADMISSION_PRIORITIES];
    size_t n_waiting;
    size_t max_waiting;
} admission;

/* False: full, nothing has changed. */
bool admission_add(admission *q, struct request *r);
void admission_put_back(admission *q, struct request *r);
void admission_remove(admission *q, struct request *r);
/* In the order of service; NULL at the end. */
struct request *admission_first(const admission *q);
struct request *admission_next(const admission *q, const struct request *r);

/* Whole seconds for a Retry-After: when a place may be free, from 1 to 120. */
unsigned admission_retry_after_s(double expected_wait_s);

#endif
