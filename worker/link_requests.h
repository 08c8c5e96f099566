/* link_requests.h - private to the link: its state, and what it does with requests.
 *
 * Link thread only.  Nobody but coordinator_link.c and link_requests.c includes it.
 */
#ifndef SILICEO_WORKER_LINK_REQUESTS_H
#define SILICEO_WORKER_LINK_REQUESTS_H

#include "common/thread.h"
#include "worker/coordinator_link.h"
#include "worker/flights.h"
#include "worker/link_peer.h"
#include "worker/vram_watch.h"
#include <stdbool.h>
#include <string.h>

/* A model as the engine thread tells of it; known when it has a name. */
typedef struct link_model {
    engine_facts facts;
    bool loaded;
} link_model;

struct coordinator_link {
    const link_params *params;
    exchange *x;
    thread self;
    error start_error;
    void *context;
    link_peer peers[LINK_MAX_COORDINATORS];
    size_t n_peers;
    flights flights;
    wire_frame frame; /* what is being sent */
    uint64_t instance;
    uint64_t ram_mib;

    bool loaded; /* a model is, or was before it had to make room */
    bool failed;
    bool draining; /* by a coordinator's DRAIN */
    bool stopping; /* by main's wish */
    bool over;
    uint64_t drain_until_ms; /* UINT64_MAX: without limit */
    uint64_t over_at_ms;     /* after a failure */
    link_model models[ENGINE_LOOP_MAX_MODELS];
    size_t n_models; /* those known */
    engine_stats stats;
    vram_watch *gpu;        /* NULL: the models are on the CPU, or nobody tells */
    uint32_t loading_model; /* 1 + the number of the one that loads; 0: none */
    uint32_t permille;
    uint64_t left_until_ms; /* when it is loaded, as it looked last; 0: not known */
    char reason[sizeof((error *)0)->text];
};

wire_worker_state link_state(const coordinator_link *l);

static inline wire_bytes link_text(const char *text) {
    return wire_text(text, text == NULL ? 0 : strlen(text));
}

/* A SUBMIT: to the engine, or ERROR.  Takes the frame's bytes when it starts. */
void link_take_submit(coordinator_link *l, size_t peer, wire_message *m, zmq_msg_t *frame);
void link_take_cancel(coordinator_link *l, size_t peer, const wire_cancel *c);
/* TOKENS, DONE or ERROR of the engine, under the number that the coordinator gave. */
void link_pass_result(coordinator_link *l, wire_message *m);
/* An ERROR that another node may do better; false when the peer does not take it. */
bool link_send_error(coordinator_link *l, size_t peer, uint64_t request, uint64_t epoch,
                     uint64_t http_status, const char *code, const char *text);
/* Tell the engine; its ERROR of 499 ends the flight. */
void link_cancel(coordinator_link *l, flight *f);
/* Nobody waits for this peer's results any more. */
void link_drop_requests(coordinator_link *l, size_t peer, const char *why);

#endif
