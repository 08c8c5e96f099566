/* node_table.h - the nodes of the mesh: who they are, how they fare, what they may get.
 *
 * A node is known by its name; its ZeroMQ identity and instance change with
 * every process start.  Its state is derived from facts (beats, connection,
 * what the worker says, failures, an admin's word) by node_judge(), never set
 * by hand, and carries a reason for people.  Busy is never dead: beats come from
 * a thread of their own.
 *
 * Time is passed in (milliseconds of the monotonic clock).  `io` thread.
 */
#ifndef SILICEO_COORDINATOR_NODE_TABLE_H
#define SILICEO_COORDINATOR_NODE_TABLE_H

#include "common/error.h"
#include "common/wire.h"
#include "coordinator/lengths.h"
#include "coordinator/prefix_set.h"
#include "coordinator/rates.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum node_state {
    NODE_CONNECTING, /* HELLO has come, no beat yet */
    NODE_LOADING,
    NODE_READY,
    NODE_SUSPECT,
    NODE_DOWN,
    NODE_DRAINING,
    NODE_QUARANTINED,
    NODE_STATES
} node_state;

/* How packets reach it, as far as the mesh VPN tells. */
typedef enum node_path { NODE_PATH_UNKNOWN, NODE_PATH_DIRECT, NODE_PATH_RELAYED } node_path;

typedef struct node_model {
    char name[WIRE_MAX_NAME + 1];
    char hash[40];
    char arch[40];
    char numerics[WIRE_MAX_NAME + 1]; /* equal ids give equal bits */
    uint64_t context_tokens;
    uint64_t since_wall_s;
    rates speed;
    lengths *answers; /* the table's, one for all nodes that have a model of the name */
    prefix_set held;  /* beginnings of prompts that it has confirmed to hold */

    /* By the beats; see node_models_follow(). */
    bool absent;               /* not loaded: a request has to wait until it is */
    uint64_t loading_since_ms; /* 0: it does not load */
    uint64_t loaded_ms;        /* when it last came to be loaded; 0: it always was */
    double load_s;             /* what that took; 0: not seen */
} node_model;

typedef struct node_limits { /* milliseconds */
    uint64_t suspect_ms;
    uint64_t down_ms;
    uint64_t forget_ms;
    uint64_t engine_stall_ms;
    uint64_t slow_path_ms; /* a round trip of this is a slow path */
    uint64_t breaker_ms;
    uint32_t breaker_failures;
} node_limits;

enum { NODE_MAX_IDENTITY = 255, NODE_BUCKETS = 1024, NODE_MAX = 10000 };

struct request;

typedef struct node {
    struct node *next;
    struct node *identity_next; /* in its bucket of the table */
    node_model *models;
    size_t n_models;
    struct request *requests; /* those that hold a place here, by request.node_next */
    uint64_t credit;
    uint64_t max_sequences;
    uint32_t in_flight; /* of those requests */

    /* facts from which the state is judged */
    uint32_t failures; /* server errors in a row */
    uint64_t instance;
    uint64_t last_heard_ms;
    uint64_t disconnected_ms;
    uint64_t quarantine_until_ms;
    uint64_t loading_since_ms; /* 0: it does not load */
    uint64_t drained_ms;       /* when an admin said so */
    wire_beat beat;            /* its reason is beat_reason */
    int fd;                    /* of the connection, to know its end; -1 */
    bool has_beat;
    bool connected;
    bool left; /* said BYE */
    bool drained_by_admin;
    bool probation; /* quarantine is over, one request may prove it well */

    node_path path;
    double path_rtt_ms; /* as the mesh VPN measured it; 0: unknown */

    node_state state;
    uint32_t rival_tries;
    uint64_t rival; /* instance of another process that wants the name */
    uint64_t state_since_ms;

    uint64_t vram_mib, ram_mib, slots, experts_total, threads;
    uint64_t served, failed, tokens_out, tokens_in;

    size_t n_identity;
    uint8_t identity[NODE_MAX_IDENTITY];
    char address[64]; /* of its end of the connection, without the port; "" unknown */
    char name[WIRE_MAX_NAME + 1];
    char profile[WIRE_MAX_NAME + 1];
    char gpu[WIRE_MAX_NAME + 1];
    char build[64];
    char backend[32];
    char beat_reason[256];
    char reason[320];
} node;

