#include "coordinator/answer_blocks.h"

#include "coordinator/answer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void forget(answer_blocks *b) {
    for (size_t i = 0; i < b->n; i++)
        json_text_release(&b->list[i].text);
    b->n = b->n_calls = 0;
    b->open = false;
}

void answer_blocks_release(answer_blocks *b) {
    forget(b);
    free(b->list);
    memset(b, 0, sizeof *b);
}

void answer_blocks_restart(answer_blocks *b, bool resumes) {
    b->ends_again = resumes && b->finish != WIRE_FINISH_NONE;
    b->finish = WIRE_FINISH_NONE;
    if (resumes) return;
    forget(b);
    b->thinking_cut = b->call_cut = false;
    b->stop = 0;
}

static void end_block(answer_blocks *b, json_text *out) {
    if (!b->open) return;
    b->open = false;
    if (b->on.end != NULL) b->on.end(b->on.context, b->n - 1, &b->list[b->n - 1], out);
}

static bool grow(answer_blocks *b) {
    if (b->n < b->cap) return true;
    size_t cap = b->cap == 0 ? 4 : 2 * b->cap;
    block *grown = realloc(b->list, cap * sizeof *grown);
    if (grown == NULL) return false;
    b->list = grown;
    b->cap = cap;
    return true;
}

static status begin_block(answer_blocks *b, block_kind kind, wire_bytes name, json_text *out,
                          error *err) {
    end_block(b, out);
    if (!grow(b)) return error_set(err, STATUS_NO_MEMORY, "no memory for a part of the answer");
    block *next = &b->list[b->n++];
    memset(next, 0, sizeof *next);
    next->kind = kind;
    size_t n = name.length < sizeof next->name ? name.length : sizeof next->name - 1;
    if (n > 0) memcpy(next->name, name.bytes, n);
    b->open = true;
    if (kind == BLOCK_CALL) b->n_calls++;
    if (b->on.begin != NULL) b->on.begin(b->on.context, b->n - 1, next, out);
    return STATUS_OK;
}

static status check_call(const answer_blocks *b, const wire_tokens *tokens, error *err) {
    bool begins = tokens->call_name.length > 0;
    bool in_call = b->open && b->list[b->n - 1].kind == BLOCK_CALL;
    if (begins ? tokens->call == b->n_calls : in_call && tokens->call + 1 == b->n_calls)
        return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT, "tokens.call: %llu where %zu have begun",
                     (unsigned long long)tokens->call, b->n_calls);
}

static status add_text(answer_blocks *b, const wire_tokens *tokens, json_text *out,
                       error *err) {
    static const block_kind kinds[] = {BLOCK_TEXT, BLOCK_THINKING, BLOCK_CALL};
    block_kind kind = kinds[tokens->channel];
    bool begins = tokens->call_name.length > 0;
    status rc = STATUS_OK;
    if (tokens->text.length == 0 && !begins) return STATUS_OK;
    if (kind == BLOCK_CALL && (rc = check_call(b, tokens, err)) != STATUS_OK) return rc;
    if (begins || !b->open || b->list[b->n - 1].kind != kind)
        rc = begin_block(b, kind, tokens->call_name, out, err);
    if (rc != STATUS_OK || tokens->text.length == 0) return rc;
    block *now = &b->list[b->n - 1];
    json_text_add(&now->text, tokens->text.bytes, tokens->text.length);
    if (now->text.failed) return error_set(err, STATUS_NO_MEMORY, "no memory for the answer");
    if (b->on.more != NULL) b->on.more(b->on.context, b->n - 1, now, tokens->text, out);
    return STATUS_OK;
}

status answer_blocks_add(answer_blocks *b, const wire_tokens *tokens, json_text *out,
                         error *err) {
    status rc = answer_check_tokens(tokens, 1, err);
    if (rc != STATUS_OK) return rc;
    if (b->finish != WIRE_FINISH_NONE) {
        return error_set(err, STATUS_BAD_INPUT, "tokens.choice: %llu goes on after its end",
                         (unsigned long long)tokens->choice);
    }
    b->finish = tokens->finish;
    b->thinking_cut |= (tokens->flags & WIRE_FLAG_THINKING_CUT) != 0;
    /* One that has not begun leaves those before it whole. */
    b->call_cut |= (tokens->flags & WIRE_FLAG_CALL_CUT) != 0 && tokens->call < b->n_calls;
    if (tokens->finish != WIRE_FINISH_NONE)
        b->stop = (size_t)(tokens->flags >> WIRE_FLAG_STOP_SHIFT);
    return b->ends_again ? STATUS_OK : add_text(b, tokens, out, err);
}

void answer_blocks_finish(answer_blocks *b, json_text *out) {
    bool in_call = b->n > 0 && b->list[b->n - 1].kind == BLOCK_CALL;
    if (b->call_cut && in_call && b->on.end == NULL) {
        json_text_release(&b->list[--b->n].text);
        b->n_calls--;
        b->open = false;
    }
    end_block(b, out);
}

const char *answer_blocks_thinking(const answer_blocks *b) {
    if (b->thinking_cut) return "cut";
    for (size_t i = 0; i < b->n; i++) {
        if (b->list[i].kind == BLOCK_THINKING) return "complete";
    }
    return NULL;
}
