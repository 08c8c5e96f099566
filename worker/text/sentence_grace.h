/* sentence_grace.h - where an answer whose budget is spent may end without being cut in two.
 *
 * In prose that is behind . ! ? or their kin of other scripts, closing quotes and brackets
 * included, and at the end of a paragraph; a full stop behind a digit or behind a lone letter
 * may be a number or an abbreviation and counts only at the end of its line.  In a fenced
 * block it is the end of a line, and the block's end itself.
 *
 * The caller holds the struct, tells it all visible text, cut anywhere, and asks after each
 * token; one thread, no allocation.
 */
#ifndef SILICEO_WORKER_TEXT_SENTENCE_GRACE_H
#define SILICEO_WORKER_TEXT_SENTENCE_GRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sentence_grace {
    unsigned char held[4]; /* bytes of an unfinished character */
    size_t n_held;
    uint32_t previous[3]; /* the characters before the end, the last one first; 0: none */
    bool ended;           /* prose may end here */
    bool line_ended;      /* behind the last line's end there is only space */
    bool any;             /* there is text */
} sentence_grace;

void sentence_grace_init(sentence_grace *g);
void sentence_grace_push(sentence_grace *g, const char *bytes, size_t length);
/* May the text end as it stands?  in_fence: it ends in a fenced code block (markdown.h). */
bool sentence_grace_may_end(const sentence_grace *g, bool in_fence);

#endif
