#include "coordinator/http_server.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/http_guard.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    POOL_BYTES = 32 * 1024,         /* a connection; also the limit of its headers */
    SOCKET_QUEUE_BYTES = 64 * 1024, /* unsent bytes in the kernel before we keep them */
    LINGER_MS = 2000,               /* a refused body is read for so long, see linger_begin() */
    MAX_HEADERS_OUT = 16
};

/* A TCP connection; holds at most one exchange at a time. */
typedef struct http_peer {
    struct http_peer *next, *previous;
    http_server *server;
    int fd;
    uint64_t deadline_ms; /* 0: none */
    bool linger;          /* its last request was refused with the body still coming */
    bool cut;             /* shut down by us */
} http_peer;

typedef struct lingering {
    struct lingering *next;
    int fd;
    uint64_t deadline_ms;
} lingering;

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
    uint32_t guard_slot;
    uint32_t guard_generation; /* 0: not in the outer epoll */

    void *close_context;
    void (*on_close)(void *context, bool complete);

    reply_state reply;
    unsigned http_status;
    struct {
        char name[40];
        char *value;
    } headers[MAX_HEADERS_OUT];
    size_t n_headers;
    json_text out; /* a whole reply, or what a stream has not sent */
    size_t out_sent;
    bool out_ended;
    struct http_exchange *next, *previous;
};

struct http_server {
    http_params params;
    struct MHD_Daemon *daemon;
    int listen_fd; /* until the daemon owns it */
    int outer_epoll;
    bool dirty; /* a reply or resumption waits for MHD_run */
    bool closing;
    char address[300];
    http_peer *peers;
    http_exchange *exchanges;
    lingering *lingers;
    http_exchange **guards; /* by slot */
    uint32_t *generations;
    uint32_t n_guards;
    uint32_t free_hint;
    http_stats stats;
    size_t body_bytes; /* held now, over all exchanges */
};

/* ------------------------------------------------------------ client-gone guard */

static bool guard_grow(http_server *s) {
    uint32_t n = s->n_guards == 0 ? 64 : s->n_guards * 2;
    http_exchange **guards = realloc(s->guards, n * sizeof(http_exchange *));
    if (guards == NULL) return false;
    s->guards = guards;
    uint32_t *generations = realloc(s->generations, n * sizeof *generations);
    if (generations == NULL) return false;
    s->generations = generations;
    for (uint32_t i = s->n_guards; i < n; i++) {
        guards[i] = NULL;
        generations[i] = 0;
    }
    s->n_guards = n;
    return true;
}

/* The event carries slot and generation, never a pointer: it may be older than
 * the exchange that the slot holds by now. */
static void guard_begin(http_exchange *x) {
    http_server *s = x->server;
    if (x->guard_generation != 0 || x->peer->fd < 0) return;
    uint32_t slot = s->free_hint;
    while (slot < s->n_guards && s->guards[slot] != NULL)
        slot++;
    if (slot >= s->n_guards && !guard_grow(s)) return;
    uint32_t generation = (s->generations[slot] + 1) & 0x7fffffffu;
    if (generation == 0) generation = 1;
    struct epoll_event event = {.events = EPOLLRDHUP};
    event.data.u64 = HTTP_EVENT_BIT | (uint64_t)generation << 32 | slot;
    if (epoll_ctl(s->outer_epoll, EPOLL_CTL_ADD, x->peer->fd, &event) != 0) return;
    s->generations[slot] = generation;
    s->guards[slot] = x;
    s->free_hint = slot + 1;
    x->guard_slot = slot;
    x->guard_generation = generation;
}

static void guard_end(http_exchange *x) {
    http_server *s = x->server;
    if (x->guard_generation == 0) return;
    (void)epoll_ctl(s->outer_epoll, EPOLL_CTL_DEL, x->peer->fd, NULL);
    s->guards[x->guard_slot] = NULL;
    if (x->guard_slot < s->free_hint) s->free_hint = x->guard_slot;
    x->guard_generation = 0;
}

static void call_on_close(http_exchange *x, bool complete) {
    void (*on_close)(void *, bool) = x->on_close;
    x->on_close = NULL;
    if (on_close != NULL) on_close(x->close_context, complete);
}

