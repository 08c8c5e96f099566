/* engine_ahead.c - while nobody wants anything, the answer just given runs as the prompt that it
 * will be part of.
 *
 * The next turn of a chat begins with its messages and the answer without its deliberation.
 * The answer's tokens did run, but one by one and behind the deliberation: bits of a prompt
 * are others (see sequence.h), so nothing of that can serve one.  Run again as pieces of a
 * prompt they can: the next turn skips the answer, too, and its text is that of a chat of
 * which nothing is held.  It costs what the next turn would pay, earlier.
 *
 * Such a run is a request that tells nobody, behind everyone in the scheduler's order, and it
 * gives up its place whenever a request comes; what it has done by then is kept, and it goes
 * on from there later.
 */
#include "worker/engine_parts.h"

#include "common/log.h"
#include <string.h>

enum { MAX_WAITING = 4 };

static bool is_plain_answer(const request *r) {
    const choice *c = &r->choices[0];
    return c->text.calls.n_calls == 0 && !c->text.stopped && c->over != WIRE_FINISH_NONE &&
           c->text.n_tokens > c->text.n_reasoning;
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
    if (r->job.kind != WIRE_CHAT || r->priority != SEQUENCE_INTERACTIVE || r->n_choices != 1)
        return false;
    if (!is_plain_answer(r)) return false;
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

/* --- the beginning of the next turn's prompt --- */

/* What the client was told of the answer: its ids give the same text again. */
static status spell_answer(const request *r, json_text *out, error *err) {
    generation g = {0};
    const choice *c = &r->choices[0];
    const sequence *s = &c->timeline;
    status rc = generation_init(&g, r->context->vocab, true, r->opens_thinking, r->job.stops,
                                r->job.n_stops, err);
    if (rc != STATUS_OK) return rc;
    g.repairs = c->text.repairs;
    for (uint32_t i = r->n_prompt; i < s->n_tokens; i++) {
        json_text_add(out, g.content.bytes, g.content.length);
        generation_push(&g, s->tokens[i]);
    }
    generation_finish(&g, c->over == WIRE_FINISH_LENGTH); /* adds to that of the last token */
    json_text_add(out, g.content.bytes, g.content.length);
    bool failed = g.failed || out->failed;
    generation_release(&g);
    return failed ? error_set(err, STATUS_NO_MEMORY, "no memory for an answer") : STATUS_OK;
}

static bool add_message(cJSON *messages, const char *role, const char *content) {
    cJSON *m = cJSON_CreateObject();
    if (m == NULL || cJSON_AddStringToObject(m, "role", role) == NULL ||
        cJSON_AddStringToObject(m, "content", content) == NULL ||
        !cJSON_AddItemToArray(messages, m)) {
        cJSON_Delete(m);
        return false;
    }
    return true;
}

/* The answer and whatever the user says next: what comes before that is certain. */
static status add_turn(request *r, error *err) {
    json_text said = {0};
    status rc = spell_answer(r, &said, err);
    cJSON *messages = cJSON_GetObjectItem(r->job.body, "messages");
    if (rc == STATUS_OK &&
        (said.length == 0 || !add_message(messages, "assistant", said.bytes) ||
         !add_message(messages, "user", "?")))
        rc = error_set(err, STATUS_NO_MEMORY, "no memory for an answer");
    json_text_release(&said);
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

/* The request's timeline becomes that beginning: r->ahead says so.  It does not where that is no
 * longer than what is held of the request's own prompt. */
static status become_ahead(request *r, error *err) {
    const request_context *c = r->context;
    prompt p = {0};
    token_list ids = {0};
    size_t n_before = (size_t)cJSON_GetArraySize(cJSON_GetObjectItem(r->job.body, "messages"));
    status rc = add_turn(r, err);
    if (rc == STATUS_OK) rc = chat_template_render(r->job.body, c->style, &p, err);
    if (rc == STATUS_OK)
        rc = tokenizer_encode_prompt(c->vocab, &p, TOKENIZER_ADDED_NONE, &ids, err);
    if (rc != STATUS_OK) goto done;
    uint32_t n = blocks_before(&p, n_before + 1);
    uint32_t n_held = r->marks.n_stops > 0 ? r->marks.stops[r->marks.n_stops - 1] : 0;
    if (n <= n_held || n > c->n_context) goto done;
    sequence *s = &r->choices[0].timeline;
    sequence_release(s);
    rc = sequence_init(s, ids.ids, n, n, err);
    if (rc != STATUS_OK) goto done;
    s->owner = r;
    s->priority = SEQUENCE_AHEAD;
    (void)sequence_add_stop(s, n);
    r->ahead = true;
done:
    token_list_release(&ids);
    prompt_release(&p);
    return rc;
}

/* --- running --- */

static bool is_held(const engine *e, const sequence *s) {
    return prefix_cache_find(e->prefixes, s->tokens, s->n_prompt + 1).n_tokens == s->n_prompt;
}

bool engine_begin_ahead(engine *e) {
    request *r = e->answered;
    error err = {0};
    if (r == NULL) return false;
    e->answered = r->next;
    status rc = r->ahead ? STATUS_OK : become_ahead(r, &err);
    if (rc != STATUS_OK) log_warn("not-run-ahead", "error=\"%s\"", err.text);
    if (!r->ahead || is_held(e, &r->choices[0].timeline)) {
        request_free(r);
        return true;
    }
    r->over = false;
    r->started_ns = r->deadline_ns = 0;
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
    if (has_run && who->n_run % PREFIX_BLOCK_TOKENS == 0)
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
