/* coordinator_link.h - the thread `link`: speaks with the coordinators whatever the engine does.
 *
 * It owns one DEALER a coordinator, tells each who it is (HELLO) and how it is
 * (BEAT), passes requests to the engine's ring and results back, numbers TOKENS, and
 * grants credit.  A coordinator may start later than the worker, vanish and come
 * back: within `grace_ms` its requests go on and what they gave is delivered,
 * after that, or when it comes back as a new process, they are cancelled.
 *
 * Results of older epochs are dropped.  A peer that sends rubbish is answered
 * with ERROR of request 0 at most once a second and harms nobody else.
 */
#ifndef SILICEO_WORKER_COORDINATOR_LINK_H
#define SILICEO_WORKER_COORDINATOR_LINK_H

#include "common/error.h"
#include "worker/exchange.h"
#include "worker/link_times.h"
#include "worker/mesh_security.h"
#include <stddef.h>
#include <stdint.h>

enum { LINK_MAX_COORDINATORS = 16 };

typedef struct link_params {
    const char *node; /* name told to coordinators */
    const char *build;
    const char *profile;
    const char *const *coordinators; /* addresses */
    size_t n_coordinators;
    const mesh_security *security;
    uint64_t max_sequences;
    uint64_t queue; /* requests beyond those that run, over all coordinators */
    link_times times;
    uint64_t grace_ms;       /* a broken connection may come back within this */
    uint64_t drain_limit_ms; /* of a drain that main wishes */
} link_params;

typedef struct coordinator_link coordinator_link;

/* Start the thread.  params and x must outlive it.  A wrong address or key is an
 * error here; a coordinator that is not there yet is none. */
status coordinator_link_start(coordinator_link **out, const link_params *params, exchange *x,
                              error *err);
/* Wait for the thread's end, which a wish or a failed engine brings, and free. */
void coordinator_link_join(coordinator_link **link);

#endif
