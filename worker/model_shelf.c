/* model_shelf.c - loading on a thread of its own, making room, and who waits for it. */
#include "worker/model_shelf.h"

#include "common/clock.h"
#include "common/log.h"
#include "worker/backend.h"
#include "worker/loading_line.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CAP_NEWS = 1024 };

/* ---- facts ---- */

/* A name that stands in URLs, logs and one word of the ready line. */
static void take_name(char *out, size_t cap, const char *name) {
    (void)snprintf(out, cap, "%s", name);
    for (char *c = out; *c != '\0'; c++) {
        if ((unsigned char)*c <= ' ' || *c == 0x7f) *c = '-';
    }
}

static void choose_name(const char *wanted, const char *general_name, const char *path,
                        char *out, size_t cap) {
    const char *file = strrchr(path, '/');
    file = file == NULL ? path : file + 1;
    if (wanted != NULL && *wanted != '\0') {
        take_name(out, cap, wanted);
    } else if (general_name[0] != '\0') {
        take_name(out, cap, general_name);
    } else {
        take_name(out, cap, file);
        size_t n = strlen(out);
        if (n > 5 && strcmp(out + n - 5, ".gguf") == 0) out[n - 5] = '\0';
    }
}

static void fill_facts(const engine *e, const char *name, const engine_params *params,
                       engine_facts *f) {
    const model_config *c = engine_model_config(e);
    choose_name(name, c != NULL ? c->name : "", params->model_path, f->model, sizeof f->model);
    (void)snprintf(f->hash, sizeof f->hash, "%s", engine_file_hash(e));
    (void)snprintf(f->numerics, sizeof f->numerics, "%s", engine_numerics_id(e));
    (void)snprintf(f->backend, sizeof f->backend, "%s",
                   params->backend == BACKEND_CUDA ? "cuda" : "cpu");
    if (params->backend == BACKEND_CUDA) {
        backend_cuda_describe(f->gpu, sizeof f->gpu, f->gpu_bus_id, sizeof f->gpu_bus_id,
                              &f->vram_bytes);
    }
    if (c != NULL) {
        (void)snprintf(f->arch, sizeof f->arch, "%s", c->arch);
        f->experts_total = (uint64_t)c->n_experts * c->n_layers;
    }
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    f->threads =
        params->n_threads != 0 ? params->n_threads : (uint64_t)(n_cpus > 0 ? n_cpus : 1);
    f->context_tokens = engine_context_tokens(e);
    f->slots = engine_n_slots(e);
    f->max_sequences = params->n_sequences;
}

