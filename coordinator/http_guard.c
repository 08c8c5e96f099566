#include "coordinator/http_guard.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

void http_guard_init(http_guard *g, bool http_1_1) {
    *g = (http_guard){.http_1_1 = http_1_1};
}

static void read_length(http_guard *g, const char *value) {
    uint64_t n = 0;
    if (*value == '\0') g->bad_content_length = true;
    for (const char *p = value; *p != '\0'; p++) {
        if (*p < '0' || *p > '9' || n > (UINT64_MAX - 9) / 10) {
            g->bad_content_length = true;
            return;
        }
        n = n * 10 + (uint64_t)(*p - '0');
    }
    g->content_length = n;
}

void http_guard_header(http_guard *g, const char *name, const char *value) {
    if (value == NULL) value = "";
    if (strcasecmp(name, "content-length") == 0) {
        g->n_content_length++;
        read_length(g, value);
    } else if (strcasecmp(name, "transfer-encoding") == 0) {
        g->n_transfer_encoding++;
        if (strcasecmp(value, "chunked") != 0) g->odd_transfer_encoding = true;
    } else if (strcasecmp(name, "host") == 0) {
        g->n_host++;
    }
}

const char *http_guard_verdict(const http_guard *g) {
    if (g->n_content_length > 1) return "more than one Content-Length header";
    if (g->bad_content_length) return "Content-Length is not a number";
    if (g->n_transfer_encoding > 1) return "more than one Transfer-Encoding header";
    if (g->odd_transfer_encoding) return "Transfer-Encoding is not 'chunked'";
    if (g->n_transfer_encoding > 0 && g->n_content_length > 0) {
        return "both Content-Length and Transfer-Encoding are given";
    }
    if (g->n_transfer_encoding > 0 && !g->http_1_1) {
        return "Transfer-Encoding is not part of HTTP/1.0";
    }
    if (g->n_host > 1) return "more than one Host header";
    if (g->n_host == 0 && g->http_1_1) return "no Host header";
    return NULL;
}

static bool is_word(const char *text, size_t max, const char *others) {
    size_t n = 0;
    for (; text[n] != '\0'; n++) {
        char c = text[n];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  strchr(others, c) != NULL;
        if (!ok || n >= max) return false;
    }
    return n > 0;
}

bool http_guard_request_id_is_sane(const char *text) {
    return is_word(text, 64, "._-");
}

bool http_guard_header_list_is_sane(const char *text) {
    return is_word(text, 2000, "-_, ");
}

bool http_guard_path_is_api(const char *path) {
    return strncmp(path, "/v1/", 4) == 0 || strcmp(path, "/tokenize") == 0 ||
           strcmp(path, "/detokenize") == 0 || strcmp(path, "/rerank") == 0;
}

bool http_guard_path_is_messages(const char *path) {
    return path != NULL && strncmp(path, "/v1/messages", 12) == 0 &&
           (path[12] == '\0' || path[12] == '/');
}

bool http_guard_same_origin(const char *origin, const char *host) {
    const char *rest = strstr(origin, "://");
    return rest != NULL && host != NULL && strcasecmp(rest + 3, host) == 0;
}
