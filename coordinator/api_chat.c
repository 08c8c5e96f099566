/* api_chat.c - POST of every endpoint that asks the model: the life of the reply.
 *
 * The styles (answer.h) read bodies and write answers; here is what they share: clients and
 * their retries, requests, keep-alives, deadlines, errors.  A batch has a request for each of
 * its prompts, so that different nodes may work on it, and one reply.
 */
#include "coordinator/api.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/aliases.h"
#include "coordinator/answer.h"
#include "coordinator/audience.h"
#include "coordinator/chat_params.h"
#include "coordinator/client_deadline.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

/* One prompt of the reply. */
typedef struct part {
    struct chat *t;
    request *r; /* NULL once it has ended */
    size_t first_choice;
} part;

/* One reply under way; ends when the last of its clients has gone. */
typedef struct chat {
    struct chat *next, *previous;
    coordinator *c;
    audience clients;
    part *parts;
    size_t n_parts;
    size_t n_open;    /* parts to come; 0: the reply is over, whatever its parts still do */
    size_t n_choices; /* of a part */
    wire_done sum;    /* of the parts that are done */
    const answer_style *style;
    void *answer;
    json_text out;
    uint64_t body_hash; /* with the tenant; what a retry has in common */
    uint64_t key_hash;  /* of the Idempotency-Key; 0: none */
    bool streaming;
    bool left;    /* by all clients; to be freed */
    bool flowing; /* tokens have been sent: no keep-alives any more */
    uint64_t next_comment_ms;
    uint64_t comment_ms; /* between comments: more often for a client of little patience */
    char node[WIRE_MAX_NAME + 1]; /* of the request, once it is placed */
    const char *resumed;          /* see token_stream_facts */
    const char *thinking;         /* see token_stream_thinking(); NULL while it runs */
    char request_id[72];
} chat;

static void cancel_parts(chat *t, const char *why) {
    t->n_open = 0;
    for (size_t i = 0; i < t->n_parts; i++) {
        request *r = t->parts[i].r;
        t->parts[i].r = NULL;
        if (r != NULL) request_cancel(t->c, r, why);
    }
}

static void chat_free(chat *t) {
    if (t == NULL) return;
    if (t->answer != NULL) t->style->release(t->answer);
    json_text_release(&t->out);
    free(t->parts);
    free(t);
}

static void chat_end(chat *t) {
    coordinator *c = t->c;
    cancel_parts(t, "client_closed");
    if (t->previous != NULL)
        t->previous->next = t->next;
    else
        c->chats = t->next;
    if (t->next != NULL) t->next->previous = t->previous;
    audience_release(&t->clients);
    chat_free(t);
}

/* Of a batch another part may be what the requests are just being walked over for, so its
 * end has to wait for api_chat_reap(). */
static void on_left(void *context) {
    chat *t = context;
    t->left = true;
    t->n_open = 0;
    if (t->n_parts == 1) chat_end(t);
}

