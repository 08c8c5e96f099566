/* engine_loop.c - orders in, steps, results out. */
#include "worker/engine_loop.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"
#include "worker/model_shelf.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    IDLE_MS = 250,         /* how long an idle loop sleeps at most */
    STATS_MS = 250,        /* how often a busy one tells its stats */
    MAX_FAILED_STEPS = 10, /* in a row: then the engine counts as broken */
    RETRY_MS = 10
};

struct engine_loop {
    model_shelf shelf; /* first: its ring stands on cache lines of its own */
    const engine_loop_params *params;
    exchange *x;
    engine_stats told;
    uint64_t stats_ms;
    thread self;
    bool failed; /* every order is refused until the stop */
    bool stop;
};

static void come_round(engine_loop *l) {
    atomic_store_explicit(&l->x->engine_round_ms, clock_monotonic_ms(), memory_order_relaxed);
}

/* ---- reports ---- */

static void report_message(engine_loop *l, const wire_message *m) {
    report *r = report_copy(m);
    if (r == NULL) {
        log_error("result-lost", "no memory");
    } else {
        exchange_report(l->x, r);
    }
}

static void on_tokens(void *context, const wire_tokens *tokens) {
    const wire_message m = {.type = WIRE_TOKENS, .tokens = *tokens};
    report_message(context, &m);
}

static void on_done(void *context, const wire_done *done) {
    const wire_message m = {.type = WIRE_DONE, .done = *done};
    report_message(context, &m);
}

static void on_error(void *context, const wire_error *failure) {
    const wire_message m = {.type = WIRE_ERROR, .error = *failure};
    report_message(context, &m);
}

static void report_failure(engine_loop *l, const error *e) {
    report *r = report_new(REPORT_FAILED);
    if (r == NULL) return;
    r->failed = *e;
    exchange_report(l->x, r);
}

static void add_prefix_stats(prefix_stats *sum, const prefix_stats *s) {
    sum->hits += s->hits;
    sum->hits_in_place += s->hits_in_place;
    sum->asked_tokens += s->asked_tokens;
    sum->hit_tokens += s->hit_tokens;
    sum->n_read += s->n_read;
    sum->n_snapshots += s->n_snapshots;
    sum->n_blocks += s->n_blocks;
    sum->ram_bytes += s->ram_bytes;
    sum->disk_bytes += s->disk_bytes;
}

/* Sequences, pages and rates of all models together; of an expert cache, the first there is. */
static void add_stats(engine_stats *sum, const engine_stats *s) {
    sum->running += s->running;
    sum->waiting += s->waiting;
    sum->free_sequences += s->free_sequences;
    sum->kv_pages_total += s->kv_pages_total;
    sum->kv_pages_free += s->kv_pages_free;
    sum->prefill_tok_per_s += s->prefill_tok_per_s;
    sum->decode_tok_per_s += s->decode_tok_per_s;
    add_prefix_stats(&sum->prefixes, &s->prefixes);
    for (int k = 0; k < DRAFTER_KINDS; k++) {
        sum->guesses.drafted[k] += s->guesses.drafted[k];
        sum->guesses.accepted[k] += s->guesses.accepted[k];
    }
    sum->parked += s->parked;
    sum->not_parked += s->not_parked;
    if (sum->hit_rate < 0) {
        sum->hit_rate = s->hit_rate;
        sum->misses_per_token = s->misses_per_token;
    }
    if (s->ram_used_bytes > sum->ram_used_bytes) sum->ram_used_bytes = s->ram_used_bytes;
}

static engine_stats read_stats(engine_loop *l) {
    engine_stats sum = {.hit_rate = -1, .waiting = shelf_n_held(&l->shelf)};
    for (size_t i = 0; i < l->shelf.n; i++) {
        shelf_model *m = &l->shelf.models[i];
        if (m->e == NULL) continue;
        engine_stats s = {0};
        engine_read_stats(m->e, &s);
        m->busy = s.running + s.waiting > 0;
        add_stats(&sum, &s);
    }
    return sum;
}

