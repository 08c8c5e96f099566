/* expert_cache.c - Clock-LFU with 4-bit counters over one arena of slots.
 *
 * The clock is the classic second-chance sweep; the counter that a hit raises and
 * the hand halves makes it remember frequency and forget it again, which keeps
 * it level with LRU on real routing traces at a byte a slot and no list to relink.
 */
#include "worker/memory/expert_cache.h"
#include <stdlib.h>
#include <string.h>

enum { COUNTER_MAX = 15, COUNTER_NEW = 1, SWEEPS_TO_ZERO = 5 };
/* Tokens after which uses weigh half. */
enum { USES_TOKENS = 1 << 20 };
#define NOBODY UINT32_MAX

typedef enum slot_phase { SLOT_FREE, SLOT_FILLING, SLOT_HELD } slot_phase;

typedef struct slot {
    uint32_t owner; /* layer * n_experts + expert; NOBODY when free */
    uint32_t pin;   /* pinned while equal to the cache's epoch */
    uint8_t counter;
    uint8_t phase;
} slot;

typedef struct miss {
    uint32_t expert;
    uint32_t count;
} miss;

struct expert_cache {
    uint32_t n_layers;
    uint32_t n_experts;
    uint32_t n_slots;
    uint32_t inserts_per_layer;
    slot *slots;
    int32_t *slot_of; /* [n_layers * n_experts] */
    int32_t *free_slots;
    uint32_t n_free;
    uint32_t hand;
    uint32_t giver; /* the layer whose slots a prompt's inserts take; NOBODY: the clock's */
    bool kept;
    uint32_t *uses;  /* [n_layers * n_experts] */
    uint64_t *order; /* [n_layers * n_experts], while filling */
    uint64_t n_uses, most_uses;
    uint32_t layer;
    uint32_t epoch;
    uint32_t n_inserted; /* in this layer and step */
    miss *misses;        /* of the current layer, [n_experts] */
    uint8_t *counters;   /* [n_slots], of a sweep that only looks ahead */
    size_t n_misses;
    uint64_t lookups, hits, inserts;
};

static status check_sizes(uint32_t n_layers, uint32_t n_experts, uint32_t n_experts_used,
                          uint32_t n_slots, error *err) {
    uint64_t working_set = (uint64_t)n_layers * n_experts_used;
    uint64_t n_all = (uint64_t)n_layers * n_experts;
    if (working_set == 0 || n_experts_used > n_experts || n_all >= INT32_MAX) {
        return error_set(err, STATUS_BAD_INPUT,
                         "expert cache: %u layers of %u experts, %u used", n_layers, n_experts,
                         n_experts_used);
    }
    if (n_slots < working_set) {
        return error_set(
            err, STATUS_BAD_INPUT,
            "slots: %u is below %llu, the experts that one token uses (%u layers x "
            "%u): every look-up would miss",
            n_slots, (unsigned long long)working_set, n_layers, n_experts_used);
    }
    if (n_slots > n_all) {
        return error_set(err, STATUS_BAD_INPUT,
                         "slots: %u is above %llu, all experts there are", n_slots,
                         (unsigned long long)n_all);
    }
    return STATUS_OK;
}

status expert_cache_new(expert_cache **out, uint32_t n_layers, uint32_t n_experts,
                        uint32_t n_experts_used, uint32_t n_slots, uint32_t inserts_per_layer,
                        error *err) {
    *out = NULL;
    status rc = check_sizes(n_layers, n_experts, n_experts_used, n_slots, err);
    if (rc != STATUS_OK) return rc;
    size_t n_all = (size_t)n_layers * n_experts;
    expert_cache *c = calloc(1, sizeof *c);
    if (c == NULL) goto no_memory;
    c->n_layers = n_layers;
    c->n_experts = n_experts;
    c->n_slots = n_slots;
    c->inserts_per_layer = inserts_per_layer;
    c->giver = NOBODY;
    c->most_uses = (uint64_t)n_layers * n_experts_used * USES_TOKENS;
    c->uses = calloc(n_all, sizeof *c->uses);
    c->order = malloc(n_all * sizeof *c->order);
    c->slots = calloc(n_slots, sizeof *c->slots);
    c->slot_of = malloc(n_all * sizeof *c->slot_of);
    c->free_slots = malloc(n_slots * sizeof *c->free_slots);
    c->misses = malloc(n_experts * sizeof *c->misses);
    c->counters = malloc(n_slots);
    if (c->slots == NULL || c->slot_of == NULL || c->free_slots == NULL || c->misses == NULL ||
        c->counters == NULL || c->uses == NULL || c->order == NULL) {
        goto no_memory;
    }
    expert_cache_clear(c);
    *out = c;
    return STATUS_OK;
no_memory:
    expert_cache_free(c);
    return error_set(err, STATUS_NO_MEMORY, "expert cache: no memory for %u slots", n_slots);
}

