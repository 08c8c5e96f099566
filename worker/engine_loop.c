/* engine_loop.c - orders in, steps, results out. */
#include "worker/engine_loop.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"
#include "worker/backend.h"
#include "worker/loading_line.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    IDLE_MS = 250,         /* how long an idle loop sleeps at most */
    STATS_MS = 250,        /* how often a busy one tells its stats */
    MAX_FAILED_STEPS = 10, /* in a row: then the engine counts as broken */
    RETRY_MS = 10
};

struct engine_loop {
    const engine_loop_params *params;
    exchange *x;
    thread self;
    engine *e;
    bool stop;
    uint32_t told_permille;
    uint64_t stats_ms;
    engine_stats told;
};

static void come_round(engine_loop *l) {
    atomic_store_explicit(&l->x->engine_round_ms, clock_monotonic_ms(), memory_order_relaxed);
}

/* ---- reports ---- */

static report *new_report(report_kind kind) {
    report *r = calloc(1, sizeof *r);
    if (r == NULL) {
        log_error("report-lost", "no memory");
    } else {
        r->kind = kind;
    }
    return r;
}

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

static void on_progress(void *context, const engine_progress *p) {
    engine_loop *l = context;
    come_round(l);
    loading_line_show(NULL, p);
    if (p->permille != 0 && p->permille < l->told_permille + 5) return;
    l->told_permille = p->permille;
    report *r = new_report(REPORT_PROGRESS);
    if (r == NULL) return;
    r->progress.permille = p->permille;
    r->progress.left_ms = p->left_ms;
    (void)loading_line_write(r->progress.what, sizeof r->progress.what, p);
    exchange_report(l->x, r);
}

static void report_failure(engine_loop *l, const error *e) {
    report *r = new_report(REPORT_FAILED);
    if (r == NULL) return;
    r->failed = *e;
    exchange_report(l->x, r);
}

static bool same_load(const engine_stats *a, const engine_stats *b) {
    return a->running == b->running && a->waiting == b->waiting &&
           a->free_sequences == b->free_sequences;
}

static void report_stats(engine_loop *l) {
    engine_stats s = {0};
    uint64_t now_ms = clock_monotonic_ms();
    engine_read_stats(l->e, &s);
    if (same_load(&s, &l->told) && now_ms - l->stats_ms < STATS_MS) return;
    report *r = new_report(REPORT_STATS);
    if (r == NULL) return;
    r->stats = s;
    l->told = s;
    l->stats_ms = now_ms;
    exchange_report(l->x, r);
}

/* ---- orders ---- */

static void refuse_order(engine_loop *l, const order *o, uint64_t http_status, const char *code,
                         const char *text) {
    const wire_message m = {.type = WIRE_ERROR,
                            .error = {.request = o->request,
                                      .epoch = o->epoch,
                                      .http_status = http_status,
                                      .code = wire_text(code, strlen(code)),
                                      .text = wire_text(text, strlen(text)),
                                      .retryable = true}};
    report_message(l, &m);
}

static void submit(engine_loop *l, order *o) {
    wire_submit s = o->message.submit;
    s.request = o->request;
    error err = {0};
    status rc = engine_submit(l->e, &s, &err);
    if (rc == STATUS_OK) return;
    refuse_order(l, o, 503, rc == STATUS_UNAVAILABLE ? "busy" : status_name(rc), err.text);
}

static void take_orders(engine_loop *l) {
    ring_clear_event(&l->x->orders);
    for (order *o; (o = ring_pop(&l->x->orders)) != NULL; order_free(o)) {
        if (o->kind == ORDER_STOP) {
            l->stop = true;
        } else if (l->e == NULL) {
            refuse_order(l, o, 503, "engine_failed", "the engine has failed");
        } else if (o->kind == ORDER_CANCEL) {
            (void)engine_cancel(l->e, o->request, o->epoch);
        } else {
            submit(l, o);
        }
    }
}

static void sleep_for_orders(const engine_loop *l, int timeout_ms) {
    struct pollfd p = {.fd = l->x->orders.event_fd, .events = POLLIN};
    (void)poll(&p, 1, timeout_ms);
}

/* ---- load ---- */

/* A name that stands in URLs, logs and one word of the ready line. */
static void take_name(char *out, size_t cap, const char *name) {
    (void)snprintf(out, cap, "%s", name);
    for (char *c = out; *c != '\0'; c++) {
        if ((unsigned char)*c <= ' ' || *c == 0x7f) *c = '-';
    }
}

