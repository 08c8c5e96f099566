/* client_deadline.h - how long a client means to wait, as its headers tell.
 *
 * X-Siliceo-Deadline-Ms is a promise asked for: the whole answer within so many
 * milliseconds.  X-Stainless-Read-Timeout is what OpenAI's libraries tell of themselves, in
 * seconds: the longest they wait for bytes.  A whole reply is one piece, so for it that is
 * a deadline; a stream is kept alive with comments more often than that.
 */
#ifndef SILICEO_COORDINATOR_CLIENT_DEADLINE_H
#define SILICEO_COORDINATOR_CLIENT_DEADLINE_H

#include "common/error.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct client_deadline {
    uint64_t answer_ms; /* from now until the whole answer; 0: none */
    uint64_t quiet_ms;  /* longest silence in a stream; 0: none told */
} client_deadline;

/* The headers' values, NULL where they are not there.  STATUS_BAD_INPUT names a bad
 * X-Siliceo-Deadline-Ms; what libraries send is ignored when it makes no sense. */
status client_deadline_read(client_deadline *out, const char *deadline_ms,
                            const char *read_timeout_s, bool streams, error *err);

#endif
