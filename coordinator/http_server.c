#include "coordinator/http_server.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/http_exchange.h"
#include "coordinator/http_guard.h"
#include "coordinator/http_listen.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

enum { POOL_BYTES = 32 * 1024 }; /* a connection; also the limit of its headers */

void http_server_event(http_server *s, uint64_t data) {
    http_exchange *x = http_watch_owner(&s->watch, data);
    if (x != NULL) http_exchange_kill(x);
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
    return http_exchange_queue(x);
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
    if (x->reply != REPLY_WHOLE) http_watch_begin(&s->watch, &x->watched, x->peer->fd, x);
    if (x->reply != REPLY_NONE) return http_exchange_queue(x);
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
    http_watch_end(&s->watch, &x->watched);
    x->dead = true;
    http_exchange_closed(x, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
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

static void on_connection(void *context, struct MHD_Connection *connection, void **slot,
                          enum MHD_ConnectionNotificationCode code) {
    http_server *s = context;
    if (code != MHD_CONNECTION_NOTIFY_STARTED) {
        http_connection_end(&s->connections, *slot);
        *slot = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    *slot = http_connection_begin(&s->connections, info == NULL ? -1 : info->connect_fd,
                                  clock_monotonic_ms() + s->params.header_ms);
}

void http_server_tick(http_server *s, uint64_t now_ms) {
    size_t n_cut = http_connections_tick(&s->connections, now_ms);
    s->stats.timed_out += n_cut;
    if (n_cut > 0) s->dirty = true;
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

/* With TLS the certificate is chosen at each handshake, so that it can be replaced. */
static struct MHD_Daemon *start_daemon(http_server *s) {
    static char versions[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_CERT_CALLBACK, 0, NULL},
                                   {MHD_OPTION_HTTPS_PRIORITIES, 0, versions},
                                   {MHD_OPTION_END, 0, NULL}};
    tls_identity_callback *callback = tls_identity_get_callback(s->tls);
    memcpy(&tls[0].ptr_value, &callback,
           sizeof callback); /* a function, which C casts to no void* */
    if (s->tls == NULL) tls[0].option = MHD_OPTION_END;
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
            (s->tls != NULL ? MHD_USE_TLS : 0),
        0, NULL, NULL, on_access, s, MHD_OPTION_EXTERNAL_LOGGER, log_daemon, s,
        MHD_OPTION_LISTEN_SOCKET, s->listen_fd, MHD_OPTION_CONNECTION_LIMIT,
        s->params.max_connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES,
        MHD_OPTION_CONNECTION_TIMEOUT, (s->params.idle_ms + 999) / 1000,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, s, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
}

status http_server_reload(http_server *s, error *err) {
    return s->tls == NULL ? STATUS_OK : tls_identity_reload(s->tls, err);
}

status http_server_open(http_server **out, const http_params *params, int outer_epoll,
                        error *err) {
    *out = NULL;
    http_server *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "http: no memory");
    s->params = *params;
    s->connections.linger_ms = params->linger_ms;
    s->listen_fd = -1;
    s->watch.epoll = outer_epoll;
    struct epoll_event event = {.events = EPOLLIN};
    const union MHD_DaemonInfo *info;
    status rc =
        http_listen(&s->listen_fd, s->params.address, s->address, sizeof s->address, err);
    if (rc == STATUS_OK && params->tls_cert_file[0] != '\0')
        rc = tls_identity_open(&s->tls, params->tls_cert_file, params->tls_key_file, err);
    if (rc != STATUS_OK) goto fail;
    s->daemon = start_daemon(s);
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
        http_exchange_kill(x);
    if (s->daemon != NULL) {
        /* A suspended connection at stop aborts the process: let them be resumed first. */
        (void)MHD_run(s->daemon);
        MHD_stop_daemon(s->daemon);
    }
    if (s->listen_fd >= 0) (void)close(s->listen_fd);
    http_connections_close(&s->connections);
    tls_identity_close(s->tls);
    http_watch_release(&s->watch);
    free(s);
}

const char *http_server_address(const http_server *s) {
    return s->address;
}

http_stats http_server_stats(const http_server *s) {
    http_stats stats = s->stats;
    stats.connections = s->connections.n_open;
    return stats;
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

void http_set_owner(http_exchange *x, void *owner) {
    x->owner = owner;
}

void *http_owner(const http_exchange *x) {
    return x->owner;
}
