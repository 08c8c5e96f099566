#include "coordinator/tailscale.h"

#include "common/json.h"
#include "common/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPLY = 8 * 1024 * 1024 };

struct tailscale {
    web_client *web;
    const char *socket;
    uint64_t interval_ms, limit_ms, next_ms;
    bool asking;
    bool found; /* it answered last time */
    tailscale_peer *peers;
    size_t n_peers;
};

/* ------------------------------------------------------------ reading */

static const char *text_of(const cJSON *object, const char *name) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(value) ? value->valuestring : "";
}

static void add_peer(tailscale_peer *peers, size_t *n, const cJSON *peer) {
    const cJSON *addresses = cJSON_GetObjectItemCaseSensitive(peer, "TailscaleIPs");
    const char *direct = text_of(peer, "CurAddr"), *relay = text_of(peer, "Relay");
    bool active = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(peer, "Active"));
    const cJSON *a = cJSON_IsArray(addresses) ? addresses->child : NULL;
    for (; a != NULL && *n < TAILSCALE_MAX_PEERS; a = a->next) {
        if (!cJSON_IsString(a) || strlen(a->valuestring) >= TAILSCALE_ADDRESS_SIZE) continue;
        tailscale_peer *p = &peers[(*n)++];
        (void)snprintf(p->address, sizeof p->address, "%s", a->valuestring);
        (void)snprintf(p->relay, sizeof p->relay, "%.31s", relay);
        p->path = direct[0] != '\0'            ? TAILSCALE_DIRECT
                  : active && relay[0] != '\0' ? TAILSCALE_RELAYED
                                               : TAILSCALE_UNKNOWN;
    }
}

status tailscale_read(tailscale_peer **out, size_t *n_peers, const char *json, size_t n,
                      error *err) {
    *out = NULL;
    *n_peers = 0;
    cJSON *root = NULL;
    status rc = json_parse(&root, json, n, "tailscale status", err);
    if (rc != STATUS_OK) return rc;
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "Peer");
    size_t count = 0;
    for (const cJSON *p = cJSON_IsObject(list) ? list->child : NULL; p != NULL; p = p->next) {
        const cJSON *addresses = cJSON_GetObjectItemCaseSensitive(p, "TailscaleIPs");
        count += cJSON_IsArray(addresses) ? (size_t)cJSON_GetArraySize(addresses) : 0;
    }
    if (count > TAILSCALE_MAX_PEERS) count = TAILSCALE_MAX_PEERS;
    *out = calloc(count + 1, sizeof **out);
    if (*out == NULL) rc = error_set(err, STATUS_NO_MEMORY, "tailscale: no memory");
    for (const cJSON *p = rc == STATUS_OK && count > 0 ? list->child : NULL; p != NULL;
         p = p->next)
        add_peer(*out, n_peers, p);
    cJSON_Delete(root);
    return rc;
}

/* ------------------------------------------------------------ asking */

typedef struct status_event {
    web_event base;
    tailscale *owner;
    tailscale_peer *peers; /* NULL: no answer */
    size_t n_peers;
} status_event;

typedef struct status_call {
    web_call base;
    json_text body;
    status_event *event;
} status_call;

static void event_drop(web_event *base) {
    status_event *e = (status_event *)base;
    free(e->peers);
    free(e);
}

static void event_deliver(void *io_context, web_event *base) {
    (void)io_context;
    status_event *e = (status_event *)base;
    tailscale *t = e->owner;
    t->asking = false;
    bool found = e->peers != NULL;
    if (found != t->found) log_info("tailscale", "found=%s", found ? "true" : "false");
    t->found = found;
    free(t->peers);
    t->peers = e->peers;
    t->n_peers = e->n_peers;
    free(e);
}

static bool call_data(web_call *base, const char *bytes, size_t n) {
    status_call *call = (status_call *)base;
    json_text_add(&call->body, bytes, n);
    return !call->body.failed && call->body.length <= MAX_REPLY;
}

static void call_end(web_call *base, const web_result *result) {
    status_call *call = (status_call *)base;
    status_event *e = call->event;
    error err = {0};
    if (result->error_text == NULL && result->http_status == 200 &&
        tailscale_read(&e->peers, &e->n_peers, call->body.bytes, call->body.length, &err) !=
            STATUS_OK) {
        log_debug("tailscale", "error=\"%s\"", err.text);
    }
    json_text_release(&call->body);
    if (base->client != NULL)
        web_client_post(base->client, &e->base);
    else
        event_drop(&e->base);
    free(call);
}

static bool ask(tailscale *t) {
    status_call *call = calloc(1, sizeof *call);
    status_event *e = calloc(1, sizeof *e);
    char *url = strdup("http://local-tailscaled.sock/localapi/v0/status");
    if (call != NULL && e != NULL && url != NULL) {
        e->base.deliver = event_deliver;
        e->base.drop = event_drop;
        e->owner = t;
        call->event = e;
        call->base.url = url;
        call->base.unix_socket = t->socket;
        call->base.limit_ms = (uint32_t)t->limit_ms;
        call->base.on_data = call_data;
        call->base.on_end = call_end;
        if (web_client_start(t->web, &call->base)) return true;
    }
    free(url);
    free(e);
    free(call);
    return false;
}

/* ------------------------------------------------------------ io */

status tailscale_open(tailscale **out, web_client *web, const char *socket,
                      uint64_t interval_ms, uint64_t limit_ms, error *err) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return error_set(err, STATUS_NO_MEMORY, "tailscale: no memory");
    (*out)->web = web;
    (*out)->socket = socket;
    (*out)->interval_ms = interval_ms;
    (*out)->limit_ms = limit_ms;
    return STATUS_OK;
}

void tailscale_close(tailscale *t) {
    if (t == NULL) return;
    free(t->peers);
    free(t);
}

void tailscale_tick(tailscale *t, uint64_t now_ms) {
    if (t == NULL || t->asking || now_ms < t->next_ms) return;
    t->next_ms = now_ms + t->interval_ms;
    t->asking = ask(t);
}

tailscale_path tailscale_path_of(const tailscale *t, const char *address) {
    if (t == NULL) return TAILSCALE_NONE;
    char ip[TAILSCALE_ADDRESS_SIZE];
    const char *from = address[0] == '[' ? address + 1 : address;
    const char *colon = strchr(from, ':');
    size_t n = address[0] == '['                                 ? strcspn(from, "]")
               : colon != NULL && strchr(colon + 1, ':') == NULL ? (size_t)(colon - from)
                                                                 : strlen(from);
    if (n >= sizeof ip) return TAILSCALE_NONE;
    memcpy(ip, from, n);
    ip[n] = '\0';
    for (size_t i = 0; i < t->n_peers; i++) {
        if (strcmp(t->peers[i].address, ip) == 0) return t->peers[i].path;
    }
    return TAILSCALE_NONE;
}
