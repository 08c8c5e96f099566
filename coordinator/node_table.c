#include "coordinator/node_table.h"

#include "common/clock.h"
#include "common/log.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

const char *node_state_name(node_state state) {
    static const char *const names[NODE_STATES] = {
        "connecting", "loading", "ready", "suspect", "down", "draining", "quarantined"};
    return names[state];
}

static void copy_text(char *out, size_t cap, wire_bytes text) {
    size_t n = text.length < cap ? text.length : cap - 1;
    if (n > 0) memcpy(out, text.bytes, n);
    out[n] = '\0';
}

/* ------------------------------------------------------------ judging */

double node_loading_left_s(const node *n, uint64_t now_ms) {
    if (n->state != NODE_LOADING && n->beat.state != WIRE_LOADING) return -1;
    uint64_t age_ms = now_ms > n->last_heard_ms ? now_ms - n->last_heard_ms : 0;
    if (n->beat.loading_left_ms > 0) {
        uint64_t told_ms = n->beat.loading_left_ms;
        return told_ms > age_ms ? (double)(told_ms - age_ms) * 1e-3 : 0;
    }
    double done = (double)n->beat.loading_permille * 1e-3;
    if (n->loading_since_ms == 0 || done < 0.05 || now_ms <= n->loading_since_ms) return -1;
    return (double)(now_ms - n->loading_since_ms) * 1e-3 * (1 - done) / done;
}

static node_state judge_worker(const node *n, uint64_t now_ms, char *reason, size_t cap) {
    if (!n->has_beat) {
        (void)snprintf(reason, cap, "no beat yet");
        return NODE_CONNECTING;
    }
    if (n->beat.state == WIRE_FAILED) {
        (void)snprintf(reason, cap, "the worker failed: %s", n->beat_reason);
        return NODE_DOWN;
    }
    if (n->beat.state == WIRE_LOADING) {
        double left_s = node_loading_left_s(n, now_ms);
        char left[40] = "";
        if (left_s >= 0) (void)snprintf(left, sizeof left, ", about %.0f s left", left_s);
        (void)snprintf(reason, cap, "loading, %llu %%%s%s%s",
                       (unsigned long long)n->beat.loading_permille / 10, left,
                       n->beat_reason[0] != '\0' ? ": " : "", n->beat_reason);
        return NODE_LOADING;
    }
    if (n->beat.state == WIRE_DRAINING || n->drained_by_admin) {
        (void)snprintf(reason, cap, "%s",
                       n->drained_by_admin      ? "drained by an admin"
                       : n->beat_reason[0] != 0 ? n->beat_reason
                                                : "the worker drains");
        return NODE_DRAINING;
    }
    if (now_ms < n->quarantine_until_ms) {
        (void)snprintf(reason, cap, "%u failures in a row, %llu s left", n->failures,
                       (unsigned long long)(n->quarantine_until_ms - now_ms + 999) / 1000);
        return NODE_QUARANTINED;
    }
    reason[0] = '\0';
    return NODE_READY;
}

node_state node_judge(const node *n, const node_limits *limits, uint64_t now_ms, char *reason,
                      size_t cap_reason) {
    uint64_t age_ms = now_ms - n->last_heard_ms;
    if (n->left) {
        (void)snprintf(reason, cap_reason, "left: %s", n->beat_reason);
        return NODE_DOWN;
    }
    if (age_ms >= limits->down_ms) {
        (void)snprintf(reason, cap_reason, "no beat for %llu s",
                       (unsigned long long)age_ms / 1000);
        return NODE_DOWN;
    }
    if (!n->connected) {
        (void)snprintf(reason, cap_reason, "the connection ended");
        return NODE_SUSPECT;
    }
    if (age_ms >= limits->suspect_ms) {
        (void)snprintf(reason, cap_reason, "no beat for %llu s",
                       (unsigned long long)age_ms / 1000);
        return NODE_SUSPECT;
    }
    node_state state = judge_worker(n, now_ms, reason, cap_reason);
    if (state == NODE_READY && n->beat.running > 0 &&
        n->beat.engine_age_ms >= limits->engine_stall_ms) {
        (void)snprintf(reason, cap_reason, "its engine has not come round for %llu s",
                       (unsigned long long)n->beat.engine_age_ms / 1000);
        return NODE_SUSPECT;
    }
    return state;
}

