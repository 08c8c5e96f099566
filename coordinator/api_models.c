/* GET /v1/models and /v1/models/ID: what the listed nodes serve, each model once. */
#include "coordinator/api.h"

#include "coordinator/aliases.h"
#include <stdio.h>
#include <string.h>

/* Does the node serve it, to this client?  Another coordinator does not hear what others
 * serve, or two would tell each other for ever of a model that is long gone. */
static bool serves(node *n, const char *model, bool forwarded) {
    const node_model *m = n->state != NODE_DOWN ? node_find_model(n, model) : NULL;
    return m != NULL && !(forwarded && strcmp(m->arch, UPSTREAM_COORDINATOR) == 0);
}

/* Is there a node before this one with the same model? */
static bool listed_before(const coordinator *c, const node *until, const char *model,
                          bool forwarded) {
    for (node *n = c->nodes.first; n != until; n = n->next) {
        if (serves(n, model, forwarded)) return true;
    }
    return false;
}

/* Ready nodes that serve it, and how many of them have it loaded. */
static unsigned ready_nodes(const coordinator *c, const char *model, uint64_t *context,
                            unsigned *n_loaded) {
    unsigned count = 0;
    *context = 0;
    *n_loaded = 0;
    for (node *n = c->nodes.first; n != NULL; n = n->next) {
        const node_model *m = node_find_model(n, model);
        if (m == NULL) continue;
        if (n->state == NODE_READY) count++;
        if (n->state == NODE_READY && !m->absent) ++*n_loaded;
        if (m->context_tokens > *context) *context = m->context_tokens;
    }
    return count;
}

static void add_model(const coordinator *c, const node_model *m, const char *id,
                      json_text *out) {
    uint64_t context;
    unsigned n_loaded, ready = ready_nodes(c, m->name, &context, &n_loaded);
    json_text_format(out, "{\"id\":");
    json_text_string(out, id, strlen(id));
    json_text_format(
        out,
        ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"siliceo\",\"meta\":{"
        "\"arch\":",
        (unsigned long long)m->since_wall_s);
    json_text_string(out, m->arch, strlen(m->arch));
    json_text_format(out, ",\"hash\":");
    json_text_string(out, m->hash, strlen(m->hash));
    json_text_format(out, ",\"context_tokens\":%llu,\"ready_nodes\":%u,\"loaded_nodes\":%u}}",
                     (unsigned long long)context, ready, n_loaded);
}

static size_t add_models(const coordinator *c, const char *id, bool forwarded, json_text *out) {
    size_t count = 0;
    for (node *n = c->nodes.first; n != NULL; n = n->next) {
        for (size_t i = 0; i < n->n_models; i++) {
            const node_model *m = &n->models[i];
            if ((id != NULL && strcmp(m->name, id) != 0) || !serves(n, m->name, forwarded) ||
                listed_before(c, n, m->name, forwarded))
                continue;
            if (count++ > 0) json_text_add(out, ",", 1);
            add_model(c, m, m->name, out);
        }
    }
    return count;
}

/* An alias is shown as a model of its own while some node serves what it stands for. */
static size_t add_aliases(const coordinator *c, const char *id, bool forwarded, size_t count,
                          json_text *out) {
    char alias[WIRE_MAX_NAME + 1], model[WIRE_MAX_NAME + 1];
    for (const char *at = c->aliases; aliases_next(&at, alias, model);) {
        if (id != NULL && strcmp(alias, id) != 0) continue;
        const node_model *m = NULL;
        for (node *n = c->nodes.first; n != NULL && m == NULL; n = n->next) {
            if (serves(n, model, forwarded)) m = node_find_model(n, model);
        }
        if (m == NULL) continue;
        if (count++ > 0) json_text_add(out, ",", 1);
        add_model(c, m, alias, out);
        if (id != NULL) break;
    }
    return count;
}

void api_models(coordinator *c, http_exchange *x, const char *id) {
    json_text out = {0};
    if (id == NULL) json_text_format(&out, "{\"object\":\"list\",\"data\":[");
    bool forwarded = http_header(x, WEB_FORWARDED) != NULL;
    size_t count = add_models(c, id, forwarded, &out);
    if (id == NULL || count == 0) count = add_aliases(c, id, forwarded, count, &out);
    if (id == NULL) json_text_format(&out, "]}");
    if (id != NULL && count == 0) {
        char message[300];
        (void)snprintf(message, sizeof message, "the model '%.200s' does not exist", id);
        api_count_reply(c, 404);
        http_reply_error(x, 404, "model_not_found", "model", 0, message);
    } else {
        api_count_reply(c, 200);
        http_reply(x, 200, "application/json", out.bytes, out.length);
    }
    json_text_release(&out);
}

void api_only_model(const coordinator *c, char model[WIRE_MAX_NAME + 1]) {
    const node_model *only = NULL;
    for (const node *n = c->nodes.first; n != NULL; n = n->next) {
        for (size_t i = 0; n->state != NODE_DOWN && i < n->n_models; i++) {
            if (only != NULL && strcmp(only->name, n->models[i].name) != 0) return;
            only = &n->models[i];
        }
    }
    if (only != NULL) (void)snprintf(model, WIRE_MAX_NAME + 1, "%s", only->name);
}
