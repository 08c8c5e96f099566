/* link_times.h - the durations of the link to the coordinators, each a setting of the worker. */
#ifndef SILICEO_WORKER_LINK_TIMES_H
#define SILICEO_WORKER_LINK_TIMES_H

#include <stdint.h>

typedef struct link_times {
    /* The transport's: a dead path is noticed after heartbeat_timeout_ms, a shorter blip is not. */
    uint32_t heartbeat_ms, heartbeat_timeout_ms;
    uint32_t reconnect_ms,
        reconnect_max_ms; /* pause before a try, which doubles up to the second */
    uint32_t connect_ms;  /* for a connection, and again for its handshake */
    uint32_t hello_ms;    /* before a HELLO that had no WELCOME is said again */
    uint32_t refused_ms;  /* the same where a person has to correct something */
    uint32_t idle_ms;     /* a coordinator that has asked for nothing so long lends its share */
    uint32_t cut_ms;      /* for the engine to end what a drain cuts */
    uint32_t tell_ms;     /* to tell of a failure, also those that connect just now */
    uint32_t linger_ms;   /* to send what was said last */
} link_times;

#endif
