#include "coordinator/prefix_set.h"

#include <stdlib.h>
#include <string.h>

void prefix_set_release(prefix_set *s) {
    free(s->hashes);
    memset(s, 0, sizeof *s);
}

/* A walk over at most 8 KiB: a few requests a second ask, not every token. */
static size_t find(const prefix_set *s, uint64_t hash) {
    size_t i = 0;
    while (i < s->n && s->hashes[i] != hash)
        i++;
    return i;
}

bool prefix_set_has(const prefix_set *s, uint64_t hash) {
    return hash != 0 && find(s, hash) < s->n;
}

void prefix_set_add(prefix_set *s, uint64_t hash) {
    if (hash == 0 || prefix_set_has(s, hash)) return;
    if (s->hashes == NULL) s->hashes = calloc(PREFIX_SET_MAX, sizeof *s->hashes);
    if (s->hashes == NULL) return;
    s->hashes[s->next] = hash;
    s->next = (s->next + 1) % PREFIX_SET_MAX;
    if (s->n < PREFIX_SET_MAX) s->n++;
}

void prefix_set_remove(prefix_set *s, uint64_t hash) {
    size_t i = find(s, hash);
    if (i < s->n) s->hashes[i] = 0;
}

size_t prefix_set_longest(const prefix_set *s, const uint64_t *hashes, size_t n) {
    if (s->n == 0) return 0;
    while (n > 0 && !prefix_set_has(s, hashes[n - 1]))
        n--;
    return n;
}
