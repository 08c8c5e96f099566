/* admission.h - the bounded queue of requests that wait for a node, fair between keys.
 *
 * Two priorities, interactive before background.  Within each the keys take turns:
 * the k-th waiting request of a key has a turn that is one later than its last, and never
 * earlier than the turn that is being served, so a key that queues twenty is
 * passed by another's first after one more of its own (start-time fair queueing with
 * equal shares).  A key's own requests are served first come first served.
 * A request that comes back from a lost node goes to the front, because it has
 * waited before, and does so even when the queue is full.
 * The links are inside the requests, so nothing here allocates.  `io` thread.
 */
#ifndef SILICEO_COORDINATOR_ADMISSION_H
#define SILICEO_COORDINATOR_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct request;

enum { ADMISSION_PRIORITIES = 2 };

typedef struct admission {
    struct request *head[ADMISSION_PRIORITIES];
    struct request *tail[ADMISSION_PRIORITIES];
    uint64_t turn[ADMISSION_PRIORITIES];   /* being served */
    uint64_t nobody[ADMISSION_PRIORITIES]; /* last turn of requests that have no key */
    size_t n_waiting;
    size_t max_waiting;
} admission;

/* False: full, or its key may have no more waiting; nothing has changed. */
bool admission_add(admission *q, struct request *r);
/* In its turn, but over a full queue: to see whether it can be placed at once. */
void admission_squeeze(admission *q, struct request *r);
void admission_put_back(admission *q, struct request *r);
/* It is served: the turn moves on. */
void admission_take(admission *q, struct request *r);
/* It waits no longer; those of its key that stand behind it move up a turn. */
void admission_remove(admission *q, struct request *r);
/* May it run now, or are as many of its key's running as may? */
bool admission_may_run(const struct request *r);
/* In the order of service; NULL at the end. */
struct request *admission_first(const admission *q);
struct request *admission_next(const admission *q, const struct request *r);

/* Whole seconds for a Retry-After: when a place may be free, from 1 to 120. */
unsigned admission_retry_after_s(double expected_wait_s);

#endif