static void wake(http_exchange *x) {
    x->server->dirty = true;
    if (!x->suspended) return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

/* The client is gone or must go.  The descriptor is never closed here, it is
 * libmicrohttpd's; the exchange is freed when that says completed. */
static void kill_exchange(http_exchange *x) {
    if (x->dead) return;
    x->dead = true;
    guard_end(x);
    if (!x->peer->cut) {
        x->peer->cut = true;
        (void)shutdown(x->peer->fd, SHUT_RDWR);
    }
    wake(x);
    call_on_close(x, false);
}

void http_abort(http_exchange *x) {
    kill_exchange(x);
}

void http_server_event(http_server *s, uint64_t data) {
    uint32_t slot = (uint32_t)data;
    uint32_t generation = (uint32_t)(data >> 32) & 0x7fffffffu;
    if (slot >= s->n_guards || s->guards[slot] == NULL) return;
    http_exchange *x = s->guards[slot];
    if (x->guard_generation != generation) return;
    kill_exchange(x);
}

/* ------------------------------------------------------------ reply */

void http_set_header(http_exchange *x, const char *name, const char *value) {
    if (x->n_headers == MAX_HEADERS_OUT) return;
    char *copy = strdup(value);
    if (copy == NULL) return;
    (void)snprintf(x->headers[x->n_headers].name, sizeof x->headers[0].name, "%s", name);
    x->headers[x->n_headers++].value = copy;
}

void http_allow_origins(http_exchange *x) {
    x->cors = true;
}

static void add_headers(http_exchange *x, struct MHD_Response *response) {
    (void)MHD_add_response_header(response, "x-request-id", x->request_id);
    if (x->cors) {
        (void)MHD_add_response_header(response, "Access-Control-Allow-Origin", "*");
        (void)MHD_add_response_header(response, "Access-Control-Expose-Headers",
                                      "x-request-id, retry-after, x-siliceo-node");
    }
    for (size_t i = 0; i < x->n_headers; i++) {
        (void)MHD_add_response_header(response, x->headers[i].name, x->headers[i].value);
    }
}

static ssize_t read_stream(void *context, uint64_t pos, char *out, size_t cap) {
    (void)pos;
    http_exchange *x = context;
    if (x->dead) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = x->out.length - x->out_sent;
    if (n == 0) {
        if (x->out_ended) return MHD_CONTENT_READER_END_OF_STREAM;
        x->suspended = true;
        MHD_suspend_connection(x->connection);
        return 0;
    }
    if (n > cap) n = cap;
    memcpy(out, x->out.bytes + x->out_sent, n);
    x->out_sent += n;
    if (x->out_sent == x->out.length) {
        json_text_clear(&x->out);
        x->out_sent = 0;
    }
    return (ssize_t)n;
}

static enum MHD_Result queue_reply(http_exchange *x) {
    struct MHD_Response *response;
    if (x->reply == REPLY_STREAM) {
        response =
            MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_stream, x, NULL);
    } else {
        response =
            MHD_create_response_from_buffer(x->out.length, x->out.bytes, MHD_RESPMEM_MUST_FREE);
        if (response != NULL) memset(&x->out, 0, sizeof x->out); /* the response owns it now */
    }
    if (response == NULL) return MHD_NO;
    add_headers(x, response);
    x->queued = true;
    enum MHD_Result rc = MHD_queue_response(x->connection, x->http_status, response);
    MHD_destroy_response(response);
    return rc;
}

void http_reply(http_exchange *x, unsigned http_status, const char *content_type,
                const char *body, size_t length) {
    if (x->dead || x->reply != REPLY_NONE) return;
    json_text_clear(&x->out);
    if (length > 0) json_text_add(&x->out, body, length);
    if (x->out.failed) {
        kill_exchange(x);
        return;
    }
    if (content_type != NULL) http_set_header(x, "Content-Type", content_type);
    x->http_status = http_status;
    x->reply = REPLY_WHOLE;
    wake(x);
}

const char *http_error_type(unsigned http_status) {
    if (http_status == 401) return "authentication_error";
    if (http_status == 403) return "permission_error";
    if (http_status == 429) return "rate_limit_error";
    return http_status >= 500 ? "server_error" : "invalid_request_error";
}

static void add_string_or_null(json_text *out, const char *text) {
    if (text == NULL || text[0] == '\0')
        json_text_add(out, "null", 4);
    else
        json_text_string(out, text, strlen(text));
}