/* What is learned of a model whoever serves it. */
typedef struct model_answers {
    struct model_answers *next;
    char name[WIRE_MAX_NAME + 1];
    lengths lengths;
} model_answers;

typedef struct node_table {
    model_answers *answers;
    node *first; /* by name */
    node *by_identity[NODE_BUCKETS];
    size_t n_nodes;
    node_limits limits;
    void *context;
    /* After a state has changed; the node still has its requests. */
    void (*on_state)(void *context, node *n, node_state before);
    /* The process behind the name is another one: what it had in flight is lost. */
    void (*on_lost)(void *context, node *n, const char *why);
} node_table;

void node_table_release(node_table *t);

/* A HELLO came over this identity.  STATUS_UNAVAILABLE: another process has
 * the name and was alive a moment ago (STATUS_BAD_INPUT once that has been so for
 * several tries), or the same process is connected over another link (STATUS_BAD_INPUT).
 * *out is the node, its state judged. */
status node_table_hello(node_table *t, const void *identity, size_t n_identity, int fd,
                        const wire_hello *hello, uint64_t now_ms, node **out, error *err);
void node_table_beat(node_table *t, node *n, const wire_beat *beat, uint64_t now_ms);
void node_table_bye(node_table *t, node *n, const char *reason, uint64_t now_ms);
/* A connection has ended; its node, if it is one's, is suspect at once. */
void node_table_disconnected(node_table *t, int fd, uint64_t now_ms);
/* Sending failed because ZeroMQ does not know the peer any more. */
void node_table_unreachable(node_table *t, node *n, uint64_t now_ms);
/* A message of any kind came; a node that was taken for disconnected is back. */
void node_table_heard(node_table *t, node *n, int fd, uint64_t now_ms);
void node_table_tick(node_table *t, uint64_t now_ms);

/* The circuit breaker: server errors and time-outs count, clients' errors do not. */
void node_table_failure(node_table *t, node *n, bool at_once, uint64_t now_ms);
void node_table_success(node_table *t, node *n, uint64_t now_ms);

node *node_table_by_identity(const node_table *t, const void *identity, size_t n_identity);
node *node_table_by_name(const node_table *t, const char *name);
node_model *node_find_model(node *n, const char *model);
void node_table_drain(node_table *t, node *n, bool drain, uint64_t now_ms);
/* Remove a node from the list; its requests are lost. */
void node_table_forget(node_table *t, node *n);

/* State and reason that the facts amount to. */
node_state node_judge(const node *n, const node_limits *limits, uint64_t now_ms, char *reason,
                      size_t cap_reason);
const char *node_state_name(node_state state);
/* Seconds until a loading node serves, as it says or its progress promises; negative: no
 * telling. */
double node_loading_left_s(const node *n, uint64_t now_ms);

/* The three judgements a state is made of, each by itself: a word and what it rests on. */
typedef struct node_verdict {
    const char *word;
    char reason[120];
} node_verdict;
typedef struct node_verdicts {
    node_verdict process; /* ok, gone, left, failed: connection and what it said last */
    node_verdict engine;  /* ok, busy, stalled, loading, unknown: the age of its loop */
    node_verdict path;    /* ok, slow, silent, broken: beats and their round trip */
} node_verdicts;
void node_judge_parts(const node *n, const node_limits *limits, uint64_t now_ms,
                      node_verdicts *out);
const char *node_path_name(const node *n);
/* After a beat: which of its models are there. */
void node_models_follow(node *n, uint64_t now_ms);
/* Seconds until a request for it could begin: 0 where it is loaded; else by the node's word or
 * what it took last. */
double node_model_load_s(const node *n, const node_model *m, uint64_t now_ms);
const char *node_model_state_name(const node_model *m); /* loaded, loading, unloaded */
/* The longer of the round trips that beats and the mesh VPN show, s. */
double node_round_trip_s(const node *n);
/* Requests it may have at once: its credit, and no more than run at once. */
uint32_t node_places(const node *n);

#endif
