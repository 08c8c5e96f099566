/* thinking.h - splits generated tokens into reasoning and content.
 *
 * The prompt has usually opened <think> already, so the stream starts inside the
 * reasoning and has no opening tag.  </think> is found as its own token, and
 * also where the model spells it in ordinary text.  Newlines around the
 * reasoning and between </think> and the answer are dropped.  Without </think>
 * everything is reasoning.  A <think> token before any visible content opens
 * (or re-opens) the reasoning; a tag anywhere else is text.
 *
 * Bytes in, bytes out: characters may be cut (utf8_stream comes after).  One
 * thread; no allocation but the growth of the outputs.
 */
#ifndef SILICEO_WORKER_TEXT_THINKING_H
#define SILICEO_WORKER_TEXT_THINKING_H

#include "common/json.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct thinking {
    int32_t open_id, close_id; /* -1: the vocabulary has none */
    bool inside;               /* the present channel is reasoning */
    bool seen_text;            /* the present channel has shown something */
    bool strip;                /* drop newlines at the beginning of the present channel */
    size_t n_newlines;         /* at the end of the reasoning, held back */
    size_t n_matched;          /* bytes of a spelled "</think>", held back */
} thinking;

/* starts_inside: prompt.opens_thinking.  Where it is false nothing is stripped. */
void thinking_init(thinking *t, bool starts_inside, int32_t open_id, int32_t close_id);
/* Take one token and append its text to one or both channels. */
void thinking_push(thinking *t, int32_t id, const char *bytes, size_t length,
                   json_text *reasoning, json_text *content);
/* Would this token spell the end of the reasoning and go on behind it?  It is to come next. */
bool thinking_spills(const thinking *t, int32_t id, const char *bytes, size_t length);
/* The stream is over: append what was held back (but for the last newlines of reasoning). */
void thinking_finish(thinking *t, json_text *reasoning);

#endif
