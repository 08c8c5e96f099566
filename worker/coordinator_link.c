/* coordinator_link.c - the link's loop: wishes, reports, coordinators, timers, sleep. */
#include "worker/coordinator_link.h"

#include "common/clock.h"
#include "common/log.h"
#include "worker/link_requests.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    MAX_SLEEP_MS = 1000,
    FRAMES_A_ROUND = 64, /* of one peer, so that none holds up the others */
    REPORTS_A_ROUND = 1024
};

/* ---- what coordinators are told ---- */

/* A rate that is not finite would make the whole message unsendable. */
static double finite_or(double value, double otherwise) {
    return isfinite(value) ? value : otherwise;
}

/* Figures of the node: slots and experts of all models, the rest of the first that has them. */
static void fill_hello(const coordinator_link *l, wire_hello *h,
                       wire_model served[ENGINE_LOOP_MAX_MODELS]) {
    h->models = served;
    h->n_models = l->loaded ? l->n_models : 0;
    for (size_t i = 0; i < h->n_models; i++) {
        const engine_facts *f = &l->models[i].facts;
        served[i] = (wire_model){.name = link_text(f->model),
                                 .hash = link_text(f->hash),
                                 .arch = link_text(f->arch),
                                 .numerics = link_text(f->numerics),
                                 .context_tokens = f->context_tokens};
        h->slots += f->slots;
        h->experts_total += f->experts_total;
        if (h->gpu.length == 0) h->gpu = link_text(f->gpu);
        /* One model on the GPU makes it a node with one. */
        if (h->backend.length == 0 || f->vram_bytes > 0) h->backend = link_text(f->backend);
        if (f->vram_bytes >> 20 > h->vram_mib) h->vram_mib = f->vram_bytes >> 20;
        if (f->threads > h->threads) h->threads = f->threads;
        if (h->prior_decode_tok_per_s > 0) continue;
        h->prior_prefill_tok_per_s = finite_or(f->prefill_tok_per_s, 0);
        h->prior_decode_tok_per_s = finite_or(f->decode_tok_per_s, 0);
    }
}

static void send_hello(coordinator_link *l, link_peer *p, uint64_t now_ms) {
    wire_model served[ENGINE_LOOP_MAX_MODELS];
    wire_hello hello = {
        .node = link_text(l->params->node),
        .instance = l->instance,
        .build = link_text(l->params->build),
        .profile = link_text(l->params->profile),
        .ram_mib = l->ram_mib,
        .max_sequences = l->params->max_sequences,
        .credit = p->grant,
    };
    fill_hello(l, &hello, served);
    link_peer_send_hello(p, &l->frame, &hello, now_ms);
}

static uint64_t unloaded_models(const coordinator_link *l) {
    uint64_t bits = 0;
    for (size_t i = 0; l->loaded && i < l->n_models; i++)
        bits |= (uint64_t)!l->models[i].loaded << i;
    return bits;
}

static void send_beat(coordinator_link *l, link_peer *p, uint64_t now_ms) {
    uint64_t round_ms = atomic_load_explicit(&l->x->engine_round_ms, memory_order_relaxed);
    const engine_stats *s = &l->stats;
    gpu_reading gpu = {.temperature_c = -1, .power_w = -1};
    if (l->gpu != NULL) vram_watch_read(l->gpu, &gpu);
    bool loads = !l->loaded || l->loading_model != 0;
    bool tells_left = loads && l->left_until_ms > now_ms;
    wire_beat beat = {
        .instance = l->instance,
        .state = link_state(l),
        .reason = link_text(l->reason),
        .loading_permille = loads ? l->permille : 1000,
        .engine_age_ms = now_ms > round_ms ? now_ms - round_ms : 0,
        .running = s->running,
        .waiting = s->waiting,
        .free_sequences = s->free_sequences,
        .kv_pages_total = s->kv_pages_total,
        .kv_pages_free = s->kv_pages_free,
        .credit = p->grant,
        .hit_rate = finite_or(s->hit_rate, -1),
        .misses_per_token = finite_or(s->misses_per_token, 0),
        .prefill_tok_per_s = finite_or(s->prefill_tok_per_s, 0),
        .decode_tok_per_s = finite_or(s->decode_tok_per_s, 0),
        .temperature_c = gpu.temperature_c,
        .power_w = finite_or(gpu.power_w, -1),
        .vram_used_mib = gpu.used_bytes >> 20,
        .vram_total_mib = gpu.total_bytes >> 20,
        .gpu_use_percent = gpu.use_percent > 0 ? (uint64_t)gpu.use_percent : 0,
        .ram_used_mib = s->ram_used_bytes >> 20,
        .loading_left_ms = tells_left ? l->left_until_ms - now_ms : 0,
        .unloaded_models = unloaded_models(l),
        .loading_model = l->loading_model,
        .prefix_tokens = s->prefixes.hit_tokens,
        .prefix_snapshots = s->prefixes.n_snapshots,
        .prefix_mib = s->prefixes.ram_bytes >> 20,
        .prefix_asked_tokens = s->prefixes.asked_tokens,
        .prefix_pages = s->prefixes.n_blocks,
        .prefix_disk_mib = s->prefixes.disk_bytes >> 20,
        .prefix_hits = s->prefixes.hits,
        .prefix_hits_in_place = s->prefixes.hits_in_place,
        .prefix_reads = s->prefixes.n_read,
        .displaced = s->parked + s->not_parked,
    };
    for (int k = 0; k < DRAFTER_KINDS; k++) {
        beat.guesses += s->guesses.drafted[k];
        beat.guesses_true += s->guesses.accepted[k];
    }
    link_peer_send_beat(p, &l->frame, &beat, now_ms);
}

