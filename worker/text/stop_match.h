/* stop_match.h - finds stop strings in a stream of bytes, cut anywhere.
 *
 * What may be the beginning of a stop string is held back, everything else goes
 * out at once.  The match that ends first wins; of those ending together, the
 * longest.  Time is linear in the bytes, times the number of stop strings
 * (Knuth-Morris-Pratt for each).  One thread.
 */
#ifndef SILICEO_WORKER_TEXT_STOP_MATCH_H
#define SILICEO_WORKER_TEXT_STOP_MATCH_H

#include "common/error.h"
#include "common/json.h"
#include <stddef.h>

enum { STOP_MATCH_MAX_STRINGS = 32, STOP_MATCH_MAX_BYTES = 4096 };

typedef struct stop_match stop_match;
typedef struct stop_string {
    const char *bytes;
    size_t length;
} stop_string;

/* The strings are copied.  n may be 0.  An empty or too long one is refused by its number. */
status stop_match_open(stop_match **out, const stop_string *strings, size_t n, error *err);
void stop_match_close(stop_match *m); /* accepts NULL */

/* Take bytes and append to out what may be shown.  The index of the stop string
 * that was completed, or -1; after a match nothing is appended any more and the
 * index stays.  The stop string itself is not shown. */
int stop_match_push(stop_match *m, const char *bytes, size_t length, json_text *out);
/* The stream is over: append what was held back, unless a stop string matched. */
void stop_match_finish(stop_match *m, json_text *out);
/* Forget everything pushed. */
void stop_match_reset(stop_match *m);

#endif
