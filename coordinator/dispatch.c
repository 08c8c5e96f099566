#include "coordinator/dispatch.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/router.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_PLANNED = 512 }; /* requests looked at in one run */

double dispatch_prompt_tokens(const request *r, const node_model *m) {
    return 8 + r->prompt_bytes / m->speed.bytes_per_token;
}

static double output_tokens(const request *r, const node_model *m) {
    double expected = m->speed.output_tokens;
    return r->max_output > 0 && r->max_output < expected ? r->max_output : expected;
}

/* An answer that has begun goes on only with the file that it began with. */
static bool continues(const coordinator *c, const request *r, const node_model *m) {
    if (r->given.n_ids == 0) return true;
    if (strcmp(m->hash, r->given.hash) != 0) return false;
    return strcmp(m->numerics, r->given.numerics) == 0 ||
           strcmp(c->options->failover_different_numerics, "approximate") == 0;
}

/* Could this node ever be the one? */
static node_model *fitting_model(const coordinator *c, const request *r, node *n) {
    node_model *m = node_find_model(n, r->model);
    if (m == NULL || request_has_tried(r, n) || !continues(c, r, m)) return NULL;
    if (m->context_tokens > 0 && r->min_context > m->context_tokens) return NULL;
    return m;
}

static bool alive(const node *n) {
    return n->state == NODE_READY || n->state == NODE_SUSPECT || n->state == NODE_QUARANTINED;
}

dispatch_outlook dispatch_look(const coordinator *c, const request *r) {
    bool known = c->nodes.first == NULL, live = false;
    for (node *n = c->nodes.first; n != NULL; n = n->next) {
        /* One that loads has yet to say what it serves: it may be this. */
        if (n->n_models == 0 && n->state != NODE_DOWN) known = true;
        if (node_find_model(n, r->model) == NULL) continue;
        known = true;
        if (!alive(n)) continue;
        live = true;
        if (fitting_model(c, r, n) != NULL) return DISPATCH_POSSIBLE;
    }
    if (live) return DISPATCH_TRIED;
    return known ? DISPATCH_NO_NODE : DISPATCH_UNKNOWN;
}

/* Seconds that a request on a node still takes.  One that has outlived its
 * expectation is expected to go on for as long as it is late, so that a node that
 * hangs does not look as if it were about to be free. */
static double remaining_s(const request *r, const node *n, uint64_t now_ns) {
    const node_model *m = NULL;
    for (size_t i = 0; i < n->n_models && m == NULL; i++) {
        if (strcmp(n->models[i].name, r->model) == 0) m = &n->models[i];
    }
    if (m == NULL) return 0;
    double decode = rates_decode(&m->speed, n->in_flight);
    double prefill_s = dispatch_prompt_tokens(r, m) / rates_prefill(&m->speed);
    double total_s = prefill_s + output_tokens(r, m) / decode;
    double elapsed_s = (double)(now_ns - r->sent_ns) * 1e-9;
    double left_s = total_s - elapsed_s;
    if (r->state == REQUEST_RUNNING && r->tokens > 0) {
        left_s = (output_tokens(r, m) - (double)r->tokens) / decode;
    }
    double late_s = elapsed_s - total_s;
    return left_s > late_s ? (left_s > 0 ? left_s : 0) : late_s;
}

/* ------------------------------------------------------------ a snapshot */

typedef struct snapshot {
    const coordinator *c;
    size_t n;
    size_t n_free; /* places, over all nodes */
    node **nodes;
    router_node *views;
    bool *may;
    double *finishes;
} snapshot;

