#include "coordinator/dispatch.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/forecast.h"
#include "coordinator/router.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PLANNED = 512 }; /* requests looked at in one run */

/* An answer that has begun goes on only with the file that it began with. */
static bool continues(const coordinator *c, const request *r, const node_model *m) {
    if (r->given.n_ids == 0) return true;
    if (strcmp(m->hash, r->given.hash) != 0) return false;
    return strcmp(m->numerics, r->given.numerics) == 0 ||
           strcmp(c->options->failover_different_numerics, "approximate") == 0;
}

/* Why this node can never be the one; NULL: it can, and *out is its model. */
static const char *unfit(const coordinator *c, const request *r, node *n, node_model **out) {
    node_model *m = node_find_model(n, r->model);
    *out = NULL;
    if (m == NULL) return "it has no model of the name";
    if (r->forwarded && strcmp(m->arch, UPSTREAM_COORDINATOR) == 0)
        return "it is a coordinator, and one has sent the request";
    if (request_has_tried(r, n)) return "it was tried";
    if (!continues(c, r, m)) return "the answer was begun with another file or arithmetic";
    if (m->context_tokens > 0 && r->min_context > m->context_tokens)
        return "its context is too short";
    *out = m;
    return NULL;
}

static node_model *fitting_model(const coordinator *c, const request *r, node *n) {
    node_model *m = NULL;
    (void)unfit(c, r, n, &m);
    return m;
}

static bool alive(const node *n) {
    return n->state == NODE_READY || n->state == NODE_SUSPECT || n->state == NODE_QUARANTINED;
}

double dispatch_loading_s(const coordinator *c, const request *r) {
    double least = -1;
    uint64_t now_ms = clock_monotonic_ms();
    for (node *n = c->nodes.first; n != NULL; n = n->next) {
        if (n->state != NODE_LOADING) continue;
        /* One that loads has yet to say what it serves: it may be this. */
        if (n->n_models > 0 && fitting_model(c, r, n) == NULL) continue;
        double left_s = node_loading_left_s(n, now_ms);
        if (left_s >= 0 && (least < 0 || left_s < least)) least = left_s;
    }
    return least;
}

/* Only a node's own word lets a request wait for it: an estimate from progress may creep. */
static bool loads_soon(const coordinator *c, const request *r, node *n) {
    if (n->state != NODE_LOADING || n->beat.loading_left_ms == 0) return false;
    if (n->n_models > 0 && fitting_model(c, r, n) == NULL) return false;
    return (double)n->beat.loading_left_ms * 1e-3 <= c->options->queue_loading_wait_s;
}

dispatch_outlook dispatch_look(const coordinator *c, const request *r) {
    bool known = c->nodes.first == NULL, live = false, soon = false;
    for (node *n = c->nodes.first; n != NULL; n = n->next) {
        if (n->n_models == 0 && n->state != NODE_DOWN && n->state != NODE_READY) known = true;
        soon = soon || loads_soon(c, r, n);
        if (node_find_model(n, r->model) == NULL) continue;
        known = true;
        if (!alive(n)) continue;
        live = true;
        if (fitting_model(c, r, n) != NULL) return DISPATCH_POSSIBLE;
    }
    if (soon) return DISPATCH_LOADING;
    if (live) return DISPATCH_TRIED;
    return known ? DISPATCH_NO_NODE : DISPATCH_UNKNOWN;
}

/* ------------------------------------------------------------ a snapshot */

/* What a node takes: so many, and more that are interactive where background work yields. */
typedef struct node_room {
    uint32_t places, more;
} node_room;

typedef struct snapshot {
    const coordinator *c;
    size_t n;
    size_t n_free;    /* places, over all nodes */
    size_t n_yielded; /* more, for interactive requests */
    uint64_t now_ms;
    node **nodes;
    router_node *views;
    node_room *rooms;
    bool *may;
    double *finishes;
} snapshot;

static void snapshot_release(snapshot *s) {
    free(s->nodes);
    free(s->views);
    free(s->rooms);
    free(s->may);
    free(s->finishes);
}

static bool takes_work(const node *n) {
    return n->state == NODE_READY || n->state == NODE_QUARANTINED;
}

static size_t count_nodes(const coordinator *c, size_t *n_in_flight) {
    size_t count = 0;
    for (node *n = c->nodes.first; n != NULL; n = n->next) {
        if (!takes_work(n)) continue;
        count++;
        *n_in_flight += n->in_flight;
    }
    return count;
}

