/* command_serve.c - the worker process: settings, signals, and three threads.
 *
 *     main    waits for signals and notices; prints the ready line; tells systemd
 *       |  wishes                 ^ notices
 *       v                         |
 *     link    one DEALER a coordinator: HELLO, BEAT, credit, results (coordinator_link)
 *       |  orders                 ^ reports
 *       v                         |
 *     engine  the models, their sequences and the backends (engine_loop)
 *       |
 *     load    while a model is being loaded (model_shelf)
 *
 * Each arrow is a ring with one pusher and one popper (exchange.h).  The link
 * never waits for the engine, so beats go on during a long step.
 *
 * SIGTERM or SIGINT drains: no new work, running requests finish within
 * drain.limit_s, BYE, exit 0.  A second signal exits at once.  A model that
 * cannot be loaded and a device that fails are told to the coordinators and
 * end the process with 1.
 */
#include "common/log.h"
#include "worker/commands.h"
#include "worker/coordinator_link.h"
#include "worker/model_list.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

typedef struct serve_options {
    model_options model;
    const char *coordinator;
    const char *name;
    const char *model_name;
    int64_t max_loaded;
    double keep_s;
    double patience_s;
    int64_t queue;
    double drain_limit_s;
    double mesh_grace_s;
    double mesh_heartbeat_s, mesh_heartbeat_timeout_s;
    double mesh_reconnect_s, mesh_reconnect_max_s, mesh_connect_s;
    double mesh_hello_s, mesh_refused_s, mesh_idle_s, mesh_linger_s;
    double drain_cut_s, failure_tell_s;
    int64_t measure_ms;
    bool allow_plain;
    const char *secret_key_file;
    const char *server_key;
} serve_options;

#define OWN_KEY(key, kind, field, fallback, min, max, help)                                    \
    { key, kind, offsetof(serve_options, field), fallback, min, max, NULL, help }

static const config_key keys[] = {
    OPTIONS_MODEL_KEYS(serve_options, model),
    OWN_KEY("coordinator", CONFIG_LIST, coordinator, "tcp://127.0.0.1:5690", 0, 0,
            "tcp://HOST:PORT of a coordinator; may be given again"),
    OWN_KEY("name", CONFIG_STRING, name, NULL, 0, 0,
            "name of this node; the host's name by default"),
    OWN_KEY("model_name", CONFIG_STRING, model_name, NULL, 0, 0,
            "name under which the only model is served; general.name of the file by default"),
    OWN_KEY("models.max_loaded", CONFIG_INT, max_loaded, "0", 0, 16,
            "models that are loaded at once; others wait for a request; 0: all"),
    OWN_KEY("models.keep_s", CONFIG_REAL, keep_s, "0", 0, 1e9,
            "a model without requests for so long is unloaded, s; 0: never"),
    OWN_KEY("models.patience_s", CONFIG_REAL, patience_s, "5", 0, 86400,
            "a request waits so long until a busy model must make room for its own, s"),
    OWN_KEY("queue", CONFIG_INT, queue, "2", 0, 256,
            "requests taken beyond those that run, over all coordinators"),
    OWN_KEY("drain.limit_s", CONFIG_REAL, drain_limit_s, "300", 0, 86400,
            "time that running requests have to finish when the worker stops, s"),
    OWN_KEY("mesh.grace_s", CONFIG_REAL, mesh_grace_s, "3", 0, 600,
            "a broken connection may come back within this before its requests end, s"),
    OWN_KEY("mesh.heartbeat_s", CONFIG_REAL, mesh_heartbeat_s, "1", 0.02, 60,
            "interval of the transport's own heartbeats, s"),
    OWN_KEY("mesh.heartbeat_timeout_s", CONFIG_REAL, mesh_heartbeat_timeout_s, "5", 0.05, 600,
            "a connection whose peer answers no heartbeat for this is made anew, s"),
    OWN_KEY("mesh.reconnect_s", CONFIG_REAL, mesh_reconnect_s, "0.1", 0.01, 60,
            "pause before a coordinator is tried again, s"),
    OWN_KEY("mesh.reconnect_max_s", CONFIG_REAL, mesh_reconnect_max_s, "2", 0.01, 600,
            "the same after many tries: it doubles up to this, s"),
    OWN_KEY("mesh.connect_s", CONFIG_REAL, mesh_connect_s, "5", 0.05, 600,
            "time for a connection, and again for its handshake, s"),
    OWN_KEY("mesh.hello_s", CONFIG_REAL, mesh_hello_s, "2", 0.05, 600,
            "a HELLO without a WELCOME is said again after this, s"),
    OWN_KEY("mesh.refused_s", CONFIG_REAL, mesh_refused_s, "30", 0.05, 3600,
            "a coordinator that does not want this node is asked again after this, s"),
    OWN_KEY("mesh.idle_s", CONFIG_REAL, mesh_idle_s, "10", 0.05, 3600,
            "a coordinator that asks for nothing so long lends its share to the others, s"),
    OWN_KEY("mesh.linger_s", CONFIG_REAL, mesh_linger_s, "1", 0, 60,
            "time to send what was said last, s"),
    OWN_KEY("drain.cut_s", CONFIG_REAL, drain_cut_s, "2", 0, 600,
            "time the engine has to end what a drain cuts, s"),
    OWN_KEY("failure.tell_s", CONFIG_REAL, failure_tell_s, "1", 0, 60,
            "a worker that failed stays so long to tell why, s"),
    OWN_KEY("mesh.allow_plain", CONFIG_BOOL, allow_plain, "false", 0, 0,
            "allow coordinators on other machines without CURVE"),
    OWN_KEY("curve.secret_key_file", CONFIG_STRING, secret_key_file, NULL, 0, 0,
            "file with this node's CURVE secret key"),
    OWN_KEY("curve.server_key", CONFIG_STRING, server_key, NULL, 0, 0,
            "the coordinators' CURVE public key, 40 characters"),
    OWN_KEY("measure_ms", CONFIG_INT, measure_ms, "400", 0, 60000,
            "time for measuring the rates told to coordinators after loading; 0: do not"),
};

