/* flights.h - the requests that coordinators have on this worker, and how many each may have.
 *
 * A flight is one SUBMIT between its acceptance and its DONE or ERROR.  The
 * engine knows it by `key`, which no two flights of a process share; a
 * coordinator by (request, epoch).  Owned by the link thread; no I/O.
 */
#ifndef SILICEO_WORKER_FLIGHTS_H
#define SILICEO_WORKER_FLIGHTS_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct flight {
    uint64_t key; /* 0: a free place */
    size_t peer;
    uint64_t request;
    uint64_t epoch;
    uint64_t next_number; /* of TOKENS */
    bool cancelled;       /* the engine was told, or cancel_due says that it must be */
    bool cancel_due;
    bool muted; /* nobody waits for its results: only its end is counted */
    bool cut;   /* ended by us: its ERROR is retryable */
} flight;

enum { FLIGHTS_REMEMBERED = 512 };

typedef struct flights {
    flight *places;
    size_t n_places;
    size_t n_used;
    uint64_t last_key;
    struct {
        size_t peer;
        uint64_t request, epoch;
    } ended[FLIGHTS_REMEMBERED]; /* so that a late duplicate is known as stale */
    size_t n_ended;
} flights;

status flights_init(flights *f, size_t n_places, error *err);
void flights_release(flights *f); /* accepts a zeroed one */

/* Has this peer sent the request with this epoch, or a later one, before? */
bool flights_is_stale(const flights *f, size_t peer, uint64_t request, uint64_t epoch);
/* NULL when no place is free. */
flight *flights_add(flights *f, size_t peer, uint64_t request, uint64_t epoch);
void flights_end(flights *f, flight *ended);

flight *flights_by_key(flights *f, uint64_t key);
/* The one that runs under this number, of whatever epoch; not a muted one. */
flight *flights_by_request(flights *f, size_t peer, uint64_t request);
size_t flights_of_peer(const flights *f, size_t peer);
/* A coordinator started anew: its numbers mean nothing any more. */
void flights_forget(flights *f, size_t peer);

typedef struct credit_share {
    bool connected;
    bool idle; /* has had nothing in flight for a while: lends what it does not use */
    uint64_t grant;
} credit_share;

/* Split total over the connected shares: equally, but an idle one keeps 1 while
 * another works, and the rest of its part goes to those. */
void credit_split(uint64_t total, credit_share *shares, size_t n_shares);

#endif
