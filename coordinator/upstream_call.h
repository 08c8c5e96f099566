/* upstream_call.h - private to upstream*.c: the two kinds of calls to a server, and what they post.
 *
 * Calls live in web_client's thread; they know their server only by its index and hand `io` events
 * that are whole in themselves.
 */
#ifndef SILICEO_COORDINATOR_UPSTREAM_CALL_H
#define SILICEO_COORDINATOR_UPSTREAM_CALL_H

#include "coordinator/upstream_config.h"
#include "coordinator/web_client.h"

typedef enum upstream_event_kind {
    UPSTREAM_TOKENS,
    UPSTREAM_DONE,
    UPSTREAM_ERROR,
    UPSTREAM_MODELS, /* the check went well */
    UPSTREAM_REFUSED,
    UPSTREAM_SILENT /* the check failed in a way that says little */
} upstream_event_kind;

typedef struct upstream_event {
    web_event base;
    struct upstreams *owner;
    size_t server_idx;
    uint64_t generation; /* of the server's settings, as the target had it */
    upstream_event_kind kind;
    uint64_t request, epoch, number;
    /* TOKENS */
    uint64_t choice;
    wire_channel channel;
    wire_finish finish;
    uint64_t call;
    bool call_cut;
    char call_name[WIRE_MAX_NAME + 1];
    /* TOKENS, DONE: usage as far as it is known */
    uint64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    double prefill_ms, decode_ms;
    /* ERROR, REFUSED, SILENT */
    unsigned http_status;
    bool retryable;
    char code[64];
    upstream_model *models; /* MODELS; owned */
    size_t n_models;
    size_t length;
    char text[]; /* of TOKENS and of errors; terminated */
} upstream_event;

/* What a call needs to know; copied.  A call that has begun uses the config until its end. */
typedef struct upstream_target {
    struct upstreams *owner;
    size_t server_idx;
    upstream_config *config;
    uint64_t generation; /* of the config: what older ones bring of a check counts no more */
    void (*deliver)(void *io_context, web_event *event);
} upstream_target;

/* False: no memory. */
bool upstream_start_check(web_client *web, const upstream_target *t, uint64_t limit_ms);
bool upstream_start_submit(web_client *web, const upstream_target *t, const wire_submit *s,
                           uint64_t cancel_id);
void upstream_event_free(web_event *event);

#endif