void api_chat_reap(coordinator *c) {
    chat *next;
    for (chat *t = c->chats; t != NULL; t = next) {
        next = t->next;
        if (t->left)
            chat_end(t);
        else if (t->n_open == 0)
            cancel_parts(t, "part_failed");
    }
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
    part *p = context;
    chat *t = p->t;
    if (t->n_open == 0) return STATUS_OK;
    if (tokens->choice >= t->n_choices) {
        return error_set(err, STATUS_BAD_INPUT, "tokens.choice: %llu of %zu",
                         (unsigned long long)tokens->choice, t->n_choices);
    }
    wire_tokens own = *tokens;
    own.choice += p->first_choice;
    json_text_clear(&t->out);
    status rc = t->style->add(t->answer, &own, &t->out, err);
    if (rc != STATUS_OK || !t->streaming || t->out.length == 0) return rc;
    note_request(t, p->r);
    t->flowing = true;
    p->r->replayable = false;
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

/* A failure by the names of the client's API. */
static request_failure in_own_words(const chat *t, const request_failure *failure) {
    request_failure own = *failure;
    if (t->style->names != NULL)
        field_names_apply(t->style->names, own.param, own.message, sizeof own.message);
    return own;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* The parts of a batch ran side by side: tokens add up, times do not. */
static void add_done(wire_done *sum, const wire_done *done) {
    uint64_t prompt = sum->prompt_tokens, cached = sum->cached_tokens;
    uint64_t completion = sum->completion_tokens, reasoning = sum->reasoning_tokens;
    double queue_ms = sum->queue_ms, prefill_ms = sum->prefill_ms, decode_ms = sum->decode_ms;
    *sum = *done;
    sum->prompt_tokens += prompt;
    sum->cached_tokens += cached;
    sum->completion_tokens += completion;
    sum->reasoning_tokens += reasoning;
    sum->queue_ms = larger(sum->queue_ms, queue_ms);
    sum->prefill_ms = larger(sum->prefill_ms, prefill_ms);
    sum->decode_ms = larger(sum->decode_ms, decode_ms);
}

static void on_done(void *context, const request *r, const wire_done *done) {
    part *p = context;
    chat *t = p->t;
    p->r = NULL;
    if (t->n_open == 0) return;
    note_request(t, r);
    add_done(&t->sum, done);
    if (--t->n_open > 0) return;
    if (t->style->thinking != NULL) t->thinking = t->style->thinking(t->answer, &t->sum);
    token_stream_facts facts = facts_of(t, r);
    json_text_clear(&t->out);
    t->style->finish(t->answer, &t->sum, &facts, &t->out);
    if (t->streaming) {
        if (send_out(t)) (void)audience_end(&t->clients);
    } else if (t->out.failed) {
        reply_error(t, 503, "no_memory", NULL, 1, "no memory for the reply");
    } else {
        (void)audience_reply(&t->clients, "application/json", t->out.bytes, t->out.length);
    }
}

/* The first part that fails ends the reply and so the others. */
static void on_error(void *context, const request *r, const request_failure *failure) {
    (void)r;
    part *p = context;
    chat *t = p->t;
    p->r = NULL;
    if (t->n_open == 0) return;
    t->n_open = 0;
    const request_failure own = in_own_words(t, failure);
    if (!t->clients.begun) {
        reply_error(t, own.http_status, own.code, own.param, own.retry_after_s, own.message);
        return;
    }
    const answer_failure told = {own.http_status, own.code, own.param, own.message};
    json_text_clear(&t->out);
    t->style->break_off(t->answer, &told, &t->out);
    if (send_out(t)) (void)audience_end(&t->clients);
}

static void on_restart(void *context, bool resumes) {
    const part *p = context;
    chat *t = p->t;
    t->next_comment_ms = clock_monotonic_ms() + t->comment_ms;
    t->style->restart(t->answer, p->first_choice, t->n_choices, resumes);
}

/* Before the first token, and again while another node takes over what had begun. */
static bool is_quiet(const chat *t) {
    if (t->n_open == 0) return false;
    if (!t->flowing) return true;
    for (size_t i = 0; i < t->n_parts; i++) {
        const request *r = t->parts[i].r;
        if (r != NULL && r->given.resumed > 0 && r->state != REQUEST_RUNNING) return true;
    }
    return false;
}

static void note_first(chat *t) {
    for (size_t i = 0; i < t->n_parts; i++) {
        if (t->parts[i].r == NULL) continue;
        note_request(t, t->parts[i].r);
        return;
    }
}

void api_chat_tick(coordinator *c, uint64_t now_ms) {
    chat *next;
    for (chat *t = c->chats; t != NULL; t = next) {
        next = t->next;
        if (!t->streaming || !is_quiet(t) || now_ms < t->next_comment_ms) continue;
        note_first(t);
        t->next_comment_ms = now_ms + t->comment_ms;
        json_text_clear(&t->out);
        t->style->keepalive(t->answer, &t->out);
        (void)send_out(t);
    }
}

/* ------------------------------------------------------------ beginning */

static void make_id(char *out, size_t cap) {
    uint64_t random[2] = {0, 0};
    if (getrandom(random, sizeof random, GRND_NONBLOCK) < 0) random[0] = clock_monotonic_ns();
    (void)snprintf(out, cap, "%016llx%08llx", (unsigned long long)random[0],
                   (unsigned long long)(random[1] >> 32));
}

static bool open_answer(chat *t, chat_params *p) {
    char id[32];
    make_id(id, sizeof id);
    const answer_params params = {id, clock_wall_ms() / 1000, p};
    t->n_parts = 1 + p->n_more;
    t->parts = calloc(t->n_parts, sizeof *t->parts);
    t->answer = t->style->open(&params);
    if (t->parts == NULL || t->answer == NULL) return false;
    for (size_t i = 0; i < t->n_parts; i++)
        t->parts[i] = (part){.t = t, .first_choice = i * p->n_choices};
    return true;
}

static chat *chat_new(coordinator *c, http_exchange *x, const answer_style *style,
                      chat_params *p) {
    chat *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    t->c = c;
    t->style = style;
    t->n_choices = p->n_choices;
    t->clients.context = t;
    t->clients.on_left = on_left;
    t->clients.on_gone = on_gone;
    t->clients.on_headers = on_headers;
    t->streaming = p->stream;
    t->comment_ms = (uint64_t)(c->options->http_keepalive_s * 1000);
    t->next_comment_ms =
        clock_monotonic_ms() + (uint64_t)(c->options->http_hold_headers_s * 1000);
    if (!open_answer(t, p) || !audience_join(&t->clients, x)) {
        chat_free(t);
        return NULL;
    }
    t->next = c->chats;
    if (c->chats != NULL) c->chats->previous = t;
    c->chats = t;
    return t;
}

static request *request_of(chat *t, http_exchange *x, chat_params *p, size_t index) {
    request_sink sink = {&t->parts[index], on_tokens, on_done, on_error, on_restart};
    request *r = request_new(&sink, http_owner(x));
    if (r == NULL) return NULL;
    r->priority = api_priority(t->c, x, p->priority, p->task);
    r->kind = t->style->kind;
    r->forwarded = http_header(x, WEB_FORWARDED) != NULL;
    (void)snprintf(r->request_id, sizeof r->request_id, "%s", http_request_id(x));
    memcpy(r->model, p->model, sizeof r->model);
    r->prompt_bytes = (double)p->prompt_bytes / (double)t->n_parts;
    r->max_output = wire_kind_gives_tokens(r->kind) ? (double)p->max_tokens : 1;
    r->replayable = true;
    r->no_replay = p->n_choices > 1 ? "it has several choices" : NULL;
    if (getrandom(&r->seed, sizeof r->seed, GRND_NONBLOCK) < 0) r->seed = clock_monotonic_ns();
    char **body = index == 0 ? &p->body : &p->more[index - 1];
    r->body = *body;
    r->n_body = strlen(*body);
    *body = NULL;
    if (index > 0) return r;
    r->chain = p->chain;
    p->chain = (prefix_chain){0};
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
        if (t->n_open == 0 || (!same_key && !(y->is_one && t->body_hash == y->body_hash)))
            continue;
        if (t->body_hash != y->body_hash) {
            api_count_reply(c, 409);
            http_reply_error(x, 409, "idempotency_key_reused", "Idempotency-Key", 0,
                             "a request with this Idempotency-Key and another body is running");
            return true;
        }
        if (!audience_join(&t->clients, x)) continue;
        metric_add(c->counters.joined, 1);
        log_info("request-joined", "request=%s by=%s", t->request_id, http_request_id(x));
        return true;
    }
    return false;
}

/* The reply to a request that was not taken; the client's leaving ends t. */
static void refuse(chat *t, const request_failure *failure) {
    metric_add(t->c->counters.refused, 1);
    log_info("request-refused", "request=%s status=%u code=%s", t->request_id,
             failure->http_status, failure->code);
    const request_failure own = in_own_words(t, failure);
    reply_error(t, own.http_status, own.code, own.param, own.retry_after_s, own.message);
}

/* Any of the parts may end at once, and with it the reply: the clients are held meanwhile. */
static void submit_parts(chat *t) {
    request_failure failure;
    audience_hold(&t->clients);
    t->n_open = t->n_parts;
    for (size_t i = 0; i < t->n_parts; i++) {
        request *r = t->parts[i].r;
        if (t->n_open > 0 && request_submit(t->c, r, &failure) == STATUS_OK) continue;
        t->parts[i].r = NULL;
        request_discard(r);
        if (t->n_open == 0) continue;
        t->n_open = 0;
        refuse(t, &failure);
    }
    (void)audience_let(&t->clients);
}

static bool make_parts(chat *t, http_exchange *x, chat_params *p, const client_deadline *d) {
    bool made = true;
    for (size_t i = 0; i < t->n_parts && made; i++) {
        t->parts[i].r = request_of(t, x, p, i);
        made = t->parts[i].r != NULL;
        if (made) take_deadline(t, t->parts[i].r, d);
    }
    for (size_t i = 0; i < t->n_parts && !made; i++) {
        request_discard(t->parts[i].r);
        t->parts[i].r = NULL;
    }
    return made;
}

static void start(coordinator *c, http_exchange *x, const answer_style *style, chat_params *p,
                  const client_deadline *d, const retry *y) {
    chat *t = chat_new(c, x, style, p);
    if (t == NULL || !make_parts(t, x, p, d)) {
        api_count_reply(c, 503);
        http_reply_error(x, 503, "no_memory", NULL, 1, "no memory for the request");
        return;
    }
    (void)snprintf(t->request_id, sizeof t->request_id, "%s", http_request_id(x));
    t->body_hash = y->body_hash;
    t->key_hash = y->key_hash;
    t->clients.keeps = y->key_hash != 0 || y->is_one;
    submit_parts(t);
}

void api_ask(coordinator *c, http_exchange *x, const answer_style *style) {
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
    status rc = style->read(&p, body == NULL ? "" : body, length, param, &err);
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
        const char *code = rc == STATUS_BAD_INPUT ? "invalid_value" : "no_memory";
        /* What makes Anthropic's clients send whole conversations. */
        if (strcmp(param, "thread") == 0) code = "thread_unsupported_request";
        http_reply_error(x, http_status, code, param, http_status == 503, err.text);
        return;
    }
    if (p.model[0] == '\0') api_only_model(c, p.model);
    (void)aliases_resolve(c->aliases, p.model);
    start(c, x, style, &p, &deadline, &y);
    chat_params_release(&p);
}

void api_chat(coordinator *c, http_exchange *x) {
    api_ask(c, x, &answer_chat);
}
