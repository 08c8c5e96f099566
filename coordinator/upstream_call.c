#include "coordinator/upstream_call.h"

#include "common/clock.h"
#include "coordinator/sse_reader.h"
#include "coordinator/upstream_vectors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CHECK_BYTES = 1024 * 1024,
    MAX_ERROR_BYTES = 64 * 1024,
    MAX_WHOLE_BYTES = 64 * 1024 * 1024
};

void upstream_event_free(web_event *base) {
    upstream_event *e = (upstream_event *)base;
    free(e->models);
    free(e);
}

static upstream_event *event_new(const upstream_target *t, upstream_event_kind kind,
                                 const char *text, size_t length) {
    upstream_event *e = calloc(1, sizeof *e + length + 1);
    if (e == NULL) return NULL;
    e->base.deliver = t->deliver;
    e->base.drop = upstream_event_free;
    e->owner = t->owner;
    e->server_idx = t->server_idx;
    e->generation = t->generation;
    e->kind = kind;
    e->length = length;
    if (length > 0) memcpy(e->text, text, length);
    return e;
}

static bool set_url(web_call *call, const upstream_target *t, const char *path) {
    size_t size = strlen(t->config->url) + strlen(path) + 1;
    call->url = malloc(size);
    if (call->url != NULL) (void)snprintf(call->url, size, "%s%s", t->config->url, path);
    call->authorization = t->config->authorization;
    call->forwarded = true;
    return call->url != NULL;
}

/* ------------------------------------------------------------ check */

typedef struct check_call {
    web_call base;
    upstream_target target;
    json_text body;
} check_call;

static bool check_data(web_call *base, const char *bytes, size_t n) {
    check_call *call = (check_call *)base;
    json_text_add(&call->body, bytes, n);
    return !call->body.failed && call->body.length <= MAX_CHECK_BYTES;
}

static void check_models(check_call *call, web_client *client) {
    error err = {0};
    upstream_model *models = calloc(UPSTREAM_MAX_MODELS, sizeof *models);
    size_t n = 0;
    status rc =
        models == NULL
            ? STATUS_NO_MEMORY
            : upstream_read_models(models, &n, call->body.length > 0 ? call->body.bytes : "",
                                   call->body.length, &err);
    bool ok = rc == STATUS_OK;
    upstream_event *e = event_new(&call->target, ok ? UPSTREAM_MODELS : UPSTREAM_SILENT,
                                  err.text, ok ? 0 : strlen(err.text));
    if (e == NULL || !ok) {
        free(models);
    } else {
        e->models = models;
        e->n_models = n;
    }
    if (e != NULL) web_client_post(client, &e->base);
}

static void check_end(web_call *base, const web_result *result) {
    check_call *call = (check_call *)base;
    if (result->error_text == NULL && result->http_status == 200) {
        check_models(call, base->client);
    } else if (!result->cancelled) {
        char text[200];
        if (result->error_text != NULL)
            (void)snprintf(text, sizeof text, "GET /models: %s", result->error_text);
        else
            (void)snprintf(text, sizeof text, "GET /models: HTTP status %ld",
                           result->http_status);
        upstream_event *e =
            event_new(&call->target, result->refused ? UPSTREAM_REFUSED : UPSTREAM_SILENT, text,
                      strlen(text));
        if (e != NULL) web_client_post(base->client, &e->base);
    }
    json_text_release(&call->body);
    upstream_config_leave(call->target.config);
    free(call);
}

bool upstream_start_check(web_client *web, const upstream_target *t, uint64_t limit_ms) {
    check_call *call = calloc(1, sizeof *call);
    if (call == NULL) return false;
    call->target = *t;
    call->base.limit_ms = (uint32_t)limit_ms;
    call->base.on_data = check_data;
    call->base.on_end = check_end;
    (void)upstream_config_use(t->config);
    if (set_url(&call->base, t, "/models") && web_client_start(web, &call->base)) return true;
    upstream_config_leave(t->config);
    free(call->base.url);
    free(call);
    return false;
}

/* ------------------------------------------------------------ submit */

typedef struct submit_call {
    web_call base;
    upstream_target target;
    uint64_t request, epoch, number, n_pieces;
    wire_kind kind;
    char model[WIRE_MAX_NAME + 1];
    uint64_t begun_ns, first_ns;
    sse_reader reader;
    upstream_reply reply;
    json_text error_body;
    json_text whole; /* a reply that is no stream: of vectors */
    size_t n_inputs; /* that it answers */
    bool over;       /* DONE or ERROR has been posted */
    bool is_other;   /* of a kind that is not passed on */
} submit_call;

