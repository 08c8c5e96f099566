/* utf8_stream.h - bytes of tokens to text in whole characters.
 *
 * At most three bytes of a character that is still valid are held back; a byte
 * that cannot be UTF-8 becomes U+FFFD at once, one for each maximal subpart.
 * Starts as {0}.  One thread; no allocation but the growth of out.
 */
#ifndef SILICEO_WORKER_TEXT_UTF8_STREAM_H
#define SILICEO_WORKER_TEXT_UTF8_STREAM_H

#include "common/json.h"
#include <stddef.h>

typedef struct utf8_stream {
    unsigned char held[4];
    size_t n_held;
} utf8_stream;

/* Append to out the characters that bytes complete. */
void utf8_stream_push(utf8_stream *s, const char *bytes, size_t length, json_text *out);
/* The stream is over: a held beginning becomes one U+FFFD. */
void utf8_stream_finish(utf8_stream *s, json_text *out);

#endif
