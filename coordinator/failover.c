/* failover.c - a request whose node is lost: again elsewhere, on elsewhere, or the end.
 *
 * Without tokens it begins again on any node.  With tokens it goes on where the same file is
 * served, preferably with the same arithmetic (then the whole is what one node would have
 * given).  Where it cannot go on but nothing has reached the client it begins again.
 */
#include "coordinator/request_parts.h"

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/coordinator.h"
#include <stdio.h>
#include <string.h>

static bool has_place_elsewhere(coordinator *c, const request *r) {
    return r->n_tried < REQUEST_MAX_TRIED && dispatch_look(c, r) == DISPATCH_POSSIBLE;
}

static void queue_again(coordinator *c, request *r) {
    request_detach(c, r);
    r->epoch++;
    r->state = REQUEST_QUEUED;
    r->queued_ns = clock_monotonic_ns(); /* what it has run does not count as waiting */
    admission_put_back(&c->queue, r);
    c->dispatch_due = true;
}

static void begin_again(coordinator *c, request *r) {
    replay_clear(&r->given);
    r->tokens = 0;
    r->reasoning_tokens = 0;
    r->first_token_ns = 0;
    queue_again(c, r);
    r->sink.on_restart(r->sink.context, false);
}

/* The end of a stream that a client has begun to read says why it could not go on. */
static void give_up(coordinator *c, request *r, const request_failure *why,
                    const char *obstacle) {
    request_failure failure = *why;
    if (obstacle != NULL && !r->replayable && r->given.n_ids > 0) {
        (void)snprintf(failure.message, sizeof failure.message,
                       "%.300s; the answer cannot go on elsewhere: %s", why->message, obstacle);
    }
    request_fail(c, r, &failure);
}

void request_fail_over(coordinator *c, request *r, const request_failure *why) {
    const node *n = r->node;
    if (r->state == REQUEST_CANCELLING) {
        request_forget(c, r);
        return;
    }
    if (n != NULL && r->n_tried < REQUEST_MAX_TRIED) r->tried[r->n_tried++] = n->instance;
    r->last_failure = *why;
    bool begun = r->given.n_ids > 0 || r->given.several;
    const char *obstacle = !begun                 ? NULL
                           : r->no_replay != NULL ? r->no_replay
                                                  : replay_obstacle(&r->given);
    if (begun && obstacle == NULL && !has_place_elsewhere(c, r))
        obstacle = "no other node serves the same file";
    bool resumes = begun && obstacle == NULL;
    bool restarts = !resumes && r->replayable;
    if (restarts && begun) {
        replay before = r->given; /* what nodes may have it depends on the record */
        memset(&r->given, 0, sizeof r->given);
        restarts = has_place_elsewhere(c, r);
        r->given = before;
    } else if (restarts) {
        restarts = has_place_elsewhere(c, r);
    }
    if (!resumes && !restarts) {
        give_up(c, r, why, obstacle);
        return;
    }
    log_info(resumes ? "request-resume" : "request-failover",
             "request=%s from=%s epoch=%llu tokens=%zu error=\"%s\"", r->request_id,
             n != NULL ? n->name : "-", (unsigned long long)r->epoch, r->given.n_ids,
             why->message);
    metric_add(c->counters.failed_over, 1);
    if (!resumes) {
        begin_again(c, r);
        return;
    }
    metric_add(c->counters.resumed, 1);
    r->given.resumed++;
    queue_again(c, r);
    r->sink.on_restart(r->sink.context, true);
}