static void post(submit_call *call, upstream_event *e) {
    if (e == NULL) {
        call->over = true; /* without memory the node's limits of time end it */
        return;
    }
    e->request = call->request;
    e->epoch = call->epoch;
    e->prompt_tokens = call->reply.prompt_tokens;
    e->cached_tokens = call->reply.cached_tokens;
    e->completion_tokens =
        call->reply.has_usage ? call->reply.completion_tokens : call->n_pieces;
    e->reasoning_tokens = call->reply.reasoning_tokens;
    web_client_post(call->base.client, &e->base);
}

static void post_error(submit_call *call, unsigned http_status, const char *code,
                       bool retryable, const char *text) {
    if (call->over) return;
    call->over = true;
    char full[700];
    (void)snprintf(full, sizeof full, "upstream %s: %.400s", call->target.config->name, text);
    upstream_event *e = event_new(&call->target, UPSTREAM_ERROR, full, strlen(full));
    if (e != NULL) {
        e->http_status = http_status;
        e->retryable = retryable;
        (void)snprintf(e->code, sizeof e->code, "%s", code);
    }
    post(call, e);
}

static void on_piece(void *context, const upstream_piece *piece) {
    submit_call *call = context;
    if (call->first_ns == 0) call->first_ns = clock_monotonic_ns();
    upstream_event *e = event_new(&call->target, UPSTREAM_TOKENS, piece->text, piece->length);
    if (e != NULL) {
        e->number = call->number++;
        e->choice = piece->choice;
        e->channel = piece->channel;
        e->finish = piece->finish;
        e->call = piece->call;
        e->call_cut = piece->call_cut;
        if (piece->call_name != NULL)
            (void)snprintf(e->call_name, sizeof e->call_name, "%s", piece->call_name);
    }
    if (piece->length > 0) call->n_pieces++;
    post(call, e);
}

static void post_done(submit_call *call, const char *result) {
    if (call->over) return;
    uint64_t now_ns = clock_monotonic_ns();
    upstream_event *e =
        event_new(&call->target, UPSTREAM_DONE, result, result == NULL ? 0 : strlen(result));
    if (e != NULL) {
        uint64_t first_ns = call->first_ns != 0 ? call->first_ns : now_ns;
        e->number = call->number;
        e->prefill_ms = (double)(first_ns - call->begun_ns) * 1e-6;
        e->decode_ms = (double)(now_ns - first_ns) * 1e-6;
    }
    post(call, e);
    call->over = true;
}

static status on_event(void *context, const char *data, size_t n, error *err) {
    submit_call *call = context;
    status rc = upstream_reply_event(&call->reply, data, n, err);
    if (rc == STATUS_OK && call->reply.error_status != 0) {
        post_error(call, call->reply.error_status < 500 ? 502 : call->reply.error_status,
                   "upstream_failed", true, call->reply.error_text);
    } else if (rc == STATUS_OK && call->reply.done) {
        if (upstream_reply_is_whole(&call->reply))
            post_done(call, NULL);
        else
            post_error(call, 502, "upstream_cut", true, "[DONE] came before finish_reason");
    }
    return rc;
}

static bool submit_start(web_call *base, error *err) {
    submit_call *call = (submit_call *)base;
    size_t n_choices = 1;
    char *body = NULL;
    call->begun_ns = clock_monotonic_ns();
    bool vectors = upstream_vectors_kind(call->kind);
    call->is_other = !vectors && call->kind != WIRE_CHAT && call->kind != WIRE_COMPLETION;
    if (call->is_other) {
        (void)error_set(
            err, STATUS_BAD_INPUT,
            "only chats, completions, embeddings and reranking are passed on to upstreams");
        return false;
    }
    status rc = vectors ? upstream_vectors_body(&body, &call->n_inputs, call->kind, base->body,
                                                base->n_body, call->model, err)
                        : upstream_request_body(&body, &n_choices, base->body, base->n_body,
                                                call->model, err);
    if (rc == STATUS_OK && !vectors)
        rc = upstream_reply_init(&call->reply, n_choices, call, on_piece, err);
    if (rc != STATUS_OK) {
        free(body);
        return false;
    }
    free(base->body);
    base->body = body;
    base->n_body = strlen(body);
    return true;
}

