/* link_peer.h - one coordinator as the link sees it: connection, greeting, beats.
 *
 * Knows when a HELLO or BEAT is due and what an answer to them means; the link
 * fills the messages and keeps the requests.  Link thread only.
 */
#ifndef SILICEO_WORKER_LINK_PEER_H
#define SILICEO_WORKER_LINK_PEER_H

#include "common/wire.h"
#include "worker/peer_socket.h"

typedef struct link_peer {
    peer_socket socket;
    const char *address;
    const link_times *times;
    bool up;              /* connected */
    bool welcomed;        /* since it is up */
    bool refused;         /* it does not want us; asked again now and then */
    uint64_t coordinator; /* instance of its process; 0: never met */
    uint64_t down_since_ms;
    uint64_t hello_due_ms;
    uint64_t hello_sent_ms;
    uint64_t hello_again_ms; /* pause before the next one where no WELCOME comes */
    uint64_t beat_due_ms;
    uint64_t beat_interval_ms;
    uint64_t beat_number;
    uint64_t beat_sent_ns;
    uint64_t acked_ms;
    uint64_t rtt_us;
    uint64_t complained_ms; /* when it was last told of a bad frame */
    uint64_t busy_ms;       /* when it last had a request here */
    uint64_t grant;
} link_peer;

enum { LINK_NEVER_MS = 0 }; /* of down_since_ms and the like */

/* Follow the connection's events. */
void link_peer_follow(link_peer *p, uint64_t now_ms);

/* HELLO is due by time, by a change, or because beats stay without answer. */
bool link_peer_hello_due(link_peer *p, uint64_t now_ms);
void link_peer_send_hello(link_peer *p, wire_frame *frame, const wire_hello *hello,
                          uint64_t now_ms);
bool link_peer_beat_due(const link_peer *p, uint64_t now_ms);
/* Sets number and rtt_us of the beat. */
void link_peer_send_beat(link_peer *p, wire_frame *frame, wire_beat *beat, uint64_t now_ms);
/* What is due first, as milliseconds from now, at most cap. */
uint64_t link_peer_wait_ms(const link_peer *p, uint64_t now_ms, uint64_t cap);

/* True when it is another process than the one met before. */
bool link_peer_welcome(link_peer *p, const wire_welcome *welcome, uint64_t now_ms);
void link_peer_ack(link_peer *p, const wire_ack *ack, uint64_t now_ms);
void link_peer_refused(link_peer *p, const wire_error *refusal);
/* Answer a bad frame with ERROR of request 0, once a second at most. */
void link_peer_complain(link_peer *p, wire_frame *frame, const error *reason, uint64_t now_ms);

#endif
