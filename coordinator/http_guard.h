/* http_guard.h - which request headers are too doubtful to act on.
 *
 * libmicrohttpd 0.9.75 accepts requests whose length two parsers would read
 * differently (request smuggling); these rules refuse them.  Pure functions
 * over bytes from outside; any thread.
 */
#ifndef SILICEO_COORDINATOR_HTTP_GUARD_H
#define SILICEO_COORDINATOR_HTTP_GUARD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct http_guard {
    bool http_1_1;
    unsigned n_content_length;
    unsigned n_transfer_encoding;
    unsigned n_host;
    bool odd_transfer_encoding;
    bool bad_content_length;
    uint64_t content_length;
} http_guard;

void http_guard_init(http_guard *g, bool http_1_1);
void http_guard_header(http_guard *g, const char *name, const char *value);
/* NULL: fine; otherwise what is wrong, for the client. */
const char *http_guard_verdict(const http_guard *g);

/* 1 to 64 characters of letters, digits, '.', '_', '-': safe to echo and log. */
bool http_guard_request_id_is_sane(const char *text);
/* A list of header names, as Access-Control-Request-Headers holds. */
bool http_guard_header_list_is_sane(const char *text);
/* Under /v1/ (or tokenize and detokenize), where browsers of any origin may call. */
bool http_guard_path_is_api(const char *path);
/* /v1/messages and below, whose clients expect Anthropic's errors. */
bool http_guard_path_is_messages(const char *path);
/* Does a browser's Origin name the host that the request was sent to? */
bool http_guard_same_origin(const char *origin, const char *host);

#endif