static void beat_soon(coordinator_link *l, uint64_t now_ms) {
    for (size_t i = 0; i < l->n_peers; i++)
        l->peers[i].beat_due_ms = now_ms;
}

/* Shares follow who is connected and who works; a changed grant is told at once. */
static void grant_credit(coordinator_link *l, uint64_t now_ms) {
    credit_share shares[LINK_MAX_COORDINATORS] = {0};
    bool takes_work = link_state(l) == WIRE_READY;
    for (size_t i = 0; i < l->n_peers; i++) {
        link_peer *p = &l->peers[i];
        if (flights_of_peer(&l->flights, i) > 0) p->busy_ms = now_ms;
        shares[i].connected = p->up && !p->refused;
        shares[i].idle =
            p->busy_ms == LINK_NEVER_MS || now_ms - p->busy_ms > l->params->times.idle_ms;
    }
    credit_split(takes_work ? l->params->max_sequences + l->params->queue : 0, shares,
                 l->n_peers);
    for (size_t i = 0; i < l->n_peers; i++) {
        if (l->peers[i].grant == shares[i].grant) continue;
        l->peers[i].grant = shares[i].grant;
        l->peers[i].beat_due_ms = now_ms;
    }
}

static void take_drain(coordinator_link *l, const wire_drain *d, uint64_t now_ms) {
    if (l->stopping) return;
    l->draining = !d->resume;
    l->drain_until_ms = d->limit_ms == 0 ? UINT64_MAX : now_ms + d->limit_ms;
    if (d->limit_ms > UINT64_MAX - now_ms) l->drain_until_ms = UINT64_MAX;
    (void)snprintf(l->reason, sizeof l->reason, "%s",
                   l->draining ? "drained by a coordinator" : "");
    log_info(l->draining ? "draining" : "resumed", "running=%zu", l->flights.n_used);
    beat_soon(l, now_ms);
}

/* ---- from the coordinators ---- */

static void take_message(coordinator_link *l, size_t i, wire_message *m, zmq_msg_t *frame,
                         uint64_t now_ms) {
    link_peer *p = &l->peers[i];
    switch (m->type) {
    case WIRE_WELCOME:
        if (link_peer_welcome(p, &m->welcome, now_ms)) {
            link_drop_requests(l, i, "the coordinator has started anew");
            flights_forget(&l->flights, i);
        }
        p->socket.hold = false;
        peer_socket_flush(&p->socket);
        break;
    case WIRE_SUBMIT:
        link_take_submit(l, i, m, frame);
        break;
    case WIRE_CANCEL:
        link_take_cancel(l, i, &m->cancel);
        break;
    case WIRE_DRAIN:
        take_drain(l, &m->drain, now_ms);
        break;
    case WIRE_ACK:
        link_peer_ack(p, &m->ack, now_ms);
        break;
    case WIRE_ERROR:
        if (m->error.request == 0) link_peer_refused(p, &m->error);
        break;
    case WIRE_HELLO:
    case WIRE_BEAT:
    case WIRE_TOKENS:
    case WIRE_DONE:
    case WIRE_BYE:
        log_warn("wrong-direction", "address=%s type=%s", p->address, wire_type_name(m->type));
    }
}

