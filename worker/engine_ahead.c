/* engine_ahead.c - while nobody wants anything, the answer just given runs as the prompt that it
 * will be part of.
 *
 * The next turn of a chat begins with its messages and the answer without its deliberation.
 * The answer's tokens did run, but one by one and behind the deliberation: bits of a prompt
 * are others (see sequence.h), so nothing of that can serve one.  Run again as pieces of a
 * prompt they can: the next turn skips the answer, too, and its text is that of a chat of
 * which nothing is held.  It costs what the next turn would pay, earlier.
 *
 * What the client will send back is guessed, as often as there is more than one way:
 *
 *     text                     the text that it was given, up to a stop string
 *     calls of tools           the calls, as the template writes them, before a tool's result;
 *                              there the template shows the deliberation, which some clients
 *                              send back and others do not: both
 *     several choices          each of the first few, in their order
 *
 * A guess that is wrong has cost idle time: what it left is of no use to another text.
 *
 * Such a run is a request that tells nobody, behind everyone in the scheduler's order, and it
 * gives up its place whenever a request comes; what it has done by then is kept, and it goes
 * on from there later.
 */
#include "worker/engine_parts.h"

#include "common/log.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_WAITING = 4, MAX_CHOICES = 4 };

/* Ways to send back each choice: with its deliberation, and without. */
enum { WITH_REASONING, WITHOUT_REASONING, WAYS };

/* Whether anything of it can come back. */
static bool is_answer(const choice *c) {
    return c->over != WIRE_FINISH_NONE && c->text.n_tokens > c->text.n_reasoning &&
           !c->text.calls.open && !c->text.calls.cut;
}

/* The newest; the oldest one too many goes. */
static void push_answered(engine *e, request *r) {
    r->next = e->answered;
    e->answered = r;
    request **last = &e->answered;
    for (size_t n = 0; *last != NULL && n < MAX_WAITING; n++)
        last = &(*last)->next;
    request_free(*last);
    *last = NULL;
}

bool engine_keep_for_ahead(engine *e, request *r) {
    if (!e->params.prefix_ahead || e->prefixes == NULL || r->ahead || !r->ended_well)
        return false;
    if (r->job.kind != WIRE_CHAT || r->priority != SEQUENCE_INTERACTIVE) return false;
    push_answered(e, r);
    return true;
}

void engine_forget_answered(engine *e) {
    while (e->answered != NULL) {
        request *r = e->answered;
        e->answered = r->next;
        request_free(r);
    }
}

/* --- what the client was told --- */

typedef struct told {
    json_text reasoning, content;
    cJSON *calls;        /* as the template reads them; NULL: none */
    json_text arguments; /* of the last call, as they came */
} told;

static void told_release(told *t) {
    json_text_release(&t->reasoning);
    json_text_release(&t->content);
    json_text_release(&t->arguments);
    cJSON_Delete(t->calls);
}

static status no_memory(error *err) {
    return error_set(err, STATUS_NO_MEMORY, "no memory for an answer");
}

static status begin_call(told *t, const char *bytes, size_t length, error *err) {
    char name[TOOL_CALL_MAX_NAME + 1];
    if (length > TOOL_CALL_MAX_NAME) length = TOOL_CALL_MAX_NAME;
    memcpy(name, bytes, length);
    name[length] = '\0';
    json_text_clear(&t->arguments);
    if (t->calls == NULL) t->calls = cJSON_CreateArray();
    cJSON *call = cJSON_CreateObject();
    if (t->calls != NULL && cJSON_AddStringToObject(call, "name", name) != NULL &&
        cJSON_AddItemToArray(t->calls, call))
        return STATUS_OK;
    cJSON_Delete(call);
    return no_memory(err);
}

static status end_call(told *t, error *err) {
    cJSON *arguments = NULL;
    if (t->calls == NULL) return STATUS_OK;
    status rc =
        json_parse(&arguments, t->arguments.bytes, t->arguments.length, "arguments", err);
    if (rc != STATUS_OK) return rc;
    cJSON *call = cJSON_GetArrayItem(t->calls, cJSON_GetArraySize(t->calls) - 1);
    if (cJSON_AddItemToObject(call, "arguments", arguments)) return STATUS_OK;
    cJSON_Delete(arguments);
    return no_memory(err);
}

