/* drafter_lookup.c - prompt look-up: what followed the last tokens when they came before.
 *
 * The index of a place is that of a dictionary coder: a table from the hash of GRAM tokens to
 * the last position behind them, and for each position the one before of the same hash.  Of
 * the nearest MAX_TRIED occurrences the one that agrees with the most last tokens is taken,
 * of equals the nearest.  A token costs one entry; a question costs MAX_TRIED comparisons.
 */
#include "worker/drafter.h"

#include <stdlib.h>
#include <string.h>

enum {
    GRAM = 2,       /* tokens that must agree */
    MAX_TRIED = 24, /* occurrences looked at */
    MAX_MATCH = 32, /* agreement beyond it counts no more */
    TABLE_BITS = 12
};

typedef struct lookup_place {
    uint64_t key;
    uint32_t n_indexed; /* positions in the index: GRAM .. n_indexed */
    uint32_t *last;     /* [1 << TABLE_BITS], 0: none */
    uint32_t *before;   /* [n_context + 1] */
} lookup_place;

typedef struct lookup {
    drafter base;
    uint32_t n_places;
    uint32_t n_context;
    lookup_place *places;
} lookup;

static uint32_t hash_before(const int32_t *tokens, uint32_t position) {
    uint64_t h = 0;
    for (uint32_t i = 1; i <= GRAM; i++)
        h = (h ^ (uint32_t)tokens[position - i]) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> (64 - TABLE_BITS));
}

/* Every position behind GRAM tokens, but for the end itself, which has nothing after it. */
static void index_tokens(lookup_place *p, const drafter_ask *ask) {
    if (p->key != ask->key || p->n_indexed > ask->n_tokens) {
        memset(p->last, 0, sizeof *p->last << TABLE_BITS);
        p->key = ask->key;
        p->n_indexed = GRAM;
    }
    for (; p->n_indexed < ask->n_tokens; p->n_indexed++) {
        uint32_t *last = &p->last[hash_before(ask->tokens, p->n_indexed)];
        p->before[p->n_indexed] = *last;
        *last = p->n_indexed;
    }
}

static uint32_t agreement(const int32_t *tokens, uint32_t n, uint32_t position) {
    uint32_t length = 0, most = position < MAX_MATCH ? position : MAX_MATCH;
    while (length < most && tokens[position - 1 - length] == tokens[n - 1 - length])
        length++;
    return length;
}

static void guess_one(lookup_place *p, drafter_ask *ask) {
    uint32_t best = 0;
    ask->n_guesses = ask->match = 0;
    if (ask->n_tokens <= GRAM) return;
    index_tokens(p, ask);
    uint32_t at = p->last[hash_before(ask->tokens, ask->n_tokens)];
    for (int i = 0; i < MAX_TRIED && at != 0; i++, at = p->before[at]) {
        uint32_t length = agreement(ask->tokens, ask->n_tokens, at);
        if (length >= GRAM && length > ask->match) ask->match = length, best = at;
        if (ask->match == MAX_MATCH) break;
    }
    if (best == 0) return;
    /* Where the text repeats itself what follows runs into what is guessed. */
    for (; ask->n_guesses < ask->depth; ask->n_guesses++) {
        uint32_t from = best + ask->n_guesses;
        ask->guesses[ask->n_guesses] =
            from < ask->n_tokens ? ask->tokens[from] : ask->guesses[from - ask->n_tokens];
    }
}

static status lookup_guess(drafter *d, drafter_ask *asks, size_t n, error *err) {
    lookup *l = (lookup *)d;
    (void)err;
    for (size_t i = 0; i < n; i++) {
        CHECK(asks[i].place < l->n_places && asks[i].n_tokens <= l->n_context);
        guess_one(&l->places[asks[i].place], &asks[i]);
    }
    return STATUS_OK;
}

static void lookup_close(drafter *d) {
    lookup *l = (lookup *)d;
    if (l == NULL) return;
    for (uint32_t i = 0; l->places != NULL && i < l->n_places; i++) {
        free(l->places[i].last);
        free(l->places[i].before);
    }
    free(l->places);
    free(l);
}

static const drafter_ops ops = {lookup_close, lookup_guess, NULL};

status drafter_lookup_open(drafter **out, uint32_t n_places, uint32_t n_context, error *err) {
    *out = NULL;
    lookup *l = calloc(1, sizeof *l);
    if (l == NULL) goto no_memory;
    l->base.ops = &ops;
    l->n_places = n_places;
    l->n_context = n_context;
    l->places = calloc(n_places, sizeof *l->places);
    if (l->places == NULL) goto no_memory;
    for (uint32_t i = 0; i < n_places; i++) {
        lookup_place *p = &l->places[i];
        p->last = calloc((size_t)1 << TABLE_BITS, sizeof *p->last);
        p->before = malloc(((size_t)n_context + 1) * sizeof *p->before);
        if (p->last == NULL || p->before == NULL) goto no_memory;
    }
    *out = &l->base;
    return STATUS_OK;
no_memory:
    lookup_close((drafter *)l);
    return error_set(err, STATUS_NO_MEMORY, "look-up: no memory for %u sequences of %u tokens",
                     n_places, n_context);
}
