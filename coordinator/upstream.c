#include "coordinator/upstream.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/upstream_call.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

enum { MAX_SERVERS = 64, N_IDENTITY = 9 };

/* A place is free where the target has no config. */
typedef struct upstream {
    upstream_target target;
    unsigned char identity[N_IDENTITY];
    uint64_t instance;
    uint64_t next_check_ms, last_good_ms, next_beat_ms, beats;
    bool checking, greeted, refused;
    bool renewed; /* its settings are new: it has to be announced again */
    bool retired; /* taken off the list: it finishes what it has, then it is forgotten */
    char reason[256];
    upstream_model models[UPSTREAM_MAX_MODELS];
    size_t n_models;
} upstream;

struct upstreams {
    upstreams_params params;
    upstream servers[MAX_SERVERS];
};

/* ZeroMQ makes identities of five bytes with a zero in front, and lets nobody else begin with
 * a zero; so these nine bytes are nobody's. */
static const unsigned char mark[8] = {0, 'u', 'p', 's', 't', 'r', 'e', 'm'};

bool upstream_is_identity(const void *identity, size_t n_identity) {
    return n_identity == N_IDENTITY && memcmp(identity, mark, sizeof mark) == 0;
}

static wire_bytes text(const char *s) {
    return wire_text(s, strlen(s));
}

/* ------------------------------------------------------------ what a worker would say */

static void say(const upstreams *u, const upstream *s, const wire_message *m) {
    worker_peer peer = {.identity = s->identity,
                        .n_identity = N_IDENTITY,
                        .fd = -1,
                        .address = "",
                        .user_id = ""};
    u->params.on_message(u->params.context, &peer, m);
}

static void say_hello(const upstreams *u, upstream *s) {
    wire_model models[UPSTREAM_MAX_MODELS];
    char hash[40];
    /* Nobody else's, so that no broken stream is ever continued elsewhere from its tokens. */
    (void)snprintf(hash, sizeof hash, "upstream-%016llx",
                   (unsigned long long)XXH3_64bits(s->target.config->name,
                                                   strlen(s->target.config->name)));
    for (size_t i = 0; i < s->n_models; i++) {
        uint64_t context = s->target.config->context_tokens > 0
                               ? s->target.config->context_tokens
                               : s->models[i].context_tokens;
        const char *arch = s->models[i].is_coordinators ? UPSTREAM_COORDINATOR : "upstream";
        models[i] = (wire_model){text(s->models[i].name), text(hash), text(arch),
                                 text("upstream"), context};
    }
    wire_message m = {.type = WIRE_HELLO};
    m.hello = (wire_hello){.node = text(s->target.config->name),
                           .instance = s->instance,
                           .build = text("upstream"),
                           .profile = text("upstream"),
                           .backend = text("upstream"),
                           .max_sequences = s->target.config->concurrent,
                           .credit = s->target.config->concurrent,
                           .models = models,
                           .n_models = s->n_models};
    s->greeted = true;
    say(u, s, &m);
}

static void say_beat(const upstreams *u, upstream *s) {
    wire_message m = {.type = WIRE_BEAT};
    m.beat = (wire_beat){.number = ++s->beats,
                         .instance = s->instance,
                         .state = s->refused   ? WIRE_FAILED
                                  : s->retired ? WIRE_DRAINING
                                               : WIRE_READY,
                         .reason = text(s->refused   ? s->reason
                                        : s->retired ? "taken off the settings"
                                                     : ""),
                         .credit = s->target.config->concurrent,
                         .hit_rate = -1,
                         .temperature_c = -1,
                         .power_w = -1};
    say(u, s, &m);
}

/* Those that it has and that are wanted; those that are wanted and not listed by it, too, because
 * some servers list under one name and serve under several. */
