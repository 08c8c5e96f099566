/* engine_run.h - drives an engine in a test and keeps what its sink was told.
 *
 * The sink checks what holds for every request: numbers without gaps, a finish for each
 * choice, and exactly one end.  Needs cmocka.h before it.
 */
#ifndef SILICEO_TESTS_ENGINE_RUN_H
#define SILICEO_TESTS_ENGINE_RUN_H

#include "worker/engine.h"
#include <stdlib.h>
#include <string.h>

enum {
    RUN_MAX_REQUESTS = 64,
    RUN_MAX_CHOICES = 4,
    RUN_TEXT = 8192,
    RUN_RESULT = 65536,
    RUN_IDS = 2048,
    RUN_ERROR = 512,
    RUN_MAX_HELD = 64
};

typedef struct run_choice {
    char reasoning[RUN_TEXT], content[RUN_TEXT], logprobs[RUN_TEXT];
    size_t n_reasoning, n_content, n_logprobs;
    int32_t ids[RUN_IDS];
    size_t n_ids;
    wire_finish finish;
    uint64_t flags; /* of all messages */
} run_choice;

typedef struct run_answer {
    run_choice choices[RUN_MAX_CHOICES];
    uint64_t n_messages;
    bool done, failed, retryable;
    wire_done usage; /* its pointers are those below */
    uint64_t held[RUN_MAX_HELD];
    char result[RUN_RESULT];
    uint64_t http_status;
    char code[64], param[128], error[RUN_ERROR];
} run_answer;

typedef struct engine_run {
    engine *e;
    run_answer *answers; /* by request id */
} engine_run;

static inline void run_append(char *out, size_t cap, size_t *length, wire_bytes text) {
    assert_true(*length + text.length < cap);
    if (text.length > 0) memcpy(out + *length, text.bytes, text.length);
    *length += text.length;
    out[*length] = '\0';
}

static inline void run_copy(char *out, size_t cap, wire_bytes text) {
    size_t length = 0;
    out[0] = '\0';
    run_append(out, cap, &length, text);
}

static inline run_answer *run_answer_of(engine_run *r, uint64_t request) {
    assert_true(request < RUN_MAX_REQUESTS);
    run_answer *a = &r->answers[request];
    assert_false(a->done || a->failed);
    return a;
}

static inline void run_tokens(void *context, const wire_tokens *t) {
    run_answer *a = run_answer_of(context, t->request);
    assert_int_equal(t->number, a->n_messages++);
    assert_true(t->choice < RUN_MAX_CHOICES);
    run_choice *c = &a->choices[t->choice];
    assert_int_equal(c->finish, WIRE_FINISH_NONE);
    assert_true(c->n_ids + t->n_ids <= RUN_IDS);
    if (t->n_ids > 0) memcpy(c->ids + c->n_ids, t->ids, t->n_ids * sizeof *t->ids);
    c->n_ids += t->n_ids;
    c->finish = t->finish;
    c->flags |= t->flags & ~(uint64_t)WIRE_FLAG_MORE;
    if (t->channel == WIRE_REASONING) {
        run_append(c->reasoning, RUN_TEXT, &c->n_reasoning, t->text);
    } else {
        run_append(c->content, RUN_TEXT, &c->n_content, t->text);
    }
    run_append(c->logprobs, RUN_TEXT, &c->n_logprobs, t->logprobs);
}

static inline void run_done(void *context, const wire_done *d) {
    run_answer *a = run_answer_of(context, d->request);
    a->usage = *d;
    assert_true(d->n_boundaries <= RUN_MAX_HELD);
    if (d->n_boundaries > 0)
        memcpy(a->held, d->boundaries, d->n_boundaries * sizeof *d->boundaries);
    a->usage.boundaries = a->held;
    run_copy(a->result, RUN_RESULT, d->result);
    a->done = true;
    assert_int_equal(d->number, a->n_messages);
    uint64_t n = 0;
    for (int i = 0; i < RUN_MAX_CHOICES; i++)
        n += a->choices[i].n_ids;
    if (n > 0) assert_true(d->completion_tokens >= n); /* a resume counts the earlier ones */
}