void http_error_body(json_text *out, unsigned http_status, const char *code, const char *param,
                     const char *message) {
    json_text_format(out, "{\"error\":{\"message\":");
    json_text_string(out, message, strlen(message));
    json_text_format(out, ",\"type\":\"%s\",\"param\":", http_error_type(http_status));
    add_string_or_null(out, param);
    json_text_format(out, ",\"code\":");
    add_string_or_null(out, code);
    json_text_add(out, "}}", 2);
}

void http_reply_error(http_exchange *x, unsigned http_status, const char *code,
                      const char *param, unsigned retry_after_s, const char *message) {
    if (x->dead || x->reply != REPLY_NONE) return;
    json_text body = {0};
    http_error_body(&body, http_status, code, param, message);
    if (retry_after_s > 0) {
        char text[16];
        (void)snprintf(text, sizeof text, "%u", retry_after_s);
        http_set_header(x, "Retry-After", text);
    }
    if (body.failed)
        kill_exchange(x);
    else
        http_reply(x, http_status, "application/json", body.bytes, body.length);
    json_text_release(&body);
}

void http_stream_begin(http_exchange *x) {
    if (x->dead || x->reply != REPLY_NONE) return;
    http_set_header(x, "Content-Type", "text/event-stream");
    http_set_header(x, "Cache-Control", "no-cache");
    http_set_header(x, "X-Accel-Buffering", "no");
    x->http_status = 200;
    x->reply = REPLY_STREAM;
    wake(x);
}

json_text *http_stream_out(http_exchange *x) {
    return &x->out;
}

/* Give the sent part of the queue back once it is the larger half. */
static void compact(json_text *out, size_t *sent) {
    if (*sent < 4096 || *sent < out->length / 2) return;
    memmove(out->bytes, out->bytes + *sent, out->length - *sent);
    out->length -= *sent;
    out->bytes[out->length] = '\0';
    *sent = 0;
}

bool http_stream_flush(http_exchange *x) {
    if (x->dead) return false;
    if (x->out.failed || x->out.length - x->out_sent > x->server->params.max_queue_bytes) {
        x->server->stats.slow_readers++;
        kill_exchange(x);
        return false;
    }
    compact(&x->out, &x->out_sent);
    wake(x);
    return true;
}

void http_stream_end(http_exchange *x) {
    x->out_ended = true;
    wake(x);
}

/* ------------------------------------------------------------ request */

static void make_request_id(http_exchange *x) {
    const char *given =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "x-request-id");
    if (given != NULL && http_guard_request_id_is_sane(given)) {
        (void)snprintf(x->request_id, sizeof x->request_id, "%s", given);
        return;
    }
    uint64_t random[2] = {0, 0};
    if (getrandom(random, sizeof random, GRND_NONBLOCK) < 0) random[0] = clock_monotonic_ns();
    (void)snprintf(x->request_id, sizeof x->request_id, "req_%016llx%08llx",
                   (unsigned long long)random[0], (unsigned long long)(random[1] >> 32));
}

static enum MHD_Result count_header(void *context, enum MHD_ValueKind kind, const char *name,
                                    const char *value) {
    (void)kind;
    http_guard_header(context, name, value);
    return MHD_YES;
}

static http_exchange *exchange_new(http_server *s, struct MHD_Connection *connection,
                                   const char *path, const char *method) {
    http_exchange *x = calloc(1, sizeof *x);
    if (x == NULL) return NULL;
    x->path = strdup(path);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (x->path == NULL || info == NULL || info->socket_context == NULL) {
        free(x->path);
        free(x);
        return NULL;
    }
    x->server = s;
    x->peer = info->socket_context;
    x->connection = connection;
    x->method = method;
    make_request_id(x);
    x->next = s->exchanges;
    if (s->exchanges != NULL) s->exchanges->previous = x;
    s->exchanges = x;
    s->stats.exchanges++;
    return x;
}

/* Refuse in the first handler call: only there libmicrohttpd does not read the body. */
static enum MHD_Result refuse_early(http_exchange *x, unsigned http_status,
                                    const char *message) {
    x->server->stats.refused++;
    x->dispatched = true;
    x->peer->linger = true;
    http_set_header(x, "Connection", "close");
    if (http_guard_path_is_api(x->path)) http_allow_origins(x);
    http_reply_error(x, http_status, http_status == 413 ? "body_too_large" : "bad_headers",
                     NULL, 0, message);
    return queue_reply(x);
}