/* A worker that is full of background work lets it give up its place: so many requests that
 * are not may come, as far as the worker takes more than it runs. */
static uint32_t yields(const node *n) {
    uint32_t places = node_places(n), n_background = 0;
    if (places == 0 || n->probation || n->credit <= places) return 0;
    for (const request *r = n->requests; r != NULL; r = r->node_next)
        n_background += r->priority > 0;
    uint64_t most = n->credit - places;
    return n_background < most ? n_background : (uint32_t)most;
}

static size_t places_left(const node_room *room, const node *n) {
    return room->places > n->in_flight ? room->places - n->in_flight : 0;
}

static size_t yielded_left(const node_room *room, const node *n) {
    uint32_t all = room->places + room->more, base = room->places;
    if (all <= n->in_flight) return 0;
    return all - (n->in_flight > base ? n->in_flight : base);
}

static void fill_view(snapshot *s, node *n, double *finish, size_t cap, uint64_t now_ns) {
    router_node *v = &s->views[s->n];
    node_room *room = &s->rooms[s->n];
    *room = (node_room){node_places(n), yields(n)};
    s->nodes[s->n++] = n;
    v->places = room->places;
    v->finish_s = finish;
    v->cap_finish = cap;
    v->round_trip_s = node_round_trip_s(n);
    v->path_s = n->path == NODE_PATH_RELAYED ? s->c->options->route_relay_s : 0;
    for (const request *r = n->requests; r != NULL; r = r->node_next) {
        router_reserve(v, r->state == REQUEST_CANCELLING ? 0 : forecast_left_s(r, n, now_ns));
    }
    s->n_free += places_left(room, n);
    s->n_yielded += yielded_left(room, n);
}

/* The nodes that take work, and quarantined ones for requests that have no other. */
static bool snapshot_take(snapshot *s, const coordinator *c, uint64_t now_ns) {
    *s = (snapshot){.c = c, .now_ms = now_ns / 1000000u};
    size_t n_in_flight = 0;
    size_t n = count_nodes(c, &n_in_flight);
    if (n == 0) return false;
    size_t planned = c->queue.n_waiting < MAX_PLANNED ? c->queue.n_waiting : MAX_PLANNED;
    s->nodes = calloc(n, sizeof(node *));
    s->views = calloc(n, sizeof *s->views);
    s->rooms = calloc(n, sizeof *s->rooms);
    s->may = calloc(n, sizeof *s->may);
    s->finishes = calloc(n_in_flight + n * planned + 1, sizeof *s->finishes);
    if (s->nodes == NULL || s->views == NULL || s->rooms == NULL || s->may == NULL ||
        s->finishes == NULL)
        return false;
    double *at = s->finishes;
    for (node *i = c->nodes.first; i != NULL; i = i->next) {
        if (!takes_work(i)) continue;
        fill_view(s, i, at, i->in_flight + planned, now_ns);
        at += i->in_flight + planned;
    }
    return true;
}

/* ------------------------------------------------------------ sending */

static status send_submit(coordinator *c, request *r, node *n, uint64_t now_ns, error *err) {
    wire_message m = {.type = WIRE_SUBMIT};
    if (r->deadline_ns > now_ns)
        m.submit.deadline_ms = (r->deadline_ns - now_ns) / 1000000u + 1;
    m.submit.request = r->id;
    m.submit.epoch = r->epoch;
    m.submit.kind = r->kind;
    m.submit.request_id = wire_text(r->request_id, strlen(r->request_id));
    m.submit.model = wire_text(r->model, strlen(r->model));
    m.submit.body = wire_text(r->body, r->n_body);
    m.submit.priority = r->priority;
    m.submit.seed = r->seed;
    m.submit.boundaries = r->chain.hashes;
    m.submit.n_boundaries = r->chain.n;
    replay_fill(&r->given, &m.submit.resume);
    return coordinator_send(c, n->identity, n->n_identity, &m, err);
}

/* False: the node cannot be reached now. */
static bool place(coordinator *c, request *r, node *n, uint64_t now_ns) {
    error err = {0};
    status rc = send_submit(c, r, n, now_ns, &err);
    if (rc == STATUS_OK) {
        request_attach(c, r, n, now_ns);
        return true;
    }
    log_warn("submit-failed", "request=%s node=%s error=\"%s\"", r->request_id, n->name,
             err.text);
    if (rc == STATUS_UNAVAILABLE) node_table_unreachable(&c->nodes, n, now_ns / 1000000u);
    return false;
}

