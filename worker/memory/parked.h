/* parked.h - what sequences held that gave up their place, kept in RAM within a bound.
 *
 * A recurrent state and the whole pages of what has run, byte for byte, and, of a piece that is cut
 * by layers, its rows between two: a sequence that gets them back goes on as if it had never waited.  Memory is taken when something is kept and
 * given back with it, so that an empty store costs nothing.  Thread: engine, between steps.
 */
#ifndef SILICEO_WORKER_MEMORY_PARKED_H
#define SILICEO_WORKER_MEMORY_PARKED_H

#include "common/error.h"
#include "worker/model/model.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct parked_store parked_store;
typedef struct parked parked;

typedef struct parked_counts {
    uint64_t kept;
    uint64_t refused; /* there was no room */
    uint64_t restored;
    uint64_t used_bytes; /* now */
} parked_counts;

/* m must outlive it. */
status parked_store_new(parked_store **out, model *m, uint64_t budget_bytes, error *err);
void parked_store_free(parked_store *store); /* nothing may be kept; accepts NULL */

/* Where a sequence has what is kept, or gets it back. */
typedef struct parked_place {
    uint32_t state;
    uint32_t n_pages;
    const uint32_t *pages;
    float *rows;
    size_t n_floats; /* of rows; 0: there are none */
} parked_place;

/* Copies of all that; NULL: they would go beyond the budget, or there is no memory. */
parked *parked_store_keep(parked_store *store, const parked_place *from);
/* Into another place of the same size; what was kept is free then. */
void parked_store_restore(parked_store *store, parked *what, const parked_place *to);
void parked_store_forget(parked_store *store, parked *what);

uint64_t parked_store_bytes(const parked_store *store, const parked_place *of);
parked_counts parked_store_count(const parked_store *store);

#endif
