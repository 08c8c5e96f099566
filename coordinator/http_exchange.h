/* http_exchange.h - private to http_server.c and http_reply.c: the server and its exchanges. */
#ifndef SILICEO_COORDINATOR_HTTP_EXCHANGE_H
#define SILICEO_COORDINATOR_HTTP_EXCHANGE_H

#include "coordinator/http_connection.h"
#include "coordinator/http_server.h"
#include "coordinator/http_watch.h"
#include "coordinator/tls_identity.h"
#include <microhttpd.h>

enum { HTTP_MAX_HEADERS_OUT = 16 };

typedef enum reply_state { REPLY_NONE, REPLY_WHOLE, REPLY_STREAM, REPLY_ENDED } reply_state;

struct http_exchange {
    http_server *server;
    http_peer *peer;
    struct MHD_Connection *connection;
    const char *method;
    char *path;
    char request_id[72];
    json_text body;
    bool over_size;
    bool no_room; /* all bodies together are at their bound */
    size_t body_counted;
    bool dispatched;
    bool suspended;
    bool queued; /* the reply is with libmicrohttpd */
    bool dead;   /* the client is gone or cut */
    bool cors;
    http_watched watched; /* while nothing is read or written, for the client's end */

    void *owner; /* whose key asks, see http_set_owner() */
    void *close_context;
    void (*on_close)(void *context, bool complete);

    reply_state reply;
    unsigned http_status;
    struct {
        char name[40];
        char *value;
    } headers[HTTP_MAX_HEADERS_OUT];
    size_t n_headers;
    json_text out; /* a whole reply, or what a stream has not sent */
    size_t out_sent;
    bool out_ended;
    struct http_exchange *next, *previous;
};

struct http_server {
    http_params params;
    struct MHD_Daemon *daemon;
    tls_identity *tls; /* NULL: plain HTTP */
    int listen_fd;     /* until the daemon owns it */
    bool dirty;        /* a reply or resumption waits for MHD_run */
    bool closing;
    char address[300];
    http_connections connections;
    http_exchange *exchanges;
    http_watch watch;
    http_stats stats;
    size_t body_bytes; /* held now, over all exchanges */
};

/* The client is gone or must go: on_close is called, the exchange is freed when
 * libmicrohttpd says that it is completed. */
void http_exchange_kill(http_exchange *x);
/* Hand the reply to libmicrohttpd. */
enum MHD_Result http_exchange_queue(http_exchange *x);
void http_exchange_closed(http_exchange *x, bool complete);

#endif
