#include "coordinator/coordinator.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/api.h"
#include "coordinator/dispatch.h"
#include "coordinator/reload.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

/* Keys of the outer epoll; those with HTTP_EVENT_BIT are the HTTP server's. */
enum { EVENT_MESH = 1, EVENT_MONITOR, EVENT_SIGNAL, EVENT_WEB };
enum { TICK_MS = 50, DRAIN_BATCH = 512, MAX_EVENTS = 256, COMPLAIN_MS = 1000 };

/* ------------------------------------------------------------ the mesh's messages */

status coordinator_send(coordinator *c, const void *identity, size_t n_identity,
                        const wire_message *m, error *err) {
    if (upstream_is_identity(identity, n_identity))
        return upstreams_send(c->upstreams, identity, n_identity, m, err);
    return worker_link_send(c->link, identity, n_identity, m, err);
}

static void send_to(coordinator *c, const worker_peer *peer, const wire_message *m) {
    error err = {0};
    if (coordinator_send(c, peer->identity, peer->n_identity, m, &err) != STATUS_OK) {
        log_debug("mesh-not-sent", "error=\"%s\"", err.text);
    }
}

static void refuse(coordinator *c, const worker_peer *peer, unsigned http_status,
                   const char *code, bool retryable, const char *text) {
    wire_message m = {.type = WIRE_ERROR};
    m.error.http_status = http_status;
    m.error.code = wire_text(code, strlen(code));
    m.error.text = wire_text(text, strlen(text));
    m.error.retryable = retryable;
    send_to(c, peer, &m);
}

static void welcome(coordinator *c, const worker_peer *peer) {
    wire_message m = {.type = WIRE_WELCOME};
    m.welcome.coordinator = wire_text(c->options->name, strlen(c->options->name));
    m.welcome.instance = c->instance;
    m.welcome.build = wire_text(SILICEO_BUILD, strlen(SILICEO_BUILD));
    m.welcome.beat_interval_ms = (uint64_t)(c->options->mesh_beat_s * 1000);
    send_to(c, peer, &m);
}

static void on_hello(coordinator *c, const worker_peer *peer, const wire_hello *hello) {
    error err = {0};
    node *n = NULL;
    bool bound = peer->user_id[0] != '\0';
    /* Its connection was let in by a list that has changed since. */
    if (bound && !worker_link_allows(c->link, peer->user_id)) return;
    if (bound && (hello->node.length != strlen(peer->user_id) ||
                  memcmp(hello->node.bytes, peer->user_id, hello->node.length) != 0)) {
        refuse(c, peer, 403, "wrong_name", false, "the key belongs to a node of another name");
        log_warn("node-refused", "key_of=%s reason=\"its HELLO has another name\"",
                 peer->user_id);
        return;
    }
    status rc = node_table_hello(&c->nodes, peer->identity, peer->n_identity, peer->fd, hello,
                                 clock_monotonic_ms(), &n, &err);
    if (rc != STATUS_OK) {
        log_warn("node-refused", "error=\"%s\"", err.text);
        /* Unanswered, it asks again soon: the one that has the name may just have died. */
        if (rc != STATUS_UNAVAILABLE) refuse(c, peer, 400, "bad_hello", false, err.text);
        return;
    }
    (void)snprintf(n->address, sizeof n->address, "%s", peer->address);
    log_info("node-hello", "node=%s build=%s backend=%s models=%zu credit=%llu", n->name,
             n->build, n->backend, n->n_models, (unsigned long long)n->credit);
    welcome(c, peer);
    c->dispatch_due = true;
}

static void on_beat(coordinator *c, const worker_peer *peer, node *n, const wire_beat *beat) {
    uint64_t credit = n->credit;
    node_table_beat(&c->nodes, n, beat, clock_monotonic_ms());
    if (n->credit > credit) c->dispatch_due = true;
    wire_message m = {.type = WIRE_ACK};
    m.ack.number = beat->number;
    send_to(c, peer, &m);
}

static void on_worker_error(coordinator *c, node *n, const wire_error *e) {
    if (e->request != 0) {
        request_on_error(c, n, e);
        return;
    }
    log_warn("node-error", "node=%s error=\"%.*s\"", n->name, (int)e->text.length,
             e->text.bytes);
}

