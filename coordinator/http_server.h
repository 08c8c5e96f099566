/* http_server.h - HTTP/1.1 in and out: libmicrohttpd in external epoll mode, and our guards.
 *
 * An exchange is one request and its reply.  When the whole body is here the
 * server calls on_request; the owner then replies at once or later, whole or as
 * a stream.  A client that leaves is seen by EPOLLRDHUP in the outer epoll, also
 * while nothing is read or written, because libmicrohttpd looks at neither while
 * a connection is suspended.  RDHUP cannot tell a half-close from a close, so a
 * client that shuts its sending side down is gone, too.
 *
 * Guards: a doubtful framing header (more than one Content-Length, a transfer
 * coding other than chunked, both, Host not once) is 400 and close; a body that
 * is too large is 413 as early as the length is known; headers, body and
 * idle time have deadlines; a stream whose reader is slow is cut at its queue's
 * bound.
 *
 * Everything runs in the `io` thread.
 */
#ifndef SILICEO_COORDINATOR_HTTP_SERVER_H
#define SILICEO_COORDINATOR_HTTP_SERVER_H

#include "common/error.h"
#include "common/json.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct http_server http_server;
typedef struct http_exchange http_exchange;

typedef struct http_params {
    const char *address;       /* HOST:PORT */
    const char *tls_cert_file; /* "": plain HTTP */
    const char *tls_key_file;
    size_t max_body_bytes;
    size_t max_bodies_bytes; /* held at once, over all connections */
    size_t max_queue_bytes;  /* of a stream */
    uint32_t max_connections;
    uint32_t header_ms;
    uint32_t body_ms;
    uint32_t linger_ms; /* a refused body is read so long, or its client would lose the reply */
    uint32_t idle_ms;
    void *context;
    void (*on_request)(void *context, http_exchange *x);
} http_params;

typedef struct http_stats {
    uint64_t connections; /* open now */
    uint64_t exchanges;   /* open now */
    uint64_t refused;     /* by a guard, since the start */
    uint64_t timed_out;   /* header, body and idle deadlines, since the start */
    uint64_t slow_readers;
} http_stats;

/* Events of the outer epoll whose data has this bit belong to http_server_event(). */
#define HTTP_EVENT_BIT (1ull << 63)

/* Listen, and put the server's descriptor into outer_epoll. */
status http_server_open(http_server **out, const http_params *params, int outer_epoll,
                        error *err);
/* Ends every exchange (on_close), then the server.  Accepts NULL. */
void http_server_close(http_server *s);
const char *http_server_address(const http_server *s); /* HOST:PORT with the real port */
http_stats http_server_stats(const http_server *s);

/* Read the certificate again, for connections that come from now on. */
status http_server_reload(http_server *s, error *err);
void http_server_event(http_server *s, uint64_t data);
/* Do what is due; call it after each wake-up and after the owner has replied. */
void http_server_run(http_server *s);
/* Deadlines; call it some times a second. */
void http_server_tick(http_server *s, uint64_t now_ms);
/* Is there something for http_server_run() to do now? */
bool http_server_pending(const http_server *s);
/* Milliseconds until http_server_run() must be called; -1: no limit. */
int http_server_timeout_ms(const http_server *s);

/* --- the request, valid while the exchange is open */
const char *http_method(const http_exchange *x);
const char *http_path(const http_exchange *x);
const char *http_header(const http_exchange *x, const char *name); /* NULL without it */
const char *http_query(const http_exchange *x, const char *name);
const char *http_body(const http_exchange *x, size_t *length);
void http_body_drop(http_exchange *x);               /* free it early */
const char *http_request_id(const http_exchange *x); /* the client's if sane, or a fresh one */

/* Who asks: the owner's to set and read during on_request. */
void http_set_owner(http_exchange *x, void *owner);
void *http_owner(const http_exchange *x);

/* --- the reply */
/* Called once, when the reply has gone out (complete) or the client has; after
 * it the exchange must not be touched. */
void http_on_close(http_exchange *x, void *context,
                   void (*on_close)(void *context, bool complete));
/* Before the reply begins; name and value are copied. */
void http_set_header(http_exchange *x, const char *name, const char *value);
/* CORS headers on the reply: for the API, not for /admin. */
void http_allow_origins(http_exchange *x);
void http_reply(http_exchange *x, unsigned http_status, const char *content_type,
                const char *body, size_t length);
/* {"error":{message,type,param,code}}, or Anthropic's form of it below /v1/messages; param and
 * code may be NULL; retry_after_s 0: no header. */
void http_reply_error(http_exchange *x, unsigned http_status, const char *code,
                      const char *param, unsigned retry_after_s, const char *message);
/* The type of the error body for a status, as OpenAI's clients know them. */
const char *http_error_type(unsigned http_status);
void http_error_body(json_text *out, unsigned http_status, const char *code, const char *param,
                     const char *message);

/* {"type":"error","error":{type,message,details:{error_code,param}},"request_id":...}; code
 * and param may be NULL, without request_id where that is. */
void http_error_body_anthropic(json_text *out, unsigned http_status, const char *code,
                               const char *param, const char *request_id, const char *message);

/* Begin a text/event-stream.  Append to http_stream_out() and flush. */
void http_stream_begin(http_exchange *x);
json_text *http_stream_out(http_exchange *x);
/* False: the reader is too slow; the exchange was closed (on_close has been called). */
bool http_stream_flush(http_exchange *x);
void http_stream_end(http_exchange *x);
/* Cut the connection so that the client cannot take the reply for complete. */
void http_abort(http_exchange *x);

#endif
