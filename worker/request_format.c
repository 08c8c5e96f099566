#include "worker/request_format.h"

#include "worker/text/answer_format.h"
#include "worker/text/json_schema.h"
#include <stdio.h>

/* What the engine puts behind a deliberation that it closes: the tag, a blank line. */
enum { CLOSING_TOKENS = 2 };

status request_format_compile(request *r, request_fault *fault) {
    if (!r->job.has_format) return STATUS_OK;
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
    if (r->grammar == NULL) return STATUS_OK;
    status rc = answer_format_new(&c->format, r->grammar, r->context->trie, r->context->vocab,
                                  &fault->err);
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
    return c->format != NULL && !generation_is_inside(&c->text) && request_forced(c) < 0;
}

bool request_format_allows(choice *c, int32_t id) {
    begin(c);
    return answer_format_allows(c->format, id, left_of(c));
}

void request_format_mask(choice *c, float *logits, uint32_t n_vocab) {
    begin(c);
    answer_format_mask(c->format, logits, n_vocab, left_of(c));
}

void request_format_take(choice *c, int32_t id) {
    if (!request_format_holds(c)) return;
    begin(c);
    (void)answer_format_push(c->format, id);
}

bool request_format_spills(const choice *c, int32_t id) {
    size_t length = 0;
    const char *bytes = tokenizer_bytes(c->text.vocab, id, &length);
    return c->format != NULL && generation_is_inside(&c->text) &&
           thinking_spills(&c->text.split, id, bytes, length);
}