__attribute__((format(printf, 3, 4))) static void verdict(node_verdict *v, const char *word,
                                                          const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    v->word = word;
    (void)vsnprintf(v->reason, sizeof v->reason, format, arguments);
    va_end(arguments);
}

static void judge_process(const node *n, node_verdict *v) {
    if (n->left)
        verdict(v, "left", "it said goodbye");
    else if (n->has_beat && n->beat.state == WIRE_FAILED)
        verdict(v, "failed", "its engine failed");
    else if (!n->connected)
        verdict(v, "gone", "its connection ended");
    else
        verdict(v, "ok", "connected");
}

static void judge_engine(const node *n, const node_limits *limits, node_verdict *v) {
    double age_s = (double)n->beat.engine_age_ms * 1e-3;
    if (!n->has_beat)
        verdict(v, "unknown", "no beat yet");
    else if (n->beat.state == WIRE_LOADING)
        verdict(v, "loading", "%.0f %% loaded", (double)n->beat.loading_permille * 0.1);
    else if (n->beat.state == WIRE_FAILED)
        verdict(v, "failed", "the worker says so");
    else if (n->beat.running > 0 && n->beat.engine_age_ms >= limits->engine_stall_ms)
        verdict(v, "stalled", "its loop has not come round for %.1f s", age_s);
    else if (n->beat.running > 0 || n->beat.waiting > 0)
        verdict(v, "busy", "its loop came round %.1f s ago", age_s);
    else
        verdict(v, "ok", "idle");
}

static void judge_path(const node *n, const node_limits *limits, uint64_t now_ms,
                       node_verdict *v) {
    uint64_t age_ms = now_ms > n->last_heard_ms ? now_ms - n->last_heard_ms : 0;
    double rtt_ms = node_round_trip_s(n) * 1e3;
    if (!n->connected)
        verdict(v, "broken", "its connection ended");
    else if (age_ms >= limits->suspect_ms)
        verdict(v, "silent", "nothing heard for %.1f s", (double)age_ms * 1e-3);
    else if (limits->slow_path_ms > 0 && rtt_ms >= (double)limits->slow_path_ms)
        verdict(v, "slow", "a round trip takes %.1f ms", rtt_ms);
    else if (rtt_ms > 0)
        verdict(v, "ok", "a round trip takes %.1f ms", rtt_ms);
    else
        verdict(v, "ok", "not measured yet");
}

void node_judge_parts(const node *n, const node_limits *limits, uint64_t now_ms,
                      node_verdicts *out) {
    judge_process(n, &out->process);
    judge_engine(n, limits, &out->engine);
    judge_path(n, limits, now_ms, &out->path);
}

const char *node_path_name(const node *n) {
    static const char *const names[] = {"direct", "direct", "relayed"};
    return names[n->path];
}

double node_round_trip_s(const node *n) {
    double beat_s = (double)n->beat.rtt_us * 1e-6, vpn_s = n->path_rtt_ms * 1e-3;
    return beat_s > vpn_s ? beat_s : vpn_s;
}

static void rejudge(node_table *t, node *n, uint64_t now_ms) {
    node_state before = n->state;
    n->state = node_judge(n, &t->limits, now_ms, n->reason, sizeof n->reason);
    if (n->state == before) return;
    n->state_since_ms = now_ms;
    log_info("node-state", "node=%s state=%s before=%s reason=\"%s\"", n->name,
             node_state_name(n->state), node_state_name(before), n->reason);
    if (t->on_state != NULL) t->on_state(t->context, n, before);
}

/* ------------------------------------------------------------ finding */

/* Every token's message is looked up here, so it is not a walk over the list. */
static size_t bucket_of(const void *identity, size_t n_identity) {
    return XXH3_64bits(identity, n_identity) % NODE_BUCKETS;
}

static bool has_identity(const node *n, const void *identity, size_t n_identity) {
    return n->n_identity == n_identity && memcmp(n->identity, identity, n_identity) == 0;
}

node *node_table_by_identity(const node_table *t, const void *identity, size_t n_identity) {
    for (node *n = t->by_identity[bucket_of(identity, n_identity)]; n != NULL;
         n = n->identity_next) {
        if (has_identity(n, identity, n_identity)) return n;
    }
    return NULL;
}

static void drop_identity(node_table *t, node *n) {
    if (n->n_identity == 0) return;
    node **at = &t->by_identity[bucket_of(n->identity, n->n_identity)];
    while (*at != n)
        at = &(*at)->identity_next;
    *at = n->identity_next;
    n->n_identity = 0;
}

