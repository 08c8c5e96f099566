/* http_reply.c - what goes back to the client, whole or as a stream, and its end. */
#include "coordinator/http_exchange.h"
#include "coordinator/http_guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void http_exchange_closed(http_exchange *x, bool complete) {
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

void http_exchange_kill(http_exchange *x) {
    if (x->dead) return;
    x->dead = true;
    http_watch_end(&x->server->watch, &x->watched);
    http_connection_cut(x->peer);
    wake(x);
    http_exchange_closed(x, false);
}

void http_abort(http_exchange *x) {
    http_exchange_kill(x);
}

/* ------------------------------------------------------------ reply */

void http_set_header(http_exchange *x, const char *name, const char *value) {
    if (x->n_headers == HTTP_MAX_HEADERS_OUT) return;
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
        (void)MHD_add_response_header(
            response, "Access-Control-Expose-Headers",
            "x-request-id, retry-after, x-siliceo-node, x-siliceo-resumed, x-siliceo-thinking");
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

enum MHD_Result http_exchange_queue(http_exchange *x) {
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
        http_exchange_kill(x);
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

static const char *anthropic_type(unsigned http_status) {
    switch (http_status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    case 504:
        return "timeout_error";
    default:
        return http_status < 500 ? "invalid_request_error" : "api_error";
    }
}

void http_error_body_anthropic(json_text *out, unsigned http_status, const char *code,
                               const char *param, const char *request_id, const char *message) {
    json_text_format(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
                     anthropic_type(http_status));
    json_text_string(out, message, strlen(message));
    json_text_format(out, ",\"details\":{\"error_code\":");
    add_string_or_null(out, code);
    json_text_format(out, ",\"param\":");
    add_string_or_null(out, param);
    json_text_add(out, "}}", 2);
    if (request_id != NULL) {
        json_text_format(out, ",\"request_id\":");
        json_text_string(out, request_id, strlen(request_id));
    }
    json_text_add(out, "}", 1);
}

void http_reply_error(http_exchange *x, unsigned http_status, const char *code,
                      const char *param, unsigned retry_after_s, const char *message) {
    if (x->dead || x->reply != REPLY_NONE) return;
    json_text body = {0};
    if (http_guard_path_is_messages(x->path))
        http_error_body_anthropic(&body, http_status, code, param, http_request_id(x), message);
    else
        http_error_body(&body, http_status, code, param, message);
    if (retry_after_s > 0) {
        char text[16];
        (void)snprintf(text, sizeof text, "%u", retry_after_s);
        http_set_header(x, "Retry-After", text);
    }
    if (body.failed)
        http_exchange_kill(x);
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
        http_exchange_kill(x);
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