typedef struct server {
    exchange exchange; /* first: its rings stand on cache lines of their own */
    serve_options options;
    config config;
    mesh_security security;
    char host[WIRE_MAX_NAME];
    char *addresses; /* the list's text, cut into words */
    const char *coordinators[LINK_MAX_COORDINATORS];
    link_params link_params;
    engine_loop_params loop_params;
    model_list models;
    coordinator_link *link;
    engine_loop *loop;
    int signal_fd;
    bool loaded;
    bool failed;
    bool stopping;
    bool finished;
} server;

/* ---- settings ---- */

/* Twice connected to one coordinator is a node whose results come from two places. */
static bool is_named(const server *s, size_t n, const char *address) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(s->coordinators[i], address) == 0) return true;
    }
    return false;
}

static status split_addresses(server *s, error *err) {
    s->addresses = strdup(s->options.coordinator);
    if (s->addresses == NULL)
        return error_set(err, STATUS_NO_MEMORY, "no memory for addresses");
    char *rest = s->addresses;
    size_t n = 0;
    for (char *word; (word = strsep(&rest, "\n, ")) != NULL;) {
        if (*word == '\0') continue;
        if (is_named(s, n, word)) {
            log_warn("coordinator-named-twice", "address=%s", word);
            continue;
        }
        if (n == LINK_MAX_COORDINATORS) {
            return error_set(err, STATUS_BAD_INPUT, "coordinator: over %zu are named", n);
        }
        status rc = mesh_security_check(&s->security, word, err);
        if (rc != STATUS_OK) return rc;
        s->coordinators[n++] = word;
    }
    if (n == 0) return error_set(err, STATUS_BAD_INPUT, "coordinator: none is named");
    s->link_params.n_coordinators = n;
    return STATUS_OK;
}