static void receive_from(coordinator_link *l, size_t i, uint64_t now_ms) {
    zmq_msg_t frame;
    for (int n = 0; n < FRAMES_A_ROUND && peer_socket_receive(&l->peers[i].socket, &frame);
         n++) {
        wire_message m;
        error err;
        if (wire_decode(&m, zmq_msg_data(&frame), zmq_msg_size(&frame), &err) == STATUS_OK) {
            take_message(l, i, &m, &frame, now_ms);
            wire_release(&m);
        } else {
            link_peer_complain(&l->peers[i], &l->frame, &err, now_ms);
        }
        (void)zmq_msg_close(&frame);
    }
}

/* ---- from the engine ---- */

static void tell_main(coordinator_link *l, notice_kind kind, const char *text) {
    notice *n = calloc(1, sizeof *n);
    if (n == NULL) {
        log_error("notice-lost", "no memory");
        return;
    }
    n->kind = kind;
    (void)snprintf(n->text, sizeof n->text, "%s", text);
    CHECK(ring_push(&l->x->notices, n)); /* three in a life */
}

static void take_failure(coordinator_link *l, const error *e, uint64_t now_ms) {
    log_error("engine-failed", "%s", e->text);
    l->failed = true;
    (void)snprintf(l->reason, sizeof l->reason, "%s", e->text);
    for (size_t i = 0; i < l->flights.n_places; i++) {
        flight *f = &l->flights.places[i];
        if (f->key == 0) continue;
        if (!f->muted) {
            (void)link_send_error(l, f->peer, f->request, f->epoch, 503, "engine_failed",
                                  e->text);
        }
        flights_end(&l->flights, f);
    }
    l->over_at_ms = now_ms + l->params->times.tell_ms;
    beat_soon(l, now_ms);
    tell_main(l, NOTICE_FAILED, e->text);
}

/* Figures of the card go into every beat from now on. */
static void watch_gpu(coordinator_link *l, const engine_facts *f) {
    error why = {0};
    if (f->gpu_bus_id[0] == '\0' || l->gpu != NULL) return;
    if (vram_watch_start(&l->gpu, f->gpu_bus_id, VRAM_WATCH_NOW_MS, &why) != STATUS_OK)
        log_info("no-sensors", "%s", why.text);
}

static void take_progress(coordinator_link *l, const report *r, uint64_t now_ms) {
    bool begins = l->loading_model != r->model + 1;
    l->loading_model = r->model + 1;
    l->permille = r->progress.permille < 1000 ? r->progress.permille : 1000;
    l->left_until_ms = r->progress.left_ms > 0 ? now_ms + r->progress.left_ms : 0;
    if (!l->stopping && !l->draining)
        (void)snprintf(l->reason, sizeof l->reason, "%s", r->progress.what);
    if (begins && l->loaded) beat_soon(l, now_ms);
}

/* What a model is and whether it is loaded; coordinators hear of it at once. */
static void take_model(coordinator_link *l, const report *r, uint64_t now_ms) {
    CHECK(r->model < ENGINE_LOOP_MAX_MODELS);
    link_model *m = &l->models[r->model];
    if (r->model >= l->n_models) l->n_models = r->model + 1;
    m->facts = r->facts;
    m->loaded = r->kind == REPORT_LOADED;
    if (m->loaded) {
        l->loaded = true;
        watch_gpu(l, &m->facts);
        for (size_t i = 0; i < l->n_peers; i++)
            l->peers[i].hello_due_ms = now_ms;
    }
    if (l->loading_model == r->model + 1) {
        l->loading_model = 0;
        l->left_until_ms = 0;
        if (!l->stopping && !l->draining) l->reason[0] = '\0';
    }
    beat_soon(l, now_ms);
}

/* "chat,embed": what is served, for the ready line. */
static void tell_started(coordinator_link *l) {
    char names[sizeof((notice *)0)->text] = "";
    for (size_t i = 0, n = 0; i < l->n_models && n < sizeof names; i++) {
        int more = snprintf(names + n, sizeof names - n, "%s%s", i > 0 ? "," : "",
                            l->models[i].facts.model);
        n += more > 0 ? (size_t)more : 0;
    }
    tell_main(l, NOTICE_LOADED, names);
}

static void take_report(coordinator_link *l, report *r, uint64_t now_ms) {
    switch (r->kind) {
    case REPORT_PROGRESS:
        take_progress(l, r, now_ms);
        break;
    case REPORT_MODEL:
    case REPORT_LOADED:
    case REPORT_UNLOADED:
        take_model(l, r, now_ms);
        break;
    case REPORT_STARTED:
        tell_started(l);
        break;
    case REPORT_STATS:
        l->stats = r->stats;
        break;
    case REPORT_MESSAGE:
        link_pass_result(l, &r->message);
        break;
    case REPORT_FAILED:
        take_failure(l, &r->failed, now_ms);
        break;
    }
}