static enum MHD_Result begin_exchange(http_server *s, http_exchange *x, const char *version) {
    http_guard guard;
    http_guard_init(&guard, strcmp(version, "HTTP/1.1") == 0);
    (void)MHD_get_connection_values(x->connection, MHD_HEADER_KIND, count_header, &guard);
    const char *trouble = http_guard_verdict(&guard);
    if (trouble != NULL) return refuse_early(x, 400, trouble);
    if (guard.content_length > s->params.max_body_bytes) {
        char message[160];
        (void)snprintf(message, sizeof message,
                       "the request body of %llu bytes is over the limit of %zu",
                       (unsigned long long)guard.content_length, s->params.max_body_bytes);
        return refuse_early(x, 413, message);
    }
    x->peer->deadline_ms = clock_monotonic_ms() + s->params.body_ms;
    return MHD_YES;
}

static void drop_body(http_exchange *x) {
    json_text_release(&x->body);
    x->server->body_bytes -= x->body_counted;
    x->body_counted = 0;
}

/* A body that is refused here is read and dropped until its end or the deadline. */
static void take_body(http_exchange *x, const char *bytes, size_t length) {
    http_server *s = x->server;
    if (x->dead || x->over_size || x->no_room) return;
    x->over_size = x->body.length + length > s->params.max_body_bytes;
    x->no_room = s->body_bytes + length > s->params.max_bodies_bytes;
    if (x->over_size || x->no_room) {
        drop_body(x);
        return;
    }
    json_text_add(&x->body, bytes, length);
    x->body_counted += length;
    s->body_bytes += length;
}

static void dispatch(http_exchange *x) {
    http_server *s = x->server;
    x->dispatched = true;
    x->peer->deadline_ms = 0;
    if (x->over_size) {
        s->stats.refused++;
        char message[120];
        (void)snprintf(message, sizeof message,
                       "the request body is over the limit of %zu bytes",
                       s->params.max_body_bytes);
        if (http_guard_path_is_api(x->path)) http_allow_origins(x);
        http_reply_error(x, 413, "body_too_large", NULL, 0, message);
    } else if (x->body.failed || x->no_room) {
        http_reply_error(x, 503, "no_memory", NULL, 1, "no memory for the request body");
    } else {
        s->params.on_request(s->params.context, x);
    }
}

static enum MHD_Result on_access(void *context, struct MHD_Connection *connection,
                                 const char *url, const char *method, const char *version,
                                 const char *upload, size_t *upload_size, void **slot) {
    http_server *s = context;
    http_exchange *x = *slot;
    if (x == NULL) {
        if (s->closing) return MHD_NO;
        *slot = x = exchange_new(s, connection, url, method);
        return x == NULL ? MHD_NO : begin_exchange(s, x, version);
    }
    if (x->dead) return MHD_NO;
    if (*upload_size > 0) {
        take_body(x, upload, *upload_size);
        *upload_size = 0;
        return MHD_YES;
    }
    if (!x->dispatched) dispatch(x);
    if (x->dead) return MHD_NO;
    if (x->queued) return MHD_YES;
    if (x->guard_generation == 0 && x->reply != REPLY_WHOLE) guard_begin(x);
    if (x->reply != REPLY_NONE) return queue_reply(x);
    x->suspended = true;
    MHD_suspend_connection(connection);
    return MHD_YES;
}

