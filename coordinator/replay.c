#include "coordinator/replay.h"

#include <stdlib.h>
#include <string.h>

static bool grow(replay *p, size_t need) {
    if (need <= p->cap_ids) return true;
    if (need > WIRE_MAX_IDS) return false;
    size_t cap = p->cap_ids == 0 ? 64 : p->cap_ids;
    while (cap < need)
        cap *= 2;
    int32_t *grown = realloc(p->ids, cap * sizeof *grown);
    if (grown == NULL) return false;
    p->ids = grown;
    p->cap_ids = cap;
    return true;
}

void replay_add(replay *p, const wire_tokens *tokens) {
    p->cut = (tokens->flags & WIRE_FLAG_MORE) != 0;
    p->draws = tokens->draws;
    if (tokens->choice != 0) p->several = true;
    if (p->several || tokens->n_ids == 0) return;
    p->channel = tokens->channel;
    *(tokens->channel == WIRE_REASONING ? &p->reasoning : &p->answer) += tokens->n_ids;
    if (p->failed || !grow(p, p->n_ids + tokens->n_ids)) {
        p->failed = true;
        return;
    }
    memcpy(p->ids + p->n_ids, tokens->ids, tokens->n_ids * sizeof *p->ids);
    p->n_ids += tokens->n_ids;
}

void replay_clear(replay *p) {
    replay empty = {.ids = p->ids, .cap_ids = p->cap_ids, .resumed = p->resumed};
    *p = empty;
}

void replay_release(replay *p) {
    free(p->ids);
    memset(p, 0, sizeof *p);
}

const char *replay_obstacle(const replay *p) {
    if (p->several) return "it has several choices";
    if (p->cut) return "its last token came in half";
    if (p->failed) return "its tokens are not all on record";
    return NULL;
}

void replay_fill(const replay *p, wire_resume *out) {
    *out = (wire_resume){.ids = p->ids,
                         .n_ids = p->n_ids,
                         .channel = p->channel,
                         .reasoning_spent = p->reasoning,
                         .answer_spent = p->answer,
                         .sampler_counter = p->draws};
}