static void take_reports(coordinator_link *l, uint64_t now_ms) {
    ring_clear_event(&l->x->reports);
    for (int n = 0; n < REPORTS_A_ROUND; n++) {
        report *r = ring_pop(&l->x->reports);
        if (r == NULL) return;
        take_report(l, r, now_ms);
        free(r);
    }
    ring_wake(&l->x->reports); /* there may be more */
}

/* ---- time ---- */

static void take_wishes(coordinator_link *l, uint64_t now_ms) {
    ring_clear_event(&l->x->wishes);
    while (ring_pop(&l->x->wishes) != NULL) {
        if (l->stopping) continue;
        l->stopping = true;
        l->drain_until_ms = now_ms + l->params->drain_limit_ms;
        (void)snprintf(l->reason, sizeof l->reason, "stopping");
        log_info("stopping", "running=%zu limit_ms=%llu", l->flights.n_used,
                 (unsigned long long)l->params->drain_limit_ms);
        beat_soon(l, now_ms);
    }
}

static bool all_is_sent(const coordinator_link *l) {
    for (size_t i = 0; i < l->n_peers; i++) {
        if (l->peers[i].up && l->peers[i].socket.n_frames > 0) return false;
    }
    return true;
}

static void keep_time(coordinator_link *l, uint64_t now_ms) {
    if (l->failed) {
        l->over = now_ms >= l->over_at_ms;
        return;
    }
    bool drains = l->stopping || l->draining;
    if (drains && now_ms >= l->drain_until_ms) {
        for (size_t i = 0; i < l->flights.n_places; i++) {
            flight *f = &l->flights.places[i];
            if (f->key == 0 || f->cancelled) continue;
            f->cut = true;
            link_cancel(l, f);
        }
    }
    if (!l->stopping) return;
    l->over =
        (l->flights.n_used == 0 && all_is_sent(l)) ||
        (now_ms >= l->drain_until_ms && now_ms - l->drain_until_ms >= l->params->times.cut_ms);
}

static void serve_peer(coordinator_link *l, size_t i, uint64_t now_ms) {
    link_peer *p = &l->peers[i];
    link_peer_follow(p, now_ms);
    receive_from(l, i, now_ms);
    peer_socket_flush(&p->socket);
    if (!p->up && p->down_since_ms != LINK_NEVER_MS &&
        now_ms - p->down_since_ms >= l->params->grace_ms) {
        link_drop_requests(l, i, "the coordinator is gone");
    }
}

static void send_due(coordinator_link *l, uint64_t now_ms) {
    for (size_t i = 0; i < l->n_peers; i++) {
        link_peer *p = &l->peers[i];
        if (link_peer_hello_due(p, now_ms)) send_hello(l, p, now_ms);
        if (link_peer_beat_due(p, now_ms)) send_beat(l, p, now_ms);
    }
}

/* zmq_poll() looks at every socket's ZMQ_EVENTS before it sleeps, so no edge is lost. */
static void sleep_until_something(coordinator_link *l, uint64_t now_ms) {
    zmq_pollitem_t items[2 * LINK_MAX_COORDINATORS + 2];
    size_t n = 0;
    uint64_t wait = MAX_SLEEP_MS;
    for (size_t i = 0; i < l->n_peers; i++) {
        const link_peer *p = &l->peers[i];
        bool writes = !p->socket.hold && p->socket.n_frames > 0;
        items[n++] =
            (zmq_pollitem_t){.socket = p->socket.socket,
                             .events = (short)(ZMQ_POLLIN | (writes ? ZMQ_POLLOUT : 0))};
        items[n++] = (zmq_pollitem_t){.socket = p->socket.monitor, .events = ZMQ_POLLIN};
        wait = link_peer_wait_ms(p, now_ms, wait);
    }
    items[n++] = (zmq_pollitem_t){.fd = l->x->reports.event_fd, .events = ZMQ_POLLIN};
    items[n++] = (zmq_pollitem_t){.fd = l->x->wishes.event_fd, .events = ZMQ_POLLIN};
    const uint64_t limits[] = {l->failed ? l->over_at_ms : UINT64_MAX,
                               l->stopping || l->draining ? l->drain_until_ms : UINT64_MAX};
    for (size_t i = 0; i < 2; i++) {
        uint64_t left = limits[i] > now_ms ? limits[i] - now_ms : MAX_SLEEP_MS / 20;
        if (left < wait) wait = left;
    }
    (void)zmq_poll(items, (int)n, (long)wait);
}