/* Several models are told apart by their names, so these must be known before any loads. */
static status describe(model_shelf *s, size_t i, error *err) {
    const loop_model *asked = &s->params->models[i];
    engine_facts *f = &s->models[i].facts;
    status rc = asked->describe(asked->context, f, err);
    if (rc != STATUS_OK) return rc;
    char given[sizeof f->model];
    (void)snprintf(given, sizeof given, "%s", f->model);
    choose_name(asked->name, given, given, f->model, sizeof f->model);
    for (size_t k = 0; k < i; k++) {
        if (strcmp(s->models[k].facts.model, f->model) != 0) continue;
        return error_set(err, STATUS_BAD_INPUT,
                         "model: two are named '%s'; name=... after the path tells them apart",
                         f->model);
    }
    report *r = report_new(REPORT_MODEL);
    if (r == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory to tell of the model");
    r->model = (uint32_t)i;
    r->facts = *f;
    exchange_report(s->x, r);
    return STATUS_OK;
}

/* ---- the load thread ---- */

static void push_news(model_shelf *s, report *r) {
    if (r != NULL && !ring_push(&s->news, r)) free(r);
}

static void on_progress(void *context, const engine_progress *p) {
    model_shelf *s = context;
    loading_line_show(NULL, p);
    if (p->permille != 0 && p->permille < s->told_permille + 5) return;
    s->told_permille = p->permille;
    report *r = report_new(REPORT_PROGRESS);
    if (r == NULL) return;
    r->model = (uint32_t)s->loading;
    r->progress.permille = p->permille;
    r->progress.left_ms = p->left_ms;
    (void)loading_line_write(r->progress.what, sizeof r->progress.what, p);
    push_news(s, r);
}

/* Many lines, each its own line of the log. */
static void log_plan(const char *text) {
    while (text != NULL && *text != '\0') {
        size_t n = strcspn(text, "\n");
        if (n > 0) log_info("plan", "%.*s", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static status open_model(model_shelf *s, engine_facts *facts, error *err) {
    const loop_model *asked = &s->params->models[s->loading];
    engine_params params = {0};
    status rc = asked->prepare(asked->context, &params, err);
    if (rc != STATUS_OK) return rc;
    params.on_progress = on_progress;
    params.progress_context = s;
    uint64_t start_ms = clock_monotonic_ms();
    rc = engine_open(&s->opened, &params, &s->sink, err);
    if (rc != STATUS_OK) return rc;
    log_plan(engine_plan_text(s->opened));
    const char *warning;
    for (size_t i = 0; (warning = engine_warning(s->opened, i)) != NULL; i++) {
        log_warn("model-warning", "%s", warning);
    }
    fill_facts(s->opened, asked->name, &params, facts);
    error measured;
    if (s->params->measure_ms > 0 &&
        engine_measure(s->opened, s->params->measure_ms, &facts->prefill_tok_per_s,
                       &facts->decode_tok_per_s, &measured) != STATUS_OK) {
        log_warn("not-measured", "%s", measured.text);
    }
    log_info("model-loaded",
             "model=%s hash=%s numerics=%s ms=%llu prefill_tok_per_s=%.1f "
             "decode_tok_per_s=%.1f",
             facts->model, facts->hash, facts->numerics,
             (unsigned long long)(clock_monotonic_ms() - start_ms), facts->prefill_tok_per_s,
             facts->decode_tok_per_s);
    return STATUS_OK;
}

/* Its last word is `loads` going false: the engine thread may then join it. */
static void load_body(void *argument) {
    model_shelf *s = argument;
    thread_ready();
    s->opened_rc = open_model(s, &s->opened_facts, &s->why);
    atomic_store(&s->loads, false);
    ring_wake(&s->news);
}

static status start_loading(model_shelf *s, int which, error *err) {
    s->loading = which;
    s->opened = NULL;
    s->opened_facts = (engine_facts){0};
    s->told_permille = 0;
    atomic_store(&s->loads, true);
    log_info("model-loads", "model=%s", s->models[which].facts.model);
    status rc = thread_start(&s->loader, "load", load_body, s, err);
    if (rc == STATUS_OK) return rc;
    atomic_store(&s->loads, false);
    s->loading = SHELF_NONE;
    return rc;
}

/* ---- making room ---- */

static void tell(const model_shelf *s, int which, report_kind kind) {
    report *r = report_new(kind);
    if (r == NULL) return;
    if (which != SHELF_NONE) {
        r->model = (uint32_t)which;
        r->facts = s->models[which].facts;
    }
    exchange_report(s->x, r);
}

static void unload(model_shelf *s, int which, const char *why) {
    shelf_model *m = &s->models[which];
    log_info("model-unloaded", "model=%s reason=\"%s\"", m->facts.model, why);
    engine_close(m->e);
    m->e = NULL;
    m->busy = false;
    for (size_t i = 0; i < s->n; i++)
        s->models[i].no_room = false;
    tell(s, which, REPORT_UNLOADED);
}

static size_t count_loaded(const model_shelf *s) {
    size_t count = 0;
    for (size_t i = 0; i < s->n; i++)
        count += s->models[i].e != NULL;
    return count;
}

/* The loaded model whose last use is longest ago; among idle ones alone where asked. */
static int oldest_loaded(const model_shelf *s, bool idle_only) {
    int oldest = SHELF_NONE;
    for (size_t i = 0; i < s->n; i++) {
        const shelf_model *m = &s->models[i];
        if (m->e == NULL || (idle_only && (m->busy || m->fresh))) continue;
        if (oldest == SHELF_NONE || m->used_turn < s->models[oldest].used_turn) oldest = (int)i;
    }
    return oldest;
}

/* Whose turn it is: those of the start in their order, then the oldest request's. */
static int next_wanted(const model_shelf *s, uint64_t now_ms) {
    int next = SHELF_NONE;
    for (size_t i = 0; i < s->n; i++) {
        const shelf_model *m = &s->models[i];
        if (m->e != NULL) continue;
        if (m->at_start) return (int)i;
        if (m->held == NULL || now_ms < m->retry_ms) continue;
        if (next == SHELF_NONE ||
            m->held->held_since_ms < s->models[next].held->held_since_ms) {
            next = (int)i;
        }
    }
    return next;
}

static bool is_full(const model_shelf *s) {
    return s->params->max_loaded != 0 && count_loaded(s) >= s->params->max_loaded;
}

static bool has_place(const model_shelf *s, int which) {
    return !is_full(s) && !(s->models[which].no_room && count_loaded(s) > 0);
}

/* The model that has to go for the one that waits; SHELF_NONE: nobody has to, or nobody can. */
static int who_yields(const model_shelf *s, uint64_t now_ms) {
    int wanted = next_wanted(s, now_ms);
    if (wanted == SHELF_NONE || has_place(s, wanted)) return SHELF_NONE;
    int idle = oldest_loaded(s, true);
    if (idle != SHELF_NONE) return idle;
    const order *first = s->models[wanted].held;
    bool waits_long = first != NULL && now_ms - first->held_since_ms >= s->params->patience_ms;
    return waits_long ? oldest_loaded(s, false) : SHELF_NONE;
}

/* ---- after loading ---- */

static void take_loaded(model_shelf *s, int which, uint64_t now_ms) {
    shelf_model *m = &s->models[which];
    m->e = s->opened;
    m->facts = s->opened_facts;
    m->at_start = false;
    m->fresh = true;
    m->used_ms = now_ms;
    m->used_turn = ++s->turn;
    m->retry_ms = 0;
    tell(s, which, REPORT_LOADED);
}

/* Others may have the memory that this one lacks: then it waits until one of them goes. */
static status take_failed(model_shelf *s, int which, uint64_t now_ms, error *err) {
    shelf_model *m = &s->models[which];
    m->no_room = s->opened_rc == STATUS_NO_MEMORY && count_loaded(s) > 0;
    if (m->at_start && !m->no_room) {
        *err = s->why;
        return s->opened_rc;
    }
    m->at_start = false;
    if (!m->no_room) m->retry_ms = now_ms + SHELF_RETRY_MS;
    log_warn("model-not-loaded", "model=%s error=\"%s\"", m->facts.model, s->why.text);
    tell(s, which, REPORT_UNLOADED);
    return STATUS_OK;
}

static status take_news(model_shelf *s, uint64_t now_ms, error *err) {
    if (s->loading == SHELF_NONE) return STATUS_OK;
    /* Asked before the ring is emptied: what comes later is told the next time. */
    bool over = !atomic_load(&s->loads);
    ring_clear_event(&s->news);
    for (report *r; (r = ring_pop(&s->news)) != NULL;)
        exchange_report(s->x, r);
    if (!over) return STATUS_OK;
    thread_join(&s->loader);
    int which = s->loading;
    s->loading = SHELF_NONE;
    if (s->opened_rc != STATUS_OK) return take_failed(s, which, now_ms, err);
    take_loaded(s, which, now_ms);
    return STATUS_OK;
}

static void close_idle(model_shelf *s, uint64_t now_ms) {
    for (size_t i = 0; i < s->n && s->params->keep_ms > 0; i++) {
        const shelf_model *m = &s->models[i];
        if (m->e == NULL || m->busy || m->held != NULL) continue;
        if (now_ms - m->used_ms >= s->params->keep_ms) unload(s, (int)i, "idle for too long");
    }
}

/* Those of the start that have no place are loaded when they are asked for. */
static void end_start(model_shelf *s) {
    bool full = is_full(s), waits = false;
    for (size_t i = 0; i < s->n; i++) {
        if (full) s->models[i].at_start = false;
        waits = waits || s->models[i].at_start;
    }
    if (waits || s->started) return;
    s->started = true;
    tell(s, SHELF_NONE, REPORT_STARTED);
}

status shelf_tend(model_shelf *s, uint64_t now_ms, error *err) {
    status rc = take_news(s, now_ms, err);
    if (rc != STATUS_OK) return rc;
    for (size_t i = 0; i < s->n; i++) {
        shelf_model *m = &s->models[i];
        if (m->e != NULL && m->busy) m->used_ms = now_ms;
    }
    if (s->loading != SHELF_NONE) return STATUS_OK;
    if (!s->started) end_start(s);
    close_idle(s, now_ms);
    int yields = who_yields(s, now_ms);
    if (yields != SHELF_NONE && !s->models[yields].busy && !s->models[yields].fresh) {
        unload(s, yields, "another model is asked for");
    }
    int wanted = next_wanted(s, now_ms);
    if (wanted == SHELF_NONE || !has_place(s, wanted)) return STATUS_OK;
    return start_loading(s, wanted, err);
}

/* ---- who waits ---- */

int shelf_find(const model_shelf *s, wire_bytes name) {
    if (s->n == 1) return 0;
    for (size_t i = 0; i < s->n; i++) {
        const char *served = s->models[i].facts.model;
        if (strlen(served) == name.length && memcmp(served, name.bytes, name.length) == 0)
            return (int)i;
    }
    return SHELF_NONE;
}

bool shelf_is_open(const model_shelf *s, int which) {
    return s->models[which].e != NULL && who_yields(s, clock_monotonic_ms()) != which;
}

void shelf_use(model_shelf *s, int which, uint64_t now_ms) {
    s->models[which].busy = true;
    s->models[which].used_ms = now_ms;
    s->models[which].used_turn = ++s->turn;
}

void shelf_hold(model_shelf *s, int which, order *o, uint64_t now_ms) {
    shelf_model *m = &s->models[which];
    o->next = NULL;
    o->held_since_ms = now_ms;
    if (m->held == NULL) {
        m->held = o;
    } else {
        m->last_held->next = o;
    }
    m->last_held = o;
}

/* Take the order out that stands at *at, after `before`. */
static order *take_out(shelf_model *m, order **at, order *before) {
    order *o = *at;
    *at = o->next;
    if (m->last_held == o) m->last_held = before;
    o->next = NULL;
    return o;
}

order *shelf_take_held(model_shelf *s, uint64_t request, uint64_t epoch) {
    for (size_t i = 0; i < s->n; i++) {
        shelf_model *m = &s->models[i];
        order *before = NULL;
        for (order **at = &m->held; *at != NULL; before = *at, at = &(*at)->next) {
            if ((*at)->request == request && (*at)->epoch == epoch)
                return take_out(m, at, before);
        }
    }
    return NULL;
}

order *shelf_next_ready(model_shelf *s, int which) {
    shelf_model *m = &s->models[which];
    if (m->e == NULL) return NULL;
    if (m->held == NULL) m->fresh = false;
    bool may_go = m->held != NULL && (m->fresh || shelf_is_open(s, which));
    return may_go ? take_out(m, &m->held, NULL) : NULL;
}

static bool is_late(const order *o, uint64_t now_ms) {
    uint64_t limit_ms = o->message.submit.deadline_ms;
    return limit_ms > 0 && now_ms - o->held_since_ms >= limit_ms;
}

order *shelf_next_refused(model_shelf *s, uint64_t now_ms, shelf_refusal *why) {
    for (size_t i = 0; i < s->n; i++) {
        shelf_model *m = &s->models[i];
        bool failed = m->e == NULL && now_ms < m->retry_ms;
        order *before = NULL;
        for (order **at = &m->held; *at != NULL; before = *at, at = &(*at)->next) {
            bool late = is_late(*at, now_ms);
            if (!late && !failed) continue;
            why->http_status = late ? 504 : 503;
            why->code = late ? "deadline_exceeded" : "model_not_loaded";
            why->retryable = !late;
            (void)snprintf(why->text, sizeof why->text, "%s",
                           late ? "the deadline has passed" : s->why.text);
            return take_out(m, at, before);
        }
    }
    return NULL;
}

uint32_t shelf_n_held(const model_shelf *s) {
    uint32_t count = 0;
    for (size_t i = 0; i < s->n; i++) {
        for (const order *o = s->models[i].held; o != NULL; o = o->next)
            count++;
    }
    return count;
}

/* ---- life ---- */

status shelf_init(model_shelf *s, const engine_loop_params *params, exchange *x,
                  const engine_sink *sink, error *err) {
    s->params = params;
    s->x = x;
    s->sink = *sink;
    s->loading = SHELF_NONE;
    s->news.event_fd = -1;
    if (params->n_models == 0 || params->n_models > ENGINE_LOOP_MAX_MODELS) {
        return error_set(err, STATUS_BAD_INPUT, "%zu models are named, allowed are 1 to %d",
                         params->n_models, ENGINE_LOOP_MAX_MODELS);
    }
    status rc = ring_init(&s->news, CAP_NEWS, err);
    if (rc != STATUS_OK) return rc;
    s->n = params->n_models;
    for (size_t i = 0; i < s->n && rc == STATUS_OK; i++) {
        s->models[i].at_start = true;
        if (s->n > 1) rc = describe(s, i, err);
    }
    return rc;
}

void shelf_release(model_shelf *s) {
    if (s->loading != SHELF_NONE) {
        thread_join(&s->loader);
        if (s->opened_rc == STATUS_OK) engine_close(s->opened);
        s->loading = SHELF_NONE;
    }
    for (size_t i = 0; i < s->n; i++) {
        shelf_model *m = &s->models[i];
        engine_close(m->e);
        m->e = NULL;
        while (m->held != NULL)
            order_free(take_out(m, &m->held, NULL));
    }
    for (report *r; s->news.items != NULL && (r = ring_pop(&s->news)) != NULL;)
        free(r);
    ring_release(&s->news);
}
