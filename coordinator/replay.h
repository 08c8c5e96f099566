/* replay.h - what a node has given of an answer, so that another one can go on from there.
 *
 * A worker that is given the ids emitted so far runs them behind the same prompt and
 * continues; the text that they gave has been sent and is not sent again.  That is exact
 * where file and arithmetic are the same, and needs the draws made from the seed where the
 * answer is sampled.  What is held back of a tag or a value follows from the ids as well, so that
 * documents and tool calls go on in their middle.  It is not possible for several choices, or where
 * a message lost its second half.
 * Plain data, a growing list of ids; `io` thread.
 */
#ifndef SILICEO_COORDINATOR_REPLAY_H
#define SILICEO_COORDINATOR_REPLAY_H

#include "common/wire.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct replay {
    int32_t *ids; /* of choice 0 */
    size_t n_ids;
    size_t cap_ids;
    wire_channel channel; /* of the last token */
    uint64_t reasoning;   /* tokens of each budget */
    uint64_t answer;
    uint64_t draws;
    bool several;     /* another choice than the first has tokens */
    bool cut;         /* the rest of the last token's text has yet to come */
    bool failed;      /* no memory: the record has a gap */
    bool approximate; /* it has gone on once with other arithmetic */
    uint32_t resumed; /* how often it has gone on elsewhere */
    char hash[40];    /* of the file that gave them */
    char numerics[WIRE_MAX_NAME + 1];
} replay;

void replay_add(replay *p, const wire_tokens *tokens);
/* Forget the tokens: it begins again from nothing. */
void replay_clear(replay *p);
void replay_release(replay *p);

/* Why it cannot go on elsewhere, for people; NULL: it can. */
const char *replay_obstacle(const replay *p);
void replay_fill(const replay *p, wire_resume *out);

#endif