void expert_cache_free(expert_cache *cache) {
    if (cache == NULL) return;
    free(cache->order);
    free(cache->uses);
    free(cache->counters);
    free(cache->misses);
    free(cache->free_slots);
    free(cache->slot_of);
    free(cache->slots);
    free(cache);
}

/* The stack gives slot 0 first, so that a fresh arena fills from its start. */
void expert_cache_clear(expert_cache *c) {
    for (size_t i = 0; i < (size_t)c->n_layers * c->n_experts; i++)
        c->slot_of[i] = EXPERT_MISS;
    for (uint32_t i = 0; i < c->n_slots; i++) {
        c->slots[i] = (slot){.owner = NOBODY, .phase = SLOT_FREE};
        c->free_slots[i] = (int32_t)(c->n_slots - 1 - i);
    }
    c->n_free = c->n_slots;
    c->n_misses = 0;
    c->hand = 0;
}

uint32_t *expert_cache_uses(expert_cache *c) {
    return c->uses;
}

static void halve_uses(expert_cache *c) {
    c->n_uses /= 2;
    for (size_t i = 0; i < (size_t)c->n_layers * c->n_experts; i++)
        c->uses[i] /= 2;
}

void expert_cache_add_uses(expert_cache *c, uint32_t layer, uint32_t expert, uint32_t n_rows) {
    if (c->kept) return;
    c->uses[(size_t)layer * c->n_experts + expert] += n_rows;
    c->n_uses += n_rows;
    if (c->n_uses >= c->most_uses) halve_uses(c);
}

void expert_cache_keep(expert_cache *c, bool kept) {
    c->kept = kept;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Those with the most uses first, then the first expert of every layer, the second and so on. */
static void order_by_uses(expert_cache *c) {
    size_t n = (size_t)c->n_layers * c->n_experts;
    for (size_t i = 0; i < n; i++) {
        uint64_t rank = i % c->n_experts * c->n_layers + i / c->n_experts;
        c->order[i] = (uint64_t)(UINT32_MAX - c->uses[i]) << 32 | rank;
    }
    qsort(c->order, n, sizeof *c->order, ascending);
}

/* What came from elsewhere may say more than a million tokens. */
static void count_uses(expert_cache *c) {
    c->n_uses = 0;
    for (size_t i = 0; i < (size_t)c->n_layers * c->n_experts; i++)
        c->n_uses += c->uses[i];
    while (c->n_uses >= c->most_uses)
        halve_uses(c);
}

/* The n first of the order by their own numbers. */
static void order_by_owner(expert_cache *c, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t rank = c->order[i] & UINT32_MAX;
        c->order[i] = rank % c->n_layers * c->n_experts + rank / c->n_layers;
    }
    qsort(c->order, n, sizeof *c->order, ascending);
}

uint32_t expert_cache_fill(expert_cache *c, bool used_only) {
    uint32_t n = c->n_slots, n_used = 0;
    expert_cache_clear(c);
    count_uses(c);
    order_by_uses(c);
    while (n_used < n && c->order[n_used] >> 32 < UINT32_MAX)
        n_used++;
    if (used_only) n = n_used;
    order_by_owner(c, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t owner = (uint32_t)c->order[i];
        uint8_t counter = c->uses[owner] > 0 ? COUNTER_NEW : 0;
        c->slots[i] = (slot){.owner = owner, .counter = counter, .phase = SLOT_HELD};
        c->slot_of[owner] = (int32_t)i;
    }
    c->n_free -= n; /* the stack's top, slot 0 first */
    return n_used;
}

void expert_cache_limit_inserts(expert_cache *c, uint32_t inserts_per_layer) {
    c->inserts_per_layer = inserts_per_layer;
}

static void begin_layer(expert_cache *c, uint32_t layer) {
    c->layer = layer;
    c->n_misses = 0;
    c->n_inserted = 0;
    c->epoch++;
    if (c->epoch == 0) { /* wrapped: old pins would look new */
        for (uint32_t i = 0; i < c->n_slots; i++)
            c->slots[i].pin = 0;
        c->epoch = 1;
    }
}