static void on_completed(void *context, struct MHD_Connection *connection, void **slot,
                         enum MHD_RequestTerminationCode code) {
    (void)connection;
    http_server *s = context;
    http_exchange *x = *slot;
    *slot = NULL;
    if (x == NULL) return;
    guard_end(x);
    x->dead = true;
    call_on_close(x, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    x->peer->deadline_ms = clock_monotonic_ms() + s->params.idle_ms;
    if (x->previous != NULL)
        x->previous->next = x->next;
    else
        s->exchanges = x->next;
    if (x->next != NULL) x->next->previous = x->previous;
    for (size_t i = 0; i < x->n_headers; i++)
        free(x->headers[i].value);
    drop_body(x);
    json_text_release(&x->out);
    free(x->path);
    free(x);
    s->stats.exchanges--;
}

/* ------------------------------------------------------------ connections */

/* A client that still sends a refused body would lose our reply to a reset when
 * the descriptor is closed over unread bytes; so a duplicate is read empty for a
 * short while. */
static void linger_begin(http_server *s, int fd) {
    lingering *l = calloc(1, sizeof *l);
    if (l == NULL) return;
    l->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (l->fd < 0) {
        free(l);
        return;
    }
    (void)shutdown(l->fd, SHUT_WR);
    l->deadline_ms = clock_monotonic_ms() + LINGER_MS;
    l->next = s->lingers;
    s->lingers = l;
}

static void linger_run(http_server *s, uint64_t now_ms) {
    static char sink[65536];
    for (lingering **at = &s->lingers; *at != NULL;) {
        lingering *l = *at;
        ssize_t n = 1;
        for (int i = 0; i < 64 && n > 0; i++)
            n = recv(l->fd, sink, sizeof sink, MSG_DONTWAIT);
        bool over = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
        if (!over && !s->closing && now_ms < l->deadline_ms) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        (void)close(l->fd);
        free(l);
    }
}

static void peer_begin(http_server *s, struct MHD_Connection *connection, void **slot) {
    http_peer *peer = calloc(1, sizeof *peer);
    *slot = peer;
    if (peer == NULL) return;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    peer->server = s;
    peer->fd = info == NULL ? -1 : info->connect_fd;
    peer->deadline_ms = clock_monotonic_ms() + s->params.header_ms;
    int low = SOCKET_QUEUE_BYTES;
    int one = 1;
    (void)setsockopt(peer->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &low, sizeof low);
    (void)setsockopt(peer->fd, SOL_SOCKET, SO_SNDBUF, &low, sizeof low);
    (void)setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    peer->next = s->peers;
    if (s->peers != NULL) s->peers->previous = peer;
    s->peers = peer;
    s->stats.connections++;
}

static void peer_end(http_server *s, void **slot) {
    http_peer *peer = *slot;
    *slot = NULL;
    if (peer == NULL) return;
    if (peer->linger) linger_begin(s, peer->fd);
    if (peer->previous != NULL)
        peer->previous->next = peer->next;
    else
        s->peers = peer->next;
    if (peer->next != NULL) peer->next->previous = peer->previous;
    free(peer);
    s->stats.connections--;
}

static void on_connection(void *context, struct MHD_Connection *connection, void **slot,
                          enum MHD_ConnectionNotificationCode code) {
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        peer_begin(context, connection, slot);
    else
        peer_end(context, slot);
}

void http_server_tick(http_server *s, uint64_t now_ms) {
    for (http_peer *peer = s->peers; peer != NULL; peer = peer->next) {
        if (peer->deadline_ms == 0 || now_ms < peer->deadline_ms || peer->cut) continue;
        peer->cut = true;
        s->stats.timed_out++;
        s->dirty = true;
        (void)shutdown(peer->fd, SHUT_RDWR);
    }
    if (s->lingers != NULL) linger_run(s, now_ms);
}

/* ------------------------------------------------------------ the server */

static void log_daemon(void *context, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
static void log_daemon(void *context, const char *format, va_list args) {
    (void)context;
    char text[300];
    (void)vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    log_debug("http-daemon", "text=\"%s\"", text);
}

static status bind_any(http_server *s, const struct addrinfo *list, error *err) {
    int why = 0;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int one = 1;
        if (fd < 0) {
            why = errno;
            continue;
        }
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1024) == 0) {
            s->listen_fd = fd;
            return STATUS_OK;
        }
        why = errno;
        (void)close(fd);
    }
    return error_set_errno(err, STATUS_IO, why, "http: cannot listen on '%s'",
                           s->params.address);
}

