/* POST /v1/chat/completions, streaming or not. */
#include "coordinator/api.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/aliases.h"
#include "coordinator/audience.h"
#include "coordinator/chat_params.h"
#include "coordinator/client_deadline.h"
#include "coordinator/token_stream.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

/* One reply under way; ends when the last of its clients has gone. */
typedef struct chat {
    struct chat *next, *previous;
    coordinator *c;
    audience clients;
    request *r; /* NULL once it has ended */
    token_stream stream;
    json_text out;
    uint64_t body_hash; /* with the tenant; what a retry has in common */
    uint64_t key_hash;  /* of the Idempotency-Key; 0: none */
    bool streaming;
    bool flowing; /* tokens have been sent: no keep-alives any more */
    uint64_t next_comment_ms;
    uint64_t comment_ms; /* between comments: more often for a client of little patience */
    char node[WIRE_MAX_NAME + 1]; /* of the request, once it is placed */
    const char *resumed;          /* see token_stream_facts */
    const char *thinking;         /* see token_stream_thinking(); NULL while it runs */
} chat;

static void on_left(void *context) {
    chat *t = context;
    coordinator *c = t->c;
    if (t->r != NULL) request_cancel(c, t->r, "client_closed");
    if (t->previous != NULL)
        t->previous->next = t->next;
    else
        c->chats = t->next;
    if (t->next != NULL) t->next->previous = t->previous;
    audience_release(&t->clients);
    token_stream_release(&t->stream);
    json_text_release(&t->out);
    free(t);
}

static void on_gone(void *context, bool complete) {
    chat *t = context;
    if (!complete) metric_add(t->c->counters.status[5], 1);
}

static void on_headers(void *context, http_exchange *x) {
    chat *t = context;
    if (t->node[0] != '\0') http_set_header(x, "X-Siliceo-Node", t->node);
    if (t->thinking != NULL) http_set_header(x, "X-Siliceo-Thinking", t->thinking);
    if (t->resumed != NULL) http_set_header(x, "X-Siliceo-Resumed", t->resumed);
    api_count_reply(t->c, 200);
}

/* What the headers tell: where it runs, and how it went on after a node was lost. */
static void note_request(chat *t, const request *r) {
    if (r->node != NULL) (void)snprintf(t->node, sizeof t->node, "%s", r->node->name);
    if (r->given.resumed > 0) t->resumed = r->given.approximate ? "approximate" : "exact";
}

static bool send_out(chat *t) {
    if (t->out.failed) return audience_abort(&t->clients);
    return audience_write(&t->clients, t->out.bytes, t->out.length);
}

static status on_tokens(void *context, const wire_tokens *tokens, error *err) {
    chat *t = context;
    json_text_clear(&t->out);
    status rc = token_stream_add(&t->stream, tokens, &t->out, err);
    if (rc != STATUS_OK || !t->streaming || t->out.length == 0) return rc;
    note_request(t, t->r);
    t->flowing = true;
    t->r->replayable = false;
    (void)send_out(t); /* when it fails, t is gone */
    return STATUS_OK;
}

static token_stream_facts facts_of(const chat *t, const request *r) {
    return (token_stream_facts){
        .node = r->node->name,
        .queue_ms = (double)(r->first_sent_ns - r->received_ns) * 1e-6,
        .first_token_ms = r->first_token_ns > r->received_ns
                              ? (double)(r->first_token_ns - r->received_ns) * 1e-6
                              : 0,
        .attempts = r->attempts,
        .resumed = t->resumed,
    };
}

static void reply_error(chat *t, unsigned http_status, const char *code, const char *param,
                        unsigned retry_after_s, const char *message) {
    api_count_reply(t->c, http_status);
    (void)audience_error(&t->clients, http_status, code, param, retry_after_s, message);
}

static void on_done(void *context, const request *r, const wire_done *done) {
    chat *t = context;
    note_request(t, r);
    t->r = NULL;
    t->thinking = token_stream_thinking(&t->stream, done);
    token_stream_facts facts = facts_of(t, r);
    json_text_clear(&t->out);
    token_stream_finish(&t->stream, done, &facts, &t->out);
    if (t->streaming) {
        if (send_out(t)) (void)audience_end(&t->clients);
    } else if (t->out.failed) {
        reply_error(t, 503, "no_memory", NULL, 1, "no memory for the reply");
    } else {
        (void)audience_reply(&t->clients, "application/json", t->out.bytes, t->out.length);
    }
}

static void on_error(void *context, const request *r, const request_failure *failure) {
    (void)r;
    chat *t = context;
    t->r = NULL;
    if (!t->clients.begun) {
        reply_error(t, failure->http_status, failure->code, failure->param,
                    failure->retry_after_s, failure->message);
        return;
    }
    json_text body = {0};
    http_error_body(&body, failure->http_status, failure->code, failure->param,
                    failure->message);
    json_text_clear(&t->out);
    if (body.failed)
        t->out.failed = true;
    else
        token_stream_fail(body.bytes, &t->out);
    json_text_release(&body);
    if (send_out(t)) (void)audience_end(&t->clients);
}

