/* budget.h - what one choice may spend: on deliberation, on its answer, and in all.
 *
 *     deliberation ... "\n" </think> "\n\n" answer ... [grace] end
 *                      '--- the engine's ---'
 *
 * Deliberation that reaches its limit, or goes round in a circle, is closed: the next tokens
 * are not sampled but the closing ones, with the newlines that the chat template puts around
 * the tag.  They go through the model like any token, so state and text agree.  The limit
 * counts "\n" and the tag.  A text end inside the deliberation becomes the tag, too; and an
 * answer that begins so cannot be empty.
 *
 * The answer's limit counts tokens from the first visible one.  Where a limit comes in
 * mid-sentence the answer gets up to grace_tokens more until sentence_grace_may_end().
 *
 * All of it follows from the ids alone: the same ids shown to another node's budget of the
 * same parameters leave it in the same state.  The caller holds the struct; it points to
 * nothing and does not allocate.  Thread: engine.
 */
#ifndef SILICEO_WORKER_BUDGET_H
#define SILICEO_WORKER_BUDGET_H

#include "common/wire.h"
#include "worker/budget_settings.h"
#include "worker/generation.h"
#include "worker/text/loop_guard.h"
#include "worker/text/sentence_grace.h"
#include <stdbool.h>
#include <stdint.h>

/* Of a total, half is held back for the answer, but no more than BUDGET_MAX_RESERVE. */
enum { BUDGET_MAX_RESERVE = 512, BUDGET_N_CLOSING = 3 };

typedef struct budget_params {
    uint32_t max_reasoning; /* 0: no limit */
    uint32_t max_answer;    /* 0: no limit */
    uint32_t max_total;     /* 0: no limit */
    budget_settings settings;
    int32_t closing[BUDGET_N_CLOSING]; /* "\n" </think> "\n\n"; the second -1: cannot close */
} budget_params;

typedef struct budget {
    budget_params params;
    uint64_t n_answer;
    uint64_t n_grace; /* tokens given beyond a limit */
    bool thinking_cut;
    bool in_grace;   /* the next token is one of grace */
    bool must_speak; /* an answer that must not end before it has begun */
    /* private */
    uint32_t next_closing; /* index in closing; BUDGET_N_CLOSING: nothing to force */
    bool in_fence;
    loop_guard reasoning_loop, answer_loop;
    sentence_grace sentence;
} budget;

/* The settings' and a request's limits as one: max_thinking is -1 where the request says
 * nothing, max_total 0 where it sets no limit; room is what the context has left. */
uint32_t budget_max_reasoning(const budget_settings *s, int64_t max_thinking,
                              uint32_t max_total, uint32_t room);

/* starts_inside: the prompt has opened the deliberation. */
void budget_init(budget *b, const budget_params *params, bool starts_inside);

/* The token that must come next instead of a sampled one; -1: none. */
int32_t budget_forced(const budget *b);
/* A sampled id that ends the text: what is taken in its place, mostly itself. */
int32_t budget_settle_end(budget *b, const generation *g, int32_t id);

/* generation_push() has taken id.  WIRE_FINISH_LENGTH: the choice is over. */
wire_finish budget_take(budget *b, const generation *g, int32_t id);

/* Flags of TOKENS from here on. */
uint64_t budget_flags(const budget *b);

#endif