static bool submit_data(web_call *base, const char *bytes, size_t n) {
    submit_call *call = (submit_call *)base;
    if (web_call_status(base) >= 300) {
        size_t room = MAX_ERROR_BYTES - call->error_body.length;
        json_text_add(&call->error_body, bytes, n < room ? n : room);
        return true;
    }
    if (call->over) return true; /* nothing that counts comes after the end */
    if (upstream_vectors_kind(call->kind)) {
        json_text_add(&call->whole, bytes, n);
        if (!call->whole.failed && call->whole.length <= MAX_WHOLE_BYTES) return true;
        post_error(call, 502, "bad_upstream_reply", true, "the reply is over its bound");
        return false;
    }
    error err = {0};
    if (sse_reader_add(&call->reader, bytes, n, call, on_event, &err) == STATUS_OK) return true;
    post_error(call, 502, "bad_upstream_reply", true, err.text);
    return false;
}

/* The server's word for it, where the client can do something about it; its own failures, and
 * ours with it (a wrong key), are a bad gateway's. */
static void post_refusal(submit_call *call, long http_status) {
    char text[400];
    const char *body = call->error_body.length > 0 ? call->error_body.bytes : "";
    upstream_error_text(text, sizeof text, body, call->error_body.length);
    bool too_long = strstr(body, "exceed_context_size") != NULL ||
                    strstr(body, "context_length_exceeded") != NULL;
    bool missing = http_status == 404 || http_status == 405 || http_status == 501;
    if (http_status == 429 || http_status == 503)
        post_error(call, 503, "busy", true, text);
    else if (missing && call->kind != WIRE_CHAT) /* no failure of it: it has no such path */
        post_error(call, 400, "not_supported", true, text);
    else if (http_status == 400 || http_status == 413 || http_status == 422)
        post_error(call, (unsigned)http_status,
                   too_long ? "context_length_exceeded" : "upstream_refused", false, text);
    else
        post_error(call, 502, "upstream_failed", true, text);
}

static void end_vectors(submit_call *call) {
    error err = {0};
    char *list = NULL;
    const char *body = call->whole.length > 0 ? call->whole.bytes : "";
    status rc = upstream_vectors_read(&list, &call->reply.prompt_tokens, call->kind,
                                      call->n_inputs, body, call->whole.length, &err);
    call->reply.has_usage = true;
    if (rc == STATUS_OK)
        post_done(call, list);
    else
        post_error(call, 502, "bad_upstream_reply", true, err.text);
    free(list);
}

static void submit_end(web_call *base, const web_result *result) {
    submit_call *call = (submit_call *)base;
    if (result->cancelled)
        post_error(call, 499, "cancelled", false, "cancelled");
    else if (call->is_other) /* no failure of the server, and a worker may do it */
        post_error(call, 400, "not_supported", true, result->error_text);
    else if (result->http_status >= 300)
        post_refusal(call, result->http_status);
    else if (result->error_text != NULL)
        post_error(call, result->refused ? 503 : 502, "upstream_failed", true,
                   result->error_text);
    else if (upstream_vectors_kind(call->kind))
        end_vectors(call);
    else if (upstream_reply_is_whole(&call->reply) && call->reply.n_choices > 0)
        post_done(call, NULL); /* some servers end without [DONE] */
    else
        post_error(call, 502, "upstream_cut", true, "the reply ended early");
    sse_reader_release(&call->reader);
    upstream_reply_release(&call->reply);
    json_text_release(&call->error_body);
    json_text_release(&call->whole);
    upstream_config_leave(call->target.config);
    free(call);
}

bool upstream_start_submit(web_client *web, const upstream_target *t, const wire_submit *s,
                           uint64_t cancel_id) {
    submit_call *call = calloc(1, sizeof *call);
    if (call == NULL) return false;
    call->target = *t;
    call->request = s->request;
    call->epoch = s->epoch;
    call->kind = s->kind;
    (void)snprintf(call->model, sizeof call->model, "%.*s", (int)s->model.length,
                   s->model.bytes);
    call->base.cancel_id = cancel_id;
    call->base.on_start = submit_start;
    call->base.on_data = submit_data;
    call->base.on_end = submit_end;
    call->base.n_body = s->body.length;
    call->base.body = malloc(s->body.length + 1);
    if (call->base.body != NULL && s->body.length > 0)
        memcpy(call->base.body, s->body.bytes, s->body.length);
    const char *path = upstream_vectors_kind(s->kind) ? upstream_vectors_path(s->kind)
                       : s->kind == WIRE_COMPLETION   ? "/completions"
                                                      : "/chat/completions";
    (void)upstream_config_use(t->config);
    if (call->base.body != NULL && set_url(&call->base, t, path) &&
        web_client_start(web, &call->base))
        return true;
    upstream_config_leave(t->config);
    free(call->base.url);
    free(call->base.body);
    free(call);
    return false;
}