static void on_bye(coordinator *c, node *n, const wire_bye *bye) {
    char reason[200];
    size_t length = bye->reason.length < sizeof reason ? bye->reason.length : sizeof reason - 1;
    (void)snprintf(reason, sizeof reason, "%.*s", (int)length, bye->reason.bytes);
    if (bye->instance == n->instance)
        node_table_bye(&c->nodes, n, reason, clock_monotonic_ms());
}

static void on_message(void *context, const worker_peer *peer, const wire_message *m) {
    coordinator *c = context;
    if (m->type == WIRE_HELLO) {
        on_hello(c, peer, &m->hello);
        return;
    }
    node *n = node_table_by_identity(&c->nodes, peer->identity, peer->n_identity);
    if (n == NULL) {
        /* We have forgotten it: a worker whose beats stay without answer says HELLO again. */
        return;
    }
    node_table_heard(&c->nodes, n, peer->fd, clock_monotonic_ms());
    if (m->type == WIRE_TOKENS)
        request_on_tokens(c, n, &m->tokens);
    else if (m->type == WIRE_BEAT)
        on_beat(c, peer, n, &m->beat);
    else if (m->type == WIRE_DONE)
        request_on_done(c, n, &m->done);
    else if (m->type == WIRE_ERROR)
        on_worker_error(c, n, &m->error);
    else if (m->type == WIRE_BYE)
        on_bye(c, n, &m->bye);
    else
        refuse(c, peer, 400, "bad_message", false, "this is a message of coordinators");
}

static void on_garbage(void *context, const worker_peer *peer, const char *why) {
    coordinator *c = context;
    metric_add(c->counters.garbage, 1);
    node *n = node_table_by_identity(&c->nodes, peer->identity, peer->n_identity);
    uint64_t now_ms = clock_monotonic_ms();
    if (now_ms - c->complained_ms >= COMPLAIN_MS) { /* the counter has them all */
        c->complained_ms = now_ms;
        log_warn("mesh-garbage", "node=%s error=\"%s\"", n != NULL ? n->name : "-", why);
    }
    /* A stranger learns what is wrong with it, such as another version; a node is not
     * sent away for one bad frame, whose loss shows as a gap. */
    if (n == NULL) refuse(c, peer, 400, "bad_message", false, why);
}

static void on_disconnect(void *context, int fd) {
    coordinator *c = context;
    node_table_disconnected(&c->nodes, fd, clock_monotonic_ms());
}

static void on_node_state(void *context, node *n, node_state before) {
    (void)before;
    coordinator *c = context;
    c->dispatch_due = true;
    if (n->state == NODE_DOWN)
        request_node_lost(c, n, false, n->reason);
    else if (n->state == NODE_SUSPECT && !n->connected)
        request_node_lost(c, n, true, n->reason);
}

static void on_node_lost(void *context, node *n, const char *why) {
    request_node_lost(context, n, false, why);
}

/* ------------------------------------------------------------ opening */

static uint32_t allow_descriptors(uint32_t wanted) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
    rlim_t need = (rlim_t)wanted + 512;
    if (limit.rlim_cur < need) {
        limit.rlim_cur = limit.rlim_max < need ? limit.rlim_max : need;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
        (void)getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur >= need) return wanted;
    uint32_t left = limit.rlim_cur > 1024 ? (uint32_t)limit.rlim_cur - 512 : 256;
    log_warn("few-descriptors", "connections=%u wanted=%u", left, wanted);
    return left;
}

static void open_nodes(coordinator *c) {
    const options *o = c->options;
    c->nodes.limits = (node_limits){
        .suspect_ms = (uint64_t)(o->node_suspect_s * 1000),
        .down_ms = (uint64_t)(o->node_down_s * 1000),
        .forget_ms = (uint64_t)(o->node_forget_s * 1000),
        .engine_stall_ms = (uint64_t)(o->node_engine_stall_s * 1000),
        .slow_path_ms = (uint64_t)(o->node_slow_path_s * 1000),
        .breaker_ms = (uint64_t)(o->node_breaker_s * 1000),
        .breaker_failures = (uint32_t)o->node_breaker_failures,
    };
    c->nodes.context = c;
    c->nodes.on_state = on_node_state;
    c->nodes.on_lost = on_node_lost;
    c->queue.max_waiting = (size_t)o->queue_max_waiting;
}