static void take_identity(node_table *t, node *n, const void *identity, size_t n_identity) {
    drop_identity(t, n);
    memcpy(n->identity, identity, n_identity);
    n->n_identity = n_identity;
    node **at = &t->by_identity[bucket_of(identity, n_identity)];
    n->identity_next = *at;
    *at = n;
}

node *node_table_by_name(const node_table *t, const char *name) {
    for (node *n = t->first; n != NULL; n = n->next) {
        if (strcmp(n->name, name) == 0) return n;
    }
    return NULL;
}

node_model *node_find_model(node *n, const char *model) {
    for (size_t i = 0; i < n->n_models; i++) {
        if (strcmp(n->models[i].name, model) == 0) return &n->models[i];
    }
    return NULL;
}

uint32_t node_places(const node *n) {
    uint64_t places = n->credit;
    if (n->max_sequences > 0 && n->max_sequences < places) places = n->max_sequences;
    if (n->probation && places > 1) places = 1;
    return places > 100000 ? 100000 : (uint32_t)places;
}

/* ------------------------------------------------------------ changing */

static void free_models(node_model *models, size_t n) {
    for (size_t i = 0; i < n; i++)
        prefix_set_release(&models[i].held);
    free(models);
}

static void node_free(node *n) {
    free_models(n->models, n->n_models);
    free(n);
}

void node_table_release(node_table *t) {
    for (node *n = t->first; n != NULL;) {
        node *next = n->next;
        node_free(n);
        n = next;
    }
    for (model_answers *a = t->answers; a != NULL;) {
        model_answers *next = a->next;
        free(a);
        a = next;
    }
    t->answers = NULL;
    t->first = NULL;
    memset(t->by_identity, 0, sizeof t->by_identity);
    t->n_nodes = 0;
}

void node_table_forget(node_table *t, node *n) {
    if (t->on_lost != NULL) t->on_lost(t->context, n, "the node was forgotten");
    for (node **at = &t->first; *at != NULL; at = &(*at)->next) {
        if (*at != n) continue;
        *at = n->next;
        t->n_nodes--;
        drop_identity(t, n);
        log_info("node-forgotten", "node=%s", n->name);
        node_free(n);
        return;
    }
}

/* It stays for as long as the table: a model's nodes come and go.  The names are bounded, so
 * that nonsense cannot fill memory; those beyond share one entry. */
enum { MAX_ANSWERS = 1024 };

static lengths *answers_of(node_table *t, const char *name) {
    size_t n = 0;
    model_answers **at = &t->answers;
    for (; *at != NULL; at = &(*at)->next, n++) {
        if (strcmp((*at)->name, name) == 0) return &(*at)->lengths;
    }
    if (n >= MAX_ANSWERS) return &t->answers->lengths;
    *at = calloc(1, sizeof **at);
    if (*at == NULL) return NULL;
    (void)snprintf((*at)->name, sizeof(*at)->name, "%s", name);
    lengths_init(&(*at)->lengths);
    return &(*at)->lengths;
}

/* Models of the HELLO; what was learned of one with the same name and file stays. */
static status take_models(node_table *t, node *n, const wire_hello *hello, error *err) {
    node_model *models = calloc(hello->n_models > 0 ? hello->n_models : 1, sizeof *models);
    if (models == NULL)
        return error_set(err, STATUS_NO_MEMORY, "no memory for a node's models");
    for (size_t i = 0; i < hello->n_models; i++) {
        node_model *m = &models[i];
        copy_text(m->name, sizeof m->name, hello->models[i].name);
        copy_text(m->hash, sizeof m->hash, hello->models[i].hash);
        copy_text(m->arch, sizeof m->arch, hello->models[i].arch);
        copy_text(m->numerics, sizeof m->numerics, hello->models[i].numerics);
        m->context_tokens = hello->models[i].context_tokens;
        m->answers = answers_of(t, m->name);
        if (m->answers == NULL) {
            free_models(models, hello->n_models);
            return error_set(err, STATUS_NO_MEMORY, "no memory for a node's models");
        }
        m->since_wall_s = clock_wall_ms() / 1000;
        rates_init(&m->speed);
        node_model *old = node_find_model(n, m->name);
        if (old != NULL && strcmp(old->hash, m->hash) == 0) {
            m->speed = old->speed;
            m->since_wall_s = old->since_wall_s;
            m->held = old->held; /* the same process says HELLO again; see replace_process() */
            memset(&old->held, 0, sizeof old->held);
            m->absent = old->absent;
            m->loading_since_ms = old->loading_since_ms;
            m->loaded_ms = old->loaded_ms;
            m->load_s = old->load_s;
        }
        rates_set_prior(&m->speed, hello->prior_prefill_tok_per_s,
                        hello->prior_decode_tok_per_s);
    }
    free_models(n->models, n->n_models);
    n->models = models;
    n->n_models = hello->n_models;
    return STATUS_OK;
}