static bool same_load(const engine_stats *a, const engine_stats *b) {
    return a->running == b->running && a->waiting == b->waiting &&
           a->free_sequences == b->free_sequences;
}

static void report_stats(engine_loop *l) {
    engine_stats s = read_stats(l);
    uint64_t now_ms = clock_monotonic_ms();
    if (same_load(&s, &l->told) && now_ms - l->stats_ms < STATS_MS) return;
    report *r = report_new(REPORT_STATS);
    if (r == NULL) return;
    r->stats = s;
    l->told = s;
    l->stats_ms = now_ms;
    exchange_report(l->x, r);
}

/* ---- orders ---- */

static void refuse_order(engine_loop *l, const order *o, const shelf_refusal *why) {
    const wire_message m = {.type = WIRE_ERROR,
                            .error = {.request = o->request,
                                      .epoch = o->epoch,
                                      .http_status = why->http_status,
                                      .code = wire_text(why->code, strlen(why->code)),
                                      .text = wire_text(why->text, strlen(why->text)),
                                      .retryable = why->retryable}};
    report_message(l, &m);
}

static shelf_refusal refusal(uint64_t http_status, const char *code, const char *text) {
    shelf_refusal why = {.http_status = http_status, .code = code, .retryable = true};
    (void)snprintf(why.text, sizeof why.text, "%s", text);
    return why;
}

/* To the engine; the order stays the caller's.  What it waited is off its deadline. */
static void submit(engine_loop *l, int which, const order *o) {
    uint64_t now_ms = clock_monotonic_ms();
    wire_submit s = o->message.submit;
    s.request = o->request;
    if (o->held_since_ms != 0 && s.deadline_ms > 0) {
        uint64_t waited_ms = now_ms - o->held_since_ms;
        s.deadline_ms = s.deadline_ms > waited_ms ? s.deadline_ms - waited_ms : 1;
    }
    error err = {0};
    status rc = engine_submit(l->shelf.models[which].e, &s, &err);
    shelf_use(&l->shelf, which, now_ms);
    if (rc == STATUS_OK) return;
    const shelf_refusal why =
        refusal(503, rc == STATUS_UNAVAILABLE ? "busy" : status_name(rc), err.text);
    refuse_order(l, o, &why);
}

/* True: the order is kept here. */
static bool take_submit(engine_loop *l, order *o) {
    int which = shelf_find(&l->shelf, o->message.submit.model);
    if (which == SHELF_NONE) {
        const shelf_refusal why =
            refusal(404, "model_not_found", "this worker has no model of the name");
        refuse_order(l, o, &why);
        return false;
    }
    if (!shelf_is_open(&l->shelf, which)) {
        shelf_hold(&l->shelf, which, o, clock_monotonic_ms());
        return true;
    }
    submit(l, which, o);
    return false;
}

static void cancel(engine_loop *l, const order *o) {
    order *held = shelf_take_held(&l->shelf, o->request, o->epoch);
    if (held != NULL) {
        shelf_refusal why = refusal(499, "cancelled", "cancelled");
        why.retryable = false;
        refuse_order(l, held, &why);
        order_free(held);
        return;
    }
    for (size_t i = 0; i < l->shelf.n; i++) {
        engine *e = l->shelf.models[i].e;
        if (e != NULL && engine_cancel(e, o->request, o->epoch)) return;
    }
}

static void take_orders(engine_loop *l) {
    ring_clear_event(&l->x->orders);
    for (order *o; (o = ring_pop(&l->x->orders)) != NULL;) {
        bool kept = false;
        if (o->kind == ORDER_STOP) {
            l->stop = true;
        } else if (l->failed) {
            const shelf_refusal why = refusal(503, "engine_failed", "the engine has failed");
            refuse_order(l, o, &why);
        } else if (o->kind == ORDER_CANCEL) {
            cancel(l, o);
        } else {
            kept = take_submit(l, o);
        }
        if (!kept) order_free(o);
    }
}