/* Hits are pinned, misses listed; what no row counts is neither raised nor wanted. */
static void look_up(expert_cache *c, uint32_t layer, const int32_t *experts, size_t n,
                    const uint32_t *counts, int32_t *slots) {
    CHECK_HOT(layer < c->n_layers && n <= c->n_experts);
    begin_layer(c, layer);
    const int32_t *slot_of = c->slot_of + (size_t)layer * c->n_experts;
    for (size_t i = 0; i < n; i++) {
        CHECK_HOT(experts[i] >= 0 && (uint32_t)experts[i] < c->n_experts);
        uint32_t count = counts != NULL ? counts[i] : 1;
        int32_t at = slots[i] = slot_of[experts[i]];
        if (c->kept) continue;
        expert_cache_add_uses(c, layer, (uint32_t)experts[i], count);
        if (at == EXPERT_MISS) {
            c->misses[c->n_misses++] = (miss){(uint32_t)experts[i], count};
            continue;
        }
        slot *s = &c->slots[at];
        s->pin = c->epoch;
        if (s->counter < COUNTER_MAX && count > 0) s->counter++;
        c->hits++;
    }
    if (!c->kept) c->lookups += n;
}

void expert_cache_layer(expert_cache *c, uint32_t layer, const int32_t *experts, size_t n,
                        const uint32_t *counts, int32_t *slots) {
    look_up(c, layer, experts, n, counts, slots);
    c->giver = NOBODY;
}

/* What the late rows did not use is forgotten as if the hand had passed it. */
void expert_cache_prompt(expert_cache *c, uint32_t layer, const int32_t *experts, size_t n,
                         const uint32_t *late, int32_t *slots) {
    const int32_t *slot_of = c->slot_of + (size_t)layer * c->n_experts;
    look_up(c, layer, experts, n, late, slots);
    c->giver = layer > 0 ? layer - 1 : c->n_layers - 1;
    for (size_t e = 0, i = 0; e < c->n_experts && !c->kept; e++) {
        while (i < n && (size_t)experts[i] < e)
            i++;
        bool is_late = i < n && (size_t)experts[i] == e && late[i] > 0;
        if (slot_of[e] != EXPERT_MISS && !is_late) c->slots[slot_of[e]].counter /= 2;
    }
}

/* The next victim, or EXPERT_MISS when everything is pinned or being filled. */
static int32_t sweep(expert_cache *c) {
    uint64_t limit = (uint64_t)c->n_slots * SWEEPS_TO_ZERO;
    for (uint64_t i = 0; i < limit; i++) {
        uint32_t at = c->hand;
        c->hand = at + 1 == c->n_slots ? 0 : at + 1;
        slot *s = &c->slots[at];
        if (s->phase != SLOT_HELD || s->pin == c->epoch) continue;
        if (s->counter == 0) return (int32_t)at;
        s->counter /= 2;
    }
    return EXPERT_MISS;
}

/* The giver's slot with counter 0 whose expert has the fewest uses, or EXPERT_MISS. */
static int32_t ask_giver(const expert_cache *c) {
    const size_t first = (size_t)c->giver * c->n_experts;
    int32_t best = EXPERT_MISS;
    uint32_t least = 0;
    for (size_t i = first; i < first + c->n_experts; i++) {
        int32_t at = c->slot_of[i];
        if (at == EXPERT_MISS) continue;
        const slot *s = &c->slots[at];
        if (s->counter > 0 || s->pin == c->epoch ||
            (best != EXPERT_MISS && c->uses[i] >= least))
            continue;
        best = at;
        least = c->uses[i];
    }
    return best;
}

static int32_t take_slot(expert_cache *c) {
    if (c->n_free > 0) return c->free_slots[--c->n_free];
    int32_t at = c->giver == NOBODY ? sweep(c) : ask_giver(c);
    if (at != EXPERT_MISS) c->slot_of[c->slots[at].owner] = EXPERT_MISS;
    return at;
}

/* The miss that the most rows want; among equals the first asked for. */
static miss *best_miss(expert_cache *c) {
    miss *best = NULL;
    for (size_t i = 0; i < c->n_misses; i++) {
        miss *m = &c->misses[i];
        if (m->count > 0 && (best == NULL || m->count > best->count)) best = m;
    }
    return best;
}

size_t expert_cache_plan_inserts(expert_cache *c, expert_insert *out, size_t n) {
    size_t n_out = 0;
    while (n_out < n && c->n_inserted < c->inserts_per_layer) {
        miss *m = best_miss(c);
        if (m == NULL) break;
        bool was_free = c->n_free > 0;
        int32_t at = take_slot(c);
        if (at == EXPERT_MISS) break;
        int64_t former = was_free ? -1 : (int64_t)c->slots[at].owner;
        c->slots[at] = (slot){.owner = c->layer * c->n_experts + m->expert,
                              .pin = c->epoch,
                              .counter = COUNTER_NEW,
                              .phase = SLOT_FILLING};
        out[n_out++] = (expert_insert){m->expert, at, former};
        m->count = 0; /* chosen */
        c->n_inserted++;
    }
    return n_out;
}