/* What the last push gave. */
static status hear(told *t, const generation *g, error *err) {
    json_text_add(&t->reasoning, g->reasoning.bytes, g->reasoning.length);
    json_text_add(&t->content, g->content.bytes, g->content.length);
    for (size_t i = 0; i < g->calls.n_pieces; i++) {
        const tool_piece *p = &g->calls.pieces[i];
        const char *bytes = g->calls.out.bytes + p->at;
        status rc = STATUS_OK;
        if (p->kind == TOOL_BEGIN) {
            rc = end_call(t, err);
            if (rc == STATUS_OK) rc = begin_call(t, bytes, p->length, err);
        } else if (p->kind == TOOL_ARGUMENTS) {
            json_text_add(&t->arguments, bytes, p->length);
        }
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

/* Its ids give the same text and calls again. */
static status hear_again(told *t, const request *r, const choice *c, error *err) {
    generation g = {0};
    const sequence *s = &c->timeline;
    status rc = generation_init(&g, r->context->vocab, true, r->opens_thinking, r->job.stops,
                                r->job.n_stops, err);
    if (rc != STATUS_OK) return rc;
    if (r->job.tools != NULL) generation_divide(&g, r->job.tools, r->job.single_call);
    g.repairs = c->text.repairs;
    uint32_t n = s->n_tokens - r->n_prompt + (c->ending >= 0);
    for (uint32_t i = 0; i < n && rc == STATUS_OK; i++) {
        uint32_t at = r->n_prompt + i;
        if (i > 0) rc = hear(t, &g, err);
        generation_push(&g, at < s->n_tokens ? s->tokens[at] : c->ending);
    }
    generation_finish(&g, c->over == WIRE_FINISH_LENGTH); /* adds to that of the last token */
    if (rc == STATUS_OK) rc = hear(t, &g, err);
    if (rc == STATUS_OK) rc = end_call(t, err);
    bool failed = g.failed || t->reasoning.failed || t->content.failed || t->arguments.failed;
    generation_release(&g);
    return rc == STATUS_OK && failed ? no_memory(err) : rc;
}

/* --- the beginning of the next turn's prompt --- */

static cJSON *message_of(const char *role, const char *content) {
    cJSON *m = cJSON_CreateObject();
    if (cJSON_AddStringToObject(m, "role", role) != NULL &&
        cJSON_AddStringToObject(m, "content", content) != NULL)
        return m;
    cJSON_Delete(m);
    return NULL;
}

/* As the client will send it; the calls go from t to it.  NULL: no memory. */
static cJSON *answer_of(told *t, bool with_reasoning) {
    cJSON *m = message_of("assistant", t->content.length > 0 ? t->content.bytes : "");
    if (m == NULL) return NULL;
    if (with_reasoning && t->reasoning.length > 0 &&
        cJSON_AddStringToObject(m, "reasoning_content", t->reasoning.bytes) == NULL)
        goto fail;
    if (t->calls != NULL && !cJSON_AddItemToObject(m, "tool_calls", t->calls)) goto fail;
    t->calls = NULL;
    return m;
fail:
    cJSON_Delete(m);
    return NULL;
}

static status add_message(cJSON *messages, cJSON *m, error *err) {
    if (m != NULL && cJSON_AddItemToArray(messages, m)) return STATUS_OK;
    cJSON_Delete(m);
    return no_memory(err);
}

/* Add to the messages what was told and somebody's next word: what comes before that is certain.
 * Nothing, where this way is that of another guess or there is nothing to send back. */
static status add_turn(cJSON *messages, const request *r, uint32_t guess, error *err) {
    told t = {0};
    const choice *c = &r->choices[guess / WAYS];
    bool with_reasoning = guess % WAYS == WITH_REASONING, calls = c->text.calls.n_calls > 0;
    /* Before a user's word the template leaves out the deliberation. */
    if (!with_reasoning && (!calls || c->text.n_reasoning == 0)) return STATUS_OK;
    status rc = hear_again(&t, r, c, err);
    if (rc != STATUS_OK || (!calls && t.content.length == 0)) goto done;
    rc = add_message(messages, answer_of(&t, with_reasoning), err);
    if (rc == STATUS_OK)
        rc = add_message(messages, message_of(calls ? "tool" : "user", "?"), err);
done:
    told_release(&t);
    return rc;
}

/* Whole blocks before the end of message number n. */
static uint32_t blocks_before(const prompt *p, size_t n) {
    for (size_t i = 0; i < p->n_bounds; i++) {
        if (p->bounds[i].kind == PROMPT_BOUND_MESSAGE && p->bounds[i].n_messages == n)
            return (uint32_t)(p->bounds[i].n_tokens / PREFIX_BLOCK_TOKENS) *
                   PREFIX_BLOCK_TOKENS;
    }
    return 0;
}

/* A request for the first n of these tokens that tells nobody. */
static status make_ahead(request **out, const request *r, const token_list *ids, uint32_t n,
                         error *err) {
    request *a = calloc(1, sizeof *a);
    if (a == NULL) return no_memory(err);
    a->context = r->context;
    a->id = r->id;
    a->epoch = r->epoch;
    a->ahead = true;
    a->choices = calloc(1, sizeof *a->choices);
    if (a->choices == NULL) {
        request_free(a);
        return no_memory(err);
    }
    a->n_choices = 1;
    sequence *s = &a->choices[0].timeline;
    status rc = sequence_init(s, ids->ids, n, n, err);
    if (rc != STATUS_OK) {
        request_free(a);
        return rc;
    }
    s->owner = a;
    s->priority = SEQUENCE_AHEAD;
    (void)sequence_add_stop(s, n);
    *out = a;
    return STATUS_OK;
}

/* *out: a request for a guess about the turn after r, or NULL where there is nothing to run. */
static status guess_turn(request **out, request *r, uint32_t guess, error *err) {
    const request_context *c = r->context;
    prompt p = {0};
    token_list ids = {0};
    cJSON *messages = cJSON_GetObjectItem(r->job.body, "messages");
    int n_before = cJSON_GetArraySize(messages);
    *out = NULL;
    status rc = add_turn(messages, r, guess, err);
    if (rc != STATUS_OK || cJSON_GetArraySize(messages) == n_before) goto done;
    rc = chat_template_render(r->job.body, c->style, &p, err);
    if (rc == STATUS_OK)
        rc = tokenizer_encode_prompt(c->vocab, &p, TOKENIZER_ADDED_NONE, &ids, err);
    if (rc != STATUS_OK) goto done;
    uint32_t n = blocks_before(&p, (size_t)n_before + 1);
    if (n > 0 && n <= c->n_context) rc = make_ahead(out, r, &ids, n, err);
done:
    while (cJSON_GetArraySize(messages) > n_before)
        cJSON_DeleteItemFromArray(messages, n_before);
    token_list_release(&ids);
    prompt_release(&p);
    return rc;
}

/* A request for the next guess about the newest answer, which is freed when there are no more.
 * NULL: nothing is to run for it. */
static request *next_guess(engine *e) {
    request *r = e->answered, *out = NULL;
    error err = {0};
    uint32_t n_guesses = WAYS * (r->n_choices < MAX_CHOICES ? r->n_choices : MAX_CHOICES);
    if (r->n_guessed == n_guesses) {
        e->answered = r->next;
        request_free(r);
        return NULL;
    }
    uint32_t guess = r->n_guessed++;
    if (!is_answer(&r->choices[guess / WAYS])) return NULL;
    if (guess_turn(&out, r, guess, &err) != STATUS_OK)
        log_warn("not-run-ahead", "error=\"%s\"", err.text);
    return out;
}

/* --- running --- */

static bool is_held(const engine *e, const sequence *s) {
    return prefix_cache_find(e->prefixes, s->tokens, s->n_prompt + 1).n_tokens == s->n_prompt;
}

bool engine_begin_ahead(engine *e) {
    request *r = e->answered;
    if (r == NULL) return false;
    if (r->ahead) {
        e->answered = r->next;
    } else {
        r = next_guess(e);
    }
    if (r == NULL || is_held(e, &r->choices[0].timeline)) {
        request_free(r);
        return true;
    }
    r->over = false;
    r->started_ns = 0;
    r->next = e->requests;
    e->requests = e->ahead = r;
    bool taken = scheduler_submit(e->scheduler, &r->choices[0].timeline);
    CHECK(taken);
    return true;
}

void engine_advance_ahead(engine *e, const scheduler_piece *piece) {
    sequence *who = piece->who;
    scheduler_advance(e->scheduler, who, piece->n_tokens);
    if (who->n_run < who->n_prompt) return;
    scheduler_remove(e->scheduler, who);
    e->ahead->over = true;
    e->ahead = NULL;
}

void engine_leave_ahead(engine *e) {
    request *r = e->ahead, **at = &e->requests;
    if (r == NULL) return;
    sequence *who = &r->choices[0].timeline;
    bool has_run = who->phase == SEQUENCE_RUNNING && who->n_run > r->n_cached;
    if (has_run && !sequence_is_cut(who) && who->n_run % PREFIX_BLOCK_TOKENS == 0)
        (void)prefix_cache_keep(e->prefixes, who->tokens, who->n_run, false, who->state,
                                who->pages);
    scheduler_remove(e->scheduler, who);
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    e->ahead = NULL;
    r->over = true;
    push_answered(e, r);
}
