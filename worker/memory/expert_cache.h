/* expert_cache.h - which experts lie in which slots: Clock-LFU over one arena.
 *
 * Pure bookkeeping: no bytes move here.  The backend asks, layer by layer, for
 * the distinct experts of a step and learns for each its slot or that it is a
 * miss; it then asks which misses to bring in (never more than the cap a layer
 * and step), copies the record itself and commits.  Slots that the current layer
 * uses are pinned until the next expert_cache_layer() and are never victims.
 *
 * Clock-LFU: every slot has a saturating counter (0..15); a hit adds one; the
 * clock hand takes the first unpinned slot with counter 0, halving what it
 * passes.  One cache for all layers.  Thread: engine.
 *
 * Where a device brings experts in by itself, it is told the next victims before a step, and
 * what it did with them is told to the cache afterwards (expert_cache_place).
 *
 * Prompts of many rows ask for nearly all experts of one layer after the other, more than there are
 * slots: whatever came in last would be gone before it is asked for again, and the clock would take
 * what the next layer is about to use.  So a prompt's layer gets its slots from the layer before it,
 * which will not be asked for until the next prompt (the first from the last); what that one's late
 * rows used stays.
 *
 * Uses: of every expert the rows that it had, halved every million tokens, so that it says what is
 * used lately.  It outlives a restart (expert_list.h), and says what a cache is filled with.
 */
#ifndef SILICEO_WORKER_MEMORY_EXPERT_CACHE_H
#define SILICEO_WORKER_MEMORY_EXPERT_CACHE_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct expert_cache expert_cache;

enum { EXPERT_MISS = -1 };

typedef struct expert_insert {
    uint32_t expert; /* of the current layer */
    int32_t slot;    /* copy the record here, then expert_cache_commit() */
    int64_t
        former; /* layer * n_experts + expert whose record lies there until then; -1: none */
} expert_insert;

/* n_slots below n_layers * n_experts_used, one token's working set, is refused
 * with the reason. */
status expert_cache_new(expert_cache **out, uint32_t n_layers, uint32_t n_experts,
                        uint32_t n_experts_used, uint32_t n_slots, uint32_t inserts_per_layer,
                        error *err);
void expert_cache_free(expert_cache *cache);

/* Look up the n distinct experts of a layer; counts[i] (or NULL) rows use
 * experts[i].  slots[i] becomes a slot, pinned, or EXPERT_MISS. */
void expert_cache_layer(expert_cache *cache, uint32_t layer, const int32_t *experts, size_t n,
                        const uint32_t *counts, int32_t *slots);
/* The same of a prompt's rows, experts ascending; late[i]: of the last rows those that use
 * experts[i]. */
void expert_cache_prompt(expert_cache *cache, uint32_t layer, const int32_t *experts, size_t n,
                         const uint32_t *late, int32_t *slots);
/* After expert_cache_layer: choose misses to bring in and their slots.  Returns
 * how many of out[] (capacity n) were filled, at most the cap; a chosen slot's
 * former expert is no longer found. */
size_t expert_cache_plan_inserts(expert_cache *cache, expert_insert *out, size_t n);
/* Another cap from now on: a prompt's rows may bring in more than a decoding step. */
void expert_cache_limit_inserts(expert_cache *cache, uint32_t inserts_per_layer);
/* After expert_cache_layer: this miss is not to be brought in. */
void expert_cache_pass_over(expert_cache *cache, uint32_t expert);
/* The record of this insert is in its slot now: it is found and pinned. */
void expert_cache_commit(expert_cache *cache, const expert_insert *insert);
/* The copy failed: the slot is free again. */
void expert_cache_abandon(expert_cache *cache, const expert_insert *insert);

/* The next slots that would be given away, first the free ones, as long as nothing is hit;
 * returns how many of out[n] were filled.  Nothing changes. */
size_t expert_cache_victims(expert_cache *cache, uint32_t *out, size_t n);
/* After expert_cache_layer: a miss of the layer was brought into this slot, whose former
 * expert is no longer found. */
void expert_cache_place(expert_cache *cache, uint32_t expert, uint32_t slot);

/* Fill every slot with the experts that have the most uses, those of equal ones by turns of the
 * layers; slots are in the order of layers and experts.  Returns how many have uses at all; the
 * others are the first to go, or, with used_only, are not there. */
uint32_t expert_cache_fill(expert_cache *cache, bool used_only);
/* While kept, look-ups change and count nothing, and no miss is brought in. */
void expert_cache_keep(expert_cache *cache, bool kept);
/* More rows of an expert than a look-up has told. */
void expert_cache_add_uses(expert_cache *cache, uint32_t layer, uint32_t expert,
                           uint32_t n_rows);
/* [n_layers * n_experts]; may be written, before a fill. */
uint32_t *expert_cache_uses(expert_cache *cache);
/* Empty every slot; counts go on. */
void expert_cache_clear(expert_cache *cache);

/* Slot of an expert, or EXPERT_MISS; changes nothing. */
int32_t expert_cache_find(const expert_cache *cache, uint32_t layer, uint32_t expert);
/* layer * n_experts + expert of a slot, or UINT32_MAX when it is free. */
uint32_t expert_cache_owner(const expert_cache *cache, uint32_t slot);
uint32_t expert_cache_n_slots(const expert_cache *cache);
void expert_cache_counts(const expert_cache *cache, uint64_t *lookups, uint64_t *hits,
                         uint64_t *inserts);

#endif
