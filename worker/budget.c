#include "worker/budget.h"

#include <string.h>

enum { CLOSE_NEWLINE, CLOSE_TAG, CLOSE_BLANK };

uint32_t budget_max_reasoning(const budget_settings *s, int64_t max_thinking,
                              uint32_t max_total, uint32_t room) {
    uint32_t total = max_total != 0 && max_total < room ? max_total : room;
    uint32_t reserve = total / 2 < BUDGET_MAX_RESERVE ? total / 2 : BUDGET_MAX_RESERVE;
    uint32_t limit = total - reserve;
    int64_t own = s->thinking_tokens;
    if (own < 0) own = max_thinking < 0 ? BUDGET_DEFAULT_THINKING : 0;
    if (own > 0 && own < limit) limit = (uint32_t)own;
    if (max_thinking >= 0 && max_thinking < limit) limit = (uint32_t)max_thinking;
    return limit > 0 ? limit : 1;
}

static bool can_close(const budget *b) {
    return b->params.closing[CLOSE_TAG] >= 0;
}

/* Begin to close where the limit, or a circle, says so. */
static void consider_closing(budget *b, uint64_t n_reasoning, bool circles) {
    uint32_t limit = b->params.max_reasoning;
    if (!can_close(b) || b->next_closing < BUDGET_N_CLOSING) return;
    bool spent = limit != 0 && n_reasoning + CLOSE_BLANK >= limit;
    if (!spent && !circles) return;
    bool room_for_newline = (limit == 0 || n_reasoning + CLOSE_BLANK <= limit) &&
                            b->params.closing[CLOSE_NEWLINE] >= 0;
    b->next_closing = room_for_newline ? CLOSE_NEWLINE : CLOSE_TAG;
    b->thinking_cut = true;
    b->must_speak = true;
}

void budget_init(budget *b, const budget_params *params, bool starts_inside) {
    memset(b, 0, sizeof *b);
    b->params = *params;
    b->next_closing = BUDGET_N_CLOSING;
    loop_guard_init(&b->reasoning_loop, params->settings.loop_reasoning);
    loop_guard_init(&b->answer_loop, params->settings.loop_answer);
    sentence_grace_init(&b->sentence);
    if (starts_inside) consider_closing(b, 0, false);
}

int32_t budget_forced(const budget *b) {
    return b->next_closing < BUDGET_N_CLOSING ? b->params.closing[b->next_closing] : -1;
}

int32_t budget_settle_end(budget *b, const generation *g, int32_t id) {
    if (!generation_is_inside(g) || !can_close(b)) return id;
    b->next_closing = CLOSE_TAG;
    b->must_speak = true;
    return b->params.closing[CLOSE_TAG];
}

/* Follow the closing tokens; ids of another node's policy are followed where they lead. */
static void advance_closing(budget *b, int32_t id) {
    if (b->next_closing == BUDGET_N_CLOSING) return;
    bool expected = id == b->params.closing[b->next_closing];
    b->next_closing = expected ? b->next_closing + 1 : BUDGET_N_CLOSING;
    if (b->next_closing < BUDGET_N_CLOSING && b->params.closing[b->next_closing] < 0)
        b->next_closing = BUDGET_N_CLOSING; /* this vocabulary has no such newlines */
}

/* The threshold may change from token to token; the counting goes on. */
static bool answer_circles(budget *b, int32_t id) {
    uint32_t least =
        b->in_fence ? b->params.settings.loop_code : b->params.settings.loop_answer;
    b->answer_loop.least_tokens = least != 0 ? least : UINT32_MAX;
    return loop_guard_push(&b->answer_loop, id);
}

static bool may_end(budget *b, const generation *g) {
    bool was_in_fence = b->in_fence;
    b->in_fence = markdown_in_fence(&g->marks);
    sentence_grace_push(&b->sentence, g->content.bytes, g->content.length);
    if (g->channel == WIRE_TOOL_CALL) return false; /* a call is open */
    return (was_in_fence && !b->in_fence) || sentence_grace_may_end(&b->sentence, b->in_fence);
}

static bool is_spent(const budget *b, const generation *g) {
    const budget_params *p = &b->params;
    return (p->max_total != 0 && g->n_tokens >= p->max_total) ||
           (p->max_answer != 0 && b->n_answer >= p->max_answer);
}

static wire_finish take_answer(budget *b, const generation *g, int32_t id) {
    if (b->n_answer > 0 || g->raw_content.length > 0) b->n_answer++;
    if (b->n_answer > 0) b->must_speak = false;
    bool whole = may_end(b, g);
    if (answer_circles(b, id)) return WIRE_FINISH_LENGTH;
    if (!is_spent(b, g)) return WIRE_FINISH_NONE;
    if (whole || b->n_grace >= b->params.settings.grace_tokens) return WIRE_FINISH_LENGTH;
    b->in_grace = true;
    return WIRE_FINISH_NONE;
}

wire_finish budget_take(budget *b, const generation *g, int32_t id) {
    if (b->in_grace) b->n_grace++;
    advance_closing(b, id);
    if (!generation_is_inside(g)) return take_answer(b, g, id);
    consider_closing(b, g->n_reasoning, loop_guard_push(&b->reasoning_loop, id));
    bool spent = b->params.max_total != 0 && g->n_tokens >= b->params.max_total;
    b->thinking_cut |= spent;
    return spent ? WIRE_FINISH_LENGTH : WIRE_FINISH_NONE;
}

uint64_t budget_flags(const budget *b) {
    return (b->thinking_cut ? WIRE_FLAG_THINKING_CUT : 0) |
           (b->n_grace > 0 ? WIRE_FLAG_GRACE : 0);
}