static void take_profile(node *n, const wire_hello *hello) {
    copy_text(n->build, sizeof n->build, hello->build);
    copy_text(n->profile, sizeof n->profile, hello->profile);
    copy_text(n->backend, sizeof n->backend, hello->backend);
    copy_text(n->gpu, sizeof n->gpu, hello->gpu);
    n->vram_mib = hello->vram_mib;
    n->ram_mib = hello->ram_mib;
    n->slots = hello->slots;
    n->experts_total = hello->experts_total;
    n->threads = hello->threads;
    n->max_sequences = hello->max_sequences;
    n->credit = hello->credit;
}

enum { RIVAL_TRIES = 4 };

static bool is_alive(const node_table *t, const node *n, uint64_t now_ms) {
    return n->connected && !n->left && now_ms - n->last_heard_ms < t->limits.suspect_ms;
}

/* The same process over another link, as when it was given our address in two
 * spellings.  Results of the one link would not be believed of the other, and two that
 * take the node from each other would never let a request end: so the first stays, and
 * what ran over one that is dead is lost. */
static status replace_link(node_table *t, node *n, uint64_t now_ms, error *err) {
    if (is_alive(t, n, now_ms)) {
        return error_set(err, STATUS_BAD_INPUT,
                         "hello.node: '%s' is connected over another link of the same process; "
                         "its list of coordinators has this one twice",
                         n->name);
    }
    if (t->on_lost != NULL) t->on_lost(t->context, n, "it came back over another link");
    return STATUS_OK;
}

/* Another process under a known name: take over only from one that is not alive. */
static status replace_process(node_table *t, node *n, const wire_hello *hello, uint64_t now_ms,
                              error *err) {
    if (is_alive(t, n, now_ms)) {
        n->rival_tries = n->rival == hello->instance ? n->rival_tries + 1 : 1;
        n->rival = hello->instance;
        status rc = n->rival_tries < RIVAL_TRIES ? STATUS_UNAVAILABLE : STATUS_BAD_INPUT;
        return error_set(err, rc,
                         "hello.node: the name '%s' belongs to another worker that is alive",
                         n->name);
    }
    if (t->on_lost != NULL) t->on_lost(t->context, n, "its worker was restarted");
    for (size_t i = 0; i < n->n_models; i++)
        prefix_set_release(&n->models[i].held); /* a new process holds nothing */
    n->instance = hello->instance;
    n->has_beat = false;
    n->loading_since_ms = 0;
    n->left = false;
    n->failures = 0;
    n->quarantine_until_ms = 0;
    n->probation = false;
    return STATUS_OK;
}

static node *node_new(node_table *t, const char *name, const wire_hello *hello) {
    node *n = t->n_nodes < NODE_MAX ? calloc(1, sizeof *n) : NULL;
    if (n == NULL) return NULL;
    (void)snprintf(n->name, sizeof n->name, "%s", name);
    n->instance = hello->instance;
    n->fd = -1;
    node **at = &t->first;
    while (*at != NULL && strcmp((*at)->name, name) < 0)
        at = &(*at)->next;
    n->next = *at;
    *at = n;
    t->n_nodes++;
    return n;
}

/* Names go into paths, labels and logs, so they are words. */
static status check_name(const char *name, size_t length, error *err) {
    for (size_t i = 0; i < length; i++) {
        char c = name[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
        if (!ok) length = 0;
    }
    if (length > 0) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT,
                     "hello.node: a name is letters, digits, '-', '_' and '.'");
}

/* A link speaks for one node: one that gives itself another name is gone under the old. */
static void leave_identity(node_table *t, const node *n, const void *identity,
                           size_t n_identity, uint64_t now_ms) {
    node *other = node_table_by_identity(t, identity, n_identity);
    if (other == NULL || other == n) return;
    drop_identity(t, other);
    node_table_unreachable(t, other, now_ms);
}

