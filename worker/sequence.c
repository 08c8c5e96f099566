#include "worker/sequence.h"

#include "worker/model/model.h"
#include <stdlib.h>
#include <string.h>

status sequence_init(sequence *s, const int32_t *prompt, uint32_t n_prompt, uint32_t cap_tokens,
                     error *err) {
    CHECK(n_prompt > 0 && cap_tokens >= n_prompt);
    memset(s, 0, sizeof *s);
    size_t cap_pages = ((size_t)cap_tokens + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
    s->tokens = malloc((size_t)cap_tokens * sizeof *s->tokens);
    s->pages = malloc(cap_pages * sizeof *s->pages);
    if (s->tokens == NULL || s->pages == NULL) {
        sequence_release(s);
        return error_set(err, STATUS_NO_MEMORY, "sequence: no memory for %u tokens",
                         cap_tokens);
    }
    memcpy(s->tokens, prompt, (size_t)n_prompt * sizeof *prompt);
    s->n_tokens = s->n_prompt = n_prompt;
    s->cap_tokens = cap_tokens;
    return STATUS_OK;
}

void sequence_release(sequence *s) {
    CHECK(s->phase == SEQUENCE_IDLE);
    free(s->pages);
    free(s->tokens);
    memset(s, 0, sizeof *s);
}

bool sequence_append(sequence *s, int32_t id) {
    if (s->n_tokens == s->cap_tokens) return false;
    s->tokens[s->n_tokens++] = id;
    return true;
}

bool sequence_add_stop(sequence *s, uint32_t position) {
    if (position == 0 || position % MODEL_CHUNK_TOKENS != 0 || position > s->n_prompt)
        return false;
    uint32_t at = s->n_stops;
    while (at > 0 && s->stops[at - 1] >= position)
        at--;
    if (at < s->n_stops && s->stops[at] == position) return true;
    if (s->n_stops == SEQUENCE_MAX_STOPS) return false;
    memmove(s->stops + at + 1, s->stops + at, (s->n_stops - at) * sizeof *s->stops);
    s->stops[at] = position;
    s->n_stops++;
    return true;
}

bool sequence_is_cut(const sequence *s) {
    return s->cut.n_rows > 0;
}

uint32_t sequence_cut_place(const sequence *s) {
    return s->priority == SEQUENCE_INTERACTIVE ? 0 : 1;
}

uint32_t sequence_n_begun(const sequence *s) {
    return s->n_run + s->cut.n_rows;
}

bool sequence_is_at_stop(const sequence *s) {
    for (uint32_t i = 0; i < s->n_stops; i++) {
        if (s->stops[i] == s->n_run) return true;
    }
    return false;
}