static status choose_node_name(server *s, error *err) {
    const char *name = s->options.name;
    if (name == NULL || *name == '\0') {
        if (gethostname(s->host, sizeof s->host - 1) != 0) {
            return error_set_errno(err, STATUS_IO, errno, "gethostname");
        }
        name = s->host;
    }
    size_t n = strlen(name);
    if (n > WIRE_MAX_NAME) {
        return error_set(err, STATUS_BAD_INPUT, "name = '%.40s...' has %zu bytes, at most %d",
                         name, n, WIRE_MAX_NAME);
    }
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    if (strspn(name, allowed) != n) { /* coordinators admit no other */
        return error_set(err, STATUS_BAD_INPUT,
                         "name = '%s' has other characters than letters, digits, '-', '_' "
                         "and '.'",
                         name);
    }
    s->link_params.node = name;
    return STATUS_OK;
}

/* A request counts against one limit whichever model it is for. */
static status choose_models(server *s, error *err) {
    const serve_options *o = &s->options;
    status rc = model_list_read(&s->models, o->model.model, &o->model, err);
    if (rc != STATUS_OK) return rc;
    for (size_t i = 0; i < s->models.n; i++) {
        uint64_t n = (uint64_t)s->models.entries[i].options.sequences;
        if (n > s->link_params.max_sequences) s->link_params.max_sequences = n;
    }
    if (o->model_name != NULL && *o->model_name != '\0') {
        if (s->models.n > 1) {
            return error_set(err, STATUS_BAD_INPUT,
                             "model_name: there are %zu models; name=... after a path names "
                             "one",
                             s->models.n);
        }
        s->models.models[0].name = o->model_name;
    }
    s->loop_params.models = s->models.models;
    s->loop_params.n_models = s->models.n;
    s->loop_params.max_loaded = (uint32_t)o->max_loaded;
    s->loop_params.keep_ms = (uint64_t)(o->keep_s * 1000);
    s->loop_params.patience_ms = (uint64_t)(o->patience_s * 1000);
    s->loop_params.measure_ms = (uint32_t)o->measure_ms;
    return STATUS_OK;
}

static link_times times_of(const serve_options *o) {
    return (link_times){.heartbeat_ms = (uint32_t)(o->mesh_heartbeat_s * 1000),
                        .heartbeat_timeout_ms = (uint32_t)(o->mesh_heartbeat_timeout_s * 1000),
                        .reconnect_ms = (uint32_t)(o->mesh_reconnect_s * 1000),
                        .reconnect_max_ms = (uint32_t)(o->mesh_reconnect_max_s * 1000),
                        .connect_ms = (uint32_t)(o->mesh_connect_s * 1000),
                        .hello_ms = (uint32_t)(o->mesh_hello_s * 1000),
                        .refused_ms = (uint32_t)(o->mesh_refused_s * 1000),
                        .idle_ms = (uint32_t)(o->mesh_idle_s * 1000),
                        .cut_ms = (uint32_t)(o->drain_cut_s * 1000),
                        .tell_ms = (uint32_t)(o->failure_tell_s * 1000),
                        .linger_ms = (uint32_t)(o->mesh_linger_s * 1000)};
}

static status settle(server *s, error *err) {
    const serve_options *o = &s->options;
    status rc = mesh_security_init(&s->security, o->secret_key_file, o->server_key,
                                   o->allow_plain, err);
    if (rc == STATUS_OK) rc = split_addresses(s, err);
    if (rc == STATUS_OK) rc = choose_node_name(s, err);
    if (rc == STATUS_OK) rc = choose_models(s, err);
    if (rc != STATUS_OK) return rc;
    s->link_params.build = SILICEO_BUILD;
    s->link_params.profile = o->model.profile != NULL ? o->model.profile : "default";
    s->link_params.coordinators = s->coordinators;
    s->link_params.security = &s->security;
    s->link_params.queue = (uint64_t)o->queue;
    s->link_params.times = times_of(o);
    s->link_params.grace_ms = (uint64_t)(o->mesh_grace_s * 1000);
    s->link_params.drain_limit_ms = (uint64_t)(o->drain_limit_s * 1000);
    return STATUS_OK;
}

/* ---- life ---- */

static status block_signals(server *s, error *err) {
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL); /* before any thread is there to inherit it */
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signal_fd < 0) return error_set_errno(err, STATUS_IO, errno, "signalfd");
    return STATUS_OK;
}

