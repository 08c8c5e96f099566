#include "worker/request_opening.h"

#include <string.h>

status request_opening_make(request *r, request_fault *fault) {
    const char *name = r->job.forced_tool;
    prompt p = {0};
    if (name == NULL) return STATUS_OK;
    prompt_add_literal(&p, "<tool_call>\n<function");
    if (name[0] != '\0') {
        prompt_add_literal(&p, "=");
        prompt_add(&p, name, strlen(name), false);
        prompt_add_literal(&p, ">\n");
    }
    status rc = tokenizer_encode_prompt(r->context->vocab, &p, TOKENIZER_ADDED_NONE,
                                        &r->opening, &fault->err);
    prompt_release(&p);
    return rc;
}

int32_t request_opening_next(const choice *c) {
    const request *r = c->timeline.owner;
    const sequence *s = &c->timeline;
    const int32_t *closing = r->context->closing;
    if (c->n_opened == r->opening.length || generation_is_inside(&c->text)) return -1;
    /* A deliberation that ends by itself has yet to get the blank line behind its tag. */
    bool tag_is_last = closing[1] >= 0 && s->tokens[s->n_tokens - 1] == closing[1];
    if (c->n_opened == 0 && tag_is_last && closing[2] >= 0) return closing[2];
    return r->opening.ids[c->n_opened];
}

void request_opening_take(choice *c, int32_t id) {
    const request *r = c->timeline.owner;
    if (c->n_opened == r->opening.length || generation_is_inside(&c->text)) return;
    if (id == r->opening.ids[c->n_opened]) c->n_opened++;
}
