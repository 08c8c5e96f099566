/* chat_template_text.h - the literal blocks and the identity of the official templates.
 *
 * Source: the Qwen3.5 chat templates (Apache-2.0); the text is part of the prompt
 * format that the models were trained on and must be equal to the byte.
 */
#ifndef SILICEO_WORKER_TEXT_CHAT_TEMPLATE_TEXT_H
#define SILICEO_WORKER_TEXT_CHAT_TEMPLATE_TEXT_H

extern const char chat_text_tools_head[]; /* up to and with <tools> */
extern const char chat_text_tools_tail[]; /* from the line after </tools> on */

/* SHA-256 of the two templates, as hex digits. */
extern const char chat_text_think_sha256[];
extern const char chat_text_nothink_sha256[];

#endif
