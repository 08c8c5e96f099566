#include "worker/request_format.h"

#include "worker/text/answer_format.h"
#include "worker/text/json_schema.h"
#include "worker/text/tool_grammar.h"
#include <stdio.h>

/* What the engine puts behind a deliberation that it closes: the tag, a blank line. */
enum { CLOSING_TOKENS = 2 };
/* What is left for a call: more than any way to its end, less than where there is none. */
enum { NO_END = JSON_GRAMMAR_NEVER };

/* Tools that no grammar can follow are called as the model likes. */
static status compile_calls(request *r, request_fault *fault) {
    const char *name = r->job.forced_tool;
    error cause = {0};
    if (name == NULL || r->call_open < 0) return STATUS_OK;
    status rc = tool_grammar_compile(&r->call_grammar, r->job.tools,
                                     name[0] != '\0' ? name : NULL, &cause);
    return rc == STATUS_NO_MEMORY ? error_set(&fault->err, rc, "%s", cause.text) : STATUS_OK;
}

status request_format_compile(request *r, request_fault *fault) {
    r->call_open = r->job.tools != NULL ? tokenizer_find(r->context->vocab, "<tool_call>") : -1;
    if (!r->job.has_format) return compile_calls(r, fault);
    return json_schema_compile(&r->grammar, r->job.schema, JOB_SCHEMA_NAME, fault->param,
                               &fault->err);
}

static status too_small(const char *name, uint32_t have, uint32_t need, request_fault *f) {
    (void)snprintf(f->param, sizeof f->param, "%s", name);
    return error_set(&f->err, STATUS_BAD_INPUT,
                     "%s is %u: the shortest document of response_format needs %u tokens", name,
                     have, need);
}

static status check_room(const request *r, const choice *c, budget_params *limits,
                         bool opens_thinking, request_fault *f) {
    uint32_t room = c->timeline.cap_tokens - c->timeline.n_prompt;
    uint32_t least = answer_format_least(c->format);
    uint32_t need = least + (opens_thinking ? CLOSING_TOKENS : 0);
    if (need > room) {
        const char *name = r->job.body != NULL && r->job.says_completion_tokens
                               ? "max_completion_tokens"
                               : "max_tokens";
        return too_small(name, room, need, f);
    }
    if (limits->max_answer != 0 && least > limits->max_answer)
        return too_small("max_answer_tokens", limits->max_answer, least, f);
    uint32_t most = room - least - 1; /* the blank line is no reasoning */
    if (opens_thinking && (limits->max_reasoning == 0 || limits->max_reasoning > most))
        limits->max_reasoning = most;
    return STATUS_OK;
}

status request_format_make(request *r, choice *c, budget_params *limits, bool opens_thinking,
                           request_fault *fault) {
    const request_context *context = r->context;
    if (r->call_grammar != NULL) {
        return answer_format_new(&c->call_format, r->call_grammar, context->trie,
                                 context->vocab, &fault->err);
    }
    if (r->grammar == NULL) return STATUS_OK;
    status rc =
        answer_format_new(&c->format, r->grammar, context->trie, context->vocab, &fault->err);
    if (rc == STATUS_OK) return check_room(r, c, limits, opens_thinking, fault);
    if (rc == STATUS_BAD_INPUT)
        (void)snprintf(fault->param, sizeof fault->param, JOB_SCHEMA_NAME);
    return rc;
}

/* Tokens that the answer may still have, the next one with them. */
static uint32_t left_of(const choice *c) {
    const budget_params *p = &c->spent.params;
    uint64_t left = c->timeline.cap_tokens - c->timeline.n_tokens;
    if (p->max_total != 0 && p->max_total - c->text.n_tokens < left)
        left = p->max_total - c->text.n_tokens;
    if (p->max_answer != 0 && p->max_answer - c->spent.n_answer < left)
        left = p->max_answer - c->spent.n_answer;
    return (uint32_t)left;
}

static void begin(choice *c) {
    if (c->format_begun) return;
    c->format_begun = true;
    answer_format_begin(c->format, left_of(c));
}

bool request_format_holds(const choice *c) {
    bool formed = c->in_call || (c->format != NULL && !c->format_left);
    return formed && !generation_is_inside(&c->text) && request_forced(c) < 0;
}

/* A call in place of a document that has not begun. */
static bool may_call(const choice *c) {
    const request *r = c->timeline.owner;
    return r->call_open >= 0 && answer_format_is_blank(c->format);
}

bool request_format_allows(choice *c, int32_t id) {
    if (c->in_call) return answer_format_allows(c->call_format, id, NO_END);
    begin(c);
    const request *r = c->timeline.owner;
    return (id == r->call_open && may_call(c)) ||
           answer_format_allows(c->format, id, left_of(c));
}

void request_format_mask(choice *c, float *logits, uint32_t n_vocab) {
    if (c->in_call) {
        answer_format_mask(c->call_format, logits, n_vocab, NO_END);
        return;
    }
    begin(c);
    const request *r = c->timeline.owner;
    bool calls = may_call(c) && (uint32_t)r->call_open < n_vocab;
    float opening = calls ? logits[r->call_open] : 0;
    answer_format_mask(c->format, logits, n_vocab, left_of(c));
    if (calls) logits[r->call_open] = opening;
}

/* A forced call is followed from its first token on, which the engine puts. */
static void take_of_call(choice *c, int32_t id) {
    const request *r = c->timeline.owner;
    if (generation_is_inside(&c->text)) return;
    if (id == r->call_open) {
        answer_format_restart(c->call_format);
        c->in_call = true;
    } else if (c->in_call) {
        c->in_call =
            answer_format_push(c->call_format, id) && !answer_format_is_whole(c->call_format);
    }
}

void request_format_take(choice *c, int32_t id) {
    const request *r = c->timeline.owner;
    if (c->call_format != NULL) take_of_call(c, id);
    if (c->call_format != NULL || !request_format_holds(c)) return;
    begin(c);
    if (id == r->call_open && may_call(c))
        c->format_left = true;
    else
        (void)answer_format_push(c->format, id);
}

bool request_format_spills(const choice *c, int32_t id) {
    size_t length = 0;
    const char *bytes = tokenizer_bytes(c->text.vocab, id, &length);
    return c->format != NULL && generation_is_inside(&c->text) &&
           thinking_spills(&c->text.split, id, bytes, length);
}