static inline void run_error(void *context, const wire_error *e) {
    run_answer *a = run_answer_of(context, e->request);
    a->failed = true;
    a->http_status = e->http_status;
    a->retryable = e->retryable;
    run_copy(a->code, sizeof a->code, e->code);
    run_copy(a->param, sizeof a->param, e->param);
    run_copy(a->error, sizeof a->error, e->text);
}

static inline engine_params run_params(void) {
    return (engine_params){.model_path = "deploy/models/demo.gguf",
                           .backend = BACKEND_CPU,
                           .n_threads = 1,
                           .n_context = 1024,
                           .n_sequences = 4,
                           .chunk_tokens = 256,
                           .kv = KV_F16,
                           .activations = ACTIVATIONS_INT8,
                           .n_slots = -1,
                           .park_mib = -1,
                           .inserts_per_layer = 4,
                           .seed = 1};
}

static inline void run_forget(engine_run *r) {
    memset(r->answers, 0, RUN_MAX_REQUESTS * sizeof *r->answers);
}

static inline void run_open(engine_run *r, const engine_params *params) {
    error err = {0};
    r->answers = calloc(RUN_MAX_REQUESTS, sizeof *r->answers);
    assert_non_null(r->answers);
    const engine_sink sink = {r, run_tokens, run_done, run_error};
    if (engine_open(&r->e, params, &sink, &err) != STATUS_OK) fail_msg("%s", err.text);
}

/* The least memory that params fit in, from 16 MiB: a handful of pages, so that long texts cannot all
 * be held. */
static inline void run_open_narrow(engine_run *r, engine_params *params) {
    error err = {0};
    const engine_sink sink = {r, run_tokens, run_done, run_error};
    r->answers = calloc(RUN_MAX_REQUESTS, sizeof *r->answers);
    assert_non_null(r->answers);
    for (params->ram_mib = 16; params->ram_mib < 160; params->ram_mib++) {
        if (engine_open(&r->e, params, &sink, &err) == STATUS_OK) return;
        assert_null(r->e);
    }
    fail_msg("%s", err.text);
}

static inline void run_close(engine_run *r) {
    engine_close(r->e);
    free(r->answers);
    r->answers = NULL;
}

static inline void run_submit_wire(engine_run *r, const wire_submit *submit) {
    error err = {0};
    if (engine_submit(r->e, submit, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static inline void run_submit(engine_run *r, uint64_t request, wire_kind kind,
                              const char *body) {
    wire_submit submit = {
        .request = request, .kind = kind, .body = wire_text(body, strlen(body))};
    run_submit_wire(r, &submit);
}

/* Steps until nothing is left to do; all must be over then and everything free. */
static inline void run_all(engine_run *r) {
    error err = {0};
    engine_stats stats;
    for (bool working = true; working;) {
        if (engine_step(r->e, &working, &err) != STATUS_OK) fail_msg("%s", err.text);
    }
    engine_read_stats(r->e, &stats);
    assert_int_equal(stats.running, 0);
    assert_int_equal(stats.waiting, 0);
    assert_int_equal(stats.kv_pages_free, stats.kv_pages_total);
}

static inline void run_steps(engine_run *r, int n) {
    error err = {0};
    for (int i = 0; i < n; i++) {
        bool working = false;
        if (engine_step(r->e, &working, &err) != STATUS_OK) fail_msg("%s", err.text);
    }
}

/* One request alone, from the beginning to the end. */
static inline const run_answer *run_one(engine_run *r, wire_kind kind, const char *body) {
    run_forget(r);
    run_submit(r, 0, kind, body);
    run_all(r);
    return &r->answers[0];
}

#endif