static status start(server *s, error *err) {
    status rc = block_signals(s, err);
    if (rc != STATUS_OK) return rc;
    size_t max_requests = 2 * (size_t)(s->link_params.max_sequences + s->link_params.queue);
    rc = exchange_init(&s->exchange, max_requests, err);
    if (rc == STATUS_OK)
        rc = coordinator_link_start(&s->link, &s->link_params, &s->exchange, err);
    if (rc != STATUS_OK) return rc;
    rc = engine_loop_start(&s->loop, &s->loop_params, &s->exchange, err);
    if (rc != STATUS_OK) (void)ring_push(&s->exchange.wishes, s); /* ends the link */
    return rc;
}

static void stop(server *s) {
    struct signalfd_siginfo info;
    if (read(s->signal_fd, &info, sizeof info) != (ssize_t)sizeof info) return;
    if (s->stopping) {
        log_warn("stopped-at-once", "signal=%u", info.ssi_signo);
        _exit(1);
    }
    s->stopping = true;
    (void)sd_notify(0, "STOPPING=1");
    (void)ring_push(&s->exchange.wishes, s);
}

static void take_notice(server *s, const notice *n) {
    switch (n->kind) {
    case NOTICE_LOADED:
        s->loaded = true;
        (void)printf("ready name=%s model=%s\n", s->link_params.node, n->text);
        (void)fflush(stdout);
        (void)sd_notifyf(0, "READY=1\nSTATUS=serving %s", n->text);
        break;
    case NOTICE_FAILED:
        s->failed = true;
        (void)fprintf(stderr, "siliceo-worker: %s\n", n->text);
        (void)sd_notifyf(0, "STATUS=failed: %s", n->text);
        break;
    case NOTICE_FINISHED:
        s->finished = true;
        break;
    }
}

/* Milliseconds between two signs of life that systemd asks for; -1: it asks for none. */
static int watchdog_ms(void) {
    uint64_t limit_us = 0;
    return sd_watchdog_enabled(0, &limit_us) > 0 ? (int)(limit_us / 3000) + 1 : -1;
}

static void wait_for_the_end(server *s) {
    const int sign_ms = watchdog_ms();
    while (!s->finished) {
        struct pollfd fds[] = {{.fd = s->signal_fd, .events = POLLIN},
                               {.fd = s->exchange.notices.event_fd, .events = POLLIN}};
        if (poll(fds, 2, sign_ms) < 0 && errno != EINTR) return;
        if (sign_ms > 0) (void)sd_notify(0, "WATCHDOG=1");
        if (fds[0].revents != 0) stop(s);
        ring_clear_event(&s->exchange.notices);
        for (notice *n; (n = ring_pop(&s->exchange.notices)) != NULL; free(n))
            take_notice(s, n);
    }
}

static void release(server *s) {
    coordinator_link_join(&s->link);
    /* Loading cannot be broken off: the coordinators know, the kernel frees the rest. */
    if (s->loop != NULL && !s->failed && engine_loop_loads(s->loop)) _exit(0);
    engine_loop_join(&s->loop);
    exchange_release(&s->exchange);
    mesh_security_clear(&s->security);
    model_list_release(&s->models);
    if (s->signal_fd >= 0) (void)close(s->signal_fd);
    free(s->addresses);
    config_release(&s->config);
}

int command_serve(int argc, char *argv[]) {
    static server s; /* large, and one a process */
    s.signal_fd = -1;
    s.exchange = (exchange)EXCHANGE_NONE;
    int code =
        options_read(&s.config, "siliceo-worker serve", keys, sizeof keys / sizeof keys[0],
                     &s.options, &s.options.model, true, argc, argv);
    if (code >= 0) return code;
    error err = {0};
    status rc = settle(&s, &err);
    code = rc == STATUS_OK ? 1 : 2;
    if (rc == STATUS_OK) rc = start(&s, &err);
    if (rc == STATUS_OK) {
        wait_for_the_end(&s);
        code = s.failed ? 1 : 0;
    } else {
        (void)fprintf(stderr, "siliceo-worker: %s\n", err.text);
    }
    release(&s);
    return code;
}
