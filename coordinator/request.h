/* request.h - the life of one request between the API and the nodes.
 *
 *     queued -> sent -> running -> (gone)          DONE, or an error
 *        ^________|________|                       failover: again, or on, on another node
 *     sent, running -> cancelling -> (gone)        the client left; the node has yet to say so
 *
 * A submitted request ends with exactly one on_done or on_error, unless its
 * owner cancels it first; then none comes.  A request that is being cancelled keeps
 * its place on the node until the node confirms, so that credit stays true.
 * What a node sends is believed only with the right epoch and number.
 * `io` thread.
 */
#ifndef SILICEO_COORDINATOR_REQUEST_H
#define SILICEO_COORDINATOR_REQUEST_H

#include "common/error.h"
#include "common/wire.h"
#include "coordinator/auth.h"
#include "coordinator/node_table.h"
#include "coordinator/prefix_chain.h"
#include "coordinator/replay.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct coordinator;
typedef struct request request;

typedef enum request_state {
    REQUEST_NEW,
    REQUEST_QUEUED,
    REQUEST_SENT,
    REQUEST_RUNNING,
    REQUEST_CANCELLING
} request_state;

/* Why a request failed, as the API tells it. */
typedef struct request_failure {
    unsigned http_status;
    unsigned retry_after_s; /* 0: none */
    char code[WIRE_MAX_NAME + 1];
    char param[WIRE_MAX_NAME + 1];
    char message[480];
} request_failure;

/* The owner's side. Messages are borrowed for the call.  After on_done and
 * on_error the request is gone. */
typedef struct request_sink {
    void *context;
    /* STATUS other than OK: the tokens make no sense; the request fails. */
    status (*on_tokens)(void *context, const wire_tokens *tokens, error *err);
    void (*on_done)(void *context, const request *r, const wire_done *done);
    void (*on_error)(void *context, const request *r, const request_failure *failure);
    /* It begins again on another node: forget what came.  resumes: it goes on there, and
     * only a finish that came without its DONE is to be forgotten. */
    void (*on_restart)(void *context, bool resumes);
} request_sink;

enum { REQUEST_MAX_TRIED = 8 };

struct request {
    request *hash_next;
    request *queue_next, *queue_previous; /* admission's */
    request *node_next, *node_previous;   /* of its node */
    node *node;
    struct tenant *tenant; /* whose key asks; the request holds a reference */
    request_sink sink;

    uint64_t id;
    uint64_t epoch;
    request_state state;
    wire_kind kind;
    uint64_t priority; /* 0 interactive, 1 background */
    uint64_t turn;     /* admission's */
    char *body;
    size_t n_body;
    prefix_chain chain;   /* beginnings of its prompt; owned */
    uint64_t seed;        /* for sampling where the body has none */
    double prompt_bytes;  /* of text; a guess at the prompt's length */
    double max_output;    /* tokens; 0: the client set no limit */
    uint64_t min_context; /* tokens a node must hold, once a smaller one has refused */

    uint64_t tried[REQUEST_MAX_TRIED]; /* instances that failed with it */
    size_t n_tried;
    uint64_t next_number; /* of TOKENS */
    uint64_t tokens;
    uint64_t reasoning_tokens; /* of them */
    uint64_t prompt_tokens, cached_tokens;
    wire_finish finish;   /* of the choice that ended last */
    uint64_t deadline_ns; /* the client's own; 0: none */
    uint64_t received_ns, queued_ns, first_sent_ns, sent_ns, first_token_ns, last_token_ns;
    uint64_t cancelled_ns;
    /* A stretch of decoding at one occupancy, for the rates. */
    uint64_t stretch_ns;
    uint64_t stretch_tokens;
    uint32_t stretch_occupancy;
    uint32_t attempts;
    replay given;          /* by nodes so far */
    const char *no_replay; /* why it cannot go on elsewhere whatever it has given, or NULL */

    request_failure last_failure;
    bool queued;
    bool forwarded;  /* by another coordinator; then it goes on to none */
    bool replayable; /* nothing of an answer has reached the client: it may begin again */
    char request_id[72];
    char model[WIRE_MAX_NAME + 1];
};

/* A zeroed request with its sink, of a tenant; the caller fills in the rest.  NULL without
 * memory. */
request *request_new(const request_sink *sink, tenant *t);
/* Of one that was never submitted. */
void request_discard(request *r);

/* Queue it and place what can be placed.  STATUS_OK: the sink will hear of it.
 * Otherwise failure says why (unknown model, no live node, queue full, a limit of
 * the key) and r is
 * still the caller's. */
status request_submit(struct coordinator *c, request *r, request_failure *failure);
/* The owner wants no more; the sink is not called again. */
void request_cancel(struct coordinator *c, request *r, const char *why);

void request_on_tokens(struct coordinator *c, node *n, const wire_tokens *tokens);
void request_on_done(struct coordinator *c, node *n, const wire_done *done);
void request_on_error(struct coordinator *c, node *n, const wire_error *e);
/* A node's requests are lost: those that may begin again elsewhere do, the others
 * fail.  only_unstarted: its connection broke and may come back, so leave the
 * started ones. */
void request_node_lost(struct coordinator *c, node *n, bool only_unstarted, const char *why);
/* Limits of time. */
void request_tick(struct coordinator *c, uint64_t now_ns);
/* Age of the oldest that somebody waits for, s; 0 without any.  It never exceeds
 * limit.total_s by more than a tick. */
double request_oldest_s(const struct coordinator *c, uint64_t now_ns);
/* Fail everything at once: the end. */
void request_fail_all(struct coordinator *c, const char *why);

/* --- for dispatch.c */
bool request_has_tried(const request *r, const node *n);
void request_attach(struct coordinator *c, request *r, node *n, uint64_t now_ns);

#endif
