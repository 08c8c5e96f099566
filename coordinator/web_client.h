/* web_client.h - requests to other HTTP servers, by libcurl on a thread of its own.
 *
 * `io` starts and cancels calls over a bounded ring; the thread `curl` runs them all at once
 * and hands what came of them back as events over another, in order.  When `io` is slow
 * the thread reads nothing more until its events have gone over.  Neither waits for the
 * other.
 *
 * A call belongs to the thread once it was started; its on_data and on_end run there and
 * may post events.  on_end comes exactly once and frees what the call's maker gave.
 */
#ifndef SILICEO_COORDINATOR_WEB_CLIENT_H
#define SILICEO_COORDINATOR_WEB_CLIENT_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A request that has it comes from another coordinator and goes on to none, so that none goes round. */
#define WEB_FORWARDED "X-Siliceo-Forwarded"

typedef struct web_client web_client;
typedef struct web_call web_call;

/* First member of what a module posts to `io`. */
typedef struct web_event {
    struct web_event *next; /* the client's own */
    /* In `io`; frees the event. */
    void (*deliver)(void *io_context, struct web_event *event);
    void (*drop)(struct web_event *event); /* instead, when the client closes */
} web_event;

typedef struct web_result {
    long http_status;       /* 0: no reply came */
    bool cancelled;         /* by web_client_cancel(), or the client closes */
    bool refused;           /* nobody listens there, or the name is unknown */
    const char *error_text; /* NULL: the transfer was complete */
} web_result;

struct web_call {   /* first member of what a module knows of its call; freed by its on_end */
    web_call *next; /* the client's own */
    void *easy;
    void *headers;
    web_client *client;
    uint64_t cancel_id; /* for web_client_cancel(); 0: it cannot be */
    char *url;
    const char *unix_socket;   /* NULL: TCP; must outlive the call */
    const char *authorization; /* NULL, or the whole header line; must outlive the call */
    bool forwarded;            /* says that a coordinator asks, see WEB_FORWARDED */
    char *body;                /* NULL: GET */
    size_t n_body;
    uint32_t limit_ms; /* of the whole call; 0: none */
    /* In the thread, before the call begins; false: it ends at once with this error. */
    bool (*on_start)(web_call *call, error *err);
    bool (*on_data)(web_call *call, const char *bytes, size_t n); /* false: enough */
    void (*on_end)(web_call *call, const web_result *result);
};

status web_client_open(web_client **out, void *io_context, uint32_t connect_ms, error *err);
/* Ends all calls; events that have not been delivered are dropped.  Accepts NULL. */
void web_client_close(web_client *c);

/* For the outer epoll: readable when web_client_drain() has something to do. */
int web_client_fd(const web_client *c);
/* Deliver what has come.  Accepts NULL. */
void web_client_drain(web_client *c);

/* Takes the call over: its on_end will come.  False: no memory, the call is still the caller's. */
bool web_client_start(web_client *c, web_call *call);
void web_client_cancel(web_client *c, uint64_t cancel_id);

/* In the thread: hand something to `io`. */
void web_client_post(web_client *c, web_event *event);
/* In the thread: the status of the reply that is coming. */
long web_call_status(const web_call *call);

#endif
