/* POST /v1/chat/completions, streaming or not. */
#include "coordinator/api.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/aliases.h"
#include "coordinator/chat_params.h"
#include "coordinator/client_deadline.h"
#include "coordinator/token_stream.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* One reply under way; ends when its exchange closes. */
typedef struct chat {
    struct chat *next, *previous;
    coordinator *c;
    http_exchange *x;
    request *r; /* NULL once it has ended */
    token_stream stream;
    bool streaming;
    bool begun;   /* the headers of a stream are out */
    bool flowing; /* so are tokens: no keep-alives any more */
    uint64_t next_comment_ms;
    uint64_t comment_ms; /* between comments: more often for a client of little patience */
} chat;

static void on_close(void *context, bool complete) {
    chat *t = context;
    coordinator *c = t->c;
    if (t->r != NULL) request_cancel(c, t->r, "client_closed");
    if (!complete) metric_add(c->counters.status[5], 1);
    if (t->previous != NULL)
        t->previous->next = t->next;
    else
        c->chats = t->next;
    if (t->next != NULL) t->next->previous = t->previous;
    token_stream_release(&t->stream);
    free(t);
}

/* How the answer went on after a node was lost; NULL: none was. */
static const char *resumed(const request *r) {
    if (r->given.resumed == 0) return NULL;
    return r->given.approximate ? "approximate" : "exact";
}

static void add_headers(chat *t, const request *r) {
    http_set_header(t->x, "X-Siliceo-Node", r->node->name);
    if (resumed(r) != NULL) http_set_header(t->x, "X-Siliceo-Resumed", resumed(r));
}

static void begin_stream(chat *t) {
    if (t->begun) return;
    t->begun = true;
    if (t->r != NULL && t->r->node != NULL) add_headers(t, t->r);
    api_count_reply(t->c, 200);
    http_stream_begin(t->x);
}

static status on_tokens(void *context, const wire_tokens *tokens, error *err) {
    chat *t = context;
    json_text *out = http_stream_out(t->x);
    size_t before = out->length;
    status rc = token_stream_add(&t->stream, tokens, out, err);
    if (rc != STATUS_OK || !t->streaming || out->length == before) return rc;
    begin_stream(t);
    t->flowing = true;
    t->r->replayable = false;
    (void)http_stream_flush(t->x); /* when it fails, t is gone */
    return STATUS_OK;
}

static token_stream_facts facts_of(const request *r) {
    return (token_stream_facts){
        .node = r->node->name,
        .queue_ms = (double)(r->sent_ns - r->received_ns) * 1e-6,
        .first_token_ms = r->first_token_ns > r->received_ns
                              ? (double)(r->first_token_ns - r->received_ns) * 1e-6
                              : 0,
        .attempts = r->attempts,
        .resumed = resumed(r),
    };
}

static void reply_whole(chat *t, const request *r, const wire_done *done) {
    token_stream_facts facts = facts_of(r);
    json_text out = {0};
    token_stream_finish(&t->stream, done, &facts, &out);
    if (out.failed) {
        api_count_reply(t->c, 503);
        http_reply_error(t->x, 503, "no_memory", NULL, 1, "no memory for the reply");
    } else {
        add_headers(t, r);
        api_count_reply(t->c, 200);
        http_reply(t->x, 200, "application/json", out.bytes, out.length);
    }
    json_text_release(&out);
}

static void on_done(void *context, const request *r, const wire_done *done) {
    chat *t = context;
    if (!t->streaming) {
        t->r = NULL;
        reply_whole(t, r, done);
        return;
    }
    begin_stream(t);
    t->r = NULL;
    token_stream_facts facts = facts_of(r);
    token_stream_finish(&t->stream, done, &facts, http_stream_out(t->x));
    if (http_stream_flush(t->x)) http_stream_end(t->x);
}

static void on_error(void *context, const request *r, const request_failure *failure) {
    (void)r;
    chat *t = context;
    t->r = NULL;
    if (!t->begun) {
        api_count_reply(t->c, failure->http_status);
        http_reply_error(t->x, failure->http_status, failure->code, failure->param,
                         failure->retry_after_s, failure->message);
        return;
    }
    json_text body = {0};
    http_error_body(&body, failure->http_status, failure->code, failure->param,
                    failure->message);
    if (body.failed) {
        http_abort(t->x);
    } else {
        token_stream_fail(body.bytes, http_stream_out(t->x));
        if (http_stream_flush(t->x)) http_stream_end(t->x);
    }
    json_text_release(&body);
}

static void on_restart(void *context, bool resumes) {
    chat *t = context;
    if (resumes)
        token_stream_resume(&t->stream);
    else
        token_stream_restart(&t->stream);
}

void api_chat_tick(coordinator *c, uint64_t now_ms) {
    chat *next;
    for (chat *t = c->chats; t != NULL; t = next) {
        next = t->next;
        if (!t->streaming || t->flowing || t->r == NULL || now_ms < t->next_comment_ms)
            continue;
        begin_stream(t);
        t->next_comment_ms = now_ms + t->comment_ms;
        token_stream_keepalive(http_stream_out(t->x));
        (void)http_stream_flush(t->x);
    }
}