/* ---- life ---- */

static status open_peers(coordinator_link *l) {
    const link_params *params = l->params;
    for (size_t i = 0; i < params->n_coordinators; i++) {
        l->peers[i].address = params->coordinators[i];
        l->peers[i].times = &params->times;
        status rc =
            peer_socket_open(&l->peers[i].socket, l->context, params->coordinators[i],
                             l->instance, i, params->security, &params->times, &l->start_error);
        if (rc != STATUS_OK) return rc;
        l->n_peers++;
    }
    return STATUS_OK;
}

static status build(coordinator_link *l) {
    const link_params *params = l->params;
    if (params->n_coordinators == 0 || params->n_coordinators > LINK_MAX_COORDINATORS) {
        return error_set(&l->start_error, STATUS_BAD_INPUT,
                         "%zu coordinators are named, allowed are 1 to %d",
                         params->n_coordinators, LINK_MAX_COORDINATORS);
    }
    while (l->instance == 0) {
        if (getrandom(&l->instance, sizeof l->instance, 0) != sizeof l->instance) continue;
    }
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page_bytes > 0) l->ram_mib = (uint64_t)pages * (uint64_t)page_bytes >> 20;
    l->stats.hit_rate = -1;
    (void)snprintf(l->reason, sizeof l->reason, "starting");
    /* Room for requests that are muted and still have to end in the engine. */
    status rc =
        flights_init(&l->flights, 2 * (params->max_sequences + params->queue), &l->start_error);
    if (rc != STATUS_OK) return rc;
    l->context = zmq_ctx_new();
    if (l->context == NULL)
        return error_set(&l->start_error, STATUS_NO_MEMORY, "no ZeroMQ context");
    return open_peers(l);
}

static void say_bye(coordinator_link *l) {
    const wire_message m = {.type = WIRE_BYE,
                            .bye = {.instance = l->instance, .reason = link_text(l->reason)}};
    for (size_t i = 0; i < l->n_peers; i++) {
        if (l->peers[i].up && wire_encode(&l->frame, &m, NULL) == STATUS_OK) {
            (void)peer_socket_try(&l->peers[i].socket, &l->frame);
        }
    }
}

static void tear_down(coordinator_link *l, int linger_ms) {
    for (size_t i = 0; i < l->n_peers; i++)
        peer_socket_close(&l->peers[i].socket, linger_ms);
    if (l->context != NULL) (void)zmq_ctx_term(l->context);
    vram_watch_stop(l->gpu);
    flights_release(&l->flights);
    wire_frame_release(&l->frame);
}

static void stop_engine(coordinator_link *l) {
    static order stop = {.kind = ORDER_STOP};
    atomic_store(&l->x->link_gone, true);
    CHECK(ring_push(&l->x->orders, &stop)); /* there is a place for it */
}

static void link_body(void *argument) {
    coordinator_link *l = argument;
    if (build(l) != STATUS_OK) {
        tear_down(l, 0);
        return;
    }
    thread_ready();
    while (!l->over) {
        uint64_t now_ms = clock_monotonic_ms();
        take_wishes(l, now_ms);
        take_reports(l, now_ms);
        for (size_t i = 0; i < l->n_peers; i++)
            serve_peer(l, i, now_ms);
        grant_credit(l, now_ms);
        send_due(l, now_ms);
        keep_time(l, now_ms);
        if (!l->over) sleep_until_something(l, now_ms);
    }
    say_bye(l);
    tear_down(l, (int)l->params->times.linger_ms);
    stop_engine(l);
    tell_main(l, NOTICE_FINISHED, "");
}

status coordinator_link_start(coordinator_link **out, const link_params *params, exchange *x,
                              error *err) {
    *out = NULL;
    coordinator_link *l = calloc(1, sizeof *l);
    if (l == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for the link");
    l->params = params;
    l->x = x;
    status rc = thread_start(&l->self, "link", link_body, l, err);
    if (rc != STATUS_OK) {
        if (l->start_error.code != STATUS_OK && err != NULL) *err = l->start_error;
        rc = l->start_error.code != STATUS_OK ? l->start_error.code : rc;
        free(l);
        return rc;
    }
    *out = l;
    return STATUS_OK;
}

void coordinator_link_join(coordinator_link **link) {
    if (*link == NULL) return;
    thread_join(&(*link)->self);
    free(*link);
    *link = NULL;
}