status node_table_hello(node_table *t, const void *identity, size_t n_identity, int fd,
                        const wire_hello *hello, uint64_t now_ms, node **out, error *err) {
    char name[WIRE_MAX_NAME + 1];
    copy_text(name, sizeof name, hello->node);
    status rc = check_name(hello->node.bytes, hello->node.length, err);
    if (rc != STATUS_OK) return rc;
    CHECK(n_identity <= NODE_MAX_IDENTITY);
    node *n = node_table_by_name(t, name);
    if (n == NULL)
        n = node_new(t, name, hello);
    else if (n->instance != hello->instance)
        rc = replace_process(t, n, hello, now_ms, err);
    else if (!has_identity(n, identity, n_identity))
        rc = replace_link(t, n, now_ms, err);
    if (n == NULL)
        return error_set(err, STATUS_NO_MEMORY, "hello.node: no room for '%s'", name);
    if (rc != STATUS_OK) return rc;
    rc = take_models(t, n, hello, err);
    if (rc != STATUS_OK) return rc;
    take_profile(n, hello);
    leave_identity(t, n, identity, n_identity, now_ms);
    take_identity(t, n, identity, n_identity);
    node_table_heard(t, n, fd, now_ms);
    *out = n;
    return STATUS_OK;
}

void node_table_heard(node_table *t, node *n, int fd, uint64_t now_ms) {
    n->last_heard_ms = now_ms;
    n->connected = true;
    if (fd >= 0) n->fd = fd;
    rejudge(t, n, now_ms);
}

void node_table_beat(node_table *t, node *n, const wire_beat *beat, uint64_t now_ms) {
    if (beat->instance != n->instance) return;
    n->beat = *beat;
    copy_text(n->beat_reason, sizeof n->beat_reason, beat->reason);
    n->beat.reason = wire_text(n->beat_reason, strlen(n->beat_reason));
    n->has_beat = true;
    if (beat->state != WIRE_LOADING)
        n->loading_since_ms = 0;
    else if (n->loading_since_ms == 0)
        n->loading_since_ms = now_ms;
    n->credit = beat->credit;
    node_models_follow(n, now_ms);
    rejudge(t, n, now_ms);
}

void node_table_bye(node_table *t, node *n, const char *reason, uint64_t now_ms) {
    bool drained = n->state == NODE_DRAINING;
    n->left = true;
    (void)snprintf(n->beat_reason, sizeof n->beat_reason, "%s", reason);
    rejudge(t, n, now_ms);
    if (drained) node_table_forget(t, n);
}

void node_table_unreachable(node_table *t, node *n, uint64_t now_ms) {
    if (!n->connected) return;
    n->connected = false;
    n->disconnected_ms = now_ms;
    n->fd = -1;
    rejudge(t, n, now_ms);
}

void node_table_disconnected(node_table *t, int fd, uint64_t now_ms) {
    for (node *n = t->first; n != NULL; n = n->next) {
        if (n->fd == fd) {
            node_table_unreachable(t, n, now_ms);
            return;
        }
    }
}

void node_table_tick(node_table *t, uint64_t now_ms) {
    for (node *n = t->first; n != NULL;) {
        node *next = n->next;
        if (n->quarantine_until_ms != 0 && now_ms >= n->quarantine_until_ms) {
            n->quarantine_until_ms = 0;
            n->probation = true;
        }
        rejudge(t, n, now_ms);
        if (n->state == NODE_DOWN && now_ms - n->state_since_ms >= t->limits.forget_ms) {
            node_table_forget(t, n);
        }
        n = next;
    }
}

void node_table_failure(node_table *t, node *n, bool at_once, uint64_t now_ms) {
    n->failures++;
    if (!at_once && !n->probation && n->failures < t->limits.breaker_failures) return;
    n->probation = false;
    n->quarantine_until_ms = now_ms + t->limits.breaker_ms;
    rejudge(t, n, now_ms);
}

void node_table_success(node_table *t, node *n, uint64_t now_ms) {
    if (n->failures == 0 && !n->probation) return;
    n->failures = 0;
    n->probation = false;
    n->quarantine_until_ms = 0;
    rejudge(t, n, now_ms);
}

void node_table_drain(node_table *t, node *n, bool drain, uint64_t now_ms) {
    n->drained_by_admin = drain;
    n->drained_ms = now_ms;
    rejudge(t, n, now_ms);
}
