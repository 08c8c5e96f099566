#include "coordinator/api.h"

#include "coordinator/http_guard.h"
#include <string.h>
#include <strings.h>

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

static void completions(coordinator *c, http_exchange *x) {
    api_ask(c, x, &answer_completion);
}

static void tokenize(coordinator *c, http_exchange *x) {
    api_ask(c, x, &answer_tokenize);
}

static void detokenize(coordinator *c, http_exchange *x) {
    api_ask(c, x, &answer_detokenize);
}

static void embeddings(coordinator *c, http_exchange *x) {
    api_ask(c, x, &answer_embeddings);
}

static void rerank(coordinator *c, http_exchange *x) {
    api_ask(c, x, &answer_rerank);
}

static void messages(coordinator *c, http_exchange *x) {
    api_ask(c, x, &answer_messages);
}

static void responses(coordinator *c, http_exchange *x) {
    api_ask(c, x, &answer_responses);
}

static void count_tokens(coordinator *c, http_exchange *x) {
    api_ask(c, x, &answer_count);
}

static const route routes[] = {
    {"/", "GET", api_dashboard},
    {"/v1/chat/completions", "POST", api_chat},
    {"/v1/completions", "POST", completions},
    {"/v1/responses", "POST", responses},
    {"/v1/messages", "POST", messages},
    {"/v1/messages/count_tokens", "POST", count_tokens},
    {"/v1/embeddings", "POST", embeddings},
    {"/v1/rerank", "POST", rerank},
    {"/rerank", "POST", rerank},
    {"/tokenize", "POST", tokenize},
    {"/detokenize", "POST", detokenize},
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

uint64_t api_priority(const coordinator *c, const http_exchange *x, int said,
                      const char *task) {
    if (said >= 0) return (uint64_t)said;
    const char *header = http_header(x, "X-Siliceo-Priority");
    if (header != NULL && strcasecmp(header, "background") == 0) return 1;
    if (header != NULL && strcasecmp(header, "interactive") == 0) return 0;
    for (const char *at = c->options->queue_background_patterns; *at != '\0';) {
        size_t n = strcspn(at, "\n");
        if (n > 0 && memmem(task, strlen(task), at, n) != NULL) return 1;
        at += n + (at[n] == '\n');
    }
    const tenant *t = http_owner(x);
    return t->limits.priority;
}

/* What a browser or a load balancer must see before there is a key. */
static bool is_public(const char *path) {
    return strcmp(path, "/") == 0 || strcmp(path, "/healthz") == 0 ||
           strcmp(path, "/readyz") == 0;
}

/* False: the reply, 401 or 403, has been given. */
static bool key_fits(coordinator *c, http_exchange *x, const char *path) {
    const char *key = auth_bearer(http_header(x, "Authorization"));
    if (key == NULL) key = http_header(x, "x-api-key");
    tenant *t = auth_find(&c->auth, key);
    http_set_owner(x, t);
    if (is_public(path)) return true;
    bool api = http_guard_path_is_api(path);
    if (t == NULL) {
        http_set_header(x, "WWW-Authenticate", "Bearer");
        if (api) api_count_reply(c, 401);
        http_reply_error(x, 401, "invalid_api_key", NULL, 0,
                         key == NULL ? "an API key is needed: Authorization: Bearer KEY"
                                     : "the API key is not known here");
        return false;
    }
    if (strncmp(path, "/admin/", 7) == 0 && !t->limits.admin) {
        http_reply_error(x, 403, "not_admin", NULL, 0, "this needs a key with admin=true");
        return false;
    }
    return true;
}

void api_dispatch(void *context, http_exchange *x) {
    coordinator *c = context;
    const char *path = http_path(x);
    if (http_guard_path_is_api(path)) {
        http_allow_origins(x);
        if (http_guard_path_is_messages(path)) /* Anthropic's name for it */
            http_set_header(x, "request-id", http_request_id(x));
        if (strcmp(http_method(x), "OPTIONS") == 0) {
            preflight(x);
            return;
        }
    }
    if (!key_fits(c, x, path)) return;
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