static status listen_on(http_server *s, error *err) {
    char host[256];
    const char *colon = strrchr(s->params.address, ':');
    size_t length = colon == NULL ? sizeof host : (size_t)(colon - s->params.address);
    const char *begin = s->params.address;
    if (length >= 2 && length < sizeof host && begin[0] == '[' && begin[length - 1] == ']') {
        begin++;
        length -= 2;
    }
    if (length >= sizeof host) {
        return error_set(err, STATUS_BAD_INPUT, "http: '%s' is not HOST:PORT",
                         s->params.address);
    }
    memcpy(host, begin, length);
    host[length] = '\0';
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    int code = getaddrinfo(length == 0 ? NULL : host, colon + 1, &hints, &list);
    if (code != 0) {
        return error_set(err, STATUS_IO, "http: '%s': %s", s->params.address,
                         gai_strerror(code));
    }
    status rc = bind_any(s, list, err);
    freeaddrinfo(list);
    if (rc != STATUS_OK) return rc;
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    char port[16] = "0";
    if (getsockname(s->listen_fd, (struct sockaddr *)&at, &size) == 0) {
        (void)getnameinfo((struct sockaddr *)&at, size, NULL, 0, port, sizeof port,
                          NI_NUMERICSERV);
    }
    (void)snprintf(s->address, sizeof s->address, "%.*s:%s", (int)(colon - s->params.address),
                   s->params.address, port);
    return STATUS_OK;
}

status http_server_open(http_server **out, const http_params *params, int outer_epoll,
                        error *err) {
    *out = NULL;
    http_server *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "http: no memory");
    s->params = *params;
    s->listen_fd = -1;
    s->outer_epoll = outer_epoll;
    struct epoll_event event = {.events = EPOLLIN};
    const union MHD_DaemonInfo *info;
    status rc = listen_on(s, err);
    if (rc != STATUS_OK) goto fail;
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_access,
        s, MHD_OPTION_EXTERNAL_LOGGER, log_daemon, s, MHD_OPTION_LISTEN_SOCKET, s->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, params->max_connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
        (params->idle_ms + 999) / 1000, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_END);
    if (s->daemon == NULL) {
        rc =
            error_set(err, STATUS_IO, "http: libmicrohttpd does not start on '%s'", s->address);
        goto fail;
    }
    s->listen_fd = -1;
    info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    event.data.u64 = HTTP_EVENT_BIT; /* generation 0: no exchange, only a reason to run */
    if (info == NULL || epoll_ctl(outer_epoll, EPOLL_CTL_ADD, info->epoll_fd, &event) != 0) {
        rc = error_set_errno(err, STATUS_IO, errno, "http: cannot watch the server");
        goto fail;
    }
    *out = s;
    return STATUS_OK;
fail:
    http_server_close(s);
    return rc;
}

void http_server_close(http_server *s) {
    if (s == NULL) return;
    s->closing = true;
    for (http_exchange *x = s->exchanges; x != NULL; x = x->next)
        kill_exchange(x);
    if (s->daemon != NULL) {
        /* A suspended connection at stop aborts the process: let them be resumed first. */
        (void)MHD_run(s->daemon);
        MHD_stop_daemon(s->daemon);
    }
    if (s->listen_fd >= 0) (void)close(s->listen_fd);
    linger_run(s, UINT64_MAX);
    free(s->guards);
    free(s->generations);
    free(s);
}

const char *http_server_address(const http_server *s) {
    return s->address;
}

http_stats http_server_stats(const http_server *s) {
    return s->stats;
}

void http_server_run(http_server *s) {
    s->dirty = false;
    (void)MHD_run(s->daemon);
}

bool http_server_pending(const http_server *s) {
    return s->dirty;
}

int http_server_timeout_ms(const http_server *s) {
    MHD_UNSIGNED_LONG_LONG ms = 0;
    if (MHD_get_timeout(s->daemon, &ms) != MHD_YES) return -1;
    return ms > 60000 ? 60000 : (int)ms;
}

/* ------------------------------------------------------------ accessors */

const char *http_method(const http_exchange *x) {
    return x->method;
}

const char *http_path(const http_exchange *x) {
    return x->path;
}

const char *http_header(const http_exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *http_query(const http_exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, name);
}

const char *http_body(const http_exchange *x, size_t *length) {
    *length = x->body.length;
    return x->body.bytes;
}

void http_body_drop(http_exchange *x) {
    drop_body(x);
}

const char *http_request_id(const http_exchange *x) {
    return x->request_id;
}

void http_on_close(http_exchange *x, void *context,
                   void (*on_close)(void *context, bool complete)) {
    x->close_context = context;
    x->on_close = on_close;
}
