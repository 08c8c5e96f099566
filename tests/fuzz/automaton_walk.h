/* automaton_walk.h - any bytes as steps of an automaton, and the shortest way to its end, for fuzz
 * targets of grammars. */
#ifndef SILICEO_TESTS_FUZZ_AUTOMATON_WALK_H
#define SILICEO_TESTS_FUZZ_AUTOMATON_WALK_H

#include "common/json.h"
#include "worker/text/json_automaton.h"
#include <stdbool.h>
#include <stdlib.h>

enum { WALK_MAX_BYTES = 512, WALK_MAX_CLOSE = 4096 };

/* Take what of the bytes may come, then the shortest way: it ends in as many bytes as each state
 * says, of which a step saves one at most.  All are added to text.  False: no memory, or an end
 * too far for looking at. */
static inline bool automaton_walk(const json_grammar *g, const uint8_t *bytes, size_t n,
                                  json_text *text) {
    json_automaton *a = NULL;
    error err = {0};
    if (json_automaton_new(&a, g, &err) != STATUS_OK) return false;
    uint32_t state = json_automaton_start(a);
    json_text_add(text, "", 0);
    for (size_t i = 0; i < n && i < WALK_MAX_BYTES; i++) {
        uint32_t next = json_automaton_step(a, state, bytes[i]);
        if (next == JSON_DEAD) continue;
        if (json_automaton_close_bytes(a, next) + 1 < json_automaton_close_bytes(a, state))
            abort();
        state = next;
        json_text_add(text, (const char *)&bytes[i], 1);
        (void)json_automaton_tidy(a, &state);
    }
    uint32_t left = json_automaton_close_bytes(a, state);
    bool ends = left <= WALK_MAX_CLOSE;
    for (; ends && left > 0; left--) {
        char byte = (char)json_automaton_close_byte(a, state);
        json_text_add(text, &byte, 1);
        state = json_automaton_step(a, state, (unsigned char)byte);
        if (json_automaton_close_bytes(a, state) != left - 1) abort();
    }
    if (ends && !json_automaton_is_complete(a, state)) abort();
    json_automaton_free(a);
    return ends;
}

#endif