/* Near the limit the node's own count decides, and of the inputs of vectors it alone knows the
 * longest. */
static bool clearly_too_long(const request *r, const node_model *m) {
    if (m->context_tokens == 0 || r->kind == WIRE_EMBED || r->kind == WIRE_RERANK) return false;
    return forecast_prompt_tokens(r, m) > 2.0 * (double)m->context_tokens;
}

/* Nodes in this state that serve the request.  A prompt that is clearly too long
 * for a node is kept from it. */
static size_t mark_in_state(snapshot *s, const request *r, node_state state) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        node_model *m =
            s->nodes[i]->state == state ? fitting_model(s->c, r, s->nodes[i]) : NULL;
        s->may[i] = m != NULL && s->views[i].places > 0 && !clearly_too_long(r, m);
        if (m != NULL) {
            s->views[i].speed = &m->speed;
            s->views[i].held_tokens = forecast_held_tokens(r, m);
            s->views[i].load_s = node_model_load_s(s->nodes[i], m, s->now_ms);
        }
        n += s->may[i];
    }
    return n;
}

/* Too long for all by the guess: let the one with the longest context say so itself. */
static size_t mark_longest(snapshot *s, const request *r) {
    size_t best = s->n;
    uint64_t context = 0;
    for (size_t i = 0; i < s->n; i++) {
        node_model *m = fitting_model(s->c, r, s->nodes[i]);
        if (m == NULL || s->views[i].places == 0 || m->context_tokens < context) continue;
        s->views[i].speed = &m->speed;
        context = m->context_tokens;
        best = i;
    }
    if (best == s->n) return 0;
    s->may[best] = true;
    return 1;
}

/* An answer goes on with the same arithmetic where it can. */
static size_t keep_exact(snapshot *s, const request *r, size_t n_marked) {
    size_t n_exact = 0;
    for (size_t i = 0; i < s->n; i++) {
        const node_model *m = s->may[i] ? node_find_model(s->nodes[i], r->model) : NULL;
        n_exact += m != NULL && strcmp(m->numerics, r->given.numerics) == 0;
    }
    for (size_t i = 0; i < s->n && n_exact > 0; i++) {
        const node_model *m = s->may[i] ? node_find_model(s->nodes[i], r->model) : NULL;
        s->may[i] = m != NULL && strcmp(m->numerics, r->given.numerics) == 0;
    }
    return n_exact > 0 ? n_exact : n_marked;
}

/* Quarantined nodes only for a request that no ready one serves. */
static size_t mark_candidates(snapshot *s, const request *r) {
    size_t n = mark_in_state(s, r, NODE_READY);
    if (n > 0 && r->given.n_ids > 0) n = keep_exact(s, r, n);
    if (n == 0) n = mark_in_state(s, r, NODE_QUARANTINED);
    return n > 0 ? n : mark_longest(s, r);
}

/* Background work is in no hurry: it goes where nobody waits for it, to an idle node if
 * there is one, and of these to the slowest; never does it wait for a place. */
static void keep_for_background(snapshot *s) {
    size_t best = s->n;
    double best_rate = 0;
    bool best_idle = false;
    for (size_t i = 0; i < s->n; i++) {
        const router_node *v = &s->views[i];
        if (!s->may[i] || v->n_finish >= v->places) continue;
        bool idle = v->n_finish == 0;
        double rate = rates_decode(v->speed, 1);
        bool better = idle != best_idle ? idle : rate < best_rate;
        if (best < s->n && !better) continue;
        best = i;
        best_idle = idle;
        best_rate = rate;
    }
    for (size_t i = 0; i < s->n; i++)
        s->may[i] = i == best;
}

/* Mark who may have it and choose; -1: nobody now. */
static int choose(snapshot *s, const request *r, router_cost *cost) {
    for (size_t i = 0; i < s->n; i++)
        s->views[i].places = s->rooms[i].places + (r->priority == 0 ? s->rooms[i].more : 0);
    if (mark_candidates(s, r) == 0) return -1;
    if (r->priority > 0) keep_for_background(s);
    const node_model *m = NULL;
    for (size_t i = 0; i < s->n && m == NULL; i++) {
        if (s->may[i]) m = node_find_model(s->nodes[i], r->model);
    }
    if (m == NULL) return -1;
    router_job job = forecast_job(r, m);
    return router_choose(s->views, s->n, s->may, &job, cost);
}

/* ------------------------------------------------------------ explaining */

