#include "coordinator/api.h"

#include "coordinator/http_guard.h"
#include <string.h>

static void preflight(http_exchange *x) {
    const char *wanted = http_header(x, "Access-Control-Request-Headers");
    if (wanted != NULL && http_guard_header_list_is_sane(wanted)) {
        http_set_header(x, "Access-Control-Allow-Headers", wanted);
    }
    http_set_header(x, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    http_set_header(x, "Access-Control-Max-Age", "86400");
    http_reply(x, 204, NULL, NULL, 0);
}

typedef struct route {
    const char *path;
    const char *method;
    void (*run)(coordinator *c, http_exchange *x);
} route;

static void all_models(coordinator *c, http_exchange *x) {
    api_models(c, x, NULL);
}

static const route routes[] = {
    {"/v1/chat/completions", "POST", api_chat},
    {"/v1/models", "GET", all_models},
    {"/healthz", "GET", api_health},
    {"/readyz", "GET", api_ready},
    {"/status", "GET", api_status},
    {"/metrics", "GET", api_metrics},
};

static bool method_fits(http_exchange *x, const char *method) {
    const char *given = http_method(x);
    if (strcmp(given, method) == 0) return true;
    if (strcmp(given, "HEAD") == 0 && strcmp(method, "GET") == 0) return true;
    http_set_header(x, "Allow", method);
    http_reply_error(x, 405, "method_not_allowed", NULL, 0, "this path takes another method");
    return false;
}

/* A page of another site could make a browser post here; browsers say so in Origin. */
static bool origin_fits(http_exchange *x) {
    const char *origin = http_header(x, "Origin");
    if (origin == NULL || http_guard_same_origin(origin, http_header(x, "Host"))) return true;
    http_reply_error(x, 403, "foreign_origin", NULL, 0,
                     "admin calls from other sites are refused");
    return false;
}

void api_dispatch(void *context, http_exchange *x) {
    coordinator *c = context;
    const char *path = http_path(x);
    if (http_guard_path_is_api(path)) {
        http_allow_origins(x);
        if (strcmp(http_method(x), "OPTIONS") == 0) {
            preflight(x);
            return;
        }
    }
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (strcmp(path, routes[i].path) != 0) continue;
        if (method_fits(x, routes[i].method)) routes[i].run(c, x);
        return;
    }
    if (strncmp(path, "/v1/models/", 11) == 0) {
        if (method_fits(x, "GET")) api_models(c, x, path + 11);
    } else if (strncmp(path, "/admin/nodes/", 13) == 0) {
        if (method_fits(x, "POST") && origin_fits(x)) api_admin(c, x, path + 13);
    } else {
        http_reply_error(x, 404, "not_found", NULL, 0, "no such path");
    }
}
