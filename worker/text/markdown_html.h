/* markdown_html.h - HTML blocks of CommonMark 0.31 (section 4.6): which line begins one and
 * which ends it.  No state; any thread. */
#ifndef SILICEO_WORKER_TEXT_MARKDOWN_HTML_H
#define SILICEO_WORKER_TEXT_MARKDOWN_HTML_H

#include <stdbool.h>
#include <stddef.h>

/* The kind, 1 to 7, of block that a line (without indentation) begins, or 0.  Kind 7 does
 * not interrupt a paragraph: the caller's word. */
int markdown_html_begins(const char *line, size_t length);
/* Kinds 1 to 5 end with the line that has their end; 6 and 7 before a blank line. */
bool markdown_html_ends(int kind, const char *line, size_t length);

#endif