static bool take_models(upstream *s, const upstream_model *found, size_t n_found) {
    upstream_model wanted[UPSTREAM_MAX_MODELS];
    size_t n = 0;
    memset(wanted, 0, sizeof wanted);
    for (size_t i = 0; i < s->target.config->n_models; i++) {
        (void)snprintf(wanted[n].name, sizeof wanted[n].name, "%s",
                       s->target.config->models[i]);
        for (size_t k = 0; k < n_found; k++) {
            if (strcmp(found[k].name, wanted[n].name) == 0)
                wanted[n].context_tokens = found[k].context_tokens;
            wanted[n].is_coordinators = wanted[n].is_coordinators || found[k].is_coordinators;
        }
        n++;
    }
    for (size_t k = 0; s->target.config->n_models == 0 && k < n_found; k++) {
        (void)snprintf(wanted[n].name, sizeof wanted[n].name, "%s", found[k].name);
        wanted[n].is_coordinators = found[k].is_coordinators;
        wanted[n++].context_tokens = found[k].context_tokens;
    }
    if (n == s->n_models && memcmp(wanted, s->models, sizeof wanted) == 0) return false;
    memcpy(s->models, wanted, sizeof wanted);
    s->n_models = n;
    return true;
}

/* ------------------------------------------------------------ what its calls bring */

static void on_check(upstreams *u, upstream *s, const upstream_event *e) {
    if (e->generation != s->target.generation) return;
    s->checking = false;
    uint64_t now_ms = clock_monotonic_ms();
    s->next_check_ms = now_ms + u->params.check_ms;
    bool was_refused = s->refused;
    if (e->kind == UPSTREAM_SILENT) {
        log_debug("upstream-silent", "node=%s error=\"%s\"", s->target.config->name, e->text);
        return;
    }
    s->refused = e->kind == UPSTREAM_REFUSED;
    s->last_good_ms = now_ms;
    bool changed = false;
    if (s->refused)
        (void)snprintf(s->reason, sizeof s->reason, "%s", e->text);
    else
        changed = take_models(s, e->models, e->n_models);
    bool announced = s->greeted && !changed && !s->renewed;
    if (!announced) say_hello(u, s);
    s->renewed = false;
    if (!announced || was_refused != s->refused || s->beats == 0) say_beat(u, s);
}

static void on_tokens(const upstreams *u, const upstream *s, const upstream_event *e) {
    /* Servers tell no ids; a piece of text is a token nearly always. */
    static const int32_t unknown_id[1] = {0};
    wire_message m = {.type = WIRE_TOKENS};
    m.tokens = (wire_tokens){.request = e->request,
                             .epoch = e->epoch,
                             .number = e->number,
                             .choice = e->choice,
                             .channel = e->channel,
                             .ids = unknown_id,
                             .n_ids = e->length > 0 ? 1 : 0,
                             .text = wire_text(e->text, e->length),
                             .flags = e->call_cut ? WIRE_FLAG_CALL_CUT : 0,
                             .finish = e->finish,
                             .prompt_tokens = e->prompt_tokens,
                             .cached_tokens = e->cached_tokens,
                             .call = e->call,
                             .call_name = text(e->call_name)};
    say(u, s, &m);
}

static void on_done(const upstreams *u, const upstream *s, const upstream_event *e) {
    wire_message m = {.type = WIRE_DONE};
    m.done = (wire_done){.request = e->request,
                         .epoch = e->epoch,
                         .number = e->number,
                         .prompt_tokens = e->prompt_tokens,
                         .cached_tokens = e->cached_tokens,
                         .completion_tokens = e->completion_tokens,
                         .reasoning_tokens = e->reasoning_tokens,
                         .prefill_ms = e->prefill_ms,
                         .decode_ms = e->decode_ms,
                         .hit_rate = -1,
                         .result = wire_text(e->text, e->length)};
    say(u, s, &m);
}

static void on_error(const upstreams *u, const upstream *s, const upstream_event *e) {
    wire_message m = {.type = WIRE_ERROR};
    m.error = (wire_error){.request = e->request,
                           .epoch = e->epoch,
                           .http_status = e->http_status,
                           .code = text(e->code),
                           .text = wire_text(e->text, e->length),
                           .retryable = e->retryable};
    say(u, s, &m);
}

