/* prefix_marks.h - where in a prompt a snapshot of the model's state is worth having.
 *
 * A later prompt may have the same beginning as far as the end of a message or, as templates
 * leave out old deliberation, as far as an assistant's header; and no further than whole blocks
 * (see prefix_index.h), so each place is rounded down to one.  Stops are, as there is room:
 * before the answer; behind the system's message; behind the last few messages; and every so
 * many tokens.  Of the latter two, those that are close to another are left out: running a few
 * hundred tokens again costs less than a step and a snapshot.
 *
 * A message that an assistant follows ends, here, behind that assistant's header.
 * Plain data; any thread.
 */
#ifndef SILICEO_WORKER_PREFIX_MARKS_H
#define SILICEO_WORKER_PREFIX_MARKS_H

#include "common/error.h"
#include "worker/memory/prefix_cache.h"
#include "worker/sequence.h"
#include "worker/text/prompt.h"

typedef struct prefix_rule {
    bool on;
    uint32_t every_tokens; /* 0: at messages alone */
    uint32_t max_regular;  /* of those, in one prompt */
} prefix_rule;

typedef struct prefix_marks {
    uint32_t stops[SEQUENCE_MAX_STOPS]; /* ascending, whole blocks */
    uint32_t n_stops;
    prefix_end *ends; /* of messages, by the names that they have; ascending */
    size_t n_ends;
} prefix_marks;

void prefix_marks_release(prefix_marks *m); /* accepts a zeroed one */

/* Of a prompt of n_tokens without messages. */
void prefix_marks_of_text(prefix_marks *m, size_t n_tokens, const prefix_rule *rule);
/* Of a rendered and encoded chat.  names: of the ends of its last n_names messages. */
status prefix_marks_of_chat(prefix_marks *m, const prompt *p, size_t n_tokens,
                            const prefix_rule *rule, const uint64_t *names, size_t n_names,
                            error *err);

#endif
