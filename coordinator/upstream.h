/* upstream.h - OpenAI-compatible servers (llama-server, Ollama, vLLM, another coordinator) as nodes.
 *
 * Each is a node like any other: what its HTTP says is turned into the messages that a worker
 * would have sent (HELLO, BEAT, TOKENS, DONE, ERROR) and comes in over the same callback, so that
 * states, routing, limits of time and the circuit breaker are the same for both.  It is asked for
 * its models every upstream.check_s; where nobody listens it is down at once, where it is
 * only slow it goes on as long as its beats' limits allow.
 *
 * A server is configured by `NAME URL [option=value]...`: key_env (a variable of the environment) or
 * key_file, which hold its API key; models=a,b (those of its models that are offered); concurrent
 * (requests at once, 4); context (tokens, where it does not say).  Its keys are never logged.
 *
 * Everything here is called in `io`; the transfers run in web_client's thread.
 */
#ifndef SILICEO_COORDINATOR_UPSTREAM_H
#define SILICEO_COORDINATOR_UPSTREAM_H

#include "common/error.h"
#include "common/wire.h"
#include "coordinator/web_client.h"
#include "coordinator/worker_link.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The architecture of a model that another coordinator serves.  What came from a coordinator is
 * not passed on to one, so that coordinators may be upstreams of each other. */
#define UPSTREAM_COORDINATOR "coordinator"

typedef struct upstreams upstreams;

typedef struct upstreams_params {
    uint64_t check_ms, check_limit_ms, beat_ms;
    web_client *web; /* must close first, and outlives no upstream */
    void *context;
    void (*on_message)(void *context, const worker_peer *peer, const wire_message *message);
    /* A server is off the list.  True once its node has nothing to do and is forgotten. */
    bool (*on_retired)(void *context, const char *name);
} upstreams_params;

/* Without servers. */
status upstreams_open(upstreams **out, const upstreams_params *params, error *err);
void upstreams_close(upstreams *u); /* after the web client; accepts NULL */
/* These lines are the servers from now on.  What runs on one that is taken off, or whose settings
 * change, goes on as it began.  On failure nothing changes, and err names the line and field. */
status upstreams_set(upstreams *u, const char *servers, error *err);
/* Checks and beats that are due. */
void upstreams_tick(upstreams *u, uint64_t now_ms);

/* Is this the identity of an upstream?  No peer of the mesh can have one like it. */
bool upstream_is_identity(const void *identity, size_t n_identity);
/* What would have gone to a worker. */
status upstreams_send(upstreams *u, const void *identity, size_t n_identity,
                      const wire_message *message, error *err);
/* Would upstreams_set() take these lines? */
status upstreams_check(const char *servers, error *err);

#endif