/* ------------------------------------------------------------ beginning */

static void make_id(char *out, size_t cap) {
    uint64_t random[2] = {0, 0};
    if (getrandom(random, sizeof random, GRND_NONBLOCK) < 0) random[0] = clock_monotonic_ns();
    (void)snprintf(out, cap, "chatcmpl-%016llx%08llx", (unsigned long long)random[0],
                   (unsigned long long)(random[1] >> 32));
}

static chat *chat_new(coordinator *c, http_exchange *x, const chat_params *p, error *err) {
    chat *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    char id[64];
    make_id(id, sizeof id);
    token_stream_params stream = {.id = id,
                                  .model = p->model,
                                  .created_s = clock_wall_ms() / 1000,
                                  .n_choices = p->n_choices,
                                  .streaming = p->stream,
                                  .include_usage = p->include_usage};
    if (token_stream_init(&t->stream, &stream, err) != STATUS_OK) {
        free(t);
        return NULL;
    }
    t->c = c;
    t->x = x;
    t->streaming = p->stream;
    t->comment_ms = (uint64_t)(c->options->http_keepalive_s * 1000);
    t->next_comment_ms =
        clock_monotonic_ms() + (uint64_t)(c->options->http_hold_headers_s * 1000);
    t->next = c->chats;
    if (c->chats != NULL) c->chats->previous = t;
    c->chats = t;
    http_on_close(x, t, on_close);
    return t;
}

static request *request_of(chat *t, chat_params *p) {
    request_sink sink = {t, on_tokens, on_done, on_error, on_restart};
    request *r = request_new(&sink, http_owner(t->x));
    if (r == NULL) return NULL;
    r->priority = api_priority(t->c, t->x, p->priority, p->task);
    r->kind = WIRE_CHAT;
    (void)snprintf(r->request_id, sizeof r->request_id, "%s", http_request_id(t->x));
    memcpy(r->model, p->model, sizeof r->model);
    r->prompt_bytes = (double)p->prompt_bytes;
    r->max_output = (double)p->max_tokens;
    r->replayable = true;
    r->no_replay = p->n_choices > 1 ? "it has several choices" : NULL;
    r->chain = p->chain;
    p->chain = (prefix_chain){0};
    if (getrandom(&r->seed, sizeof r->seed, GRND_NONBLOCK) < 0) r->seed = clock_monotonic_ns();
    r->body = p->body;
    r->n_body = p->n_body;
    p->body = NULL;
    return r;
}

/* What the client told of its patience. */
static void take_deadline(chat *t, request *r, const client_deadline *d) {
    if (d->answer_ms > 0) r->deadline_ns = clock_monotonic_ns() + d->answer_ms * 1000000u;
    if (d->quiet_ms == 0) return;
    uint64_t least_ms = clock_monotonic_ms() + d->quiet_ms / 2;
    if (d->quiet_ms / 2 < t->comment_ms) t->comment_ms = d->quiet_ms / 2;
    if (least_ms < t->next_comment_ms) t->next_comment_ms = least_ms;
}

static void start(coordinator *c, http_exchange *x, chat_params *p, const client_deadline *d) {
    error err = {0};
    chat *t = chat_new(c, x, p, &err);
    request *r = t == NULL ? NULL : request_of(t, p);
    if (r == NULL) {
        api_count_reply(c, 503);
        http_reply_error(x, 503, "no_memory", NULL, 1, "no memory for the request");
        return;
    }
    request_failure failure;
    t->r = r;
    take_deadline(t, r, d);
    if (request_submit(c, r, &failure) == STATUS_OK) return;
    t->r = NULL;
    request_discard(r);
    metric_add(c->counters.refused, 1);
    api_count_reply(c, failure.http_status);
    log_info("request-refused", "request=%s status=%u code=%s", http_request_id(x),
             failure.http_status, failure.code);
    http_reply_error(x, failure.http_status, failure.code, failure.param, failure.retry_after_s,
                     failure.message);
}

void api_chat(coordinator *c, http_exchange *x) {
    chat_params p;
    char param[CHAT_PARAM_SIZE];
    error err = {0};
    size_t length;
    const char *body = http_body(x, &length);
    client_deadline deadline = {0, 0};
    status rc = chat_params_read(&p, body == NULL ? "" : body, length, param, &err);
    http_body_drop(x);
    if (rc == STATUS_OK) {
        rc = client_deadline_read(&deadline, http_header(x, "X-Siliceo-Deadline-Ms"),
                                  http_header(x, "X-Stainless-Read-Timeout"), p.stream, &err);
        if (rc != STATUS_OK) chat_params_release(&p);
    }
    if (rc != STATUS_OK) {
        unsigned http_status = rc == STATUS_BAD_INPUT ? 400 : 503;
        metric_add(c->counters.refused, 1);
        api_count_reply(c, http_status);
        http_reply_error(x, http_status, rc == STATUS_BAD_INPUT ? "invalid_value" : "no_memory",
                         param, http_status == 503, err.text);
        return;
    }
    (void)aliases_resolve(c->options->aliases, p.model);
    start(c, x, &p, &deadline);
    chat_params_release(&p);
}
