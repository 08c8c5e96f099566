/* markdown.h - follows a text's fenced code blocks and says what closes one left open.
 *
 * The block structure of CommonMark 0.31 as far as it decides where a fence begins and
 * ends: block quotes, list items, fences of ` and ~ of any length, indentation with tabs,
 * indented code, thematic breaks, HTML blocks.  Text is only read, never changed; it may be
 * cut anywhere, also inside a character.  Lines are told from "\n"; "\r" before it is space.
 *
 * Of a line only the first MARKDOWN_MAX_PREFIX bytes are kept: a fence behind more markers
 * than that is not seen.  Containers beyond MARKDOWN_MAX_DEPTH are not entered.
 * The caller holds the struct; no allocation but the growth of out.  One thread.
 */
#ifndef SILICEO_WORKER_TEXT_MARKDOWN_H
#define SILICEO_WORKER_TEXT_MARKDOWN_H

#include "common/json.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MARKDOWN_MAX_DEPTH = 32, MARKDOWN_MAX_PREFIX = 512 };

typedef struct markdown_container {
    bool is_quote;
    uint32_t offset; /* of a list item: columns its content is indented by */
} markdown_container;

typedef struct markdown {
    /* Containers that are open after the last whole line. */
    markdown_container open[MARKDOWN_MAX_DEPTH];
    uint32_t depth;
    bool in_paragraph;  /* the last line can be continued by an ordinary one */
    bool item_is_empty; /* the innermost list item has had no text yet */
    /* The open fence; length 0: none. */
    char fence;
    uint32_t fence_length;
    uint32_t fence_depth; /* containers around it */
    int html;             /* kind of the open HTML block, 1 to 7; 0: none */
    uint32_t html_depth;
    /* Inline code: backticks of the span that is open if this line continues the paragraph
     * before it, and if it begins one (0: none), and of the run that the text ends with. */
    uint32_t span, fresh_span, run;
    bool escaped;    /* the text ends with a backslash */
    bool new_blocks; /* the line that was taken last did not continue a paragraph */
    /* The line so far. */
    char line[MARKDOWN_MAX_PREFIX];
    uint32_t n_line;
    uint32_t n_lost;    /* bytes beyond the kept ones */
    bool lost_backtick; /* one of them is ` */
    bool lost_text;     /* one of them is no space */
} markdown;

void markdown_init(markdown *m);
void markdown_push(markdown *m, const char *bytes, size_t length);

/* Does the text, as it stands, end inside a fenced block? */
bool markdown_in_fence(const markdown *m);

/* The text is over: append what closes the open fence, or nothing.  cut: the text was not
 * finished by its author, so an open inline code span is closed as well. */
void markdown_finish(markdown *m, bool cut, json_text *out);

#endif