void expert_cache_pass_over(expert_cache *c, uint32_t expert) {
    for (size_t i = 0; i < c->n_misses; i++) {
        if (c->misses[i].expert == expert) c->misses[i].count = 0;
    }
}

void expert_cache_commit(expert_cache *c, const expert_insert *insert) {
    slot *s = &c->slots[insert->slot];
    CHECK(s->phase == SLOT_FILLING);
    s->phase = SLOT_HELD;
    c->slot_of[s->owner] = insert->slot;
    c->inserts++;
}

void expert_cache_abandon(expert_cache *c, const expert_insert *insert) {
    slot *s = &c->slots[insert->slot];
    CHECK(s->phase == SLOT_FILLING);
    *s = (slot){.owner = NOBODY, .phase = SLOT_FREE};
    c->free_slots[c->n_free++] = insert->slot;
}

size_t expert_cache_victims(expert_cache *c, uint32_t *out, size_t n) {
    enum { OUT_OF_REACH = COUNTER_MAX + 1 };
    size_t n_out = 0;
    if (c->kept) return 0;
    for (uint32_t i = c->n_free; i > 0 && n_out < n; i--)
        out[n_out++] = (uint32_t)c->free_slots[i - 1];
    if (n_out == n) return n_out;
    for (uint32_t i = 0; i < c->n_slots; i++)
        c->counters[i] = c->slots[i].phase == SLOT_HELD ? c->slots[i].counter : OUT_OF_REACH;
    uint32_t at = c->hand;
    uint64_t limit = (uint64_t)c->n_slots * SWEEPS_TO_ZERO;
    for (uint64_t i = 0; i < limit && n_out < n; i++) {
        uint8_t *counter = &c->counters[at];
        if (*counter == 0) {
            out[n_out++] = at;
            *counter = OUT_OF_REACH;
        } else if (*counter != OUT_OF_REACH) {
            *counter /= 2;
        }
        at = at + 1 == c->n_slots ? 0 : at + 1;
    }
    return n_out;
}

/* The slot is free: it leaves the stack, where it lies at or near the top. */
static void take_free(expert_cache *c, uint32_t at) {
    uint32_t i = c->n_free;
    while (i > 0 && c->free_slots[i - 1] != (int32_t)at)
        i--;
    CHECK(i > 0);
    for (; i < c->n_free; i++)
        c->free_slots[i - 1] = c->free_slots[i];
    c->n_free--;
}

/* The hand passes what it would have passed on its way to the slot. */
static void advance_to(expert_cache *c, uint32_t at) {
    while (c->hand != at) {
        slot *s = &c->slots[c->hand];
        s->counter /= 2;
        c->hand = c->hand + 1 == c->n_slots ? 0 : c->hand + 1;
    }
    c->hand = at + 1 == c->n_slots ? 0 : at + 1;
}

void expert_cache_place(expert_cache *c, uint32_t expert, uint32_t at) {
    CHECK(expert < c->n_experts && at < c->n_slots);
    slot *s = &c->slots[at];
    CHECK(s->phase != SLOT_FILLING);
    if (s->phase == SLOT_FREE) {
        take_free(c, at);
    } else {
        c->slot_of[s->owner] = EXPERT_MISS;
        advance_to(c, at);
    }
    *s = (slot){.owner = c->layer * c->n_experts + expert,
                .pin = c->epoch,
                .counter = COUNTER_NEW,
                .phase = SLOT_HELD};
    c->slot_of[s->owner] = (int32_t)at;
    expert_cache_pass_over(c, expert);
    c->inserts++;
}

uint32_t expert_cache_owner(const expert_cache *c, uint32_t at) {
    return c->slots[at].owner;
}

int32_t expert_cache_find(const expert_cache *c, uint32_t layer, uint32_t expert) {
    return c->slot_of[(size_t)layer * c->n_experts + expert];
}

uint32_t expert_cache_n_slots(const expert_cache *c) {
    return c->n_slots;
}

void expert_cache_counts(const expert_cache *c, uint64_t *lookups, uint64_t *hits,
                         uint64_t *inserts) {
    *lookups = c->lookups;
    *hits = c->hits;
    *inserts = c->inserts;
}