static void deliver(void *io_context, web_event *base) {
    (void)io_context;
    upstream_event *e = (upstream_event *)base;
    upstreams *u = e->owner;
    upstream *s = &u->servers[e->server_idx];
    if (s->target.config == NULL) { /* what it had is forgotten with it */
        upstream_event_free(base);
        return;
    }
    if (e->kind == UPSTREAM_TOKENS)
        on_tokens(u, s, e);
    else if (e->kind == UPSTREAM_DONE)
        on_done(u, s, e);
    else if (e->kind == UPSTREAM_ERROR)
        on_error(u, s, e);
    else
        on_check(u, s, e);
    upstream_event_free(base);
}

/* ------------------------------------------------------------ io */

static void free_place(upstream *s) {
    upstream_config_leave(s->target.config);
    uint64_t generation = s->target.generation;
    memset(s, 0, sizeof *s);
    s->target.generation = generation;
}

static void tick(upstreams *u, upstream *s, uint64_t now_ms) {
    if (s->retired && u->params.on_retired(u->params.context, s->target.config->name)) {
        free_place(s);
        return;
    }
    if (!s->checking && now_ms >= s->next_check_ms)
        s->checking = upstream_start_check(u->params.web, &s->target, u->params.check_limit_ms);
    /* A check that is late is a busy server's; one that is very late ends the beats. */
    bool known = s->greeted &&
                 now_ms - s->last_good_ms < 2 * u->params.check_ms + u->params.check_limit_ms;
    if (!known || now_ms < s->next_beat_ms) return;
    s->next_beat_ms = now_ms + u->params.beat_ms;
    say_beat(u, s);
}

void upstreams_tick(upstreams *u, uint64_t now_ms) {
    for (size_t i = 0; u != NULL && i < MAX_SERVERS; i++) {
        if (u->servers[i].target.config != NULL) tick(u, &u->servers[i], now_ms);
    }
}

/* One call of a request and server at a time. */
static uint64_t cancel_id(uint64_t request, size_t server_idx) {
    return request * MAX_SERVERS + server_idx + 1;
}

status upstreams_send(upstreams *u, const void *identity, size_t n_identity,
                      const wire_message *message, error *err) {
    CHECK(upstream_is_identity(identity, n_identity));
    size_t i = ((const unsigned char *)identity)[N_IDENTITY - 1];
    if (u == NULL || i >= MAX_SERVERS || u->servers[i].target.config == NULL)
        return error_set(err, STATUS_UNAVAILABLE, "there is no such upstream");
    if (message->type == WIRE_SUBMIT) {
        uint64_t id = cancel_id(message->submit.request, i);
        web_client_cancel(u->params.web, id);
        if (!upstream_start_submit(u->params.web, &u->servers[i].target, &message->submit, id))
            return error_set(err, STATUS_NO_MEMORY, "no memory for a call to %s",
                             u->servers[i].target.config->name);
    } else if (message->type == WIRE_CANCEL) {
        web_client_cancel(u->params.web, cancel_id(message->cancel.request, i));
    }
    return STATUS_OK;
}

/* ------------------------------------------------------------ settings */

typedef struct config_list {
    upstream_config *items[MAX_SERVERS];
    size_t n;
} config_list;

static void release_list(config_list *list) {
    for (size_t i = 0; i < list->n; i++)
        upstream_config_leave(list->items[i]);
    list->n = 0;
}

static upstream_config *find_config(const config_list *list, const char *name) {
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->items[i]->name, name) == 0) return list->items[i];
    }
    return NULL;
}

static status add_config(config_list *list, char *line, error *err) {
    upstream_config *config;
    if (list->n == MAX_SERVERS)
        return error_set(err, STATUS_BAD_INPUT, "more than %d", MAX_SERVERS);
    status rc = upstream_config_parse(&config, line, err);
    if (rc != STATUS_OK) return rc;
    bool twice = find_config(list, config->name) != NULL;
    list->items[list->n++] = config;
    if (!twice) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT, "the name '%s' is there twice", config->name);
}

