/* prefix_set.h - which beginnings of prompts a node has confirmed to hold.
 *
 * A beginning is a hash (see prefix_chain.h).  The newest PREFIX_SET_MAX are known, the
 * oldest is forgotten first; memory is taken with the first one.  An entry goes when a DONE
 * says so: by naming it as lost, or by not naming it among what is held of its request.
 * Plain data; `io` thread.
 */
#ifndef SILICEO_COORDINATOR_PREFIX_SET_H
#define SILICEO_COORDINATOR_PREFIX_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PREFIX_SET_MAX = 1024 };

typedef struct prefix_set {
    struct prefix_table *table;
    size_t next; /* in its ring */
    size_t n;
} prefix_set;

void prefix_set_release(prefix_set *s); /* accepts a zeroed one */
/* Without memory nothing is added: then nothing is counted as held. */
void prefix_set_add(prefix_set *s, uint64_t hash);
void prefix_set_remove(prefix_set *s, uint64_t hash);
bool prefix_set_has(const prefix_set *s, uint64_t hash);

/* How many of the beginnings, shortest first, are held: the index behind the longest. */
size_t prefix_set_longest(const prefix_set *s, const uint64_t *hashes, size_t n);

#endif