static void snapshot_release(snapshot *s) {
    free(s->nodes);
    free(s->views);
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

static void fill_view(snapshot *s, node *n, double *finish, size_t cap, uint64_t now_ns) {
    router_node *v = &s->views[s->n];
    s->nodes[s->n++] = n;
    v->places = node_places(n);
    v->finish_s = finish;
    v->cap_finish = cap;
    v->round_trip_s = (double)n->beat.rtt_us * 1e-6;
    for (const request *r = n->requests; r != NULL; r = r->node_next) {
        router_reserve(v, r->state == REQUEST_CANCELLING ? 0 : remaining_s(r, n, now_ns));
    }
    if (v->places > n->in_flight) s->n_free += v->places - n->in_flight;
}

/* The nodes that take work, and quarantined ones for requests that have no other. */
static bool snapshot_take(snapshot *s, const coordinator *c, uint64_t now_ns) {
    *s = (snapshot){.c = c};
    size_t n_in_flight = 0;
    size_t n = count_nodes(c, &n_in_flight);
    if (n == 0) return false;
    size_t planned = c->queue.n_waiting < MAX_PLANNED ? c->queue.n_waiting : MAX_PLANNED;
    s->nodes = calloc(n, sizeof(node *));
    s->views = calloc(n, sizeof *s->views);
    s->may = calloc(n, sizeof *s->may);
    s->finishes = calloc(n_in_flight + n * planned + 1, sizeof *s->finishes);
    if (s->nodes == NULL || s->views == NULL || s->may == NULL || s->finishes == NULL)
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

static status send_submit(coordinator *c, request *r, node *n, error *err) {
    wire_message m = {.type = WIRE_SUBMIT};
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
    status rc = send_submit(c, r, n, &err);
    if (rc == STATUS_OK) {
        request_attach(c, r, n, now_ns);
        return true;
    }
    log_warn("submit-failed", "request=%s node=%s error=\"%s\"", r->request_id, n->name,
             err.text);
    if (rc == STATUS_UNAVAILABLE) node_table_unreachable(&c->nodes, n, now_ns / 1000000u);
    return false;
}

/* Nodes in this state that serve the request.  A prompt that is clearly too long
 * for a node is kept from it; near the limit the node's own count decides. */
static size_t mark_in_state(snapshot *s, const request *r, node_state state) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        node_model *m =
            s->nodes[i]->state == state ? fitting_model(s->c, r, s->nodes[i]) : NULL;
        s->may[i] = m != NULL && s->views[i].places > 0 &&
                    (m->context_tokens == 0 ||
                     dispatch_prompt_tokens(r, m) <= 2.0 * (double)m->context_tokens);
        if (m != NULL) s->views[i].speed = &m->speed;
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

static void plan(coordinator *c, snapshot *s, uint64_t now_ns) {
    size_t looked = 0;
    request *next;
    for (request *r = admission_first(&c->queue); r != NULL && s->n_free > 0; r = next) {
        next = admission_next(&c->queue, r);
        if (++looked > MAX_PLANNED) break;
        if (!admission_may_run(r) || mark_candidates(s, r) == 0) continue;
        if (r->priority > 0) keep_for_background(s);
        node_model *m = node_find_model(s->nodes[0], r->model);
        for (size_t i = 0; i < s->n; i++) {
            if (s->may[i]) m = node_find_model(s->nodes[i], r->model);
        }
        router_job job = {dispatch_prompt_tokens(r, m), output_tokens(r, m)};
        router_cost cost;
        int best = router_choose(s->views, s->n, s->may, &job, &cost);
        if (best < 0) continue;
        node *n = s->nodes[best];
        if (n->in_flight < s->views[best].places) {
            s->n_free--;
            if (!place(c, r, n, now_ns)) {
                s->n_free -= s->views[best].places - n->in_flight - 1;
                s->views[best].places = 0;
                c->dispatch_due = true;
                continue;
            }
        }
        router_reserve(&s->views[best], cost.total_s);
    }
}

void dispatch_run(coordinator *c) {
    c->dispatch_due = false;
    if (c->queue.n_waiting == 0) return;
    uint64_t now_ns = clock_monotonic_ns();
    snapshot s;
    if (snapshot_take(&s, c, now_ns) && s.n_free > 0) plan(c, &s, now_ns);
    snapshot_release(&s);
}

double dispatch_expected_wait_s(const coordinator *c, const char *model, const tenant *t) {
    double least = -1;
    uint64_t now_ns = clock_monotonic_ns();
    for (node *n = c->nodes.first; n != NULL; n = n->next) {
        if (t == NULL && (node_find_model(n, model) == NULL || !alive(n))) continue;
        for (const request *r = n->requests; r != NULL; r = r->node_next) {
            if (t != NULL && r->tenant != t) continue;
            double left = remaining_s(r, n, now_ns);
            if (least < 0 || left < least) least = left;
        }
    }
    return least < 0 ? 5.0 : least;
}
