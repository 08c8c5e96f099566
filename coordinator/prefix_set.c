/* prefix_set.c - a ring for the order of coming, a table with linear probing for finding: with a
 * thousand nodes and long conversations a walk over the ring would be felt. */
#include "coordinator/prefix_set.h"

#include <stdlib.h>
#include <string.h>

enum {
    PLACES = 2 * PREFIX_SET_MAX
}; /* of the table; a power of two, never more than half full */

struct prefix_table {
    uint64_t ring[PREFIX_SET_MAX];
    uint64_t places[PLACES]; /* 0: free */
};

/* Hashes are even already, so their low bits say where to look first. */
static size_t first_place(uint64_t hash) {
    return (size_t)(hash & (PLACES - 1));
}

/* Where it stands, or the free place where it would. */
static size_t find(const struct prefix_table *t, uint64_t hash) {
    size_t i = first_place(hash);
    while (t->places[i] != 0 && t->places[i] != hash)
        i = (i + 1) & (PLACES - 1);
    return i;
}

void prefix_set_release(prefix_set *s) {
    free(s->table);
    memset(s, 0, sizeof *s);
}

bool prefix_set_has(const prefix_set *s, uint64_t hash) {
    return hash != 0 && s->n > 0 && s->table->places[find(s->table, hash)] == hash;
}

/* Those behind it in its run of places move up, where they are still found. */
static void drop(struct prefix_table *t, uint64_t hash) {
    size_t hole = find(t, hash);
    if (t->places[hole] == 0) return;
    t->places[hole] = 0;
    for (size_t i = (hole + 1) & (PLACES - 1); t->places[i] != 0; i = (i + 1) & (PLACES - 1)) {
        uint64_t moved = t->places[i];
        t->places[i] = 0;
        t->places[find(t, moved)] = moved;
    }
}

void prefix_set_add(prefix_set *s, uint64_t hash) {
    if (hash == 0 || prefix_set_has(s, hash)) return;
    if (s->table == NULL) s->table = calloc(1, sizeof *s->table);
    if (s->table == NULL) return;
    struct prefix_table *t = s->table;
    if (s->n == PREFIX_SET_MAX && t->ring[s->next] != 0) drop(t, t->ring[s->next]);
    t->ring[s->next] = hash;
    t->places[find(t, hash)] = hash;
    s->next = (s->next + 1) % PREFIX_SET_MAX;
    if (s->n < PREFIX_SET_MAX) s->n++;
}

void prefix_set_remove(prefix_set *s, uint64_t hash) {
    if (!prefix_set_has(s, hash)) return;
    drop(s->table, hash);
    for (size_t i = 0; i < s->n; i++) { /* rare: only where a worker was wrong */
        if (s->table->ring[i] == hash) s->table->ring[i] = 0;
    }
}

size_t prefix_set_longest(const prefix_set *s, const uint64_t *hashes, size_t n) {
    if (s->n == 0) return 0;
    while (n > 0 && !prefix_set_has(s, hashes[n - 1]))
        n--;
    return n;
}
