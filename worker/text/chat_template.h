/* chat_template.h - renders a chat request as the official Qwen3.5 templates do.
 *
 * The Jinja text in the file is not interpreted: its SHA-256 says which of the
 * two official templates it is, and each is written out here.  They differ in
 * what an absent enable_thinking means.  No state; any thread.
 * Source: spec of the chat template; the literal blocks are in
 * chat_template_text.c.
 */
#ifndef SILICEO_WORKER_TEXT_CHAT_TEMPLATE_H
#define SILICEO_WORKER_TEXT_CHAT_TEMPLATE_H

#include "common/error.h"
#include "common/json.h"
#include "worker/text/prompt.h"

typedef enum chat_style {
    CHAT_THINK,  /* thinks unless told not to */
    CHAT_NOTHINK /* does not think unless told to */
} chat_style;

enum { CHAT_WARNING_SIZE = 240 };

/* The style of an embedded template (length 0: the file has none).  warning is
 * empty for an official one; for another it names it by its hash and says what
 * is used instead. */
chat_style chat_template_recognise(const char *text, size_t length,
                                   char warning[CHAT_WARNING_SIZE]);

/* Render request {messages, tools, add_generation_prompt (default true),
 * chat_template_kwargs {enable_thinking, add_vision_id}} into *out, which the
 * caller releases also after an error.  Exactly the template: what it refuses
 * is STATUS_BAD_INPUT with the template's words and the place, and what it lets
 * pass is rendered (common/chat_request.h is the stricter check of the API). */
status chat_template_render(const cJSON *request, chat_style style, prompt *out, error *err);

#endif