static void choose_name(engine_loop *l, const char *path, char *out, size_t cap) {
    const char *wanted = l->params->model_name;
    const model_config *c = engine_model_config(l->e);
    const char *file = strrchr(path, '/');
    file = file == NULL ? path : file + 1;
    if (wanted != NULL && *wanted != '\0') {
        take_name(out, cap, wanted);
    } else if (c != NULL && c->name[0] != '\0') {
        take_name(out, cap, c->name);
    } else {
        take_name(out, cap, file);
        size_t n = strlen(out);
        if (n > 5 && strcmp(out + n - 5, ".gguf") == 0) out[n - 5] = '\0';
    }
}

static void fill_facts(engine_loop *l, const engine_params *params, engine_facts *f) {
    const model_config *c = engine_model_config(l->e);
    choose_name(l, params->model_path, f->model, sizeof f->model);
    (void)snprintf(f->hash, sizeof f->hash, "%s", engine_file_hash(l->e));
    (void)snprintf(f->numerics, sizeof f->numerics, "%s", engine_numerics_id(l->e));
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
    f->context_tokens = engine_context_tokens(l->e);
    f->slots = engine_n_slots(l->e);
    f->max_sequences = params->n_sequences;
}

/* Many lines, each its own line of the log. */
static void log_plan(const char *text) {
    while (text != NULL && *text != '\0') {
        size_t n = strcspn(text, "\n");
        if (n > 0) log_info("plan", "%.*s", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static status load(engine_loop *l, error *err) {
    const engine_sink sink = {
        .context = l, .on_tokens = on_tokens, .on_done = on_done, .on_error = on_error};
    engine_params params = {0};
    status rc = l->params->prepare(l->params->prepare_context, &params, err);
    if (rc != STATUS_OK) return rc;
    params.on_progress = on_progress;
    params.progress_context = l;
    uint64_t start_ms = clock_monotonic_ms();
    rc = engine_open(&l->e, &params, &sink, err);
    if (rc != STATUS_OK) return rc;
    log_plan(engine_plan_text(l->e));
    const char *warning;
    for (size_t i = 0; (warning = engine_warning(l->e, i)) != NULL; i++) {
        log_warn("model-warning", "%s", warning);
    }
    report *r = new_report(REPORT_LOADED);
    if (r == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory to tell of the model");
    fill_facts(l, &params, &r->facts);
    error measured;
    if (l->params->measure_ms > 0 &&
        engine_measure(l->e, l->params->measure_ms, &r->facts.prefill_tok_per_s,
                       &r->facts.decode_tok_per_s, &measured) != STATUS_OK) {
        log_warn("not-measured", "%s", measured.text);
    }
    log_info("model-loaded",
             "model=%s hash=%s numerics=%s ms=%llu prefill_tok_per_s=%.1f "
             "decode_tok_per_s=%.1f",
             r->facts.model, r->facts.hash, r->facts.numerics,
             (unsigned long long)(clock_monotonic_ms() - start_ms), r->facts.prefill_tok_per_s,
             r->facts.decode_tok_per_s);
    come_round(l);
    exchange_report(l->x, r);
    return STATUS_OK;
}

/* ---- the loop ---- */

static status run(engine_loop *l, error *err) {
    int failed_in_row = 0;
    while (!l->stop) {
        come_round(l);
        take_orders(l);
        bool did_work = false;
        status rc = l->stop ? STATUS_OK : engine_step(l->e, &did_work, err);
        if (rc == STATUS_DEVICE || rc == STATUS_IO) return rc;
        if (rc != STATUS_OK) {
            log_error("step-failed", "%s", err->text);
            if (++failed_in_row == MAX_FAILED_STEPS) return rc;
            sleep_for_orders(l, RETRY_MS);
            continue;
        }
        failed_in_row = 0;
        report_stats(l);
        if (!did_work && !l->stop) sleep_for_orders(l, IDLE_MS);
    }
    return STATUS_OK;
}

static void engine_body(void *argument) {
    engine_loop *l = argument;
    thread_ready();
    error err = {0};
    come_round(l);
    status rc = load(l, &err);
    if (rc == STATUS_OK) rc = run(l, &err);
    if (rc != STATUS_OK) report_failure(l, &err);
    engine_close(l->e);
    l->e = NULL;
    while (!l->stop) {
        take_orders(l);
        if (!l->stop) sleep_for_orders(l, IDLE_MS);
    }
}

status engine_loop_start(engine_loop **out, const engine_loop_params *params, exchange *x,
                         error *err) {
    *out = NULL;
    engine_loop *l = calloc(1, sizeof *l);
    if (l == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for the engine's loop");
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

void engine_loop_join(engine_loop **loop) {
    if (*loop == NULL) return;
    thread_join(&(*loop)->self);
    free(*loop);
    *loop = NULL;
}