/* Those whose model has come, and those that need wait no longer. */
static void take_held(engine_loop *l) {
    order *o;
    for (size_t i = 0; i < l->shelf.n; i++) {
        while ((o = shelf_next_ready(&l->shelf, (int)i)) != NULL) {
            submit(l, (int)i, o);
            order_free(o);
        }
    }
    shelf_refusal why;
    while ((o = shelf_next_refused(&l->shelf, clock_monotonic_ms(), &why)) != NULL) {
        refuse_order(l, o, &why);
        order_free(o);
    }
}

static void sleep_for_orders(const engine_loop *l, int timeout_ms) {
    struct pollfd p[] = {{.fd = l->x->orders.event_fd, .events = POLLIN},
                         {.fd = l->shelf.news.event_fd, .events = POLLIN}};
    (void)poll(p, 2, timeout_ms);
}

/* ---- the loop ---- */

static status step(engine_loop *l, bool *did_work, error *err) {
    *did_work = false;
    for (size_t i = 0; i < l->shelf.n; i++) {
        const shelf_model *m = &l->shelf.models[i];
        if (m->e == NULL) continue;
        bool did = false;
        status rc = engine_step(m->e, &did, err);
        if (rc != STATUS_OK) return rc;
        engine_tend_experts(m->e, clock_monotonic_ms());
        *did_work = *did_work || did;
    }
    return STATUS_OK;
}

/* Who waits for a place does not wait for a sleeper besides. */
static int idle_ms(const engine_loop *l) {
    bool may_move =
        l->shelf.loading == SHELF_NONE && (!l->shelf.started || shelf_n_held(&l->shelf) > 0);
    return may_move ? RETRY_MS : IDLE_MS;
}

static status run(engine_loop *l, error *err) {
    int failed_in_row = 0;
    while (!l->stop) {
        come_round(l);
        take_orders(l);
        status rc = shelf_tend(&l->shelf, clock_monotonic_ms(), err);
        if (rc != STATUS_OK) return rc;
        take_held(l);
        bool did_work = false;
        if (!l->stop) rc = step(l, &did_work, err);
        if (rc == STATUS_DEVICE || rc == STATUS_IO) return rc;
        if (rc != STATUS_OK) {
            log_error("step-failed", "%s", err->text);
            if (++failed_in_row == MAX_FAILED_STEPS) return rc;
            sleep_for_orders(l, RETRY_MS);
            continue;
        }
        failed_in_row = 0;
        report_stats(l);
        if (!did_work && !l->stop) sleep_for_orders(l, idle_ms(l));
    }
    return STATUS_OK;
}

static void engine_body(void *argument) {
    engine_loop *l = argument;
    const engine_sink sink = {
        .context = l, .on_tokens = on_tokens, .on_done = on_done, .on_error = on_error};
    thread_ready();
    error err = {0};
    come_round(l);
    status rc = shelf_init(&l->shelf, l->params, l->x, &sink, &err);
    if (rc == STATUS_OK) rc = run(l, &err);
    l->failed = rc != STATUS_OK;
    if (l->failed) report_failure(l, &err);
    shelf_release(&l->shelf);
    while (!l->stop) {
        take_orders(l);
        if (!l->stop) sleep_for_orders(l, IDLE_MS);
    }
}

status engine_loop_start(engine_loop **out, const engine_loop_params *params, exchange *x,
                         error *err) {
    *out = NULL;
    /* The shelf's ring stands on cache lines of its own. */
    engine_loop *l = aligned_alloc(_Alignof(engine_loop), sizeof *l);
    if (l == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for the engine's loop");
    memset(l, 0, sizeof *l);
    l->params = params;
    l->x = x;
    status rc = thread_start(&l->self, "engine", engine_body, l, err);
    if (rc != STATUS_OK) {
        free(l);
        return rc;
    }
    *out = l;
    return STATUS_OK;
}

bool engine_loop_loads(const engine_loop *loop) {
    return atomic_load(&loop->shelf.loads);
}

void engine_loop_join(engine_loop **loop) {
    if (*loop == NULL) return;
    thread_join(&(*loop)->self);
    free(*loop);
    *loop = NULL;
}
