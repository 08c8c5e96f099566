/* engine_double.c - the functions of engine.h over a list of counters. */
#include "tests/unit/engine_double.h"

#include "worker/engine.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_REQUESTS = 64 };

engine_double double_engine;

typedef struct request {
    uint64_t number, epoch;
    bool holds;
    int left, given;
} request;

struct engine {
    engine_sink sink;
    request requests[MAX_REQUESTS];
    size_t n;
    model_config config;
    uint32_t n_sequences;
};

void engine_double_reset(void) {
    memset(&double_engine, 0, sizeof double_engine);
}

static void wait_while(const atomic_bool *flag) {
    while (atomic_load(flag)) {
        const struct timespec pause = {.tv_nsec = 1000000};
        (void)nanosleep(&pause, NULL);
    }
}

status engine_open(engine **out, const engine_params *params, const engine_sink *sink,
                   error *err) {
    *out = NULL;
    for (uint32_t permille = 0; permille <= 420; permille += 420) {
        const engine_progress p = {.permille = permille, .what = "weights"};
        params->on_progress(params->progress_context, &p);
    }
    wait_while(&double_engine.load_waits);
    if (atomic_load(&double_engine.load_fails)) {
        return error_set(err, STATUS_BAD_INPUT, "demo.gguf: tensor 'x' is missing");
    }
    int room = atomic_load(&double_engine.room);
    if (room > 0 && atomic_load(&double_engine.n_open) >= room) {
        return error_set(err, STATUS_NO_MEMORY, "no room for the weights");
    }
    engine *e = calloc(1, sizeof *e);
    if (e == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory");
    atomic_fetch_add(&double_engine.n_open, 1);
    atomic_fetch_add(&double_engine.n_opened, 1);
    e->sink = *sink;
    e->n_sequences = params->n_sequences;
    memcpy(e->config.arch, "qwen35moe", sizeof "qwen35moe");
    memcpy(e->config.name, "A Double", sizeof "A Double");
    e->config.n_experts = 8;
    e->config.n_layers = 4;
    *out = e;
    return STATUS_OK;
}

static void end(engine *e, size_t i) {
    memmove(&e->requests[i], &e->requests[i + 1], (e->n - i - 1) * sizeof e->requests[0]);
    e->n--;
    atomic_store(&double_engine.n_running, (int)e->n);
}

static void end_with_error(engine *e, size_t i, uint64_t http_status) {
    const wire_error ended = {.request = e->requests[i].number,
                              .epoch = e->requests[i].epoch,
                              .http_status = http_status,
                              .text = wire_text("ended", 5)};
    end(e, i);
    e->sink.on_error(e->sink.context, &ended);
}

void engine_close(engine *e) {
    if (e == NULL) return;
    while (e->n > 0)
        end_with_error(e, 0, 503);
    atomic_fetch_sub(&double_engine.n_open, 1);
    free(e);
}

status engine_submit(engine *e, const wire_submit *submit, error *err) {
    if (e->n == MAX_REQUESTS || atomic_load(&double_engine.queue_is_full)) {
        return error_set(err, STATUS_UNAVAILABLE, "the queue is full");
    }
    char body[16] = "";
    size_t n = submit->body.length < 15 ? submit->body.length : 15;
    if (n > 0) memcpy(body, submit->body.bytes, n);
    e->requests[e->n++] = (request){.number = submit->request,
                                    .epoch = submit->epoch,
                                    .holds = strcmp(body, "hold") == 0,
                                    .left = atoi(body)};
    atomic_store(&double_engine.n_running, (int)e->n);
    atomic_fetch_add(&double_engine.n_submitted, 1);
    return STATUS_OK;
}

bool engine_cancel(engine *e, uint64_t number, uint64_t epoch) {
    for (size_t i = 0; i < e->n; i++) {
        if (e->requests[i].number != number || e->requests[i].epoch != epoch) continue;
        atomic_fetch_add(&double_engine.n_cancelled, 1);
        end_with_error(e, i, 499);
        return true;
    }
    return false;
}

static bool step_request(engine *e, size_t i) {
    request *r = &e->requests[i];
    if (r->holds) return true;
    if (r->left == 0) {
        const wire_done done = {.request = r->number,
                                .epoch = r->epoch,
                                .completion_tokens = (uint64_t)r->given,
                                .hit_rate = -1};
        end(e, i);
        e->sink.on_done(e->sink.context, &done);
        return false;
    }
    const int32_t id = r->given++;
    r->left--;
    const wire_tokens tokens = {.request = r->number,
                                .epoch = r->epoch,
                                .number = 77, /* the link numbers them */
                                .ids = &id,
                                .n_ids = 1,
                                .text = wire_text("t", 1),
                                .finish = r->left == 0 ? WIRE_FINISH_LENGTH : WIRE_FINISH_NONE};
    e->sink.on_tokens(e->sink.context, &tokens);
    return true;
}

void engine_tend_experts(engine *e, uint64_t now_ms) {
    (void)e;
    (void)now_ms;
}

status engine_step(engine *e, bool *did_work, error *err) {
    *did_work = false;
    wait_while(&double_engine.step_waits);
    if (atomic_load(&double_engine.device_fails)) {
        return error_set(err, STATUS_DEVICE, "the device fell off the bus");
    }
    for (size_t i = 0; i < e->n;) {
        if (!e->requests[i].holds) *did_work = true;
        if (step_request(e, i)) i++;
    }
    return STATUS_OK;
}

void engine_read_stats(engine *e, engine_stats *out) {
    *out = (engine_stats){.running = (uint32_t)e->n,
                          .free_sequences = e->n_sequences - (uint32_t)e->n,
                          .hit_rate = -1,
                          .ram_used_bytes = 5u << 20};
}

status engine_measure(engine *e, uint32_t budget_ms, double *prefill, double *decode,
                      error *err) {
    (void)e, (void)budget_ms, (void)err;
    *prefill = 1000;
    *decode = 50;
    return STATUS_OK;
}

const model_config *engine_model_config(const engine *e) {
    return &e->config;
}
const char *engine_file_hash(const engine *e) {
    (void)e;
    return "0123456789abcdef0123456789abcdef";
}
const char *engine_numerics_id(const engine *e) {
    (void)e;
    return "double";
}
uint32_t engine_context_tokens(const engine *e) {
    (void)e;
    return 4096;
}
uint32_t engine_n_slots(const engine *e) {
    (void)e;
    return 16;
}
const char *engine_plan_text(const engine *e) {
    (void)e;
    return "weights 1 MiB\ntotal 1 MiB\n";
}
const char *engine_warning(const engine *e, size_t index) {
    (void)e, (void)index;
    return NULL;
}
