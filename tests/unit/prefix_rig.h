/* prefix_rig.h - a cache of prompts with a double of the model's memory, for its tests.
 *
 * The double writes into a page and a state a hash of the tokens they stand for, so a wrong page
 * or state shows.  Pages without an owner are overwritten after every step.
 */
#ifndef SILICEO_TESTS_UNIT_PREFIX_RIG_H
#define SILICEO_TESTS_UNIT_PREFIX_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/memory/prefix_cache.h"
#include "worker/memory/ram_slots.h"
#include <stdbool.h>

enum { N_PAGES = 24, N_STATES = 4, MAX_BLOCKS = 16, BLOCK = PREFIX_BLOCK_TOKENS };
enum { SLOT = RAM_SLOT_ALIGN }; /* what a page or state takes in RAM here */

typedef struct rig {
    kv_pages *pages;
    prefix_cache *cache;
    uint64_t page[N_PAGES];
    uint64_t state[N_STATES];
} rig;

/* States that caches opened from now on may keep snapshots in. */
extern uint32_t rig_n_spare;

void rig_open_with(rig *r, uint64_t ram_bytes, const char *folder, uint64_t disk_bytes);
void rig_open(rig *r, uint64_t ram_bytes);
void rig_close(rig *r);
/* Write over pages that nobody owns. */
void rig_poison(rig *r);

/* A text of blocks: block i is the word words[i], many times. */
void write_text(int32_t *tokens, const char *words);
uint64_t hash_of(const int32_t *tokens, size_t n_blocks);

typedef struct run {
    int32_t tokens[MAX_BLOCKS * BLOCK];
    uint32_t n_blocks;
    uint32_t pages[MAX_BLOCKS];
    uint32_t n_skipped; /* blocks */
} run;

/* What a sequence does: go on from what is held, run the rest; false: there are too few pages. */
bool rig_start(rig *r, run *u, const char *words, bool background);
bool rig_keep(rig *r, run *u, uint32_t n_blocks, bool background);
void rig_end(rig *r, run *u);
/* Run a text and hold it at each of the depths; how many blocks were skipped. */
uint32_t rig_play(rig *r, const char *words, const char *depths, bool background);
bool rig_holds(rig *r, const char *words);

#endif
