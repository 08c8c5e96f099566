/* audience.h - the clients that one reply goes to: the one that asked, and its retries.
 *
 * A retry may join a reply that is under way.  It gets what has been sent so far and then
 * the rest with the others; so the beginning is kept (up to AUDIENCE_KEEP_BYTES) for
 * replies that may be retried.  When the last has left, on_left() is called and the owner
 * frees everything.  `io` thread.
 *
 * A call that writes may find that everybody is gone: it then returns false, on_left() has
 * been called, and the audience is not to be touched any more.
 */
#ifndef SILICEO_COORDINATOR_AUDIENCE_H
#define SILICEO_COORDINATOR_AUDIENCE_H

#include "common/json.h"
#include "coordinator/http_server.h"
#include <stdbool.h>
#include <stddef.h>

enum { AUDIENCE_KEEP_BYTES = 1 << 20 };

struct listener;

typedef struct audience {
    struct listener *first;
    json_text kept;  /* of a stream, for those that join later */
    bool keeps;      /* set before the first byte */
    bool overflowed; /* more than may be kept: nobody can join any more */
    bool begun;      /* the headers of a stream are out */
    unsigned busy;   /* calls that walk over the list */
    void *context;
    void (*on_left)(void *context);
    /* A client has gone; complete: with the whole reply. */
    void (*on_gone)(void *context, bool complete);
    /* Headers of the reply, before it begins. */
    void (*on_headers)(void *context, http_exchange *x);
} audience;

void audience_release(audience *a); /* its clients must be gone; accepts a zeroed one */

/* False: no memory, or it is too late to join; x is untouched. */
bool audience_join(audience *a, http_exchange *x);

/* Between the two on_left() is not called; the second returns false when it is then. */
void audience_hold(audience *a);
bool audience_let(audience *a);

/* Send a part of a stream to all, headers first. */
bool audience_write(audience *a, const char *bytes, size_t n);
bool audience_end(audience *a);
bool audience_abort(audience *a);
bool audience_reply(audience *a, const char *content_type, const char *body, size_t n);
bool audience_error(audience *a, unsigned http_status, const char *code, const char *param,
                    unsigned retry_after_s, const char *message);

#endif