static status watch(const coordinator *c, int fd, uint64_t key, error *err) {
    struct epoll_event event = {.events = EPOLLIN};
    event.data.u64 = key;
    if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, fd, &event) == 0) return STATUS_OK;
    return error_set_errno(err, STATUS_IO, errno, "epoll");
}

static status open_signals(coordinator *c, error *err) {
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    (void)signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0 ||
        (c->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) {
        return error_set_errno(err, STATUS_IO, errno, "signals");
    }
    return watch(c, c->signal_fd, EVENT_SIGNAL, err);
}

/* A server that is off the list, once it has nothing to do. */
static bool on_upstream_retired(void *context, const char *name) {
    coordinator *c = context;
    node *n = node_table_by_name(&c->nodes, name);
    if (n == NULL || !upstream_is_identity(n->identity, n->n_identity)) return true;
    if (n->in_flight > 0) return false;
    node_table_forget(&c->nodes, n);
    return true;
}

status coordinator_open_web(coordinator *c, error *err) {
    const options *o = c->options;
    if (c->web != NULL) return STATUS_OK;
    status rc = web_client_open(&c->web, c, (uint32_t)(o->upstream_connect_s * 1000), err);
    if (rc == STATUS_OK) rc = watch(c, web_client_fd(c->web), EVENT_WEB, err);
    upstreams_params params = {.check_ms = (uint64_t)(o->upstream_check_s * 1000),
                               .check_limit_ms = (uint64_t)(o->upstream_check_limit_s * 1000),
                               .beat_ms = (uint64_t)(o->mesh_beat_s * 1000),
                               .web = c->web,
                               .context = c,
                               .on_message = on_message,
                               .on_retired = on_upstream_retired};
    return rc != STATUS_OK ? rc : upstreams_open(&c->upstreams, &params, err);
}

static status open_link(coordinator *c, error *err) {
    worker_link_params params = {.address = c->options->mesh,
                                 .curve_secret_file = c->options->mesh_curve_secret_file,
                                 .curve_allow_file = c->options->mesh_curve_allow_file,
                                 .heartbeat_ms = (int)(c->options->mesh_heartbeat_s * 1000),
                                 .heartbeat_timeout_ms =
                                     (int)(c->options->mesh_heartbeat_timeout_s * 1000),
                                 .linger_ms = (int)(c->options->mesh_linger_s * 1000),
                                 .context = c,
                                 .on_message = on_message,
                                 .on_garbage = on_garbage,
                                 .on_disconnect = on_disconnect};
    status rc = worker_link_open(&c->link, &params, err);
    if (rc != STATUS_OK) return rc;
    rc = watch(c, worker_link_fd(c->link), EVENT_MESH, err);
    return rc != STATUS_OK ? rc : watch(c, worker_link_monitor_fd(c->link), EVENT_MONITOR, err);
}

/* libcurl's thread runs only where something needs it. */
static status open_web(coordinator *c, error *err) {
    const options *o = c->options;
    status rc = STATUS_OK;
    if (o->upstream_servers[0] != '\0') rc = reload_upstreams(c, o->upstream_servers, err);
    if (rc != STATUS_OK || o->tailscale_socket[0] == '\0' ||
        access(o->tailscale_socket, F_OK) != 0)
        return rc;
    if ((rc = coordinator_open_web(c, err)) != STATUS_OK) return rc;
    return tailscale_open(&c->tailscale, c->web, o->tailscale_socket,
                          (uint64_t)(o->tailscale_interval_s * 1000),
                          (uint64_t)(o->tailscale_limit_s * 1000), err);
}

static status open_http(coordinator *c, error *err) {
    const options *o = c->options;
    http_params params = {.address = o->http,
                          .tls_cert_file = o->http_tls_cert_file,
                          .tls_key_file = o->http_tls_key_file,
                          .max_body_bytes = (size_t)o->http_max_body_mib << 20,
                          .max_bodies_bytes = (size_t)o->http_max_bodies_mib << 20,
                          .max_queue_bytes = (size_t)o->http_stream_queue_kib << 10,
                          .max_connections =
                              allow_descriptors((uint32_t)o->http_max_connections),
                          .header_ms = (uint32_t)(o->http_header_s * 1000),
                          .body_ms = (uint32_t)(o->http_body_s * 1000),
                          .idle_ms = (uint32_t)(o->http_idle_s * 1000),
                          .linger_ms = (uint32_t)(o->http_linger_s * 1000),
                          .context = c,
                          .on_request = api_dispatch};
    return http_server_open(&c->http, &params, c->epoll, err);
}

