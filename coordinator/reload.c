#include "coordinator/reload.h"

#include "common/log.h"
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* A node whose key was taken off the list goes at once: its requests begin elsewhere, and
 * its connection, which the gate had let in, is cut. */
static void on_node_removed(void *context, const char *name) {
    coordinator *c = context;
    node *n = node_table_by_name(&c->nodes, name);
    log_warn("node-removed", "node=%s reason=\"its key is not on the allow-list any more\"",
             name);
    if (n == NULL) return;
    if (n->fd >= 0) (void)shutdown(n->fd, SHUT_RDWR);
    node_table_forget(&c->nodes, n);
    c->dispatch_due = true;
}

status reload_upstreams(coordinator *c, const char *servers, error *err) {
    if (servers[0] == '\0' && c->upstreams == NULL) return STATUS_OK;
    status rc = coordinator_open_web(c, err);
    return rc != STATUS_OK ? rc : upstreams_set(c->upstreams, servers, err);
}

static status take_aliases(coordinator *c, const char *lines, error *err) {
    char *copy = strdup(lines);
    if (copy == NULL) return error_set(err, STATUS_NO_MEMORY, "alias: no memory");
    free(c->aliases);
    c->aliases = copy;
    return STATUS_OK;
}

/* The settings as a start would find them now; of them those are taken that may change. */
static status reload_settings(coordinator *c, error *err) {
    config fresh = {0};
    options *o = calloc(1, sizeof *o);
    if (o == NULL) return error_set(err, STATUS_NO_MEMORY, "settings: no memory");
    status rc = options_init(&fresh, o, err);
    if (rc == STATUS_OK) rc = config_read(&fresh, c->argc, c->argv, err);
    if (rc == STATUS_OK) rc = options_check(o, err);
    if (rc == STATUS_OK) rc = reload_upstreams(c, o->upstream_servers, err);
    if (rc == STATUS_OK) rc = take_aliases(c, o->aliases, err);
    config_release(&fresh);
    free(o);
    return rc;
}

void reload_all(coordinator *c) {
    error err = {0};
    if (auth_reload(&c->auth, c->options->api_keys_file, c->shared_keys, &err) != STATUS_OK)
        log_error("reload-failed", "what=keys error=\"%s\"", err.text);
    else
        log_info("reload", "keys=%zu", c->auth.n_keys);
    if (worker_link_reload(c->link, c, on_node_removed, &err) != STATUS_OK)
        log_error("reload-failed", "what=allow-list error=\"%s\"", err.text);
    if (http_server_reload(c->http, &err) != STATUS_OK)
        log_error("reload-failed", "what=certificate error=\"%s\"", err.text);
    if (reload_settings(c, &err) != STATUS_OK)
        log_error("reload-failed", "what=settings error=\"%s\"", err.text);
    c->dispatch_due = true;
}

void reload_shared_keys(coordinator *c, uint64_t now_ms) {
    if (!c->options->api_shared) return;
    error err = {0};
    char *lines = ledger_take_news(c->ledger, &c->auth, now_ms);
    if (lines != NULL && strcmp(lines, c->shared_keys) != 0) {
        char *old = c->shared_keys;
        c->shared_keys = lines;
        lines = old;
        if (auth_reload(&c->auth, c->options->api_keys_file, c->shared_keys, &err) != STATUS_OK)
            log_error("reload-failed", "what=shared-keys error=\"%s\"", err.text);
        else
            log_info("reload", "keys=%zu", c->auth.n_keys);
    }
    free(lines);
    if (now_ms < c->next_share_ms) return;
    c->next_share_ms = now_ms + (uint64_t)(c->options->api_share_s * 1000);
    ledger_share(c->ledger, &c->auth);
}