static status read_list(config_list *list, const char *servers, error *err) {
    char *lines = strdup(servers), *rest = NULL;
    list->n = 0;
    if (lines == NULL) return error_set(err, STATUS_NO_MEMORY, "upstream: no memory");
    status rc = STATUS_OK;
    for (char *line = strtok_r(lines, "\n", &rest); line != NULL && rc == STATUS_OK;
         line = strtok_r(NULL, "\n", &rest)) {
        error what = {0};
        char name[40];
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(line, " \t"), line);
        rc = add_config(list, line, &what);
        if (rc != STATUS_OK)
            (void)error_set(err, rc, "upstream.server: %s: %s", name, what.text);
    }
    free(lines);
    if (rc != STATUS_OK) release_list(list);
    return rc;
}

static upstream *find_place(upstreams *u, const char *name) {
    for (size_t i = 0; i < MAX_SERVERS; i++) {
        const upstream_config *config = u->servers[i].target.config;
        if (name == NULL ? config == NULL : config != NULL && strcmp(config->name, name) == 0)
            return &u->servers[i];
    }
    return NULL;
}

/* Calls that run keep the settings by which they began. */
static void put_config(upstream *s, upstream_config *config) {
    s->retired = false;
    if (upstream_config_same(s->target.config, config)) return;
    upstream_config_leave(s->target.config);
    s->target.config = upstream_config_use(config);
    s->target.generation++;
    s->checking = false;
    s->next_check_ms = 0;
    s->renewed = true;
}

static void take_place(upstreams *u, upstream *s, upstream_config *config) {
    size_t i = (size_t)(s - u->servers);
    s->target = (upstream_target){.owner = u,
                                  .server_idx = i,
                                  .config = upstream_config_use(config),
                                  .generation = s->target.generation + 1,
                                  .deliver = deliver};
    memcpy(s->identity, mark, sizeof mark);
    s->identity[N_IDENTITY - 1] = (unsigned char)i;
    if (getrandom(&s->instance, sizeof s->instance, GRND_NONBLOCK) < 0)
        s->instance = clock_monotonic_ns();
}

status upstreams_set(upstreams *u, const char *servers, error *err) {
    config_list *list = malloc(sizeof *list);
    if (list == NULL) return error_set(err, STATUS_NO_MEMORY, "upstream: no memory");
    status rc = read_list(list, servers, err);
    size_t n_free = 0, n_new = 0;
    for (size_t i = 0; rc == STATUS_OK && i < MAX_SERVERS; i++)
        n_free += u->servers[i].target.config == NULL;
    for (size_t i = 0; rc == STATUS_OK && i < list->n; i++)
        n_new += find_place(u, list->items[i]->name) == NULL;
    if (n_new > n_free)
        rc = error_set(err, STATUS_UNAVAILABLE,
                       "upstream.server: more than %d, with those that still finish their work",
                       MAX_SERVERS);
    for (size_t i = 0; rc == STATUS_OK && i < MAX_SERVERS; i++) {
        upstream *s = &u->servers[i];
        if (s->target.config != NULL)
            s->retired = find_config(list, s->target.config->name) == NULL;
    }
    for (size_t i = 0; rc == STATUS_OK && i < list->n; i++) {
        upstream *s = find_place(u, list->items[i]->name);
        if (s != NULL)
            put_config(s, list->items[i]);
        else
            take_place(u, find_place(u, NULL), list->items[i]);
    }
    if (rc == STATUS_OK) release_list(list);
    free(list);
    return rc;
}

status upstreams_open(upstreams **out, const upstreams_params *params, error *err) {
    *out = NULL;
    upstreams *u = calloc(1, sizeof *u);
    if (u == NULL) return error_set(err, STATUS_NO_MEMORY, "upstream: no memory");
    u->params = *params;
    *out = u;
    return STATUS_OK;
}

void upstreams_close(upstreams *u) {
    for (size_t i = 0; u != NULL && i < MAX_SERVERS; i++)
        upstream_config_leave(u->servers[i].target.config);
    free(u);
}

status upstreams_check(const char *servers, error *err) {
    config_list *list = malloc(sizeof *list);
    if (list == NULL) return error_set(err, STATUS_NO_MEMORY, "upstream: no memory");
    status rc = read_list(list, servers, err);
    if (rc == STATUS_OK) release_list(list);
    free(list);
    return rc;
}