static const char *why_not_now(const snapshot *s, size_t view) {
    if (s->may[view]) return NULL;
    return s->views[view].places == 0 ? "it takes nothing now"
                                      : "another kind of node goes first";
}

/* Keep the terms of the decision before the place is taken.  The views are in the nodes'
 * order, so both lists are walked once. */
static void explain(coordinator *c, const snapshot *s, const request *r, const node *chosen,
                    uint64_t now_ns) {
    decision *d = decisions_begin(&c->decisions, r, chosen->name, now_ns);
    size_t view = 0;
    if (d == NULL) return;
    for (node *n = c->nodes.first; n != NULL; n = n->next) {
        bool has_view = view < s->n && s->nodes[view] == n;
        size_t at = has_view ? view++ : 0;
        if (node_find_model(n, r->model) == NULL) continue;
        node_model *m = NULL;
        decision_node terms = {.in_flight = n->in_flight, .places = node_places(n)};
        (void)snprintf(terms.name, sizeof terms.name, "%.63s", n->name);
        terms.left_out = unfit(c, r, n, &m);
        if (terms.left_out == NULL)
            terms.left_out = has_view ? why_not_now(s, at) : node_state_name(n->state);
        if (terms.left_out == NULL) {
            terms.job = forecast_job(r, m);
            terms.cost = router_estimate(&s->views[at], &terms.job);
        }
        decision_add(d, &terms);
    }
}

/* ------------------------------------------------------------ the queue */

static void plan(coordinator *c, snapshot *s, uint64_t now_ns, dispatch_place place_on) {
    size_t looked = 0;
    request *next;
    for (request *r = admission_first(&c->queue); r != NULL; r = next) {
        next = admission_next(&c->queue, r);
        if (s->n_free + (r->priority == 0 ? s->n_yielded : 0) == 0) break;
        if (++looked > MAX_PLANNED) break;
        router_cost cost;
        int best = admission_may_run(r) ? choose(s, r, &cost) : -1;
        if (best < 0) continue;
        node *n = s->nodes[best];
        if (n->in_flight < s->views[best].places) {
            node_room *room = &s->rooms[best];
            s->n_free -= places_left(room, n);
            s->n_yielded -= yielded_left(room, n);
            explain(c, s, r, n, now_ns);
            if (!place_on(c, r, n, now_ns)) {
                *room = (node_room){0};
                s->views[best].places = 0;
                c->dispatch_due = true;
                continue;
            }
            s->n_free += places_left(room, n);
            s->n_yielded += yielded_left(room, n);
        }
        router_reserve(&s->views[best], cost.total_s);
    }
}

void dispatch_plan(coordinator *c, uint64_t now_ns, dispatch_place place_on) {
    if (c->queue.n_waiting == 0) return;
    snapshot s;
    if (snapshot_take(&s, c, now_ns)) plan(c, &s, now_ns, place_on);
    snapshot_release(&s);
}

void dispatch_run(coordinator *c) {
    c->dispatch_due = false;
    dispatch_plan(c, clock_monotonic_ns(), place);
}

bool dispatch_forecast(coordinator *c, const request *r, bool idle, router_cost *cost) {
    snapshot s;
    int best = -1;
    if (snapshot_take(&s, c, clock_monotonic_ns())) {
        size_t looked = 0;
        for (size_t i = 0; i < s.n && idle; i++)
            s.views[i].n_finish = 0;
        for (request *q = admission_first(&c->queue);
             q != NULL && q != r && !idle && ++looked <= MAX_PLANNED;
             q = admission_next(&c->queue, q)) {
            router_cost ahead;
            int at = choose(&s, q, &ahead);
            if (at >= 0) router_reserve(&s.views[at], ahead.total_s);
        }
        best = choose(&s, r, cost);
    }
    snapshot_release(&s);
    return best >= 0;
}

double dispatch_expected_wait_s(const coordinator *c, const char *model, const tenant *t) {
    double least = -1;
    uint64_t now_ns = clock_monotonic_ns();
    for (node *n = c->nodes.first; n != NULL; n = n->next) {
        if (t == NULL && (node_find_model(n, model) == NULL || !alive(n))) continue;
        for (const request *r = n->requests; r != NULL; r = r->node_next) {
            if (t != NULL && r->tenant != t) continue;
            double left = forecast_left_s(r, n, now_ns);
            if (least < 0 || left < least) least = left;
        }
    }
    return least < 0 ? 5.0 : least;
}