static void warn_of_openness(const coordinator *c) {
    if (options_is_loopback(c->options->http)) return;
    if (c->auth.open != NULL)
        log_warn("api-open",
                 "http=%s reason=\"there are no API keys: whoever reaches it may use it\"",
                 c->options->http);
    else if (c->options->http_tls_cert_file[0] == '\0')
        log_warn("api-plain", "http=%s reason=\"keys go over the wire in plain text\"",
                 c->options->http);
}

status coordinator_open(coordinator *c, error *err) {
    c->signal_fd = -1;
    c->started_wall_ms = clock_wall_ms();
    api_metrics_open(c);
    open_nodes(c);
    decisions_init(&c->decisions, (size_t)c->options->status_decisions);
    if (getrandom(&c->instance, sizeof c->instance, 0) < 0) c->instance = clock_monotonic_ns();
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (c->epoll < 0) return error_set_errno(err, STATUS_IO, errno, "epoll");
    c->aliases = strdup(c->options->aliases);
    status rc =
        c->aliases != NULL ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "alias: no memory");
    if (rc == STATUS_OK && c->options->api_shared)
        rc = ledger_read_keys(c->options->ledger_url, &c->shared_keys, err);
    if (rc == STATUS_OK)
        rc = auth_open(&c->auth, c->options->api_keys_file, c->shared_keys, err);
    /* Threads begin after this, so that none of them takes a signal. */
    if (rc == STATUS_OK) rc = open_signals(c, err);
    if (rc == STATUS_OK && c->options->ledger_url[0] != '\0') {
        rc = ledger_open(&c->ledger, c->options->ledger_url, c->instance,
                         (size_t)c->options->ledger_max_waiting,
                         (uint32_t)(c->options->ledger_retry_s * 1000), err);
    }
    if (rc == STATUS_OK) rc = open_link(c, err);
    if (rc == STATUS_OK) rc = open_web(c, err);
    if (rc == STATUS_OK) rc = open_http(c, err);
    if (rc == STATUS_OK) warn_of_openness(c);
    return rc;
}

void coordinator_close(coordinator *c) {
    http_server_close(c->http);
    api_chat_reap(c);
    for (size_t i = 0; i < REQUEST_BUCKETS; i++)
        CHECK(c->link == NULL || c->buckets[i] == NULL);
    web_client_close(c->web);
    upstreams_close(c->upstreams);
    tailscale_close(c->tailscale);
    worker_link_close(c->link);
    ledger_close(c->ledger);
    node_table_release(&c->nodes);
    decisions_release(&c->decisions);
    auth_close(&c->auth);
    free(c->shared_keys);
    free(c->aliases);
    metrics_release(&c->metrics);
    if (c->signal_fd >= 0) (void)close(c->signal_fd);
    if (c->epoll >= 0) (void)close(c->epoll);
}

/* ------------------------------------------------------------ running */

static void on_signal(coordinator *c) {
    struct signalfd_siginfo info;
    while (read(c->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGHUP) {
            reload_all(c);
            continue;
        }
        if (c->draining) {
            log_info("stop", "signal=%u again=true", info.ssi_signo);
            c->drain_until_ms = 0;
            continue;
        }
        c->draining = true;
        (void)sd_notify(0, "STOPPING=1\nSTATUS=finishing what runs");
        c->drain_until_ms = clock_monotonic_ms() + (uint64_t)(c->options->drain_s * 1000);
        log_info("drain", "signal=%u running=%u waiting=%zu limit_s=%g", info.ssi_signo,
                 c->n_running, c->queue.n_waiting, c->options->drain_s);
    }
}

static void learn_paths(coordinator *c) {
    for (node *n = c->nodes.first; n != NULL && c->tailscale != NULL; n = n->next) {
        tailscale_path path = tailscale_path_of(c->tailscale, n->address);
        if (path == TAILSCALE_RELAYED) n->path = NODE_PATH_RELAYED;
        if (path == TAILSCALE_DIRECT) n->path = NODE_PATH_DIRECT;
    }
}

/* systemd, where it asks for that, ends a loop that has stopped coming round. */
static void pet_watchdog(coordinator *c, uint64_t now_ms) {
    if (c->watchdog_ms == 0 || now_ms < c->watchdog_next_ms) return;
    c->watchdog_next_ms = now_ms + c->watchdog_ms / 3;
    (void)sd_notify(0, "WATCHDOG=1");
}

