/* prefix_cache.h - beginnings of prompts that need not run again: KV pages and the recurrent
 * state behind them.
 *
 * A state exists for one position alone, so a hit is possible only where a snapshot of it was
 * taken; the pages before it are the other half.  Both stand at multiples of
 * PREFIX_BLOCK_TOKENS and come from tokens that ran as pieces of a prompt, so that going on
 * from them gives the bits that running them again would give.
 *
 * A page is held where it lies, by reference, as long as no sequence wants its place; then it
 * moves to RAM, or is forgotten.  Snapshots lie in states of the model, if some are the cache's,
 * and then in RAM.  One budget of RAM holds both; what was not used for longest goes first, and what belongs to background work before everything else.
 * Background work never takes the place of an interactive chat's.  Pages are kept while a
 * snapshot behind them is.
 *
 * With a folder, all of it is written there, too, by a thread, within a budget of its own; what
 * is on disk alone is read before its request runs, and survives the process.
 *
 * Allocates in its constructor, and for what is written and read.  Thread: engine, between
 * steps.
 */
#ifndef SILICEO_WORKER_MEMORY_PREFIX_CACHE_H
#define SILICEO_WORKER_MEMORY_PREFIX_CACHE_H

#include "common/error.h"
#include "worker/memory/kv_pages.h"
#include "worker/memory/prefix_index.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct prefix_cache prefix_cache;

/* Who has the pages and states: the model (see prefix_memory_of()), or a test's double. */
typedef struct prefix_memory {
    void *context;
    size_t page_bytes, state_bytes;
    void (*page_save)(void *context, uint32_t page, void *bytes);
    void (*page_load)(void *context, uint32_t page, const void *bytes);
    void (*state_save)(void *context, uint32_t state, void *bytes);
    void (*state_load)(void *context, uint32_t state, const void *bytes);
    void (*state_copy)(void *context, uint32_t to, uint32_t from);
} prefix_memory;

typedef struct prefix_params {
    prefix_memory memory;
    kv_pages *pages; /* must outlive the cache */
    /* States of the model that are the cache's alone: the newest snapshots lie in them. */
    uint32_t first_state, n_states;
    uint64_t ram_bytes;   /* at least a snapshot's */
    uint64_t disk_bytes;  /* 0: no disk */
    const char *disk_dir; /* made if it is not there */
    const char *identity; /* equal where equal tokens give equal bits */
} prefix_params;

typedef struct prefix_stats {
    /* since the start: */
    uint64_t lookups, hits; /* prompts, and those that skipped something */
    uint64_t hits_in_place; /* of them, from a state of the model */
    uint64_t asked_tokens;  /* of all those prompts */
    uint64_t hit_tokens;    /* skipped */
    uint64_t n_read;        /* snapshots read from disk */
    uint64_t ram_bytes;     /* of pages and snapshots in RAM */
    uint64_t ram_budget_bytes;
    uint64_t disk_bytes; /* of files there and to come */
    uint32_t n_writing;
    uint32_t n_snapshots;
    uint32_t n_blocks;
    uint32_t n_in_place; /* pages held where they lie */
    uint32_t n_alone;    /* of them, that no sequence uses */
} prefix_stats;

status prefix_cache_open(prefix_cache **out, const prefix_params *params, error *err);
void prefix_cache_close(prefix_cache *c); /* accepts NULL */

/* The longest beginning of the tokens that is held, of whole blocks and shorter than they are:
 * so many tokens, and the pages of them that lie where they are. */
typedef struct prefix_found {
    uint32_t n_tokens;
    uint32_t n_in_place;
} prefix_found;
prefix_found prefix_cache_find(const prefix_cache *c, const int32_t *tokens, uint32_t n_tokens);

/* Go on from there: its pages, with an owner more, are put into pages, and its state is loaded
 * into `state`.  Pages that lie in RAM take free ones.  Returns the tokens skipped. */
uint32_t prefix_cache_begin(prefix_cache *c, const int32_t *tokens, uint32_t n_tokens,
                            bool background, uint32_t state, uint32_t *pages);

/* For the figures: a prompt of n_tokens has begun, and went on from n_skipped of them. */
void prefix_cache_count(prefix_cache *c, uint32_t n_tokens, uint32_t n_skipped);

/* Hold n_tokens (whole blocks) that ran: their pages, and `state` as it is behind them.  False
 * when there is no room for it. */
bool prefix_cache_keep(prefix_cache *c, const int32_t *tokens, uint32_t n_tokens,
                       bool background, uint32_t state, const uint32_t *pages);

/* A beginning that somebody else knows by a name, which is not 0. */
typedef struct prefix_end {
    uint32_t n_tokens;
    uint64_t name;
} prefix_end;

/* The names of those of n_ends beginnings of the tokens (ascending) that are held: there is a
 * snapshot in the block in which each ends, before that end.  It goes by the name from now on,
 * which is among the lost ones once it is gone.  Returns how many stand in names. */
size_t prefix_cache_list_held(prefix_cache *c, const int32_t *tokens, const prefix_end *ends,
                              size_t n_ends, uint64_t *names);
/* Names whose snapshots are gone, each once; more than a few hundred are not remembered. */
size_t prefix_cache_take_lost(prefix_cache *c, uint64_t *names, size_t cap);

/* Read what a prompt could go on from and is on disk alone.  True: some of it is on its way, and
 * the prompt should wait until prefix_cache_is_loading() says no. */
bool prefix_cache_fetch(prefix_cache *c, const int32_t *tokens, uint32_t n_tokens,
                        bool background);
bool prefix_cache_is_loading(const prefix_cache *c, const int32_t *tokens, uint32_t n_tokens);
/* Take what the disk's thread has done; wait for some of it so long at most. */
void prefix_cache_poll(prefix_cache *c, uint32_t wait_ms);

/* Give back pages that lie where they are, until n more are free or it has no more to give. */
void prefix_cache_reclaim(prefix_cache *c, uint32_t n);
/* Forget everything. */
void prefix_cache_clear(prefix_cache *c);

void prefix_cache_read_stats(const prefix_cache *c, prefix_stats *out);

#endif