static void on_restart(void *context, bool resumes) {
    chat *t = context;
    t->next_comment_ms = clock_monotonic_ms() + t->comment_ms;
    if (resumes)
        token_stream_resume(&t->stream);
    else
        token_stream_restart(&t->stream);
}

/* Before the first token, and again while another node takes over what had begun. */
static bool is_quiet(const chat *t) {
    if (t->r == NULL) return false;
    return !t->flowing || (t->r->given.resumed > 0 && t->r->state != REQUEST_RUNNING);
}

void api_chat_tick(coordinator *c, uint64_t now_ms) {
    chat *next;
    for (chat *t = c->chats; t != NULL; t = next) {
        next = t->next;
        if (!t->streaming || !is_quiet(t) || now_ms < t->next_comment_ms) continue;
        note_request(t, t->r);
        t->next_comment_ms = now_ms + t->comment_ms;
        json_text_clear(&t->out);
        token_stream_keepalive(&t->out);
        (void)send_out(t);
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
    t->clients.context = t;
    t->clients.on_left = on_left;
    t->clients.on_gone = on_gone;
    t->clients.on_headers = on_headers;
    t->streaming = p->stream;
    t->comment_ms = (uint64_t)(c->options->http_keepalive_s * 1000);
    t->next_comment_ms =
        clock_monotonic_ms() + (uint64_t)(c->options->http_hold_headers_s * 1000);
    if (!audience_join(&t->clients, x)) {
        token_stream_release(&t->stream);
        free(t);
        return NULL;
    }
    t->next = c->chats;
    if (c->chats != NULL) c->chats->previous = t;
    c->chats = t;
    return t;
}

static request *request_of(chat *t, http_exchange *x, chat_params *p) {
    request_sink sink = {t, on_tokens, on_done, on_error, on_restart};
    request *r = request_new(&sink, http_owner(x));
    if (r == NULL) return NULL;
    r->priority = api_priority(t->c, x, p->priority, p->task);
    r->kind = WIRE_CHAT;
    (void)snprintf(r->request_id, sizeof r->request_id, "%s", http_request_id(x));
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

/* ------------------------------------------------------------ retries */

typedef struct retry {
    uint64_t body_hash, key_hash;
    bool is_one; /* the client says that it has asked before */
} retry;

/* The body's bytes and who asks; libraries count their retries in a header. */
static retry read_retry(http_exchange *x, const char *body, size_t length) {
    const char *key = http_header(x, "Idempotency-Key");
    const char *count = http_header(x, "X-Stainless-Retry-Count");
    uint64_t tenant_hash = (uint64_t)(uintptr_t)http_owner(x); /* it lives while they do */
    retry y = {.body_hash = XXH3_64bits_withSeed(body, length, tenant_hash)};
    if (key != NULL && key[0] != '\0')
        y.key_hash = XXH3_64bits_withSeed(key, strlen(key), tenant_hash) | 1;
    y.is_one = count != NULL && count[0] >= '1' && count[0] <= '9';
    return y;
}

/* Answered here: by what runs already, or because the key stands for another request. */
static bool join_running(coordinator *c, http_exchange *x, const retry *y) {
    for (chat *t = c->chats; t != NULL; t = t->next) {
        bool same_key = y->key_hash != 0 && t->key_hash == y->key_hash;
        if (t->r == NULL || (!same_key && !(y->is_one && t->body_hash == y->body_hash)))
            continue;
        if (t->body_hash != y->body_hash) {
            api_count_reply(c, 409);
            http_reply_error(x, 409, "idempotency_key_reused", "Idempotency-Key", 0,
                             "a request with this Idempotency-Key and another body is running");
            return true;
        }
        if (!audience_join(&t->clients, x)) continue;
        metric_add(c->counters.joined, 1);
        log_info("request-joined", "request=%s by=%s", t->r->request_id, http_request_id(x));
        return true;
    }
    return false;
}

static void start(coordinator *c, http_exchange *x, chat_params *p, const client_deadline *d,
                  const retry *y) {
    error err = {0};
    chat *t = chat_new(c, x, p, &err);
    request *r = t == NULL ? NULL : request_of(t, x, p);
    if (r == NULL) {
        api_count_reply(c, 503);
        http_reply_error(x, 503, "no_memory", NULL, 1, "no memory for the request");
        return;
    }
    request_failure failure;
    t->r = r;
    t->body_hash = y->body_hash;
    t->key_hash = y->key_hash;
    t->clients.keeps = y->key_hash != 0 || y->is_one;
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
    const retry y = read_retry(x, body == NULL ? "" : body, length);
    if ((y.key_hash != 0 || y.is_one) && join_running(c, x, &y)) {
        http_body_drop(x);
        return;
    }
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
    start(c, x, &p, &deadline, &y);
    chat_params_release(&p);
}