static void tick(coordinator *c) {
    uint64_t now_ns = clock_monotonic_ns();
    uint64_t now_ms = now_ns / 1000000u;
    node_table_tick(&c->nodes, now_ms);
    request_tick(c, now_ns);
    api_chat_reap(c);
    api_chat_tick(c, now_ms);
    http_server_tick(c->http, now_ms);
    pet_watchdog(c, now_ms);
    history_tick(&c->history, now_ms, metric_value(c->counters.completion_tokens));
    ledger_tick(c->ledger);
    reload_shared_keys(c, now_ms);
    upstreams_tick(c->upstreams, now_ms);
    tailscale_tick(c->tailscale, now_ms);
    learn_paths(c);
}

static bool finished(const coordinator *c, uint64_t now_ms) {
    if (!c->draining) return false;
    if (now_ms >= c->drain_until_ms) return true;
    return c->n_running == c->n_cancelling && c->queue.n_waiting == 0 && c->chats == NULL;
}

/* How long may the loop sleep?  Not at all while anything is left to do: the
 * descriptors of ZeroMQ tell of it only once. */
static int sleep_ms(coordinator *c, uint64_t next_tick_ms) {
    c->mesh_due = c->mesh_due || worker_link_pending(c->link);
    if (http_server_pending(c->http) || c->dispatch_due || c->mesh_due) return 0;
    uint64_t now_ms = clock_monotonic_ms();
    int until_tick = next_tick_ms > now_ms ? (int)(next_tick_ms - now_ms) : 0;
    int http = http_server_timeout_ms(c->http);
    return http >= 0 && http < until_tick ? http : until_tick;
}

static void handle_events(coordinator *c, const struct epoll_event *events, int n) {
    for (int i = 0; i < n; i++) {
        uint64_t key = events[i].data.u64;
        if (key & HTTP_EVENT_BIT)
            http_server_event(c->http, key);
        else if (key == EVENT_SIGNAL)
            on_signal(c);
        else if (key == EVENT_MESH || key == EVENT_MONITOR)
            c->mesh_due = true;
    }
}

static void drain_mesh(coordinator *c) {
    if (c->mesh_due) c->mesh_due = worker_link_drain(c->link, DRAIN_BATCH);
    web_client_drain(c->web);
}

/* What still runs fails, and its clients get a moment to be told. */
static void say_goodbye(coordinator *c) {
    struct epoll_event events[MAX_EVENTS];
    uint64_t until_ms = clock_monotonic_ms() + (uint64_t)(c->options->goodbye_s * 1000);
    request_fail_all(c, "the coordinator is shutting down");
    do {
        http_server_run(c->http);
        int n = epoll_wait(c->epoll, events, MAX_EVENTS, 5);
        handle_events(c, events, n);
        c->mesh_due = true;
        drain_mesh(c);
        api_chat_reap(c);
    } while (c->chats != NULL && clock_monotonic_ms() < until_ms);
}

int coordinator_run(coordinator *c) {
    uint64_t watchdog_us = 0;
    if (sd_watchdog_enabled(0, &watchdog_us) > 0) c->watchdog_ms = watchdog_us / 1000;
    (void)sd_notifyf(0, "READY=1\nSTATUS=http=%s mesh=%s", http_server_address(c->http),
                     worker_link_address(c->link));
    struct epoll_event events[MAX_EVENTS];
    uint64_t next_tick_ms = clock_monotonic_ms();
    while (!finished(c, clock_monotonic_ms())) {
        int n = epoll_wait(c->epoll, events, MAX_EVENTS, sleep_ms(c, next_tick_ms));
        if (n < 0 && errno != EINTR) {
            log_error("loop", "error=\"%s\"", strerror(errno));
            return 1;
        }
        handle_events(c, events, n);
        drain_mesh(c);
        if (clock_monotonic_ms() >= next_tick_ms) {
            tick(c);
            next_tick_ms = clock_monotonic_ms() + TICK_MS;
        }
        if (c->dispatch_due) dispatch_run(c);
        http_server_run(c->http);
    }
    say_goodbye(c);
    log_info("stopped", "uptime_s=%llu",
             (unsigned long long)(clock_wall_ms() - c->started_wall_ms) / 1000);
    return 0;
}
